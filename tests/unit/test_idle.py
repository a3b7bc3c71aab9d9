"""Idle states: what a receipt proves, what is compared with what, and the computed cost of waking CPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.made import with_receipt
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.idle import idle_states, waking_cost
from howfar.contract.receipt import IdleReceipt
from howfar.contract.violation import violation
from howfar.errors import LabError
from howfar.lab import idle
from howfar.lab.idle import HaltCounts, IdleWatch, keep_polling, polling_obstacle
from howfar.plan.cells import cells
from howfar.plan.factors import IDLE
from howfar.plan.fitting import without_levels
from howfar.plan.load import load_plan
from howfar.plan.types import restore_plan
from howfar.stats.trials import TrialTable, trial_table
from howfar.store.records import Arm, ArmRole, Run

AS_FOUND, POLLING = {"idle": "as-found"}, {"idle": "polling"}
LEVELS = {
    "socket": AS_FOUND,
    "socket (again)": AS_FOUND,
    "remote": AS_FOUND,
    "tcp": POLLING,
    "forwarded-socket": POLLING,
}
PATHS = {
    "socket": "socket",
    "socket (again)": "socket",
    "tcp": "socket",
    "remote": "remote",
    "forwarded-socket": "remote",
}
"""Paths of the synthetic run's arms: tcp stands for the socket, and the forwarded socket for remote, while CPUs poll."""


def _idle(level: str, halts_per_s: dict[str, float], limit_us: int | None = 0) -> IdleReceipt:
    return IdleReceipt(level=level, driver="haltpoll", governor="haltpoll", limit_us=limit_us, halts_per_s=halts_per_s)


def _run() -> Run:
    run = synthetic_run(blocks=8, scatter=0, void_every=0, samples=10)
    arms = tuple(
        arm.model_copy(update={"factors": {"path": PATHS[arm.name], "threads": 2, **LEVELS[arm.name]}})
        for arm in run.info.arms
    )
    trials = tuple(
        with_receipt(trial, idle=_idle(LEVELS[trial.arm]["idle"], {"0": 3.0, "1": 5.0})) for trial in run.trials
    )
    return run.model_copy(update={"info": run.info.model_copy(update={"arms": arms}), "trials": trials})


def _table() -> TrialTable:
    return trial_table(_run())


def _arm(table: TrialTable, name: str) -> Arm:
    return next(arm for arm in table.run.info.arms if arm.name == name)


def test_a_cell_is_compared_with_the_baseline_under_its_own_condition() -> None:
    table = _table()
    found = {arm.name: reference.name for arm in table.run.info.arms if (reference := table.reference(arm))}
    assert found == {
        "socket": "socket",
        "socket (again)": "socket",
        "remote": "socket",
        "tcp": "socket",
        "forwarded-socket": "tcp",
    }
    assert _arm(table, "socket").role is ArmRole.BASELINE


def test_what_waking_takes_is_the_ratio_of_the_ratios() -> None:
    """1000, 815, 251 and 213 transactions per second; all trials of a block share its disturbance."""
    found = waking_cost(_table())
    assert found is not None
    socket, remote = found.paths
    assert socket.speed.value == pytest.approx(1000 / 815, rel=1e-3) and socket.of_reference is None
    assert remote.of_reference is not None and remote.of_reference.value == pytest.approx(251 / 1000, rel=1e-3)
    assert remote.of_reference_polling is not None
    assert remote.of_reference_polling.value == pytest.approx(213 / 815, rel=1e-3)
    assert remote.part is not None and remote.part.value == pytest.approx(251 / 1000 / (213 / 815), rel=1e-3)


def test_one_level_alone_says_nothing_of_waking() -> None:
    assert waking_cost(trial_table(synthetic_run(blocks=2, samples=10))) is None


def test_the_levels_are_told_apart() -> None:
    found = idle_states(_table().run)
    assert found is not None and found.driver == "haltpoll"
    assert {level.level: level.halts_per_s for level in found.levels} == {"as-found": 5.0, "polling": 5.0}
    assert idle_states(synthetic_run(blocks=2, samples=10)) is None, "a file of before"


def test_a_rate_is_the_growth_over_the_time() -> None:
    before, after = HaltCounts(10**9, {0: 100, 1: 7}), HaltCounts(3 * 10**9, {0: 500, 1: 7, 2: 9})
    assert after.rates_per_s(before) == {0: 200.0, 1: 0.0}
    assert before.rates_per_s(before) == {}


@pytest.mark.parametrize(
    ("level", "limit_us", "halts", "accused"),
    [
        ("polling", 0, 0.0, ()),
        ("polling", None, 0.0, ()),
        ("polling", 2_000_000_000, 0.0, ("cpus-not-polling",)),
        ("polling", 0, 4000.0, ("cpu-slept",)),
        ("as-found", 2_000_000_000, 4000.0, ()),
    ],
)
def test_polling_that_was_none_is_a_violation(
    level: str, limit_us: int | None, halts: float, accused: tuple[str, ...]
) -> None:
    found = _idle(level, {"1": halts}, limit_us).violations()
    assert tuple(each.id for each in found) == accused


def test_a_host_that_did_not_poll_is_named() -> None:
    a, c = (_idle("polling", {"0": halts}) for halts in (0.0, 900.0))
    (found,) = a.model_copy(update={"hosts": {"a": a, "c": c}}).violations()
    assert found == violation("cpu-slept", "host c", cpu="0", sleeps_per_s=900.0)


@dataclass
class _HostHere:
    """Stands in for a `fleet.remote.RemoteHost` as far as idle states need it; the host is this process."""

    name: str

    def create(self, factory: Callable[..., Any], *arguments: Any, called: str) -> SimpleNamespace:
        actor = factory(*arguments)
        return SimpleNamespace(call=lambda method: getattr(actor, method)(), drop=getattr(actor, "close", lambda: None))


def test_between_hosts_each_of_them_polls_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = pytest.importorskip("howfar.fleet.testbed", reason="Ray is not installed (./setup --tests brings it)")
    polling_now: list[int] = []

    @contextmanager
    def polls() -> Iterator[None]:
        polling_now.append(1)
        yield
        polling_now.pop()

    monkeypatch.setattr(testbed, "keep_polling", polls)
    monkeypatch.setattr(testbed, "cpus_of", lambda host: (0,))
    hosts = [_HostHere(name) for name in "abc"]
    with ExitStack() as ledger:
        states = testbed._RemoteIdle.start("polling", hosts[0], hosts, ledger)
        assert len(polling_now) == 3
        states.begin()
        receipt = states.collect_receipt()
    assert not polling_now and set(receipt.hosts) == {"a", "b", "c"} and receipt.level == "polling"


def test_where_polling_cannot_be_held_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_CPU_DIRECTORY", tmp_path)
    assert "no idle driver" in str(polling_obstacle())
    states = [tmp_path / f"cpu{cpu}" / "cpuidle" / "state0" for cpu in os.sched_getaffinity(0)]
    for state in states:
        state.mkdir(parents=True)
        (state / "name").write_text("WFI\n")
    assert "no state in which a CPU polls" in str(polling_obstacle()), "as on ARM"
    for state in states:
        (state / "name").write_text("POLL\n")
    monkeypatch.setattr(idle, "DEVICE", tmp_path / "absent")
    assert "--device" in str(polling_obstacle())
    with pytest.raises(LabError, match="cannot be kept polling"), keep_polling():
        pass


def test_where_cpus_cannot_poll_a_plan_is_measured_as_found() -> None:
    lacking = {"idle": {"polling": "root only"}}
    for quick in (True, False):
        fitted = without_levels(load_plan("paths", quick).plan, lacking)
        assert fitted.plan.factors.idle == ("as-found",)
        assert fitted.notes == ("left out: idle polling: root only",)
        assert [cell.name for cell in cells(fitted.plan)][:3] == ["socket", "socket (again)", "tcp"]


def test_a_plan_of_before_was_measured_as_found() -> None:
    stored = load_plan("aa", quick=True).plan.model_dump(mode="json")
    del stored["factors"]["idle"]
    assert restore_plan(stored).factors.idle == ("as-found",)


@pytest.mark.alone
def test_a_held_limit_shows_in_the_receipt_and_ends_with_it() -> None:
    if reason := polling_obstacle():
        pytest.skip(reason)
    cpus = sorted(os.sched_getaffinity(0))
    with keep_polling():
        # The limit takes effect when a CPU next becomes idle.
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            time.sleep(0.01)
        os.sched_setaffinity(0, cpus)
        watch = IdleWatch("polling", cpus)
        time.sleep(0.2)
        receipt = watch.collect_receipt()
    assert (receipt.limit_us, receipt.violations(), IDLE.level_in({})) == (0, (), "as-found")
    assert IdleWatch("as-found", cpus).collect_receipt().limit_us != 0
