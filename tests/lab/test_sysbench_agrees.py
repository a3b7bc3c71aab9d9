"""sysbench itself, over each path with the same options: the same work as our engine's, and the same order and ratios of the paths."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.analysis.intervals import RatioJudgement, judge_ratio
from tests.lab.sysbench_scenario import PATHS, WORKLOAD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    pytest.mark.skipif(
        shutil.which("sysbench") is None, reason="sysbench is not installed (./setup --tests brings it)"
    ),
]
BLOCKS, SECONDS = 6, 2.0
QUERIES = WORKLOAD.point_selects + 4
BYTES_TOLERANCE = 0.01


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.sysbench_scenario", str(BLOCKS), str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_queries_a_transaction_are_the_same(seen: dict[str, Any]) -> None:
    work = seen["same_work"]
    for run in (work["short"], work["long"], work["engine"]):
        assert run["queries"] / run["transactions"] == QUERIES
    marginal = work["long"]["Com_stmt_execute"] - work["short"]["Com_stmt_execute"]
    assert marginal == QUERIES * (work["long"]["transactions"] - work["short"]["transactions"])


@pytest.mark.parametrize(
    ("counter", "ours"), [("Bytes_received", "bytes_to_server"), ("Bytes_sent", "bytes_to_client")]
)
def test_bytes_a_transaction_are_the_same_for_the_server(seen: dict[str, Any], counter: str, ours: str) -> None:
    work = seen["same_work"]
    events = work["long"]["transactions"] - work["short"]["transactions"]
    sysbench = (work["long"][counter] - work["short"][counter]) / events
    engine = work["engine"]
    assert engine[ours] / engine["transactions"] == pytest.approx(sysbench, rel=BYTES_TOLERANCE)
    assert engine[counter] / engine["all_transactions"] == pytest.approx(sysbench, rel=BYTES_TOLERANCE)


def _ratios(seen: dict[str, Any], tool: str, path: str) -> RatioJudgement:
    qps = {(t["block"], t["path"]): t["qps"] for t in seen["trials"] if t["tool"] == tool}
    return judge_ratio([qps[block, path] / qps[block, "socket"] for block in range(BLOCKS)])


@pytest.mark.parametrize("path", PATHS[1:])
def test_the_ratio_of_a_path_is_the_same_within_the_intervals(seen: dict[str, Any], path: str) -> None:
    ours, theirs = _ratios(seen, "engine", path), _ratios(seen, "sysbench", path)
    for judged in (ours, theirs):
        assert judged.quoted.low is not None and judged.quoted.high is not None
    assert ours.quoted.low is not None and ours.quoted.high is not None  # for the type checker
    assert theirs.quoted.low is not None and theirs.quoted.high is not None
    assert max(ours.quoted.low, theirs.quoted.low) <= min(ours.quoted.high, theirs.quoted.high), (ours, theirs)


def test_no_two_paths_are_resolved_in_opposite_orders(seen: dict[str, Any]) -> None:
    """Where both tools resolve which of two paths is slower, they say the same."""
    qps = {(t["tool"], t["block"], t["path"]): t["qps"] for t in seen["trials"]}
    for i, one in enumerate(PATHS):
        for other in PATHS[i + 1 :]:
            signs = []
            for tool in ("engine", "sysbench"):
                judged = judge_ratio([qps[tool, b, other] / qps[tool, b, one] for b in range(BLOCKS)]).quoted
                if judged.low is not None and judged.high is not None and not judged.low <= 1 <= judged.high:
                    signs.append(math.copysign(1, math.log(judged.value)))
            assert len(set(signs)) <= 1, (one, other)
