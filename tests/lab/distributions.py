"""The distributions of row ids as sysbench defines them, computed independently of our engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from howfar.contract.messages import Distribution

Floats = npt.NDArray[np.float64]
MIN_EXPECTED = 8.0
"""Minimum expected count in a class of the chi-square test."""


def probabilities(distribution: Distribution, rows: int) -> Floats:
    """The probability of each id in 1..=rows."""
    return np.diff(_MASS[distribution.kind](distribution, rows))


def _uniform(_: Distribution, rows: int) -> Floats:
    return np.arange(rows + 1) / rows


def _bates(x: Floats, count: int) -> Floats:
    """P(mean of `count` uniforms < x): the Irwin-Hall sum."""
    total = np.zeros_like(x)
    for k in range(count + 1):
        total += (-1) ** k * math.comb(count, k) * np.clip(x * count - k, 0, None) ** count
    return total / math.factorial(count)


def _gaussian(distribution: Distribution, rows: int) -> Floats:
    return _bates(np.arange(rows + 1) / rows, distribution.spec_iter)


def _special(distribution: Distribution, rows: int) -> Floats:
    """If a uniform U is below 1 - res, the id is the mean of other uniforms over the table. Otherwise it is U itself, scaled to the
    width of the hot rows plus one around the middle, so only the upper part of the hot rows occurs."""
    width = rows - 1
    cold = 1 - distribution.spec_res / 100
    hot = width * distribution.spec_pct / 100
    edge = np.arange(rows + 1, dtype=np.float64)
    spread = _bates(np.clip(edge / width, 0, 1), distribution.spec_iter)
    below = np.clip((edge - width / 2 + hot / 2) / (hot + 1), cold, 1) - cold
    return cold * spread + below


def _pareto(distribution: Distribution, rows: int) -> Floats:
    power = math.log(distribution.pareto_h) / math.log(1 - distribution.pareto_h)
    return (np.arange(rows + 1) / rows) ** (1 / power)


def _zipfian(distribution: Distribution, rows: int) -> Floats:
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -distribution.zipfian_exp
    return np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])


_MASS = {"uniform": _uniform, "gaussian": _gaussian, "special": _special, "pareto": _pareto, "zipfian": _zipfian}


def p_value(ids: Iterable[int], expected: Floats) -> float:
    """The p-value of Pearson's chi-square test against `expected`. Neighbouring ids are pooled until a class expects MIN_EXPECTED ids.
    An impossible id makes it 0."""
    from scipy.stats import chi2  # slow to load, and each test process collects this file

    counts = Counter(ids)
    total = counts.total()
    if any(not 1 <= number <= len(expected) or expected[number - 1] <= 0 for number in counts):
        return 0.0
    statistic, classes, observed, pooled = 0.0, 0, 0, 0.0
    remaining = total * float(expected.sum())
    for number, probability in enumerate(expected, start=1):
        observed += counts[number]
        pooled += total * float(probability)
        if pooled >= MIN_EXPECTED and remaining - pooled >= MIN_EXPECTED:
            statistic += (observed - pooled) ** 2 / pooled
            remaining -= pooled
            classes, observed, pooled = classes + 1, 0, 0.0
    statistic += (observed - pooled) ** 2 / pooled
    return float(chi2.sf(statistic, classes))
