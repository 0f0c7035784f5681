-- Last: the layout is there when everything of it is.
INSERT INTO pawl.meta AS m (layout) VALUES (2) ON CONFLICT (one) DO UPDATE SET layout = excluded.layout
  WHERE m.layout <> excluded.layout;
DO $$ BEGIN
  PERFORM set_config('search_path', current_setting('pawl.path'), true) WHERE current_setting('pawl.path', true) <> '';
END $$;
