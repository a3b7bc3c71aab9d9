"""Looks at hosts, link and server around the measured window, from a thread of its own, and makes a `Window` of what it saw.

It reads open files four times a second and leaves all reckoning for afterwards: looking must not cost what is measured. What cannot be
looked at is left out; a watch never makes a trial fail. Not here: the engine's view of its own connections, and whether a trial
counts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from howfar.errors import HowfarError
from howfar.lab.link import Link
from howfar.lab.network import Host
from howfar.lab.servers import GAUGES
from howfar.lab.window_cpus import ThreadClocks, busy_shares
from howfar.lab.window_network import HostFiles, Kind, Look, ProcFile, samples
from howfar.lab.window_tcp import Diag, parse, record, share_to_server
from howfar.store.records import TcpRecord, Window

_EVERY_S = 0.25
_EARLY_NS = 20_000_000
_EARLY_SHARE = 0.01
"""The last look comes so long, or this share of the window, before its end, whichever is less: when the engine has told its result it
closes its connections, and what the kernel knew of them is gone."""
_TICKS = os.sysconf("SC_CLK_TCK")
SIDES: tuple[Literal["client", "server"], ...] = ("client", "server")
OWN = {"Questions": 1, "Threads_running": 1}
"""What the look at the server itself adds to its counters."""


@dataclass(frozen=True)
class Scene:
    """Where to look. `port`: the main server's end of the load's TCP connections; None: they are not TCP. Those with servers beside
    it are not looked at one by one; their bytes are among the interface's."""

    client: Host
    server: Host
    port: int | None
    link: Link | None
    snapshot: Callable[[], Mapping[str, int]]
    """The server's counters. Raises LabError."""

    @property
    def interface(self) -> str:
        if self.link is not None:
            return "s0"
        return "" if self.port is None else "lo"

    @property
    def kind(self) -> Kind:
        return "loopback" if self.link is None else "ethernet"

    def host(self, side: Literal["client", "server"]) -> Host:
        return self.client if side == "client" else self.server


@dataclass
class _Seen:
    """As it was read."""

    began_ns: int = 0
    ended_ns: int = 0
    looks: list[Look] = field(default_factory=list)
    stat: list[bytes] = field(default_factory=list)
    tcp: dict[str, list[tuple[bytes, ...]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    server: list[Mapping[str, int]] = field(default_factory=list)
    timeouts: list[int | None] = field(default_factory=list)
    cost_ns: int = 0
    """CPU time of the looks, known at their end."""


class WindowWatch:
    """See `stage.WindowWatch`. It begins when it is made."""

    def __init__(self, scene: Scene, length_ns: int) -> None:
        self._scene = scene
        self._last_ns = time.monotonic_ns() + length_ns - min(_EARLY_NS, int(length_ns * _EARLY_SHARE))
        self._enough = threading.Event()
        self._seen = _Seen()
        self._clocks: ThreadClocks | None = None
        self._thread = threading.Thread(target=self._watch, name="window", daemon=True)
        self._thread.start()

    def finish(self) -> Window | None:
        """End it now, if it has not by itself. None: it saw no two moments."""
        self._enough.set()
        self._thread.join()
        return _window(self._scene, self._seen, {} if self._clocks is None else self._clocks.taken_ns())

    def _watch(self) -> None:
        # Whatever is watched may die meanwhile. Who measures says so; a watch that broke off has seen less.
        with suppress(HowfarError, OSError, ValueError), ExitStack() as ledger:
            eyes = _Eyes(self._scene, ledger)
            self._clocks = eyes.clocks
            self._seen.began_ns = time.monotonic_ns()
            eyes.look_closely(self._seen)
            while (left_ns := self._last_ns - time.monotonic_ns()) > 0:
                if self._enough.wait(min(left_ns / 1e9, _EVERY_S)):
                    break
                if self._last_ns > time.monotonic_ns():
                    eyes.look(self._seen)
            self._seen.ended_ns = time.monotonic_ns()
            eyes.look_closely(self._seen)
        self._seen.cost_ns = time.thread_time_ns()


class _Eyes:
    """All that is open for looking. Raises OSError."""

    def __init__(self, scene: Scene, ledger: ExitStack) -> None:
        self._scene = scene
        self._stat = ProcFile(Path("/proc/stat"))
        ledger.callback(self._stat.close)
        self.clocks = ThreadClocks(None if scene.link is None else scene.link.pid)
        ledger.callback(self.clocks.close)
        self._files: HostFiles | None = None
        self._diags: dict[str, Diag] = {}
        if scene.port is None:
            return
        self._files = HostFiles.open(scene.server, scene.client)
        ledger.callback(self._files.close)
        for side in SIDES:
            with suppress(OSError):  # a kernel without sock_diag
                self._diags[side] = Diag(scene.host(side), scene.port, side)
                ledger.callback(self._diags[side].close)

    def look(self, seen: _Seen) -> None:
        """What is looked at several times."""
        at_ns = time.monotonic_ns()
        if self._files is not None:
            seen.looks.append(self._files.look(at_ns, self._queues()))
        self.clocks.look()

    def look_closely(self, seen: _Seen) -> None:
        """What is looked at twice, always in the same order; the server last, which may take its time."""
        for side, diag in list(self._diags.items()):
            try:
                seen.tcp[side].append(diag.ask())
            except OSError:
                del self._diags[side]
        seen.stat.append(self._stat.read())
        seen.timeouts.append(None if self._files is None else self._files.timeouts())
        self.look(seen)
        seen.server.append(self._scene.snapshot())

    def _queues(self) -> tuple[int | None, int | None] | None:
        stats = None if self._scene.link is None else self._scene.link.counters()
        return None if stats is None else (stats.to_server.queue_bytes_lately, stats.to_client.queue_bytes_lately)


def _window(scene: Scene, seen: _Seen, link_cpu_ns: Mapping[int, int]) -> Window | None:
    length_ns = seen.ended_ns - seen.began_ns
    if length_ns <= 0 or len(seen.stat) < 2:
        return None
    tcp, share = _connections(seen)
    return Window(
        length_ns=length_ns,
        interface=scene.interface,
        network=samples(seen.looks, scene.interface, scene.kind, share) if len(seen.looks) > 1 else (),
        tcp=tcp,
        server=server_growth(*seen.server) if len(seen.server) == 2 else {},
        cpus_busy=busy_shares(seen.stat[0], seen.stat[-1], length_ns / 1e9, _TICKS),
        link_cpu_ns=dict(link_cpu_ns),
        looks_cpu_ns=seen.cost_ns,
        timeouts=_grown(seen.timeouts),
    )


def _grown(told: Sequence[int | None]) -> int | None:
    first, last = (told[0], told[-1]) if len(told) > 1 else (None, None)
    return None if first is None or last is None else last - first


def _connections(seen: _Seen) -> tuple[tuple[TcpRecord, ...], float | None]:
    """Of each host; and which share of the bytes went to the server."""
    records, share = [], None
    for side in SIDES:
        if len(seen.tcp[side]) != 2:
            continue
        before, after = (parse(answer) for answer in seen.tcp[side])
        found = record(side, before, after)
        if found is not None:
            records.append(found)
        if side == "server":
            # On a busy machine the last look can come when the load has closed its connections: they went alike before the first one.
            share = share_to_server(before, after)
            share = share_to_server({}, before) if share is None else share
    return tuple(records), share


def server_growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How much each counter grew, the look's own part taken off; of a gauge, what it said at the end."""
    return {
        name: max(value - (0 if name in GAUGES else before[name]) - OWN.get(name, 0), 0)
        for name, value in after.items()
        if name in GAUGES or name in before
    }
