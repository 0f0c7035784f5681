# pawl hold -d and pawl release.
load helper
setup() { pawl_setup; mkdir "$BATS_TEST_TMPDIR/locks"; handle=; }
teardown() { [ -z "$handle" ] || pawl release "$handle" 2>/dev/null || true; }
handles() { # as root, and as anybody else
    [ "$(id -u)" != 0 ] || { echo /run/pawl-hold && return; }
    echo "$(getent passwd "$(id -u)" | cut -d: -f6)/.local/state/pawl-hold"
}
gone() { ! kill -0 "$1" 2>/dev/null; }

@test "prints a handle when it is held; release ends it" {
    run --separate-stderr -0 pawl hold -d --label 'deep sea' n
    [[ $output =~ ^[0-9]+-[0-9a-f]{16}$ ]]
    [ -z "$stderr" ]
    handle=$output
    run -0 pawl who --json n
    jq -e --arg pid "${handle%-*}" '.holders[0] | (.pid | tostring) == $pid and .label == "deep sea"' <<<"$output"
    run --separate-stderr -0 pawl release "$handle"
    [ -z "$output$stderr" ]
    run -1 pawl who -q n
    until_ok 10 gone "${handle%-*}"
    run --separate-stderr -125 pawl release "$handle"
    in_stderr "there is no hold $handle"
}

@test "release reports: the event as JSON, the text with -v" {
    handle=$(pawl hold -d n)
    run --separate-stderr -0 pawl release --json "$handle"
    jq -e '.event == "released" and .name == "n" and .proven and (.token | type == "string") and .held_ms >= 0' <<<"$output"
    handle=$(pawl hold -d n)
    run --separate-stderr -0 pawl release -v "$handle"
    in_stderr "pawl: n: released: as asked by pawl release"
}

@test "--json gives handle, name and token" {
    run -0 pawl hold -d --json n
    handle=$(jq -r .handle <<<"$output")
    [ "$(jq -r .token <<<"$output")" = "$(pawl who --json n | jq -r '.holders[0].token')" ]
    [ "$(jq -r .name <<<"$output")" = n ]
}

@test "no environment is needed to release" {
    handle=$(pawl hold -d n)
    run -0 env -i "${PAWL_BIN:-pawl}" release "$handle"
    run -1 pawl who -q n
}

@test "the background process has a session of its own, none of our descriptors, and not our directory" {
    cd "$BATS_TEST_TMPDIR"
    handle=$(pawl hold -d -u file:locks n)
    pid=${handle%-*}
    [ "$(ps -o sid= -p "$pid" | tr -d ' ')" = "$pid" ]
    for fd in 0 1 2; do [ "$(readlink "/proc/$pid/fd/$fd")" = /dev/null ]; done
    [ "$(readlink "/proc/$pid/cwd")" = / ]
    run -0 pawl who -q -u file:locks n
    run -0 pawl release "$handle"
    run -1 pawl who -q -u file:locks n
}

@test "a lock and a pipe of the script that started it end with the script" {
    handle=$(
        exec 9>"$BATS_TEST_TMPDIR/fl" 8> >(cat >/dev/null)
        flock 9
        pawl hold -d n
    )
    run -0 flock -n "$BATS_TEST_TMPDIR/fl" true
    run -0 pawl release "$handle"
}

@test "busy: 123 from the starter, and no process stays" {
    handle=$(pawl hold -d n)
    run --separate-stderr -123 pawl hold -d -n n
    [ -z "$output" ]
    run --separate-stderr -124 pawl hold -d -w 100ms -v n
    in_stderr "waited"
    [ "$(pawl who --json n | jq -c '[(.holders | length), (.waiting | length)]')" = "[1,0]" ]
}

@test "a starter that is killed while it waits takes the waiter with it" {
    handle=$(pawl hold -d n)
    "${PAWL_BIN:-pawl}" hold -d n 3>&- >"$BATS_TEST_TMPDIR/out" &
    starter=$!
    waits() { pawl who --json n | jq -e '.waiting | length == 1'; }
    until_ok 10 waits
    kill -KILL "$starter"
    until_ok 10 eval '! waits'
    [ ! -s "$BATS_TEST_TMPDIR/out" ]
}

@test "a release that was given up can be asked again" {
    handle=$(pawl hold -d n)
    kill -STOP "${handle%-*}"
    run -124 timeout 1 "${PAWL_BIN:-pawl}" release "$handle"
    kill -CONT "${handle%-*}"
    until_ok 10 gone "${handle%-*}"
    run --separate-stderr -0 pawl release --json "$handle"
    jq -e '.event == "released"' <<<"$output"
}

@test "ended by TERM: a later release still tells that it was released, once" {
    handle=$(pawl hold -d n)
    kill -TERM "${handle%-*}"
    until_ok 10 gone "${handle%-*}"
    run --separate-stderr -0 pawl release --json "$handle"
    jq -e '.event == "released" and .text == "SIGTERM"' <<<"$output"
    run -125 pawl release "$handle"
}

@test "a handle that cannot be printed: 125 with the reason, and nothing is held" {
    run --separate-stderr -125 bash -c '"$0" hold -d n >/dev/full' "${PAWL_BIN:-pawl}"
    in_stderr "pawl: n: cannot write to stdout: No space left on device"
    [ "$(wc -l <<<"$stderr")" = 1 ]
    run -1 pawl who -q n
}

@test "results that nobody asked for go after a day" {
    handle=$(pawl hold -d n)
    kill -TERM "${handle%-*}"
    until_ok 10 gone "${handle%-*}"
    old=$(handles)/1-0123456789abcdef.end
    touch -d '25 hours ago' "$old"
    run -0 pawl release "$handle"
    [ ! -e "$old" ]
}

@test "lost: a later release is 122 and says why" {
    handle=$(pawl hold -d --max-hold 100ms n)
    until_ok 10 gone "${handle%-*}"
    run --separate-stderr -122 pawl release "$handle"
    in_stderr "pawl: n: LOST: "
}

@test "killed: release is 122" {
    handle=$(pawl hold -d n)
    kill -KILL "${handle%-*}"
    until_ok 10 gone "${handle%-*}"
    run --separate-stderr -122 pawl release "$handle"
    in_stderr "had died"
    run -125 pawl release "$handle"
}

@test "a hold that does not answer is said so: 125" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "takes 10 s; see ./check --full"
    handle=$(pawl hold -d n)
    kill -STOP "${handle%-*}"
    run --separate-stderr -125 pawl release "$handle"
    kill -CONT "${handle%-*}"
    in_stderr "the hold $handle does not answer"
}

@test "nor do more askers than its queue has room for hang, or take it for dead" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "takes 10 s; see ./check --full"
    handle=$(pawl hold -d n)
    kill -STOP "${handle%-*}"
    for i in 1 2 3 4 5 6 7 8; do
        timeout 100 "${PAWL_BIN:-pawl}" release "$handle" 2>"$BATS_TEST_TMPDIR/said$i" 3>&- &
        askers[i]=$!
    done
    for i in 1 2 3 4 5 6 7 8; do
        wait "${askers[i]}" && code=0 || code=$?
        [ "$code" = 125 ]
        grep "the hold $handle does not answer" "$BATS_TEST_TMPDIR/said$i"
    done
    [ -S "$(handles)/$handle.sock" ]
    kill -CONT "${handle%-*}"
}

@test "what is no handle is refused" {
    for bad in '' x ../../etc 1-2 4711-0123456789ABCDEF 4711-0123456789abcdef0 -- ; do
        run --separate-stderr -125 pawl release "$bad"
    done
    run --separate-stderr -125 pawl release ../x
    in_stderr "'../x' is not a handle"
    run --separate-stderr -125 pawl release 1-0123456789abcdef
    in_stderr "there is no hold 1-0123456789abcdef"
}

@test "the directory of handles is for this user only" {
    handle=$(pawl hold -d n)
    directory=/run/pawl-hold
    [ "$(id -u)" = 0 ] || directory=$(getent passwd "$(id -u)" | cut -d: -f6)/.local/state/pawl-hold
    [ "$(stat -c '%a %u' "$directory")" = "700 $(id -u)" ]
    [ -S "$directory/$handle.sock" ]
}

@test "a lock under a handle outlives the shell that took it" {
    handle=$(bash -c '"$0" hold -d n' "${PAWL_BIN:-pawl}")
    run -0 pawl who -q n
}
