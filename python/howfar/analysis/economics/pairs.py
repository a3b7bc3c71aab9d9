"""A cell and the same cell without one thing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from howfar.analysis.alike import rest_of
from howfar.model.facts import ArmFacts
from howfar.plan.factors import ORDINARY
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio
from howfar.store.records import FactorValue


@dataclass(frozen=True)
class Pair:
    """`changed` differs from `plain` in one factor."""

    plain: ArmFacts
    changed: ArmFacts

    @property
    def payload(self) -> float:
        """Protocol bytes of a transaction, both ways, before anything is done to them."""
        return self.plain.bytes_to_client + self.plain.bytes_to_server

    @property
    def client_s(self) -> float:
        """CPU seconds a transaction that the change costs there."""
        return self.changed.client_cpu_s - self.plain.client_cpu_s

    @property
    def server_s(self) -> float:
        return self.changed.server_cpu_s - self.plain.server_cpu_s

    @property
    def valid(self) -> bool:
        """Both cells are about the path."""
        return self.plain.valid and self.changed.valid

    def below_noise(self, floor: float | None) -> bool:
        """The same cell under two names differs by as much."""
        return floor is not None and self.ratio is not None and abs(math.log(self.ratio.value)) < math.log1p(floor)

    @property
    def ratio(self) -> Estimate | None:
        """Throughput, paired by block. None: no block has both."""
        both = sorted(self.plain.tps_by_block.keys() & self.changed.tps_by_block.keys())
        ratios = [self.changed.tps_by_block[block] / self.plain.tps_by_block[block] for block in both]
        return judge_ratio(ratios).quoted if ratios else None


def pairs(facts: Sequence[ArmFacts], factor: str, level: FactorValue) -> Iterator[Pair]:
    """Every cell at `level` of `factor` with the cell that has the ordinary level, in the order of the plan."""
    for changed in facts:
        if changed.level(factor) != level:
            continue
        wanted = rest_of(changed.arm.factors, factor)
        plain = next(
            (
                each
                for each in facts
                if each.level(factor) == ORDINARY[factor] and rest_of(each.arm.factors, factor) == wanted
            ),
            None,
        )
        if plain is not None:
            yield Pair(plain, changed)


def levels(facts: Sequence[ArmFacts], factor: str) -> list[FactorValue]:
    """The levels of a factor that are not ordinary, in the order of the plan."""
    found: list[FactorValue] = []
    for each in facts:
        level = each.level(factor)
        if level is not None and level != ORDINARY[factor] and level not in found:
            found.append(level)
    return found
