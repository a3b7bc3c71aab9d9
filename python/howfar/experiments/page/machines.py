"""Whose CPU a page took, by machine: the application's with its visitor, the servers', the emulated link's on either; what strangers
left; how full it was. One machine: all of it on the server's processors.

Sums over an arm's good trials. Nothing is modelled here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from howfar.analysis.facts_in import cpus_in
from howfar.analysis.machine import others_in
from howfar.experiments.page.arms import PageTrials
from howfar.store.records import Measured, RunInfo, Trial

STORES = ("redis", "memcached")
SERVERS = ("server", *STORES)
APPLICATIONS = ("client", "application")
"""The engine is the application, or the visitor of one: it runs on the application's machine."""
ALL = (*APPLICATIONS, *SERVERS, "forwarder")


@dataclass(frozen=True)
class Processors:
    """Which each machine has. Empty: a run does not say, and a machine is taken to have half of them all."""

    application: frozenset[int]
    database: frozenset[int]
    all: int

    @classmethod
    def of(cls, info: RunInfo) -> Processors:
        count = info.environment.get("cpu_count")
        return cls(
            application=frozenset(cpus_in(info.environment, "client_cpus")),
            database=frozenset(cpus_in(info.environment, "server_cpus")),
            all=count if isinstance(count, int) and count > 0 else 2,
        )

    def count(self, cpus: frozenset[int]) -> int:
        return len(cpus) or max(self.all // 2, 1)


@dataclass(frozen=True)
class Side:
    """One machine in one arm. Seconds of CPU a page."""

    name: str
    """`both`, `application`, `database`."""
    cpus: int
    own_s: float
    """Of the application and the visitor, or of the servers; of all of them on one machine."""
    link_s: float
    """Of the emulator on this machine's processors: no part of a real network's machines."""
    strangers: float
    """How many of its processors they had."""
    busy: float
    """Share of its processors' time that they worked, for whomever."""


class Machinery:
    """The machines of one arm."""

    def __init__(self, arm: PageTrials, processors: Processors) -> None:
        self._arm, self._processors = arm, processors

    @cached_property
    def cpu_s(self) -> dict[str, float]:
        """CPU a page by role, in the words of the findings: a visitor is the engine that asks another's application."""
        spent: dict[str, float] = {}
        for use in (use for each in self._arm.measured for use in each.cpu):
            spent[self._role(use.role)] = spent.get(self._role(use.role), 0.0) + use.cpu_ns
        return {role: ns / 1e9 / self._arm.pages for role, ns in spent.items()}

    def _role(self, role: str) -> str:
        if role != "client":
            return role
        return "visitor" if self._arm.application == "php" else "application"

    @property
    def application_s(self) -> float:
        """With the visitor, and of forwarders the one on this side."""
        found = self.cpu_s
        return found.get("application", 0.0) + found.get("visitor", 0.0) + found.get("forwarder", 0.0) / 2

    @property
    def database_s(self) -> float:
        return sum(self.cpu_s.get(role, 0.0) for role in SERVERS) + self.cpu_s.get("forwarder", 0.0) / 2

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """One, or the application's and the database's."""
        cpus = self._processors
        if self._arm.machines == 1:
            return (self._side("both", cpus.database, self.application_s + self.database_s, ALL),)
        return (
            self._side("application", cpus.application, self.application_s, APPLICATIONS),
            self._side("database", cpus.database, self.database_s, SERVERS),
        )

    def _side(self, name: str, cpus: frozenset[int], own_s: float, roles: Iterable[str]) -> Side:
        trials, count = list(self._arm.trials.values()), self._processors.count(cpus)
        apart = self._arm.machines == 2
        link = median(self._link_cpus(trial, cpus) for trial in trials) if apart else 0.0
        rate = self._arm.pages / self._arm.elapsed_s
        strangers = median(self._strangers(trial, cpus, tuple(roles)) for trial in trials)
        busies = [busy for trial in trials if (busy := _busy(trial, cpus)) is not None]
        return Side(
            name=name,
            cpus=count,
            own_s=own_s,
            link_s=link / rate,
            strangers=min(strangers, count / 2),
            busy=median(busies) if busies else min((own_s * rate + link + strangers) / count, 1.0),
        )

    def _link_cpus(self, trial: Trial, cpus: frozenset[int]) -> float:
        """How many processors the emulator took of these. Its threads run where there is room: evenly, where a run does not say."""
        window = trial.window
        if window is not None and window.link_cpu_ns and cpus:
            return sum(ns for cpu, ns in window.link_cpu_ns.items() if cpu in cpus) / window.length_ns
        spent = _spent(trial.measured, ("link",))
        return spent * self._processors.count(cpus) / self._processors.all

    def _strangers(self, trial: Trial, cpus: frozenset[int], roles: tuple[str, ...]) -> float:
        window = trial.window
        if window is None or not cpus or not cpus <= window.cpus_busy.keys():
            return (others_in(trial) or 0.0) * self._processors.count(cpus) / self._processors.all
        ours = _spent(trial.measured, roles) + _spent(trial.measured, ("forwarder",)) * (self._arm.machines == 2) / 2
        link = sum(ns for cpu, ns in window.link_cpu_ns.items() if cpu in cpus) / window.length_ns
        return max(sum(window.cpus_busy[cpu] for cpu in cpus) - ours - link, 0.0)


def _spent(measured: Measured | None, roles: Iterable[str]) -> float:
    """Processors that these roles had, on the mean of the window."""
    if measured is None:
        return 0.0
    wanted = set(roles)
    return sum(use.cpu_ns for use in measured.cpu if use.role in wanted) / measured.elapsed_ns


def _busy(trial: Trial, cpus: frozenset[int]) -> float | None:
    window = trial.window
    if window is None or not cpus or not cpus <= window.cpus_busy.keys():
        return None
    return sum(window.cpus_busy[cpu] for cpu in cpus) / len(cpus)
