"""How the time of a refresh grows with the table, and a large narrow table in little memory.

usage: growth.py SHELL WORK [--sizes 1e6,2e6,5e6,1e7,2e7] [--rounds 3] [--narrow 1e8]
  --narrow N  instead: N rows of a key and one tracked integer; the whole process may take 4 GiB
"""
import math
import shutil

from common import Arguments, copy_of, define, execute, external, fresh, heading, middle, refresh, snapshots, sql, sys, table, verdict

NARROW = """
import duckdb, os, sys
folder, rows, step = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.makedirs(folder)
value = "(hash(i) % 1000000)::INT" if step == "before" else "CASE WHEN i % 100 = 7 THEN -1 ELSE (hash(i) % 1000000)::INT END"
gone = "" if step == "before" else "WHERE i % 200 <> 11"
con = duckdb.connect()
con.execute("SET threads=2; SET memory_limit='2GB'; SET preserve_insertion_order=true")
con.execute(f"COPY (SELECT i AS id, {value} AS amount FROM range({rows}) t(i) {gone}) TO '{folder}/part.parquet' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 1048576)")
"""


def refreshed(shell, work, before, after, create, rounds):
    """Medians of seconds and peak MiB of the refresh, and its row."""
    kept = fresh(f"{work}/growth-kept")
    first = sql(shell, kept, [external("customers", before), create, refresh()])
    measured = []
    for _ in range(rounds):
        answer = sql(shell, copy_of(kept, f"{work}/growth"), [external("customers", after), refresh()])
        measured.append((answer.run(), answer.peak))
    shutil.rmtree(kept), shutil.rmtree(f"{work}/growth")
    return first, answer.rows[-1], *(middle(values) for values in zip(*measured))


def exponent(points):
    """The slope of the line through (log rows, log seconds)."""
    xs, ys = [math.log(n) for n, _ in points], [math.log(s) for _, s in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / sum((x - mean_x) ** 2 for x in xs)


def grow(arguments):
    rounds, points, lines = arguments.number("rounds", 3), [], []
    for size in arguments.get("sizes", "1e6,2e6,5e6,1e7,2e7").split(","):
        rows, data = int(float(size)), f"{arguments.work}/data-{int(float(size))}"
        snapshots(data, rows)
        _, _, seconds, peak = refreshed(arguments.shell, arguments.work, f"{data}/before/", f"{data}/after/", define(), rounds)
        points.append((rows, seconds))
        lines.append([f"{rows:,}", f"{seconds:.3f}", f"{seconds / rows * 1e9:.0f}", f"{peak:.0f}"])
        if rows > 10_000_000:
            shutil.rmtree(data)
    heading("Growth of an ordered refresh", f"Medians of {rounds} rounds.")
    table(["rows", "seconds", "ns per row", "peak MiB"], lines)
    table(["target", "measured"], [["exponent of the rows", verdict(exponent(points), 1.05)]])


def narrow(arguments, rows):
    data = f"{arguments.work}/narrow"
    shutil.rmtree(data, ignore_errors=True)
    for step in ("before", "after"):
        execute([sys.executable, "-c", NARROW, f"{data}/{step}", str(rows), step])
    create = "CREATE INCREMENTAL TABLE enriched FROM customers KEY (id) TRACK (amount) AS SELECT id, amount * 2 AS double FROM input"
    first, run, seconds, peak = refreshed(arguments.shell, arguments.work, f"{data}/before/", f"{data}/after/", create, 1)
    shutil.rmtree(data)
    heading(f"{rows:,} rows of a key and one tracked integer, 1.5 % changed")
    table(["run", "seconds", "peak MiB of the process", "of 4 GiB"],
          [["first", f"{first.run():.1f}", f"{first.peak:.0f}", verdict(first.peak / 4096, 1)], ["refresh", f"{seconds:.1f}", f"{peak:.0f}", verdict(peak / 4096, 1)]])
    print({name: run[name] for name in run if name.startswith("rows_") or name == "spilled_bytes"})


def main():
    arguments = Arguments(__doc__)
    if arguments.has("narrow"):
        narrow(arguments, arguments.number("narrow", 1e8))
    else:
        grow(arguments)


main()
