"""Stamps and their figures; percentiles of what was never answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import fake_load

from howfar.engine.messages import (
    Account,
    Interval,
    Sysbench,
)
from howfar.load.job import limit_advice
from howfar.load.report_sysbench import bucket, value_ms
from howfar.load.result import bound, distribution
from howfar.load.verdict import Finding, Stamp, Verdict, judge

RATES = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]


def slices(rates: list[int], p50_ns: list[int] | None = None) -> list[Interval]:
    return [
        fake_load.interval(number, rate, p50_ns[number] if p50_ns else 2_000_000) for number, rate in enumerate(rates)
    ]


def one(verdict: Verdict) -> Finding:
    assert len(verdict.findings) == 1, verdict
    return verdict.findings[0]


def test_client_limited_by_a_busy_thread() -> None:
    found = one(judge(fake_load.finished(busiest_thread_ns=8_600_000_000), slices(RATES)))
    assert (found.stamp, "86%" in found.because) == (Stamp.CLIENT_LIMITED, True)
    assert judge(fake_load.finished(busiest_thread_ns=8_400_000_000), slices(RATES)).stamps == (Stamp.VALID,)


def test_client_limited_by_waiting_for_a_cpu() -> None:
    """Two threads over ten seconds: 2 % of the window, a thread, are 0.4 s."""
    found = one(judge(fake_load.finished(cpu_ns=3_600_000_000, runnable_wait_ns=500_000_000), slices(RATES)))
    assert (found.stamp, "12% of the time" in found.because) == (Stamp.CLIENT_LIMITED, True)
    assert "each thread for 2.5% of the window" in found.because
    hardly = fake_load.finished(cpu_ns=100_000_000, runnable_wait_ns=390_000_000)
    assert judge(hardly, slices(RATES)).stamps == (Stamp.VALID,), "nearly idle: what it waited is nothing to the window"
    busy = fake_load.finished(cpu_ns=9_000_000_000, runnable_wait_ns=900_000_000)
    assert judge(busy, slices(RATES)).stamps == (Stamp.VALID,), "9 % of the time in which it had work"


def test_failing_when_nothing_ended_or_errors_were_many() -> None:
    nothing = fake_load.finished().model_copy(update={"transactions": 0, "queries": 0, "errors": {"1062": 94_001}})
    account = Account(due=1000, answered=0, unanswered=1000, failed=0, backlog_max=998)
    verdict = judge(nothing, slices([0] * 10))
    assert (one(verdict).stamp, "94,001 x 1062" in one(verdict).because) == (Stamp.FAILING, True)
    assert "no transaction ended" in one(verdict).because
    overrun = judge(nothing.model_copy(update={"open_loop": account}), slices([0] * 10))
    assert overrun.stamps[:2] == (Stamp.FAILING, Stamp.OVERLOADED)
    for errors, stamp in ((200, Stamp.VALID), (201, Stamp.FAILING)):
        done = fake_load.finished().model_copy(update={"errors": {"1213": errors, "disconnect": 5_000}})
        assert judge(done, slices(RATES)).stamps == (stamp,), (
            "1 % of 20,000 queries; lost connections are not ignored errors"
        )


def test_a_stall_of_an_open_loop() -> None:
    account = Account(due=1000, answered=1000, unanswered=0, failed=0, backlog_max=300)

    def seen(counts: list[int], burst: int = 1) -> tuple[Stamp, ...]:
        done = fake_load.finished(account=account)
        return judge(done, slices(counts), lateness_p99_ns=1, service_p50_ns=1, burst=burst).stamps

    assert seen([54, 39, 0, 0, 0, 0, 0, 319, 61]) == (Stamp.NOT_STEADY,), "most intervals stood still"
    assert seen([54, 39, 60, 58, 0, 0, 190, 61, 57]) == (Stamp.NOT_STEADY,)
    assert seen([3, 5, 1, 4, 6, 2, 1, 4, 5]) == (Stamp.VALID,), "so few vary as much by chance"
    assert seen([100, 100, 0, 100, 100, 0, 100, 100], burst=100) == (Stamp.VALID,), "a burst is due at once"


def test_a_long_transaction_in_flight_is_not_steady() -> None:
    def seen(longest_ns: int, p99_ns: int) -> Verdict:
        return judge(fake_load.finished(), slices(RATES), answered_p99_ns=p99_ns, under_way_max_ns=longest_ns)

    found = one(seen(2_000_000_000, 10_000_000))
    assert (found.stamp, "for 2 s, 200 times" in found.because) == (Stamp.NOT_STEADY, True)
    assert seen(99_000_000, 1_000_000).stamps == (Stamp.VALID,), "less than 100 ms"
    assert seen(2_000_000_000, 200_000_000).stamps == (Stamp.VALID,), "10 times, not more"


def test_not_steady_by_drift_and_by_a_stall() -> None:
    drift = one(judge(fake_load.finished(), slices([100, 101, 99, 100, 101, 80, 81, 79, 80, 81])))
    assert (drift.stamp, "-20%" in drift.because) == (Stamp.NOT_STEADY, True)
    stall = one(judge(fake_load.finished(), slices([100, 100, 101, 20, 100, 99, 100, 100])))
    assert (stall.stamp, "1 of 8 intervals" in stall.because) == (Stamp.NOT_STEADY, True)
    noise = [60, 140, 80, 120, 100, 75, 130, 100, 95, 70]
    assert judge(fake_load.finished(), slices(noise)).stamps == (Stamp.VALID,), "noise without drift is no drift"


def test_steadiness_of_an_open_loop_is_that_of_response_times() -> None:
    account = Account(due=1000, answered=1000, unanswered=0, failed=0, backlog_max=3)
    done = fake_load.finished(account=account)
    growing = slices(RATES, [2_000_000 + 300_000 * i for i in range(10)])
    verdict = judge(done, growing, lateness_p99_ns=1, service_p50_ns=1)
    assert (one(verdict).stamp, "response time" in one(verdict).because) == (Stamp.NOT_STEADY, True)


def test_what_cannot_be_judged_is_said_and_is_not_valid_by_default() -> None:
    verdict = judge(fake_load.finished().model_copy(update={"cpu": ()}), slices(RATES[:7]))
    assert [reason.split(":")[0] for reason in verdict.unknown] == ["client-limited", "steadiness"]
    account = Account(due=10, answered=10, unanswered=0, failed=0, backlog_max=0)
    assert any("late" in reason for reason in judge(fake_load.finished(account=account), slices(RATES)).unknown)


def test_late_and_overloaded() -> None:
    account = Account(due=1000, answered=985, unanswered=15, failed=0, backlog_max=20)
    verdict = judge(
        fake_load.finished(account=account), slices(RATES), lateness_p99_ns=1_100_000, service_p50_ns=100_000
    )
    assert verdict.stamps == (Stamp.OVERLOADED, Stamp.LATE)
    assert "15 of 1000" in verdict.findings[0].because
    many = judge(
        fake_load.finished(account=account), slices(RATES), connections=15, lateness_p99_ns=1, service_p50_ns=100_000
    )
    assert many.stamps == (Stamp.VALID,), "each of 15 connections may have one under way"
    slow = judge(
        fake_load.finished(account=account.model_copy(update={"answered": 990, "unanswered": 10})),
        slices(RATES),
        lateness_p99_ns=1_100_000,
        service_p50_ns=20_000_000,
    )
    assert slow.stamps == (Stamp.VALID,), "late by less than a tenth of the service time"


# ---------------------------------------------------------------- censored percentiles


def test_percentiles_of_an_overloaded_load_are_bounds() -> None:
    seen = fake_load.overloaded().transaction
    p50, p99 = seen.at(0.5), seen.at(0.99)
    assert p50 is not None and p50.exact, "half of all were answered, and faster than any unanswered one"
    assert p50.low_ns == pytest.approx(5_990_000, rel=0.002)
    assert p99 is not None and p99.high_ns is None and not p99.exact
    assert p99.low_ns == pytest.approx(2e9, rel=0.002)
    longest = seen.at(1)
    assert longest is not None and not longest.exact


@given(
    st.lists(st.integers(1_000, 10**9), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1_000, 10**9), st.integers(0, 10**10)), max_size=20),
    st.floats(0.01, 1),
)
def test_the_bounds_hold_whatever_the_unanswered_would_have_taken(
    answered: list[int], unanswered: list[tuple[int, int]], share: float
) -> None:
    """Each unanswered request has an age and takes some time longer; the true percentile lies within the bounds."""
    ages = sorted(age for age, _ in unanswered)
    seen = distribution([(value, 1) for value in sorted([*answered, *ages])], max([*answered, *ages]))
    alone = distribution([(value, 1) for value in sorted(answered)], max(answered))
    between = bound(seen, alone, share)
    assert between is not None
    truth = sorted([*answered, *(age + longer for age, longer in unanswered)])
    rank = max(-int(-(share * len(truth) - 1e-9) // 1), 1)
    assert between.low_ns <= truth[rank - 1]
    assert between.high_ns is None or truth[rank - 1] <= between.high_ns


def test_sysbenchs_buckets() -> None:
    assert [value_ms(bucket(ns)) for ns in (417_000, 36_894_000)] == pytest.approx([0.417, 36.894], rel=0.001)
    assert (bucket(0), bucket(500), bucket(10**15)) == (0, 0, 1023)


# ---------------------------------------------------------------- receipts and limits of servers


def test_the_advice_names_the_statement_that_lifts_a_limit() -> None:
    job = fake_load.job(connections=2048, workload=Sysbench(kind="oltp_read_write", tables=10))
    sentence = limit_advice(job, "… error 1461 (42000): Can't create more than max_prepared_stmt_count statements")
    assert sentence is not None
    assert "SET GLOBAL max_prepared_stmt_count = 188416;" in sentence, "2048 x (9 x 10 + BEGIN and COMMIT)"
    sentence = limit_advice(job, "… refused the login: error 1040 (08004): Too many connections")
    assert sentence is not None and "SET GLOBAL max_connections = 2058;" in sentence
    assert limit_advice(job, "error 1146: no such table") is None
