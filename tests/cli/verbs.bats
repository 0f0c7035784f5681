# The front door: help, version, and what is said to a mistake.
load helper
setup() { pawl_setup; }

@test "help goes to stdout, fits a terminal, and lists only what there is" {
    run --separate-stderr -0 pawl --help
    [ -z "$stderr" ]
    [ "${#lines[@]}" -le 30 ]
    while IFS= read -r line; do [ "${#line}" -le 110 ]; done <<<"$output"
    verbs=$(sed -n 's/^  pawl \([a-z]*\).*/\1/p' <<<"$output")
    [ "$(wc -l <<<"$verbs")" -ge 2 ]
    for verb in $verbs; do
        run --separate-stderr -0 pawl "$verb" --help
        [ -n "$output" ]
        [ -z "$stderr" ]
    done
}

@test "help, -h and help VERB" {
    expected=$(pawl --help)
    [ "$(pawl -h)" = "$expected" ]
    [ "$(pawl help)" = "$expected" ]
    [ "$(pawl help version)" = "$(pawl version --help)" ]
}

@test "no escape sequences in a pipe, nor with NO_COLOR on a terminal" {
    run -0 pawl --help
    [[ $output != *$'\e'* ]]
    run -0 env TERM=xterm script -qec "${PAWL_BIN:-pawl} --help" /dev/null
    in_output $'\e[1m'
    run -0 env TERM=xterm NO_COLOR=1 script -qec "${PAWL_BIN:-pawl} --help" /dev/null
    [[ $output != *$'\e'* ]]
}

@test "no verb, an unknown verb, and the nearest one" {
    run --separate-stderr -125 pawl
    in_stderr "a verb is missing"
    run --separate-stderr -125 pawl frobnicate
    in_stderr "unknown verb 'frobnicate' (try: pawl --help)"
    [ -z "$output" ]
    run --separate-stderr -125 pawl verison
    in_stderr "did you mean 'version'?"
    run --separate-stderr -125 pawl vers
    in_stderr "did you mean 'version'?"
    run --separate-stderr -125 pawl help frobnicate
    in_stderr "unknown verb 'frobnicate'"
}

@test "an option in front of the verb" {
    run --separate-stderr -125 pawl -u file: version
    in_stderr "unknown option '-u'; options stand behind the verb"
}

@test "an unknown option is named, with the nearest one" {
    run --separate-stderr -125 pawl version --jsno
    in_stderr "version: unknown option --jsno; did you mean --json?"
    run --separate-stderr -125 pawl version --zebra
    in_stderr "unknown option --zebra (try: pawl version --help)"
    run --separate-stderr -125 pawl version -vz
    in_stderr "unknown option -z"
    run --separate-stderr -125 pawl version --json=yes
    in_stderr "--json takes no value"
    run --separate-stderr -125 pawl version --log
    in_stderr "--log needs a value"
    run --separate-stderr -125 pawl version --log=loud
    in_stderr "--log 'loud': must be text or json"
    run --separate-stderr -125 pawl version now
    in_stderr "one operand too many: 'now'"
}

@test "control characters of an argument do not reach the terminal" {
    run --separate-stderr -125 pawl $'x\e[31m\n'
    in_stderr 'x\x1B[31m\x0A'
    [[ $stderr != *$'\e'* ]]
}

@test "version, as text and as JSON" {
    run -0 pawl version
    [[ $output =~ ^"pawl "[0-9]+\.[0-9]+\.[0-9]+" file mem".*"; layout 1"$ ]]
    [ "$(pawl --version)" = "$output" ]
    [ "$(pawl -V)" = "$output" ]
    run -0 pawl version --json
    jq -e '.version and (.services | index("file")) and .layout == 1' <<<"$output"
}

@test "--log json makes each message an object" {
    run --separate-stderr -125 pawl version --log json now
    jq -e '.level == "error" and .name == null and (.text | startswith("version: one operand")) and
           (.time | test("^[0-9-]{10}T[0-9:]{8}[.][0-9]{3}Z$"))' <<<"$stderr"
}

@test "stdout that cannot be written is an error" {
    run -125 bash -c '"$0" version 2>&1 >/dev/full' "${PAWL_BIN:-pawl}"
    in_output "cannot write to stdout: No space left on device"
}

@test "an answer that cannot be written is 125, whatever it was" {
    mkdir "$BATS_TEST_TMPDIR/locks"
    pawl guard seal "dir:$BATS_TEST_TMPDIR/guard" r --lock n --token 7
    for words in 'who free' 'who --json free' "doctor" 'doctor --json' 'token show' 'watch free' 'demo' "guard get dir:$BATS_TEST_TMPDIR/guard r --json"; do
        run --separate-stderr -125 bash -c '"$@" >/dev/full' - "${PAWL_BIN:-pawl}" $words
        in_stderr "cannot write to stdout: No space left on device"
        run --separate-stderr -125 bash -c '"$@" >&-' - "${PAWL_BIN:-pawl}" $words
        in_stderr "cannot write to stdout: Bad file descriptor"
    done
}

@test "works with descriptors 0, 1 and 2 closed; what was to be said on stdout fails" {
    run -0 bash -c '"$0" run -u file:"$1" n true <&- >&- 2>&-' "${PAWL_BIN:-pawl}" "$BATS_TEST_TMPDIR"
    run -125 bash -c '"$0" version <&- >&- 2>&-' "${PAWL_BIN:-pawl}"
    run -125 bash -c '"$0" version >&-' "${PAWL_BIN:-pawl}"
    in_output "cannot write to stdout: Bad file descriptor"
}

@test "a duration that is too long: the limit is said" {
    run --separate-stderr -125 pawl run -t 99999h n true
    in_stderr "'99999h': must be a duration of 24h at most, as in 250ms"
    run --separate-stderr -125 pawl run -t 25h n true
    in_stderr "'25h': must be from 100ms to 24h"
    run --separate-stderr -125 pawl who -w 99999h n
    in_stderr "'99999h': must be a duration of 10 years at most, as in 250ms"
    run --separate-stderr -125 pawl who -w soon n
    in_stderr "'soon': must be a duration of 10 years at most, as in 250ms"
}

@test "pawl(1) names the verbs that have --json" {
    man=${BATS_TEST_DIRNAME}/../../man/pawl.1
    [[ $(grep -A1 -- '^\.It Fl -json$' "$man" | tail -1) =~ ^".Pq Ic "(.*)$ ]]
    named=$(tr -d ' ' <<<"${BASH_REMATCH[1]}" | tr , '\n' | sort)
    for verb in $(pawl --help | sed -n 's/^  pawl \([a-z]*\).*/\1/p' | sort -u); do
        [ "$verb" != guard ] || { echo guard; continue; } # it has verbs of its own
        pawl "$verb" --json --zebra 2>&1 | grep -q 'unknown option --json' || echo "$verb"
    done | grep -v '^help$' | sort -u >"$BATS_TEST_TMPDIR/have"
    diff <(echo "$named") "$BATS_TEST_TMPDIR/have"
}
