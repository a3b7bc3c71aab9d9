"""The limit that analysis names for loads that one resource limits, on real servers and links.

A machine that is busy with other programs may give another verdict. The case is then repeated, and skipped if the last attempt gives
no verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from howfar.bottleneck.traffic import IP_TCP_BYTES, MTU, SEGMENT_HEADER_BYTES, carried_from_interface_count
from howfar.model.facts import reply_sizes
from howfar.model.resource import Resource
from howfar.plan.workload import Workload
from tests.lab.limit_verdicts import judge, other_programs_cpus, should_retry
from tests.lab.local_servers import require_server
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import BUSY_CPUS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.timeout(1400),
    pytest.mark.usefixtures("namespaces", "mariadb"),
]
ROUNDS = 3
MAX_RETRY_S = 400.0
"""Time after which no case is repeated."""
MIN_FSYNC_NS = 150_000
"""A faster write is not durable: it goes to memory, or to a disk that replies before it has written."""

REQUEST = {"tables": 1, "table_size": 10_000, "connections": 64, "paths": ["tcp", "remote"]}
WIDE = {
    "point_selects": 0,
    "range_size": 1000,
    "simple_ranges": 4,
    "sum_ranges": 0,
    "order_ranges": 0,
    "distinct_ranges": 0,
    "skip_trx": True,
}
"""Options of a transaction with four replies of 127 kB."""
ONE_ROW = {"kind": "oltp_write_only", "index_updates": 0, "non_index_updates": 2, "delete_inserts": 0}
FAR = {"path": "remote", "rtt_ns": 10_000_000, "rate_bps": 10**9}


def _case(name: str, expected: Resource, factors: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "expected": expected, "request": REQUEST, "factors": factors, **more}


FULL_LINK = _case(
    "full link",
    Resource.LINK_TO_CLIENT,
    {"path": "remote", "threads": 16, "rtt_ns": 200_000, "rate_bps": 20_000_000},
    measure="5s",  # 270 transactions, so that those in flight at both ends are half a percent
)
SERVER_CPU = _case("server CPU", Resource.SERVER_CPU, {"path": "tcp", "threads": 16})
LOCK = _case(
    "lock",
    Resource.LOCK,
    {"path": "remote", "threads": 8, "rtt_ns": 1_000_000, "rate_bps": 10**9},
    workload=ONE_ROW,
    data={"table_size": 1},
)
RARE = (
    FULL_LINK,
    _case(
        "client CPU",
        Resource.CLIENT_CPU,
        {"path": "tcp", "threads": 16},
        null=100_000,
        work="decode",
        workload={"point_selects": 1, "range_selects": False, "skip_trx": True},
    ),
    _case("latency", Resource.LATENCY, {**FAR, "threads": 1}),
    _case("receive window", Resource.RECEIVE_WINDOW, {**FAR, "threads": 1}, rmem=16_384, workload=WIDE),
    LOCK,
    _case(
        "loss",
        Resource.LOSS,
        {**FAR, "threads": 4},
        loss=0.01,
        rtt_ns=10_000_000,
        request={**REQUEST, "paths": ["remote"]},
        workload=WIDE,
    ),
)
ON_DISK = (
    _case(
        "commit",
        Resource.COMMIT,
        {"path": "tcp", "threads": 1},
        on_disk=True,
        request={**REQUEST, "paths": ["tcp"]},
        workload={"kind": "oltp_update_non_index"},
    ),
)


def _run(cases: Sequence[dict[str, Any]], cache: Path) -> dict[str, dict[str, Any]]:
    """Run the cases, in a sandbox unless they are on disk: there, data that fits is in memory."""
    sandboxed = not cases[0].get("on_disk")
    results = run_scenario("limits_scenario", json.dumps(cases), cache=cache, sandboxed=sandboxed)
    return {found["name"]: found for found in results}


def _judged(cases: tuple[dict[str, Any], ...], cache: Path) -> dict[str, dict[str, Any]]:
    """Measure each case until its verdict is final, at most ROUNDS times."""
    found: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    for number in range(ROUNDS):
        if number and time.monotonic() - began > MAX_RETRY_S:
            break
        left = [
            case for case in cases if case["name"] not in found or should_retry(found[case["name"]], case["expected"])
        ]
        if left:
            found |= _run(left, cache)
    return {case["name"]: found[case["name"]] | {"expected": case["expected"]} for case in cases}


@pytest.fixture(scope="module")
def usual(cache: Path) -> dict[str, dict[str, Any]]:
    return _judged((SERVER_CPU,), cache)


@pytest.fixture(scope="module")
def rare(cache: Path) -> dict[str, dict[str, Any]]:
    return _judged(RARE, cache)


def _limit(found: dict[str, Any]) -> dict[str, Any]:
    """The named limit, checked to be the expected one."""
    judged = judge(found, found["expected"])
    assert judged != "void", found["void"]
    limit: dict[str, Any] = found["cell"]["limit"]
    if judged == "others":
        pytest.skip(f"others had {other_programs_cpus(found):.2f} CPUs each time: {limit['says']}")
    assert judged == "right", (limit, f"others had {other_programs_cpus(found):.2f} CPUs", found["void"])
    cycle = found["cell"]["cycle"]
    assert sum(part["us"] for part in cycle["parts"]) == pytest.approx(cycle["us"])
    return limit


@pytest.mark.thorough
def test_a_full_link(usual: dict[str, Any], rare: dict[str, Any]) -> None:
    """54 transactions of 43 kB per second are 20 Mb/s, which a server exceeds even on a busy machine."""
    limit = _limit(rare["full link"])
    assert limit["parameters"]["ceiling"] == pytest.approx(2.347, abs=0.001), limit["says"]
    assert "more connections" in limit["would_not"]
    _check_plateau(rare | usual)


def _check_plateau(found: dict[str, Any]) -> None:
    """Throughput is, within 3 %, the link's rate over a transaction's bytes on the wire, computed from its replies over loopback."""
    full, loopback = found["full link"]["cell"], found["server CPU"]["cell"]
    assert loopback is not None, found["server CPU"]["void"]
    sizes = reply_sizes(Workload(), loopback["turns_per_txn"], loopback["bytes_per_txn"]["to_client"])
    assert len(set(sizes)) > 1, "replies have different sizes"
    segments = sum(ceil(size / (MTU - IP_TCP_BYTES)) for size in sizes)
    on_wire = carried_from_interface_count(sum(sizes) + segments * SEGMENT_HEADER_BYTES, segments).wire
    tps = full["qps"]["value"] / full["queries_per_txn"]
    predicted = full["factors"]["rate_bps"] / 8 / on_wire
    assert tps <= 1.03 * predicted, "throughput is at most what the link carries"
    others = other_programs_cpus(found["full link"])
    if tps < 0.97 * predicted and others > BUSY_CPUS:
        pytest.skip(f"others had {others:.2f} CPUs, and the link was not full: {tps:.1f} of {predicted:.1f} per second")
    assert tps >= 0.97 * predicted


def test_a_server_without_idle_cpu(usual: dict[str, Any]) -> None:
    _limit(usual["server CPU"])


@pytest.mark.thorough
def test_pure_latency(rare: dict[str, Any]) -> None:
    limit = _limit(rare["latency"])
    # Wake-ups take the rest of the time, more on a busy machine.
    enough = 0.8 if other_programs_cpus(rare["latency"]) <= BUSY_CPUS else 0.5
    assert limit["id"] == "round-trips" and limit["parameters"]["share"] >= enough, limit["says"]
    assert "more bandwidth" in limit["would_not"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "field", "fragment"),
    [
        # The server answers with prepared bytes, and the client reads and decodes each of them.
        ("client CPU", "says", "these figures describe the load generator"),
        # 127 kB through a window of 16 kB at 10 ms take eight or more round trips per answer.
        ("receive window", "says", "client's receive window"),
        ("loss", "says", ""),
        # Eight connections update one row, and hold its lock for three round trips each.
        ("lock", "would_not", "more connections"),
    ],
)
def test_a_limit_is_named(rare: dict[str, Any], case: str, field: str, fragment: str) -> None:
    assert fragment in _limit(rare[case])[field]


@pytest.mark.thorough
def test_a_commit_that_waits_for_the_disk(cache: Path) -> None:
    """Runs outside the sandbox, whose data is in memory, with one connection and durable updates."""
    found = _judged(ON_DISK, cache)["commit"]
    cost = found["fsync"]
    if not cost or cost["512"]["p50"] < MIN_FSYNC_NS:
        pytest.skip(f"a durable write takes almost no time here: {cost}")
    _limit(found)


@pytest.mark.thorough
def test_limits_of_mysql(cache: Path) -> None:
    program = require_server("mysql").path  # the tests' cache has no private installs
    cases = tuple({**case, "request": {**REQUEST, "server": str(program)}} for case in (SERVER_CPU, FULL_LINK, LOCK))
    found = _judged(cases, cache)
    _limit(found["full link"])
    _check_plateau(found)
    _limit(found["lock"])
