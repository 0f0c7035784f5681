# pawl who and pawl ls.
load helper
setup() { pawl_setup; mkdir "$BATS_TEST_TMPDIR/locks"; handles=(); }
teardown() { # waiters first, so that none gets the lock
    for pid in $(pawl ls --json | jq '.waiting[].pid // empty'); do kill -TERM "$pid" || true; done
    for handle in "${handles[@]}"; do pawl release "$handle" 2>/dev/null || true; done
}
hold() { handles+=("$(pawl hold -d "$@")"); }
wait_for() { # OPTIONS... NAME: a waiter in the background; teardown ends it
    "${PAWL_BIN:-pawl}" hold -d "$@" 3>&- >/dev/null 2>&1 &
}
in_line() { pawl who --json "$1" | jq -e ".waiting | length == $2"; }

@test "free is 1, held is 0, unknown is 120" {
    run --separate-stderr -1 pawl who n
    [ "$output" = "n is free (file:$BATS_TEST_TMPDIR/locks)" ]
    hold n
    run --separate-stderr -0 pawl who n
    [ -z "$stderr" ]
    run --separate-stderr -120 pawl who -u "file:$BATS_TEST_TMPDIR/nowhere" n
    [ -z "$output" ]
    in_stderr "pawl: n: "
    run --separate-stderr -120 pawl ls -u "file:$BATS_TEST_TMPDIR/nowhere"
    [ -z "$output" ]
    in_stderr "nowhere"
}

@test "the text says who, where, since when, with which token" {
    hold --label 'nightly backup' n
    run -0 pawl who n
    pid=${handles[0]%-*} token=$(pawl who --json n | jq -r '.holders[0].token')
    [[ ${lines[0]} =~ ^"n "\ +"file:$BATS_TEST_TMPDIR/locks"$ ]]
    [[ ${lines[1]} =~ ^"  held by   pawl "\ +"pid $pid, $(id -un)@$(hostname), \"nightly backup\""$ ]]
    [[ ${lines[2]} =~ ^"  since     "[0-9]{2}:[0-9]{2}:[0-9]{2}\ +[0-9]+" "(ms|s)" ago"$ ]]
    [ "${lines[3]}" = "  token     $token" ]
    [ "${#lines[@]}" = 4 ]
}

@test "waiters come in order, with their place" {
    hold n
    wait_for --label one n
    until_ok 10 in_line n 1
    wait_for --label two n
    until_ok 10 in_line n 2
    run -0 pawl who n
    [[ ${lines[4]} == "  waiting   1  pawl "*'"one"'* ]]
    [[ ${lines[5]} == "            2  pawl "*'"two"'* ]]
    [ "$(pawl who --json n | jq -c '[.waiting[].label]')" = '["one","two"]' ]
    [ "$(pawl ls | awk '{print $1, $6}')" = "n 2" ]
}

@test "JSON has a null for what is unknown, and strings for tokens" {
    hold n
    run -0 pawl who --json n
    [ "${#lines[@]}" = 1 ]
    jq -e --arg url "file:$BATS_TEST_TMPDIR/locks" --arg user "$(id -un)" --arg host "$(hostname)" '
        .name == "n" and .url == $url and .held == true and .waiting == [] and (.holders | length) == 1 and
        (.holders[0] | .command == "pawl" and .user == $user and .host == $host and .label == null and .shared == false and
                       (.token | type) == "string" and .left_ms == null and (.since | test("^20..-..-..T..:..:..[.]...Z$")))
        ' <<<"$output"
    run -1 pawl who --json free
    jq -e '.held == false and .holders == []' <<<"$output"
}

@test "a lock of util-linux flock is seen, and not called ours" {
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    flock "$BATS_TEST_TMPDIR/locks/report" cat "$BATS_TEST_TMPDIR/fifo" 3>&- >/dev/null &
    other=$!
    exec {hold_open}>"$BATS_TEST_TMPDIR/fifo"
    until_ok 10 pawl who -q report
    run -0 pawl who report
    [[ ${lines[1]} == "  held by   flock  "*"pid "* || ${lines[1]} == "  held by   another program"* ]]
    [[ $output != *token* ]]
    ! grep -n ' $' <<<"$output" || return 1
    exec {hold_open}>&-
    wait "$other"
    run -1 pawl who report
}

@test "a locked file that has content of its own is not called free" {
    file=$BATS_TEST_TMPDIR/locks/mine
    echo 4711 >"$file"
    run -1 pawl who mine
    exec {held}<"$file"
    flock "$held"
    run -0 pawl who mine
    run -0 pawl ls
    [[ $output == *mine* ]]
    run --separate-stderr -119 pawl run -n mine true
    exec {held}<&-
    run -1 pawl who mine
    mkfifo "$BATS_TEST_TMPDIR/end"
    "${PAWL_BIN:-pawl}" run n sh -c 'touch "$1/up"; read -r _ <"$1/end"' sh "$BATS_TEST_TMPDIR" 3>&- &
    holder=$!
    until_ok 10 test -e "$BATS_TEST_TMPDIR/up"
    echo overwritten >"$BATS_TEST_TMPDIR/locks/n"
    run -0 pawl who n
    echo >"$BATS_TEST_TMPDIR/end"
    wait "$holder" || true
}

@test "shared holders are counted" {
    hold -s n
    hold -s n
    run -0 pawl who n
    [ "$(grep -c 'held by .*(shared)$' <<<"$output")" = 2 ]
    [ "$(pawl ls | wc -l)" = 1 ]
    [[ $(pawl ls | awk '{print $3}') == "pawl("*")+1" ]]
}

@test "a name cannot speak to the terminal, in no output" {
    name=$'a\u009b31m\u202eb\e[0m'
    hold "$name"
    for verb in ls "ls --json" "who $name" "who --json $name"; do
        run -0 pawl $verb
        [[ $output == *31m* && $output != *[$'\e\u009b\u202e']* ]]
    done
    [[ $(pawl ls) == "a%C2%9B31m%E2%80%AEb%1B[0m "* ]]
}

@test "-q: the exit code tells, stdout is silent" {
    run -1 pawl who -q n
    [ -z "$output" ]
    hold n
    run -0 pawl who -q n
    [ -z "$output" ]
}

@test "ls: nothing, then one line a lock, sorted, without blanks in a column" {
    run -0 pawl ls
    [ -z "$output" ]
    hold zebra
    hold 'a b%c'
    hold $'new\nline'
    run -0 pawl ls
    [ "${#lines[@]}" = 3 ]
    [ "$(awk '{print NF}' <<<"$output" | sort -u)" = 6 ]
    [ "$(awk '{print $1}' <<<"$output" | tr '\n' ' ')" = "a%20b%25c new%0Aline zebra " ]
    [ "$(awk '$1 == "zebra" {print $2}' <<<"$output")" = "$(pawl who --json zebra | jq -r '.holders[0].token')" ]
    [[ $(awk '$1 == "zebra" {print $3}' <<<"$output") == "pawl(${handles[0]%-*},$(id -un)@$(hostname))" ]]
    [[ $(awk '$1 == "zebra" {print $4, $5, $6}' <<<"$output") =~ ^[0-9]+\.[0-9]s" - 0"$ ]]
    run -0 pawl ls --json
    [ "$(jq -r .name <<<"$output" | tr '\n' '|')" = $'a b%c|new|line|zebra|' ]
}

@test "ls --json by process: pids are numbers, to be grouped" {
    hold one
    hold two
    hold -s both
    hold -s both
    by_pid=$(pawl ls --json | jq -sc 'map(.name as $n | .holders[] | {pid, $n}) | group_by(.pid) | map({(.[0].pid | tostring): map(.n)}) | add')
    for i in 0 1 2 3; do
        [ "$(jq -c --arg pid "${handles[i]%-*}" '.[$pid]' <<<"$by_pid")" = "$(jq -nc --arg n "$(sed -n $((i + 1))p <<<$'one\ntwo\nboth\nboth')" '[$n]')" ]
    done
}

@test "ls has a head on a terminal only" {
    hold n
    run -0 script -qec "${PAWL_BIN:-pawl} ls" /dev/null
    [[ ${lines[0]} =~ ^NAME\ +TOKEN\ +HELD-BY\ +FOR\ +LEFT\ +WAITING ]]
    [[ ${lines[1]} =~ ^n\  ]]
}

@test "looking creates nothing and blocks nobody" {
    run -1 pawl who n
    run -0 pawl ls
    [ "$(ls -A "$BATS_TEST_TMPDIR/locks" | grep -vc '^\.')" = 0 ]
    hold n
    for _ in {1..20}; do pawl who -q n; done
    pawl release "${handles[0]}"
    handles=()
    run -0 pawl hold -n n </dev/null
}

@test "mistakes are named" {
    run --separate-stderr -125 pawl who
    in_stderr "who: NAME is missing"
    run --separate-stderr -125 pawl who a b
    in_stderr "one operand too many: 'b'"
    run --separate-stderr -125 pawl ls a
    in_stderr "one operand too many: 'a'"
    run --separate-stderr -125 pawl who -u nonsense n
    in_stderr "'nonsense' has no scheme"
    run --separate-stderr -125 pawl who -u file:x?zebra=1 n
    in_stderr "zebra"
    run --separate-stderr -125 pawl who -u gopher://h n
    in_stderr "gopher"
    run --separate-stderr -125 pawl who ''
}

@test "a stdout that is closed is said" {
    hold n
    for verb in 'who n' ls; do
        status=0
        "${PAWL_BIN:-pawl}" $verb >&- 2>said || status=$?
        [ "$status" = 125 ]
        grep "cannot write to stdout" said
    done
    "${PAWL_BIN:-pawl}" who -q n >&-
}
