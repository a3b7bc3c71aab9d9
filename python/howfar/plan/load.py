"""Read a plan from TOML. Every error names the file, the line, the field and what is allowed there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from howfar.errors import PlanError, UsageError, did_you_mean
from howfar.file_kinds import file_kind_by_suffix, refuse_own_files
from howfar.plan import types
from howfar.plan.cells import cells, combinations
from howfar.plan.types import Plan
from howfar.slices import plan_files
from howfar.toml_text import MalformedToml, TomlTable, parse_toml

_TABLE = re.compile(r"\s*\[{1,2}\s*([A-Za-z0-9_.\-\s]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=")


def line_of(text: str, key: tuple[str, ...], quick: bool = False) -> int:
    """The line (counted from 1) of `key`, or else of its nearest parent, or else 1. With `quick`, `[quick]` is searched first. Tables
    of an array are numbered: `("leave_out", "2")` is the second."""
    found = _line_numbers(text)
    prefixes: list[tuple[str, ...]] = [("quick",), ()] if quick else [()]
    for length in range(len(key), 0, -1):
        for prefix in prefixes:
            line = found.get(prefix + key[:length])
            if line is not None:
                return line
    return 1


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    tables = Counter[tuple[str, ...]]()
    for number, line in enumerate(text.splitlines(), start=1):
        header = _TABLE.match(line)
        if header:
            table = tuple(part.strip() for part in header.group(1).split("."))
            tables[table] += 1
            lines[*table, str(tables[table])] = number
            key: tuple[str, ...] = ()
        else:
            match = _KEY.match(line)
            if match is None:
                continue
            key = tuple(match.group(1).split("."))
        for length in range(1, len(table + key) + 1):
            lines.setdefault((table + key)[:length], number)
    return lines


MAX_PLAN_BYTES = 1_000_000


@dataclass(frozen=True)
class Override:
    """A value from the command line that replaces one of the plan's."""

    option: str
    """Name of the option as typed, for messages: `--rtt`."""
    key: tuple[str, ...]
    """Path of the value in the TOML: `("factors", "rtt")`."""
    value: str | int | tuple[str, ...]
    """The new value. A tuple: several levels."""

    @property
    def option_value(self) -> str:
        """The value as it can be typed: levels separated by commas, or distances, which contain commas, by semicolons. The closed
        loop, with which every list of loads begins, is omitted."""
        if not isinstance(self.value, tuple):
            return str(self.value)
        implied = 1 if self.key[-1] == "load" and len(self.value) > 1 else 0
        return (";" if self.key[-1] == "distances" else ",").join(self.value[implied:])


@dataclass(frozen=True)
class LoadedPlan:
    """A plan and the text that it came from."""

    plan: Plan
    text: str
    quick: bool
    """Whether it is the short form, which takes minutes."""


def shipped_plans() -> tuple[str, ...]:
    """Names of the plans that come with howfar."""
    return tuple(plan_files())


def load_plan(name_or_path: str, quick: bool = False, overrides: Sequence[Override] = ()) -> LoadedPlan:
    """Read a plan, merge the overrides and, with `quick`, the plan's `[quick]` if it has one, and check the result. Raises PlanError,
    UsageError."""
    source, text = _read(name_or_path)
    table = _parse(source, text)
    quick_table = table.pop("quick", None)
    quick = quick and quick_table is not None
    if quick_table is not None and not isinstance(quick_table, dict):
        raise PlanError(
            f"{source}:{line_of(text, ('quick',))}: quick must be a table", "Write [quick.timing] and keys."
        )
    # A mistake in the long form is an error even if the short form is requested.
    plan = _validate(source, text, table, (), quick=False)
    _check_leave_out(source, text, plan, ("leave_out",))
    if quick_table is not None:
        merged = _merge(table, quick_table)
        quick_plan = _validate(source, text, merged, (), quick=True)
        if "leave_out" in quick_table:  # else it has the long form's, which may name levels that it lacks
            _check_leave_out(source, text, quick_plan, ("quick", "leave_out"))
        table = merged if quick else table
    for override in overrides:
        table = _merge(table, _override_as_table(override, table.get("baseline")))
    return LoadedPlan(_validate(source, text, table, overrides, quick), text, quick)


def _override_as_table(override: Override, baseline: object) -> TomlTable:
    """The override as a table to be merged into the plan. A factor that is left with one level gets that level in the baseline too."""
    value = override.value if isinstance(override.value, str | int) else list(override.value)
    levels = value if isinstance(value, list) else [value]
    change = _nest(override.key, value)
    table, name = override.key[0], override.key[-1]
    if table == "factors" and len(levels) == 1 and isinstance(baseline, dict) and name in baseline:
        change["baseline"] = {name: levels[0]}
    if override.key == ("timing", "time_budget"):
        change = _merge(change, {"timing": {"may_overrun": False}})
    return change


def _read(name_or_path: str) -> tuple[str, str]:
    """The name to show and the text of a plan: a shipped plan by name, or a file whose name ends in .toml or contains a slash."""
    if name_or_path in plan_files():
        return f"{name_or_path}.toml", plan_files()[name_or_path].read_text(encoding="utf-8")
    path = Path(name_or_path)
    if path.suffix != ".toml" and file_kind_by_suffix(path) is None and "/" not in name_or_path:
        known = f"Known plans: {', '.join(shipped_plans())}. For a plan of your own, give its file, whose name ends in .toml."
        suggestion = did_you_mean(name_or_path, shipped_plans())
        raise PlanError(
            f"there is no plan {name_or_path!r}",
            f"{suggestion}`howfar plans` lists all plans." if suggestion else known,
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PLAN_BYTES + 1)
        refuse_own_files(path, data, "a plan")
        if len(data) > MAX_PLAN_BYTES:
            raise PlanError(f"{path} is larger than {MAX_PLAN_BYTES} bytes", "That is not a plan; check the name.")
        return str(path), data.decode("utf-8")
    except OSError as error:
        raise PlanError(
            f"cannot read the plan {path}: {error.strerror}",
            "Check the name; `howfar plans` lists the shipped plans.",
        ) from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PlanError(f"{path}:{line}: not UTF-8 text", "Save the plan as UTF-8.") from error


def _parse(source: str, text: str) -> TomlTable:
    try:
        return parse_toml(text)
    except MalformedToml as error:
        lines = text.splitlines()
        shown = lines[error.line - 1].strip() if error.line <= len(lines) else ""
        column = f":{error.column}" if error.column else ""
        raise PlanError(
            f"{source}:{error.line}{column}: malformed TOML: {error}, in: {shown[:80] or '(end of file)'}",
            'Text needs quotes, keys need a value: rtt = "0.2ms".',
        ) from error


def _merge(base: TomlTable, override: TomlTable) -> TomlTable:
    result = dict(base)
    for key, value in override.items():
        before = result.get(key)
        result[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def _nest(key: tuple[str, ...], value: str | int | list[str]) -> TomlTable:
    nested: Any = value
    for part in reversed(key):
        nested = {part: nested}
    assert isinstance(nested, dict), "an override has at least one key"
    return nested


def _validate(source: str, text: str, table: TomlTable, overrides: Sequence[Override], quick: bool) -> Plan:
    try:
        plan = Plan.model_validate(table)
    except ValidationError as error:
        raise _plan_error(source, text, error.errors()[0], overrides, quick) from error
    try:
        cells(plan)
    except PlanError as error:
        line = line_of(text, ("baseline",), quick)
        hint = f" Changed by {', '.join(override.option for override in overrides)}." if overrides else ""
        raise PlanError(f"{source}:{line}: {error.message}", error.advice + hint) from error
    return plan


def _check_leave_out(source: str, text: str, plan: Plan, table_path: tuple[str, ...]) -> None:
    """Check that each table of `leave_out` leaves out a cell; otherwise it is a mistake. `table_path`: key of these tables in the
    plan."""
    all_cells = combinations(plan) if plan.leave_out else []
    for number, table in enumerate(plan.leave_out, 1):
        if not any(map(table.matches, all_cells)):
            raise PlanError(
                f"{source}:{line_of(text, (*table_path, str(number)))}: table {number} of {'.'.join(table_path)} matches no cell",
                "Name levels that the factors have.",
            )


def _plan_error(
    source: str, text: str, problem: ErrorDetails, overrides: Sequence[Override], quick: bool
) -> UsageError:
    """The error for the first problem, in terms of the plan's text or of the option that caused it."""
    loc = tuple(part for part in problem["loc"] if isinstance(part, str))
    key = loc + tuple(problem.get("ctx", {}).get("at", ()))
    field = ".".join(key) or "plan"
    reason = problem["msg"]
    for override in overrides:
        if key[: len(override.key)] == override.key:
            return UsageError(
                f"{override.option} {override.option_value}: {reason}",
                f"`howfar run --help` explains {override.option}.",
            )
    cause = next((override for override in overrides if re.search(rf"\b{override.key[-1]}\b", reason)), None)
    if (
        not loc and cause is not None
    ):  # two fields contradict each other, and an option set the one that the location above does not name
        return UsageError(
            f"{cause.option} {cause.option_value}: {reason}", f"`howfar run --help` explains {cause.option}."
        )
    line = line_of(text, key, quick)
    if problem["type"] == "extra_forbidden":
        return PlanError(f"{source}:{line}: unknown field {field}", f"Known fields there: {_known_fields(key[:-1])}.")
    if problem["type"] == "missing":
        return PlanError(
            f"{source}:{line}: the field `{field}` is missing", f"Known fields there: {_known_fields(key[:-1])}."
        )
    shown = "" if isinstance(problem["input"], dict) else f" = {problem['input']!r}"
    return PlanError(
        f"{source}:{line}: {field}{shown}: {reason}", "Correct that line; `howfar plans` shows plans that work."
    )


def _known_fields(table_path: tuple[str, ...]) -> str:
    """The fields of the table at `table_path`, as written in TOML."""
    model: Any = Plan
    for part in table_path:
        if get_origin(model) is dict:  # tables whose names the plan chooses
            model = get_args(model)[1]
            continue
        by_name = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        model = by_name[part]
        while get_origin(model) in (tuple, Annotated):
            model = get_args(model)[0]
        model = types.table_model(model)
    if get_origin(model) is dict:
        return "any name"
    return ", ".join(field.alias or name for name, field in model.model_fields.items())
