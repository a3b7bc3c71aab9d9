"""The interface between the runner and whatever shows its progress."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.contract.messages import Event
from howfar.plan.types import Plan
from howfar.runner.stopping import Forecast, RunProgress, Slot
from howfar.store.records import Run, StopReason, Trial


class Observer:
    """Receives the runner's notifications. This base class ignores them."""

    def preparing(self, step: str) -> None:
        """Called before `started`. `step`: what howfar is doing now, and how long that usually takes."""

    def note(self, sentence: str) -> None:
        """Show a sentence about the whole run to the user."""

    def resumed(self, differs: Sequence[str]) -> None:
        """Called before `started`. `differs`: what has changed since the run was begun, in words."""

    def started(self, run: Run, plan: Plan, run_progress: RunProgress, forecast: Forecast) -> None:
        pass

    def trial_started(self, place: Slot, forecast: Forecast) -> None:
        pass

    def waiting(self, program: str) -> None:
        """The next trial waits for other programs; `program` says which one, and how much CPU time it uses."""

    def engine_event(self, event: Event) -> None:
        pass

    def trial_ended(self, trial: Trial) -> None:
        pass

    def block_ended(self, run_progress: RunProgress, forecast: Forecast) -> None:
        pass

    def confirming(self, lines: Sequence[str]) -> None:
        """Called when the plan's blocks are done and limits are tested next. `lines`: the limits, and what is changed to test them."""

    def stopped(self, stop: StopReason) -> None:
        pass
