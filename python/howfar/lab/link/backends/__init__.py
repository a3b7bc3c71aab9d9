"""How packets get from one host to the other: one file a back-end, one line of registration.

A back-end is opened for a network whose hosts are not cabled yet; it cables them, and what it gives back is a `BackendLink`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from howfar.engine.messages import LinkReady, LinkStats
from howfar.errors import UsageError
from howfar.lab.link.spec import LinkSpec
from howfar.lab.network import Network

DEFAULT = "packet"
SHAPING = (DEFAULT, "kernel")
"""Those that can be given a rate."""
NAMES = (*SHAPING, "none")
"""All, without loading them: command lines name them."""


class BackendLink(Protocol):
    """A line in use. What it cannot tell is None."""

    @property
    def ready(self) -> LinkReady | None:
        """What the emulator says of itself; None: there is none."""
        ...

    @property
    def pid(self) -> int | None: ...

    def alive(self) -> bool: ...

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        """In force when it returns. Raises LinkFailed, EngineError."""
        ...

    def stats(self, *, reset: bool = False) -> LinkStats | None:
        """Counters since the last reset; None: this back-end has none."""
        ...


class Backend(Protocol):
    """Modules of this package are its implementations."""

    NAME: str
    ABOUT: str
    """One line, for `howfar links`."""
    CHARGES_LONE_PACKETS: bool
    """A packet that comes alone takes its time at the rate, too."""
    QUEUE_LEAST_BYTES: int
    """No queue is shorter, also where none was requested."""
    ARRIVAL: str | None
    """What lateness is counted from, for the receipt; None: lateness is not counted."""

    @staticmethod
    def refuses(spec: LinkSpec) -> str | None:
        """Why it cannot be what is requested, known before trying; None: it can."""
        ...

    @staticmethod
    def connect(network: Network, spec: LinkSpec) -> AbstractContextManager[BackendLink]:
        """Cable the hosts. Undone on leaving. Raises LinkFailed, EngineError."""
        ...


def backends() -> dict[str, Backend]:
    from howfar.lab.link.backends import bare, kernel_qdiscs, packet

    listed: tuple[Callable[[], Backend], ...] = (
        packet.PacketBackend,
        kernel_qdiscs.KernelBackend,
        bare.BareBackend,
    )
    return {backend.NAME: backend for backend in (make() for make in listed)}


def find_backend(name: str, spec: LinkSpec) -> Backend:
    """Raises UsageError when there is none of that name, or it cannot be what is requested."""
    known = backends()
    if name not in known:
        raise UsageError(f"no link back-end is called {name!r}", f"Known: {', '.join(known)}.")
    why = known[name].refuses(spec)
    if why:
        raise UsageError(f"the link back-end {name} cannot do that: {why}", f"Use --link-backend {DEFAULT}.")
    return known[name]
