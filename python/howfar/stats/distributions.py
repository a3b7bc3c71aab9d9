"""Quantiles for intervals, computed with `math` alone: SciPy would add 110 MB to an installation and 0.25 s to each start.

`tests/unit/test_distributions.py` compares them with SciPy's.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_ZERO_REPLACEMENT = 1e-300
"""Replaces zero in a denominator of the continued fraction."""
_TOLERANCE = 1e-15
"""Relative change below which the continued fraction, and the search for a quantile, have converged."""
_MAX_STEPS = 500
"""Maximum number of steps of the continued fraction, and of the search."""


def student_quantile(degrees_of_freedom: float, level: float) -> float:
    """Two-sided quantile of Student's t: the t with P(|T| > t) = 1 - `level`. `degrees_of_freedom` >= 1, also fractional.

    Newton's method starts at the normal quantile, below the root; the tail probability is convex, so the iterates increase to it.
    """
    assert degrees_of_freedom >= 1 and 0 < level < 1, (
        "there is at least one degree of freedom, and the level is between 0 and 1"
    )
    nu, t = degrees_of_freedom, NormalDist().inv_cdf(0.5 + level / 2)
    log_density_at_0 = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
    for _ in range(_MAX_STEPS):
        tail = _incomplete_beta(nu / (nu + t * t), nu / 2, 0.5)
        density = math.exp(log_density_at_0 - (nu + 1) / 2 * math.log1p(t * t / nu))
        step = (tail - (1 - level)) / (2 * density)
        if step <= _TOLERANCE * t:  # only rounding makes a step negative
            break
        t += step
    return t


@lru_cache(maxsize=256)
def sign_test_depth(n: int, level: float) -> int | None:
    """Number of sorted values to leave out at each end for the sign-test interval of the median; None if even the full range covers
    less than `level`. How many of `n` values lie below the true median is binomial."""
    depth, tail, log_probability = -1, 0.0, -n * math.log(2)
    for below in range(n // 2 + 1):
        tail += math.exp(log_probability)
        if 2 * tail > 1 - level:
            break
        depth = below
        log_probability += math.log((n - below) / (below + 1))
    return None if depth < 0 else depth


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for 0 <= x <= 1 (DLMF 8.17.22, by the modified Lentz method)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    prefactor = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d, value = 1.0, 0.0, 1.0
    for step in range(_MAX_STEPS):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _avoid_zero(1 + term * d)
        c = _avoid_zero(1 + term / c)
        value *= c * d
        if step and abs(c * d - 1) < _TOLERANCE:
            break
    return prefactor * (value - 1) / a


def _avoid_zero(value: float) -> float:
    return value if abs(value) > _ZERO_REPLACEMENT else _ZERO_REPLACEMENT
