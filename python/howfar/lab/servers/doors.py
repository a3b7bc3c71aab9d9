"""What a key-value store speaks where it listens: found by speaking to it, plain and encrypted, never read from its settings."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howfar.errors import LabError
from howfar.lab.hosts import Host
from howfar.lab.servers.lines import Lines
from howfar.lab.servers.store_dialect import StoreDialect

_PATIENCE_S = 3.0
"""For an answer on the server's own host; who speaks TLS only may say nothing to plain text."""


@dataclass(frozen=True)
class Door:
    """One place where it listens."""

    at: str
    """A path or an address with its port."""
    plain: bool
    """It answers plain text."""
    tls: str | None
    """It shakes hands with our certificate, and by this version; None: not asked, or it does not."""


def try_door(
    dialect: StoreDialect, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None
) -> Door:
    """From `host`. `encrypted` None: TLS is not tried; a plain Memcached would wait for the end of the handshake's line."""
    at = str(connection.get("socket") or f"{connection['host']}:{connection['port']}")
    plain = _answers(dialect, connection, host, None) is not None
    tls = None if encrypted is None else _answers(dialect, connection, host, encrypted)
    return Door(at, plain, tls)


def _answers(
    dialect: StoreDialect, connection: Mapping[str, Any], host: Host, encrypted: ssl.SSLContext | None
) -> str | None:
    """The version of TLS, `plain` for none; None: no answer."""

    def ask() -> str:
        with Lines(connection, _PATIENCE_S, encrypted) as lines:
            dialect.version(lines)
            return lines.tls[0] or "plain"

    try:
        return host.within(ask)
    except LabError:
        return None


def door_violations(door: Door, encrypted: bool) -> tuple[str, ...]:
    """What the door by which the path leads in is not. `encrypted`: it was to speak TLS and nothing else."""
    if not encrypted:
        return () if door.plain else (f"the server does not answer plain text at {door.at}",)
    found = []
    if door.tls is None:
        found.append(f"the server was to speak TLS at {door.at} and does not")
    if door.plain:
        found.append(f"the server speaks plain text at {door.at}, where it was told to speak TLS only")
    return tuple(found)
