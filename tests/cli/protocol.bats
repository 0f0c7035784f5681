# The vectors of docs/PROTOCOL.md, against this build and real servers; one that is missing is skipped.
load helper

setup() {
    pawl_setup
    mkdir -p "${PAWL_URL#file:}"
    cd "$BATS_TEST_TMPDIR"
}

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
