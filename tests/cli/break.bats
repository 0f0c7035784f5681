# pawl watch and pawl break, on a Redis of our own, and break on the other services that are there (PAWL_TEST_...).
load helper
setup() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    pawl_setup
    export PAWL_URL=$PAWL_TEST_REDIS
    cd "$BATS_TEST_TMPDIR"
    PAWL=${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}
    pids=()
}
teardown() {
    for pid in "${pids[@]}"; do kill -CONT "$pid" 2>/dev/null && kill "$pid" && wait "$pid" || true; done
    [ -z "${PAWL_TEST_REDIS:-}" ] || redis-cli -p "$PAWL_TEST_REDIS_PORT" FLUSHALL
}
start() { # OPTIONS... NAME COMMAND...: in the background, stderr in ./stderr
    "$PAWL" run "$@" 2>stderr 3>&- &
    pids+=($!) pid=$!
    until_ok 10 test -e up
}
watch() { # OPTIONS... NAME: into ./seen
    "$PAWL" watch --every 20ms "$@" >seen 2>watch-stderr 3>&- &
    pids+=($!)
    until_ok 10 test -s seen
}
token() { pawl who --json "$1" | jq -r '.holders[0].token'; }

@test "break: the lock stays taken until the old holder has stopped; he is told who did it; the next token is higher" {
    start -t 3s stuck sh -c 'echo $PAWL_TOKEN >token; touch up; exec sleep 60'
    read -r old <token
    run -0 pawl break --label 'since noon' stuck
    [[ $output =~ ^"stuck: taken from sh (pid $pid, $(id -un)@$(hostname)), token $old; free in "([0-9]+)" "(s|ms)", when that has stopped"$ ]]
    run -0 pawl who --json stuck
    jq -e --arg old "$old" '.holders[0] | .label == "since noon" and .command == "pawl" and (.token | tonumber) > ($old | tonumber)' <<<"$output"
    next=$(pawl run -w 10s stuck sh -c 'echo $PAWL_TOKEN $(jobs -p)')
    [ "$next" -gt "$old" ]
    code=0
    wait "$pid" || code=$?
    [ "$code" = 122 ]
    grep -qE 'not ours any more, but of pawl \(pid [0-9]+, .*@.*, "since noon"\); sh \(pid' stderr
}

@test "break without a label: who says why the lock is not free yet" {
    start -t 60s stuck sh -c 'touch up; exec sleep 60'
    run -0 pawl break stuck
    run -0 pawl who stuck
    grep -q 'held by   pawl .*"kept after a break"' <<<"$output"
}

@test "break --now: free at once, and the first in line gets it" {
    start -t 60s stuck sh -c 'touch up; exec sleep 60'
    "$PAWL" run stuck touch next 3>&- &
    waiter=$!
    until_ok 10 sh -c '[ "$("$0" who --json stuck | jq ".waiting | length")" = 1 ]' "$PAWL"
    run -0 pawl break --json --now stuck
    jq -e '.broken == true and .free_in_ms == 0 and .name == "stuck" and has("hint") and .hint == null and (.token | test("^[0-9]+$"))' <<<"$output"
    wait "$waiter" # long before the ttl is over
    [ -e next ]
}

@test "break: what is free is 1, a key of another program goes, what file: keeps is named" {
    run -1 pawl break n
    [ "$output" = "n is free" ]
    redis-cli -p "$PAWL_TEST_REDIS_PORT" SET pawl:n something
    run -0 pawl break n
    [ "$output" = "n: taken from another program; free now" ]
    run -1 pawl who n
    mkdir locks
    start -u file:locks n sh -c 'touch up; exec sleep 60'
    run --separate-stderr -119 pawl break -u file:locks n
    in_stderr "pawl: n: file: has no way to take a lock from its holder"
    in_stderr "pawl: n: held by sh: kill $pid on $(hostname)"
    run -0 pawl who -q -u file:locks n
    run --separate-stderr -125 pawl break
    in_stderr "NAME is missing"
}

@test "break on etcd and PostgreSQL: free at once, the holder ends, the next token is higher" {
    for url in ${PAWL_TEST_ETCD:+"$PAWL_TEST_ETCD"} ${PAWL_TEST_POSTGRESQL:+"$PAWL_TEST_POSTGRESQL"}; do
        [[ $url != postgresql* ]] || pawl init -q "$url"
        rm -f up
        start -u "$url" stuck sh -c 'echo $PAWL_TOKEN >token; touch up; exec sleep 600'
        read -r old <token
        run -0 pawl break -u "$url" stuck
        in_output "stuck: taken from sh (pid $pid, "
        next=$(pawl run -u "$url" -w 60s stuck sh -c 'echo $PAWL_TOKEN')
        [ "$next" -gt "$old" ]
        code=0
        wait "$pid" || code=$?
        [ "$code" = 122 ]
        grep -q 'pawl: stuck: LOST after' stderr
        run -1 pawl break -u "$url" stuck
        [ "$output" = "stuck is free" ]
    done
}

@test "break on redlock: refused, the lock stays, and it is said what to do" {
    [ -n "${PAWL_TEST_REDLOCK:-}" ] || skip "no redlock"
    start -u "$PAWL_TEST_REDLOCK" stuck sh -c 'touch up; until [ -e go ]; do sleep 0.02; done'
    run --separate-stderr -119 pawl break -u "$PAWL_TEST_REDLOCK" stuck
    in_stderr "redlock: has no way to take a lock from its holder"
    in_stderr "kill $pid on $(hostname)"
    touch go
    wait "$pid"
}

@test "a lock that another program took is lost to that" {
    "$PAWL" run -t 1s n sleep 600 2>stderr 3>&- &
    pids+=($!)
    until_ok 10 pawl who -q n
    redis-cli -p "$PAWL_TEST_REDIS_PORT" SET pawl:n theirs PX 600000
    until_ok 30 grep 'but of another program; ' stderr
}

@test "watch: a line for each change, and none without" {
    watch n
    start n sh -c 'touch up; until [ -e go ]; do sleep 0.02; done'
    until_ok 10 grep -q 'n held by sh (pid '"$pid" seen
    touch go
    wait "$pid"
    until_ok 10 sh -c '[ "$(wc -l <seen)" = 3 ]'
    [[ $(sed -n 1p seen) =~ ^[0-9:]+"  n free"$ ]]
    [[ $(sed -n 2p seen) =~ ", token "[0-9]+$ ]]
    [[ $(sed -n 3p seen) =~ "  n free"$ ]]
}

@test "watch --json: the object of who with the time; waiters; a server that is silent is unknown" {
    start n sh -c 'touch up; exec sleep 60'
    watch --json -w 300ms n
    "$PAWL" run n true 3>&- &
    pids+=($!)
    until_ok 10 sh -c 'jq -es "last | .held and (.waiting | length) == 1" seen'
    jq -es 'map(.time | test("^20..-..-..T")) | all' seen
    diff <(jq -s '.[0] | keys_unsorted - ["time"]' seen) <(pawl who --json n | jq keys_unsorted)
    server=$(redis-cli -p "$PAWL_TEST_REDIS_PORT" INFO server | sed -n 's/^process_id:\([0-9]*\).*/\1/p')
    kill -STOP "$server"
    until_ok 10 sh -c 'jq -es "last | .held == null" seen'
    kill -CONT "$server"
    until_ok 10 sh -c 'jq -es "last | .held" seen'
    [ -s watch-stderr ]
}

@test "watch: ends when nobody reads it any more" {
    timeout 60 "$PAWL" watch n 3>&- | head -1 >seen
    status=${PIPESTATUS[0]}
    [ "$status" = 141 ] || [ "$status" = 125 ] # where SIGPIPE is ignored
    [[ $(<seen) == *" n free" ]]
}

@test "who, watch, break: a name has 1 to 512 bytes" {
    for name in '' "$(printf 'a%.0s' {1..513})"; do
        for verb in who watch break; do
            run --separate-stderr -125 timeout 60 "$PAWL" "$verb" "$name"
            in_stderr "1 to 512 bytes"
        done
    done
    run -1 pawl who "$(printf 'a%.0s' {1..512})"
}
