"""Throughput over connections: the curves of a run, their ceilings, a model of them, and the answer in a sentence.

A curve consists of the cells that differ only in the number of connections. The model is fitted to the two ends of each curve. In
addition, a curve over a link is predicted from another curve: the loopback's, or else that of the same path at another rate or RTT.
"""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.cells import CellSummary
from howfar.analysis.published import PublishedSet, published_sets
from howfar.analysis.summary import RunEvidence, Summary
from howfar.bottleneck.cycle import largest
from howfar.bottleneck.limit import Limit
from howfar.experiments.answer import answer, compared_cells, groups_without, limit_clause, tps_of, where_text
from howfar.model.facts import ArmFacts
from howfar.model.fit import Prediction, Series, fit, onto_link, predict, series, settings_of
from howfar.model.resource import Resource
from howfar.model.what_if import SHARED_CPU, network
from howfar.paths import is_direct, is_modelled
from howfar.plan.factors import Level
from howfar.plan.types import Workload
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import Derived, within
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
    tps_interval: Derived = None
    says: str


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
    says: str
    """The answer in a sentence."""


_LINK = ("rtt_ns", "rate_bps")
_CPUS = (Resource.CLIENT_CPU, Resource.SERVER_CPU)
_MAX_RELATIVE_DIFFERENCE = 1e-6


def curves_of(summary: Summary) -> tuple[Curve, ...]:
    found = summary.found(Scaling)
    return found.curves if found else ()


def scaling(run: Run, facts: Sequence[ArmFacts]) -> Scaling | None:
    """The curves of a run. None: no cells differ only in their number of connections."""
    workload = run.info.stored_plan.workload
    all_series = [one_series for one_series in series(facts) if is_modelled(one_series.factors.get("path"))]
    curve_series = [one_series for one_series in all_series if len(one_series.arms) > 1]
    if not curve_series:
        return None
    curves = tuple(_curve(run, one_series, all_series, workload) for one_series in curve_series)
    return with_sentence(Scaling(curves=curves, says=""))


def with_sentence(finding: Scaling) -> Scaling:
    """The finding with its sentence, which quotes intervals and so can be written only when these are known."""
    return finding.model_copy(update={"says": _sentence(finding.curves)})


def _curve(run: Run, curve_series: Series, all_series: Sequence[Series], workload: Workload | None) -> Curve:
    base = fit(curve_series.arms, workload)
    settings = settings_of(curve_series.top)
    published, published_set = _published(run.info, curve_series)
    own = predict(
        {curve_series.top.threads: base},
        settings,
        curve_series.arms,
        f"from {_endpoints_text(curve_series)} of the curve itself",
        own=True,
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
        published_differs=published_set is not None and published_set.differs(workload),
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
            resource, text = Resource.SERVER_CPU, _cpu_text(base.client_cpu_s + base.server_cpu_s, base.server_cpus)
        elif station.name == Resource.CLIENT_CPU:
            resource, text = (
                Resource.CLIENT_CPU,
                _cpu_text(base.client_cpu_s, base.client_cpus, top.client.emulator_cpus),
            )
        elif station.name == Resource.SERVER_CPU:
            resource, text = (
                Resource.SERVER_CPU,
                _cpu_text(base.server_cpu_s, base.server_cpus, top.server.emulator_cpus),
            )
        else:
            resource, rate = Resource(station.name), top.rate_bps or 0.0
            text = f"{_kb(station.demand_s * rate / 8)} per transaction over {format_rate_bps(rate)}"
        ceiling = Ceiling(resource=resource, tps=tps, says=f"{station.name}: {text}")
        if _is_read_off_top(ceiling, top):
            ceiling = ceiling.model_copy(update={"says": f"{ceiling.says}, taken at the highest throughput itself"})
        ceilings.append(ceiling)
    return tuple(sorted(ceilings, key=lambda ceiling: ceiling.tps))


def _cpu_text(demand_s: float, cpus: float, emulator_cpus: float = 0.0) -> str:
    text = f"{demand_s * 1e3:.3g} ms per transaction, {counted(cpus, 'CPU', '.2g')}"
    return f"{text} in addition to {emulator_cpus:.2g} used by the link's emulator" if emulator_cpus >= 0.01 else text


def predict_from_other_curve(
    curve_series: Series, all_series: Sequence[Series], workload: Workload | None
) -> Prediction | None:
    """Prediction from a curve that differs only in the link. None: the curve is local, or this run has no such curve."""
    if curve_series.local:
        return None
    similar = [
        other
        for other in all_series
        if other is not curve_series and other.but("path", *_LINK) == curve_series.but("path", *_LINK)
    ]
    loopback = [
        other for other in similar if is_direct(other.factors.get("path"), 1, by_socket=False) and len(other.arms) > 1
    ]
    links = [other for other in similar if not other.local and other.but(*_LINK) == curve_series.but(*_LINK)]
    base_series = loopback[0] if loopback else next((other for other in links if len(other.arms) > 1), None)
    if base_series is None:
        return None
    settings, answers_text = (
        settings_of(curve_series.top),
        f"{_kb(base_series.top.bytes_to_client)} of answers per transaction",
    )
    if not base_series.local:
        bases = {base_series.top.threads: fit(base_series.arms, workload)}
        return predict(
            bases,
            settings,
            curve_series.arms,
            f"from {base_series.name} at {_endpoints_text(base_series)}, {answers_text}",
            own=False,
        )
    other_link_facts = [facts for other in links for facts in other.arms if not facts.link_full]
    basis_text = (
        f"from {base_series.name} at the same numbers of connections, {answers_text}, the link's rate and its round "
        "trip at rest"
    )
    measured_threads = {facts.threads for facts in other_link_facts if facts.rate_bps and curve_series.top.rate_bps}
    basis_text += (
        ", CPU as over the nearest other link that was not full"
        if measured_threads
        else ", the emulator's share of the CPUs"
    )
    if measured_threads and (lacking := {facts.threads for facts in base_series.arms} - measured_threads):
        numbers = ", ".join(map(str, sorted(lacking)))
        basis_text += f" (at {numbers} connections: as on {base_series.name}, and the emulator's share)"
    return predict(
        onto_link(base_series.arms, curve_series.top, other_link_facts, workload),
        settings,
        curve_series.arms,
        basis_text,
        own=False,
    )


def _sentence(curves: Sequence[Curve]) -> str:
    sentences = [_curve_sentence(curve) for curve in curves]
    predicted = [curve.foreign for curve in curves if curve.foreign and curve.foreign.mean_error is not None]
    if predicted:
        points = sum(prediction.tested for prediction in predicted)
        mean = sum((prediction.mean_error or 0.0) * prediction.tested for prediction in predicted) / points
        worst = max(prediction.worst_error or 0.0 for prediction in predicted)
        sentences.append(
            f"The model predicted the curves over a link from another one with a mean error of {mean:.1%} over {points} points"
            f" (worst {worst:.1%})"
        )
    return ". ".join(sentences).replace("%", " %") + "."


def _curve_sentence(curve: Curve) -> str:
    top, binding = curve.top, curve.ceilings[0] if curve.ceilings else None
    text = f"{curve.name}: at most {top.tps.value:.4g} transactions/s, at {top.threads} connections"
    if binding is None or curve.own is None:
        return text
    share, ceiling = top.tps.value / binding.tps, within(binding.tps, binding.tps_interval, "{:.4g}".format)
    if _is_read_off_top(binding, top):
        return f"{text}, where {binding.resource} was full; no ceiling can be predicted from that point"
    if share >= 0.9:
        knee = within(curve.own.knee, curve.own.knee_interval, "{:.3g}".format)
        beyond = ", beyond what was measured" if curve.own.extrapolated else ""
        return f"{text}; the {binding.resource} is the ceiling ({ceiling}), N* {knee}{beyond}"
    return f"{text}, {share:.0%} of the lowest known ceiling ({binding.resource}, {ceiling})"


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
            or entry.is_elsewhere(curve_series.factors)
        ):
            continue
        tps_by_threads = {}
        for cell in entry.cells:
            threads = cell.factors.get("threads")
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

_WITHOUT_RANGE = frozenset({Resource.NOT_ESTABLISHED, Resource.ERRORS, Resource.INVALID})
_DETAILED = frozenset(
    {
        Resource.LINK_TO_CLIENT,
        Resource.LINK_TO_SERVER,
        Resource.SERVER_CPU,
        Resource.CLIENT_CPU,
        Resource.INSTRUMENT_CPU,
        Resource.ERRORS,
        Resource.INVALID,
    }
)
"""Limits whose text has figures after a colon, which the answer quotes."""


def verdict(evidence: RunEvidence) -> str:
    """The answer: for each link, the limit at the highest throughput, and the numbers of connections for which it applies."""
    curves = groups_without(compared_cells(evidence, "threads", "rate_bps"), "threads")
    limited_curves = [sorted(curve, key=_threads) for curve in curves if all(cell.limit is not None for cell in curve)]
    return answer([_curve_clause(curve) for curve in limited_curves], evidence, quoted=False)


def _threads(cell: CellSummary) -> int:
    return int(cell.factors.get("threads", 1))


def _curve_clause(curve: Sequence[CellSummary]) -> str:
    top = max(curve, key=tps_of)
    assert top.limit is not None, "curves without limits say nothing"
    has_range = top.limit.resource not in _WITHOUT_RANGE
    range_text = f" {_limited_range_text(curve, top)}" if has_range and len(curve) > 1 else ""
    confidence_text = ", with low confidence" if has_range and top.limit.confidence == "low" else ""
    return (
        f"{where_text(top.factors)} {limit_clause(top.limit)}{range_text} ({_figures(top, top.limit)}){confidence_text}"
    )


def _limited_range_text(curve: Sequence[CellSummary], top: CellSummary) -> str:
    """The measured numbers of connections for which the limit at the highest throughput applies: `from 16 connections on`."""
    assert top.limit is not None, "only of a limit"
    same_limit = [cell.limit is not None and cell.limit.resource is top.limit.resource for cell in curve]
    first = last = curve.index(top)
    while first > 0 and same_limit[first - 1]:
        first -= 1
    while last < len(curve) - 1 and same_limit[last + 1]:
        last += 1
    low, high = (_threads(curve[index]) for index in (first, last))
    starts_at_first, ends_at_last = first == 0, last == len(curve) - 1
    if top.limit.resource is Resource.LATENCY and starts_at_first:
        return f"up to {counted(high, 'connection')}"
    if ends_at_last:
        return f"from {counted(low, 'connection')} on"
    return f"at {counted(low, 'connection')}" if low == high else f"from {low} to {counted(high, 'connection')}"


def _figures(cell: CellSummary, limit: Limit) -> str:
    tps = tps_of(cell)
    tps_text = f"{tps:.1f}" if tps < 100 else f"{tps:,.0f}"
    detail = limit.says.partition(": ")[2].partition(";")[0] if limit.resource in _DETAILED else ""
    if limit.resource is Resource.LATENCY and cell.cycle is not None:
        largest_part = largest(cell.cycle, 1)[0]
        detail = f"{largest_part.us / cell.cycle.us * 100:.0f} % of the cycle in {largest_part.name}"
    return f"{tps_text} transactions/s{', ' if detail else ''}{detail}"
