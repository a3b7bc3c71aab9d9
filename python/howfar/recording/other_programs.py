"""Other programs that were busy during a recording, a slope or a prediction: when, which, and how much CPU time they used."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from howfar.contract.receipt import ProgramUse
from howfar.contract.receipt_part import ReceiptPart
from howfar.errors import HowfarError
from howfar.other_programs import (
    MAX_REPEATS,
    SAMPLE_S,
    OtherPrograms,
    ProgramsInTrial,
    StartWatch,
    Waiting,
    are_busy,
    busiest,
    program_name,
    waits_for_programs,
)
from howfar.recording.texts import phrase
from howfar.stats.estimate import Part
from howfar.stats.intervals import MIN_BLOCKS
from howfar.store.records import MAX_DISTURBED_SHARE

MUCH_SHARE = 0.25
"""Share of pages during which other programs were busy from which these cast doubt on a figure."""
_MIN_SPAN_S, _MAX_COST_SHARE = 1.0, 0.002
"""Minimum length of a span of a recording, and maximum share of a CPU for reading what programs used in it."""
_MAX_SPANS = 1000
"""Maximum number of spans that are kept; the last one then lasts to the end."""
_NICENESS = 10

Result = TypeVar("Result")


class BusySpan(ReceiptPart):
    """A part of a recording during which other programs were busy."""

    begun_ns: int
    ended_ns: int
    programs: tuple[ProgramUse, ...]


class RecordedPrograms(ReceiptPart):
    """What other programs did during a recording. Those that belong to the application, as far as known, or to the server are not
    among them."""

    machine_cpus: int
    are_others: bool = True
    """Whether none of them belongs to the application. False: the application's processes are not known."""
    busy: tuple[BusySpan, ...] = ()
    calibration: tuple[ProgramUse, ...] = ()
    """Those that were busy after the recording, while its cost was measured."""


class BusyPrograms(Part):
    """Other programs that were busy during some of the pages or blocks of a measurement."""

    programs: tuple[ProgramUse, ...]
    """Each with its largest use, the busiest first. Empty: all were quiet."""
    machine_cpus: int
    are_others: bool = True
    """See `RecordedPrograms`."""
    disturbed: int
    """Number of pages or blocks during which they were busy."""
    of: int
    repeated: int = 0
    """Number of disturbed blocks that were measured again and do not count."""
    left_out: int = 0
    """Number of other disturbed blocks that do not count."""

    @property
    def counted(self) -> int:
        """Number of disturbed pages or blocks that count."""
        return self.disturbed - self.repeated - self.left_out

    @property
    def disturb_blocks(self) -> bool:
        """Whether other programs disturbed blocks that count."""
        return self.are_others and self.counted > 0

    @property
    def disturb_pages(self) -> bool:
        """Whether other programs disturbed so many pages that this casts doubt on a figure of all."""
        return self.are_others and self.counted >= MUCH_SHARE * self.of > 0

    @property
    def use(self) -> str:
        """What the busiest used: `cargo (pid 4711) used up to 0.9 of 2 CPUs`."""
        return busiest(self.programs, self.machine_cpus, at_most=True)

    @property
    def use_without_pid(self) -> str:
        """What the busiest used, without brackets: `cargo used up to 0.9 of 2 CPUs`."""
        return busiest(self.programs, self.machine_cpus, at_most=True, with_pid=False)

    @property
    def in_blocks(self) -> str:
        """What the busiest used, in how many blocks, and whether these count."""
        text = phrase("others/blocks", use=self.use, disturbed=self.disturbed, of=self.of)
        if self.counted == self.disturbed:
            return text
        fates = ["counted"] if self.counted else ["again"] * (self.repeated > 0) + ["out"] * (self.left_out > 0)
        number = "one" if self.disturbed == 1 else "several"
        return text + phrase(f"others/blocks/{'-'.join(fates)}/{number}", counted=self.counted)

    @property
    def name(self) -> str:
        """Name and PID of the busiest."""
        return program_name(self.programs[0].name, self.programs[0].pid)


def find_busy_pages(recorded: RecordedPrograms | None, pages: Sequence[tuple[int, int]]) -> BusyPrograms | None:
    """Find the pages, each with its begin and end, during which other programs were busy. None: not looked for, or not seen."""
    if recorded is None:
        return None
    uses = [_uses_during(recorded.busy, *page) for page in pages]
    return BusyPrograms(
        programs=_largest_uses(use for found in uses for use in found),
        machine_cpus=recorded.machine_cpus,
        are_others=recorded.are_others,
        disturbed=sum(bool(found) for found in uses),
        of=len(pages),
    )


def merge_found(found: Sequence[BusyPrograms]) -> BusyPrograms | None:
    """What was found in several series of blocks, as one; None if there are none."""
    if not found:
        return None
    return BusyPrograms(
        programs=_largest_uses(use for each in found for use in each.programs),
        machine_cpus=found[0].machine_cpus,
        **{name: sum(getattr(each, name) for each in found) for name in ("disturbed", "of", "repeated", "left_out")},
    )


def busy_pages_note(page: str, found: BusyPrograms | None) -> str | None:
    """A note that other programs were busy during pages of this name; None if they were not, or if that is unknown."""
    if found is None or not found.disturbed:
        return None
    name = "record/busy" if found.are_others else "record/busy/perhaps-own"
    return phrase(name, page=page, disturbed=found.disturbed, of=found.of, use=found.use)


def find_busy_calibration(recorded: RecordedPrograms | None) -> BusyPrograms | None:
    """Find the programs that were busy while the cost of a recording was measured. None: none were, or that is unknown."""
    if recorded is None or not recorded.calibration:
        return None
    return BusyPrograms(programs=recorded.calibration, machine_cpus=recorded.machine_cpus, disturbed=1, of=1)


def _uses_during(spans: Sequence[BusySpan], begun_ns: int, ended_ns: int) -> list[ProgramUse]:
    uses: list[ProgramUse] = []
    for span in spans[bisect_left(spans, begun_ns, key=lambda span: span.ended_ns) :]:
        if span.begun_ns > ended_ns:
            break
        uses += span.programs
    return uses


def _largest_uses(uses: Iterable[ProgramUse]) -> tuple[ProgramUse, ...]:
    largest = {use.name: use for use in sorted(uses, key=lambda use: use.cpus)}
    return tuple(sorted(largest.values(), key=lambda use: -use.cpus))


class RecordingWatch:
    """Watches other programs during a recording, in spans of a second or more. Use as a context manager. `has_ended` waits for the
    given number of seconds, or until the recording ends, and returns whether it has ended."""

    def __init__(
        self,
        start_watch: StartWatch,
        has_ended: Callable[[float], bool] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._start_watch, self._monotonic_ns = start_watch, monotonic_ns
        self._end = threading.Event()
        self._has_ended = has_ended or self._end.wait
        self._thread = threading.Thread(target=self._watch, name="programs", daemon=True)
        self._spans: list[BusySpan] = []
        self._are_seen = False

    def found(self, are_others: bool = True) -> RecordedPrograms | None:
        """What was found up to the end. None: other programs could not be seen all the time."""
        if not self._are_seen:
            return None
        return RecordedPrograms(machine_cpus=os.cpu_count() or 1, are_others=are_others, busy=tuple(self._spans))

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        span_s, has_ended = _MIN_SPAN_S, False
        while not has_ended:
            begun_ns, cpu_s = self._monotonic_ns(), time.thread_time()
            if (watch := self._start_watch()) is None:
                return
            has_ended = self._has_ended(span_s)
            programs, ended_ns = watch.finish(), self._monotonic_ns()
            self._are_seen = programs is not None
            if programs is None:
                return
            self._add(BusySpan(begun_ns=begun_ns, ended_ns=ended_ns, programs=programs))
            span_s = max(_MIN_SPAN_S, (time.thread_time() - cpu_s) / _MAX_COST_SHARE)

    def _add(self, span: BusySpan) -> None:
        # In a shorter span, one of the kernel's steps of 10 ms could seem to be a busy program.
        if span.ended_ns - span.begun_ns < SAMPLE_S * 1e9 or not are_busy(span.programs):
            return
        if self._spans and (len(self._spans) >= _MAX_SPANS or _follows(span, self._spans[-1])):
            last = self._spans.pop()
            programs = _largest_uses((*last.programs, *span.programs))
            span = span.model_copy(update={"begun_ns": last.begun_ns, "programs": programs})
        self._spans.append(span)

    def __enter__(self) -> RecordingWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def _follows(span: BusySpan, previous: BusySpan) -> bool:
    """Whether a span follows another with only a reading between them."""
    return span.begun_ns - previous.ended_ns < _MIN_SPAN_S * 1e9 / 2


class BlockWatch:
    """Measures blocks while other programs are quiet, as far as time allows: waits for them before a block, and measures a block again
    that they disturbed. `has_time` tells from the seconds that this took so far whether there may be more of it. If the programs may
    be the application's (`are_others=False`) or nothing waits for them, they are only named."""

    def __init__(
        self,
        start_watch: StartWatch,
        has_time: Callable[[float], bool],
        say: Callable[[str], None],
        are_others: bool = True,
        waiting: Waiting | None = None,
    ) -> None:
        self._has_time, self._say, self._are_others = has_time, say, are_others
        self._waiting = waiting or Waiting()
        self._applies_rule = are_others and waits_for_programs()
        self._others = OtherPrograms(start_watch, self._applies_rule, self._say_waiting, self._waiting)
        self._is_waiting = False
        self._lost_ns = 0
        self._uses: list[ProgramUse] = []
        self._is_disturbed: list[bool] = []
        """For each block that was measured to its end, whether its last repetition was disturbed."""
        self._has_failed_disturbed: list[bool] = []
        """For each block that failed, whether it was disturbed."""
        self._repeated = self._left_out = 0
        self._are_seen = False

    def run(self, measure: Callable[[], Result]) -> Result:
        """Measure a block. Errors of `measure` propagate."""
        for attempt in range(MAX_REPEATS + 1):
            self._others.may_wait, self._is_waiting = self._may_lose_time(), False
            self._others.begin_trial()
            begun_ns = self._waiting.monotonic_ns()
            try:
                result = measure()
            except HowfarError:
                self._has_failed_disturbed.append(self._end_trial().were_busy)
                raise
            took_ns, ended = self._waiting.monotonic_ns() - begun_ns, self._end_trial()
            if ended.why_repeated is None or attempt == MAX_REPEATS or not self._may_lose_time():
                break
            self._repeated += 1
            self._lost_ns += took_ns
        self._is_disturbed.append(ended.were_busy)
        return result

    def _end_trial(self) -> ProgramsInTrial:
        ended = self._others.end_trial()
        self._are_seen |= ended.programs is not None
        self._uses += ended.programs or () if ended.were_busy else ()
        self._lost_ns += ended.quiet.waited_ns if ended.quiet is not None else 0
        return ended

    def _say_waiting(self, program: str) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._say(phrase("say/waiting", program=program))

    def _may_lose_time(self) -> bool:
        return self._applies_rule and self._has_time(self._lost_ns / 1e9)

    def without_disturbed(self, blocks: Sequence[Result]) -> list[Result]:
        """The blocks without those that were disturbed, if these are few."""
        assert len(blocks) == len(self._is_disturbed), "each block was measured with `run`, without an error"
        disturbed = sum(self._is_disturbed)
        is_few = disturbed <= MAX_DISTURBED_SHARE * len(blocks) and len(blocks) - disturbed >= MIN_BLOCKS
        if not is_few or not self._applies_rule:
            return list(blocks)
        self._left_out = disturbed
        return [block for block, is_disturbed in zip(blocks, self._is_disturbed, strict=True) if not is_disturbed]

    def found(self) -> BusyPrograms | None:
        """What was found. None: other programs cannot be seen."""
        if not self._are_seen:
            return None
        return BusyPrograms(
            programs=_largest_uses(self._uses),
            machine_cpus=os.cpu_count() or 1,
            are_others=self._are_others,
            disturbed=sum(self._is_disturbed) + sum(self._has_failed_disturbed) + self._repeated,
            of=len(self._is_disturbed) + len(self._has_failed_disturbed) + self._repeated,
            repeated=self._repeated,
            left_out=self._left_out + sum(self._has_failed_disturbed),
        )
