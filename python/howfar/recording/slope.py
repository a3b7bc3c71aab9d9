"""The slope of an application's time over an added delay: the number of round trips that it waits for in sequence.

time = intercept + slope x delay. The application runs behind a tap, which adds the delay. Each block measures each delay once, in
random order; a line is fitted to each block, and means and intervals are taken over the blocks' slopes and intercepts. The entry point
is `measure`; `analyze` and `document` are pure.
"""

from __future__ import annotations

import http.client
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from howfar.address.server_address import format_host_port
from howfar.contract.ping_messages import Target, TcpListen, TcpTarget, UnixTarget
from howfar.errors import LabError, UsageError
from howfar.lab.idle import keep_polling, polling_obstacle
from howfar.lab.programs import NONE_MEASURED, MeasuredPrograms, watching_programs
from howfar.recording.insertion import NamedServer, make_insertion
from howfar.recording.other_programs import BlockWatch, BusyPrograms
from howfar.recording.tap import Tap, TappedApplication, listen_address, tap_folder
from howfar.recording.texts import advise, certainty, next_step, phrase, setting
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Cell,
    Column,
    Document,
    Heading,
    Table,
    Text,
    Warnings,
    what_to_do,
)
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, are_disjoint, estimate_text, limits_text, mean_interval
from howfar.stopping import temporary_folder
from howfar.units import format_duration_ns

RTTS_NS = (200_000, 500_000, 1_000_000, 5_000_000, 20_000_000, 85_000_000)
"""RTTs for which every report gives a time."""
KINK_SHARE = 0.05
"""A change of the slope below this share is no kink, however narrow its interval."""
MAX_RUN_S = 120.0
"""Timeout of one page, or one run of the command."""
_READY_TIMEOUT_S = 30.0
_EXIT_TIMEOUT_S = 5.0
_URL_SAFE = "!#$%&'()*+,/:;=?@[]~"
"""Characters of a path and a query that are not percent-encoded."""
_PINGS = 300
_MIN_PINGS = 10
_PING_BUDGET_NS = 50_000_000
_ROUNDS = 5
_SEED = 20_260
_STEADY_WINDOW, _STEADY_SHARE = 16, 0.02
"""Times are steady if the minimum of the last `_STEADY_WINDOW` times is at most the share `_STEADY_SHARE` below the minimum of as many
times before. Minima are compared because other programs only add time."""
_MAX_WARM_UPS, _WARM_UP_SHARE = 400, 0.25
"""Limits of the warm-up: number of pages, and share of the time budget."""
_SHORT_NS = (0, 1_000_000, 2_000_000, 5_000_000)
_LONG_NS = (0, 1_000_000, 5_000_000, 20_000_000)
"""Default delays: `_LONG_NS` if the time budget allows it, else `_SHORT_NS`. After a wait a program computes more slowly, increasingly
so for waits up to about 10 ms, which inflates the slope: 51 round trips were measured as 55 with delays up to 5 ms, and as 52 with
delays up to 20 ms."""
_MAX_DRIFT_SHARE = 0.1
"""Maximum relative difference between the durations of the first and the last block that causes no warning."""
_MAX_HALF_WIDTH_SHARE = 0.2
"""Maximum half-width of the interval, as a share of the counted round trips, at which the slope says how many are waited for."""
_MAX_SHARE_OF_NONE = 0.05
"""Maximum share of the counted round trips that the interval may allow if the answer is none. Half a round trip is always allowed."""
_MIN_SHARE_OF_ALL = 0.9
"""Minimum share that the interval must allow if the answer is all of them. Half a round trip fewer is always enough."""

IdleCpus = Literal["polling", "as-found"]
"""Whether idle CPUs were kept from sleeping (polling); measurements then include no time for waking them."""


class Observation(Part):
    """One request, or one run of the command."""

    block: int
    delay_ns: int | None
    """Delay added to each round trip; None: without the tap."""
    held_ns: int
    """Mean time for which the tap actually held a round trip."""
    echo_ns: int
    """Round trip to an echo behind a tap with the same delay, measured immediately before."""
    took_ns: int
    round_trips: int
    connections: int


class Kink(Part):
    """A change of the slope between two delays."""

    from_ns: int
    to_ns: int
    before: Estimate
    after: Estimate


class Slope(Part):
    """The fitted line and what was measured for it. Times are in milliseconds unless a name says otherwise."""

    slope: Estimate
    """Round trips on the critical path."""
    intercept_ms: Estimate
    """The time without an added delay and without the tap."""
    times: dict[str, Estimate]
    """Time by the RTT that a path adds to the present one; `now` is the present path."""
    measured_ms: Estimate | None
    """Time measured on the present path without the tap; None if that was not possible."""
    tap_us: float
    """Time that the tap itself adds to a round trip; it is subtracted."""
    round_trips: float
    """Round trips of a page, as counted by the tap."""
    connections: float
    kinks: tuple[Kink, ...]
    blocks: int
    warm_ups: int = 1
    """Number of pages or runs that warmed up the application and are not counted."""
    still_falling: bool = False
    """Whether times still fell at the end of the warm-up."""
    drift: float = 0.0
    """How much longer the first block took than the last, as a share of the last."""
    longest_ns: int
    """Times beyond this added delay are extrapolated."""
    server: str = ""
    """Address of the server. Empty: an older file; then the two that follow are None."""
    began_unix_ns: int | None = None
    measured_s: float | None = None
    """Duration of the whole measurement."""
    idle: IdleCpus
    others: BusyPrograms | None = None
    """Other programs during the blocks; None if unknown."""
    observations: tuple[Observation, ...]


class Costs(Part):
    """Costs measured with an echo instead of the application."""

    tap_us: float
    """Time that the tap adds to a round trip."""
    loopback_us: float | None
    """Additional time of a round trip over loopback TCP compared to a Unix socket; None if the server is on TCP."""
    idle: IdleCpus


# ---------------------------------------------------------------- the application, timed


@dataclass(frozen=True)
class SlopeRequest:
    """What to time, with which server, and how."""

    server: NamedServer
    command: tuple[str, ...] = ()
    url: str | None = None
    """URL requested for each page; with it, the command is a web server that is started once."""
    listen: Target | None = None
    """Address at which the tap listens and to which the application connects by itself, instead of being directed to the tap."""
    delays_ns: tuple[int, ...] | None = None
    """Delays to add. None: up to 20 ms, or only up to 5 ms if the blocks would otherwise exceed the time budget."""
    blocks: int = 8
    budget_s: float = 60.0
    min_blocks: int = 4
    warm_ups: int | None = None
    """Pages to request before those that count. None: until their times stop falling."""
    measured: MeasuredPrograms = NONE_MEASURED
    """Programs outside the command that do not count as others: those of the server."""


def measure(request: SlopeRequest, say: Callable[[str], None]) -> Slope:
    """Time the application in blocks, and fit them. Raises UsageError, LabError, EngineError."""
    began_unix_ns, began = time.time_ns(), time.monotonic()
    with ExitStack() as stack:
        if can_poll := polling_obstacle() is None:
            stack.enter_context(keep_polling())
        folder = stack.enter_context(tap_folder(request.listen or request.server.target))
        tap = stack.enter_context(Tap(request.server.target, _listen_address(request, folder)))
        timers = _timers(request, tap, stack)
        say(phrase("say/warm-up/url" if request.url else "say/warm-up/command"))
        _run_until_ready(request, tap, timers[0])
        page = _timer_requiring_answers(request, timers[0])
        warm_up = _warm_up(request, page)
        delays_ns = request.delays_ns or _choose_delays(request, tap, page)
        echo = Echo(stack, isinstance(request.server.target, UnixTarget))
        start_watch = stack.enter_context(watching_programs(request.measured))
        blocks_began = time.monotonic()
        watch = BlockWatch(
            start_watch,
            lambda _: time.monotonic() - blocks_began < request.budget_s,
            say,
            are_others=request.listen is None,
        )
        blocks = list(_measure_blocks(request, delays_ns, tap, echo, (page, timers[1]), say, watch))
        observations = [observation for block in watch.without_disturbed(blocks) for observation in block]
        costs = echo.measure_costs("polling" if can_poll else "as-found")
    return analyze(
        observations,
        costs,
        warm_up,
        server=_describe_address(request.server.target),
        began_unix_ns=began_unix_ns,
        measured_s=time.monotonic() - began,
        others=watch.found(),
    )


def _describe_address(target: Target) -> str:
    return target.path if isinstance(target, UnixTarget) else format_host_port(target.host, target.port)


def _listen_address(request: SlopeRequest, folder: Path) -> UnixTarget | TcpListen:
    """Address at which the tap listens: the one to which the application connects by itself, else one of the tap's choice."""
    if isinstance(request.listen, UnixTarget):
        return request.listen
    if isinstance(request.listen, TcpTarget):
        return TcpListen(host=request.listen.host, port=request.listen.port)
    return listen_address(request.server.target, folder)


Timer = Callable[[], float]
"""Runs one page or command and returns its time in seconds."""


def _timers(request: SlopeRequest, tap: Tap, stack: ExitStack) -> tuple[Timer, Timer | None]:
    """A timer of runs through the tap and, if the command can also be started without the tap, a timer of such runs."""
    if request.listen is not None and request.url is None:
        raise UsageError("--listen needs --url: nothing says when to measure", "Add --url, or leave out --listen.")
    if request.listen is not None and request.command:
        raise UsageError("--listen is for an application that already runs", "Leave out the command, or --listen.")
    if request.listen is not None:
        return _page_timer(request), None
    tapped = stack.enter_context(TappedApplication(make_insertion(request.server, tap.address)))
    if request.url is not None:
        if request.command:
            tapped.start(request.command)
        return _timer_checking_application(_page_timer(request), tapped), None
    untapped = stack.enter_context(TappedApplication(make_insertion(request.server, None)))

    def timer(application: TappedApplication) -> Timer:
        return lambda: application.run(request.command, MAX_RUN_S)

    return timer(tapped), timer(untapped)


def _timer_checking_application(timer: Timer, application: TappedApplication) -> Timer:
    """A timer that raises UsageError if a page was not answered because the application that serves it has ended."""

    def timed() -> float:
        try:
            return timer()
        except OSError:
            application.check()
            raise

    return timed


def _page_timer(request: SlopeRequest) -> Timer:
    assert request.url is not None, "only called with a URL"
    example = "Write for example http://127.0.0.1:8080/page."
    try:
        url = urlsplit(request.url)
        port = url.port
    except ValueError as error:
        raise UsageError(phrase("error/no-url/reason", url=request.url, reason=error), example) from error
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError(phrase("error/no-url", url=request.url), example)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    path = quote((url.path or "/") + (f"?{url.query}" if url.query else ""), safe=_URL_SAFE)

    def time_request() -> float:
        connection = kind(url.hostname or "", port, timeout=MAX_RUN_S)
        try:
            connection.connect()
            began = time.perf_counter_ns()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            took_ns = time.perf_counter_ns() - began
        except http.client.HTTPException as error:
            reason = phrase("error/unanswered", url=request.url, reason=repr(error))
            raise UsageError(reason, "Open it in a browser first.") from error
        finally:
            connection.close()
        if response.status >= 400:
            reason = phrase("error/status", url=request.url, status=response.status, reason=response.reason)
            raise UsageError(reason, "Open it in a browser first.")
        return took_ns / 1e9

    return time_request


@dataclass(frozen=True)
class WarmUp:
    """The result of warming up an application."""

    pages: int
    still_falling: bool


_ONE_WARM_UP = WarmUp(1, False)


def _warm_up(request: SlopeRequest, timer: Timer) -> WarmUp:
    """Request the given number of pages, or request pages until their times stop falling. A command starts cold each time."""
    if request.url is None:
        return _ONE_WARM_UP
    took_s: list[float] = []
    deadline = time.monotonic() + request.budget_s * _WARM_UP_SHARE
    while len(took_s) + 1 < (request.warm_ups or _MAX_WARM_UPS) and (
        request.warm_ups is not None or (is_falling(took_s) and time.monotonic() < deadline)
    ):
        took_s.append(timer())
    can_tell = request.warm_ups is None and len(took_s) >= 2 * _STEADY_WINDOW
    return WarmUp(1 + len(took_s), can_tell and is_falling(took_s))


def is_falling(times: Sequence[float]) -> bool:
    """Whether the last times are shorter than those before; also True if there are too few to tell."""
    before, last = times[-2 * _STEADY_WINDOW : -_STEADY_WINDOW], times[-_STEADY_WINDOW:]
    return len(before) < _STEADY_WINDOW or min(last) < (1 - _STEADY_SHARE) * min(before)


def _timer_requiring_answers(request: SlopeRequest, timer: Timer) -> Timer:
    """A timer that raises UsageError if a page is not answered any more; the same page was answered before."""

    def timed() -> float:
        try:
            return timer()
        except OSError as error:
            reason = phrase("error/unanswered", url=request.url, reason=error)
            raise UsageError(reason, "Does the application still run? Give shorter --delays.") from error

    return timed


def _choose_delays(request: SlopeRequest, tap: Tap, timer: Timer) -> tuple[int, ...]:
    """The default delays: the long ones if all blocks are expected to fit into the time budget, judged by one more page."""
    tap.set_delay(0)
    took_s = timer()
    counts = tap.set_delay(0)
    waiting_s = (counts.round_trips + counts.connections) * sum(_LONG_NS) / 1e9
    block_s = waiting_s + took_s * len(_LONG_NS)
    return _LONG_NS if block_s * request.blocks <= request.budget_s else _SHORT_NS


def _run_until_ready(request: SlopeRequest, tap: Tap, timer: Timer) -> None:
    """Run once to warm caches, and check that the application connects through the tap. Raises UsageError."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while True:
        try:
            timer()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                reason = phrase("error/unanswered/in-time", url=request.url, seconds=_READY_TIMEOUT_S, reason=error)
                raise UsageError(reason, "Start the application, or correct the URL.") from error
            time.sleep(0.05)  # polling: the user's server does not signal that it is ready
    counts = tap.set_delay(0)
    if counts.refused:
        raise UsageError(phrase("error/no-connect", reason=counts.refusal), "Correct --server, or run as root.")
    if not counts.connections and not counts.open:
        advice = make_insertion(request.server, tap.address).advice(request.command)
        raise UsageError(
            "the application made no connection through the tap, so its round trips cannot be seen",
            phrase("error/listen-too", advice=advice),
        )


def _measure_blocks(
    request: SlopeRequest,
    delays_ns: tuple[int, ...],
    tap: Tap,
    echo: Echo,
    timers: tuple[Timer, Timer | None],
    say: Callable[[str], None],
    watch: BlockWatch,
) -> Iterator[list[Observation]]:
    arms: list[int | None] = [*delays_ns, *([None] if timers[1] else [])]
    rng = random.Random(_SEED)
    began = time.monotonic()
    for block in range(request.blocks):
        if block >= request.min_blocks and (time.monotonic() - began) * (block + 1) / block > request.budget_s:
            return
        say(phrase("say/block", number=block + 1, count=request.blocks))

        def measure_block(block: int = block) -> list[Observation]:
            rng.shuffle(arms)
            return [_observe(block, delay_ns, tap, echo, timers) for delay_ns in arms]

        yield watch.run(measure_block)


def _observe(block: int, delay_ns: int | None, tap: Tap, echo: Echo, timers: tuple[Timer, Timer | None]) -> Observation:
    """Time one page. `delay_ns` None: without the tap."""
    tapped, untapped = timers
    echo_ns = echo.measure_round_trip_ns(delay_ns or 0)
    tap.set_delay(delay_ns or 0)
    timer = tapped if delay_ns is not None or untapped is None else untapped
    took_s = timer()
    counts = tap.set_delay(0)
    if delay_ns is not None and not counts.round_trips:
        raise UsageError(
            "a page made no round trip to the server: it was answered from a cache, or its connection waits",
            "Request a page that uses the server each time.",
        )
    return Observation(
        block=block,
        delay_ns=delay_ns,
        held_ns=counts.held_ns,
        echo_ns=echo_ns,
        took_ns=round(took_s * 1e9),
        round_trips=counts.round_trips,
        connections=counts.connections,
    )


class Echo:
    """An echo server behind its own tap, to measure round trips with a delay but without an application, as medians."""

    def __init__(self, stack: ExitStack, on_socket: bool) -> None:
        folder = stack.enter_context(temporary_folder())
        tcp = stack.enter_context(run_echo_server(f"{folder}/echo"))
        plain: Target = UnixTarget(path=f"{folder}/echo") if on_socket else tcp
        listen = UnixTarget(path=f"{folder}/tap") if on_socket else TcpListen(host=tcp.host, port=0)
        self._tap = stack.enter_context(Tap(plain, listen))
        direct, tapped, loopback = (
            stack.enter_context(connect(address)) for address in (plain, self._tap.address, tcp)
        )
        self._tapped, self._connections = tapped, (direct, tapped, loopback)
        self._on_socket = on_socket

    def measure_round_trip_ns(self, delay_ns: int) -> int:
        """Measure a round trip through the tap with this delay, in ns."""
        self._tap.set_delay(delay_ns)
        count = max(_MIN_PINGS, min(_PINGS, _PING_BUDGET_NS // max(delay_ns, 1)))
        return round(_median_ping_us(self._tapped, count) * 1e3)

    def measure_costs(self, idle: IdleCpus) -> Costs:
        """Measure the costs without a delay, as medians of alternating rounds."""
        self._tap.set_delay(0)
        rounds = [[_median_ping_us(connection, _PINGS) for connection in self._connections] for _ in range(_ROUNDS)]
        direct, tapped, loopback = (statistics.median(column) for column in zip(*rounds, strict=True))
        return Costs(tap_us=tapped - direct, loopback_us=loopback - direct if self._on_socket else None, idle=idle)


_ECHO = """
import os, selectors, shutil, socket, sys
connections, selector = [], selectors.DefaultSelector()
for family, address in ((socket.AF_UNIX, sys.argv[1]), (socket.AF_INET, ("127.0.0.1", 0))):
    listener = socket.socket(family); listener.bind(address); listener.listen(); selector.register(listener, 1, True)
print(listener.getsockname()[1], flush=True)
selector.register(0, 1, None)
while True:
    for key, _ in selector.select():
        if key.data is None:
            shutil.rmtree(os.path.dirname(sys.argv[1]), ignore_errors=True)
            sys.exit()
        if key.data:
            connection, _ = key.fileobj.accept()
            if connection.family == socket.AF_INET: connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.append(connection); selector.register(connection, 1, False)
        else:
            try:
                data = key.fileobj.recv(64)
                key.fileobj.sendall(data)
            except OSError:
                data = b""
            data or selector.unregister(key.fileobj)
"""


@contextmanager
def run_echo_server(path: str) -> Iterator[TcpTarget]:
    """Run a program that sends each byte back, on a Unix socket and on TCP. It ends silently when its stdin closes, not at Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _ECHO, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline()
        if not port:
            raise LabError("the echo that calibrates the tap did not start", "Please report this.")
        yield TcpTarget(host="127.0.0.1", port=int(port))
    finally:
        process.stdin.close()
        process.wait(_EXIT_TIMEOUT_S)


@contextmanager
def connect(target: Target) -> Iterator[socket.socket]:
    if isinstance(target, UnixTarget):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(target.path)
    else:
        connection = socket.create_connection((target.host, target.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        yield connection


def _median_ping_us(connection: socket.socket, count: int) -> float:
    took_ns = []
    for _ in range(count):
        began = time.perf_counter_ns()
        connection.send(b"?")
        connection.recv(1)
        took_ns.append(time.perf_counter_ns() - began)
    return statistics.median(took_ns) / 1e3


# ---------------------------------------------------------------- the fitted line


def analyze(
    observations: Sequence[Observation],
    costs: Costs,
    warm_up: WarmUp,
    *,
    server: str,
    began_unix_ns: int,
    measured_s: float,
    others: BusyPrograms | None = None,
) -> Slope:
    """Fit each block and combine the blocks."""
    tap_us, loopback_us = costs.tap_us, costs.loopback_us
    tapped = [observation for observation in observations if observation.delay_ns is not None]
    blocks = _group_by_block(tapped)
    fits = [_fit(block) for block in blocks]
    slope = mean_interval([slope for slope, _ in fits])

    def predict_time_ms(added_ms: float) -> Estimate:
        return mean_interval([intercept + slope * (added_ms - tap_us / 1e3) for slope, intercept in fits])

    times = {"now": predict_time_ms(0.0)}
    if loopback_us is not None:
        times["loopback"] = predict_time_ms(loopback_us / 1e3)
    times |= {format_duration_ns(rtt_ns): predict_time_ms(rtt_ns / 1e6) for rtt_ns in RTTS_NS}
    untapped = [observation.took_ns / 1e6 for observation in observations if observation.delay_ns is None]
    return Slope(
        slope=slope,
        intercept_ms=predict_time_ms(0.0),
        times=times,
        measured_ms=mean_interval(untapped) if untapped else None,
        tap_us=tap_us,
        round_trips=statistics.mean(observation.round_trips for observation in tapped),
        connections=statistics.mean(observation.connections for observation in tapped),
        kinks=_find_kinks(blocks),
        blocks=len(blocks),
        warm_ups=warm_up.pages,
        still_falling=warm_up.still_falling,
        drift=_block_duration_ns(blocks[0]) / _block_duration_ns(blocks[-1]) - 1,
        longest_ns=max(observation.delay_ns or 0 for observation in tapped),
        server=server,
        began_unix_ns=began_unix_ns,
        measured_s=measured_s,
        idle=costs.idle,
        others=others,
        observations=tuple(observations),
    )


def _fit(observations: Sequence[Observation]) -> tuple[float, float]:
    """Slope and intercept (ms) of a line through one block, by least squares. x is the time that the delay added to a round trip of
    the echo, not the delay itself: the tap's timer error and the waking of idle CPUs are part of x and do not distort the slope."""
    min_delay_ns = min(observation.delay_ns or 0 for observation in observations)
    undelayed_ns = statistics.mean(
        observation.echo_ns for observation in observations if observation.delay_ns == min_delay_ns
    )
    x = [(observation.echo_ns - undelayed_ns) / 1e6 for observation in observations]
    fitted = statistics.linear_regression(x, [observation.took_ns / 1e6 for observation in observations])
    return fitted.slope, fitted.intercept


def _block_duration_ns(block: Sequence[Observation]) -> int:
    """Total time of the pages of a block. Blocks can be compared, because each has the same delays."""
    return sum(observation.took_ns for observation in block)


def _find_kinks(blocks: Sequence[Sequence[Observation]]) -> tuple[Kink, ...]:
    """Find kinks: delays at which the slope changes significantly. The test is the interval of the blocks' differences, corrected for
    multiple comparisons."""
    delays = sorted({observation.delay_ns or 0 for block in blocks for observation in block})
    sections = list(pairwise(delays))
    kinks = []
    for left, right in pairwise(sections):
        slopes = [(_slope_between(block, *left), _slope_between(block, *right)) for block in blocks]
        level = 1 - 0.05 / (len(sections) - 1)
        change = mean_interval([after - before for before, after in slopes], level)
        before, after = (mean_interval([pair[side] for pair in slopes]) for side in (0, 1))
        if change.low is None or change.high is None or change.low <= 0 <= change.high:
            continue
        if abs(change.value) > KINK_SHARE * abs(before.value):
            kinks.append(Kink(from_ns=left[1], to_ns=right[1], before=before, after=after))
    return tuple(kinks)


def _group_by_block(tapped: Sequence[Observation]) -> list[list[Observation]]:
    return [
        [observation for observation in tapped if observation.block == block]
        for block in sorted({observation.block for observation in tapped})
    ]


def _slope_between(block: Sequence[Observation], low_ns: int, high_ns: int) -> float:
    return _fit([observation for observation in block if observation.delay_ns in (low_ns, high_ns)])[0]


# ---------------------------------------------------------------- the report


def document(slope: Slope, subject: str) -> Document:
    """The report of a slope. `subject`: name of the page or command."""
    duration = phrase("slope/duration", blocks=slope.blocks, seconds=slope.measured_s) if slope.measured_s else None
    question = phrase("slope/question", subject=subject)
    settings = setting(slope.server, duration, unix_ns=slope.began_unix_ns, is_recorded=False)
    method = (Heading("How it was measured"), Text(_method_text(slope)))
    if slope.slope.low is None:
        missing = Answer(phrase("slope/answer/missing", blocks=slope.blocks, needed=MIN_BLOCKS))
        steps = next_step("slope/next/missing", needed=MIN_BLOCKS)
        return Document("howfar slope", (missing, *method, *steps), (), question, settings)
    blocks = (
        _answer(slope, subject),
        Heading("Its time on other paths"),
        _times_table(slope),
        *_warnings(slope),
        *what_to_do(_advice(slope)),
        *method,
    )
    return Document("howfar slope", blocks, (), question, settings)


def _answer(slope: Slope, subject: str) -> Answer:
    estimate, finding, counted = slope.slope, _finding(slope), slope.round_trips + slope.connections
    low, high = max(estimate.low or 0.0, 0.0), estimate.high or 0.0
    figures = {
        "subject": subject,
        "trips": estimate.value,
        "counted": counted,
        "low": low,
        "high": min(high, counted),
        "steepest": high,
        "least": _format_value(low * 0.5),
        "most": _format_value(high * 0.5),
        "added": _format_value(estimate.value * 0.5),
        "now": _format_value((slope.measured_ms or slope.times["now"]).value),
        "intercept": _format_value(slope.intercept_ms.value),
        "counts": phrase("slope/counts", trips=slope.round_trips, connections=slope.connections),
    }
    width = phrase("slope/width", blocks=slope.blocks, low=estimate.low, high=estimate.high)
    return Answer(
        phrase(f"slope/answer/{finding}", **figures),
        why=phrase(f"slope/why/{finding}", **figures),
        certainty=certainty([width, *_disturbance(slope)], _doubts(slope)),
    )


def _finding(slope: Slope) -> Literal["none", "some", "all", "dear", "unresolved"]:
    """How many of its round trips the application waits for: never more than the tap counted. `dear`: each costs more than the
    delay; `unresolved`: the interval is too wide to tell."""
    low, high, counted = slope.slope.low, slope.slope.high, slope.round_trips + slope.connections
    assert low is not None and high is not None, "without an interval there is no answer"
    if low > counted:
        return "dear"
    if (high - low) / 2 > _MAX_HALF_WIDTH_SHARE * counted:
        return "unresolved"
    if low <= 0:
        return "none" if high <= max(0.5, _MAX_SHARE_OF_NONE * counted) else "unresolved"
    return "all" if high >= counted and low >= min(counted - 0.5, _MIN_SHARE_OF_ALL * counted) else "some"


def _disturbance(slope: Slope) -> Iterator[str]:
    """Which program disturbed blocks, and whether these count."""
    if slope.others is not None and slope.others.are_others and slope.others.disturbed:
        yield slope.others.in_blocks


def _doubts(slope: Slope) -> Iterator[str]:
    """What casts doubt on the line, the most serious first."""
    if slope.others is not None and slope.others.disturb_blocks:
        yield phrase("slope/doubt/others")
    if slope.still_falling:
        yield phrase("slope/doubt/falling", pages=slope.warm_ups)
    if abs(slope.drift) > _MAX_DRIFT_SHARE:
        yield phrase(f"slope/doubt/{'slower' if slope.drift > 0 else 'faster'}-first", share=abs(slope.drift))
    if slope.kinks:
        yield phrase("slope/doubt/kink")
    if _misses_present_path(slope):
        yield phrase("slope/doubt/line")


def _advice(slope: Slope) -> Iterator[AdviceBlock]:
    if (others := slope.others) is not None and others.disturb_blocks:
        because = phrase("slope/do/quiet/because", use=others.use, counted=others.counted)
        yield advise("slope/do/quiet", because, program=others.name)
    if slope.still_falling:
        yield advise("slope/do/warm-up", pages=2 * slope.warm_ups)
    elif _finding(slope) == "unresolved":
        yield advise("slope/do/blocks", blocks=4 * slope.blocks)
    elif _finding(slope) != "none":
        yield advise("slope/do/record")


def _times_table(slope: Slope) -> Table:
    columns = (
        Column("the path adds", left_aligned=True),
        Column("time", "95 % interval"),
        Column("", left_aligned=True),
    )
    rows = tuple(
        (
            Cell("nothing (present path)" if name == "now" else name),
            Cell(_format_value(time.value), limits_text(time, _format_value)),
            Cell(_remark(slope, name)),
        )
        for name, time in slope.times.items()
    )
    measured = slope.measured_ms
    notes = (phrase("slope/measured", measured=_format_ms(measured)),) if measured else ()
    return Table("", columns, rows, notes, main=True)


def _remark(slope: Slope, name: str) -> str:
    extrapolated = [rtt_ns for rtt_ns in RTTS_NS if rtt_ns > slope.longest_ns and format_duration_ns(rtt_ns) == name]
    return "extrapolated" if extrapolated else ""


def _warnings(slope: Slope) -> tuple[Warnings, ...]:
    lines = [
        phrase(
            "slope/kink",
            start=format_duration_ns(kink.from_ns),
            end=format_duration_ns(kink.to_ns),
            before=_format_number(kink.before),
            after=_format_number(kink.after),
        )
        for kink in slope.kinks
    ]
    if slope.measured_ms and _misses_present_path(slope):
        now, measured = _format_ms(slope.times["now"]), _format_ms(slope.measured_ms)
        lines.append(phrase("slope/line", now=now, measured=measured))
    if slope.others is not None and slope.others.disturbed and not slope.others.are_others:
        lines.append(phrase("slope/programs", use=slope.others.use))
    return (Warnings(tuple(lines)),) if lines else ()


def _misses_present_path(slope: Slope) -> bool:
    """Whether the intervals of the line and of the time without the tap are disjoint."""
    return slope.measured_ms is not None and are_disjoint(slope.times["now"], slope.measured_ms) is True


def _method_text(slope: Slope) -> str:
    idle = "kept polling" if slope.idle == "polling" else "left as found"
    return phrase("slope/method", blocks=slope.blocks, warm_ups=slope.warm_ups, tap_us=slope.tap_us, idle=idle)


def _format_value(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"


def _format_ms(estimate: Estimate) -> str:
    return estimate_text(estimate, _format_value)


def _format_number(estimate: Estimate) -> str:
    return estimate_text(estimate, "{:.1f}".format)
