"""The confirmation, which tests named limits after a plan's blocks: chooses the limits and the changes that test them, and judges
the results. No I/O.

Each test is a pair of arms, one unchanged and one with a single change. They are measured in the same blocks, so that disturbances
of the machine affect both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from howfar.analysis.cells import CellSummary
from howfar.analysis.plateau import curves
from howfar.bottleneck.cycle import ROUND_TRIPS, WIRE, part_us
from howfar.bottleneck.limit import RATE_FACTOR, Confirmation, Intervention, Limit, Unconfirmed
from howfar.bottleneck.texts import TESTS
from howfar.contract.environment import RunEnvironment
from howfar.findings import fill
from howfar.model.resource import LINKS, Resource
from howfar.plan.estimate import CONFIRMED_LIMITS
from howfar.plan.factors import RTT_NS, THREADS
from howfar.stats.estimate import Estimate
from howfar.stats.host_cpus import HostCpus, forwarder_share
from howfar.stats.intervals import interval_text, judge_ratio
from howfar.stats.trials import TrialTable, trial_table
from howfar.store import records as events
from howfar.store.records import Arm, ArmRole, Run, Trial
from howfar.units import format_duration_ns, format_rate_bps

_CPU_RESOURCES = frozenset(
    {Resource.SERVER_CPU, Resource.CLIENT_CPU, Resource.FORWARDER_CPU, Resource.INSTRUMENT_CPU, Resource.ONE_THREAD}
)
_MIN_CONNECTIONS_TO_HALVE = 8
"""Minimum number of connections for a test that halves them: half of a smaller number may not fill a CPU that all of them filled."""
_MIN_LINK_USE = 1 / RATE_FACTOR
"""Utilisation of a link below which a test with a faster link proves nothing: it could not raise throughput `RATE_FACTOR` times even
if nothing else were full."""

_PER_CONNECTION_LIMITS = frozenset({Resource.LATENCY, Resource.RECEIVE_WINDOW, Resource.SEND_BUFFER, Resource.LOSS})
"""Limits that apply to each connection separately: half as many connections carry half as much."""


def make_intervention(
    cell: CellSummary, limit: Limit, environment: RunEnvironment, trials: Sequence[Trial] = ()
) -> Intervention | str:
    """The change to an arm that tests a limit, or the reason why it cannot be tested here. `trials`: the arm's good trials."""
    factors, resource = cell.factors, limit.resource

    def change_level(
        name: str, change: float, predicted: float, ratio_if_wrong: float, rules_out: str = ""
    ) -> Intervention:
        old = int(factors[name])
        new = int(old * change)
        return Intervention(
            arm=cell.arm,
            resource=resource,
            changed=_CHANGE_TEXTS[name](old, new),
            factors=factors | {name: new},
            predicted=predicted,
            ratio_if_wrong=ratio_if_wrong,
            rules_out=rules_out,
        )

    def limit_by_cpu(predicted: float) -> float:
        return min(predicted, _growth_until_cpu_full(cell, environment, trials))

    if resource in LINKS and "rate_bps" in factors:
        return change_level("rate_bps", RATE_FACTOR, limit_by_cpu(RATE_FACTOR), 1.0)
    if resource is Resource.LATENCY and "rate_bps" in factors and _wire_exceeds_round_trips(cell):
        return change_level("rate_bps", RATE_FACTOR, limit_by_cpu(_ratio_at_faster_link(cell)), 1.0)
    if resource is Resource.LATENCY and RTT_NS.level_in(factors) > 0:
        return change_level("rtt_ns", 0.5, limit_by_cpu(_ratio_at_half_rtt(cell)), 1.0)
    threads = THREADS.level_in(factors)
    if resource in _CPU_RESOURCES | {Resource.LOCK} and threads >= _MIN_CONNECTIONS_TO_HALVE:
        return change_level("threads", 0.5, 1.0, threads // 2 / threads, TESTS["rules-out-own"])
    if resource in _PER_CONNECTION_LIMITS and threads > 1:
        return change_level("threads", 0.5, threads // 2 / threads, 1.0, TESTS["rules-out-shared"])
    if resource in _CPU_RESOURCES and "rate_bps" in factors:
        if (cell.link_used or 0.0) >= _MIN_LINK_USE:
            return change_level("rate_bps", RATE_FACTOR, 1.0, RATE_FACTOR, TESTS["rules-out-link"])
        return TESTS["too-little"]
    return TESTS.get(f"untestable {resource.id}", TESTS["untestable"])


_CHANGE_TEXTS: dict[str, Callable[[int, int], str]] = {
    "rate_bps": lambda old, new: f"rate {format_rate_bps(old)} -> {format_rate_bps(new)}",
    "rtt_ns": lambda old, new: f"RTT {format_duration_ns(old)} -> {format_duration_ns(new)}",
    "threads": lambda old, new: f"{old} -> {new} connections",
}


def _wire_exceeds_round_trips(cell: CellSummary) -> bool:
    """Whether the bytes on the wire take more of a connection's cycle than round trips do."""
    return cell.cycle is not None and part_us(cell.cycle, WIRE) > part_us(cell.cycle, ROUND_TRIPS)


def _ratio_at_faster_link(cell: CellSummary) -> float:
    """Expected ratio of throughput when the bytes of a cycle are transmitted `RATE_FACTOR` times as fast."""
    assert cell.cycle is not None, "the cell's cycle is known"
    return 1 / (1 - part_us(cell.cycle, WIRE) / cell.cycle.us * (1 - 1 / RATE_FACTOR))


def _ratio_at_half_rtt(cell: CellSummary) -> float:
    """Expected ratio of throughput when the requested part of the RTT takes half as long; the hosts' own part stays."""
    threads = THREADS.level_in(cell.factors)
    cycle_ns = threads * 1e9 * cell.queries_per_txn / cell.qps.value
    waits_ns = min(RTT_NS.level_in(cell.factors), cell.rest_rtt_ns or 0.0) * cell.turns_per_txn
    return 1 / (1 - min(waits_ns / cycle_ns, 1.0) / 2)


def _growth_until_cpu_full(cell: CellSummary, environment: RunEnvironment, trials: Sequence[Trial]) -> float:
    """Factor by which throughput can grow before a host's processors are full, with what other programs use of them subtracted."""
    cpu = cell.cpu_us_per_query
    forwarder_us = cpu.forwarder.value if cpu.forwarder else 0.0
    server_us = cpu.server.value if cpu.server else 0.0
    growths = []
    for host, cpu_us in (("server", server_us), ("client", cpu.client.value)):
        cpus = HostCpus.from_environment(environment, host)
        own_cpus = (cpu_us + forwarder_us * forwarder_share([cell.receipt], host)) * cell.qps.value / 1e6
        others_cpus = median([cpus.others_cpus(trial, own_cpus) for trial in trials]) if trials else 0.0
        used_cpus = own_cpus + cpus.link_cpus(trials)
        growths += [(cpus.count - others_cpus) / used_cpus] if used_cpus > 0 else []
    return max(min(growths), 1.0) if growths else RATE_FACTOR


TOLERANCE = 0.1
"""Maximum relative error of a confirmed prediction, even if the alternative is far from it."""
MIN_PREDICTION_RATIO = 1.1
"""Minimum ratio between the predictions with and without the limit: closer ones cannot be distinguished in the few blocks of a
test."""


@dataclass(frozen=True)
class ChosenTests:
    """Tests to make after the plan's blocks."""

    interventions: tuple[Intervention, ...]
    refused: tuple[Unconfirmed, ...]


def choose_tests(cells: Sequence[CellSummary], run: Run) -> ChosenTests:
    """Choose the tests: on each curve, the arm with the highest throughput, where the limit is strongest. Curves with a new
    resource come before curves whose resource an earlier curve has too."""
    cells_by_arm, table = {cell.arm: cell for cell in cells}, trial_table(run)
    fastest_cells = [
        fastest
        for curve in curves(run.info.arms)
        if (fastest := _fastest_cell(cells_by_arm[arm.name] for arm in curve if arm.name in cells_by_arm))
    ]
    interventions: list[Intervention] = []
    refused: list[Unconfirmed] = []
    for cell, limit in _sort_by_novelty(fastest_cells):
        test = make_intervention(cell, limit, run.info.environment, list(table.trials[cell.arm].values()))
        if isinstance(test, str):
            refused.append(Unconfirmed(arm=cell.arm, resource=limit.resource, why=test))
        elif abs(math.log(test.predicted / test.ratio_if_wrong)) < math.log(MIN_PREDICTION_RATIO):
            why = fill(TESTS["near"], changed=test.changed)
            refused.append(Unconfirmed(arm=cell.arm, resource=limit.resource, why=why))
        elif len(interventions) < CONFIRMED_LIMITS:
            interventions.append(test)
    return ChosenTests(tuple(interventions), tuple(refused))


def make_arm_pair(intervention: Intervention, arms: Sequence[Arm]) -> tuple[Arm, Arm]:
    """The two arms of a test: the arm repeated unchanged, and the changed arm."""
    unchanged = next(arm for arm in arms if arm.name == intervention.arm)
    repeated_name, changed_name = _pair_names(intervention)
    return (
        Arm(name=repeated_name, role=ArmRole.CONFIRMATION, factors=unchanged.factors),
        Arm(name=changed_name, role=ArmRole.CONFIRMATION, factors=intervention.factors),
    )


def confirmations(confirmation_run: Run) -> tuple[Confirmation, ...]:
    """Results of tests. `confirmation_run`: the confirmation's part of a run (`records.confirmation_part`)."""
    table = trial_table(confirmation_run)
    results = []
    for intervention in _read_interventions(confirmation_run):
        ratios = _block_ratios(table, intervention)
        if ratios:
            measured = judge_ratio(ratios).reported
            results.append(
                Confirmation(
                    arm=intervention.arm,
                    resource=intervention.resource,
                    changed=intervention.changed,
                    predicted=intervention.predicted,
                    ratio_if_wrong=intervention.ratio_if_wrong,
                    rules_out=intervention.rules_out,
                    measured=measured,
                    confirmed=is_as_predicted(measured, intervention.predicted, intervention.ratio_if_wrong),
                    blocks=len(ratios),
                )
            )
    return tuple(results)


def unconfirmed(confirmation_run: Run) -> tuple[Unconfirmed, ...]:
    """Limits that could not be tested, and limits whose tests were planned but not measured."""
    confirmation = events.confirmation(confirmation_run.events)
    if confirmation is None:
        return ()
    table = trial_table(confirmation_run)
    unmeasured = [
        Unconfirmed(arm=intervention.arm, resource=intervention.resource, why=TESTS["unmeasured"])
        for intervention in _read_interventions(confirmation_run)
        if not _block_ratios(table, intervention)
    ]
    return (*(Unconfirmed.model_validate(refused) for refused in confirmation.refused), *unmeasured)


def is_as_predicted(measured: Estimate, predicted: float, ratio_if_wrong: float) -> bool:
    """Whether the whole interval is nearer to the prediction than to the alternative, on a scale of ratios, and in addition either
    includes the prediction or has an estimate within TOLERANCE and within a quarter of the distance to the alternative."""
    max_log_error = min(math.log1p(TOLERANCE), abs(math.log(predicted / ratio_if_wrong)) / 4)
    is_close = abs(math.log(measured.value / predicted)) <= max_log_error
    return _is_nearer(measured, predicted, ratio_if_wrong) and (is_close or _includes(measured, predicted))


def is_refuted(confirmation: Confirmation) -> bool:
    """Whether the interval is nearer to the alternative, or includes it and not the prediction."""
    measured, ratio_if_wrong = confirmation.measured, confirmation.ratio_if_wrong
    if _is_nearer(measured, ratio_if_wrong, confirmation.predicted):
        return True
    return (
        not confirmation.confirmed
        and _includes(measured, ratio_if_wrong)
        and not _includes(measured, confirmation.predicted)
    )


def _is_nearer(measured: Estimate, near: float, far: float) -> bool:
    if measured.low is None or measured.high is None:
        return False
    middle = math.sqrt(near * far)
    return measured.low > middle if near > far else measured.high < middle


def _includes(measured: Estimate, ratio: float) -> bool:
    """Whether an interval includes the ratio; False without an interval."""
    return measured.low is not None and measured.high is not None and measured.low <= ratio <= measured.high


def _block_ratios(table: TrialTable, intervention: Intervention) -> list[float]:
    repeated_name, changed_name = _pair_names(intervention)
    return table.block_ratios(changed_name, repeated_name)


def _read_interventions(confirmation_run: Run) -> tuple[Intervention, ...]:
    confirmation = events.confirmation(confirmation_run.events)
    records = () if confirmation is None else confirmation.interventions
    return tuple(Intervention.model_validate(record) for record in records)


def _pair_names(intervention: Intervention) -> tuple[str, str]:
    return f"{intervention.arm} [as it was]", f"{intervention.arm} [{intervention.changed}]"


def _fastest_cell(cells: Iterable[CellSummary]) -> CellSummary | None:
    return max(cells, key=lambda cell: cell.qps.value, default=None)


def _sort_by_novelty(fastest_cells: Sequence[CellSummary]) -> list[tuple[CellSummary, Limit]]:
    limits = [(cell, cell.limit) for cell in fastest_cells if cell.limit is not None]
    resources = [limit.resource for _, limit in limits]
    is_repeated = [resource in resources[:index] for index, resource in enumerate(resources)]
    return [entry for _, entry in sorted(zip(is_repeated, limits, strict=True), key=lambda item: item[0])]


def index_refuted(results: Sequence[Confirmation]) -> dict[str, Confirmation]:
    """Refuted limits by arm."""
    return {result.arm: result for result in results if is_refuted(result)}


def mark_refuted_limits(cells: Sequence[CellSummary], results: Sequence[Confirmation]) -> tuple[CellSummary, ...]:
    """Mark refuted limits in the cells as refuted, with low confidence."""
    refuted_by_arm = index_refuted(results)
    return tuple(
        _mark_refuted(cell, refuted_by_arm[cell.arm]) if _has_refuted_limit(cell, refuted_by_arm) else cell
        for cell in cells
    )


def remove_refuted_limits(cells: Sequence[CellSummary], results: Sequence[Confirmation]) -> tuple[CellSummary, ...]:
    """Remove refuted limits from the cells, so that no advice follows from them."""
    refuted_by_arm = index_refuted(results)
    return tuple(
        cell.model_copy(update={"limit": None}) if _has_refuted_limit(cell, refuted_by_arm) else cell for cell in cells
    )


def refuted_arms(cells: Sequence[CellSummary], results: Sequence[Confirmation]) -> frozenset[str]:
    """Arms whose limit a test refuted."""
    refuted_by_arm = index_refuted(results)
    return frozenset(cell.arm for cell in cells if _has_refuted_limit(cell, refuted_by_arm))


def _has_refuted_limit(cell: CellSummary, refuted_by_arm: dict[str, Confirmation]) -> bool:
    """Whether the cell's limit is the one that a test refuted. If its limit is now another resource, the test was about another
    limit."""
    return (
        cell.limit is not None
        and cell.arm in refuted_by_arm
        and refuted_by_arm[cell.arm].resource is cell.limit.resource
    )


_NO_REMEDY: Mapping[str, object] = {"would_change": "", "would_not": "", "gain": None}
"""What a limit lacks if it was refuted, or if its run has no answer."""


def without_remedies(cells: Sequence[CellSummary]) -> tuple[CellSummary, ...]:
    """The cells of a run without an answer, whose limits name no change that would help."""
    return tuple(
        cell if cell.limit is None else cell.model_copy(update={"limit": cell.limit.model_copy(update={**_NO_REMEDY})})
        for cell in cells
    )


def _mark_refuted(cell: CellSummary, confirmation: Confirmation) -> CellSummary:
    assert cell.limit is not None, "the cell has a limit"
    note = fill(TESTS["refuted"], outcome=_describe_outcome(confirmation))
    update: dict[str, object] = {
        "confidence": "low",
        "text": f"{cell.limit.text}; {note}",
        "evidence": (*cell.limit.evidence, note),
    }
    update |= _NO_REMEDY
    return cell.model_copy(update={"limit": cell.limit.model_copy(update=update)})


def _describe_outcome(confirmation: Confirmation) -> str:
    measured = interval_text(confirmation.measured)
    return fill(TESTS["outcome"], changed=confirmation.changed, measured=measured, predicted=confirmation.predicted)
