# pawl-lab check: the judge from outside; what it finds is tested in tests/unit/lab_history.c.
load helper

lab() { "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" "$@"; }
hold() { # WHO TOKEN START END
    printf '{"who":"%s","what":"hold","lock":"nightly","token":"%s","start":%s,"end":%s,"outcome":"released"}\n' "$@"
}
setup() {
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    { hold a 11 1000 2000; hold b 12 2000 3000; } >clean
    { hold a 11 1000 2000; hold b 10 1999 3000; } >overlap
}

@test "a clean history: exit 0, counts, ok" {
    run --separate-stderr -0 lab check clean
    in_output "clean: 2 holds (0 lost)"
    in_output "hand-overs 1, grants max/min 1/1"
    [ "${lines[-1]}" = "  ok" ]
    [ -z "$stderr" ]
}

@test "a violation: exit 1, the fault and the lines that prove it" {
    run --separate-stderr -1 lab check overlap
    in_output "overlap: 1"
    in_output "nightly: b held it from 0.000001 s (line 2) while a held it until 0.000001 s (line 1)"
    [ "${lines[-1]}" = "  violated" ]
}

@test "--json: one object, whatever was found" {
    run --separate-stderr -1 lab check --json overlap
    [ "$(jq -r '.verdict, .holds, .faults.overlap, .faults.token_fell, .examples[0].fault' <<<"$output" | tr '\n' ' ')" = "violated 2 1 0 overlap " ]
    run --separate-stderr -0 lab check --json - <clean
    [ "$(jq -r '.verdict, .handovers, (.faults | add)' <<<"$output" | tr '\n' ' ')" = "ok 1 0 " ]
}

@test "limits of starvation" {
    for i in 1 2 3; do hold a $((20 + i)) $((4000 + i * 10)) $((4009 + i * 10)); done >>clean
    run -0 lab check --max-ratio 4 --min-grants 1 clean
    run -1 lab check --max-ratio 3.9 clean
    in_output "starved: 1"
    run -1 lab check --min-grants 2 clean
}

@test "nothing can be said: exit 125, and the culprit" {
    : >empty
    run --separate-stderr -125 lab check empty
    in_stderr "empty"
    run --separate-stderr -125 lab check missing
    in_stderr "cannot open missing"
    { cat clean; echo '{"who":"a","waht":"hold"}'; } >bad
    run --separate-stderr -125 lab check bad
    in_stderr 'bad:3: unknown field "waht"'
    run --separate-stderr -125 lab check --max-ratoi 3 clean
    in_stderr "--max-ratoi"
    run --separate-stderr -125 lab check --max-wait soon clean
    in_stderr "soon"
    run --separate-stderr -125 lab check clean overlap
    run --separate-stderr -125 lab chekc clean
    in_stderr "chekc"
    run -125 bash -c "'${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}' check clean >/dev/full"
}

@test "a million lines in seconds" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "PAWL_TEST_FULL=1"
    awk 'BEGIN { for (i = 0; i < 1000000; i++) printf "{\"who\":\"w%d\",\"what\":\"hold\",\"lock\":\"l%d\",\"token\":\"%d\",\"start\":%d,\"end\":%d,\"outcome\":\"released\"}\n", i % 50, i % 20, i + 1, i * 1000, i * 1000 + 15000 }' >big
    SECONDS=0
    run -0 lab check big
    in_output "1000000 holds"
    [ "$SECONDS" -le 30 ]
}

@test "the man page has every option and every fault, and its example is true" {
    page=$BATS_TEST_DIRNAME/../../man/pawl-lab.1
    for verb in bench check; do
        for option in $(lab $verb --help | grep -oE '^  --?[a-z-]*|, --[a-z-]*' | tr -d ' ,'); do
            grep -qE "^\.It Fl (. , )?${option#-}\b|^\.It Fl ${option#-} ,| , ${option#-} " "$page" || { echo "$verb: $option is not in the page" && return 1; }
        done
    done
    for fault in $(lab check --json clean | jq -r '.faults | keys[]'); do grep -q "^\.It $fault\$" "$page"; done
    sed -n '/^\$ cat history/,/^\$/{/^{/p}' "$page" >history
    run -1 bash -c "'${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}' check --json history | jq -e '.faults.overlap == 2'"
    run -0 bash -c "'${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}' check --json history | jq -e '.faults.overlap == 1'"
}
