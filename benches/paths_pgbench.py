"""Does pgbench see the same throughput on each path? Transactions a second of ours over pgbench's, in blocks with random order.

    .venv/bin/python benches/paths_pgbench.py [--connections 8] [--blocks 6] [--seconds 4] [--paths socket,tcp,remote,forwarded-socket]
                                              [--rtt 0.2ms] [--rate 1Gbit] [-- MORE OPTIONS OF `howfar lab`]

Each path is a `howfar lab` with PostgreSQL, in which this program runs again: the same tables, statement (select-only, prepared) and
number of threads. Both print pgbench's report, whose `tps` leaves connecting out. Where a client shares the CPUs with the server, the
dearer one gets less; `howfar bench engine --against pgbench` has the CPU time of both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from howfar.stats.intervals import judge_ratio

HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
PATHS = ("socket", "tcp", "remote", "forwarded-socket")


def run(command: Sequence[str], seconds: float) -> float:
    """Transactions a second."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed: {done.stderr[-800:]}")
    return _number(done.stdout, r"^tps = ([\d.]+)")


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text, re.M)
    if found is None:
        sys.exit(f"no {pattern} in: {text}")
    return float(found[1])


def inside(connections: int, blocks: int, seconds: int) -> None:
    """In the laboratory, which has set libpq's variables: one line of JSON."""
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
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--rtt", default="0.2ms")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given, more = parser.parse_known_args()
    if given.inside:
        inside(given.connections, given.blocks, given.seconds)
        return
    own = [f"--connections={given.connections}", f"--blocks={given.blocks}", f"--seconds={given.seconds}", "--inside"]
    print(f"{given.connections} connections, {given.blocks} blocks of {given.seconds} s")
    print("path               tps ours / pgbench   ratio")
    for path in given.paths.split(","):
        link = ["--rtt", given.rtt, "--rate", given.rate] if path in ("remote", "forwarded-socket") else []
        lab = [
            *HOWFAR,
            "lab",
            "--server",
            "postgresql",
            "--path",
            path,
            "--tables",
            "0",
            *link,
            *(word for word in more if word != "--"),
        ]
        done = subprocess.run([*lab, "--", sys.executable, __file__, *own], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        pairs = list(zip(found["ours"], found["pgbench"], strict=True))
        ratio = judge_ratio([ours / theirs for ours, theirs in pairs]).quoted
        ends = f"[{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.low is not None and ratio.high is not None else ""
        ours, theirs = (median(found[name]) for name in ("ours", "pgbench"))
        print(f"{path:18} {ours:8.0f} / {theirs:<8.0f} {ratio.value:7.3f} {ends}", flush=True)


if __name__ == "__main__":
    main()
