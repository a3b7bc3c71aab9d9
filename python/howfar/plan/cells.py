"""A plan as cells and blocks: which combinations are measured, under which names, in which order. Pure and repeatable."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Literal

from howfar.errors import PlanError
from howfar.plan.types import LOCAL_PATHS, ORDINARY, REPLICA_FACTORS, SEMI_SYNC, Factors, Plan, breaks
from howfar.units import format_duration_ns, format_rate_bps

Level = str | int | float | bool
Role = Literal["baseline", "duplicate", "contender"]

AGAIN = " (again)"
"""Ends the name of the duplicate of the baseline: the A/A arm."""

_LINK_FACTORS = ("rtt_ns", "rate_bps")
MODE_WORDS = {
    "off": "no binary log",
    "none": "no replica",
    "async": "asynchronous",
    "after-sync": "semi-sync AFTER_SYNC",
    "after-commit": "semi-sync AFTER_COMMIT",
}


@dataclass(frozen=True)
class Cell:
    """One combination of factor levels under a name. Cells on local paths carry no link factors."""

    name: str
    role: Role
    factors: dict[str, Level]


def _combinations(plan: Plan) -> list[dict[str, Level]]:
    """Every distinct combination, in the order of the plan."""
    levels: dict[str, tuple[Level, ...]] = {
        field: tuple(getattr(plan.factors, field)) for field in type(plan.factors).model_fields
    }
    for name, ordinary in ORDINARY.items():
        if levels[name] == (ordinary,):
            del levels[name]
    found: list[dict[str, Level]] = []
    for values in product(*levels.values()):
        factors = dict(zip(levels, values, strict=True))
        if factors["path"] in LOCAL_PATHS:
            factors = {name: level for name, level in factors.items() if name not in _LINK_FACTORS}
        if factors.get("tls") == "1.3-resumed" and factors.get("connect", ORDINARY["connect"]) == "persistent":
            factors["tls"] = "1.3"  # connections that stay have nothing to resume
        factors = _of_replication(factors)
        if factors not in found and not _waits_for_too_many(factors):
            found.append(factors)
    return found


def _of_replication(factors: dict[str, Level]) -> dict[str, Level]:
    """Without what means nothing in this mode: links where there is no replica, waiting where nobody waits."""
    mode = factors.get("replication", ORDINARY["replication"])
    nothing: tuple[str, ...] = ()
    if mode in ("off", "none"):
        nothing = (*REPLICA_FACTORS, "fault")
    elif mode not in SEMI_SYNC:
        nothing = ("wait_for",)
    if mode == "off":
        nothing += ("durability",)
    return {name: level for name, level in factors.items() if name not in nothing}


def _waits_for_too_many(factors: dict[str, Level]) -> bool:
    """There is no such cell: a commit cannot be acknowledged by more replicas than there are."""
    if factors.get("replication") not in SEMI_SYNC:
        return False
    return int(factors.get("wait_for", 1)) > int(factors.get("replicas", 1))


def _show(factor: str, level: Level) -> str:
    match factor:
        case "threads":
            return f"{level} thread{'' if level == 1 else 's'}"
        case "rtt_ns":
            return f"RTT {format_duration_ns(float(level))}"
        case "rate_bps":
            return format_rate_bps(float(level))
        case "tls":
            return "plain" if level == "off" else f"TLS {level}".replace("-", " ")
        case "compression":
            return "uncompressed" if level == "off" else str(level)
        case "replication":
            return MODE_WORDS[str(level)]
        case "replica_rtt_ns":
            return f"replica RTT {format_duration_ns(float(level))}"
        case "replica_rate_bps":
            return f"replica link {format_rate_bps(float(level))}"
        case "replicas":
            return f"{level} replica{'' if level == 1 else 's'}"
        case "wait_for":
            return f"wait for {level}"
        case "durability":
            return f"durability {level}"
        case "replica_tls":
            return "replication plain" if level == "off" else "replication TLS"
        case "replica_compression":
            return "replication uncompressed" if level == "off" else f"replication {level}"
        case "fault":
            return "no fault" if level == "none" else str(level)
        case "connect":
            return "connect per transaction" if level == "per-transaction" else "persistent"
        case _:
            return str(level)


def _name(factors: dict[str, Level], varied: list[str]) -> str:
    """The path, then the level of every other factor that is varied."""
    shown = ["path", *(factor for factor in varied if factor != "path")]
    words = ", ".join(_show(factor, factors[factor]) for factor in shown if factor in factors)
    return words.removeprefix(f"{factors['path']}, ") if "path" not in varied and "replication" in varied else words


def cells(plan: Plan) -> tuple[Cell, ...]:
    """The baseline first, its duplicate where nothing breaks in it, the contenders in the order of the plan. Raises PlanError."""
    combinations = _combinations(plan)
    varied = [name for name in type(plan.factors).model_fields if len(getattr(plan.factors, name)) > 1]
    if "replication" not in varied and any(breaks(factors) for factors in combinations):
        varied.append("replication")  # what breaks is a mode's, whatever else is held
    wanted = {name: level for name, level in plan.baseline.model_dump().items() if level is not None}
    matching = [
        factors for factors in combinations if all(factors.get(key, ORDINARY.get(key)) == wanted[key] for key in wanted)
    ]
    if len(matching) != 1:
        raise _no_one_baseline(plan, combinations, wanted, len(matching))
    baseline = matching[0]
    name = _name(baseline, varied)
    contenders = [factors for factors in combinations if factors is not baseline]
    # Where something breaks each trial is another accident, and no two of them a measure of noise.
    again = () if breaks(baseline) else (Cell(name + AGAIN, "duplicate", dict(baseline)),)
    return (
        Cell(name, "baseline", baseline),
        *again,
        *(Cell(_name(factors, varied), "contender", factors) for factors in contenders),
    )


def _no_one_baseline(
    plan: Plan, combinations: list[dict[str, Level]], wanted: dict[str, Level], matching: int
) -> PlanError:
    """Says what is wrong with each factor that the baseline names, or does not name, in the words of the plan."""
    has = {
        key: list(
            dict.fromkeys(
                level for factors in combinations if (level := factors.get(key, ORDINARY.get(key))) is not None
            )
        )
        for key in type(plan.factors).model_fields
    }
    asked = ", ".join(_written(key, level) for key, level in wanted.items()) or "nothing"
    message = f"plan {plan.name}: baseline names {asked}, which {matching} of its {len(combinations)} cells match"
    absent = [key for key, level in wanted.items() if level not in has[key]]
    if absent:
        message += f": none has {', '.join(_written(key, wanted[key]) for key in absent)}"
        levels = "; ".join(
            f"{_in_toml(key)} {', '.join(_shown(key, level) for level in has[key]) or '-'}" for key in absent
        )
        return PlanError(message, f"Name levels that the plan has: {levels}.")
    open_ones = [_in_toml(key) for key, levels in has.items() if len(levels) > 1 and key not in wanted]
    if matching and open_ones:
        return PlanError(message, f"The baseline must single out one cell: name a level of {', '.join(open_ones)} too.")
    return PlanError(message, "The baseline must single out one cell: these levels do not occur together.")


def _in_toml(factor: str) -> str:
    return Factors.model_fields[factor].alias or factor


def _shown(factor: str, level: Level) -> str:
    if factor in (*_LINK_FACTORS, "replica_rtt_ns", "replica_rate_bps"):
        return _show(factor, level).removeprefix("replica ").removeprefix("link ").removeprefix("RTT ")
    return str(level)


def _written(factor: str, level: Level) -> str:
    """As a plan has it: `rate = '1gbit'`, `threads = 16`."""
    shown = _shown(factor, level)
    return f"{_in_toml(factor)} = {shown if factor in ('threads', 'replicas', 'wait_for') else repr(shown)}"


def block_order(seed: int, block: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """The random order of one block. Depends on nothing but seed, block number and names.

    Sorts by `random()` draws: of Python's generator only that method promises the same sequence in every version.
    """
    rng = random.Random(f"howfar order of block {block} of seed {seed}")
    return tuple(sorted(names, key={name: rng.random() for name in names}.__getitem__))


def stream_seed(seed: int, block: int) -> int:
    """Seed of the transaction stream: one for all arms of a block, so that every path runs the same transactions."""
    rng = random.Random(f"howfar transactions of block {block} of seed {seed}")
    return int(rng.random() * 2**52)
