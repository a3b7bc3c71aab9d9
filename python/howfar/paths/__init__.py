"""Paths: the routes by which a client connects to a server. Each has one file and one line in `PATHS`.

Other code uses the properties that a path declares, and its name only for what concerns this path alone.
"""

from __future__ import annotations

from collections.abc import Collection

from howfar.errors import PlanError
from howfar.paths.forwarded_socket import ForwardedSocketPath
from howfar.paths.haproxy import HaproxyPath, SidecarPath
from howfar.paths.nutcracker import NutcrackerPath
from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, PathProcess, find_program
from howfar.paths.pgbouncer import PGBOUNCER_PATHS
from howfar.paths.remote import RemotePath
from howfar.paths.socket import SocketPath
from howfar.paths.ssh import SSH_PATHS
from howfar.paths.stunnel import STUNNEL_PATHS
from howfar.paths.tcp import TcpPath
from howfar.paths.user_proxies import USER_PROXY_PATHS

PATHS: dict[str, Path] = {
    path.name: path
    for path in (
        SocketPath(),
        TcpPath(),
        RemotePath(),
        ForwardedSocketPath(),
        HaproxyPath(),
        SidecarPath(),
        *SSH_PATHS,
        *STUNNEL_PATHS,
        *PGBOUNCER_PATHS,
        NutcrackerPath(),
        *USER_PROXY_PATHS,
    )
}
"""All paths by name, in the order of tables and charts."""


def find_path(name: str) -> Path:
    """The path of this name. Raises PlanError."""
    if name not in PATHS:
        raise PlanError(f"no path is called {name!r}", f"Known: {', '.join(PATHS)}.")
    return PATHS[name]


def path_names() -> tuple[str, ...]:
    """Names of all paths, in the order of tables and charts."""
    return tuple(PATHS)


def reason_not_carried(path: Path, services: Collection[str]) -> str | None:
    """The reason why the path's programs cannot carry these services' protocols; None if they can."""
    unsupported = [service for service in services if path.protocols and service not in path.protocols]
    return (
        f"it carries {' and '.join(path.protocols)} only, and the server speaks {unsupported[0]}"
        if unsupported
        else None
    )


def check_programs(path: Path) -> None:
    """Check that the path's programs are installed. Raises MissingError."""
    for program in path.hops:
        find_program(program)


def crosses_link(name: object) -> bool:
    """Whether bytes cross the link on the path of this name; False for a name that is not registered."""
    path = PATHS.get(str(name))
    return path is not None and path.crosses_link


def is_local(name: object) -> bool:
    """Whether client and server share a machine on the path of this name; False for a name that is not registered."""
    path = PATHS.get(str(name))
    return path is not None and path.machines == 1


def is_direct(name: object, machines: int, *, by_socket: bool) -> bool:
    """Whether the path of this name has no hop, connects `machines` machines, and leads to the server's socket (`by_socket`) or TCP
    port."""
    path = PATHS.get(str(name))
    return path is not None and not path.hops and path.machines == machines and path.by_socket is by_socket


def is_movable(name: object) -> bool:
    """Whether the hop of the path of this name can run on a separate host; False for a name that is not registered."""
    path = PATHS.get(str(name))
    return path is not None and path.movable


def is_modelled(name: object) -> bool:
    """Whether the queueing model describes the path of this name; False for a name that is not registered."""
    path = PATHS.get(str(name))
    return path is not None and path.modelled


__all__ = [
    "PATHS",
    "ClientEndpoint",
    "Hop",
    "Path",
    "PathContext",
    "PathProcess",
    "check_programs",
    "crosses_link",
    "find_path",
    "is_direct",
    "is_local",
    "is_modelled",
    "is_movable",
    "path_names",
    "reason_not_carried",
]
