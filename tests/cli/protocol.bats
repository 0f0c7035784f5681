# The vectors of docs/PROTOCOL.md, against this build and real servers; one that is missing is skipped.
load helper

setup() {
    pawl_setup
    mkdir -p "${PAWL_URL#file:}"
    cd "$BATS_TEST_TMPDIR"
    listeners=()
}

teardown() { [ ${#listeners[@]} = 0 ] || kill "${listeners[@]}"; }

# Lines of the block "vectors NAME", without the heading of a table.
vectors() {
    awk -v open="\`\`\`vectors $1" '$0 == open { on = 1; next } on && /^```$/ { exit } on' "$BATS_TEST_DIRNAME/../../docs/PROTOCOL.md" >block
    [ -s block ]
    if grep -q '^name|' block; then tail -n +2 block; else cat block; fi
}

@test "names: files" {
    while IFS='|' read -r name file _; do
        run -0 pawl run "$name" -- ls -A "${PAWL_URL#file:}"
        in_output "$file"
        [[ $'\n'$output$'\n' == *$'\n'"$file"$'\n'* ]]
    done < <(vectors names)
    printf -v long '%0300d' 0
    pawl run "$long" -- true
    [ -f "${PAWL_URL#file:}/${long:0:128}%-$(printf %s "$long" | sha256sum | cut -d' ' -f1)" ]
}

@test "names: Redis; and the value of a lock" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    while IFS='|' read -r name _ key _; do
        run -0 pawl run -u "$PAWL_TEST_REDIS" "$name" -- redis-cli -p "$PAWL_TEST_REDIS_PORT" GET "$key"
        [[ $output =~ ^[0-9]{16}:[0-9a-f]{48}[0-9]{13}host=.*pid=[0-9]+ ]]
    done < <(vectors names)
    last=$(redis-cli -p "$PAWL_TEST_REDIS_PORT" GET pawl:%n)
    [[ $last =~ ^[0-9a-f]{40}\ [0-9a-f]{40}\ [0-9]{16}\ -?[0-9]+$ ]]
    [[ $(redis-cli -p "$PAWL_TEST_REDIS_PORT" GET "pawl:%n:${last%% *}") =~ ^[0-9]{16}$ ]]
}

five() { redis-cli -p "$1" "${@:2}" </dev/null; }
ports() { grep -o ':[0-9]*' <<<"${PAWL_TEST_REDLOCK#redlock:}" | tr -d :; }
at_quorum() { # PATTERN COMMAND...: three of the five instances answer so; what they say is in $said
    local n=0 port one
    for port in $(ports); do
        one=$(five "$port" "${@:2}")
        [[ $one =~ $1 ]] && n=$((n + 1)) said=$one
    done
    [ "$n" -ge 3 ] || { echo "${*:2}: $n of 5 say $1; the last: $one" && return 1; }
}

@test "names: Redlock; what each instance keeps, and its messages" {
    [ -n "${PAWL_TEST_REDLOCK-}" ] || skip "no Redlock"
    export PAWL_URL=$PAWL_TEST_REDLOCK?timeout=10000 # the machine may be busy
    until_ok 60 pawl init
    while IFS='|' read -r name _ key _; do
        handle=$(pawl hold -d "$name")
        at_quorum '^[0-9]{16}:[0-9a-f]{48}[0-9]{13}host=.*pid=[0-9]+' GET "$key"
        at_quorum '^[0-9]{16}$' GET "pawl:%c:${key#pawl:}"
        [ "$(pawl who --json "$name" | jq -r '.holders[0].token')" = "$said" ]
        at_quorum '^86[0-9]{6}$' PTTL "pawl:%c:${key#pawl:}"
        pawl release "$handle"
    done < <(vectors names)
    for port in $(ports); do
        meta=$(five "$port" GET pawl:%r)
        [[ $meta =~ ^[0-9]{16}\ [0-9]{16}\ [0-9]{16}\.[0-9a-f]{16}\ [0-9a-f]{40}\ [0-9a-f]{40}\ [0-9]{16}\ [0-9]{8}\ [0-9]{8}\ [0-9]{13}\ 0{13}$ ]]
        [ "${#meta}" = 212 ]
        [[ $(five "$port" INFO server) == *"run_id:${meta:68:40}"* ]]
        [[ $(five "$port" INFO replication) == *"master_replid:${meta:109:40}"* ]]
    done
    handle=$(pawl hold -d line)
    "${PAWL_BIN:-pawl}" run -w 60s line -- true 3>&- &
    waiter=$!
    until_ok 60 at_quorum '^[0-9a-f]{48}host=.*'$'\n''[0-9]{13}$' ZRANGE pawl:%l:line 0 -1 WITHSCORES
    owner=${said:0:48}
    at_quorum '^[0-9]{5,6}$' PTTL pawl:%l:line
    at_quorum '^[0-9]{16}:[0-9a-f]{48}' GET pawl:line
    value=${said:17:48}
    for port in $(ports); do
        redis-cli -p "$port" PSUBSCRIBE 'pawl:%w:*' >"heard-$port" 3>&- &
        listeners+=($!)
        until_ok 60 grep -q psubscribe "heard-$port"
    done
    pawl release "$handle"
    wait "$waiter"
    told() { [ "$(grep -lx "g $value $owner" heard-* | wc -l)" -ge 3 ]; }
    until_ok 60 told
    [ "$(grep -lx "pawl:%w:${owner:0:16}" heard-* | wc -l)" -ge 3 ]
}

@test "Redlock's scripts" {
    [ -n "${PAWL_TEST_REDLOCK-}" ] || skip "no Redlock"
    until_ok 60 pawl run -u "$PAWL_TEST_REDLOCK?prefix=v:&timeout=10000" other -- true
    lua=$BATS_TEST_DIRNAME/../../src/redlock port=$PAWL_TEST_REDLOCK_PORT
    for script in lock seal prove release look; do
        sed -e '/--@include admit.lua/{' -e "r $lua/admit.lua" -e d -e '}' "$lua/$script.lua" >"$script.lua"
    done
    printf -v V1 '%048d' 1 # of two that have not the first 44 characters in common
    printf -v V2 'a%047d' 2
    printf -v wall '%013d' 0
    declare -A keys=([lock]='v:n v:%c:n v:%r v:%l:n v:%t:n' [seal]='v:%r v:n v:%c:n' [prove]='v:%r v:n'
        [release]='v:n v:%l:n v:%t:n' [look]='v:n v:%l:n')
    shopt -s extglob
    epoch=$(five "$port" GETRANGE v:%r 34 66) n=
    while IFS='|' read -r arguments answer; do
        read -ra words <<<"$arguments"
        script=${words[0]} words=("${words[@]:1}")
        for i in "${!words[@]}"; do
            case ${words[i]} in -) words[i]= ;; N) words[i]=$n ;; V1) words[i]=$V1 ;; V2) words[i]=$V2 ;; esac
        done
        [ "$script" != lock ] || words[0]+=$wall
        [ "$script" != release ] || words=("${words[@]:0:2}" v:%w: "${words[@]:2}")
        reply=$(redis-cli -p "$port" --eval "$script.lua" ${keys[$script]} , ${words[@]+"${words[@]}"} </dev/null | paste -sd' ')
        [[ $answer != GN || $reply != G* ]] || n=${reply:1}
        want=${answer//EPOCH/$epoch}
        want=${want//V1/$V1} want=${want//V2/$V2} want=${want//N/$n} want=${want//MS/+([0-9])}
        want=${want//$n:$V1/$n:$V1*($wall)}
        [[ $reply == $want ]] || { echo "$arguments: $reply, not $answer ($want)" && return 1; }
    done < <(vectors redlock)
}

@test "names: etcd" {
    [ -n "${PAWL_TEST_ETCD-}" ] || skip "no etcd"
    export ETCDCTL_API=3
    while IFS='|' read -r name _ _ prefix; do
        run -0 pawl run -u "$PAWL_TEST_ETCD" "$name" -- etcdctl --endpoints "127.0.0.1:$PAWL_TEST_ETCD_PORT" get --prefix --keys-only "$prefix"
        [[ ${lines[0]} == "$prefix"* && ${lines[0]#"$prefix"} =~ ^[0-9a-f]+-[0-9a-f]+$ ]]
    done < <(vectors names)
    [[ $(etcdctl --endpoints "127.0.0.1:$PAWL_TEST_ETCD_PORT" get --print-value-only /pawl/%token) =~ ^[0-9]+\ [0-9]+\ [0-9]+\ [0-9]+$ ]]
}

@test "names: PostgreSQL" {
    [ -n "${PAWL_TEST_POSTGRESQL-}" ] || skip "no PostgreSQL"
    pawl init -q "$PAWL_TEST_POSTGRESQL"
    sql() { psql -qAtX -v ON_ERROR_STOP=1 -v name="$1" "$PAWL_TEST_POSTGRESQL"; }
    while IFS='|' read -r name wide narrow fnv java; do
        run -0 sql "$name" <<<"SELECT (pawl.key(:'name', k)).id FROM unnest('{hashtextextended,hashtext,fnv1a63,java31}'::text[]) k;"
        [ "${lines[*]}" = "$wide $narrow $fnv $java" ]
        run -0 pawl run -u "$PAWL_TEST_POSTGRESQL" "$name" -- psql -qAtX "$PAWL_TEST_POSTGRESQL" -c "SELECT classid::bigint << 32 | objid::bigint
            FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
        [ "$output" = "$wide" ]
    done < <(vectors postgresql)
}

@test "guards: Redis' script" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    while IFS='|' read -r arguments answer; do
        read -ra words <<<"$arguments"
        for i in "${!words[@]}"; do [ "${words[i]}" != - ] || words[i]=; done
        reply=$(redis-cli -p "$PAWL_TEST_REDIS_PORT" --eval "$BATS_TEST_DIRNAME/../../src/redis/guard.lua" pawl:%g:v pawl:%g , "${words[@]}" </dev/null | head -1)
        [ "$reply" = "$answer" ] || { echo "$arguments: $reply, not $answer" && return 1; }
    done < <(vectors guard.lua)
}

@test "guards: pawl.guard in SQL" {
    [ -n "${PAWL_TEST_POSTGRESQL-}" ] || skip "no PostgreSQL"
    pawl init -q "$PAWL_TEST_POSTGRESQL"
    while IFS='|' read -r arguments answer; do
        reply=$(psql -qAtX -v VERBOSITY=sqlstate "$PAWL_TEST_POSTGRESQL" -c "SELECT pawl.guard($arguments)" 2>&1) || true
        [[ $reply == "$answer" || $reply == *" $answer" ]] || { echo "$arguments: $reply, not $answer" && return 1; }
    done < <(vectors pawl.guard)
}

@test "guards: the record as a file" {
    vectors record >want
    write() {
        printf 2500 | pawl guard put "$1" 'a b/c' --lock acct --token 1796043852633178
        pawl guard reset "$1" 'a b/c' --to 7 --why 'lost it' --by ana
    }
    mask() { sed -E 's/^(at|reset) [0-9]{16}/\1 TIME/'; }
    write "dir:$PWD/set"
    diff <(cat want) <(mask <"set/a%20b%2Fc.record"; echo)
    [ -n "${PAWL_TEST_ETCD-}" ] || skip "no etcd"
    write "$PAWL_TEST_ETCD"
    diff want <(ETCDCTL_API=3 etcdctl --endpoints "127.0.0.1:$PAWL_TEST_ETCD_PORT" get --print-value-only '/pawl/%guard/a%20b%2Fc/' | mask)
}
