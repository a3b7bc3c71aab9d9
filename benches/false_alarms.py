"""How often does the method declare a false difference? Resamples a long recording of one path under two names.

Scheme. The trials of the two names are paired in time order into blocks, as a run pairs them. An experiment is a number of
whole blocks drawn with replacement, so that two neighbouring trials, which share the machine's state at that time, stay together.
In each drawn block, a coin toss decides which of the two trials is called first. Both names stand for the same path, so they are
interchangeable; without the toss every experiment would inherit the recording's own chance difference, which has
nothing to do with the method's judgement of eight blocks. Every declared difference is therefore false.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from howfar.stats.intervals import excludes_one, judge_ratio

EXPERIMENT_BLOCKS = 8
"""The minimum number of blocks after which a run may stop."""

MIN_TRIALS = 100
"""Minimum number of trials of each name in a recording: fewer give too few different experiments of 8 blocks."""


@dataclass(frozen=True)
class FalseAlarms:
    """How often a difference was declared although none exists."""

    experiments: int
    declared: int
    contaminated: int
    """Experiments in which mean and rank estimate disagreed."""

    @property
    def share(self) -> float:
        return self.declared / self.experiments


def false_alarms(
    first: Sequence[float],
    second: Sequence[float],
    *,
    experiments: int,
    seed: int,
    blocks: int = EXPERIMENT_BLOCKS,
    toss_names: bool = True,
) -> FalseAlarms:
    """Count, over resampled A/A experiments, those whose reported interval excludes 1.

    `first[i]` and `second[i]` are throughputs (or CPU times per query) of the i-th trial of each name, in time order; both > 0,
    same length, at least `MIN_TRIALS`. `toss_names=False` keeps the recorded names, to see the recording's own difference.
    """
    assert len(first) == len(second) >= MIN_TRIALS, f"a recording pairs at least {MIN_TRIALS} trials of each name"
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    rng = random.Random(seed)
    declared = contaminated = 0
    for _ in range(experiments):
        drawn = [rng.choice(ratios) for _ in range(blocks)]
        if toss_names:
            drawn = [ratio if rng.random() < 0.5 else 1 / ratio for ratio in drawn]
        judged = judge_ratio(drawn)
        declared += excludes_one(judged.reported)
        contaminated += judged.is_contaminated
    return FalseAlarms(experiments=experiments, declared=declared, contaminated=contaminated)
