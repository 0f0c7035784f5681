# docs/WITHOUT_A_LOCK.md: what stands there instead of a lock does its work, in the words of the page, with many at once.
load helper
setup() {
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    page=$BATS_TEST_DIRNAME/../../docs/WITHOUT_A_LOCK.md
}
block() { # HEADING LANGUAGE: the code under it
    awk -v heading="### $1" -v fence="\`\`\`$2" '$0 == heading { on = 1 } on && $0 == fence { code = 1; next }
        code && /^```$/ { exit } code' "$page" >block
    [ -s block ]
    cat block
}
need_postgresql() { [ -n "${PAWL_TEST_POSTGRESQL:-}" ] && command -v psql >/dev/null || skip "no PostgreSQL"; }
sql() { psql -qAtX -v ON_ERROR_STOP=1 "$PAWL_TEST_POSTGRESQL" "$@"; }
at_once() { # N COMMAND...: each with its number as the last word, into out1 ... outN
    local n=$1 i pids=()
    shift
    for ((i = 1; i <= n; i++)); do "$@" "$i" >"out$i" 3>&- & pids+=($!); done
    for i in "${pids[@]}"; do wait "$i" || return 1; done
}

@test "rows that others change too: nothing is overwritten" {
    need_postgresql
    sql -c "CREATE TABLE account (id int PRIMARY KEY, balance int); INSERT INTO account VALUES (7, 20000)"
    block "Change rows that others change too" sql >recipe
    for _ in {1..200}; do cat recipe; done >often
    many() { sql -f often; }
    at_once 6 many
    [ "$(sql -c "SELECT balance FROM account")" = 8000 ]
}

@test "jobs from a table: each is handed out once" {
    need_postgresql
    sql -c "CREATE TABLE job (id int PRIMARY KEY, worker text); INSERT INTO job SELECT generate_series(1, 60)"
    block "Hand out jobs from a table" sql >recipe
    for _ in {1..12}; do cat recipe; done >twelve
    work() { sql -v worker="$1" -f twelve; }
    at_once 5 work
    [ "$(cat out? | sort -n | tr '\n' ' ')" = "$(seq -s ' ' 60) " ]
    [ "$(sql -v worker=late -f recipe)" = "" ]
}

@test "two of something: the constraint has the last word, behind a lock that was granted twice too" {
    need_postgresql
    sql -c "CREATE TABLE payment (id text PRIMARY KEY, cents int)"
    block "Keep two of something from being made" sql >recipe
    pay() { sql -v id=4711 -f recipe; }
    at_once 6 pay
    [ "$(cat out?)" = charged ]
    [ "$(sql -c 'SELECT count(*) FROM payment')" = 1 ]
    [ -n "${PAWL_TEST_REDIS:-}" ] || return 0
    # both hold "the" lock: it was removed under the first
    export -f sql
    both() {
        PAWL_URL=$PAWL_TEST_REDIS pawl run --grace 0 pay:4712 -- bash -c 'touch in$1
            for i in {1..1500}; do [ ! -e go ] || break; read -rt 0.02 <> <(:); done; sql -v id=4712 -f recipe' - "$1" 3>&- || true
    }
    both 8 >out8 2>err8 &
    until_ok 20 test -e in8
    redis-cli -p "$PAWL_TEST_REDIS_PORT" DEL pawl:pay:4712
    touch go
    both 9 >out9 2>err9
    wait
    [ "$(cat out8 out9 | grep -c charged)" = 1 ]
    [ "$(sql -c "SELECT count(*) FROM payment WHERE id = '4712'")" = 1 ]
}

@test "a cache: few refresh it, early, where all would at its end" {
    { block "Keep a cache from being filled by everybody at once" python
      cat <<'END'
random.seed(4)
def life(refreshes):  # 100 readers a second, a value that lives for 60 s and takes 0.5 s to make
    busy_until, made, expires = -1.0, 0, 60.0
    for i in range(100 * 70):
        now = i / 100
        if refreshes(now, expires):
            made += 1
            if made == 1: busy_until = now + 0.5
        if made and now >= busy_until: return made, now
    return made, now
everybody, _ = life(lambda now, expires: now >= expires)
early, at = life(lambda now, expires: refresh_now(now, expires, 0.5))
print(everybody, early, at)
assert everybody > 49  # all that came in the half second
tries = [life(lambda now, expires: refresh_now(now, expires, 0.5)) for _ in range(200)]
assert sum(made for made, _ in tries) / 200 < 10  # some that draw the same while the first is at it
assert sum(at <= 60.0 for _, at in tries) > 180  # and it is there before the end
END
    } >recipe.py
    run python3 recipe.py
    echo "$output"
    [ "$status" = 0 ]
}

@test "a limit of calls: a bucket lets as many through as it holds, and then as many as flow in" {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    block "Limit how often an API is called" lua >bucket.lua
    call() { redis-cli -p "$PAWL_TEST_REDIS_PORT" --eval bucket.lua bucket:api , 5 0.0001; }
    at_once 9 call
    [ "$(cat out? | tr -d '\n' | fold -w1 | sort | tr -d '\n')" = 000011111 ]
    quick() { [ "$(redis-cli -p "$PAWL_TEST_REDIS_PORT" --eval bucket.lua bucket:other , 1 20)" = 1 ]; }
    quick
    until_ok 5 quick
    [ "$(redis-cli -p "$PAWL_TEST_REDIS_PORT" TTL bucket:other)" -gt 0 ]
}
