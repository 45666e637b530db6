"""A table whose source is another incremental table: its changes handed on, against scanning and comparing all of it.

usage: handon.py SHELL WORK [--rows 1e7] [--rounds 3]
"""
import shutil

from common import Arguments, copy_of, define, external, fresh, heading, middle, refresh, snapshots, sql, table

WAYS = {"handed on": "", "scanned": "hand_on = false"}
SECOND = "CREATE INCREMENTAL TABLE second FROM enriched KEY (id) TRACK (gross, contact) {} AS SELECT id, gross, upper(contact) AS contact FROM input"


def main():
    arguments = Arguments(__doc__)
    rows, rounds = arguments.number("rows", 1e7), arguments.number("rounds", 3)
    data = f"{arguments.work}/data-{rows}"
    snapshots(data, rows)
    second, kept = refresh().replace("'enriched'", "'second'"), {}
    for number, (way, options) in enumerate(WAYS.items()):
        kept[way] = fresh(f"{arguments.work}/chain-{number}")
        create = SECOND.format(f"WITH ({options})" if options else "")
        sql(arguments.shell, kept[way], [external("customers", f"{data}/before/"), define(), refresh(), create, second])
        sql(arguments.shell, kept[way], [external("customers", f"{data}/after/"), refresh()])
    measured = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            root = copy_of(kept[way], f"{arguments.work}/chain-now")
            answer = sql(arguments.shell, root, [second])
            run = answer.rows[-1]
            counts = tuple(run[f"rows_{what}"] for what in ("created", "updated", "deleted", "unchanged"))
            measured[way].append((answer.run(), answer.peak, counts))
    for number in range(len(WAYS)):
        shutil.rmtree(f"{arguments.work}/chain-{number}")
    shutil.rmtree(f"{arguments.work}/chain-now")
    assert len({counts for rounds in measured.values() for _, _, counts in rounds}) == 1, measured
    result = {way: (middle([m[0] for m in found]), middle([m[1] for m in found])) for way, found in measured.items()}
    heading(f"A second table on a table of {rows:,} rows", f"Medians of {rounds} rounds; 2 % of the first table's rows changed.")
    base = result["handed on"][0]
    table(["changes", "seconds", "against handed on", "peak MiB"], [[way, f"{s:.3f}", f"{s / base:.1f}", f"{peak:.0f}"] for way, (s, peak) in result.items()])


main()
