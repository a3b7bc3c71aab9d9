"""A program for the tests, run by `howfar lab --replication` on the primary's host: `howfar load`, sysbench and the command line
client in turn insert single rows over one connection; prints their commits/s as JSON.

python -m tests.lab.cluster_tools_scenario ROUNDS SECONDS"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from tests.lab.load_scenario import HOWFAR_LOAD

KIND, TABLE_SIZE, STATEMENTS = "oltp_insert", 1000, 300
_NOW = "SELECT SYSDATE(6);"
_INSERT = "INSERT INTO sbtest1 (k, c, pad) VALUES (1, REPEAT('0', 119), REPEAT('0', 59));"


def run_howfar_load(seconds: int) -> float:
    limits = ["--tables=1", f"--table-size={TABLE_SIZE}", "--threads=1", f"--time={seconds}", "--json"]
    done = subprocess.run([*HOWFAR_LOAD, KIND, *limits], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["transactions_per_second"])


def run_sysbench(seconds: int) -> float:
    socket, database, user = (os.environ[f"HOWFAR_{name}"] for name in ("SOCKET", "DATABASE", "USER"))
    password = Path(os.environ["HOWFAR_PASSWORD_FILE"]).read_text()  # of a throw-away account in its own sandbox
    login = [
        f"--mysql-socket={socket}",
        f"--mysql-user={user}",
        f"--mysql-password={password}",
        f"--mysql-db={database}",
    ]
    limits = ["--tables=1", f"--table-size={TABLE_SIZE}", "--threads=1", f"--time={seconds}", "run"]
    done = subprocess.run(["sysbench", KIND, *login, *limits], capture_output=True, text=True, check=True)
    found = re.search(r"transactions:\s+\d+\s+\(([\d.]+) per sec", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def run_client() -> float:
    """Commits/s by the server's own clock."""
    script = "\n".join([_NOW, *[_INSERT] * STATEMENTS, _NOW])
    command = ["mariadb", f"--defaults-file={os.environ['HOWFAR_CLIENT_CNF']}", "-N", os.environ["HOWFAR_DATABASE"]]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    first, last = map(datetime.fromisoformat, done.stdout.splitlines())
    return STATEMENTS / (last - first).total_seconds()


def main() -> None:
    rounds, seconds = int(sys.argv[1]), int(sys.argv[2])
    found: dict[str, list[float]] = {"howfar": [], "sysbench": [], "client": []}
    for _ in range(rounds):
        found["howfar"].append(run_howfar_load(seconds))
        found["sysbench"].append(run_sysbench(seconds))
        found["client"].append(run_client())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
