"""What is said and assumed of a service: its name, its usual programs, places and files, and how clients name its socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServiceName = Literal["mysql", "postgresql", "redis", "memcached"]
"""Services that an application asks, by protocol."""
SqlProtocol = Literal["mysql", "postgresql"]
"""Those that take statements."""


@dataclass(frozen=True)
class Service:
    name: ServiceName
    label: str
    """In sentences."""
    kinds: tuple[str, ...]
    """Kinds of server that provide it."""
    port: int
    programs: tuple[str, ...]
    """Names of its servers' processes, as every package and relative starts them: Red Hat's PostgreSQL is `postmaster` up to 15."""
    sockets: tuple[str, ...]
    """Where a server's socket usually is; first where Debian's package has it, whose directory it creates."""
    socket_names: tuple[str, ...]
    """Part of the path of every such socket."""
    files: tuple[str, ...]
    """Its usual configuration files."""
    file: str
    """Such a file, where it is not known which."""
    socket_lines: tuple[str, ...]
    """Lines of its configuration file, for a socket at `{path}` in `{folder}`."""
    mode_lines: tuple[str, ...]
    """And for `{mode}`, such as 770."""
    client_lines: tuple[str, ...]
    """How clients are told to use the socket."""
    fewer_round_trips: str
    """How clients get along with fewer."""
    names_folder: bool = False
    """Clients name the directory of its socket, and the port that the socket's name ends with."""
    asks_for_tls: bool = False
    """A client asks in a round trip of its own whether the server encrypts."""
    accounts: tuple[str, ...] = ()
    """What must be right before a client changes over to the socket: where, and lines. Empty: it has no accounts."""
    php: tuple[str, str, str] | None = None
    """PDO's driver for SQL, how its socket is named to it in words, and in a line. None: it speaks no SQL."""
