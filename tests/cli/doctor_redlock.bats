# pawl doctor of redlock: what each finding means for the verdict, the exit status and the promises; the findings by
# themselves are tests/system/redlock/doctor.c. Runs under `with-server redlock --`: each test begins with empty instances.
load helper
setup() {
    [ -n "${PAWL_TEST_REDLOCK:-}" ] || skip "no redis-server"
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    export PAWL_URL=$PAWL_TEST_REDLOCK?timeout=5000
    IFS=, read -ra port <<<"${PAWL_TEST_REDLOCK//*:\/\//}"
    port=("${port[@]##*:}")
    each FLUSHALL
    pawl init
    pids=()
}
teardown() {
    for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done
    [ -z "${PAWL_TEST_REDLOCK:-}" ] || {
        each ACL DELUSER few
        each REPLICAOF NO ONE
        each CONFIG SET maxmemory 0 maxmemory-policy noeviction appendonly no
    }
}
at() { redis-cli -p "${port[$1]}" "${@:2}"; } # INSTANCE WORD...
each() { for i in "${!port[@]}"; do at "$i" "$@"; done; }

guarded="with a guard only: a holder that is paused or cut off may not know that it lost the lock"
# verdict WHAT EXIT EFFICIENCY CORRECTNESS LEVELS [OPTION...]; all are on one host, which is L08.
usual="L08 warning"
verdict() {
    planted "redlock: $1" "$5" -w 60s "${@:6}"
    run "-$2" pawl doctor -w 60s "${@:6}"
    [ "${lines[1]}" = "good for   efficiency: $3        correctness: $4" ] || { echo "$1: $output" && return 1; }
}
over="token rises over restart, failover, lost data"
promise() { pawl doctor --guarantees --json "${@:2}" | jq -r --arg p "$1" 'select(.promise == $p).kept'; } # WHICH [OPTION...]

@test "redlock: all is well, and what a guard adds" {
    verdict "(nothing)" 1 yes "$guarded" ""
    verdict "(nothing), and a guard" 1 yes "yes, with that guard" "" --seal "sqlite:$PWD/guard.db#r"
    verdict "no guard, and correctness is asked" 2 yes "$guarded" "C05 unsafe" --for correctness
    [ "$(promise 'one holder, service failover')" = yes ]
    [ "$(promise 'one holder, nothing failing')" = yes ]
}

@test "redlock: what makes it no good, each by itself" {
    at 1 CONFIG SET maxmemory-policy allkeys-lru
    verdict "an instance may evict, once it has a limit" 1 yes "$guarded" "L03 warning"
    at 1 CONFIG SET maxmemory 100mb
    verdict "an instance evicts" 2 NO NO "L03 unsafe"
    [ "$(promise 'one holder, nothing failing')" = no ]
    at 1 CONFIG SET maxmemory 0 maxmemory-policy noeviction
    each ACL SETUSER few on '>secret' '~pawl:*' '&pawl:*' +info +evalsha +eval +time +get +mget +getrange +set +setrange \
        +del +pexpire +pttl +zadd +zrem +zrange +zrank +publish +subscribe
    verdict "no right to list" 1 yes "$guarded" "L11 warning L11 warning L11 warning L11 warning L11 warning" \
        "${PAWL_URL/:\/\//://few:secret@}"
    at 2 ACL SETUSER few -pexpire
    run -2 pawl doctor "${PAWL_URL/:\/\//://few:secret@}"
    in_output "good for   efficiency: NO        correctness: NO"
    in_output "UNSAFE  L11  rights at 127.0.0.1:${port[2]}: +pexpire +scan"
}

@test "redlock: what only correctness minds" {
    verdict "durable in name only" 2 yes NO "L05 unsafe L05 unsafe L05 unsafe L05 unsafe L05 unsafe" "$PAWL_URL&durable=yes"
    verdict "durable in name only, for efficiency" 1 yes NO "" "$PAWL_URL&durable=yes" --for efficiency
    [ "$(promise 'one holder, service failover' "$PAWL_URL&durable=yes")" = no ]
    [ "$(promise "$over" "$PAWL_URL&durable=yes")" = no ]
    [ "$(promise "$over")" = yes ]
    each CONFIG SET appendonly yes appendfsync always
    verdict "(nothing; durable)" 1 yes "$guarded" "" "$PAWL_URL&durable=yes"
    [ "$(promise 'one holder, service failover' "$PAWL_URL&durable=yes")" = yes ]
}

@test "redlock: a replica, which only correctness minds" {
    local follower
    follower=$(free_port)
    redis-server --port "$follower" --bind 127.0.0.1 --save '' --dir "$PWD" --replicaof 127.0.0.1 "${port[1]}" >/dev/null 3>&- &
    pids+=($!)
    until_ok 60 sh -c "redis-cli -p ${port[1]} INFO replication | grep -q connected_slaves:1"
    verdict "an instance has a replica" 1 yes "$guarded" "L02 warning"
    usual= verdict "an instance has a replica, for efficiency" 1 yes "$guarded" "L08 warning" --for efficiency
}

@test "redlock: what costs availability only" {
    pawl run -t 20m long true
    verdict "a ttl of 20 minutes" 1 yes "$guarded" "L10 warning"
    at 1 CONFIG SET maxmemory 1000000
    verdict "an instance is nearly full" 1 yes "$guarded" "L04 warning L10 warning"
    at 1 CONFIG SET maxmemory 0
    at 3 FLUSHALL
    verdict "an instance came back empty" 1 yes "$guarded" "L01 warning L10 warning"
    at 4 FLUSHALL
    verdict "two of five came back empty" 1 yes "$guarded" "L01 warning L01 warning L07 warning L10 warning"
    [ "$(promise 'one holder, nothing failing')" = yes ]
}

@test "redlock: without a quorum it is good for nothing" {
    for i in 2 3 4; do at "$i" FLUSHALL; done
    run -2 pawl doctor -w 60s
    [ "${lines[1]}" = "good for   efficiency: NO        correctness: NO" ]
    in_output "UNSAFE  L07  quorum: 2 of 5 instances vote, 3 are needed"
    row "redlock: a quorum lost its memory" "C01 unsafe L01 warning L01 warning L01 warning L07 unsafe"
}

# The last one: it can never save again.
@test "redlock: an instance that cannot save" {
    rm -r "$(at 1 CONFIG GET dir | tail -1)"
    at 1 BGSAVE
    until_ok 60 sh -c "redis-cli -p ${port[1]} INFO persistence | grep -q rdb_last_bgsave_status:err"
    verdict "an instance cannot save" 2 NO NO "L06 unsafe"
}

@test "redlock: the table" {
    [ -n "${PAWL_TEST_REDLOCK:-}" ] || skip "no redis-server"
    rows 12
}
