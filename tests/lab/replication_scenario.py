"""A program for the tests: open a pair in the sandbox, do what is asked with it, print what was seen as JSON.

python -m tests.lab.replication_scenario SERVER ASKED_JSON RTT_NS ACT...   Acts are the functions of this file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from howfar.errors import HowfarError
from howfar.lab import sandbox
from howfar.lab.laboratory import LabRequest, open_laboratory
from howfar.lab.link import LinkAsked
from howfar.lab.replication import Pair, PairGround, ReplicationAsked, open_pair
from howfar.lab.servers import Tables
from howfar.lab.servers.kinds import find_server

TABLES = Tables(1, 1000)
INSERTS = 15
Answer = dict[str, Any]


def commits(pair: Pair) -> Answer:
    """Single-row inserts of one connection over the primary's socket: each one's time, and what the proof says of them."""
    pair.primary.write(
        "CREATE TABLE sbtest.d (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, text VARCHAR(8)) ENGINE = InnoDB",
        patience_s=pair.patience_s,
    )
    before, times = pair.snapshot(), []
    connection = pair.primary.server.session(pair.patience_s)
    with connection, connection.cursor() as cursor:
        for _ in range(INSERTS):
            began = time.monotonic_ns()
            cursor.execute("INSERT INTO d (text) VALUES ('howfar')")
            times.append(time.monotonic_ns() - began)
    after = pair.snapshot()
    return {
        "p50_ns": sorted(times)[INSERTS // 2],
        "rtt_ns": [link.ping().p50_ns for link in pair.links],
        "before": asdict(before),
        "after": asdict(after),
    }


ACTS: dict[str, Callable[[Pair], Answer]] = {act.__name__: act for act in (commits,)}


def main() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    program = find_server(sys.argv[1])
    asked = ReplicationAsked(**json.loads(sys.argv[2]))
    answer: Answer = {}
    with ExitStack() as ledger:
        lab = ledger.enter_context(open_laboratory(LabRequest(server="none", paths=())))
        assert lab.network is not None
        ground = PairGround(lab.work, lab.network, lab.shares, connections=16)
        try:
            with open_pair(ground, program, TABLES, asked, LinkAsked(int(sys.argv[3]), 10**9)) as pair:
                answer["facts"] = pair.facts
                for name in sys.argv[4:]:
                    answer[name] = ACTS[name](pair)
        except HowfarError as error:
            answer["error"] = [type(error).__name__, error.message, error.advice]
        answer["left"] = [name for name in os.listdir("/proc") if name.isdigit() and _is_server(name)]
    print(json.dumps(answer))
    return 0


def _is_server(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip() in {"mariadbd", "mysqld"}
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
