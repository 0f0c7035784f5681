# pawl guard test: right guards pass, and each wrong one fails the check of the promise that it breaks.
# WRONG_GUARD is tests/cli/wrong_guard.c.
load helper

setup() {
    pawl_setup
    wrong=${WRONG_GUARD:-$BATS_TEST_DIRNAME/../../build/tests/cli/wrong_guard}
    mkdir "$BATS_TEST_TMPDIR/set"
}

# caught MODE ROUNDS CHECK...: fails those checks and no other.
caught() {
    local mode=$1 rounds=$2
    shift 2
    run --separate-stderr -1 pawl guard test --rounds "$rounds" --exec "$wrong" "$mode" "$BATS_TEST_TMPDIR/set"
    echo "$output"
    [ "$(grep '^FAIL' <<<"$output")" = "$(printf 'FAIL  %s\n' "$@")" ]
    in_output "$# of 13 promises are broken"
}

@test "dir and sqlite keep all promises" {
    for url in "dir:$BATS_TEST_TMPDIR/set" "sqlite:$BATS_TEST_TMPDIR/set.db"; do
        pawl guard audit "$url" x 2>&1 | grep -q "no module" && continue # a build without SQLite
        run --separate-stderr -0 pawl guard test --rounds 10 "$url"
        in_output "all 15 promises are kept"
        [ -z "$stderr" ]
    done
    [ -z "$(ls -A "$BATS_TEST_TMPDIR/set")" ] # the records of a test in a directory go with it
    run -0 pawl guard test --rounds 1 "dir:$BATS_TEST_TMPDIR/a%20new%25set"
    [ ! -e "$BATS_TEST_TMPDIR/a new%set" ]
    run --separate-stderr -120 pawl guard test "dir:$BATS_TEST_TMPDIR/no/where"
    in_stderr "cannot make a folder in dir:"
}

@test "a right guard behind a program keeps all promises" {
    run --separate-stderr -0 pawl guard test --rounds 30 --exec "$wrong" right "$BATS_TEST_TMPDIR/set"
    in_output "all 13 promises are kept"
}

@test "pawl itself, behind a program of a few lines" {
    cat >"$BATS_TEST_TMPDIR/adapter" <<EOF
#!/bin/bash
verb=\$1 url=dir:$BATS_TEST_TMPDIR/set pawl=$(readlink -f "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}")
case \$verb in
put | seal) said=\$("\$pawl" guard \$verb "\$url" "\$2" --lock "\$3" --token "\$4" --by "\$5" \${6:+--accept-jump} 2>&1) ;;
get) "\$pawl" guard get "\$url" "\$2" --json >"\$0.json" && jq -r '.token, .lock, .by' <"\$0.json" && "\$pawl" guard get "\$url" "\$2" ;;
reset) "\$pawl" guard reset "\$url" "\$2" --to "\$3" --by "\$4" --why "\$5" ;;
audit) "\$pawl" guard audit "\$url" "\$2" ;;
esac
code=\$?
case \$said in *"wrong lock"*) echo wrong-lock ;; *"damaged token"*) echo damaged ;; *"no token"*) echo no-token ;; esac
exit \$code
EOF
    chmod +x "$BATS_TEST_TMPDIR/adapter"
    run --separate-stderr -0 pawl guard test --rounds 3 --exec "$BATS_TEST_TMPDIR/adapter"
    in_output "all 13 promises are kept"
}

@test "caught: read, compare, write" {
    caught read-then-write 1000 "writers at the same time: the highest token stays"
    in_output "writers: "
}

@test "caught: <= refuses the same holder" {
    run --separate-stderr -1 pawl guard test --rounds 1 --exec "$wrong" once "$BATS_TEST_TMPDIR/set"
    echo "$output"
    in_output "FAIL  the same holder may write again"
    in_output "must be answered 'accepted', but was 'stale'"
}

@test "caught: the token as a float" {
    run --separate-stderr -1 pawl guard test --rounds 1 --exec "$wrong" float "$BATS_TEST_TMPDIR/set"
    echo "$output"
    in_output "FAIL  tokens keep their last digit, up to 2^53-1"
}

@test "caught: reset by deletion" {
    caught reset-deletes 1 "a reset keeps data and lock, and is listed with its reason"
}

@test "a program that does not speak the protocol is not taken for a guard" {
    run --separate-stderr -1 pawl guard test --rounds 1 --exec /bin/true
    in_output "13 of 13 promises are broken"
    run --separate-stderr -1 pawl guard test --rounds 1 --exec /nonesuch
    in_output "exit code 127"
    run --separate-stderr -125 pawl guard test redis:x
}
