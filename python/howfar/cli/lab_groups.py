"""Options of `howfar lab` for groups of servers. A slice registers each kind of group in its module `lab_command`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from howfar.lab.server_group import ServerGroup
from howfar.plan.factor import FactorLevels
from howfar.plan.types import Plan
from howfar.slices import collect

Command = Callable[..., Any]


@dataclass(frozen=True)
class GroupOptions:
    """The options for one kind of group, and what the command says of such a group."""

    options: tuple[Callable[[Command], Command], ...]
    """Each adds an option to a command, in the order of `--help`."""
    names: tuple[str, ...]
    """Names of the parameters that the options set."""
    read: Callable[[Mapping[str, str | None], str], Plan | None]
    """A plan of one cell with a group of servers, from the parameters and the server; None if no group was requested. Raises
    UsageError, PlanError, ServerMissing."""
    describe: Callable[[FactorLevels], str]
    """The group that a cell requests, in words; empty if it requests none."""
    variables: Callable[[ServerGroup, Path, bool], dict[str, str]]
    """Environment variables with which CMD finds the other servers of a group; empty for other groups. Arguments: the group, the
    directory for files, and whether clients read option files."""


@cache
def _groups() -> tuple[GroupOptions, ...]:
    return collect("lab_command", "GROUP_OPTIONS", GroupOptions)


def group_options(command: Command) -> Command:
    """Add all these options to a command."""
    for group in reversed(_groups()):
        for add_option in reversed(group.options):
            command = add_option(command)
    return command


def read_group_options(values: dict[str, Any], server: str) -> Plan | None:
    """Take the parameters of these options out of `values`, and return the plan that they request; None if they request none. Raises
    UsageError, PlanError, ServerMissing."""
    plans = [group.read({name: values.pop(name) for name in group.names}, server) for group in _groups()]
    return next((plan for plan in plans if plan is not None), None)


def describe_groups(factors: FactorLevels) -> list[str]:
    """The group of servers that a cell requests, in words; empty for a server on its own."""
    return [text for group in _groups() if (text := group.describe(factors))]


def group_variables(server_group: ServerGroup, work: Path, has_option_files: bool) -> dict[str, str]:
    """Environment variables with which CMD finds the other servers of a group. `work`: directory for their files;
    `has_option_files`: whether clients read option files."""
    return {
        name: value
        for group in _groups()
        for name, value in group.variables(server_group, work, has_option_files).items()
    }
