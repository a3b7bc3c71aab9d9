"""Collects the contents of a recording while it is made: round trips, connections, digests, pages, and the facts at its end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import howfar
from howfar.engine.messages import PacketsEnded, Recorded, RecordEnded
from howfar.errors import EngineError, HowfarError, RunFileError
from howfar.recording.calibration import Placement, Rhythm, calibrate, calibration_s, rhythm_of
from howfar.recording.gaps import pages_by_gaps
from howfar.recording.marks import Marks
from howfar.recording.record_tap import RecordTap
from howfar.recording.recording import Connection, Digest, Page, RecordingFile, RoundTrip
from howfar.stopping import ended_by_request

_MALFORMED = "marks that were not understood"
_UNTIL_INTERRUPTED_S = 365 * 86_400.0
_WORTH_A_WORD_S = 1.0
_LATE_NS = 10_000_000_000
"""An event older than this is late: twice the time for which the tap keeps its events."""
_LOST = "the tap was killed, and what it had seen last, up to 5 s, is lost; connections went on unrecorded"


class Source(Protocol):
    """A source of events for a recording."""

    def events(self) -> Iterator[Recorded | RecordEnded | PacketsEnded]:
        """Yield all events, including the last. Raises EngineError if the source is not reachable."""
        ...


@dataclass
class Collected:
    """Totals and results collected from the events."""

    ended: RecordEnded | PacketsEnded | None = None
    stopped: str | None = None
    protocols: Counter[str] = field(default_factory=Counter)
    tls: bool = False
    round_trips: int = 0

    def facts(self, more: Mapping[str, int], code: int) -> dict[str, Any]:
        """The facts at the end. `more`: further reasons for unknowns, with their counts, which may be 0."""
        unknown = Counter(self.ended.unknown if self.ended else {})
        unknown.update({reason: count for reason, count in more.items() if count})
        return {
            "protocol": self.protocols.most_common(1)[0][0] if self.protocols else "unknown",
            "tls": self.tls,
            "round_trips": self.round_trips,
            "unknown": dict(unknown),
            "commands": self.ended.commands if self.ended else {},
            "exit_code": code,
            "stopped": self.stopped,
            "complete": self.stopped is None,
        }


def collect(source: Source, file: RecordingFile, into: Collected, marks: Marks | None = None) -> None:
    """Write all events to the file, with the pages marked so far. An error of the file or the tap ends only the recording, not the
    application."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # the application comes first
    yields = _schedule(os.SCHED_IDLE)
    try:
        for event in source.events():
            if yields and _is_late(event):
                yields = _schedule(os.SCHED_OTHER)
            if isinstance(event, PacketsEnded):
                into.ended = event
            elif isinstance(event, RecordEnded):
                into.ended = event
                into.stopped = into.stopped or event.stopped
            elif into.stopped is None:
                try:
                    _add(event, file, into)
                    if marks is not None:
                        file.add_pages(marks.take())
                except HowfarError as error:
                    into.stopped = error.message
    except EngineError as error:
        into.stopped = _LOST if isinstance(source, RecordTap) else error.message
    finally:
        _schedule(os.SCHED_OTHER)


def _schedule(policy: int) -> bool:
    """Set the scheduling policy of the calling thread. Returns whether it yields to all other threads (SCHED_IDLE)."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))
    return policy == os.SCHED_IDLE


def _is_late(event: Recorded | RecordEnded | PacketsEnded) -> bool:
    """Whether this thread must stop yielding: it is starved of CPU time, or the application has ended."""
    if not isinstance(event, Recorded) or not event.round_trips:
        return not isinstance(event, Recorded)
    return time.monotonic_ns() - event.round_trips[-1].ended_ns > _LATE_NS


def _add(event: Recorded, file: RecordingFile, into: Collected) -> None:
    file.add_digests([Digest(**vars(one)) for one in event.digests])
    file.add_round_trips([RoundTrip(page_id=None, **vars(one)) for one in event.round_trips])
    file.add_connections([Connection(**vars(one)) for one in event.connections])
    # Connections of unknown protocol, such as those without data, do not count.
    into.protocols.update(one.protocol for one in event.connections if one.protocol != "unknown")
    into.tls |= any(one.tls for one in event.connections)
    into.round_trips += len(event.round_trips)


def let_pass(seconds: float | None) -> None:
    """Wait for `seconds` or until a request to end; None: until a request to end."""
    with contextlib.suppress(KeyboardInterrupt), ended_by_request():
        time.sleep(_UNTIL_INTERRUPTED_S if seconds is None else seconds)


def new_facts(method: str, transport: str, command: str | None) -> dict[str, Any]:
    """The facts known at the start."""
    return {
        "howfar": howfar.__version__,
        "began_unix_ns": time.time_ns(),
        "method": method,
        "command": command,
        "transport": transport,
        "idle": "as-found",
        **({} if method == "tap" else {"floor_ns": 0, "tap_ns": 0}),
    }


def add_pages(file: RecordingFile, marks: Marks | None, whole: Page | None, gaps: bool) -> dict[str, int]:
    """Write the pages and assign the round trips to them. Returns counts of what remains unknown, by reason.

    Without marks, `gaps` finds pages by the rests between them; else `whole` is the only page.
    """
    marked, malformed = (marks.pages, marks.malformed) if marks else ([], 0)
    if gaps and not marked:
        pages, placed = pages_by_gaps(file.in_order())
        if pages:
            file.add_pages(pages)
            file.place(placed)
            return {_MALFORMED: malformed}
    file.add_pages(marked or ([whole] if whole else []))
    return {
        _MALFORMED: malformed,
        "claimed by two pages": file.assign_pages(),
        "where a page ends: rests between pages are not clearly longer than the pauses within one": int(
            gaps and not marked
        ),
    }


@contextmanager
def new_recording(out: Path, facts: Mapping[str, Any]) -> Iterator[RecordingFile]:
    """Begin a recording. After an error, its file is kept only if it has a round trip. Raises RunFileError."""
    file = RecordingFile(out, facts)
    try:
        yield file
    except BaseException:
        is_worth_it = file.has_round_trips()
        file.close()
        if not is_worth_it:
            file.remove()
        raise


@contextmanager
def ending(file: RecordingFile, say: Callable[[str], None]) -> Iterator[None]:
    """Complete a recording. If writing fails, as on a full disk, the file keeps its contents, and the command's exit code stands."""
    try:
        yield
    except RunFileError as error:
        say(f"{error.message}; the recording ends there")
        file.close()


def finish(
    file: RecordingFile,
    collected: Collected,
    unknown: Mapping[str, int],
    code: int,
    say: Callable[[str], None],
    more: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Complete a recording by tap. Then measure the cost of the tap itself, and `more` facts; a request to end skips these."""
    ended = collected.ended
    facts = collected.facts(unknown, code)
    if not isinstance(ended, RecordEnded):
        file.finish(facts)
        return
    file.seal({"stopped": None, **facts, **_tap_facts(ended)})
    placement = Placement.of_processes(ended.server_pid)
    rhythm = rhythm_of(file.timings())
    seconds = 2 * calibration_s(rhythm)
    try:
        if seconds > _WORTH_A_WORD_S:
            say(f"the recording is complete; measuring what the tap costs takes about {seconds:.0f} s")
        file.seal(more())
        file.seal(_own_cost(rhythm, file.facts["transport"] == "unix", placement))
    except KeyboardInterrupt:
        say("what the tap costs was not measured: interrupted")
    file.close()


def _tap_facts(ended: RecordEnded) -> dict[str, Any]:
    """The facts that only a tap has: the bytes that it passed on, and its own cost, which is not measured yet."""
    return {
        "tap_ns": None,
        "tap_unknown": "its measurement after the command was interrupted",
        "refused": ended.refused,
        "bytes": {
            "to_server": ended.passed_to_server,
            "to_client": ended.passed_to_client,
            "all_passed_on": (ended.taken_to_server, ended.taken_to_client)
            == (ended.passed_to_server, ended.passed_to_client),
            "crc32_to_server": ended.crc32_to_server,
            "crc32_to_client": ended.crc32_to_client,
        },
    }


def _own_cost(rhythm: Rhythm, on_socket: bool, placement: Placement) -> dict[str, Any]:
    """The cost of the tap as facts, measured with the recorded rhythm. Only predictions need it."""
    try:
        # The first calibration finds the server's own share of the observed time: that is how long the application's CPU sleeps.
        rhythm = rhythm.without(calibrate(on_socket, rhythm, placement).floor_ns)
        found = calibrate(on_socket, rhythm, placement)
    except HowfarError as error:
        return {"tap_ns": None, "tap_unknown": error.message}
    limits = [found.tap_ns.low, found.tap_ns.high]
    return {
        "tap_unknown": None,
        "rhythm": rhythm.model_dump(),
        "cpus": placement.model_dump(),
        "floor_ns": found.floor_ns,
        "path_ns": found.path_ns,
        "tap_ns": round(found.tap_ns.value),
        "tap_limits_ns": [None if limit is None else round(limit) for limit in limits],
    }
