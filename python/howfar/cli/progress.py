"""Progress of a run: a picture on a terminal, a line after each trial elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from howfar.cli.opening import hand_over, take_over
from howfar.cli.screen import erase_lines, has_colour, is_terminal, rich_console
from howfar.contract.messages import Event, Finished, Interval, Measuring, Ready
from howfar.plan.factor import Level
from howfar.plan.types import Plan
from howfar.plan.workload import Unit
from howfar.report.terminal import to_ascii, wrap
from howfar.runner.observer import Observer
from howfar.runner.stopping import ATTEMPTS_PER_BLOCK, ArmProgress, Forecast, OwnFigure, RunProgress, Slot, own_figure
from howfar.stats.trials import operation_unit_of, operations_in
from howfar.store.records import CONFIRMATION_BLOCK, ArmRole, Run, StopReason, Trial, TrialStatus
from howfar.units import counted

STOP_TEXT = {
    StopReason.WIDTH: "every interval is as narrow as requested",
    StopReason.TIME: "the time budget is used up",
    StopReason.BLOCKS: "the maximum number of blocks is reached",
    StopReason.INTERRUPTED: "interrupted",
}
_DONE_TEXT = {
    StopReason.WIDTH: "every interval is as narrow as requested",
    StopReason.TIME: "as many as the time budget allows",
    StopReason.BLOCKS: "as many as the plan allows",
}
REFRESH_PER_S = 2
"""Redraws per second: they take CPU from the measured paths, and two are enough for a viewer."""
_MAX_RATIOS = 8
_MIN_FORECAST_BLOCKS = 4
"""Number of blocks after which the expected end may be revised: before that, the scatter is unknown."""
_MAX_END_ERROR = 0.1
"""The expected end that is shown is revised only if it is wrong by more than this share."""


def format_time(ns: float) -> str:
    """A duration as text: `4 min 10 s`, `35 s`."""
    seconds = max(round(ns / 1e9), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def format_ratio(arm: ArmProgress) -> str:
    """An arm's ratio as text: `0.781 ±4.1 %`, `p99 1.40 ±9 %`; empty if unknown or not applicable. An arm that is settled is no longer
    measured."""
    if not arm.keeps_up:
        return "does not keep up"
    if arm.ratio is None or arm.role in (ArmRole.BASELINE, ArmRole.CONTROL):
        return ""
    half_width = "" if arm.half_width is None else f" ±{arm.half_width * 100:.2g} %"
    if arm.half_width is not None and arm.half_width > 1:
        half_width = " (> ±100 %)"
    figure = f"{arm.figure} " if arm.figure else ""
    value = f"{arm.ratio.value:#.3g}".rstrip(".")
    return f"{figure}{value}{half_width}{', settled' if arm.is_paused else ''}"


def format_number(value: float) -> str:
    """A figure as text: `26,108`, `14.7`, `0.94`."""
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def format_block(number: int) -> str:
    """A block's name: `block 3`, `confirmation 1`."""
    if number >= CONFIRMATION_BLOCK:
        return f"confirmation {number - CONFIRMATION_BLOCK + 1}"
    return f"block {number + 1}"


def describe_end(stop: StopReason, blocks: int, duration_ns: float) -> str:
    """How a run ended, as text. Empty after Ctrl-C, because the command itself then reports what was kept."""
    if stop not in _DONE_TEXT:
        return ""
    if not blocks:
        return f"Ended after {format_time(duration_ns)} without a complete block: {STOP_TEXT[stop]}."
    return f"Done in {format_time(duration_ns)}, {counted(blocks, 'block')}: {_DONE_TEXT[stop]}."


class ExpectedEnd:
    """The expected end of a run, as it is shown.

    The forecast changes with every trial. The shown end is revised only when it has passed, or when it is far off after
    `_MIN_FORECAST_BLOCKS` blocks.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.end_ns = 0.0

    def update(self, forecast: Forecast, blocks: int, now_ns: float) -> None:
        """Take the forecast after `blocks` blocks, if the shown end has to be revised."""
        end_ns = now_ns + forecast.remaining_ns
        if (
            not self.blocks
            or now_ns >= self.end_ns
            or (blocks >= _MIN_FORECAST_BLOCKS and self._is_off(forecast, end_ns))
        ):
            self.blocks, self.end_ns = forecast.blocks, end_ns
        self.blocks = max(self.blocks, blocks)

    def _is_off(self, forecast: Forecast, end_ns: float) -> bool:
        error_ns, error_blocks = abs(end_ns - self.end_ns), abs(forecast.blocks - self.blocks)
        return error_ns > _MAX_END_ERROR * self.end_ns or error_blocks > max(1, _MAX_END_ERROR * self.blocks)


class Progress(Observer):
    """An observer that the command enters as a context manager and leaves before the report. `began_ns`: when the command began."""

    def __init__(self, plan: Plan, stream: TextIO, began_ns: int) -> None:
        self._plan = plan
        self._stream = stream
        self._began_ns = began_ns
        self._unit: Unit = "queries"
        self._blocks = 0
        self._expected_end = ExpectedEnd()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def leave(self) -> None:
        """Stop drawing, because this command continues in another process with its own observer."""

    def stay(self) -> None:
        """Draw again after `leave`, because the command continues in this process after all."""

    def _elapsed_ns(self) -> float:
        return max(time.monotonic_ns() - self._began_ns, 0)


class LineProgress(Progress):
    """Prints lines at the beginning and the end, and after each trial and block."""

    def __init__(self, plan: Plan, stream: TextIO, began_ns: int) -> None:
        super().__init__(plan, stream, began_ns)
        self._has_title = False
        self._factors: dict[str, Mapping[str, Level]] = {}
        self._repeated_block = (0, 0)
        self._left_out = 0
        self._is_waiting = False

    def preparing(self, step: str) -> None:
        if not self._has_title:
            self._has_title = True
            self.note(f"{self._plan.name}: {self._plan.question}")
        self.note(step)

    def note(self, sentence: str) -> None:
        print(sentence, file=self._stream, flush=True)

    def resumed(self, differs: Sequence[str]) -> None:
        if differs:
            self.note(f"howfar: warning: changed since the run began: {'; '.join(differs)}")

    def started(self, run: Run, plan: Plan, run_progress: RunProgress, forecast: Forecast) -> None:
        self._factors = {arm.name: arm.factors for arm in run.info.arms}
        self._blocks = run_progress.blocks
        self._unit = operation_unit_of(run.info.stored_plan)
        self._expected_end.update(forecast, run_progress.blocks, self._elapsed_ns())
        done_text = f", {len(run.trials)} trials done earlier" if run.trials else ""
        self.note(f"{_format_server(run)}, seed {run.info.seed}{done_text}")
        blocks_text = f"{_at_most_or_about(forecast, plan)} {counted(forecast.blocks, 'block')}"
        self.note(f"measuring {_count_arms(run)}, {blocks_text}, about {format_time(forecast.remaining_ns)}")

    def trial_started(self, slot: Slot, forecast: Forecast) -> None:
        if slot.attempt and (slot.block, slot.attempt) != self._repeated_block:
            self._repeated_block = slot.block, slot.attempt
            self.note(
                f"{format_block(slot.block)} is repeated from its first trial, attempt {slot.attempt + 1} of {ATTEMPTS_PER_BLOCK}"
            )

    def waiting(self, program: str) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self.note(f"waiting until other programs are quiet: {program}")

    def trial_ended(self, trial: Trial) -> None:
        self._is_waiting = False
        is_void = trial.status is TrialStatus.VOID
        position = "" if trial.block >= CONFIRMATION_BLOCK else f" {trial.position + 1}/{len(self._factors)}"
        figure = None if is_void else own_figure(self._factors.get(trial.arm, {}), [trial], self._unit)
        result = (
            f"void: {trial.void_reason}"
            if is_void
            else "measured"
            if figure is None
            else f"{format_number(figure.value)} {figure.unit}"
        )
        self.note(f"{format_block(trial.block)},{position} {trial.arm}: {result}")

    def block_ended(self, run_progress: RunProgress, forecast: Forecast) -> None:
        self._blocks = run_progress.blocks
        if run_progress.left_out > self._left_out:
            self._left_out = run_progress.left_out
            self.note(f"howfar: block {run_progress.blocks} had a void trial in each of {ATTEMPTS_PER_BLOCK} attempts")
        self._expected_end.update(forecast, run_progress.blocks, self._elapsed_ns())
        ratios = _format_ratios([arm for arm in run_progress.compared if arm.ratio is not None])
        remaining_ns = self._expected_end.end_ns - self._elapsed_ns()
        remaining = f"; about {format_time(remaining_ns)} left" if forecast.remaining_ns and remaining_ns > 0 else ""
        total = f"of {_at_most_or_about(forecast, self._plan)} {self._expected_end.blocks}"
        self.note(f"after block {run_progress.blocks} {total}: {ratios}{remaining}")

    def confirming(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.note(f"confirming: {line}")

    def stopped(self, stop: StopReason) -> None:
        if text := describe_end(stop, self._blocks, self._elapsed_ns()):
            self.note(text)


def _at_most_or_about(forecast: Forecast, plan: Plan) -> str:
    """How certain a number of blocks is: `at most` or `about`."""
    return "at most" if forecast.blocks >= plan.timing.max_blocks else "about"


def _format_server(run: Run) -> str:
    return f"{run.info.server_kind} {run.info.server_version.partition('-')[0]}".strip()


def _count_arms(run: Run) -> str:
    """The arms measured in each block, as text: `4 cells and 3 controls`."""
    controls = sum(arm.role in (ArmRole.DUPLICATE, ArmRole.CONTROL) for arm in run.info.arms)
    text = counted(len(run.info.arms) - controls, "cell")
    return text + (f" and {counted(controls, 'control')}" if controls else "")


def _format_ratios(compared: Sequence[ArmProgress]) -> str:
    """Ratios as text. If there are many, only the ratio with the widest interval, for which the run continues."""
    if not compared:
        return "all arms"  # arms with a fault have no ratios
    if len(compared) <= _MAX_RATIOS:
        return ", ".join(f"{arm.arm} {format_ratio(arm)}" for arm in compared)
    widest = max(compared, key=lambda arm: arm.half_width or 0.0)
    return f"{len(compared)} ratios, the widest {widest.arm} {format_ratio(widest)}"


# ---------------------------------------------------------------- the picture

_INTERRUPT_HINT = "Ctrl-C keeps all"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TIME_BAR_WIDTH = 24
_MAX_BAR_WIDTH, _MIN_BAR_WIDTH = 40, 6
_GAP = "  "
_IN_FIRST_BLOCK = "in the first block"


@dataclass(frozen=True)
class _ArmRow:
    """One arm of the picture."""

    name: str
    own: OwnFigure | None
    ratio: str
    has_bar: bool


class PictureProgress(Progress):
    """A picture on a terminal, which the report replaces. Its height stays the same from the first trial to the last."""

    def __init__(self, plan: Plan, stream: TextIO, began_ns: int, console: Console, drawn_lines: int = 0) -> None:
        """`drawn_lines`: number of lines above the cursor that the picture replaces."""
        super().__init__(plan, stream, began_ns)
        self._console = console
        self._drawn_lines = drawn_lines
        self._unicode = (console.encoding or "").lower().startswith("utf")
        self._step = "checking what this machine can measure, usually a few seconds"
        self._run: Run | None = None
        self._slot: Slot | None = None
        self._phase = ""
        self._run_progress: RunProgress | None = None
        self._first_trials: dict[str, list[Trial]] = {}
        self._void_trials: list[Trial] = []
        self._live: Live | None = None

    # -- called by the command

    def __enter__(self) -> PictureProgress:
        self.stay()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_drawing()  # lines that are still on the terminal belong to the other process

    def leave(self) -> None:
        self._stop_drawing()
        lines = self.lines()
        for line in lines:
            self._console.print(line, no_wrap=True, crop=True, overflow="ellipsis")
        self._drawn_lines = len(lines)
        hand_over(self._drawn_lines, self._began_ns)

    def stay(self) -> None:
        take_over(self._began_ns)
        self._erase()
        self._live = Live(  # a stopped Live does not know where the cursor is
            console=self._console, refresh_per_second=REFRESH_PER_S, transient=True, get_renderable=self._renderable
        )
        self._live.start(refresh=True)

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _erase(self) -> None:
        """Remove the lines that were left for another process."""
        if self._drawn_lines:
            erase_lines(self._stream, self._drawn_lines)
            self._drawn_lines = 0

    # -- called by the runner

    def preparing(self, step: str) -> None:
        self._step = step

    def note(self, sentence: str) -> None:
        self._console.print(Text(sentence))

    def resumed(self, differs: Sequence[str]) -> None:
        if differs:
            self._console.print(Text(f"Changed since the run began: {'; '.join(differs)}", style="yellow"))

    def started(self, run: Run, plan: Plan, run_progress: RunProgress, forecast: Forecast) -> None:
        self._run = run
        self._unit = operation_unit_of(run.info.stored_plan)
        self._void_trials = [trial for trial in run.trials if trial.status is TrialStatus.VOID]
        self.block_ended(run_progress, forecast)

    def trial_started(self, slot: Slot, forecast: Forecast) -> None:
        if slot.block >= CONFIRMATION_BLOCK and (self._slot is None or self._slot.block < CONFIRMATION_BLOCK):
            self._expected_end = ExpectedEnd()
        self._slot = slot
        self._phase = "starting server and path"
        self._expected_end.update(forecast, self._blocks, self._elapsed_ns())

    def waiting(self, program: str) -> None:
        self._phase = f"waiting: {program}"

    def engine_event(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._phase = "warming up"
        elif isinstance(event, Measuring):
            self._phase = "measuring"
        elif isinstance(event, Interval) and event.length_ns:
            per_s = operations_in(event, self._unit) * 1e9 / event.length_ns
            self._phase = f"measuring, {format_number(round(per_s))} {self._unit}/s"
        elif isinstance(event, Finished):
            self._phase = "checking what was measured"

    def trial_ended(self, trial: Trial) -> None:
        if trial.status is TrialStatus.VOID:
            self._void_trials.append(trial)
        self._first_trials.setdefault(trial.arm, []).append(trial)

    def block_ended(self, run_progress: RunProgress, forecast: Forecast) -> None:
        self._run_progress = run_progress
        self._blocks = run_progress.blocks
        self._expected_end.update(forecast, run_progress.blocks, self._elapsed_ns())

    def confirming(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.note(f"Testing a limit: {line}")

    def stopped(self, stop: StopReason) -> None:
        if text := describe_end(stop, self._blocks, self._elapsed_ns()):
            self._console.print(Text(text, style="bold"))

    # -- what is drawn

    def _renderable(self) -> Text:
        return Text("\n", no_wrap=True, overflow="ellipsis").join(self.lines())

    def lines(self) -> list[Text]:
        """The picture, as lines that fit on the terminal."""
        width, height = self._console.size
        width -= 3  # Ctrl-C is echoed at the end of the last line, which must not wrap
        head = [
            _align_ends(self._title(), _INTERRUPT_HINT, width),
            *map(Text, wrap(self._plan.question, width)),
            Text(),
        ]
        head += [*self._progress(), *([Text()] if self._run is not None else [])]
        rows, notes = self._rows(), list(self._notes())
        if notes and len(head) + len(rows) + len(notes) + 2 < height:
            notes.insert(0, ("", ""))
        elif len(notes) > 1 and len(head) + len(rows) + len(notes) + 1 >= height:
            notes = notes[1:]
        drawn = [*head, *self._table(rows, width, height - 1 - len(head) - len(notes))]
        drawn += [Text(line, style=style) for line, style in notes]
        for line in drawn:
            if not self._unicode:
                line.plain = to_ascii(line.plain)
            line.truncate(width, overflow="ellipsis" if self._unicode else "crop")
        return drawn[: height - 1]

    def _title(self) -> str:
        if self._run is None:
            return f"{self._plan.name} on {', '.join(self._plan.factors.server)}"
        return f"{self._plan.name} on {_format_server(self._run)}, seed {self._run.info.seed}"

    def _progress(self) -> list[Text]:
        """A bar with the elapsed time, and a line on the current step."""
        elapsed_ns = self._elapsed_ns()
        if self._run is None or self._run_progress is None:
            budget = f"{format_time(elapsed_ns)} of at most {format_time(self._plan.timing.time_budget_ns)}"
            return [Text(f"{self._bar(0, 1, _TIME_BAR_WIDTH, '░')}{_GAP}{budget}"), Text(_capitalise(self._step))]
        end_ns = max(self._expected_end.end_ns, elapsed_ns)
        # The bar is full only when the run has ended.
        bar = self._bar(min(elapsed_ns / max(end_ns, 1), 0.98), 1, _TIME_BAR_WIDTH, "░")
        time_text = f"{format_time(elapsed_ns)} of about {format_time(end_ns)}"
        slot = self._slot
        if slot is None:
            return [Text(f"{bar}{_GAP}{time_text}"), Text(_capitalise(self._step))]
        block_text = f"{format_block(slot.block)} of about {max(self._expected_end.blocks, 1)}"
        attempt = f", attempt {slot.attempt + 1}" if slot.attempt else ""
        trial = (
            "" if slot.block >= CONFIRMATION_BLOCK else f"{slot.position + 1} of {len(self._run.info.arms)}{attempt}: "
        )
        return [Text(f"{bar}{_GAP}{time_text}, {block_text}"), Text(f"{trial}{slot.arm}, {self._phase}")]

    def _rows(self) -> list[_ArmRow]:
        """The arms that are compared, the baseline's duplicate last; controls of the method are measured but not shown."""
        if self._run is None or self._run_progress is None:
            return []
        arms = [arm for arm in self._run.info.arms if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
        arms += [arm for arm in self._run.info.arms if arm.role is ArmRole.DUPLICATE]
        progress_by_arm = {arm.arm: arm for arm in self._run_progress.arms}
        rows = []
        for arm in arms:
            arm_progress = progress_by_arm[arm.name]
            figure = arm_progress.own or own_figure(
                arm.factors, self._first_trials.get(arm.name, []), self._unit, arm_progress.figure
            )
            rows.append(_ArmRow(arm.name, figure, format_ratio(arm_progress), arm_progress.keeps_up))
        return rows

    def _table(self, rows: list[_ArmRow], width: int, height: int) -> list[Text]:
        """A line with name, figure, bar and ratio for each row for which there is room."""
        if not rows or self._run_progress is None:
            return []
        left_out_count = len(rows) - (height - 1)
        if left_out_count > 0:
            left_out_count = min(left_out_count + 1, len(rows) - 1)
            rows = rows[: len(rows) - left_out_count]
        units = {row.own.unit for row in rows if row.own is not None}
        (unit,) = units if len(units) == 1 else ("",)
        figures = ["-" if row.own is None else _format_figure(row.own, unit) for row in rows]
        baselines = {arm.reference for arm in self._run_progress.compared}
        blocks_heading = f"after {counted(self._blocks, 'block')}" if self._blocks else _IN_FIRST_BLOCK
        headings = (blocks_heading, unit, f"ratio to {baselines.pop()}" if len(baselines) == 1 else "ratio")
        name_width = min(max(len(_IN_FIRST_BLOCK), *(len(row.name) for row in rows)), max(width // 3, 16))
        figure_width = max(len(headings[1]), 8, *map(len, figures))
        ratio_width = max(len(headings[2]), 14, *(len(row.ratio) for row in rows))
        bar_width = min(width - name_width - figure_width - ratio_width - 3 * len(_GAP), _MAX_BAR_WIDTH)
        bar_width = bar_width if bar_width >= _MIN_BAR_WIDTH else 0
        max_values = {
            unit: max((row.own.value for row in rows if row.own and row.own.unit == unit), default=0) for unit in units
        }

        def line(name: str, figure: str, bar: str, ratio: str) -> str:
            cells = [
                f"{self._shorten(name, name_width):<{name_width}}",
                f"{figure:>{figure_width}}",
                *([f"{bar:<{bar_width}}"] if bar_width else []),
                ratio,
            ]
            return _GAP.join(cells).rstrip()

        drawn_lines = [Text(line(headings[0], headings[1], "", headings[2]), style="dim")]
        for row, text in zip(rows, figures, strict=True):
            bar = (
                self._bar(row.own.value, max_values[row.own.unit], bar_width)
                if row.own is not None and row.has_bar
                else ""
            )
            drawn_lines.append(Text(line(row.name, text, bar, row.ratio)))
        return [*drawn_lines, Text(f"and {left_out_count} more", style="dim")] if left_out_count > 0 else drawn_lines

    def _shorten(self, text: str, width: int) -> str:
        return text if len(text) <= width else f"{text[: width - 1]}…"

    def _bar(self, value: float, maximum: float, width: int, background: str = "") -> str:
        """A bar in steps of an eighth of a character, or of `#` on a terminal that has only ASCII."""
        eighths = round(8 * width * min(value / maximum, 1)) if maximum > 0 else 0
        full, remainder = divmod(eighths, 8)
        if not self._unicode:
            return "#" * full + ("-" if background else "") * (width - full)
        if background:
            return "█" * full + background * (width - full)
        return "█" * full + (_EIGHTHS[remainder] if remainder else "")

    def _notes(self) -> Iterator[tuple[str, str]]:
        """Lines on arms that are not compared, each with its style. A line on void trials replaces the one on controls, so that the
        height stays the same."""
        if self._run is None:
            return
        for arm in self._run.info.arms:
            if arm.role is ArmRole.DUPLICATE:
                yield f"{arm.name}: the same path again, shows the noise", "dim"
        controls = [arm.name for arm in self._run.info.arms if arm.role is ArmRole.CONTROL]
        if self._void_trials:
            last = self._void_trials[-1]
            yield f"{counted(len(self._void_trials), 'void trial')}, the last {last.arm}: {last.void_reason}", "yellow"
        elif controls:
            yield f"Measured too, as a check of the method: {'; '.join(controls)}", "dim"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_figure(figure: OwnFigure, unit: str) -> str:
    """A figure, with its unit unless the column's heading has it."""
    return format_number(figure.value) if figure.unit == unit else f"{format_number(figure.value)} {figure.unit}"


def _align_ends(left: str, right: str, width: int) -> Text:
    """A line with a text at each end. The right one is left out if there is no room for it."""
    gap_width = width - len(left) - len(right)
    if gap_width < len(_GAP):
        return Text(left, style="bold")
    return Text.assemble((left, "bold"), " " * gap_width, (right, "dim"))


def make_observer(plan: Plan, no_colour: bool, began_ns: int) -> LineProgress | PictureProgress:
    """The observer for this terminal, to be entered at once and left before the report."""
    drawn_lines, began_ns = take_over(began_ns)
    if not is_terminal(sys.stderr):
        return LineProgress(plan, sys.stderr, began_ns)
    console = rich_console(sys.stderr, no_color=not has_colour(sys.stderr, no_colour), force_terminal=True)
    return PictureProgress(plan, sys.stderr, began_ns, console, drawn_lines)


@contextmanager
def temporary_line(text: str) -> Iterator[None]:
    """Show a line on the terminal during an operation of a few seconds; without a terminal, nothing."""
    if not is_terminal(sys.stderr):
        yield
        return
    sys.stderr.write(text)
    sys.stderr.flush()
    try:
        yield
    finally:
        erase_lines(sys.stderr, 0)
