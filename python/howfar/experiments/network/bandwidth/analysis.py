"""Throughput over connections: the curves of a run, their ceilings, a model of them, and what limits each.

A curve consists of the cells that differ only in the number of connections. The model is fitted to the two ends of each curve. In
addition, a curve over a link is predicted from another curve: the loopback's, or else that of the same path at another rate or RTT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from howfar.analysis.causes import limit_cause
from howfar.analysis.cells import CellSummary
from howfar.analysis.published import PublishedSet, published_sets
from howfar.analysis.summary import RunEvidence, Summary
from howfar.experiments.network.answer import compare, compared_cells, groups_by_other_factors, locations
from howfar.experiments.network.bandwidth.texts import CURVES
from howfar.experiments.network.fit import Prediction, Series, bases_for_link, fit, predict, series, settings_of
from howfar.experiments.network.what_if import SHARED_CPU, network
from howfar.findings import Finding, Quantity, fill
from howfar.model.facts import ArmFacts
from howfar.model.resource import LINKS, Resource
from howfar.paths import is_direct, is_modelled
from howfar.plan.factor import Level
from howfar.plan.factors import PATH, RATE_BPS, THREADS
from howfar.plan.workload import Workload
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution
from howfar.stats.resample import PositiveInterval
from howfar.store.records import Run, RunInfo
from howfar.units import counted, format_rate_bps


class ThreadsPoint(Part):
    """One arm as a point of its curve. Rates are transactions per second."""

    threads: int
    arm: str
    tps: Estimate
    published_tps: float | None


class Ceiling(Part):
    """Maximum transactions per second that a resource allows."""

    resource: Resource
    tps: float
    tps_interval: PositiveInterval = None
    text: str = Field(alias="says")


class Curve(Part):
    """Cells that differ in nothing but the number of connections."""

    name: str
    factors: dict[str, Level]
    """All factors but `threads`."""
    points: tuple[ThreadsPoint, ...]
    ceilings: tuple[Ceiling, ...]
    """In ascending order; the first is the lowest and so limits the curve."""
    own: Prediction | None
    """The model fitted to the ends of this curve; shows whether the model describes it."""
    foreign: Prediction | None
    """The model from other curves of this run: does it predict the curve?"""
    published: str | None
    """Set-up with which `published_tps` was measured."""
    published_differs: bool = False
    """Whether the published workload is different: then the bends of the curves can be compared, but not transactions per second."""

    @property
    def top(self) -> ThreadsPoint:
        return max(self.points, key=lambda point: point.tps.value)


class Scaling(Part):
    curves: tuple[Curve, ...]
    text: str = Field(alias="says")
    """How well the model predicted curves from others. Empty: it predicted none."""


_LINK = ("rtt_ns", "rate_bps")
_CPUS = (Resource.CLIENT_CPU, Resource.SERVER_CPU)
_MAX_RELATIVE_DIFFERENCE = 1e-6


def curves_of(summary: Summary) -> tuple[Curve, ...]:
    """The curves of a run; without an answer, only what was measured, and no model or ceiling."""
    scaling = summary.find_findings(Scaling)
    curves = scaling.curves if scaling else ()
    measured_only = {"ceilings": (), "own": None, "foreign": None}
    return tuple(curve.model_copy(update=measured_only) for curve in curves) if summary.answer.is_missing else curves


def scaling(run: Run, facts: Sequence[ArmFacts]) -> Scaling | None:
    """The curves of a run. None: no cells differ only in their number of connections."""
    workload = run.info.stored_plan.workload
    all_series = [one_series for one_series in series(facts) if is_modelled(PATH.level_or_none(one_series.factors))]
    curve_series = [one_series for one_series in all_series if len(one_series.arms) > 1]
    if not curve_series:
        return None
    curves = tuple(_curve(run, one_series, all_series, workload) for one_series in curve_series)
    return Scaling(curves=curves, text=errors_text(curves))


def _curve(run: Run, curve_series: Series, all_series: Sequence[Series], workload: Workload | None) -> Curve:
    base = fit(curve_series.arms, workload)
    settings = settings_of(curve_series.top)
    published, published_set = _published(run.info, curve_series)
    own = predict(
        {curve_series.top.threads: base},
        settings,
        curve_series.arms,
        fill(CURVES["from itself"], ends=_endpoints_text(curve_series)),
        is_own_curve=True,
    )
    return Curve(
        name=curve_series.name,
        factors=curve_series.factors,
        points=tuple(
            ThreadsPoint(
                threads=facts.threads,
                arm=facts.arm.name,
                tps=facts.tps,
                published_tps=published.get(facts.threads),
            )
            for facts in curve_series.arms
        ),
        ceilings=_ceilings(curve_series, workload),
        own=own,
        foreign=predict_from_other_curve(curve_series, all_series, workload),
        published=published_set.setup if published_set else None,
        published_differs=published_set is not None and published_set.has_other_load(workload),
    )


def _endpoints_text(curve_series: Series) -> str:
    low, top = curve_series.arms[0].threads, curve_series.top.threads
    return f"{low} and {top} connections" if low != top else f"{low} connection{'s' if low > 1 else ''}"


def _ceilings(curve_series: Series, workload: Workload | None) -> tuple[Ceiling, ...]:
    base, top = fit(curve_series.arms, workload), curve_series.top
    ceilings = []
    for station in network(base, settings_of(top)).stations:
        if station.demand_s <= 0:
            continue
        tps = 1 / station.demand_s
        if station.name == SHARED_CPU:
            resource = Resource.SERVER_CPU
            text = _cpu_text(station.name, base.client_cpu_s + base.server_cpu_s, base.server_cpus)
        elif station.name == Resource.CLIENT_CPU:
            resource = Resource.CLIENT_CPU
            text = _cpu_text(station.name, base.client_cpu_s, base.client_cpus, top.client.emulator_cpus)
        elif station.name == Resource.SERVER_CPU:
            resource = Resource.SERVER_CPU
            text = _cpu_text(station.name, base.server_cpu_s, base.server_cpus, top.server.emulator_cpus)
        else:
            resource, rate_bps = Resource(station.name), top.rate_bps or 0.0
            figures = {"size": _kb(station.demand_s * rate_bps / 8), "rate": format_rate_bps(rate_bps)}
            text = fill(CURVES["link"], station=station.name, **figures)
        ceiling = Ceiling(resource=resource, tps=tps, text=text)
        if _is_read_off_top(ceiling, top):
            ceiling = ceiling.model_copy(update={"text": fill(CURVES["read off"], ceiling=text)})
        ceilings.append(ceiling)
    return tuple(sorted(ceilings, key=lambda ceiling: ceiling.tps))


def _cpu_text(station: str, demand_s: float, cpus: float, emulator_cpus: float = 0.0) -> str:
    text = fill(CURVES["cpu"], station=station, ms=demand_s * 1e3, cpus=counted(cpus, "CPU", ".2g"))
    is_shared = emulator_cpus >= 0.01
    return fill(CURVES["cpu beside the emulator"], cpu=text, emulator=emulator_cpus) if is_shared else text


def predict_from_other_curve(
    curve_series: Series, all_series: Sequence[Series], workload: Workload | None
) -> Prediction | None:
    """Prediction from a curve that differs only in the link. None: the curve is local, or this run has no such curve."""
    if curve_series.is_local:
        return None
    similar = [
        other
        for other in all_series
        if other is not curve_series
        and other.factors_without("path", *_LINK) == curve_series.factors_without("path", *_LINK)
    ]
    loopback = [
        other
        for other in similar
        if is_direct(PATH.level_or_none(other.factors), 1, by_socket=False) and len(other.arms) > 1
    ]
    links = [
        other
        for other in similar
        if not other.is_local and other.factors_without(*_LINK) == curve_series.factors_without(*_LINK)
    ]
    base_series = loopback[0] if loopback else next((other for other in links if len(other.arms) > 1), None)
    if base_series is None:
        return None
    settings, basis = (
        settings_of(curve_series.top),
        {"name": base_series.name, "size": _kb(base_series.top.bytes_to_client)},
    )
    if not base_series.is_local:
        bases = {base_series.top.threads: fit(base_series.arms, workload)}
        basis_text = fill(CURVES["from a link"], ends=_endpoints_text(base_series), **basis)
        return predict(bases, settings, curve_series.arms, basis_text, is_own_curve=False)
    other_link_facts = [facts for other in links for facts in other.arms if not facts.is_link_full]
    measured_threads = {facts.threads for facts in other_link_facts if facts.rate_bps and curve_series.top.rate_bps}
    cpu_text = CURVES["cpu of a link" if measured_threads else "cpu of the loopback"]
    if measured_threads and (lacking := {facts.threads for facts in base_series.arms} - measured_threads):
        numbers = ", ".join(map(str, sorted(lacking)))
        cpu_text = fill(CURVES["cpu of both"], cpu=cpu_text, lacking=numbers, name=base_series.name)
    return predict(
        bases_for_link(base_series.arms, curve_series.top, other_link_facts, workload),
        settings,
        curve_series.arms,
        fill(CURVES["from the loopback"], cpu=cpu_text, **basis),
        is_own_curve=False,
    )


def errors_text(curves: Sequence[Curve]) -> str:
    """The model's error over all curves that it predicted from others. Empty: none."""
    predicted = [curve.foreign for curve in curves if curve.foreign and curve.foreign.mean_error is not None]
    if not predicted:
        return ""
    points = sum(prediction.tested for prediction in predicted)
    mean = sum((prediction.mean_error or 0.0) * prediction.tested for prediction in predicted) / points
    worst = max(prediction.worst_error or 0.0 for prediction in predicted)
    return fill(CURVES["predicted"], mean=mean * 100, points=points, worst=worst * 100)


def _is_read_off_top(ceiling: Ceiling, top: ArmFacts | ThreadsPoint) -> bool:
    """Whether the ceiling was derived from the highest throughput itself, with a fully used processor, so that reaching it shows
    nothing."""
    return ceiling.resource in _CPUS and abs(ceiling.tps / top.tps.value - 1) < _MAX_RELATIVE_DIFFERENCE


def _published(info: RunInfo, curve_series: Series) -> tuple[dict[int, float], PublishedSet | None]:
    """Published transactions per second for this curve with this kind of server, by connections, and the set that contains them."""
    for entry in published_sets():
        if (
            entry.plan != info.plan_name
            or info.server_kind not in entry.servers
            or entry.has_other_setting(curve_series.factors)
        ):
            continue
        tps_by_threads = {}
        for cell in entry.cells:
            threads = THREADS.level_or_none(cell.factors)
            rest = {name: level for name, level in cell.factors.items() if name != "threads"}
            if (
                isinstance(threads, int)
                and cell.tps is not None
                and all(curve_series.factors.get(name) == level for name, level in rest.items())
            ):
                tps_by_threads[threads] = cell.tps
        if tps_by_threads:
            return tps_by_threads, entry
    return {}, None


def _kb(length: float) -> str:
    return f"{length / 1e3:.4g} kB"


# ---------------------------------------------------------------- the answer


def conclude(evidence: RunEvidence) -> tuple[Finding, ...]:
    """For each link, or without one for each path, the limit at the highest throughput; of a full link, what a faster one gives. The
    fastest full link is first, and slower ones, which are full as well, are last."""
    curves = _curves_by_location(evidence)
    findings = [_curve_finding(evidence, curve, curves.values(), subject) for subject, curve in curves.items()]
    full = [finding for finding in reversed(findings) if finding.id.startswith("link-")]
    return (*full[:1], *(finding for finding in findings if finding not in full), *full[1:])


def explain(evidence: RunEvidence) -> tuple[Finding, ...]:
    """The limit at the highest throughput over each link, with its figures."""
    tops = ((max(curve, key=_tps), subject) for subject, curve in _curves_by_location(evidence).items())
    causes = (limit_cause(top, subject) for top, subject in tops if top.arm not in evidence.refuted)
    return tuple(cause for cause in causes if cause is not None)


def _curves_by_location(evidence: RunEvidence) -> dict[str, list[CellSummary]]:
    """The cells over each link, from the slowest link; without links, those over each path."""
    groups = groups_by_other_factors(compared_cells(evidence, "threads", "rate_bps"), "threads")
    curves = [sorted(curve, key=_threads) for curve in groups if all(cell.limit is not None for cell in curve)]
    curves = [curve for curve in curves if _rate_bps(curve)] or curves
    curves.sort(key=_rate_bps)
    return dict(zip(locations([curve[0] for curve in curves], "threads"), curves, strict=True))


def _tps(cell: CellSummary) -> float:
    return cell.tps.value


def _threads(cell: CellSummary) -> int:
    return THREADS.level_in(cell.factors)


def _rate_bps(curve: Sequence[CellSummary]) -> float:
    return float(RATE_BPS.level_or_none(curve[0].factors) or 0)


_NO_LIMIT = ("refuted", Resource.ERRORS.id, Resource.INVALID.id, Resource.NOT_ESTABLISHED.id)
"""Ids of findings that name no limit."""


def _curve_finding(
    evidence: RunEvidence, curve: Sequence[CellSummary], curves: Iterable[Sequence[CellSummary]], subject: str
) -> Finding:
    top = max(curve, key=_tps)
    assert top.limit is not None, "each cell of the curve has a limit"
    first, last = _limited_range(curve, top)
    parameters: dict[str, str | int | float] = {
        "transactions_per_s": top.tps.value,
        "connections": _threads(top),
        "first_connections": first,
        "last_connections": last,
        "limit": top.limit.resource.value,
        "confidence": top.limit.confidence,
        "unsure": int(top.limit.confidence == "low"),
        "on_link": int(_rate_bps(curve) > 0),
    }
    faster = next((other for other in curves if _is_faster(other, curve)), None)
    compared = compare(evidence, max(faster, key=_tps), top) if faster else None
    name, estimate = top.limit.resource.id, None
    if top.arm in evidence.refuted:
        name = "refuted"
    elif faster and compared and compared[1] is Resolution.FASTER:
        estimate, parameters["faster_bps"] = compared[0], _rate_bps(faster)
        is_known = top.limit.resource is not Resource.NOT_ESTABLISHED
        name = "link-full" if top.limit.resource in LINKS else "link-not-full" if is_known else "link-slower"
    elif top.limit.resource in LINKS:
        estimate = top.limit.faster_link if faster is None and top.limit.confidence != "low" else None
        name = "link-full-at-most" if estimate else "link-full-unknown"
        if estimate is not None:
            parameters["most"] = estimate.value if estimate.high is None else estimate.high
    elif top.limit.divided:
        name = "divided-cpu"
    verdict = (
        Resolution.FASTER if "faster_bps" in parameters else Resolution.NOT_RESOLVED if name in _NO_LIMIT else None
    )
    metric = None if estimate is None else Quantity.THROUGHPUT
    return Finding(id=name, subject=subject, metric=metric, estimate=estimate, verdict=verdict, parameters=parameters)


def _is_faster(curve: Sequence[CellSummary], other: Sequence[CellSummary]) -> bool:
    """Whether a curve was measured over a faster link than another one, and everything else is equal."""
    levels = [{**cells[0].factors, "threads": 0, "rate_bps": 0} for cells in (curve, other)]
    return _rate_bps(curve) > _rate_bps(other) and levels[0] == levels[1]


def _limited_range(curve: Sequence[CellSummary], top: CellSummary) -> tuple[int, int]:
    """The measured numbers of connections, from and to, for which the limit at the highest throughput applies."""
    assert top.limit is not None, "the cell has a limit"
    same_limit = [cell.limit is not None and cell.limit.resource is top.limit.resource for cell in curve]
    first = last = curve.index(top)
    while first > 0 and same_limit[first - 1]:
        first -= 1
    while last < len(curve) - 1 and same_limit[last + 1]:
        last += 1
    return _threads(curve[first]), _threads(curve[last])
