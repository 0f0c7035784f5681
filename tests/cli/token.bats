# pawl token: where the numbers of a service stand, and lifting them.
load helper
setup() { pawl_setup; mkdir "$BATS_TEST_TMPDIR/locks"; }
grant() { pawl hold n </dev/null | jq -r 'select(.event == "held").token'; }

@test "show gives the last token, as text and as JSON" {
    token=$(grant)
    run --separate-stderr -0 pawl token show
    [ "${lines[0]}" = "file:$BATS_TEST_TMPDIR/locks" ]
    [[ ${lines[1]} =~ ^"  last      $token "\ +20[0-9-]+T[0-9:.]+Z$ ]]
    run -0 pawl token show --json
    jq -e --arg token "$token" '.last == $token and (.since | type) == "string" and .stored == .answering and
        (.clock | endswith("Z"))' <<<"$output"
}

@test "the URL may be an operand, once" {
    mkdir "$BATS_TEST_TMPDIR/other"
    run -0 pawl token show "file:$BATS_TEST_TMPDIR/other"
    [ "${lines[0]}" = "file:$BATS_TEST_TMPDIR/other" ]
    run --separate-stderr -125 pawl token show -u file:a file:b
    in_stderr "the URL is given twice"
}

@test "advance lifts above N, and above all before" {
    before=$(grant)
    to=$((before + 5000000000))
    run -0 pawl token advance --to "$to" --json
    [ "$(jq -r .last <<<"$output")" = "$to" ]
    after=$(grant)
    [ "$after" -gt "$to" ]
    run -0 pawl token advance
    [ "$(grant)" -gt $((after + 1048576)) ]
}

@test "numbers cannot be lifted so far that they run out" {
    grant
    run --separate-stderr -125 pawl token advance --to 9007199254740991
    in_stderr "more than ten years ahead"
    grant
}

@test "mistakes are named" {
    run --separate-stderr -125 pawl token
    in_stderr "show or advance is missing"
    run --separate-stderr -125 pawl token sho
    in_stderr "'sho' is neither show nor advance"
    run --separate-stderr -125 pawl token show --to 5
    in_stderr "--to is for advance"
    for bad in 0 -5 x 9007199254740992 99999999999999999999 1.5; do
        run --separate-stderr -125 pawl token advance "--to=$bad"
        in_stderr "--to '$bad': must be a number from 1 to 9007199254740991"
    done
    run --separate-stderr -120 pawl token show "file:$BATS_TEST_TMPDIR/nowhere"
}

@test "init: what needs no preparing says so, and nothing is done" {
    run --separate-stderr -0 pawl init file:
    [ -z "$output" ]
    in_stderr "needs no preparing"
    run --separate-stderr -120 pawl init "file:$BATS_TEST_TMPDIR/nowhere" # as any use of it would say
    in_stderr "does not exist"
    run --separate-stderr -0 pawl init -q file:
    [ -z "$output$stderr" ]
    run --separate-stderr -0 pawl init --log json file:
    jq -e '.level == "info" and (.text | endswith("needs no preparing"))' <<<"$stderr"
}

@test "init: what there is no text of is not done instead of printed, and a floor is for redlock" {
    run --separate-stderr -125 pawl init --print mem:
    in_stderr "--print is for postgresql"
    run --separate-stderr -125 pawl init --floor 5 mem:
    in_stderr "pawl token advance --to"
    pawl version | grep -q redlock || skip "built without redlock"
    run --separate-stderr -125 pawl init --print redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3
    in_stderr "--print is for postgresql"
    run --separate-stderr -125 pawl init --floor 9007199254740991 redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3
    in_stderr "9007199254740991 is more than ten years ahead of this clock"
    run --separate-stderr -125 pawl init --floor $(($(date +%s) * 1000000 + 11 * 366 * 86400000000)) redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3
    in_stderr "more than ten years ahead of this clock"
}

@test "init --print is SQL that can be run twice" {
    pawl version | grep -q postgresql || skip "built without postgresql"
    run --separate-stderr -0 pawl init --print postgresql://nobody@127.0.0.1:1/none
    [[ $output == *"CREATE SCHEMA pawl"* ]]
    ! grep -E '^CREATE (TABLE|SEQUENCE|FUNCTION)' <<<"$output" | grep -v 'IF NOT EXISTS\|OR REPLACE' || return 1
    run --separate-stderr -120 pawl init postgresql://nobody@127.0.0.1:1/none
    in_stderr "127.0.0.1"
}
