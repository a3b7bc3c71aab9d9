"""Is the CPU time of a hop right? Ours a query, as trials count it, over /proc's beside sysbench through the same hop.

    .venv/bin/python benches/hop_cpu.py [--server postgresql] [--paths haproxy,ssh,stunnel,pgbouncer] [--connections 4] [--blocks 6]
                                        [--seconds 4]

Both run the same statements as text, from the same host and CPUs, in random order within a block, on one path opened anew for each
block. sysbench's half is the difference of the processes' schedstat, children and those that have ended too, between its first report
of a second and its last one, over the queries that it reported between them.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from howfar.engine.messages import LoadJob, Session, Sysbench
from howfar.engine.process import run_load
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, LabStage, open_laboratory
from howfar.stats.intervals import judge_ratio

TABLES, SIZE, WARMUP_S = 1, 10_000, 1
_TPS = re.compile(r"^\[ (\d+)s \].*? qps: ([\d.]+)")


def own(stage: LabStage, connections: int, seconds: int) -> float:
    """CPU microseconds a query, as a trial has it."""
    job = LoadJob(
        protocol=stage.protocol,
        session=Session(fetch_server_key=True),
        target=stage.target,
        user=stage.user,
        password=stage.password,
        database=stage.database,
        workload=Sysbench(kind="oltp_point_select", tables=TABLES, table_size=SIZE, db_ps_mode="disable"),
        connections=connections,
        seed=1,
        warmup_ns=WARMUP_S * 10**9,
        measure_ns=seconds * 10**9,
        observe=stage.observe,
    )
    done = run_load(job, stage.client).finished
    return sum(one.cpu_ns for one in done.cpu if one.role == "forwarder") / 1e3 / done.transactions


def beside_sysbench(stage: LabStage, connections: int, seconds: int) -> float:
    """The same by /proc, of sysbench's queries."""
    endpoint, driver = stage.main.endpoint, "pgsql" if stage.protocol == "postgresql" else "mysql"
    if endpoint.socket:
        where = (
            [f"--{driver}-socket={endpoint.socket}"]
            if driver == "mysql"
            else [f"--pgsql-host={Path(endpoint.socket).parent}"]
        )
    else:
        where = [f"--{driver}-host={endpoint.host}", f"--{driver}-port={endpoint.port}"]
    account = [
        f"--{driver}-user={stage.user}",
        f"--{driver}-password={stage.password}",
        f"--{driver}-db={stage.database}",
    ]
    sysbench = stage.client.popen(
        ["sysbench", "oltp_point_select", f"--db-driver={driver}", *where, *account, "--db-ps-mode=disable",
         f"--tables={TABLES}", f"--table-size={SIZE}", f"--threads={connections}", f"--time={WARMUP_S + seconds + 1}",
         "--report-interval=1", "run"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    pids = [hop.process.pid for hop in endpoint.hops]
    began_us = ended_us = queries = 0.0
    said = []
    for line in sysbench.stdout:
        said.append(line)
        if (found := _TPS.match(line)) is None:
            continue
        if int(found[1]) == WARMUP_S:
            began_us = sum(map(cpu_us, pids))
        elif int(found[1]) <= WARMUP_S + seconds:
            ended_us = sum(map(cpu_us, pids))
            queries += float(found[2])
    if sysbench.wait() != 0 or not queries:
        sys.exit("sysbench failed: " + "".join(said)[-800:])
    return (ended_us - began_us) / queries


def cpu_us(pid: int) -> float:
    """Of a process, its descendants, and those of them that have ended."""
    total_ns = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
        total_ns += sum(1e3 * cpu_us(int(child)) for child in (task / "children").read_text().split())
    ended = (Path(f"/proc/{pid}/stat").read_text()).rpartition(")")[2].split()[13:15]
    return total_ns / 1e3 + sum(map(int, ended)) * 1e4


def compare(laboratory: Lab, path: str, given: argparse.Namespace) -> None:
    found, order = defaultdict(list), random.Random(1)
    for _ in range(given.blocks):
        factors = {"path": path, "threads": given.connections, "placement": "isolated", "idle": "polling"}
        with laboratory.stage(factors) as stage:
            for measure in order.sample((own, beside_sysbench), 2):
                found[measure].append(measure(stage, given.connections, given.seconds))
    ratio = judge_ratio([ours / theirs for ours, theirs in zip(found[own], found[beside_sysbench], strict=True)]).quoted
    ends = f"[{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.low is not None and ratio.high is not None else ""
    print(
        f"{path:18} {median(found[own]):8.1f} / {median(found[beside_sysbench]):<8.1f} {ratio.value:7.3f} {ends}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", default="postgresql")
    parser.add_argument("--paths", default="haproxy,ssh-tcp,stunnel,pgbouncer")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=4)
    given = parser.parse_args()
    if not sandbox.inside():
        sys.exit(sandbox.run_inside())
    paths = tuple(given.paths.split(","))
    request = LabRequest(
        server=given.server, tables=TABLES, table_size=SIZE, connections=64, paths=paths, with_goodput=False
    )
    print(f"{given.server}, {given.connections} connections, {given.blocks} blocks of {given.seconds} s")
    print("path               hop CPU a query, us: ours / beside sysbench   ratio")
    with open_laboratory(request) as laboratory:
        for path in paths:
            compare(laboratory, path, given)


if __name__ == "__main__":
    main()
