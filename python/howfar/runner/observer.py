"""Observers of a running run: the seam between the runner and whatever shows its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from howfar.engine.messages import Event
from howfar.plan.types import Plan
from howfar.runner.stopping import Forecast, Slot, Standing
from howfar.store.records import Run, StopReason, Trial


class Observer(Protocol):
    """An observer of a run, which is notified and never queried."""

    def resumed(self, differs: Sequence[str]) -> None:
        """A run is resumed; called before `begun`. `differs`: differences from when the run was begun, in words."""
        ...

    def begun(self, run: Run, plan: Plan, standing: Standing, forecast: Forecast) -> None: ...

    def trial_started(self, place: Slot, forecast: Forecast) -> None: ...

    def engine_event(self, event: Event) -> None: ...

    def trial_ended(self, trial: Trial) -> None: ...

    def block_ended(self, standing: Standing, forecast: Forecast) -> None: ...

    def confirming(self, lines: Sequence[str]) -> None:
        """The plan's blocks are done and limits are tested. `lines`: which limits, and by which changes."""
        ...

    def stopped(self, stop: StopReason) -> None: ...


class Silent:
    """An observer that shows nothing."""

    def resumed(self, differs: Sequence[str]) -> None:
        pass

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
        pass

    def stopped(self, stop: StopReason) -> None:
        pass
