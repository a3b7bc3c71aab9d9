"""Advice to the reader of a report. Each rule uses only resolved figures of the run; where nothing is resolved, the only advice is
how to resolve it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from howfar.analysis.answer import capital
from howfar.analysis.cells import LINK, CellSummary, Metric, NoiseFloors, threads_of
from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic, Machine, is_machine_busy
from howfar.analysis.link_facts import link_facts
from howfar.bottleneck.cycle import LINK_QUEUE, ROUND_TRIPS, WIRE, part_us
from howfar.bottleneck.limit import MIN_HELPFUL_GAIN, Limit
from howfar.model.resource import Resource
from howfar.paths import is_direct
from howfar.plan.factors import has_fault, level_of
from howfar.services import SERVICES, service_of
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import (
    MAX_FALSE_CLAIMS,
    MIN_BLOCKS,
    Resolution,
    blocks_needed,
    interval_text,
    judge_ratio,
    mean_interval,
)
from howfar.stats.resample import figure_text
from howfar.stats.trials import SINGULAR, TrialTable, group_by_other_factors, others_cpus
from howfar.store.records import ArmRole
from howfar.units import spoken_rate


def socket_action(server_kind: str) -> str:
    """The advice to use the socket. MySQL's clients take `localhost` as the socket; others need its path, or that of its directory."""
    instruction = (
        "use it as the host"
        if service_of(server_kind) is not SERVICES["mysql"]
        else "write host=localhost, not 127.0.0.1"
    )
    return f"Where application and server share a machine, connect through the socket: {instruction}."


LATENCY_BOUND_SHARE = 0.5
"""Share of a transaction's time in round trips from which the advice is to reduce them."""

MAX_IDLE_LINK_USE = 0.5
"""Share of the link's rate in use below which the link does not limit throughput."""

MAX_BLOCKS_ADVISED = 500

MAX_ARMS_NAMED = 6
"""Maximum number of arms listed by name: the cells of a grid are too many for a list."""


class Advice(Part):
    """One thing to do, and why."""

    action: str
    because: str
    lines: tuple[str, ...] = ()
    """Exact lines to type or to write into a file."""


@dataclass(frozen=True)
class _RunContext:
    cells: Sequence[CellSummary]
    table: TrialTable
    floors: NoiseFloors

    def cell_of_path(self, path: str) -> CellSummary | None:
        """The cell of a path. None if there is none, or if there are several: a rule for one might not hold for all."""
        cells = [c for c in self.cells if c.factors.get("path") == path and c.role is not ArmRole.DUPLICATE]
        return cells[0] if len(cells) == 1 else None

    def direct_cell(self, machines: int, *, by_socket: bool) -> CellSummary | None:
        """The cell of a path without a program in between."""
        names = {
            str(c.factors["path"])
            for c in self.cells
            if is_direct(c.factors.get("path"), machines, by_socket=by_socket)
        }
        return self.cell_of_path(names.pop()) if len(names) == 1 else None

    @property
    def is_busy(self) -> bool:
        """Whether other programs used the CPUs, so that work that needs CPU time took longer."""
        run = self.table.run
        loads = [trial.load for trial in run.trials if trial.load is not None]
        machine = Machine(run.info.environment.cpu_count, others_cpus(run.trials))
        return is_machine_busy(loads, machine, max((threads_of(arm) for arm in run.info.arms), default=1))

    @property
    def duplicate(self) -> CellSummary | None:
        return next((cell for cell in self.cells if cell.role is ArmRole.DUPLICATE), None)


def advise(
    cells: Sequence[CellSummary], table: TrialTable, floors: NoiseFloors, *, limits: bool = True
) -> tuple[Advice, ...]:
    """The advice for a run, largest gain first. `limits`: whether to include advice about the limit that each curve reaches."""
    context = _RunContext(cells, table, floors)
    rules = (_advise_socket, _advise_round_trips, _advise_no_forwarding, _advise_more_blocks)
    general_advice = [advice for rule in rules if (advice := rule(context)) is not None]
    return (*(_advice_on_limits(cells) if limits else ()), *general_advice)


_MAX_LIMITS = 3
"""Maximum number of pieces of advice about limits; each is about a different resource."""
_ACTIONS = {
    Resource.LINK_TO_CLIENT: "Send fewer bytes to the client (columns, rows, compression where it pays), or use a faster link.",
    Resource.LINK_TO_SERVER: "Send fewer bytes to the server, or use a faster link.",
    Resource.SERVER_CPU: "Give the server more CPU, or make its queries cheaper: a faster network would not help.",
    Resource.CLIENT_CPU: "Give the load generator more CPU and measure again: these figures describe its own limit.",
    Resource.INSTRUMENT_CPU: "Measure these links on a machine with spare CPUs for the emulator before drawing conclusions.",
    Resource.FORWARDER_CPU: "Remove the forwarder.",
    Resource.ONE_THREAD: "Spread that work over more threads.",
    Resource.RECEIVE_WINDOW: "Enlarge the receive window, or use more connections.",
    Resource.SEND_BUFFER: "Enlarge the send buffer, or use more connections.",
    Resource.LOSS: "Find out where segments are lost: no setting of the database will help.",
    Resource.COMMIT: "Make commits cheaper, with a faster disk, more commits at a time, or less durability where that is allowed.",
    Resource.ACKNOWLEDGEMENT: "Commit from more connections, or more rows at a time, or move the replica closer: commits wait for it.",
    Resource.LOCK: "Hold locks for less time, with fewer round trips between the first write and the commit, or write to more rows.",
    Resource.SERVER_WAIT: "Check on the server what its sessions wait for during the load.",
    Resource.LATENCY: "Use more connections: no resource is full.",
    Resource.ERRORS: "Remove the cause of the server's errors and measure again: these figures include them.",
    Resource.INVALID: "Repeat the run on an idle machine: these figures do not describe the path.",
}


def _action(cell: CellSummary, limit: Limit) -> str:
    """The action against a limit. For latency, it reduces the largest part of a connection's cycle. If no process dominates the
    shared CPUs, it is unknown which of them needs more, so that the action is to measure again."""
    if limit.divided:
        return "Measure again with separate CPUs for load, emulator and other programs before buying more."
    if limit.resource is not Resource.LATENCY or cell.cycle is None:
        return _ACTIONS[limit.resource]
    round_trips_us, wire_us = part_us(cell.cycle, ROUND_TRIPS), part_us(cell.cycle, WIRE, LINK_QUEUE)
    if wire_us > max(round_trips_us, cell.cycle.us / 4):
        return "Send fewer bytes, or use a faster link or more connections: each waits for its own bytes, but no resource is full."
    if round_trips_us > cell.cycle.us / 4:
        return "Use more connections or fewer round trips: no resource is full."
    return _ACTIONS[limit.resource]


_LIMIT_FACTORS = ("compression", "tls", "connect", "threads", "rate_bps")
"""Factors that may change the limit: advice on limits is given only for a run that varies one of them."""


def _fastest_cells(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """From each curve over connections, the cell with the highest throughput, where the limit is strongest. Where some are over links,
    only these: the others are there to predict them."""
    shown = [cell for cell in cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    if not any(len({level_of(cell.factors, name) for cell in shown} - {None}) > 1 for name in _LIMIT_FACTORS):
        return []
    curves = group_by_other_factors(shown, lambda cell: cell.factors, "threads")
    curves = [curve for curve in curves if "rate_bps" in curve[0].factors] or curves
    return [max(curve, key=lambda cell: cell.tps.value) for curve in curves]


def _advice_on_limits(cells: Sequence[CellSummary]) -> list[Advice]:
    """Advice for each limit that a curve reaches, in the order of the highest throughput."""
    by_resource: dict[Resource, CellSummary] = {}
    fastest_cells = sorted(_fastest_cells(cells), key=lambda cell: -cell.qps.value)
    are_links_compared = len({cell.factors.get("rate_bps") for cell in fastest_cells}) > 1
    for cell in fastest_cells:
        if cell.limit is not None and cell.limit.resource in _ACTIONS:
            by_resource.setdefault(cell.limit.resource, cell)
    return [
        Advice(
            action=_action_at_rate(cell, cell.limit) if are_links_compared else _action(cell, cell.limit),
            because=_reason_text(cell.arm, cell.limit),
        )
        for cell in list(by_resource.values())[:_MAX_LIMITS]
        if cell.limit is not None
    ]


def _action_at_rate(cell: CellSummary, limit: Limit) -> str:
    """The action, for the link over which the cell was measured."""
    action = _action(cell, limit)
    return f"At {spoken_rate(float(cell.factors['rate_bps']))}, {action[:1].lower()}{action[1:]}"


def _reason_text(arm: str, limit: Limit) -> str:
    text = f"{arm}: {limit.says}. What would help: {limit.would_change}."
    return text + (f" What would not: {limit.would_not}." if limit.would_not else "")


def _advise_socket(context: _RunContext) -> Advice | None:
    socket, tcp = context.direct_cell(1, by_socket=True), context.direct_cell(1, by_socket=False)
    unit = context.table.unit
    if socket is None or tcp is None or tcp.ratio is None or socket.role is not ArmRole.BASELINE:
        return None
    reasons = []
    if tcp.resolution is Resolution.SLOWER:
        reasons.append(
            f"TCP on the same machine reaches {interval_text(tcp.ratio)} times the socket's {unit} per second"
        )
    if tcp.cpu_resolution is Resolution.SLOWER and tcp.cpu_ratio:
        reasons.append(f"TCP uses {interval_text(tcp.cpu_ratio)} times the CPU per {SINGULAR[unit]}")
    if not reasons:
        return None
    kind = context.table.run.info.server_kind
    return Advice(
        action=socket_action(kind), because=f"{capital(', and '.join(reasons))}.", lines=service_of(kind).client_lines
    )


def _advise_round_trips(context: _RunContext) -> Advice | None:
    remote = context.direct_cell(2, by_socket=False)
    if remote is None or remote.ratio is None or remote.resolution is not Resolution.SLOWER:
        return None
    cycle, link = sum(remote.time_split_us.values()), remote.time_split_us.get(LINK, 0.0)
    if not cycle or link <= 0:
        return None
    used_share, round_trips = remote.link_used, remote.turns_per_txn
    is_link_idle = used_share is not None and used_share < MAX_IDLE_LINK_USE
    share = _round_trips_share(context, remote)
    mean_share = link / cycle
    limits = (
        None
        if share.low is None or share.high is None
        else (min(share.low, mean_share) * 100, max(share.high, mean_share) * 100)
    )
    percent = figure_text(mean_share * 100, limits, "{:.0f}".format)
    because = (
        f"Over the network, a transaction makes {round_trips:.0f} round trip{'' if round(round_trips) == 1 else 's'}; they take "
        f"{link / 1e3:.2f} of its {cycle / 1e3:.2f} ms ({percent} %)"
        + (
            f", while its bytes use {used_share * 100:.1f} % of the link's rate"
            if used_share is not None and is_link_idle
            else ""
        )
        + "."
    )
    if share.low is not None and share.high is not None and share.low < LATENCY_BOUND_SHARE < share.high:
        action = "Round trips take about half of the time over the network: run longer to find out whether they or CPU time take more."
        because += " Whether round trips or CPU time is the larger part is not resolved."
    elif mean_share < LATENCY_BOUND_SHARE:
        action = "First reduce the time spent in CPU and server: round trips take less than half of the time."
    else:
        bandwidth_clause, unresolved_sentence = _bandwidth_text(remote)
        fewer = service_of(context.table.run.info.server_kind).fewer_round_trips
        action = f"With the server on another machine, make fewer round trips ({fewer}) or move the application next to its data"
        action += f"{bandwidth_clause}."
        because += unresolved_sentence
    if mean_share < LATENCY_BOUND_SHARE and context.is_busy:
        because += " Other programs used the CPUs: on a quiet machine, round trips take a larger share."
    return Advice(action=action, because=because)


def _bandwidth_text(cell: CellSummary) -> tuple[str, str]:
    """Text about more bandwidth: a clause for the action if the whole interval shows that it will not help, and a sentence for the
    reason if only the estimate does."""
    faster_link = cell.limit.faster_link if cell.limit is not None else None
    if faster_link is None or faster_link.value >= MIN_HELPFUL_GAIN:
        return "", ""
    if faster_link.high is not None and faster_link.high < MIN_HELPFUL_GAIN:
        return "; more bandwidth will not help", ""
    return (
        "",
        f" Whether more bandwidth helps is not resolved: at most {interval_text(faster_link)} times the throughput.",
    )


def _round_trips_share(context: _RunContext, cell: CellSummary) -> Estimate:
    """Share of a transaction's time in round trips, as a mean over blocks. The part of a round trip that is spent in hosts and
    emulator may also be counted as CPU time, so the lower limit excludes it."""
    rtt_ns, threads = cell.rest_rtt_ns or 0.0, int(cell.factors.get("threads", 1))
    share = mean_interval([
        min(cell.turns_per_txn * trial.transactions * rtt_ns / (threads * trial.elapsed_ns), 1.0)
        for trial in context.table.measured(cell.arm)
    ])  # fmt: skip
    hosts_ns = link_facts(cell.factors, [cell.receipt]).hosts_rtt_ns or 0.0
    if share.low is None or not rtt_ns:
        return share
    return share.model_copy(update={"low": share.low * max(1 - hosts_ns / rtt_ns, 0.0)})


def _advise_no_forwarding(context: _RunContext) -> Advice | None:
    """Advice from the cost of the forwarders themselves: a forwarded socket compared with plain TCP to the same machine."""
    forwarded, remote = context.cell_of_path("forwarded-socket"), context.direct_cell(2, by_socket=False)
    if forwarded is None or remote is None:
        return None
    table = context.table
    rate_ratios = table.block_ratios(forwarded.arm, remote.arm)
    cpu_ratios = table.block_ratios(forwarded.arm, remote.arm, table.path_cpu_us)
    if not rate_ratios or not cpu_ratios:
        return None
    speed, cost = judge_ratio(rate_ratios).reported, judge_ratio(cpu_ratios).reported
    reasons = []
    if context.floors.threshold(forwarded.factors).resolve(speed) is Resolution.SLOWER:
        reasons.append(
            f"the forwarded socket reaches {interval_text(speed)} times the {table.unit} per second of plain TCP ({remote.arm})"
        )
    if context.floors.threshold(forwarded.factors, Metric.CPU).resolve(cost) is Resolution.FASTER:
        reasons.append(f"each {SINGULAR[table.unit]} costs {interval_text(cost)} times the CPU")
    if not reasons:
        return None
    return Advice(
        action="Do not forward the socket to another machine for speed: its traffic still crosses the network.",
        because=f"{capital(', and '.join(reasons))}.",
    )


def _advise_more_blocks(context: _RunContext) -> Advice | None:
    unresolved = [
        cell
        for cell in context.cells
        if cell.role is ArmRole.CONTENDER and cell.resolution is Resolution.NOT_RESOLVED and not has_fault(cell.factors)
    ]
    if not unresolved:
        return None
    if context.table.blocks < MIN_BLOCKS:
        return Advice(
            action=f"Run longer: at least {MIN_BLOCKS} blocks are needed.",
            because=f"Fewer blocks give no interval. Intervals can be trusted with {FEW_BLOCKS} blocks or more.",
        )
    blocks_by_arm = {cell.arm: _blocks_to_resolve(context, cell) for cell in unresolved}
    reachable = {
        arm: blocks for arm, blocks in blocks_by_arm.items() if blocks is not None and blocks <= MAX_BLOCKS_ADVISED
    }
    unreachable = [arm for arm in blocks_by_arm if arm not in reachable]
    because = [_sufficient_blocks_text(reachable)] if reachable else []
    if unreachable:
        subject = ", ".join(unreachable) if len(unreachable) <= MAX_ARMS_NAMED else f"{len(unreachable)} cells"
        because.append(
            f"With this scatter, more than {MAX_BLOCKS_ADVISED} blocks are needed to resolve a difference as small as "
            f"that of {subject}; CPU per query may."
        )
    # The duplicate's interval has to be as narrow as the others'.
    cells = [*unresolved, *([context.duplicate] if context.duplicate else [])]
    blocks = [cell.blocks_needed or MAX_BLOCKS_ADVISED + 1 for cell in cells]
    if max(blocks) <= MAX_BLOCKS_ADVISED:
        because.append(f"About {max(blocks)} blocks would make the intervals as narrow as requested.")
    if any(Diagnostic.CONTAMINATED_BLOCKS in cell.warnings for cell in unresolved):
        because.append("Some blocks were disturbed.")
    longer = "Run longer (with --full)" if context.table.run.info.quick else "Run longer"
    quieter = "on a quieter machine to resolve more."
    return Advice(action=f"{longer} or {quieter}" if reachable else f"Measure {quieter}", because=" ".join(because))


def _sufficient_blocks_text(reachable: dict[str, int]) -> str:
    if len(reachable) <= MAX_ARMS_NAMED:
        list_text = ", ".join(f"about {blocks} for {arm}" for arm, blocks in reachable.items())
    else:
        worst = max(reachable, key=lambda arm: reachable[arm])
        list_text = (
            f"about {math.ceil(median(reachable.values()))} in the median of {len(reachable)} cells, "
            f"{reachable[worst]} at worst ({worst})"
        )
    return f"If the differences are as large as measured, the number of blocks needed to tell them from the baseline is {list_text}."


def _blocks_to_resolve(context: _RunContext, cell: CellSummary) -> int | None:
    """Blocks until an effect of the observed size is outside its own interval and above the noise floor, which is the A/A arm's
    half-width. None: out of reach, or unknown."""
    if context.duplicate is None or cell.ratio is None:
        return None
    effect = math.expm1(abs(math.log(cell.ratio.value)))
    if effect == 0:
        return None
    scatters = [judge_ratio(arm.block_ratios).sd_log for arm in (cell, context.duplicate) if arm.block_ratios]
    level = 1 - MAX_FALSE_CLAIMS / context.floors.comparisons
    needed = [None if sd is None else blocks_needed(sd, effect, level) for sd in scatters]
    known = [blocks for blocks in needed if blocks is not None]
    measured_blocks = len(cell.block_ratios)  # these were not enough
    return max(*known, measured_blocks + 1) if len(known) == 2 else None
