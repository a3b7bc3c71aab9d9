"""Loads of which no resource is full, and such that no one has: what is said, and what is not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.unit.limit_cases import SERVER_CPU_NUMBER, Case, found_in, limit_of
from tests.unit.made_curves import Cell, run_of

from howfar.analysis.advice import advise
from howfar.analysis.cells import floors
from howfar.analysis.confirmation import intervention
from howfar.analysis.summary import RunEvidence
from howfar.bottleneck.limit import Intervention
from howfar.experiments.bandwidth.analysis import verdict
from howfar.experiments.registry import summarise
from howfar.model.resource import Resource
from howfar.stats.trials import trial_table

OWN_BYTES = Case(
    connections=1,
    tps=80.5,
    round_trips=4,
    rate_bps=10**8,
    bytes_to_client=123_000,
    bytes_to_server=100,
    client_us=1070,
    client_wait_us=1500,
    server_us=650,
    emulator={0: 0.2, 1: 0.23},
    others={1: 0.03},
)
"""127 kB a reply over 100 Mb/s: four fifths of the round are bytes on the wire. Half as fast again gave 1.41 times as much."""


def test_a_client_waits_for_nobody_on_a_cpu_that_is_mostly_idle() -> None:
    """12 % of the time, on a CPU of which the emulator has 23 % and all together 35 %."""
    evidence, _, limit = found_in(OWN_BYTES)
    assert evidence.client_waited_share > 0.1
    assert limit.resource is Resource.LATENCY
    assert "bytes on the wire (8" in limit.says


def test_a_limit_that_no_trial_names_is_not_named() -> None:
    """A full link in one trial, a full server in the other: on the mean nothing is full, and that is true of neither."""
    one = Case(
        connections=1, tps=98, round_trips=4, rate_bps=10**8, bytes_to_client=119_000, client_us=100, server_us=300
    )
    other = replace(one, bytes_to_client=400, server_us=10_000)
    assert [limit_of(case).resource for case in (one, other)] == [Resource.LINK_TO_CLIENT, Resource.SERVER_CPU]
    limit = limit_of(one, other)
    assert (limit.resource, limit.confidence) == (Resource.NOT_ESTABLISHED, "low")
    assert "link to client in 1, server CPU in 1" in limit.says


@pytest.mark.parametrize(("connections", "tps"), [(1, 80.5), (2, 84.5)])
def test_more_bandwidth_helps_replies_that_wait_for_their_own_bytes(connections: int, tps: float) -> None:
    """A link that is used for less than 95 % by its mean is waited for all the same: four times the rate gave 3.3 times as much."""
    limit = limit_of(replace(OWN_BYTES, connections=connections, tps=tps))
    assert limit.resource is Resource.LATENCY
    assert limit.would_change.startswith("a far faster link: at most x3")
    assert "bandwidth" not in limit.would_not


def test_what_would_change_a_limit_has_its_interval_over_blocks() -> None:
    """Four fifths of the round are bytes on the wire, so a link of any rate gives at most about 3.5 times as much."""
    limit = limit_of(*(replace(OWN_BYTES, connections=2, tps=tps) for tps in (80.0, 84.5, 88.0, 82.0, 86.0)))
    assert limit.gain is not None and limit.gain.low is not None and limit.gain.high is not None
    assert limit.gain.low < limit.gain.value < limit.gain.high
    assert re.match(r"a far faster link: at most x3\.\d \[x[23]\.?\d?, x[34]\.?\d?\]", limit.would_change), (
        limit.would_change
    )


def test_of_few_blocks_the_gains_themselves_are_shown() -> None:
    limit = limit_of(*(replace(OWN_BYTES, connections=2, tps=tps) for tps in (78.0, 90.0)))
    assert limit.gain is not None and limit.gain.low is None and len(limit.gain.points) == 2
    assert re.match(r"a far faster link: at most x\d\.\d \(x\d\.?\d?, x\d\.?\d?\)", limit.would_change), (
        limit.would_change
    )


def test_alternatives_that_the_blocks_cannot_tell_apart_are_called_so() -> None:
    """About half of a round is bytes on the wire: taking them away gives as much as a second connection beside them."""
    even = replace(OWN_BYTES, connections=1, tps=46, client_us=3000, server_us=3000)
    alike = [replace(even, bytes_to_client=size) for size in (110_000, 150_000, 120_000, 140_000, 127_000)]
    doubt = "gives more is not resolved"
    limit = limit_of(*alike)
    assert limit.resource is Resource.LATENCY
    assert limit.would_change.endswith(doubt), limit.would_change
    steady = [replace(OWN_BYTES, connections=1, tps=tps) for tps in (80.0, 80.5, 81.0, 80.2, 80.4)]
    assert doubt not in limit_of(*steady).would_change


@pytest.mark.parametrize(("server", "others"), [(0.34, 0.33), (0.33, 0.34)])
def test_a_hair_does_not_decide_whose_a_cpu_is(server: float, others: float) -> None:
    """Whoever has a percent more of it is no reason to spend on it, nor to call the figures invalid."""
    case = Case(connections=16, tps=700, client_us=100, server_us=server / 700 * 1e6, server_wait_us=15_000)
    limit = limit_of(replace(case, emulator={SERVER_CPU_NUMBER: 0.31}, others={SERVER_CPU_NUMBER: others}))
    assert limit.resource is Resource.SERVER_CPU
    assert limit.divided and limit.confidence == "low"
    assert limit.says.endswith("nobody has most of it")
    assert all(share in limit.says for share in ("server 3", "other programs 3", "emulator 31 %"))
    assert limit.would_change.startswith("CPUs of their own")


def test_half_of_what_is_in_use_is_an_owner_s() -> None:
    case = Case(connections=16, tps=700, client_us=100, server_us=720, server_wait_us=15_000)
    limit = limit_of(replace(case, emulator={SERVER_CPU_NUMBER: 0.24}, others={SERVER_CPU_NUMBER: 0.24}))
    assert limit.resource is Resource.SERVER_CPU and not limit.divided
    assert limit.confidence != "low"


def test_a_round_of_bytes_is_put_to_the_test_by_the_rate_and_advised_on_as_such() -> None:
    factors = {"path": "remote", "rtt_ns": 200_000, "rate_bps": 10**8}
    summary = summarise(run_of([Cell({**factors, "threads": threads}, tps) for threads, tps in ((1, 120), (2, 200))]))
    cell = summary.cells[1]
    assert cell.limit is not None and cell.limit.resource is Resource.LATENCY, cell.limit
    found = intervention(cell, cell.limit, summary.environment)
    assert isinstance(found, Intervention) and found.changed.startswith("rate 100mbit")
    assert 1.1 < found.predicted < 1.5
    assert summary.advice[0].action.startswith("Send fewer bytes, use a faster link")
    assert "% of a round bytes on the wire" in summary.verdict


def test_nobody_is_advised_to_spend_on_cpus_that_nobody_has_most_of() -> None:
    factors = {"path": "remote", "rtt_ns": 200_000, "rate_bps": 10**9}
    run = run_of([Cell({**factors, "threads": threads}, tps) for threads, tps in ((1, 200), (16, 1245))])
    cells = summarise(run).cells
    assert cells[1].limit is not None and cells[1].limit.resource is Resource.SERVER_CPU
    divided = cells[1].model_copy(update={"limit": cells[1].limit.model_copy(update={"divided": True})})
    table = trial_table(run)
    assert advise(cells, table)[0].action.startswith("Give the server more CPU")
    assert advise([cells[0], divided], table)[0].action.startswith(
        "Measure again with separate CPUs for load, emulator"
    )
    evidence = RunEvidence(table, (cells[0], divided), (), floors(table), "")
    assert "no single program has most of the CPUs, which are the limit" in verdict(evidence)
