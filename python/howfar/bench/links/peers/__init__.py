"""What our link can be compared with: one file a peer, one line here. A peer works on a bare cable between two hosts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from howfar.bench.links.figures import LinkPoint
from howfar.bench.links.peers.kernel import Tbf, Veth
from howfar.bench.links.peers.mahimahi import Mahimahi
from howfar.bench.links.peers.toxiproxy import Toxiproxy
from howfar.bench.links.probes import BareCable, ProbedLink
from howfar.errors import MissingError

Shape = Callable[[LinkPoint], tuple[ProbedLink, str]]
"""Make the road what is asked. The note says what could not be asked for; empty: nothing."""


class PeerKind(Protocol):
    NAME: str
    DELAYS: bool
    """Can it be asked for an RTT at all?"""

    def find(self) -> str:
        """What it is, with its version. Raises MissingError with the reason why it is not here."""

    def open(self, cable: BareCable) -> AbstractContextManager[Shape]:
        """Start it. Raises LabError; MissingError when this machine does not let it work after all."""


PEERS: Final[dict[str, Callable[[], PeerKind]]] = {
    "toxiproxy": Toxiproxy,
    "mahimahi": Mahimahi,
    "tbf": Tbf,
    "veth": Veth,
}


@dataclass(frozen=True)
class Found:
    """A peer that was asked for. Without a `kind` it is not here, and `skipped` says why."""

    name: str
    kind: PeerKind | None = None
    version: str | None = None
    skipped: str | None = None


def find_peer(name: str) -> Found:
    """Look whether it is here; a peer that is not is no error."""
    kind = PEERS[name]()
    try:
        return Found(name, kind, kind.find())
    except MissingError as error:
        return Found(name, skipped=f"{error.message} {error.advice}".strip())
