"""Causes of differences, as findings: what the additional time of a cell is spent on, and which resource is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from howfar.analysis.cells import Bound, CellSummary
from howfar.bottleneck.cycle import PARTS, REST, ROUND_TRIPS, part_us
from howfar.bottleneck.texts import LIMITS
from howfar.findings import Finding, Texts, fill
from howfar.model.resource import NOT_THE_PATH, Resource
from howfar.plan.factor import Level
from howfar.plan.factors import FACTORS, level_of

CAUSES: Texts = {
    "longer-round-trips": "with {subject}, a transaction takes {time_ms:table} ms on average, {part_ms:table} ms of it for "
    "{turns:of round-trip} of {rtt_ms:table} ms; with {baseline} {usual_ms:table} ms",
    "longer": "a transaction takes {time_ms:table} ms on average with {subject}, {usual_ms:table} ms with {baseline}: "
    "{part_ms:table} ms more for {part}",
    "shorter": "a transaction takes {time_ms:table} ms on average with {subject}, {usual_ms:table} ms with {baseline}: "
    "{part_ms:table} ms less for {part}",
    "more-cpu": "with {subject}, a {unit} takes {bound:?about }{cpu_us:table} µs of CPU on average, {part_us:table} µs of it in "
    "the {part}; with {baseline} {usual_us:table} µs",
    "limited": "{subject} {limit}",
}


def explain_differences(cells: Iterable[CellSummary], baseline: CellSummary) -> tuple[Finding, ...]:
    """For cells that differ from the baseline in one factor and in throughput, the part of transaction time that changed most.
    The first of each kind, in the order of the cells."""
    first_by_id: dict[str, Finding] = {}
    for cell in cells:
        # A path without a link has no levels of the factors of a link.
        factors = [
            name for name in cell.factors.keys() & baseline.factors if cell.factors[name] != baseline.factors[name]
        ]
        if len(factors) == 1 and cell.resolution.is_difference and (finding := _difference(cell, baseline, factors[0])):
            first_by_id.setdefault(finding.id, finding)
    return tuple(first_by_id[finding_id] for finding_id in CAUSES if finding_id in first_by_id)


def _difference(cell: CellSummary, baseline: CellSummary, factor: str) -> Finding | None:
    """None: transaction time did not change as throughput did, or most of the change is unexplained."""
    if cell.cycle is None or baseline.cycle is None or cell.ratio is None:
        return None
    change_us, is_slower = cell.cycle.us - baseline.cycle.us, cell.ratio.value < 1
    if (change_us > 0) is not is_slower:
        return None
    sign = 1 if is_slower else -1
    changes_us = {part: sign * (part_us(cell.cycle, part) - part_us(baseline.cycle, part)) for part in PARTS}
    part = max(PARTS, key=changes_us.__getitem__)
    if part == REST:
        return None
    parameters: dict[str, str | int | float] = {
        "baseline": _label(baseline.factors, factor),
        "time_ms": cell.cycle.us / 1e3,
        "usual_ms": baseline.cycle.us / 1e3,
        "part_ms": min(changes_us[part], abs(change_us)) / 1e3,
        "part": part,
    }
    finding_id = "longer" if is_slower else "shorter"
    if part == ROUND_TRIPS and is_slower and (round_trips := _round_trips(cell)):
        finding_id = "longer-round-trips"
        parameters |= round_trips
    return Finding(id=finding_id, subject=_label(cell.factors, factor), parameters=parameters)


def _round_trips(cell: CellSummary) -> dict[str, int | float]:
    """Number, RTT and total time of the round trips of a transaction. Empty: unknown, or the path has no link."""
    if cell.cycle is None or not cell.rest_rtt_ns:
        return {}
    whole_ms = part_us(cell.cycle, ROUND_TRIPS) / 1e3
    return {"part_ms": whole_ms, "turns": round(cell.turns_per_txn), "rtt_ms": cell.rest_rtt_ns / 1e6}


def explain_round_trips(cell: CellSummary) -> Finding | None:
    """What the round trips of a transaction take, if that is the largest part of its time. None: it is not, or is unknown."""
    if cell.cycle is None or max(PARTS, key=partial(part_us, cell.cycle)) != ROUND_TRIPS:
        return None
    parameters: dict[str, str | int | float] = {"time_ms": cell.cycle.us / 1e3, **_round_trips(cell)}
    return Finding(id="round-trips", subject=cell.arm, parameters=parameters) if "turns" in parameters else None


def explain_cpu(cell: CellSummary, baseline: CellSummary, unit: str) -> Finding | None:
    """For a cell with more CPU time per operation, the role whose share grew most. None: the means do not show it. `unit`: an
    operation."""
    times_us, usual_us = _cpu_by_role(cell), _cpu_by_role(baseline)
    cpu_us, baseline_us = sum(times_us.values()), sum(usual_us.values())
    part = max(times_us, key=lambda role: times_us[role] - usual_us.get(role, 0.0))
    if cpu_us <= baseline_us or times_us[part] <= usual_us.get(part, 0.0):
        return None
    parameters: dict[str, str | int | float] = {
        "unit": unit,
        "baseline": _label(baseline.factors, "path"),
        "bound": int(cell.cpu_bound is Bound.AT_LEAST),
        "cpu_us": cpu_us,
        "usual_us": baseline_us,
        "part": part,
        "part_us": times_us[part],
    }
    return Finding(id="more-cpu", subject=_label(cell.factors, "path"), parameters=parameters)


def _cpu_by_role(cell: CellSummary) -> dict[str, float]:
    cpu = cell.cpu_us_per_query
    roles = {"client": cpu.client, "server": cpu.server, "forwarder": cpu.forwarder}
    return {role: estimate.value for role, estimate in roles.items() if estimate is not None}


def _label(factors: Mapping[str, Level], name: str) -> str:
    return FACTORS[name].label(level) if (level := level_of(factors, name)) is not None else name


def limit_cause(cell: CellSummary, where: str) -> Finding | None:
    """The limit of a cell. `where`: `at 1 Gb/s`. None: none is established, or it is not one of the path."""
    limit = cell.limit
    if limit is None or limit.resource in (Resource.NOT_ESTABLISHED, *NOT_THE_PATH):
        return None
    return Finding(
        id="limited", subject=where, parameters={"limit": fill(LIMITS.get(limit.id, limit.text), **limit.parameters)}
    )
