"""Curves, ceilings and predictions, from made-up runs whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.made_curves import REPLIES, Cell, run_of
from tests.unit.rendered import findings_of

from howfar.analysis import plateau
from howfar.experiments.bandwidth.analysis import Curve, Scaling, scaling
from howfar.experiments.bandwidth.report import what_if
from howfar.experiments.grid import published
from howfar.experiments.registry import summarise
from howfar.model.facts import arm_facts
from howfar.model.fit import series
from howfar.model.resource import Resource
from howfar.model.what_if import WhatIf
from howfar.report.document import Details, Table
from howfar.store.records import Run

CYCLE_S = 0.0022
"""Of a lone connection on loopback: 1 ms of CPU, and 1.2 ms in which nobody works."""
RTT_S = 0.0002
WIRE = REPLIES + 90 * 39
"""About 39 segments a transaction: 12 short replies, 3 of nine segments."""


def _tcp(threads: int) -> Cell:
    """By the two bounds, rounded off where they meet: no law of the model."""
    soft = ((CYCLE_S / threads) ** 2 + 0.0008**2) ** -0.5 if threads > 1 else 1 / CYCLE_S
    return Cell({"path": "tcp", "threads": threads}, soft)


def _remote(threads: int, rate_bps: float, tps: float) -> Cell:
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": int(rate_bps)}
    return Cell(factors, tps, link_s=0.0005)


def _bandwidth() -> Run:
    slow, fast = 1e8 / 8 / WIRE, 900.0
    cells = [_tcp(threads) for threads in (1, 4, 16, 64)]
    cells += [_remote(n, 1e8, tps) for n, tps in ((1, 115.0), (4, 0.87 * slow), (16, 0.98 * slow), (64, slow))]
    cells += [_remote(n, 1e9, tps) for n, tps in ((1, 170.0), (4, 480.0), (16, 0.97 * fast), (64, fast))]
    return run_of(cells)


def _scaling(run: Run) -> Scaling:
    found = scaling(run, arm_facts(run))
    assert found is not None
    return found


def _named(found: Scaling, **factors: Any) -> Curve:
    (curve,) = [each for each in found.curves if factors.items() <= each.factors.items()]
    return curve


def test_without_a_block_the_same_settings_of_the_same_curve_are_computed() -> None:
    """Where the highest throughput lies may be chance; the computed settings must not move with it."""
    run = _bandwidth()
    facts, workload = arm_facts(run), run.info.plan["workload"]
    whole = what_if(facts, workload)
    assert whole is not None
    fewer = [each for each in facts if each.arm.name != whole.arm]
    elsewhere, alike = what_if(fewer, workload), what_if(fewer, workload, whole)
    assert elsewhere is not None and elsewhere.worked[0].settings != whole.worked[0].settings
    assert alike is None, "its curve is gone with its arm"
    slower = [
        replace(each, tps=each.tps.model_copy(update={"value": each.tps.value / 3}))
        if each.arm.name == whole.arm
        else each
        for each in facts
    ]
    other, same = what_if(slower, workload), what_if(slower, workload, whole)
    assert other is not None and same is not None and other.arm != whole.arm
    assert [each.settings for each in same.worked] == [each.settings for each in whole.worked]
    assert same.worked[0].answer.tps != whole.worked[0].answer.tps


def test_cells_that_differ_in_connections_only_are_one_curve() -> None:
    found = _scaling(_bandwidth())
    assert [curve.factors.get("rate_bps", "loopback") for curve in found.curves] == ["loopback", 10**8, 10**9]
    assert all([point.threads for point in curve.points] == [1, 4, 16, 64] for curve in found.curves)


def test_a_level_that_is_not_said_is_the_ordinary_one_to_every_part_of_the_analysis() -> None:
    run = run_of([_tcp(1), Cell({**_tcp(16).factors, "tls": "off"}, 900.0)])
    assert [len(one.arms) for one in series(arm_facts(run))] == [2]
    assert [len(curve) for curve in plateau.curves(run.info.arms)] == [2]


def test_a_slow_link_is_its_curve_s_ceiling_and_its_plateau_tests_nothing() -> None:
    curve = _named(_scaling(_bandwidth()), rate_bps=10**8)
    assert curve.ceilings[0].resource is Resource.LINK_TO_CLIENT
    assert [ceiling.tps for ceiling in curve.ceilings] == sorted(ceiling.tps for ceiling in curve.ceilings)
    assert curve.foreign is not None
    assert curve.foreign.plateau_tps == pytest.approx(curve.points[-1].tps.value, rel=0.03)
    assert curve.foreign.plateau_error is None, "the rate over the bytes: right whatever the model says"
    assert (curve.foreign.tested, curve.foreign.by_construction) == (2, 2)
    assert "tcp at 1 and 64 connections" in curve.foreign.basis


def test_a_fast_link_is_not_and_the_emulator_s_part_is_named() -> None:
    curve = _named(_scaling(_bandwidth()), rate_bps=10**9)
    assert curve.ceilings[0].resource is Resource.SERVER_CPU
    assert "emulator" in curve.ceilings[0].says


_FULL = {0: 1.0, 1: 1.0}


def _waited(path: str, threads: int, tps: float, rate_bps: float | None = None) -> Cell:
    """Strangers keep both processors busy, so that each end waits longer than it works. The server works 4 ms per transaction and is
    always wanted where it is what limits; the client works 0.5 ms."""
    factors: dict[str, Any] = {"path": path, "threads": threads}
    if rate_bps is not None:
        factors |= {"rtt_ns": 200_000, "rate_bps": int(rate_bps)}
    limits = rate_bps is None or 8 * WIRE * tps < 0.9 * rate_bps
    wait_s = (threads - 0.5) / tps - 0.004 if limits and threads > 1 else 0.005
    return Cell(factors, tps, 0.0005, 0.004, client_wait_s=0.001, server_wait_s=wait_s, busy=_FULL)


def _among_strangers() -> Run:
    slow = 1e7 / 8 / WIRE
    cells = [_waited("tcp", threads, tps) for threads, tps in ((1, 90.0), (4, 130.0), (16, 130.0))]
    cells += [_waited("remote", threads, tps, 1e7) for threads, tps in ((1, 0.8 * slow), (4, slow), (16, slow))]
    cells += [_waited("remote", threads, tps, 1e8) for threads, tps in ((1, 70.0), (4, 110.0), (16, 115.0))]
    return run_of(cells)


def test_what_a_full_link_let_through_is_no_ceiling_of_the_processors() -> None:
    found = _scaling(_among_strangers())
    slow, fast = _named(found, rate_bps=10**7), _named(found, rate_bps=10**8)
    assert slow.ceilings[0].resource is Resource.LINK_TO_CLIENT
    assert all(each.tps > 3 * slow.points[-1].tps.value for each in slow.ceilings if "CPU" in each.resource)
    assert fast.foreign is not None
    assert max(point.tps for point in fast.foreign.points) > 2 * slow.points[-1].tps.value, (
        "not the full link's own throughput"
    )


def test_a_ceiling_that_was_read_at_the_top_is_not_said_to_be_reached() -> None:
    found = _scaling(_among_strangers())
    curve = _named(found, rate_bps=10**8)
    assert curve.ceilings[0].resource is Resource.SERVER_CPU and curve.ceilings[0].tps == pytest.approx(115, rel=0.01)
    assert "taken at the highest throughput itself" in curve.ceilings[0].says
    assert "is the ceiling (1" not in found.says and "where server CPU was full" in found.says


def test_a_curve_s_low_end_is_met_and_every_point_counts_that_was_not_fitted_to() -> None:
    for curve in _scaling(_bandwidth()).curves:
        assert curve.own is not None
        model = {point.threads: point.tps for point in curve.own.points}
        assert model[1] == pytest.approx(curve.points[0].tps.value, rel=1e-6)
        tested = curve.points[1 : 1 + curve.own.tested]
        errors = [abs(model[point.threads] / point.tps.value - 1) for point in tested]
        assert curve.own.tested + curve.own.by_construction == len(curve.points)
        assert curve.own.mean_error == pytest.approx(sum(errors) / len(errors))
        assert curve.own.worst_error == pytest.approx(max(errors))


def test_the_plateau_is_the_figure_that_its_error_belongs_to() -> None:
    for curve in _scaling(_bandwidth()).curves:
        assert curve.own is not None
        highest = max(point.tps.value for point in curve.points)
        if curve.own.plateau_error is not None:
            assert curve.own.plateau_tps == pytest.approx(highest * (1 + curve.own.plateau_error))
        assert curve.own.plateau_tps <= curve.own.ceiling_tps


def test_loopback_is_foreseen_by_no_other_curve() -> None:
    loopback = _named(_scaling(_bandwidth()), path="tcp")
    assert loopback.own is not None and loopback.own.mean_error is not None and loopback.foreign is None


def test_the_band_holds_the_model() -> None:
    for curve in _scaling(_bandwidth()).curves:
        for prediction in (curve.own, curve.foreign):
            for point in prediction.points if prediction else ():
                assert point.low <= point.tps <= point.high


@pytest.mark.parametrize(("rows", "differs"), [(100, False), (1000, True)])
def test_published_figures_of_another_workload_are_compared_as_shapes_only(rows: int, differs: bool) -> None:
    run = _bandwidth()
    plan = {**run.info.plan, "workload": {**run.info.plan["workload"], "range_size": rows}}
    info = run.info.model_copy(update={"plan_name": "bandwidth", "plan": plan})
    summary = summarise(run.model_copy(update={"info": info}))
    curve = _named(findings_of(summary, Scaling), rate_bps=10**9)
    assert curve.published is not None and curve.published_differs is differs
    details = published(summary)[-1]
    assert isinstance(details, Details) and isinstance(details.blocks[0], Table)
    table = details.blocks[0]
    assert ("2,838" in {row[4].text for row in table.rows}) is not differs, "at 64 connections"
    assert {row[5].text for row in table.rows} >= {"1.00"}, "shares stay"
    assert ("workload differs" in " ".join(table.notes)) is differs


def test_published_figures_of_another_server_do_not_stand_beside() -> None:
    run = _bandwidth()
    info = run.info.model_copy(update={"plan_name": "bandwidth", "server_kind": "postgresql"})
    curves = _scaling(run.model_copy(update={"info": info})).curves
    assert curves and all(curve.published is None for curve in curves)


def test_without_loopback_another_link_is_the_basis() -> None:
    run = _bandwidth()
    cells = [arm for arm in run.info.arms if arm.factors["path"] == "remote"]
    left = run.model_copy(update={"info": run.info.model_copy(update={"arms": tuple(cells)})})
    curve = _named(_scaling(left), rate_bps=10**8)
    assert curve.foreign is not None and curve.foreign.basis.startswith("from remote")


def test_a_run_with_one_number_of_connections_has_no_curves() -> None:
    run = run_of([_tcp(16), _remote(16, 1e9, 700.0)])
    assert scaling(run, arm_facts(run)) is None
    assert summarise(run).found(WhatIf) is None, "nothing was varied that the sliders vary"


def test_the_summary_carries_it_and_the_measured_point() -> None:
    summary = summarise(_bandwidth())
    assert summary.found(Scaling) is not None and summary.found(WhatIf) is not None
    assert findings_of(summary, WhatIf).rate_bps == 10**9, "the curve over a link with the highest throughput"
    measured = findings_of(summary, WhatIf).worked[0]
    assert measured.settings.threads == findings_of(summary, WhatIf).threads
    assert measured.answer.tps == pytest.approx(findings_of(summary, WhatIf).tps, rel=0.1)
