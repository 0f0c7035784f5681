# pawl demo zombie: the story word by word, with times and tokens masked, and those checked apart.
# PAWL_TEST_..., if set, are servers of the test's own.
load helper
setup() { pawl_setup; }

# Times become T, tokens A, B, ... in the order of their numbers.
masked() {
    local text=$1 letter=A token
    for token in $(grep -o '[0-9]\{16\}' <<<"$text" | sort -nu); do
        text=${text//$token/$letter}
        letter=$(tr A-Y B-Z <<<"$letter")
    done
    sed -E 's/^ *[0-9]+ ms  worker/     T ms  worker/; s/[0-9]+ (ms|s) ago/T ms ago/; s/guard \(dir\)/guard (sqlite)/' <<<"$text"
}

@test "the story, in memory" {
    for _ in 1 2 3; do # how long it takes is told by the one that nothing held up
        began=$EPOCHREALTIME
        run --separate-stderr -0 pawl demo
        ended=$EPOCHREALTIME
        [ $((${ended/./} - ${began/./})) -ge 5000000 ] || break
    done
    [ -z "$stderr" ]
    masked "$output" | diff "$BATS_TEST_DIRNAME/demo.golden" -
    awk '/worker 2  has the lock/ && $1 < 350 { exit 1 } /wakes up/ && $1 < 500 { exit 1 }' <<<"$output"
    [ $((${ended/./} - ${began/./})) -lt 5000000 ]
    left=$(ls -d /tmp/pawl-demo-* 2>/dev/null | xargs -rI{} find {} -maxdepth 0 -newermt "@${began%.*}" -user "$(id -un)")
    until_ok 20 sh -c 'for folder; do [ ! -e "$folder" ] || exit 1; done' - $left # those of others, at the same time, go as well
}

@test "the story on a real service, with processes that are stopped" {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    for url in "$PAWL_TEST_REDIS" ${PAWL_TEST_REDLOCK:+"$PAWL_TEST_REDLOCK?timeout=100"}; do
        for _ in 1 2 3 4 5; do # a ttl of 300 ms: on a machine that stands still, five instances may take that long to answer
            run --separate-stderr pawl demo zombie -u "$url"
            [ "$status" = 120 ] || break
        done
        [ "$status" = 0 ] || { echo "$output$stderr" && return 1; }
        [ -z "$stderr" ]
        masked "$output" | diff <(sed 's/stalls for 500 ms,/is stopped (SIGSTOP),/' "$BATS_TEST_DIRNAME/demo.golden") -
    done
}

@test "the story on etcd, whose leases are seconds" {
    [ -n "${PAWL_TEST_ETCD:-}" ] || skip "no etcd"
    run --separate-stderr -0 pawl demo -u "$PAWL_TEST_ETCD"
    [ -z "$stderr" ]
    masked "$output" | diff <(sed -e 's/stalls for 500 ms,/is stopped (SIGSTOP),/' -e 's/for 300 ms/for 2000 ms/' \
        -e 's/for 1000 ms/for 4000 ms/' "$BATS_TEST_DIRNAME/demo.golden") -
}

@test "a lock that a stopped holder keeps cannot show it, and says so before the story begins" {
    mkdir -p "${PAWL_URL#file:}"
    [ -z "${PAWL_TEST_POSTGRESQL:-}" ] || pawl init -q "$PAWL_TEST_POSTGRESQL"
    for url in "$PAWL_URL" ${PAWL_TEST_POSTGRESQL:+"$PAWL_TEST_POSTGRESQL"}; do
        run --separate-stderr -119 pawl demo -u "$url"
        [ -z "$output" ]
        in_stderr "cannot show it"
        in_stderr "no -u"
    done
}

@test "PAWL_URL does not change what the demo shows; what is not there is said" {
    run --separate-stderr -0 env PAWL_URL=redis://127.0.0.1:1 "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}" demo
    run --separate-stderr -120 timeout 30 "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}" demo -u redis://127.0.0.1:1 # at once
    in_stderr "127.0.0.1"
    run --separate-stderr -125 pawl demo vampire
    in_stderr "no demo 'vampire'"
}

@test "a story that needs servers is told by pawl-lab" {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    run --separate-stderr -0 pawl demo stale-release
    in_output "Release in a finally block"
    in_output "B has it"
    [[ $output != *$'\e['* ]]
    grep -qE "^stale-release +plain .* broke" <<<"$output"
    grep -qE "^ +guarded .* held|^stale-release +guarded .* held" <<<"$output"
}

@test "colours are for a terminal, and not for who wants none" {
    command -v script >/dev/null || skip "no script(1)"
    run -0 env TERM=xterm script -qec "'${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}' demo" /dev/null
    in_output $'\e[32mREFUSED\e[0m'
    in_output $'\e[31maccepted\e[0m'
    run -0 env TERM=xterm NO_COLOR=1 script -qec "'${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}' demo" /dev/null
    [[ $output != *$'\e['* ]]
    run -0 pawl demo
    [[ $output != *$'\e['* ]]
}
