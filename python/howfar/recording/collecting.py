"""Collects the contents of a recording while the application runs: round trips, connections, digests, pages, and the final facts."""

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
from typing import Protocol

import howfar
from howfar.contract.messages import PacketsEnded, Recorded, RecordEnded
from howfar.errors import EngineError, HowfarError, RunFileError
from howfar.other_programs import MAX_LOST_SHARE, StartWatch
from howfar.recording.calibration import Placement, Rhythm, calibrate, calibration_s, median_rhythm
from howfar.recording.facts import PassedBytes, RecordingFacts
from howfar.recording.gaps import pages_by_gaps
from howfar.recording.marks import Marks
from howfar.recording.other_programs import BlockWatch, RecordedPrograms
from howfar.recording.record_tap import RecordTap
from howfar.recording.recording import RecordingFile, TimedPage
from howfar.recording.texts import phrase
from howfar.stopping import raising_on_end_signals

_MALFORMED = "marks that were not understood"
_ONE_YEAR_S = 365 * 86_400.0
_NOTABLE_CALIBRATION_S = 1.0
_LATE_EVENT_NS = 10_000_000_000
"""An event that arrives this long after its time is late. The tap keeps events for half of this time."""
_TAP_KILLED = "the tap was killed, and what it had seen last, up to 5 s, is lost; connections went on unrecorded"


class EventSource(Protocol):
    """A source of events for a recording."""

    def events(self) -> Iterator[Recorded | RecordEnded | PacketsEnded]:
        """Yield all events, including the last. Raises EngineError if the source is not reachable."""
        ...


@dataclass
class CollectedEvents:
    """Totals of the events so far, and how they ended."""

    ended: RecordEnded | PacketsEnded | None = None
    stopped: str | None = None
    protocols: Counter[str] = field(default_factory=Counter)
    tls: bool = False
    round_trips: int = 0
    others: RecordedPrograms | None = None
    """What other programs did meanwhile; None if that is unknown."""

    def facts(self, unknown_counts: Mapping[str, int], code: int) -> RecordingFacts:
        """The facts to write at the end. `unknown_counts`: further reasons why something is unknown, and how often, which may be 0."""
        unknown = Counter(self.ended.unknown if self.ended else {})
        unknown.update({reason: count for reason, count in unknown_counts.items() if count})
        return RecordingFacts(
            protocol=self.protocols.most_common(1)[0][0] if self.protocols else "unknown",
            tls=self.tls,
            round_trips=self.round_trips,
            unknown=unknown,
            commands=self.ended.commands if self.ended else {},
            exit_code=code,
            stopped=self.stopped,
            complete=self.stopped is None,
            others=self.others,
        )


def collect(source: EventSource, file: RecordingFile, collected: CollectedEvents, marks: Marks | None = None) -> None:
    """Write all events to the file, and the marked pages as they arrive. An error of the file or the tap ends only the recording, not
    the application."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # lower than the application's
    is_idle_priority = _set_scheduling(os.SCHED_IDLE)
    try:
        for event in source.events():
            if is_idle_priority and _needs_normal_priority(event):
                is_idle_priority = _set_scheduling(os.SCHED_OTHER)
            if isinstance(event, PacketsEnded):
                collected.ended = event
            elif isinstance(event, RecordEnded):
                collected.ended = event
                collected.stopped = collected.stopped or event.stopped
            elif collected.stopped is None:
                try:
                    _add_event(event, file, collected)
                    if marks is not None:
                        file.add_pages(marks.take())
                except HowfarError as error:
                    collected.stopped = error.message
    except EngineError as error:
        collected.stopped = _TAP_KILLED if isinstance(source, RecordTap) else error.message
    finally:
        _set_scheduling(os.SCHED_OTHER)


@contextmanager
def collecting(tap: RecordTap, file: RecordingFile, collected: CollectedEvents, marks: Marks) -> Iterator[None]:
    """Call `collect` in a thread during the block. After the block, the last event is requested from the tap."""
    collector = threading.Thread(target=collect, args=(tap, file, collected, marks), name="collect", daemon=True)
    collector.start()
    yield
    with contextlib.suppress(EngineError):
        tap.finish()
    collector.join()


def _set_scheduling(policy: int) -> bool:
    """Set the scheduling policy of the calling thread. Returns whether it yields to all other threads (SCHED_IDLE)."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))
    return policy == os.SCHED_IDLE


def _needs_normal_priority(event: Recorded | RecordEnded | PacketsEnded) -> bool:
    """Whether this thread must return to normal priority, because it lacks CPU time or the application has ended."""
    if not isinstance(event, Recorded) or not event.round_trips:
        return not isinstance(event, Recorded)
    return time.monotonic_ns() - event.round_trips[-1].ended_ns > _LATE_EVENT_NS


def _add_event(event: Recorded, file: RecordingFile, collected: CollectedEvents) -> None:
    file.add_digests(event.digests)
    file.add_round_trips(event.round_trips)
    file.add_connections(event.connections)
    # Connections of unknown protocol, such as those without data, do not count.
    collected.protocols.update(
        connection.protocol for connection in event.connections if connection.protocol != "unknown"
    )
    collected.tls |= any(connection.tls for connection in event.connections)
    collected.round_trips += len(event.round_trips)


def wait_for(seconds: float | None) -> None:
    """Wait until the user interrupts or ends this program, but at most for `seconds` unless that is None."""
    with contextlib.suppress(KeyboardInterrupt), raising_on_end_signals():
        time.sleep(_ONE_YEAR_S if seconds is None else seconds)


def new_facts(method: str, transport: str, command: str | None) -> RecordingFacts:
    """The facts that are known when a recording begins."""
    facts = RecordingFacts(
        howfar=howfar.__version__,
        began_unix_ns=time.time_ns(),
        method=method,
        command=command,
        transport=transport,
        idle="as-found",
    )
    return facts if method == "tap" else facts.updated(RecordingFacts(floor_ns=0, tap_ns=0))


def add_pages(
    file: RecordingFile, marks: Marks | None, run_page: TimedPage | None, infer_from_gaps: bool
) -> dict[str, int]:
    """Write the pages and assign the round trips to them. Returns how often something remains unknown, by reason.

    If no page was marked, `infer_from_gaps` infers pages from the gaps between round trips; else `run_page` is the only page.
    """
    marked, malformed = (marks.pages, marks.malformed) if marks else ([], 0)
    if infer_from_gaps and not marked:
        pages, page_ids = pages_by_gaps(file.ordered_round_trips())
        if pages:
            file.add_pages(pages)
            file.set_page_ids(page_ids)
            return {_MALFORMED: malformed}
    file.add_pages(marked or ([run_page] if run_page else []))
    return {
        _MALFORMED: malformed,
        "claimed by two pages": file.assign_pages(),
        "where a page ends: rests between pages are not clearly longer than the pauses within one": int(
            infer_from_gaps and not marked
        ),
    }


@contextmanager
def new_recording(out: Path, facts: RecordingFacts) -> Iterator[RecordingFile]:
    """Begin a recording. After an error, its file is kept only if it has a round trip. Raises RunFileError."""
    file = RecordingFile(out, facts)
    try:
        yield file
    except BaseException:
        has_content = file.has_round_trips()
        file.close()
        if not has_content:
            file.remove()
        raise


@contextmanager
def reporting_write_errors(file: RecordingFile, say: Callable[[str], None]) -> Iterator[None]:
    """Complete a recording in the block. If writing fails, as on a full disk, the error is reported with `say`; the file keeps its
    contents, and the command's exit code is unaffected."""
    try:
        yield
    except RunFileError as error:
        say(phrase("say/ends-there", reason=error.message))
        file.close()


def finish(
    file: RecordingFile,
    collected: CollectedEvents,
    unknown: Mapping[str, int],
    code: int,
    say: Callable[[str], None],
    measure_names: Callable[[], RecordingFacts] = RecordingFacts,
    start_watch: StartWatch = lambda: None,
) -> None:
    """Complete a recording. If it was made by a tap, also add the facts of `measure_names` and measure the cost of the tap while other
    programs are quiet, unless the user interrupts this."""
    ended = collected.ended
    facts = collected.facts(unknown, code)
    if not isinstance(ended, RecordEnded):
        file.finish(facts)
        return
    file.seal(facts.updated(_tap_facts(ended)))
    placement = Placement.of_processes(ended.server_pid)
    rhythm = median_rhythm(file.page_timings())
    seconds = 2 * calibration_s(rhythm)
    try:
        if seconds > _NOTABLE_CALIBRATION_S:
            say(phrase("say/calibrating", seconds=seconds))
        file.seal(measure_names())
        watch = BlockWatch(start_watch, lambda lost_s: lost_s < MAX_LOST_SHARE * seconds, say)
        cost = watch.run(lambda: _measure_tap_cost(rhythm, file.facts.transport == "unix", placement))
        found = watch.found()
        if collected.others is not None and found is not None and found.counted:
            cost.others = collected.others.model_copy(update={"calibration": found.programs})
        file.seal(cost)
    except KeyboardInterrupt:
        say(phrase("say/not-calibrated"))
    file.close()


def _tap_facts(ended: RecordEnded) -> RecordingFacts:
    """The facts that exist only with a tap: the bytes that it passed on, and its cost, which is not measured yet."""
    passed = (ended.passed_to_server, ended.passed_to_client)
    return RecordingFacts(
        tap_ns=None,
        tap_unknown="its measurement after the command was interrupted",
        refused=ended.refused,
        passed=PassedBytes(
            to_server=ended.passed_to_server,
            to_client=ended.passed_to_client,
            all_passed_on=(ended.taken_to_server, ended.taken_to_client) == passed,
            crc32_to_server=ended.crc32_to_server,
            crc32_to_client=ended.crc32_to_client,
        ),
    )


def _measure_tap_cost(rhythm: Rhythm, on_socket: bool, placement: Placement) -> RecordingFacts:
    """Measure the cost of the tap with the recorded rhythm. Returns facts that only predictions need."""
    try:
        # The first calibration yields the server's own share of the observed time, which is how long the application's CPU sleeps.
        rhythm = rhythm.without_floor(calibrate(on_socket, rhythm, placement).floor_ns)
        calibration = calibrate(on_socket, rhythm, placement)
    except HowfarError as error:
        return RecordingFacts(tap_ns=None, tap_unknown=error.message)
    low, high = (None if limit is None else round(limit) for limit in (calibration.tap_ns.low, calibration.tap_ns.high))
    return RecordingFacts(
        tap_unknown=None,
        rhythm=rhythm,
        cpus=placement,
        floor_ns=calibration.floor_ns,
        path_ns=calibration.path_ns,
        tap_ns=round(calibration.tap_ns.value),
        tap_limits_ns=(low, high),
    )
