"""`packet`: the emulator on packet sockets, between two veth cables. Needs no device node and no module but veth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from howfar.lab.link.asked import LinkAsked
from howfar.lab.link.backends import Line
from howfar.lab.link.backends.engine_line import EngineBackend, engine_line
from howfar.lab.network import Network, cable_through_middle


class PacketBackend(EngineBackend):
    NAME = "packet"
    ABOUT = "howfar's emulator on packet sockets and veth; every effect"
    CHARGES_LONE_PACKETS = True
    QUEUE_LEAST_BYTES = 0
    ARRIVAL: str | None = "kernel stamp"

    @staticmethod
    @contextmanager
    def open_line(network: Network, asked: LinkAsked) -> Iterator[Line]:
        with cable_through_middle(network), engine_line(network, asked, "packet") as line:
            yield line
