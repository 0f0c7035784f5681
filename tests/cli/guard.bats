# pawl guard: the same for each kind; messages, exit codes, the last digit of a token.
load helper

setup() {
    pawl_setup
    bin=$(readlink -f "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}")
    export PAWL_NAME=acct PAWL_BIN=$bin
    mkdir -p "${PAWL_URL#file:}"
    cd "$BATS_TEST_TMPDIR"
    kinds=("dir:$BATS_TEST_TMPDIR/bank" "sqlite:$BATS_TEST_TMPDIR/bank.db")
    pawl guard audit "${kinds[1]}" x 2>&1 | grep -q "no module" && unset 'kinds[1]' # a build without SQLite
    return 0
}

# put URL TOKEN DATA [OPTION...]
put() {
    local url=$1 token=$2 data=$3
    shift 3
    printf %s "$data" | pawl guard put "$url" balance --token "$token" "$@"
}

@test "put and get; the token and the lock come from pawl run's environment" {
    for url in "${kinds[@]}"; do
        printf 2500 | PAWL_TOKEN=7 pawl guard put "$url" balance
        [ "$(pawl guard get "$url" balance)" = 2500 ]
        run -0 pawl guard get "$url" balance --json
        [ "$(jq -r '[.resource, .lock, .token, .rule, .data, .written] | join(" ")' <<<"$output")" = "balance acct 7 ge 2500 true" ]
        [ "$(jq -r '.token | type' <<<"$output")" = string ]
        [[ $(jq -r .by <<<"$output") == *"(pid "*"@"* ]]
    done
}

@test "a stale token: exit 121, both tokens and the other worker named, nothing changed" {
    for url in "${kinds[@]}"; do
        put "$url" 1796043852633178 2500
        run --separate-stderr -121 put "$url" 1 1500
        [ -z "$output" ]
        [[ $stderr =~ ^"pawl: balance: stale token 1; current is 1796043852633178, written by "[^\ ]+" (pid "[0-9]+", "[^\ ]+") "[0-9]+" "m?s" ago. Nothing was changed."$ ]]
        run --separate-stderr -121 put "$url" 2 1500 --by "worker 1"
        in_stderr "stale token 2 from worker 1; current is 1796043852633178"
        [ "$(pawl guard get "$url" balance)" = 2500 ]
    done
}

@test "the other refusals have words of their own, and exit 119" {
    for url in "${kinds[@]}"; do
        put "$url" 7 a
        run --separate-stderr -119 put "$url" 9 x --lock other
        in_stderr "wrong lock: the resource belongs to lock 'acct', not 'other'"
        run --separate-stderr -119 put "$url" 9007199254740991 x
        in_stderr "damaged token 9007199254740991"
        run --separate-stderr -119 put "$url" 1.5e3 x
        in_stderr "damaged token '1.5e3'"
        run --separate-stderr -119 put "$url" 9007199254740992 x
        in_stderr "damaged token '9007199254740992'"
        run --separate-stderr -119 put "$url" "" x
        in_stderr "no token"
        PAWL_TOKEN=9 run --separate-stderr -119 bash -c '"$0" guard put "$1" fresh --lock other </dev/null' "$bin" "$url"
        in_stderr "no token" # PAWL_TOKEN is of acct
        run --separate-stderr -125 env -u PAWL_NAME bash -c '"$0" guard put "$1" balance --token 9 </dev/null' "$bin" "$url"
        in_stderr "which lock?"
        [ "$(pawl guard get "$url" balance)" = a ]
    done
}

@test "no such record is not stale" {
    for url in "${kinds[@]}"; do
        run --separate-stderr -1 pawl guard get "$url" nothing
        in_stderr "no such record"
        [ -z "$output" ]
        run --separate-stderr -1 pawl guard reset "$url" nothing --to 5 --why test
        put "$url" 1 x
        run --separate-stderr -1 pawl guard get "$url" nothing
    done
}

@test "tokens up to 2^53-1 keep their last digit" {
    for url in "${kinds[@]}"; do
        put "$url" 9007199254740990 a --accept-jump
        [ "$(pawl guard get "$url" balance --json | jq -r .token)" = 9007199254740990 ]
        run --separate-stderr -121 put "$url" 9007199254740989 b
        in_stderr "current is 9007199254740990"
        put "$url" 9007199254740991 c
        run -121 put "$url" 9007199254740990 d
        [ "$(pawl guard get "$url" balance --json | jq -r .token)" = 9007199254740991 ]
    done
}

@test "a sealed resource refuses the old holder although the new one has not written" {
    for url in "${kinds[@]}"; do
        put "$url" 7 old
        pawl guard seal "$url" balance --token 8
        run --separate-stderr -121 put "$url" 7 zombie
        in_stderr "current is 8, sealed by"
        [ "$(pawl guard get "$url" balance)" = old ]
        put "$url" 8 new
        [ "$(pawl guard get "$url" balance)" = new ]
        run -121 pawl guard seal "$url" balance --token 7
    done
}

@test "reset is audited and kept" {
    for url in "${kinds[@]}"; do
        put "$url" 100 data
        run --separate-stderr -125 pawl guard reset "$url" balance --to 50
        in_stderr "--why"
        pawl guard reset "$url" balance --to 50 --why "counter lost with db1" --by ana
        [ "$(pawl guard get "$url" balance)" = data ]
        run -121 put "$url" 49 x
        put "$url" 51 more
        run -0 pawl guard audit "$url" balance
        [[ $output =~ ^20[0-9-]+T[0-9:.]+Z"  100 -> 50  ana: counter lost with db1"$ ]]
        [ "$(pawl guard audit "$url" balance --json | jq -r '.from + .to + .why')" = "10050counter lost with db1" ]
        [ "$(pawl guard get "$url" balance --json | jq '.resets | length')" = 1 ]
    done
}

@test "rules: gt once a grant, seq refuses a repeated request, both fixed by install or first write" {
    for url in "${kinds[@]}"; do
        pawl guard install "$url" --rule gt
        run --separate-stderr -125 pawl guard install "$url" --rule ge
        in_stderr "installed with rule gt, not ge"
        put "$url" 7 a
        run --separate-stderr -121 put "$url" 7 b
        in_stderr "has written already"
        run --separate-stderr -125 put "$url" 8 b --rule ge
        in_stderr "is gt since its first write, not ge"
        printf 1 | pawl guard put "$url" counted --token 7 --rule seq --seq 1
        printf 2 | pawl guard put "$url" counted --token 7 --seq 2
        run --separate-stderr -121 bash -c 'printf 2 | "$0" guard put "$1" counted --token 7 --seq 2' "$bin" "$url"
        in_stderr "stale sequence 2 of token 7"
        run --separate-stderr -125 pawl guard install "$url" --rule gte
    done
}

@test "exec: runs under the check, passes the exit code on, and keeps others out" {
    for url in "${kinds[@]}"; do
        put "$url" 7 a
        run --separate-stderr -121 pawl guard exec "$url" balance --token 6 -- touch "$BATS_TEST_TMPDIR/ran"
        [ ! -e "$BATS_TEST_TMPDIR/ran" ]
        run -3 pawl guard exec "$url" balance --token 8 -- sh -c 'exit 3'
        run -143 pawl guard exec "$url" balance --token 8 -- sh -c 'kill -TERM $$'
        run -127 --separate-stderr pawl guard exec "$url" balance --token 8 -- /nonesuch
        run -126 --separate-stderr pawl guard exec "$url" balance --token 8 -- /tmp
        run --separate-stderr -121 put "$url" 7 zombie
        in_stderr "current is 8"
        mkfifo "$BATS_TEST_TMPDIR/go"
        pawl guard exec "$url" balance --token 9 -- sh -c "echo in; read x <$BATS_TEST_TMPDIR/go" >"$BATS_TEST_TMPDIR/out" 3>&- &
        until_ok 10 grep -q in "$BATS_TEST_TMPDIR/out"
        put "$url" 10 later 3>&- &
        [ "$(pawl guard get "$url" balance --json | jq -r .token)" = 9 ]
        echo >"$BATS_TEST_TMPDIR/go"
        wait
        [ "$(pawl guard get "$url" balance)" = later ]
        rm "$BATS_TEST_TMPDIR/go" "$BATS_TEST_TMPDIR/out"
    done
}

@test "binary data and JSON; empty data" {
    for url in "${kinds[@]}"; do
        printf '\xff\x00\n' | pawl guard put "$url" balance --token 1
        [ "$(pawl guard get "$url" balance | od -An -tx1 | tr -d ' ')" = ff000a ]
        [ "$(pawl guard get "$url" balance --json | jq -r .data_base64)" = /wAK ]
        put "$url" 1 ""
        run -0 pawl guard get "$url" balance
        [ -z "$output" ]
        [ "$(pawl guard get "$url" balance --json | jq -c '[.data, .length, .written]')" = '["",0,true]' ]
    done
}

@test "a resource's name never leaves the directory" {
    put "dir:$BATS_TEST_TMPDIR/bank" 1 x
    printf y | pawl guard put "dir:$BATS_TEST_TMPDIR/bank" ../../escape --token 1
    [ "$(find "$BATS_TEST_TMPDIR" -name '*escape*' | sed 's|.*/bank/|bank/|' | sort | tr '\n' ' ')" = "bank/%2E.%2F..%2Fescape.lock bank/%2E.%2F..%2Fescape.record " ]
}

@test "usage" {
    run --separate-stderr -125 pawl guard
    run --separate-stderr -125 pawl guard pot x y
    in_stderr "did you mean 'put'?"
    run --separate-stderr -125 pawl guard put nothing:x y --token 1
    in_stderr "dir: sqlite:"
    for verb in put get seal exec install audit reset; do
        run --separate-stderr -0 pawl guard $verb --help
        in_output "pawl guard $verb URL"
        while IFS= read -r line; do [ "${#line}" -le 110 ]; done <<<"$output"
    done
}

@test "run --seal: the resource knows the token before the command starts" {
    for url in "${kinds[@]}"; do
        put "$url" 7 old
        run -0 pawl run --seal "$url#balance" acct -- sh -c '"$0" guard get "$1" balance --json' "$bin" "$url"
        token=$(jq -r .token <<<"$output")
        [ "$token" -gt 7 ]
        [ "$(jq -r .data <<<"$output")" = old ]
        [[ $(jq -r .by <<<"$output") == "sh (pid "* ]]
        run -121 put "$url" 7 zombie
        run -0 pawl run --seal "$url#balance" acct -- sh -c 'printf new | "$0" guard put "$1" balance' "$bin" "$url"
        [ "$(pawl guard get "$url" balance)" = new ]
    done
}

@test "run --seal: a refusal gives the lock back and starts nothing; the resource is named after the lock" {
    for url in "${kinds[@]}"; do
        printf x | pawl guard put "$url" acct --token 9007199254740000 --accept-jump
        run --separate-stderr -121 pawl run --seal "$url" --receipt "$BATS_TEST_TMPDIR/receipt" acct -- touch "$BATS_TEST_TMPDIR/ran"
        in_stderr "pawl: acct: cannot seal 'acct': stale token"
        [ ! -e "$BATS_TEST_TMPDIR/ran" ]
        [ "$(tail -n1 "$BATS_TEST_TMPDIR/receipt" | jq -c '[.outcome, .exit]')" = '["refused",121]' ]
        run -1 --separate-stderr pawl who acct
        run --separate-stderr -119 pawl run --seal "$url#acct" other -- touch "$BATS_TEST_TMPDIR/ran"
        in_stderr "wrong lock"
        [ ! -e "$BATS_TEST_TMPDIR/ran" ]
    done
    run --separate-stderr -125 pawl run --seal nothing:x acct -- true
    run --separate-stderr -125 pawl run --seal "dir:$BATS_TEST_TMPDIR/x#" acct -- true
}

@test "run --seal: a signal is heard while others keep the guard busy" {
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    url=${kinds[0]}
    "$bin" guard exec "$url" acct --lock acct --token 7 -- cat "$BATS_TEST_TMPDIR/fifo" 3>&- &
    exec {busy}>"$BATS_TEST_TMPDIR/fifo" # open: it is inside
    "$bin" run --seal "$url" acct -- touch "$BATS_TEST_TMPDIR/ran" 3>&- &
    pid=$! start=$SECONDS code=0
    until_ok 10 pawl who -q acct
    kill -INT "$pid" # ignored: a background job of a shell
    kill -TERM "$pid"
    wait "$pid" || code=$?
    [ "$code" = 143 ]
    [ $((SECONDS - start)) -lt 8 ] # the guard waits for 10 s
    [ ! -e "$BATS_TEST_TMPDIR/ran" ]
    run -1 pawl who -q acct
    exec {busy}>&-
    wait
}

@test "libpawl-guard(3) has each function and code of pawl_guard.h, and no other" {
    top=$BATS_TEST_DIRNAME/../..
    sed -e 's,/\*.*\*/,,' "$top/include/pawl_guard.h" | grep -o '\bpawl_guard_[a-z_]*(' | tr -d '(' | sort -u >declared
    sed -n '/^\.Sh SYN/,/^\.Sh DESC/s/^\.Fn \(pawl_guard_[a-z_]*\).*/\1/p' "$top/man/libpawl-guard.3" | sort -u >documented
    [ "$(wc -l <declared)" -gt 10 ]
    diff declared documented
    for code in $(grep -o 'PAWL_G[A-Z]*,\|PAWL_GNOTOKEN\|PAWL_RULE_[A-Z]*' "$top/include/pawl_guard.h" | tr -d , | sort -u); do
        grep -q "$code" "$top/man/libpawl-guard.3" || [ "$code" = PAWL_RULE_DEFAULT ] || { echo "$code" && return 1; }
    done
}
