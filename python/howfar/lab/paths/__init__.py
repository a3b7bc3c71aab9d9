"""How a client reaches a server: one file a path, registered in `PATHS`.

A path is opened for one running server. The `Way` that comes back knows what a session on it must look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from howfar.engine.messages import TcpTarget, UnixTarget
from howfar.engine.process import Launcher
from howfar.errors import PlanError
from howfar.lab.hosts import Companion
from howfar.lab.servers import Server
from howfar.plan.sessions import SessionAsked

_UNTOLD = ("resp2", "resp3", "memcached_text", "memcached_meta")
"""Protocols in which a server tells its client nothing of TLS."""


@dataclass(frozen=True)
class Way:
    """An open path."""

    target: UnixTarget | TcpTarget
    connection: dict[str, Any]
    """The same for a Python client: `socket`, or `host` and `port`."""
    forwarders: tuple[Companion, ...]
    peer_pid: int | None
    """Who answers at the other end of a Unix socket; None for TCP, which cannot tell."""
    seen_from: str
    """The client's address as the server must see it, without port."""
    forwarder_facts: dict[str, Any]

    @property
    def tcp_port(self) -> int | None:
        """The server's end of its TCP connections; None: it has none."""
        found = self.target.port if isinstance(self.target, TcpTarget) else self.forwarder_facts.get("port")
        return None if found is None else int(found)


@dataclass(frozen=True)
class Terrain:
    """What a path is built on."""

    work: Path
    client: Launcher
    """Background processes on the client host."""
    server: Launcher
    running: Server
    port: int
    """Where a forwarder on the server's host listens for that on the client's."""


class PathKind(Protocol):
    """A path before it is open. Modules of this package are its implementations."""

    NAME: str
    LOCAL: bool
    """The client runs on the server's host."""
    NETWORKING: bool
    """The server listens on TCP."""
    SOCKET: bool
    """It leads to the server's Unix socket."""
    LINK: bool
    """Bytes cross the link; needs a sandbox."""

    @staticmethod
    def open_way(terrain: Terrain, ledger: ExitStack) -> Way:
        """Whatever is started is entered in the ledger. Raises LabError."""
        ...


def session_violations(way: Way, session: Mapping[str, Any], asked: SessionAsked) -> tuple[str, ...]:
    """What the engine's session is not, though path or cell demand it. Unknown (None) is only accepted where it cannot be asked."""
    found = []
    family = session.get("address_family")
    wanted = "unix" if isinstance(way.target, UnixTarget) else "inet"
    if family != wanted:
        found.append(f"the session was of address family {family}, the path wants {wanted}")
    if isinstance(way.target, UnixTarget):
        peer, peer_wanted = session.get("peer_address"), way.target.path
        if session.get("peer_pid") != way.peer_pid:
            found.append(f"process {session.get('peer_pid')} answered on the socket, not {way.peer_pid}")
    else:
        peer, peer_wanted = session.get("peer_address"), f"{way.target.host}:{way.target.port}"
    if peer != peer_wanted:
        found.append(f"the session's peer was {peer}, the path leads to {peer_wanted}")
    # Of both sides: the server's status, and what the engine itself negotiated.
    sides = [("server", session.get("tls_version")), ("engine", session.get("tls_client_version"))]
    if session.get("protocol_mode") in _UNTOLD:  # what the server sees is then proven by a session beside it
        del sides[0]
    for side, version in sides:
        if (version or None) != asked.tls_version:
            found.append(
                f"for the {side} the session was {_encrypted(version)}, it was to be {_encrypted(asked.tls_version)}"
            )
    algorithm = session.get("compression") or None
    if algorithm != asked.algorithm:
        found.append(
            f"the session was compressed by {algorithm or 'nothing'}, it was to be by {asked.algorithm or 'nothing'}"
        )
    return tuple(found)


def _encrypted(version: str | None) -> str:
    return f"encrypted ({version})" if version else "in plain"


def view_violations(way: Way, view: Mapping[str, Any], asked: SessionAsked) -> tuple[str, ...]:
    """The same from the server's side: a session's row in its process list, its TLS. This session is of a client that cannot
    compress, and must be seen not to: a server that says otherwise is not to be believed on the engine's either."""
    found = []
    host = str(view.get("host", "")).partition(":")[0]
    if host != way.seen_from:
        found.append(f"the server sees its client at {host!r}, the path comes from {way.seen_from!r}")
    version = view.get("ssl_version") or None
    if version != asked.tls_version:
        found.append(
            f"the server says a session is {_encrypted(version)}, it was to be {_encrypted(asked.tls_version)}"
        )
    if view.get("compression", "OFF") != "OFF":
        found.append("the server says the session is compressed")
    return tuple(found)


def view_receipt(view: Mapping[str, Any]) -> dict[str, Any]:
    """As receipts keep it. That this session is not compressed is so of every one and says nothing of the load's."""
    kept = {name: value for name, value in view.items() if name != "compression"}
    return {"of": "a session beside the load's, by the same path and encrypted alike", **kept}


def find_path(name: str) -> PathKind:
    """Raises PlanError."""
    paths = _paths()
    if name not in paths:
        raise PlanError(f"no path is called {name!r}", f"Known: {', '.join(paths)}.")
    return paths[name]


def path_names() -> tuple[str, ...]:
    return tuple(_paths())


def _paths() -> dict[str, PathKind]:
    from howfar.lab.paths import forwarded_socket, remote, tcp, unix_socket

    listed: tuple[Callable[[], PathKind], ...] = (
        unix_socket.UnixSocketPath,
        tcp.LoopbackPath,
        remote.RemotePath,
        forwarded_socket.ForwardedSocketPath,
    )
    return {kind.NAME: kind for kind in (make() for make in listed)}
