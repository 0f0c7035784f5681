# The programs of examples/ do what their first lines say, and stand a race.

setup() {
    examples=$BATS_TEST_DIRNAME/../../examples
    cd "$BATS_TEST_TMPDIR"
    mkdir locks
    LOCKS=file:$PWD/locks
    export PAWL_CONFIG=/dev/null
}

@test "c: a payment is charged once" {
    payment() { "$EXAMPLES_BUILT/example_payment" "$LOCKS" "dir:$PWD/payments" "$@"; }
    for i in 1 2 3 4 5 6; do payment 4711 995 >"out$i" 3>&- & done
    wait
    [ "$(cat out? | grep -c '^charging 9.95 for payment 4711$')" = 1 ]
    [ "$(cat out? | grep -c '^already charged$')" = 5 ]
    [ "$(payment 4712 1)" = "charging 0.01 for payment 4712" ]
    # one that comes with a lock of old, after a later holder
    "$PAWL" guard seal "dir:$PWD/payments" payment:4713 --lock payment:4713 --token $(($(date +%s) * 1000000 + 3600000000)) 
    run payment 4713 1
    [ "$status" = 121 ]
    [[ $output == *"stale token"* && $output != *charging* ]]
}

@test "c: a lock twice: file" {
    run "$EXAMPLES_BUILT/example_twice" "$LOCKS" n 10
    [ "$status" = 0 ]
    [ "${lines[3]}" = "two has it, with a higher token" ]
}

@test "c: a lock twice: PostgreSQL, id 12345" {
    [ -n "${PAWL_TEST_POSTGRESQL-}" ] || skip "no PostgreSQL"
    "$PAWL" init -q "$PAWL_TEST_POSTGRESQL"
    "$EXAMPLES_BUILT/example_twice" "$PAWL_TEST_POSTGRESQL?key=int8" 12345 10
    "$EXAMPLES_BUILT/example_twice" "$PAWL_TEST_POSTGRESQL?key=int8" 12345 600000 3>&- & # and others see it by that number
    twice=$! held=
    for _ in {1..1500}; do
        held=$(psql -qAtX "$PAWL_TEST_POSTGRESQL" -c "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
            AND classid = 0 AND objid = 12345 AND objsubid = 1")
        [ "$held" = 0 ] && kill -0 "$twice" || break
        read -rt 0.02 <> <(:) || true
    done
    kill "$twice"
    [ "$held" = 1 ]
}

@test "c: a lock twice: etcd, a lease of 5 s" {
    [ -n "${PAWL_TEST_ETCD-}" ] || skip "no etcd"
    [ -n "${PAWL_TEST_FULL-}" ] && hold_ms=6000 || hold_ms=10 # longer than the lease
    "$EXAMPLES_BUILT/example_twice" "$PAWL_TEST_ETCD" n "$hold_ms"
}

@test "c: a lock twice: Redlock, three ports, held for 2 s" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    "$PAWL" --version | grep -q redlock || skip "this build has no redlock"
    export A=$PAWL_TEST_REDIS_PORT
    "$WITH_SERVER" redis -- sh -c 'B=$PAWL_TEST_REDIS_PORT; export B; exec "$WITH_SERVER" redis -- sh -c "
        exec \"\$EXAMPLES_BUILT/example_twice\" redlock://127.0.0.1:\$A,127.0.0.1:\$B,127.0.0.1:\$PAWL_TEST_REDIS_PORT n 2000"'
}

@test "c++: a ledger" {
    [ -x "$EXAMPLES_BUILT/example_ledger" ] || skip "no C++ compiler"
    ledger() { "$EXAMPLES_BUILT/example_ledger" "$LOCKS" "dir:$PWD/bank" "$@"; }
    for i in 1 2 3 4 5 6 7 8; do ledger ana bob 25 3>&- & done
    wait
    run ledger
    [ "${lines[*]}" = "ana -200 bob 200" ]
    "$PAWL" guard seal "dir:$PWD/bank" ledger --lock ledger --token $(($(date +%s) * 1000000 + 3600000000))
    run ledger ana bob 1
    [ "$status" = 121 ]
    run ledger
    [ "${lines[*]}" = "ana -200 bob 200" ]
}

@test "sql: a transaction, and two round an external call" {
    [ -n "${PAWL_TEST_POSTGRESQL-}" ] || skip "no PostgreSQL"
    command -v psql >/dev/null || skip "no psql"
    "$PAWL" init -q "$PAWL_TEST_POSTGRESQL"
    run psql -qAtX -v ON_ERROR_STOP=1 -f "$examples/transaction.sql" "$PAWL_TEST_POSTGRESQL"
    [ "$status" = 0 ]
    [ "${lines[1]} ${lines[2]} ${lines[3]}" = "t 42|900 43|1100" ]
    run env CALL_SECONDS=0 "$examples/external_call.sh" "$PAWL_TEST_POSTGRESQL"
    [ "$status" = 0 ]
    [[ ${lines[*]} == *done ]]
    # whoever has lost the lock during the call does not finish it
    psql -qAtX "$PAWL_TEST_POSTGRESQL" -c "SELECT pawl.guard('transfer:42', 'accounts:42', $(($(date +%s) * 1000000 + 3600000000)))" >/dev/null
    run env CALL_SECONDS=0 "$examples/external_call.sh" "$PAWL_TEST_POSTGRESQL"
    [ "$status" -ne 0 ]
    [[ $output == *"stale token"* ]]
}

@test "python: a job once a day" {
    command -v python3 >/dev/null || skip "no python3"
    job() { python3 "$examples/scheduled_job.py" "$LOCKS" "dir:$PWD/done" "$@"; }
    for i in 1 2 3; do job 2026-11-30 >"out$i" 3>&- & done
    wait
    [ "$(cat out? | grep -c '^the report of 2026-11-30$')" = 1 ]
    [ "$(cat out? | grep -c '^done already')" = 2 ]
    [ "$(job 2026-12-01)" = "the report of 2026-12-01" ]
    [ "$(job 2026-11-30)" = "done already for 2026-12-01" ]
}

@test "node: one caller at a time, at its pace" {
    command -v node >/dev/null || skip "no node"
    for i in 1 2 3; do node "$examples/rate_limited.js" "$LOCKS" 2 >"out$i" 3>&- & done
    wait
    [ "$(cat out? | wc -l)" = 6 ]
    sort -n out? | awk 'NR > 1 && $1 - last < 99 { exit 1 } { last = $1 }'
}

@test "go: each row is migrated once" {
    command -v go >/dev/null || skip "no go"
    GOCACHE=$BATS_TEST_TMPDIR/cache GOFLAGS=-mod=mod GO111MODULE=off go build -o migration "$examples/migration.go" || skip "go does not build"
    for i in 1 2 3; do ./migration "$LOCKS" "dir:$PWD/rows" 1 20 >"out$i" 3>&- & done
    wait
    [ "$(cat out? | sort | uniq -d)" = "" ]
    [ "$(cat out? | wc -l)" = 20 ]
    [ "$(./migration "$LOCKS" "dir:$PWD/rows" 1 21)" = "row 21" ]
    "$PAWL" guard seal "dir:$PWD/rows" migration:accounts --lock migration:accounts --token $(($(date +%s) * 1000000 + 3600000000))
    run ./migration "$LOCKS" "dir:$PWD/rows" 1 22
    [ "$status" = 1 ]
}

@test "shell: lines of a shared file" {
    for i in 1 2 3 4 5 6; do "$examples/shared_file.sh" "$LOCKS" "$PWD/shared" "line $i" 3>&- & done
    wait
    [ "$("$PAWL" guard get "dir:$PWD/shared" list | sort | tr '\n' ,)" = "line 1,line 2,line 3,line 4,line 5,line 6," ]
}
