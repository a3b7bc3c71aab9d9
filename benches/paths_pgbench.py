"""Does pgbench see the same throughput on each path? Our transactions per second over pgbench's, in blocks with random order.

    .venv/bin/python benches/paths_pgbench.py [--connections 8] [--blocks 6] [--seconds 6] [--paths socket,tcp,remote,forwarded-socket]
                                              [--rtt 0.2ms] [--rate 1Gbit] [-- MORE OPTIONS OF `howfar lab`]

Each path is a `howfar lab` with PostgreSQL, in which this program runs again: the same tables, statement (select-only, prepared) and
number of threads. Both print pgbench's report, whose `tps` leaves connecting out. Where a client shares the CPUs with the server, the
more expensive client achieves less. So the machine's CPU time per transaction is compared, too: where all CPUs are busy, the ratio of
tps is the inverse of the ratio of CPU times, which is printed as `by CPU`. Nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from howfar.stats.intervals import judge_ratio

HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
START_S = 2.0
"""Seconds at the start of a run, in which Python and the connections start, that its CPU time excludes."""
PATHS = ("socket", "tcp", "remote", "forwarded-socket")


def run(command: Sequence[str], seconds: float) -> tuple[float, float, float]:
    """Transactions per second, the machine's CPU microseconds per transaction, and the busy share of its CPUs."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(START_S)
    before = _cpus()
    time.sleep(seconds - START_S)
    busy, idle = (now - then for now, then in zip(_cpus(), before, strict=True))
    output, errors = process.communicate(timeout=120)
    if process.returncode != 0:
        sys.exit(f"{command[0]} failed: {errors[-800:]}")
    tps = _number(output, r"^tps = ([\d.]+)")
    return tps, busy * 1e6 / os.sysconf("SC_CLK_TCK") / (tps * (seconds - START_S)), busy / (busy + idle)


def _cpus() -> tuple[int, int]:
    """Ticks in which the machine's CPUs were busy, and in which they were idle; stolen ticks are neither."""
    user, nice, system, idle, waiting, irq, soft = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return user + nice + system + irq + soft, idle + waiting


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text, re.M)
    if found is None:
        sys.exit(f"no {pattern} in: {text}")
    return float(found[1])


def inside(connections: int, blocks: int, seconds: int) -> None:
    """Measure within the laboratory, which has set libpq's variables; prints one line of JSON."""
    subprocess.run(["pgbench", "--initialize", "--quiet", "--scale=1"], check=True, capture_output=True)
    threads = min(connections, len(os.sched_getaffinity(0)))
    commands = {
        "pgbench": ["pgbench", "-n", "-S", "-M", "prepared", f"-c{connections}", f"-j{threads}", f"-T{seconds}"],
        "ours": [
            *HOWFAR, "load", "postgresql://", "select-only", "--report=pgbench", f"--threads={connections}", f"--time={seconds}",
        ],
    }  # fmt: skip
    order, found = random.Random(1), defaultdict(list)
    for _ in range(blocks):
        for name in order.sample(sorted(commands), len(commands)):
            found[name].append(run(commands[name], seconds))
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--rtt", default="0.2ms")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options, more = parser.parse_known_args()
    if options.inside:
        inside(options.connections, options.blocks, options.seconds)
        return
    own = [
        f"--connections={options.connections}",
        f"--blocks={options.blocks}",
        f"--seconds={options.seconds}",
        "--inside",
    ]
    print(f"{options.connections} connections, {options.blocks} blocks of {options.seconds} s")
    print("path               tps: ours / pgbench, ratio            by CPU                 CPUs busy")
    for path in options.paths.split(","):
        link = ["--rtt", options.rtt, "--rate", options.rate] if path in ("remote", "forwarded-socket") else []
        more_options = [word for word in more if word != "--"]
        lab = [*HOWFAR, "lab", "--server", "postgresql", "--path", path, "--tables", "0", *link, *more_options]
        done = subprocess.run([*lab, "--", sys.executable, __file__, *own], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        pairs = list(zip(found["ours"], found["pgbench"], strict=True))
        measured = ratio([ours[0] / theirs[0] for ours, theirs in pairs])
        by_cpu = ratio([theirs[1] / ours[1] for ours, theirs in pairs])
        (tps, _, busy), (their_tps, _, they_busy) = (
            map(median, zip(*found[name], strict=True)) for name in ("ours", "pgbench")
        )
        print(
            f"{path:18}{tps:7.0f} / {their_tps:<6.0f} {measured}   {by_cpu}   {busy:4.0%} / {they_busy:.0%}", flush=True
        )


def ratio(ratios: Sequence[float]) -> str:
    reported = judge_ratio(ratios).reported
    ends = (
        f" [{reported.low:.3f}, {reported.high:.3f}]" if reported.low is not None and reported.high is not None else ""
    )
    return f"{reported.value:.3f}{ends}"


if __name__ == "__main__":
    main()
