"""Reading the published table after many refreshes, against one freshly written Parquet copy of the same rows.

usage: reading.py SHELL WORK [--rows 1e6] [--refreshes 30] [--rounds 5] [--keep]
  --keep  the tables that an earlier call made
Two tables follow the same snapshots: one with the default options, one with compaction = 'off' (the worst case). Prints what the
refreshes cost, automatic compactions included, and the seconds of two queries, each beside the same query on the copy: after
the last refresh, and after CALL compact.
"""
import math
import os

from common import Arguments, copy_of, define, external, fresh, heading, middle, python, refresh, sql, table, verdict

SCAN = "SELECT sum(gross) AS gross, count(DISTINCT contact) AS contacts FROM {}"
POINT = "SELECT * FROM {} WHERE id = {}"
FILES = "SELECT count(*) AS files, sum(rows) - sum(live_rows) AS dead FROM incremental_files('enriched')"
TABLES = {"defaults": "", "compaction = 'off'": "compaction = 'off'"}


class Reading:
    def __init__(self, arguments):
        self.shell, self.work = arguments.shell, arguments.work
        self.rows, self.refreshes = arguments.number("rows", 1e6), arguments.number("refreshes", 30)
        self.rounds, self.copy = arguments.number("rounds", 5), f"{self.work}/reading-copy.parquet"

    def root(self, name):
        return f"{self.work}/reading-{list(TABLES).index(name)}"

    def sql(self, name, *statements):
        return sql(self.shell, self.root(name), statements)

    def build(self):
        """Refreshes every table once for each snapshot; what each refresh cost and wrote."""
        spent = {name: [] for name in TABLES}
        for name in TABLES:
            fresh(self.root(name))
        for step in range(self.refreshes + 1):
            python("snapshots.py", self.work, self.rows, 1, 0.01, 0.005, 0.005, "--step", step)
            for name, options in TABLES.items():
                define_it = [define(options)] if step == 0 else []
                answer = self.sql(name, external("customers", f"{self.work}/step/"), *define_it, refresh())
                os.sync()
                run = answer.rows[-1]
                changed = run["rows_created"] + run["rows_updated"] + run["rows_deleted"]
                spent[name].append((answer.run(), answer.seconds[-1] - answer.run(), run["bytes_written"], changed))
        return {name: measured[1:] for name, measured in spent.items()}

    def write_copy(self, name):
        if os.path.exists(self.copy):
            os.remove(self.copy)
        self.sql(name, f"COPY (SELECT * FROM enriched ORDER BY id) TO '{self.copy}' STORED AS PARQUET OPTIONS ('format.compression' 'zstd(3)')")
        os.sync()

    def measure(self, name, query):
        """Medians of alternating executions in one process, after one of each."""
        statements = [external("copy", self.copy)]
        for _ in range(self.rounds + 1):
            statements += [query("enriched"), query("copy")]
        answer = self.sql(name, *statements)
        ours, theirs = answer.rows[-2:]
        assert all(math.isclose(ours[c], theirs[c], rel_tol=1e-9) if isinstance(theirs[c], float) else ours[c] == theirs[c] for c in theirs)
        seconds = answer.seconds[1:]
        return middle(seconds[2::2]), middle(seconds[3::2])

    def state(self, name, label, limit):
        files = self.sql(name, FILES).rows[0]
        ours, copy = self.measure(name, SCAN.format)
        key = self.sql(name, f"SELECT min(id) AS id FROM enriched WHERE id >= {self.rows // 3}").rows[0]["id"]
        point, point_copy = self.measure(name, lambda it: POINT.format(it, key))
        return [name, label, files["files"], f"{files['dead']:,}", f"{ours:.3f}", f"{copy:.3f}", verdict(ours / copy, limit),
                f"{point * 1e3:.0f}", f"{point_copy * 1e3:.0f}"]


def report_refreshes(reading, spent):
    heading(f"Refreshing {reading.rows:,} rows {reading.refreshes} times, 2 % changed each time")
    rows = []
    for name, steps in spent.items():
        runs, rest = sum(s[0] for s in steps), sum(s[1] for s in steps)
        written = sum(s[2] for s in steps) / sum(s[3] for s in steps)
        rows.append([name, f"{steps[0][0]:.2f}", f"{middle([s[0] for s in steps[-5:]]):.2f}", f"{runs:.1f}", f"{rest:.1f}", f"{rest / runs:.2f}", f"{written:.0f}"])
    table(["table", "first refresh, seconds", "of the last five", "all runs", "compactions", "compactions / runs", "bytes per changed row"], rows)


def main():
    arguments = Arguments(__doc__)
    reading = Reading(arguments)
    if not arguments.has("keep"):
        report_refreshes(reading, reading.build())
        for name in TABLES:
            copy_of(reading.root(name), f"{reading.root(name)}-kept")
    rows = []
    for name in TABLES:
        copy_of(f"{reading.root(name)}-kept", reading.root(name))
        reading.write_copy(name)
        rows.append(reading.state(name, f"after {reading.refreshes} refreshes", 1.4))
        compact = reading.sql(name, "CALL incremental.compact('enriched')")
        rows.append(reading.state(name, f"after compaction ({compact.seconds[-1]:.1f} s)", 1.05))
    heading(f"Reading {reading.rows:,} rows", f"`{SCAN.format('t')}`, and a look-up by key")
    table(["table", "state", "files", "dead rows", "query, s", "copy, s", "ratio", "look-up, ms", "copy, ms"], rows)


main()
