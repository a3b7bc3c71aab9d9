"""Back-ends, which carry packets from one host to the other: each in its own file with one line of registration, the bare cable here.

A back-end gets a network whose hosts are not cabled yet; it cables them and returns a `BackendLink`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from howfar.contract.messages import LinkReady, LinkStats
from howfar.errors import LinkFailed, UsageError
from howfar.lab.link.spec import DIRECTIONS, LinkSpec
from howfar.lab.network import Network, cable_directly

DEFAULT = "packet"
SHAPING = (DEFAULT, "kernel")
"""Back-ends that can limit the rate."""
NAMES = (*SHAPING, "none")
"""Names of all back-ends. Command lines need them without importing the back-ends."""


class BackendLink(Protocol):
    """A back-end's link in use. A value that the back-end does not report is None."""

    @property
    def ready(self) -> LinkReady | None:
        """The emulator's report about itself; None without an emulator."""
        ...

    @property
    def pid(self) -> int | None: ...

    def alive(self) -> bool: ...

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        """Apply `spec`; it is in force on return. Raises LinkFailed, EngineError."""
        ...

    def stats(self, *, reset: bool = False) -> LinkStats | None:
        """Counters since the last reset; None if this back-end has none."""
        ...


class Backend(Protocol):
    """A mechanism that carries packets between the hosts. Each implementation has its own module."""

    NAME: str
    ABOUT: str
    """Description in one line, for `howfar links`."""
    CHARGES_LONE_PACKETS: bool
    """Whether even a single packet on an idle link is delayed by its transmission time."""
    MIN_QUEUE_BYTES: int
    """Length of the shortest possible queue; shorter defaults are raised to it."""
    ARRIVAL: str | None
    """For the receipt: the event from which a packet's lateness is measured; None if lateness is not measured."""

    @staticmethod
    def refusal_reason(spec: LinkSpec) -> str | None:
        """The reason why this back-end cannot provide `spec`; None if no reason is known without trying."""
        ...

    @staticmethod
    def connect(network: Network, spec: LinkSpec) -> AbstractContextManager[BackendLink]:
        """Cable the hosts; remove the cables on leaving. Raises LinkFailed, EngineError."""
        ...


def backends() -> dict[str, Backend]:
    """All back-ends by name."""
    from howfar.lab.link.backends import kernel_qdiscs, packet

    known: tuple[Backend, ...] = (packet.PacketBackend(), kernel_qdiscs.KernelBackend(), BareBackend())
    return {backend.NAME: backend for backend in known}


def find_backend(name: str, spec: LinkSpec) -> Backend:
    """The back-end of that name. Raises UsageError if it does not exist or cannot provide `spec`."""
    known = backends()
    if name not in known:
        raise UsageError(f"no link back-end is called {name!r}", f"Known: {', '.join(known)}.")
    reason = known[name].refusal_reason(spec)
    if reason:
        raise UsageError(f"the link back-end {name} cannot do that: {reason}", f"Use --link-backend {DEFAULT}.")
    return known[name]


class BareLink:
    """A cable without an emulator; implements `BackendLink`."""

    ready: LinkReady | None = None
    pid: int | None = None

    def alive(self) -> bool:
        return True

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        reason = BareBackend.refusal_reason(spec)
        if reason:
            raise LinkFailed(f"a bare cable cannot do that: {reason}")

    def stats(self, *, reset: bool = False) -> LinkStats | None:
        return None


class BareBackend:
    NAME = "none"
    ABOUT = "a bare veth cable, no effect at all"
    CHARGES_LONE_PACKETS = False
    MIN_QUEUE_BYTES = 0
    ARRIVAL: str | None = None

    @staticmethod
    def refusal_reason(spec: LinkSpec) -> str | None:
        if spec.rtt_ns or spec.has_effects or any(spec.mean_rate_bps(name) for name in DIRECTIONS):
            return "a bare cable has no delay, no rate and no effect"
        return None

    @staticmethod
    @contextmanager
    def connect(network: Network, spec: LinkSpec) -> Iterator[BackendLink]:
        with cable_directly(network):
            yield BareLink()
