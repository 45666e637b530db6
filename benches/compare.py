"""One refresh, done by this crate and by each peer its own best way, in turn, several rounds: a table in Markdown and a plot.

usage: compare.py SHELL WORK [--rows 1e6] [--rounds 3] [--files 1] [--shuffle] [--peers a,b,…] [--svg OUT.svg]
  SHELL  the release build of incremental-cli (cargo build --release --features cli)
  WORK   a folder for data and state; it is made and kept
Seconds are the refresh's own (for us: ended_at - requested_at of the run's row; for a peer: what peers.py prints, without its
start-up); memory is the whole process's peak. Medians over the rounds.
needs: numpy, pyarrow, duckdb, polars, deltalake, datafusion (pip)
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HANDLER = "SELECT id, upper(name) AS normalized_name, round(amount * 1.2, 2) AS gross, city || ':' || email AS contact FROM input"
PEERS = ["duckdb_scan", "duckdb_merge", "duckdb_full", "polars", "datafusion_full", "delta_merge"]


def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


shell, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
rows, rounds, files = int(float(option("--rows", "1e6"))), int(option("--rounds", "3")), option("--files", "1")
peers = [p for p in option("--peers", ",".join(PEERS)).split(",") if p]
data = f"{work}/data"
state = f"{work}/state"


def run(command):
    """Seconds by the wall, peak MiB of the process, and what it printed."""
    begin = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{command} failed: {err[-2000:]}")
    return time.time() - begin, out


def ours(step, root):
    source = "before" if step == "setup" else "after"
    sql = [f"CREATE OR REPLACE EXTERNAL TABLE customers STORED AS PARQUET LOCATION '{data}/{source}/'"]
    if step == "setup":
        sql.append(f"CREATE INCREMENTAL TABLE enriched FROM customers KEY (id) TRACK (name, email, amount, city) AS {HANDLER}")
    sql.append("SELECT arrow_cast(ended_at, 'Int64') - arrow_cast(requested_at, 'Int64') AS micros, bytes_written "
               "FROM incremental_refresh('enriched')")
    timed = ["/usr/bin/env", "python3", "-c",
             "import resource,subprocess,sys;r=subprocess.run(sys.argv[1:],capture_output=True,text=True);"
             "print(r.stdout,end='');print(r.stderr,end='',file=sys.stderr);"
             "print('peak',resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);sys.exit(r.returncode)",
             shell, "-q", "--format", "nd-json", "--root", root] + [part for s in sql for part in ("-c", s)]
    _, out = run(timed)
    row = json.loads([line for line in out.splitlines() if "micros" in line][-1])
    return row["micros"] / 1e6, int(re.search(r"peak (\d+)", out).group(1)) / 1024


def peer(name, step, root):
    _, out = run([sys.executable, f"{HERE}/peers.py", name, step, data, root])
    found = re.search(r"([\d.]+) s, peak (\d+) MiB", out)
    return float(found.group(1)), float(found.group(2))


def refresh(name, root):
    return ours("refresh", root) if name == "incremental" else peer(name, "refresh", root)


if not os.path.isdir(f"{data}/after"):
    extra = ["--shuffle"] if "--shuffle" in sys.argv else []
    run([sys.executable, f"{HERE}/snapshots.py", data, str(rows), files, "0.01", "0.005", "0.005", *extra])
contenders = ["incremental", *peers]
setup = {}
for name in contenders:
    shutil.rmtree(f"{state}/{name}", ignore_errors=True)
    os.makedirs(f"{state}/{name}")
    setup[name] = ours("setup", f"{state}/{name}") if name == "incremental" else peer(name, "setup", f"{state}/{name}")
    shutil.rmtree(f"{state}/{name}.kept", ignore_errors=True)
    shutil.copytree(f"{state}/{name}", f"{state}/{name}.kept")
measured = {name: [] for name in contenders}
for _ in range(rounds):
    for name in contenders:
        shutil.rmtree(f"{state}/{name}")
        shutil.copytree(f"{state}/{name}.kept", f"{state}/{name}")
        measured[name].append(refresh(name, f"{state}/{name}"))
middle = {name: tuple(statistics.median(m[i] for m in measured[name]) for i in (0, 1)) for name in contenders}
base = middle["incremental"]
print(f"{rows:,} rows, medians of {rounds} rounds on {os.cpu_count()} processors\n")
print("| refresh | seconds | against ours | peak MiB | first run, seconds |\n| --- | --- | --- | --- | --- |")
for name in contenders:
    seconds, peak = middle[name]
    print(f"| {name} | {seconds:.3f} | {seconds / base[0]:.2f} | {peak:.0f} | {setup[name][0]:.2f} |")
if "--svg" in sys.argv:
    longest = max(seconds for seconds, _ in middle.values())
    bars = []
    for i, name in enumerate(contenders):
        width = 420 * middle[name][0] / longest
        colour = "#c2410c" if name == "incremental" else "#64748b"
        bars.append(f'<text x="150" y="{31 + 26 * i}" text-anchor="end">{name}</text>'
                    f'<rect x="160" y="{18 + 26 * i}" width="{width:.1f}" height="18" fill="{colour}"/>'
                    f'<text x="{166 + width:.1f}" y="{31 + 26 * i}">{middle[name][0]:.2f} s, {middle[name][1]:.0f} MiB</text>')
    height = 40 + 26 * len(contenders)
    with open(option("--svg", ""), "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" font-family="sans-serif" font-size="13">'
                f'<rect width="760" height="{height}" fill="white"/>{"".join(bars)}</svg>\n')
