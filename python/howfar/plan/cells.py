"""A plan as cells and blocks: which combinations are measured, under which names, in which order. Deterministic, no I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Literal

from howfar.errors import PlanError
from howfar.plan.factor import FactorLevels, Level, Naming
from howfar.plan.factors import (
    CLOSED,
    CONDITIONS,
    CONNECT,
    FACTORS,
    LOAD,
    NAMINGS,
    PATH,
    RATE_BPS,
    RTT_NS,
    SERVER_LINKS,
    THREADS,
    TLS,
    has_fault,
    level_of,
    node_rtts_ns,
    scatter_kind,
    waited_rtt,
    waits_for_link,
)
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS

_USUAL_NAMING = Naming(lambda cell: True, first=("path",))


def _naming_of(cell: FactorLevels) -> Naming:
    return next(naming for naming in (*NAMINGS, _USUAL_NAMING) if naming.applies(cell))


def cell_name(cell: dict[str, Level], varied: list[str]) -> str:
    """The path, then the level of every other factor that is varied."""
    naming = _naming_of(cell)
    order = [*naming.first, *(factor for factor in varied if factor not in naming.first)]
    factors = [factor for factor in order if factor in cell and (factor in varied or factor == "path")]
    name = ", ".join(level_label(cell, factor) for factor in factors)
    leads = any(FACTORS[factor].comes_first_in_name for factor in varied)
    return name.removeprefix(f"{PATH.level_in(cell)}, ") if leads and "path" not in varied else name


def level_label(cell: FactorLevels, name: str) -> str:
    """A level of the cell as text in its name: `16 threads`, `8 in flight`."""
    return _naming_of(cell).labels.get(name, FACTORS[name].label)(cell[name])


Role = Literal["baseline", "duplicate", "contender", "control"]

AGAIN = " (again)"
"""Suffix of the name of the baseline's duplicate: the A/A arm."""
CONTROL_SHARE = 0.05
"""Share by which the control's RTT is longer. Howfar must find this difference."""
_MAX_CONTROL_THREADS = 2
"""Maximum number of connections of a control's reference. Connections wait for each other, and a longer RTT shortens that wait. With
two connections see `analysis.controls.OVERLAP`; with four, a quarter of the effect may be hidden."""
_SINGLE_CONNECTION_LEVELS: dict[str, Level] = {
    name: factor.level_in_controls for name, factor in FACTORS.items() if factor.level_in_controls is not None
}
"""Levels at which an increase of the RTT makes each round trip longer by the same time: no connection waits for another, none is
opened or idle, and no message takes several round trips."""


@dataclass(frozen=True)
class NamedCell:
    """One combination of factor levels under a name. Cells on local paths do not have the link's factors."""

    name: str
    role: Role
    factors: dict[str, Level]


def combinations(plan: Plan) -> list[dict[str, Level]]:
    """All distinct combinations, in the order of the plan, including those that the plan leaves out."""
    levels: dict[str, tuple[Level, ...]] = {
        name: tuple(getattr(plan.factors, name))
        for name, factor in FACTORS.items()
        if factor.implied_level is None or getattr(plan.factors, name) != (factor.implied_level,)
    }
    candidates = (
        _without_meaningless_levels(dict(zip(levels, values, strict=True))) for values in product(*levels.values())
    )
    distinct = {tuple(cell.items()): cell for cell in candidates}
    return [cell for cell in distinct.values() if all(factor.is_possible(cell) for factor in FACTORS.values())]


def _without_meaningless_levels(levels: dict[str, Level]) -> dict[str, Level]:
    """The levels without those that have no meaning together with the others."""
    cell = {name: level for name, level in levels.items() if FACTORS[name].applies(levels)}
    if TLS.level_in(cell) == "1.3-resumed" and CONNECT.level_in(cell) == "persistent":
        cell[TLS.name] = "1.3"  # persistent connections have nothing to resume
    return cell


def cells(plan: Plan) -> tuple[NamedCell, ...]:
    """The baseline, its duplicate unless it has a fault, the contenders in the order of the plan, the controls. Raises PlanError."""
    measured = [
        levels for levels in combinations(plan) if not any(excluded.matches(levels) for excluded in plan.leave_out)
    ]
    varied = plan.factors.varied
    if any(has_fault(factors) for factors in measured):
        varied += [name for name, factor in FACTORS.items() if factor.comes_first_in_name and name not in varied]
    wanted = {name: level for name, level in plan.baseline.model_dump().items() if level is not None}
    matching = [factors for factors in measured if all(level_of(factors, key) == wanted[key] for key in wanted)]
    if not matching:
        _check_baseline_measured(plan, wanted)
    if len(matching) != 1:
        raise _ambiguous_baseline_error(plan, measured, wanted, len(matching))
    baseline = matching[0]
    name = cell_name(baseline, varied)
    contenders = [factors for factors in measured if factors is not baseline]
    # With a fault each trial is a different accident, so two of them do not measure noise.
    duplicate = () if has_fault(baseline) else (NamedCell(name + AGAIN, "duplicate", dict(baseline)),)
    compared = [NamedCell(cell_name(factors, varied), "contender", factors) for factors in contenders]
    return (
        NamedCell(name, "baseline", baseline),
        *duplicate,
        *compared,
        *(_duplicates_of_other_kinds(baseline, compared) if duplicate and plan.timing.controls else ()),
        *_controls(plan, varied, NamedCell(name, "baseline", baseline), compared),
    )


def _duplicates_of_other_kinds(baseline: dict[str, Level], compared: list[NamedCell]) -> tuple[NamedCell, ...]:
    """A/A arms for each kind of scatter that the duplicate does not cover. They are copies of cells that otherwise equal the baseline;
    if there are several rates, of the cell with the last one."""
    fixed = [name for name in FACTORS if name not in (*CONDITIONS, LOAD.name)]
    duplicates = {
        scatter_kind(cell.factors): NamedCell(cell.name + AGAIN, "control", dict(cell.factors))
        for cell in compared
        if scatter_kind(cell.factors) != scatter_kind(baseline)
        and all(level_of(cell.factors, name) == level_of(baseline, name) for name in fixed)
    }
    return tuple(duplicates.values())


def _controls(plan: Plan, varied: list[str], baseline: NamedCell, compared: list[NamedCell]) -> tuple[NamedCell, ...]:
    """Control cells that wait for a link: a copy of a reference cell, and a copy with a longer RTT. The reference has the fewest
    connections, the most distant servers and the highest rate, so that it waits for round trips. If it is the baseline, its copy
    exists already. Empty if no cell waits for a link, or if one has a fault."""
    if not plan.timing.controls:
        return ()
    conditions = {name: level_of(baseline.factors, name) for name in CONDITIONS}
    linked = [
        cell
        for cell in compared
        if waits_for_link(cell.factors)
        and all(level_of(cell.factors, name) == level for name, level in conditions.items())
    ] or [baseline]
    if not waits_for_link(linked[0].factors) or any(has_fault(cell.factors) for cell in linked):
        return ()
    closest = min(linked, key=_reference_rank)
    repeated = () if closest is baseline else (NamedCell(closest.name + AGAIN, "control", dict(closest.factors)),)
    reference = closest if _shows_rtt(closest.factors) else _single_connection_cell(closest.factors, varied)
    waited = waited_rtt(reference.factors)
    waits = waited is RTT_NS or not WORKLOADS[plan.workload.kind].reads_only  # only commits wait for another server
    if plan.timing.controls == "same" or waited is None or not waits:
        return repeated
    extra_reference = () if reference.factors in [cell.factors for cell in (baseline, *compared)] else (reference,)
    longer = {**reference.factors, waited.name: round(waited.level_in(reference.factors) * (1 + CONTROL_SHARE))}
    return (*repeated, *extra_reference, NamedCell(f"{reference.name} (RTT +{CONTROL_SHARE:.0%})", "control", longer))


def _shows_rtt(cell: dict[str, Level]) -> bool:
    """Whether an increase of the RTT makes the cell's requests, or its commits, longer by the same time."""
    few = {THREADS.name: min(THREADS.level_in(cell), _MAX_CONTROL_THREADS)}
    return waited_rtt(cell) is not None and all(
        FACTORS[name].level_in(cell) == level for name, level in (_SINGLE_CONNECTION_LEVELS | few).items()
    )


def _single_connection_cell(cell: dict[str, Level], varied: list[str]) -> NamedCell:
    """An additional control that serves as the reference: the cell with one persistent connection in a closed loop."""
    levels = cell | {
        name: level for name, level in _SINGLE_CONNECTION_LEVELS.items() if FACTORS[name].level_in(cell) != level
    }
    if waited_rtt(cell) is None:
        levels = next(links.with_single_wait(levels) for links in SERVER_LINKS if links.delay_commits(levels))
    factors = _without_meaningless_levels(levels)
    changed = {name for name, level in factors.items() if level_of(cell, name) != level}
    return NamedCell(cell_name(factors, [name for name in FACTORS if name in {*varied, *changed}]), "control", factors)


def _reference_rank(cell: NamedCell) -> tuple[bool, bool, int, int, int]:
    """Rank of a cell as a control's reference; the best sorts first. Opening connections, or waiting until the next transaction is
    due, hides round trips."""
    factors = cell.factors
    hiding = CONNECT.level_in(factors) != "persistent", LOAD.level_in(factors) != CLOSED
    far_ns = max(node_rtts_ns(factors).values(), default=0)
    return *hiding, THREADS.level_in(factors), -far_ns, -(RATE_BPS.level_or_none(factors) or 0)


def _check_baseline_measured(plan: Plan, wanted: dict[str, Level]) -> None:
    """Check that `leave_out` does not remove every cell that the baseline names. Raises PlanError."""
    named = [levels for levels in combinations(plan) if all(level_of(levels, key) == wanted[key] for key in wanted)]
    tables = [str(number) for number, excluded in enumerate(plan.leave_out, 1) if any(map(excluded.matches, named))]
    if not named or not tables:
        return
    baseline = ", ".join(FACTORS[key].toml_line(level) for key, level in wanted.items())
    raise PlanError(
        f"plan {plan.name}: leave_out removes the baseline ({baseline}): table {' and '.join(tables)} matches it",
        "Every cell is compared with the baseline: name another one, or keep its cell.",
    )


def _ambiguous_baseline_error(
    plan: Plan, measured: list[dict[str, Level]], wanted: dict[str, Level], matching: int
) -> PlanError:
    """The error for a baseline that no cell or several cells match. It names the factors that the baseline must change or add."""
    levels_by_factor = {
        key: list(dict.fromkeys(level for factors in measured if (level := level_of(factors, key)) is not None))
        for key in FACTORS
    }
    named = ", ".join(FACTORS[key].toml_line(level) for key, level in wanted.items()) or "nothing"
    message = f"plan {plan.name}: baseline names {named}, which {matching} of its {len(measured)} cells match"
    absent = [key for key, level in wanted.items() if level not in levels_by_factor[key]]
    if absent:
        message += f": none has {', '.join(FACTORS[key].toml_line(wanted[key]) for key in absent)}"
        levels = "; ".join(
            f"{FACTORS[key].key} {', '.join(map(FACTORS[key].format, levels_by_factor[key])) or '-'}" for key in absent
        )
        return PlanError(message, f"The plan has: {levels}. Add the baseline's level there, or name another baseline.")
    undecided = [FACTORS[key].key for key, levels in levels_by_factor.items() if len(levels) > 1 and key not in wanted]
    if matching and undecided:
        return PlanError(message, f"The baseline must single out one cell: name a level of {', '.join(undecided)} too.")
    return PlanError(message, "The baseline must single out one cell: these levels do not occur together.")


def block_order(seed: int, block: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """The random order of one block, which depends only on seed, block number and names.

    Sorts by `random()` draws: only this method of Python's generator guarantees the same sequence in every version.
    """
    rng = random.Random(f"howfar order of block {block} of seed {seed}")
    return tuple(sorted(names, key={name: rng.random() for name in names}.__getitem__))


def stream_seed(seed: int, block: int) -> int:
    """Seed of the transaction stream: one for all arms of a block, so that every path runs the same transactions."""
    rng = random.Random(f"howfar transactions of block {block} of seed {seed}")
    return int(rng.random() * 2**52)
