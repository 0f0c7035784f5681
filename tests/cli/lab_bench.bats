# pawl-lab bench from outside: short runs; the numbers mean nothing here, their shape does.
load helper

lab() { "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" "$@"; }
setup() { pawl_setup; }

@test "cycle, handoff and relay on file: the ratio beside the number, the noise, the command" {
    run --separate-stderr -0 lab bench --raw --seconds 0.05 --tries 2 --seed 7 -u file:
    [[ $output =~ cycle:\ acquire\ \+\ release.*file\ +[0-9,]+.*[01]\.[0-9][0-9]\ +\|#* ]]
    [[ $output =~ handoff:\ 2\ clients,\ hold\ 1\ ms.*relay:\ 8\ clients ]]
    in_output "machine: $(getconf _NPROCESSORS_ONLN) cores, Linux $(uname -r)"
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
    run --separate-stderr -0 lab bench --raw --seconds .02 --tries 1 --scenario cycle -u mem:
    [[ $output =~ mem\ +[0-9,]+.*\ -$'\n' ]]
}

@test "1000: a thousand rounds of each side in each try" {
    run --separate-stderr -0 lab bench --raw --json --tries 2 --scenario 1000 -u file:
    jq -e '.backend == "file" and .scenario == "1000" and .n == 2000 and .ops_s > 0 and .p50_us > 0 and .p99_us >= .p50_us
        and .raw_p50_us > 0 and .ratio > 0' <<<"$output"
}

@test "--report: a page that needs nothing else, with a histogram for each service that counts every round" {
    page=$BATS_TEST_TMPDIR/page.html
    run --separate-stderr -0 lab bench --raw --seconds 0.05 --tries 2 --scenario 1000 --scenario handoff --report "$page" -u file: -u mem:
    python3 - "$page" <<'END'
import re, sys, xml.etree.ElementTree as tree
text = open(sys.argv[1]).read()
assert not re.search(r'<script|src=|href=|url\(http|@import', text)
body = tree.fromstring(re.sub(r'&nbsp;', ' ', text[text.index('<body>'):text.index('</html>')]))
assert [h.text for h in body.iter('h2')] == ['1000', 'handoff']
assert len(list(body.iter('figure'))) == 3  # mem: has no handoff between processes
rows = [[cell.text or cell[0].text for cell in row] for row in body.iter('tr')]
assert [r[0] for r in rows] == ['service', 'file', 'mem', 'service', 'file'] and float(rows[1][1]) > 0 and rows[2][1] == '-'
for figure in body.iter('figure'):
    bars = [float(r.get('height')) for r in figure.iter('rect')]
    assert bars and abs(max(bars) - 90) < 0.1
assert 'prefers-color-scheme:dark' in text and '@media print' in text and 'name="viewport"' in text
END
    run --separate-stderr -125 lab bench --seconds 0.02 --tries 1 --scenario 1000 --report /nowhere/page.html
    in_stderr "/nowhere/page.html"
    run --separate-stderr -125 lab bench --seconds 0.02 --tries 1 --scenario 1000 --report "$page" -u "redis://app:secret@127.0.0.1:1"
    [[ $output != *secret* ]] && ! grep secret "$page"
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
