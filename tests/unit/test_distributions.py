"""Quantiles that intervals need equal SciPy's, on which only the tests depend."""

from __future__ import annotations

import pytest
from scipy.special import bdtr, stdtrit

from howfar.stats.distributions import sign_test_depth, student_quantile

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 7, 7.31, 19, 33.3, 100, 1000])
def test_quantiles_of_student_are_those_of_scipy(degrees: float) -> None:
    for level in LEVELS:
        assert student_quantile(degrees, level) == pytest.approx(float(stdtrit(degrees, 0.5 + level / 2)), rel=1e-12)


def test_many_degrees_of_freedom_cost_digits_but_not_the_interval() -> None:
    assert student_quantile(1e5, 0.95) == pytest.approx(float(stdtrit(1e5, 0.975)), rel=1e-9)


def test_limits_of_a_median_cover_what_they_claim_and_could_not_be_narrower() -> None:
    for n in range(1, 400):
        for level in LEVELS:
            depth = sign_test_depth(n, level)
            outside = -1 if depth is None else depth
            assert outside < 0 or 2 * bdtr(outside, n, 0.5) <= 1 - level
            assert 2 * bdtr(outside + 1, n, 0.5) > 1 - level
