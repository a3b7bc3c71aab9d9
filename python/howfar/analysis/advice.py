"""Advice to the reader of a report. Each rule uses only resolved figures of the run; where nothing is resolved, the only advice is
how to resolve it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pydantic import Field

from howfar.analysis import advice_texts as texts
from howfar.analysis.cells import LINK, CellSummary, Metric, NoiseFloors, max_connections
from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic, describe_machine, is_machine_busy
from howfar.analysis.disturbance import Disturbance
from howfar.analysis.link_facts import link_facts
from howfar.bottleneck.cycle import LINK_QUEUE, ROUND_TRIPS, WIRE, part_us
from howfar.bottleneck.limit import MIN_HELPFUL_GAIN, Limit
from howfar.findings import capital, fill, note
from howfar.model.resource import Resource
from howfar.paths import is_direct
from howfar.plan.factors import BYTE_SAVERS, FACTORS, PATH, RATE_BPS, THREADS, has_fault, level_of
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
from howfar.stats.trials import TrialTable, group_by_other_factors, singular
from howfar.store.records import ArmRole

LATENCY_BOUND_SHARE = 0.5
"""Share of a transaction's time in round trips from which the advice is to reduce them."""

MAX_IDLE_LINK_USE = 0.5
"""Share of the link's rate in use below which the link does not limit throughput."""

MAX_BLOCKS_ADVISED = 500

MAX_ARMS_NAMED = 6
"""Maximum number of arms listed by name: the cells of a grid are too many for a list."""


COMMANDS = ("repeat-disturbed", "repeat-elsewhere", "full-plan")
"""Ids of advice to type a command, which stands in `lines` and completes the action."""

_OPTIONS_OF_ONE_RUN = {"--seed", "--time-budget", "--target"}
"""Options that the command for a longer run of the same plan omits."""

MEASURE_AGAIN = (
    *("repeat-disturbed", "repeat-elsewhere", "full-plan", "enough-blocks", "more-blocks", "quieter-machine"),
    *("resolve-round-trips", "invalid", "divided-cpu", "instrument-cpu"),
)
"""Ids of advice to measure again. A report has at most one of them: the first, which has the command."""

_KEPT_REASONS = ("enough-blocks", "more-blocks", "quieter-machine", "resolve-round-trips")
"""Ids of advice to measure again whose reason is kept: how many blocks that takes, and what is still unknown."""

Parameters = dict[str, str | int | float]


class Advice(Part):
    """One thing to do, and why."""

    action: str
    because: str
    lines: tuple[str, ...] = ()
    """Exact lines to type or to write into a file."""
    id: str
    """What to do, such as `socket`."""
    parameters: Parameters = Field(default_factory=dict)
    """The figures of both texts."""


def _make_advice(advice_id: str, reasons: Sequence[str], parameters: Parameters, lines: tuple[str, ...] = ()) -> Advice:
    """Advice from templates, with a sentence for each reason."""
    action = capital(fill(texts.ACTIONS[advice_id], **parameters))
    return Advice(
        action=f"{action}{':' if advice_id in COMMANDS else '.'}",
        because=" ".join(note(texts.REASONS[reason], **parameters) for reason in reasons),
        lines=lines,
        id=advice_id,
        parameters=parameters,
    )


@dataclass(frozen=True)
class _RunContext:
    cells: Sequence[CellSummary]
    table: TrialTable
    floors: NoiseFloors

    def cell_of_path(self, path: str) -> CellSummary | None:
        """The cell of a path. None if there is none, or if there are several: a rule for one might not hold for all."""
        cells = [c for c in self.cells if PATH.level_or_none(c.factors) == path and c.role is not ArmRole.DUPLICATE]
        return cells[0] if len(cells) == 1 else None

    def direct_cell(self, machines: int, *, by_socket: bool) -> CellSummary | None:
        """The cell of a path without a program in between."""
        names = {
            PATH.level_in(c.factors)
            for c in self.cells
            if is_direct(PATH.level_or_none(c.factors), machines, by_socket=by_socket)
        }
        return self.cell_of_path(names.pop()) if len(names) == 1 else None

    @property
    def is_busy(self) -> bool:
        """Whether other programs used the CPUs, so that work that needs CPU time took longer."""
        return is_machine_busy(describe_machine(self.table), max_connections(self.table.run))

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
    return (*(advise_on_limits(cells) if limits else ()), *general_advice)


def advise_on_run(disturbance: Disturbance | None, command: str) -> tuple[Advice, ...]:
    """To repeat a run that other programs disturbed. Empty: they hardly did."""
    if disturbance is None or not disturbance.is_much:
        return ()
    program = next(iter(disturbance.programs), None)
    parameters: Parameters = {
        "named": fill(texts.SUCH_AS, name=program.name) if program else "",
        "command": command,
        **disturbance.figures(),
    }
    # Where programs were looked for and none was found, the kernel or short-lived processes used the CPUs.
    advice_id = "repeat-elsewhere" if disturbance.are_seen and not disturbance.programs else "repeat-disturbed"
    return (_make_advice(advice_id, ["repeat-disturbed"], parameters, (command,)),)


def one_of_each_kind(advice: Sequence[Advice]) -> tuple[Advice, ...]:
    """The advice without steps that say what an earlier one says. The step to measure again keeps what that takes, and why."""
    again = [step for step in advice if step.id in MEASURE_AGAIN]
    if len(again) < 2:
        return tuple(advice)
    first = again[0]
    reasons = [first.because, *(_reason(step) for step in again[1:] if step.id in _KEPT_REASONS)]
    merged = first.model_copy(update={"because": " ".join(filter(None, reasons))})
    return tuple(merged if step is first else step for step in advice if step is first or step not in again)


def _reason(step: Advice) -> str:
    """Its reason; if that is a number of blocks, without the name of each arm."""
    return note(texts.REASONS["blocks-at-most"], **step.parameters) if "worst" in step.parameters else step.because


def advise_full_plan(command: Sequence[str], is_busy: bool = False) -> Advice:
    """For a quick run, which `command` repeats, without any other advice. `is_busy`: whether other work is a reason to doubt it."""
    full = shlex.join(full_command(command))
    return _make_advice("full-plan", [], {"command": full, "busy": int(is_busy)}, (full,))


def full_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command of a run with `--full`, and with its other options except its seed, budget and target."""
    words = [*command[:3], "--full"]
    for previous, word in pairwise(command[2:]):
        if word != "--quick" and not _OPTIONS_OF_ONE_RUN & {previous, word}:
            words.append(word)
    return tuple(words)


_MAX_LIMITS = 3
"""Maximum number of pieces of advice about limits; each is about a different resource."""


def _action_id(cell: CellSummary, limit: Limit) -> str:
    """The action against a limit. For latency, it reduces the largest part of a transaction's time. If no process dominates the
    shared CPUs, it is unknown which of them needs more, so that the action is to measure again."""
    if limit.divided:
        return "divided-cpu"
    if limit.resource is Resource.LATENCY and cell.cycle is not None:
        round_trips_us, wire_us = part_us(cell.cycle, ROUND_TRIPS), part_us(cell.cycle, WIRE, LINK_QUEUE)
        if wire_us > max(round_trips_us, cell.cycle.us / 4):
            return "latency-of-bytes"
        if round_trips_us > cell.cycle.us / 4:
            return "latency-of-round-trips"
    return limit.resource.id


def _fastest_cells(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """From each curve over connections, the cell with the highest throughput, where the limit is strongest. Where some are over links,
    only these: the others are there to predict them. Empty if nothing varies that may move the limit."""
    shown = [cell for cell in cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    varied = (name for name, factor in FACTORS.items() if factor.moves_limit)
    if not any(len({level_of(cell.factors, name) for cell in shown} - {None}) > 1 for name in varied):
        return []
    curves = group_by_other_factors(shown, lambda cell: cell.factors, "threads")
    curves = [curve for curve in curves if "rate_bps" in curve[0].factors] or curves
    return [max(curve, key=lambda cell: cell.tps.value) for curve in curves]


def advise_on_limits(cells: Sequence[CellSummary]) -> list[Advice]:
    """Advice for each limit that a curve reaches, in the order of the highest throughput."""
    by_resource: dict[Resource, CellSummary] = {}
    fastest_cells = sorted(_fastest_cells(cells), key=lambda cell: -cell.qps.value)
    are_links_compared = len({RATE_BPS.level_or_none(cell.factors) for cell in fastest_cells}) > 1
    for cell in fastest_cells:
        if cell.limit is not None and cell.limit.resource is not Resource.NOT_ESTABLISHED:
            by_resource.setdefault(cell.limit.resource, cell)
    return [
        _advice_on_limit(cell, cell.limit, are_links_compared)
        for cell in list(by_resource.values())[:_MAX_LIMITS]
        if cell.limit is not None
    ]


def _advice_on_limit(cell: CellSummary, limit: Limit, are_links_compared: bool) -> Advice:
    """`are_links_compared`: whether the action names the link over which the cell was measured."""
    advice_id = _action_id(cell, limit)
    parameters: Parameters = {"arm": cell.arm, "limit": limit.id}
    action = fill(texts.ACTIONS[advice_id], savers=BYTE_SAVERS)
    if are_links_compared:
        parameters["rate_bps"] = float(RATE_BPS.level_in(cell.factors))
        action = fill(texts.AT_RATE, action=action, rate_bps=parameters["rate_bps"])
    figures = {"text": limit.text, "would_change": limit.would_change, "would_not": limit.would_not}
    because = fill(texts.REASONS["limit"], arm=cell.arm, **figures)
    return Advice(action=f"{capital(action)}.", because=because, id=advice_id, parameters=parameters)


def _advise_socket(context: _RunContext) -> Advice | None:
    socket, tcp = context.direct_cell(1, by_socket=True), context.direct_cell(1, by_socket=False)
    unit = context.table.unit
    if socket is None or tcp is None or tcp.ratio is None or socket.role is not ArmRole.BASELINE:
        return None
    parameters: Parameters = {"unit": unit, "one": singular(unit)}
    reasons = []
    if tcp.resolution is Resolution.SLOWER:
        reasons.append("tcp-slower")
        parameters["ratio"] = interval_text(tcp.ratio)
    if tcp.cpu_resolution is Resolution.SLOWER and tcp.cpu_ratio:
        reasons.append("tcp-cpu")
        parameters["cpu_ratio"] = interval_text(tcp.cpu_ratio)
    if not reasons:
        return None
    service = service_of(context.table.run.info.server_kind)
    parameters["how"] = texts.SOCKET_OF_MYSQL if service is SERVICES["mysql"] else texts.SOCKET
    return _make_advice("socket", reasons, parameters, service.client_lines)


def _advise_round_trips(context: _RunContext) -> Advice | None:
    remote = context.direct_cell(2, by_socket=False)
    if remote is None or remote.ratio is None or remote.resolution is not Resolution.SLOWER:
        return None
    cycle, link = sum(remote.time_split_us.values()), remote.time_split_us.get(LINK, 0.0)
    if not cycle or link <= 0:
        return None
    share, used_share = _round_trips_share(context, remote), remote.link_used
    mean_share = link / cycle
    limits = (
        None
        if share.low is None or share.high is None
        else (min(share.low, mean_share) * 100, max(share.high, mean_share) * 100)
    )
    parameters: Parameters = {
        "round_trips": round(remote.turns_per_txn),
        "link_ms": link / 1e3,
        "transaction_ms": cycle / 1e3,
        "percent": figure_text(mean_share * 100, limits, "{:.0f}".format),
        "no_bandwidth": 0,
    }
    reasons = ["round-trips"]
    if used_share is not None and used_share < MAX_IDLE_LINK_USE:
        reasons, parameters["link_used"] = ["round-trips, idle link"], used_share
    if share.low is not None and share.high is not None and share.low < LATENCY_BOUND_SHARE < share.high:
        advice_id = "resolve-round-trips"
        reasons.append("larger-part")
    elif mean_share < LATENCY_BOUND_SHARE:
        advice_id = "less-cpu-time"
    else:
        advice_id = "fewer-round-trips"
        parameters["ways"] = service_of(context.table.run.info.server_kind).fewer_round_trips
        faster_link = remote.limit.faster_link if remote.limit is not None else None
        if faster_link is not None and faster_link.value < MIN_HELPFUL_GAIN:
            is_resolved = faster_link.high is not None and faster_link.high < MIN_HELPFUL_GAIN
            parameters |= {"no_bandwidth": int(is_resolved), "faster_link": interval_text(faster_link)}
            reasons += [] if is_resolved else ["bandwidth"]
    reasons += ["busy-machine"] if mean_share < LATENCY_BOUND_SHARE and context.is_busy else []
    return _make_advice(advice_id, reasons, parameters)


def _round_trips_share(context: _RunContext, cell: CellSummary) -> Estimate:
    """Share of a transaction's time in round trips, as a mean over blocks. The part of a round trip that is spent in hosts and
    emulator may also be counted as CPU time, so the lower limit excludes it."""
    rtt_ns, threads = cell.rest_rtt_ns or 0.0, THREADS.level_in(cell.factors)
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
    speed = context.floors.ratio(table, forwarded.arm, remote.arm)
    cost = context.floors.ratio(table, forwarded.arm, remote.arm, Metric.CPU)
    if speed is None or cost is None:
        return None
    reasons = ["forwarded-slower"] if speed[1] is Resolution.SLOWER else []
    reasons += ["forwarded-cpu"] if cost[1] is Resolution.FASTER else []
    parameters: Parameters = {"unit": table.unit, "one": singular(table.unit), "arm": remote.arm}
    parameters |= {"ratio": interval_text(speed[0]), "cpu_ratio": interval_text(cost[0])}
    return _make_advice("no-forwarding", reasons, parameters) if reasons else None


def _advise_more_blocks(context: _RunContext) -> Advice | None:
    unresolved = [
        cell
        for cell in context.cells
        if cell.role is ArmRole.CONTENDER and cell.resolution is Resolution.NOT_RESOLVED and not has_fault(cell.factors)
    ]
    if not unresolved:
        return None
    if context.table.blocks < MIN_BLOCKS:
        return _make_advice("enough-blocks", ["no-intervals"], {"needed": MIN_BLOCKS, "trusted": FEW_BLOCKS})
    blocks_by_arm = {cell.arm: _blocks_to_resolve(context, cell) for cell in unresolved}
    reachable = {
        arm: blocks for arm, blocks in blocks_by_arm.items() if blocks is not None and blocks <= MAX_BLOCKS_ADVISED
    }
    unreachable = [arm for arm in blocks_by_arm if arm not in reachable]
    reasons: list[str] = []
    parameters: Parameters = {
        "present": context.table.blocks,
        "max_blocks": MAX_BLOCKS_ADVISED,
        "quick": int(context.table.run.info.quick),
    }
    if reachable:
        worst = max(reachable, key=lambda arm: reachable[arm])
        parameters |= {"worst": reachable[worst], "arm": worst}
    if reachable and len(reachable) <= MAX_ARMS_NAMED:
        reasons.append("blocks")
        entries = [fill(texts.BLOCKS_OF_ARM, arm=arm, blocks=blocks) for arm, blocks in reachable.items()]
        parameters["blocks"] = ", ".join(entries)
    elif reachable:
        reasons.append("blocks-of-cells")
        parameters |= {"median": math.ceil(median(reachable.values())), "cells": len(reachable)}
    if unreachable:
        reasons.append("too-many-blocks")
        is_short = len(unreachable) <= MAX_ARMS_NAMED
        parameters["unreachable"] = ", ".join(unreachable) if is_short else fill(texts.CELLS, count=len(unreachable))
    # The duplicate's interval has to be as narrow as the others'.
    cells = [*unresolved, *([context.duplicate] if context.duplicate else [])]
    blocks = [cell.blocks_needed or MAX_BLOCKS_ADVISED + 1 for cell in cells]
    if max(blocks) <= MAX_BLOCKS_ADVISED:
        reasons.append("narrow-blocks")
        parameters["narrow"] = max(blocks)
    if any(Diagnostic.CONTAMINATED_BLOCKS in cell.warnings for cell in unresolved):
        reasons.append("disturbed")
    return _make_advice("more-blocks" if reachable else "quieter-machine", reasons, parameters)


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
