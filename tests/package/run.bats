# ./run and what it shares with ./check: builds, keeps stdout clean, installs what is missing and nothing else.
# SOURCE is meson's source directory.

bats_require_minimum_version 1.5.0

@test "run: builds, and stdout has the command's output only" {
    run --separate-stderr bash -c 'PAWL_URL=file:$BATS_TEST_TMPDIR "$SOURCE/run" run n -- sh -c "echo \$PAWL_TOKEN" </dev/null'
    echo "$stderr"
    [ "$status" = 0 ]
    [[ "$output" =~ ^[0-9]+$ ]]
}

@test "run: stdin, arguments and exit code are the command's" {
    run bash -c 'printf "a b" | PAWL_URL=file:$BATS_TEST_TMPDIR "$SOURCE/run" run n -- sh -c "cat; echo \"<\$1>\"; exit 7" sh "x  y"'
    [ "$status" = 7 ]
    [ "$output" = "a b<x  y>" ]
}

@test "run: nothing to do costs less than a third of a second more than pawl" {
    "$SOURCE/run" version >"$BATS_TEST_TMPDIR/out"
    best=99999
    for _ in {1..20}; do # until one of them is not held up by others
        start=${EPOCHREALTIME//[.,]/}
        "$SOURCE/run" version >"$BATS_TEST_TMPDIR/out"
        took=$(((${EPOCHREALTIME//[.,]/} - start) / 1000))
        [ $took -ge $best ] || best=$took
        [ $best -ge 333 ] || break
    done
    echo "the best: $best ms"
    [ $best -lt 333 ]
}

# A Debian of our own: dpkg-query that misses some packages, apt-get and sudo that write down how they are called.
stubs() { # UID
    mkdir -p "$BATS_TEST_TMPDIR/bin"
    cd "$BATS_TEST_TMPDIR/bin"
    printf '#!/bin/sh\nshift 2\nfor p; do case $p in alpha|beta) ;; *) echo "$p installed" ;; esac; done\n' >dpkg-query
    printf '#!/bin/sh\necho "apt-get $*; policy $([ -x "$PAWL_POLICY" ] && "$PAWL_POLICY"; echo $?)" >>"%s/calls"\n' "$BATS_TEST_TMPDIR" >apt-get
    printf '#!/bin/sh\necho "sudo $*" >>"%s/calls"\n[ "$1" != -n ] || shift\nexec "$@"\n' "$BATS_TEST_TMPDIR" >sudo
    printf '#!/bin/sh\necho %s\n' "$1" >id
    chmod +x ./*
    export PATH="$BATS_TEST_TMPDIR/bin:$PATH" PAWL_POLICY="$BATS_TEST_TMPDIR/policy-rc.d"
    : >"$BATS_TEST_TMPDIR/calls"
}

@test "packages: what is missing is installed, services stay down meanwhile, and the policy is taken back" {
    stubs 0
    run bash -c '. "$SOURCE/tools/packages.sh"; need_packages gcc alpha make beta </dev/null'
    echo "$output"
    cat "$BATS_TEST_TMPDIR/calls"
    [ "$status" = 0 ]
    [[ "$output" == *"needs these Debian packages: alpha beta"* ]]
    grep -q 'apt-get .*install --no-install-recommends alpha beta; policy 101$' "$BATS_TEST_TMPDIR/calls"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/calls")" = 1 ]
    [ ! -e "$PAWL_POLICY" ]
}

@test "packages: a policy that was there stays as it is" {
    stubs 0
    echo theirs >"$PAWL_POLICY"
    run bash -c '. "$SOURCE/tools/packages.sh"; need_packages alpha </dev/null'
    [ "$status" = 0 ]
    [ "$(cat "$PAWL_POLICY")" = theirs ]
}

@test "packages: not root goes by sudo, which may not ask without a terminal" {
    stubs 1000
    run bash -c '. "$SOURCE/tools/packages.sh"; need_packages alpha </dev/null'
    cat "$BATS_TEST_TMPDIR/calls"
    [ "$status" = 0 ]
    grep -q '^sudo -n .*apt-get .*install .* alpha$' "$BATS_TEST_TMPDIR/calls"
    [ ! -e "$PAWL_POLICY" ]
}

@test "packages: neither root nor sudo: says what to type" {
    stubs 1000
    rm "$BATS_TEST_TMPDIR/bin/sudo"
    run bash -c 'PATH=$BATS_TEST_TMPDIR/bin; . "$SOURCE/tools/packages.sh"; apt_install alpha beta </dev/null'
    [ "$status" = 1 ]
    [[ "$output" == *"As root: apt-get install alpha beta"* ]]
}

@test "packages: an old package list is brought up to date, once" {
    stubs 0
    printf '#!/bin/sh\necho "$*" >>"%s/calls"\ncase "$*" in *update*) : >"%s/updated" ;; *) [ -e "%s/updated" ] ;; esac\n' \
        "$BATS_TEST_TMPDIR" "$BATS_TEST_TMPDIR" "$BATS_TEST_TMPDIR" >"$BATS_TEST_TMPDIR/bin/apt-get"
    run bash -c '. "$SOURCE/tools/packages.sh"; need_packages alpha </dev/null'
    cat "$BATS_TEST_TMPDIR/calls"
    [ "$status" = 0 ]
    [ "$(grep -c install "$BATS_TEST_TMPDIR/calls")" = 2 ]
    [ "$(grep -c update "$BATS_TEST_TMPDIR/calls")" = 1 ]
}

@test "packages: nothing missing calls nobody" {
    stubs 0
    run bash -c '. "$SOURCE/tools/packages.sh"; need_packages gcc make </dev/null'
    [ "$status" = 0 ]
    [ -z "$output" ]
    [ ! -s "$BATS_TEST_TMPDIR/calls" ]
}

# --- the count that CI reads ---

summary() { # TESTLOG STATUS
    printf '%s' "$1" >"$BATS_TEST_TMPDIR/log"
    python3 "$SOURCE/tools/summary.py" "$BATS_TEST_TMPDIR/log" "$2" "$BATS_TEST_TMPDIR/line" label >"$BATS_TEST_TMPDIR/shown"
}
entry() { # NAME RESULT STDOUT
    printf '{"name": "%s", "stdout": "%s", "result": "%s", "duration": 1.0, "returncode": 0}\n' "$1" "$3" "$2"
}

@test "summary: TAP counts by cases, other programs as one" {
    summary "$(entry a OK '1..3\nok 1 - x\nok 2 # SKIP y\nok 3\n'; echo; entry b OK 'ok then')" 0
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "3 passed, 0 failed, 1 skipped" ]
}

@test "summary: a failing case is counted and its log shown" {
    run -1 summary "$(entry a FAIL '1..2\nok 1\nnot ok 2 - the reason\n')" 1
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "1 passed, 1 failed" ]
    grep -q 'the reason' "$BATS_TEST_TMPDIR/shown"
}

@test "summary: a crash or timeout after good cases is a failure" {
    run -1 summary "$(entry a TIMEOUT '1..9\nok 1\nok 2\n')" 1
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "2 passed, 1 failed" ]
}

@test "summary: nothing ran, or meson itself failed, is a failure" {
    run -1 summary "" 0
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "0 passed, 1 failed" ]
    run -1 summary "$(entry a OK '1..1\nok 1\n')" 124
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "1 passed, 1 failed" ]
    grep -q 'took too long' "$BATS_TEST_TMPDIR/shown"
}

@test "summary: a program skipped as a whole fails in CI only" {
    unset CI
    log=$(entry a OK '1..1\nok 1\n'; echo; entry redis SKIP '')
    summary "$log" 0
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "1 passed, 0 failed, 1 skipped" ]
    export CI=true
    run -1 summary "$log" 0
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "1 passed, 1 failed, 1 skipped" ]
}

@test "summary: a program that wants PAWL_TEST_FULL may be skipped in CI too" {
    export CI=true
    summary "$(entry a OK '1..1\nok 1\n'; echo; entry slow SKIP '1..0 # SKIP PAWL_TEST_FULL=1\n')" 0
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "1 passed, 0 failed, 1 skipped" ]
}

@test "summary: skip() of cmocka is a skip, not a failure" {
    summary "$(entry a FAIL '1..2\nok 1\nnot ok 2 # SKIP x\n')" 1
    [ "$(cat "$BATS_TEST_TMPDIR/line")" = "1 passed, 0 failed, 1 skipped" ]
    run -1 summary "$(entry a FAIL '1..2\nok 1\nnot ok 2 # SKIP x\n')" 2
}
