# pawl run without a terminal: exit codes, options, environment, descriptors, signals.
load helper
setup() {
    pawl_setup
    mkdir "$BATS_TEST_TMPDIR/locks"
    cd "$BATS_TEST_TMPDIR"
    PAWL=${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}
}
teardown() {
    touch "$BATS_TEST_TMPDIR/free"
    [ -z "${pid:-}" ] || wait "$pid" || true
}

# Holds lock $1 in the background until the file `free` appears or the test ends; $pid is the front.
hold() {
    rm -f held free
    "$PAWL" run "${@:2}" "$1" sh -c 'touch held; until [ -e free ]; do sleep 0.02; done' 3>&- &
    pid=$!
    until_ok 5 test -e held
}
let_go() { touch free; wait "$pid"; pid=; }
has_waiter() { pawl who --json "$1" | jq -e '.waiting | length == 1'; }
gone() { ! kill -0 "$1" 2>/dev/null; }

@test "the child's status comes back unchanged" {
    for code in 0 1 3 7 119 122 123 125 255; do run "-$code" pawl run n sh -c "exit $code"; done
    run -137 pawl run n sh -c 'kill -9 $$'
    run -143 pawl run n sh -c 'kill -TERM $$'
    run -134 pawl run n sh -c 'ulimit -c 0; kill -ABRT $$'
}

@test "not found is 127, not executable is 126, and both say why" {
    run --separate-stderr -127 pawl run n no-such-command
    in_stderr "pawl: n: cannot run no-such-command: No such file or directory"
    printf 'data\n' >plain
    run --separate-stderr -126 pawl run n ./plain
    in_stderr "Permission denied"
    run -126 pawl run n /
    printf '#!/no/such/interpreter\n' >script
    chmod +x script
    run -127 pawl run n ./script
    printf 'echo without shebang\n' >script
    run -0 pawl run n ./script
    [ "$output" = "without shebang" ]
}

@test "everything behind NAME is the command's" {
    printf '#!/bin/sh\nprintf "<%%s>" "$@"\n' >git
    chmod +x git
    PATH=$PWD:$PATH run -0 pawl run nightly git log -- file
    [ "$output" = "<log><--><file>" ]
    PATH=$PWD:$PATH run -0 pawl run nightly -- git -n -c --help -- x
    [ "$output" = "<-n><-c><--help><--><x>" ]
    PATH=$PWD:$PATH run -0 pawl run nightly git -n 5 --version -c
    [ "$output" = "<-n><5><--version><-c>" ]
    printf 'a\nx\n' >f
    run -0 pawl run n grep -v x f
    [ "$output" = a ]
    run -0 pawl run -- -name echo '$HOME'
    [ "$output" = '$HOME' ]
    run --separate-stderr -127 pawl run n -- -- true
    in_stderr "cannot run --:"
}

@test "-c takes one string, for /bin/sh" {
    SHELL=/bin/false run -3 pawl run n -c 'echo "$0 a  b"; exit 3'
    [[ $output == *"a  b" ]]
    run --separate-stderr -125 pawl run n -c
    in_stderr "-c needs a command string"
    run --separate-stderr -125 pawl run n -c 'echo a' b
    in_stderr "-c takes one string; 'b' is too much"
    run -0 pawl run n --command 'echo $((2 + 3))'
    [ "$output" = 5 ]
    run --separate-stderr -125 pawl run n --command
    in_stderr "--command needs a command string"
}

@test "mistakes name the culprit and run nothing" {
    for options in --no-such -Z "--ttl=1 fortnight" "--on-lost never" "-s -x" "--grace -1" "-E 256" "--hold-at-least x" \
        "--max-hold 0" "--ttl 0" "--ttl -1" "--ttl inf" "--ttl 292y" "--ttl 9223372036854775807" "--ttl 1ms" "--ttl 25h" \
        "--hold-at-least 2s --max-hold 1s"; do
        if [[ $options == *=* ]]; then words=("$options"); else read -ra words <<<"$options"; fi
        run --separate-stderr -125 pawl run "${words[@]}" n touch ran
        case $options in "-s -x") in_stderr "--exclusive" ;; *=*) in_stderr "1 fortnight" ;; *) in_stderr "${words[0]#-}" ;; esac
        [ ! -e ran ]
    done
    run --separate-stderr -125 pawl run
    in_stderr "NAME is missing"
    run --separate-stderr -125 pawl run n
    in_stderr "a command is missing"
    run --separate-stderr -125 pawl run n --
    in_stderr "a command is missing"
    run --separate-stderr -125 pawl run --wiat 1 n touch ran
    in_stderr "did you mean --wait?"
    run --separate-stderr -125 pawl run "" touch ran
    [ ! -e ran ]
}

@test "the child sees name, token and grant, whatever was there before" {
    PAWL_NAME=old PAWL_TOKEN=1 run -0 pawl run nightly sh -c 'echo "$PAWL_NAME $PAWL_TOKEN"; echo "$PAWL_LOCK"'
    [[ ${lines[0]} =~ ^nightly\ [0-9]{10,16}$ ]]
    [[ ${lines[1]} == ${lines[0]#nightly }",x,"*",nightly" ]]
    first=${lines[0]#nightly }
    run -0 pawl run nightly sh -c 'echo $PAWL_TOKEN'
    [ "$output" -gt "$first" ]
}

@test "a run of a lock that an ancestor holds says so and does not wait for ever" {
    run --separate-stderr -125 timeout 20 "$PAWL" run outer "$PAWL" run inner "$PAWL" run outer touch ran
    in_stderr "pawl: outer: this process already runs under this lock"
    [ ! -e ran ]
    run -0 timeout 20 "$PAWL" run -s n "$PAWL" run -s n echo both
    [ "$output" = both ]
    run -125 timeout 20 "$PAWL" run -s n "$PAWL" run n touch ran
    run -0 timeout 20 "$PAWL" run a "$PAWL" run b echo inner
    # left behind by a holder that is gone: it may
    chain=$(pawl run n sh -c 'echo "$PAWL_LOCK"')
    PAWL_LOCK=$chain run -0 timeout 20 "$PAWL" run n echo free
    PAWL_LOCK="no sense, at,all" run -0 timeout 20 "$PAWL" run n echo free
}

@test "a run of the same directory by another spelling is nested as well" {
    mkdir -p locks other
    ln -s locks link
    for url in file:link "file:$PWD/other/../locks" "file:///$PWD/locks/"; do
        run --separate-stderr -125 pawl run -u "file:locks" n -- "$PAWL" run -u "$url" n -- true
        in_stderr "already runs under this lock"
    done
    run -0 pawl run -u file:locks n -- "$PAWL" run -u file:other n -- true
}

@test "mem: would exclude nobody: refused" {
    run --separate-stderr -125 pawl run -u mem: n touch ran
    in_stderr "pawl: n: mem: (from -u) is a lock inside one process"
    [ ! -e ran ]
}

@test "-n wins over -w, in either order, as with flock" {
    hold n
    for options in "-n -w 60" "-w 60 -n"; do
        # shellcheck disable=SC2086
        run -123 timeout 20 "$PAWL" run $options n touch ran
    done
    [ ! -e ran ]
}

@test "busy is 123, too long is 124, -E replaces both; nothing is said without a terminal" {
    hold n
    for flag in -n --nb --nonblock --nonblocking --nowait; do
        run --separate-stderr -123 pawl run $flag n touch ran
        [ -z "$stderr" ]
    done
    for flag in "-w 0.1" "--wait 50ms" "--timeout=0.1s"; do
        run --separate-stderr -124 pawl run $flag n touch ran
        [ -z "$stderr" ]
    done
    run -9 pawl run -n -E 9 n touch ran
    run -9 pawl run -w 0.1 --conflict-exit-code 9 n touch ran
    run --separate-stderr -123 pawl run -v -n n touch ran
    [[ $stderr =~ "pawl: n: busy, held by sh (pid "[0-9]+", ".*") for "[0-9]+" "m?s ]]
    run --separate-stderr -124 pawl run -v -w 0.1 n touch ran
    [[ $stderr =~ "pawl: n: waited "[0-9]+" "m?"s, held by sh (pid " ]]
    run -123 pawl run -w 0 n touch ran
    [ ! -e ran ]
    let_go
    run -0 pawl run -n -E 9 n true
    run -5 pawl run -E 9 n sh -c 'exit 5'
}

@test "busy on a terminal is one line with the holder" {
    hold n
    run -0 script -qec "$PAWL run -n n true; echo code \$?" /dev/null
    [ "${#lines[@]}" = 2 ]
    [[ ${lines[0]} == "pawl: n: "*"held by sh (pid "* ]]
    [[ ${lines[1]} == "code 123"* ]]
    run -0 script -qec "$PAWL run -q -n n true; echo code \$?" /dev/null
    [ "${#lines[@]}" = 1 ]
}

@test "shared with shared, exclusive with nobody" {
    hold n -s
    run -0 pawl run -n -s n echo too
    run -123 pawl run -n n echo no
    run -123 pawl run -n -x n echo no
    run -123 pawl run -n -e n echo no
    let_go
    hold n -x
    run -123 pawl run -n --shared n echo no
}

@test "each signal reaches the child once" {
    for sig in TERM INT HUP QUIT USR1 USR2 WINCH ALRM CONT; do
        rm -f ready got
        # a shell starts its background jobs with INT and QUIT ignored
        env --default-signal setsid --fork --wait "$PAWL" run n bash -c '
            tail -f /dev/null & # not read -t: its timeout is an ALRM too, and takes ours for its own
            trap "echo $1 >>got; kill -9 $!; exit 9" $1
            echo $PPID >ready
            while :; do wait $!; done' - "$sig" 3>&- &
        waiter=$!
        until_ok 5 test -s ready
        front=$(ps -o ppid= -p "$(cat ready)")
        kill -"$sig" $front
        wait "$waiter" && code=0 || code=$?
        [ "$code $(cat got)" = "9 $sig" ] || { echo "$sig: exit $code, got $(cat got)" && return 1; }
    done
}

@test "TERM while waiting leaves the queue: 143, and the next in line gets it" {
    hold n
    "$PAWL" run n touch never 3>&- &
    waiter=$!
    until_ok 5 has_waiter n
    kill "$waiter"
    wait "$waiter" && code=0 || code=$?
    [ "$code" = 143 ]
    let_go
    run -0 pawl run -w 20 n echo next
    [ ! -e never ]
}

@test "who waits without a terminal is told with -v who holds the lock, and is silent without" {
    hold n
    "$PAWL" run -v n touch told 2>stderr 3>&- &
    "$PAWL" run n true 2>silent 3>&- &
    until_ok 20 grep -q 'n: waiting 2 s, .*held by .* (pid [0-9]*' stderr
    let_go
    wait
    [ -e told ] && [ ! -s silent ]
}

@test "a holder that is killed while it waits: 125, and nothing runs" {
    hold n
    "$PAWL" run n touch never 2>stderr 3>&- &
    waiter=$!
    until_ok 5 has_waiter n
    kill -9 "$(pgrep -P "$waiter")"
    wait "$waiter" && code=0 || code=$?
    [ "$code" = 125 ]
    grep -q 'the process that renews (pid [0-9]*) was killed' stderr
    let_go
    [ ! -e never ]
}

# The limit that docs/GUARANTEES.md names.
@test "both watchers killed at once: the command dies, what it started lives on, and the lock is free" {
    "$PAWL" run n bash -c 'setsid sleep 300 >/dev/null 2>&1 3>&- & echo $! >left; echo $$ $PPID >ours
        touch up; while :; do read -rt 0.05 <> <(:); done' 3>&- &
    waiter=$!
    until_ok 20 test -e up
    read -r command holder <ours
    kill -STOP "$waiter" "$holder"
    for watcher in "$waiter" "$holder"; do until_ok 20 grep -q '^State:.T' "/proc/$watcher/status"; done
    kill -KILL "$holder" "$waiter" # in this order: the kernel wakes a group of processes whose parent ended
    wait "$waiter" && code=0 || code=$?
    [ "$code" = 137 ]
    until_ok 20 gone "$command"
    until_ok 20 pawl run -n n true
    kill "$(cat left)"
}

@test "timeout(1) ends what the command started as well" {
    for _ in 1 2 3 4; do
        rm -f pids
        run --separate-stderr -124 timeout 2 "$PAWL" run n bash -c \
            'for s in 31 32; do sleep $s >/dev/null 2>&1 3>&- & echo $! >>pids; done; wait'
        [ -z "$stderr" ]
        while read -r p; do gone "$p"; done <pids
        run -0 pawl run -n n true
    done
}

@test "a descendant left behind lives on, without the lock, and is named" {
    run --separate-stderr -4 pawl run n sh -c 'setsid sleep 60 3>&- >/dev/null 2>&1 & echo $!; exit 4'
    [[ $stderr == "pawl: n: left running without the lock: "*"(pid $output)" ]]
    left=$output
    kill -0 "$left"
    run -0 pawl run -n n true
    kill "$left"
    run --separate-stderr -0 pawl run -q n sh -c 'sleep 0.2 3>&- >/dev/null 2>&1 &'
    [ -z "$stderr" ]
}

@test "the command has the descriptors that it would have without pawl" {
    exec 7<helper 2>/dev/null || exec 7</dev/null
    list='ls /proc/self/fd | sort -n | tr "\n" " " >fds'
    for redirect in '' '<&-' '>&-' '2>&-' '<&- >&- 2>&-' '8>&1'; do
        eval "sh -c '$list' $redirect"
        mv fds without
        eval "pawl run n sh -c '$list' $redirect"
        diff fds without
    done
}

@test "stdin and stdout belong to the command alone" {
    run -0 bash -c "echo hi | '$PAWL' run n cat"
    [ "$output" = hi ]
    # the reader sees the end although the command goes on
    run -0 timeout 20 bash -c "'$PAWL' run n sh -c 'exec >&-; until [ -e eof ]; do sleep 0.02; done' | { cat; touch eof; }"
    # the writer sees that nobody reads
    run -0 timeout 20 bash -c "{ yes 2>/dev/null; touch epipe; } | '$PAWL' run n sh -c 'exec <&-; until [ -e epipe ]; do sleep 0.02; done'"
    # and so it is for any other descriptor
    run -0 timeout 20 bash -c "'$PAWL' run n sh -c 'exec 8>&-; until [ -e eof8 ]; do sleep 0.02; done' 8>&1 >/dev/null | { cat; touch eof8; }"
}

@test "signal dispositions and masks pass through; ignored SIGCHLD does not hide the status" {
    expected=$(sh -c 'trap "" HUP USR1; exec grep -E "^Sig(Blk|Ign):" /proc/self/status')
    found=$(sh -c 'trap "" HUP USR1; exec "$0" run n grep -E "^Sig(Blk|Ign):" /proc/self/status' "$PAWL")
    [ "$found" = "$expected" ]
    run -3 python3 -c '
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], ["pawl", "run", "n", "sh", "-c", "sh -c \"exit 3\"; exit $?"])' "$PAWL"
}

@test "--hold-at-least keeps the lock after the command, and a signal ends that" {
    rm -f done
    "$PAWL" run --hold-at-least 1m n touch done 3>&- &
    pid=$!
    until_ok 5 test -e done
    run -124 pawl run -w 0.3 n true
    kill "$pid"
    wait "$pid" && code=0 || code=$?
    pid=
    [ "$code" = 0 ]
    run -0 pawl run -n n true
    start=$(date +%s%N)
    run -0 pawl run --hold-at-least 0.3 n true
    [ $((($(date +%s%N) - start) / 1000000)) -ge 300 ]
    rm -f done
    start=$(date +%s%N)
    (trap '' HUP && exec "$PAWL" run --hold-at-least 3s n touch done) 3>&- & # a signal that is ignored ends nothing
    pid=$!
    until_ok 5 test -e done
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        kill -HUP "$pid" || true
        read -rt 0.1 <> <(:) || true
    done
    wait "$pid" && code=0 || code=$?
    pid=
    [ "$code" = 0 ]
    [ $((($(date +%s%N) - start) / 1000000)) -ge 3000 ]
}

@test "--max-hold ends a command that hangs: TERM, then KILL after the grace" {
    run --separate-stderr -122 timeout 30 "$PAWL" run --max-hold 2 n bash -c 'trap "touch told; exit 0" TERM; while :; do read -rt 0.05 <> <(:); done'
    [ -e told ]
    in_stderr "pawl: n: ENDED after "
    in_stderr "held for as long as --max-hold allows"
    run --separate-stderr -122 timeout 30 "$PAWL" run --max-hold 2 --grace 0.2 n bash -c 'trap "" TERM; setsid sleep 77 3>&- & echo $! >left; while :; do read -rt 0.05 <> <(:); done'
    gone "$(cat left)"
    run -0 pawl run --max-hold 1h n true
}

@test "--repeat runs again and again until it is told to end" {
    "$PAWL" run --repeat n sh -c 'echo $PAWL_TOKEN >>tokens' 3>&- &
    pid=$!
    until_ok 10 sh -c '[ "$(sort -u tokens | wc -l)" -ge 2 ]'
    kill "$pid"
    wait "$pid" || true
    pid=
    sort -nc tokens
    hold n
    "$PAWL" run --repeat n touch elected 3>&- &
    other=$!
    until_ok 5 has_waiter n
    kill "$other"
    wait "$other" && code=0 || code=$?
    [ "$code" = 143 ]
    [ ! -e elected ]
}

@test "--repeat leaves no zombie of what a command left behind" {
    no_zombies() { ! ps -o stat= --ppid "$pid" | grep -q Z; }
    "$PAWL" run -q --repeat n sh -c 'echo >>rounds; sleep 0.2 3>&- & exit 0' 3>&- &
    pid=$!
    until_ok 10 sh -c '[ "$(wc -l <rounds)" -ge 3 ]'
    until_ok 10 no_zombies
    kill "$pid"
    wait "$pid" || true
    pid=
}

@test "--receipt has one line for every outcome" {
    run -3 pawl run --receipt r n sh -c 'exit 3'
    run -137 pawl run --receipt r n sh -c 'kill -9 $$'
    run -127 pawl run --receipt r n no-such
    hold n
    run -123 pawl run --receipt r -n n true
    run -9 pawl run --receipt r -E 9 -w 0.1 n true
    let_go
    run -120 pawl run --receipt r -u "file:$PWD/nowhere" n true
    run -122 pawl run --receipt r --max-hold 0.1 n sleep 9
    [ "$(jq -r .outcome r | tr '\n' ' ')" = "ran ran error busy timeout unreachable lost " ]
    [ "$(jq -r .exit r | tr '\n' ' ')" = "3 137 127 123 9 120 122 " ]
    jq -se '.[0] | .name == "n" and .status == 3 and (.token | test("^[0-9]+$")) and .held_ms >= 0 and .command == "sh"' r
    jq -se '.[1].signal == 9 and (.[3].reason | length > 0) and (all(.[]; .time | endswith("Z")))' r
    run --separate-stderr -125 pawl run --receipt no/such/dir n touch ran
    in_stderr "no/such/dir"
    [ ! -e ran ]
}

@test "who shows the command, and the label" {
    hold n --label "nightly run"
    run -0 pawl who --json n
    jq -e '.holders[0] | .command == "sh" and .label == "nightly run"' <<<"$output"
}

@test "a file that is not a lock file is refused, untouched" {
    printf 'echo job\n' >locks/job.sh
    before=$(sha256sum locks/job.sh)
    run --separate-stderr -119 pawl run job.sh true
    [ "$(sha256sum locks/job.sh)" = "$before" ]
}

@test "--log json: messages are objects" {
    hold n
    run --separate-stderr -123 pawl run --log json -v -n n true
    jq -se 'length >= 1' <<<"$stderr"
    let_go
    run --separate-stderr -127 pawl run --json n no-such
    jq -e . <<<"$stderr"
}
