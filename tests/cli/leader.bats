# A leader, and the candidates behind it, on every service: what a clean end costs, when the next one begins, what a dead
# leader costs, and that no candidate's clock matters. Each server is the test's own (PAWL_TEST_...); one that is missing is
# left out.
load helper

setup_file() {
    export redlock_url= redlock_pids=
    pawl version | grep -qw redlock && command -v redis-server >/dev/null || return 0
    for _ in 1 2 3; do
        port=$(free_port)
        redis-server --port "$port" --bind 127.0.0.1 --save '' >/dev/null 2>&1 3>&- &
        redlock_pids+=" $!"
        until_ok 30 redis-cli -p "$port" PING
        redlock_url+=,127.0.0.1:$port
    done
    redlock_url=redlock://${redlock_url#,}
}
teardown_file() { for pid in $redlock_pids; do kill "$pid" && wait "$pid" || true; done; }
setup() {
    pawl_setup
    mkdir -m 700 "${PAWL_URL#file:}"
    cd "$BATS_TEST_TMPDIR"
    mkfifo never
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    leases=(${PAWL_TEST_REDIS:+"$PAWL_TEST_REDIS"} ${PAWL_TEST_ETCD:+"$PAWL_TEST_ETCD"} ${redlock_url:+"$redlock_url"})
    all=("$PAWL_URL" "${leases[@]}" ${PAWL_TEST_POSTGRESQL:+"$PAWL_TEST_POSTGRESQL"})
    [ -z "${PAWL_TEST_POSTGRESQL:-}" ] || pawl init "$PAWL_TEST_POSTGRESQL"
    [ -z "$redlock_url" ] || pawl init "$redlock_url"
    pids=() handles=()
}
teardown() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" && wait "$pid" || true; done 2>/dev/null
    for handle in "${handles[@]}"; do pawl release "$handle" 2>/dev/null || true; done # where a test ended before it killed them
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }
candidate() { # URL OPTION... NAME COMMAND...: in the background; $candidate
    local url=$1
    shift
    "$PAWL" run -q -u "$url" "$@" 3>&- &
    candidate=$!
    pids+=($!)
}
waits() { until_ok 60 sh -c "'$PAWL' who --json -u '$1' '$2' | jq -e '.waiting | length > 0'"; } # URL NAME: somebody is in line
leads() { until_ok 60 test -s "$1"; } # FILE: what whoever leads writes
LOOP='exec 8<>never; while :; do read -rt 0.02 <&8; done' # no <(...), during which bash 5.2 cannot parse a trap that has one

@test "a leader that is told to end hands over at once, and not before its work is done" {
    for url in "${all[@]}"; do
        name=end-${url%%:*}
        candidate "$url" -t 30s --grace 10s "$name" bash -c "trap 'read -rt 1 <&8; date +%s%N >ended; exit 0' TERM; echo a >$name; $LOOP"
        first=$candidate
        leads "$name"
        candidate "$url" -t 30s "$name" bash -c 'date +%s%N >began'
        waits "$url" "$name"
        kill -TERM "$first"
        leads began
        gap=$((($(cat began) - $(cat ended)) / 1000000))
        echo "# ${url%%:*}: the next one began $gap ms after the last one's work had ended, ttl 30 s" >&3
        [ "$gap" -ge 0 ]
        [ "$gap" -lt 10000 ] # a lease that is not given back would cost 20 to 30 s
        rm began ended
    done
}

@test "a dead leader costs what was said to be left of its lease" {
    ttls='7 8 9 10'
    [ -z "${PAWL_TEST_FULL:-}" ] || ttls='10 15 20 25'
    for url in "${leases[@]}"; do
        for ttl in $ttls; do
            name=dead-${url%%:*}-$ttl
            handle=$(pawl hold -d -t "${ttl}s" -u "$url" "$name")
            handles+=("$handle")
            candidate "$url" "$name" bash -c "date +%s%N >$name"
            waits "$url" "$name"
            began=$(now_ms)
            read -r pid left < <(pawl who --json -u "$url" "$name" | jq -r '.holders[0] | "\(.pid) \(.left_ms)"')
            kill -KILL "${handle%-*}"
            [ "$pid" = "${handle%-*}" ] || continue # the machine stood still for longer than the ttl
            echo "$name ${url%%:*} $ttl $began $left $(now_ms)" >>killed
        done
    done
    [ "$(wc -l <killed)" -ge $((2 * ${#leases[@]})) ]
    while read -r name kind ttl began left killed; do
        leads "$name"
        free=$(($(cat "$name") / 1000000))
        echo "# $kind: ttl $ttl s, $left ms left, then killed: another one had it after $((free - killed)) ms" >&3
        [ "$left" -gt 0 ]
        [ "$left" -le $((ttl * 1000)) ]
        [ $((free - began)) -ge $((left - 1000)) ] # etcd tells whole seconds
        [ $((free - killed)) -lt $((ttl * 2000)) ] # the ttl, and what a slow machine needs
    done <killed
}

@test "the clock of a candidate takes over nothing, and keeps it from nothing" {
    skew=$(dirname "$PAWL")/../lab/skew.so
    [ -e "$skew" ] || skip "no lab here"
    hour() { perl -e 'print pack("q", $ARGV[0] * 3600000)' -- "$1" | dd of=offset conv=notrunc status=none; } # in place: it is mapped
    skewed() { env LD_PRELOAD="$skew" PAWL_TEST_SKEW="$PWD/offset" "$@"; }
    for hours in 1 -1; do
        hour $hours
        seen=$(skewed "$PAWL" hold sees </dev/null | jq -r 'select(.event == "held").time | sub("[.].*"; "Z") | fromdate')
        ahead=$(((seen - $(date +%s)) * hours))
        [ "$ahead" -gt 3500 ] # else nothing is proven here
    done
    hour 0
    declare -A handle token candidates
    for url in "${all[@]}"; do
        name=clock-${url%%:*}
        read -r "handle[$name]" "token[$name]" < <(pawl hold -d --json -t 10s -u "$url" "$name" | jq -r '"\(.handle) \(.token)"')
        handles+=("${handle[$name]}")
        LD_PRELOAD=$skew PAWL_TEST_SKEW=$PWD/offset "$PAWL" run -q -t 10s -u "$url" "$name" bash -c "echo \$PAWL_TOKEN >$name; $LOOP" 3>&- &
        candidate=$! candidates[$name]=$!
        pids+=($!)
        waits "$url" "$name"
    done
    hour 1
    began=$SECONDS
    until [ $((SECONDS - began)) -gt 21 ]; do # two ttl
        for url in "${all[@]}"; do [ ! -s "clock-${url%%:*}" ]; done
        read -rt 0.5 <> <(:) || true
    done
    for url in "${all[@]}"; do
        name=clock-${url%%:*}
        run -0 pawl who --json -u "$url" "$name"
        jq -e --arg token "${token[$name]}" --argjson pid "${handle[$name]%-*}" \
            '.holders[0] | (.token == null or .token == $token) and .pid == $pid' <<<"$output"
    done
    for name in "${!handle[@]}"; do kill -KILL "${handle[$name]%-*}"; done
    for name in "${!handle[@]}"; do
        leads "$name" # and keeps it, by its own clock an hour ago or in an hour
        [ "$(cat "$name")" -gt "${token[$name]}" ]
    done
    hour -1
    for url in "${all[@]}"; do run -123 pawl run -q -n -u "$url" "clock-${url%%:*}" true; done
    for name in "${!handle[@]}"; do kill -KILL "${candidates[$name]}"; done
    wait "${candidates[@]}" || true
    for url in "${all[@]}"; do
        name=clock-${url%%:*}
        until_ok 60 sh -c "! '$PAWL' who -q -u '$url' '$name'"
        for hours in 1 -1; do # long over for one, never for the other: the service ends leases, so neither waits
            hour $hours
            run -0 skewed "$PAWL" run -q -n -u "$url" "$name" true
        done
    done
}

@test "who, ls and watch: the same keys everywhere, and a dash for what a service does not know" {
    of_person='["command","host","label","left_ms","pid","shared","since","token","user"]'
    same_keys() { # JSON
        jq -es --argjson person "$of_person" 'length == 1 and (.[0] | (keys - ["time"]) == ["held","holders","name","url","waiting"] and
            .held and (.holders | length) == 1 and ([.holders[], .waiting[] | keys] | unique) == [$person])' <<<"$1"
    }
    for url in "${all[@]}"; do
        name=who-${url%%:*}
        candidate "$url" --label first "$name" bash -c "echo a >$name; $LOOP"
        leads "$name"
        candidate "$url" --label second "$name" true
        waits "$url" "$name"
        run -0 pawl who --json -u "$url" "$name"
        same_keys "$output"
        person=$(jq '.holders[0]' <<<"$output") waiting=$(jq '.waiting | length' <<<"$output")
        jq -e --arg user "$(id -un)" '.command == "bash" and .label == "first" and .user == $user and .pid > 0' <<<"$person"
        pid=$(jq .pid <<<"$person") # PostgreSQL keeps numbers in place of names
        same_keys "$(pawl ls --json -u "$url" | jq --argjson pid "$pid" 'select(.holders[0].pid == $pid)')"
        timeout 60 "$PAWL" watch --json -u "$url" "$name" > >(head -1 >watched) || true
        same_keys "$(cat watched)"
        read -r said token holder for left line < <(pawl ls -u "$url" | grep -F "($pid,")
        echo "# $said $token $holder $for $left $line" >&3
        for pair in "$token token" "$for since" "$left left_ms"; do
            known=$(jq --arg key "${pair#* }" '.[$key] != null' <<<"$person")
            case ${pair% *} in -) [ "$known" = false ] ;; *) [ "$known" = true ] ;; esac
        done
        case $url in redlock:*) continue ;; esac # whose line is made of hints, which come and go
        [ "$line" = "$waiting" ]
    done
}
