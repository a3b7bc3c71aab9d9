"""The command line of `howfar load` -> `Options`, by the table in `options.py`. Pure; it knows names and forms, not meaning.

As in sysbench: `--name=value`, dashes or underscores, switches bare or with on/off. Also `--name value`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import Any, get_args

from howfar.engine.messages import SYSBENCH_KINDS, Pgbench
from howfar.errors import QuantityError, UsageError
from howfar.load.options import BY_NAME, Option
from howfar.load.target import PASSWORD_ADVICE, looks_like_dsn, switch
from howfar.units import parse_duration_ns

PGBENCH_KINDS: tuple[str, ...] = get_args(Pgbench.model_fields["kind"].annotation)
KINDS = (*SYSBENCH_KINDS, *PGBENCH_KINDS)
ACTIONS = ("prepare", "warmup", "prewarm", "run", "cleanup")
HELP = "`howfar load --help` lists all options."
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Options:
    """The parsed command line. `values` has only the options that were given; see `value`."""

    dsn: str | None
    kind: str | None
    """One of sysbench's or pgbench's workloads; None with --workload."""
    action: str
    values: Mapping[str, Any]
    notes: tuple[str, ...]
    """Options that were accepted and have no effect, a line each."""

    @property
    def dialect(self) -> str:
        return str(self.values.get("dialect", "1.0"))

    def value(self, name: str) -> Any:
        """The value given, else the dialect's default, else None."""
        if name in self.values:
            return self.values[name]
        default = BY_NAME[name].default_of(self.dialect)
        return None if default is None else _read(BY_NAME[name], default)

    def given(self, name: str) -> bool:
        return name in self.values


def parse_command_line(arguments: Sequence[str]) -> Options:
    """The options of a command line. Raises UsageError."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    positional: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            positional += [argument] if argument != "--" else []
            continue
        name, has_value, text = argument[2:].partition("=")
        option = _find(name)
        if option.fate == "refused":
            raise UsageError(f"--{option.name} is not accepted: {option.why}", _instead(option))
        if not has_value:
            text = _next(option, rest)
        if option.fate == "ignored":
            notes.append(f"--{option.name} has no effect here: {option.why}")
            continue
        if option.same_as:
            notes.append(f"--{option.name} is deprecated; --{option.same_as} is used")
        values[option.same_as or option.name] = _read(option, text)
    return _positional(positional, values, notes)


def _instead(option: Option) -> str:
    return PASSWORD_ADVICE if "password" in option.name else HELP


def _find(name: str) -> Option:
    known = name.replace("_", "-").lower()
    if known in BY_NAME:
        return BY_NAME[known]
    if known == "dsn":
        raise UsageError(
            "there is no option --dsn", f"Give the DSN alone: howfar load mysql://user@host/database. {HELP}"
        )
    near = difflib.get_close_matches(known, BY_NAME, 1, cutoff=0.5)
    raise UsageError(f"unknown option --{name}", f"Did you mean --{near[0]}? {HELP}" if near else HELP)


def _next(option: Option, rest: list[str]) -> str:
    """The value of an option without `=`. A bare switch is on and never takes the next argument."""
    if option.kind == "switch":
        return "on"
    if option.bare:
        return option.bare
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"--{option.name} needs a value", f"Write --{option.name}=VALUE. {HELP}")
    return rest.pop(0)


def _positional(positional: list[str], values: dict[str, Any], notes: list[str]) -> Options:
    """The arguments that are not options: DSN, workload, command."""
    dsn: str | None = None
    kind: str | None = None
    action: str | None = None
    for argument in positional:
        if looks_like_dsn(argument) and dsn is None:
            dsn = argument
        elif (found := _workload(argument)) is not None and kind is None:
            kind = found
        elif argument in ACTIONS and action is None:
            action = argument
        else:
            raise _misplaced(argument)
    if kind is None and "workload" not in values:
        raise UsageError("no workload given", f"Known: {', '.join(KINDS)}; or --workload FILE.toml.")
    if kind is not None and "workload" in values:
        raise UsageError(f"{kind} and --workload are two workloads", "Give one of them.")
    return Options(dsn, kind, {"prewarm": "warmup", None: "run"}.get(action, action or "run"), values, tuple(notes))


def _workload(argument: str) -> str | None:
    """The workload's name, also from the path of sysbench's script: `/usr/share/sysbench/oltp_read_only.lua`."""
    name = PurePath(argument).name.removesuffix(".lua").replace("-", "_")
    return name if name in KINDS else None


def _misplaced(argument: str) -> UsageError:
    shown = argument.partition("://")[0] + "://…" if looks_like_dsn(argument) else argument
    known = (*KINDS, *ACTIONS)
    near = difflib.get_close_matches(argument.replace("-", "_"), known, 1)
    if argument.endswith(".lua"):
        return UsageError(
            f"{argument} is a Lua script, and Lua is not supported",
            "Write its statements as a workload in TOML (docs/load.md) and pass it with --workload.",
        )
    advice = (
        f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}, and one DSN (mysql://… or postgresql://…)."
    )
    return UsageError(f"{shown!r} is not a known argument", advice)


def _read(option: Option, text: str) -> Any:
    """Text as a value of the option's kind. Raises UsageError."""
    try:
        value = _typed(option, text)
    except (ValueError, InvalidOperation) as error:
        reason = str(error) if isinstance(error, ValueError) else "not a number"
        raise UsageError(f"--{option.name}={text}: {reason}", HELP) from error
    except QuantityError as error:
        advice = "Write seconds, like 10, or a number with its unit, like 10ms."
        raise UsageError(
            f"--{option.name}: {error.message}", advice if option.kind == "seconds" else error.advice
        ) from error
    least = option.low * SECOND_NS if option.kind == "seconds" else option.low
    if option.kind in ("int", "number", "seconds") and value < least:
        raise UsageError(
            f"--{option.name}={text} is less than {option.low}{' seconds' if option.kind == 'seconds' else ''}", HELP
        )
    if option.high and value > option.high:
        raise UsageError(f"--{option.name}={text} is more than {option.high}", HELP)
    return value


def _typed(option: Option, text: str) -> Any:
    match option.kind:
        case "int":
            return _whole(text)
        case "number":
            return _number(text)
        case "switch":
            return switch(text)
        case "seconds":
            bare = text.removeprefix("-").replace(".", "", 1).isdigit()
            return int(_number(text) * SECOND_NS) if bare else parse_duration_ns(text)
        case "duration":
            return parse_duration_ns(text)
        case "list":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case "choice":
            if text not in option.choices:
                raise ValueError(f"known: {', '.join(option.choices)}")
    return text


def _whole(text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdigit():
        raise ValueError("not a whole number")
    return int(text)


def _number(text: str) -> float:
    number = Decimal(text)
    if not number.is_finite() or abs(number) > 2**62:
        raise ValueError("not a number that can be used")
    return float(number)
