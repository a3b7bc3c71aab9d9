"""Arms of a run of pages as the analysis uses them: rates and times, the CPU of a page by program and machine, and its round trips.

Figures are sums over an arm's good trials. Nothing is judged or modelled here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

from howfar.analysis.link_facts import link_facts
from howfar.experiments.page.findings import Application, Machines, RoundTripCost, Route
from howfar.paths import is_local
from howfar.plan.factors import ORDINARY
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate
from howfar.stats.host_cpus import HostCpus, cpus_used, forwarder_share
from howfar.stats.intervals import mean_interval
from howfar.stats.trials import TrialTable, transaction_histogram
from howfar.store.receipts import number_in
from howfar.store.records import Arm, ArmRole, FactorValue, HistogramRecord, Measured, Trial

NO_PAGE = "none"
_SERVERS = ("server", "redis", "memcached")
_APPLICATIONS = ("client", "application")
"""Roles on the application's machine. The engine (`client`) is the application itself, or the visitor of one."""
_ALL = (*_APPLICATIONS, *_SERVERS, "forwarder")
_NAMED = {"page", "connect", "application", "path", "rtt_ns", "rate_bps", "threads", "app_cpu_ns"}


@dataclass(frozen=True)
class ComparisonKey:
    """Key shared by arms that differ only in the route, the application's CPU or the pages in flight."""

    page: str
    connect: str
    application: Application
    other: tuple[tuple[str, FactorValue], ...]
    """Every other factor that a plan may vary."""


@dataclass(frozen=True)
class Side:
    """One machine in one arm. Seconds of CPU per page."""

    name: str
    """`both`, `application` or `database`."""
    cpus: int
    own_s: float
    """CPU time of the application and the visitor, or of the servers; on one machine, of all of them."""
    link_s: float
    """CPU time of the link's emulator on this machine's processors; two real machines would not spend it."""
    strangers: float
    """How many of its processors other programs used."""
    busy: float
    """Utilisation of its processors, by all programs."""


@dataclass(frozen=True, eq=False)
class ArmTrials:
    """One arm and its good trials by block."""

    arm: Arm
    trials: dict[int, Trial] = field(repr=False)
    application: HostCpus = field(repr=False)
    database: HostCpus = field(repr=False)

    @cached_property
    def key(self) -> ComparisonKey:
        factors = self.arm.factors
        return ComparisonKey(
            page=str(factors.get("page", NO_PAGE)),
            connect=str(factors.get("connect", ORDINARY["connect"])),
            application="php" if factors.get("application") == "php" else "engine",
            other=tuple(sorted((name, level) for name, level in factors.items() if name not in _NAMED)),
        )

    @cached_property
    def route(self) -> Route:
        requested = {} if self.machines == 1 else self.arm.factors
        rtt_ns, rate_bps = (
            None if (level := requested.get(name)) is None else int(level) for name in ("rtt_ns", "rate_bps")
        )
        return Route(str(self.arm.factors.get("path", "")), rtt_ns, rate_bps)

    @property
    def machines(self) -> Machines:
        return 1 if is_local(str(self.arm.factors.get("path", ""))) else 2

    @property
    def threads(self) -> int:
        """Pages in flight."""
        return int(self.arm.factors.get("threads", 1))

    @property
    def app_cpu_ns(self) -> int:
        return int(self.arm.factors.get("app_cpu_ns", 0))

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of an `OnRoute`."""
        key = self.key
        about = {"page": key.page, "application": key.application, "connect": key.connect, "threads": self.threads}
        return about | self.route._asdict()

    def only(self, block: int) -> ArmTrials | None:
        """This arm in one block. None: it has no good trial there."""
        return replace(self, trials={block: self.trials[block]}) if block in self.trials else None

    # ------------------------------------------------------------ rates and times

    @cached_property
    def measured(self) -> list[Measured]:
        return [trial.measured for trial in self.trials.values() if trial.measured is not None]

    @property
    def pages(self) -> int:
        return sum(each.transactions for each in self.measured)

    @property
    def elapsed_s(self) -> float:
        return sum(each.elapsed_ns for each in self.measured) / 1e9

    @cached_property
    def by_block(self) -> dict[int, float]:
        """Pages per second, by block."""
        return {
            block: trial.measured.transactions / (trial.measured.elapsed_ns / 1e9)
            for block, trial in self.trials.items()
            if trial.measured
        }

    @property
    def pages_per_s(self) -> Estimate:
        return mean_interval(list(self.by_block.values()))

    @property
    def page_ms(self) -> dict[int, float]:
        """`page_s` in milliseconds, by block."""
        return {block: 1e3 * self.threads / rate for block, rate in self.by_block.items()}

    @property
    def mean_ms(self) -> Estimate:
        """Mean of `page_s` over blocks, in milliseconds."""
        return mean_interval(list(self.page_ms.values()))

    @property
    def allowed_per_s(self) -> Estimate | None:
        """Pages per second over the utilisation of the busier machine's processors. None: no utilisation is known."""
        alone = {block: only for block in self.by_block if (only := self.only(block)) is not None}
        busy = {block: max(min(side.busy, 1.0) for side in only.sides) for block, only in alone.items()}
        found = [rate / busy[block] for block, rate in self.by_block.items() if busy.get(block)]
        return mean_interval(found) if found else None

    @property
    def page_s(self) -> float:
        """Mean time of a page including the visitor's time until it requests the next: pages in flight / pages per second."""
        return self.threads * self.elapsed_s / self.pages

    @cached_property
    def histograms(self) -> list[HistogramRecord]:
        """Page latency of each trial."""
        return [found for each in self.measured if (found := transaction_histogram(each)) is not None]

    @property
    def p50_s(self) -> float:
        """Median over trials of their medians, so that one disturbed trial does not move it. Predictions are compared with this."""
        found = [record.p50_ns / 1e9 for record in self.histograms]
        return median(found) if found else self.page_s

    @cached_property
    def wake_s(self) -> float:
        """How much longer a round trip over the link takes if both ends' processors have to be woken, by its calibration."""
        found = []
        for trial in self.trials.values():
            idle, awake = (
                number_in(trial.receipt, "link", "calibration", key) for key in ("rtt_from_idle_p50_ns", "rtt_p50_ns")
            )
            if idle is not None and awake is not None:
                found.append(max(idle - awake, 0.0) / 1e9)
        return median(found) if found else 0.0

    @cached_property
    def rest_rtt_s(self) -> float | None:
        """The link's round-trip time, measured at rest. None: no link."""
        if self.machines == 1:
            return None
        found = link_facts(self.arm.factors, [trial.receipt for trial in self.trials.values()])
        ns = found.rest_rtt_ns if found.rest_rtt_ns is not None else found.requested_rtt_ns
        return None if ns is None else ns / 1e9

    def reported(self, name: str) -> float | None:
        """A figure per page that the application's pages reported about themselves. None: they did not report it."""
        if not any(name in each.told for each in self.measured):
            return None
        return sum(each.told.get(name, 0) for each in self.measured) / self.pages

    # ------------------------------------------------------------ CPU

    @property
    def own_cpu_s(self) -> float | None:
        """CPU per page that the application itself reports. None: it reports none."""
        reported = self.reported("cpu_ns")
        return None if reported is None else reported / 1e9

    @property
    def computed_s(self) -> float:
        """CPU time of the application per page: as it reports, or else of its processes."""
        own = self.own_cpu_s
        return own if own is not None else self.cpu_s.get("application", 0.0)

    @cached_property
    def cpu_s(self) -> dict[str, float]:
        """CPU per page by role. The engine is the `visitor` if it requests pages from a separate application."""
        client = "visitor" if self.key.application == "php" else "application"
        spent: dict[str, float] = {}
        for use in (use for each in self.measured for use in each.cpu):
            role = client if use.role == "client" else use.role
            spent[role] = spent.get(role, 0.0) + use.cpu_ns
        return {role: ns / 1e9 / self.pages for role, ns in spent.items()}

    def _between(self, host: str) -> float:
        """Share of the forwarders that runs on a `host`, `client` or `server`."""
        return forwarder_share([trial.receipt for trial in self.trials.values()], host)

    @property
    def application_s(self) -> float:
        """CPU per page on the application's host: the application, the visitor, and the forwarders that run there."""
        found = self.cpu_s
        between_s = found.get("forwarder", 0.0) * self._between("client")
        return found.get("application", 0.0) + found.get("visitor", 0.0) + between_s

    @property
    def database_s(self) -> float:
        between_s = self.cpu_s.get("forwarder", 0.0) * self._between("server")
        return sum(self.cpu_s.get(role, 0.0) for role in _SERVERS) + between_s

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """The machines: one, or the application's and the database's."""
        if self.machines == 1:
            return (self._side("both", self.database, self.application_s + self.database_s, _ALL),)
        return (
            self._side("application", self.application, self.application_s, _APPLICATIONS),
            self._side("database", self.database, self.database_s, _SERVERS),
        )

    def _side(self, name: str, host: HostCpus, own_s: float, roles: tuple[str, ...]) -> Side:
        trials, rate = list(self.trials.values()), self.pages / self.elapsed_s
        link = host.link_cpus(trials) if self.machines == 2 else 0.0
        strangers = median(host.others_cpus(trial, self._ours(trial, roles)) for trial in trials)
        busy = host.busy(trials)
        return Side(
            name=name,
            cpus=host.count,
            own_s=own_s,
            link_s=link / rate,
            strangers=min(strangers, host.count / 2),
            busy=busy if busy else min((own_s * rate + link + strangers) / host.count, 1.0),
        )

    def _ours(self, trial: Trial, roles: tuple[str, ...]) -> float:
        """CPUs used by these roles and by the forwarders on their host."""
        share = self._between("client" if roles == _APPLICATIONS else "server") if self.machines == 2 else 0.0
        return cpus_used(trial.measured, roles) + share * cpus_used(trial.measured, ("forwarder",))

    # ------------------------------------------------------------ round trips

    @cached_property
    def round_trips(self) -> float | None:
        """Round trips per page to all services. None: they were not counted."""
        reported = [count for service in SERVICES if (count := self.reported(f"{service}_turns")) is not None]
        if reported:
            return sum(reported)
        counted = sum(each.turns for each in self.measured) / self.pages
        return counted if self.key.application == "engine" and counted > 0 else None

    @property
    def wire_s(self) -> float:
        """Time of a page's round trips over the link at rest."""
        return (self.round_trips or 0.0) * (self.rest_rtt_s or 0.0)

    @property
    def waking_s(self) -> float:
        """Time that a page waits for processors to wake up."""
        return (self.round_trips or 0.0) * self.wake_s

    def costs(self) -> tuple[RoundTripCost, ...]:
        """The cost of each service that the pages used: as PHP's pages report, else by the engine's histograms."""
        found = []
        for service in SERVICES:
            round_trips, round_trip_ns = self._reported(service, "turns", "") or self._timed(f"turn.{service}")
            connects, connect_ns = self._reported(service, "connects", "connect_") or self._timed(f"connect.{service}")
            if not round_trips:
                continue
            counted = [record for each in self.measured for record in each.services if record.service == service]
            found.append(
                RoundTripCost(
                    service=service,
                    turns=round_trips,
                    mean_us=round_trip_ns / 1e3,
                    connects=connects,
                    connect_us=connect_ns / 1e3 if connects else None,
                    bytes_to_server=sum(each.bytes_to_server for each in counted) / self.pages if counted else None,
                    bytes_to_client=sum(each.bytes_to_client for each in counted) / self.pages if counted else None,
                )
            )
        return tuple(found)

    def _reported(self, service: str, what: str, time: str) -> tuple[float, float] | None:
        """Number per page, and the mean time of one in nanoseconds, as reported by the pages themselves."""
        count, spent_ns = self.reported(f"{service}_{what}"), self.reported(f"{service}_{time}ns")
        return (count, spent_ns / count) if count and spent_ns is not None else None

    def _timed(self, kind: str) -> tuple[float, float]:
        """Number per page, and the mean time of one in nanoseconds, by histograms."""
        records = [record for each in self.measured for record in each.histograms if record.kind == kind]
        count = sum(record.count for record in records)
        return count / self.pages, sum(record.mean_ns * record.count for record in records) / count if count else 0.0


def is_a_page(arm: Arm) -> bool:
    return arm.factors.get("page", NO_PAGE) != NO_PAGE


def page_arms(table: TrialTable) -> list[ArmTrials]:
    """Arms with a page and a good trial, in the order of the plan; without the A/A arm."""
    application, database = (HostCpus.of(table.run.info.environment, host, machine=2) for host in ("client", "server"))
    return [
        ArmTrials(arm, table.trials[arm.name], application, database)
        for arm in table.run.info.arms
        if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER) and is_a_page(arm) and table.trials[arm.name]
    ]


def ratios(above: ArmTrials, below: ArmTrials) -> dict[int, float]:
    """Pages per second of one over the other, for each block in which both are good."""
    return {block: rate / below.by_block[block] for block, rate in above.by_block.items() if block in below.by_block}


def longer_ms(arm: ArmTrials, other: ArmTrials) -> Estimate | None:
    """How much longer a page of one takes than of the other, over the blocks in which both are good. None: there are none."""
    theirs = other.page_ms
    found = [ms - theirs[block] for block, ms in arm.page_ms.items() if block in theirs]
    return mean_interval(found) if found else None
