"""Which resource is named, for loads made so that one is: each rule, their order, and the refusal."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.limit_cases import CLIENT_CPU_NUMBER, SERVER_CPU_NUMBER, Case, found_in, limit_of, tcp

from howfar.analysis import cells
from howfar.bottleneck import cycle as cycles
from howfar.bottleneck.cycle import PARTS, behind_others, cycle_of, part_us
from howfar.bottleneck.evidence import gather
from howfar.bottleneck.limit import find_limit
from howfar.bottleneck.traffic import carried, carried_payload, ceilings
from howfar.model.facts import unevenness
from howfar.model.resource import Resource

MIB = 2**20
FULL = Case(connections=16, tps=92.7, bytes_to_client=1_270_000, client_us=2000, server_us=5000, server_wait_us=3000)
"""Results of 1000 rows over 1 Gb/s."""
BUSY = Case(connections=16, tps=700, server_us=900, client_us=300, server_wait_us=15_000)
CROWDED_CLIENT = Case(connections=4, tps=1000, client_us=240, client_wait_us=500, server_us=300, rtt_us=None)
"""Its own work would fit on its CPU four times."""
WINDOW = Case(tps=3, round_trips=16, rtt_us=10_000, bytes_to_client=1_270_000, tcp=(tcp("server", 1, 0.95, rwnd=0.85),))
LOST = Case(tps=2, connections=4, round_trips=16, rtt_us=10_000, bytes_to_client=1_270_000, retransmits=70)
LOST_FAST = Case(tps=22, connections=4, round_trips=16, rtt_us=10_000, bytes_to_client=40_000, retransmits=44)
"""Half a segment a transaction, 1 %: 5 of 182 ms if it was seen at once, 105 ms if a timer had to run out."""
BOUNDED = Case(connections=8, tps=48, round_trips=16, rtt_us=10_000, bytes_to_client=400, server_us=1000, client_us=500)
LOCK_WAITS = {"Innodb_row_lock_waits": 800, "Innodb_row_lock_time": 5600}
LOCKS = Case(
    connections=8, tps=200, round_trips=6, rtt_us=1000, server_us=400, bytes_to_client=200, counters=LOCK_WAITS
)
BARELY_LOCKED = Case(
    connections=8,
    tps=1000,
    round_trips=2,
    rtt_us=1000,
    server_wait_us=1400,
    bytes_to_client=200,
    counters={"Innodb_row_lock_waits": 9000, "Innodb_row_lock_time": 0},
    tcp=(tcp("server", 8, 0.9, sndbuf=0.2),),
)
FAILING = Case(connections=8, tps=200, round_trips=6, rtt_us=1000, bytes_to_client=200)
WRITES = {"Innodb_data_fsyncs": 1600, "Handler_commit": 1600}
COMMITS = Case(tps=400, round_trips=1, rtt_us=None, server_us=200, bytes_to_client=50, counters=WRITES, fsync_us=2000.0)
REPLICATED = Case(
    connections=16,
    tps=185,
    round_trips=1,
    rtt_us=None,
    server_us=200,
    bytes_to_client=50,
    replication={"window": {"mean_wait_us": 85_700.0}},
    acknowledgement_us=85_100.0,
)
UNKNOWN = Case(connections=8, tps=1000, round_trips=2, rtt_us=None, client_us=100, server_us=300)

VERDICTS: dict[str, tuple[Case, Resource, str, str]] = {
    "a full link": (FULL, Resource.LINK_TO_CLIENT, "high", ": 117. &  of 117.3 MiB/s"),
    "a queue drops the 8 % that a link does not carry": (
        replace(FULL, tps=100),
        Resource.LINK_TO_CLIENT,
        "high",
        "117.3 of 117.3 MiB/s & 126.",
    ),
    "small packets: 64 bytes of payload are 154 on the wire": (
        Case(tps=100, connections=4, round_trips=8, bytes_to_client=512, bytes_to_server=300, rate_bps=1_000_000),
        Resource.LINK_TO_CLIENT,
        "high",
        "",
    ),
    "payload alone, which no interface counted": (replace(FULL, window=False), Resource.LINK_TO_CLIENT, "medium", ""),
    "a full server": (
        Case(connections=16, tps=1200, server_us=820, client_us=150, server_wait_us=11_000),
        Resource.SERVER_CPU,
        "high",
        "server 98 % & more bandwidth: the link is",
    ),
    "a server that shares its CPU with the emulator": (
        replace(BUSY, emulator={SERVER_CPU_NUMBER: 0.35}),
        Resource.SERVER_CPU,
        "high",
        "server 63 %, emulator 35 % & the emulator had 35 % of it",
    ),
    "an emulator with most of a CPU": (
        replace(BUSY, server_us=400, emulator={SERVER_CPU_NUMBER: 0.7}),
        Resource.INSTRUMENT_CPU,
        "high",
        "",
    ),
    "other programs with most of a CPU": (
        replace(BUSY, server_us=400, others={SERVER_CPU_NUMBER: 0.72}),
        Resource.INVALID,
        "high",
        "",
    ),
    "a load generator without time left": (
        Case(connections=64, tps=9800, client_us=99, server_us=60, rtt_us=None),
        Resource.CLIENT_CPU,
        "high",
        "",
    ),
    "other programs keep the load generator from its CPU": (
        replace(CROWDED_CLIENT, others={CLIENT_CPU_NUMBER: 0.76}),
        Resource.INVALID,
        "",
        "other programs 76 %",
    ),
    "the emulator keeps the load generator from its CPU": (
        replace(CROWDED_CLIENT, rtt_us=100, round_trips=4, emulator={CLIENT_CPU_NUMBER: 0.76}),
        Resource.INSTRUMENT_CPU,
        "",
        "",
    ),
    "a full CPU that nothing of ours waits for, at 10 ms of round trip": (
        Case(tps=6, round_trips=16, rtt_us=10_000, client_us=200, server_us=900, others={0: 0.99, 1: 0.99}),
        Resource.LATENCY,
        "",
        "more bandwidth",
    ),
    "a small receive window": (WINDOW, Resource.RECEIVE_WINDOW, "high", "tcp_rmem"),
    "a small send buffer": (
        replace(WINDOW, tcp=(tcp("server", 1, 0.95, sndbuf=0.85),)),
        Resource.SEND_BUFFER,
        "high",
        "tcp_wmem",
    ),
    "a window that holds back three tenths of nothing": (
        replace(WINDOW, tps=6, bytes_to_client=400, tcp=(tcp("server", 1, 0.02, rwnd=0.02),)),
        Resource.LATENCY,
        "",
        "",
    ),
    "loss while nothing is full": (LOST, Resource.LOSS, "", ""),
    "no loss": (replace(LOST, tps=6, bytes_to_client=400, connections=1, retransmits=0), Resource.LATENCY, "", ""),
    "a full queue drops too": (replace(FULL, retransmits=900), Resource.LINK_TO_CLIENT, "high", ""),
    "segments that are sent again at once": (LOST_FAST, Resource.LATENCY, "", ""),
    "segments that a timer sends again": (replace(LOST_FAST, timeouts=40), Resource.LOSS, "high", ""),
    "an upper bound of the cost of loss": (replace(LOST_FAST, timeouts=None), Resource.LOSS, "low", ""),
    "round trips over a distance": (BOUNDED, Resource.LATENCY, "high", ""),
    "upper bounds that may hide 18 % of 8 connections' cycle": (
        replace(BOUNDED, tps=40, server_wait_us=36_000),
        Resource.LATENCY,
        "low",
        "",
    ),
    "a cycle of which 28 % may or may not be row locks": (
        BARELY_LOCKED,
        Resource.NOT_ESTABLISHED,
        "low",
        "row locks 28 %",
    ),
    "row locks for a fifth of the cycle": (replace(LOCKS, tps=940), Resource.LATENCY, "", ""),
    "row locks for most of the cycle": (
        replace(LOCKS, counters=LOCK_WAITS | {"Innodb_row_lock_time": 20_000}),
        Resource.LOCK,
        "high",
        "more connections",
    ),
    "a commit on a disk": (COMMITS, Resource.COMMIT, "high", "2 ms for a durable write"),
    "a commit on a replica": (
        REPLICATED,
        Resource.ACKNOWLEDGEMENT,
        "high",
        "98 % of the cycle & 85.7 ms each & half the distance: about x2",
    ),
    "one connection that waits for itself": (
        Case(tps=2000, rtt_us=None, client_us=100, server_us=380),
        Resource.LATENCY,
        "",
        "then the CPU of the server is full",
    ),
    "what nothing explains": (UNKNOWN, Resource.NOT_ESTABLISHED, "low", "rest 95 %"),
    "statements that wait in the server": (
        replace(UNKNOWN, counters={"Threads_running": 8}),
        Resource.SERVER_WAIT,
        "low",
        "",
    ),
    "what nothing explains on a crowded machine": (
        replace(UNKNOWN, others={0: 0.7, 1: 0.9}),
        Resource.INVALID,
        "medium",
        "",
    ),
}
"""Of each load: the limit, its confidence where it is fixed, and figures that the finding has to quote, joined by `&`."""


@pytest.mark.parametrize("name", VERDICTS)
def test_the_limit_of_a_load(name: str) -> None:
    case, resource, confidence, figures = VERDICTS[name]
    limit = limit_of(case)
    assert limit.resource is resource, limit.says
    assert not confidence or limit.confidence == confidence
    text = " | ".join((limit.says, *limit.evidence, limit.would_change, limit.would_not))
    assert all(figure in text for figure in figures.split(" & ")), text


@pytest.mark.parametrize(
    ("case", "resource"),
    [
        (replace(FULL, window=False, tps=92.7 * 0.9), Resource.LINK_TO_CLIENT),
        (replace(FAILING, errors={"1213": 100}), Resource.ERRORS),
        (replace(COMMITS, tps=2400, fsync_us=2.0), Resource.COMMIT),
        (replace(REPLICATED, acknowledgement_us=None), Resource.ACKNOWLEDGEMENT),
        (replace(REPLICATED, tps=12_000), Resource.ACKNOWLEDGEMENT),
    ],
    ids=["nine tenths of a link", "lock conflicts", "commits in memory", "nobody waits", "reads, which nobody awaits"],
)
def test_what_is_no_limit(case: Case, resource: Resource) -> None:
    assert limit_of(case).resource is not resource


def test_errors_of_statements_make_another_workload() -> None:
    assert limit_of(replace(FAILING, errors={"1064": 100})).resource is Resource.ERRORS


@pytest.mark.parametrize(
    ("rate_bps", "mtu", "interface", "payload"), [(1e9, 1500, 117.3, 112.2), (1e9, 9000, 118.9, 118.0)]
)
def test_ceilings_of_a_rate(rate_bps: float, mtu: int, interface: float, payload: float) -> None:
    found = ceilings(rate_bps, mtu)
    assert (found.interface / MIB, found.payload / MIB) == pytest.approx((interface, payload), abs=0.05)
    assert ceilings(10 * rate_bps, mtu).payload == pytest.approx(10 * found.payload)


def test_full_frames_at_the_ceiling_fill_the_wire() -> None:
    interface = ceilings(1e9).interface
    assert carried(interface, interface / 1514).wire == pytest.approx(1e9 / 8)
    assert carried_payload(ceilings(1e9).payload, 0).wire == pytest.approx(1e9 / 8)


def test_loss_that_keeps_windows_small_costs_the_rounds_that_a_reply_then_takes() -> None:
    """127 kB over 10 ms with 0.9 % loss, as measured: no timer ran out, and a cycle of 375 ms has 40 ms of round trips."""
    case = Case(tps=10.67, connections=4, round_trips=4, rtt_us=10_000, bytes_to_client=504_096, retransmits=145)
    _, cycle, limit = found_in(replace(case, client_us=750, server_us=2300))
    assert limit.resource is Resource.LOSS
    assert 0.5 * cycle.us < part_us(cycle, cycles.LOSS) < 0.9 * cycle.us


def test_a_trial_that_nobody_watched_does_not_thin_out_what_was_counted() -> None:
    """One of two trials has no window: its transactions had as many retransmits, writes and lock waits as the other's."""
    counters = {
        "Innodb_data_fsyncs": 400,
        "Handler_commit": 800,
        "Innodb_row_lock_waits": 80,
        "Innodb_row_lock_time": 900,
    }
    case = Case(tps=200, connections=4, retransmits=80, timeouts=8, counters=counters, fsync_us=100.0)
    alone = case.evidence()
    both = gather([case.trial(0), replace(case, window=False).trial(1)], case.setting())
    assert both.transactions == 2 * alone.transactions
    for counted in ("retransmits", "timeouts", "fsyncs", "commits", "lock_waits", "lock_s", "retransmit_share"):
        assert getattr(both, counted) == pytest.approx(getattr(alone, counted)), counted
    assert alone.fsyncs == pytest.approx(0.5)


def test_a_few_writes_of_the_background_are_no_commits() -> None:
    """Group commit is told from a log that is written once a second."""
    case = Case(connections=8, tps=1000, counters={"Innodb_data_fsyncs": 8, "Handler_commit": 4000}, fsync_us=5000.0)
    assert part_us(cycle_of(case.evidence()), cycles.COMMIT) < 20
    grouped = replace(case, counters={"Innodb_data_fsyncs": 1000, "Handler_commit": 4000})
    assert part_us(cycle_of(grouped.evidence()), cycles.COMMIT) > 2500


def test_blocks_that_disagree_make_a_finding_less_sure() -> None:
    """One of four is another load: three quarters agree. Two of four: hardly a finding."""
    idle = replace(FULL, tps=40, server_us=400, client_us=100)
    assert limit_of(FULL, FULL, FULL, FULL).confidence == "high"
    assert limit_of(*[FULL] * 7, idle).confidence == "high"
    mixed = [FULL.trial(0), FULL.trial(1), idle.trial(2), idle.trial(3)]
    _, _, limit = find_limit(mixed, FULL.setting())
    assert limit.confidence == "low"
    assert any("of 4 trials" in fact for fact in limit.evidence)


@pytest.mark.parametrize(
    "case", [FULL, Case(), replace(FULL, window=False), Case(rtt_us=None), Case(tps=5000, client_us=400)]
)
def test_parts_add_up_and_are_known(case: Case) -> None:
    evidence, cycle, _ = found_in(case)
    assert sum(part.us for part in cycle.parts) == pytest.approx(cycle.us)
    assert cycle.us == pytest.approx(case.connections / case.tps * 1e6, rel=0.02)
    assert [part.name for part in cycle.parts] == [name for name in PARTS if name in {p.name for p in cycle.parts}]
    assert cycle.parts[-1].name == "rest" and cycle.rest_share == pytest.approx(cycle.parts[-1].us / cycle.us)
    assert sum(cells.time_split_us(cycle).values()) == pytest.approx(evidence.cycle_s * 1e6)


def test_a_full_link_s_cycle_is_mostly_its_queue() -> None:
    """16 connections share 10.4 ms per transaction on the wire: the others' take up most of 172 ms."""
    _, cycle, _ = found_in(FULL)
    assert part_us(cycle, cycles.WIRE) == pytest.approx(10_750, rel=0.02)
    assert part_us(cycle, cycles.LINK_QUEUE) > 0.8 * cycle.us
    assert cycle.rest_share < 0.05


@given(st.floats(1e-6, 1), st.floats(0, 2), st.integers(1, 4096))
def test_nobody_waits_longer_than_behind_everybody(demand: float, used: float, connections: int) -> None:
    waited = behind_others(demand, used, connections)
    assert 0 <= waited <= demand * (connections - 1) + 1e-12
    assert behind_others(demand, used, 1) == 0


@pytest.mark.parametrize("long_s", [1.0, 10.0, 40.0])
@pytest.mark.parametrize(("connections", "think_s"), [(2, 1.0), (8, 20.0), (64, 200.0)])
def test_no_simulated_queue_is_longer_than_the_bound(connections: int, think_s: float, long_s: float) -> None:
    """A closed loop before one station: nine short services in ten, one long. 2 %: the simulation's own noise."""
    chance = random.Random(7)
    services, waits, free_at = [], [], 0.0
    arrivals = [(chance.expovariate(1 / think_s), number) for number in range(connections)]
    heapq.heapify(arrivals)
    for _ in range(60_000):
        now, number = heapq.heappop(arrivals)
        service = long_s if chance.random() < 0.1 else 1.0
        waits.append(max(free_at - now, 0.0))
        services.append(service)
        free_at = max(free_at, now) + service
        heapq.heappush(arrivals, (free_at + chance.expovariate(1 / think_s), number))
    mean = fmean(services)
    unevenness = max(1.0, fmean(service * service for service in services) / mean**2 / 2)
    bound = behind_others(mean, sum(services) / free_at, connections, unevenness)
    assert fmean(waits) <= 1.02 * bound


def test_answers_of_several_sizes_are_uneven() -> None:
    ranges = dict.fromkeys(("simple_ranges", "sum_ranges", "order_ranges", "distinct_ranges"), 1)
    mix = {"kind": "oltp_read_only", "point_selects": 10, "range_size": 100, **ranges}
    assert unevenness(mix) == pytest.approx(2.4, abs=0.05), "C² = 3.8"
    assert unevenness({}) == unevenness({**mix, "range_size": 1, "skip_trx": True, "range_selects": False}) == 1


@given(
    connections=st.integers(1, 256),
    rates=st.tuples(st.floats(1, 20_000), st.floats(0, 5000), st.floats(0, 5000), st.floats(0, 1e5)),
    size=st.integers(0, 5_000_000),
    rtt=st.sampled_from([None, 0.0, 200.0, 10_000.0]),
    count=st.integers(0, 10_000),
)
def test_any_load_is_judged_and_its_parts_add_up(
    connections: int, rates: tuple[float, ...], size: int, rtt: float | None, count: int
) -> None:
    counted = ("Innodb_data_fsyncs", "Handler_commit", "Innodb_row_lock_waits", "Innodb_row_lock_time")
    more: dict[str, Any] = dict(zip(("tps", "client_us", "server_us", "server_wait_us"), rates, strict=True))
    case = Case(
        connections=connections,
        bytes_to_client=size,
        rtt_us=rtt,
        retransmits=count,
        counters=dict.fromkeys(counted, count),
        fsync_us=1000.0,
        tcp=(tcp("server", connections, 0.5, rwnd=0.2),),
        **more,
    )
    _, cycle, limit = found_in(case)
    assert min(part.us for part in cycle.parts) >= 0
    assert sum(part.us for part in cycle.parts) == pytest.approx(cycle.us)
    assert limit.says and limit.would_change and "nan" not in limit.says
