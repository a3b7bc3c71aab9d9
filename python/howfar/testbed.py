"""What a trial needs of hosts, servers and links. The runner knows these protocols; `howfar.lab` implements them with namespaces.
A *stage* is one path to one server, complete, for one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from howfar.engine.messages import (
    FastCgi,
    Observed,
    PageScript,
    Service,
    ServiceName,
    Target,
    Tls,
)
from howfar.engine.process import Launcher
from howfar.plan.sessions import SessionSpec
from howfar.services import SqlProtocol
from howfar.store.records import FactorValue, Window


@dataclass(frozen=True)
class Trust:
    """What a client needs to know that it speaks with the stage's server."""

    ca_file: str
    server_name: str
    """Name or address that the certificate carries."""

    def tls(self, spec: SessionSpec) -> Tls | None:
        """How a client encrypts; it always checks the certificate. None: plain."""
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
    """One server of a stage as an application finds it, by the stage's path."""

    service: Service
    server_kind: str
    server_version: str
    pid: int
    count_keys: Callable[[], int] | None = field(default=None, repr=False, compare=False)
    """How many keys it holds, as it says itself. Raises LabError. None: it is no key-value store."""


class Application(Protocol):
    """A real application in front of the stage's servers, once it knows its page."""

    def install(self, script: PageScript) -> FastCgi:
        """Give it the script of its pages and prove that it does what that says; returns how the engine requests a page. Raises
        PlanError where it cannot do it, LabError."""
        ...

    def obtained(self) -> StageReceipt:
        """The application's part of a stage's receipt. Raises LabError when it has died."""
        ...


@dataclass(frozen=True)
class StageReceipt:
    """What can be proven about a stage after the load, and what was not as requested."""

    receipt: dict[str, Any]
    """Sections `server`, `services` (the others, by name), `forwarder`, `link`, `replication`, each present only where the stage
    has that part."""
    violations: tuple[str, ...] = ()
    """Where requested and obtained differ: each a sentence; any makes the trial void."""


@dataclass(frozen=True)
class LoadFacts:
    """What the load itself measured, as far as a receipt needs it."""

    round_trip_ns: float = 0.0
    """Mean, with waiting at server and link."""
    commits: int | None = None
    """Transactions in the measured window that wrote something. None: unknown, or the workload only reads."""
    answered: int | None = None
    """Statements, or commands to a store of keys, from the first to the last, outside the window too. None: unknown."""
    ended: int | None = None
    """The transactions that those statements were: each is one where there is no BEGIN."""
    commit_p50_ns: int | None = None
    """Median time of a commit, from its first byte sent to the last one of its answer."""
    round_trips: Mapping[ServiceName, int] = field(default_factory=dict)
    """Round trips of pages, by service: requests of all that ended, in the warm-up too."""
    keys: Mapping[ServiceName, int] = field(default_factory=dict)
    """That they looked for."""
    sessions: Mapping[str, Mapping[str, Any]] | None = None
    """The engine's receipts by service, of those that it spoke with itself. None: it spoke with the main server only."""


NO_FACTS = LoadFacts()


class WindowWatch(Protocol):
    """Observes hosts, link and server from its making, for the length it was given."""

    def finish(self) -> Window | None:
        """End it, if it has not ended. None: it saw nothing."""
        ...


class Stage(Protocol):
    """One path, ready for use: the server has answered a query on it."""

    target: Target
    protocol: SqlProtocol
    """Protocol of statements; a store of keys has one of its own."""
    user: str
    password: str
    database: str
    client: Launcher
    """Puts the engine on the right host and CPUs."""
    observe: tuple[Observed, ...]
    """Roles server, forwarder, link."""
    trust: Trust | None
    """None: the server offers no TLS."""
    fetches_server_key: bool
    """Sessions may ask for the key with which a password is hidden, and take that of whoever answers: the account is howfar's own, or
    its owner allows it."""

    @property
    def services(self) -> Mapping[ServiceName, ServiceEndpoint]:
        """The main server and the others."""
        ...

    @property
    def application(self) -> Application | None:
        """None: the engine runs pages itself, or there are none."""
        ...

    def loading(self) -> None:
        """Right before a load for which keys were set or an application proven, so that counters leave that out. Raises LabError."""
        ...

    def watch(self, length_ns: int) -> WindowWatch:
        """Begin to watch a measured window of this length; the caller must finish it."""
        ...

    def begun(self, session: Mapping[str, Any] | None = None) -> StageReceipt:
        """The part of `obtained` that needs no living server, where a fault kills it: links at rest, how the server saw a client, and
        the engine's `session` once there is one."""
        ...

    def obtained(self, session: Mapping[str, Any], load: LoadFacts = NO_FACTS) -> StageReceipt:
        """After the load; `session` is the engine's receipt, of the main server unless `load.sessions` are given. Raises
        LabError when a part has died."""
        ...


class Testbed(Protocol):
    """Hosts, servers, data and links for all trials of a run."""

    def server(self) -> tuple[str, str]:
        """Kind and version, as the server says it."""
        ...

    def environment(self) -> dict[str, Any]:
        """Facts for the run file: hosts, CPUs, file system of the data, link and its calibration."""
        ...

    def begin_block(self, block: int) -> None:
        """Block number `block` begins, begins anew or goes on: what is calibrated is calibrated again, so that its error differs from
        block to block."""
        ...

    def stage(self, factors: Mapping[str, FactorValue]) -> AbstractContextManager[Stage]:
        """A freshly started server with its data in memory, and the path of `factors["path"]` to it."""
        ...
