"""What each hop takes of the throughput, adds to response times at a fixed rate, and spends of CPU time, paired by block."""

from __future__ import annotations

from collections.abc import Callable

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import RunEvidence
from howfar.experiments.latency.analysis import quantile_ms
from howfar.paths import PATHS
from howfar.plan.factors import offered_per_s
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import mean_interval
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm, ArmRole


class HopCost(Part):
    """One path with programs on it, against the baseline's."""

    path: str
    programs: tuple[str, ...]
    throughput_ratio: Estimate | None
    """In a closed loop; None here and below: not measured, or in no block beside the baseline."""
    added_p50_us: Estimate | None
    """At `HopCosts.per_s`: the difference within blocks."""
    added_p99_us: Estimate | None
    cpu_us_per_query: Estimate | None
    """Of all its programs together, in the closed loop."""


class HopCosts(Part):
    baseline: str
    """The path without a program."""
    per_s: float | None
    """The highest rate that was measured on every path. None: no rate was."""
    hops: tuple[HopCost, ...]
    """In the order of the plan."""


def hop_costs(evidence: RunEvidence) -> HopCosts | None:
    """None: not a run of paths to one second machine, the baseline without a program on it and another with one."""
    table = evidence.table
    arms = [arm for arm in table.run.info.arms if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    names = list(dict.fromkeys(str(arm.factors.get("path")) for arm in arms))
    base = next((str(arm.factors.get("path")) for arm in arms if arm.role is ArmRole.BASELINE), None)
    if base is None or not all(name in PATHS and PATHS[name].machines == 2 for name in names):
        return None
    with_hops = [name for name in names if PATHS[name].hops]
    if PATHS[base].hops or not with_hops:
        return None
    rates = [{offered_per_s(arm.factors) for arm in arms if arm.factors.get("path") == name} for name in names]
    per_s = max((rate for rate in set.intersection(*rates) if rate is not None), default=None)
    cells = {cell.arm: cell for cell in evidence.cells}
    return HopCosts(
        baseline=base, per_s=per_s, hops=tuple(_cost(name, per_s, arms, cells, table) for name in with_hops)
    )


def _cost(path: str, per_s: float | None, arms: list[Arm], cells: dict[str, CellSummary], table: TrialTable) -> HopCost:
    own = [arm for arm in arms if arm.factors.get("path") == path]
    closed = next((cells.get(arm.name) for arm in own if offered_per_s(arm.factors) is None), None)
    paced = next((arm for arm in own if per_s is not None and offered_per_s(arm.factors) == per_s), None)
    return HopCost(
        path=path,
        programs=PATHS[path].hops,
        throughput_ratio=closed.ratio if closed is not None else None,
        added_p50_us=_added_us(table, paced, 0.5),
        added_p99_us=_added_us(table, paced, 0.99),
        cpu_us_per_query=closed.cpu_us_per_query.forwarder if closed is not None else None,
    )


def _added_us(table: TrialTable, arm: Arm | None, share: float) -> Estimate | None:
    """A quantile less the reference's in the same block, microseconds; the mean of the blocks."""
    reference = table.reference(arm) if arm is not None else None
    if arm is None or reference is None or offered_per_s(reference.factors) != offered_per_s(arm.factors):
        return None
    here, there = table.trials[arm.name], table.trials[reference.name]
    added = []
    for block in here.keys() & there.keys():
        pair = [trial.measured for trial in (here[block], there[block])]
        quantiles = [quantile_ms(measured, share) for measured in pair if measured is not None]
        if len(quantiles) == 2 and None not in quantiles:
            added.append((quantiles[0] - quantiles[1]) * 1e3)  # type: ignore[operator]  # neither is None
    return mean_interval(added) if added else None


def verdict(found: HopCosts, unit: str, text: Callable[[Estimate], str]) -> str:
    """A clause for each path with a program."""
    return f"Against {found.baseline}: {'; '.join(_clause(hop, found.per_s, unit, text) for hop in found.hops)}."


def _clause(hop: HopCost, per_s: float | None, unit: str, text: Callable[[Estimate], str]) -> str:
    parts = []
    if hop.throughput_ratio is not None:
        parts.append(f"leaves {text(hop.throughput_ratio)} of the throughput")
    if hop.added_p50_us is not None and per_s is not None:
        parts.append(f"adds {text(hop.added_p50_us)} µs to the p50 at {per_s:,.0f}/s")
    if hop.cpu_us_per_query is not None:
        parts.append(f"takes {text(hop.cpu_us_per_query)} µs of CPU per {unit}")
    *most, last = parts or ["was not measured"]
    return f"{hop.path} {', '.join(most)}{' and ' if most else ''}{last}"
