"""What a path declares, what it is opened with, and the endpoint that opening it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, ClassVar, Literal, Protocol

Side = Literal["client", "server"]
"""At which end of the link."""


class Process(Protocol):
    """A process that was started for a path and ends with it."""

    @property
    def pid(self) -> int: ...
    def alive(self) -> bool: ...


@dataclass(frozen=True)
class Hop:
    """A program between client and server. Its CPU is counted with the path."""

    label: str
    """Its key in receipts, such as `server_side`."""
    process: Process
    forks: bool = False
    """It has a process for each connection, which the receipt checks."""
    carried: Callable[[], Mapping[str, int]] | None = None
    """Its own counters since it started: `connections`, `connections_most` (at once), `bytes_to_server`, `bytes_to_client`.
    None: it has none. Raises LabError."""


@dataclass(frozen=True)
class Endpoint:
    """Where a client connects to on an open path, and what a proof of it must show."""

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
        """Arguments of a Python client: `socket`, or `host` and `port`."""
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
        """None: the server does not listen on TCP."""
        ...

    @property
    def hop_port(self) -> int:
        """Free on both hosts, for a hop to listen on."""
        ...

    @property
    def loopback_address(self) -> str: ...
    @property
    def client_address(self) -> str: ...
    @property
    def server_address(self) -> str: ...

    def start(self, side: Side, command: Sequence[str], log: str) -> Process:
        """Start a program that ends with the path. Raises MissingError."""
        ...

    def wait_until(self, process: Process, log: str, ready: Callable[[], bool]) -> None:
        """Observe readiness. Raises LabError if the process ends first or takes too long."""
        ...

    def listens(self, process: Process, port: int) -> bool: ...


class Path(ABC):
    """A path before it is open: facts about it, and how to open it. One file of this package each."""

    name: ClassVar[str]
    """In plans, commands and run files."""
    label: ClassVar[str]
    """In sentences."""
    machines: ClassVar[int]
    """1: the client runs on the server's host."""
    crosses_link: ClassVar[bool]
    """Bytes cross the link: a delay and a rate mean something."""
    networking: ClassVar[bool]
    """The server listens on TCP."""
    by_socket: ClassVar[bool]
    """It leads to the server's Unix socket."""
    hops: ClassVar[tuple[str, ...]] = ()
    """Programs in between."""
    modelled: ClassVar[bool]
    """The queueing model describes it: it has no process for each connection, whose cost the model does not know."""

    @abstractmethod
    def open(self, context: PathContext) -> Endpoint:
        """Start what the path needs. Raises LabError."""
