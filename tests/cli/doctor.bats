# pawl doctor: each planted fault is found under its id, and a good set-up is fine. Runs under `with-server redis --`.
load helper
setup() {
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    mkdir -m 700 locks
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    pids=()
}
teardown() {
    for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done
    [ -z "${PAWL_TEST_REDIS:-}" ] || {
        redis ACL DELUSER few
        redis REPLICAOF NO ONE
        redis CONFIG SET maxmemory 0 maxmemory-policy noeviction appendonly no timeout 0 maxclients 10000
        redis FLUSHALL
    }
}
redis() { redis-cli -p "$PAWL_TEST_REDIS_PORT" "$@"; }
need_redis() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    export PAWL_URL=$PAWL_TEST_REDIS
}
levels() { "$PAWL" doctor --json "$@" | jq -r '"\(.id) \(.level)"' | grep -v ' ok$' | tr '\n' ' '; } # what is not well
found() { # LEVELS OPTION...: exactly that, and each finding says what to do
    local wanted=$1 all
    shift
    all=$("$PAWL" doctor --json "$@") || true
    [ -n "$all" ]
    [ "$(jq -r '"\(.id) \(.level)"' <<<"$all" | grep -v ' ok$' | tr '\n' ' ')" = "${wanted:+$wanted }" ] || { echo "wanted $wanted, got: $all" && return 1; }
    jq -es 'map(select(.level == "warning" or .level == "unsafe") | .seen and .why and .fix) | all' <<<"$all"
}
in_own_mounts() { [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || skip "needs root and mount namespaces"; }

@test "file: a good directory is fine, and the lock that was taken leaves one file" {
    here=$(mktemp -d "$(dirname "$PAWL")/doctor-XXXXXX")
    all=$(levels "file:$here")
    levels "file:$here"
    files=$(ls "$here")
    rm -r "$here"
    [ "$files" = pawl-doctor ]
    case $here in /tmp/* | /var/tmp/*) all=${all/F04 warning /} ;; esac
    all=${all/F01 warning /} # a container's overlay, or a tmpfs: so it is
    [ -z "$all" ]
}

@test "file: permissions and place" {
    [[ $BATS_TEST_TMPDIR == /tmp/* ]] || skip "the tests are not below /tmp"
    base=$(levels file:locks | sed 's/ $//') # F04, and what this machine's /tmp is
    [[ $base == *"F04 warning"* ]]
    chmod 1777 locks
    [[ $(levels file:locks) == *"F02 warning"* ]]
    chmod 770 locks
    [[ $(levels file:locks) == *"F02 warning"* ]]
    chmod 2770 locks
    [[ $(levels file:locks) != *F02* ]]
    [ "$(id -u)" = 0 ] || skip "the rest needs root"
    chmod 700 locks
    chown 65534 locks
    [[ $(levels file:locks) == *"F02 warning"* ]]
}

@test "file: file systems, room, many files" {
    in_own_mounts
    cat >mounts <<'EOF'
levels() { "$PAWL" doctor --json "$@" | jq -r '"\(.id) \(.level)"' | grep -v ' ok$' | tr '\n' ' '; }
mkdir -p /mnt/t && mount -t tmpfs -o size=900k,mode=700,nr_inodes=60000 tmpfs /mnt || exit 77
[ "$(levels file:/mnt)" = "F01 warning F03 unsafe " ] || { levels file:/mnt; exit 1; }
mount -t tmpfs -o size=200m,mode=700,nr_inodes=60000 tmpfs /mnt || exit 77
[ "$(levels file:/mnt)" = "F01 warning " ] || { levels file:/mnt; exit 2; }
(cd /mnt && seq 50001 | xargs touch)
[ "$(levels file:/mnt)" = "F01 warning F05 warning " ] || { levels file:/mnt; exit 3; }
mkdir -m 700 /mnt/up /mnt/work /mnt/low /mnt/merged
mount -t overlay -o lowerdir=/mnt/low,upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/merged || exit 0
[ "$(levels file:/mnt/merged)" = "F01 warning " ] || { levels file:/mnt/merged; exit 4; }
EOF
    run env PAWL="$PAWL" unshare -m bash mounts
    echo "$output"
    [ "$status" != 77 ] || skip "no mounts here"
    [ "$status" = 0 ]
}

@test "everywhere: no lock can be taken, tokens ahead of the clock, correctness" {
    pawl token advance file:locks --to $(($(date +%s%6N) + 3600000000))
    [[ $(levels file:locks) == *"C03 warning"* ]]
    mkdir -m 555 others
    if [ "$(id -u)" = 0 ]; then
        run -2 setpriv --bounding-set=-dac_override "$PAWL" doctor --json file:others
        jq -es 'map(select(.id == "C01"))[0] | .level == "unsafe" and (.seen | contains("Permission denied"))' <<<"$output"
    fi
    run --separate-stderr -120 pawl doctor file:nowhere
    in_stderr "nowhere"
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    [[ $(levels) != *C05* ]]
    found "C05 unsafe" --for correctness
}

@test "redis: each fault under its id, and a good set-up is fine" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    run -0 pawl doctor
    [[ ${lines[0]} == redis://* ]]
    [[ ${lines[1]} == "good for   efficiency: yes        correctness: with a guard only"* ]]
    [[ ${lines[2]} == "ok      C01 a lock  C02 clock"*"R11 wake-ups  R12 rights" ]]
    [ "${#lines[@]}" = 3 ]
    redis CONFIG SET maxmemory-policy allkeys-lru
    found "R03 warning"
    redis CONFIG SET maxmemory 500mb
    found "R03 unsafe"
    redis CONFIG SET maxmemory-policy volatile-ttl
    found "R03 unsafe"
    run -2 pawl doctor
    [[ ${lines[1]} == "good for   efficiency: NO        correctness: NO" ]]
    redis CONFIG SET maxmemory-policy noeviction
    found ""
    redis CONFIG SET maxmemory "$(redis INFO memory | sed -n 's/^used_memory:\([0-9]*\).*/\1/p' | awk '{ print int($1 * 1.08) }')"
    found "R04 warning"
    redis CONFIG SET maxmemory 0 timeout 60
    found "R09 warning"
    redis CONFIG SET timeout 0 appendfsync everysec
    found "R10 warning"
    run -1 pawl doctor
    redis CONFIG SET appendonly no
    found "R05 warning"
    redis CONFIG SET appendonly yes appendfsync always maxclients 5
    for _ in 1 2 3; do exec {idle}<>"/dev/tcp/127.0.0.1/$PAWL_TEST_REDIS_PORT"; done
    found "R08 warning"
}

@test "redis: a replica that nobody follows" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$BATS_TEST_TMPDIR" \
        --replicaof 127.0.0.1 "$PAWL_TEST_REDIS_PORT" >/dev/null 2>&1 3>&- &
    pids+=($!)
    until_ok 20 sh -c "redis-cli -p $PAWL_TEST_REDIS_PORT INFO replication | grep -q connected_slaves:1"
    found "R02 unsafe"
    run -120 pawl doctor "redis://127.0.0.1:$port"
}

@test "redis: the rights of a lock are enough; what may not be seen is said; a missing right is found" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    rights=$(sed -n 's/^    ACL SETUSER app on >PASSWORD //p' "$BATS_TEST_DIRNAME/../../docs/redis.md")
    [ -n "$rights" ]
    # shellcheck disable=SC2086
    redis ACL SETUSER few on '>secret' $rights
    few=redis://few:secret@127.0.0.1:$PAWL_TEST_REDIS_PORT
    found "R09 unseen R10 unseen" "$few"
    run -0 pawl doctor "$few"
    [[ $output != *secret* ]]
    in_output "CONFIG GET timeout is not allowed to this user"
    redis ACL SETUSER few -publish
    found "R09 unseen R10 unseen R11 warning R12 warning" "$few"
    redis ACL SETUSER few -set
    [[ $(levels "$few") == "C01 unsafe "*"R12 unsafe "* ]]
    missing='+evalsha +exists +incr +zrank +publish +subscribe' # all of them at once
    # shellcheck disable=SC2086
    redis ACL SETUSER few +set ${missing//+/-}
    run --separate-stderr -2 pawl doctor --json "$few"
    jq -es --arg missing "$missing" 'map(select(.id == "R12"))[0] | .seen == $missing and .fix == "ACL SETUSER ... " + $missing' <<<"$output"
    # shellcheck disable=SC2086
    redis ACL SETUSER few $missing resetkeys '~other:*' resetchannels
    run --separate-stderr -2 pawl doctor --json "$few"
    jq -es 'map(select(.id == "R12"))[0] | .seen == "~pawl:* &pawl:*"' <<<"$output"
    [ "$(redis EXISTS pawl:%doctor)" = 0 ]
}
