"""A program for the tests, run by `howfar lab` on the client's host: runs `howfar load` and sysbench; prints their results as JSON.

python -m tests.lab.load_scenario FOLDER KIND...   KIND: another workload of sysbench
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from howfar.contract.messages import SYSBENCH_KINDS
from tests.lab.howfar_runs import PYTHON_HOWFAR

HOWFAR_LOAD = [*PYTHON_HOWFAR, "load"]
EVENTS = 200
TABLES = ["--tables=2", "--table-size=1000", "--threads=2"]
OTHER_KINDS = tuple(kind for kind in SYSBENCH_KINDS if kind not in ("oltp_read_only", "bulk_insert"))
COUNTED = [*TABLES, f"--events={EVENTS}", "--time=120"]


def counted(kind: str) -> list[str]:
    """Options of a load of EVENTS events."""
    return [*(["--tables=1", *COUNTED[1:]] if kind.startswith("select_random") else COUNTED), "run"]


def run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def interrupted(command: list[str]) -> dict[str, Any]:
    """Run a command and send SIGINT to its process group, like a terminal, once it has printed two lines."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    try:
        os.killpg(process.pid, 0)
        left = True
    except ProcessLookupError:
        left = False
    return {"code": process.returncode, "out": out, "err": err, "left": left}


def scenario(folder: Path, kinds: Sequence[str]) -> dict[str, Any]:
    socket, database, user = (os.environ[f"HOWFAR_{name}"] for name in ("SOCKET", "DATABASE", "USER"))
    secret = Path(os.environ["HOWFAR_PASSWORD_FILE"])
    server = [f"--mysql-socket={socket}", f"--mysql-user={user}", f"--mysql-db={database}"]
    dsn = f"mysql://{socket}?user={user}&db={database}"
    by_file = f"--password-file={secret}"
    kind = "oltp_read_only"
    runs = {
        "as_sysbench": run([*HOWFAR_LOAD, kind, *server, by_file, *COUNTED, "--report=sysbench", "run"]),
        "json": run([*HOWFAR_LOAD, dsn, kind, by_file, *TABLES, "--time=2", "--interval=200ms", "--json"]),
        "files": run([*HOWFAR_LOAD, kind, *TABLES, "--time=1", f"--prometheus={folder}/x.prom", f"--hdr-log={folder}/x.hlog"]),
        "options_file": run([*HOWFAR_LOAD, f"--defaults-file={os.environ['HOWFAR_CLIENT_CNF']}", f"--mysql-db={database}", kind,
                             *TABLES, "--time=1"]),
        "wrong_password": run([*HOWFAR_LOAD, dsn, kind, *TABLES]),
        "interrupted": interrupted([*HOWFAR_LOAD, kind, *TABLES, "--time=60", "--report-interval=1", "--interval=100ms"]),
    }  # fmt: skip
    for other in kinds:
        runs[other] = run([*HOWFAR_LOAD, other, *server, by_file, "--report=sysbench", *counted(other)])
    runs["prepare"] = run([*HOWFAR_LOAD, "--workload=orders", "prepare"])
    runs["orders"] = run([*HOWFAR_LOAD, "--workload=orders", *COUNTED[2:]])
    runs["orders at a rate"] = run([*HOWFAR_LOAD, "--workload=orders", "--threads=2", "--time=1", "--rate=200"])
    runs["cleanup"] = run([*HOWFAR_LOAD, "--workload=orders", "cleanup"])
    search = ["--search=p50<1s", "--search-low=50", "--search-high=100", "--time=1"]
    runs["search"] = run([*HOWFAR_LOAD, "oltp_point_select", *TABLES, *search, "--json"])
    if shutil.which("sysbench"):
        password = secret.read_text().strip()  # of a throw-away account in its own sandbox
        sysbench = [*server, f"--mysql-password={password}"]
        runs["sysbench"] = run(["sysbench", kind, *sysbench, *counted(kind)])
        for other in kinds:
            runs[f"sysbench {other}"] = run(["sysbench", other, *sysbench, *counted(other)])
    return {
        "runs": runs,
        "password": secret.read_text().strip(),
        "files": {p.name: p.read_text() for p in folder.iterdir()},
    }


if __name__ == "__main__":
    print(json.dumps(scenario(Path(sys.argv[1]), sys.argv[2:])))
