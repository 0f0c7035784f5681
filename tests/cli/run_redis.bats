# pawl run over a lease: how it is lost, in time, and what becomes of the command. Runs under `with-server redis --`.
load helper
setup() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    pawl_setup
    export PAWL_URL=$PAWL_TEST_REDIS
    cd "$BATS_TEST_TMPDIR"
    PAWL=${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}
}
teardown() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || return 0
    server_pid | xargs -r kill -CONT
    redis FLUSHALL
    [ -z "${pid:-}" ] || wait "$pid" || true
}
redis() { redis-cli -p "$PAWL_TEST_REDIS_PORT" "$@"; }
server_pid() { redis-cli -p "$PAWL_TEST_REDIS_PORT" INFO server 2>/dev/null | sed -n 's/^process_id:\([0-9]*\).*/\1/p'; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
start() { # OPTIONS... -- COMMAND...: in the background; $pid, stderr in ./stderr
    "$PAWL" run "$@" 2>stderr 3>&- &
    pid=$!
    until_ok 5 test -e up
}
ends() { # CODE
    local code=0
    wait "$pid" || code=$?
    pid=
    [ "$code" = "$1" ] || { echo "exit $code, wanted $1; $(cat stderr)" && return 1; }
}
LOOP='while :; do read -rt 0.02 <> <(:); done'

deleted() {
    rm -f up told r
    start -t 6s --receipt r n bash -c "trap 'date +%s%N >told; exit 0' TERM; touch up; $LOOP" || return # the grace is 2 s
    redis DEL pawl:n
    began=$(now_ms)
    ends 122 || return
    [ $(($(cat told) / 1000000 - began)) -lt 4000 ]
}
@test "a deleted key: TERM within a renewal interval, 122, and one line that says so" {
    deleted || deleted || deleted # where nothing stands still meanwhile
    [ "$(grep -vc 'timers of this machine' stderr)" = 1 ] # which may be said of a slow one
    grep -q 'pawl: n: LOST after .*got TERM at' stderr
    jq -e '.outcome == "lost" and .exit == 122 and (.reason | length > 0) and (.token | length > 0)' r
}

@test "a run of the same Redis by another spelling of its URL is nested as well" {
    for url in "$PAWL_URL/0" "$PAWL_URL?prefix=pawl:"; do
        run --separate-stderr -125 pawl run n -- "$PAWL" run -u "$url" n -- touch ran
        in_stderr "already runs under this lock"
        [ ! -e ran ]
    done
    run -0 pawl run n -- "$PAWL" run -u "$PAWL_URL/1" n -- true
    run -0 pawl run n -- "$PAWL" run -u "$PAWL_URL?prefix=other:" n -- true
}

@test "a lock that somebody else took is lost as well" {
    start -t 3s n bash -c "touch up; $LOOP"
    redis SET pawl:n somebody
    ends 122
    [ "$(redis GET pawl:n)" = somebody ]
}

# Times between processes, as they are where nothing stands still between two of them.
falls_silent() {
    server=$(server_pid)
    rm -f up told last
    start -t 2s --grace 300ms n bash -c "trap 'date +%s%N >told' TERM; touch up; while :; do date +%s%N >>last; read -rt 0.02 <> <(:); done"
    kill -STOP "$server"
    stopped=$(now_ms)
    ends 122 || return
    ended=$(now_ms)
    kill -CONT "$server"
    grep -q 'LOST after' stderr || return
    # the command ignored TERM, and was killed some grace later
    told=$(($(grep -E '^[0-9]{19}$' told) / 1000000)) last=$(($(grep -E '^[0-9]{19}$' last | tail -1) / 1000000))
    echo "after the stop: last act $((last - stopped)) ms, end $((ended - stopped)) ms; the last act $((last - told)) ms after TERM"
    [ $((ended - stopped)) -le 4000 ] && [ $((last - stopped)) -lt 2000 ] && # the last renewal came before the stop
        [ $((last - told)) -ge 150 ] && [ $((last - told)) -le 450 ]
}
@test "a service that falls silent: TERM at grace before the end, dead before anybody else could have it" {
    falls_silent || falls_silent || falls_silent
}

@test "--on-lost kill: no TERM" {
    start -t 3s --on-lost kill n bash -c "trap 'touch told' TERM; touch up; $LOOP"
    redis DEL pawl:n
    ends 122
    [ ! -e told ]
}

@test "a stopped command is woken to be told" {
    start -t 6s n bash -c "echo \$\$ >cmd; trap 'touch told; exit 0' TERM; touch up; $LOOP"
    kill -STOP "$(cat cmd)"
    redis DEL pawl:n
    ends 122
    [ -e told ]
}

@test "who was told to end by pawl is not said to have run, also if the watcher that was stopped comes back in time" {
    start -t 6s --receipt r n bash -c "echo \$PPID >holder; trap 'touch told; exit 0' TERM; touch up; $LOOP"
    kill -STOP "$(cat holder)"
    until_ok 10 test -e told # by the other watcher, a grace of 2 s before the end
    kill -CONT "$(cat holder)"
    ends 122
    grep -q 'LOST after .*got TERM at' stderr
    jq -e '.outcome == "lost" and .exit == 122 and .status == 0' r
}

@test "the service is gone at the end: the command's own status counts, unless proof was asked for" {
    for code in 0 3; do
        rm -f up go
        start -t 10s n sh -c "touch up; until [ -e go ]; do sleep 0.02; done; exit $code"
        server=$(server_pid)
        kill -STOP "$server"
        touch go
        ends "$code"
        kill -CONT "$server"
        grep -q "pawl: n: sh exited with $code, but the release failed: " stderr
        redis DEL pawl:n
    done
    rm -f up go
    start -t 10s --receipt r n sh -c "touch up; until [ -e go ]; do sleep 0.02; done"
    kill -STOP "$server"
    touch go
    ends 122
    kill -CONT "$server"
    jq -e '.outcome == "lost" and .status == 0 and .exit == 122' r
}

@test "the grant turns out not to be ours at the end: 122" {
    start -t 20s n sh -c 'touch up; until [ -e go ]; do sleep 0.02; done'
    redis SET pawl:n somebody
    touch go
    ends 122
    [ "$(redis GET pawl:n)" = somebody ]
}

@test "refused: times that cannot work, shared mode, correctness without a guard" {
    run --separate-stderr -119 pawl run -t 3s --grace 2s n touch ran
    in_stderr "a grace of 2s does not fit into a ttl of 3s"
    run --separate-stderr -119 pawl run --for correctness n touch ran
    run -0 pawl run --for efficiency n true
    run pawl run -s n touch ran
    [ "$status" = 119 ] || [ "$status" = 125 ]
    [ ! -e ran ]
    run -0 pawl run -t 3s n true
    run pawl run -t 100ms n true
    [ "$status" = 0 ] || [ "$status" = 122 ] # on a slow machine it is over before the command is
}

@test "unreachable is 120" {
    run --separate-stderr -120 pawl run -u redis://127.0.0.1:1 -w 0.5 n touch ran
    in_stderr "127.0.0.1:1"
    [ ! -e ran ]
}

@test "a password is seen neither in ps, nor by the command, nor in messages" {
    redis CONFIG SET requirepass hunter2secret
    url="redis://:hunter2secret@127.0.0.1:$PAWL_TEST_REDIS_PORT"
    run -0 pawl run -v -u "$url" n sh -c 'env; ps -o args= -e'
    out=$output
    PAWL_URL=$url run -0 pawl run -v n sh -c 'env; ps -o args= -e'
    out+=$output
    PAWL_URL=$url run pawl run -v -u "redis://:wrongsecret@127.0.0.1:$PAWL_TEST_REDIS_PORT" -w 1 n true
    out+=$output
    redis -a hunter2secret CONFIG SET requirepass "" 2>/dev/null
    [[ $out == *PAWL_TOKEN=* ]]
    [[ $out != *hunter2secret* && $out != *wrongsecret* ]]
}

@test "a loss during --hold-at-least ends it: 122" {
    run --separate-stderr -122 timeout 60 "$PAWL" run -t 2s --hold-at-least 10m n redis-cli -p "$PAWL_TEST_REDIS_PORT" DEL pawl:n
    [ "$output" = 1 ]
    in_stderr "pawl: n: "
}

@test "elected again after a loss, with a higher token" {
    start -t 3s --repeat n bash -c 'echo $PAWL_TOKEN >>tokens; touch up; sleep 30'
    redis DEL pawl:n
    until_ok 10 sh -c '[ "$(wc -l <tokens)" -ge 2 ]'
    sort -nuc tokens
    kill "$pid"
    ends 143
}

# A pause of the whole machine, as far as it can be had here: all stopped, longer than the ttl.
@test "everything stopped for longer than the ttl: the command is dead as soon as pawl runs again" {
    start -t 3s n bash -c "echo \$\$ \$PPID >pids; trap '' TERM; touch up; $LOOP"
    read -r cmd holder <pids
    kill -STOP "$pid" "$holder" "$cmd"
    until_ok 5 sh -c '[ "$(redis-cli -p '"$PAWL_TEST_REDIS_PORT"' EXISTS pawl:n)" = 0 ]'
    kill -CONT "$pid" "$holder"
    until_ok 2 sh -c "! kill -0 $cmd"
    ends 122
    grep -q 'pawl: n: LOST after' stderr
}

@test "both watchers stopped: the command ran past the deadline, and that is said" {
    start -t 3s --receipt r n bash -c "echo \$PPID >holder; touch up; until [ -e go ]; do read -rt 0.02 <> <(:); done"
    read -r holder <holder
    kill -STOP "$pid" "$holder"
    until_ok 5 sh -c '[ "$(redis-cli -p '"$PAWL_TEST_REDIS_PORT"' EXISTS pawl:n)" = 0 ]'
    touch go
    until_ok 5 sh -c "ps -o stat= --ppid $holder | grep -q Z"
    kill -CONT "$pid" "$holder"
    ends 122
    jq -e '.outcome == "lost" and .exit == 122' r
}

@test "a holder that was stopped is named, and the machine is not blamed" {
    start -t 6s n sh -c 'echo $PPID >holder; touch up; until [ -e go ]; do sleep 0.02; done'
    read -r holder <holder
    kill -STOP "$holder"
    until_ok 8 sh -c '[ "$(redis-cli -p '"$PAWL_TEST_REDIS_PORT"' PTTL pawl:n)" -lt 3700 ]' # it would have been renewed at 4000
    kill -CONT "$holder"
    until_ok 8 sh -c '[ "$(redis-cli -p '"$PAWL_TEST_REDIS_PORT"' PTTL pawl:n)" -gt 4000 ]'
    touch go
    ends 0
    grep -q 'the process that renews was stopped for .* ms, with a ttl of 6000 ms' stderr
    ! grep 'timers of this machine' stderr
}

@test "renewals that come late are warned of" {
    start -t 10s --grace 0 n sh -c 'touch up; until [ -e go ]; do sleep 0.02; done'
    redis CLIENT PAUSE 7700
    redis PING
    until_ok 8 sh -c '[ "$(redis-cli -p '"$PAWL_TEST_REDIS_PORT"' PTTL pawl:n)" -gt 5000 ]'
    touch go
    ends 0
    grep -q 'renewals came late: .* ms of a ttl of 10000 ms were left' stderr
}

@test "a wait without an answer says so once, and that it answers again; not with -q, nor without -v into a file" {
    start n sh -c 'touch up; exec sleep 600'
    holder=$pid waiters=()
    for option in -v -q ''; do
        "$PAWL" run $option n true 2>"waiting$option" 3>&- &
        waiters+=($!)
    done
    until_ok 20 sh -c '[ "$("$0" who --json n | jq ".waiting | length")" = 3 ]' "$PAWL"
    server=$(server_pid)
    kill -STOP "$server"
    until_ok 60 grep -qE "waiting [0-9]+ s, no answer: .*127.0.0.1:$PAWL_TEST_REDIS_PORT" waiting-v
    kill -CONT "$server"
    until_ok 60 grep -q 's, it answers again' waiting-v
    [ "$(grep -c 'no answer' waiting-v)" = 1 ]
    kill "$holder" "${waiters[@]}"
    wait "$holder" "${waiters[@]}" || true
    pid=
    ! grep -s answer waiting-q waiting || return 1
}
