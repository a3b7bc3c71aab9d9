"""The properties of a service: its name, its usual programs, paths and files, and how clients name its socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServiceName = Literal["mysql", "postgresql", "redis", "memcached"]
"""Services that an application queries, by protocol."""
SqlProtocol = Literal["mysql", "postgresql"]
"""The protocols that take SQL statements."""


@dataclass(frozen=True)
class KnownService:
    name: ServiceName
    label: str
    """The name in sentences."""
    kinds: tuple[str, ...]
    """Kinds of server that provide it."""
    port: int
    programs: tuple[str, ...]
    """Process names of its servers, in all packages and forks: Red Hat's PostgreSQL is `postmaster` up to 15."""
    sockets: tuple[str, ...]
    """Usual paths of a server's socket; the first is that of Debian's package, which creates its directory."""
    socket_names: tuple[str, ...]
    """Substrings by which the path of one of its sockets is recognized."""
    files: tuple[str, ...]
    """Its usual configuration files."""
    file: str
    """How to name the configuration file if it is unknown which one is used."""
    socket_lines: tuple[str, ...]
    """Lines of its configuration file, for a socket at `{path}` in `{folder}`."""
    mode_lines: tuple[str, ...]
    """Lines of its configuration file, for a socket with permissions `{mode}`, such as 770."""
    client_lines: tuple[str, ...]
    """Example settings with which clients use the socket."""
    fewer_round_trips: str
    """How clients can save round trips."""
    names_folder: bool = False
    """Whether clients specify its socket by directory and port (the end of the socket's name) instead of by path."""
    asks_for_tls: bool = False
    """Whether a client needs an extra round trip to ask if the server supports TLS."""
    accounts: tuple[str, ...] = ()
    """What to set up before a client switches to the socket: where, and which lines. Empty if it has no accounts."""
    php: tuple[str, str, str] | None = None
    """PDO's driver, and how to make it use the socket: in words, and as a DSN. None if the service has no SQL."""
