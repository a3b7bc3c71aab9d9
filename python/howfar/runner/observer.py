"""Observers of a running run: the seam between the runner and whatever shows its progress."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.engine.messages import Event
from howfar.plan.types import Plan
from howfar.runner.stopping import Forecast, Slot, Standing
from howfar.store.records import Run, StopReason, Trial


class Observer:
    """Receives notifications, and is never queried. This base class shows nothing."""

    def preparing(self, step: str) -> None:
        """Called before `begun`. `step`: what is being done, and how long it usually takes."""

    def said(self, sentence: str) -> None:
        """A sentence about the whole run that the user should know."""

    def resumed(self, differs: Sequence[str]) -> None:
        """Called before `begun`. `differs`: what has changed since the run was begun, in words."""

    def begun(self, run: Run, plan: Plan, standing: Standing, forecast: Forecast) -> None:
        pass

    def trial_started(self, place: Slot, forecast: Forecast) -> None:
        pass

    def engine_event(self, event: Event) -> None:
        pass

    def trial_ended(self, trial: Trial) -> None:
        pass

    def block_ended(self, standing: Standing, forecast: Forecast) -> None:
        pass

    def confirming(self, lines: Sequence[str]) -> None:
        """The plan's blocks are done, and limits are tested next. `lines`: which limits, and what is changed to test them."""

    def stopped(self, stop: StopReason) -> None:
        pass
