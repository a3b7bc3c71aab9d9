"""Fit a plan to what is available: leave out levels that a server does not support, fit tables into memory. Pure.

Each change is described in a sentence, for the terminal and for the run file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from howfar.errors import PlanError
from howfar.paths import is_local
from howfar.plan.cells import Cell, cells
from howfar.plan.factors import CLOSED, FACTORS, LOAD, Level, share_of_capacity
from howfar.plan.page import Keys
from howfar.plan.types import LeftOut, Plan, Workload

_STEPS = (1, 2, 5)
"""Leading digits of table sizes, times powers of ten: so the size is the same when slightly more or less memory is free."""


_KEY_BYTES = 100
"""Bytes of a store for a key in addition to its value: the key and its management data (Redis 90 to 100, Memcached 60 to 80)."""
MEMCACHED_BYTES = 2**30
"""Memory for the items of the laboratory's Memcached, which would evict what exceeds it."""
_LEAST_RANGES = 100
"""Minimum number of disjoint ranges in a table: in a smaller one many are cut off at its end, and a few pages hold it all."""


@dataclass(frozen=True)
class Fitted:
    """A plan that can be run, and its differences from the request."""

    plan: Plan
    notes: tuple[str, ...] = ()


def without_levels(plan: Plan, lacking: Mapping[str, Mapping[Any, str]]) -> Fitted:
    """Leave out levels, given by factor with the reason for each. For an unavailable state of the machine, the ordinary one is used.
    Raises PlanError when nothing is left to compare."""
    changed, notes = {}, []
    for factor, reasons in lacking.items():
        levels = getattr(plan.factors, factor)
        gone = [level for level in levels if level in reasons]
        if not gone:
            continue
        left = tuple(level for level in levels if level not in reasons)
        if not left and FACTORS[factor].condition:
            left = (FACTORS[factor].ordinary,)
        why = "; ".join(dict.fromkeys(reasons[level] for level in gone))
        if not left:
            raise PlanError(
                f"plan {plan.name} asks for {factor} {', '.join(map(str, gone))} only: {why}",
                "`howfar servers` shows what each server here can do.",
            )
        changed[factor] = left
        notes.append(f"left out: {factor} {', '.join(map(str, gone))}: {why}")
    if not changed:
        return Fitted(plan)
    fitted = plan.model_copy(update={"factors": plan.factors.model_copy(update=changed)})
    states = {name: left[0] for name, left in changed.items() if FACTORS[name].condition}
    if named := {name: level for name, level in states.items() if getattr(plan.baseline, name) is not None}:
        fitted = fitted.model_copy(update={"baseline": plan.baseline.model_copy(update=named)})
    try:
        contenders = sum(cell.role == "contender" for cell in cells(fitted))
    except PlanError as error:
        raise PlanError(f"{'; '.join(notes)}. {error.message}", error.advice) from error
    if contenders == 0 and any(cell.role == "contender" for cell in cells(plan)):
        raise PlanError(
            f"nothing is left to compare with the baseline of plan {plan.name}: {'; '.join(notes)}",
            "Choose another server with --server; `howfar servers` shows what each can do.",
        )
    return Fitted(fitted, tuple(notes))


def with_keys(plan: Plan) -> Fitted:
    """Turn point selects into requests to a key-value store: selecting a row by its key is a get there. Other plans are not
    changed."""
    factors = plan.factors
    of_tables = factors.compression != ("off",) or factors.content != ("digits",) or factors.replication != ("off",)
    if plan.workload.kind != "oltp_point_select" or of_tables:
        return Fitted(plan)
    asked = plan.model_copy(update={"workload": Workload(kind="key_value"), "keys": Keys(set=0)})
    return Fitted(asked, ("gets of a key in place of point selects: the server stores keys",))


def with_instead(plan: Plan, factor: str, instead: Mapping[str, Sequence[Any]]) -> Fitted:
    """Replace levels of a factor, each by those given for it. A plan that names one of the replacements itself is not changed."""
    levels = getattr(plan.factors, factor)
    own = {other for level, others in instead.items() for other in others if other != level}
    if own & set(levels) or not set(instead) & set(levels):
        return Fitted(plan)
    changed = tuple(dict.fromkeys(other for level in levels for other in instead.get(level, (level,))))
    fitted = plan.model_copy(update={"factors": plan.factors.model_copy(update={factor: changed})})
    baseline = getattr(plan.baseline, factor)
    if baseline in instead or (baseline is None and len(levels) == 1 < len(changed)):
        first = changed[0] if baseline is None else instead[baseline][0]
        named = plan.baseline.model_copy(update={factor: first})
        fitted = fitted.model_copy(update={"baseline": named})
    new = ", ".join(level for level in changed if level not in levels)
    old = ", ".join(level for level in levels if level not in changed)
    return Fitted(fitted, (f"{factor}: {new}{f' instead of {old}' if old else ''}, as this server has it",))


def with_link(plan: Plan, there: Mapping[str, Level]) -> Fitted:
    """Use the existing links, by factor, in place of those that the plan would set: a real link cannot be set. So no control
    has a longer RTT. Raises PlanError when nothing is left to compare."""
    compared = [FACTORS[name] for name in there if len(getattr(plan.factors, name)) > 1]
    named = {name: level for name, level in there.items() if getattr(plan.baseline, name) is not None}
    fitted = plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update={name: (level,) for name, level in there.items()}),
            "baseline": plan.baseline.model_copy(update=named),
            "leave_out": tuple(out for out in plan.leave_out if not set(there) & out.model_fields_set),
            "timing": plan.timing.model_copy(update={"controls": plan.timing.controls and "same"}),
        }
    )
    if not any(cell.role == "contender" for cell in cells(fitted)) and any(c.role == "contender" for c in cells(plan)):
        raise PlanError(
            f"plan {plan.name} compares only links, and the link between your own hosts cannot be changed",
            "The laboratory (without --on) can emulate each of them.",
        )
    return Fitted(
        fitted,
        tuple(
            f"left out: {factor.key} {', '.join(map(factor.format, getattr(plan.factors, factor.name)))}: a link between hosts is "
            "measured, not set; the laboratory (without --on) emulates each"
            for factor in compared
        ),
    )


def with_rows(plan: Plan, most: int) -> Fitted:
    """Limit tables to a round number of at most `most` rows, if the plan allows smaller ones (`fit`).

    Raises PlanError where they would be too small for the plan's ranges.
    """
    data = plan.data
    if not data.fit:
        return Fitted(plan)
    size = data.table_size if data.table_size <= most else round_below(most)
    least = _LEAST_RANGES * plan.workload.range_size
    if size < min(least, data.table_size):
        raise PlanError(
            f"this machine has memory and disk only for tables of {size if most else 0} rows; plan {plan.name} reads"
            f" ranges of {plan.workload.range_size} rows, which is a different workload in tables of fewer than {least}",
            "Free memory or disk space (see `df`), or give the plan fewer tables.",
        )
    fitted = plan.model_copy(update={"data": data.model_copy(update={"table_size": size, "fit": False})})
    if size == data.table_size:
        return Fitted(fitted)
    return Fitted(
        fitted,
        (f"tables of {size} rows instead of {data.table_size}, as many as fit in this machine's memory and disk",),
    )


def resumed_in_full(plan: Plan) -> tuple[str, ...]:
    """Notes for a plan with `1.3-resumed` whose persistent connections give plain 1.3 instead (`cells.py`)."""
    factors = plan.factors
    if "1.3-resumed" not in factors.tls or "persistent" not in factors.connect:
        return ()
    if "1.3" in factors.tls and "per-transaction" in factors.connect:
        return ()  # each level has its own cells
    return ("tls 1.3-resumed is measured as 1.3 where connections are persistent: they have nothing to resume",)


def check_rows(plan: Plan, most: int) -> None:
    """Refuse tables that a machine cannot hold at all, before anything is built. `most`: rows of each. Raises PlanError."""
    data = plan.data
    if data.table_size > most:
        raise PlanError(
            f"{data.tables} tables of {data.table_size} rows are too large for this machine: its free memory holds {most} rows of"
            " each at most",
            "Set fit = true in [data] for the largest tables that fit, or make table_size smaller.",
        )


def check_machines(plan: Plan, cpus: int) -> None:
    """Refuse pages on two machines that share one CPU: the second machine could only be slower. Raises PlanError."""
    far = [path for path in plan.factors.path if not is_local(path)]
    if plan.workload.kind == "page" and far and cpus < 2:
        raise PlanError(
            f"plan {plan.name} compares one machine with two ({', '.join(far)}), but there is only one CPU for both:"
            " the second machine would add none",
            "Allow howfar at least two CPUs, or name only the paths socket and tcp, in a plan of your own.",
        )


def check_keys(plan: Plan, stores: Sequence[str], memory_bytes: float) -> None:
    """Refuse keys that stores of these kinds cannot hold, before anything is built. Raises PlanError."""
    keys = plan.keys
    each = keys.count * (keys.value_bytes + _KEY_BYTES)
    demand = f"{keys.count} keys with values of {keys.value_bytes} bytes take {each / 2**30:.1f} GiB in each store"
    advice = "Reduce count or value_bytes in [keys]."
    if "memcached" in stores and each > MEMCACHED_BYTES:
        raise PlanError(f"{demand}, but Memcached is given {MEMCACHED_BYTES / 2**30:.0f} GiB", advice)
    if (total := each * len(stores)) > memory_bytes:
        raise PlanError(
            f"{demand}, {total / 2**30:.1f} GiB in all, but only {max(memory_bytes, 0) / 2**30:.1f} GiB is free", advice
        )


def round_below(most: int) -> int:
    """The largest of 1, 2, 5, 10, 20, … that is not above `most`."""
    power: int = 10 ** (len(str(max(most, 1))) - 1)
    return max(step * power for step in _STEPS if step * power <= max(most, 1))


def needs_capacity(plan: Plan) -> bool:
    """Whether some load is a share of the baseline's capacity."""
    return any(share_of_capacity(level) is not None for level in plan.factors.load)


def closed_loop(plan: Plan) -> Cell:
    """The baseline in a closed loop, whose capacity the shares refer to."""
    baseline = cells(plan)[0]
    return replace(baseline, factors={**baseline.factors, LOAD.name: CLOSED})


def with_capacity(plan: Plan, per_s: float) -> Plan:
    """The plan with every load that is a share of the capacity `per_s` as a rate of three digits."""

    def rate(level: str) -> str:
        share = share_of_capacity(level)
        return level if share is None else f"{float(f'{share * per_s:.3g}'):g}/s"

    def rated(out: LeftOut) -> LeftOut:
        if LOAD.name not in out.model_fields_set:
            return out
        return out.model_copy(update={LOAD.name: tuple(map(rate, getattr(out, LOAD.name)))})

    levels = tuple(dict.fromkeys(rate(level) for level in plan.factors.load))
    named = getattr(plan.baseline, LOAD.name)
    return plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update={LOAD.name: levels}),
            "baseline": plan.baseline.model_copy(update={LOAD.name: None if named is None else rate(named)}),
            "leave_out": tuple(map(rated, plan.leave_out)),
        }
    )
