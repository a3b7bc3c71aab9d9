"""A program for the tests: pairs in the sandbox, one after the other over the same links; what was seen of each as a line of JSON.

python -m tests.lab.replication_scenario SERVER RTT_NS CASE_JSON...   A case: `asked`, `acts` (of `replication_acts.py`), and
what is wrong beforehand: `cut` (the link), `port_taken` (where the replica is to listen), `patience_s`.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from howfar.errors import HowfarError
from howfar.lab import sandbox
from howfar.lab.laboratory import LabRequest, open_laboratory
from howfar.lab.link import LinkAsked
from howfar.lab.replication import PairGround, ReplicationAsked, Wire, open_pair, open_wires
from howfar.lab.servers import Tables
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.program import Program
from tests.lab.replication_acts import ACTS

TABLES = Tables(1, 1000)


def _case(ground: PairGround, wires: Sequence[Wire], program: Program, case: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    asked = ReplicationAsked(**case.get("asked", {}))
    ground = replace(ground, patience_s=case.get("patience_s", ground.patience_s))
    try:
        with _spoilt(wires, case), open_pair(ground, wires, program, TABLES, asked) as pair:
            answer["facts"] = pair.facts
            for name in case.get("acts", ()):
                answer[name] = ACTS[name](pair)
    except HowfarError as error:
        answer["error"] = [type(error).__name__, error.message, error.advice]
    answer["servers_left"] = _servers()
    answer["files_left"] = sorted(path.name for path in ground.work.iterdir() if path.name == "pair")
    return answer


@contextmanager
def _spoilt(wires: Sequence[Wire], case: Mapping[str, Any]) -> Iterator[None]:
    with ExitStack() as ledger:
        if case.get("cut"):
            wires[0].cut()
            ledger.callback(wires[0].mend)
        if case.get("port_taken"):
            ledger.enter_context(wires[0].host.within(lambda: socket.create_server(("0.0.0.0", 3306))))
        yield


def _servers() -> list[str]:
    """Of this sandbox: it sees no other processes."""
    names = (_name(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [name for name in names if name in {"mariadbd", "mysqld"}]


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""


def main() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    program = find_server(sys.argv[1])
    cases = [json.loads(word) for word in sys.argv[3:]]
    count = max(ReplicationAsked(**case.get("asked", {})).replicas for case in cases)
    with open_laboratory(LabRequest(server="none", paths=())) as laboratory:
        assert laboratory.network is not None
        ground = PairGround(laboratory.work, laboratory.network, laboratory.shares, connections=16)
        with open_wires(ground, count, LinkAsked(int(sys.argv[2]), 10**9)) as wires:
            for case in cases:
                print(json.dumps(_case(ground, wires, program, case)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
