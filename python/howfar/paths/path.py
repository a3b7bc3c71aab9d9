"""What a path declares, the context it is opened with, and the endpoint that opening it returns."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal, Protocol, TypeVar

from howfar.errors import MissingError

Seen = TypeVar("Seen")
Side = Literal["client", "server", "hop"]
"""An end of the link, or the separate host of a program in between."""


class Process(Protocol):
    """A process that was started for a path and ends with it."""

    @property
    def pid(self) -> int: ...
    def alive(self) -> bool: ...
    def poll(self) -> int | None:
        """The exit status, negative if a signal ended it; None while it runs."""
        ...


class Certificates(Protocol):
    """The authority, the certificate and its key, in PEM."""

    @property
    def ca(self) -> FilePath: ...
    @property
    def certificate(self) -> FilePath: ...
    @property
    def key(self) -> FilePath: ...


@dataclass(frozen=True)
class Hop:
    """A program between client and server. Its CPU time is part of the path's."""

    label: str
    """The hop's key in receipts, such as `server_side`."""
    process: Process
    forks: bool = False
    """Whether the hop has a process for each connection, which the receipt checks."""
    carried: Callable[[], Mapping[str, int]] | None = None
    """The hop's counters since it started: `bytes_to_server`, `bytes_to_client` and, where it counts them, `connections` and
    `connections_most` (at once). None: it has none. Raises LabError."""
    now: Callable[[], Mapping[str, int]] | None = None
    """Number of connections at the moment: `to_clients`, `to_server`; watched under the load. None: not reported."""
    let_go: Callable[[], None] | None = None
    """Closes the connections to the server that the hop keeps without a client. Called once, after the load. Raises LabError."""


@dataclass(frozen=True)
class Endpoint:
    """Where a client connects on an open path, and what its receipt must show."""

    socket: str | None = None
    host: str | None = None
    port: int | None = None
    peer_pid: int | None = None
    """PID at the other end of a Unix socket; None for TCP, which does not show it."""
    seen_from: str = "localhost"
    """The client's address as the server must see it, without port."""
    server_port: int | None = None
    """Port at the server host's end of the TCP connections that carry the load; None: there are none."""
    hops: tuple[Hop, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """A receipt's facts about the hops."""

    @property
    def connection(self) -> dict[str, Any]:
        """The arguments for a Python client: `socket`, or `host` and `port`."""
        return {"socket": self.socket} if self.socket else {"host": self.host, "port": self.port}


class PathContext(Protocol):
    """One running server and the two hosts, as a path needs them."""

    @property
    def work(self) -> FilePath:
        """A directory for the path's own files."""
        ...

    @property
    def server_socket(self) -> FilePath: ...
    @property
    def server_pid(self) -> int: ...
    @property
    def server_port(self) -> int | None:
        """The server's TCP port, or None if it does not listen on TCP."""
        ...

    @property
    def hop_port(self) -> int:
        """A port for a hop to listen on, free on both hosts."""
        ...

    @property
    def service(self) -> str:
        """The server's protocol, as `protocols` names it."""
        ...

    @property
    def user(self) -> str:
        """The load's account at the server; empty, like password and database, if the server has no accounts."""
        ...

    @property
    def password(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def loopback_address(self) -> str: ...
    @property
    def client_address(self) -> str: ...
    @property
    def server_address(self) -> str: ...

    @property
    def hop_address(self) -> str | None:
        """Address of the separate host that runs the program of a `movable` path. None: it runs where the path declares."""
        ...

    def within(self, side: Side, function: Callable[[], Seen]) -> Seen:
        """Run `function` on that host, in its network. It is sent there, so it must be a function of a module, with its arguments
        by `partial`."""
        ...

    def write(self, side: Side, name: str, text: str) -> FilePath:
        """Write one of the path's own files into the work directory of that host."""
        ...

    def certificates(self) -> Certificates:
        """The certificates of the server's host, for programs that encrypt."""
        ...

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Run a query as the server's administrator. Raises LabError."""
        ...

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> Process:
        """Start a program that ends with the path. `log`: the file of its output, PROGRAM.log or PROGRAM-SIDE.log; errors use the
        program's name from it. `as_user`: UID for the program; some refuse to run as root."""
        ...

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        """`bytes_to_server` and `bytes_to_client` of the connections at a port of the server's host, since each began: the kernel's
        counts, for a program that keeps its connections and has no counters. Raises LabError."""
        ...

    def wait_until(self, process: Process, log: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns True. Raises MissingError if the process ends first, LabError if it is killed or takes too
        long."""
        ...

    def listens(self, process: Process, at: int | FilePath) -> bool:
        """Whether a process listens on a port or a Unix socket of its host."""
        ...

    def output(self, side: Side, command: Sequence[str]) -> str:
        """The output of a program on that host; empty if it is missing."""
        ...


@dataclass(frozen=True)
class HopSide:
    """Where a program in between runs, and its addresses."""

    side: Side
    to_clients: str
    to_server: str


def hop_place(context: PathContext) -> HopSide:
    """Where a program of the client's host runs: there, unless it has its own host."""
    own = context.hop_address
    return HopSide("hop", own, own) if own else HopSide("client", context.loopback_address, context.client_address)


_PLACES = ("/usr/sbin", "/usr/local/sbin")
"""Directories that are not on every user's PATH."""


_given: dict[str, FilePath] = {}


def give_program(name: str, where: FilePath) -> None:
    """Use this file as the program of that name, in this process."""
    _given[name] = where


def given_programs() -> Mapping[str, FilePath]:
    """Programs that were given by `give_program`."""
    return dict(_given)


def find_program(name: str) -> str:
    """Find a hop's program. Raises MissingError."""
    if name in _given:
        return str(_given[name])
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))
    if found is None:
        raise MissingError(
            f"the program {name} was not found",
            f"Install {name} (`howfar setup --hops` does so where there is a package), or give its program: --hop-binary {name}=PATH.",
        )
    return found


class Path(ABC):
    """A path before it is open: its facts, and how to open it. Each has one file of this package."""

    name: str
    """Name in plans, commands and run files."""
    label: str
    """Name in sentences."""
    machines: int
    """Number of machines; 1: the client runs on the server's host."""
    crosses_link: bool
    """Whether bytes cross the link, so that a delay and a rate have an effect."""
    networking: bool
    """Whether the server listens on TCP."""
    by_socket: bool
    """Whether the path leads to the server's Unix socket."""
    hops: tuple[str, ...] = ()
    """Programs between client and server."""
    protocols: tuple[str, ...] = ()
    """Services whose protocol the programs read, such as `postgresql`: they carry no other. Empty: they read none and carry all."""
    pools: bool = False
    """Whether a connection to the server serves several clients."""
    encrypts: bool = False
    """Whether the programs encrypt the connection between them."""
    passes_tls: bool = True
    """Whether a session can be encrypted or compressed between client and server."""
    keeps_sessions: bool = True
    """Whether a client keeps its session at the server for longer than a transaction, and with it its prepared statements."""
    shows_sessions: bool = True
    """Whether the server can be asked, through the path, how it sees a session."""
    first_protocol: bool = False
    """Whether the programs read only a store's first protocol: RESP 2, Memcached's text."""
    movable: bool = False
    """Whether its program can have its own host between client and server: it is the only one, with TCP on both sides."""
    between_hosts: bool = False
    """Whether it can be used between the user's own hosts: the programs read and write no files of the machine where howfar runs."""
    modelled: bool
    """Whether the queueing model describes it. The model does not include the cost of a process for each connection."""

    @abstractmethod
    def open(self, context: PathContext) -> Endpoint:
        """Start what the path needs. Raises LabError, MissingError."""
