"""Progress as plain lines: for logs, pipes and terminals that cannot move their cursor. One line a trial, one a block."""

from __future__ import annotations

from typing import TextIO

from howfar.cli.words import STOPPED, ratio, time_left, trial_result
from howfar.conduct.rule import Standing
from howfar.conduct.schedule import Place
from howfar.engine.process import Event
from howfar.plan.types import Plan
from howfar.results.records import ArmRole, Run, StopReason, Trial


class Lines:
    """An Observer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._arms = 0
        self._max_blocks = 0

    def begun(self, run: Run, plan: Plan, standing: Standing, left_ns: int) -> None:
        self._arms = len(run.info.arms)
        self._max_blocks = plan.timing.max_blocks
        done = f", {len(run.trials)} trials done before" if run.trials else ""
        self._say(f"{run.info.server_kind} {run.info.server_version}, seed {run.info.seed}{done}")
        self._say(f"measuring {self._arms} arms, up to {self._max_blocks} blocks, about {time_left(left_ns)}")

    def trial_started(self, place: Place, left_ns: int) -> None:
        pass

    def engine_event(self, event: Event) -> None:
        pass

    def trial_ended(self, trial: Trial) -> None:
        self._say(f"block {trial.block + 1}, {trial.position + 1}/{self._arms} {trial.arm}: {trial_result(trial)}")

    def block_ended(self, standing: Standing, left_ns: int) -> None:
        ratios = ", ".join(f"{arm.arm} {ratio(arm)}" for arm in standing.arms if arm.role is not ArmRole.BASELINE)
        self._say(
            f"after block {standing.blocks} of at most {self._max_blocks}: {ratios}; about {time_left(left_ns)} left"
        )

    def stopped(self, stop: StopReason) -> None:
        self._say(f"ended: {STOPPED[stop]}")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
