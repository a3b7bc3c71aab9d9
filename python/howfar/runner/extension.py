"""More time or a narrower target for a run that exists. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.plan.quantities import MOST_BUDGET_NS
from howfar.plan.types import MOST_BLOCKS, Timing


@dataclass(frozen=True)
class Extension:
    """What the user of `howfar resume` gives to this session."""

    time_ns: int | None = None
    """What the session may take, its laboratory and report included."""
    target: float | None = None
    """Half-width as a share."""
    confirm: bool = False
    """Put the limits to the test when the plan's blocks are done, or at once when they are."""

    only_confirms: bool = False
    """And that alone: a run that has ended gets no more of the plan's blocks, whatever time is left."""

    @property
    def measures_on(self) -> bool:
        """The plan's own blocks are asked for, not only their confirmation."""
        return not self.confirm and self != Extension()

    def applied(self, timing: Timing, used_ns: int, blocks: int) -> Timing:
        """The run's timing from now on. `used_ns`: by earlier sessions; a reached cap on blocks is lifted."""
        changed: dict[str, int | float] = {}
        if self.time_ns is not None:
            changed["time_budget_ns"] = min(used_ns + self.time_ns, MOST_BUDGET_NS)
        if self.target is not None:
            changed["target_half_width"] = self.target
        if changed and blocks >= timing.max_blocks and not self.confirm:
            changed["max_blocks"] = MOST_BLOCKS
        if self.confirm:
            changed["confirm"] = True
        return timing.model_copy(update=changed)
