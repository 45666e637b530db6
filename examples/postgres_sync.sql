-- A PostgreSQL table as a synced table, and an enriched table on top of it.
--
--   psql "$PG_URL" -c "CREATE TABLE orders (tenant_id int, id bigint, note text, amount numeric(12, 2), updated_at timestamptz NOT NULL, PRIMARY KEY (tenant_id, id));
--                      CREATE INDEX ON orders (updated_at);
--                      INSERT INTO orders SELECT i % 3, i, 'order ' || i, i / 4.0, now() - i * interval '1 minute' FROM generate_series(1, 1000) i"
--   PG_URL='postgres://user:password@host/db' incremental-cli --root warehouse -f examples/postgres_sync.sql
--
-- The role needs nothing but CONNECT, USAGE on the schema and SELECT on the table. Run it again and only what changed moves.

-- The address is a reference: it is resolved at each use and stored nowhere. sslmode = 'verify-full' for a server elsewhere.
CREATE CONNECTION IF NOT EXISTS pg TYPE postgres WITH (url = 'env:PG_URL');

-- Tables, views, materialised views, partitioned and foreign tables, with their keys.
SELECT * FROM sync_discover('pg');

-- Loads nothing yet. The key is found in the source.
CREATE SYNCED TABLE IF NOT EXISTS orders FROM pg.public.orders WITH (
  sync_type = 'incremental', incremental_field = 'updated_at', incremental_field_lookback_seconds = 600, sync_frequency = '1hour');

-- Which columns could be the cursor, and whether an index makes a range of them cheap.
SELECT * FROM sync_incremental_fields('orders');

-- Everything at first; from then on what is at or above the mark, ten minutes of looking back included.
SELECT kind, status, rows_read, rows_inserted, rows_updated, rows_total, mark_before, mark_after FROM sync_reload('orders');
SELECT tenant_id, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY tenant_id ORDER BY tenant_id;

-- A table on top of it handles only the orders that changed.
CREATE INCREMENTAL TABLE IF NOT EXISTS orders_enriched FROM orders KEY (tenant_id, id) TRACK (note)
AS SELECT tenant_id, id, upper(note) AS shout FROM input;
REFRESH orders_enriched;

-- Rows that the source deleted are not seen by a cursor; comparing keys finds them.
SELECT kind, status, rows_deleted, rows_total FROM sync_reconcile('orders');
SELECT name, status, last_synced_at IS NOT NULL AS synced, latest_error FROM sync_schema('orders');
