"""What a query costs the client: our engine beside sysbench, same server, same statements, in blocks, one meter for both.

    .venv/bin/python benches/engine.py [--blocks 8] [--connections 1,2,64] [--path socket]

Prints client CPU (user + system, of the whole process as its parent is told) a query, and the ratio with its interval. Wall clock
is printed too, but on a shared machine only the CPU can be trusted. Needs sysbench, and root or user namespaces.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from howfar.analysis.intervals import judge_ratio, mean_interval
from howfar.engine.process import run_load
from howfar.lab import sandbox
from howfar.lab.laboratory import LabRequest, LabStage, open_laboratory

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.lab.sysbench_scenario import WORKLOAD, engine_job, run_sysbench

SECONDS = 3


def cpu_of(work: Callable[[], float]) -> tuple[float, float]:
    """CPU microseconds a query of the children that `work` waits for, and its queries a second. `work` returns queries."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    queries = work()
    return (spent() - before) * 1e6 / queries, queries / SECONDS


def ours(stage: LabStage, connections: int, seed: int) -> float:
    job = engine_job(stage, SECONDS, seed, connections=connections, warmup_s=0)
    return float(run_load(job, stage.client).finished.queries)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--connections", default="1,2,64")
    parser.add_argument("--path", default="socket")
    asked = parser.parse_args()
    if not sandbox.inside():
        return sandbox.run_inside()
    print(f"path {asked.path}, {asked.blocks} blocks of {SECONDS} s, client CPU µs a query (whole process)")
    print(f"{'connections':>11} {'ours':>7} {'sysbench':>9} {'ratio':>22} {'queries/s ratio':>22}")
    with open_laboratory(
        LabRequest(tables=WORKLOAD.tables, table_size=WORKLOAD.table_size, paths=(asked.path,))
    ) as lab:
        for connections in (int(number) for number in asked.connections.split(",")):
            rows = []
            for block in range(asked.blocks):
                with lab.stage({"path": asked.path}) as stage:
                    limit = (f"--time={SECONDS}", f"--threads={connections}")
                    turns = [
                        lambda stage=stage, n=connections, b=block: cpu_of(lambda: ours(stage, n, b)),
                        lambda stage=stage, limit=limit: cpu_of(lambda: run_sysbench(stage, *limit)["queries"]),
                    ]
                    order = (0, 1) if block % 2 else (1, 0)
                    seen = {which: turns[which]() for which in order}
                    rows.append((seen[0], seen[1]))
            print_row(connections, rows)
    return 0


def print_row(connections: int, rows: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    cpu = judge_ratio([a[0] / b[0] for a, b in rows]).quoted
    qps = judge_ratio([a[1] / b[1] for a, b in rows]).quoted
    mine, theirs = mean_interval([a[0] for a, _ in rows]).value, mean_interval([b[0] for _, b in rows]).value
    cells = [f"{e.value:.2f} [{e.low or 0:.2f}, {e.high or 0:.2f}]" for e in (cpu, qps)]
    print(f"{connections:>11} {mine:>7.2f} {theirs:>9.2f} {cells[0]:>22} {cells[1]:>22}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
