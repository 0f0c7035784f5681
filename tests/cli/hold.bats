# pawl hold in the foreground: events on stdout, ended by stdin or a signal.
load helper
setup() { pawl_setup; mkdir "$BATS_TEST_TMPDIR/locks"; }
teardown() { [ -z "${HOLD_PID:-}" ] || kill "$HOLD_PID" 2>/dev/null || true; }

# A hold whose stdin and stdout are ours: ${HOLD[1]}, ${HOLD[0]}; its stderr goes to a file.
start_hold() {
    coproc HOLD { exec "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}" hold "$@" 2>"$BATS_TEST_TMPDIR/stderr" 3>&-; }
    pid=$HOLD_PID out=${HOLD[0]} in=${HOLD[1]}
}
next_event() { # EVENT: the next line is that event; it is in $line
    read -rt 20 line <&"$out" || { echo "no event; wanted $1" && return 1; }
    [ "$(jq -r .event <<<"$line")" = "$1" ] || { echo "wanted $1, got $line" && return 1; }
}
ends() { # CODE: the hold ends so
    local code=0
    wait "$pid" || code=$?
    [ "$code" = "$1" ] || { echo "wanted exit $1, got $code" && return 1; }
}
close_stdin() { exec {in}>&-; }

@test "held until stdin ends, then released and free" {
    start_hold nightly
    exec {keep}<&"$out"
    out=$keep
    next_event held
    jq -e '.name == "nightly" and (.token | type == "string" and test("^[0-9]+$")) and .remaining_ms == null and
           .shared == false and (.time | endswith("Z"))' <<<"$line"
    token=$(jq -r .token <<<"$line")
    run -0 pawl who -q nightly
    close_stdin
    next_event released
    jq -e --arg token "$token" '.token == $token and .proven == true and .held_ms >= 0' <<<"$line"
    ends 0
    run -1 pawl who -q nightly
}

@test "stdout has nothing but one JSON object a line" {
    run --separate-stderr -0 pawl hold -v n </dev/null
    [ "${#lines[@]}" = 2 ]
    [ "$(jq -r .event <<<"$output" | tr '\n' ' ')" = "held released " ]
    in_stderr "pawl: n: url file:$BATS_TEST_TMPDIR/locks (from PAWL_URL)"
}

@test "tokens rise" {
    last=0
    for _ in 1 2 3 4 5; do
        token=$(pawl hold n </dev/null | jq -r 'select(.event == "held").token')
        [ "$token" -gt "$last" ]
        last=$token
    done
}

@test "what is written to stdin is ignored" {
    start_hold n
    next_event held
    printf 'some\nlines\n' >&"$in"
    run -0 pawl who -q n
    kill -TERM "$pid"
    ends 0
}

@test "busy is 123 with -n, and -E replaces it; waited too long is 124" {
    start_hold n --label 'deep sea'
    next_event held
    run --separate-stderr -123 pawl hold -n n </dev/null
    jq -e '.event == "failed" and .code == "busy" and (.text | test("held by pawl \\(pid [0-9]+, "))' <<<"$output"
    [ -z "$stderr" ]
    run --separate-stderr -123 pawl hold --nb -v n </dev/null
    in_stderr "pawl: n: busy, held by pawl (pid $pid"
    run -123 pawl hold -w 0 n </dev/null
    run -7 pawl hold -n -E 7 n </dev/null
    run --separate-stderr -124 bash -c 'exec "$0" hold -w 0.2 n < <(sleep 5)' "${PAWL_BIN:-pawl}"
    [ "$(jq -r .event <<<"$output" | tr '\n' ' ')" = "waiting failed " ]
    jq -es '.[1].code == "timeout"' <<<"$output"
    kill -TERM "$pid"
    ends 0
}

@test "a waiter is told who holds it, and gets it next" {
    start_hold n
    next_event held
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    "${PAWL_BIN:-pawl}" hold n <"$BATS_TEST_TMPDIR/fifo" >"$BATS_TEST_TMPDIR/second" 3>&- &
    second=$!
    exec {hold_open}>"$BATS_TEST_TMPDIR/fifo"
    until_ok 10 grep -q waiting "$BATS_TEST_TMPDIR/second"
    jq -e --arg pid "$pid" '.event == "waiting" and (.text | contains("held by pawl (pid " + $pid))' "$BATS_TEST_TMPDIR/second"
    [ "$(pawl who --json n | jq -c '[.waiting[].pid]')" = "[$second]" ]
    close_stdin
    ends 0
    until_ok 10 grep -q '"held"' "$BATS_TEST_TMPDIR/second"
    exec {hold_open}>&-
    wait "$second"
}

@test "INT and TERM release what is held" {
    for signal in INT TERM HUP; do
        start_hold n
        exec {out}<&"$out"
        next_event held
        kill -$signal "$pid"
        next_event released
        jq -e --arg text "SIG$signal" '.text == $text' <<<"$line"
        ends 0
        run -1 pawl who -q n
    done
}

@test "INT and TERM leave the queue: 130 and 143, and nobody waits any more" {
    start_hold n
    next_event held
    for pair in INT:130 TERM:143; do
        mkfifo "$BATS_TEST_TMPDIR/fifo"
        env --default-signal=INT "${PAWL_BIN:-pawl}" hold n <"$BATS_TEST_TMPDIR/fifo" >"$BATS_TEST_TMPDIR/second" 3>&- &
        second=$!
        exec {hold_open}>"$BATS_TEST_TMPDIR/fifo"
        until_ok 10 grep -q waiting "$BATS_TEST_TMPDIR/second"
        kill -"${pair%:*}" "$second"
        code=0
        wait "$second" || code=$?
        [ "$code" = "${pair#*:}" ]
        jq -es '.[1].event == "cancelled"' "$BATS_TEST_TMPDIR/second"
        [ "$(pawl who --json n | jq -c .waiting)" = "[]" ]
        exec {hold_open}>&-
        rm "$BATS_TEST_TMPDIR/fifo"
    done
    kill -TERM "$pid"
    ends 0
}

@test "stdin that ends while waiting leaves the queue: 125" {
    start_hold n
    next_event held
    run --separate-stderr -125 pawl hold n </dev/null
    [ "$(jq -r .event <<<"$output" | tr '\n' ' ')" = "waiting cancelled " ]
    kill -TERM "$pid"
    ends 0
}

@test "a holder that is stopped keeps a file lock, for as long as it lives" {
    start_hold -t 500ms n
    exec {out}<&"$out" # outlives the coprocess
    next_event held
    kill -STOP "$pid"
    run -124 pawl run -w 2s n true # four ttls
    kill -CONT "$pid"
    run -123 pawl run -n n true
    close_stdin
    next_event released
    jq -e '.proven == true' <<<"$line"
    ends 0
}

@test "KILL frees a file lock" {
    start_hold n
    next_event held
    kill -KILL "$pid"
    ends 137
    run -0 pawl hold -n n </dev/null
}

@test "stdout that cannot be written ends the hold: 125, and it is free" {
    run -125 bash -c 'exec "$0" hold n < <(sleep 5) >/dev/full' "${PAWL_BIN:-pawl}"
    run -1 pawl who -q n
}

@test "a reader of stdout that went away ends the hold at the next event: 125" {
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    "${PAWL_BIN:-pawl}" hold n 3>&- < <(exec sleep 20) > >(read -r line; echo "$line" >"$BATS_TEST_TMPDIR/fifo") &
    pid=$!
    read -rt 20 line <"$BATS_TEST_TMPDIR/fifo"
    [ "$(jq -r .event <<<"$line")" = held ]
    kill -TERM "$pid"
    ends 125
    run -1 pawl who -q n
}

@test "held too long counts as lost: 122" {
    start_hold --max-hold 200ms n
    exec {out}<&"$out"
    next_event held
    next_event lost
    jq -e '.code == "lost" and .held_ms >= 190' <<<"$line"
    ends 122
    grep -q '^pawl: n: LOST: ' "$BATS_TEST_TMPDIR/stderr"
    run -1 pawl who -q n
}

@test "shared holders pass together, an exclusive one does not" {
    start_hold -s n
    next_event held
    jq -e '.shared == true' <<<"$line"
    run -0 pawl hold -n -s n </dev/null
    run -123 pawl hold -n n </dev/null
    run -123 pawl hold -n -s -x n </dev/null
    kill -TERM "$pid"
    ends 0
}

@test "a name may begin with a dash, after --" {
    run -0 pawl hold -- -v- </dev/null
    jq -es '.[0].name == "-v-"' <<<"$output"
}

@test "bad values are named, and nothing is created" {
    for bad in --ttl=0 --ttl=-1 --ttl=1ms '--ttl=1 fortnight' --ttl=25h --ttl=inf --ttl=9223372036854775807 --ttl= \
        --wait=soon --max-hold=1ms -E=x -E300 --for=fun; do
        run --separate-stderr -125 pawl hold "$bad" n </dev/null
        in_stderr "pawl: hold: ${bad:0:2}"
        in_stderr "must be "
    done
    run --separate-stderr -125 pawl hold </dev/null
    in_stderr "hold: NAME is missing"
    run --separate-stderr -125 pawl hold a b </dev/null
    in_stderr "one operand too many: 'b'"
    [ -z "$(ls -A "$BATS_TEST_TMPDIR/locks")" ]
}

@test "impossible names are refused: 125" {
    for name in '' $'a\xff' "$(printf 'x%.0s' {1..513})"; do
        run --separate-stderr -125 pawl hold "$name" </dev/null
        jq -e '.event == "failed" and .code == "invalid"' <<<"$output"
    done
    [ -z "$(ls -A "$BATS_TEST_TMPDIR/locks")" ]
    for name in / .. . $'new\nline' "$(printf 'x%.0s' {1..512})" 'ä€😀'; do
        run -0 pawl hold "$name" </dev/null
        [ "$(jq -rs '.[0].name' <<<"$output")" = "$name" ]
    done
    [ "$(ls "$BATS_TEST_TMPDIR" | grep -v '^separate-stderr')" = "$(printf 'home\nlocks\nno-config')" ]
}

@test "a file that is not a lock file is refused, 119, and stays as it is" {
    echo precious >"$BATS_TEST_TMPDIR/locks/report.txt"
    before=$(stat -c '%i %s %Y %a' "$BATS_TEST_TMPDIR/locks/report.txt")
    run --separate-stderr -119 pawl hold report.txt </dev/null
    in_stderr "report.txt"
    [ "$(cat "$BATS_TEST_TMPDIR/locks/report.txt")" = precious ]
    [ "$(stat -c '%i %s %Y %a' "$BATS_TEST_TMPDIR/locks/report.txt")" = "$before" ]
}

@test "a directory that cannot be used is 120" {
    run --separate-stderr -120 pawl hold -u "file:$BATS_TEST_TMPDIR/nowhere" n </dev/null
    in_stderr "$BATS_TEST_TMPDIR/nowhere"
    jq -e '.code == "denied"' <<<"$output"
}
