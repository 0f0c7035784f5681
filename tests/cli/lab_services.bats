# pawl-lab bench on every service: each scenario has its floor there. Runs under `with-server` of redis, etcd, postgresql and redlock,
# as far as they are there.
load helper

lab() { "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" "$@"; }
setup() { pawl_setup; }

every_scenario_of() { # every_scenario_of BACKEND URL
    [ -n "$2" ] || skip "no $1 here"
    [ "$1" != postgresql ] || pawl init -q "$2"
    run --separate-stderr -0 lab bench --raw --json --seconds 0.1 --tries 2 --locks 600 -u "$2" \
        --scenario cycle --scenario 1000 --scenario handoff --scenario relay --scenario many
    jq -se --arg backend "$1" 'map(.scenario) == ["cycle", "1000", "handoff", "relay", "many"]
        and all(.backend == $backend and .n > 0 and .ops_s > 0 and .ratio > 0 and (.error | not))
        and all(.[:4][]; .p50_us > 0 and .p99_us >= .p50_us and .raw_p50_us > 0)' <<<"$output"
}

@test "bench on file" { every_scenario_of file "file:$BATS_TEST_TMPDIR"; }
@test "bench on redis" { every_scenario_of redis "${PAWL_TEST_REDIS-}"; }
@test "bench on postgresql" { every_scenario_of postgresql "${PAWL_TEST_POSTGRESQL-}"; }
@test "bench on etcd" { every_scenario_of etcd "${PAWL_TEST_ETCD-}"; }
@test "bench on redlock" { every_scenario_of redlock "${PAWL_TEST_REDLOCK:+$PAWL_TEST_REDLOCK?timeout=10000}"; } # the machine may be busy
