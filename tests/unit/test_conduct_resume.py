"""Resuming and extending: every break is recorded, another machine is detected, a run that has ended can continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fake_lab import COUNTED, FakeLaboratory, FakeStage, FakeWindowWatch, fake_info, fakes

from howfar.contract.environment import HostFacts, HostRoles, RunEnvironment
from howfar.contract.messages import LoadJob, Measuring, Receipt
from howfar.contract.receipt import LinkReceipt, QuantilesNs
from howfar.errors import EngineError, LabError, RunFileError, ServerCrashed
from howfar.plan.load import Override, load_plan
from howfar.plan.types import Timing, restore_plan
from howfar.runner.observer import Observer
from howfar.runner.run import check_resumable, differences, execute_run
from howfar.runner.stopping import Extension, Forecast, RunProgress, Slot, forecast
from howfar.runner.trial import run_trial
from howfar.store.records import Run, StopReason, TrialStatus, Window, resume_points
from howfar.store.run_file import RunFile, create, read_run
from howfar.testbed import NO_FACTS, CollectedReceipt, LoadFacts

HERE = RunEnvironment(kernel="6.1", cpu_model="One", boot_id="a", howfar_version="0.1.0", engine_version="0.1.0")


class Killed(BaseException):
    """Stands for the sudden end of the process: nothing more reaches the file."""


class Listening(Observer):
    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def resumed(self, differs: Any) -> None:
        self.heard.append(tuple(differs))


@dataclass
class Elsewhere(FakeLaboratory):
    """A laboratory on a machine with the given facts."""

    facts: RunEnvironment = field(default_factory=RunEnvironment)

    def environment(self) -> RunEnvironment:
        return self.facts


def killed_run(path: Path, trials: int) -> None:
    laboratory, engine, instruments = fakes()

    def kill(job: LoadJob) -> None:
        if len(engine.jobs) == trials + 1:
            raise Killed

    engine.before = kill
    with create(path, fake_info(Elsewhere(facts=HERE))) as file, pytest.raises(Killed):
        execute_run(file, laboratory, laboratory.clock(), instruments)


def go_on(path: Path, facts: RunEnvironment, more: Extension | None = None) -> tuple[StopReason, Listening]:
    laboratory, _, instruments = fakes()
    there = Elsewhere(laboratory.clock, facts=facts)
    heard = Listening()
    with RunFile(path) as file:
        return execute_run(file, there, laboratory.clock(), instruments, heard, more), heard


def details(run: Run, word: str) -> list[dict[str, Any]]:
    return [json.loads(event.what.partition(": ")[2]) for event in run.events if event.what.startswith(f"{word}: ")]


def test_a_resume_after_a_kill_leaves_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    killed_run(path, 12)
    _, heard = go_on(path, HERE)
    assert heard.heard == [()]
    run = read_run(path)
    assert [event.what.partition(":")[0] for event in run.events] == ["created", "resumed", "stopped"]
    (resumed,) = details(run, "resumed")
    assert (resumed["trial"], resumed["differs"], resumed["environment"]) == (12, [], HERE.as_json())
    assert resume_points(run.events) == (12,)


def test_what_differs_is_said_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    killed_run(path, 3)
    _, heard = go_on(path, HERE.updated(RunEnvironment(kernel="6.9", boot_id="b", governor="new to us")))
    assert heard.heard == [("kernel: 6.1 -> 6.9", "rebooted since")]
    assert details(read_run(path), "resumed")[0]["differs"] == list(heard.heard[0])


def test_what_one_side_does_not_know_is_not_compared() -> None:
    assert differences(RunEnvironment(kernel=None), RunEnvironment(kernel="6.1", boot_id="b")) == ()


def test_another_cpu_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    killed_run(path, 3)
    before = read_run(path)
    with pytest.raises(RunFileError, match="begun on another CPU, One; this machine has Two") as caught:
        go_on(path, HERE.updated(RunEnvironment(cpu_model="Two")))
    assert "howfar compare" in caught.value.advice
    assert read_run(path) == before


def _between(swaps: bool = True, rtt_ns: int = 10_000_000, warnings: Sequence[str] = (), **of_a: str) -> RunEnvironment:
    """The environment of a testbed of two hosts; `of_a`: changed facts of host a."""
    a = HostFacts(kernel="6.1", cpu_model="One", boot_id="a", address="10.0.0.1")
    b = HostFacts(kernel="6.1", cpu_model="One", boot_id="b", address="10.0.0.2")
    return HERE.updated(
        RunEnvironment(
            roles=HostRoles(client="a", server="b", swaps=swaps),
            hosts={"a": a.updated(HostFacts.model_validate(of_a)), "b": b},
            distances=[LinkReceipt(from_host="a", to_host="b", rtt_ns=QuantilesNs(p50=rtt_ns))],
            warnings=list(warnings),
        )
    )


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (_between(cpu_model="Two"), "CPU One on host a, which has Two now"),
        (_between(boot_id="c", address="10.0.0.9"), "nothing shows that it is the same machine"),
        (_between(swaps=False, warnings=["b has no server"]), "exchanged their roles.*: b has no server"),
        (_between(rtt_ns=10_400_000), "RTT of 10ms from host a to host b, which is 10.4ms now"),
    ],
)
def test_other_hosts_roles_or_links_are_refused(now: RunEnvironment, said: str) -> None:
    laboratory = FakeLaboratory()
    begun = Run(info=fake_info(Elsewhere(facts=_between())), trials=(), stop=None)
    check_resumable(begun, laboratory, _between())
    check_resumable(begun, laboratory, _between(boot_id="c", kernel="6.9"))
    with pytest.raises(RunFileError, match=said):
        check_resumable(begun, laboratory, now)


def test_what_differs_on_a_host_is_said_with_its_name() -> None:
    now = _between(boot_id="c", kernel="6.9").updated(RunEnvironment(kernel="6.9"))
    assert differences(_between(), now) == ("host a: kernel: 6.1 -> 6.9", "host a: rebooted since")


def test_another_server_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    killed_run(path, 3)
    _, _, instruments = fakes()
    expected = r"begun on mariadb 10\.11\.6-fake, this laboratory has mariadb 11"
    with RunFile(path) as file, pytest.raises(RunFileError, match=expected):
        execute_run(file, FakeLaboratory(version="11"), 0, instruments)


def test_a_new_run_has_no_break(tmp_path: Path) -> None:
    laboratory, _, instruments = fakes()
    with create(tmp_path / "a.howfar", fake_info()) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    assert resume_points(read_run(tmp_path / "a.howfar").events) == ()


def run_out_of_time(path: Path) -> Run:
    """A run stopped by its time budget: two blocks fit, the plan wants eight."""
    loaded = load_plan("paths", True, [*COUNTED, Override("", ("timing", "time_budget"), "75s")])
    laboratory, _, instruments = fakes()
    with create(path, fake_info(Elsewhere(facts=HERE), loaded=loaded)) as file:
        assert execute_run(file, laboratory, laboratory.clock(), instruments) is StopReason.TIME
    return read_run(path)


def test_more_time_adds_blocks_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    first = run_out_of_time(path)
    assert len(first.trials) == 10
    stop, _ = go_on(path, HERE, Extension(time_ns=70_000_000_000))
    run = read_run(path)
    assert (stop, len(run.trials)) == (StopReason.TIME, 20)  # (70 s - 10 s) / (5 x 5.5 s)
    assert run.trials[:10] == first.trials
    (extended,) = details(run, "extended")
    assert extended == {
        "trial": 10,
        "before": {"time_budget_ns": 75_000_000_000},
        "after": {"time_budget_ns": 125_000_000_000},  # 10 trials of 5.5 s, and 70 s
    }
    assert run.info.plan["timing"]["time_budget_ns"] == 125_000_000_000
    assert go_on(path, HERE)[0] is StopReason.TIME
    assert len(read_run(path).trials) == 20, "a budget is not given twice"


def test_a_narrower_target_goes_on_after_a_wide_one(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    run_out_of_time(path)
    stop, _ = go_on(path, HERE, Extension(time_ns=3600 * 10**9, target=0.004))
    run = read_run(path)
    assert (stop, len(run.trials)) == (StopReason.WIDTH, 40)
    assert run.info.plan["timing"]["target_half_width"] == 0.004
    assert details(run, "extended")[0]["after"].keys() == {"time_budget_ns", "target_half_width"}


def test_the_cap_on_blocks_is_lifted_only_when_it_is_reached() -> None:
    timing = Timing(max_blocks=10)
    more = Extension(time_ns=60 * 10**9)
    assert more.extended_timing(timing, 0, 9).max_blocks == 10
    assert more.extended_timing(timing, 0, 10).max_blocks == 1000
    assert Extension().extended_timing(timing, 0, 10) == timing


@dataclass
class DeadStage(FakeStage):
    cause: Exception | None = None

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        if self.cause is not None:
            raise self.cause
        return super().collect_receipt(session, load)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ServerCrashed("the server died during the trial"), "the server died during the trial; the engine said: reset"),
        (
            ServerCrashed("the server ended (signal 9). Its log ends with:\n1. x\n2. y"),
            "the server ended (signal 9); the engine said: reset",
        ),
        (None, "reset"),
    ],
)
def test_a_dead_part_is_named_before_what_the_engine_saw(tmp_path: Path, cause: LabError | None, reason: str) -> None:
    from contextlib import contextmanager

    laboratory, _, instruments = fakes()
    plain = laboratory.trial_environment
    count = 0

    @contextmanager
    def trial_environment(factors: Any) -> Any:
        with plain(factors) as found:
            yield DeadStage(found.target, cause=cause if count == 0 else None)

    def measure(job: Any, launcher: Any, on_event: Any) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            raise EngineError("reset")
        return instruments.measure(job, launcher, on_event)

    laboratory.trial_environment = trial_environment  # type: ignore[method-assign]
    with create(tmp_path / "a.howfar", fake_info()) as file:
        execute_run(file, laboratory, laboratory.clock(), replace(instruments, measure=measure))
    trials = read_run(tmp_path / "a.howfar").trials
    assert [trial.void_reason for trial in trials if trial.status is TrialStatus.VOID] == [reason]


@dataclass
class OneConnection(FakeStage):
    """An environment whose watch and final questions share one connection, and so must not overlap."""

    busy: bool = False

    def watch(self, length_ns: int) -> FakeWindowWatch:
        self.busy = True
        return _Ending(length_ns, self)

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        assert not self.busy, "the watch still uses the connection"
        return super().collect_receipt(session, load)


@dataclass(frozen=True)
class _Ending(FakeWindowWatch):
    trial_environment: OneConnection

    def finish(self) -> Window:
        self.trial_environment.busy = False
        return super().finish()


def test_the_watch_has_ended_before_the_stage_is_asked_who_was_at_fault() -> None:
    from contextlib import contextmanager

    laboratory, _, instruments = fakes()
    info = fake_info(laboratory)
    plain = laboratory.trial_environment

    @contextmanager
    def trial_environment(factors: Any) -> Any:
        with plain(factors) as found:
            yield OneConnection(found.target)

    def measure(job: Any, launcher: Any, on_event: Any) -> Any:
        on_event(Measuring(unix_time_ns=0, warmup_transactions=0))
        raise EngineError("reset")

    laboratory.trial_environment = trial_environment  # type: ignore[method-assign]
    arm, plan = info.arms[0], restore_plan(info.plan)
    broken = replace(instruments, measure=measure)
    trial = run_trial(0, Slot(0, 0, 0, arm.name), arm, plan, 1, laboratory, broken, lambda event: None)
    assert trial.void_reason == "reset"
    assert trial.window is not None, "what was seen until then is kept"


def test_a_forecast_asks_as_the_rule_will() -> None:
    timing = Timing.model_validate({"min_blocks": 2, "time_budget": "110s"})
    second = 10**9

    def at(blocks: int, done: float, used_s: int) -> Forecast:
        return forecast(timing, RunProgress((), blocks), done, used_s * second, 20 * second)

    assert at(0, 0, 5) == Forecast(4, 80 * second)  # 100 s for measuring, 5 used
    assert at(1, 0.5, 35) == Forecast(4, 50 * second)
    assert at(4, 0, 85) == Forecast(4, 0), "15 s are left, but no block fits"
    assert at(3, 0.5, 99) == Forecast(4, 10 * second), "what has begun is ended"
    assert at(0, 0, 105) == Forecast(1, 20 * second), "the first block is never refused"
