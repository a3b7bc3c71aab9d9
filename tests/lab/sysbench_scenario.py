"""A program for the tests: sysbench and our engine in turn on the same environments, in blocks; prints both results as JSON.

python -m tests.lab.sysbench_scenario BLOCKS SECONDS
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from typing import Any

from howfar.contract.messages import Distribution, LoadJob, Sysbench, UnixTarget
from howfar.engine.run_load import run_load
from howfar.lab.laboratory import Lab, LabRequest, LabTrialEnvironment, open_laboratory
from tests.lab.howfar_runs import PATHS
from tests.lab.scenario_programs import make_load_job, run_in_sandbox

THREADS = 2
WORKLOAD = Sysbench(
    tables=2, table_size=20_000, point_selects=25, range_size=5, skip_trx=True, distribution=Distribution(kind="pareto")
)


def sysbench_command(environment: LabTrialEnvironment, *limits: str) -> list[str]:
    target = environment.target
    address = (
        [f"--mysql-socket={target.path}"]
        if isinstance(target, UnixTarget)
        else [f"--mysql-host={target.host}", f"--mysql-port={target.port}"]
    )
    return [
        "sysbench",
        "oltp_read_only",
        *address,
        f"--mysql-user={environment.user}",
        f"--mysql-password={environment.password}",  # of a throw-away account in its own sandbox
        f"--mysql-db={environment.database}",
        f"--threads={THREADS}",
        f"--tables={WORKLOAD.tables}",
        f"--table-size={WORKLOAD.table_size}",
        f"--point-selects={WORKLOAD.point_selects}",
        f"--range-size={WORKLOAD.range_size}",
        "--skip-trx=on",
        "--rand-type=pareto",
        *limits,
        "run",
    ]


def run_sysbench(environment: LabTrialEnvironment, *limits: str) -> dict[str, float]:
    """Transactions, queries, queries per second, and the server's own byte and statement counters over the run."""
    before = environment.server_group.running.snapshot()
    done = environment.client.popen(
        sysbench_command(environment, *limits), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = done.communicate(timeout=400)
    assert done.returncode == 0, output
    after = environment.server_group.running.snapshot()
    numbers = {name: float(_find(output, pattern)) for name, pattern in _PATTERNS.items()}
    return {**numbers, **{name: float(after[name] - before[name]) for name in after}}


_PATTERNS = {
    "transactions": r"transactions:\s+(\d+)",
    "queries": r"queries:\s+(\d+)",
    "qps": r"queries:\s+\d+\s+\(([\d.]+) per sec",
}


def _find(output: str, pattern: str) -> str:
    match = re.search(pattern, output)
    assert match is not None, output
    return match.group(1)


def engine_job(environment: LabTrialEnvironment, seconds: float, **more: int) -> LoadJob:
    """The same work for our engine."""
    return make_load_job(environment, WORKLOAD, connections=THREADS, measure_ns=int(seconds * 1e9), **more)


def run_engine(environment: LabTrialEnvironment, job: LoadJob) -> dict[str, float]:
    before = environment.server_group.running.snapshot()
    outcome = run_load(job, environment.client)
    after = environment.server_group.running.snapshot()
    finished = outcome.finished
    return {
        "transactions": float(finished.transactions),
        "all_transactions": float(finished.transactions + outcome.measuring.warmup_transactions),
        "queries": float(finished.queries),
        "qps": finished.queries * 1e9 / finished.elapsed_ns,
        "bytes_to_server": float(finished.bytes.to_server),
        "bytes_to_client": float(finished.bytes.to_client),
        **{name: float(after[name] - before[name]) for name in after},
    }


def same_work(laboratory: Lab) -> dict[str, Any]:
    """Exact counts over the socket: two sysbench runs of different length, whose difference has no connecting; and one run of our
    engine, in which connecting is a quarter of a percent."""
    with laboratory.trial_environment({"path": "socket"}) as environment:
        short = run_sysbench(environment, "--events=200", "--time=0")
        long = run_sysbench(environment, "--events=1200", "--time=0")
        return {
            "short": short,
            "long": long,
            "engine": run_engine(environment, engine_job(environment, 120.0, transactions=1200)),
        }


def in_blocks(laboratory: Lab, blocks: int, seconds: float) -> list[dict[str, Any]]:
    """Measure each path once per block, in random order; on each environment both tools, also in random order."""
    rng = random.Random(20)
    trials = []
    for block in range(blocks):
        for path in rng.sample(PATHS, len(PATHS)):
            with laboratory.trial_environment({"path": path}) as environment:
                tools = ["sysbench", "engine"]
                rng.shuffle(tools)
                for tool in tools:
                    if tool == "sysbench":
                        result = run_sysbench(environment, f"--time={seconds:.0f}")
                    else:
                        job = engine_job(environment, seconds, seed=block, warmup_ns=200_000_000)
                        result = run_engine(environment, job)
                    trials.append({"block": block, "path": path, "tool": tool, "qps": result["qps"]})
    return trials


def main() -> None:
    blocks, seconds = int(sys.argv[1]), float(sys.argv[2])
    start = time.monotonic()
    with open_laboratory(LabRequest(tables=WORKLOAD.tables, table_size=WORKLOAD.table_size)) as laboratory:
        answer = {"same_work": same_work(laboratory), "trials": in_blocks(laboratory, blocks, seconds)}
    print(json.dumps({**answer, "seconds": time.monotonic() - start}))


if __name__ == "__main__":
    run_in_sandbox(main)
