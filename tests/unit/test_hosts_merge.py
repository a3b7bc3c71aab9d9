"""Several clients merged into one: divided quantities add up again, and percentiles are those of all samples."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from howfar.contract.messages import (
    Arrivals,
    Custom,
    CustomStatement,
    CustomStep,
    CustomTransaction,
    Failed,
    Finished,
    Histogram,
    Interval,
    LoadJob,
    Lookups,
    Lost,
    SequenceValues,
    Sysbench,
    UnixTarget,
)
from howfar.errors import LabError, PlanError
from howfar.fleet.load import divide_job, merge_intervals, merge_results
from howfar.stats.hdr import MAX_NS, SIGNIFICANT_DIGITS

EXAMPLE = json.loads((Path(__file__).parents[2] / "schema" / "examples" / "event.finished.json").read_text())
JOB = LoadJob(
    target=UnixTarget(path="/s"),
    user="u",
    database="d",
    workload=Sysbench(tables=1, table_size=10),
    connections=10,
    seed=1,
    warmup_ns=0,
    measure_ns=1,
    arrivals=Arrivals(rate_per_s=1000.0),
)


def histogram(samples: list[int]) -> Histogram:
    made = HdrHistogram(1, MAX_NS, SIGNIFICANT_DIGITS)
    for sample in samples:
        made.record_value(sample)
    percentiles = {f"p{share}_ns": made.get_value_at_percentile(share) for share in (50, 95, 99)}
    mean = sum(samples) / len(samples)
    return Histogram(
        kind="transaction", count=len(samples), min_ns=min(samples), max_ns=max(samples), mean_ns=mean, **percentiles,
        data=made.encode().decode(),
    )  # fmt: skip


def test_four_clients_have_the_percentiles_of_one_with_all_samples() -> None:
    draws = random.Random(1)
    samples = [int(draws.lognormvariate(12, 1)) for _ in range(4000)]
    one = Finished.model_validate(EXAMPLE)
    parts = [
        one.model_copy(update={"histograms": (histogram(samples[first::4]),), "transactions": 1000})
        for first in range(4)
    ]
    together, whole = merge_results(parts), histogram(samples)
    (found,) = together.histograms
    assert together.transactions == 4000 and found.count == whole.count
    assert (found.p50_ns, found.p95_ns, found.p99_ns) == (whole.p50_ns, whole.p95_ns, whole.p99_ns)
    assert (found.min_ns, found.max_ns) == (whole.min_ns, whole.max_ns)
    assert found.mean_ns == pytest.approx(whole.mean_ns)
    client = next(use for use in together.cpu if use.role == "client")
    assert client.cpu_ns == 4 * next(use.cpu_ns for use in one.cpu if use.role == "client")


def test_keys_that_any_client_missed_are_missed() -> None:
    one = Finished.model_validate(EXAMPLE)
    hits, misses = (one.model_copy(update={"lookups": Lookups(hits=9 - miss, misses=miss)}) for miss in (0, 2))
    assert merge_results([hits, misses]).lookups == Lookups(hits=16, misses=2)


def test_connections_that_any_client_lost_are_lost() -> None:
    one = Finished.model_validate(EXAMPLE).model_copy(update={"lost": None})
    why = Failed(code="server_gone", message="gone", advice="")
    parts = [one, *(one.model_copy(update={"lost": Lost(at_end=count, last=why)}) for count in (2, 3))]
    assert merge_results(parts).lost == Lost(at_end=5, last=why)
    assert merge_results([one, one]).lost is None


def test_connections_and_rate_are_divided_and_seeds_differ() -> None:
    jobs = divide_job(JOB, 3)
    assert [job.connections for job in jobs if isinstance(job, LoadJob)] == [4, 3, 3]
    rates = [job.arrivals.rate_per_s for job in jobs if isinstance(job, LoadJob) and job.arrivals]
    assert sum(rates) == pytest.approx(1000) and rates[0] == pytest.approx(400)
    assert len({job.seed for job in jobs}) == 3
    assert divide_job(JOB, 1) == [JOB]


def test_no_two_clients_insert_one_key() -> None:
    insert = CustomStatement(name="insert", sql="INSERT INTO t VALUES (?)", parameters=(SequenceValues(),))
    transaction = CustomTransaction(name="insert", steps=(CustomStep(statement="insert"),))
    workload = Custom(statements=(insert,), transactions=(transaction,))
    jobs = divide_job(JOB.model_copy(update={"workload": workload}), 3)
    taken: list[int] = []
    for job in jobs:
        assert isinstance(job, LoadJob) and isinstance(job.workload, Custom)
        keys = job.workload.statements[0].parameters[0]
        assert isinstance(keys, SequenceValues)
        taken += [keys.first + keys.step * call for call in range(20)]
    assert sorted(taken) == list(range(1, 61))


@pytest.mark.parametrize(
    "workload",
    [
        Sysbench(kind="select_random_points"),
        Sysbench(kind="select_random_ranges"),
        Sysbench(kind="bulk_insert"),
        Sysbench(kind="oltp_insert", auto_inc=False),
    ],
)
def test_what_goes_by_the_number_of_a_connection_is_of_one_client(workload: Sysbench) -> None:
    job = JOB.model_copy(update={"workload": workload})
    assert divide_job(job, 1) == [job]
    with pytest.raises(PlanError, match=f"{workload.kind} cannot be divided"):
        divide_job(job, 2)


def test_fewer_connections_than_clients_are_refused() -> None:
    with pytest.raises(PlanError, match="cannot be divided over 11 clients"):
        divide_job(JOB, 11)


SLICE = Interval.model_validate(
    json.loads((Path(__file__).parents[2] / "schema" / "examples" / "event.interval.json").read_text())
)


def slices(samples: list[list[int]]) -> list[Interval]:
    """One interval per second, with these latencies."""
    return [
        SLICE.model_copy(
            update={
                "start_ns": number * 10**9,
                "transactions": len(second),
                "max_ns": max(second),
                "latencies": histogram(second).data,
            }
        )
        for number, second in enumerate(samples)
    ]


def test_each_second_has_the_percentiles_of_all_clients() -> None:
    fast, slow = [[1000] * 98, [1000] * 98], [[9000] * 2, [7000] * 2]
    first, second = merge_intervals([slices(fast), slices(slow)])
    assert (first.transactions, first.p50_ns, first.p95_ns) == (100, 1000, 1000)
    assert (first.p99_ns, second.p99_ns) == pytest.approx((9000, 7000), rel=1e-3)
    assert (first.max_ns, second.max_ns) == (9000, 7000)


def test_clients_of_different_windows_are_not_added() -> None:
    with pytest.raises(LabError, match="did not measure the same window"):
        merge_intervals([slices([[1], [1]]), slices([[1]])])
