"""Paths: their properties and how to open them (`Path`), with a `PathContext`; opening returns a `ClientEndpoint`."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Literal, Protocol, TypeVar

from howfar import clients
from howfar.errors import MissingError

Row = clients.Row
"""A row of an SQL server's answer: values by the names of the query's columns."""
Result = TypeVar("Result")
Side = Literal["client", "server", "hop"]
"""One of a path's hosts: the client's, the server's, or the separate host of a hop."""


class PathProcess(Protocol):
    """A process that was started for a path, and is stopped when the path is closed."""

    @property
    def pid(self) -> int: ...
    def alive(self) -> bool: ...
    def poll(self) -> int | None:
        """The exit status, negative if a signal ended it; None while it runs."""
        ...


class Certificates(Protocol):
    """PEM files: the CA, the server's certificate and its key."""

    @property
    def ca(self) -> FilePath: ...
    @property
    def certificate(self) -> FilePath: ...
    @property
    def key(self) -> FilePath: ...


@dataclass(frozen=True)
class Hop:
    """A running program between client and server. Its CPU time counts as the path's."""

    label: str
    """The hop's key in receipts, such as `server_side`."""
    process: PathProcess
    forks: bool = False
    """Whether the hop has a process for each connection; the receipt checks their number."""
    read_counters: Callable[[], Mapping[str, int]] | None = None
    """Reads the hop's counters since its start: `bytes_to_server`, `bytes_to_client` and, if the hop counts them, `connections` and
    `connections_most` (the maximum at once). None if the hop has no counters. Raises LabError."""
    count_connections: Callable[[], Mapping[str, int]] | None = None
    """Reads the hop's present numbers of connections, `to_clients` and `to_server`, which are sampled under the load. None if
    the hop does not report them."""
    close_idle_connections: Callable[[], None] | None = None
    """Closes the hop's idle connections to the server; called once, after the load. Raises LabError. None if that is not needed."""


@dataclass(frozen=True)
class ClientEndpoint:
    """The address that a client of an open path connects to, and facts that the receipt must then show."""

    socket: str | None = None
    host: str | None = None
    port: int | None = None
    peer_pid: int | None = None
    """PID of the process at the other end of a Unix socket; None for TCP, which does not show that process."""
    expected_client_host: str = "localhost"
    """The client's address, without port, that the server must report."""
    server_port: int | None = None
    """The port, on the server's host, of the TCP connections that carry the load; None if the load does not use TCP."""
    hops: tuple[Hop, ...] = ()
    facts: dict[str, str | int] = field(default_factory=dict)
    """Fields of the hops' receipt (`HopsReceipt`): the program, and a description of each hop, by its label."""


class PathContext(Protocol):
    """Everything that is needed to open a path: one running server, and access to the hosts."""

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
        """Name of the server's protocol, as in `Path.protocols`."""
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
        """Address of the separate host for the program of a `movable` path; None if the program runs on the client's or server's
        host."""
        ...

    def run_on(self, side: Side, function: Callable[[], Result]) -> Result:
        """Run `function` on a host, in its network. The function may be sent to another machine, so it must be a module's function or
        a `partial` of one."""
        ...

    def write(self, side: Side, name: str, text: str) -> FilePath:
        """Write one of the path's own files into the work directory of a host; returns its path."""
        ...

    def certificates(self) -> Certificates:
        """The certificates of the server's host, for hops that encrypt."""
        ...

    def query(self, sql: str) -> list[Row]:
        """Run a query as the server's administrator. Raises LabError."""
        ...

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> PathProcess:
        """Start a program, which is stopped when the path is closed. `log`: name of the file for its output, PROGRAM.log or
        PROGRAM-SIDE.log; errors take the program's name from it. `as_user`: UID for a program that refuses to run as root."""
        ...

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        """The kernel's `bytes_to_server` and `bytes_to_client`: bytes carried by the open connections to a port of the server's host.
        For programs that keep their connections open and have no counters. Raises LabError."""
        ...

    def wait_until(self, process: PathProcess, log: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns True. Raises MissingError if the process ends first, LabError if it is killed or takes too
        long."""
        ...

    def listens(self, process: PathProcess, port_or_socket: int | FilePath) -> bool:
        """Whether a process listens on a port or a Unix socket of its host."""
        ...


@dataclass(frozen=True)
class HopPlacement:
    """The host on which a hop runs, and the hop's addresses."""

    side: Side
    listen_address: str
    """The address on which the hop listens for clients."""
    source_address: str
    """The address from which the hop connects to the server."""


def find_hop_placement(context: PathContext) -> HopPlacement:
    """Where the program of a `movable` path runs: on its own host if there is one, otherwise on the client's host."""
    own_address = context.hop_address
    return (
        HopPlacement("hop", own_address, own_address)
        if own_address
        else HopPlacement("client", context.loopback_address, context.client_address)
    )


_SBIN_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin")
"""Directories that are not on every user's PATH."""


_chosen_programs: dict[str, FilePath] = {}
"""Files that the user chose for programs, by the program's name."""


def set_program(name: str, file: FilePath) -> None:
    """Set the file of a hop's program; it applies in this process only."""
    _chosen_programs[name] = file


def chosen_programs() -> Mapping[str, FilePath]:
    """The files that `set_program` has set, by the program's name."""
    return dict(_chosen_programs)


def find_program(name: str) -> str:
    """Find the file of a hop's program. Raises MissingError."""
    if name in _chosen_programs:
        return str(_chosen_programs[name])
    file = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SBIN_DIRECTORIES]))
    if file is None:
        option = "" if name == "socat" else " --hops"
        raise MissingError(
            f"the program {name} was not found",
            f"Install {name} (`howfar setup{option}` does so where there is a package), or give its program: "
            f"--hop-binary {name}=PATH.",
        )
    return file


class Path(ABC):
    """A path: its properties, and how to open it."""

    name: str
    """Name in plans, commands and run files."""
    label: str
    """Name in sentences."""
    machines: int
    """1 if the client runs on the server's host, 2 if it has its own."""
    crosses_link: bool
    """Whether bytes cross the link, so that the link's delay and rate have an effect."""
    networking: bool
    """Whether the server listens on TCP."""
    by_socket: bool
    """Whether the path leads to the server's Unix socket."""
    hops: tuple[str, ...] = ()
    """Programs between client and server."""
    protocols: tuple[str, ...] = ()
    """The only protocols that the programs can carry, because they parse them, such as `postgresql`. Empty if they carry any
    protocol."""
    pools: bool = False
    """Whether a connection to the server serves several clients."""
    encrypts: bool = False
    """Whether the programs encrypt the connection between them."""
    passes_tls: bool = True
    """Whether a session can be encrypted or compressed end to end, between client and server."""
    keeps_sessions: bool = True
    """Whether a client keeps its session at the server, with its prepared statements, beyond the end of a transaction."""
    shows_sessions: bool = True
    """Whether the server can be queried through the path for its view of a session."""
    oldest_protocol_only: bool = False
    """Whether the programs support only a key-value store's oldest protocol: RESP 2, or Memcached's text protocol."""
    movable: bool = False
    """Whether the path's program can run on a separate host between client and server. The path then has only this program, which uses
    TCP on both sides."""
    works_between_hosts: bool = False
    """Whether the path can be used between the user's own hosts, because its programs need no files of the machine where howfar
    runs."""
    modelled: bool
    """Whether the queueing model describes the path. The model does not include the cost of a process for each connection."""

    @abstractmethod
    def open(self, context: PathContext) -> ClientEndpoint:
        """Start the path's programs. Raises LabError, MissingError."""
