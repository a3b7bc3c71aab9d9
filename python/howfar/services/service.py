"""The properties of a service: its name, its usual programs, paths and files, and the way in which clients name its socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServiceName = Literal["mysql", "postgresql", "redis", "memcached"]
"""Services that an application queries, by protocol."""
SqlProtocol = Literal["mysql", "postgresql"]
"""The protocols that take SQL statements."""


@dataclass(frozen=True)
class KnownService:
    """A service that applications query."""

    name: ServiceName
    label: str
    """The name in sentences."""
    kinds: tuple[str, ...]
    """Kinds of server that provide the service."""
    port: int
    programs: tuple[str, ...]
    """Process names of its servers, in all packages and forks: Red Hat's PostgreSQL is `postmaster` up to 15."""
    sockets: tuple[str, ...]
    """Usual paths of a server's socket, first that of Debian's package, which creates the directory."""
    socket_names: tuple[str, ...]
    """Substrings that identify a path as that of a server's socket."""
    files: tuple[str, ...]
    """Usual paths of a server's configuration file."""
    file_label: str
    """Name of the configuration file in sentences, if its path is unknown."""
    socket_lines: tuple[str, ...]
    """Lines of the configuration file for a socket at `{path}` in `{folder}`."""
    mode_lines: tuple[str, ...]
    """Lines of the configuration file for a socket with permissions `{mode}`, such as 770."""
    client_lines: tuple[str, ...]
    """Examples of client settings that use the socket."""
    fewer_round_trips: str
    """Ways in which clients can save round trips."""
    names_socket_directory: bool = False
    """Whether clients specify the socket by its directory and port (the end of its file name) instead of its path."""
    asks_for_tls: bool = False
    """Whether a client spends an extra round trip to ask whether the server supports TLS."""
    account_lines: tuple[str, ...] = ()
    """Instructions for the account before a client switches to the socket: the place, then lines. Empty without accounts."""
    php: tuple[str, str, str] | None = None
    """PDO's driver, and the way to make it use the socket, in words and as a DSN; None for a service without SQL."""
