# pawl doctor of PostgreSQL. Runs under `with-server postgresql fsync on --`.
load helper
setup() {
    [ -n "${PAWL_TEST_POSTGRESQL:-}" ] || skip "no PostgreSQL here"
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    export PAWL_URL=${PAWL_TEST_POSTGRESQL/postgres@/app@} # a role that has what --acl says, and no more
    pids=()
}
teardown() { for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done; }
sql() { psql -qAtX "$PAWL_TEST_POSTGRESQL" -c "$1"; }
reload() { # SETTING VALUE
    sql "ALTER SYSTEM SET $1 = $2" && sql 'SELECT pg_reload_conf()'
    until_ok 30 sh -c "[ \"\$(psql -qAtX '$PAWL_TEST_POSTGRESQL' -c 'SHOW $1')\" = $2 ]"
}

@test "without its schema no lock can be taken, and that is said" {
    sql "CREATE ROLE app LOGIN"
    run --separate-stderr pawl doctor
    [ "$status" = 119 ] || [ "$status" = 120 ]
    in_stderr "pawl is not installed there"
    row "postgresql: no schema" "exit $status: pawl is not installed there"
    pawl init "$PAWL_TEST_POSTGRESQL"
    sql "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC"
    refused 120 "postgresql: no right to connect" "42501"
    sql "$(pawl doctor --acl | sed -n 2p)"
    sql "REVOKE USAGE ON SCHEMA pawl FROM PUBLIC"
    refused 120 "postgresql: no right to the schema" "pawl"
    sql "GRANT USAGE ON SCHEMA pawl TO PUBLIC" # as pawl init leaves it
    sql "DROP OWNED BY app"
    sql "DROP ROLE app"
    sql "CREATE ROLE other LOGIN"
    sql "GRANT CONNECT ON DATABASE postgres TO other"
    pawl run -u "${PAWL_TEST_POSTGRESQL/postgres@/other@}" rights true
    psql -qX -v ON_ERROR_STOP=1 "$PAWL_TEST_POSTGRESQL" <<<"$(pawl doctor --acl)" # the whole set, as it stands there
    pawl run rights true
    run --separate-stderr -120 pawl run -u "${PAWL_TEST_POSTGRESQL/postgres@/other@}" rights true
    in_stderr "pawl"
    sql "DROP OWNED BY other" && sql "DROP ROLE other"
}

@test "a good set-up is fine, with the rights of --acl and no more; each fault has its id" {
    planted "postgresql: (nothing; the rights of --acl and no more)" ""
    run -0 pawl doctor
    [[ ${lines[1]} == "good for   efficiency: yes"* ]]
    [[ ${lines[2]} == "ok      C01 a lock "*"P10 role"* ]]
    in_output "GRANT USAGE ON SCHEMA pawl TO \"app\";"
    planted "postgresql: a superuser, who owns the schema" "P10 warning" "$PAWL_TEST_POSTGRESQL"
    reload full_page_writes off
    planted "postgresql: full_page_writes off" "P05 unsafe"
    run -2 pawl doctor --guarantees
    in_output "NO   a crash may lose what was committed, the numbers too (P05)"
    reload full_page_writes on
    sql "ALTER ROLE app SET idle_in_transaction_session_timeout = '10s'"
    planted "postgresql: the role ends transactions that rest" "P06 warning"
    sql "ALTER ROLE app RESET ALL"
    sql "ALTER ROLE app SET statement_timeout = '1s'"
    planted "postgresql: the role ends long statements" "P06 warning"
    sql "ALTER ROLE app RESET ALL"
    sql "ALTER ROLE app SET default_transaction_isolation = serializable"
    planted "postgresql: transactions of the role are serializable" "P06 warning"
    sql "ALTER ROLE app RESET ALL"
    sql "ALTER ROLE app SET default_transaction_read_only = on"
    planted "postgresql: transactions of the role are read-only" "P06 warning"
    sql "ALTER ROLE app RESET ALL"
    sql "ALTER ROLE app SET idle_session_timeout = '10s'" # not inside a transaction; and pawl run puts it aside
    planted "postgresql: (nothing: the role ends sessions that rest)" ""
    sql "ALTER ROLE app RESET ALL"
    planted "postgresql: token=off" "+P08 warning" "$PAWL_URL?token=off"
    planted "postgresql: flush=off" "P08 warning" "$PAWL_URL?flush=off"
    planted "postgresql: pooler=session" "P08 warning" "$PAWL_URL?pooler=session"
    planted "any: correctness is asked of what may grant twice" "C05 unsafe" --for correctness
    planted "postgresql: (nothing)" ""
}

@test "lock table, connections" {
    most=$(sql "SELECT current_setting('max_locks_per_transaction')::int * current_setting('max_connections')::int")
    coproc HOLD { exec psql -qAtX "$PAWL_TEST_POSTGRESQL" 3>&-; }
    echo "SELECT count(pg_advisory_lock(i)) FROM generate_series(1, $most * 9 / 10) i;" >&"${HOLD[1]}"
    read -rt 60 _ <&"${HOLD[0]}"
    planted "postgresql: nine tenths of the lock table are used" "P04 warning"
    kill "$HOLD_PID"
    mkfifo never
    exec {never}<>never
    sql "ALTER DATABASE postgres CONNECTION LIMIT 20"
    for _ in {1..15}; do # of another role
        psql -qAtX "$PAWL_TEST_POSTGRESQL" <&"$never" >/dev/null 2>&1 3>&- &
        pids+=($!)
    done
    many() { [ "$(sql "SELECT numbackends > 15 FROM pg_stat_database WHERE datname = 'postgres'")" = t ]; }
    until_ok 60 many
    planted "postgresql: others use most of the connections" "P03 warning"
    kill "${pids[@]}"
    wait "${pids[@]}" || true
    pids=()
    exec {never}>&-
    sql "ALTER DATABASE postgres CONNECTION LIMIT -1"
    sql "ALTER ROLE app CONNECTION LIMIT 1"
    planted "postgresql: the role may have one connection" "+P03 warning"
    sql "ALTER ROLE app CONNECTION LIMIT 0"
    refused 120 "postgresql: the role may have no connection" "53300"
    sql "ALTER ROLE app CONNECTION LIMIT -1"
}

@test "standbys, and waiting for one that is not there" {
    command -v pg_receivewal >/dev/null || skip "no pg_receivewal"
    mkdir wal
    pg_receivewal -d "$PAWL_TEST_POSTGRESQL" -D wal >/dev/null 2>&1 3>&- &
    pids+=($!)
    until_ok 60 sh -c "[ \"\$(psql -qAtX '$PAWL_TEST_POSTGRESQL' -c 'SELECT count(*) FROM pg_stat_replication')\" = 1 ]"
    planted "postgresql: a standby follows" "P02 warning"
    kill "${pids[0]}" && wait "${pids[0]}" || true
    pids=()
    until_ok 60 sh -c "[ \"\$(psql -qAtX '$PAWL_TEST_POSTGRESQL' -c 'SELECT count(*) FROM pg_stat_replication')\" = 0 ]"
    reload synchronous_standby_names gone
    planted "postgresql: a synchronous standby that is not there" "+P02 unsafe" -w 8s
    PGOPTIONS='-c synchronous_commit=local' sql "ALTER SYSTEM RESET synchronous_standby_names"
    PGOPTIONS='-c synchronous_commit=local' sql "SELECT pg_reload_conf()"
}

@test "over a network without TLS" {
    [ "$(id -u)" = 0 ] && command -v ip >/dev/null && unshare -n true 2>/dev/null || skip "needs root and network namespaces"
    with_server=$(dirname "$PAWL")/../tests/lib/with-server
    [ -x "$with_server" ] || skip "no with-server here"
    cat >far <<'EOF'
far=${PAWL_TEST_POSTGRESQL/127.0.0.1/10.99.0.1}
echo "host all all 10.99.0.1/32 trust" >>"$(psql -qAtX "$PAWL_TEST_POSTGRESQL" -c 'SHOW hba_file')"
psql -qAtX "$PAWL_TEST_POSTGRESQL" -c 'SELECT pg_reload_conf()'
for i in {1..600}; do psql -qAtX "$far" -c 'SELECT 1' 2>/dev/null && break; read -rt 0.1 <> <(:) || true; done
"$PAWL" init "$far" && "$PAWL" doctor --json "$far" >all
EOF
    export PAWL
    unshare -n bash -c "ip link set lo up; ip address add 10.99.0.1/32 dev lo
        exec '$with_server' postgresql listen_addresses \"'*'\" fsync on -- bash far" || true
    [ "$(jq -r '"\(.id) \(.level)"' all | grep -v ' ok$' | tr '\n' ' ')" = "P07 warning P10 warning " ]
    row "postgresql: another host, no TLS" "P07 warning"
}

@test "what only pretends to lock" {
    PGOPTIONS='-c synchronous_commit=local' sql "CREATE DATABASE pretending"
    pretending=${PAWL_TEST_POSTGRESQL/%postgres/pretending}
    psql -qAtX "$pretending" -c "SET allow_system_table_mods = on" -c "CREATE OR REPLACE FUNCTION
        pg_catalog.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'"
    planted "postgresql: a server that only pretends to lock" "+P09 unsafe" "$pretending?token=off"
}

@test "the table" { rows 18; }
