"""The confirmation: tests of named limits after a plan's blocks. Which limits are tested, by which changes, and with which results. No
I/O.

Each test is a pair of arms, one unchanged and one with a single change. They are measured in the same blocks, so that disturbances of
the machine affect both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from howfar.analysis.cells import CellSummary
from howfar.analysis.plateau import curves
from howfar.bottleneck.cycle import ROUND_TRIPS, WIRE, part_us
from howfar.bottleneck.limit import FASTER, Confirmation, Intervention, Limit, Unconfirmed
from howfar.contract.environment import RunEnvironment
from howfar.model.resource import Resource
from howfar.plan.estimate import CONFIRMED_LIMITS
from howfar.stats.estimate import Estimate
from howfar.stats.host_cpus import HostCpus, forwarder_share
from howfar.stats.intervals import interval_text, judge_ratio
from howfar.stats.trials import TrialTable, trial_table
from howfar.store import records as events
from howfar.store.records import Arm, ArmRole, Run, Trial
from howfar.units import format_duration_ns, format_rate_bps

_LINKS = frozenset({Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER})
_CPUS = frozenset(
    {Resource.SERVER_CPU, Resource.CLIENT_CPU, Resource.FORWARDER_CPU, Resource.INSTRUMENT_CPU, Resource.ONE_THREAD}
)
_MIN_TO_HALVE = 8
"""Minimum number of connections for a test that halves them. Half of fewer connections may not fill a CPU that all of them filled."""
_MIN_LINK_USE = 1 / FASTER
"""Utilisation of a link below which a test with a faster link proves nothing: it could not raise throughput `FASTER` times even if
nothing else were full."""
_RULES_OUT_LINK = "the link"
_RULES_OUT_SHARED = "a limit that connections share"
_RULES_OUT_PER_CONNECTION = "a limit of each connection's own"

_PER_CONNECTION_LIMITS = frozenset({Resource.LATENCY, Resource.RECEIVE_WINDOW, Resource.SEND_BUFFER, Resource.LOSS})
"""Limits that apply to each connection separately: half as many connections carry half as much."""
_REASONS_AGAINST = {
    Resource.COMMIT: "how many transactions share one durable write cannot be predicted",
    Resource.ACKNOWLEDGEMENT: "the replica is nearer in other cells of the plan, or in none",
    Resource.ERRORS: "transactions fail",
    Resource.INVALID: "the figures themselves are not valid",
    Resource.NOT_ESTABLISHED: "no limit was established",
}


def intervention(
    cell: CellSummary, limit: Limit, environment: RunEnvironment, trials: Sequence[Trial] = ()
) -> Intervention | str:
    """The change to an arm that tests a limit, or the reason why this laboratory cannot make one. `trials`: the arm's good trials."""
    factors, resource = cell.factors, limit.resource

    def scaled(name: str, change: float, predicted: float, ratio_if_wrong: float, rules_out: str = "") -> Intervention:
        old = int(factors[name])
        new = int(old * change)
        return Intervention(
            arm=cell.arm,
            resource=resource,
            changed=_DESCRIBE_CHANGE[name](old, new),
            factors=factors | {name: new},
            predicted=predicted,
            ratio_if_wrong=ratio_if_wrong,
            rules_out=rules_out,
        )

    def capped(predicted: float) -> float:
        return min(predicted, _next_ceiling(cell, environment, trials))

    if resource in _LINKS and "rate_bps" in factors:
        return scaled("rate_bps", FASTER, capped(FASTER), 1.0)
    if resource is Resource.LATENCY and "rate_bps" in factors and _wire_first(cell):
        return scaled("rate_bps", FASTER, capped(_at_the_faster(cell)), 1.0)
    if resource is Resource.LATENCY and int(factors.get("rtt_ns", 0)) > 0:
        return scaled("rtt_ns", 0.5, capped(_half_the_rtt(cell)), 1.0)
    threads = int(factors.get("threads", 1))
    if resource in _CPUS | {Resource.LOCK} and threads >= _MIN_TO_HALVE:
        return scaled("threads", 0.5, 1.0, threads // 2 / threads, _RULES_OUT_PER_CONNECTION)
    if resource in _PER_CONNECTION_LIMITS and threads > 1:
        return scaled("threads", 0.5, threads // 2 / threads, 1.0, _RULES_OUT_SHARED)
    if resource in _CPUS and "rate_bps" in factors:
        if (cell.link_used or 0.0) >= _MIN_LINK_USE:
            return scaled("rate_bps", FASTER, 1.0, FASTER, _RULES_OUT_LINK)
        return "too few connections to halve, and the link is used too little for its rate to matter"
    return _REASONS_AGAINST.get(resource, "the laboratory cannot change this resource alone")


_DESCRIBE_CHANGE: dict[str, Callable[[int, int], str]] = {
    "rate_bps": lambda old, new: f"rate {format_rate_bps(old)} -> {format_rate_bps(new)}",
    "rtt_ns": lambda old, new: f"RTT {format_duration_ns(old)} -> {format_duration_ns(new)}",
    "threads": lambda old, new: f"{old} -> {new} connections",
}


def _wire_first(cell: CellSummary) -> bool:
    """Whether the bytes on the wire take more of a connection's cycle than round trips do."""
    return cell.cycle is not None and part_us(cell.cycle, WIRE) > part_us(cell.cycle, ROUND_TRIPS)


def _at_the_faster(cell: CellSummary) -> float:
    """Expected ratio of throughput when the bytes of a cycle are transmitted `FASTER` times as fast."""
    assert cell.cycle is not None, "only of a cell whose cycle is known"
    return 1 / (1 - part_us(cell.cycle, WIRE) / cell.cycle.us * (1 - 1 / FASTER))


def _half_the_rtt(cell: CellSummary) -> float:
    """Expected ratio of throughput when the requested part of the RTT takes half as long; the hosts' own part stays."""
    threads = int(cell.factors.get("threads", 1))
    cycle_ns = threads * 1e9 * cell.queries_per_txn / cell.qps.value
    waits_ns = min(int(cell.factors["rtt_ns"]), cell.rest_rtt_ns or 0.0) * cell.turns_per_txn
    return 1 / (1 - min(waits_ns / cycle_ns, 1.0) / 2)


def _next_ceiling(cell: CellSummary, environment: RunEnvironment, trials: Sequence[Trial]) -> float:
    """Factor by which throughput can grow before a host's processors are full, given what other programs use of them."""
    cpu = cell.cpu_us_per_query
    between_us = cpu.forwarder.value if cpu.forwarder else 0.0
    server_us = cpu.server.value if cpu.server else 0.0
    ratios = []
    for host, us in (("server", server_us), ("client", cpu.client.value)):
        cpus = HostCpus.of(environment, host)
        load = (us + between_us * forwarder_share([cell.receipt], host)) * cell.qps.value / 1e6
        others = median([cpus.others_cpus(trial, load) for trial in trials]) if trials else 0.0
        used = load + cpus.link_cpus(trials)
        ratios += [(cpus.count - others) / used] if used > 0 else []
    return max(min(ratios), 1.0) if ratios else FASTER


TOLERANCE = 0.1
"""Maximum relative error of a confirmed prediction, however different its alternative is."""
MIN_DISTANCE = 1.1
"""Minimum ratio between the predictions with and without the limit: closer ones cannot be distinguished in so few blocks."""


@dataclass(frozen=True)
class Choice:
    """Tests to make after the plan's blocks."""

    interventions: tuple[Intervention, ...]
    refused: tuple[Unconfirmed, ...]


def choose(cells: Sequence[CellSummary], run: Run) -> Choice:
    """Choose the tests: on each curve, the arm with the highest throughput, where the limit is strongest. Curves with a new resource
    come before curves whose resource an earlier curve has too."""
    cells_by_arm, table = {cell.arm: cell for cell in cells}, trial_table(run)
    fastest_cells = [
        fastest
        for curve in curves(run.info.arms)
        if (fastest := _highest_throughput(cells_by_arm[arm.name] for arm in curve if arm.name in cells_by_arm))
    ]
    interventions: list[Intervention] = []
    refused: list[Unconfirmed] = []
    for cell, limit in _by_novelty(fastest_cells):
        test = intervention(cell, limit, run.info.environment, list(table.trials[cell.arm].values()))
        if isinstance(test, str):
            refused.append(Unconfirmed(arm=cell.arm, resource=limit.resource, why=test))
        elif abs(math.log(test.predicted / test.ratio_if_wrong)) < math.log(MIN_DISTANCE):
            why = f"{test.changed} would change too little to be seen: the next limit is near"
            refused.append(Unconfirmed(arm=cell.arm, resource=limit.resource, why=why))
        elif len(interventions) < CONFIRMED_LIMITS:
            interventions.append(test)
    return Choice(tuple(interventions), tuple(refused))


def pair(chosen: Intervention, arms: Sequence[Arm]) -> tuple[Arm, Arm]:
    """The two arms of a test: the arm repeated unchanged, and the changed arm."""
    unchanged = next(arm for arm in arms if arm.name == chosen.arm)
    repeated_name, changed_name = _pair_names(chosen)
    return (
        Arm(name=repeated_name, role=ArmRole.CONFIRMATION, factors=unchanged.factors),
        Arm(name=changed_name, role=ArmRole.CONFIRMATION, factors=chosen.factors),
    )


def confirmations(part: Run) -> tuple[Confirmation, ...]:
    """Results of tests. `part`: the confirmation's part of a run (`records.confirmation_part`)."""
    table = trial_table(part)
    results = []
    for chosen in _interventions(part):
        ratios = _ratios(table, chosen)
        if ratios:
            measured = judge_ratio(ratios).quoted
            results.append(
                Confirmation(
                    arm=chosen.arm,
                    resource=chosen.resource,
                    changed=chosen.changed,
                    predicted=chosen.predicted,
                    ratio_if_wrong=chosen.ratio_if_wrong,
                    rules_out=chosen.rules_out,
                    measured=measured,
                    confirmed=is_as_predicted(measured, chosen.predicted, chosen.ratio_if_wrong),
                    blocks=len(ratios),
                )
            )
    return tuple(results)


def unconfirmed(part: Run) -> tuple[Unconfirmed, ...]:
    """Limits that could not be tested, and limits whose tests were planned but not measured."""
    confirmation = events.confirmation(part.events)
    if confirmation is None:
        return ()
    table = trial_table(part)
    unmeasured = [
        Unconfirmed(arm=chosen.arm, resource=chosen.resource, why="no block in which both were measured")
        for chosen in _interventions(part)
        if not _ratios(table, chosen)
    ]
    return (*(Unconfirmed.model_validate(refused) for refused in confirmation.refused), *unmeasured)


def is_as_predicted(measured: Estimate, predicted: float, ratio_if_wrong: float) -> bool:
    """Whether the whole interval is nearer to the prediction than to the alternative, on a scale of ratios, and in addition either
    includes the prediction or has an estimate within TOLERANCE and within a quarter of the distance to the alternative."""
    allowed = min(math.log1p(TOLERANCE), abs(math.log(predicted / ratio_if_wrong)) / 4)
    is_close = abs(math.log(measured.value / predicted)) <= allowed
    return _is_nearer(measured, predicted, ratio_if_wrong) and (is_close or _includes(measured, predicted))


def is_refuted(found: Confirmation) -> bool:
    """Whether the interval is nearer to the alternative, or includes it and not the prediction."""
    measured, ratio_if_wrong = found.measured, found.ratio_if_wrong
    if _is_nearer(measured, ratio_if_wrong, found.predicted):
        return True
    return not found.confirmed and _includes(measured, ratio_if_wrong) and not _includes(measured, found.predicted)


def _is_nearer(measured: Estimate, near: float, far: float) -> bool:
    if measured.low is None or measured.high is None:
        return False
    middle = math.sqrt(near * far)
    return measured.low > middle if near > far else measured.high < middle


def _includes(measured: Estimate, ratio: float) -> bool:
    """Whether an interval includes the ratio; False without an interval."""
    return measured.low is not None and measured.high is not None and measured.low <= ratio <= measured.high


def _ratios(table: TrialTable, chosen: Intervention) -> list[float]:
    repeated_name, changed_name = _pair_names(chosen)
    return table.block_ratios(changed_name, repeated_name)


def _interventions(part: Run) -> tuple[Intervention, ...]:
    confirmation = events.confirmation(part.events)
    return (
        ()
        if confirmation is None
        else tuple(Intervention.model_validate(record) for record in confirmation.interventions)
    )


def _pair_names(chosen: Intervention) -> tuple[str, str]:
    return f"{chosen.arm} [as it was]", f"{chosen.arm} [{chosen.changed}]"


def _highest_throughput(cells: Iterable[CellSummary]) -> CellSummary | None:
    return max(cells, key=lambda cell: cell.qps.value, default=None)


def _by_novelty(fastest_cells: Sequence[CellSummary]) -> list[tuple[CellSummary, Limit]]:
    limits = [(cell, cell.limit) for cell in fastest_cells if cell.limit is not None]
    resources = [limit.resource for _, limit in limits]
    is_repeated = [resource in resources[:index] for index, resource in enumerate(resources)]
    return [pair for _, pair in sorted(zip(is_repeated, limits, strict=True), key=lambda item: item[0])]


def refuted(tested: Sequence[Confirmation]) -> dict[str, Confirmation]:
    """Refuted limits by arm."""
    return {result.arm: result for result in tested if is_refuted(result)}


def doubted(cells: Sequence[CellSummary], tested: Sequence[Confirmation]) -> tuple[CellSummary, ...]:
    """The cells, with refuted limits marked as refuted and of low confidence."""
    refuted_by_arm = refuted(tested)
    return tuple(
        _with_doubt(cell, refuted_by_arm[cell.arm]) if _has_tested_limit(cell, refuted_by_arm) else cell
        for cell in cells
    )


def unadvised(cells: Sequence[CellSummary], tested: Sequence[Confirmation]) -> tuple[CellSummary, ...]:
    """The cells without refuted limits, so that no advice follows from them."""
    refuted_by_arm = refuted(tested)
    return tuple(
        cell.model_copy(update={"limit": None}) if _has_tested_limit(cell, refuted_by_arm) else cell for cell in cells
    )


def refuted_sentence(cells: Sequence[CellSummary], tested: Sequence[Confirmation]) -> str:
    """A sentence on refuted limits, to append to an answer that names limits. Empty: no test refuted a limit."""
    refuted_by_arm = refuted(tested)
    phrases = [
        f"the limit named at {cell.arm}: {_describe_outcome(refuted_by_arm[cell.arm])}"
        for cell in cells
        if _has_tested_limit(cell, refuted_by_arm)
    ]
    return f"Tested and refuted: {'; '.join(phrases)}." if phrases else ""


def _has_tested_limit(cell: CellSummary, refuted_by_arm: dict[str, Confirmation]) -> bool:
    """Whether the cell still has the limit that was tested. If its limit is now another resource, the test was about another limit."""
    return (
        cell.limit is not None
        and cell.arm in refuted_by_arm
        and refuted_by_arm[cell.arm].resource is cell.limit.resource
    )


def _with_doubt(cell: CellSummary, found: Confirmation) -> CellSummary:
    assert cell.limit is not None, "a cell without a limit has none to doubt"
    note = f"refuted by a test: {_describe_outcome(found)}"
    changed: dict[str, object] = {
        "confidence": "low",
        "says": f"{cell.limit.says}; {note}",
        "evidence": (*cell.limit.evidence, note),
    }
    changed |= {"would_change": "", "would_not": "", "gain": None}  # they follow from the limit
    return cell.model_copy(update={"limit": cell.limit.model_copy(update=changed)})


def _describe_outcome(found: Confirmation) -> str:
    return f"{found.changed} gave x {interval_text(found.measured)}, not x {found.predicted:.2f}"
