"""Progress as a picture that renews itself: what runs now, block n of about m, time left, the table so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from howfar.analysis.trials import PAGES, QUERIES, rate_unit
from howfar.cli.words import STOPPED, block, blocks_of, number, ratio, time_left, unlike
from howfar.engine.messages import (
    Finished,
    Interval,
    Measuring,
    Ready,
)
from howfar.engine.process import Event
from howfar.plan.types import Plan
from howfar.runner.rule import Forecast, Standing
from howfar.runner.schedule import Place
from howfar.store.records import CONFIRMATION_BLOCK, Run, StopReason, Trial, TrialStatus

REFRESH_PER_S = 2
"""Drawing costs CPU that the measured paths want; twice a second is enough for an eye."""


class LivePicture:
    """An Observer on a terminal. A context manager: on leaving, the last picture stays."""

    def __init__(self, stream: TextIO, colour: bool, width: int) -> None:
        self._console = Console(file=stream, no_color=not colour, width=width, highlight=False, force_terminal=True)
        self._head = "making the laboratory"
        self._doing = ""
        self._standing: Standing | None = None
        self._rates: dict[str, list[float]] = {}
        self._voids = 0
        self._max_blocks = 0
        self._arms = 0
        self._ends_at = 0.0
        self._phase = ""
        self._unit, _ = QUERIES
        self._live = Live(
            console=self._console, refresh_per_second=REFRESH_PER_S, transient=True, get_renderable=self._picture
        )

    def resumed(self, differs: Sequence[str]) -> None:
        if differs:
            self._console.print(Text(unlike(differs), style="yellow"))

    def begun(self, run: Run, plan: Plan, standing: Standing, forecast: Forecast) -> None:
        self._head = f"{run.info.plan_name} on {run.info.server_kind} {run.info.server_version}, seed {run.info.seed}"
        self._arms = len(run.info.arms)
        self._max_blocks = plan.timing.max_blocks
        self._standing = standing
        self._unit, _ = rate_unit(run)
        self._expect(forecast)

    def trial_started(self, place: Place, forecast: Forecast) -> None:
        again = f", attempt {place.attempt + 1}" if place.attempt else ""
        confirming = place.block >= CONFIRMATION_BLOCK
        of = f"of {forecast.blocks}," if confirming else f"{blocks_of(forecast, self._max_blocks)},"
        turn = "" if confirming else f" {place.position + 1}/{self._arms}"
        self._doing = f"{block(place.block)} {of}{turn} {place.arm}{again}"
        self._phase = "starting"
        self._expect(forecast)

    def engine_event(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._phase = "warming up"
        elif isinstance(event, Measuring):
            self._phase = "measuring"
        elif isinstance(event, Interval) and event.length_ns:
            done = event.transactions if self._unit == PAGES else event.queries
            self._phase = f"measuring, {number(done / (event.length_ns / 1e9))} {self._unit}"
        elif isinstance(event, Finished):
            self._phase = "ending"

    def trial_ended(self, trial: Trial) -> None:
        if trial.status is TrialStatus.VOID:
            self._voids += 1
            self._console.print(Text(f"void: {block(trial.block)}, {trial.arm}: {trial.void_reason}", style="yellow"))

    def block_ended(self, standing: Standing, forecast: Forecast) -> None:
        self._standing = standing
        self._expect(forecast)

    def confirming(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(Text(f"confirming: {line}"))

    def stopped(self, stop: StopReason) -> None:
        self._doing = f"ended: {STOPPED[stop]}"
        self._phase = ""
        self._console.print(Text(self._doing))

    def __enter__(self) -> LivePicture:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _expect(self, forecast: Forecast) -> None:
        self._ends_at = time.monotonic() + forecast.left_ns / 1e9

    def _picture(self) -> RenderableType:
        lines: list[RenderableType] = [Text(self._head, style="bold", overflow="ellipsis", no_wrap=True)]
        if self._doing:
            lines.append(Text(self._doing, overflow="ellipsis", no_wrap=True))
        if self._phase:
            left = time_left(int((self._ends_at - time.monotonic()) * 1e9))
            lines.append(Text(f"{self._phase}; about {left} left", style="dim", overflow="ellipsis", no_wrap=True))
        if self._standing is not None and self._standing.blocks:
            lines.append(self._table(self._standing))
        if self._voids:
            lines.append(Text(f"{self._voids} void", style="yellow"))
        return Group(*lines)

    def _table(self, now: Standing) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column(f"after block {now.blocks}", overflow="ellipsis", no_wrap=True)
        table.add_column(self._unit, justify="right", no_wrap=True)
        table.add_column("ratio", justify="right", no_wrap=True)
        for arm in now.arms:
            table.add_row(arm.arm, "-" if arm.rate is None else number(arm.rate), ratio(arm))
        return table
