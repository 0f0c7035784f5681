-- Guards: the highest token that wrote a resource, kept beside the data. Whoever may use the schema may use the functions;
-- nobody but the owner may write the tables, so a mark is only ever raised, and only a reset by the owner lowers it.
CREATE TABLE IF NOT EXISTS pawl.guarded (resource text COLLATE "C" PRIMARY KEY, lock text NOT NULL, token bigint NOT NULL,
  seq bigint NOT NULL, rule text NOT NULL, used boolean NOT NULL, written boolean NOT NULL, writer text NOT NULL,
  at_us bigint NOT NULL, service text NOT NULL, data bytea NOT NULL) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS pawl.guard_reset (id bigserial PRIMARY KEY, resource text NOT NULL, at_us bigint NOT NULL,
  from_token bigint NOT NULL, to_token bigint NOT NULL, writer text NOT NULL, why text NOT NULL);
CREATE TABLE IF NOT EXISTS pawl.guard_set (one boolean PRIMARY KEY DEFAULT true CHECK (one), rule text NOT NULL);
CREATE TABLE IF NOT EXISTS pawl.refusal (at timestamptz NOT NULL DEFAULT clock_timestamp(), answer text NOT NULL,
  resource text NOT NULL, lock text, attempted bigint, worker text, current bigint, writer text);
GRANT SELECT ON pawl.guarded, pawl.guard_reset, pawl.guard_set, pawl.refusal TO PUBLIC;

CREATE OR REPLACE FUNCTION pawl.worker() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS
$$ SELECT left(coalesce(nullif(current_setting('pawl.writer', true), ''),
     format('%s (process %s, %s)', coalesce(nullif(current_setting('application_name'), ''), 'a client'), pg_backend_pid(), session_user)), 255) $$;

-- Judges as guard_judge (src/guard/judge.c) does, and writes if it is in order. verb: guard (a write of other tables, in this
-- transaction), put (data), seal. answer: ok, or stale wrong-lock damaged no-token rule seq, with the mark as it is.
-- What was seen is asked for again in the statement that writes, which waits for others; then it may be another.
CREATE OR REPLACE FUNCTION pawl.guard_step(verb text, resource text, lock text, token bigint, seq bigint, rule text, writer text,
  service text, jump boolean, data bytea, wait_ms integer, OUT answer text, OUT now_us bigint, OUT mark_lock text, OUT mark_token bigint,
  OUT mark_seq bigint, OUT mark_rule text, OUT mark_used boolean, OUT mark_written boolean, OUT mark_writer text,
  OUT mark_at bigint, OUT mark_service text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE r text; same boolean; counts boolean; is_used boolean; next_seq bigint; next_service text;
BEGIN
  IF coalesce(octet_length(resource), 0) NOT BETWEEN 1 AND 512 OR coalesce(octet_length(lock), 0) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'pawl: a resource and a lock have names of 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'on', true); END IF;
  IF wait_ms IS NOT NULL THEN PERFORM set_config('lock_timeout', greatest(1, wait_ms)::text, true); END IF;
  LOOP
    now_us := pawl.clock_us();
    SELECT g.lock, g.token, g.seq, g.rule, g.used, g.written, g.writer, g.at_us, g.service INTO mark_lock, mark_token,
      mark_seq, mark_rule, mark_used, mark_written, mark_writer, mark_at, mark_service
      FROM pawl.guarded g WHERE g.resource = guard_step.resource;
    r := coalesce(mark_rule, nullif(rule, ''), (SELECT s.rule FROM pawl.guard_set s), 'ge');
    counts := r = 'seq' AND verb <> 'seal';
    same := token IS NOT DISTINCT FROM mark_token;
    answer := CASE
      WHEN coalesce(token, 0) = 0 THEN 'no-token'
      WHEN mark_lock <> lock THEN 'wrong-lock'
      WHEN r <> rule AND rule <> '' THEN 'rule'
      WHEN CASE WHEN counts THEN seq < 1 ELSE seq <> 0 END THEN 'seq'
      WHEN token NOT BETWEEN 1 AND 9007199254740991 THEN 'damaged'
      WHEN NOT jump AND token > greatest(mark_token, now_us) + 86400000000 THEN 'damaged'
      WHEN token < mark_token THEN 'stale'
      WHEN same AND verb <> 'seal' AND ((r = 'gt' AND mark_used) OR (counts AND seq <= mark_seq)) THEN 'stale'
      ELSE 'ok' END;
    EXIT WHEN answer <> 'ok';
    is_used := verb <> 'seal' OR (same AND mark_used);
    next_seq := CASE WHEN counts OR NOT same THEN seq ELSE mark_seq END;
    next_service := CASE WHEN service = '' AND same THEN mark_service ELSE service END;
    IF mark_token IS NULL THEN
      INSERT INTO pawl.guarded VALUES (resource, lock, token, seq, r, is_used, verb = 'put', writer, now_us, service,
        coalesce(data, '')) ON CONFLICT DO NOTHING;
    ELSE
      UPDATE pawl.guarded g SET token = guard_step.token, seq = next_seq, used = is_used,
        written = g.written OR verb = 'put', writer = guard_step.writer, at_us = now_us, service = next_service,
        data = coalesce(guard_step.data, g.data)
        WHERE g.resource = guard_step.resource AND g.lock = mark_lock AND g.token = mark_token AND g.seq = mark_seq
          AND g.rule = mark_rule AND g.used = mark_used;
    END IF;
    IF FOUND THEN RETURN; END IF;
  END LOOP;
  IF verb <> 'guard' THEN -- what raises an error cannot keep it: the log does
    INSERT INTO pawl.refusal (answer, resource, lock, attempted, worker, current, writer)
      VALUES (guard_step.answer, guard_step.resource, guard_step.lock, token, guard_step.writer, mark_token, mark_writer);
  END IF;
END $$;

-- Says no in the caller's transaction: SQLSTATE, worker, attempted and current token.
CREATE OR REPLACE FUNCTION pawl.guard_or_refuse(resource text, lock text, token bigint, seq bigint, writer text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE s record; me text; code text;
BEGIN
  me := coalesce(writer, pawl.worker());
  IF resource IS NULL THEN
    RAISE EXCEPTION 'pawl: a row without a resource: the expression that names it gives NULL; nothing was changed'
      USING ERRCODE = 'null_value_not_allowed', HINT = 'Protect the table again, with an expression that is never NULL: coalesce(...).';
  END IF;
  IF lock IS NULL OR token IS NULL THEN
    RAISE EXCEPTION 'pawl: % is guarded, and % brought no token: nothing was changed', quote_literal(resource), me
      USING ERRCODE = 'PW003', DETAIL = json_build_object('resource', resource, 'worker', me)::text,
      HINT = 'In the same transaction: SET LOCAL pawl.lock = ''NAME''; SET LOCAL pawl.token = ''N''.';
  END IF;
  s := pawl.guard_step('guard', resource, lock, token, coalesce(seq, 0), '', me,
                       coalesce(current_setting('pawl.service', true), ''), false, NULL, NULL);
  code := CASE s.answer WHEN 'stale' THEN 'PW001' WHEN 'wrong-lock' THEN 'PW002' WHEN 'no-token' THEN 'PW003'
    WHEN 'damaged' THEN 'PW004' WHEN 'ok' THEN NULL ELSE '22023' END;
  IF code IS NULL THEN RETURN token; END IF;
  RAISE EXCEPTION 'pawl: %', CASE s.answer
    WHEN 'stale' THEN CASE WHEN token < s.mark_token
      THEN format('stale token %s from %s; current is %s, %s by %s %s ago', token, me, s.mark_token,
        CASE WHEN s.mark_used THEN 'written' ELSE 'sealed' END, s.mark_writer, make_interval(secs => round((s.now_us - s.mark_at) / 1e6, 1)::float8))
      ELSE format('stale: token %s of %s has written already (rule %s)', token, me, s.mark_rule) END
    WHEN 'wrong-lock' THEN format('%L belongs to lock %L, not %L', resource, s.mark_lock, lock)
    WHEN 'no-token' THEN format('%s brought no token for %L', me, resource)
    WHEN 'damaged' THEN format('damaged token %s from %s: more than a day above the last one and this clock, or not 1 to 2^53-1', token, me)
    ELSE format('%L has rule %s: a sequence number from 1 up goes with rule seq, and with no other', resource, coalesce(s.mark_rule, 'ge')) END
    USING ERRCODE = code, DETAIL = json_build_object('resource', resource, 'lock', lock, 'worker', me, 'attempted', token::text,
      'current', s.mark_token::text, 'by', s.mark_writer, 'mark_lock', s.mark_lock)::text,
    HINT = CASE WHEN s.answer = 'stale' AND s.mark_service <> '' AND current_setting('pawl.service', true) <> s.mark_service
      THEN format('Moved from another service: that one is of %s:, this one of %s:. Lift the numbers at the new home: pawl token advance --to %s.',
        s.mark_service, current_setting('pawl.service', true), s.mark_token)
      WHEN s.answer = 'stale' THEN 'Nothing was changed. Whoever has the lock now has a higher token: this one was lost.'
      ELSE 'Nothing was changed. ' || CASE s.answer
        WHEN 'wrong-lock' THEN format('Numbers of two locks cannot be compared: take %L, or name another resource.', s.mark_lock)
        WHEN 'no-token' THEN 'Send the number that came with the lock: SET LOCAL pawl.token = ''N'', or the third argument of pawl.guard.'
        WHEN 'damaged' THEN 'If it is the number that came with the lock, a clock is wrong: compare pawl token show with this server.'
        ELSE 'The rule was fixed when the resource was written first, or by pawl guard install.' END END;
END $$;

-- In the caller's transaction, before it writes what the resource stands for: returns the token, or refuses. An equal token
-- shares the mark with others of the same holder and writes nothing; a later holder waits until these transactions end.
-- Alone in its transaction (autocommit) it only seals: what is written afterwards is not guarded by it.
-- Every operator, type and collation has its schema, because SET search_path would cost as much as the rest. pg_temp has to be
-- named, as the last: a search path that leaves it out looks for types there first, and it is everybody's.
CREATE OR REPLACE FUNCTION pawl.guard(resource text, lock text, token bigint, seq bigint DEFAULT 0, writer text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
  IF seq OPERATOR(pg_catalog.=) 0::bigint THEN
    PERFORM 1 FROM pawl.guarded g WHERE g.resource OPERATOR(pg_catalog.=) guard.resource COLLATE pg_catalog."C" AND g.token OPERATOR(pg_catalog.=) guard.token
      AND g.lock OPERATOR(pg_catalog.=) guard.lock COLLATE pg_catalog."C" AND g.rule OPERATOR(pg_catalog.=) 'ge'::pg_catalog.text AND g.used FOR SHARE;
    IF FOUND THEN RETURN token; END IF;
  END IF;
  RETURN pawl.guard_or_refuse(resource COLLATE pg_catalog."C", lock COLLATE pg_catalog."C", token, seq, writer);
END $$;

-- What the trigger of a protected table asks: the resource of the row as it was and as it is; the same twice for a row that
-- comes or goes. Lock and token are the caller's settings. The usual case is one look-up and nothing else. COLLATE "C": names
-- are compared by their bytes, whatever the collation of the column that they are made of.
CREATE OR REPLACE FUNCTION pawl.guard_row_anew(was text, now text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE l text COLLATE "C" := nullif(current_setting('pawl.lock', true), ''); t text COLLATE "C" := nullif(current_setting('pawl.token', true), '');
  old_name text COLLATE "C" := was; new_name text COLLATE "C" := now; n bigint := CASE WHEN t ~ '^-?[0-9]{1,18}$' THEN t::bigint END;
BEGIN
  IF n IS NULL AND t IS NOT NULL AND l IS NOT NULL AND old_name IS NOT NULL AND new_name IS NOT NULL THEN
    RAISE EXCEPTION 'pawl: damaged token % from %: not a number of 1 to 2^53-1', quote_literal(left(t, 40)), pawl.worker()
      USING ERRCODE = 'PW004', HINT = 'Nothing was changed. SET LOCAL pawl.token is to the number that came with the lock, in digits.',
      DETAIL = json_build_object('resource', old_name, 'lock', l, 'worker', pawl.worker(), 'attempted', left(t, 40))::text;
  END IF;
  PERFORM pawl.guard(old_name, l, n);
  IF new_name IS DISTINCT FROM old_name THEN PERFORM pawl.guard(new_name, l, n); END IF;
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION pawl.guard_row(was text, now text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
  PERFORM 1 FROM pawl.guarded g WHERE g.resource OPERATOR(pg_catalog.=) was COLLATE pg_catalog."C" AND was COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) now
    AND g.token::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.current_setting('pawl.token', true)
    AND g.lock OPERATOR(pg_catalog.=) pg_catalog.current_setting('pawl.lock', true)
    AND g.rule OPERATOR(pg_catalog.=) 'ge'::pg_catalog.text AND g.used FOR SHARE;
  IF FOUND THEN RETURN true; END IF;
  RETURN pawl.guard_row_anew(was, now);
END $$;

-- Of the owner: the mark, lower or higher, after tokens were lost for good. Kept with who and why. false: no such record.
CREATE OR REPLACE FUNCTION pawl.guard_reset(resource text, to_token bigint, why text, writer text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE was bigint; me text := coalesce(writer, pawl.worker()); now_us bigint := pawl.clock_us();
BEGIN
  IF to_token NOT BETWEEN 1 AND 9007199254740991 OR octet_length(why) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'pawl: a reset is to a token of 1 to 2^53-1, and says why in 1 to 255 bytes'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT g.token INTO was FROM pawl.guarded g WHERE g.resource = guard_reset.resource FOR UPDATE;
  IF NOT FOUND THEN RETURN false; END IF;
  UPDATE pawl.guarded g SET token = to_token, seq = 0, used = false, writer = me, at_us = now_us, service = ''
    WHERE g.resource = guard_reset.resource;
  INSERT INTO pawl.guard_reset (resource, at_us, from_token, to_token, writer, why)
    VALUES (guard_reset.resource, now_us, was, guard_reset.to_token, me, guard_reset.why);
  RETURN true;
END $$;
REVOKE ALL ON FUNCTION pawl.guard_reset(text, bigint, text, text) FROM PUBLIC;

-- Protected tables: every INSERT, UPDATE and DELETE wants a current token. Stops programs that forgot; a role that may write
-- the table can also make up a token, and its owner can drop the trigger.
CREATE OR REPLACE FUNCTION pawl.refuse_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'pawl: % is protected: TRUNCATE has no token for each row', TG_RELID::regclass USING ERRCODE = 'PW003',
    HINT = 'DELETE with a token; or, as the owner: ALTER TABLE ... DISABLE TRIGGER pawl_truncate.';
END $$;

-- The table, and those that inherit from it. Partitions have its row triggers anyway.
CREATE OR REPLACE FUNCTION pawl.family(target regclass) RETURNS TABLE (member regclass, is_partition boolean) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ WITH RECURSIVE f AS (SELECT target::oid AS id UNION SELECT i.inhrelid FROM pg_inherits i JOIN f ON i.inhparent = f.id)
   SELECT c.oid::regclass, c.relispartition AND c.oid <> target::oid FROM f JOIN pg_class c ON c.oid = f.id WHERE c.relkind IN ('r', 'p') $$;

CREATE OR REPLACE FUNCTION pawl.protector(target regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS
$$ SELECT 'protect_' || target::oid $$; -- the table may be renamed, and another one get its name

-- resource: an SQL expression over the columns of a row; else TABLE:KEY, where KEY is the primary key, of several columns in the
-- form of a row. TABLE has its schema before it unless that is public. What the expression names outside of pg_catalog needs its
-- schema, since whoever writes a row has a search path of his own.
CREATE OR REPLACE FUNCTION pawl.protect(target regclass, resource text DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE
SET client_min_messages = warning SET search_path = pg_catalog, pg_temp AS $$
DECLARE c record; keys text[]; plain boolean := true; one boolean := false; prefix text; body text; v text; e text[]; m record; fn text := pawl.protector(target);
BEGIN
  SELECT k.relkind, k.relname, n.nspname INTO c FROM pg_class k JOIN pg_namespace n ON n.oid = k.relnamespace WHERE k.oid = target;
  IF c.nspname = 'pawl' THEN
    RAISE EXCEPTION 'pawl: % is a table of pawl''s own', target USING ERRCODE = 'wrong_object_type';
  END IF;
  IF c.relkind NOT IN ('r', 'p') THEN
    RAISE EXCEPTION 'pawl: % is not a table', target USING ERRCODE = 'wrong_object_type';
  END IF;
  IF resource IS NULL THEN
    SELECT array_agg(quote_ident(a.attname) ORDER BY k.n),
      bool_and(a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'text'::regtype, 'varchar'::regtype,
        'bpchar'::regtype, 'uuid'::regtype, 'numeric'::regtype, 'bool'::regtype)),
      count(*) = 1 AND bool_and(a.atttypid NOT IN ('bpchar'::regtype, 'bool'::regtype)) INTO keys, plain, one
      FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(number, n), pg_attribute a
      WHERE i.indrelid = target AND i.indisprimary AND a.attrelid = target AND a.attnum = k.number;
    IF keys IS NULL THEN
      RAISE EXCEPTION 'pawl: % has no primary key: say what the resource of a row is', target USING ERRCODE = 'invalid_parameter_value';
    END IF;
    prefix := CASE WHEN c.nspname = 'public' THEN '' ELSE c.nspname || '.' END || c.relname || ':';
  ELSE
    EXECUTE format('SELECT (%s)::text FROM %s AS %I LIMIT 0', resource, target, c.relname); -- is it one?
  END IF;
  FOREACH v IN ARRAY ARRAY['OLD', 'NEW'] LOOP
    e := e || CASE WHEN resource IS NOT NULL THEN format('(SELECT (%s)::text FROM (SELECT %s.*) AS %I)', resource, v, c.relname)
      WHEN cardinality(keys) = 1 THEN format('%L || %s.%s::text', prefix, v, keys[1])
      ELSE format('%L || ROW(%s.%s)::text', prefix, v, array_to_string(keys, ', ' || v || '.')) END;
  END LOOP;
  -- As few expressions as can be: each costs as much again in every transaction.
  body := format($body$
DECLARE done boolean;
BEGIN
  done := pawl.guard_row(CASE WHEN TG_OP <> 'INSERT' THEN %1$s ELSE %2$s END, CASE WHEN TG_OP <> 'DELETE' THEN %2$s ELSE %1$s END);
  RETURN NULL;
END $body$, e[1], e[2]);
  -- The usual case, a key of one column, looks for itself, with the owner's rights: so nothing in it may be taken from a search
  -- path, and a key becomes text by the output function of its type (concat), which is nobody's to define, as a cast is.
  IF plain AND one THEN
    body := format($body$
DECLARE done boolean;
BEGIN
  PERFORM 1 FROM pawl.guarded g WHERE g.resource OPERATOR(pg_catalog.=)
      pg_catalog.concat(%1$L, CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'INSERT'::pg_catalog.text THEN NEW.%2$s ELSE OLD.%2$s END) COLLATE pg_catalog."C"
    AND CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'UPDATE'::pg_catalog.text
      THEN pg_catalog.concat(OLD.%2$s) COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) pg_catalog.concat(NEW.%2$s) ELSE true END
    AND g.token::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.current_setting('pawl.token', true)
    AND g.lock OPERATOR(pg_catalog.=) pg_catalog.current_setting('pawl.lock', true)
    AND g.rule OPERATOR(pg_catalog.=) 'ge'::pg_catalog.text AND g.used FOR SHARE;
  IF FOUND THEN RETURN NULL; END IF;
  done := pawl.guard_row_anew(
    pg_catalog.concat(%1$L, CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'INSERT'::pg_catalog.text THEN NEW.%2$s ELSE OLD.%2$s END),
    pg_catalog.concat(%1$L, CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'DELETE'::pg_catalog.text THEN OLD.%2$s ELSE NEW.%2$s END));
  RETURN NULL;
END $body$, prefix, keys[1]);
  END IF;
  -- A resource has one name whatever the session's settings are.
  EXECUTE format('CREATE OR REPLACE FUNCTION pawl.%I() RETURNS trigger LANGUAGE plpgsql %s %s AS %L', fn,
    CASE WHEN plain AND one THEN 'SECURITY DEFINER' ELSE 'SECURITY INVOKER' END,
    CASE WHEN plain THEN '' ELSE 'SET datestyle = ''ISO, YMD'' SET timezone = ''UTC'' SET intervalstyle = ''iso_8601'' '
      'SET bytea_output = ''hex'' SET extra_float_digits = 1' END, body);
  FOR m IN SELECT * FROM pawl.family(target) LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS pawl_truncate ON %s', m.member);
    EXECUTE format('CREATE TRIGGER pawl_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_truncate()', m.member);
    CONTINUE WHEN m.is_partition;
    EXECUTE format('DROP TRIGGER IF EXISTS pawl_guard ON %s', m.member);
    EXECUTE format('CREATE TRIGGER pawl_guard AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION pawl.%I()', m.member, fn);
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pawl.unprotect(target regclass) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE m record;
BEGIN
  FOR m IN SELECT * FROM pawl.family(target) LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS pawl_truncate ON %s', m.member);
    IF NOT m.is_partition THEN EXECUTE format('DROP TRIGGER IF EXISTS pawl_guard ON %s', m.member); END IF;
  END LOOP;
  EXECUTE format('DROP FUNCTION IF EXISTS pawl.%I()', pawl.protector(target));
END $$;
