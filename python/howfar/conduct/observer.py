"""Who watches a run while it goes on: the seam between the conductor and whatever shows its progress."""

from __future__ import annotations

from typing import Protocol

from howfar.conduct.rule import Standing
from howfar.conduct.schedule import Place
from howfar.engine.process import Event
from howfar.plan.types import Plan
from howfar.results.records import Run, StopReason, Trial


class Observer(Protocol):
    """Told, never asked. Times are ns; `left_ns` is a forecast of what the run still takes."""

    def begun(self, run: Run, plan: Plan, standing: Standing, left_ns: int) -> None: ...

    def trial_started(self, place: Place, left_ns: int) -> None: ...

    def engine_event(self, event: Event) -> None: ...

    def trial_ended(self, trial: Trial) -> None: ...

    def block_ended(self, standing: Standing, left_ns: int) -> None: ...

    def stopped(self, stop: StopReason) -> None: ...


class Silent:
    """Nobody watches."""

    def begun(self, run: Run, plan: Plan, standing: Standing, left_ns: int) -> None:
        pass

    def trial_started(self, place: Place, left_ns: int) -> None:
        pass

    def engine_event(self, event: Event) -> None:
        pass

    def trial_ended(self, trial: Trial) -> None:
        pass

    def block_ended(self, standing: Standing, left_ns: int) -> None:
        pass

    def stopped(self, stop: StopReason) -> None:
        pass
