# pawl guard where the service keeps the data: Redis, etcd, PostgreSQL. Each server is the test's own (PAWL_TEST_...); one that is
# missing is skipped.
load helper

setup() {
    pawl_setup
    mkdir -p "${PAWL_URL#file:}"
    cd "$BATS_TEST_TMPDIR"
    export PAWL_NAME=acct
    kinds=(${PAWL_TEST_REDIS:+"$PAWL_TEST_REDIS"} ${PAWL_TEST_ETCD:+"$PAWL_TEST_ETCD"} ${PAWL_TEST_POSTGRESQL:+"$PAWL_TEST_POSTGRESQL"})
    [ -z "${PAWL_TEST_POSTGRESQL-}" ] || pawl guard install "$PAWL_TEST_POSTGRESQL"
    [ ${#kinds[@]} -gt 0 ] || skip "no server"
}

@test "the promises are kept" {
    for url in "${kinds[@]}"; do
        run -0 pawl guard test --rounds 2 "$url"
        [[ $output == *"promises are kept" ]]
    done
}

@test "doctor says that a guard is one that can be written, and writes to no other resource" {
    for url in "${kinds[@]}"; do
        run -0 pawl doctor -u mem: --for correctness --seal "$url#untouched" --json
        jq -es 'any(.id == "C05" and .level == "ok")' <<<"$output"
        run -1 pawl guard get "$url" untouched
        [ "$(pawl guard get "$url" pawl-doctor --json | jq -r .lock)" = pawl-doctor ]
    done
}

@test "doctor finds a guard that can be read but not written" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    hostport=${PAWL_TEST_REDIS#redis://} && hostport=${hostport%%/*}
    redis-cli -h "${hostport%:*}" -p "${hostport##*:}" ACL SETUSER reader on '>secret' '~*' '&*' +@read +info +@connection
    run -2 pawl doctor -u mem: --for correctness --seal "redis://reader:secret@$hostport#r" --json
    jq -es 'any(.id == "C05" and .level == "unsafe" and (.seen | contains("evalsha")))' <<<"$output"
    redis-cli -h "${hostport%:*}" -p "${hostport##*:}" ACL DELUSER reader
}

@test "pawl run, a seal, and a zombie" {
    for url in "${kinds[@]}"; do
        run -0 pawl run -u "$url" --seal "$url#balance" acct -- sh -c 'echo $PAWL_SERVICE $PAWL_TOKEN; printf 2500 | '"$PAWL_BIN"' guard put '"$url"' balance'
        read -r service token <<<"$output"
        [ "$service" = "${url%%:*}" ]
        [ "$(pawl guard get "$url" balance)" = 2500 ]
        run -0 pawl guard get "$url" balance --json
        [ "$(jq -r '[.service, .token, .data] | join(" ")' <<<"$output")" = "$service $token 2500" ]
        run --separate-stderr -121 pawl guard put "$url" balance --token $((token - 1)) <<<1500
        [[ $stderr == *"stale token $((token - 1))"*"current is $token"*"Nothing was changed."* ]]
        [ "$(pawl guard get "$url" balance)" = 2500 ]
    done
}

@test "a lock that moved from another service" {
    url=${kinds[0]}
    pawl run -u "$url" --seal "$url#moved" acct -- true
    token=$(pawl guard get "$url" moved --json | jq -r .token)
    run --separate-stderr -121 env PAWL_SERVICE=file PAWL_TOKEN=$((token - 5)) "$PAWL_BIN" guard put "$url" moved <<<x
    [[ $stderr == *"Moved from another service: that one is of ${url%%:*}:, this one of file:"*"pawl token advance --to $token"* ]]
}

@test "reset is audited; exec is refused" {
    for url in "${kinds[@]}"; do
        echo a | pawl guard put "$url" r --token 100
        pawl guard reset "$url" r --to 50 --why "counter lost" --by ana
        run -0 pawl guard audit "$url" r
        [[ $output == *100*50*ana*"counter lost"* ]]
        [ "$(pawl guard get "$url" r)" = a ]
        run --separate-stderr -119 pawl guard exec "$url" r --token 101 -- true
        [[ $stderr == *"cannot keep others out"* ]]
    done
}

@test "a password in the URL is not shown, and a profile will do" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    url=redis://:secret7@${PAWL_TEST_REDIS#redis://}
    run --separate-stderr -120 pawl guard get -v "$url" r
    [[ $stderr != *secret7* && $stderr == *profile* ]]
    printf '[bank]\nurl = %s\n' "$PAWL_TEST_REDIS" >config
    export PAWL_CONFIG=$PWD/config
    echo 1 | pawl guard put @bank r --token 1000
    [ "$(pawl guard get @bank r)" = 1 ]
}

@test "redis: the script with data of any type, by any client" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    script=$BATS_TEST_DIRNAME/../../src/redis/guard.lua
    redis() { redis-cli -p "$PAWL_TEST_REDIS_PORT" "$@"; }
    step() { # KEY TOKEN COMMAND ARG...
        local key=$1 token=$2
        shift 2
        redis --eval "$script" pawl:%g:any pawl:%g "$key" , put acct "$token" 0 '' me '' 0 "$@"
    }
    [ "$(step h 7 HSET field one)" = 1 ]
    [ "$(step l 7 RPUSH a b c)" = 3 ]
    [[ $(step s 8 XADD '*' k v) == *-0 ]]
    [[ $(step z 8 ZADD 5 m) == 1 ]]
    [ "$(step t 8 SET text)" = OK ]
    [[ $(step h 7 HSET field two) == stale* ]]
    [ "$(redis HGET h field)" = one ]
    [[ $(step h 9 LPUSH x) == *WRONGTYPE* ]] # the mark is as it was
    [ "$(step h 8 HSET field three)" = 0 ]
    run -0 pawl guard get "$PAWL_TEST_REDIS" any --json
    [ "$(jq -r '[.token, .written] | join(" ")' <<<"$output")" = "8 false" ]
}

@test "etcd: only while the lock's own key is there" {
    [ -n "${PAWL_TEST_ETCD-}" ] || skip "no etcd"
    etcd() { ETCDCTL_API=3 etcdctl --endpoints "127.0.0.1:$PAWL_TEST_ETCD_PORT" "$@"; }
    etcd put lock/a x >/dev/null
    revision=$(etcd get lock/a -w json | jq .kvs[0].create_revision)
    url="$PAWL_TEST_ETCD?while=lock/a@$revision"
    echo one | pawl guard put "$url" held --token 7
    etcd del lock/a >/dev/null
    run --separate-stderr -121 pawl guard put "$url" held --token 7 <<<two
    [[ $stderr == *"lock 'acct' is not held under it any more. Nothing was changed."* ]]
    etcd put lock/a y >/dev/null # the same key of another grant
    run --separate-stderr -121 pawl guard put "$url" held --token 7 <<<two
    [ "$(pawl guard get "$url" held)" = one ]
    run --separate-stderr -125 pawl guard put "$PAWL_TEST_ETCD?while=lock/a" held --token 7 <<<two
    [[ $stderr == *"while is KEY@REVISION"* ]]
}

@test "postgresql: a protected table" {
    [ -n "${PAWL_TEST_POSTGRESQL-}" ] || skip "no PostgreSQL"
    sql() { psql -qAtX -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$PAWL_TEST_POSTGRESQL_PORT" -U postgres postgres "$@"; }
    sql -c "CREATE TABLE accounts (id text PRIMARY KEY, owner text, balance int)"
    pawl guard install "$PAWL_TEST_POSTGRESQL" --protect accounts
    run --separate-stderr -1 sql -c "INSERT INTO accounts VALUES ('9021', 'ana', 1000)"
    [[ $stderr == *"'accounts:9021' is guarded"*"SET LOCAL pawl.token"* ]]
    pawl run -u "$PAWL_TEST_POSTGRESQL" acct -- sh -c "psql -qAtX -h 127.0.0.1 -p $PAWL_TEST_POSTGRESQL_PORT -U postgres postgres -c \"
        BEGIN; SET LOCAL pawl.lock = '\$PAWL_NAME'; SET LOCAL pawl.token = '\$PAWL_TOKEN';
        INSERT INTO accounts VALUES ('9021', 'ana', 1000); COMMIT\""
    [ "$(sql -c "SELECT balance FROM accounts")" = 1000 ]
    run --separate-stderr -125 pawl guard install "$PAWL_TEST_POSTGRESQL" --resource x
    run --separate-stderr -125 pawl guard install "$PAWL_TEST_POSTGRESQL" --protect nonesuch # the user's mistake
    [[ $stderr == *'"nonesuch" does not exist'*"the table's name"* && $stderr != *"pawl init"* ]]
    run --separate-stderr -125 pawl guard install "$PAWL_TEST_POSTGRESQL" --protect accounts --resource nonesuch
    [[ $stderr == *'"nonesuch" does not exist'* && $stderr != *"pawl init"* ]]
    # tables of that name that pawl did not make: not the user's mistake
    sql -c "CREATE DATABASE foreigner"
    psql -qX -c "CREATE SCHEMA pawl; CREATE TABLE pawl.guarded (x int)" -h 127.0.0.1 -p "$PAWL_TEST_POSTGRESQL_PORT" -U postgres foreigner
    run --separate-stderr -119 pawl guard put "${PAWL_TEST_POSTGRESQL%/*}/foreigner" r --lock l --token 1796043852633178 <<<x
    [[ $stderr == *"pawl init"* ]]
    # by the printed text, in a database that pawl has never seen
    sql -c "CREATE DATABASE other"
    pawl guard install "$PAWL_TEST_POSTGRESQL" --protect "it's" --resource "'o''' || owner" --print >install.sql
    other() { psql -qAtX -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$PAWL_TEST_POSTGRESQL_PORT" -U postgres other "$@"; }
    other -c "CREATE TABLE \"it's\" (id int, owner text)"
    sed -i "s/pawl.protect('it''s'/pawl.protect('\"it''s\"'/" install.sql
    other -1 -f install.sql >/dev/null
    run --separate-stderr -1 other -c "INSERT INTO \"it's\" VALUES (1, 'ana')"
    [[ $stderr == *"'o''ana' is guarded"* ]]
}

@test "redis: the rights that docs/redis.md lists suffice for guards" {
    [ -n "${PAWL_TEST_REDIS-}" ] || skip "no Redis"
    page=$BATS_TEST_DIRNAME/../../docs/redis.md
    rights=$(sed -n 's/^    ACL SETUSER app on >PASSWORD //p' "$page")
    more=$(sed -n 's/^Guards need `\([^`]*\)`.*/\1/p' "$page")
    [ -n "$rights" ] && [ -n "$more" ]
    # shellcheck disable=SC2086
    redis-cli -p "$PAWL_TEST_REDIS_PORT" ACL SETUSER guardian on ">pw" $rights $more
    url=redis://guardian:pw@127.0.0.1:$PAWL_TEST_REDIS_PORT
    pawl guard install "$url" --rule ge
    echo a | pawl guard put "$url" rights --token 5
    pawl guard seal "$url" rights --token 6
    pawl guard reset "$url" rights --to 3 --why x
    [ "$(pawl guard get "$url" rights)" = a ]
    redis-cli -p "$PAWL_TEST_REDIS_PORT" ACL SETUSER guardian -hset
    run --separate-stderr -120 pawl guard put "$url" rights --token 7 <<<b
    [[ $stderr == *"lacks"* ]]
}

@test "a service that is away is no broken promise: 120" {
    for url in redis://127.0.0.1:1 etcd://127.0.0.1:1 postgresql://127.0.0.1:1/x; do
        run --separate-stderr -120 pawl guard test "$url"
        [[ $stderr == *"refused"*"Not tested"* && $output != *"broken"* ]]
    done
}

@test "what pawl keeps beside the locks is not listed; locks that are named like it are" {
    names=('%guard' '%token' '%r' '%g:x' '.pawl' 'a:b' '*' '[x]' '%25')
    for url in "${kinds[@]}" "$PAWL_URL"; do
        handles=()
        [ "$url" = "$PAWL_URL" ] || pawl run -u "$url" acct -- sh -c 'echo 1 | '"$PAWL_BIN"' guard put '"$url"' balance-2'
        for name in "${names[@]}"; do handles+=("$(pawl hold -d -u "$url" "$name")"); done
        run -0 pawl ls -u "$url" --json
        if [[ $url == postgres* ]]; then [ "$(wc -l <<<"$output")" = ${#names[@]} ] # its sessions know numbers
        else diff <(printf '%s\n' "${names[@]}" | sort) <(jq -r .name <<<"$output" | sort); fi
        for handle in "${handles[@]}"; do pawl release "$handle"; done
        run -0 pawl ls -u "$url"
        [ -z "$output" ]
    done
}
