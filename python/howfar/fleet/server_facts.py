"""Facts about a server on the user's hosts that are fixed when its store is created there, or when the server starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from howfar.contract.environment import DataFacts
from howfar.lab.servers import SessionProbe


@dataclass(frozen=True)
class StoreFacts:
    """A server program on a host, its data, and the account of the load."""

    kind: str
    version: str
    user: str
    password: str = field(repr=False)
    database: str
    data: DataFacts
    descriptors: int
    """Limit of open files."""


@dataclass(frozen=True)
class RunningFacts:
    """A server that runs on a host."""

    kind: str
    version: str
    pid: int
    port: int | None
    socket: Path
    session_probe: SessionProbe
