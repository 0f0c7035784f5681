# helper.bash: what every bats file of the command loads: `load helper`, and `pawl_setup` in its setup.
#
# Each test has a home and a lock directory of its own, and no configuration. $PAWL_BIN is the built command; on its own:
# PAWL_BIN=$PWD/build/cli/pawl bats tests/cli

bats_require_minimum_version 1.5.0

pawl() { "${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}" "$@"; }

pawl_setup() {
    export HOME=$BATS_TEST_TMPDIR/home
    mkdir -p "$HOME"
    unset XDG_CONFIG_HOME PAWL_NAME PAWL_TOKEN PAWL_LOCK NO_COLOR
    export PAWL_CONFIG=$BATS_TEST_TMPDIR/no-config PAWL_URL=file:$BATS_TEST_TMPDIR/locks
    : >"$PAWL_CONFIG"
}

# until_ok SECONDS COMMAND...: asks until COMMAND succeeds; fails when the time is over.
until_ok() {
    local end=$((SECONDS + $1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -le "$end" ] || { echo "gave up waiting for: $*" && return 1; }
        read -rt 0.02 <> <(:) || true
    done
}

# Use after `run --separate-stderr`: the text is a part of it, or the test fails and shows what was there.
in_stderr() { [[ $stderr == *"$1"* ]] || { printf 'not in stderr: %s\nstderr: %s\n' "$1" "$stderr" && return 1; }; }
in_output() { [[ $output == *"$1"* ]] || { printf 'not in output: %s\noutput: %s\n' "$1" "$output" && return 1; }; }
