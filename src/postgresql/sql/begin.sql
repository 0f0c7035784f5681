-- What pawl keeps in a PostgreSQL database (12 or newer; no extension): made by `pawl init`, printed by `pawl init --print`.
-- Run it in one transaction (psql -1), as the role that is to own the schema; again changes nothing, two at once wait for
-- each other, and an older layout is brought up to this one. The owner installs and resets; applications only use.
DO $$
DECLARE installed integer;
BEGIN
  PERFORM pg_catalog.set_config('pawl.path', pg_catalog.current_setting('search_path'), true),
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), -- what others made is not to be found, until the end
    pg_catalog.set_config('client_min_messages', 'warning', true);
  PERFORM pg_advisory_xact_lock(1885435756, 1);
  -- Everybody may use it, unless somebody took that away: only USAGE on the schema decides.
  IF to_regnamespace('pawl') IS NULL THEN
    CREATE SCHEMA pawl;
    GRANT USAGE ON SCHEMA pawl TO PUBLIC;
  END IF;
  IF to_regclass('pawl.meta') IS NOT NULL THEN SELECT m.layout INTO installed FROM pawl.meta m; END IF;
  IF installed > 2 THEN
    RAISE EXCEPTION 'pawl: layout % is installed here, which is newer than this one (2): use the pawl that made it', installed
      USING ERRCODE = 'PW008', HINT = 'Nothing was changed.';
  END IF;
  IF installed = 1 THEN ALTER TABLE pawl.meta DROP COLUMN IF EXISTS id, DROP COLUMN IF EXISTS since; END IF; -- now sequences
END $$;

-- Which layout is installed. What an older pawl would misread gets another number, and an older pawl refuses it.
CREATE TABLE IF NOT EXISTS pawl.meta (one boolean PRIMARY KEY DEFAULT true CHECK (one), layout integer NOT NULL);
GRANT SELECT ON pawl.meta TO PUBLIC;
