"""`none`: one veth cable from host to host and nothing on it. What everything else is held against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from howfar.engine.messages import LinkReady, LinkStats
from howfar.errors import LinkFailed
from howfar.lab.link.backends import BackendLink
from howfar.lab.link.spec import DIRECTIONS, LinkSpec
from howfar.lab.network import Network, cable_directly


class BareLink:
    """See `backends.BackendLink`."""

    ready: LinkReady | None = None
    pid: int | None = None

    def alive(self) -> bool:
        return True

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        why = BareBackend.refuses(spec)
        if why:
            raise LinkFailed(f"a bare cable cannot do that: {why}")

    def stats(self, *, reset: bool = False) -> LinkStats | None:
        return None


class BareBackend:
    NAME = "none"
    ABOUT = "a bare veth cable, no effect at all"
    CHARGES_LONE_PACKETS = False
    QUEUE_LEAST_BYTES = 0
    ARRIVAL: str | None = None

    @staticmethod
    def refuses(spec: LinkSpec) -> str | None:
        if spec.rtt_ns or spec.has_effects or any(spec.mean_rate_bps(name) for name in DIRECTIONS):
            return "a bare cable has no delay, no rate and no effect"
        return None

    @staticmethod
    @contextmanager
    def connect(network: Network, spec: LinkSpec) -> Iterator[BackendLink]:
        with cable_directly(network):
            yield BareLink()
