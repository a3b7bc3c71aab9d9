"""Arms as curves: cells that differ in nothing but the number of connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from howfar.analysis.alike import alike
from howfar.model.facts import ArmFacts
from howfar.store.records import FactorValue


@dataclass(frozen=True)
class Series:
    """Cells that differ in nothing but the number of connections, ascending."""

    factors: dict[str, FactorValue]
    arms: tuple[ArmFacts, ...]

    @property
    def name(self) -> str:
        """The arms' name without the number of connections."""
        words = [word for word in self.arms[0].arm.name.split(", ") if not word.endswith((" thread", " threads"))]
        return ", ".join(words)

    @property
    def top(self) -> ArmFacts:
        return max(self.arms, key=lambda facts: facts.tps.value)

    @property
    def local(self) -> bool:
        return self.arms[0].local

    def but(self, *names: str) -> dict[str, FactorValue]:
        """Factors apart from these."""
        return {name: level for name, level in self.factors.items() if name not in names}


def series(facts: Sequence[ArmFacts]) -> tuple[Series, ...]:
    """In the order in which their first arms stand in the plan."""
    return tuple(
        Series(
            {name: level for name, level in arms[0].arm.factors.items() if name != "threads"},
            tuple(sorted(arms, key=lambda arm: arm.threads)),
        )
        for arms in alike(facts, lambda each: each.arm.factors, "threads")
    )
