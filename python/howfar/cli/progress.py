"""Progress of a run: a live table on a terminal, lines elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from howfar.cli.screen import has_colour, is_terminal, rich_console, width
from howfar.engine.messages import Event, Finished, Interval, Measuring, Ready
from howfar.plan.types import Plan
from howfar.runner.observer import Observer
from howfar.runner.stopping import ATTEMPTS_PER_BLOCK, ArmStanding, Forecast, Slot, Standing
from howfar.stats.trials import Unit, operations_in, unit_of
from howfar.store.records import (
    CONFIRMATION_BLOCK,
    ArmRole,
    CrashRecord,
    FallbackRecord,
    Run,
    StopReason,
    Trial,
    TrialStatus,
)
from howfar.units import counted

STOPPED = {
    StopReason.WIDTH: "every interval is as narrow as requested",
    StopReason.TIME: "the time budget is used up",
    StopReason.BLOCKS: "the maximum number of blocks is reached",
    StopReason.INTERRUPTED: "interrupted",
}
REFRESH_PER_S = 2
"""Drawings per second: they take CPU from the measured paths, and two are enough for an eye."""
_FEW = 100
_MOST_RATIOS = 8


def time_left(ns: int) -> str:
    """Time as text: `4 min 10 s`, `35 s`."""
    seconds = max(round(ns / 1e9), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def ratio(arm: ArmStanding) -> str:
    """Ratio as text: `0.78 ±4 %`, `p99 1.4 ±9 %`, `baseline`, `-` while unknown or without one; `(settled)`: no longer measured."""
    if arm.role in (ArmRole.BASELINE, ArmRole.CONTROL):
        return arm.role.value
    if arm.ratio is None:
        return "-"
    half = "" if arm.half_width is None else f" ±{arm.half_width * 100:.3g} %"
    if arm.half_width is not None and arm.half_width > 1:
        half = " (> ±100 %)"
    figure = f"{arm.figure} " if arm.figure else ""
    return f"{figure}{arm.ratio.value:.3f}{half}{' (settled)' if arm.rests else ''}"


def number(rate: float) -> str:
    """Rate as text: `26108`, `14.7`."""
    return f"{rate:.1f}" if rate < _FEW else f"{rate:.0f}"


def blocks_of(forecast: Forecast, most: int) -> str:
    """Expected blocks as text: `of about 4`; `of at most 30` when only the limit ends the run."""
    return f"of at most {most}" if forecast.blocks >= most else f"of about {forecast.blocks}"


def block(number: int) -> str:
    """Block as text: `block 3`, `confirmation 1`."""
    if number >= CONFIRMATION_BLOCK:
        return f"confirmation {number - CONFIRMATION_BLOCK + 1}"
    return f"block {number + 1}"


def trial_result(trial: Trial, unit: Unit) -> str:
    """Result as text: `26108 queries/s`, losses after a fault, or why the trial is void."""
    if trial.status is TrialStatus.OK and isinstance(trial.fault, CrashRecord):
        return f"lost {trial.fault.lost} of {trial.fault.acknowledged} acknowledged commits"
    if trial.status is TrialStatus.OK and isinstance(trial.fault, FallbackRecord):
        return f"{trial.fault.unprotected} of {trial.fault.acknowledged} commits unprotected"
    if trial.status is TrialStatus.OK and trial.measured is not None:
        return f"{number(operations_in(trial.measured, unit) / (trial.measured.elapsed_ns / 1e9))} {unit}/s"
    return f"void: {trial.void_reason}"


def _arms(run: Run) -> str:
    """Arms as text: `4 cells and 3 controls`, those measured in each block."""
    roles = [arm.role for arm in run.info.arms]
    controls = sum(role in (ArmRole.DUPLICATE, ArmRole.CONTROL) for role in roles)
    cells = len(roles) - controls
    text = counted(cells, "cell")
    return text + (f" and {counted(controls, 'control')}" if controls else "")


def _ratios(compared: Sequence[ArmStanding]) -> str:
    """Ratios as text; of many only the widest, for which the run continues."""
    if not compared:
        return "all arms"  # an arm with a fault has no ratio
    if len(compared) <= _MOST_RATIOS:
        return ", ".join(f"{arm.arm} {ratio(arm)}" for arm in compared)
    widest = max(compared, key=lambda arm: arm.half_width or 0.0)
    return f"{len(compared)} ratios, the widest {widest.arm} {ratio(widest)}"


class Lines(Observer):
    """Prints lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unit: Unit = "queries"
        self._arms = 0
        self._max_blocks = 0
        self._again = (0, 0)
        self._left_out = 0

    def resumed(self, differs: Sequence[str]) -> None:
        if differs:
            self._print(f"warning: changed since the run began: {'; '.join(differs)}", warning=True)

    def begun(self, run: Run, plan: Plan, standing: Standing, forecast: Forecast) -> None:
        self._arms = len(run.info.arms)
        self._max_blocks = plan.timing.max_blocks
        self._unit = unit_of(run.info.plan)
        done = f", {len(run.trials)} trials done earlier" if run.trials else ""
        self._print(f"{run.info.server_kind} {run.info.server_version}, seed {run.info.seed}{done}")
        blocks = blocks_of(forecast, self._max_blocks).removeprefix("of ")
        self._print(f"measuring {_arms(run)}, {blocks} blocks, about {time_left(forecast.left_ns)}")

    def trial_started(self, place: Slot, forecast: Forecast) -> None:
        self._say_again(place)

    def _say_again(self, place: Slot) -> None:
        """Print once that a block starts again."""
        if place.attempt and (place.block, place.attempt) != self._again:
            self._again = place.block, place.attempt
            self._print(
                f"{block(place.block)} is repeated from its first trial, attempt {place.attempt + 1} of {ATTEMPTS_PER_BLOCK}"
            )

    def trial_ended(self, trial: Trial) -> None:
        position = "" if trial.block >= CONFIRMATION_BLOCK else f" {trial.position + 1}/{self._arms}"
        self._print(f"{block(trial.block)},{position} {trial.arm}: {trial_result(trial, self._unit)}")

    def block_ended(self, standing: Standing, forecast: Forecast) -> None:
        self._say_left_out(standing)
        ratios = _ratios([arm for arm in standing.compared if arm.ratio is not None])
        left = f"; about {time_left(forecast.left_ns)} left" if forecast.left_ns else ""
        self._print(f"after block {standing.blocks} {blocks_of(forecast, self._max_blocks)}: {ratios}{left}")

    def _say_left_out(self, standing: Standing) -> None:
        if standing.left_out > self._left_out:
            self._left_out = standing.left_out
            self._print(
                f"block {standing.blocks} had a void trial in each of {ATTEMPTS_PER_BLOCK} attempts",
                warning=True,
            )

    def confirming(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(f"confirming: {line}")

    def stopped(self, stop: StopReason) -> None:
        self._print(f"ended: {STOPPED[stop]}")

    def _print(self, text: str, warning: bool = False) -> None:
        print(f"howfar: {text}" if warning else text, file=self._stream, flush=True)


class LivePicture(Lines):
    """A picture on a terminal, and a context manager: the last picture stays."""

    def __init__(self, stream: TextIO, colour: bool, width: int) -> None:
        super().__init__(stream)
        self._console = rich_console(stream, no_color=not colour, width=width, force_terminal=True)
        self._head = "building the laboratory"
        self._doing = ""
        self._phase = ""
        self._standing: Standing | None = None
        self._voids = 0
        self._ends_at = 0.0
        self._live = Live(
            console=self._console, refresh_per_second=REFRESH_PER_S, transient=True, get_renderable=self._picture
        )

    def begun(self, run: Run, plan: Plan, standing: Standing, forecast: Forecast) -> None:
        self._head = f"{run.info.plan_name} on {run.info.server_kind} {run.info.server_version}, seed {run.info.seed}"
        self._arms = len(run.info.arms)
        self._max_blocks = plan.timing.max_blocks
        self._unit = unit_of(run.info.plan)
        self.block_ended(standing, forecast)

    def trial_started(self, place: Slot, forecast: Forecast) -> None:
        self._say_again(place)
        again = f", attempt {place.attempt + 1}" if place.attempt else ""
        if place.block >= CONFIRMATION_BLOCK:
            at = f"of {forecast.blocks},"
        else:
            at = f"{blocks_of(forecast, self._max_blocks)}, {place.position + 1}/{self._arms}"
        self._doing = f"{block(place.block)} {at} {place.arm}{again}"
        self._phase = "starting"
        self._expect(forecast)

    def engine_event(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._phase = "warming up"
        elif isinstance(event, Measuring):
            self._phase = "measuring"
        elif isinstance(event, Interval) and event.length_ns:
            done = operations_in(event, self._unit)
            self._phase = f"measuring, {number(done / (event.length_ns / 1e9))} {self._unit}/s"
        elif isinstance(event, Finished):
            self._phase = "ending"

    def trial_ended(self, trial: Trial) -> None:
        if trial.status is TrialStatus.VOID:
            self._voids += 1
            self._print(f"void: {block(trial.block)}, {trial.arm}: {trial.void_reason}", warning=True)

    def block_ended(self, standing: Standing, forecast: Forecast) -> None:
        self._say_left_out(standing)
        self._standing = standing
        self._expect(forecast)

    def stopped(self, stop: StopReason) -> None:
        self._doing = f"ended: {STOPPED[stop]}"
        self._phase = ""
        self._print(self._doing)

    def _print(self, text: str, warning: bool = False) -> None:
        self._console.print(Text(text, style="yellow" if warning else ""))

    def __enter__(self) -> LivePicture:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _expect(self, forecast: Forecast) -> None:
        self._ends_at = time.monotonic() + forecast.left_ns / 1e9

    def _picture(self) -> RenderableType:
        def line(text: str, style: str = "") -> Text:
            return Text(text, style=style, overflow="ellipsis", no_wrap=True)

        lines: list[RenderableType] = [line(self._head, "bold")]
        if self._doing:
            lines.append(line(self._doing))
        if self._phase:
            left = time_left(int((self._ends_at - time.monotonic()) * 1e9))
            lines.append(line(f"{self._phase}; about {left} left", "dim"))
        if self._standing is not None and self._standing.blocks:
            lines.append(self._table(self._standing))
        if self._voids:
            lines.append(Text(f"{self._voids} void", style="yellow"))
        return Group(*lines)

    def _table(self, now: Standing) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column(f"after block {now.blocks}", overflow="ellipsis", no_wrap=True)
        table.add_column(f"{self._unit}/s", justify="right", no_wrap=True)
        table.add_column("ratio", justify="right", no_wrap=True)
        for arm in now.arms:
            table.add_row(arm.arm, "-" if arm.rate is None else number(arm.rate), ratio(arm))
        return table


def observer(no_colour: bool) -> AbstractContextManager[Observer]:
    """The observer for this terminal, to be entered when measuring begins and left before the report."""
    if is_terminal(sys.stderr):
        return LivePicture(sys.stderr, has_colour(sys.stderr, no_colour), width(sys.stderr))
    return contextlib.nullcontext(Lines(sys.stderr))
