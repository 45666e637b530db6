#!/usr/bin/env python3
"""Converts two published versions of mime-db into the CSV snapshots of this folder.

    npm pack mime-db@1.52.0 mime-db@1.54.0
    python3 convert.py mime-db-1.52.0.tgz mime-db-1.54.0.tgz

Writes mime_types_<version>.csv beside this script: one row per media type, in name order, the same bytes for the same
input. Needs only Python's standard library.
"""

import csv
import json
import pathlib
import sys
import tarfile

COLUMNS = ["mime_type", "source", "charset", "compressible", "extensions"]


def rows(db):
    for mime_type in sorted(db):
        entry = db[mime_type]
        compressible = entry.get("compressible")
        yield [
            mime_type,
            entry.get("source", ""),
            entry.get("charset", ""),
            "" if compressible is None else str(compressible).lower(),
            " ".join(entry.get("extensions", [])),
        ]


def main():
    folder = pathlib.Path(__file__).resolve().parent
    for archive in sys.argv[1:]:
        with tarfile.open(archive) as package:
            version = json.load(package.extractfile("package/package.json"))["version"]
            db = json.load(package.extractfile("package/db.json"))
        target = folder / f"mime_types_{version}.csv"
        with open(target, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows(db))
        print(f"{target.name}: {len(db)} rows")


if __name__ == "__main__":
    main()
