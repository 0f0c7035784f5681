# The recipes of docs/FENCING.md, as they stand there. PAWL_TEST_REDIS is a Redis of the test's own.
load helper

setup() {
    pawl_setup
    bin=${PAWL_BIN:-$BATS_TEST_DIRNAME/../../build/cli/pawl}
    page=$BATS_TEST_DIRNAME/../../docs/FENCING.md
    mkdir -p "${PAWL_URL#file:}" "$BATS_TEST_TMPDIR/bin"
    ln -s "$(readlink -f "$bin")" "$BATS_TEST_TMPDIR/bin/pawl"
    unset -f pawl
    PATH=$BATS_TEST_TMPDIR/bin:$PATH
    cd "$BATS_TEST_TMPDIR"
}

# block HEADING LANGUAGE: the code under it.
block() {
    awk -v heading="### $1" -v fence="\`\`\`$2" '$0 == heading { on = 1 } on && $0 == fence { code = 1; next }
        code && /^```$/ { exit } code' "$page" >"$BATS_TEST_TMPDIR/block"
    [ -s "$BATS_TEST_TMPDIR/block" ]
    cat "$BATS_TEST_TMPDIR/block"
}

@test "a shared file" {
    printf '#!/bin/sh\necho "report of today"\n' >bin/make-report
    chmod +x bin/make-report
    mkdir srv
    block "A shared file" sh | sed "s|/srv/reports|$PWD/srv/reports|" >recipe
    run -0 sh -e recipe
    [ "$output" = "report of today" ]
}

@test "your own table" {
    command -v sqlite3 >/dev/null || skip "no sqlite3"
    sqlite3 own.db "CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0, fenced_by TEXT);
        INSERT INTO accounts (id, balance) VALUES ('9021', 1000)"
    write() { # ID TOKEN BALANCE
        { printf ".parameter init\n.parameter set :id '\"%s\"'\n.parameter set :token %s\n" "$1" "$2"
          printf ".parameter set :balance %s\n.parameter set :by '\"worker %s\"'\n" "$3" "$2"
          block "Your own table" sql; } | sqlite3 own.db
    }
    [ "$(write 9021 7 2500)" = ok ]
    [ "$(write 9021 7 2501)" = ok ]
    [ "$(write 9021 6 1500)" = "stale: current is 7 by worker 7" ]
    [ "$(write 9022 8 1)" = "no such row" ]
    [ "$(sqlite3 own.db 'SELECT balance, fence FROM accounts')" = "2501|7" ]
    [ "$(write 9021 9007199254740991 1)" = ok ]
    [[ $(write 9021 9007199254740990 2) == "stale: current is 9007199254740991"* ]]
}

@test "a queue consumer" {
    block "A queue consumer" sh >recipe
    . ./recipe
    export PAWL_NAME=partition-7 PAWL_TOKEN=100
    consume 41 "state after 41"
    consume 42 "state after 42"
    run --separate-stderr -121 consume 42 "state after 42 twice"
    [ "$(pawl guard get dir:state partition-7)" = "state after 42" ]
    run -0 pawl run --seal dir:state#partition-7 partition-7 -- sh -c '. ./recipe; pawl guard get dir:state partition-7; consume 43 "state after 43"'
    [ "$output" = "state after 42" ]
    run --separate-stderr -121 consume 44 "zombie"
    [ "$(pawl guard get dir:state partition-7)" = "state after 43" ]
}

@test "a queue as the resource" {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    block "A queue as the resource" sh >recipe
    . ./recipe
    cp "$BATS_TEST_DIRNAME/../../src/redis/guard.lua" .
    redis-cli() { command redis-cli -p "$PAWL_TEST_REDIS_PORT" "$@"; }
    [[ $(produce 100 order 1) == *-0 ]]
    [[ $(produce 100 order 2) == *-* ]]
    [[ $(produce 99 order 3) == stale* ]]
    [[ $(produce 101 order 4) == *-* ]]
    [[ $(produce 100 order 5) == stale* ]]
    [ "$(redis-cli -p "$PAWL_TEST_REDIS_PORT" XLEN orders)" = 3 ]
}

@test "an ORM" {
    command -v python3 >/dev/null || skip "no python3"
    block "An ORM" python >recipe.py
    cat >>recipe.py <<'PY'

import sqlite3
db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0, fenced_by TEXT)")
db.execute("INSERT INTO accounts (id) VALUES ('9021')")
assert write(db, "9021", 2500, 7, "worker 2") is None
assert write(db, "9021", 2501, 7, "worker 2") is None
assert write(db, "9021", 1500, 6, "worker 1") == "stale: current is 7 by worker 2"
assert write(db, "9022", 1, 8, "worker 1") == "no such row"
assert db.execute("SELECT balance, fence FROM accounts").fetchone() == (2501, 7)
PY
    python3 recipe.py
}
