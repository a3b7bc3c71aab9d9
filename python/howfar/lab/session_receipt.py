"""Whether a session is what its path and its cell require: by the engine's account, and by the server's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howfar.paths import Endpoint
from howfar.plan.sessions import SessionAsked

_SILENT = ("resp2", "resp3", "memcached_text", "memcached_meta")
"""Protocols in which a server tells its client nothing of TLS."""


def session_violations(endpoint: Endpoint, session: Mapping[str, Any], asked: SessionAsked) -> tuple[str, ...]:
    """Where the engine's session differs from what path and cell require. Unknown (None) is accepted only where it cannot be asked."""
    found = []
    family = session.get("address_family")
    wanted = "unix" if endpoint.socket else "inet"
    if family != wanted:
        found.append(f"the session was of address family {family}, the path requires {wanted}")
    if endpoint.socket:
        peer, peer_wanted = session.get("peer_address"), endpoint.socket
        if session.get("peer_pid") != endpoint.peer_pid:
            found.append(f"process {session.get('peer_pid')} answered on the socket, not {endpoint.peer_pid}")
    else:
        peer, peer_wanted = session.get("peer_address"), f"{endpoint.host}:{endpoint.port}"
    if peer != peer_wanted:
        found.append(f"the session's peer was {peer}, the path leads to {peer_wanted}")
    # Of both sides: the server's status, and what the engine itself negotiated.
    sides = [("server", session.get("tls_version")), ("engine", session.get("tls_client_version"))]
    if session.get("protocol_mode") in _SILENT:  # what the server sees is then proven by a session beside it
        del sides[0]
    for side, version in sides:
        if (version or None) != asked.tls_version:
            found.append(
                f"for the {side} the session was {_encrypted(version)}, expected {_encrypted(asked.tls_version)}"
            )
    algorithm = session.get("compression") or None
    if algorithm != asked.algorithm:
        found.append(
            f"the session was compressed by {algorithm or 'nothing'}, expected by {asked.algorithm or 'nothing'}"
        )
    return tuple(found)


def _encrypted(version: str | None) -> str:
    return f"encrypted ({version})" if version else "in plain"


def view_violations(endpoint: Endpoint, view: Mapping[str, Any], asked: SessionAsked) -> tuple[str, ...]:
    """The same from the server's side: a session's row in its process list, its TLS. This session is of a client that cannot
    compress, and must be seen not to: a server that says otherwise is not to be believed on the engine's either."""
    found = []
    host = str(view.get("host", "")).partition(":")[0]
    if host != endpoint.seen_from:
        found.append(f"the server sees its client at {host!r}, the path comes from {endpoint.seen_from!r}")
    version = view.get("ssl_version") or None
    if version != asked.tls_version:
        found.append(f"the server says a session is {_encrypted(version)}, expected {_encrypted(asked.tls_version)}")
    if view.get("compression", "OFF") != "OFF":
        found.append("the server says the session is compressed")
    return tuple(found)


def view_receipt(view: Mapping[str, Any]) -> dict[str, Any]:
    """As receipts keep it. That this session is not compressed is so of every one and says nothing of the load's."""
    kept = {name: value for name, value in view.items() if name != "compression"}
    return {"of": "a session beside the load's, by the same path and encrypted alike", **kept}
