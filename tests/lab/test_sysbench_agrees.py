"""sysbench with the same options over each path does the same work as our engine and ranks the paths in the same order."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from howfar.stats.estimate import Estimate
from howfar.stats.intervals import judge_ratio, mean_interval
from tests.lab.howfar_runs import PATHS
from tests.lab.scenario_programs import run_scenario
from tests.lab.sysbench_scenario import THREADS, WORKLOAD
from tests.lab.undisturbed import OtherProgramsCpu, fail_or_skip

pytestmark = [
    pytest.mark.alone,
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    pytest.mark.skipif(
        shutil.which("sysbench") is None, reason="sysbench is not installed (./setup --tests brings it)"
    ),
]
BLOCKS, SECONDS = 6, 1.0
QUERIES = WORKLOAD.point_selects + 4
BYTES_TOLERANCE = 0.01


ATTEMPTS = 3
"""Other programs can make one path more expensive for one of the tools, and even without them six intervals of 95 % do not always
overlap. An engine whose paths have other costs disagrees in each attempt."""


class Comparisons:
    """Measurements, which are made when a test first needs them."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._measured: list[dict[str, Any]] = []
        self._other_cpus: list[float] = []

    def get(self, number: int) -> dict[str, Any]:
        while number >= len(self._measured):
            with OtherProgramsCpu() as others:
                self._measured.append(_measured(self._cache))
            self._other_cpus.append(others.cpus)
        return self._measured[number]

    def check(self, find_disagreement: Callable[[dict[str, Any]], str | None]) -> None:
        """Check that `find_disagreement` returns None for at least one attempt."""
        disagreements = []
        for number in range(ATTEMPTS):
            disagreement = find_disagreement(self.get(number))
            if disagreement is None:
                return
            disagreements.append(disagreement)
        fail_or_skip(disagreements, self._other_cpus)


def _measured(cache: Path) -> dict[str, Any]:
    return run_scenario("sysbench_scenario", str(BLOCKS), str(SECONDS), cache=cache)[0]


@pytest.fixture(scope="module")
def comparisons(cache: Path) -> Comparisons:
    return Comparisons(cache)


@pytest.fixture(scope="module")
def seen(comparisons: Comparisons) -> dict[str, Any]:
    """The first measurement: exact counts need no second attempt."""
    return comparisons.get(0)


def test_queries_a_transaction_are_the_same(seen: dict[str, Any]) -> None:
    work = seen["same_work"]
    for run in (work["short"], work["long"], work["engine"]):
        assert run["queries"] / run["transactions"] == QUERIES
    marginal = work["long"]["Com_stmt_execute"] - work["short"]["Com_stmt_execute"]
    assert marginal == QUERIES * (work["long"]["transactions"] - work["short"]["transactions"])


@pytest.mark.parametrize(
    ("counter", "ours"), [("bytes_received", "bytes_to_server"), ("bytes_sent", "bytes_to_client")]
)
def test_bytes_a_transaction_are_the_same_for_the_server(seen: dict[str, Any], counter: str, ours: str) -> None:
    work = seen["same_work"]
    events = work["long"]["transactions"] - work["short"]["transactions"]
    sysbench = (work["long"][counter] - work["short"][counter]) / events
    engine = work["engine"]
    assert engine[ours] / engine["transactions"] == pytest.approx(sysbench, rel=BYTES_TOLERANCE)
    assert engine[counter] / engine["all_transactions"] == pytest.approx(sysbench, rel=BYTES_TOLERANCE)


def _added_us(seen: dict[str, Any], tool: str, path: str) -> Estimate:
    """Microseconds that a path adds to the socket's time per query, from one value per block."""
    qps = {(t["block"], t["path"]): t["qps"] for t in seen["trials"] if t["tool"] == tool}
    return mean_interval([THREADS * 1e6 * (1 / qps[block, path] - 1 / qps[block, "socket"]) for block in range(BLOCKS)])


def _unlike(ours: Estimate, theirs: Estimate) -> str | None:
    """The two intervals if they do not overlap, else None."""
    assert ours.low is not None and ours.high is not None
    assert theirs.low is not None and theirs.high is not None
    return None if max(ours.low, theirs.low) <= min(ours.high, theirs.high) else f"{ours} and {theirs}"


@pytest.mark.parametrize("path", PATHS[1:])
def test_what_a_path_adds_is_the_same_within_the_intervals(comparisons: Comparisons, path: str) -> None:
    """Compares times per query, because ratios contain the client's own cost, and sysbench costs more than our engine: it makes the
    socket a few percent slower, and so moves every ratio to the socket closer to 1."""
    comparisons.check(lambda seen: _unlike(_added_us(seen, "engine", path), _added_us(seen, "sysbench", path)))


@pytest.mark.parametrize("path", PATHS[1:])
def test_the_ratio_of_a_path_is_the_same_for_equally_expensive_clients(comparisons: Comparisons, path: str) -> None:
    """If sysbench's extra time on the socket is added to both of our paths, our ratio agrees with sysbench's within the intervals."""

    def judged(seen: dict[str, Any]) -> str | None:
        qps: dict[tuple[str, int, str], float] = {(t["tool"], t["block"], t["path"]): t["qps"] for t in seen["trials"]}
        extra_s = median(
            1 / qps["sysbench", block, "socket"] - 1 / qps["engine", block, "socket"] for block in range(BLOCKS)
        )

        def ratio(tool: str, block: int, extra: float) -> float:
            return (1 / qps[tool, block, "socket"] + extra) / (1 / qps[tool, block, path] + extra)

        ours = judge_ratio([ratio("engine", block, extra_s) for block in range(BLOCKS)]).reported
        theirs = judge_ratio([ratio("sysbench", block, 0.0) for block in range(BLOCKS)]).reported
        return _unlike(ours, theirs)

    comparisons.check(judged)


def test_no_two_paths_are_resolved_in_opposite_orders(comparisons: Comparisons) -> None:
    """Where both tools resolve which of two paths is slower, they agree."""

    def judged(seen: dict[str, Any]) -> str | None:
        qps = {(t["tool"], t["block"], t["path"]): t["qps"] for t in seen["trials"]}
        for i, one in enumerate(PATHS):
            for other in PATHS[i + 1 :]:
                signs = []
                for tool in ("engine", "sysbench"):
                    judged = judge_ratio([qps[tool, b, other] / qps[tool, b, one] for b in range(BLOCKS)]).reported
                    if judged.low is not None and judged.high is not None and not judged.low <= 1 <= judged.high:
                        signs.append(math.copysign(1, math.log(judged.value)))
                if len(set(signs)) > 1:
                    return f"{one} and {other}"
        return None

    comparisons.check(judged)
