-- Tokens. All three numbers are sequences, because a sequence is changed at once, for everybody, and whatever becomes of the
-- transaction: a caller that stays in its transaction for hours keeps nobody waiting. since: where the numbers began;
-- server: a hash of the identity of the server that they were drawn on, 0 none.
CREATE SEQUENCE IF NOT EXISTS pawl.token MAXVALUE 9007199254740991;
CREATE SEQUENCE IF NOT EXISTS pawl.since MINVALUE 0 START 0;
CREATE SEQUENCE IF NOT EXISTS pawl.server MINVALUE 0 START 0;
GRANT USAGE, SELECT ON SEQUENCE pawl.token TO PUBLIC;
GRANT SELECT ON SEQUENCE pawl.since, pawl.server TO PUBLIC;

CREATE OR REPLACE FUNCTION pawl.clock_us() RETURNS bigint LANGUAGE sql VOLATILE AS
  'SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint';

-- Timeline, system identifier and start time; and, because a dump may be put back while the server runs, which database and
-- which sequence.
CREATE OR REPLACE FUNCTION pawl.identity() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS
$$ SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || ' ' || (SELECT system_identifier FROM pg_control_system())
          || ' ' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
          || ' ' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '.' || 'pawl.server'::regclass::oid $$;

-- ADMIT: another server than the stored one answers (a restart, a promotion, a restore): the numbers start at the clock. Once
-- a session.
-- The number first, the identity second: whoever sees the identity, in the WAL too, sees the lift. The block is left by an
-- exception, which gives its lock back at once and leaves the sequences as they are. client_us: the caller's clock, 0 none.
CREATE OR REPLACE FUNCTION pawl.admit(client_us bigint DEFAULT 0) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE me bigint; lifted bigint;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'pawl: this server is a standby: its locks are not those of the primary' USING ERRCODE = '25006';
  END IF;
  me := hashtextextended(pawl.identity(), 0) & 9223372036854775807;
  IF (SELECT s.last_value FROM pawl.server s) <> me THEN
    IF client_us > 0 AND abs(pawl.clock_us() - client_us) > 86400000000 THEN
      RAISE EXCEPTION 'pawl: the clocks of this server and of its client are more than a day apart' USING ERRCODE = 'PW006',
        HINT = 'Set both right, then try again: numbers that begin at a wrong clock stay. Nothing was written.';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'on', true); END IF;
    IF (SELECT t.last_value FROM pawl.token t) > 9007199254740991 - 2 * 1048576 THEN
      RAISE EXCEPTION 'pawl: the token numbers are used up: the last one is % of 9007199254740991', (SELECT t.last_value FROM pawl.token t)
        USING ERRCODE = '2200H', HINT = 'As the owner, while nobody holds a lock: setval(''pawl.token'', N), with N above every number that a guard has seen.';
    END IF;
    BEGIN
      PERFORM pg_advisory_xact_lock(1885435756, 2);
      IF (SELECT s.last_value FROM pawl.server s) <> me THEN
        lifted := setval('pawl.token', greatest(nextval('pawl.token') + 1048576, pawl.clock_us()));
        PERFORM setval('pawl.since', lifted);
        PERFORM setval('pawl.server', me);
      END IF;
      RAISE EXCEPTION USING ERRCODE = 'PW000';
    EXCEPTION WHEN SQLSTATE 'PW000' THEN NULL;
    END;
  END IF;
  PERFORM set_config('pawl.admitted', 'pawl.server'::regclass::oid::text, false);
END $$;

-- GRANT: the next number; called only by whoever holds the lock already, in a statement after the one that took it. A number
-- is drawn from memory up to 31 times after the WAL record that covers it, which need not be on disk yet: then the commit of
-- this transaction must wait for it, as it does for a transaction that wrote WAL itself (one that only has a number does not).
CREATE OR REPLACE FUNCTION pawl.next_token(flush boolean DEFAULT true) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE n bigint;
BEGIN
  IF coalesce(pg_catalog.current_setting('pawl.admitted', true) OPERATOR(pg_catalog.<>) 'pawl.server'::pg_catalog.regclass::pg_catalog.oid::pg_catalog.text, true) THEN
    PERFORM pawl.admit();
  END IF;
  n := pg_catalog.nextval('pawl.token'::pg_catalog.regclass);
  IF flush AND pg_catalog.pg_current_wal_flush_lsn() OPERATOR(pg_catalog.<) pg_catalog.pg_current_wal_insert_lsn() THEN
    PERFORM pg_catalog.pg_logical_emit_message(true, 'pawl', ''::pg_catalog.text);
  END IF;
  RETURN n;
END $$;

-- ADVANCE: since = last = max(last + 2^20, now, to). setval could go below what others draw meanwhile, so they are shut out
-- until this is committed. It waits for every open transaction that has drawn, but not for long, since all others wait too.
CREATE OR REPLACE FUNCTION pawl.advance(to_token bigint DEFAULT 0) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET lock_timeout = '1s' SET search_path = pg_catalog, pg_temp AS $$
DECLARE lifted bigint;
BEGIN
  IF to_token > pawl.clock_us() + 3653 * 86400000000 THEN
    RAISE EXCEPTION 'pawl: % is more than ten years ahead of the clock: numbers cannot be taken back, and would run out', to_token
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM pawl.admit();
  BEGIN
    EXECUTE 'ALTER SEQUENCE pawl.token CACHE 1'; -- changes nothing, and shuts out
  EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'pawl: transactions that took a token are still open: try again, or end them first'
      USING ERRCODE = 'lock_not_available';
  END;
  lifted := greatest(nextval('pawl.token') + 1048576, pawl.clock_us(), to_token);
  PERFORM setval('pawl.token', lifted);
  PERFORM setval('pawl.since', lifted);
  RETURN lifted;
END $$;
REVOKE ALL ON FUNCTION pawl.advance(bigint) FROM PUBLIC;
