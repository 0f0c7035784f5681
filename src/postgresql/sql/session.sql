-- Session scope: waits for at most slice_ms and returns the token, or NULL: still busy. The timeout, and a cancellation by a
-- client that gave up, are caught here, so that the server's log stays silent. What was granted as time ran out is found in pg_locks. key: one bigint, or class and obj.
CREATE OR REPLACE FUNCTION pawl.wait(key bigint, class integer, obj integer, shared boolean, slice_ms integer, tokens boolean,
                                     flush boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
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
