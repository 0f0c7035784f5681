# hold, who, ls and token on a service with a ttl and a network: a Redis of our own.
load helper

setup() {
    command -v redis-server >/dev/null || skip "no redis-server here"
    pawl version | grep -qw redis || skip "this build has no redis module"
    pawl_setup
    directory=$(mktemp -d) # a socket's path must be short
    socket=$directory/r.sock
    redis-server --port 0 --unixsocket "$socket" --dir "$directory" --save '' --requirepass hush-hush 3>&- >/dev/null 2>&1 &
    server=$!
    export PAWL_URL=redis+unix://:hush-hush@$socket
    until_ok 10 redis PING
}
teardown() {
    [ -z "${handle:-}" ] || pawl release "$handle" 2>/dev/null || true
    [ -z "${HOLD_PID:-}" ] || kill "$HOLD_PID" 2>/dev/null || true
    [ -z "${server:-}" ] || kill -CONT "$server" || true
    [ -z "${server:-}" ] || kill "$server" || true
    [ -z "${directory:-}" ] || rm -rf "$directory"
}
redis() { REDISCLI_AUTH=hush-hush redis-cli -s "$socket" "$@" | grep .; }
next_event() { # EVENT: the next line is that event; it is in $line
    read -rt 20 line <&"$out" || { echo "no event; wanted $1" && return 1; }
    [ "$(jq -r .event <<<"$line")" = "$1" ] || { echo "wanted $1, got $line" && return 1; }
}
start_hold() {
    coproc HOLD { exec "${PAWL_BIN:-pawl}" hold "$@" 3>&- 2>"$BATS_TEST_TMPDIR/stderr"; }
    pid=$HOLD_PID
    in=${HOLD[1]}
    exec {out}<&"${HOLD[0]}" # outlives the coprocess
}
ends() { # CODE
    local code=0
    wait "$pid" || code=$?
    [ "$code" = "$1" ] || { echo "wanted exit $1, got $code" && return 1; }
}

@test "held: who, ls and JSON show what is left; free again after release" {
    handle=$(pawl hold -d -t 10s --label 'deep sea' n)
    run -0 pawl who n
    [[ ${lines[0]} =~ ^"n "\ +"redis+unix://:***@$socket"$ ]]
    [[ ${lines[1]} == "  held by   pawl "*"pid ${handle%-*}, "*'"deep sea"' ]]
    [[ ${lines[2]} =~ ^"  since     ".*" ago, "[0-9]+\.[0-9]" s left unless renewed"$ ]]
    run -0 pawl who --json n
    jq -e '.holders[0].left_ms | . > 5000 and . <= 10000' <<<"$output"
    [[ $(pawl ls) =~ ^"n  "[0-9]+"  pawl("[^\ ]*")  "[0-9.]+"s  "[0-9.]+"s  0"$ ]]
    run -0 pawl release "$handle"
    run -1 pawl who n
}

@test "a key of another program is held, by nobody that we know" {
    redis SET pawl:n something PX 60000 NX
    run -0 pawl who n
    in_output "held by   another program"
    ! grep -n ' $' <<<"$output" || return 1
    [[ $(pawl ls) =~ ^"n  -  -  -  "[0-9.]+"s  0"$ ]]
    run --separate-stderr -123 pawl hold -n n </dev/null
    [[ $(jq -r .text <<<"$output") == *"another program"* ]]
}

@test "lost because the key went away: 122 at once" {
    start_hold -t 6s n
    next_event held
    redis DEL pawl:n
    next_event lost
    jq -e '.code == "lost" and .held_ms < 5000' <<<"$line"
    ends 122
    grep -q '^pawl: n: LOST: ' "$BATS_TEST_TMPDIR/stderr"
}

@test "a server that does not answer: doubt, then lost before the ttl is over" {
    start_hold -t 3s n
    next_event held
    kill -STOP "$server"
    next_event doubt
    next_event lost
    kill -CONT "$server"
    jq -e '.held_ms >= 500 and .code == "lost"' <<<"$line"
    ends 122
}

@test "a hiccup is survived: doubt, then doubt_over" {
    start_hold -t 6s n
    next_event held
    kill -STOP "$server"
    next_event doubt
    kill -CONT "$server"
    next_event doubt_over
    exec {in}>&-
    next_event released
    ends 0
}

@test "a server that is down: who is unknown, 120, and the node is named" {
    kill "$server"
    wait "$server" || true
    server=
    run --separate-stderr -120 pawl who n
    [ -z "$output" ]
    in_stderr "$socket"
    run --separate-stderr -120 pawl ls
    run --separate-stderr -120 pawl token show
}

@test "a release that is not confirmed is said, and is not a failure" {
    start_hold -t 4s n
    next_event held
    kill -STOP "$server"
    kill -TERM "$pid"
    next_event released
    jq -e '.proven == false and .code == "unreachable"' <<<"$line"
    ends 0
    grep -q 'not released, free within its ttl' "$BATS_TEST_TMPDIR/stderr"
}

@test "--for correctness is refused: 119" {
    run --separate-stderr -119 pawl hold --for correctness n </dev/null
    [ -n "$stderr" ]
}

@test "the password is not to be seen anywhere; a wrong one is 120" {
    handle=$(pawl hold -d n)
    pid=${handle%-*}
    [[ $(tr '\0' ' ' <"/proc/$pid/environ") != *hush-hush* ]]
    run --separate-stderr -0 pawl who -v n
    [[ $output$stderr != *hush-hush* ]]
    run --separate-stderr -120 pawl who -v -u "redis+unix://:wrong-one@$socket" n
    [[ $output$stderr != *wrong-one* ]]
}

@test "the password may come from the configuration" {
    unset PAWL_URL
    printf '[p]\nurl = redis+unix://%s\n' "$socket" >"$PAWL_CONFIG"
    run --separate-stderr -120 pawl who -u @p n
    printf '[p]\nurl = redis+unix://:hush-hush@%s\n' "$socket" >"$PAWL_CONFIG"
    chmod 600 "$PAWL_CONFIG"
    run -1 pawl who -u @p n
}

@test "locks move from files to the service, and tokens keep rising" {
    mkdir "$BATS_TEST_TMPDIR/locks"
    files=file:$BATS_TEST_TMPDIR/locks
    pawl token advance --to 1900000000000000 "$files"
    old=$(pawl hold -u "$files" n </dev/null | jq -r 'select(.event == "held").token')
    run -0 pawl token advance --to "$(pawl token show --json "$files" | jq -r .last)"
    new=$(pawl hold n </dev/null | jq -r 'select(.event == "held").token')
    [ "$new" -gt "$old" ]
}
