"""Peers of our link, on a bare cable between two hosts: toxiproxy, and two of the kernel's own: the cable itself (the ceiling) and a
token bucket (a rate, no delay). A peer is a class and a line in PEERS."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from howfar.bench.links.figures import LinkPoint
from howfar.bench.links.peers.toxiproxy import Toxiproxy
from howfar.bench.links.probes import BareCable, ProbedLink
from howfar.bench.meter import kernel
from howfar.errors import LabError, MissingError
from howfar.lab.link.backends.kernel_qdiscs import BURST_BYTES, tbf_rate
from howfar.lab.link.spec import MTU
from howfar.lab.network import Host

Shape = Callable[[LinkPoint], tuple[ProbedLink, str]]
"""Shapes the link. The returned note names what the peer does not support; empty if it supports all."""


class PeerKind(Protocol):
    NAME: str
    DELAYS: bool
    """Whether the peer can delay."""

    def find(self) -> str:
        """The peer's name and version. Raises MissingError with the reason why it is not available."""

    def open(self, cable: BareCable) -> AbstractContextManager[Shape]:
        """Start the peer. Raises LabError; MissingError when it cannot work on this machine."""


_LATENCY: Final = "10ms"
"""Maximum wait in the queue; our link's default at a short RTT."""
_PROBE_BPS: Final = 10**9


class Veth:
    NAME = "veth"
    DELAYS = False

    def find(self) -> str:
        return f"veth of {kernel()}"

    @contextmanager
    def open(self, cable: BareCable) -> Iterator[Shape]:
        yield lambda point: (cable.probed_link(), "a bare cable: neither delay nor rate")


class Tbf:
    NAME = "tbf"
    DELAYS = False

    def find(self) -> str:
        return f"tbf of {kernel()}"

    @contextmanager
    def open(self, cable: BareCable) -> Iterator[Shape]:
        """Add a token bucket once, to find out whether this kernel supports it. Raises MissingError."""
        devices = ((cable.client_host, "c0"), (cable.server_host, "s0"))

        def shape(point: LinkPoint) -> tuple[ProbedLink, str]:
            for host, device in devices:
                _tc(host, tbf_arguments(device, point.rate_bps))
            return cable.probed_link(), "rate only: it has no delay"

        try:
            _tc(cable.client_host, tbf_arguments("c0", _PROBE_BPS))
        except LabError as error:
            raise MissingError(error.message, "This kernel may lack sch_tbf.") from error
        yield shape


def tbf_arguments(device: str, rate_bps: int | None) -> tuple[str, ...]:
    """tc's arguments for a rate on the wire; without a rate: no qdisc."""
    if rate_bps is None:
        return ("qdisc", "replace", "dev", device, "root", "noqueue")
    rate = tbf_rate(rate_bps, MTU)
    arguments = ("qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{rate}bit")
    return (*arguments, "burst", f"{BURST_BYTES}", "latency", _LATENCY)


def _tc(host: Host, arguments: tuple[str, ...]) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["tc", *arguments], capture_output=True, text=True)

    try:
        completed = host.run(run)
    except FileNotFoundError as error:
        raise MissingError("the program tc was not found", "Install iproute2.") from error
    if completed.returncode != 0:
        raise LabError(f"`tc {' '.join(arguments)}` on host {host.name} failed: {completed.stderr.strip()}")


PEERS: Final[dict[str, Callable[[], PeerKind]]] = {"toxiproxy": Toxiproxy, "tbf": Tbf, "veth": Veth}


@dataclass(frozen=True)
class FoundPeer:
    """A requested peer. Without a `kind` it is not available, and `skipped` says why."""

    name: str
    kind: PeerKind | None = None
    version: str | None = None
    skipped: str | None = None


def find_peer(name: str) -> FoundPeer:
    """Find the peer of this name; one that is not available is no error."""
    kind = PEERS[name]()
    try:
        return FoundPeer(name, kind, kind.find())
    except MissingError as error:
        return FoundPeer(name, skipped=f"{error.message} {error.advice}".strip())
