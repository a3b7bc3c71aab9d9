"""What our link is compared with: one file a peer, and one line here. A peer works on a bare cable between two hosts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from howfar.bench.links.figures import LinkPoint
from howfar.bench.links.peers.kernel import Tbf, Veth
from howfar.bench.links.peers.toxiproxy import Toxiproxy
from howfar.bench.links.probes import BareCable, ProbedLink
from howfar.errors import MissingError

Shape = Callable[[LinkPoint], tuple[ProbedLink, str]]
"""Shape the link. The note says what the peer does not support; empty: nothing."""


class PeerKind(Protocol):
    NAME: str
    DELAYS: bool
    """Whether it can delay."""

    def find(self) -> str:
        """Its name and version. Raises MissingError with the reason why it is not available."""

    def open(self, cable: BareCable) -> AbstractContextManager[Shape]:
        """Start it. Raises LabError; MissingError when it cannot work on this machine."""


PEERS: Final[dict[str, Callable[[], PeerKind]]] = {
    "toxiproxy": Toxiproxy,
    "tbf": Tbf,
    "veth": Veth,
}


@dataclass(frozen=True)
class Found:
    """A requested peer. Without a `kind` it is not available, and `skipped` says why."""

    name: str
    kind: PeerKind | None = None
    version: str | None = None
    skipped: str | None = None


def find_peer(name: str) -> Found:
    """A peer that is not available is no error."""
    kind = PEERS[name]()
    try:
        return Found(name, kind, kind.find())
    except MissingError as error:
        return Found(name, skipped=f"{error.message} {error.advice}".strip())
