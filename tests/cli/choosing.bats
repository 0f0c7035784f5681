# docs/CHOOSING.md, leaf by leaf, on real servers: what to start with works, the line that checks it looks at what it says,
# and for correctness nothing is to be had without a guard where the page asks for one.
load helper
setup() {
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    page=$BATS_TEST_DIRNAME/../../docs/CHOOSING.md
    mkdir -m 700 locks data
    for server in REDIS POSTGRESQL ETCD; do
        at=PAWL_TEST_$server
        [ -n "${!at-}" ] || skip "no $server here"
    done
    pids=()
    "$(dirname "$PAWL_BIN")"/pawl version | grep -qw redlock || skip "this build has no redlock"
}
teardown() { for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done; }
three_redis() { # new ones, for redlock: one that had been asked before would count as the only one that kept its memory
    local port all=()
    for i in 1 2 3; do
        port=$(free_port)
        redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$PWD" >/dev/null 2>&1 3>&- &
        pids+=($!) all+=("127.0.0.1:$port")
        until_ok 30 redis-cli -p "$port" PING
    done
    redlock=redlock://$(IFS=,; echo "${all[*]}")
}
sentinels() { # three; their addresses are $sentinels
    local port all=()
    for i in 1 2 3; do
        port=$(free_port)
        printf 'port %s\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 %s 2\n' "$port" "$PAWL_TEST_REDIS_PORT" >"sentinel$i.conf"
        redis-server "sentinel$i.conf" --sentinel >/dev/null 2>&1 3>&- &
        pids+=($!) all+=("127.0.0.1:$port")
        until_ok 30 sh -c "redis-cli -p $port SENTINEL get-master-addr-by-name main | grep -q 127"
    done
    sentinels=$(IFS=,; echo "${all[*]}")
}
real() { # TEXT: with addresses that are there
    sed "s#file:DIR#file:$PWD/locks#; s#redis://db1#$PAWL_TEST_REDIS#; s#postgresql://db1/app#$PAWL_TEST_POSTGRESQL#
        s#etcd://e1,e2,e3#$PAWL_TEST_ETCD#; s#redis+sentinel://s1,s2,s3#redis+sentinel://${sentinels-}#; s#--seal GUARD#--seal dir:$PWD/data#
        s#redlock://r1,r2,r3#${redlock-}#; s#NAME CMD#$2 echo ran#" <<<"$1"
}
leaves() { sed -n '/^| | start with | what breaks it/,/^$/p' "$page" | grep '^| [A-Z] '; }
cell() { awk -F ' *[|] *' -v n="$(($1 + 1))" '{ print $n }'; }

@test "each leaf: what to start with works, and its line of pawl doctor looks at what the page says" {
    three_redis
    sentinels
    n=0
    while IFS= read -r row; do
        leaf=$(cell 1 <<<"$row")
        [ "$leaf" != H ] || continue # none: guard.bats has `pawl guard exec`
        check=$(cell 4 <<<"$row" | grep -o '`pawl doctor [^`]*`' | tr -d '`')
        ids=$(cell 4 <<<"$row" | grep -oE '\b[A-Z][0-9]{2}\b')
        while IFS= read -r command; do # in the order in which they stand there
            case $command in
            "pawl init "*) eval "$(real "$command")" ;;
            "pawl run "*) run -0 --separate-stderr eval "$(real "$command" "leaf-$leaf")"; [ "$output" = ran ] ;;
            SELECT*) [[ $(psql -qAtX "$PAWL_TEST_POSTGRESQL" -c "BEGIN; ${command/NAME/leaf-C}; COMMIT") =~ ^[0-9]+$ ]] ;;
            esac
        done < <(cell 2 <<<"$row" | grep -oE '`(pawl|SELECT) [^`]*`' | tr -d '`' | { [ "$leaf" != C ] || { echo "pawl init postgresql://db1/app"; }; cat; })
        all=$(eval "$(real "${check/pawl doctor/pawl doctor --json -w 30s}")") || [ $? -le 2 ]
        [ "$(wc -w <<<"$ids")" -ge 2 ]
        for id in $ids; do
            jq -es --arg id "$id" 'map(select(.id == $id)) | length >= 1 and all(.level != "unseen")' <<<"$all" >judged || { echo "$leaf: $check does not look at $id: $all" && return 1; }
        done
        n=$((n + 1))
    done < <(leaves)
    [ "$n" = 7 ]
}

@test "the tree leads to each row of the table, and to no other" {
    in_tree=$(grep -oE -- '-> \[[A-Z]\]' "$page" | tr -dc 'A-Z\n' | tr '\n' ' ')
    [ "$in_tree" = "$(leaves | cell 1 | tr '\n' ' ')" ]
    [ "$in_tree" = "A B C D E F G H " ]
}

@test "for correctness every service but file: is refused without a guard, Redlock too, and taken with one" {
    pawl init "$PAWL_TEST_POSTGRESQL"
    three_redis
    for url in "$PAWL_TEST_REDIS" "$redlock" "$PAWL_TEST_ETCD" "$PAWL_TEST_POSTGRESQL"; do
        run --separate-stderr -119 pawl run -u "$url" --for correctness strict -- touch ran
        in_stderr "for correctness the resource must check tokens: name a guard"
        [ ! -e ran ]
        run --separate-stderr -119 pawl hold -u "$url" --for correctness strict </dev/null
        run -0 --separate-stderr pawl run -u "$url" --for correctness --seal "dir:data#${url%%:*}" strict -- echo sealed
        [ "$output" = sealed ]
        run -0 pawl run -u "$url" --for efficiency strict -- echo quick
    done
    run -0 pawl run -u file:locks --for correctness strict -- echo alone
}

@test "what each of them asks of you: the costs that doctor tells" {
    pawl init "$PAWL_TEST_POSTGRESQL"
    three_redis
    n=0
    for url in file:locks "$PAWL_TEST_REDIS" "$redlock" "$PAWL_TEST_ETCD" "$PAWL_TEST_POSTGRESQL"; do
        kind=${url%%:*}
        row=$(sed -n '/^## What each of them asks/,/^## Two/p' "$page" | grep "^| \`$kind:\`")
        cost=$(pawl doctor --json -w 30s "$url" | jq -r 'select(.id == "C06").seen') || true
        [ "$(cell 4 <<<"$row")" = "$cost" ]
        n=$((n + 1))
    done
    [ "$n" = 5 ]
    # how many connections and entries a load needs: the rate times the time of a hold
    pawl doctor --json "$PAWL_TEST_POSTGRESQL" >all || true
    jq -es 'map(select(.id == "P04"))[0].seen | contains("as many as are taken in a second, times the seconds of each")' all
    jq -es 'map(select(.id == "P03"))[0].seen | test("room for [0-9]+ clients that hold or wait")' all
    # two requests: counted where they arrive
    pawl run -u "$PAWL_TEST_REDIS" cost true
    redis-cli -p "$PAWL_TEST_REDIS_PORT" CONFIG RESETSTAT
    pawl run -u "$PAWL_TEST_REDIS" cost true
    [ "$(redis-cli -p "$PAWL_TEST_REDIS_PORT" INFO commandstats | sed -n 's/^cmdstat_eval[a-z]*:calls=\([0-9]*\).*/\1/p' | paste -sd+)" = 2 ]
}

@test "what doctor says is promised agrees with the README, for PostgreSQL, etcd and Redlock too" { # doctor.bats has the others
    pawl init "$PAWL_TEST_POSTGRESQL"
    three_redis
    n=0
    while IFS= read -r row; do
        promise=$(cell 1 <<<"$row")
        column=3
        for url in "$PAWL_TEST_POSTGRESQL" "$PAWL_TEST_ETCD" "$redlock"; do
            column=$((column + 1))
            [ "$promise $column" != "service failover 5" ] || continue # one member of etcd has nowhere to fail over to
            kept=$(pawl doctor --guarantees --json -w 30s "$url" | jq -r --arg p "$promise" 'select(.promise == $p or .promise == "one holder, " + $p).kept') || true
            [ -n "$kept" ]
            case $(cell "$column" <<<"$row") in *'**no**'*) [ "$kept" = no ] ;; *) [ "$kept" != no ] ;; esac ||
                { echo "$promise: $url: $kept, README: $row" && return 1; }
            n=$((n + 1))
        done
    done < <(grep -E '^\| (one holder|holder paused|service failover|clocks jump|freed after|order of)' "$BATS_TEST_DIRNAME/../../README.md")
    [ "$n" = 17 ]
}

@test "the thousand cycles can be measured on each of them, beside the raw protocol" {
    lab=$(dirname "$PAWL_BIN")/../lab/pawl-lab
    pawl init "$PAWL_TEST_POSTGRESQL"
    three_redis
    for url in "$PAWL_TEST_REDIS" "$redlock" "$PAWL_TEST_ETCD" "$PAWL_TEST_POSTGRESQL"; do
        run --separate-stderr -0 "$lab" bench --raw --json --tries 1 --scenario 1000 -u "$url"
        jq -e --arg kind "${url%%:*}" '.backend == $kind and .scenario == "1000" and .n == 1000 and .ops_s > 0 and .p99_us >= .p50_us
            and .raw_p50_us > 0 and .ratio > 0' <<<"$output" || { echo "$url: $output $stderr" && return 1; }
    done
}
