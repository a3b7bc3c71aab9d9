"""What the scatter of blocks is made of, where both parts are known."""

from __future__ import annotations

import math
import random

import pytest
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.cells import scatter
from howfar.stats.intervals import judge_ratio
from howfar.store.records import Trial


def blocks(count: int, rtt_sd: float, other_sd: float, share: float) -> tuple[list[Trial], list[float]]:
    """Trials whose RTT at rest differs, and ratios that follow it by `share`, and something else."""
    chance = random.Random(3)
    (template, *_) = (trial for trial in synthetic_run(blocks=1, samples=10).trials if trial.measured is not None)
    trials, ratios = [], []
    for block in range(count):
        error = chance.gauss(0, rtt_sd)
        receipt = {"link": {"rtt_at_rest_ns": {"p50": 200_000 * (1 + error)}}}
        trials.append(template.model_copy(update={"block": block, "receipt": receipt}))
        ratios.append(0.3 * math.exp(-share * error + chance.gauss(0, other_sd)))
    return trials, ratios


@pytest.mark.parametrize(("rtt_sd", "other_sd"), [(0.02, 0.01), (0.002, 0.02), (0.03, 0.001)])
def test_both_parts_are_found(rtt_sd: float, other_sd: float) -> None:
    trials, ratios = blocks(400, rtt_sd, other_sd, 0.7)
    found = scatter(trials, judge_ratio(ratios), 0.7)
    assert found is not None and found.blocks == 400
    assert found.rtt == pytest.approx(rtt_sd, rel=0.15)
    assert found.calibration == pytest.approx(0.7 * rtt_sd, rel=0.15)
    assert found.total == pytest.approx(math.hypot(0.7 * rtt_sd, other_sd), rel=0.15)
    assert found.total**2 == pytest.approx(found.calibration**2 + found.other**2)


def test_no_link_or_few_blocks_say_nothing() -> None:
    trials, ratios = blocks(3, 0.02, 0.01, 0.7)
    assert scatter(trials, judge_ratio(ratios), 0.7) is None
    without = [trial.model_copy(update={"receipt": {}}) for trial in blocks(8, 0.02, 0.01, 0.7)[0]]
    assert scatter(without, judge_ratio(blocks(8, 0.02, 0.01, 0.7)[1]), 0.7) is None
