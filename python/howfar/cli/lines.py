"""Progress as plain lines: for logs, pipes and terminals that cannot move their cursor. One line a trial, one a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from howfar.analysis.trials import QUERIES, rate_unit
from howfar.cli.words import STOPPED, block, blocks_of, ratio, time_left, trial_result, unlike
from howfar.engine.process import Event
from howfar.plan.types import Plan
from howfar.runner.rule import ArmStanding, Forecast, Standing
from howfar.runner.schedule import Place
from howfar.store.records import CONFIRMATION_BLOCK, ArmRole, Run, StopReason, Trial

_MOST_RATIOS = 8


class Lines:
    """An Observer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._arms = 0
        self._max_blocks = 0
        self._rate = QUERIES

    def resumed(self, differs: Sequence[str]) -> None:
        if differs:
            self._say(f"howfar: {unlike(differs)}")

    def begun(self, run: Run, plan: Plan, standing: Standing, forecast: Forecast) -> None:
        self._arms = len(run.info.arms)
        self._max_blocks = plan.timing.max_blocks
        self._rate = rate_unit(run)
        done = f", {len(run.trials)} trials done before" if run.trials else ""
        self._say(f"{run.info.server_kind} {run.info.server_version}, seed {run.info.seed}{done}")
        blocks = blocks_of(forecast, self._max_blocks).removeprefix("of ")
        self._say(f"measuring {self._arms} arms, {blocks} blocks, about {time_left(forecast.left_ns)}")

    def trial_started(self, place: Place, forecast: Forecast) -> None:
        pass

    def engine_event(self, event: Event) -> None:
        pass

    def trial_ended(self, trial: Trial) -> None:
        self._say(f"{block(trial.block)}{self._place(trial)} {trial.arm}: {trial_result(trial, self._rate)}")

    def block_ended(self, standing: Standing, forecast: Forecast) -> None:
        compared = [arm for arm in standing.arms if arm.role is not ArmRole.BASELINE]
        ratios = _ratios([arm for arm in compared if arm.ratio is not None])
        left = f"; about {time_left(forecast.left_ns)} left" if forecast.left_ns else ""
        self._say(f"after block {standing.blocks} {blocks_of(forecast, self._max_blocks)}: {ratios}{left}")

    def confirming(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._say(f"confirming: {line}")

    def stopped(self, stop: StopReason) -> None:
        self._say(f"ended: {STOPPED[stop]}")

    def _place(self, trial: Trial) -> str:
        """Of how many. A confirmation has arms of its own, which are few."""
        return "," if trial.block >= CONFIRMATION_BLOCK else f", {trial.position + 1}/{self._arms}"

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _ratios(compared: Sequence[ArmStanding]) -> str:
    """Each one; of many the widest, since it is what the run goes on for."""
    if not compared:
        return "all arms"  # of what breaks none has a ratio
    if len(compared) <= _MOST_RATIOS:
        return ", ".join(f"{arm.arm} {ratio(arm)}" for arm in compared)
    widest = max(compared, key=lambda arm: arm.half_width or 0.0)
    return f"{len(compared)} ratios, the widest {widest.arm} {ratio(widest)}"
