"""Fit a plan to what is available: leave out levels that a server does not support, fit tables into memory. No I/O.

A sentence describes each change, for the terminal and for the run file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from howfar.errors import PlanError
from howfar.plan.cells import NamedCell, cells
from howfar.plan.factor import Level
from howfar.plan.factors import CLOSED, FACTORS, LOAD, share_of_capacity
from howfar.plan.types import LeftOut, Plan
from howfar.plan.workload import WORKLOADS

_STEPS = (1, 2, 5)
"""Leading digits of table sizes, times powers of ten. Round sizes stay the same when slightly more or less memory is free."""


_KEY_BYTES = 100
"""Bytes that a store needs for a key in addition to its value: the key and its metadata (Redis 90 to 100, Memcached 60 to 80)."""
MEMCACHED_BYTES = 2**30
"""Memory for the items of the laboratory's Memcached. It would evict items beyond that."""
_MIN_RANGES = 100
"""Minimum number of disjoint ranges in a table: in a smaller one many are cut off at its end, and a few pages hold it all."""


@dataclass(frozen=True)
class FittedPlan:
    """A plan that can be run, and its differences from the request."""

    plan: Plan
    notes: tuple[str, ...] = ()


def without_levels(plan: Plan, lacking: Mapping[str, Mapping[Any, str]]) -> FittedPlan:
    """Leave out levels. `lacking`: these levels by factor, each with the reason. If a condition of the machine has no level left, its
    implied level is used. Raises PlanError when nothing is left to compare."""
    changed, notes = {}, []
    for factor, reasons in lacking.items():
        levels = getattr(plan.factors, factor)
        removed = [level for level in levels if level in reasons]
        if not removed:
            continue
        remaining = tuple(level for level in levels if level not in reasons)
        if not remaining and FACTORS[factor].is_condition:
            remaining = (FACTORS[factor].implied_level,)
        why = "; ".join(dict.fromkeys(reasons[level] for level in removed))
        if not remaining:
            raise PlanError(
                f"plan {plan.name} asks for {factor} {', '.join(map(str, removed))} only: {why}",
                "`howfar servers` shows what each server here can do.",
            )
        changed[factor] = remaining
        notes.append(f"left out: {factor} {', '.join(map(str, removed))}: {why}")
    if not changed:
        return FittedPlan(plan)
    fitted = plan.model_copy(update={"factors": plan.factors.model_copy(update=changed)})
    new_conditions = {name: remaining[0] for name, remaining in changed.items() if FACTORS[name].is_condition}
    if baseline_levels := {
        name: level for name, level in new_conditions.items() if getattr(plan.baseline, name) is not None
    }:
        fitted = fitted.model_copy(update={"baseline": plan.baseline.model_copy(update=baseline_levels)})
    try:
        contenders = sum(cell.role == "contender" for cell in cells(fitted))
    except PlanError as error:
        raise PlanError(f"{'; '.join(notes)}. {error.message}", error.advice) from error
    if contenders == 0 and any(cell.role == "contender" for cell in cells(plan)):
        raise PlanError(
            f"nothing is left to compare with the baseline of plan {plan.name}: {'; '.join(notes)}",
            "Choose another server with --server; `howfar servers` shows what each can do.",
        )
    return FittedPlan(fitted, tuple(notes))


def with_keys(plan: Plan) -> FittedPlan:
    """Turn a plan of SQL into one for servers that store keys, where there is an equivalent. Other plans are not changed."""
    for kind in WORKLOADS.values():
        if (replaced := kind.replaces(plan)) is not None:
            return FittedPlan(replaced, ("gets of a key in place of point selects: the server stores keys",))
    return FittedPlan(plan)


def with_replacements(plan: Plan, factor: str, instead: Mapping[str, Sequence[Any]]) -> FittedPlan:
    """Replace levels of a factor, each by those in `instead`. A plan that already names one of the replacements is not changed."""
    levels = getattr(plan.factors, factor)
    replacements = {other for level, others in instead.items() for other in others if other != level}
    if replacements & set(levels) or not set(instead) & set(levels):
        return FittedPlan(plan)
    changed = tuple(dict.fromkeys(other for level in levels for other in instead.get(level, (level,))))
    fitted = plan.model_copy(update={"factors": plan.factors.model_copy(update={factor: changed})})
    baseline = getattr(plan.baseline, factor)
    if baseline in instead or (baseline is None and len(levels) == 1 < len(changed)):
        first = changed[0] if baseline is None else instead[baseline][0]
        new_baseline = plan.baseline.model_copy(update={factor: first})
        fitted = fitted.model_copy(update={"baseline": new_baseline})
    added = ", ".join(level for level in changed if level not in levels)
    replaced = ", ".join(level for level in levels if level not in changed)
    return FittedPlan(
        fitted, (f"{factor}: {added}{f' instead of {replaced}' if replaced else ''}, as this server has it",)
    )


def with_link(plan: Plan, link_levels: Mapping[str, Level]) -> FittedPlan:
    """Replace the plan's links by real ones, which cannot be set. So there is no control with a longer RTT. `link_levels`: the levels
    of the real links, by factor. Raises PlanError when nothing is left to compare."""
    compared = [FACTORS[name] for name in link_levels if len(getattr(plan.factors, name)) > 1]
    baseline_levels = {name: level for name, level in link_levels.items() if getattr(plan.baseline, name) is not None}
    fitted = plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update={name: (level,) for name, level in link_levels.items()}),
            "baseline": plan.baseline.model_copy(update=baseline_levels),
            "leave_out": tuple(out for out in plan.leave_out if not set(link_levels) & out.model_fields_set),
            "timing": plan.timing.model_copy(update={"controls": plan.timing.controls and "same"}),
        }
    )
    if not any(cell.role == "contender" for cell in cells(fitted)) and any(c.role == "contender" for c in cells(plan)):
        raise PlanError(
            f"plan {plan.name} compares only links, and the link between your own hosts cannot be changed",
            "The laboratory (without --on) can emulate each of them.",
        )
    return FittedPlan(
        fitted,
        tuple(
            f"left out: {factor.key} {', '.join(map(factor.format, getattr(plan.factors, factor.name)))}: a link between hosts is "
            "measured, not set; the laboratory (without --on) emulates each"
            for factor in compared
        ),
    )


def with_rows(plan: Plan, max_rows: int) -> FittedPlan:
    """Limit tables to a round number of at most `max_rows` rows, if the plan allows smaller ones (`fit`).

    Raises PlanError where they would be too small for the plan's ranges.
    """
    data = plan.data
    if not data.fit:
        return FittedPlan(plan)
    size = data.table_size if data.table_size <= max_rows else round_below(max_rows)
    min_rows = _MIN_RANGES * plan.workload.range_size
    if size < min(min_rows, data.table_size):
        raise PlanError(
            f"this machine has memory and disk only for tables of {size if max_rows else 0} rows; plan {plan.name} reads"
            f" ranges of {plan.workload.range_size} rows, which is a different workload in tables of fewer than {min_rows}",
            "Free memory or disk space (see `df`), or give the plan fewer tables.",
        )
    fitted = plan.model_copy(update={"data": data.model_copy(update={"table_size": size, "fit": False})})
    if size == data.table_size:
        return FittedPlan(fitted)
    return FittedPlan(
        fitted,
        (f"tables of {size} rows instead of {data.table_size}, as many as fit in this machine's memory and disk",),
    )


def describe_unresumed_sessions(plan: Plan) -> tuple[str, ...]:
    """Notes for a plan with `1.3-resumed` whose persistent connections give plain 1.3 instead (`cells.py`)."""
    factors = plan.factors
    if "1.3-resumed" not in factors.tls or "persistent" not in factors.connect:
        return ()
    if "1.3" in factors.tls and "per-transaction" in factors.connect:
        return ()  # each level has its own cells
    return ("tls 1.3-resumed is measured as 1.3 where connections are persistent: they have nothing to resume",)


def describe_lost_levels(plan_toml: str, quick: bool, measured: Mapping[str, Sequence[Level] | None]) -> dict[str, str]:
    """Notes by factor on named levels that a plan lists and a run lacks, for older runs without any. `measured`: its levels by
    factor."""
    try:
        plan = tomllib.loads(plan_toml)
    except tomllib.TOMLDecodeError:
        return {}
    tables = [plan.get("factors")]
    if quick and isinstance(plan.get("quick"), dict):
        tables.append(plan["quick"].get("factors"))
    notes = {}
    for name, levels in (
        (name, levels) for table in tables if isinstance(table, dict) for name, levels in table.items()
    ):
        kept = set(measured.get(name) or ())
        listed = [level for level in levels if isinstance(level, str)] if isinstance(levels, list) else []
        lost = [level for level in listed if level not in kept]
        notes[name] = f"left out: {name} {', '.join(lost)}" if lost and kept and kept <= set(listed) else ""
    return {name: text for name, text in notes.items() if text}


def check_rows(plan: Plan, max_rows: int) -> None:
    """Refuse tables that a machine cannot hold at all, before anything is built. `max_rows`: rows of each. Raises PlanError."""
    data = plan.data
    if data.table_size > max_rows:
        raise PlanError(
            f"{data.tables} tables of {data.table_size} rows are too large for this machine: its free memory holds {max_rows} rows of"
            " each at most",
            "Set fit = true in [data] for the largest tables that fit, or make table_size smaller.",
        )


def check_keys(plan: Plan, stores: Sequence[str], memory_bytes: float) -> None:
    """Refuse keys that stores of these kinds cannot hold, before anything is built. Raises PlanError."""
    keys = plan.keys
    store_bytes = keys.count * (keys.value_bytes + _KEY_BYTES)
    demand = (
        f"{keys.count} keys with values of {keys.value_bytes} bytes take {store_bytes / 2**30:.1f} GiB in each store"
    )
    advice = "Reduce count or value_bytes in [keys]."
    if "memcached" in stores and store_bytes > MEMCACHED_BYTES:
        raise PlanError(f"{demand}, but Memcached is given {MEMCACHED_BYTES / 2**30:.0f} GiB", advice)
    if (total := store_bytes * len(stores)) > memory_bytes:
        raise PlanError(
            f"{demand}, {total / 2**30:.1f} GiB in all, but only {max(memory_bytes, 0) / 2**30:.1f} GiB is free", advice
        )


def round_below(limit: int) -> int:
    """The largest of 1, 2, 5, 10, 20, … that is at most `limit`."""
    power: int = 10 ** (len(str(max(limit, 1))) - 1)
    return max(step * power for step in _STEPS if step * power <= max(limit, 1))


def needs_capacity(plan: Plan) -> bool:
    """Whether some load is a share of the baseline's capacity."""
    return any(share_of_capacity(level) is not None for level in plan.factors.load)


def closed_loop_baseline(plan: Plan) -> NamedCell:
    """The baseline in a closed loop. Loads that are shares refer to its capacity."""
    baseline = cells(plan)[0]
    return replace(baseline, factors={**baseline.factors, LOAD.name: CLOSED})


def with_capacity(plan: Plan, per_s: float) -> Plan:
    """The plan with every load that is a share of the capacity `per_s` as a rate of three digits."""

    def rate(level: str) -> str:
        share = share_of_capacity(level)
        return level if share is None else f"{float(f'{share * per_s:.3g}'):g}/s"

    def with_rate(excluded: LeftOut) -> LeftOut:
        if LOAD.name not in excluded.model_fields_set:
            return excluded
        return excluded.model_copy(update={LOAD.name: tuple(map(rate, getattr(excluded, LOAD.name)))})

    levels = tuple(dict.fromkeys(rate(level) for level in plan.factors.load))
    baseline_load = getattr(plan.baseline, LOAD.name)
    return plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update={LOAD.name: levels}),
            "baseline": plan.baseline.model_copy(
                update={LOAD.name: None if baseline_load is None else rate(baseline_load)}
            ),
            "leave_out": tuple(map(with_rate, plan.leave_out)),
        }
    )
