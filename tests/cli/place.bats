# The directory of file: for whoever calls pawl: one and the same from everywhere, or a reason. Root only: each test has a
# file system of its own.
load helper
setup() {
    pawl_setup
    unset PAWL_URL PAWL_CONFIG
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    cd "$BATS_TEST_TMPDIR"
    [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || skip "needs root and mount namespaces"
}

@test "a login shell, env -i, cron, another home and a private /tmp meet in one lock" {
    [[ $PAWL != /tmp/* ]] || skip "the build is below /tmp"
    cat >meet <<'EOF'
mount -t tmpfs tmpfs /var/lib || exit 77
cd /
coproc HOLD { exec bash -lc 'exec "$0" hold nightly' "$PAWL"; }
read -r event <&"${HOLD[0]}"
code=0
busy() { # WHAT COMMAND...: finds it held
    local what=$1 got=0
    shift
    "$@" || got=$?
    [ "$got" = 123 ] || { echo "$what: exit $got" && code=1; }
}
busy "env -i" env -i "$PAWL" run -n nightly touch ran
busy cron env -i HOME=/root LOGNAME=root SHELL=/bin/sh PATH=/usr/bin:/bin /bin/sh -c "$PAWL run -n nightly touch ran"
busy "another home" env HOME=/nowhere XDG_STATE_HOME=/nowhere TMPDIR=/nowhere USER=nobody "$PAWL" run -n nightly touch ran
busy "a private /tmp" unshare -m sh -c 'mount -t tmpfs tmpfs /tmp && exec "$0" run -n nightly touch ran' "$PAWL"
env -i "$PAWL" who nightly | head -n1 | grep -qx 'nightly *file:/var/lib/pawl' || { echo "who names another directory" && code=1; }
[ "$(stat -c %a /var/lib/pawl)" = 700 ] || code=1
exit $code
EOF
    run -0 env PAWL="$PAWL" unshare -m bash meet
}

@test "a full disk and a directory without rights are 120, named, and nothing is run or left" {
    mkdir full
    cat >full-disk <<'EOF'
mount -t tmpfs -o size=8k,mode=700 tmpfs full || exit 77
cat /dev/zero >full/.fill 2>/dev/null
code=0
"$PAWL" run -u file:full n touch ran || code=$?
[ "$(ls -A full)" = .fill ] || code=1
exit $code
EOF
    run --separate-stderr -120 env PAWL="$PAWL" unshare -m bash full-disk
    in_stderr "/full/"
    in_stderr "No space left on device"
    mkdir -m 555 others
    run --separate-stderr -120 setpriv --bounding-set=-dac_override "$PAWL" run -u file:others n touch ran
    in_stderr "/others/n: Permission denied"
    [ ! -e ran ]
    [ -z "$(ls -A others)" ]
}

@test "a password with a raw @ / ? or # is refused where it stands, and not shown" {
    for raw in @ / '?' '#'; do
        run --separate-stderr -125 pawl run -u "redis://:SEC${raw}RET@127.0.0.1:1/0" n -- true
        in_stderr "character 13 of it, a raw '$raw' in the user or password: write it as %"
        [[ $stderr != *SEC* && $stderr != *RET* ]]
    done
}
