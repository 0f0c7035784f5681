# The commands that look at a service or mend it, on each service that is there: what runs under ./check --asan, too. Runs under
# `with-server` of redis, etcd, postgresql and redlock.
load helper
setup() { pawl_setup; cd "$BATS_TEST_TMPDIR"; mkdir locks; holder='' waiter=''; }
teardown() {
    [ -z "$waiter" ] || kill -TERM "$waiter" || true
    [ -z "$holder" ] || pawl release "$holder" 2>/dev/null || true
}

waits() { pawl who --json n | jq -e '.held and (.waiting | length == 1)'; }

all_of() { # all_of BACKEND URL [EVICTS]
    [ -n "$2" ] || skip "no $1 here"
    export PAWL_URL=$2
    until_ok 60 pawl init
    run --separate-stderr -1 pawl who n
    run --separate-stderr -0 pawl ls
    [ -z "$output" ]
    holder=$(pawl hold -d n)
    "${PAWL_BIN:-pawl}" run n -- true 3>&- >/dev/null 2>&1 &
    waiter=$!
    until_ok 60 waits
    run --separate-stderr -0 pawl who n
    run --separate-stderr -0 pawl ls --json
    jq -es 'any(.[]; .waiting | length == 1)' <<<"$output" || { echo "ls: $output" && return 1; }
    "${PAWL_BIN:-pawl}" watch --json n >seen 2>&1 3>&- &
    watcher=$!
    until_ok 60 grep '"n"' seen
    kill -TERM "$watcher"
    wait "$watcher" || true
    token=$(pawl who --json n | jq -r '.holders[0].token // 0')
    run --separate-stderr -0 pawl token show --json
    [ "$(jq -r .last <<<"$output")" -ge "$token" ]
    run --separate-stderr -0 pawl token advance --to $((token + 5000000000))
    run --separate-stderr pawl doctor --json
    [ "$status" -le 2 ] || { echo "doctor: $status $stderr" && return 1; }
    jq -es 'length > 3' <<<"$output"
    if [ -n "${3-}" ]; then
        run --separate-stderr -0 pawl break n
    else
        run --separate-stderr -119 pawl break n
        pawl release "$holder"
    fi
    holder=
    wait "$waiter"
    waiter=
    run --separate-stderr -1 pawl who -q n
}

@test "file" { all_of file "$PAWL_URL"; }
@test "redis" { all_of redis "${PAWL_TEST_REDIS-}" evicts; }
@test "postgresql" { all_of postgresql "${PAWL_TEST_POSTGRESQL-}" evicts; }
@test "etcd" { all_of etcd "${PAWL_TEST_ETCD-}" evicts; }
@test "redlock" { all_of redlock "${PAWL_TEST_REDLOCK:+$PAWL_TEST_REDLOCK?timeout=10000}"; } # the machine may be busy
