# pawl-lab bench from outside: short runs; the numbers mean nothing here, their shape does.
load helper

lab() { "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" "$@"; }
setup() { pawl_setup; }

@test "cycle, handoff and relay on file: the ratio beside the number, the noise, the command" {
    run --separate-stderr -0 lab bench --raw --seconds 0.05 --tries 2 --seed 7 -u file:
    [[ $output =~ cycle:\ acquire\ \+\ release.*file\ +[0-9,]+.*[01]\.[0-9][0-9]\ +\|#* ]]
    [[ $output =~ handoff:\ 2\ clients,\ hold\ 1\ ms.*relay:\ 8\ clients ]]
    in_output "machine: $(nproc) cores, Linux $(uname -r)"
    in_output "noise: "
    [ "${lines[-1]}" = "rerun: pawl-lab bench --raw --seconds 0.05 --tries 2 --seed 7 -u file:" ]
    [[ $output != *WRONG* ]]
    [ -z "$stderr" ]
}

@test "--json: every row has its ratio, its floor and the state of the machine" {
    run --separate-stderr -0 lab bench --raw --json --seconds 0.05 --tries 3 --scenario cycle --scenario handoff -u file:
    [ "${#lines[@]}" -eq 2 ]
    jq -se 'map(.scenario) == ["cycle", "handoff"] and all(.backend == "file" and .n > 0 and .ops_s > 0 and .p50_us > 0
        and .p99_us >= .p50_us and .raw_p50_us > 0 and .ratio > 0 and (.tries | length) == 3 and .load >= 0)' <<<"$output"
    jq -se '.[1] | .clients == 2 and .faults == 0 and .handoffs_s > 0' <<<"$output"
    # the ratio is the median of the tries' ratios
    jq -se '.[0] | .ratio == ([.tries[].ratio] | sort | .[1])' <<<"$output"
}

@test "without --raw there is no ratio; a service without a floor says -" {
    run --separate-stderr -0 lab bench --json --seconds 0.02 --tries 1 --scenario cycle -u mem:
    jq -e '.ratio == null and .raw_p50_us == null' <<<"$output"
    run --separate-stderr -0 lab bench --raw --seconds 0.02 --tries 1 --scenario cycle -u mem:
    [[ $output =~ mem\ +[0-9,]+.*\ -$'\n' ]]
}

@test "many: every lock is held, and costs less than a kilobyte" {
    run --separate-stderr -0 lab bench --json --scenario many --locks 2000 --tries 1 -u file:
    most=1024
    ! ldd "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" | grep -q 'lib[at]san' || most=100000
    jq -e ".locks == 2000 and .bytes_per_lock < $most and .ops_s > 0" <<<"$output"
    in_stderr "many on file"
}

@test "nothing is left in the temporary directory" {
    export TMPDIR=$BATS_TEST_TMPDIR/temporary
    mkdir "$TMPDIR"
    run -0 lab bench --raw --seconds 0.02 --tries 1 --scenario cycle
    [ -z "$(ls -A "$TMPDIR")" ]
}

@test "mistakes name the culprit: exit 125" {
    run --separate-stderr -125 lab bench --scenario sprint
    in_stderr "sprint"
    run --separate-stderr -125 lab bench --clients 1
    in_stderr "--clients"
    run --separate-stderr -125 lab bench --seconds 0
    run --separate-stderr -125 lab bench --hold never
    in_stderr "never"
    run --separate-stderr -125 lab bench stray
    in_stderr "stray"
    run --separate-stderr -125 lab bench --seconds 0.02 --scenario cycle -u gopher://x
    in_output "failed: "
    run --separate-stderr -125 lab bench --seconds
}
