"""Arms of a run about pages: rates and times, the CPU of a page by program and machine, and its round trips.

Figures are totals over an arm's good trials. This module neither tests nor models anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from howfar.analysis.link_facts import link_facts
from howfar.contract.receipt_messages import Histogram
from howfar.experiments.page.factors import APP_CPU_NS, APPLICATION, PAGE
from howfar.experiments.page.findings import Application, Machines, OnRoute, RoundTripCost, Route
from howfar.paths import is_local
from howfar.plan.factor import Level
from howfar.plan.factors import CONNECT, PATH, THREADS
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate
from howfar.stats.host_cpus import HostCpus, cpus_used, forwarder_share
from howfar.stats.intervals import mean_interval
from howfar.stats.trials import TrialTable, transaction_histogram
from howfar.store.records import Arm, ArmRole, Measured, Trial

NO_PAGE = "none"
_SERVER_ROLES = ("server", "redis", "memcached")
_APPLICATION_ROLES = ("client", "application")
"""Roles on the application's machine. The engine (`client`) is the application itself, or the visitor that requests pages from it."""
_ALL_ROLES = (*_APPLICATION_ROLES, *_SERVER_ROLES, "forwarder")
_KEY_FACTORS = {"page", "connect", "application", "path", "rtt_ns", "rate_bps", "threads", "app_cpu_ns"}


@dataclass(frozen=True)
class ComparisonKey:
    """Key shared by arms that differ only in the route, the application's CPU or the pages in flight."""

    page: str
    connect: str
    application: Application
    other: tuple[tuple[str, Level], ...]
    """Every other factor that a plan may vary."""


@dataclass(frozen=True)
class MachineUse:
    """How one machine was used in one arm. Times are seconds of CPU per page."""

    name: str
    """`both`, `application` or `database`."""
    cpus: int
    own_s: float
    """CPU time of the application and the visitor, or of the servers; on one machine, of all of them."""
    link_s: float
    """CPU time of the link's emulator on this machine's processors; two real machines would not spend it."""
    other_cpus: float
    """Number of the machine's processors that other programs used."""
    busy: float
    """Utilisation of the machine's processors, by all programs."""


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
            page=PAGE.level_in(factors),
            connect=CONNECT.level_in(factors),
            application="php" if APPLICATION.level_or_none(factors) == "php" else "engine",
            other=tuple(sorted((name, level) for name, level in factors.items() if name not in _KEY_FACTORS)),
        )

    @cached_property
    def route(self) -> Route:
        factors = {} if self.machines == 1 else self.arm.factors
        rtt_ns, rate_bps = (
            None if (level := factors.get(name)) is None else int(level) for name in ("rtt_ns", "rate_bps")
        )
        return Route((PATH.level_or_none(self.arm.factors) or ""), rtt_ns, rate_bps)

    @property
    def machines(self) -> Machines:
        return 1 if is_local(PATH.level_or_none(self.arm.factors) or "") else 2

    @property
    def threads(self) -> int:
        """Pages in flight."""
        return THREADS.level_in(self.arm.factors)

    @property
    def app_cpu_ns(self) -> int:
        return APP_CPU_NS.level_in(self.arm.factors)

    @property
    def on_route(self) -> OnRoute:
        return OnRoute(
            page=self.key.page,
            application=self.key.application,
            connect=self.key.connect,
            threads=self.threads,
            path=self.route.path,
            rtt_ns=self.route.rtt_ns,
            rate_bps=self.route.rate_bps,
        )

    def in_block(self, block: int) -> ArmTrials | None:
        """This arm in one block. None if it has no good trial there."""
        return replace(self, trials={block: self.trials[block]}) if block in self.trials else None

    # ------------------------------------------------------------ rates and times

    @cached_property
    def measured(self) -> list[Measured]:
        return [trial.measured for trial in self.trials.values() if trial.measured is not None]

    @property
    def pages(self) -> int:
        return sum(measured.transactions for measured in self.measured)

    @property
    def elapsed_s(self) -> float:
        return sum(measured.elapsed_ns for measured in self.measured) / 1e9

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
    def page_ms_by_block(self) -> dict[int, float]:
        """`page_s` in milliseconds, by block."""
        return {block: 1e3 * self.threads / rate for block, rate in self.by_block.items()}

    @property
    def mean_ms(self) -> Estimate:
        """Mean of `page_s` over blocks, in milliseconds."""
        return mean_interval(list(self.page_ms_by_block.values()))

    @property
    def allowed_per_s(self) -> Estimate | None:
        """Pages per second that the busier machine's processors would allow: the rate divided by their utilisation. None if
        no utilisation is known."""
        single_blocks = {
            block: block_trials for block in self.by_block if (block_trials := self.in_block(block)) is not None
        }
        busiest_share = {
            block: max(min(side.busy, 1.0) for side in block_trials.machine_uses)
            for block, block_trials in single_blocks.items()
        }
        allowed = [rate / busiest_share[block] for block, rate in self.by_block.items() if busiest_share.get(block)]
        return mean_interval(allowed) if allowed else None

    @property
    def page_s(self) -> float:
        """Mean time of a page, including the time until the visitor requests the next one: pages in flight / pages per second."""
        return self.threads * self.elapsed_s / self.pages

    @cached_property
    def histograms(self) -> list[Histogram]:
        """Page latency of each trial."""
        return [histogram for measured in self.measured if (histogram := transaction_histogram(measured)) is not None]

    @property
    def p50_s(self) -> float:
        """The median of the trials' medians, so that one disturbed trial does not change it. Predictions are compared with this."""
        p50s_s = [record.p50_ns / 1e9 for record in self.histograms]
        return median(p50s_s) if p50s_s else self.page_s

    @cached_property
    def wake_up_s_per_round_trip(self) -> float:
        """How much longer a round trip over the link takes if the processors of both ends must wake up, by the link's calibration."""
        links = [trial.receipt.link for trial in self.trials.values()]
        calibrations = [link.calibration for link in links if link is not None and link.calibration is not None]
        wake_ups_ns = [ns for calibration in calibrations if (ns := calibration.waking_ns) is not None]
        return median(wake_ups_ns) / 1e9 if wake_ups_ns else 0.0

    @cached_property
    def rest_rtt_s(self) -> float | None:
        """The link's round-trip time, measured without load. None without a link."""
        if self.machines == 1:
            return None
        link = link_facts(self.arm.factors, [trial.receipt for trial in self.trials.values()])
        rtt_ns = link.rest_rtt_ns if link.rest_rtt_ns is not None else link.requested_rtt_ns
        return None if rtt_ns is None else rtt_ns / 1e9

    def reported_per_page(self, name: str) -> float | None:
        """A figure per page that the application's pages reported about themselves. None if they did not report it."""
        if not any(name in measured.app_counters for measured in self.measured):
            return None
        return sum(measured.app_counters.get(name, 0) for measured in self.measured) / self.pages

    # ------------------------------------------------------------ CPU

    @property
    def own_cpu_s(self) -> float | None:
        """CPU per page that the application itself reports. None if it reports none."""
        reported = self.reported_per_page("cpu_ns")
        return None if reported is None else reported / 1e9

    @property
    def application_cpu_s(self) -> float:
        """CPU time of the application per page: as it reports itself, or else as measured of its processes."""
        own = self.own_cpu_s
        return own if own is not None else self.cpu_s.get("application", 0.0)

    @cached_property
    def cpu_s(self) -> dict[str, float]:
        """CPU per page by role. The engine is the `visitor` if it requests pages from a separate application."""
        client_role = "visitor" if self.key.application == "php" else "application"
        ns_by_role: dict[str, float] = {}
        for usage in (usage for measured in self.measured for usage in measured.cpu):
            role = client_role if usage.role == "client" else usage.role
            ns_by_role[role] = ns_by_role.get(role, 0.0) + usage.cpu_ns
        return {role: ns / 1e9 / self.pages for role, ns in ns_by_role.items()}

    def _forwarder_share_on(self, host: str) -> float:
        """Share of the forwarders that runs on a `host`, `client` or `server`."""
        return forwarder_share([trial.receipt for trial in self.trials.values()], host)

    @property
    def application_host_s(self) -> float:
        """CPU per page on the application's host: the application, the visitor, and the forwarders that run there."""
        cpu_s = self.cpu_s
        forwarder_s = cpu_s.get("forwarder", 0.0) * self._forwarder_share_on("client")
        return cpu_s.get("application", 0.0) + cpu_s.get("visitor", 0.0) + forwarder_s

    @property
    def database_host_s(self) -> float:
        forwarder_s = self.cpu_s.get("forwarder", 0.0) * self._forwarder_share_on("server")
        return sum(self.cpu_s.get(role, 0.0) for role in _SERVER_ROLES) + forwarder_s

    @cached_property
    def machine_uses(self) -> tuple[MachineUse, ...]:
        """The machines: one, or the application's and the database's."""
        if self.machines == 1:
            return (
                self._machine_use("both", self.database, self.application_host_s + self.database_host_s, _ALL_ROLES),
            )
        return (
            self._machine_use("application", self.application, self.application_host_s, _APPLICATION_ROLES),
            self._machine_use("database", self.database, self.database_host_s, _SERVER_ROLES),
        )

    def _machine_use(self, name: str, host: HostCpus, own_s: float, roles: tuple[str, ...]) -> MachineUse:
        trials, pages_per_s = list(self.trials.values()), self.pages / self.elapsed_s
        link_cpus = host.link_cpus(trials) if self.machines == 2 else 0.0
        other_cpus = median(host.others_cpus(trial, self._own_cpus(trial, roles)) for trial in trials)
        busy = host.busy_share(trials)
        return MachineUse(
            name=name,
            cpus=host.count,
            own_s=own_s,
            link_s=link_cpus / pages_per_s,
            other_cpus=min(other_cpus, host.count / 2),
            busy=busy if busy else min((own_s * pages_per_s + link_cpus + other_cpus) / host.count, 1.0),
        )

    def _own_cpus(self, trial: Trial, roles: tuple[str, ...]) -> float:
        """CPUs used by these roles and by the forwarders on their host."""
        share = (
            self._forwarder_share_on("client" if roles == _APPLICATION_ROLES else "server")
            if self.machines == 2
            else 0.0
        )
        return cpus_used(trial.measured, roles) + share * cpus_used(trial.measured, ("forwarder",))

    # ------------------------------------------------------------ round trips

    @cached_property
    def round_trips(self) -> float | None:
        """Round trips per page to all services. None if they were not counted."""
        reported_counts = [
            count for service in SERVICES if (count := self.reported_per_page(f"{service}_turns")) is not None
        ]
        if reported_counts:
            return sum(reported_counts)
        counted = sum(measured.round_trips for measured in self.measured) / self.pages
        return counted if self.key.application == "engine" and counted > 0 else None

    @property
    def wire_s(self) -> float:
        """Time of a page's round trips over the link without load."""
        return (self.round_trips or 0.0) * (self.rest_rtt_s or 0.0)

    @property
    def waking_s(self) -> float:
        """Time that a page waits for processors to wake up."""
        return (self.round_trips or 0.0) * self.wake_up_s_per_round_trip

    def round_trip_costs(self) -> tuple[RoundTripCost, ...]:
        """The round trips to each service that the pages used: as PHP's pages report them, or else by the engine's histograms."""
        costs = []
        for service in SERVICES:
            round_trips, round_trip_ns = self._reported_count_and_ns(service, "turns", "") or self._timed_count_and_ns(
                f"turn.{service}"
            )
            connects, connect_ns = self._reported_count_and_ns(
                service, "connects", "connect_"
            ) or self._timed_count_and_ns(f"connect.{service}")
            if not round_trips:
                continue
            counted = [
                service_record
                for record in self.measured
                for service_record in record.services
                if service_record.service == service
            ]
            costs.append(
                RoundTripCost(
                    service=service,
                    turns=round_trips,
                    mean_us=round_trip_ns / 1e3,
                    connects=connects,
                    connect_us=connect_ns / 1e3 if connects else None,
                    bytes_to_server=sum(record.bytes.to_server for record in counted) / self.pages if counted else None,
                    bytes_to_client=sum(record.bytes.to_client for record in counted) / self.pages if counted else None,
                )
            )
        return tuple(costs)

    def _reported_count_and_ns(self, service: str, event: str, time_prefix: str) -> tuple[float, float] | None:
        """How often per page an event happened, and its mean time in nanoseconds, as reported by the pages themselves."""
        count, spent_ns = (
            self.reported_per_page(f"{service}_{event}"),
            self.reported_per_page(f"{service}_{time_prefix}ns"),
        )
        return (count, spent_ns / count) if count and spent_ns is not None else None

    def _timed_count_and_ns(self, kind: str) -> tuple[float, float]:
        """How often per page an event happened, and its mean time in nanoseconds, by the engine's histograms."""
        records = [record for measured in self.measured for record in measured.histograms if record.kind == kind]
        count = sum(record.count for record in records)
        return count / self.pages, sum(record.mean_ns * record.count for record in records) / count if count else 0.0


def has_page(arm: Arm) -> bool:
    return PAGE.level_in(arm.factors) != NO_PAGE


def page_arms(table: TrialTable) -> list[ArmTrials]:
    """Arms with a page and a good trial, in the order of the plan, without the A/A arm."""
    application, database = (
        HostCpus.from_environment(table.run.info.environment, host, machine_cpus=2) for host in ("client", "server")
    )
    return [
        ArmTrials(arm, table.trials[arm.name], application, database)
        for arm in table.run.info.arms
        if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER) and has_page(arm) and table.trials[arm.name]
    ]


def paired_ratios(numerator: ArmTrials, denominator: ArmTrials) -> dict[int, float]:
    """Ratio of pages per second, for each block in which both arms are good."""
    return {
        block: rate / denominator.by_block[block]
        for block, rate in numerator.by_block.items()
        if block in denominator.by_block
    }


def extra_page_ms(arm: ArmTrials, other: ArmTrials) -> Estimate | None:
    """How much longer a page of `arm` takes than one of `other`, over the blocks in which both are good. None without such a block."""
    other_page_ms = other.page_ms_by_block
    differences_ms = [
        page_ms - other_page_ms[block] for block, page_ms in arm.page_ms_by_block.items() if block in other_page_ms
    ]
    return mean_interval(differences_ms) if differences_ms else None
