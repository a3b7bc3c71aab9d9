"""Peers that the kernel has: nothing on the bare cable (the ceiling), and its token bucket (a rate, no delay)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from howfar.bench.links.figures import LinkPoint
from howfar.bench.links.probes import BareCable, ProbedLink
from howfar.bench.meter import kernel
from howfar.errors import LabError, MissingError
from howfar.lab.link.backends.kernel_qdiscs import BURST_BYTES, tbf_rate
from howfar.lab.link.spec import MTU
from howfar.lab.network import Host

_LATENCY: Final = "10ms"
"""The longest wait in the queue; our link's default at a short RTT."""
_PROBE_BPS: Final = 10**9


class Veth:
    NAME = "veth"
    DELAYS = False

    def find(self) -> str:
        return f"veth of {kernel()}"

    @contextmanager
    def open(self, cable: BareCable) -> Iterator[Callable[[LinkPoint], tuple[ProbedLink, str]]]:
        yield lambda point: (cable.probed(), "a bare cable: neither delay nor rate")


class Tbf:
    NAME = "tbf"
    DELAYS = False

    def find(self) -> str:
        return f"tbf of {kernel()}"

    @contextmanager
    def open(self, cable: BareCable) -> Iterator[Callable[[LinkPoint], tuple[ProbedLink, str]]]:
        """Adds one to find out whether this kernel has it. Raises MissingError."""
        ends = ((cable.client_host, "c0"), (cable.server_host, "s0"))

        def shape(point: LinkPoint) -> tuple[ProbedLink, str]:
            for host, device in ends:
                _tc(host, tbf_arguments(device, point.rate_bps))
            return cable.probed(), "rate only: it has no delay"

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
        tried = host.within(run)
    except FileNotFoundError as error:
        raise MissingError("the program tc was not found", "Install iproute2.") from error
    if tried.returncode != 0:
        raise LabError(f"`tc {' '.join(arguments)}` on host {host.name} failed: {tried.stderr.strip()}")
