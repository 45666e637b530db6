"""The first run of a table, against DataFusion's own COPY of the same query with the same codec, in turn.

usage: backfill.py SHELL WORK [--rows 1e7] [--rounds 3]
Two handlers: a proven one (capture, handler and writing are one pass), and the same query with a volatile function in it, whose
input capture is sealed before the handler starts. Both sides are synced; COPY's seconds are also shown without the sync.
"""
import os
import shutil
import time

from common import HANDLER, Arguments, define, external, fresh, heading, middle, refresh, snapshots, sql, table, verdict

VOLATILE = HANDLER.replace("round(amount * 1.2, 2)", "CASE WHEN amount < 0 THEN random() ELSE round(amount * 1.2, 2) END")
CASES = [("proven, one pass", HANDLER, "", 1.3), ("sealed input capture", VOLATILE, "allow_volatile = true", 2.2)]


def ours(shell, root, source, handler, options):
    answer = sql(shell, fresh(root), [source, define(options, handler), refresh()])
    return answer.run(), answer.peak


def copy(shell, root, source, handler):
    """Seconds of COPY, of COPY and the syncing of what it wrote, and the peak memory."""
    fresh(root)
    query = handler.replace("FROM input", "FROM customers")
    answer = sql(shell, root, [source, f"COPY ({query}) TO '{root}/out/' STORED AS PARQUET OPTIONS ('format.compression' 'zstd(3)')"])
    begin = time.time()
    for path in [*(f"{root}/out/{name}" for name in os.listdir(f"{root}/out")), f"{root}/out"]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return answer.seconds[-1], answer.seconds[-1] + time.time() - begin, answer.peak


def main():
    arguments = Arguments(__doc__)
    rows, rounds = arguments.number("rows", 1e7), arguments.number("rounds", 3)
    data, root = f"{arguments.work}/data-{rows}", f"{arguments.work}/backfill"
    snapshots(data, rows)
    source, lines = external("customers", f"{data}/before/"), []
    for name, handler, options, limit in CASES:
        run, other = [], []
        for _ in range(rounds):
            run.append(ours(arguments.shell, root, source, handler, options))
            os.sync()
            other.append(copy(arguments.shell, root, source, handler))
            os.sync()
        seconds, peak = (middle(values) for values in zip(*run))
        plain, synced, copy_peak = (middle(values) for values in zip(*other))
        lines.append([name, f"{seconds:.2f}", f"{synced:.2f}", verdict(seconds / synced, limit), f"{plain:.2f}", f"{peak:.0f}", f"{copy_peak:.0f}"])
    shutil.rmtree(root)
    heading(f"First run of {rows:,} rows", f"Medians of {rounds} rounds.")
    table(["handler", "seconds", "COPY, synced", "ratio", "COPY, not synced", "peak MiB", "COPY, peak MiB"], lines)


main()
