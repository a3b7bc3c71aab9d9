"""Each hop's effect on throughput and on response times at a fixed rate, and its CPU time, paired by block."""

from __future__ import annotations

from collections.abc import Callable

from howfar.analysis.cells import CellSummary, Figure
from howfar.analysis.summary import RunEvidence
from howfar.experiments.hops.elsewhere import HopElsewhere, published_hops
from howfar.experiments.hops.poolers import PoolerPays, connections_to_server, pooler_pays
from howfar.paths import PATHS
from howfar.plan.factors import CONNECT, THREADS, offered_per_s
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, mean_interval
from howfar.stats.trials import TrialTable, quantile_ms
from howfar.store.records import Arm, ArmRole, Measured


class HopCost(Part):
    """The cost of a path with hops, relative to the baseline."""

    path: str
    programs: tuple[str, ...]
    throughput_ratio: Estimate | None
    """Ratio in a closed loop; None here and below: not measured, or in no block with the baseline."""
    resolution: Resolution | None = None
    """Resolution of `throughput_ratio`, against the noise floor. None: not measured, or an older run."""
    added_p50_us: Estimate | None
    """At `HopCosts.per_s`: the difference within blocks."""
    p50_resolution: Resolution | None = None
    """Of the p50 over the baseline's at that rate, against its noise floor. FASTER: it is longer. None: not measured."""
    added_p99_us: Estimate | None
    cpu_us_per_query: Estimate | None
    """CPU time of all its programs together, in the closed loop."""
    connect_us: Estimate | None = None
    """`HopCosts.connect_us` through this path."""
    to_server: int | None = None
    """Connections to the server in the closed loop, the most at once. None: reported by neither hop nor server."""


class HopCosts(Part):
    baseline: str
    """The path without a program."""
    per_s: float | None
    """The highest rate that was measured on every path. None: no rate was."""
    hops: tuple[HopCost, ...]
    """Hops in the order of the plan."""
    connect_us: Estimate | None = None
    """Additional time of a transaction that opens a connection of its own, with the login, in the closed loop. None: not measured."""
    clients: int | None = None
    """Connections of the load, for all but `poolers`. None: an older run."""
    poolers: tuple[PoolerPays, ...] = ()
    """Where poolers pay. Empty: no path pools, or all were measured with one number of clients."""
    elsewhere: tuple[HopElsewhere, ...] = ()
    """Others' figures for these paths with this kind of server and workload."""


def hop_costs(evidence: RunEvidence) -> HopCosts | None:
    """The cost of each hop; None unless the run compares a baseline without hops to paths with them over one link."""
    table = evidence.table
    arms = [arm for arm in table.run.info.arms if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    names = list(dict.fromkeys(str(arm.factors.get("path")) for arm in arms))
    base = next((str(arm.factors.get("path")) for arm in arms if arm.role is ArmRole.BASELINE), None)
    if base is None or not all(name in PATHS and PATHS[name].machines == 2 for name in names):
        return None
    with_hops = [name for name in names if PATHS[name].hops]
    if PATHS[base].hops or not with_hops:
        return None
    clients = next(THREADS.of(arm.factors) for arm in arms if arm.role is ArmRole.BASELINE)
    arms = [arm for arm in arms if THREADS.of(arm.factors) == clients]
    rates = [{offered_per_s(arm.factors) for arm in arms if arm.factors.get("path") == name} for name in names]
    per_s = max((rate for rate in set.intersection(*rates) if rate is not None), default=None)
    cells = {cell.arm: cell for cell in evidence.cells}
    return HopCosts(
        baseline=base,
        per_s=per_s,
        hops=tuple(_cost(name, per_s, arms, cells, evidence) for name in with_hops),
        connect_us=_connect_us(table, [arm for arm in arms if arm.factors.get("path") == base]),
        clients=clients,
        poolers=pooler_pays(table, base, evidence.floors),
        elsewhere=published_hops(table, arms),
    )


def _cost(
    path: str, per_s: float | None, arms: list[Arm], cells: dict[str, CellSummary], evidence: RunEvidence
) -> HopCost:
    table = evidence.table
    every = [arm for arm in arms if arm.factors.get("path") == path]
    own = [arm for arm in every if _keeps(arm)]
    looped = next((arm for arm in own if offered_per_s(arm.factors) is None), None)
    closed = None if looped is None else cells.get(looped.name)
    paced = next((arm for arm in own if per_s is not None and offered_per_s(arm.factors) == per_s), None)
    at_rate = None if paced is None else _at_rate(table, paced)
    return HopCost(
        path=path,
        programs=PATHS[path].hops,
        throughput_ratio=closed.ratio if closed is not None else None,
        resolution=closed.resolution if closed is not None else None,
        added_p50_us=_added_us(table, paced, at_rate, 0.5),
        p50_resolution=None
        if paced is None or at_rate is None
        else evidence.floors.compare(table, paced.name, at_rate.name, Figure.P50),
        added_p99_us=_added_us(table, paced, at_rate, 0.99),
        cpu_us_per_query=closed.cpu_us_per_query.forwarder if closed is not None else None,
        connect_us=_connect_us(table, every),
        to_server=None if looped is None else connections_to_server(table, looped),
    )


def _keeps(arm: Arm) -> bool:
    """Whether an arm keeps its connections."""
    return CONNECT.of(arm.factors) == "persistent"


def _connect_us(table: TrialTable, arms: list[Arm]) -> Estimate | None:
    """The cycle with one connection per transaction minus that with persistent connections, as a mean over blocks."""
    closed = [arm for arm in arms if offered_per_s(arm.factors) is None]
    kept, each = next(filter(_keeps, closed), None), next((arm for arm in closed if not _keeps(arm)), None)
    if kept is None or each is None:
        return None
    longer = _within_blocks(table, each, kept, lambda trial: trial.elapsed_ns / trial.transactions / 1e3)
    threads = THREADS.of(kept.factors)
    return mean_interval([threads * us for us in longer]) if longer else None


def _within_blocks(
    table: TrialTable, arm: Arm, reference: Arm, figure: Callable[[Measured], float | None]
) -> list[float]:
    """Differences of a figure from the reference in the same block."""
    here, there = table.trials[arm.name], table.trials[reference.name]
    pairs = ((here[block].measured, there[block].measured) for block in sorted(here.keys() & there.keys()))
    figures = [(figure(one), figure(other)) for one, other in pairs if one is not None and other is not None]
    return [one - other for one, other in figures if one is not None and other is not None]


def _at_rate(table: TrialTable, arm: Arm) -> Arm | None:
    """What an arm at a rate is compared with."""
    reference = table.reference(arm)
    return reference if reference and offered_per_s(reference.factors) == offered_per_s(arm.factors) else None


def _added_us(table: TrialTable, arm: Arm | None, reference: Arm | None, share: float) -> Estimate | None:
    """A quantile's difference from the reference in the same block, in microseconds, as a mean over blocks."""
    if arm is None or reference is None:
        return None
    added = _within_blocks(table, arm, reference, lambda trial: quantile_ms(trial, share))
    return mean_interval([ms * 1e3 for ms in added]) if added else None


NOT_RESOLVED = f" ({Resolution.NOT_RESOLVED.value})"


def verdict(found: HopCosts, unit: str, text: Callable[[Estimate], str]) -> str:
    """A clause for each path with hops, without the last full stop."""
    return f"Against {found.baseline}: {'; '.join(_clause(hop, found.per_s, unit, text) for hop in found.hops)}"


def _clause(hop: HopCost, per_s: float | None, unit: str, text: Callable[[Estimate], str]) -> str:
    parts = []
    if hop.throughput_ratio is not None:
        doubt = "" if hop.resolution and hop.resolution.is_difference else NOT_RESOLVED
        parts.append(f"leaves {text(hop.throughput_ratio)} of the throughput{doubt}")
    if hop.added_p50_us is not None and per_s is not None:
        doubt = "" if hop.p50_resolution and hop.p50_resolution.is_difference else NOT_RESOLVED
        parts.append(f"adds {text(hop.added_p50_us)} µs to the p50 at {per_s:,.0f}/s{doubt}")
    if hop.cpu_us_per_query is not None:
        parts.append(f"takes {text(hop.cpu_us_per_query)} µs of CPU per {unit}")
    *most, last = parts or ["was not measured"]
    return f"{hop.path} {', '.join(most)}{' and ' if most else ''}{last}"
