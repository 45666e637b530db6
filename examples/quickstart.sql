-- A source arrives as snapshots; an enriched table follows it, and only new and changed rows are computed.
--
--   cargo run --release --features cli -- -f examples/quickstart.sql
--
-- The data are two published versions of mime-db, the list of the media types of the Internet: examples/data/README.md.
-- The script makes its table anew each time, so that it can be run again.

DROP INCREMENTAL TABLE IF EXISTS mime_enriched PURGE;

-- The first snapshot. Any table will do as a source: files, a view, a table that the host registers.
CREATE OR REPLACE EXTERNAL TABLE mime_types (
  mime_type VARCHAR NOT NULL, source VARCHAR, charset VARCHAR, compressible BOOLEAN, extensions VARCHAR
) STORED AS CSV LOCATION 'examples/data/mime_types_1.52.0.csv' OPTIONS ('format.has_header' 'true');

-- The enriched table: a key, the columns whose change is work, and the handler: a query over the relation `input`.
CREATE INCREMENTAL TABLE mime_enriched FROM mime_types
KEY (mime_type) TRACK (compressible, extensions)
AS SELECT
  mime_type,
  split_part(mime_type, '/', 1) AS family,
  CASE WHEN split_part(mime_type, '/', 2) LIKE 'vnd.%' THEN 'vendor'
       WHEN split_part(mime_type, '/', 2) LIKE 'prs.%' THEN 'personal'
       WHEN split_part(mime_type, '/', 2) LIKE 'x-%' THEN 'unregistered'
       ELSE 'standards' END AS tree,
  coalesce(compressible, false) AS compressible,
  split_part(extensions, ' ', 1) AS extension
FROM input;

-- The first run takes all rows.
SELECT version, reason, rows_created, rows_updated, rows_deleted, rows_unchanged, rows_total, handler_rows
FROM incremental_refresh('mime_enriched');

-- The table before the second snapshot.
SELECT family, count(*) AS types, count(extension) AS with_extension, sum(CASE WHEN tree = 'vendor' THEN 1 ELSE 0 END) AS vendor
FROM mime_enriched GROUP BY family ORDER BY types DESC;

SELECT * FROM mime_enriched
WHERE mime_type IN ('application/dicom', 'application/javascript', 'application/vnd.youtube.yt', 'image/hsj2', 'text/javascript', 'image/avif')
ORDER BY mime_type;

-- The second snapshot arrives: 248 media types are new, 5 are gone, 27 have other extensions or compress otherwise.
CREATE OR REPLACE EXTERNAL TABLE mime_types (
  mime_type VARCHAR NOT NULL, source VARCHAR, charset VARCHAR, compressible BOOLEAN, extensions VARCHAR
) STORED AS CSV LOCATION 'examples/data/mime_types_1.54.0.csv' OPTIONS ('format.has_header' 'true');

-- The second run hands 275 rows to the handler, not 2,522. What changed in untracked columns is no work.
SELECT version, reason, rows_created, rows_updated, rows_deleted, rows_unchanged, rows_total, handler_rows
FROM incremental_refresh('mime_enriched');

-- A third run finds nothing to do.
SELECT version, reason, rows_created, rows_updated, rows_deleted, rows_unchanged, rows_total, handler_rows
FROM incremental_refresh('mime_enriched');

-- The table after: always the complete one.
SELECT family, count(*) AS types, count(extension) AS with_extension, sum(CASE WHEN tree = 'vendor' THEN 1 ELSE 0 END) AS vendor
FROM mime_enriched GROUP BY family ORDER BY types DESC;

SELECT * FROM mime_enriched
WHERE mime_type IN ('application/dicom', 'application/javascript', 'application/vnd.youtube.yt', 'image/hsj2', 'text/javascript', 'image/avif')
ORDER BY mime_type;

-- A historical version beside the newest: rows that are gone.
SELECT old.mime_type, old.extension
FROM mime_enriched FOR VERSION AS OF 1 AS old
WHERE old.mime_type NOT IN (SELECT mime_type FROM mime_enriched)
ORDER BY old.mime_type;

-- Why one row is as it is.
SELECT * FROM incremental_row('mime_enriched', 'application/mp4');

-- What happened.
SELECT version, state, reason, rows_created, rows_updated, rows_deleted, handler_rows, ms_capture, ms_publish
FROM incremental_runs('mime_enriched') ORDER BY version;
