"""Pairs of cells that differ in one factor, such as a cell with compression and the same cell without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from howfar.analysis.cells import NoiseFloors
from howfar.model.facts import ArmFacts
from howfar.plan.factor import Level
from howfar.plan.factors import IMPLIED_LEVELS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, excludes_one, judge_ratio
from howfar.stats.trials import other_factors


class Tried(Part):
    """Measured ratio of a changed cell to the same cell without the change."""

    threads: int
    ratio: Estimate
    """Ratio of throughputs."""
    predicted: float | None = None
    """Ratio by the model, with costs from other cells. None: the other cells do not determine it."""
    invalid: bool = False
    """Whether one of the two cells describes other programs or errors, so that nothing follows from the ratio."""
    below_noise: bool = False
    """Whether the ratio is within the run's noise floor, or not significant at the level that the run's number of claims requires, or
    there is no noise floor."""

    @property
    def resolved(self) -> bool:
        """Whether the ratio differs from 1, by its interval and the noise floor, for cells that describe the path."""
        return excludes_one(self.ratio) and not self.invalid and not self.below_noise


@dataclass(frozen=True)
class ArmPair:
    """`changed` differs from `plain` in one factor."""

    plain: ArmFacts
    changed: ArmFacts

    @property
    def payload(self) -> float:
        """Protocol bytes of a transaction, both directions, before any change to them."""
        return self.plain.bytes_to_client + self.plain.bytes_to_server

    @property
    def client_s(self) -> float:
        """CPU seconds per transaction that the change costs the client."""
        return self.changed.client.cpu_s - self.plain.client.cpu_s

    @property
    def server_s(self) -> float:
        return self.changed.server.cpu_s - self.plain.server.cpu_s

    @property
    def is_valid(self) -> bool:
        """Whether both cells describe the path."""
        return self.plain.is_valid and self.changed.is_valid

    @property
    def only_bytes(self) -> bool:
        """Whether the link was full in both cells. The ratio of throughputs is then that of their bytes, whatever a model predicts."""
        return self.plain.is_link_full and self.changed.is_link_full

    def below_noise(self, floors: NoiseFloors) -> bool:
        """Whether the ratio may be noise: within the noise floor, or possibly chance among the run's many claims."""
        threshold = floors.threshold(self.changed.arm.factors)
        if threshold.floor is None or self.ratio is None:
            return True
        within_floor = abs(math.log(self.ratio.value)) < math.log1p(threshold.floor)
        return within_floor or (excludes_one(self.ratio) and threshold.resolve(self.ratio) is Resolution.NOT_RESOLVED)

    @property
    def ratio(self) -> Estimate | None:
        """Ratio of throughputs, paired by block. None: no block has both."""
        common_blocks = sorted(self.plain.tps_by_block.keys() & self.changed.tps_by_block.keys())
        ratios = [self.changed.tps_by_block[block] / self.plain.tps_by_block[block] for block in common_blocks]
        return judge_ratio(ratios).reported if ratios else None


def find_pairs(facts: Sequence[ArmFacts], factor: str, level: Level) -> Iterator[ArmPair]:
    """Pairs of each cell at `level` of `factor` and the same cell at the factor's implied level, in the order of the plan."""
    cells = {
        other_factors(cell.arm.factors, factor): cell
        for cell in reversed(facts)
        if cell.level(factor) == IMPLIED_LEVELS[factor]
    }
    for changed in facts:
        plain_cell = cells.get(other_factors(changed.arm.factors, factor))
        if changed.level(factor) == level and plain_cell is not None:
            yield ArmPair(plain_cell, changed)


def changed_levels(facts: Sequence[ArmFacts], factor: str) -> list[Level]:
    """The levels of a factor other than the implied one, in the order of the plan."""
    all_levels = dict.fromkeys(cell.level(factor) for cell in facts)
    return [level for level in all_levels if level is not None and level != IMPLIED_LEVELS[factor]]
