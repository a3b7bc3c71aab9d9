"""One path under two names, 110 trials each, recorded while other programs came and went on two CPUs: no difference is declared.

Made by `howfar run aa` and `benches/aa.py --record`. Every difference that is declared here is a false alarm.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest
from benches.false_alarms import MIN_TRIALS, false_alarms

DECLARED_MAX = 0.07
EXPERIMENTS = 3000
VALUES = ("queries_per_second", "cpu_us_per_query", "p50_ns")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "aa-busy.json").read_text())
    return found


def test_the_machine_was_busy(recorded: dict[str, Any]) -> None:
    first, second = recorded["values"]["queries_per_second"]
    assert len(first) == len(second) >= MIN_TRIALS
    assert stdev(first + second) / mean(first + second) > 0.2, "trial to trial"
    assert median(recorded["psi_cpu_some_share"]) > 0.3


@pytest.mark.parametrize("toss_names", [False, True], ids=["as recorded", "names tossed"])
@pytest.mark.parametrize("value", VALUES)
def test_eight_blocks_seldom_declare_a_difference(recorded: dict[str, Any], value: str, toss_names: bool) -> None:
    """`as recorded` keeps the names: a bias of one position in the block would show, but so does the chance of this one recording."""
    first, second = recorded["values"][value]
    found = false_alarms(first, second, experiments=EXPERIMENTS, seed=8, toss_names=toss_names)
    assert found.share <= DECLARED_MAX, found


def test_the_rule_can_fail(recorded: dict[str, Any]) -> None:
    """The same experiments detect a large true difference: the method is not merely blind."""
    first, second = recorded["values"]["cpu_us_per_query"]
    found = false_alarms([1.5 * value for value in first], second, experiments=500, seed=8, toss_names=False)
    assert found.share > 0.9, found
