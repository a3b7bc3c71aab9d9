"""Observers of a running run: the seam between the runner and whatever shows its progress."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.engine.messages import Event
from howfar.plan.types import Plan
from howfar.runner.stopping import Forecast, Slot, Standing
from howfar.store.records import Run, StopReason, Trial


class Observer:
    """Is notified, never queried. This one shows nothing."""

    def preparing(self, step: str) -> None:
        """Before `begun`. `step`: what is being done, and how long it usually takes."""

    def said(self, sentence: str) -> None:
        """Something that the user should know, about the whole run."""

    def resumed(self, differs: Sequence[str]) -> None:
        """`differs`: what is not as when the run was begun, in words. Before `begun`."""

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
        """The plan's blocks are done; limits are tested. `lines`: which, by changing what."""

    def stopped(self, stop: StopReason) -> None:
        pass
