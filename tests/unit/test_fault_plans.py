"""Plans with faults: their cells, when a run has enough trials, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.made import build, build_trial
from tests.unit.fake_lab import fake_info, finish, receipt

from howfar.contract.messages import Measuring, Ready
from howfar.engine.run_load import LoadOutcome
from howfar.errors import PlanError
from howfar.experiments.replication.fault.fallback import ABSENCE_AFTER_TIMEOUT_NS, LEAVE_AFTER_NS, MIN_RECOVERY_NS
from howfar.experiments.replication.lab.binary_log import MysqlReplication
from howfar.experiments.replication.lab.replicated_group import DEFAULT_ACK_TIMEOUT_MS
from howfar.experiments.replication.plan import FALLBACK_NS
from howfar.plan.cells import cells
from howfar.plan.fitting import with_replacements
from howfar.plan.load import load_plan
from howfar.runner.loads.load import make_measured
from howfar.runner.stopping import run_progress, why_stop
from howfar.store.records import Run, StopReason


@pytest.mark.parametrize(("quick", "faults"), [(True, 2), (False, 5)])
def test_each_mode_meets_each_fault(quick: bool, faults: int) -> None:
    found = cells(load_plan("crash", quick=quick).plan)
    assert len({(cell.factors["replication"], cell.factors["fault"]) for cell in found}) == len(found) == 3 * faults
    assert [cell.role for cell in found] == ["baseline", *["contender"] * (3 * faults - 1)], "no A/A arm"


def test_each_cluster_meets_each_fault() -> None:
    plan = load_plan("cluster-crash").plan
    theirs = with_replacements(plan, "replication", MysqlReplication.replacements).plan
    for found, modes in ((cells(plan), 1), (cells(theirs), 2)):
        assert len({(cell.factors["replication"], cell.factors["fault"]) for cell in found}) == len(found) == 5 * modes


@pytest.mark.parametrize("name", ["crash", "fallback"])
def test_a_run_that_breaks_things_ends_by_its_blocks(name: str) -> None:
    """All trials are alike, so every interval is as narrow as can be, if there is one; still no run ends before its last block."""
    loaded = load_plan(name, quick=True)
    info = fake_info(loaded=loaded)
    outcome = LoadOutcome(
        build(Ready, receipt=receipt("socket")),
        build(Measuring),
        (),
        finish(10**9, 1000),
    )
    blocks = loaded.plan.timing.max_blocks
    trials = tuple(
        build_trial(
            number,
            info.arms[number % len(info.arms)].name,
            block=number // len(info.arms),
            position=number % len(info.arms),
            measured=make_measured(outcome),
        )
        for number in range(blocks * len(info.arms))
    )
    now = run_progress(Run(info=info, trials=trials, stop=None), blocks, 0.9)
    assert now.slots == len(info.arms), "none rests"
    timing = loaded.plan.timing
    assert why_stop(timing, replace(now, blocks=blocks - 1), 0, 0) is None
    assert why_stop(timing, now, 0, 0) is StopReason.BLOCKS


MINE = """
name = "mine"
question = "What is lost?"
[workload]
kind = "single_row_inserts"
[factors]
path = "socket"
replication = {modes}
fault = "{fault}"
[baseline]
replication = "{baseline}"
[timing]
measure = "{measure}"
"""


@pytest.mark.parametrize(
    ("modes", "fault", "measure", "expected"),
    [
        (["async", "after-sync"], "replica-leaves", "45s", "acknowledgement to fall back from"),
        (["after-sync"], "replica-leaves", "24s", "measure = '25s'"),
        (["none"], "cut", "3s", "a fault needs a replica that takes over"),
        (["galera"], "cut", "3s", "the faults of a cluster are"),
        (["galera"], "kill-primary", "3s", "replicas = 2"),
        (["async"], "cut-off-member", "3s", "needs a cluster, and async is not one"),
        (["async"], "slow-member", "3s", "needs a cluster, and async is not one"),
    ],
)
def test_a_fault_that_no_trial_could_do_is_refused_at_once(
    modes: list[str], fault: str, measure: str, expected: str, tmp_path: Path
) -> None:
    text = MINE.format(modes=modes, fault=fault, baseline=modes[0], measure=measure)
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(PlanError, match=expected):
        load_plan(str(tmp_path / "mine.toml"))


def test_the_shortest_window_of_a_fallback_is_that_of_the_trial() -> None:
    assert FALLBACK_NS == LEAVE_AFTER_NS + DEFAULT_ACK_TIMEOUT_MS * 10**6 + ABSENCE_AFTER_TIMEOUT_NS + MIN_RECOVERY_NS


def test_a_fault_without_keys_to_look_for_is_refused(tmp_path: Path) -> None:
    text = """
name = "mine"
question = "What is lost?"
[workload]
kind = "oltp_write_only"
[factors]
path = "socket"
replication = "async"
fault = ["none", "cut"]
[baseline]
fault = "none"
"""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(PlanError, match="single_row_inserts"):
        load_plan(str(tmp_path / "mine.toml"))
