"""How often a run in which nothing differs claims a difference: the scatter of recorded trials, drawn again and again."""

from __future__ import annotations

import lzma
import math
import random
from pathlib import Path

import pytest

from howfar.analysis.cells import COMPARISONS
from howfar.plan.cells import cells
from howfar.plan.load import load_plan
from howfar.stats.intervals import Resolution, Threshold, judge_ratio, noise_floor
from howfar.stats.trials import Value, trial_table
from howfar.store.records import ArmRole, compared_part
from howfar.store.run_file import read_run

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
PLANS = ("bandwidth", "compression", "encryption", "page", "paths", "replication")


def scatter(plan: str, where: Path) -> tuple[list[float], list[float]]:
    """By how much trials differ from the mean of their arm, on logarithms, of throughput and of CPU."""
    file = where / f"{plan}.howfar"
    file.write_bytes(lzma.decompress((RECORDED / f"{plan}-mariadb.howfar.xz").read_bytes()))
    table = trial_table(compared_part(read_run(file)))

    def of(value: Value) -> list[float]:
        found = []
        for arm in table.run.info.arms:
            logs = [math.log(figure) for measured in table.measured(arm.name) if (figure := value(measured))]
            if len(logs) > 1:
                mean, grown = sum(logs) / len(logs), math.sqrt(len(logs) / (len(logs) - 1))
                found += [(log - mean) * grown for log in logs]
        return found

    return of(table.rate), of(table.path_cpu_us)


def false_claims(contenders: int, blocks: int, residuals: tuple[list[float], list[float]], rng: random.Random) -> int:
    """Of one run without a difference, by the rule of the reports."""
    claims = COMPARISONS * contenders
    found = 0
    for figure in residuals:
        base, twin, *arms = ([math.exp(rng.choice(figure)) for _ in range(blocks)] for _ in range(contenders + 2))
        threshold = Threshold(noise_floor(judge_ratio(ratio(twin, base)).quoted), claims)
        pairs = [(arm, base) for arm in arms]
        if figure is residuals[0]:  # the cell that lacks what is tested
            pairs += zip(arms[1:], arms, strict=False)
        found += sum(
            threshold.resolve(judge_ratio(ratio(*pair)).quoted) is not Resolution.NOT_RESOLVED for pair in pairs
        )
    return found


def ratio(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


@pytest.mark.thorough
@pytest.mark.parametrize(("quick", "times"), [(True, 1000), (False, 300)])
@pytest.mark.parametrize("plan", PLANS)
def test_a_run_without_a_difference_claims_none_in_19_of_20(plan: str, quick: bool, times: int, tmp_path: Path) -> None:
    loaded = load_plan(plan, quick=quick).plan
    contenders = sum(ArmRole(cell.role) is ArmRole.CONTENDER for cell in cells(loaded))
    residuals, rng = scatter(plan, tmp_path), random.Random(plan)
    wrong = sum(false_claims(contenders, loaded.timing.min_blocks, residuals, rng) > 0 for _ in range(times))
    print(f"{plan}: {contenders} contenders, {loaded.timing.min_blocks} blocks: {wrong} of {times} runs claim one")
    assert wrong / times <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / times), "5 %, and what chance adds to that"
