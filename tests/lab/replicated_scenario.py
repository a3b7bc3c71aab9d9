"""A program for the tests: trials with replication in one laboratory; prints each as a line of JSON.

python -m tests.lab.replicated_scenario SERVER CASE_JSON...   A case: `factors`, and optionally the workload's `kind`, the primary's
`timeout_ms`, `measure_ns`, `hang_timeout_s` (of a commit), `link_fault` (`cut` or `killed`: what happens to the replica's link as the
measured window begins).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from howfar.cli.session import instruments, open_testbed
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import Event, Measuring
from howfar.experiments.replication.fault.crash import replica_set_of
from howfar.experiments.replication.lab import replicated_group
from howfar.experiments.replication.lab.links import FOREVER_MS
from howfar.plan.factor import Level
from howfar.plan.load import load_plan
from howfar.plan.types import Plan
from howfar.runner.stopping import Slot
from howfar.runner.trial import run_trial
from howfar.store.records import Arm, ArmRole
from howfar.testbed import Testbed, TrialEnvironment
from tests.lab.scenario_programs import run_in_sandbox
from tests.lab.undisturbed import RetryBudget, run_undisturbed

RTT_NS = 20_000_000
LEVELS: dict[str, Level] = {
    "path": "socket",
    "threads": 1,
    "replica_rtt_ns": RTT_NS,
    "replica_rate_bps": 10**9,
    "durability": "off",
}


@dataclass
class RecordingTestbed:
    """A laboratory that keeps its last trial environment."""

    real: Testbed
    last: TrialEnvironment | None = None

    def server(self) -> tuple[str, str]:
        return self.real.server()

    def begin_block(self, block: int) -> None:
        self.real.begin_block(block)

    def environment(self) -> RunEnvironment:
        return self.real.environment()

    def trial_environment(self, factors: Mapping[str, Level]) -> AbstractContextManager[TrialEnvironment]:
        @contextmanager
        def keep() -> Iterator[TrialEnvironment]:
            with self.real.trial_environment(factors) as self.last:
                yield self.last

        return keep()


def make_plan(server: str) -> Plan:
    """The shipped plan `replication`, reduced."""
    plan = load_plan("replication", quick=True).plan
    levels = {"server": (server,), "replica_rtt_ns": (RTT_NS,), "threads": (1, 4)}
    return plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update=levels),
            "timing": plan.timing.model_copy(update={"warmup_ns": 300_000_000, "measure_ns": 1_000_000_000}),
        }
    )


def link_breaker(laboratory: RecordingTestbed, link_fault: str | None) -> Callable[[Event], None]:
    """A handler of events that breaks the replica's link as the measured window begins."""

    def on_event(event: Event) -> None:
        if link_fault is None or not isinstance(event, Measuring):
            return
        (link,) = replica_set_of(laboratory.last).links
        if link_fault == "cut":
            link.cut()
        else:
            emulator = link.pid()
            assert emulator is not None
            os.kill(emulator, signal.SIGKILL)

    return on_event


def _trial(number: int, plan: Plan, laboratory: RecordingTestbed, case: Mapping[str, Any], budget: RetryBudget) -> str:
    arm = Arm(name=f"case {number}", role=ArmRole.CONTENDER, factors=LEVELS | case["factors"])
    if "kind" in case:
        plan = plan.model_copy(update={"workload": plan.workload.model_copy(update={"kind": case["kind"]})})
    on_event = link_breaker(laboratory, case.get("link_fault"))
    if "measure_ns" in case:
        timing = plan.timing.model_copy(update={"measure_ns": case["measure_ns"]})
        plan = plan.model_copy(update={"timing": timing})
    with patch.multiple(
        replicated_group, FOREVER_MS=case.get("timeout_ms", FOREVER_MS), HANG_TIMEOUT_S=case.get("hang_timeout_s", 5.0)
    ):
        trial = run_undisturbed(
            lambda attempt: run_trial(
                number, Slot(0, number, attempt, arm.name), arm, plan, 1, laboratory, instruments(), on_event
            ),
            budget,
        )
    return trial.model_dump_json()


def main() -> None:
    plan = make_plan(sys.argv[1])
    with open_testbed(plan) as laboratory:
        testbed, budget = RecordingTestbed(laboratory), RetryBudget()
        for number, word in enumerate(sys.argv[2:]):
            print(_trial(number, plan, testbed, json.loads(word), budget), flush=True)


if __name__ == "__main__":
    run_in_sandbox(main)
