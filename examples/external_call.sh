#!/bin/sh
# external_call.sh URL: two transactions round a slow call to somebody else, under one lock that lasts for all of it.
#
# A lock of a transaction would keep the transaction open during the call; one of a session is lost in a pooler. So pawl holds the
# lock in a connection of its own, and each transaction proves, by its token, that it is still this grant's turn. Through a
# pooler use the pooler for psql and the server itself for pawl.
set -eu
: "${PAWL:=pawl}"
export PAWL
if [ -z "${PAWL_TOKEN-}" ]; then exec "$PAWL" run -u "$1" accounts:42 -- "$0" "$@"; fi

sql() { psql -qAtX -v ON_ERROR_STOP=1 -v token="$PAWL_TOKEN" "$1"; }
sql "$1" <<'SQL'
BEGIN;
SELECT pawl.guard('transfer:42', 'accounts:42', :token);
CREATE TABLE IF NOT EXISTS transfers (id bigint PRIMARY KEY, state text NOT NULL);
INSERT INTO transfers VALUES (42, 'begun') ON CONFLICT (id) DO UPDATE SET state = 'begun';
COMMIT;
SQL
echo "calling the bank, which takes its time"
sleep "${CALL_SECONDS:-1}"
sql "$1" <<'SQL'
BEGIN;
SELECT pawl.guard('transfer:42', 'accounts:42', :token);
UPDATE transfers SET state = 'done' WHERE id = 42;
COMMIT;
SELECT state FROM transfers;
SQL
