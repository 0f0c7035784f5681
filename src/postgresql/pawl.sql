-- pawl.sql: what pawl keeps in a PostgreSQL database (12 or newer): one sequence for all tokens, one row that says which
-- server they were drawn on, and functions. Idempotent; run by whoever may create a schema; no extension.
-- The owner installs and resets; applications only use: they cannot lower a number.
CREATE SCHEMA IF NOT EXISTS pawl;
GRANT USAGE ON SCHEMA pawl TO PUBLIC;

CREATE SEQUENCE IF NOT EXISTS pawl.token MAXVALUE 9007199254740991;
GRANT USAGE ON SEQUENCE pawl.token TO PUBLIC;

-- id: timeline, system identifier and start time of the server that the numbers were admitted on.
CREATE TABLE IF NOT EXISTS pawl.meta (one boolean PRIMARY KEY DEFAULT true CHECK (one), layout integer NOT NULL,
                                      id text NOT NULL, since bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO pawl.meta (layout, id, since) VALUES (1, 'new', 0) ON CONFLICT DO NOTHING;
GRANT SELECT ON pawl.meta TO PUBLIC;

CREATE OR REPLACE FUNCTION pawl.clock_us() RETURNS bigint LANGUAGE sql VOLATILE AS
  'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

CREATE OR REPLACE FUNCTION pawl.identity() RETURNS text LANGUAGE sql VOLATILE AS
$$ SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || ' ' || (SELECT system_identifier FROM pg_control_system())
          || ' ' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint $$;

-- ADMIT: another server than the stored one answers (a restart, a promotion, a restore): the numbers start at the clock.
-- The sequence first, the identity second: whoever sees the identity sees the lift. client_us: the caller's clock, 0 none.
CREATE OR REPLACE FUNCTION pawl.admit(client_us bigint DEFAULT 0) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog AS $$
DECLARE me text := pawl.identity(); stored text; lifted bigint; now_us bigint := pawl.clock_us();
BEGIN
  IF (SELECT m.id FROM pawl.meta m) IS DISTINCT FROM me THEN
    IF client_us > 0 AND abs(now_us - client_us) > 86400000000 THEN
      RAISE EXCEPTION 'pawl: the clocks of this server and of its client are more than a day apart' USING ERRCODE = 'PW006';
    END IF;
    SELECT m.id INTO stored FROM pawl.meta m FOR UPDATE;
    IF stored IS DISTINCT FROM me THEN
      PERFORM set_config('synchronous_commit', 'on', true);
      lifted := setval('pawl.token', greatest(nextval('pawl.token') + 1048576, now_us));
      UPDATE pawl.meta SET id = me, since = lifted;
    END IF;
  END IF;
  PERFORM set_config('pawl.admitted', 'yes', false);
END $$;

-- GRANT: the next number; called only by whoever holds the lock already. A number is drawn from memory up to 31 times after
-- the WAL record that covers it, which need not be on disk yet: a commit of this transaction must then wait for it.
CREATE OR REPLACE FUNCTION pawl.next_token(flush boolean DEFAULT true) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE n bigint;
BEGIN
  IF current_setting('pawl.admitted', true) IS DISTINCT FROM 'yes' THEN PERFORM pawl.admit(); END IF;
  n := nextval('pawl.token');
  IF flush AND pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() THEN PERFORM pg_current_xact_id(); END IF;
  RETURN n;
END $$;

-- ADVANCE: since = last = max(last + 2^20, now, to). Draws are shut out meanwhile; in use, it may have to be tried again.
CREATE OR REPLACE FUNCTION pawl.advance(to_token bigint DEFAULT 0) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE lifted bigint;
BEGIN
  PERFORM pawl.admit();
  PERFORM 1 FROM pawl.meta FOR UPDATE;
  lifted := greatest(nextval('pawl.token') + 1048576, pawl.clock_us(), to_token);
  EXECUTE format('ALTER SEQUENCE pawl.token RESTART WITH %s', lifted + 1);
  UPDATE pawl.meta SET since = lifted;
  RETURN lifted;
END $$;
REVOKE ALL ON FUNCTION pawl.advance(bigint) FROM PUBLIC;

-- Session scope: waits for at most slice_ms and returns the token, or NULL: still busy. The timeout, and a cancellation by a
-- client that gave up, are caught here, so that the server's log stays silent. What was granted as time ran out is found in pg_locks. key: one bigint, or class and obj.
CREATE OR REPLACE FUNCTION pawl.wait(key bigint, class integer, obj integer, shared boolean, slice_ms integer, tokens boolean,
                                     flush boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM set_config('lock_timeout', slice_ms::text, true);
  BEGIN
    IF key IS NULL THEN
      IF shared THEN PERFORM pg_advisory_lock_shared(class, obj); ELSE PERFORM pg_advisory_lock(class, obj); END IF;
    ELSE
      IF shared THEN PERFORM pg_advisory_lock_shared(key); ELSE PERFORM pg_advisory_lock(key); END IF;
    END IF;
  EXCEPTION WHEN lock_not_available OR query_canceled THEN
    IF NOT EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.granted
                     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                     AND l.classid::bigint = coalesce((key >> 32) & 4294967295, class & 4294967295::bigint)
                     AND l.objid::bigint = coalesce(key & 4294967295, obj & 4294967295::bigint)
                     AND l.objsubid = CASE WHEN key IS NULL THEN 2 ELSE 1 END
                     AND l.mode = CASE WHEN shared THEN 'ShareLock' ELSE 'ExclusiveLock' END) THEN
      RETURN NULL;
    END IF;
  END;
  RETURN CASE WHEN tokens THEN pawl.next_token(flush) ELSE 0 END;
END $$;
