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

# until_ok SECONDS COMMAND...: asks until COMMAND succeeds; fails when the time (20 s at the least: the machine may stand
# still meanwhile) is over.
until_ok() {
    local end=$((SECONDS + ($1 > 20 ? $1 : 20)))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -le "$end" ] || { echo "gave up waiting for: $*" && return 1; }
        read -rt 0.02 <> <(:) || true
    done
}

# Use after `run --separate-stderr`: the text is a part of it, or the test fails and shows what was there.
in_stderr() { [[ $stderr == *"$1"* ]] || { printf 'not in stderr: %s\nstderr: %s\n' "$1" "$stderr" && return 1; }; }
in_output() { [[ $output == *"$1"* ]] || { printf 'not in output: %s\noutput: %s\n' "$1" "$output" && return 1; }; }

# --- pawl doctor ---

levels() { pawl doctor --json "$@" | jq -r '"\(.id) \(.level)"' | grep -v ' ok$' | tr '\n' ' ' | sed 's/ $//'; } # what is not well
# row WHAT FOUND: of the table of planted faults.
row() { printf '# %-62s %s\n' "$1" "$2" | tee -a "$BATS_RUN_TMPDIR/doctor-table" >&3; }
# planted WHAT LEVELS [OPTION...]: pawl doctor finds exactly LEVELS, or, with a + before them, these and others, and says of
# each why and what to do. $usual: what this machine's server has anyway, and is not looked at.
planted() {
    local what=$1 wanted=${2#+} more=$2 all found
    shift 2
    all=$(pawl doctor --json "$@") || true
    [ -n "$all" ]
    found=$(jq -r '"\(.id) \(.level)"' <<<"$all" | grep -v ' ok$' | grep -vxF "${usual-none}" | tr '\n' ' ') || true
    [ "$found" = "${wanted:+$wanted }" ] || [[ $more == +* && " $found" == *" $wanted "* ]] ||
        { echo "$what: wanted $wanted, got: $all" && return 1; }
    jq -es 'map(select(.level == "warning" or .level == "unsafe") | .seen and .why and .fix) | all' <<<"$all" >"$BATS_TEST_TMPDIR/said"
    row "$what" "${wanted:-nothing}"
}
# refused CODE WHAT TEXT [OPTION...]: pawl doctor ends with CODE and says TEXT.
refused() {
    local code=$1 what=$2 text=$3
    shift 3
    run --separate-stderr "-$code" pawl doctor "$@"
    in_stderr "$text"
    row "$what" "exit $code: $text"
}
rows() { [ "$(grep -cv ' nothing$' "$BATS_RUN_TMPDIR/doctor-table")" -ge "$1" ]; } # AT-LEAST: faults in the table
# Below the kernel's ephemeral range, so that no client's connection takes it before its server does.
free_port() {
    python3 -c '
import random, socket
while True:
    port = random.randrange(10000, 32000)
    try: socket.socket().bind(("127.0.0.1", port))
    except OSError: continue
    print(port)
    break'
}
# slow_way PORT MS [OLD NEW]: a port of the loopback behind which PORT answers MS late, and says NEW where it said OLD; in
# $slow. Ended through $pids.
slow_way() {
    slow=$(free_port)
    python3 -c '
import asyncio, sys
port, slow, ms = map(int, sys.argv[1:4])
old, new = (word.encode() for word in sys.argv[4:]) if len(sys.argv) > 4 else (b"-", b"-")
async def pump(reader, writer, ms):
    while data := await reader.read(65536):
        await asyncio.sleep(ms / 1000)
        writer.write(data.replace(old, new))
    writer.close()
async def way(reader, writer):
    try:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, back, ms), pump(there, writer, 0))
    except OSError:
        writer.close()
async def main():
    async with await asyncio.start_server(way, "127.0.0.1", slow) as s: await s.serve_forever()
asyncio.run(main())' "$1" "$slow" "${@:2}" 2>/dev/null 3>&- &
    pids+=($!)
    until_ok 30 bash -c "exec 4<>/dev/tcp/127.0.0.1/$slow"
}
