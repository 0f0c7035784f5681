# What went wrong for users of other locks (docs/CASES.md), as far as no other file has it. Runs under `with-server redis --`.
load helper
setup() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    pawl_setup
    export PAWL_URL=$PAWL_TEST_REDIS
    cd "$BATS_TEST_TMPDIR"
    mkdir locks
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    pids=()
}
teardown() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || return 0
    touch go drained
    server_pid | xargs -r kill -CONT
    redis CONFIG SET maxmemory 0 min-replicas-to-write 0
    for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done 2>/dev/null
    redis FLUSHALL
}
redis() { redis-cli -p "$PAWL_TEST_REDIS_PORT" "$@"; }
server_pid() { redis-cli -p "$PAWL_TEST_REDIS_PORT" INFO server 2>/dev/null | sed -n 's/^process_id:\([0-9]*\).*/\1/p'; }

fails() { # CODE WHAT URL: and nothing is run
    run --separate-stderr pawl run -w 1500ms -u "$3" "closed:$2" touch ran
    [ "$status" = "$1" ] && [ -n "$stderr" ] && [ ! -e ran ] || { echo "$2: exit $status, $stderr $(ls)" && return 1; }
}

@test "B28: whatever goes wrong while the lock is taken, it is said, and nothing is run" {
    run -0 pawl run warm true
    redis CONFIG SET maxmemory 1
    fails 120 "no memory" "$PAWL_URL"
    redis CONFIG SET maxmemory 0 min-replicas-to-write 1
    fails 120 "no replica" "$PAWL_URL"
    redis CONFIG SET min-replicas-to-write 0
    redis ACL SETUSER poor on '>pw' '~pawl:*' '&pawl:*' +info +evalsha +eval +time +get
    fails 120 "no right" "redis://poor:pw@127.0.0.1:$PAWL_TEST_REDIS_PORT"
    redis ACL DELUSER poor
    fails 120 "no such user" "redis://poor:pw@127.0.0.1:$PAWL_TEST_REDIS_PORT"
    redis HSET "pawl:closed:another type" a b
    fails 119 "another type" "$PAWL_URL"
    slow_way "$PAWL_TEST_REDIS_PORT" 4000
    fails 120 "late answers" "redis://127.0.0.1:$slow"
    stopped=$(server_pid)
    kill -STOP "$stopped"
    fails 120 "silence" "$PAWL_URL" || { kill -CONT "$stopped" && return 1; }
    kill -CONT "$stopped"
    until_ok 20 redis PING
    fails 120 "nobody there" redis://127.0.0.1:1
}

shift_clock() { perl -e 'print pack("q", $ARGV[0])' "$1" | dd of=offset conv=notrunc status=none; } # MS

@test "B41, B43: the clock of a client is minutes off, and steps by hours while it holds and while it waits: nothing changes" {
    skew=$(dirname "$PAWL")/../lab/skew.so
    [ -e "$skew" ] || skip "no lab here"
    ! ldd "$PAWL" | grep -q 'lib[at]san' || skip "a sanitizer comes first"
    shift_clock 180000
    off() { env LD_PRELOAD="$skew" PAWL_TEST_SKEW="$PWD/offset" "$PAWL" "$@"; }
    [ $(($(LD_PRELOAD=$skew PAWL_TEST_SKEW=$PWD/offset date +%s) - $(date +%s))) -ge 179 ]
    holders=() waiters=()
    urls=(file:locks "$PAWL_TEST_REDIS")
    busy() { for url in "${urls[@]}"; do run -123 pawl run -u "$url" -n n touch ran; done; }
    for i in 0 1; do
        off run -t 3s -u "${urls[i]}" n sh -c "touch up$i; until [ -e go ]; do sleep 0.05; done" 2>said$i 3>&- &
        holders+=($!)
        until_ok 20 test -e up$i
    done
    busy
    began=$SECONDS
    for i in 0 1; do
        off run -w 9s -u "${urls[i]}" n touch ran 3>&- &
        waiters+=($!)
    done
    for step in -3600000 3600000 0; do # each for as long as a ttl
        shift_clock "$step"
        until_ok 20 sh -c "[ \$(($(date +%s) + 3)) -le \$(date +%s) ]"
        busy
    done
    for waiter in "${waiters[@]}"; do
        wait "$waiter" && code=0 || code=$?
        [ "$code" = 124 ]
    done
    [ $((SECONDS - began)) -ge 8 ]
    [ ! -e ran ]
    touch go
    wait "${holders[@]}"
    ! grep LOST said?
}
