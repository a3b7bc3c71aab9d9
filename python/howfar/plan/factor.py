"""A factor that plans can vary. The factors themselves are in `factors.py` and in the slices' modules `factors`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

Level = str | int | float | bool
FactorLevels = Mapping[str, Level]
"""The levels of a cell, by the names of their factors."""
T = TypeVar("T")


def _applies_always(_: FactorLevels) -> bool:
    return True


@dataclass(frozen=True)
class Factor(Generic[T]):
    """A factor that a plan varies or holds."""

    name: str
    """Name in cells and run files, with the unit."""
    level_type: Any
    """The type of one level, as pydantic validates it."""
    default: T | None
    """Level in a plan that does not name the factor. None: the plan must name it."""
    implied_level: T | None = None
    """Level of a cell that lacks this factor. If a plan has only this level, its cells lack the factor. None: cells always have the
    factor where it applies."""
    toml_name: str = ""
    """Name in plans. Default: `name`."""
    label: Callable[[Any], str] = str
    """A level as text in the name of a cell."""
    short_label: Callable[[Any], str] | None = None
    """A level as short text in the heading of a grid. Default: `label`."""
    heading: str = ""
    """Heading of the levels in a grid. Default: `name`."""
    prefers_rows: bool = False
    """Whether a grid prefers these levels as its rows, if they vary. Otherwise the factor with the most levels has the rows."""
    column_depth: int = 0
    """Position among the columns of a grid. The factors whose levels are compared most are innermost and have the highest depth."""
    format: Callable[[Any], str] = str
    """A level as written in a plan."""
    is_toml_string: bool = True
    """Whether a level is written in quotes in a plan."""
    applies: Callable[[FactorLevels], bool] = _applies_always
    """Whether the factor is meaningful in a cell with these other levels."""
    level_in_older_files: T | None = None
    """The level of cells in old run files that lack the factor. Default: `implied_level`."""
    kinds: tuple[str, ...] = ()
    """Kinds of workload that it applies to. Empty: to all."""
    is_possible: Callable[[FactorLevels], bool] = _applies_always
    """Whether cells with these levels exist."""
    sql_only_because: str = ""
    """Why it does not apply to workloads that are not SQL alone. Empty: it does."""
    is_fault: bool = False
    """Whether its levels other than the implied one break something on purpose."""
    comes_first_in_name: bool = False
    """Whether cells are named by it instead of by their path, if it varies and the path does not. Cells with a fault always have it in
    their name, because the effect of faults depends on it."""
    link_setting: str = ""
    """What it sets of a link, as text: `RTT`. Empty: it is no setting of a link."""
    level_in_controls: T | None = None
    """The level at which a longer RTT makes each round trip longer by the same time: controls use it. None: every level."""
    is_condition: bool = False
    """Whether the factor is a condition of the measurement, not a property of a path. A cell is compared with the baseline at the
    cell's own level."""
    hides_protocol: bool = False
    """Whether programs on the path cannot read the protocol at its levels other than the implied one."""
    saves_bytes: bool = False
    """Whether, at its levels other than the implied one, fewer bytes are sent than the protocol's messages have."""
    moves_limit: bool = False
    """Whether the resource that limits throughput may depend on it."""

    @property
    def key(self) -> str:
        return self.toml_name or self.name

    def level_or_none(self, cell: FactorLevels) -> T | None:
        """The cell's level. None: the cell does not have the factor."""
        return cast(T | None, cell.get(self.name))

    def level_in(self, cell: FactorLevels) -> T:
        """The cell's level, or the level of cells without the factor."""
        level = cell.get(self.name, self.implied_level if self.implied_level is not None else self.level_in_older_files)
        assert level is not None, f"the cell has no {self.name}: {dict(cell)}"
        return cast(T, level)

    def toml_line(self, level: Any) -> str:
        """A level as a line of a plan: `rate = '1gbit'`, `threads = 16`."""
        text = self.format(level)
        return f"{self.key} = {repr(text) if self.is_toml_string else text}"


SettingDifference = tuple[str, Mapping[str, str]]
"""Id and parameters of a violation (`contract.violation`)."""


@dataclass(frozen=True)
class SessionSetting:
    """A setting of SQL sessions in addition to those of `sessions.SessionSpec`. A slice registers it in its module `factors`."""

    factor: Factor[str]
    field: str
    """Field of the engine's `Session` that requests it."""
    request: Callable[[str], object | None]
    """The value of that field at a level. None: nothing is requested."""
    difference: Callable[[Any, Any], SettingDifference | None] = lambda requested, receipt: None
    """The difference if a session does not have the value that was requested, by the engine's receipt of it; else None."""


@dataclass(frozen=True)
class ServerLinks:
    """The links between the servers of some cells. Servers are numbered from 0, the one that clients use."""

    servers: str
    """What the other servers are called: `replicas`."""
    rtt: Factor[int]
    """RTT of all these links."""
    rate: Factor[int]
    pairs: Factor[str]
    """RTTs pair by pair, where they differ. Its implied level: they do not."""
    rtts_ns: Callable[[FactorLevels], dict[tuple[int, int], int]]
    """RTTs between the cell's servers that talk to each other. Empty: the cell has one server."""
    delay_commits: Callable[[FactorLevels], bool]
    """Whether the cell's commits wait for them."""
    delay_commits_by_one_rtt: Callable[[FactorLevels], bool]
    """Whether each of the cell's commits waits for exactly one round trip of `rtt`."""
    with_single_wait: Callable[[Mapping[str, Level]], dict[str, Level]]
    """The cell with other servers, as far from the first one, so that each commit waits for one round trip."""
    trial_ns: Callable[[FactorLevels, bool], int]
    """Time that the other servers add to a trial of the cell. The second argument: whether the servers are MySQL's."""


@dataclass(frozen=True)
class Naming:
    """How some cells are named where the usual way, the path and then the levels that vary, would mislead."""

    applies: Callable[[FactorLevels], bool]
    """Whether a cell is named in this way."""
    first: tuple[str, ...]
    """Factors with which a name begins."""
    labels: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    """Levels as text, by factor. Others have their factor's label."""
