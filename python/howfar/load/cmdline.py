"""Parses the command line of `howfar load` by the table in `options.py`. Checks names and syntax, not meaning. No I/O.

Accepts sysbench's syntax: `--name=value`, dashes or underscores, switches bare or with on/off. Accepts `--name value` and pgbench's
options, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import Any, get_args

from howfar.address import looks_like_target
from howfar.address.parameters import parse_switch
from howfar.contract.messages import SYSBENCH_KINDS, Pgbench
from howfar.errors import QuantityError, UsageError, did_you_mean
from howfar.load.options import BY_NAME, OPTIONS, Option
from howfar.units import parse_duration_ns

PGBENCH_KINDS: tuple[str, ...] = get_args(Pgbench.model_fields["kind"].annotation)
KINDS = (*SYSBENCH_KINDS, *PGBENCH_KINDS)
WORKLOADS = (*SYSBENCH_KINDS, *(kind.replace("_", "-") for kind in PGBENCH_KINDS))
"""Names of workloads on the command line."""
ACTIONS = ("prepare", "warmup", "prewarm", "run", "cleanup")
PASSWORD_ADVICE = (
    "Use --password-file FILE (readable by you alone), the environment variable HOWFAR_PASSWORD, or --ask-password."
)
HELP = "`howfar load --help` lists all options."
SECOND_NS = 1_000_000_000


OptionValue = bool | int | float | str | tuple[str, ...]
"""The value of an option; `Option.kind` determines its type."""


@dataclass(frozen=True)
class Options:
    """The parsed command line. `values` has only the options that were given; `value` adds defaults."""

    dsn: str | None
    kind: str | None
    """One of sysbench's or pgbench's workloads; None with --workload."""
    action: str
    values: Mapping[str, OptionValue]
    notes: tuple[str, ...]
    """Notes, one line each, on options that have no effect or are deprecated."""

    @property
    def dialect(self) -> str:
        return str(self.values.get("dialect", "1.0"))

    def value(self, name: str) -> Any:
        """The value given, else the dialect's default, else None."""
        if name in self.values:
            return self.values[name]
        default = BY_NAME[name].default_of(self.dialect)
        return None if default is None else _read_value(BY_NAME[name], default)

    def is_given(self, name: str) -> bool:
        return name in self.values


def parse_command_line(arguments: Sequence[str]) -> Options:
    """Parse a command line. Raises UsageError."""
    values: dict[str, OptionValue] = {}
    notes: list[str] = []
    positional: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if (translated := translate(argument, remaining)) is not None:
            remaining[:0] = translated
            continue
        if not argument.startswith("--") or argument == "--":
            positional += [argument] if argument != "--" else []
            continue
        name, has_value, text = argument[2:].partition("=")
        option = _find_option(name, arguments)
        if option.treatment == "refused":
            raise UsageError(f"--{option.name} is not accepted: {option.why}", _refusal_advice(option))
        if not has_value:
            text = _take_value(option, remaining)
        if option.treatment == "ignored":
            notes.append(f"--{option.name} has no effect here: {option.why}")
            continue
        if option.same_as:
            notes.append(f"--{option.name} is deprecated; --{option.same_as} is used")
        values[option.same_as or option.name] = _read_value(option, text)
    return _parse_positional(positional, values, notes)


def _refusal_advice(option: Option) -> str:
    return PASSWORD_ADVICE if "password" in option.name else HELP


def _find_option(name: str, arguments: Sequence[str]) -> Option:
    normalized = name.replace("_", "-").lower()
    if normalized in BY_NAME:
        return BY_NAME[normalized]
    if normalized == "dsn":
        raise UsageError(
            "there is no option --dsn", f"Give the DSN alone: howfar load mysql://user@host/database. {HELP}"
        )
    if _PASSWORD_NAME.search(normalized):
        raise UsageError("that option for a password is not accepted", PASSWORD_ADVICE)
    suggestion = did_you_mean(
        normalized, (option.name for option in OPTIONS if option.treatment == "used" and not option.same_as)
    )
    shown_name = f"--{name}" if _WORD.fullmatch(name) else "of that form"
    raise unknown_option_error(shown_name, arguments, suggestion.replace("mean ", "mean --"), HELP)


_PASSWORD_NAME = re.compile(r"pass(?!word-file)|pwd")
_WORD = re.compile(r"[A-Za-z][A-Za-z_-]*")


def _take_value(option: Option, remaining: list[str]) -> str:
    """The value of an option without `=`. A bare switch is on and never takes the next argument."""
    if option.kind == "switch":
        return "on"
    if option.bare and not (remaining and remaining[0] in option.choices):
        return option.bare
    if not remaining or remaining[0].startswith("--"):
        raise UsageError(f"--{option.name} needs a value", f"Write --{option.name}=VALUE. {HELP}")
    return remaining.pop(0)


def _parse_positional(positional: list[str], values: Mapping[str, OptionValue], notes: list[str]) -> Options:
    """The arguments that are not options: DSN, workload, command."""
    dsn: str | None = None
    kind: str | None = None
    action: str | None = None
    for argument in positional:
        if (workload := _workload_named(argument)) is not None and kind is None:
            kind = workload
        elif looks_like_target(argument) and not argument.endswith((".lua", ".toml")) and dsn is None:
            dsn = argument
        elif argument in ACTIONS and action is None:
            action = argument
        else:
            raise _misplaced_error(argument)
    if kind is None and "workload" not in values:
        raise UsageError("no workload given", f"Known: {', '.join(WORKLOADS)}; or --workload FILE.toml.")
    if kind is not None and "workload" in values:
        raise UsageError(f"{kind} and --workload are two workloads", "Give one of them.")
    return Options(dsn, kind, {"prewarm": "warmup", None: "run"}.get(action, action or "run"), values, tuple(notes))


def _workload_named(argument: str) -> str | None:
    """The workload that an argument names, directly or by the path of sysbench's script: `/usr/share/sysbench/oltp_read_only.lua`.

    None for any other argument: a file elsewhere is a different script, even if it has the same name.
    """
    path = PurePath(argument)
    name = path.stem if path.suffix == ".lua" and path.parts[-3:-1] == ("share", "sysbench") else argument
    return name.replace("-", "_") if name.replace("-", "_") in KINDS else None


def _misplaced_error(argument: str) -> UsageError:
    """The error for an unexpected positional argument. The message repeats the argument only if it cannot be a password."""
    known_words = (*WORKLOADS, *ACTIONS)
    suggestion = did_you_mean(argument, known_words)
    if argument.endswith(".lua") and PurePath(argument).name.removesuffix(".lua").isidentifier():
        return UsageError(
            f"{PurePath(argument).name} is a Lua script, and Lua is not supported",
            "Write its statements as a workload in TOML (docs/load.md) and pass it with --workload.",
        )
    if argument.endswith(".toml"):
        return UsageError("a file was given where a DSN is expected", "Pass a workload with --workload FILE.toml.")
    if argument.startswith("-p"):
        return UsageError("passwords are not taken from -p", PASSWORD_ADVICE)
    if suggestion:
        return UsageError("an argument is not known", suggestion.strip())
    if looks_like_target(argument):
        return UsageError("two servers are named", "Give one DSN.")
    return UsageError("an argument is not known", f"Known: {', '.join(known_words)}, and one DSN (docs/addresses.md).")


def _read_value(option: Option, text: str) -> Any:
    """Convert text to a value of the option's kind, within its limits. Raises UsageError."""
    try:
        value = _convert(option, text)
    except (ValueError, InvalidOperation) as error:
        reason = str(error) if isinstance(error, ValueError) else "not a number"
        raise UsageError(f"--{option.name}={text}: {reason}", HELP) from error
    except QuantityError as error:
        advice = "Write seconds, like 10, or a number with its unit, like 10ms."
        raise UsageError(
            f"--{option.name}: {error.message}", advice if option.kind == "seconds" else error.advice
        ) from error
    minimum = option.low * SECOND_NS if option.kind == "seconds" else option.low
    if option.kind in ("int", "number", "seconds") and value < minimum:
        raise UsageError(
            f"--{option.name}={text} is less than {option.low}{' seconds' if option.kind == 'seconds' else ''}", HELP
        )
    if option.high and value > option.high:
        raise UsageError(f"--{option.name}={text} is more than {option.high}", HELP)
    return value


def _convert(option: Option, text: str) -> Any:
    match option.kind:
        case "int":
            return _parse_integer(text)
        case "number":
            return _parse_number(text)
        case "switch":
            return parse_switch(text)
        case "seconds":
            has_no_unit = text.removeprefix("-").replace(".", "", 1).isdigit()
            return int(_parse_number(text) * SECOND_NS) if has_no_unit else parse_duration_ns(text)
        case "duration":
            return parse_duration_ns(text)
        case "list":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case "choice":
            if text not in option.choices:
                raise ValueError(f"known: {', '.join(option.choices)}")
    return text


def _parse_integer(text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdigit():
        raise ValueError("not a whole number")
    return int(text)


def _parse_number(text: str) -> float:
    number = Decimal(text)
    if not number.is_finite() or abs(number) > 2**62:
        raise ValueError("not a number that can be used")
    return float(number)


# ---------------------------------------------------------------- the options of other programs

_PS_MODES = {"simple": "disable", "extended": "extended", "prepared": "auto"}


def _as_option(option: str) -> Callable[[str], list[str]]:
    return lambda value: [f"--{option}={value}"]


def _as_ps_mode(value: str) -> list[str]:
    if value not in _PS_MODES:
        raise UsageError(f"-M {value} is not a protocol of pgbench's", f"Known: {', '.join(_PS_MODES)}.")
    return [f"--db-ps-mode={_PS_MODES[value]}"]


PGBENCH_VALUE_OPTIONS: Mapping[str, Callable[[str], list[str]]] = {
    **dict.fromkeys(("-c", "--client"), _as_option("threads")),
    **dict.fromkeys(("-j", "--jobs"), _as_option("engine-threads")),
    "-T": _as_option("time"),
    "-R": _as_option("rate"),
    "-s": _as_option("scale"),
    **dict.fromkeys(("-P", "--progress"), _as_option("report-interval")),
    "--random-seed": _as_option("rand-seed"),
    **dict.fromkeys(("-M", "--protocol"), _as_ps_mode),
    **dict.fromkeys(("-b", "--builtin"), lambda value: [value]),
}
"""pgbench's options that take a value -> their equivalents here."""

PGBENCH_SWITCHES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("-S", "--select-only"), ("select-only",)),
    **dict.fromkeys(("-N", "--skip-some-updates"), ("simple-update",)),
    "-C": ("--connect=per-transaction",),
    **dict.fromkeys(("-i", "--initialize"), ("prepare",)),
    "-r": ("--report-per-command",),
    "-n": ("--no-vacuum",),
    "-v": ("--vacuum-all",),
    "-q": ("--quiet",),
    "-W": ("--ask-password",),
}
"""pgbench's options without a value -> their equivalents here."""

_ADDRESS_OPTIONS = {
    **dict.fromkeys(("-h", "--host", "--hostname", "--server"), "host"),
    **dict.fromkeys(("-p", "--port"), "port"),
    **dict.fromkeys(("-U", "-u", "--user", "--username"), "user"),
    **dict.fromkeys(("-d", "--db", "--database", "--dbname"), "db"),
}
"""Other programs' options that name the server -> ours, without the prefix `mysql-` or `pgsql-`."""

ALTERNATIVES: Mapping[str, str] = {
    **dict.fromkeys(
        ("-t", "--transactions"),
        "--events, which counts the transactions of all connections together: N times --threads",
    ),
    **dict.fromkeys(
        ("-f", "--file", "--script", "--lua", "--sql", "--query"),
        "--workload FILE.toml (docs/load.md says what is in it)",
    ),
    **dict.fromkeys(("-D", "--define"), "--workload FILE.toml, with a parameter of kind `constant`"),
    **dict.fromkeys(("-l", "--log"), "--hdr-log=FILE"),
    **dict.fromkeys(
        ("-L", "--latency-limit"), "--search 'p99<TIME'; the report has the percentiles, and nothing is skipped"
    ),
    **dict.fromkeys(("--duration", "--runtime", "--seconds", "--time-budget", "--run-time"), "--time"),
    **dict.fromkeys(("--connections", "--concurrency", "--clients", "--workers", "--users", "--vus"), "--threads"),
    **dict.fromkeys(("--qps", "--tps", "--rps", "--requests-per-second"), "--rate"),
    **dict.fromkeys(("--requests", "--count", "--iterations", "--number-of-queries", "-n"), "--events"),
    **dict.fromkeys(("--warmup", "--warm-up", "--ramp-up"), "--warmup-time"),
    **dict.fromkeys(("--rows", "--size", "--oltp-table-size"), "--table-size"),
    **dict.fromkeys(("--oltp-tables-count", "--table-count"), "--tables"),
    **dict.fromkeys(
        ("--test", "--oltp-read-only", "--oltp-test-mode"), "the workload's name alone, such as oltp_read_only"
    ),
    **dict.fromkeys(("--mysql-table-engine", "--engine"), "--mysql-storage-engine"),
    **dict.fromkeys(
        ("--tls", "--ssl", "--ssl-mode", "--sslmode"), "ssl-mode in a mysql:// DSN, sslmode in a postgresql:// one"
    ),
    **dict.fromkeys(("-o", "--out", "--output", "--csv", "--format"), "--json, --prometheus=FILE or --hdr-log=FILE"),
    **dict.fromkeys(("--socket", "--unix-socket"), "--mysql-socket; with PostgreSQL --pgsql-host=DIRECTORY"),
    **dict.fromkeys(
        ("--dsn", "--url", "--uri", "--target"), "the DSN alone: howfar load mysql://user@host/database WORKLOAD"
    ),
    **dict.fromkeys(
        ("--fail-if", "--threshold", "--slo"), "--search 'p99<TIME', which finds the highest rate that holds it"
    ),
    "--seed": "--rand-seed",
}
"""Options that have no equivalent here -> the closest alternative."""


def translate(argument: str, remaining: list[str]) -> list[str] | None:
    """Translate one of pgbench's options, taking its value from `remaining`. None if `argument` is not one of them.

    Raises UsageError for an unknown short option; the message never repeats what follows its letter, which may be a password.
    """
    is_long = argument.startswith("--")
    name, has_value, value = (argument if is_long else argument[:2], False, argument[2:].removeprefix("="))
    if is_long:
        name, equals, value = argument.partition("=")
        has_value = bool(equals)
    if name in PGBENCH_VALUE_OPTIONS:
        if not value and not has_value:
            if not remaining:
                raise UsageError(f"{name} needs a value", f"Write {name} VALUE.")
            value = remaining.pop(0)
        return PGBENCH_VALUE_OPTIONS[name](value)
    if name in PGBENCH_SWITCHES:
        # One argument may have several letters: `-SC`.
        return [*PGBENCH_SWITCHES[name], *([f"-{value}"] if value and not is_long else [])]
    if is_long or argument == "-" or not argument.startswith("-"):
        return None
    raise unknown_option_error(name, remaining)


def unknown_option_error(
    option: str, other_arguments: Sequence[str], suggestion: str = "", advice: str = ""
) -> UsageError:
    """The error for an unknown option, given the other arguments; `suggestion`: advice that names options of similar spelling."""
    if (part := _ADDRESS_OPTIONS.get(option)) is not None:
        suggestion = f"Use --{_implied_driver(other_arguments)}-{part}, or put it into the DSN. "
        suggestion += "For a password: --password-file or --ask-password. " if option == "-p" else ""
    elif "pass" in option or option == "-a":
        suggestion = f"{PASSWORD_ADVICE} "
    elif option in ALTERNATIVES:
        suggestion = f"Use {ALTERNATIVES[option]}. "
    return UsageError(f"unknown option {option}", f"{suggestion}{advice}".strip())


def _implied_driver(other_arguments: Sequence[str]) -> str:
    """`pgsql` if another argument implies it, else `mysql`, sysbench's default."""
    implies_postgres = re.compile(r"postgres|--pgsql|pgsql$|(tpcb|simple|select)[-_](like|update|only)$")
    return (
        "pgsql"
        if any(map(implies_postgres.match, other_arguments)) or "--db-driver=pgsql" in other_arguments
        else "mysql"
    )
