"""A program for the tests: replica sets in the sandbox, one after the other over the same links; prints a line of JSON for each.

python -m tests.lab.replication_scenario SERVER RTT_NS CASE_JSON...   A case: `settings`, `fault` (before the start, of
`replication_setup_faults.py`), `distances` (a level of that factor, if the links differ), `actions` (of `replication_actions.py`),
`timeout_s`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from howfar.errors import HowfarError
from howfar.experiments.replication.distances import rtts_ns
from howfar.experiments.replication.lab import (
    ReplicaSetContext,
    ReplicationSpec,
    open_replica_set,
    open_replication_links,
)
from howfar.experiments.replication.lab.links import EmulatedReplicationLink
from howfar.lab.laboratory import LabRequest, open_laboratory
from howfar.lab.link import LinkSpec
from howfar.lab.servers import Tables
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.program import Program
from tests.lab.replication_actions import ACTIONS
from tests.lab.replication_setup_faults import FAULTS
from tests.lab.scenario_programs import run_in_sandbox

TABLES = Tables(1, 1000)


def _run_case(
    context: ReplicaSetContext, links: Sequence[EmulatedReplicationLink], program: Program, case: Mapping[str, Any]
) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    spec = ReplicationSpec(**case.get("settings", {}))
    context = replace(context, timeout_s=case.get("timeout_s", context.timeout_s))
    if "distances" in case:
        rtts = rtts_ns(case["distances"], spec.replicas + 1)
        for link in links:
            link.shape(LinkSpec(rtts[link.nodes], 10**9))
    began = time.monotonic()
    try:
        with _fault(links, case), open_replica_set(context, links, program, TABLES, spec) as replica_set:
            answer["facts"], answer["ready_s"] = replica_set.facts.as_json(), time.monotonic() - began
            for name in case.get("actions", ()):
                answer[name] = ACTIONS[name](replica_set)
    except HowfarError as error:
        answer["error"] = [type(error).__name__, error.message, error.advice]
    answer["servers_left"] = _servers()
    answer["files_left"] = sorted(path.name for path in context.work.iterdir() if path.name == "pair")
    return answer


def _fault(links: Sequence[EmulatedReplicationLink], case: Mapping[str, Any]) -> AbstractContextManager[Any]:
    fault = case.get("fault")
    return FAULTS[fault](links) if fault else nullcontext()


def _servers() -> list[str]:
    """The names of this sandbox's running servers."""
    names = (_name(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [name for name in names if name in {"mariadbd", "mysqld", "postgres"}]


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""


def run_cases(run_case: Callable[..., dict[str, Any]], connections: int) -> None:
    """Run the program's cases one after the other over the same links; print each one's result as a line of JSON."""
    program = find_server(sys.argv[1])
    cases = [json.loads(word) for word in sys.argv[3:]]
    specs = [ReplicationSpec(**case.get("settings", {})) for case in cases]
    count, mesh = max(spec.replicas for spec in specs), any(spec.cluster for spec in specs)
    with open_laboratory(LabRequest(server="none", paths=())) as laboratory:
        assert laboratory.network is not None
        context = ReplicaSetContext(laboratory.work, laboratory.network, laboratory.shares, connections=connections)
        with open_replication_links(context, count, LinkSpec(int(sys.argv[2]), 10**9), mesh=mesh) as links:
            for case in cases:
                print(json.dumps(run_case(context, links, program, case)), flush=True)


if __name__ == "__main__":
    run_in_sandbox(lambda: run_cases(_run_case, connections=16))
