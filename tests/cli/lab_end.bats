# pawl-lab: however it ends nothing is left: no process, no directory; and what proves nothing is no success.
load helper
setup() {
    pawl_setup && cd "$BATS_TEST_TMPDIR"
    lab=${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}
    TMPDIR=$(mktemp -d /tmp/plXXXXX) && export TMPDIR
    chmod 711 "$TMPDIR" # PostgreSQL has a user of its own
}
teardown() {
    [ -z "${pid:-}" ] || kill -TERM "$pid" 2>/dev/null || :
    [ -z "${other:-}" ] || kill -TERM "$other" 2>/dev/null || :
    until_ok 20 rmdir "$TMPDIR" # empty
}

# Those that have $1 in their command line or environment, as a directory of their own, but for grep itself.
users_of() {
    local file
    for file in $(grep -la -- "$1" /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null); do
        [ ! -e "$file" ] || [[ $(tr '\0' ' ' <"$file" 2>/dev/null) == *"grep "* ]] || echo "$file"
    done
}
folder_of() { # the directory whose lock the process $1 has open
    find "/proc/$1/fd" -lname "$TMPDIR/pawl-lab-*/.lock" -printf '%l\n' 2>/dev/null | sed 's#/.lock$##' | grep -m1 .
}
gone() { [ ! -e "$1" ] && [ -z "$(users_of "$1")" ]; }
below() { # is one like the pattern somewhere below the process $1? In one look: on a busy machine each takes long
    ps -eo pid=,ppid=,args= | awk -v top="$1" -v like="$2" '
        { pid = $1; parent[pid] = $2; $1 = $2 = ""; args[pid] = $0 }
        END {
            for (pid in args)
                if (args[pid] ~ like)
                    for (at = pid; at in parent && at > 1; at = parent[at]) if (parent[at] == top) exit 0
            exit 1
        }'
}
# ended SIGNAL STATUS BELOW VERB...: SIGNAL as soon as a process like BELOW runs.
ended() {
    local signal=$1 wanted=$2 name=$3 dir status=0
    shift 3
    env --default-signal=HUP "$lab" "$@" >out 2>err 3>&- &
    pid=$!
    until_ok 60 below $pid "$name"
    dir=$(folder_of $pid)
    [ -d "$dir" ]
    kill "-$signal" $pid
    wait $pid || status=$?
    [ "$status" = "$wanted" ] || { echo "$*: $signal: $status, not $wanted" && cat err && return 1; }
    [ "$signal" = KILL ] || [ ! -e "$dir" ]
    until_ok 20 gone "$dir"
}

@test "every signal ends everything, also what a scenario started by itself" {
    command -v redis-server >/dev/null || skip "no redis-server"
    ended INT 130 "redis-server" run herd
    ended HUP 129 "redis-server" run zombie
    ended QUIT 131 "redis-server" run --quick
    ended KILL 137 "redis-server" run herd
}

@test "a command below pawl run, and below etcdctl lock, is ended too" {
    command -v etcdctl >/dev/null && command -v etcd >/dev/null || skip "no etcd"
    ended INT 130 "^ *sh -c echo" run wrapper-killed
    ended KILL 137 "^ *sh -c echo" run wrapper-killed
}

@test "bench is ended by a signal as well" {
    ended INT 130 "pawl-lab bench" bench --scenario cycle --seconds 30
    ended TERM 143 "pawl-lab bench" bench --scenario handoff --seconds 30
    ended KILL 137 "pawl-lab bench" bench --scenario handoff --seconds 30
}

@test "an interrupt while PostgreSQL is made is not lost" {
    compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || skip "no PostgreSQL"
    ended INT 130 "initdb -D" up postgresql
    [ ! -s out ]
}

@test "what two killed processes left is removed by the next start, what lives is not" {
    "$lab" bench --scenario cycle --seconds 60 >out 2>err 3>&- &
    pid=$!
    until_ok 60 folder_of $pid
    lives=$(folder_of $pid)
    "$lab" bench --scenario cycle --seconds 60 >out2 2>err2 3>&- &
    other=$!
    until_ok 60 pgrep -P $other
    until_ok 60 folder_of $other
    left=$(folder_of $other)
    kill -KILL "$(pgrep -P $other)" $other
    wait $other || :
    mkdir -p "$left" # if the second was faster than the first signal
    until_ok 20 test -z "$(users_of "$left")"
    [ -e "$left/.lock" ] || : >"$left/.lock"
    until_ok 60 sh -c '"$1" bench --scenario 1000 --tries 1 >/dev/null && [ ! -e "$2" ]' - "$lab" "$left"
    [ -d "$lives" ]
    kill -INT $pid
    wait $pid || :
    [ ! -e "$lives" ]
}

@test "a server that is not installed, or does not start, is 125 and leaves nothing" {
    mkdir bin
    for program in rm sh tail grep; do ln -s "$(command -v $program)" bin/; done
    run --separate-stderr -125 env PATH="$PWD/bin" "$lab" up redis
    in_stderr "redis-server cannot be run: is it installed"
    run --separate-stderr -125 env PATH="$PWD/bin" "$lab" torture --backend redis --json
    in_stderr "redis-server cannot be run: is it installed"
    [ -z "$output" ]
    run --separate-stderr -125 env PATH="$PWD/bin" "$lab" run zombie
    in_stderr "nothing can be said: everything was skipped"
    printf '#!/bin/sh\necho "no room for me"\nexit 3\n' >bin/redis-server
    chmod +x bin/redis-server
    run --separate-stderr -125 env PATH="$PWD/bin" "$lab" up redis
    in_stderr "no room for me"
    [[ $stderr != *"$TMPDIR"* ]]
    [ -z "$(ls -A "$TMPDIR")" ]
}

@test "a run that proves nothing is no success" {
    run --separate-stderr -125 "$lab" run --service mysql
    in_stderr "not mysql"
    run --separate-stderr -125 "$lab" run --service redis stale-pid
    in_stderr "nothing can be said"
    mkdir bin
    for program in rm sh; do ln -s "$(command -v $program)" bin/; done
    run --separate-stderr -125 env PATH="$PWD/bin" "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}" demo partition
    run --separate-stderr -125 pawl demo partition -u mem:
    in_stderr "without -u"
    run --separate-stderr -125 "$lab" bench --scenario cycle -u redis://127.0.0.1:1
    in_output "failed: "
    [[ $output != *spread* && $output != *rerun* ]]
}

@test "what cannot be written is said, before anything is played" {
    echo '{"who":"a","what":"hold","lock":"n","token":"11","start":1000,"end":2000,"outcome":"released"}' >clean
    for words in --version list "list -v" "list --markdown" "check clean" "check --json clean" \
        "torture --backend file --schedule" "bench --scenario 1000 --tries 1" "up redis"; do
        [ "$words" != "up redis" ] || command -v redis-server >/dev/null || continue
        run --separate-stderr -125 sh -c '"$@" >/dev/full' - "$lab" $words
        in_stderr "cannot write"
    done
    for option in --save --report; do
        run --separate-stderr -125 "$lab" run $option missing/file zombie
        in_stderr "cannot write missing/file"
        [ -z "$output" ]
    done
    run --separate-stderr -125 "$lab" bench --report missing/file
    in_stderr "cannot write missing/file"
    [ -z "$output" ]
}

@test "report: a name in a file is not a path, nor a part of the page" {
    row='{"scenario":"%s","variant":"plain","holds":0,"overlaps":0,"stale_accepted":0,"stale_refused":0,"token_regressions":0,"max_gap_ms":0.0,"verdict":"held","expected":true,"why":"%s","began":0,"ended":1}\n'
    mkdir svg
    for name in ../evil "<script>x</script>" "" "a/b"; do
        printf "$row" "$name" "" >story
        run --separate-stderr -125 "$lab" report story --svg svg
        in_stderr "story:1"
    done
    [ ! -e evil.svg ]
    printf "$row" good-1 "<script>why</script>" >story
    run --separate-stderr -0 "$lab" report story -o -
    in_output "&lt;script&gt;why"
    [[ $output != *"<script"* ]]
    run --separate-stderr -125 "$lab" report story -o /dev/full
    run --separate-stderr -125 "$lab" report -o page
    in_stderr "wants a FILE"
    run --separate-stderr -125 "$lab" report story
    in_stderr "-o PAGE or --svg"
}

@test "torture: the limits are named, and so is the seed that was drawn" {
    run --separate-stderr -0 "$lab" torture --backend file --minutes 0.3 --schedule
    [[ ${lines[0]} =~ ^torture\ file,\ 0.3\ minutes,\ seed\ [0-9]+$ ]]
    run --separate-stderr -0 "$lab" torture --backend file --minutes 0.3 --schedule --seed "${lines[0]##* }"
    run --separate-stderr -125 "$lab" torture --backend file --minutes 0.2
    in_stderr "from 0.3 to 10000"
    run --separate-stderr -125 "$lab" torture --backend file --seed -1
    in_stderr "from 0 to 9223372036854775807"
}

@test "pawl demo leaves nothing behind either when a signal ends it" {
    for signal in INT TERM QUIT; do
        env --default-signal=INT,QUIT "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}" demo >out 2>err 3>&- &
        pid=$!
        until_ok 20 grep -q "has the lock" out
        kill -$signal $pid
        wait $pid && status=0 || status=$?
        [ "$status" -gt 128 ] || [ "$status" = 0 ] # it was faster
        [ -z "$(ls -A "$TMPDIR")" ]
    done
}
