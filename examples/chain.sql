-- A chain: one enriched table is the source of another, through a view that aggregates.
--
--   cargo run --release --features cli -- -f examples/chain.sql
--
--   mime_types (CSV) ──► mime_words ──► view families ──► family_report
--
-- A handler computes row by row; what needs many rows (here: GROUP BY) belongs into the source of the next table.

DROP INCREMENTAL TABLE IF EXISTS family_report PURGE;
DROP INCREMENTAL TABLE IF EXISTS mime_words PURGE;

CREATE OR REPLACE EXTERNAL TABLE mime_types (
  mime_type VARCHAR NOT NULL, source VARCHAR, charset VARCHAR, compressible BOOLEAN, extensions VARCHAR
) STORED AS CSV LOCATION 'examples/data/mime_types_1.52.0.csv' OPTIONS ('format.has_header' 'true');

CREATE INCREMENTAL TABLE mime_words FROM mime_types KEY (mime_type) TRACK (extensions)
AS SELECT
  mime_type,
  split_part(mime_type, '/', 1) AS family,
  CASE WHEN extensions IS NULL THEN 0 ELSE length(extensions) - length(replace(extensions, ' ', '')) + 1 END AS extensions
FROM input;

-- A view needs an accepted version of what it reads.
REFRESH mime_words;

CREATE OR REPLACE VIEW families AS
SELECT family, count(*) AS types, sum(extensions) AS extensions FROM mime_words GROUP BY family;

CREATE INCREMENTAL TABLE family_report FROM families KEY (family)
AS SELECT family, concat(family, ': ', types, ' types, ', extensions, ' extensions') AS line FROM input;

REFRESH family_report, mime_words;

SELECT line FROM family_report ORDER BY family;

-- The next snapshot. Tables are refreshed in dependency order, whatever the order they are named in, and each
-- recomputes only its own changed rows: a family without a change is not touched.
CREATE OR REPLACE EXTERNAL TABLE mime_types (
  mime_type VARCHAR NOT NULL, source VARCHAR, charset VARCHAR, compressible BOOLEAN, extensions VARCHAR
) STORED AS CSV LOCATION 'examples/data/mime_types_1.54.0.csv' OPTIONS ('format.has_header' 'true');

REFRESH family_report, mime_words;

SELECT line FROM family_report ORDER BY family;

SELECT reason, rows_created, rows_updated, rows_deleted, rows_unchanged, handler_rows
FROM incremental_runs('family_report') ORDER BY version;
