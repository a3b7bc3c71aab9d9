"""Interfaces to the hosts, servers and links that trials need. The runner uses them; `howfar.lab` implements them with namespaces,
`howfar.fleet` with real hosts. A *trial environment* is one complete path to one server, for one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    FastCgi,
    Observed,
    PageScript,
    Receipt,
    Service,
    ServiceName,
    Target,
    Tls,
)
from howfar.contract.receipt import TrialReceipt
from howfar.contract.violation import Violation
from howfar.engine.process import Launcher
from howfar.plan.factor import Level
from howfar.plan.sessions import SessionSpec
from howfar.services import SqlProtocol
from howfar.store.records import Window


@dataclass(frozen=True)
class Trust:
    """The data with which a client verifies the certificate of the environment's server."""

    ca_file: str
    server_name: str
    """The name or address that the certificate must contain."""

    def tls(self, spec: SessionSpec) -> Tls | None:
        """A client's TLS settings, which always verify the certificate; None if the session is not encrypted."""
        if spec.tls is None:
            return None
        return Tls(
            versions=spec.tls,
            verify="full",
            ca_file=self.ca_file,
            server_name=self.server_name,
            resumption=spec.resumption,
        )


@dataclass(frozen=True)
class ServiceEndpoint:
    """One server of an environment, with its address over the environment's path."""

    service: Service
    server_kind: str
    server_version: str
    pid: int
    count_keys: Callable[[], int] | None = field(default=None, repr=False, compare=False)
    """A function that returns the number of keys that the server reports, and raises LabError; None for a server with tables."""


class Application(Protocol):
    """A real application in front of the environment's servers; after `install` it serves a page."""

    def install(self, script: PageScript) -> FastCgi:
        """Install a script, and verify that the application's pages do what the script describes; returns the engine's request for a
        page. Raises PlanError if the application cannot run the script, LabError."""
        ...

    def collect_receipt(self) -> CollectedReceipt:
        """Collect the application's part of an environment's receipt. Raises LabError if the application has died."""
        ...


@dataclass(frozen=True)
class CollectedReceipt:
    """The verified facts about an environment after the load, and their differences from the request."""

    receipt: TrialReceipt = field(default_factory=TrialReceipt)
    violations: tuple[Violation, ...] = ()
    """Differences from the request; a single one makes the trial void."""


@dataclass(frozen=True)
class LoadFacts:
    """Results of the load that receipts need."""

    round_trip_ns: float = 0.0
    """Mean time of a round trip, including waiting at server and link."""
    commits: int | None = None
    """Number of transactions in the measured window that wrote something; None if unknown, or if the workload only reads."""
    answered_statements: int | None = None
    """Number of statements, or of commands to a key-value store, that were answered, also outside the window; None if unknown."""
    ended_transactions: int | None = None
    """Number of transactions that those statements formed; without BEGIN each statement is one transaction."""
    commit_p50_ns: int | None = None
    """Median time of a commit, from its first byte sent to the last one of its answer."""
    round_trips: Mapping[ServiceName, int] = field(default_factory=dict)
    """Round trips, by service, of all pages that ended, including those of the warm-up."""
    keys: Mapping[ServiceName, int] = field(default_factory=dict)
    """Number of keys that the pages looked up, by service."""
    sessions: Mapping[str, Receipt] | None = None
    """The engine's receipts of the services that it used itself, by service; None if it used the main server only."""


NO_FACTS = LoadFacts()


class WindowWatch(Protocol):
    """Observes hosts, link and server from its creation on, for a given length of time."""

    def finish(self) -> Window | None:
        """End the watch if it has not ended; None if it observed nothing."""
        ...


class TrialEnvironment(Protocol):
    """One path to a server, ready for use: the server has answered a query over the path."""

    target: Target
    protocol: SqlProtocol
    """Protocol of SQL statements; a key-value store has its own."""
    user: str
    password: str
    database: str
    client: Launcher
    """Starts the engine on the right host and CPUs."""
    observe: tuple[Observed, ...]
    """Processes to observe, with the roles server, forwarder, link."""
    trust: Trust | None
    """None if the server offers no TLS."""
    fetches_server_key: bool
    """Whether sessions may request the key that encrypts a password, and accept it from any program that answers. That is allowed if
    the account is howfar's own, or if its owner permits it."""

    @property
    def services(self) -> Mapping[ServiceName, ServiceEndpoint]:
        """The environment's servers by service: the main server and the auxiliary ones."""
        ...

    @property
    def application(self) -> Application | None:
        """The application; None if the engine runs pages itself, or there are none."""
        ...

    def reset_counters(self) -> None:
        """Called right before a load, so that counters exclude setting keys or verifying an application. Raises LabError."""
        ...

    def watch(self, length_ns: int) -> WindowWatch:
        """Begin to watch a measured window of this length; the caller must finish it."""
        ...

    def precheck(self, session: Receipt | None = None) -> CollectedReceipt:
        """The part of `collect_receipt` that needs no running server, for faults that kill it: links at rest, the server's view of the
        client's connection, and the engine's `session` if there is one."""
        ...

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        """Collect the receipt after the load. `session`: the engine's receipt of the main server; `load.sessions` replaces it if set;
        None after a load that failed without one. Raises LabError if a part of the environment has died."""
        ...


class Testbed(Protocol):
    """Hosts, servers, data and links for all trials of a run."""

    def server(self) -> tuple[str, str]:
        """Kind and version of the server, as it reports them."""
        ...

    def environment(self) -> RunEnvironment:
        """Facts for the run file: hosts, CPUs, file system of the data, link and its calibration."""
        ...

    def begin_block(self, block: int) -> None:
        """Called when block number `block` begins, is repeated or continues. Links are then calibrated again, so that calibration
        errors differ between blocks."""
        ...

    def trial_environment(self, factors: Mapping[str, Level]) -> AbstractContextManager[TrialEnvironment]:
        """A freshly started server with its data in memory, and the path of the cell `factors` to it."""
        ...
