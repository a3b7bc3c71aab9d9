"""`packet`: the engine's emulator, which carries packets between two veth cables through packet sockets. It needs no device node, and
no kernel module except veth."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from howfar.contract.messages import AskStats, LinkJob, LinkReady, LinkStats, SetLink
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LinkFailed
from howfar.lab.link.backends import BackendLink
from howfar.lab.link.spec import LinkSpec
from howfar.lab.network import CLIENT_LINK, LinkAddresses, Network, Shares, cable_through_middle


class PacketLink:
    """A link through the engine's emulator; implements `backends.BackendLink`."""

    def __init__(self, engine: EngineProcess, ready: LinkReady) -> None:
        self._engine, self._ready = engine, ready
        self._lock = threading.Lock()

    @property
    def ready(self) -> LinkReady:
        return self._ready

    @property
    def pid(self) -> int:
        return self._engine.pid

    def alive(self) -> bool:
        return self._engine.alive()

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        message = SetLink(
            to_server=spec.direction_message("to_server", compensate_ns, elapsed_ns),
            to_client=spec.direction_message("to_client", compensate_ns, elapsed_ns),
        )
        with self._lock:
            self._engine.send(message)
            self._request_stats(reset=False)  # the reply shows that the earlier message has taken effect

    def stats(self, *, reset: bool = False) -> LinkStats:
        with self._lock:
            return self._request_stats(reset=reset)

    def _request_stats(self, *, reset: bool) -> LinkStats:
        self._engine.send(AskStats(reset=reset))
        event = self._engine.read()
        if not isinstance(event, LinkStats):
            raise LinkFailed(f"the link answered {event.event!r} when asked for its counters")
        return event


def pin_threads(pid: int, shares: Shares, ends: LinkAddresses = CLIENT_LINK) -> None:
    """Keep the emulator's thread for each direction on the CPUs of the host that it delivers to.

    Unpinned, a real-time thread stays on its last CPU until another thread occupies that CPU, so the two threads moved with each burst
    of packets. A thread that delivers to another CPU must also interrupt that CPU to wake the receiver. On two CPUs the unloaded RTT
    was 0.201 ms with each thread on its receiver's CPU, 0.24 to 0.25 ms with the two swapped, 0.22 ms with both on one CPU. So
    calibration could measure one of these RTTs, and the following trials another.
    """
    cpus_by_thread = {
        f"{ends.client_middle}-{ends.server_middle}": shares.server,
        f"{ends.server_middle}-{ends.client_middle}": shares.client,
    }
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpus = cpus_by_thread.get((task / "comm").read_text().strip())
        if cpus is not None:
            os.sched_setaffinity(int(task.name), cpus)


@contextmanager
def packet_link(network: Network, spec: LinkSpec) -> Iterator[PacketLink]:
    """Start the emulator in the current network namespace; end it on leaving. Raises LinkFailed, EngineError."""
    rest_spec = spec.without_effects()
    job = LinkJob(
        client_interface=network.ends.client_middle,
        server_interface=network.ends.server_middle,
        to_server=rest_spec.direction_message("to_server"),
        to_client=rest_spec.direction_message("to_client"),
    )
    with EngineProcess(job, Launcher(prefix=("setsid",))) as engine:
        ready = engine.read()
        if not isinstance(ready, LinkReady):
            raise LinkFailed(f"the link answered {ready.event!r} instead of being ready")
        if network.shares is not None:
            with suppress(OSError):  # without pinning the link still works, but its RTT varies more
                pin_threads(engine.pid, network.shares, network.ends)
        yield PacketLink(engine, ready)


class PacketBackend:
    NAME = "packet"
    ABOUT = "howfar's emulator on packet sockets and veth; every effect"
    CHARGES_LONE_PACKETS = True
    MIN_QUEUE_BYTES = 0
    ARRIVAL: str | None = "kernel stamp"

    @staticmethod
    def refusal_reason(spec: LinkSpec) -> str | None:
        return None

    @staticmethod
    @contextmanager
    def connect(network: Network, spec: LinkSpec) -> Iterator[BackendLink]:
        with cable_through_middle(network), packet_link(network, spec) as link:
            yield link
