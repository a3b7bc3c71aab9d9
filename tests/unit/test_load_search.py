"""The search for a rate: on curves with a known answer it finds that answer, says when it cannot, and always ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.errors import UsageError
from howfar.load.search import CONFIRMATIONS, MOST_TRIALS, NARROW, Goal, Trial, answer, next_rate, parse_goal, sentence

GOAL = Goal(0.99, 5_000_000)


def run(holds: Callable[[float, int], bool], low: float = 100, high: float | None = None) -> list[Trial]:
    """`holds(rate, number of the trial)`."""
    trials: list[Trial] = []
    while (rate := next_rate(trials, low, high)) is not None:
        trials.append(Trial(rate, 1, False, "" if holds(rate, len(trials)) else "5 ms"))
        assert len(trials) <= MOST_TRIALS
    return trials


@given(st.floats(10, 500_000), st.floats(1, 5_000))
def test_a_sharp_limit_is_found_within_the_stated_gap(limit: float, low: float) -> None:
    trials = run(lambda rate, _: rate <= limit, low)
    found = answer(trials)
    if limit < low / 64 or limit < 1:
        assert found.kind in ("below", "found")
        return
    if found.kind == "below":
        assert found.failed_at is not None and found.failed_at > limit
        return
    assert found.kind in ("found", "unclear")
    assert found.rate is not None and found.rate <= limit
    assert found.failed_at is not None and found.failed_at > limit
    if found.kind == "found":
        assert found.failed_at / found.rate <= NARROW
        assert found.repeats == CONFIRMATIONS + 1


@given(st.floats(100, 100_000), st.randoms(use_true_random=False))
def test_whatever_the_trials_say_the_search_ends_and_contradicts_none(limit: float, random: object) -> None:
    chance = getattr(random, "random")  # noqa: B009 - hypothesis gives a Random
    trials = run(lambda rate, _: chance() < 1 / (1 + (rate / limit) ** 8))
    found = answer(trials)
    assert found.trials == len(trials) <= MOST_TRIALS
    if found.rate is not None:
        assert all(trial.held for trial in trials if trial.rate == found.rate)
        assert found.failed_at is None or found.failed_at > found.rate
    assert sentence(GOAL, found)


def test_a_cap_that_holds_is_a_lower_bound_and_says_so() -> None:
    found = answer(run(lambda rate, _: True, low=100, high=1000))
    assert (found.kind, found.rate, found.repeats) == ("at_least", 1000, CONFIRMATIONS + 1)
    assert "at least 1000" in sentence(GOAL, found)


def test_without_a_cap_what_never_fails_ends_too() -> None:
    found = answer(run(lambda rate, _: True))
    assert found.kind == "at_least" and found.trials == MOST_TRIALS


def test_nothing_holds() -> None:
    found = answer(run(lambda rate, _: False))
    assert (found.kind, found.rate) == ("below", None)
    assert sentence(GOAL, found).startswith("below ")


def test_a_lucky_best_is_not_the_answer() -> None:
    """1600 holds the first time only."""
    trials = run(lambda rate, number: rate <= 1000 or (rate == 1600 and number < 6))
    found = answer(trials)
    assert found.rate is not None and found.rate <= 1000


@pytest.mark.parametrize(
    ("text", "goal"),
    [("p99<5ms", Goal(0.99, 5_000_000)), ("p99.9 < 1s", Goal(0.999, 10**9)), ("max<250us", Goal(1.0, 250_000)),
     ("p50<1ms", Goal(0.5, 10**6))],
)  # fmt: skip
def test_goals(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert str(parse_goal(str(goal).replace(" ", ""))) == str(goal)


@pytest.mark.parametrize("text", ["p99", "p99<5", "p99>5ms", "p0<5ms", "p99<0ms", "mean<5ms", "p100<1ms"])
def test_goals_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_goal(text)
