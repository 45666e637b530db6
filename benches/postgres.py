"""A PostgreSQL table into a synced table: the first load, and one per cent changed by cursor.

usage: postgres.py SHELL WORK [--rows 1e6] [--rounds 3] [--peers dlt,…|none]     (SHELL built with features cli,postgres)
  psql        `COPY table TO STDOUT` by psql into a file: what reading the rows costs at least
  psql binary the same with FORMAT binary
  ours        CREATE SYNCED TABLE, then CALL sync.reload: incremental by updated_at, key (tenant_id, id)
  dlt         the same job by dlt (sql_database, pyarrow backend, merge by key) into DuckDB
Starts a PostgreSQL of its own in WORK (Debian's packages; as root it runs as the user postgres). Seconds are whole processes,
start-up included, medians of the rounds; memory is the process's peak, of children too.
needs for dlt: dlt, duckdb, sqlalchemy, psycopg2-binary, pyarrow
"""
import glob
import os
import pwd
import resource
import shutil
import socket
import subprocess
import sys
import time

import common
from common import Arguments, Failed, execute, heading, middle, table, verdict

TABLE = """
CREATE TABLE orders (tenant_id int NOT NULL, id bigint NOT NULL, status text NOT NULL, customer text NOT NULL, amount numeric(12, 2) NOT NULL,
                     quantity int, paid boolean, note text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO orders SELECT i % 100, i, (ARRAY['open', 'paid', 'sent', 'returned'])[1 + i % 4], 'customer-' || (i * 7919) % 50000,
       (i * 37 % 1000000) / 100.0, i % 50, i % 3 = 0, CASE WHEN i % 10 = 0 THEN NULL ELSE md5(i::text) END,
       timestamptz '2024-01-01' + i * interval '13 seconds', timestamptz '2024-01-01' + i * interval '13 seconds'
FROM generate_series(1::bigint, {rows}) AS i;
ALTER TABLE orders ADD PRIMARY KEY (tenant_id, id);
CREATE INDEX ON orders (updated_at);
VACUUM ANALYZE orders;
CHECKPOINT;
"""
CHANGE = """
UPDATE orders SET status = 'changed', updated_at = (SELECT max(updated_at) FROM orders) + id % 1000 * interval '1 second' WHERE id % 100 = {which};
VACUUM ANALYZE orders;
CHECKPOINT;
"""
DEFINE = ("CREATE SYNCED TABLE orders FROM pg.public.orders WITH (sync_type = 'incremental', incremental_field = 'updated_at', "
          "primary_key_columns = ('tenant_id', 'id'))")


class Server:
    """A fresh cluster with Debian's defaults."""

    def __init__(self, work):
        self.folder = f"{work}/pg"
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        self.who = {}
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.folder, **self.who}
        subprocess.run([f"{programs}/initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"], check=True, **quiet)
        self.process = subprocess.Popen(
            [f"{programs}/postgres", "-D", f"{self.folder}/data", "-p", str(self.port), "-k", self.folder, "-c", "listen_addresses=127.0.0.1",
             "-c", "max_wal_size=8GB"], **quiet)
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        for _ in range(200):
            if subprocess.run([f"{programs}/pg_isready", "-q", "-d", self.url], check=False).returncode == 0:
                return
            time.sleep(0.05)
        sys.exit("PostgreSQL does not start")

    def sql(self, text):
        return execute(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url, "-c", text])[0].strip()

    def stop(self):
        self.process.terminate()
        self.process.wait()


def timed(command, **popen):
    """Seconds and MiB of a whole process and its children."""
    begin = time.perf_counter()
    out, err, peak = execute(command, **popen)
    return time.perf_counter() - begin, peak, out + err


def psql(server, work, form):
    seconds, peak, _ = timed(["psql", "-X", "-q", "-d", server.url, "-c", f"\\copy orders TO '{work}/copy.out' {form}"])
    return seconds, peak


def ours(arguments, server, root, statement):
    environment = {**os.environ, "PG_URL": server.url}
    seconds, peak, out = timed([arguments.shell, "-q", "--format", "csv", "--root", root, "-c", statement], env=environment)
    return seconds, peak, out


def expect(server, arguments, root):
    """The synced table has the source's rows."""
    digest = "SELECT count(*), sum(id), sum(CASE WHEN status = 'changed' THEN 1 ELSE 0 END), sum(amount) FROM orders"
    there = server.sql(digest).replace("|", ",")
    here = ours(arguments, server, root, digest)[2].strip().splitlines()[-1]
    if [float(x) for x in here.split(",")] != [float(x) for x in there.split(",")]:
        sys.exit(f"the rows differ: source {there}, here {here}")


def dlt(server, folder):
    code = f"""
import dlt
from dlt.sources.sql_database import sql_table
orders = sql_table(credentials="{server.url.replace('postgres://', 'postgresql+psycopg2://')}", table="orders", backend="pyarrow", chunk_size=100000,
                   incremental=dlt.sources.incremental("updated_at", range_start="closed"))
orders.apply_hints(primary_key=["tenant_id", "id"], write_disposition="merge")
pipeline = dlt.pipeline("bench", pipelines_dir="{folder}/state", destination=dlt.destinations.duckdb("{folder}/orders.duckdb"), dataset_name="d")
pipeline.run(orders)
"""
    environment = {**os.environ, "RUNTIME__DLTHUB_TELEMETRY": "false"}
    seconds, peak, _ = timed([sys.executable, "-c", code], env=environment)
    return seconds, max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024 if peak == 0 else peak)


def main():
    arguments = Arguments(__doc__)
    rows, rounds = arguments.number("rows", 1e6), arguments.number("rounds", 3)
    peers = [peer for peer in arguments.get("peers", "dlt").split(",") if peer != "none"]
    server = Server(arguments.work)
    try:
        server.sql("SET client_min_messages = warning;" + TABLE.split(";")[0] + ";" + TABLE.split(";")[1].format(rows=rows))
        for statement in TABLE.split(";")[2:]:
            if statement.strip():
                server.sql(statement)
        measure(arguments, server, rows, rounds, peers)
    finally:
        server.stop()


def measure(arguments, server, rows, rounds, peers):
    root, work = f"{arguments.work}/root", arguments.work
    first, change = {}, {}
    for round_number in range(rounds):
        for name, form in (("psql", ""), ("psql binary", "(FORMAT binary)")):
            first.setdefault(name, []).append(psql(server, work, form))
        shutil.rmtree(root, ignore_errors=True)
        ours(arguments, server, root, "CREATE CONNECTION pg TYPE postgres WITH (url = 'env:PG_URL')")
        ours(arguments, server, root, DEFINE)
        first.setdefault("ours", []).append(ours(arguments, server, root, "CALL sync.reload('orders')")[:2])
        expect(server, arguments, root)
        for peer in peers:
            first.setdefault(peer, []).append(globals()[peer](server, common.fresh(f"{work}/{peer}")))
        for statement in CHANGE.format(which=round_number).split(";"):
            if statement.strip():
                server.sql(statement)
        change.setdefault("ours", []).append(ours(arguments, server, root, "CALL sync.reload('orders')")[:2])
        expect(server, arguments, root)
        for peer in peers:
            change.setdefault(peer, []).append(globals()[peer](server, f"{work}/{peer}"))
    floor = middle([seconds for seconds, _ in first["psql"]])
    heading(f"PostgreSQL, {rows:,} rows", f"`python3 benches/postgres.py SHELL WORK --rows {rows:g}`; seconds are medians of {rounds} whole processes.")

    def line(name, runs, what):
        seconds, peak = middle([s for s, _ in runs]), max(p for _, p in runs)
        ratio = seconds / floor
        shown = verdict(ratio, 2.0) if name == "ours" and what == "first load" else f"{ratio:.2f}"
        return [what, name, f"{seconds:.2f}", shown, f"{peak:.0f}"]

    table(["job", "by", "seconds", "of psql's COPY", "peak MiB"],
          [line(name, runs, "first load") for name, runs in first.items()] + [line(name, runs, "1 % changed") for name, runs in change.items()])


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
