-- transaction.sql: a lock, a guard and a write in one transaction, with nothing but SQL; through any driver and pooler.
-- Once before: pawl init postgresql://...    Then: psql -v ON_ERROR_STOP=1 -f transaction.sql
CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts VALUES (42, 1000), (43, 1000) ON CONFLICT DO NOTHING;

-- Two accounts change together or not at all. The lock ends with the transaction, whatever becomes of the connection.
BEGIN;
SELECT pawl.lock('accounts:42') AS token \gset
SELECT pawl.guard('accounts:42', 'accounts:42', :token);
UPDATE accounts SET balance = balance - 100 WHERE id = 42;
UPDATE accounts SET balance = balance + 100 WHERE id = 43;
COMMIT;

-- Not longer than a second, please: an error (55P03) ends the transaction.
BEGIN;
SELECT pawl.lock('accounts:42', '1 s') > :token AS "a later grant has a higher token";
ROLLBACK;
SELECT * FROM accounts ORDER BY id;
