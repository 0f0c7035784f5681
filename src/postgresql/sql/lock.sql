-- Transaction scope: locks that end with the caller's transaction, whatever pools its connections.

-- From a name to the numbers of an advisory lock: the same as ?key= of a URL makes (key.c). A bigint, or class and obj.
-- COLLATE "C": a name is hashed by its bytes, whatever the collation of the column that it came from.
CREATE OR REPLACE FUNCTION pawl.key(name text, key text DEFAULT 'hashtextextended', OUT id bigint, OUT class integer,
                                    OUT obj integer) LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE n text COLLATE "C" := name; part text COLLATE "C"; bytes bytea; parts integer[]; h numeric; c bigint; i integer := 0;
  more integer;
BEGIN
  IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'pawl: a lock''s name has 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  CASE key
  WHEN 'hashtextextended' THEN id := pg_catalog.hashtextextended(n, 0);
  WHEN 'hashtext' THEN id := pg_catalog.hashtext(n);
  WHEN 'int8' THEN
    id := CASE WHEN n ~ '^(0|-?[1-9][0-9]{0,18})$' THEN n::bigint END;
    IF id IS NULL THEN
      RAISE EXCEPTION 'pawl: with key int8 a lock is named by a number of 64 bits' USING ERRCODE = 'invalid_parameter_value';
    END IF;
  WHEN 'int4x2' THEN
    FOREACH part IN ARRAY ARRAY[split_part(n, '/', 1), substr(n, strpos(n, '/') + 1)] LOOP
      IF strpos(n, '/') = 0 OR part = '' OR (part ~ '^[+-]?[0-9]+$' AND part !~ '^(0|-?[1-9][0-9]{0,9})$') THEN
        RAISE EXCEPTION 'pawl: with key int4x2 a lock is named CLASS/ID, each a number of 32 bits or a word'
          USING ERRCODE = 'invalid_parameter_value';
      END IF;
      parts := parts || CASE WHEN part ~ '^-?[0-9]+$' THEN part::integer ELSE pg_catalog.hashtext(part) END;
    END LOOP;
    class := parts[1];
    obj := parts[2];
  WHEN 'fnv1a63' THEN
    bytes := convert_to(name, 'UTF8');
    h := 14695981039346656037;
    FOR i IN 0 .. length(bytes) - 1 LOOP
      c := mod(h, 256);
      h := mod((h - c + (c # get_byte(bytes, i))) * 1099511628211, 18446744073709551616);
    END LOOP;
    id := mod(h, 9223372036854775808);
  WHEN 'java31' THEN
    bytes := convert_to(name, 'UTF8');
    id := 0;
    WHILE i < length(bytes) LOOP
      c := get_byte(bytes, i);
      more := CASE WHEN c < 128 THEN 0 WHEN c < 224 THEN 1 WHEN c < 240 THEN 2 ELSE 3 END;
      c := CASE WHEN more = 0 THEN c ELSE c & (63 >> more) END;
      FOR k IN 1 .. more LOOP c := c << 6 | (get_byte(bytes, i + k) & 63); END LOOP;
      i := i + more + 1;
      IF c >= 65536 THEN
        id := (31 * id + 55296 + ((c - 65536) >> 10)) & 4294967295;
        c := 56320 + ((c - 65536) & 1023);
      END IF;
      id := (31 * id + c) & 4294967295;
    END LOOP;
    id := id & 2147483647;
  ELSE
    RAISE EXCEPTION 'pawl: key is one of hashtextextended hashtext fnv1a63 java31 int8 int4x2, not %', key
      USING ERRCODE = 'invalid_parameter_value';
  END CASE;
END $$;

CREATE OR REPLACE FUNCTION pawl.xact_lock(id bigint, class integer, obj integer, shared boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF id IS NULL AND shared THEN PERFORM pg_catalog.pg_advisory_xact_lock_shared(class, obj);
  ELSIF id IS NULL THEN PERFORM pg_catalog.pg_advisory_xact_lock(class, obj);
  ELSIF shared THEN PERFORM pg_catalog.pg_advisory_xact_lock_shared(id);
  ELSE PERFORM pg_catalog.pg_advisory_xact_lock(id);
  END IF;
END $$;

CREATE OR REPLACE FUNCTION pawl.try_xact_lock(id bigint, class integer, obj integer, shared boolean) RETURNS boolean
LANGUAGE sql VOLATILE AS
$$ SELECT CASE WHEN id IS NULL AND shared THEN pg_catalog.pg_try_advisory_xact_lock_shared(class, obj)
               WHEN id IS NULL THEN pg_catalog.pg_try_advisory_xact_lock(class, obj)
               WHEN shared THEN pg_catalog.pg_try_advisory_xact_lock_shared(id)
               ELSE pg_catalog.pg_try_advisory_xact_lock(id) END $$;

-- Who holds it, in words.
CREATE OR REPLACE FUNCTION pawl.holders(id bigint, class integer, obj integer) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN format('the prepared transaction %L', p.gid)
     ELSE format('process %s, user %s, application %s', l.pid, a.usename, coalesce(a.application_name, '')) END, '; ')
   FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     LEFT JOIN (SELECT x.virtualtransaction, g.gid FROM pg_locks x JOIN pg_prepared_xacts g ON g.transaction = x.transactionid
                WHERE x.pid IS NULL) p ON l.pid IS NULL AND p.virtualtransaction = l.virtualtransaction
   WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     AND l.objsubid = CASE WHEN id IS NULL THEN 2 ELSE 1 END
     AND l.classid::bigint = coalesce(id >> 32, class) & 4294967295 AND l.objid::bigint = coalesce(id, obj) & 4294967295 $$;

-- What makes a lock of the transaction worthless is refused: a snapshot that is older than the lock, and a transaction that
-- ends with this very statement (autocommit, or a pooler in statement mode: then it began when the statement did, and the
-- statement is the whole query; in the extended protocol it began with an earlier message, and this is not seen).
CREATE OR REPLACE FUNCTION pawl.check_transaction() RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT LIKE 'read%' THEN
    RAISE EXCEPTION 'pawl: take the lock in READ COMMITTED: the snapshot of this transaction may be older than the lock'
      USING ERRCODE = 'PW005', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED; or lock outside of the transaction: pawl run, pawl_acquire.';
  END IF;
  IF transaction_timestamp() = statement_timestamp() AND current_query() !~ ';\s*\S'
     AND current_query() ~* 'pawl"?\s*\.\s*"?(try_)?lock(_shared)?"?\s*\(' THEN
    RAISE EXCEPTION 'pawl: no transaction is open here: the lock would end with this statement' USING ERRCODE = 'PW007',
      HINT = 'BEGIN first; if a pooler stands between, it must be in transaction mode.';
  END IF;
END $$;

-- wait NULL: as long as lock_timeout of the caller allows; 0: not at all. NULL: still busy. A try does not overtake those who
-- wait. The timeout is caught in a block of its own: what was granted in that very moment ends with the block.
CREATE OR REPLACE FUNCTION pawl.take(name text, wait interval, key text, shared boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE id bigint; class integer; obj integer; before pg_catalog.text; ms double precision;
BEGIN
  IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' OR pg_catalog.transaction_timestamp() OPERATOR(pg_catalog.=) pg_catalog.statement_timestamp() THEN
    PERFORM pawl.check_transaction();
  END IF;
  SELECT k.id, k.class, k.obj INTO id, class, obj FROM pawl.key(name, key) k;
  IF NOT pawl.try_xact_lock(id, class, obj, shared) THEN
    ms := extract(epoch FROM wait) OPERATOR(pg_catalog.*) 1000;
    IF ms IS NULL THEN PERFORM pawl.xact_lock(id, class, obj, shared);
    ELSIF ms OPERATOR(pg_catalog.<=) 0 THEN RETURN NULL;
    ELSE
      BEGIN
        before := pg_catalog.current_setting('lock_timeout');
        PERFORM pg_catalog.set_config('lock_timeout', greatest(1, least(ms, 2147483647))::integer::pg_catalog.text, true);
        PERFORM pawl.xact_lock(id, class, obj, shared);
        PERFORM pg_catalog.set_config('lock_timeout', before, true);
      EXCEPTION WHEN lock_not_available THEN RETURN NULL;
      END;
    END IF;
  END IF;
  RETURN pawl.next_token();
END $$;

CREATE OR REPLACE FUNCTION pawl.busy(name text, key text) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE at record := pawl.key(name, key);
BEGIN
  RAISE EXCEPTION 'pawl: % is busy', quote_ident(name) USING ERRCODE = 'lock_not_available',
    DETAIL = coalesce('Held by ' || pawl.holders(at.id, at.class, at.obj) || '.', 'It was just given back.');
END $$;

-- The token. Waits, at most `wait` (then an error, 55P03, which ends the transaction). In a statement of its own: what the same
-- statement reads may be older than the lock.
CREATE OR REPLACE FUNCTION pawl.lock(name text, wait interval DEFAULT NULL, key text DEFAULT 'hashtextextended') RETURNS bigint
LANGUAGE plpgsql VOLATILE AS
$$ BEGIN RETURN coalesce(pawl.take(name, wait, key, false), pawl.busy(name, key)); END $$;

CREATE OR REPLACE FUNCTION pawl.lock_shared(name text, wait interval DEFAULT NULL, key text DEFAULT 'hashtextextended')
RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$ BEGIN RETURN coalesce(pawl.take(name, wait, key, true), pawl.busy(name, key)); END $$;

-- The token, or NULL: busy.
CREATE OR REPLACE FUNCTION pawl.try_lock(name text, wait interval DEFAULT '0', key text DEFAULT 'hashtextextended')
RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$ BEGIN RETURN pawl.take(name, coalesce(wait, '0'), key, false); END $$;

CREATE OR REPLACE FUNCTION pawl.try_lock_shared(name text, wait interval DEFAULT '0', key text DEFAULT 'hashtextextended')
RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$ BEGIN RETURN pawl.take(name, coalesce(wait, '0'), key, true); END $$;
