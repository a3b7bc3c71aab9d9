"""Confirmation on the fake laboratory: what is changed, the outcome, its cost, and that it survives being killed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fake_lab import FakeClock, FakeEngine, FakeLaboratory, fake_info, fakes

from howfar.analysis.cells import BytesPerTxn, CellSummary
from howfar.analysis.confirmation import choose_tests, is_as_predicted, is_refuted, make_intervention
from howfar.analysis.summary import Summary
from howfar.bottleneck.limit import RATE_FACTOR, Confirmation, Intervention, Limit
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import LoadJob
from howfar.contract.receipt import TrialReceipt
from howfar.contract.server_receipt import HopsReceipt
from howfar.errors import LabError
from howfar.experiments import registry
from howfar.experiments.registry import summarise
from howfar.model.resource import Resource
from howfar.plan.estimate import estimate_cost
from howfar.plan.load import LoadedPlan, Override, load_plan
from howfar.report.figures import unconfirmed_line
from howfar.report.sections import confirmation_outcome as outcome
from howfar.runner.run import execute_run
from howfar.runner.stopping import Extension
from howfar.runner.trial import Instruments
from howfar.stats.estimate import Estimate
from howfar.store.records import CONFIRMATION_BLOCK, ArmRole, Run, StopReason, Trial, plan_part
from howfar.store.run_file import RunFile, create, read_run

GBIT = 10**9
PLAN_TRIALS = 8 * 3
PAIR_TRIALS = 4 * 2


def loaded(**timing: Any) -> LoadedPlan:
    """A plan with two paths: socket, which as the baseline is measured twice, and remote."""
    threads = [(("factors", "threads"), [timing.pop("threads")])] if "threads" in timing else []
    settings: list[tuple[tuple[str, str], Any]] = [
        (("factors", "path"), ["socket", "remote"]),
        *threads,
        *(
            (("timing", key), value)
            for key, value in ({"confirm": True, "controls": False, "measure": "4s"} | timing).items()
        ),
    ]
    return load_plan("paths", True, [Override("", key, value) for key, value in settings])


def limit(resource: Resource) -> Limit:
    return Limit(resource=resource, text="", evidence=(), confidence="high", would_change="", would_not="")


def with_limits(run: Run, limits: dict[str, Resource]) -> Summary:
    summary = summarise(run)
    cells = tuple(
        cell.model_copy(update={"limit": limit(limits[cell.arm]) if cell.arm in limits else None})
        for cell in summary.cells
    )
    return summary.model_copy(update={"cells": cells})


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> dict[str, Resource]:
    """Limits by arm, in place of those that attribution would find."""
    limits: dict[str, Resource] = {}

    monkeypatch.setattr(registry, "summarise", lambda run: with_limits(run, limits))
    return limits


@dataclass
class WatchTargets:
    laboratory: FakeLaboratory
    engine: FakeEngine
    instruments: Instruments

    def go(self, file: RunFile, more: Extension | None = None) -> StopReason:
        return execute_run(file, self.laboratory, self.laboratory.clock(), self.instruments, more=more)


def fake_targets(
    obeys: Callable[[dict[str, Any]], float] = lambda factors: factors.get("rate_bps", GBIT) / GBIT,
) -> WatchTargets:
    """A laboratory whose throughput is multiplied by `obeys`; by default it follows the rate of the link."""
    laboratory, engine, instruments = fakes(FakeClock())
    engine.jitter = lambda job: obeys(laboratory.staged[-1])
    return WatchTargets(laboratory, engine, instruments)


def confirmed(path: Path, there: WatchTargets | None = None, **timing: Any) -> tuple[Run, tuple[Confirmation, ...]]:
    with create(path, fake_info(loaded=loaded(**timing))) as file:
        (there or fake_targets()).go(file)
    run = read_run(path)
    return run, summarise(run).confirmations


Remote = tuple[CellSummary, Summary]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Remote:
    """The cell over a link of a run in which no limit has been tested yet, and the run's summary."""
    path = tmp_path_factory.mktemp("remote") / "a.howfar"
    with create(path, fake_info(loaded=loaded())) as file:
        fake_targets().go(file)
    summary = summarise(read_run(path))
    return next(cell for cell in summary.cells if cell.arm == "remote"), summary


def with_factors(remote: Remote, **factors: int) -> Remote:
    cell, summary = remote
    return cell.model_copy(update={"factors": cell.factors | factors}), summary


def of_pairs(run: Run) -> list[Trial]:
    return [trial for trial in run.trials if trial.block >= CONFIRMATION_BLOCK]


@pytest.mark.parametrize("faster", [1.5, 1.0])
def test_a_full_link_is_confirmed_by_throughput_that_follows_its_rate(
    tmp_path: Path, named: dict[str, Resource], faster: float
) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    there = fake_targets() if faster > 1 else fake_targets(lambda factors: 1.0)
    run, (found,) = confirmed(tmp_path / "a.howfar", there)
    assert run.stop is StopReason.WIDTH, "as the plan's own blocks ended"
    assert (found.arm, found.changed, found.blocks) == ("remote", "rate 1gbit -> 1.5gbit", 4)
    assert found.measured.value == pytest.approx(faster, rel=1e-3)
    assert (found.predicted, found.ratio_if_wrong, found.confirmed) == (1.5, 1.0, faster > 1)
    assert len(run.trials) == PLAN_TRIALS + PAIR_TRIALS
    assert Counter(trial.block for trial in of_pairs(run)) == {CONFIRMATION_BLOCK + n: 2 for n in range(4)}


@pytest.mark.parametrize(("follows", "holds"), [(False, True), (True, False)])
def test_of_a_full_processor_half_the_connections_get_as_much(
    tmp_path: Path, named: dict[str, Resource], follows: bool, holds: bool
) -> None:
    """The link is left as it is: with a fifth of its rate in use, it could not show a difference."""
    named["remote"] = Resource.SERVER_CPU
    there = fake_targets(lambda factors: factors["threads"] / 16 if follows else 1.0)
    _, (found,) = confirmed(tmp_path / "a.howfar", there, threads=16)
    assert (found.predicted, found.ratio_if_wrong, found.confirmed) == (1.0, 0.5, holds)
    assert found.changed == "16 -> 8 connections"
    assert outcome(found) == ("rules out a limit that each connection has for itself" if holds else "NOT confirmed")


@pytest.mark.parametrize(("used", "tried"), [(0.2, False), (0.6, False), (0.7, True)])
def test_a_faster_link_is_tried_only_on_a_link_that_it_could_show(remote: Remote, used: float, tried: bool) -> None:
    """Two connections, a full processor: at 20 % use of the link no rate could give 1.5 times the throughput, whatever the limit."""
    cell, summary = remote
    busier = used * GBIT / 8 * cell.queries_per_txn / cell.qps.value
    cell = cell.model_copy(update={"bytes_per_txn": BytesPerTxn(to_server=1.0, to_client=busier), "network": None})
    found = make_intervention(cell, limit(Resource.SERVER_CPU), summary.environment)
    if tried:
        assert isinstance(found, Intervention)
        assert (found.changed, found.rules_out) == ("rate 1gbit -> 1.5gbit", "the link")
    else:
        assert isinstance(found, str) and "the link is used too little" in found


@pytest.mark.parametrize(
    ("threads", "changed"), [(2, "2 -> 1 connections"), (1, "the laboratory cannot change this resource alone")]
)
def test_an_rtt_of_nothing_is_not_halved(remote: Remote, threads: int, changed: str) -> None:
    """A link with only a rate has the latency of its hosts, which cannot be changed."""
    cell, summary = with_factors(remote, rtt_ns=0, threads=threads)
    found = make_intervention(cell, limit(Resource.LATENCY), summary.environment)
    assert (found if isinstance(found, str) else found.changed) == changed


@pytest.mark.parametrize(("threads", "share"), [(16, 1 / 2), (5, 2 / 5), (3, 1 / 3)])
def test_half_of_an_odd_number_of_connections_is_less(remote: Remote, threads: int, share: float) -> None:
    cell, summary = with_factors(remote, rtt_ns=0, threads=threads)
    found = make_intervention(cell, limit(Resource.LATENCY), summary.environment)
    assert isinstance(found, Intervention) and found.predicted == pytest.approx(share)


@pytest.mark.parametrize(("rest_us", "goes_us"), [(50, 50), (100, 100), (400, 100)])
def test_only_the_configured_rtt_is_halved(remote: Remote, rest_us: int, goes_us: int) -> None:
    """100 µs were requested: if 400 were measured, 300 remain. The cycle takes 2 ms with ten round trips."""
    cell, summary = with_factors(remote, rtt_ns=100_000, threads=1)
    qps = cell.qps.model_copy(update={"value": 500 * cell.queries_per_txn})
    cell = cell.model_copy(update={"rest_rtt_ns": rest_us * 1000.0, "turns_per_txn": 10.0, "qps": qps})
    free = cell.cpu_us_per_query.client.model_copy(update={"value": 0.0})
    cpu = cell.cpu_us_per_query.model_copy(update={"server": free, "client": free, "link": None})
    found = make_intervention(
        cell.model_copy(update={"cpu_us_per_query": cpu}), limit(Resource.LATENCY), summary.environment
    )
    assert isinstance(found, Intervention)
    assert (found.changed, found.factors["rtt_ns"]) == ("RTT 0.1ms -> 50us", 50_000)
    assert found.predicted == pytest.approx(min(2000 / (2000 - 10 * goes_us / 2), RATE_FACTOR))


@pytest.mark.parametrize(("side", "predicted"), [("client_side", 1.25), ("server_side", RATE_FACTOR)])
def test_a_program_in_between_takes_room_on_the_host_it_runs_on(remote: Remote, side: str, predicted: float) -> None:
    """The program uses 0.8 CPUs: a host with one CPU allows 1.25 times the throughput, one with three more than is tested."""
    cell, summary = remote
    used = Estimate(value=0.8e6 / cell.qps.value, low=None, high=None)
    none = used.model_copy(update={"value": 0.0})
    parts = {"client": none, "server": none, "forwarder": used, "link": None}
    busier = cell.model_copy(
        update={
            "cpu_us_per_query": cell.cpu_us_per_query.model_copy(update=parts),
            "receipt": cell.receipt.updated(TrialReceipt(forwarder=HopsReceipt(hops=[side]))),
        }
    )
    cpus = RunEnvironment(client_cpus=[0], server_cpus=[1, 2, 3])
    found = make_intervention(busier, limit(Resource.LINK_TO_CLIENT), summary.environment.updated(cpus))
    assert isinstance(found, Intervention)
    assert found.predicted == pytest.approx(predicted)


def test_what_is_changed_of_each_limit_is_what_the_method_says(remote: Remote) -> None:
    """The table of docs/method.md, at 16 connections and an RTT of 1 ms; its last paragraph has all other limits."""
    cell, summary = with_factors(remote, rtt_ns=1_000_000, threads=16)
    changed: dict[str, set[Resource]] = {}
    for resource in Resource:
        found = make_intervention(cell, limit(resource), summary.environment)
        changed.setdefault("nothing" if isinstance(found, str) else found.changed.partition(" ")[0], set()).add(
            resource
        )
    assert changed.pop("rate") == {Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER}
    assert changed.pop("RTT") == {Resource.LATENCY}
    nothing = {
        Resource.COMMIT,
        Resource.ACKNOWLEDGEMENT,
        Resource.ERRORS,
        Resource.SERVER_WAIT,
        Resource.INVALID,
        Resource.NOT_ESTABLISHED,
    }
    assert changed.pop("nothing") == nothing
    assert changed == {
        "16": set(Resource) - nothing - {Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER, Resource.LATENCY}
    }


def test_an_interval_across_the_middle_shows_nothing() -> None:
    """The middle of 1.0 and 1.5 is 1.22."""
    assert is_as_predicted(Estimate(value=1.4, low=1.23, high=1.6), 1.5, 1.0)
    assert not is_as_predicted(Estimate(value=1.4, low=1.2, high=1.6), 1.5, 1.0)
    assert is_as_predicted(Estimate(value=1.0, low=0.9, high=1.22), 1.0, 1.5)
    assert not is_as_predicted(Estimate(value=1.0, low=0.8, high=1.3), 1.0, 1.5)
    assert not is_as_predicted(Estimate(value=1.5, low=None, high=None), 1.5, 1.0), "one block shows nothing"
    assert not is_as_predicted(Estimate(value=1.26, low=1.24, high=1.28), 1.5, 1.0), "nearer, and yet another figure"
    assert not is_as_predicted(Estimate(value=1.3, low=1.24, high=1.37), 1.5, 1.0)
    assert not is_as_predicted(Estimate(value=1.07, low=1.062, high=1.08), 1.12, 1.0), (
        "close predictions have a narrow tolerance"
    )
    assert not is_as_predicted(Estimate(value=0.75, low=0.72, high=0.78), 1.0, 1.5)


def test_the_plans_own_figures_know_nothing_of_it(tmp_path: Path, named: dict[str, Resource]) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    run, _ = confirmed(tmp_path / "a.howfar")
    with create(tmp_path / "b.howfar", fake_info(loaded=loaded(confirm=False))) as file:
        fake_targets().go(file)
    plain = read_run(tmp_path / "b.howfar")
    left_out = {"run", "created", "confirmations", "unconfirmed"}
    assert summarise(run).model_dump(exclude=left_out) == summarise(plain).model_dump(exclude=left_out)
    assert [arm.role for arm in run.info.arms][3:] == [ArmRole.CONFIRMATION] * 2
    assert plan_part(run).info.arms == plain.info.arms


def test_what_cannot_be_changed_is_said(tmp_path: Path, named: dict[str, Resource]) -> None:
    named |= {"remote": Resource.LOCK, "socket": Resource.SERVER_CPU}
    run, found = confirmed(tmp_path / "a.howfar")
    assert (found, of_pairs(run)) == ((), [])
    assert {(one.arm, one.resource) for one in summarise(run).unconfirmed} == {
        ("remote", Resource.LOCK),
        ("socket", Resource.SERVER_CPU),  # 2 connections: half of them prove nothing
    }
    assert "confirmed" in run.events[-2].what
    assert "remote (lock: the laboratory cannot change this resource alone)" in unconfirmed_line(summarise(run))


def test_a_run_that_names_no_limit_confirms_none(tmp_path: Path, named: dict[str, Resource]) -> None:
    run, found = confirmed(tmp_path / "a.howfar")
    assert (found, summarise(run).unconfirmed, len(run.trials)) == ((), (), PLAN_TRIALS)


@pytest.mark.parametrize("cut_at", [PLAN_TRIALS, PLAN_TRIALS + 1, PLAN_TRIALS + 3, PLAN_TRIALS + 5])
def test_a_killed_confirmation_goes_on(tmp_path: Path, named: dict[str, Resource], cut_at: int) -> None:
    """Killed before its first trial, within a block, within another, or before its last trial."""
    named["remote"] = Resource.LINK_TO_CLIENT
    whole, expected = confirmed(tmp_path / "whole.howfar")
    there = fake_targets()

    class Cut(BaseException):
        pass

    def cut(job: LoadJob) -> None:
        if len(there.engine.jobs) == cut_at + 1:
            raise Cut

    there.engine.before = cut
    path = tmp_path / "a.howfar"
    with create(path, fake_info(loaded=loaded())) as file, pytest.raises(Cut):
        there.go(file)
    named.clear()  # what to test was decided before
    with RunFile(path) as file:
        assert fake_targets().go(file) is StopReason.WIDTH
    run = read_run(path)
    assert [place(trial) for trial in run.trials] == [place(trial) for trial in whole.trials]
    assert summarise(run).confirmations == expected


def place(trial: Trial) -> tuple[int, int, str]:
    return trial.block, trial.position, trial.arm


def test_its_time_is_kept_free(tmp_path: Path, named: dict[str, Resource]) -> None:
    """Confirming takes eight trials of 5.5 s for each of two curves, and two links: 100 s; 2 blocks of 16.5 s fit in 150 s - 10 s."""
    named["remote"] = Resource.LINK_TO_CLIENT
    there = fake_targets()
    began = there.laboratory.clock()
    run, (found,) = confirmed(tmp_path / "a.howfar", there, time_budget="150s")
    assert run.stop is StopReason.TIME
    assert len(plan_part(run).trials) == 2 * 3
    assert found.blocks == 4
    assert there.laboratory.clock() - began <= 150 * 10**9
    assert estimate_cost(loaded(time_budget="150s").plan).min_ns <= 150 * 10**9


def test_one_that_the_time_cuts_short_says_so(tmp_path: Path, named: dict[str, Resource]) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    there = fake_targets()

    def slow(factors: dict[str, Any]) -> float:
        if factors.get("rate_bps", GBIT) > GBIT:
            there.laboratory.clock.now_ns += 60 * 10**9
        return 1.0

    there.engine.jitter = lambda job: slow(there.laboratory.staged[-1])
    run, found = confirmed(tmp_path / "a.howfar", there, time_budget="150s")
    assert len(of_pairs(run)) < PAIR_TRIALS
    assert all(confirmation.blocks < 3 and not confirmation.confirmed for confirmation in found)
    (text,) = [event.what for event in run.events if event.what.startswith("confirmed: ")]
    assert json.loads(text.partition(": ")[2])["why"] == "time"


def test_one_that_the_time_cuts_short_goes_on_later(tmp_path: Path, named: dict[str, Resource]) -> None:
    """Even if no time was left for its first trial; trials that were measured are kept."""
    named["remote"] = Resource.LINK_TO_CLIENT
    path, there = tmp_path / "a.howfar", fake_targets()

    def late(factors: dict[str, Any]) -> float:
        there.laboratory.clock.now_ns += 200 * 10**9 if len(there.engine.jobs) == 6 else 0
        return 1.0

    with create(path, fake_info(loaded=loaded(time_budget="150s"))) as file:
        there.engine.jitter = lambda job: late(there.laboratory.staged[-1])
        assert there.go(file) is StopReason.TIME
    assert of_pairs(read_run(path)) == []
    more = Extension(confirm=True, only_confirms=True, time_ns=40 * 10**9)
    for measured in (range(1, PAIR_TRIALS), [PAIR_TRIALS]):
        with RunFile(path) as file:
            assert fake_targets().go(file, more) is StopReason.TIME, "as the plan's own blocks ended"
        assert len(of_pairs(read_run(path))) in measured
    run = read_run(path)
    assert len(plan_part(run).trials) == len(run.trials) - PAIR_TRIALS
    assert summarise(run).confirmations[0].blocks == 4


def uneven() -> WatchTargets:
    """A scene with noise, so that a narrower width than the one reached can be requested."""
    noise = random.Random(7)
    return fake_targets(lambda factors: factors.get("rate_bps", GBIT) / GBIT * noise.uniform(0.99, 1.01))


def test_a_run_that_has_ended_is_confirmed_later(tmp_path: Path, named: dict[str, Resource]) -> None:
    """The plan's own blocks are not added to."""
    named["remote"] = Resource.LINK_TO_CLIENT
    path = tmp_path / "a.howfar"
    with create(path, fake_info(loaded=loaded(confirm=False))) as file:
        uneven().go(file)
    with RunFile(path) as file:
        assert uneven().go(file, Extension(confirm=True, time_ns=120 * 10**9)) is StopReason.WIDTH
    run = read_run(path)
    assert len(plan_part(run).trials) == PLAN_TRIALS
    assert summarise(run).confirmations[0].confirmed
    with RunFile(path) as file:
        uneven().go(file, Extension(time_ns=3600 * 10**9, target=1e-6))
    after = read_run(path)
    assert len(plan_part(after).trials) > PLAN_TRIALS, "the plan's blocks can still go on, under their own numbers"
    assert len(of_pairs(after)) == PAIR_TRIALS, "and it is made once a run"


def test_a_pair_that_stays_void_takes_nothing_from_the_run(tmp_path: Path, named: dict[str, Resource]) -> None:
    named["remote"] = Resource.LINK_TO_CLIENT
    there = fake_targets()

    def before(job: LoadJob) -> None:
        if there.laboratory.staged[-1].get("rate_bps") == 3 * GBIT // 2:
            raise LabError("no such link")

    there.engine.before = before
    run, found = confirmed(tmp_path / "a.howfar", there)
    assert (run.stop, found) == (StopReason.WIDTH, ())
    assert [one.why for one in summarise(run).unconfirmed] == ["no block has both the original and the changed cell"]


def test_at_most_three_and_a_new_resource_first(tmp_path: Path, named: dict[str, Resource]) -> None:
    rates: Any = ["100mbit", "1gbit", "2gbit", "5gbit", "10gbit"]
    levels: dict[str, Any] = {"path": ["socket", "remote"], "rate": rates, "threads": [16]}
    many = load_plan("paths", True, [Override("", ("factors", name), each) for name, each in levels.items()])
    with create(tmp_path / "a.howfar", fake_info(loaded=many)) as file:
        fake_targets().go(file)
    run = read_run(tmp_path / "a.howfar")
    names = [arm.name for arm in run.info.arms if arm.role is ArmRole.CONTENDER]
    named |= dict.fromkeys(names, Resource.LINK_TO_CLIENT) | {names[-1]: Resource.SERVER_CPU}
    chosen = choose_tests(with_limits(run, named).cells, run).interventions
    assert [make_intervention.arm for make_intervention in chosen] == [names[0], names[-1], names[1]]


def confirmation(low: float, high: float, predicted: float = 1.5, otherwise: float = 1.0) -> Confirmation:
    measured = Estimate(value=(low * high) ** 0.5, low=low, high=high)
    return Confirmation(
        arm="remote",
        resource=Resource.LINK_TO_CLIENT,
        changed="rate 1gbit -> 1.5gbit",
        predicted=predicted,
        ratio_if_wrong=otherwise,
        measured=measured,
        confirmed=is_as_predicted(measured, predicted, otherwise),
        blocks=3,
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.3, 1.6, "confirmed"), (0.95, 1.1, "NOT confirmed"), (1.2, 1.77, "inconclusive")],
)
def test_what_shows_neither_is_said_to(low: float, high: float, expected: str) -> None:
    assert outcome(confirmation(low, high)) == expected


@pytest.mark.parametrize(
    ("low", "high", "refuted"),
    [(1.14, 1.75, True), (0.9, 1.3, False), (1.14, 1.4, False), (0.9, 1.75, False), (1.3, 1.75, True)],
)
def test_an_interval_that_holds_only_the_other_expectation_refutes(low: float, high: float, refuted: bool) -> None:
    """The prediction is 1.0, otherwise 1.5; the middle is 1.22."""
    assert is_refuted(confirmation(low, high, 1.0, 1.5)) is refuted
