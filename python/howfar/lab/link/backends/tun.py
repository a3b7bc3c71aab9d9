"""`tun`: the emulator holds the other end of a TUN device on each host. Needs /dev/net/tun; packets are IP, without Ethernet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from howfar.lab.link.asked import LinkAsked
from howfar.lab.link.backends import Line
from howfar.lab.link.backends.engine_line import EngineBackend, engine_line
from howfar.lab.network import Network, adopt_devices


class TunBackend(EngineBackend):
    NAME = "tun"
    ABOUT = "howfar's emulator on TUN devices; every effect"
    CHARGES_LONE_PACKETS = True
    QUEUE_LEAST_BYTES = 0
    ARRIVAL: str | None = "when it was read"

    @staticmethod
    @contextmanager
    def open_line(network: Network, asked: LinkAsked) -> Iterator[Line]:
        with engine_line(network, asked, "tun") as line:
            adopt_devices(network)  # they end with the engine
            yield line
