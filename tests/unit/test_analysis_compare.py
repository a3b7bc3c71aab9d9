"""Two runs side by side."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.made import with_environment
from tests.shipped import skip_without
from tests.unit.rendered import GOLDEN, is_golden, is_short
from tests.unit.synthetic_run import PATHS, PathModel, synthetic_run

from howfar.analysis.compare import (
    FACT_WORDS,
    _collect_facts,
    agreement,
    answer_comparison,
    certainty_of_comparison,
    compare,
    compare_with_first,
)
from howfar.analysis.compare_texts import HOSTS
from howfar.cli.compare import document
from howfar.contract.environment import RunEnvironment
from howfar.plan.factors import IMPLIED_LEVELS
from howfar.plan.kinds import QUERY
from howfar.plan.workload import WORKLOADS, RowDistribution, Workload
from howfar.report.document import AdviceBlock, Document
from howfar.report.terminal import render
from howfar.stats.estimate import Estimate
from howfar.store.records import ArmRole, Run, Trial


def test_the_same_thing_twice_is_not_called_different() -> None:
    found = compare(synthetic_run(seed=1, samples=5), synthetic_run(seed=2, samples=5))
    assert found.differences == ()
    assert not any(arm.qps_differs for arm in found.arms)
    (same,) = answer_comparison([found]).findings
    assert same.id == "too-wide" and 0.1 < float(same.parameters["within"]) < 0.3
    quiet = [synthetic_run(seed=seed, samples=5, blocks=60) for seed in (1, 2)]
    (same,) = answer_comparison([compare(*quiet)]).findings
    assert (same.id, same.parameters["arms"]) == ("same", 5) and float(same.parameters["within"]) <= 0.1


def test_a_faster_path_is_found_and_set_against_its_own_baseline() -> None:
    models = (*PATHS[:2], PathModel("tcp", ArmRole.CONTENDER, 1630, 8.8, 26.0), *PATHS[3:])
    found = compare(synthetic_run(seed=1, samples=1200), synthetic_run(seed=2, samples=1200, models=models))
    tcp = next(arm for arm in found.arms if arm.arm == "tcp")
    assert tcp.qps_differs
    assert tcp.relative_to_baseline is not None
    assert tcp.relative_to_baseline.value == pytest.approx(2.0, rel=0.05)
    assert tcp.p50 is not None and tcp.p99 is not None
    assert tcp.p50.value == pytest.approx(0.5, rel=0.05) and tcp.p99.value == pytest.approx(0.5, rel=0.3)
    assert tcp.p50.low is not None and tcp.p50.low < tcp.p50.value
    assert next(arm for arm in found.arms if arm.arm == "socket").relative_to_baseline is None


def test_a_p99_of_fewer_than_ten_slower_transactions_is_not_compared() -> None:
    found = compare(synthetic_run(seed=1, samples=1200), synthetic_run(seed=2, samples=900))
    assert all(arm.p50 is not None and arm.p99 is None for arm in found.arms)


def test_other_ground_is_named() -> None:
    before, after = synthetic_run(samples=5), synthetic_run(samples=5)
    after = with_environment(after, kernel="6.12.1")
    info = after.info.model_copy(update={"server_version": "11.4"})
    found = compare(before, after.model_copy(update={"info": info}))
    assert {difference.what for difference in found.differences} == {"server", "kernel"}


def test_a_run_without_histograms_has_no_times_to_compare() -> None:
    run = synthetic_run(samples=5)
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"histograms": ()})})
        if trial.measured
        else trial
        for trial in run.trials
    )
    assert all(
        arm.p50 is None and arm.p99 is None for arm in compare(run.model_copy(update={"trials": trials}), run).arms
    )


def test_arms_of_one_run_only_are_listed() -> None:
    found = compare(synthetic_run(samples=5), synthetic_run(samples=5, models=PATHS[:3]))
    assert found.only_before == ("forwarded-socket", "remote")
    assert found.only_after == ()


def replanned(run: Run, quick: bool = True, **tables: dict[str, object]) -> Run:
    plan = {**run.info.plan, **{name: {**run.info.plan.get(name, {}), **keys} for name, keys in tables.items()}}
    return run.model_copy(update={"info": run.info.model_copy(update={"plan": plan, "quick": quick})})


def test_factors_and_timing_that_differ_are_named_with_their_units() -> None:
    run = synthetic_run(samples=5)
    before = replanned(run, factors={"rtt_ns": [200_000], "threads": [2]}, timing={"measure_ns": 5_000_000_000})
    after = replanned(
        run,
        quick=False,
        factors={"rtt_ns": [200_000, 10_000_000], "threads": [2]},
        timing={"measure_ns": 20_000_000_000, "max_blocks": 99},
    )
    found = compare(before, after)
    assert {(d.what, d.before, d.after) for d in found.differences} == {
        ("quick", "yes", "no"),
        ("factors: rtt", "0.2ms", "0.2ms, 10ms"),
        ("timing: measure", "5s", "20s"),
    }


def test_ratios_to_different_baselines_are_not_set_beside_each_other() -> None:
    before, after = synthetic_run(samples=5), synthetic_run(samples=5, seed=2)
    arms = tuple(
        arm.model_copy(update={"factors": {**arm.factors, "threads": 8}}) if arm.role is ArmRole.BASELINE else arm
        for arm in after.info.arms
    )
    found = compare(before, after.model_copy(update={"info": after.info.model_copy(update={"arms": arms})}))
    assert all(arm.relative_to_baseline is None for arm in found.arms)
    different = next(d for d in found.differences if d.what == "baseline")
    assert "threads 2" in different.before and "threads 8" in different.after


def test_a_run_of_before_there_were_sessions_to_choose_is_of_the_same_cells() -> None:
    """An old run's plan has no tls, content or fit; today's plans have, and a run that varies them has them in its cells."""
    before, after = synthetic_run(samples=5), synthetic_run(samples=5, seed=2)
    before = replanned(before, factors={"threads": [2]}, data={"tables": 10})
    after = replanned(
        after,
        factors={"threads": [2], **{name: [level] for name, level in IMPLIED_LEVELS.items()}},
        data={"tables": 10, "fit": False},
    )
    arms = tuple(arm.model_copy(update={"factors": {**arm.factors, **IMPLIED_LEVELS}}) for arm in after.info.arms)
    found = compare(before, after.model_copy(update={"info": after.info.model_copy(update={"arms": arms})}))
    assert found.differences == ()
    assert all(arm.same_cell for arm in found.arms)
    encrypted = tuple(arm.model_copy(update={"factors": {**arm.factors, "tls": "1.3"}}) for arm in after.info.arms)
    other = compare(before, after.model_copy(update={"info": after.info.model_copy(update={"arms": encrypted})}))
    assert other.differences
    assert not any(arm.same_cell for arm in other.arms)


def on_hosts(run: Run, rtt_ns: int) -> Run:
    """The run as if measured between hosts with this RTT."""
    arms = tuple(
        arm.model_copy(update={"factors": {**arm.factors, "rtt_ns": rtt_ns}}) if "rtt_ns" in arm.factors else arm
        for arm in run.info.arms
    )
    there = run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})})
    return with_environment(there, testbed="hosts")


def rtt_of(run: Run) -> int:
    (rtt_ns,) = {int(arm.factors["rtt_ns"]) for arm in run.info.arms if "rtt_ns" in arm.factors}
    return rtt_ns


def test_a_laboratory_beside_hosts_is_judged_by_ratios_over_a_link_that_is_near() -> None:
    lab = synthetic_run()
    near, other = (compare(lab, on_hosts(lab, round(rtt_of(lab) * times))) for times in (1.1, 3))
    assert "agrees" in near.hosts_note and all(arm.same_cell for arm in near.arms)
    assert not all(arm.same_cell for arm in other.arms)
    assert compare(lab, lab).hosts_note == ""


REMOTE = tuple(
    PathModel("remote", role, tps, 9.9, 27.9, link_us=14.2, name=name)
    for name, role, tps in (("plain", ArmRole.BASELINE, 251), ("zlib", ArmRole.CONTENDER, 230))
)


def test_a_baseline_over_the_link_is_one_cell_in_the_laboratory_and_on_hosts_near_it() -> None:
    """The RTT between hosts is measured, so it never equals the laboratory's to the nanosecond."""
    lab = synthetic_run(samples=5, models=REMOTE)
    near, far = (compare(lab, on_hosts(lab, round(rtt_of(lab) * times))) for times in (1.1, 3))
    (zlib,) = (arm for arm in near.arms if arm.arm == "zlib")
    assert zlib.relative_to_baseline is not None and zlib.relative_to_baseline.value == pytest.approx(1, rel=1e-6)
    assert "agrees" in near.hosts_note and "1 arm;" in near.hosts_note
    assert all(arm.relative_to_baseline is None for arm in far.arms) and "No arm can be compared" in far.hosts_note
    other = synthetic_run(samples=5, models=REMOTE, seed=2)
    other = other.model_copy(
        update={"info": on_hosts(other, rtt_of(other) + 1).info.model_copy(update={"environment": RunEnvironment()})}
    )
    assert all(arm.relative_to_baseline is None for arm in compare(lab, other).arms), "two laboratories set theirs"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.95, 1.05, "agrees"),
        (1.02, 1.08, "agrees"),
        (0.8, 1.3, "too wide"),
        (0.99, 1.2, "too wide"),
        (1.02, 1.2, "differs"),
        (0.5, 0.7, "differs"),
    ],
)
def test_an_interval_agrees_only_where_it_is_narrow_enough_to_tell(low: float, high: float, said: str) -> None:
    assert agreement(Estimate(value=(low + high) / 2, low=low, high=high, n=8)) == said


def test_noise_is_no_agreement() -> None:
    lab = synthetic_run(models=REMOTE, samples=5)

    def noisy(trial: Trial) -> Trial:
        if trial.arm != "zlib" or trial.measured is None:
            return trial
        times = 2.0 if trial.block % 2 else 0.5
        queries = {what: round(getattr(trial.measured, what) * times) for what in ("queries", "transactions")}
        return trial.model_copy(update={"measured": trial.measured.model_copy(update=queries)})

    noise = lab.model_copy(update={"trials": tuple(map(noisy, lab.trials))})
    said = compare(lab, on_hosts(noise, rtt_of(lab))).hosts_note
    assert "for 0 of 1 arm, and for 1 the interval is too wide to tell" in said


def test_how_far_links_are_apart_that_are_compared_is_said() -> None:
    lab = synthetic_run(models=REMOTE, samples=5)
    same, apart = (compare(lab, on_hosts(lab, round(rtt_of(lab) * times))).hosts_note for times in (1.02, 1.2))
    assert "The links are not the same" not in same
    assert "The links are not the same: RTT 0.2ms in the laboratory and 0.24ms between the hosts (+20 %)." in apart
    turned = compare(on_hosts(lab, round(rtt_of(lab) * 1.2)), lab).hosts_note
    assert "RTT 0.24ms between the hosts and 0.2ms in the laboratory (-17 %)" in turned


def test_two_runs_between_the_same_hosts_are_compared_though_the_link_is_never_measured_alike() -> None:
    run = synthetic_run(models=REMOTE, samples=5)
    found = compare(on_hosts(run, 7_800), on_hosts(run, 12_400))
    assert all(arm.same_cell for arm in found.arms)
    assert found.hosts_note == "The links are not the same: RTT 7.8us before and 12.4us after (+59 %)."
    far = compare(on_hosts(run, 7_800), on_hosts(run, 200_000))
    assert not any(arm.same_cell for arm in far.arms)
    assert (
        HOSTS["far"].format(arms="plain, ") in far.hosts_note
        and "RTT 7.8us, rate 1gbit before, RTT 0.2ms" in far.hosts_note
    )


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("0.21ms,85ms,85ms", "0.29ms,86ms,85ms", True),
        ("0.21ms,85ms,85ms", "0.21ms,85ms,20ms", False),
        ("0.21ms,85ms,85ms", "three-zones", False),
        ("1ms,1.02ms,0.99ms", "three-zones", True),
        ("even", "even", True),
    ],
)
def test_nodes_are_as_far_apart_pair_by_pair(one: str, other: str, near: bool) -> None:
    skip_without("replication")
    run = on_hosts(synthetic_run(models=REMOTE, samples=5), 7_800)

    def of(level: str) -> Run:
        cluster = {"replication": "galera", "replicas": 2, "distances": level}
        arms = tuple(arm.model_copy(update={"factors": {**arm.factors, **cluster}}) for arm in run.info.arms)
        return run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})})

    assert all(arm.same_cell is near for arm in compare(of(one), of(other)).arms)


def test_what_the_laboratory_is_to_emulate_is_said_though_some_arm_is_comparable() -> None:
    lab = synthetic_run()
    near, far = (compare(lab, on_hosts(lab, rtt_ns)).hosts_note for rtt_ns in (rtt_of(lab) - 90_000, 600_000))
    assert HOSTS["far"].format(arms="") not in near
    assert "agrees" in far and HOSTS["far"].format(arms="remote") in far
    assert "Repeat the run in the laboratory with what was measured between the hosts: --rtt 0.6ms --rate 1gbit." in far


def test_an_arm_without_an_interval_agrees_with_nothing() -> None:
    lab = synthetic_run(samples=5)
    few = lab.model_copy(update={"trials": tuple(t for t in lab.trials if t.block < 3)})
    assert "cannot be judged" in compare(few, on_hosts(few, rtt_of(few))).hosts_note
    tcp = lab.model_copy(update={"trials": tuple(t for t in lab.trials if t.block < 3 or t.arm != "tcp")})
    assert "for 3 of 3 arms with an interval;" in compare(tcp, on_hosts(tcp, rtt_of(tcp))).hosts_note


FASTER = (*PATHS[:2], PathModel("tcp", ArmRole.CONTENDER, 1630, 8.8, 26.0), *PATHS[3:])
OTHER_UNIT = next(name for name, kind in WORKLOADS.items() if kind.operation is not QUERY)
"""A kind of workload that does not count queries."""
FOUND: dict[str, tuple[Run, ...]] = {
    "differs": (synthetic_run(seed=1, samples=1200), synthetic_run(seed=2, samples=1200, models=FASTER)),
    "differs-most": (
        synthetic_run(seed=1, samples=1200),
        synthetic_run(seed=2, samples=1200, models=FASTER),
        with_environment(synthetic_run(seed=3, samples=900), kernel="6.12.1"),
    ),
    "same": (synthetic_run(seed=1, samples=5, blocks=60), synthetic_run(seed=2, samples=5, blocks=60)),
    "too-wide": (synthetic_run(seed=1, samples=5), synthetic_run(seed=2, samples=5)),
    "other-unit": (synthetic_run(samples=5), replanned(synthetic_run(samples=5), workload={"kind": OTHER_UNIT})),
    "other-workload": (
        synthetic_run(samples=5),
        replanned(synthetic_run(samples=5, models=FASTER), workload={"kind": "oltp_read_write"}),
    ),
    "nothing-shared": (synthetic_run(samples=5), on_hosts(synthetic_run(samples=5, models=REMOTE), 7_800)),
}
"""Runs, by the id of what comparing them shows."""


@pytest.mark.parametrize("finding_id", FOUND)
def test_the_answer_is_a_short_sentence(finding_id: str) -> None:
    answer = answer_comparison(compare_with_first(FOUND[finding_id]))
    assert {finding.id for finding in answer.findings} == {finding_id}
    assert bool(answer.causes) is finding_id.startswith("differs")
    for text in filter(None, (answer.sentence, answer.why)):
        is_short(text)


@pytest.mark.parametrize("unlike", ["other-unit", "other-workload"])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("finding_id", ["differs-most", "same"])
def test_a_run_of_another_workload_is_left_out_of_the_answer(finding_id: str, is_last: bool, unlike: str) -> None:
    first, second = FOUND["differs" if finding_id == "differs-most" else "same"]
    others = [second, FOUND[unlike][1]] if is_last else [FOUND[unlike][1], second]
    compared = compare_with_first([first, *others])
    answer = answer_comparison(compared)
    left_out, kept = ("third", "second") if is_last else ("second", "third")
    assert {finding.id for finding in answer.findings} == {finding_id, "left-out"}
    assert {f.parameters["run"] for f in answer.findings if f.id == "differs-most"} <= {kept}
    assert answer.findings[-1].subject == left_out and certainty_of_comparison(answer, compared)
    alone = compare(first, second)
    assert {arm.comparisons for each in compared for arm in each.arms} == {arm.comparisons for arm in alone.arms}
    paths = [Path(f"{name}.howfar") for name in "abc"]
    assert f"The {left_out} run is left out of the answer" in render(document(paths, [first, *others]), 200)
    assert answer_comparison(compare_with_first([first, *[FOUND[unlike][1]] * 2])).findings[0].id == unlike


SPECIAL = RowDistribution().model_dump(mode="json")


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ({"workload": {}}, {"workload": Workload().model_dump(mode="json")}, True),
        ({"workload": {}}, {"workload": {"distribution": {**SPECIAL, "kind": "uniform"}}}, False),
        ({"workload": {"distribution": {"kind": "special"}}}, {"workload": {"distribution": SPECIAL}}, True),
        (
            {"workload": {"kind": "oltp_point_select"}},
            {"workload": {"kind": "oltp_point_select", "index_updates": 3}},
            True,
        ),
        (
            {"workload": {"kind": "oltp_update_index"}},
            {"workload": {"kind": "oltp_update_index", "index_updates": 3}},
            False,
        ),
        ({"workload": {}}, {"workload": {}, "keys": {"count": 5}}, True),
        (
            {"workload": {"kind": "of a later version", "a": 1}},
            {"workload": {"kind": "of a later version", "a": 2}},
            False,
        ),
    ],
)
def test_a_workload_is_what_its_kind_uses(
    before: dict[str, dict[str, object]], after: dict[str, dict[str, object]], is_same: bool
) -> None:
    run = synthetic_run(samples=5)
    runs = [run.model_copy(update={"info": run.info.model_copy(update={"plan": plan})}) for plan in (before, after)]
    found = compare(*runs)
    assert found.has_same_workload is is_same
    assert is_same or found.differences


def test_each_option_of_a_workload_is_used_by_some_kind() -> None:
    assert {"kind"}.union(*(kind.used_options for kind in WORKLOADS.values())) == set(Workload.model_fields)


def test_too_few_blocks_are_no_answer_and_the_command_measures_more() -> None:
    run = synthetic_run(samples=5)
    few = run.model_copy(update={"trials": tuple(trial for trial in run.trials if trial.block < 3)})
    assert answer_comparison([compare(few, run)]).is_missing
    paths = [Path("few.howfar"), Path("full run.howfar")]
    assert step_of(document(paths, [few, run])).lines == ("howfar resume few.howfar --time-budget 10min",)
    wide = step_of(document(paths, FOUND["too-wide"])).lines
    assert wide == tuple(f"howfar resume {name} --time-budget 10min" for name in ("few.howfar", "'full run.howfar'"))


@pytest.mark.parametrize("finding_id", ["other-unit", "other-workload", "nothing-shared"])
def test_of_runs_that_cannot_be_compared_the_command_of_the_first_is_shown(finding_id: str) -> None:
    runs = FOUND[finding_id]
    step = step_of(document([Path("a.howfar"), Path("b.howfar")], runs))
    assert step.lines == (shlex.join(runs[0].info.command),)


def step_of(page: Document) -> AdviceBlock:
    """The only step of a comparison."""
    (step,) = (block for block in page.blocks if isinstance(block, AdviceBlock))
    return step


def scaled(tps: float, scatter: float = 0.02, **settings: Any) -> Run:
    """A run whose paths are all faster by this factor."""
    models = tuple(replace(model, tps=tps * model.tps) for model in PATHS)
    return synthetic_run(samples=5, models=models, scatter=scatter, **settings)


def test_a_change_of_the_machine_is_told_from_one_of_a_path() -> None:
    """With every path twice as fast, the ratios to the baseline stay."""
    before, after = scaled(1, seed=1), scaled(2, seed=2)
    assert [cause.id for cause in answer_comparison([compare(before, after)]).causes] == ["machine"]
    noisy = answer_comparison([compare(scaled(1, 0.3, seed=1), scaled(2, 0.3, seed=2))])
    assert [finding.id for finding in noisy.causes] == ["unclear"], "wide intervals are no evidence"
    cause, *_ = answer_comparison([compare(*FOUND["differs"])]).causes
    assert (cause.id, cause.subject) == ("path", "tcp")


def test_of_several_runs_the_one_that_differs_most_comes_first_and_is_explained() -> None:
    answer = answer_comparison(compare_with_first([scaled(tps, seed=seed) for seed, tps in enumerate((1, 1.5, 3))]))
    assert [finding.parameters["run"] for finding in answer.findings] == ["third", "second"]
    assert {cause.parameters["run"] for cause in answer.causes} == {"third"}


def test_how_sure_counts_only_the_arms_that_are_compared() -> None:
    before, after = synthetic_run(samples=5, blocks=60), synthetic_run(seed=2, samples=5, blocks=60)
    arms = tuple(
        arm.model_copy(update={"factors": {**arm.factors, "threads": 8}}) if arm.name == "tcp" else arm
        for arm in after.info.arms
    )
    trials = tuple(trial for trial in after.trials if trial.arm != "tcp" or trial.block < 4)
    info = after.info.model_copy(update={"arms": arms})
    compared = [compare(before, after.model_copy(update={"info": info, "trials": trials}))]
    assert certainty_of_comparison(answer_comparison(compared), compared).startswith("60 trials")


def test_each_fact_that_may_differ_has_its_words() -> None:
    every = _collect_facts(replanned(synthetic_run(samples=5), workload={"kind": "oltp_read_write"}))
    assert {name.partition(":")[0] for name in every} <= set(FACT_WORDS)


@pytest.mark.parametrize("finding_id", ["differs", "differs-most"])
def test_a_screen(finding_id: str) -> None:
    runs = FOUND[finding_id]
    paths = [Path(f"{name}.howfar") for name in "abc"[: len(runs)]]
    is_golden(GOLDEN / f"compare-{len(runs)}.txt", render(document(paths, runs), 80, details=True))
