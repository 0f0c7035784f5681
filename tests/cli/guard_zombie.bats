# The zombie of cases B44 and B46 on a real service, for each kind of guard: processes that are stopped, and a service that
# lost everything. PAWL_TEST_REDIS is a Redis of the test's own.
load helper

setup() {
    pawl_setup
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    export PAWL_URL=$PAWL_TEST_REDIS
    bin=${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}
    kinds=("dir:$BATS_TEST_TMPDIR/bank" "sqlite:$BATS_TEST_TMPDIR/bank.db")
    pawl guard audit "${kinds[1]}" x 2>&1 | grep -q "no module" && unset 'kinds[1]' # a build without SQLite
    return 0
}

# A holder in the background: pid in $holder, token in $token. hold TTL NAME
hold() {
    coproc HOLD { exec "$bin" hold -t "$1" "$2"; } 3>&-
    holder=$HOLD_PID
    while read -r line <&"${HOLD[0]}"; do
        token=$(jq -r 'select(.event == "held") | .token' <<<"$line")
        [ -z "$token" ] || return 0
    done
    return 1
}
let_go() {
    kill -KILL "$holder" 2>/dev/null || true # it may have ended by itself
    wait "$holder" 2>/dev/null || true
}

@test "a stopped holder wakes up: its write is stale, the resource unchanged" {
    for url in "${kinds[@]}"; do
        name=acct-${url%%:*}
        hold 3s "$name"
        printf 1000 | pawl guard put "$url" balance --lock "$name" --token "$token"
        kill -STOP "$holder"
        run -0 pawl run -w 20s "$name" -- sh -c 'printf 2500 | "$0" guard put "$1" balance --by "worker 2"; echo "$PAWL_TOKEN"' "$bin" "$url"
        second=$output
        [ "$second" -gt "$token" ]
        kill -CONT "$holder"
        run --separate-stderr -121 bash -c 'printf 1500 | "$0" guard put "$1" balance --lock "$2" --token "$3" --by "worker 1"' "$bin" "$url" "$name" "$token"
        in_stderr "stale token $token from worker 1; current is $second, written by worker 2"
        [ "$(pawl guard get "$url" balance)" = 2500 ]
        let_go
    done
}

@test "sealed by the new holder: the old one is refused although the new one has not written" {
    for url in "${kinds[@]}"; do
        name=seal-${url%%:*}
        hold 3s "$name"
        printf old | pawl guard put "$url" acct --lock "$name" --token "$token"
        kill -STOP "$holder"
        run --separate-stderr -121 pawl run -w 20s --seal "$url#acct" "$name" -- \
            sh -c 'printf zombie | "$0" guard put "$1" acct --token "$2"' "$bin" "$url" "$token"
        in_stderr "stale token $token"
        [ "$(pawl guard get "$url" acct)" = old ]
        let_go
    done
}

@test "the service lost everything: the next token is still above what the guard accepted" {
    for url in "${kinds[@]}"; do
        for round in 1 2 3; do
            run --separate-stderr -0 pawl run "lost-${url%%:*}" -- sh -c 'printf %s "$2" | "$0" guard put "$1" data' "$bin" "$url" "$round"
            [ "$(pawl guard get "$url" data)" = $round ]
            redis-cli -p "$PAWL_TEST_REDIS_PORT" FLUSHALL >/dev/null
        done
    done
}

@test "--for correctness refuses a lock that a ttl ends, unless the resource is sealed" {
    for url in "${kinds[@]}"; do
        run --separate-stderr -119 pawl run --for correctness strict -- touch "$BATS_TEST_TMPDIR/ran"
        [ ! -e "$BATS_TEST_TMPDIR/ran" ]
        [ -n "$stderr" ]
        run -0 pawl run --for correctness --seal "$url" strict -- echo ran
        in_output ran
        [ "$(pawl guard get "$url" strict --json | jq -r .lock)" = strict ]
    done
}
