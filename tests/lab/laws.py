"""For tests: the distributions of row ids as sysbench defines them, computed independently of our engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from howfar.contract.messages import Distribution

Floats = npt.NDArray[np.float64]
FEWEST = 8.0
"""Minimum number of expected draws in a class of the chi-square test."""


def shares(law: Distribution, rows: int) -> Floats:
    """The probability of each id in 1..=rows."""
    return np.diff(_MASS[law.kind](law, rows))


def _uniform(_: Distribution, rows: int) -> Floats:
    return np.arange(rows + 1) / rows


def _bates(x: Floats, count: int) -> Floats:
    """P(mean of `count` uniforms < x): the Irwin-Hall sum."""
    total = np.zeros_like(x)
    for k in range(count + 1):
        total += (-1) ** k * math.comb(count, k) * np.clip(x * count - k, 0, None) ** count
    return total / math.factorial(count)


def _gaussian(law: Distribution, rows: int) -> Floats:
    return _bates(np.arange(rows + 1) / rows, law.spec_iter)


def _special(law: Distribution, rows: int) -> Floats:
    """One uniform U decides: below 1 - res, the id is the mean of other uniforms over the table; otherwise U itself, scaled to the
    width of the hot rows plus one, around the middle. So only the upper part of the hot rows is ever hit."""
    width = rows - 1
    cold = 1 - law.spec_res / 100
    hot = width * law.spec_pct / 100
    edge = np.arange(rows + 1, dtype=np.float64)
    spread = _bates(np.clip(edge / width, 0, 1), law.spec_iter)
    below = np.clip((edge - width / 2 + hot / 2) / (hot + 1), cold, 1) - cold
    return cold * spread + below


def _pareto(law: Distribution, rows: int) -> Floats:
    power = math.log(law.pareto_h) / math.log(1 - law.pareto_h)
    return (np.arange(rows + 1) / rows) ** (1 / power)


def _zipfian(law: Distribution, rows: int) -> Floats:
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -law.zipfian_exp
    return np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])


_MASS = {"uniform": _uniform, "gaussian": _gaussian, "special": _special, "pareto": _pareto, "zipfian": _zipfian}


def chance(ids: Iterable[int], expected: Floats) -> float:
    """Pearson's chi-square test: how probable such a deviation, or a larger one, is under `expected`. Neighbouring ids are pooled
    until each class expects FEWEST draws. An impossible id makes it 0."""
    seen = Counter(ids)
    total = seen.total()
    if any(not 1 <= one <= len(expected) or expected[one - 1] <= 0 for one in seen):
        return 0.0
    statistic, classes, count, wanted = 0.0, 0, 0, 0.0
    rest = total * float(expected.sum())
    for number, share in enumerate(expected, start=1):
        count += seen[number]
        wanted += total * float(share)
        if wanted >= FEWEST and rest - wanted >= FEWEST:
            statistic += (count - wanted) ** 2 / wanted
            rest -= wanted
            classes, count, wanted = classes + 1, 0, 0.0
    statistic += (count - wanted) ** 2 / wanted
    return float(chi2.sf(statistic, classes))
