"""How many instructions does a point select take in the client, ours and sysbench's? By callgrind, so a busy machine changes nothing.

    .venv/bin/python benches/instructions.py [--bound 2500]

Both run against the built-in null server, over a Unix socket, on one connection, in two lengths; the difference is what the queries
take, without startup. User space only: the kernel's part of a system call is not counted. Ours is built once more for this, with
system calls through the C library, because valgrind does not know rustix's own. `--bound`: exit code 1 when ours takes more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from howfar.contract.messages import LoadJob, NullJob, NullReady, Sysbench, UnixTarget
from howfar.engine.process import EngineProcess

ROOT = Path(__file__).parents[1]
LENGTHS = (10_000, 60_000)
"""A histogram grows when a latency is higher than any before, which takes about 300 000 instructions and happens by chance a few times
per run. Just-in-time compilation in sysbench also varies. Over this many queries neither matters."""
WORKLOAD = Sysbench(kind="oltp_point_select", tables=1, table_size=10_000)
TIMEOUT_S = 300


def build() -> Path:
    """Build our engine so that valgrind can run it, in its own target directory: these flags would rebuild all of the usual one."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "callgrind"
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg rustix_use_libc".strip()
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "howfar-engine", "--target-dir", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "RUSTFLAGS": flags})
    return target / "release" / "howfar-engine"


def count_instructions(command: list[str], stdin: str = "") -> int:
    """Instructions of a whole run."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command],
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",  # a program may print bytes that are no text
        timeout=TIMEOUT_S,
    )
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or counted is None:
        raise SystemExit(f"{command[0]} under valgrind ended with {done.returncode}: {done.stdout}{done.stderr}")
    return int(counted[1])


def ours(engine: Path, socket: str, queries: int) -> int:
    job = LoadJob(
        target=UnixTarget(path=socket),
        user="howfar",
        database="sbtest",
        workload=WORKLOAD,
        connections=1,
        driver="epoll",  # valgrind cannot run the other driver
        threads=1,
        seed=1,
        warmup_ns=0,
        measure_ns=TIMEOUT_S * 10**9,
        transactions=queries,
        connect_timeout_ns=60_000_000_000,
        interval_ns=3_600_000_000_000,
    )
    return count_instructions([str(engine), "load"], job.model_dump_json() + "\n")


def sysbench(socket: str, queries: int) -> int:
    where = [f"--mysql-socket={socket}", "--mysql-user=howfar", "--mysql-db=sbtest"]
    what = [f"--table-size={WORKLOAD.table_size}", "--threads=1", f"--events={queries}", "--time=0", "run"]
    return count_instructions(["sysbench", WORKLOAD.kind, *where, *what])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bound", type=int)
    bound = parser.parse_args().bound
    if shutil.which("valgrind") is None:
        print("instructions a query: NOT COUNTED, valgrind is not installed")
        return 0
    engine = build()
    short, long = LENGTHS
    with tempfile.TemporaryDirectory(prefix="howfar-ir-") as folder:
        socket = f"{folder}/s"
        with EngineProcess(NullJob(listen=UnixTarget(path=socket))) as server:
            assert isinstance(server.read(), NullReady)
            mine = (ours(engine, socket, long) - ours(engine, socket, short)) / (long - short)
            print(f"instructions a query, user space: ours {mine:.0f}", end="", flush=True)
            if shutil.which("sysbench") is None:
                print(" (sysbench is not installed)")
            else:
                theirs = (sysbench(socket, long) - sysbench(socket, short)) / (long - short)
                print(f", sysbench {theirs:.0f}, ratio {mine / theirs:.2f}")
    if bound is not None and mine > bound:
        print(f"more than the {bound} allowed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
