"""Is the CPU time of a hop right? Time per query as trials count it, relative to an independent reading of /proc.

    .venv/bin/python benches/hop_cpu.py [--server postgresql] [--paths haproxy,ssh-tcp,stunnel,pgbouncer] [--connections 4]
                                        [--blocks 6] [--seconds 4]

The independent readings are utime and stime of the hop's processes in /proc, which the engine does not read. During our own load, over
its measured window: is the counting right? During sysbench's load through the same hop, between its reports: does sysbench cost the
hop the same? Both send the same statements as text, from the same host and CPUs, in random order within a block, on one path opened
anew for each block. A hop that finds several requests at once sleeps less often and spends less on each: `sleeps` are
its voluntary context switches per query. With one connection there is never more than one request.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from howfar.contract.messages import Event, Finished, LoadJob, Measuring, Session, Sysbench
from howfar.engine.run_load import run_load
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, LabTrialEnvironment, open_laboratory
from howfar.paths import ClientEndpoint
from howfar.stats.intervals import judge_ratio

TABLES, SIZE, WARMUP_S = 1, 10_000, 1
_TPS = re.compile(r"^\[ (\d+)s \].*? qps: ([\d.]+)")


@dataclass(frozen=True)
class Reading:
    """CPU time and sleeps of the hop's processes since they started."""

    cpu_us: float
    sleeps: int

    def per_query(self, since: Reading, queries: float) -> tuple[float, float]:
        """CPU microseconds and sleeps per query since an earlier reading."""
        return (self.cpu_us - since.cpu_us) / queries, (self.sleeps - since.sleeps) / queries


def reading(endpoint: ClientEndpoint) -> Reading:
    pids = [hop.process.pid for hop in endpoint.hops]
    return Reading(sum(map(cpu_us, pids)), sum(map(sleeps, pids)))


def measure_engine(environment: LabTrialEnvironment, connections: int, seconds: int) -> dict[str, float]:
    """Microseconds per query of our load, as a trial counts them and by /proc."""
    job = LoadJob(
        protocol=environment.protocol,
        session=Session(fetch_server_key=True),
        target=environment.target,
        user=environment.user,
        password=environment.password,
        database=environment.database,
        workload=Sysbench(kind="oltp_point_select", tables=TABLES, table_size=SIZE, db_ps_mode="disable"),
        connections=connections,
        seed=1,
        warmup_ns=WARMUP_S * 10**9,
        measure_ns=seconds * 10**9,
        observe=environment.observe,
    )
    readings: list[Reading] = []

    def on_event(event: Event) -> None:
        if isinstance(event, (Measuring, Finished)):
            readings.append(reading(environment.main.endpoint))

    done = run_load(job, environment.client, on_event).finished
    began, ended = readings
    by_proc, slept = ended.per_query(began, done.transactions)
    ours_ns = sum(one.cpu_ns for one in done.cpu if one.role == "forwarder")
    return {"ours": ours_ns / 1e3 / done.transactions, "ours by /proc": by_proc, "our sleeps": slept}


def measure_sysbench(environment: LabTrialEnvironment, connections: int, seconds: int) -> dict[str, float]:
    """Microseconds per query of sysbench's load, by /proc."""
    endpoint, driver = environment.main.endpoint, "pgsql" if environment.protocol == "postgresql" else "mysql"
    if endpoint.socket:
        address = endpoint.socket if driver == "mysql" else str(Path(endpoint.socket).parent)
        where = [f"--{driver}-{'socket' if driver == 'mysql' else 'host'}={address}"]
    else:
        where = [f"--{driver}-host={endpoint.host}", f"--{driver}-port={endpoint.port}"]
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as secret:  # mode 0600
        secret.write(f"{driver}-password={environment.password}\n")
        secret.flush()
        sysbench = environment.client.popen(
            ["sysbench", f"--config-file={secret.name}", "oltp_point_select", f"--db-driver={driver}", *where,
             f"--{driver}-user={environment.user}", f"--{driver}-db={environment.database}", "--db-ps-mode=disable",
             f"--tables={TABLES}", f"--table-size={SIZE}", f"--threads={connections}", f"--time={WARMUP_S + seconds + 1}",
             "--report-interval=1", "run"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        began = ended = None
        queries, output = 0.0, []
        for line in sysbench.stdout:
            output.append(line)
            if (found := _TPS.match(line)) is None:
                continue
            if int(found[1]) == WARMUP_S:
                began = reading(endpoint)
            elif int(found[1]) <= WARMUP_S + seconds:
                ended = reading(endpoint)
                queries += float(found[2])
        if sysbench.wait() != 0 or began is None or ended is None or not queries:
            sys.exit("sysbench failed: " + "".join(output)[-800:])
    us, slept = ended.per_query(began, queries)
    return {"sysbench": us, "its sleeps": slept}


def cpu_us(pid: int) -> float:
    """CPU time of a process with its past threads and of its descendants, also of ended ones; in steps of a clock tick."""
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    children = (
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    )
    return ticks * 1e6 / os.sysconf("SC_CLK_TCK") + sum(cpu_us(int(child)) for child in children)


def sleeps(pid: int) -> int:
    """Voluntary context switches of a process and its descendants."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[0])
        total += sum(sleeps(int(child)) for child in (task / "children").read_text().split())
    return total


def compare(laboratory: Lab, path: str, options: argparse.Namespace) -> None:
    found, order = defaultdict(list), random.Random(1)
    for _ in range(options.blocks):
        factors = {"path": path, "threads": options.connections, "placement": "isolated", "idle": "polling"}
        with laboratory.trial_environment(factors) as environment:
            for measure in order.sample((measure_engine, measure_sysbench), 2):
                for name, figure in measure(environment, options.connections, options.seconds).items():
                    found[name].append(figure)
    counted, loads = (ratio(found["ours"], found[name]) for name in ("ours by /proc", "sysbench"))
    middle = {name: median(figures) for name, figures in found.items()}
    print(
        f"{path:18}{middle['ours']:7.1f} {middle['sysbench']:9.1f}   {counted}   {loads}   "
        f"{middle['our sleeps']:5.2f} {middle['its sleeps']:9.2f}",
        flush=True,
    )


def ratio(ours: list[float], theirs: list[float]) -> str:
    reported = judge_ratio([one / other for one, other in zip(ours, theirs, strict=True)]).reported
    if reported.low is None or reported.high is None:
        return f"{reported.value:.3f}" + " " * 15
    return f"{reported.value:.3f} [{reported.low:.3f}, {reported.high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", default="postgresql")
    parser.add_argument("--paths", default="haproxy,ssh-tcp,stunnel,pgbouncer")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=4)
    options = parser.parse_args()
    if not sandbox.inside():
        sys.exit(sandbox.run_inside())
    paths = tuple(options.paths.split(","))
    request = LabRequest(
        server=options.server, tables=TABLES, table_size=SIZE, connections=64, paths=paths, with_goodput=False
    )
    print(f"{options.server}, {options.connections} connections, {options.blocks} blocks of {options.seconds} s")
    print("                   us per query      ours over /proc        ours over /proc        sleeps per query")
    print("path               ours  sysbench   beside our load        beside sysbench         ours  sysbench")
    with open_laboratory(request) as laboratory:
        for path in paths:
            compare(laboratory, path, options)


if __name__ == "__main__":
    main()
