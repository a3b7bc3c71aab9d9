"""The factors that a plan can vary: `FACTORS` lists those here and those of the slices.

A cell is a mapping from factor names to levels, as run files store it. `THREADS.level_in(cell)` reads one level of it with its type;
a factor that the cell does not mention has its implied level.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BeforeValidator, Field, create_model
from pydantic_core import PydanticCustomError

from howfar.paths import PATHS, crosses_link
from howfar.plan.factor import Factor, FactorLevels, Level, Naming, ServerLinks, SessionSetting
from howfar.plan.quantities import OneOrMore, PlanPart, RateBps, RttNs, refusal
from howfar.slices import collect
from howfar.units import counted, format_duration_ns, format_rate_bps, spoken_rate

MAX_THREADS = 4096


def _plural(noun: str) -> Callable[[Any], str]:
    return lambda count: counted(count, noun)


# ---------------------------------------------------------------- kinds of levels


def _check_path(value: Any) -> Any:
    if value not in PATHS:
        raise refusal(f"no path is called {value!r}; known paths: {', '.join(PATHS)}")
    return value


def _check_threads(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise refusal("at least one connection is needed")
        if value > MAX_THREADS:
            raise refusal(f"at most {MAX_THREADS} connections")
    return value


def _check_load(value: Any) -> Any:
    match = _LOAD_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and (match is None or (match["share"] or match["per_s"] or "1").strip("0.") == ""):
        raise refusal(
            f"{value!r} is not a load: closed, a share of the baseline's capacity, such as 50%, or a rate, such as 300/s"
        )
    return value


CLOSED = "closed"
_LOAD_PATTERN = re.compile(rf"{CLOSED}|(?P<share>[0-9]{{1,3}}(\.[0-9]+)?)%|(?P<per_s>[0-9]+(\.[0-9]+)?)/s")
PathName = Annotated[str, BeforeValidator(_check_path)]
Threads = Annotated[int, BeforeValidator(_check_threads), Field(strict=True)]
Placement = Literal["isolated", "machines"]
ServerChoice = Annotated[str, Field(min_length=1)]
Tls = Literal["off", "1.2", "1.3", "1.3-resumed"]
Connect = Literal["persistent", "per-transaction"]
Content = Literal["digits", "text", "incompressible"]
Load = Annotated[str, BeforeValidator(_check_load)]
Idle = Literal["as-found", "polling"]


def tls_label(level: object) -> str:
    """A level in a sentence or a table: `TLS 1.3 resumed`."""
    return f"TLS {str(level).replace('-', ' ')}"


def _crosses(cell: FactorLevels) -> bool:
    return crosses_link(PATH.level_in(cell))


# ---------------------------------------------------------------- the registry

PATH: Factor[str] = Factor("path", PathName, default=None)
THREADS: Factor[int] = Factor(
    "threads",
    Threads,
    default=2,
    level_in_older_files=1,
    is_toml_string=False,
    label=_plural("thread"),
    short_label=str,
    heading="connections",
    prefers_rows=True,
    level_in_controls=1,
    moves_limit=True,
)
PLACEMENT: Factor[str] = Factor("placement", Placement, default="isolated", column_depth=-1)
SERVER: Factor[str] = Factor("server", ServerChoice, default="mariadb", column_depth=-2)
"""The server: `mariadb`, `mysql`, the name of a private install, or the path of a server program."""
RTT_NS: Factor[int] = Factor(
    "rtt_ns",
    RttNs,
    default=200_000,
    toml_name="rtt",
    label=lambda ns: f"RTT {format_duration_ns(ns)}",
    heading="RTT",
    format=format_duration_ns,
    applies=_crosses,
    level_in_older_files=0,
    link_setting="RTT",
)
RATE_BPS: Factor[int] = Factor(
    "rate_bps",
    RateBps,
    default=10**9,
    toml_name="rate",
    label=format_rate_bps,
    short_label=spoken_rate,
    heading="link",
    format=format_rate_bps,
    applies=_crosses,
    link_setting="rate",
    moves_limit=True,
)
TLS: Factor[str] = Factor(
    "tls",
    Tls,
    default="off",
    implied_level="off",
    label=lambda level: "plain" if level == "off" else tls_label(level),
    hides_protocol=True,
    moves_limit=True,
)
"""TLS of sessions. `1.3-resumed`: later connections resume the session of an earlier one; all other handshakes are full ones."""
CONNECT: Factor[str] = Factor(
    "connect",
    Connect,
    default="persistent",
    implied_level="persistent",
    label=lambda level: "connect per transaction" if level == "per-transaction" else "persistent",
    short_label=lambda level: "connect/txn" if level == "per-transaction" else "persistent",
    level_in_controls="persistent",
    moves_limit=True,
)
CONTENT: Factor[str] = Factor("content", Content, default="digits", implied_level="digits")
"""Contents of the tables: sysbench's digits, sentences, or bytes in which nothing repeats."""
IDLE: Factor[str] = Factor(
    "idle",
    Idle,
    default="polling",
    implied_level="as-found",
    label=lambda level: f"idle {level.replace('-', ' ')}",
    is_condition=True,
)
"""Idle states of CPUs: those that this machine normally uses, or polling, so that nothing waits for a CPU to wake up."""

LOAD: Factor[str] = Factor(
    "load",
    Load,
    default=CLOSED,
    implied_level=CLOSED,
    label=lambda level: "closed loop" if level == CLOSED else str(level),
    is_condition=True,
    level_in_controls=CLOSED,
)
"""When transactions begin. Closed loop: a connection begins its next one when the previous one is answered. Or at a given rate,
independent of answers. A share of the capacity is converted to a rate before a run begins."""

SESSION_SETTINGS = collect("factors", "SESSION_SETTINGS", SessionSetting)
"""Settings of sessions that slices add."""
_FACTORS: tuple[Factor[Any], ...] = (
    PATH,
    THREADS,
    PLACEMENT,
    SERVER,
    RTT_NS,
    RATE_BPS,
    TLS,
    *(setting.factor for setting in SESSION_SETTINGS),
    CONNECT,
    CONTENT,
    *collect("factors", "FACTORS", Factor),
    IDLE,
    LOAD,
)
FACTORS = {factor.name: factor for factor in _FACTORS}
"""Factors in the order of a cell's levels."""
NAMINGS = collect("factors", "NAMINGS", Naming)
"""Cells that are not named in the usual way."""
SERVER_LINKS = collect("factors", "SERVER_LINKS", ServerLinks)
"""Links between servers. A cell has at most one kind of them."""


def factor_refusal(factor: str, message: str) -> PydanticCustomError:
    """The error for a plan in which this factor does not fit the rest."""
    return refusal(message, "factors", FACTORS[factor].key)


CONDITIONS = tuple(name for name, factor in FACTORS.items() if factor.is_condition)
IMPLIED_LEVELS: dict[str, Level] = {
    name: factor.implied_level for name, factor in FACTORS.items() if factor.implied_level is not None
}
"""Levels of a cell where it does not name them."""


def waits_for_link(cell: FactorLevels) -> bool:
    """Whether the cell's requests or commits wait for a link."""
    return bool(RTT_NS.level_or_none(cell)) or any(links.delay_commits(cell) for links in SERVER_LINKS)


def waited_rtt(cell: FactorLevels) -> Factor[int] | None:
    """The factor of the RTT that each request, or each commit, of the cell waits for exactly once. None: there is no such RTT, for
    example because servers agree in more or fewer round trips."""
    waited = next((links.rtt for links in SERVER_LINKS if links.delay_commits_by_one_rtt(cell)), RTT_NS)
    return waited if waited.level_or_none(cell) else None


def node_rtts_ns(cell: FactorLevels) -> dict[tuple[int, int], int]:
    """RTTs between the servers of a cell that talk to each other; the first one is 0. Empty: it has one server."""
    return next((rtts_ns for links in SERVER_LINKS if (rtts_ns := links.rtts_ns(cell))), {})


def has_fault(cell: FactorLevels) -> bool:
    """Whether a fault is injected in this cell."""
    return any(factor.level_in(cell) != factor.implied_level for factor in FACTORS.values() if factor.is_fault)


def hiding_levels(cell: FactorLevels) -> list[str]:
    """The levels of a cell, as text, with which programs on the path cannot read the protocol."""
    factors = [factor for factor in FACTORS.values() if factor.hides_protocol]
    return [factor.label(level) for factor in factors if (level := factor.level_in(cell)) != factor.implied_level]


def saves_bytes(cell: FactorLevels) -> bool:
    """Whether fewer bytes are sent in this cell than the protocol's messages have."""
    return any(factor.level_in(cell) != factor.implied_level for factor in FACTORS.values() if factor.saves_bytes)


BYTE_SAVERS = " or ".join(factor.name for factor in _FACTORS if factor.saves_bytes)
"""The factors that reduce the bytes sent, for texts that recommend them. Empty: none."""


def share_of_capacity(level: str) -> float | None:
    """The level as a share, 0.5 for `50%`; None: the level is not a share."""
    return float(level[:-1]) / 100 if level.endswith("%") else None


def offered_per_s(cell: FactorLevels) -> float | None:
    """Transactions due per second. None: closed loop."""
    level = LOAD.level_in(cell)
    return float(level.removesuffix("/s")) if level.endswith("/s") else None


def scatter_kind(cell: FactorLevels) -> tuple[object, ...]:
    """What the scatter of a cell's trials depends on besides its path: the machine's conditions, and whether its load has a given
    rate. An A/A arm of one kind gives no noise floor for another kind."""
    return *(level_of(cell, name) for name in CONDITIONS if name != LOAD.name), LOAD.level_in(cell) != CLOSED


def level_of(cell: FactorLevels, name: str) -> Level | None:
    """The level of any factor, by name; its implied one where the cell does not name it."""
    factor = FACTORS.get(name)
    return cell.get(name, factor.implied_level if factor else None)


# ---------------------------------------------------------------- the tables of a plan that are built from the registry


ModelFields = dict[str, Any]
"""Fields of a model, each with its type and its default, as `create_model` takes them."""
ModelT = TypeVar("ModelT", bound=PlanPart)


def levels_model_of(base: type[ModelT], is_leave_out: bool = False) -> type[ModelT]:
    """The table `[factors]`: a model of `base` with a tuple of levels for each factor in the registry as it is now."""
    return cast(type[ModelT], _levels_model(base, is_leave_out, tuple(FACTORS.values())))


@lru_cache(maxsize=16)
def _levels_model(base: type[PlanPart], is_leave_out: bool, factors: tuple[Factor[Any], ...]) -> Any:
    fields: ModelFields = {}
    for factor in factors:
        # A table of `leave_out` matches by the factors that it names, so any default will do there.
        levels = (factor.default,) if factor.default is not None else () if is_leave_out else None
        default: Any = ... if levels is None else levels
        kind = Annotated[tuple[factor.level_type, ...], OneOrMore]  # type: ignore[name-defined]
        fields[factor.name] = (kind, Field(default=default, alias=factor.toml_name or None))
    return create_model(base.__name__, __base__=base, __module__=__name__, **fields)


def baseline_model_of(base: type[ModelT]) -> type[ModelT]:
    """The table `[baseline]`: a model of `base` with at most one level for each factor."""
    return cast(type[ModelT], _baseline_model(base, tuple(FACTORS.values())))


@lru_cache(maxsize=16)
def _baseline_model(base: type[PlanPart], factors: tuple[Factor[Any], ...]) -> Any:
    fields: ModelFields = {
        factor.name: (factor.level_type | None, Field(default=None, alias=factor.toml_name or None))
        for factor in factors
    }
    return create_model(base.__name__, __base__=base, __module__=__name__, **fields)
