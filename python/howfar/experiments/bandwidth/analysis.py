"""Throughput against connections: the curves of a run, their ceilings, a model of them, and the answer in a sentence.

A curve consists of the cells that differ only in the number of connections. The model is fitted to each curve's own two ends. In
addition, a curve over a link is predicted from another one: the loopback's, or else the same path's at another rate or round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howfar.analysis.cells import CellSummary
from howfar.analysis.published import PublishedSet, published_sets
from howfar.analysis.summary import RunEvidence, Summary, table_in
from howfar.bottleneck.cycle import largest
from howfar.bottleneck.limit import Limit
from howfar.experiments.answer import answer, compared, groups, is_clause, tps_of, where
from howfar.model.facts import ArmFacts
from howfar.model.fit import Prediction, Series, fit, onto_link, predict, series, settings_of
from howfar.model.resource import Resource
from howfar.model.what_if import SHARED_CPU, network
from howfar.paths import is_direct, is_modelled
from howfar.stats.estimate import Estimate, Part
from howfar.stats.resample import Derived, within
from howfar.store.records import FactorValue, Run, RunInfo
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
    factors: dict[str, FactorValue]
    """All factors but `threads`."""
    points: tuple[ThreadsPoint, ...]
    ceilings: tuple[Ceiling, ...]
    """Ascending; the first is the binding one."""
    own: Prediction | None
    """The model fitted to this curve's own ends: does it describe the curve?"""
    foreign: Prediction | None
    """The model from other curves of this run: does it predict the curve?"""
    published: str | None
    """Set-up of those who published `published_tps`."""
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
_SAME = 1e-6


def curves_of(summary: Summary) -> tuple[Curve, ...]:
    found = summary.found(Scaling)
    return found.curves if found else ()


def scaling(run: Run, facts: Sequence[ArmFacts]) -> Scaling | None:
    """The curves of a run. None: no cells differ only in their number of connections."""
    workload = table_in(run.info.plan, "workload")
    every = [each for each in series(facts) if is_modelled(each.factors.get("path"))]
    drawn = [each for each in every if len(each.arms) > 1]
    if not drawn:
        return None
    curves = tuple(_curve(run, each, every, workload) for each in drawn)
    return worded(Scaling(curves=curves, says=""))


def worded(found: Scaling) -> Scaling:
    """The finding with its sentence, which quotes the intervals of its figures."""
    return found.model_copy(update={"says": _says(found.curves)})


def _curve(run: Run, one: Series, every: Sequence[Series], workload: Mapping[str, Any]) -> Curve:
    base = fit(one.arms, workload)
    settings = settings_of(one.top)
    published, entry = _published(run.info, one)
    own = predict({one.top.threads: base}, settings, one.arms, f"from {_ends(one)} of the curve itself", own=True)
    return Curve(
        name=one.name,
        factors=one.factors,
        points=tuple(
            ThreadsPoint(
                threads=facts.threads,
                arm=facts.arm.name,
                tps=facts.tps,
                published_tps=published.get(facts.threads),
            )
            for facts in one.arms
        ),
        ceilings=_ceilings(one, workload),
        own=own,
        foreign=foreign(one, every, workload),
        published=entry.setup if entry else None,
        published_differs=entry is not None and entry.differs(workload),
    )


def _ends(one: Series) -> str:
    low, top = one.arms[0].threads, one.top.threads
    return f"{low} and {top} connections" if low != top else f"{low} connection{'s' if low > 1 else ''}"


def _ceilings(one: Series, workload: Mapping[str, Any]) -> tuple[Ceiling, ...]:
    base, top = fit(one.arms, workload), one.top
    found = []
    for station in network(base, settings_of(top)).stations:
        if station.demand_s <= 0:
            continue
        tps = 1 / station.demand_s
        if station.name == SHARED_CPU:
            resource, what = Resource.SERVER_CPU, _cpu_says(base.client_cpu_s + base.server_cpu_s, base.server_cpus)
        elif station.name == Resource.CLIENT_CPU:
            resource, what = (
                Resource.CLIENT_CPU,
                _cpu_says(base.client_cpu_s, base.client_cpus, top.client.emulator_cpus),
            )
        elif station.name == Resource.SERVER_CPU:
            resource, what = (
                Resource.SERVER_CPU,
                _cpu_says(base.server_cpu_s, base.server_cpus, top.server.emulator_cpus),
            )
        else:
            resource, rate = Resource(station.name), top.rate_bps or 0.0
            what = f"{_kb(station.demand_s * rate / 8)} per transaction over {format_rate_bps(rate)}"
        ceiling = Ceiling(resource=resource, tps=tps, says=f"{station.name}: {what}")
        if _is_its_own(ceiling, top):
            ceiling = ceiling.model_copy(update={"says": f"{ceiling.says}, taken at the highest throughput itself"})
        found.append(ceiling)
    return tuple(sorted(found, key=lambda ceiling: ceiling.tps))


def _cpu_says(demand_s: float, cpus: float, emulator: float = 0.0) -> str:
    text = f"{demand_s * 1e3:.3g} ms per transaction, {counted(cpus, 'CPU', '.2g')}"
    return f"{text} in addition to {emulator:.2g} used by the link's emulator" if emulator >= 0.01 else text


def foreign(one: Series, every: Sequence[Series], workload: Mapping[str, Any]) -> Prediction | None:
    """Prediction from a curve that differs only in the link. None: the curve is local, or this run has no such curve."""
    if one.local:
        return None
    like = [each for each in every if each is not one and each.but("path", *_LINK) == one.but("path", *_LINK)]
    loopback = [each for each in like if is_direct(each.factors.get("path"), 1, by_socket=False) and len(each.arms) > 1]
    links = [each for each in like if not each.local and each.but(*_LINK) == one.but(*_LINK)]
    basis = loopback[0] if loopback else next((each for each in links if len(each.arms) > 1), None)
    if basis is None:
        return None
    settings, size = settings_of(one.top), f"{_kb(basis.top.bytes_to_client)} of answers per transaction"
    if not basis.local:
        bases = {basis.top.threads: fit(basis.arms, workload)}
        return predict(bases, settings, one.arms, f"from {basis.name} at {_ends(basis)}, {size}", own=False)
    others = [facts for each in links for facts in each.arms if not facts.link_full]
    text = f"from {basis.name} at the same numbers of connections, {size}, the link's rate and its round trip at rest"
    there = {facts.threads for facts in others if facts.rate_bps and one.top.rate_bps}
    text += ", CPU as over the nearest other link that was not full" if there else ", the emulator's share of the CPUs"
    if there and (lacking := {facts.threads for facts in basis.arms} - there):
        numbers = ", ".join(map(str, sorted(lacking)))
        text += f" (at {numbers} connections: as on {basis.name}, and the emulator's share)"
    return predict(onto_link(basis.arms, one.top, others, workload), settings, one.arms, text, own=False)


def _says(curves: Sequence[Curve]) -> str:
    parts = [_curve_says(curve) for curve in curves]
    predicted = [curve.foreign for curve in curves if curve.foreign and curve.foreign.mean_error is not None]
    if predicted:
        points = sum(each.tested for each in predicted)
        mean = sum((p.mean_error or 0.0) * p.tested for p in predicted) / points
        worst = max(p.worst_error or 0.0 for p in predicted)
        parts.append(
            f"The model predicted the curves over a link from another one with a mean error of {mean:.1%} over {points} points"
            f" (worst {worst:.1%})"
        )
    return ". ".join(parts).replace("%", " %") + "."


def _curve_says(curve: Curve) -> str:
    top, binding = curve.top, curve.ceilings[0] if curve.ceilings else None
    text = f"{curve.name}: at most {top.tps.value:.4g} transactions/s, at {top.threads} connections"
    if binding is None or curve.own is None:
        return text
    share, ceiling = top.tps.value / binding.tps, within(binding.tps, binding.tps_interval, "{:.4g}".format)
    if _is_its_own(binding, top):
        return f"{text}, where {binding.resource} was full; no ceiling can be predicted from that point"
    if share >= 0.9:
        knee = within(curve.own.knee, curve.own.knee_interval, "{:.3g}".format)
        beyond = ", beyond what was measured" if curve.own.extrapolated else ""
        return f"{text}; the {binding.resource} is the ceiling ({ceiling}), N* {knee}{beyond}"
    return f"{text}, {share:.0%} of the lowest known ceiling ({binding.resource}, {ceiling})"


def _is_its_own(ceiling: Ceiling, top: ArmFacts | ThreadsPoint) -> bool:
    """Whether the ceiling was read off the highest throughput itself (from a full processor), so that reaching it shows nothing."""
    return ceiling.resource in _CPUS and abs(ceiling.tps / top.tps.value - 1) < _SAME


def _published(info: RunInfo, one: Series) -> tuple[dict[int, float], PublishedSet | None]:
    """Published transactions per second for this curve with this kind of server, by connections, and the set that contains them."""
    for entry in published_sets():
        if entry.plan != info.plan_name or info.server_kind not in entry.servers or entry.is_elsewhere(one.factors):
            continue
        found = {}
        for cell in entry.cells:
            threads = cell.factors.get("threads")
            rest = {name: level for name, level in cell.factors.items() if name != "threads"}
            if (
                isinstance(threads, int)
                and cell.tps is not None
                and all(one.factors.get(name) == level for name, level in rest.items())
            ):
                found[threads] = cell.tps
        if found:
            return found, entry
    return {}, None


def _kb(length: float) -> str:
    return f"{length / 1e3:.4g} kB"


# ---------------------------------------------------------------- the answer

_UNNAMED = frozenset({Resource.NOT_ESTABLISHED, Resource.ERRORS, Resource.INVALID})
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
"""Limits whose sentences have figures after a colon."""


def verdict(evidence: RunEvidence) -> str:
    """For each link: what is the limit at its highest throughput, and from how many connections on."""
    curves = groups(compared(evidence, "threads", "rate_bps"), "threads")
    limited = [sorted(curve, key=_threads) for curve in curves if all(cell.limit is not None for cell in curve)]
    return answer([_curve_clause(curve) for curve in limited], evidence, quoted=False)


def _threads(cell: CellSummary) -> int:
    return int(cell.factors.get("threads", 1))


def _curve_clause(curve: Sequence[CellSummary]) -> str:
    top = max(curve, key=tps_of)
    assert top.limit is not None, "curves without limits say nothing"
    named = top.limit.resource not in _UNNAMED
    stretch = f" {_stretch(curve, top)}" if named and len(curve) > 1 else ""
    sure = ", with low confidence" if named and top.limit.confidence == "low" else ""
    return f"{where(top.factors)} {is_clause(top.limit)}{stretch} ({_figures(top, top.limit)}){sure}"


def _stretch(curve: Sequence[CellSummary], top: CellSummary) -> str:
    """The measured numbers of connections around the best one for which its limit applies, in text: `from 16 connections on`."""
    assert top.limit is not None, "only of a limit"
    bound = [cell.limit is not None and cell.limit.resource is top.limit.resource for cell in curve]
    first = last = curve.index(top)
    while first > 0 and bound[first - 1]:
        first -= 1
    while last < len(curve) - 1 and bound[last + 1]:
        last += 1
    low, high = (_threads(curve[index]) for index in (first, last))
    begins, ends = first == 0, last == len(curve) - 1
    if top.limit.resource is Resource.LATENCY and begins:
        return f"up to {counted(high, 'connection')}"
    if ends:
        return f"from {counted(low, 'connection')} on"
    return f"at {counted(low, 'connection')}" if low == high else f"from {low} to {counted(high, 'connection')}"


def _figures(cell: CellSummary, limit: Limit) -> str:
    tps = tps_of(cell)
    shown = f"{tps:.1f}" if tps < 100 else f"{tps:,.0f}"
    detail = limit.says.partition(": ")[2].partition(";")[0] if limit.resource in _DETAILED else ""
    if limit.resource is Resource.LATENCY and cell.cycle is not None:
        first = largest(cell.cycle, 1)[0]
        detail = f"{first.us / cell.cycle.us * 100:.0f} % of the cycle in {first.name}"
    return f"{shown} transactions/s{', ' if detail else ''}{detail}"
