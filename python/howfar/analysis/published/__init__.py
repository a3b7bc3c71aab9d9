"""Figures that others published, as data with their sources (`data/*.json`; `published/` at the root shows the same folder).

They are shown next to ours and never mixed with them: another machine, another server, another link.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field

from howfar.plan.factor import Level
from howfar.plan.workload import Workload
from howfar.stats.estimate import Part


class Published(Part):
    """Others' figure for the same cell, with its source; never mixed with ours."""

    ratio: float
    qps: float
    source: str
    setup: str
    """Their set-up in one line: server, versions, link."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedCell(_Entry):
    """One published row: the factor levels it was measured at, and its figures."""

    factors: dict[str, Level]
    tps: float | None = None
    qps: float | None = None
    latency_ms: dict[str, float] = Field(default_factory=dict)
    """Figures that are None or empty were not published."""


class PublishedSet(_Entry):
    """One published experiment."""

    plan: str
    """Name of the plan that repeats it."""
    source: str
    setup: str
    servers: tuple[str, ...] = ("mariadb", "mysql")
    """Our kinds of server that correspond to theirs."""
    workload: dict[str, Level] = Field(default_factory=dict)
    """Shape of their transactions, in the names of plans. Empty: not stated."""
    stands_for: dict[str, Level] = Field(default_factory=dict)
    """Our levels that all of their cells have, or that stand for what they did not state. Other levels are a different experiment."""
    baseline: dict[str, Level]
    cells: tuple[PublishedCell, ...]

    def has_other_load(self, workload: Workload | None, server_kind: str = "mariadb") -> bool:
        """Whether these figures do not apply to `workload`, because the kind of server or the transactions differ."""
        return server_kind not in self.servers or not (
            workload is None or self.workload.items() <= workload.model_dump().items()
        )

    def has_other_setting(self, factors: Mapping[str, Level]) -> bool:
        """Whether these figures do not apply to a cell with these factors, because its link or another setting differs."""
        return any(factors.get(name, level) != level for name, level in self.stands_for.items())


@cache
def published_sets() -> tuple[PublishedSet, ...]:
    """All included sets, by file name."""
    folder = files(__package__) / "data"
    texts = sorted((entry.name, entry.read_text("utf-8")) for entry in folder.iterdir() if entry.name.endswith(".json"))
    return tuple(PublishedSet.model_validate_json(text) for _, text in texts)


def find_published(
    plan: str, factors: Mapping[str, Level], workload: Workload | None, server_kind: str = "mariadb"
) -> Published | None:
    """Published figures for a cell of `plan`: the same transactions, and every factor of the published row at the same level."""
    for entry in published_sets():
        if entry.has_other_load(workload, server_kind) or entry.has_other_setting(factors):
            continue
        baseline_cell = next((cell for cell in entry.cells if cell.factors == entry.baseline), None)
        if entry.plan != plan or baseline_cell is None or baseline_cell.qps is None:
            continue
        for cell in entry.cells:
            if cell.qps is not None and all(factors.get(name) == level for name, level in cell.factors.items()):
                return Published(
                    ratio=cell.qps / baseline_cell.qps, qps=cell.qps, source=entry.source, setup=entry.setup
                )
    return None
