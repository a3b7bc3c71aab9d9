"""What a stage's path leads to: one server alone, or a primary with its replicas. One interface, so that nobody else needs to know.

`alone` is here; pairs are in `replicated.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from howfar.engine.messages import Observed
from howfar.lab.replication import Pair
from howfar.lab.servers import CertificatePaths, Server, Store
from howfar.lab.stage import LoadFacts, Obtained, WindowWatch
from howfar.paths import Path as NetworkPath
from howfar.plan.sessions import SessionAsked


class Serving(Protocol):
    """For one trial."""

    @property
    def running(self) -> Server:
        """Whom the load speaks with."""
        ...

    @property
    def password(self) -> str: ...
    @property
    def certificates(self) -> CertificatePaths | None:
        """None: it offers no TLS."""
        ...

    @property
    def pair(self) -> Pair | None:
        """None: nobody replicates."""
        ...

    def observed(self) -> tuple[Observed, ...]:
        """Processes beside the server itself that its answers need."""
        ...

    def begin(self) -> None:
        """Right before the load. Raises LabError."""
        ...

    def watch(self, window: WindowWatch) -> WindowWatch:
        """The measured window begins, and `window` looks at it already."""
        ...

    def begun(self) -> Obtained:
        """The part of `obtained` that needs no living server: links at rest."""
        ...

    def obtained(self, load: LoadFacts) -> Obtained:
        """After the load. Raises LabError when a part has died."""
        ...

    def others_bytes(self) -> dict[str, int]:
        """Of the server's counters of bytes since `begin`, what was not exchanged with the load; asked after `obtained`."""
        ...


@dataclass
class Alone:
    """See `Serving`."""

    running: Server
    password: str
    certificates: CertificatePaths | None
    pair: None = None

    def observed(self) -> tuple[Observed, ...]:
        return ()

    def begin(self) -> None:
        """There is nothing to prove of it but itself."""

    def watch(self, window: WindowWatch) -> WindowWatch:
        return window

    def begun(self) -> Obtained:
        return Obtained({})

    def obtained(self, load: LoadFacts) -> Obtained:
        return Obtained({})

    def others_bytes(self) -> dict[str, int]:
        return {}


@contextmanager
def alone(
    store: Store,
    path: NetworkPath,
    certificates: CertificatePaths | None,
    asked: SessionAsked,
    prepare: tuple[str, ...],
) -> Iterator[Alone]:
    """A freshly started server. Raises ServerCrashed, LabError."""
    running = store.start(
        networking=path.networking,
        tls=certificates,
        content=asked.content,
        reached_by="socket" if path.by_socket else "tcp",
    )
    try:
        for statement in prepare:
            running.query(statement)
        yield Alone(running, store.password, certificates)
    finally:
        running.stop()
