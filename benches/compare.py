"""One refresh, done by this crate and by each peer its own best way, in turn, several rounds: a table in Markdown and a plot.

usage: compare.py SHELL WORK [--rows 1e6] [--rounds 3] [--files 16] [--shuffle] [--memory 256M,64M] [--peers a,b,…] [--svg OUT.svg]
  SHELL     the release build of incremental-cli (cargo build --release --features cli)
  WORK      a folder for data and state; it is made and kept
  --memory  also ours with these limits (-m), each right or RESOURCES_EXHAUSTED
Medians over the rounds; what each is, says common.py (ours) and peers.py.
needs: numpy, pyarrow, duckdb, polars, deltalake, datafusion (pip)
"""
import os
import re
import shutil

from common import FILES, Arguments, Failed, copy_of, define, external, fresh, heading, middle, python, refresh, snapshots, sql, table, verdict
from plot import bars

PEERS = ["duckdb_scan", "duckdb_merge", "duckdb_full", "polars", "datafusion_full", "delta_merge"]
OURS = "incremental"
# What is to be reached: rows and order → (peer, our seconds at most this part of its).
TARGETS = {
    (1_000_000, False): [("duckdb_merge", 1 / 6), ("duckdb_full", 1 / 2)],
    (10_000_000, False): [("duckdb_merge", 1 / 3.5), ("duckdb_scan", 2.2)],
    (10_000_000, True): [("duckdb_merge", 1 / 2)],
}


class Comparison:
    def __init__(self, arguments):
        self.shell, self.state = arguments.shell, f"{arguments.work}/state"
        self.rows, self.rounds, self.files = arguments.number("rows", 1e6), arguments.number("rounds", 3), arguments.number("files", FILES)
        self.shuffle, self.counts = arguments.has("shuffle"), None
        several = "" if self.files == FILES else f"-{self.files}-files"
        self.data = f"{arguments.work}/data-{self.rows}{'-shuffle' if self.shuffle else ''}{several}"
        peers = [p for p in arguments.get("peers", ",".join(PEERS)).split(",") if p]
        limits = [m for m in arguments.get("memory", "").split(",") if m]
        self.contenders = [OURS, *(f"{OURS} -m {m}" for m in limits), *peers]

    def step(self, name, step, root):
        """Seconds and peak MiB; seconds are None where memory did not suffice."""
        if not name.startswith(OURS):
            seconds, peak = re.search(r"([\d.]+) s, peak (\d+) MiB", python("peers.py", name, step, self.data, root)[0]).groups()
            return float(seconds), float(peak)
        limit = name.split(" -m ")[1] if " -m " in name and step == "refresh" else None
        source = external("customers", f"{self.data}/{'before' if step == 'setup' else 'after'}/")
        try:
            answer = sql(self.shell, root, [source, *([define()] if step == "setup" else []), refresh()], limit)
        except Failed as failed:
            if limit and "RESOURCES_EXHAUSTED" in str(failed):
                return None, 0
            raise
        run = answer.rows[-1]
        counts = [run[f"rows_{what}"] for what in ("created", "updated", "deleted", "unchanged")]
        if step == "refresh":
            assert self.counts in (None, counts), f"{name}: {counts} rows created, updated, deleted, unchanged, and not {self.counts}"
            self.counts = counts
        return answer.run(), answer.peak

    def measure(self):
        snapshots(self.data, self.rows, self.files, flags=["--shuffle"] if self.shuffle else [])
        first = {}
        for name in self.contenders:
            kept = f"{self.state}/{name}.kept"
            if name.startswith(OURS + " "):
                continue
            first[name] = self.step(name, "setup", fresh(kept))
        measured = {name: [] for name in self.contenders}
        for _ in range(self.rounds):
            for name in self.contenders:
                kept = OURS if name.startswith(OURS) else name
                measured[name].append(self.step(name, "refresh", copy_of(f"{self.state}/{kept}.kept", f"{self.state}/{name}")))
                shutil.rmtree(f"{self.state}/{name}")
        shutil.rmtree(self.state)
        return first, {name: over_rounds(rounds) for name, rounds in measured.items()}


def over_rounds(rounds):
    if any(seconds is None for seconds, _ in rounds):
        return None, 0
    return middle([seconds for seconds, _ in rounds]), middle([peak for _, peak in rounds])


def report(comparison, first, result):
    order = "random order" if comparison.shuffle else "ordered snapshot"
    heading(f"{comparison.rows:,} rows, {order}", f"{comparison.files} files. Medians of {comparison.rounds} rounds on {os.cpu_count()} processors.")
    base, rows = result[OURS][0], []
    for name in comparison.contenders:
        seconds, peak = result[name]
        once = f"{first[name][0]:.2f}" if name in first else ""
        if seconds is None:
            rows.append([name, "RESOURCES_EXHAUSTED", "", "", once])
        else:
            rows.append([name, f"{seconds:.3f}", f"{seconds / base:.2f}", f"{peak:.0f}", once])
    table(["refresh", "seconds", "against ours", "peak MiB", "first run, seconds"], rows)
    targets = [[f"seconds / {peer}", verdict(base / result[peer][0], limit)]
               for peer, limit in TARGETS.get((comparison.rows, comparison.shuffle), []) if peer in result]
    if comparison.rows == 10_000_000 and "duckdb_merge" in result:
        targets.append(["peak memory / duckdb_merge", verdict(result[OURS][1] / result["duckdb_merge"][1], 1 / 3)])
    limited = result.get(f"{OURS} -m 256M", (None,))[0]
    if limited is not None:
        targets.append(["seconds with -m 256M / without", verdict(limited / base, 3)])
    if targets:
        table(["target", "measured"], targets)


def main():
    arguments = Arguments(__doc__)
    comparison = Comparison(arguments)
    first, result = comparison.measure()
    report(comparison, first, result)
    if arguments.has("svg"):
        shown = [(name, *result[name]) for name in comparison.contenders if result[name][0] is not None]
        title = f"One refresh of {comparison.rows:,} rows, 2 % changed: seconds (log scale) and peak memory"
        bars(arguments.get("svg", ""), title, shown, OURS)


main()
