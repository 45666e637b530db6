"""Refreshes of a source in 16 files of which most did not change, with and without file skip, in turn.

usage: skip.py SHELL WORK [--rows 1e7] [--files 16] [--rounds 5]
Prints what one synced write costs on this machine: a run that publishes has to make a few.
"""
import os
import shutil
import time

from common import FILES, Arguments, copy_of, define, external, fresh, heading, middle, refresh, snapshots, sql, synced_write, table

WAYS = {"file skip": "", "every file read": "file_skip = 'false'"}


def measure(arguments, source, kept, rounds):
    """Per way: medians of seconds and peak MiB, files read, files skipped. A skipped file has to be 2 s old."""
    measured = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            root = copy_of(kept[way], f"{arguments.work}/skip-now")
            answer = sql(arguments.shell, root, [external("customers", source), refresh()])
            run = answer.rows[-1]
            measured[way].append((answer.run(), answer.peak, run["files_read"], run["files_skipped"], run["rows_created"] + run["rows_updated"] + run["rows_deleted"]))
    shutil.rmtree(f"{arguments.work}/skip-now")
    return {way: [middle(values) for values in zip(*rounds)] for way, rounds in measured.items()}


def main():
    arguments = Arguments(__doc__)
    rows, files, rounds = arguments.number("rows", 1e7), arguments.number("files", FILES), arguments.number("rounds", 5)
    data, source = f"{arguments.work}/data-{rows}-clustered", f"{arguments.work}/skip-source"
    snapshots(data, rows, files, flags=["--clustered"])
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(f"{data}/before", source)
    time.sleep(3)
    kept = {}
    for number, (way, options) in enumerate(WAYS.items()):
        kept[way] = fresh(f"{arguments.work}/skip-{number}")
        sql(arguments.shell, kept[way], [external("customers", f"{source}/"), define(options), refresh()])
    unchanged = measure(arguments, f"{source}/", kept, rounds)
    last = f"part-{files - 1:03d}.parquet"
    shutil.copyfile(f"{data}/after/{last}", f"{source}/{last}")
    time.sleep(3)
    changed = measure(arguments, f"{source}/", kept, rounds)
    write = synced_write(arguments.work)
    heading(f"{rows:,} rows in {files} files", f"Medians of {rounds} rounds. One synced write of a small object costs {write:.1f} ms here.")
    lines = [[label, way, f"{found[way][0] * 1e3:.0f}", *(f"{value:.0f}" for value in found[way][1:])]
             for label, found in (("nothing changed", unchanged), (f"one of {files} files changed", changed)) for way in WAYS]
    table(["source", "way", "ms", "peak MiB", "files read", "files skipped", "changed rows"], lines)
    skipped, read = WAYS
    limit = 30 + 5 * write
    share = changed[skipped][0] / changed[read][0]
    table(["target", "measured"], [
        [f"nothing changed: at most 30 ms and 5 synced writes ({limit:.0f} ms)", f"{unchanged[skipped][0] * 1e3:.0f} ms{'' if unchanged[skipped][0] * 1e3 <= limit else ', MISSED'}"],
        ["one file changed: at most a sixth of reading every file", f"1/{1 / share:.1f}{'' if share <= 1 / 6 else ', MISSED'}"]])


main()
