"""Every figure, in one go: about an hour and 25 GB of disk on two processors.

usage: figures.py SHELL WORK [--quick] [--only compare,reading,…] [--svg OUT.svg]
  --quick  a tenth of the rows and one round, to see that everything runs
Prints Markdown. Nothing else should run on the machine meanwhile.
"""
import os
import platform
import subprocess
import sys

from common import HERE, Arguments

ALL = [
    ("compare", "compare.py", ["--rows", "1e6", "--rounds", "5"]),
    ("compare", "compare.py", ["--rows", "1e7", "--rounds", "3", "--memory", "256M,64M", "--peers", "duckdb_scan,duckdb_merge,duckdb_full,polars,datafusion_full"]),
    ("shuffle", "compare.py", ["--rows", "1e7", "--rounds", "3", "--shuffle", "--memory", "256M,64M", "--peers", "duckdb_scan,duckdb_merge"]),
    ("skip", "skip.py", ["--rows", "1e7", "--rounds", "5"]),
    ("handon", "handon.py", ["--rows", "1e7", "--rounds", "3"]),
    ("backfill", "backfill.py", ["--rows", "1e7", "--rounds", "3"]),
    ("reading", "reading.py", ["--rows", "1e7", "--rounds", "5"]),
    ("growth", "growth.py", ["--rounds", "3"]),
    ("narrow", "growth.py", ["--narrow", "1e8"]),
]
QUICK = {"--rows": "1e5", "--rounds": "1", "--narrow": "1e6", "--refreshes": "4", "--sizes": "1e5,2e5"}


def quick(options):
    """The same options with small values."""
    return [QUICK.get(before, now) for before, now in zip(["", *options], options)]


def main():
    arguments = Arguments(__doc__)
    only = [name for name in arguments.get("only", "").split(",") if name]
    print(f"{os.cpu_count()} processors, {platform.machine()}, Linux {platform.release()}", flush=True)
    failed = False
    for name, script, options in ALL:
        if only and name not in only:
            continue
        options = quick(options) if arguments.has("quick") else options
        if arguments.has("quick") and script in ("reading.py", "growth.py"):
            options += ["--refreshes", QUICK["--refreshes"], "--sizes", QUICK["--sizes"]]
        if name == "compare" and arguments.has("svg"):
            options += ["--svg", arguments.get("svg", "")]  # the last one, of the larger table, stays
        command = [sys.executable, f"{HERE}/{script}", arguments.shell, arguments.work, *options]
        print(f"\n`{script} {' '.join(options)}`", flush=True)
        failed |= subprocess.run(command, check=False).returncode != 0
    sys.exit(failed)


main()
