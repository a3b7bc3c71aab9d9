"""The kernel alone: a bare cable (the ceiling of everything here), and its token bucket on both ends of one (a rate, no delay)."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from howfar.bench.link_cable import Cable
from howfar.bench.link_figures import Asked
from howfar.bench.link_meter import Road
from howfar.errors import LabError, MissingError
from howfar.lab.hosts import Host

_WIRE_OVER_SEEN: Final = 1514 / 1538
"""A full frame as the qdisc counts it, over the same on the wire. Its own `overhead` is charged once for a super-packet of up to 44
frames, so the rate is scaled instead."""
_BURST_BYTES: Final = 131_072
"""Twice a super-packet: with less, tbf cuts them up."""
_LATENCY: Final = "10ms"
"""How long a packet may wait; the default queue of our link at a short RTT."""
_PROBE_BPS: Final = 10**9


def _kernel() -> str:
    return f"{os.uname().sysname} {platform.release()}"


class Veth:
    NAME = "veth"
    DELAYS = False

    def find(self) -> str:
        return f"veth of {_kernel()}"

    @contextmanager
    def open(self, cable: Cable) -> Iterator[Callable[[Asked], tuple[Road, str]]]:
        yield lambda asked: (cable.road(), "a bare cable: asked for neither delay nor rate")


class Tbf:
    NAME = "tbf"
    DELAYS = False

    def find(self) -> str:
        return f"tbf of {_kernel()}"

    @contextmanager
    def open(self, cable: Cable) -> Iterator[Callable[[Asked], tuple[Road, str]]]:
        """Whether this kernel has it is found by adding one. Raises MissingError."""
        ends = ((cable.client_host, "c0"), (cable.server_host, "s0"))

        def shape(asked: Asked) -> tuple[Road, str]:
            for host, device in ends:
                _tc(host, tbf_words(device, asked.rate_bps))
            return cable.road(), "asked for the rate only: it makes no delay"

        try:
            _tc(cable.client_host, tbf_words("c0", _PROBE_BPS))
        except LabError as error:
            raise MissingError(error.message, "This kernel may lack sch_tbf.") from error
        yield shape


def tbf_words(device: str, rate_bps: int | None) -> tuple[str, ...]:
    """What tc is told for a rate on the wire; without a rate: no qdisc."""
    if rate_bps is None:
        return ("qdisc", "replace", "dev", device, "root", "noqueue")
    rate = round(rate_bps * _WIRE_OVER_SEEN)
    words = ("qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{rate}bit")
    return (*words, "burst", f"{_BURST_BYTES}", "latency", _LATENCY)


def _tc(host: Host, words: tuple[str, ...]) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["tc", *words], capture_output=True, text=True)

    try:
        tried = host.within(run)
    except FileNotFoundError as error:
        raise MissingError("the program tc was not found", "Install iproute2.") from error
    if tried.returncode != 0:
        raise LabError(f"`tc {' '.join(words)}` on host {host.name} failed: {tried.stderr.strip()}")
