"""Time the user's application behind a tap, in blocks with every added delay once in random order."""

from __future__ import annotations

import http.client
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from howfar.engine.messages import TcpListen, TcpTarget, UnixTarget
from howfar.errors import LabError, UsageError
from howfar.lab.idle import cannot_poll, polling
from howfar.recording.slope import Costs, IdleCpus, Observation
from howfar.recording.tap import Application, Tap, Target, insertion, listening

LONGEST_S = 120.0
"""Longest time for one page, or one run of the command."""
_READY_S = 30.0
_SETTLE_S = 5.0
_PINGS = 300
_LEAST_PINGS = 10
_PINGS_NS = 50_000_000
_ROUNDS = 5
_SEED = 20_260


@dataclass(frozen=True)
class Requested:
    """What to time, and its server."""

    server: Target
    command: tuple[str, ...] = ()
    url: str | None = None
    """URL requested for each page; with it, the command is a web server that is started once."""
    listen: Target | None = None
    """Address to which the application connects by itself, instead of being sent to the tap."""
    delays_ns: tuple[int, ...] = (0, 1_000_000, 2_000_000, 5_000_000)
    blocks: int = 8
    budget_s: float = 60.0
    least_blocks: int = 4


def observe(requested: Requested, say: Callable[[str], None]) -> tuple[list[Observation], Costs]:
    """Run the blocks; returns the observations and the costs. Raises UsageError, LabError, EngineError."""
    with ExitStack() as stack:
        if can_poll := cannot_poll() is None:
            stack.enter_context(polling())
        folder = Path(_folder(stack))
        folder.chmod(0o711)
        tap = stack.enter_context(Tap(requested.server, _listen(requested, folder)))
        timers = _timers(requested, tap, stack)
        say(f"one {'page' if requested.url else 'run'} to warm up")
        _first(requested, tap, timers[0])
        echo = Echo(stack, isinstance(requested.server, UnixTarget))
        observations = list(_blocks(requested, tap, echo, timers, say))
        costs = echo.costs("polling" if can_poll else "as-found")
    return observations, costs


def _folder(stack: ExitStack) -> str:
    """A folder for sockets. A process alongside removes it if this program is killed."""
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="howfar-", ignore_cleanup_errors=True))


def _listen(requested: Requested, folder: Path) -> UnixTarget | TcpListen:
    """Where the application connects by itself, else where it is sent."""
    if isinstance(requested.listen, UnixTarget):
        return requested.listen
    if isinstance(requested.listen, TcpTarget):
        return TcpListen(host=requested.listen.host, port=requested.listen.port)
    return listening(requested.server, folder)


Timer = Callable[[], float]
"""Times one page or run; seconds."""


def _timers(requested: Requested, tap: Tap, stack: ExitStack) -> tuple[Timer, Timer | None]:
    """Timers through the tap and, if a command can be started both ways, without it."""
    if requested.listen is not None and requested.url is None:
        raise UsageError("--listen needs --url: nothing says when to measure", "Add --url, or leave out --listen.")
    if requested.listen is not None:
        return _page_timer(requested), None
    tapped = stack.enter_context(Application(insertion(requested.server, tap.address)))
    if requested.url is not None:
        if requested.command:
            tapped.start(requested.command)
        return _page_timer(requested), None
    untapped = stack.enter_context(Application(insertion(requested.server, None)))

    def timer(application: Application) -> Timer:
        return lambda: application.run(requested.command, LONGEST_S)

    return timer(tapped), timer(untapped)


def _page_timer(requested: Requested) -> Timer:
    assert requested.url is not None, "only called with a URL"
    url = urlsplit(requested.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError(f"{requested.url!r} is not an http URL", "Write for example http://127.0.0.1:8080/page.")
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")

    def request() -> float:
        connection = kind(url.hostname or "", url.port, timeout=LONGEST_S)
        try:
            connection.connect()
            began = time.perf_counter_ns()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            took_ns = time.perf_counter_ns() - began
        except http.client.HTTPException as error:
            raise UsageError(f"{requested.url} was not answered: {error!r}", "Open it in a browser first.") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise UsageError(
                f"{requested.url} answered {response.status} {response.reason}", "Open it in a browser first."
            )
        return took_ns / 1e9

    return request


def _first(requested: Requested, tap: Tap, timer: Timer) -> None:
    """Time once to warm caches, and check that the application connects through the tap."""
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            timer()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{requested.url} was not answered within {_READY_S:.0f} s: {error}",
                    "Start the application, or correct the URL.",
                ) from error
            time.sleep(0.05)  # no other sign that somebody else's server is ready
    counts = tap.set_delay(0)
    if counts.refused:
        raise UsageError(
            f"the tap could not connect to the server for the application: {counts.refusal}",
            "Correct --server, or run as root.",
        )
    if not counts.connections and not counts.open:
        raise UsageError(
            "the application made no connection through the tap, so its round trips cannot be seen",
            "Is --server the address that it uses? A TCP address is replaced only where HOST:PORT, {host} or {port} stands in the "
            "command or its environment. A service that runs already: --listen, and configure it to connect there.",
        )


def _blocks(
    requested: Requested, tap: Tap, echo: Echo, timers: tuple[Timer, Timer | None], say: Callable[[str], None]
) -> Iterator[Observation]:
    tapped, untapped = timers
    arms: list[int | None] = [*requested.delays_ns, *([None] if untapped else [])]
    chosen = random.Random(_SEED)
    began = time.monotonic()
    for block in range(requested.blocks):
        if block >= requested.least_blocks and (time.monotonic() - began) * (block + 1) / block > requested.budget_s:
            return
        say(f"block {block + 1} of {requested.blocks}")
        chosen.shuffle(arms)
        for delay_ns in arms:
            echo_ns = echo.round_trip_ns(delay_ns or 0)
            tap.set_delay(delay_ns or 0)
            timer = tapped if delay_ns is not None or untapped is None else untapped
            took_s = timer()
            counts = tap.set_delay(0)
            if delay_ns is not None and not counts.round_trips:
                raise UsageError(
                    "a page made no round trip to the server: it was answered from a cache, or its connection waits",
                    "Request a page that uses the server each time.",
                )
            yield Observation(
                block=block,
                delay_ns=delay_ns,
                held_ns=counts.held_ns,
                echo_ns=echo_ns,
                took_ns=round(took_s * 1e9),
                round_trips=counts.round_trips,
                connections=counts.connections,
            )


class Echo:
    """An echo behind a tap of its own: what a round trip takes here with a delay, without any application. Medians, µs."""

    def __init__(self, stack: ExitStack, on_socket: bool) -> None:
        folder = _folder(stack)
        tcp = stack.enter_context(echo(f"{folder}/echo"))
        plain: Target = UnixTarget(path=f"{folder}/echo") if on_socket else tcp
        listen = UnixTarget(path=f"{folder}/tap") if on_socket else TcpListen(host=tcp.host, port=0)
        self._tap = stack.enter_context(Tap(plain, listen))
        direct, tapped, loopback = (stack.enter_context(connected(each)) for each in (plain, self._tap.address, tcp))
        self._tapped, self._at_rest = tapped, (direct, tapped, loopback)
        self._on_socket = on_socket

    def round_trip_ns(self, delay_ns: int) -> int:
        """Measure a round trip through the tap with this delay."""
        self._tap.set_delay(delay_ns)
        count = max(_LEAST_PINGS, min(_PINGS, _PINGS_NS // max(delay_ns, 1)))
        return round(_ping_us(self._tapped, count) * 1e3)

    def costs(self, idle: IdleCpus) -> Costs:
        """Measure costs without a delay, as medians of alternating rounds."""
        self._tap.set_delay(0)
        rounds = [[_ping_us(line, _PINGS) for line in self._at_rest] for _ in range(_ROUNDS)]
        direct, tapped, loopback = (statistics.median(column) for column in zip(*rounds, strict=True))
        return Costs(tap_us=tapped - direct, loopback_us=loopback - direct if self._on_socket else None, idle=idle)


_ECHO = """
import os, selectors, shutil, socket, sys
kept, chosen = [], selectors.DefaultSelector()
for family, address in ((socket.AF_UNIX, sys.argv[1]), (socket.AF_INET, ("127.0.0.1", 0))):
    listener = socket.socket(family); listener.bind(address); listener.listen(); chosen.register(listener, 1, True)
print(listener.getsockname()[1], flush=True)
chosen.register(0, 1, None)
while True:
    for key, _ in chosen.select():
        if key.data is None:
            shutil.rmtree(os.path.dirname(sys.argv[1]), ignore_errors=True)
            sys.exit()
        if key.data:
            one, _ = key.fileobj.accept()
            if one.family == socket.AF_INET: one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            kept.append(one); chosen.register(one, 1, False)
        elif data := key.fileobj.recv(64):
            key.fileobj.send(data)
        else:
            chosen.unregister(key.fileobj)
"""


@contextmanager
def echo(path: str) -> Iterator[TcpTarget]:
    """A program that answers each byte, on a Unix socket and on TCP; it ends with its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _ECHO, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline()
        if not port:
            raise LabError("the echo that calibrates the tap did not start", "Please report this.")
        yield TcpTarget(host="127.0.0.1", port=int(port))
    finally:
        process.stdin.close()
        process.wait(_SETTLE_S)


@contextmanager
def connected(target: Target) -> Iterator[socket.socket]:
    if isinstance(target, UnixTarget):
        line = socket.socket(socket.AF_UNIX)
        line.connect(target.path)
    else:
        line = socket.create_connection((target.host, target.port))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with line:
        yield line


def _ping_us(line: socket.socket, count: int) -> float:
    took = []
    for _ in range(count):
        began = time.perf_counter_ns()
        line.send(b"?")
        line.recv(1)
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1e3
