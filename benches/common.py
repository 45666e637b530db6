"""What the benchmark scripts share: data, the shell, times, memory, tables.

Seconds of a refresh are the run's own (ended_at - requested_at of its row); memory is the whole process's peak, read from
the kernel when the process ends. This module imports nothing large: a child's peak starts at its parent's size.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Several files, so that every peer can use every processor: DuckDB and DataFusion divide a file by row groups only.
FILES = 16
HANDLER = "SELECT id, upper(name) AS normalized_name, round(amount * 1.2, 2) AS gross, city || ':' || email AS contact FROM input"
CREATE = "CREATE INCREMENTAL TABLE enriched FROM customers KEY (id) TRACK (name, email, amount, city) {options} AS {handler}"
RUN = ("SELECT arrow_cast(ended_at, 'Int64') - arrow_cast(requested_at, 'Int64') AS micros, * "
       "FROM incremental_refresh('enriched'{more})")


class Failed(Exception):
    """A process that ended with an error; its message is what it printed."""


class Arguments:
    """`script SHELL WORK [--name value]… [--flag]…`"""

    def __init__(self, doc):
        if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
            sys.exit(doc)
        self.shell, self.work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
        os.makedirs(self.work, exist_ok=True)

    def get(self, name, default):
        return sys.argv[sys.argv.index(f"--{name}") + 1] if f"--{name}" in sys.argv else default

    def number(self, name, default):
        return int(float(self.get(name, default)))

    def has(self, flag):
        return f"--{flag}" in sys.argv


def execute(command, **popen):
    """What the command printed on its two outputs, and its peak memory in MiB."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, **popen)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if process.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))[:400]} …: {err.read()[-3000:]}{out.read()[-3000:]}")
        return out.read(), err.read(), usage.ru_maxrss / 1024


class Answer:
    """What a shell printed: result rows as dictionaries, the seconds of each statement, and the peak memory in MiB."""

    def __init__(self, rows, notes, peak):
        self.rows = [json.loads(line) for line in rows.splitlines() if line.startswith("{")]
        self.seconds = [float(s) for s in re.findall(r"Elapsed ([\d.]+) seconds", notes)]
        self.peak = peak

    def run(self):
        """Seconds of the run whose row this is."""
        return self.rows[-1]["micros"] / 1e6


def sql(shell, root, statements, memory=None, **popen):
    limit = ["-m", memory] if memory else []
    parts = [part for statement in statements for part in ("-c", statement)]
    return Answer(*execute([shell, "--format", "nd-json", "--root", root, *limit, *parts], **popen))


def external(name, location):
    return f"CREATE OR REPLACE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{location}'"


def define(options="", handler=HANDLER):
    return CREATE.format(options=f"WITH ({options})" if options else "", handler=handler)


def refresh(more=""):
    return RUN.format(more=more)


def python(script, *arguments):
    return execute([sys.executable, f"{HERE}/{script}", *map(str, arguments)])


def snapshots(data, rows, files=FILES, flags=()):
    """Makes the two snapshots, of which 2 % differ, unless they are there."""
    mark = f"{data}/made"
    if not os.path.exists(mark):
        shutil.rmtree(data, ignore_errors=True)
        python("snapshots.py", data, rows, files, 0.01, 0.005, 0.005, *flags)
        open(mark, "w").close()


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def copy_of(kept, folder):
    """A synced copy, so that nobody's seconds hold the writing back of somebody else's."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)
    os.sync()
    return folder


def middle(values):
    return statistics.median(values)


def synced_write(folder, times=20):
    """Median milliseconds of what one durable small object costs here: file, sync, link, sync of the folder."""
    spent = []
    for i in range(times):
        begin = time.perf_counter()
        with open(f"{folder}/.probe", "wb") as f:
            f.write(b"x" * 1000)
            f.flush()
            os.fsync(f.fileno())
        os.link(f"{folder}/.probe", f"{folder}/.probe-{i}")
        os.unlink(f"{folder}/.probe")
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        spent.append(time.perf_counter() - begin)
        os.unlink(f"{folder}/.probe-{i}")
    return middle(spent) * 1e3


def heading(title, *notes):
    print(f"\n### {title}\n")
    for note in notes:
        print(f"{note}\n")


def table(columns, rows):
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def verdict(measured, limit):
    """`0.93 (at most 1.4)`, with a mark when it is missed."""
    return f"{measured:.2f} (at most {limit:.3g}{'' if measured <= limit else ', MISSED'})"
