# pawl doctor of PostgreSQL. Runs under `with-server postgresql --`.
load helper
setup() {
    [ -n "${PAWL_TEST_POSTGRESQL:-}" ] || skip "no PostgreSQL here"
    pawl_setup
    export PAWL_URL=$PAWL_TEST_POSTGRESQL
}
sql() { psql -qAtX "$PAWL_TEST_POSTGRESQL" -c "$1"; }
reload() { # SETTING VALUE
    sql "ALTER SYSTEM SET $1 = $2" && sql 'SELECT pg_reload_conf()'
    until_ok 10 sh -c "[ \"\$(psql -qAtX '$PAWL_TEST_POSTGRESQL' -c 'SHOW $1')\" = $2 ]"
}
found() { # LEVELS: exactly that is not well
    all=$(pawl doctor --json) || true
    [ "$(wc -l <<<"$all")" -ge 8 ]
    [ "$(jq -r '"\(.id) \(.level)"' <<<"$all" | grep -v ' ok$' | tr '\n' ' ')" = "${1:+$1 }" ] || { echo "wanted $1, got: $all" && return 1; }
}

@test "without its schema no lock can be taken, and that is said" {
    run --separate-stderr pawl doctor
    [ "$status" = 119 ] || [ "$status" = 120 ]
    in_stderr "pawl is not installed there"
    pawl init
}

@test "a good set-up is fine; each fault has its id" {
    found "P05 unsafe" # the tests' server does without fsync
    reload fsync on
    found ""
    reload full_page_writes off
    found "P05 unsafe"
    reload full_page_writes on
    found ""
}

@test "a lock table that is nearly full" {
    most=$(sql "SELECT current_setting('max_locks_per_transaction')::int * current_setting('max_connections')::int")
    coproc HOLD { exec psql -qAtX "$PAWL_TEST_POSTGRESQL" 3>&-; }
    echo "SELECT count(pg_advisory_lock(i)) FROM generate_series(1, $most * 9 / 10) i;" >&"${HOLD[1]}"
    read -rt 20 _ <&"${HOLD[0]}"
    found "P04 warning"
    kill "$HOLD_PID"
}
