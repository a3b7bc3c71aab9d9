"""Attribution: which resource is named for loads that it limits, when none is named, and what is read from the records."""

from __future__ import annotations

import heapq
import random
import re
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shipped import skip_without
from tests.unit.limit_cases import CLIENT_CPU_NUMBER, SECONDS, SERVER_CPU_NUMBER, Case, attribute, limit_of, tcp
from tests.unit.synthetic_curves import CurveCell, run_of
from tests.unit.synthetic_run import arms, synthetic_run

from howfar.analysis import cells
from howfar.analysis.advice import advise
from howfar.analysis.advice_texts import ACTIONS
from howfar.analysis.cells import measure_noise_floors
from howfar.analysis.confirmation import make_intervention
from howfar.analysis.summary import RunEvidence
from howfar.bottleneck import cycle as cycles
from howfar.bottleneck import limit as limits
from howfar.bottleneck.cycle import PARTS, Cycle, CyclePart, cycle_of, max_queue_wait_s, part_us, setting_of
from howfar.bottleneck.evidence import gather_evidence
from howfar.bottleneck.limit import Intervention, find_limit
from howfar.bottleneck.rules import RuleFinding, cpu_residence, judge
from howfar.bottleneck.texts import LIMITS, NO_DOMINANT_USER, NON_REMEDIES, REMEDIES
from howfar.bottleneck.traffic import carried_from_interface_count, carried_from_payload, ceilings, network_series
from howfar.contract.environment import RunEnvironment
from howfar.contract.receipt import ReplicationReceipt, TrialReceipt
from howfar.contract.replication_receipt import ReplicationWindow
from howfar.contract.server_receipt import HopsReceipt
from howfar.experiments.network.bandwidth.analysis import conclude
from howfar.experiments.registry import summarise
from howfar.findings import fill
from howfar.model.facts import unevenness
from howfar.model.resource import Resource
from howfar.plan.workload import Workload
from howfar.stats.host_cpus import forwarder_share
from howfar.stats.trials import others_cpus_in_trial, trial_table
from howfar.store.records import Arm, MachineLoad, RunInfo

MIB = 2**20
FULL = Case(connections=16, tps=92.7, bytes_to_client=1_270_000, client_us=2000, server_us=5000, server_wait_us=3000)
"""A full link: results of 1000 rows over 1 Gb/s."""
BUSY = Case(connections=16, tps=700, server_us=900, client_us=300, server_wait_us=15_000)
CROWDED_CLIENT = Case(connections=4, tps=1000, client_us=240, client_wait_us=500, server_us=300, rtt_us=None)
"""The client's own work needs only a quarter of its CPU."""
WINDOW = Case(tps=3, round_trips=16, rtt_us=10_000, bytes_to_client=1_270_000, tcp=(tcp("server", 1, 0.95, rwnd=0.85),))
LOST = Case(tps=2, connections=4, round_trips=16, rtt_us=10_000, bytes_to_client=1_270_000, retransmits=70)
LOST_FAST = Case(tps=22, connections=4, round_trips=16, rtt_us=10_000, bytes_to_client=40_000, retransmits=44)
"""Half a segment lost per transaction, 1 %: costs 5 of 182 ms if detected at once, 105 ms if a timer had to expire."""
BOUNDED = Case(connections=8, tps=48, round_trips=16, rtt_us=10_000, bytes_to_client=400, server_us=1000, client_us=500)
LOCK_WAITS = {"lock_waits": 800, "lock_wait_ms": 5600}
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
    counters={"lock_waits": 9000, "lock_wait_ms": 0},
    tcp=(tcp("server", 8, 0.9, sndbuf=0.2),),
)
FAILING = Case(connections=8, tps=200, round_trips=6, rtt_us=1000, bytes_to_client=200)
CONFLICTS = ("1213", "1180", "3101", "40001", "40P01", "23505")
"""Error codes: MySQL's deadlock, two of group replication, three of PostgreSQL."""
WRITES = {"fsyncs": 1600, "commits": 1600}
COMMITS = Case(tps=400, round_trips=1, rtt_us=None, server_us=200, bytes_to_client=50, counters=WRITES, fsync_us=2000.0)
REPLICATED = Case(
    connections=16,
    tps=185,
    round_trips=1,
    rtt_us=None,
    server_us=200,
    bytes_to_client=50,
    replication=ReplicationReceipt(window=ReplicationWindow(mean_wait_us=85_700.0)),
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
        "server 98 % & more bandwidth",
    ),
    "a server that shares its CPU with the emulator": (
        replace(BUSY, emulator={SERVER_CPU_NUMBER: 0.35}),
        Resource.SERVER_CPU,
        "high",
        "server 63 %, howfar's link emulator 35 % & emulator (part of this measurement",
    ),
    "an emulator with most of a CPU": (
        replace(BUSY, server_us=400, emulator={SERVER_CPU_NUMBER: 0.7}),
        Resource.INSTRUMENT_CPU,
        "high",
        "",
    ),
    "other programs with most of a CPU": (
        replace(BUSY, server_us=400, other_programs={SERVER_CPU_NUMBER: 0.72}),
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
        replace(CROWDED_CLIENT, other_programs={CLIENT_CPU_NUMBER: 0.76}),
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
        Case(tps=6, round_trips=16, rtt_us=10_000, client_us=200, server_us=900, other_programs={0: 0.99, 1: 0.99}),
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
        "28 % row locks",
    ),
    "row locks for a fifth of the cycle": (replace(LOCKS, tps=940), Resource.LATENCY, "", ""),
    "row locks for most of the cycle": (
        replace(LOCKS, counters=LOCK_WAITS | {"lock_wait_ms": 20_000}),
        Resource.LOCK,
        "high",
        "more connections",
    ),
    "a commit on a disk": (COMMITS, Resource.COMMIT, "high", "2 ms for each"),
    "a commit on a replica": (
        REPLICATED,
        Resource.ACKNOWLEDGEMENT,
        "high",
        "98 % of transaction time & 85.7 ms each & half the distance, for about 2 times",
    ),
    "one connection that waits for itself": (
        Case(tps=2000, rtt_us=None, client_us=100, server_us=380),
        Resource.LATENCY,
        "",
        "until the server's CPU is full",
    ),
    "what nothing explains": (UNKNOWN, Resource.NOT_ESTABLISHED, "low", "95 % unexplained"),
    "statements that wait in the server": (
        replace(UNKNOWN, counters={"running": 8}),
        Resource.SERVER_WAIT,
        "low",
        "",
    ),
    "what nothing explains on a crowded machine": (
        replace(UNKNOWN, other_programs={0: 0.7, 1: 0.9}),
        Resource.INVALID,
        "medium",
        "",
    ),
}
"""By load: the limit, its confidence where it is fixed, and figures that the finding must quote, joined by `&`."""


@pytest.mark.parametrize("name", VERDICTS)
def test_the_limit_of_a_load(name: str) -> None:
    case, resource, confidence, figures = VERDICTS[name]
    if resource is Resource.ACKNOWLEDGEMENT:
        skip_without("replication")
    limit = limit_of(case)
    assert limit.resource is resource, limit.text
    assert limit.text.startswith(fill(LIMITS[limit.id], **limit.parameters))
    assert not confidence or limit.confidence == confidence
    text = " | ".join((limit.text, *limit.evidence, limit.would_change, limit.would_not))
    assert all(figure in text for figure in figures.split(" & ")), text


def test_each_limit_has_its_texts() -> None:
    assert limits._REMEDIES.keys() == set(Resource)
    assert {remedy.id for remedies in limits._REMEDIES.values() for remedy in remedies} <= REMEDIES.keys()
    assert {name for names in limits._NON_REMEDIES.values() for name in names} <= NON_REMEDIES.keys()
    named = set(Resource) - {Resource.NOT_ESTABLISHED}
    assert {resource.name.lower().replace("_", "-") for resource in named} <= ACTIONS.keys()


@pytest.mark.parametrize(
    ("case", "resource"),
    [
        (replace(FULL, window=False, tps=92.7 * 0.9), Resource.LINK_TO_CLIENT),
        *((replace(FAILING, errors={code: 100}), Resource.ERRORS) for code in CONFLICTS),
        (replace(COMMITS, tps=2400, fsync_us=2.0), Resource.COMMIT),
        (replace(REPLICATED, acknowledgement_us=None), Resource.ACKNOWLEDGEMENT),
        (replace(REPLICATED, tps=12_000), Resource.ACKNOWLEDGEMENT),
    ],
    ids=[
        "nine tenths of a link",
        *(f"conflicts {code}" for code in CONFLICTS),
        "commits in memory",
        "nobody waits",
        "reads, which nobody awaits",
    ],
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
    assert carried_from_interface_count(interface, interface / 1514).wire == pytest.approx(1e9 / 8)
    assert carried_from_payload(ceilings(1e9).payload, 0).wire == pytest.approx(1e9 / 8)


def test_loss_that_keeps_windows_small_costs_the_rounds_that_a_reply_then_takes() -> None:
    """As measured with 127 kB over 10 ms at 0.9 % loss: no timer expired, and round trips are 40 ms of a cycle of 375 ms."""
    case = Case(tps=10.67, connections=4, round_trips=4, rtt_us=10_000, bytes_to_client=504_096, retransmits=145)
    _, cycle, limit = attribute(replace(case, client_us=750, server_us=2300))
    assert limit.resource is Resource.LOSS
    assert 0.5 * cycle.us < part_us(cycle, cycles.LOSS) < 0.9 * cycle.us


def test_a_trial_that_nobody_watched_does_not_thin_out_what_was_counted() -> None:
    """A trial without a window is taken to have as many retransmits, writes and lock waits per transaction as the other trial."""
    counters = {
        "fsyncs": 400,
        "commits": 800,
        "lock_waits": 80,
        "lock_wait_ms": 900,
    }
    case = Case(tps=200, connections=4, retransmits=80, timeouts=8, counters=counters, fsync_us=100.0)
    alone = case.evidence()
    both = gather_evidence([case.trial(0), replace(case, window=False).trial(1)], case.setting())
    assert both.transactions == 2 * alone.transactions
    for counted in ("retransmits", "timeouts", "fsyncs", "commits", "lock_waits", "lock_s", "retransmit_share"):
        assert getattr(both, counted) == pytest.approx(getattr(alone, counted)), counted
    assert alone.fsyncs == pytest.approx(0.5)


def test_a_few_writes_of_the_background_are_no_commits() -> None:
    """Group commit is distinguished from a log that is written once per second."""
    case = Case(connections=8, tps=1000, counters={"fsyncs": 8, "commits": 4000}, fsync_us=5000.0)
    assert part_us(cycle_of(case.evidence()), cycles.COMMIT) < 20
    grouped = replace(case, counters={"fsyncs": 1000, "commits": 4000})
    assert part_us(cycle_of(grouped.evidence()), cycles.COMMIT) > 2500


def test_blocks_that_disagree_make_a_finding_less_sure() -> None:
    """If one of eight trials has another limit, the confidence stays high; if two of four have, it is low."""
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
    evidence, cycle, _ = attribute(case)
    assert sum(part.us for part in cycle.parts) == pytest.approx(cycle.us)
    assert cycle.us == pytest.approx(case.connections / case.tps * 1e6, rel=0.02)
    assert [part.name for part in cycle.parts] == [name for name in PARTS if name in {p.name for p in cycle.parts}]
    assert cycle.parts[-1].name == "rest" and cycle.rest_share == pytest.approx(cycle.parts[-1].us / cycle.us)
    assert sum(cells.time_split_us(cycle).values()) == pytest.approx(evidence.cycle_s * 1e6)


def _over_a_real_link(case: Case, to_server: int, to_client: int) -> Case:
    """The case between hosts, where no interface is counted during the window."""
    return replace(case, window=False, goodput_bps={"to_server": to_server, "to_client": to_client})


def test_a_real_link_is_never_called_full_for_what_one_connection_got() -> None:
    """16 connections can get more than the probe's single one: under a per-flow limit, or over a long distance."""
    evidence, _, limit = attribute(_over_a_real_link(FULL, 10**9, 90_000_000))
    assert evidence.to_client is not None and evidence.to_client.used == 1, "more than one connection got"
    assert evidence.to_client.rate_bps is not None and evidence.to_client.rate_bps > 1.03 * 90_000_000
    assert limit.resource is Resource.NOT_ESTABLISHED and limit.id == "perhaps-full-link"
    emulated = limit_of(replace(FULL, window=False))
    assert emulated.resource is Resource.LINK_TO_CLIENT


def test_a_link_that_may_be_full_is_named_before_loss_on_it() -> None:
    """The lost segments may be those that the link's queue dropped. At 92 % of the rate, the queue leaves time for loss."""
    lost = replace(LOST, connections=16, retransmits=160, timeouts=160)
    used = replace(lost, goodput_bps={"to_server": 10**9, "to_client": 22_100_000})
    assert limit_of(used).id == "perhaps-full-link"
    assert limit_of(replace(used, goodput_bps={"to_server": 10**9, "to_client": 40_000_000})).id == "loss"


def test_loss_over_a_link_of_unknown_rate_says_nothing_about_its_use() -> None:
    known, unknown = limit_of(LOST), limit_of(replace(LOST, rate_bps=None))
    assert known.resource is unknown.resource is Resource.LOSS
    assert (known.parameters["not_full"], unknown.parameters["not_full"]) == (1, 0)


def test_each_attempt_fails_or_finishes() -> None:
    """100 % is the limit: three failures for each finished transaction are 75 %."""
    failing = replace(FAILING, errors={"1064": 3 * FAILING.transactions})
    assert limit_of(failing).parameters["share"] == 0.75


def test_a_busy_thread_of_the_server_is_not_a_forwarder_s() -> None:
    """A single connection keeps its thread busy, while the other CPU has time left."""
    busy = Case(tps=1000, round_trips=1, rtt_us=None, client_us=20, server_us=970, bytes_to_client=50, one_host=True)
    limit = limit_of(busy)
    assert limit.resource is Resource.ONE_THREAD and limit.parameters["role"] == "server"
    assert REMEDIES["server-threads"] in limit.would_change and REMEDIES["no-forwarder"] not in limit.would_change


def test_each_direction_of_a_real_link_has_its_own_rate_with_framing() -> None:
    """Bytes on the wire are compared with 1538 bytes for each 1448 of goodput."""
    evidence, cycle, _ = attribute(_over_a_real_link(FULL, 10**8, 2 * 10**9))
    assert evidence.to_client is not None and evidence.to_server is not None
    assert evidence.to_client.rate_bps == pytest.approx(2e9 * 1538 / 1448)
    assert evidence.to_server.rate_bps == pytest.approx(1e8 * 1538 / 1448)
    assert next(part.basis for part in cycle.parts if part.name == cycles.WIRE) == "bounded"


def test_a_full_link_s_cycle_is_mostly_its_queue() -> None:
    """A transaction takes 10.4 ms on the wire; waiting for those of the 15 other connections takes most of 172 ms."""
    _, cycle, _ = attribute(FULL)
    assert part_us(cycle, cycles.WIRE) == pytest.approx(10_750, rel=0.02)
    assert part_us(cycle, cycles.LINK_QUEUE) > 0.8 * cycle.us
    assert cycle.rest_share < 0.05


@given(st.floats(1e-6, 1), st.floats(0, 2), st.integers(1, 4096))
def test_nobody_waits_longer_than_behind_everybody(demand: float, used: float, connections: int) -> None:
    waited = max_queue_wait_s(demand, used, connections)
    assert 0 <= waited <= demand * (connections - 1) + 1e-12
    assert max_queue_wait_s(demand, used, 1) == 0


@pytest.mark.parametrize("long_s", [1.0, 10.0, 40.0])
@pytest.mark.parametrize(("connections", "think_s"), [(2, 1.0), (8, 20.0), (64, 200.0)])
def test_no_simulated_queue_is_longer_than_the_bound(connections: int, think_s: float, long_s: float) -> None:
    """A closed loop before one station: of ten services, nine are short and one is long. 2 % allow for the simulation's noise."""
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
    bound = max_queue_wait_s(mean, sum(services) / free_at, connections, unevenness)
    assert fmean(waits) <= 1.02 * bound


def test_answers_of_several_sizes_are_uneven() -> None:
    mix = Workload(kind="oltp_read_only", point_selects=10, range_size=100)
    assert unevenness(mix) == pytest.approx(2.4, abs=0.05), "C² = 3.8"
    alike = mix.model_copy(update={"range_size": 1, "skip_trx": True, "range_selects": False})
    assert unevenness(None) == unevenness(alike) == 1


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
    counted = ("fsyncs", "commits", "lock_waits", "lock_wait_ms")
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
    _, cycle, limit = attribute(case)
    assert min(part.us for part in cycle.parts) >= 0
    assert sum(part.us for part in cycle.parts) == pytest.approx(cycle.us)
    assert limit.text and limit.would_change and "nan" not in limit.text


# ---------------------------------------------------------------- loads without a full resource, or without a dominant program


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
    other_programs={1: 0.03},
)
"""127 kB per reply over 100 Mb/s: four fifths of the cycle are bytes on the wire. 1.5 times the rate gave 1.41 times the TPS."""


def test_a_client_waits_for_nobody_on_a_cpu_that_is_mostly_idle() -> None:
    """The client waits 12 % of the time, on a CPU of which the emulator uses 23 % and all programs together 35 %."""
    evidence, _, limit = attribute(OWN_BYTES)
    assert evidence.client_waited_share > 0.1
    assert limit.resource is Resource.LATENCY
    assert limit.parameters["part"] == "bytes on the wire" and limit.parameters["share"] == pytest.approx(0.8, abs=0.01)


def test_a_limit_that_no_trial_names_is_not_named() -> None:
    """A full link in one trial, a full server in the other: in their mean nothing is full, which is true of neither."""
    one = Case(
        connections=1, tps=98, round_trips=4, rate_bps=10**8, bytes_to_client=119_000, client_us=100, server_us=300
    )
    other = replace(one, bytes_to_client=400, server_us=10_000)
    assert [limit_of(case).resource for case in (one, other)] == [Resource.LINK_TO_CLIENT, Resource.SERVER_CPU]
    limit = limit_of(one, other)
    assert (limit.resource, limit.confidence) == (Resource.NOT_ESTABLISHED, "low")
    assert limit.id == "differing-trials"
    assert limit.parameters["counts"] == "link to client in 1, server CPU in 1"


@pytest.mark.parametrize(("connections", "tps"), [(1, 80.5), (2, 84.5)])
def test_more_bandwidth_helps_replies_that_wait_for_their_own_bytes(connections: int, tps: float) -> None:
    """Replies wait for a link even if its mean use is below 95 %: four times the rate gave 3.3 times the throughput."""
    limit = limit_of(replace(OWN_BYTES, connections=connections, tps=tps))
    assert limit.resource is Resource.LATENCY
    assert limit.would_change.startswith("a much faster link, for at most 3")
    assert "bandwidth" not in limit.would_not


def test_what_would_change_a_limit_has_its_interval_over_blocks() -> None:
    """Four fifths of the cycle are bytes on the wire, so a link of any rate gives at most about 3.5 times the throughput."""
    limit = limit_of(*(replace(OWN_BYTES, connections=2, tps=tps) for tps in (80.0, 84.5, 88.0, 82.0, 86.0)))
    assert limit.gain is not None and limit.gain.low is not None and limit.gain.high is not None
    assert limit.gain.low < limit.gain.value < limit.gain.high
    assert re.match(
        r"a much faster link, for at most 3\.\d times the throughput \[[23]\.?\d?, [34]\.?\d?\]", limit.would_change
    ), limit.would_change


def test_of_few_blocks_the_gains_themselves_are_shown() -> None:
    limit = limit_of(*(replace(OWN_BYTES, connections=2, tps=tps) for tps in (78.0, 90.0)))
    assert limit.gain is not None and limit.gain.low is None and len(limit.gain.points) == 2
    assert re.match(
        r"a much faster link, for at most \d\.\d times the throughput \(\d\.?\d?, \d\.?\d?\)", limit.would_change
    ), limit.would_change


def test_alternatives_that_the_blocks_cannot_tell_apart_are_called_so() -> None:
    """About half of the cycle is bytes on the wire: removing them gains as much as overlapping them with a second connection."""
    even = replace(OWN_BYTES, connections=1, tps=46, client_us=3000, server_us=3000)
    alike = [replace(even, bytes_to_client=size) for size in (110_000, 150_000, 120_000, 140_000, 127_000)]
    doubt = "helps more is too close to call"
    limit = limit_of(*alike)
    assert limit.resource is Resource.LATENCY
    assert limit.would_change.endswith(doubt), limit.would_change
    steady = [replace(OWN_BYTES, connections=1, tps=tps) for tps in (80.0, 80.5, 81.0, 80.2, 80.4)]
    assert doubt not in limit_of(*steady).would_change


@pytest.mark.parametrize(("server", "others"), [(0.34, 0.33), (0.33, 0.34)])
def test_a_hair_does_not_decide_whose_a_cpu_is(server: float, others: float) -> None:
    """A lead of one percentage point is no reason to spend on CPUs, nor to call the figures invalid."""
    case = Case(connections=16, tps=700, client_us=100, server_us=server / 700 * 1e6, server_wait_us=15_000)
    limit = limit_of(replace(case, emulator={SERVER_CPU_NUMBER: 0.31}, other_programs={SERVER_CPU_NUMBER: others}))
    assert limit.resource is Resource.SERVER_CPU
    assert limit.divided and limit.confidence == "low"
    assert limit.text.endswith(NO_DOMINANT_USER)
    assert all(share in limit.text for share in ("server 3", "other programs 3", "emulator 31 %"))
    assert limit.would_change.startswith("separate CPUs")


def test_half_of_what_is_in_use_is_an_owner_s() -> None:
    case = Case(connections=16, tps=700, client_us=100, server_us=720, server_wait_us=15_000)
    limit = limit_of(replace(case, emulator={SERVER_CPU_NUMBER: 0.24}, other_programs={SERVER_CPU_NUMBER: 0.24}))
    assert limit.resource is Resource.SERVER_CPU and not limit.divided
    assert limit.confidence != "low"


def test_a_round_of_bytes_is_put_to_the_test_by_the_rate_and_advised_on_as_such() -> None:
    factors = {"path": "remote", "rtt_ns": 200_000, "rate_bps": 10**8}
    summary = summarise(
        run_of([CurveCell({**factors, "threads": threads}, tps) for threads, tps in ((1, 120), (2, 200))])
    )
    cell = summary.cells[1]
    assert cell.limit is not None and cell.limit.resource is Resource.LATENCY, cell.limit
    found = make_intervention(cell, cell.limit, summary.environment)
    assert isinstance(found, Intervention) and found.changed.startswith("rate 100mbit")
    assert 1.1 < found.predicted < 1.5
    assert summary.advice[0].id == "latency-of-bytes"


def test_nobody_is_advised_to_spend_on_cpus_that_nobody_has_most_of() -> None:
    factors = {"path": "remote", "rtt_ns": 200_000, "rate_bps": 10**9}
    run = run_of([CurveCell({**factors, "threads": threads}, tps) for threads, tps in ((1, 200), (16, 1245))])
    cells = summarise(run).cells
    assert cells[1].limit is not None and cells[1].limit.resource is Resource.SERVER_CPU
    divided = cells[1].model_copy(update={"limit": cells[1].limit.model_copy(update={"divided": True})})
    table = trial_table(run)
    floors = measure_noise_floors(table)
    assert advise(cells, table, floors)[0].id == "server-cpu"
    assert advise([cells[0], divided], table, floors)[0].id == "divided-cpu"
    evidence = RunEvidence(table, (cells[0], divided), (), measure_noise_floors(table), frozenset())
    assert [finding.id for finding in conclude(evidence)] == ["divided-cpu"]


# ---------------------------------------------------------------- what attribution reads from records


ENVIRONMENT: dict[str, Any] = {
    "cpu_count": 4,
    "client_cpus": [2, 3],
    "server_cpus": [0, 1],
    "data_fsync_ns": {"512": {"count": 48, "p50": 1_500_000, "p99": 9_000_000}, "16384": {"p50": 2_000_000}},
}


def _info(**more: Any) -> RunInfo:
    environment = RunEnvironment.model_validate(ENVIRONMENT | more)
    return synthetic_run(blocks=1, samples=5).info.model_copy(update={"environment": environment})


def _arm(path: str, **factors: Any) -> Arm:
    arm = next(arm for arm in arms() if arm.factors["path"] == path)
    return arm.model_copy(update={"factors": arm.factors | factors})


def test_what_howfar_s_own_looks_take_is_no_stranger_s() -> None:
    """howfar's own observation takes a tenth of a CPU, evenly divided between two CPUs."""
    case = Case(tps=1000, client_us=100, server_us=300, other_programs={0: 0.4, 1: 0.02})
    trial = case.trial()
    assert trial.window is not None
    window = trial.window.model_copy(update={"sampling_cpu_ns": trial.window.length_ns // 10})
    looked_at = trial.model_copy(update={"window": window})
    evidence = gather_evidence([looked_at], case.setting())
    assert evidence.server_cpus.owners["others"] == pytest.approx(0.35)
    assert evidence.client_cpus.owners["others"] == 0
    load = MachineLoad(
        psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=5, busy_cpus=0.82
    )
    assert others_cpus_in_trial(looked_at.model_copy(update={"load": load})) == pytest.approx(0.32)
    assert others_cpus_in_trial(trial.model_copy(update={"load": load})) == pytest.approx(0.42)


def test_a_cpu_worked_no_less_than_this_load_did_on_it() -> None:
    """Clock ticks counted 22 % where the load and the emulator used 50 % by their own CPU clocks."""
    trial = Case(tps=1000, client_us=100, server_us=300, emulator={0: 0.2}).trial()
    assert trial.window is not None
    ticks = trial.window.model_copy(update={"cpus_busy": {0: 0.22, 1: 0.05}})
    evidence = gather_evidence([trial.model_copy(update={"window": ticks})], Case().setting())
    assert evidence.server_cpus.used == pytest.approx(0.5)
    assert evidence.client_cpus.used == pytest.approx(0.1)
    assert evidence.server_cpus.owners["others"] == 0


def test_hosts_have_their_cpus_and_the_disk_its_cost() -> None:
    setting = setting_of(_info(), _arm("remote"), 2, 0.0002)
    assert (setting.client_cpus, setting.server_cpus, setting.machine_cpus) == ((2, 3), (0, 1), 4)
    assert setting.fsync_s == pytest.approx(0.0015), "of a log's block"
    assert setting_of(_info(data_fsync_ns=None), _arm("remote"), 2, 0.0002).fsync_s is None


def test_a_client_on_the_server_s_machine_shares_its_cpus_and_a_remote_one_does_not() -> None:
    local = setting_of(_info(), _arm("socket", placement="machines"), 2, None)
    assert local.client_cpus == local.server_cpus == (0, 1)
    remote = setting_of(_info(), _arm("remote", placement="machines"), 2, 0.0002)
    assert remote.client_cpus == (2, 3)


def test_traffic_is_shown_by_slices_beside_both_ceilings() -> None:
    case = Case(tps=1000, bytes_to_client=40_000)
    trial = case.trial()
    series = network_series(trial, case.setting().factors)
    assert series is not None and trial.window is not None
    assert len(series.at_s) == len(trial.window.network) == 4
    carried = trial.window.network[-1].to_client_bytes / SECONDS
    assert series.to_client_bytes_per_s == pytest.approx([carried] * 4, rel=0.01)
    assert series.interface_ceiling_bytes_per_s == pytest.approx(123.05e6, rel=0.001)
    assert series.payload_ceiling_bytes_per_s == pytest.approx(117.69e6, rel=0.001)
    assert network_series(replace(case, window=False).trial(), {}) is None


def test_without_a_window_the_machine_s_load_says_what_others_had() -> None:
    """1.9 of 2 CPUs are busy, and this load had 0.3 and 0.1: the rest is divided evenly between both."""
    case = Case(tps=1000, client_us=100, server_us=300, rtt_us=None, window=False)
    load = MachineLoad(
        psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=5, busy_cpus=1.9
    )
    evidence = gather_evidence([case.trial().model_copy(update={"load": load})], case.setting())
    assert evidence.server_cpus.owners["others"] == pytest.approx(0.75)
    assert evidence.server_cpus.used == pytest.approx(1.05)
    unknown = gather_evidence([case.trial()], case.setting())
    assert "others" not in unknown.server_cpus.owners


@pytest.mark.parametrize(
    ("receipt", "client", "server"),
    [
        ({"forwarder": {"program": "HAProxy 3", "hops": ["client_side"]}}, 1, 0),
        ({"forwarder": {"hops": ["server_side"]}}, 0, 1),
        ({"forwarder": {"hops": ["server_side", "client_side"], "client_side": "listens"}}, 0.5, 0.5),
        ({"forwarder": {"program": "HAProxy 3", "client_side": "listens"}}, 1, 0),
        ({"forwarder": {"server_side": "a", "client_side": "b", "processes_most": {}}}, 0.5, 0.5),
        ({"forwarder": {"program": "socat 1.7"}}, 0.5, 0.5),
        ({"forwarder": {"hops": ["hop_side"]}, "hosts": {"client": "a", "hop": "b"}}, 0, 0),
        ({"forwarder": None, "hosts": None}, 0.5, 0.5),
    ],
)
def test_a_program_in_between_is_charged_to_the_hosts_it_ran_on(
    receipt: dict[str, Any], client: float, server: float
) -> None:
    """Receipts list the program's hops; older receipts have one key per hop, or none."""
    receipts = [TrialReceipt.model_validate(receipt)]
    assert (forwarder_share(receipts, "client"), forwarder_share(receipts, "server")) == (client, server)


POOLED = Case(
    tps=1000,
    client_us=100,
    server_us=300,
    proxy_us=400,
    proxy_receipt=HopsReceipt(program="PgBouncer", hops=["server_side"]),
)


def test_a_pooler_beside_the_server_is_no_stranger_there_and_no_part_of_the_client() -> None:
    evidence = POOLED.evidence()
    assert evidence.server_cpus.owners == pytest.approx({"server": 0.3, "forwarder": 0.4, "others": 0.0}, abs=1e-6)
    assert evidence.client_cpus.owners == pytest.approx({"client": 0.1, "others": 0.0}, abs=1e-6)
    assert evidence.client_cpus.used == pytest.approx(0.1)


@pytest.mark.parametrize("hops", [["server_side"], ["client_side"], ["server_side", "client_side"]])
def test_on_one_set_of_cpus_all_of_a_program_in_between_is_counted(hops: list[str]) -> None:
    evidence = replace(POOLED, one_host=True, proxy_receipt=HopsReceipt(hops=hops)).evidence()
    owners = {"server": 0.15, "client": 0.05, "forwarder": 0.2, "others": 0.0}
    assert evidence.server_cpus.owners == pytest.approx(owners, abs=1e-6)


def test_a_watched_window_knows_which_cpu_others_had() -> None:
    case = Case(tps=1000, client_us=100, server_us=300, emulator={0: 0.2}, other_programs={0: 0.4})
    evidence = case.evidence()
    assert evidence.server_cpus.owners == pytest.approx({"server": 0.3, "link": 0.2, "others": 0.4})
    assert evidence.client_cpus.owners["others"] == pytest.approx(0.0, abs=1e-6)
    assert evidence.client_cpus.busy == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("session", "round_trips"),
    [
        ({"connect_turns": 6, "tls_version": "TLSv1.3"}, 22),
        ({"tls_version": None}, 20),
        ({"tls_version": "TLSv1.2", "tls_resumed": False}, 22),
        ({"tls_version": "TLSv1.2", "tls_resumed": True}, 21),
        ({"tls_version": "TLSv1.3", "tls_resumed": False, "tls_retried": False}, 21),
        ({"tls_version": "TLSv1.3", "tls_resumed": False, "tls_retried": True}, 22),
    ],
)
def test_opening_a_connection_takes_round_trips_too(session: dict[str, Any], round_trips: int) -> None:
    """At an RTT of 1 ms the path takes more than the 16 ms of the statements."""
    case = Case(tps=20, round_trips=16, rtt_us=1000, session=session, connect_per_transaction=True)
    assert case.evidence().round_trips == pytest.approx(round_trips)
    assert replace(case, connect_per_transaction=False).evidence().round_trips == pytest.approx(16)


def test_where_connections_come_and_go_no_window_is_ruled_in_or_out() -> None:
    """The kernel reports on the connection that happened to exist; its share of the whole window means nothing."""
    states = (tcp("server", 1, 0.9, rwnd=0.8),)
    case = Case(tps=3, round_trips=16, rtt_us=10_000, bytes_to_client=1_270_000, tcp=states)
    assert case.evidence().tcp["server"].rwnd_of_busy > 0.3
    assert replace(case, connect_per_transaction=True).evidence().tcp == {}


def test_who_says_that_nothing_is_full_says_what_is_not_known() -> None:
    case = Case(
        tps=45,
        round_trips=16,
        rtt_us=1000,
        client_us=200,
        server_us=900,
        connect_per_transaction=True,
        session={"connect_turns": 4},
    )
    found = found_of(case)
    assert found.resource is Resource.LATENCY and found.limit.id == "round-trips"
    assert (found.limit.parameters["round_trips"], found.limit.parameters["rtt_ns"]) == (20, 1_000_000)
    assert "unknown-windows" in {fact.id for fact in found.facts}
    kept = found_of(replace(case, connect_per_transaction=False, tps=52))
    assert "unknown-windows" not in {fact.id for fact in kept.facts}


def found_of(case: Case) -> RuleFinding:
    evidence = case.evidence()
    return judge(evidence, cycle_of(evidence))


def test_a_forwarder_has_half_of_its_work_on_each_host() -> None:
    case = Case(connections=1, rtt_us=200, tps=100)
    evidence = case.evidence()
    cycle = Cycle(
        us=1000,
        parts=(
            CyclePart(name="server CPU", us=100, basis="measured"),
            CyclePart(name="client CPU", us=50, basis="measured"),
            CyclePart(name="forwarder CPU", us=200, basis="measured"),
            CyclePart(name="rest", us=650, basis="computed"),
        ),
        rest_share=0.65,
    )
    assert cpu_residence(evidence, cycle, [evidence.server_cpus]) == pytest.approx(0.2)
    assert cpu_residence(evidence, cycle, [evidence.client_cpus]) == pytest.approx(0.15)
    assert cpu_residence(evidence, cycle, [evidence.server_cpus, evidence.client_cpus]) == pytest.approx(0.35)
