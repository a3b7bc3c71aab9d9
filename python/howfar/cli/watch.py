"""`howfar TARGET --watch`: requests to one server on a schedule, shown live on a terminal, and as a line at intervals elsewhere."""

from __future__ import annotations

import contextlib
import math
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from howfar.cli.exit_codes import UNREACHABLE
from howfar.cli.screen import is_terminal, rich_console, show_json_line
from howfar.contract.ping_messages import NotOpened
from howfar.distance.measure import MeasurementFailed, empty_record, find_addresses
from howfar.distance.record import WatchedOutage, WatchedRequest
from howfar.distance.requests import REQUESTS
from howfar.distance.resolve import NameFailed
from howfar.distance.session import (
    ConnectionLost,
    MeasuredServer,
    PingSession,
    check_answered,
    make_failure,
    ping_session,
)
from howfar.distance.watch import MIN_INTERVAL_NS, Moment, Outage, WatchResults, log_line, render_screen, summary_lines
from howfar.errors import UsageError
from howfar.stopping import EndRequested
from howfar.units import format_duration_ns

if TYPE_CHECKING:
    from rich.live import Live

_SECOND_NS = 1_000_000_000
_SEND_AHEAD_NS = 2_000_000
"""How long before its due time a request is passed to the engine, which then waits for that time."""
_CLOSE_TIMEOUT_S = 2.0
_FRAME_S = 0.1
_WINDOW_S = 15.0
_RECONNECT_WAITS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before a lost connection is opened again; the last one is repeated."""
_UNREACHABLE_CHECK_S = 0.1
"""Interval at which requests that were due without a connection are counted."""


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that was answered `latency_ns` after it was due."""

    latency_ns: int
    moment: Moment


@dataclass(frozen=True)
class LostRequest:
    """A request that was due at `moment` got no answer, or an error, or could not be sent."""

    reason: str
    moment: Moment


@dataclass(frozen=True)
class SkippedRequests:
    """Requests that were not sent because they were due before the previous one was answered."""

    count: int


@dataclass(frozen=True)
class ServerUnreachable:
    """The connection ended, or could not be opened again. Another attempt follows."""

    reason: str


@dataclass(frozen=True)
class ServerBack:
    """The server answers again."""

    moment: Moment


WatchEvent = AnsweredRequest | LostRequest | SkippedRequests | ServerUnreachable | ServerBack


class _RequestThread(threading.Thread):
    """Sends requests on the schedule and reports what happened. Ends with `stop`, or after `count` requests."""

    def __init__(self, server: MeasuredServer, interval_ns: int, count: int | None, timeout_ns: int) -> None:
        super().__init__(name="requests", daemon=True)
        self.events: queue.SimpleQueue[WatchEvent | None] = queue.SimpleQueue()
        """Events for the main thread; the last item is None."""
        self.failed: Exception | None = None
        self.pending_since_ns: int | None = None
        self.stop = threading.Event()
        self._server = server
        self._interval_ns, self._timeout_ns = interval_ns, timeout_ns
        self._remaining = math.inf if count is None else count
        self._due_ns: int | None = None
        """When the next request is due. None until the server is reached for the first time."""
        self._session: PingSession | None = None

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # shown by the main thread, which owns the screen
            self.failed = None if self.stop.is_set() else error
        self.events.put(None)

    def end(self) -> None:
        """Stop, even in the middle of a request, and wait until the connection is closed."""
        self.stop.set()
        if (session := self._session) is not None:
            session.end()
        self.join(_CLOSE_TIMEOUT_S)

    def _watch(self) -> None:
        """Connect and send requests; connect again after a loss, with increasing waits. Raises errors of the first connect and of a
        refused login: another attempt could lock the account."""
        waits = _reconnect_waits()
        while not self.stop.is_set() and self._remaining > 0:
            try:
                with self._connect() as session:
                    waits = _reconnect_waits()
                    if self._due_ns is not None:
                        self._report_lost_until_now("no connection")
                        self.events.put(ServerBack(_now()))
                    self._send_requests(session)
                    return
            except (ConnectionLost, NameFailed) as error:
                if self._due_ns is None or (isinstance(error, ConnectionLost) and error.failure.code == "auth"):
                    raise
                if self.stop.is_set():
                    return
                self.pending_since_ns = None
                self.events.put(ServerUnreachable(str(error)))
            self._wait_unreachable(next(waits))

    def _wait_unreachable(self, wait_s: float) -> None:
        """Wait before the connection is opened again."""
        deadline = time.monotonic() + wait_s
        while not self.stop.is_set() and self._remaining > 0:
            self._report_lost_until_now("no connection")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self.stop.wait(min(left_s, _UNREACHABLE_CHECK_S))

    def _report_lost_until_now(self, reason: str) -> None:
        """Report every request that was due until now as lost."""
        assert self._due_ns is not None, "a schedule exists once the server was reached"
        now = _now()
        while self._due_ns <= now.ns and self._remaining > 0:
            self.events.put(LostRequest(reason, now.before(now.ns - self._due_ns)))
            self._due_ns += self._interval_ns
            self._remaining -= 1

    @contextlib.contextmanager
    def _connect(self) -> Iterator[PingSession]:
        """A connection to the first address that accepts one; the name is looked up each time. Raises ConnectionLost, NameFailed."""
        _, targets = find_addresses(self._server, self._timeout_ns)
        for number, target in enumerate(targets):
            with ping_session(self._server, target, self._timeout_ns) as session:
                self._session = session
                opened = session.open()
                if isinstance(opened, NotOpened):
                    if opened.step == "connect" and number < len(targets) - 1:
                        continue
                    raise ConnectionLost(make_failure(opened))
                query = REQUESTS[self._server.service].query
                first_answer = session.ask([query], 1, 0)  # not counted
                check_answered(self._server, first_answer.refusals[0])
                yield session
                return

    def _send_requests(self, session: PingSession) -> None:
        """Send requests until the watch ends. Raises ConnectionLost, after reporting the lost requests."""
        query = REQUESTS[self._server.service].query
        if self._due_ns is None:
            self._due_ns = time.monotonic_ns() + self._interval_ns
        while not self.stop.is_set() and self._remaining > 0:
            due_ns = self._due_ns
            behind_ns = time.monotonic_ns() - due_ns
            if behind_ns > self._interval_ns:
                skipped = min(behind_ns // self._interval_ns + 1, self._remaining)
                self.events.put(SkippedRequests(int(skipped)))
                self._remaining -= skipped
                self._due_ns += int(skipped) * self._interval_ns
                continue
            if self.stop.wait(max(-behind_ns - _SEND_AHEAD_NS, 0) / 1e9):
                return
            self.pending_since_ns, self._due_ns = due_ns, due_ns + self._interval_ns
            self._remaining -= 1
            try:
                answer = session.ask([query], 1, 0, due_ns)
            except ConnectionLost as lost:
                if not self.stop.is_set():
                    now = _now()
                    self.events.put(LostRequest(lost.failure.message, now.before(now.ns - due_ns)))
                    self._report_lost_until_now("no connection")
                raise
            error, took_ns = answer.refusals[0], answer.latencies_ns[0][0] + answer.late_ns
            now = _now()
            self.events.put(
                AnsweredRequest(took_ns, now)
                if error is None
                else LostRequest(f"an error: {error}", now.before(now.ns - due_ns))
            )
            self.pending_since_ns = None


def _now() -> Moment:
    return Moment(datetime.now().astimezone(), time.monotonic_ns())


def _reconnect_waits() -> Iterator[float]:
    yield from _RECONNECT_WAITS_S
    while True:
        yield _RECONNECT_WAITS_S[-1]


def watch(server: MeasuredServer, interval_ns: int | None, count: int | None, timeout_ns: int, as_json: bool) -> int:
    """Send requests until Ctrl-C, or `count` of them. Returns the exit code. Raises UsageError, MeasurementFailed, NameFailed."""
    interval_ns = _SECOND_NS if interval_ns is None else interval_ns
    if interval_ns < MIN_INTERVAL_NS:
        raise UsageError(
            f"--interval {format_duration_ns(interval_ns)} is more than 100 requests a second",
            "howfar load makes load; here 10ms is the shortest interval.",
        )
    thread = _RequestThread(server, interval_ns, count, timeout_ns)
    results = WatchResults(title=f"{server.url}: {REQUESTS[server.service].query_name}", interval_ns=interval_ns)
    thread.start()
    code = 0
    try:
        if as_json:
            _print_json(thread, results, server.url)
        elif is_terminal(sys.stdout):
            _show_live(thread, results)
        else:
            _print_windows(thread, results)
    except KeyboardInterrupt as ended:  # the usual end, if it is Ctrl-C
        code = ended.exit_code if isinstance(ended, EndRequested) else 0
    thread.end()
    _take_events(thread, results, 0.0)
    if as_json and results.outage is not None:
        _print_outage_json(results.outage, server.url)
    elif results.due and not as_json:
        click.echo("\n".join(summary_lines(results, time.monotonic_ns())))
    if isinstance(thread.failed, ConnectionLost):
        raise MeasurementFailed(empty_record(server, thread.failed.failure))
    if thread.failed is not None:
        raise thread.failed
    return code or (UNREACHABLE if results.lost and not results.count else 0)


def _take_events(thread: _RequestThread, results: WatchResults, wait_s: float) -> tuple[list[WatchEvent], bool]:
    """Take and count the events of the next `wait_s` seconds; returns them, and whether more may follow."""
    new_events: list[WatchEvent] = []
    deadline = time.monotonic() + wait_s
    while True:
        try:
            event = thread.events.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            break
        if event is None:
            return new_events, False
        new_events.append(event)
        match event:
            case AnsweredRequest(latency_ns, moment):
                results.record_answer(latency_ns, moment)
            case LostRequest(reason, moment):
                results.record_loss(reason, moment)
            case SkippedRequests(number):
                results.skipped += number
            case ServerUnreachable():
                results.record_unreachable()
            case ServerBack(moment):
                results.record_recovery(moment)
        if time.monotonic() > deadline:
            break
    return new_events, True


def _show_live(thread: _RequestThread, results: WatchResults) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=rich_console(sys.stdout), auto_refresh=False, transient=True) as live:
        while _take_events(thread, results, _FRAME_S)[1]:
            _draw(live, Text, thread, results)


def _draw(live: Live, text_class: type, thread: _RequestThread, results: WatchResults) -> None:
    size = shutil.get_terminal_size((80, 24))
    pending_since_ns, now_ns = thread.pending_since_ns, time.monotonic_ns()
    pending_ns = None if pending_since_ns is None else max(now_ns - pending_since_ns, 0)
    live.update(
        text_class(render_screen(results, pending_ns, now_ns, size.columns, size.lines), no_wrap=True), refresh=True
    )


def _print_windows(thread: _RequestThread, results: WatchResults) -> None:
    while _take_events(thread, results, _WINDOW_S)[1]:
        click.echo(log_line(results, _now()))


def _print_json(thread: _RequestThread, results: WatchResults, target: str) -> None:
    """Write one object per request when it is answered or lost, and one per outage when it ends."""
    may_continue, shown_outages = True, 0
    while may_continue:
        new_events, may_continue = _take_events(thread, results, _FRAME_S)
        for event in new_events:
            if isinstance(event, AnsweredRequest | LostRequest):
                line = WatchedRequest(
                    target=target,
                    at=_utc(event.moment),
                    latency_ns=event.latency_ns if isinstance(event, AnsweredRequest) else None,
                    lost=event.reason if isinstance(event, LostRequest) else None,
                )
                show_json_line(line.model_dump_json())
        new_outages, shown_outages = results.outage_count - shown_outages, results.outage_count
        for outage in list(results.outages)[-new_outages:] if new_outages else []:
            _print_outage_json(outage, target)


def _print_outage_json(outage: Outage, target: str) -> None:
    line = WatchedOutage(
        target=target,
        outage=outage.kind,
        began=_utc(outage.began),
        ended=None if outage.ended is None else _utc(outage.ended),
        took_ns=outage.duration_ns(time.monotonic_ns()),
        lost=outage.lost,
        why=outage.why,
    )
    show_json_line(line.model_dump_json())


def _utc(moment: Moment) -> str:
    return moment.at.astimezone(UTC).isoformat()
