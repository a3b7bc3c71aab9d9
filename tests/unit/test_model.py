"""The closed model: against exact results, against bounds, and against a published curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made import with_environment
from tests.unit.rendered import findings_of
from tests.unit.synthetic_curves import REPLIES, WORKLOAD, CurveCell, run_of

from howfar.analysis import plateau
from howfar.experiments.network.bandwidth.analysis import Curve, Scaling, errors_text, scaling
from howfar.experiments.network.bandwidth.curves import curve_labels, predictions, published
from howfar.experiments.network.bandwidth.report import what_if
from howfar.experiments.network.bandwidth.texts import CURVES, REPORT
from howfar.experiments.network.fit import bases_for_link, fit, series, settings_of
from howfar.experiments.network.what_if import SHARED_CPU, WhatIf, WhatIfAnswer, WhatIfSettings, answer, network
from howfar.experiments.registry import summarise
from howfar.findings import fill
from howfar.model.facts import arm_facts, carried_bytes, reply_sizes, wire_bytes
from howfar.model.queueing import SharedCpuWork, Station, ceiling, processor_stations, solve
from howfar.model.resource import Resource
from howfar.report.document import Details, Table
from howfar.store.records import Run


def _machine_repair(delay_s: float, service_s: float, connections: int) -> float:
    """Throughput of one exponential station and a delay, from the balance equations of its birth-death chain."""
    weight, weights = 1.0, [1.0]
    for waiting in range(1, connections + 1):
        weight *= (connections - waiting + 1) * service_s / delay_s
        weights.append(weight)
    return (1 - weights[0] / sum(weights)) / service_s


@pytest.mark.parametrize("connections", [1, 2, 7, 30])
def test_exponential_services_are_solved_exactly(connections: int) -> None:
    (*_, last) = solve(0.010, [Station.exponential("line", 4, 0.001)], connections)
    assert last.throughput == pytest.approx(_machine_repair(0.010, 0.001, connections), rel=1e-9)


def test_balanced_stations_share_the_queue() -> None:
    """K equal exponential stations and no delay: X(N) = N / (D (N + K - 1))."""
    stations = [Station.exponential(f"{number}", 1, 0.002) for number in range(3)]
    for point in solve(0.0, stations, 20):
        assert point.throughput == pytest.approx(point.connections / (0.002 * (point.connections + 2)))


def test_equal_services_wait_half_of_what_exponential_ones_do() -> None:
    """Two connections, one station: the second finds the first in service with probability U(1) = 0.5 and half of it left."""
    constant = Station.from_services("line", [0.001])
    (_, two) = solve(0.001, [constant], 2)
    assert two.throughput == pytest.approx(2 / (0.002 + 0.5 * 0.0005))


def test_processors_are_a_fast_one_and_a_delay() -> None:
    station, delay_s = processor_stations("server CPU", 16, 0.004, 4)
    assert station.demand_s == pytest.approx(0.001)
    assert delay_s == pytest.approx(0.003)


services = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=20)


@given(st.floats(0, 0.1), st.lists(services, min_size=1, max_size=3), st.integers(1, 60))
def test_no_bound_is_passed(delay_s: float, all_services: list[list[float]], most: int) -> None:
    stations = [Station.from_services(f"{number}", each) for number, each in enumerate(all_services)]
    alone = delay_s + sum(station.demand_s for station in stations)
    for point in solve(delay_s, stations, most):
        assert point.throughput <= min(point.connections / alone, ceiling(stations)) * (1 + 1e-9)
        assert all(0 <= busy <= 1 for busy in point.utilisation.values())
        assert point.cycle_s >= alone * (1 - 1e-9)


# ---------------------------------------------------------------- a published curve

CONNECTIONS = (1, 4, 16, 32, 64, 96, 128, 256, 512, 1024, 2048)
GIGABIT = (326, 1143, 2400, 2666, 2838, 2865, 2867, 2867, 2867, 2865, 2762)
TEN_GIGABIT = (394, 1545, 5648, 10256, 15763, 17627, 18526, 18529, 17902, 16954, 16394)
"""Transactions per second, sysbench oltp_read_only, Percona 2019 ("How network bandwidth affects MySQL performance")."""

PUBLISHED_REPLIES = 10 * 197 + 3 * 12_670 + 98 + 2 * 11
"""Bytes of a transaction's replies: a row of `c` (119 characters) with its definition; 100 such rows; one number; begin and commit."""


def _cell(connections: int, tps: float) -> CurveCell:
    """A cell of the 10 Gb/s series as a run would hold it. Assumptions: the server was full at the highest throughput; the client had
    many processors; sessions were encrypted, as was usual. The RTT was not published and cancels out: what it does not take of a lone
    connection's cycle counts as think time."""
    factors = {"path": "remote", "threads": connections, "rtt_ns": 100_000, "rate_bps": 10**10, "tls": "1.2"}
    return CurveCell(factors, tps, client_s=1e-6, server_s=1 / max(TEN_GIGABIT), replies=PUBLISHED_REPLIES)


def _foreseen(connections: int) -> WhatIfAnswer:
    """Predicted with the product's own code: cells, facts, fit, answer at another rate. Nothing is fitted to the gigabit series."""
    run = run_of([_cell(*cell) for cell in zip(CONNECTIONS, TEN_GIGABIT, strict=True)], wobble=0.0)
    facts = arm_facts(run)
    base, settings = fit(facts, WORKLOAD), settings_of(facts[0])
    return answer(base, settings.model_copy(update={"rate_bps": 1e9, "threads": connections}))


def test_a_published_gigabit_curve_follows_from_the_ten_gigabit_one() -> None:
    errors = [_foreseen(n).tps / seen - 1 for n, seen in zip(CONNECTIONS, GIGABIT, strict=True)]
    assert sum(map(abs, errors)) / len(errors) <= 0.05, errors
    assert max(map(abs, errors)) <= 0.12, errors


def test_the_model_names_the_link_and_its_knee() -> None:
    assert _foreseen(256).limits == "link to client" and _foreseen(1).limits == "latency"
    assert 5 < _foreseen(1).knee < 12, "2666 of 2867 were reached at 32, 1143 at 4"


# ---------------------------------------------------------------- the model at other settings than its base's


LINK = {"rtt_ns": 200_000, "rate_bps": 10**9}


def _base(**changed: object) -> WhatIf:
    (facts,) = arm_facts(run_of([CurveCell({"path": "remote", "threads": 1, **LINK}, 150.0)]))
    return fit([facts], WORKLOAD).model_copy(update=changed)


BASE = _base()


def _settings(**changed: object) -> WhatIfSettings:
    now = WhatIfSettings(threads=16, rtt_s=0.0002, rate_bps=1e9, tls=False, connect_each=False, compression="off")
    return now.model_copy(update=changed)


@settings(deadline=None)  # no wall clock: the machine may be busy
@given(st.floats(1e6, 1e11), st.floats(1.01, 10), st.integers(1, 200), st.floats(0, 0.05))
def test_more_of_anything_is_never_less(rate_bps: float, times: float, threads: int, rtt_s: float) -> None:
    """The first-come-first-served correction is an approximation: 2 % in the wrong direction is accepted."""
    base, here = BASE, _settings(threads=threads, rate_bps=rate_bps, rtt_s=rtt_s)
    tps = answer(base, here).tps
    assert answer(base, here.model_copy(update={"rate_bps": rate_bps * times})).tps >= tps * (1 - 0.02)
    assert answer(base, here.model_copy(update={"threads": threads + 1})).tps >= tps * (1 - 1e-9)
    assert answer(base, here.model_copy(update={"rtt_s": rtt_s + 0.01})).tps <= tps * (1 + 0.02)


def test_a_full_link_passes_what_its_bytes_say() -> None:
    """Computed by hand: 16 replies of 39432 bytes in all, each in segments of 1448 with 90 bytes of headers."""
    lengths = reply_sizes(WORKLOAD, 16, 39_432)
    assert len(lengths) == 16 and sum(lengths) == pytest.approx(39_432)
    wire = sum(length + 90 * -(-length // 1448) for length in lengths)
    found = answer(_base(), _settings(rate_bps=1e7, threads=256))
    assert found.tps == pytest.approx(1e7 / 8 / wire, rel=0.01)
    assert found.limits == "link to client"


def test_bytes_on_the_way() -> None:
    assert wire_bytes(1448) == 1448 + 90 and wire_bytes(1449) == 1449 + 180
    assert carried_bytes(20_000, record_bytes=22) == 20_000 + 2 * 22, "two records"
    assert carried_bytes(20_000, ratio=0.5) == 10_000


def test_a_connect_for_every_transaction_costs_its_turns_and_its_cpu() -> None:
    base = _base(connect_turns=3.0, connect_server_s=0.001, tls_connect_turns=2.0, tls_connect_server_s=0.002)
    lone = _settings(threads=1)

    def cycle(**changed: object) -> float:
        return answer(base, lone.model_copy(update=changed)).cycle_s

    plain, tls = cycle(connect_each=True), cycle(connect_each=True, tls=True)
    assert plain - cycle() == pytest.approx(3 * 0.0002 + 0.001 / base.server_cpus, rel=1e-6)
    assert tls - plain == pytest.approx(2 * 0.0002 + 0.002 / base.server_cpus, rel=0.05)


def test_a_long_reply_is_sent_while_the_server_reads_on() -> None:
    """One reply of 1.6 MB takes 10 ms on the line and 8 ms of the server: both overlap for all but the first 16 KiB."""
    apart = _base(replies_bytes=(16_000.0,) * 100, requests_bytes=(50.0,), server_cpu_s=0.008, think_s=0.0)
    once = apart.model_copy(update={"replies_bytes": (1_600_000.0,)})
    lone = _settings(threads=1)
    saved = network(apart, lone).delay_s - network(once, lone).delay_s
    assert saved == pytest.approx(0.008 * (1 - 16_384 / 1_600_000))


def test_however_much_overlaps_the_longest_part_is_left() -> None:
    base = _base(think_s=-1.0)
    for rate in (1e7, 1e10):
        found = network(base, _settings(rate_bps=rate, rtt_s=0.0))
        assert answer(base, _settings(rate_bps=rate, rtt_s=0.0, threads=1)).tps == pytest.approx(found.ceiling)


def _machines(*cells: CurveCell) -> Run:
    return with_environment(run_of(list(cells)), placement="machines")


def test_one_machine_shares_its_processors_and_two_do_not() -> None:
    local, remote = arm_facts(
        _machines(
            CurveCell({"path": "tcp", "threads": 16}, 900.0),
            CurveCell({"path": "remote", "threads": 16, **LINK}, 900.0),
        )
    )
    base = fit([local], WORKLOAD)
    assert [station.name for station in network(base, settings_of(local)).stations] == [SHARED_CPU]
    (moved,) = bases_for_link([local], remote, [], WORKLOAD).values()
    names = [station.name for station in network(moved, settings_of(remote)).stations]
    assert names == ["client CPU", "server CPU", "link to client", "link to server"]


def _short(path: str, **changed: Any) -> WhatIf:
    """Both processors are full, and each end waits ten times as long as it works: they use 0.1 and 0.4 of a processor."""
    known: dict[str, Any] = {
        "client_s": 0.001,
        "server_s": 0.004,
        "client_wait_s": 0.01,
        "server_wait_s": 0.04,
        "busy": {0: 1.0, 1: 1.0},
    }
    factors = {"path": path, "threads": 16, **(LINK if path == "remote" else {})}
    (facts,) = arm_facts(_machines(CurveCell(factors, 100.0, **{**known, **changed})))
    return fit([facts], WORKLOAD)


def test_an_end_that_was_short_of_processors_had_what_it_used() -> None:
    assert _short("remote").server_cpus == pytest.approx(0.4, rel=0.01)
    assert _short("remote", busy={0: 0.9, 1: 0.9}).server_cpus > 0.49, "not full"
    assert _short("remote", server_wait_s=0.0045).server_cpus > 0.49, "not always wanted"
    assert _short("remote", busy=None).server_cpus > 0.49, "no counter says so"
    assert _short("remote", server_s=0.004, wire_share=30.0).server_cpus > 0.49, "the link was full"


def test_ends_that_share_processors_had_what_both_used() -> None:
    assert _short("tcp").server_cpus == pytest.approx(0.5, rel=0.01)


def test_the_emulator_s_share_is_taken_off_what_the_load_may_have() -> None:
    """The emulator takes 4 ms per transaction at 100 per second: 0.4 CPUs, half of them on each host."""
    (facts,) = arm_facts(run_of([CurveCell({"path": "remote", "threads": 16, **LINK}, 100.0, link_s=0.004)]))
    assert fit([facts], WORKLOAD).server_cpus == pytest.approx(0.8, rel=0.01)


# ---------------------------------------------------------------- curves and predictions


CYCLE_S = 0.0022
"""Cycle of a lone connection on loopback: 1 ms of CPU, and 1.2 ms in which neither end works."""
RTT_S = 0.0002
WIRE = REPLIES + 90 * 39
"""Bytes on the wire per transaction, in about 39 segments: 12 short replies, 3 of nine segments."""


def _tcp(threads: int) -> CurveCell:
    """A cell by the two bounds of throughput, smoothed where they meet: this is not the model's law."""
    soft = ((CYCLE_S / threads) ** 2 + 0.0008**2) ** -0.5 if threads > 1 else 1 / CYCLE_S
    return CurveCell({"path": "tcp", "threads": threads}, soft)


def _remote(threads: int, rate_bps: float, tps: float) -> CurveCell:
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": int(rate_bps)}
    return CurveCell(factors, tps, link_s=0.0005)


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
    """Which cell has the highest throughput may be chance; the computed settings must not change with it."""
    run = _bandwidth()
    facts, workload = arm_facts(run), run.info.stored_plan.workload
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
    run = run_of([_tcp(1), CurveCell({**_tcp(16).factors, "tls": "off"}, 900.0)])
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
    assert "tcp at the same numbers of connections" in curve.foreign.basis


def test_a_fast_link_is_not_and_the_emulator_s_part_is_named() -> None:
    curve = _named(_scaling(_bandwidth()), rate_bps=10**9)
    assert curve.ceilings[0].resource is Resource.SERVER_CPU
    assert "emulator" in curve.ceilings[0].text


_FULL = {0: 1.0, 1: 1.0}


def _waited(path: str, threads: int, tps: float, rate_bps: float | None = None) -> CurveCell:
    """Other programs keep both processors busy, so that each end waits longer than it works. The server works 4 ms per transaction and
    always has work where it is the limit; the client works 0.5 ms."""
    factors: dict[str, Any] = {"path": path, "threads": threads}
    if rate_bps is not None:
        factors |= {"rtt_ns": 200_000, "rate_bps": int(rate_bps)}
    limits = rate_bps is None or 8 * WIRE * tps < 0.9 * rate_bps
    wait_s = (threads - 0.5) / tps - 0.004 if limits and threads > 1 else 0.005
    return CurveCell(factors, tps, 0.0005, 0.004, client_wait_s=0.001, server_wait_s=wait_s, busy=_FULL)


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
    assert "taken at the highest throughput itself" in curve.ceilings[0].text


@pytest.mark.parametrize("threads", [(1, 2), (1, 4, 16, 64)])
def test_a_knee_that_no_measured_number_of_connections_reaches_is_marked(threads: tuple[int, ...]) -> None:
    cells = [_tcp(number) for number in threads]
    summary = summarise(run_of(cells))
    (curve,) = findings_of(summary, Scaling).curves
    assert curve.own is not None and 2 < curve.own.knee < 64
    assert curve.own.extrapolated is (threads[-1] == 2)
    (details,) = predictions(summary)
    assert isinstance(details, Details)
    (table,) = details.blocks
    assert isinstance(table, Table)
    knee = [column.head for column in table.columns].index("knee")
    assert [row[knee].text.endswith(" *") for row in table.rows] == [curve.own.extrapolated]
    assert (REPORT["extrapolated"] in table.notes) is curve.own.extrapolated


def test_a_curve_is_named_by_its_rate_as_tables_have_it() -> None:
    local, *linked = _scaling(_bandwidth()).curves
    names = {10**8: "remote, 100mbit", 10**9: "remote, 1gbit"}
    renamed = [curve.model_copy(update={"name": names[int(curve.factors["rate_bps"])]}) for curve in linked]
    assert curve_labels([local, *renamed]) == ["tcp", "remote, 100 Mb/s", "remote, 1 Gb/s"]


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


def _moved(server_s: Mapping[int, float], other: CurveCell) -> dict[int, WhatIf]:
    """The model moved onto a 1 Gb/s link, with `other` measured too, from a loopback with these server times by connections."""
    local = [CurveCell({"path": "tcp", "threads": number}, 400.0, server_s=each) for number, each in server_s.items()]
    facts = arm_facts(run_of([*local, _remote(16, 1e9, 300.0), other]))
    others = [each for each in facts[len(local) + 1 :] if not each.is_link_full]
    return bases_for_link(facts[: len(local)], facts[len(local)], others, WORKLOAD)


def test_each_number_of_connections_is_predicted_from_the_loopback_s_own() -> None:
    full = CurveCell(
        {"path": "remote", "threads": 16, "rtt_ns": 200_000, "rate_bps": 10**7}, 1e7 / 8 / WIRE, server_s=0.005
    )
    moved = _moved({1: 0.0010, 16: 0.0014}, full)
    assert {number: base.server_cpu_s for number, base in moved.items()} == pytest.approx({1: 0.0010, 16: 0.0014}, 1e-3)


def test_a_link_that_is_not_full_says_what_its_connections_cost() -> None:
    other = CurveCell({"path": "remote", "threads": 16, "rtt_ns": 200_000, "rate_bps": 10**10}, 300.0, server_s=0.002)
    moved = _moved({1: 0.0010, 16: 0.0014}, other)
    assert {number: base.server_cpu_s for number, base in moved.items()} == pytest.approx({1: 0.0010, 16: 0.002}, 1e-3)


def test_the_mean_error_of_several_curves_is_that_of_their_points() -> None:
    curve = _named(_scaling(_bandwidth()), rate_bps=10**9)
    assert curve.foreign is not None
    errors = (
        {"tested": 9, "mean_error": 0.1, "worst_error": 0.3},
        {"tested": 1, "mean_error": 0.2, "worst_error": 0.2},
    )
    curves = tuple(curve.model_copy(update={"foreign": curve.foreign.model_copy(update=each)}) for each in errors)
    assert errors_text(curves) == fill(CURVES["predicted"], mean=11.0, points=10, worst=30.0)


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
    assert summarise(run).find_findings(WhatIf) is None, "nothing was varied that the model needs"


def test_the_summary_carries_it_and_the_measured_point() -> None:
    summary = summarise(_bandwidth())
    assert summary.find_findings(Scaling) is not None and summary.find_findings(WhatIf) is not None
    assert findings_of(summary, WhatIf).rate_bps == 10**9, "the curve over a link with the highest throughput"
    measured = findings_of(summary, WhatIf).worked[0]
    assert measured.settings.threads == findings_of(summary, WhatIf).threads
    assert measured.answer.tps == pytest.approx(findings_of(summary, WhatIf).tps, rel=0.1)


def test_a_lone_connection_finds_others_on_its_processors_the_less_the_longer_it_waits() -> None:
    busy = SharedCpuWork.from_measurement(
        cycle_s=1.0, wait_s=0.1, others_s=1.2, processors=2
    )  # 0.6 of them: work takes 1 / 0.64 of its time
    assert busy.work_s == pytest.approx(0.9 * 0.64)
    assert busy.cycle_s(0.1) == pytest.approx(1.0)
    assert busy.cycle_s(100.0) == pytest.approx(100 + 0.9 * 0.64, rel=1e-6)
    alone = SharedCpuWork.from_measurement(cycle_s=1.0, wait_s=0.1, others_s=0.0, processors=2)
    assert alone.cycle_s(5.0) == pytest.approx(5.9)
    full = SharedCpuWork.from_measurement(cycle_s=1.0, wait_s=0.0, others_s=4.0, processors=2)
    assert 0 < full.work_s < full.cycle_s(0.5), "more than all of them was read: the clocks' grain"
