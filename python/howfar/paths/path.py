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
Side = Literal["client", "server"]
"""At which end of the link."""


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
    """A program between client and server. Its CPU time counts for the path."""

    label: str
    """Its key in receipts, such as `server_side`."""
    process: Process
    forks: bool = False
    """It has a process for each connection, which the receipt checks."""
    carried: Callable[[], Mapping[str, int]] | None = None
    """Its own counters since it started: `bytes_to_server`, `bytes_to_client` and, where it counts them, `connections` and
    `connections_most` (at once). None: it has none. Raises LabError."""
    now: Callable[[], Mapping[str, int]] | None = None
    """How many connections it has at the moment: `to_clients`, `to_server`; watched under the load. None: it does not tell."""
    let_go: Callable[[], None] | None = None
    """Ends the connections to the server that it keeps without a client. Called once, after the load. Raises LabError."""


@dataclass(frozen=True)
class Endpoint:
    """Where a client connects on an open path, and what its receipt must show."""

    socket: str | None = None
    host: str | None = None
    port: int | None = None
    peer_pid: int | None = None
    """Who answers at the other end of a Unix socket; None for TCP, which cannot tell."""
    seen_from: str = "localhost"
    """The client's address as the server must see it, without port."""
    server_port: int | None = None
    """The server host's end of the TCP connections that carry the load; None: there are none."""
    hops: tuple[Hop, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What a receipt says of the hops."""

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
        """What the server speaks, as `protocols` names it."""
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

    def within(self, side: Side, function: Callable[[], Seen]) -> Seen:
        """Run `function` on that host, in its network. It travels there: a function of a module, with its arguments by `partial`."""
        ...

    def write(self, side: Side, name: str, text: str) -> FilePath:
        """A file of the path's own in the work directory of that host."""
        ...

    def certificates(self) -> Certificates:
        """The certificates of the server's host, for programs that encrypt."""
        ...

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Run a query as the server's administrator. Raises LabError."""
        ...

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> Process:
        """Start a program that ends with the path. `log`: the file of its output, PROGRAM.log or PROGRAM-SIDE.log; errors name the
        program so. `as_user`: what our own user is called for it; some refuse to be 0."""
        ...

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        """`bytes_to_server` and `bytes_to_client` of the connections at a port of the server's host, since each began: what the
        kernel knows of a program that keeps its connections and has no counters. Raises LabError."""
        ...

    def wait_until(self, process: Process, log: str, ready: Callable[[], bool]) -> None:
        """Observe readiness. Raises MissingError if the process ends first, LabError if it is killed or takes too long."""
        ...

    def listens(self, process: Process, at: int | FilePath) -> bool:
        """Whether a process listens on a port or a Unix socket of its host."""
        ...

    def output(self, side: Side, command: Sequence[str]) -> str:
        """The output of a program on that host; empty if it is missing."""
        ...


_PLACES = ("/usr/sbin", "/usr/local/sbin")
"""Not on every user's PATH."""


_given: dict[str, FilePath] = {}


def give_program(name: str, where: FilePath) -> None:
    """Use this file as the program of that name, in this process."""
    _given[name] = where


def given_programs() -> Mapping[str, FilePath]:
    """The programs of `give_program`."""
    return dict(_given)


def find_program(name: str) -> str:
    """Find a hop's program. Raises MissingError."""
    if name in _given:
        return str(_given[name])
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))
    if found is None:
        raise MissingError(
            f"the program {name} was not found",
            f"Install {name} (./setup --hops does so where Debian has it), or give its program: --hop-binary {name}=PATH.",
        )
    return found


class Path(ABC):
    """A path before it is open: its facts, and how to open it. Each has one file of this package."""

    name: str
    """In plans, commands and run files."""
    label: str
    """In sentences."""
    machines: int
    """1: the client runs on the server's host."""
    crosses_link: bool
    """Bytes cross the link: a delay and a rate mean something."""
    networking: bool
    """The server listens on TCP."""
    by_socket: bool
    """It leads to the server's Unix socket."""
    hops: tuple[str, ...] = ()
    """Programs in between."""
    protocols: tuple[str, ...] = ()
    """Services whose protocol its programs read, as `postgresql`: they carry no other. Empty: they read none and carry all."""
    pools: bool = False
    """A connection to the server serves several clients."""
    encrypts: bool = False
    """Its programs encrypt what is between them."""
    passes_tls: bool = True
    """A session can be encrypted or compressed between client and server."""
    keeps_sessions: bool = True
    """A client keeps its session at the server for longer than a transaction, and with it statements that it prepared."""
    shows_sessions: bool = True
    """Through it the server can be asked how it sees a session."""
    first_protocol: bool = False
    """Of a store's protocols its programs read the first alone: RESP 2, Memcached's text."""
    between_hosts: bool = False
    """Hosts of the user's own can have it: its programs read and write no files of the machine where howfar runs."""
    modelled: bool
    """The queueing model describes it: it has no process for each connection, whose cost the model does not know."""

    @abstractmethod
    def open(self, context: PathContext) -> Endpoint:
        """Start what the path needs. Raises LabError, MissingError."""
