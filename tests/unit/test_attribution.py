"""Which resource is named, for loads made so that one is: each rule, their order, and the refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.limit_cases import CLIENT_CPU_NUMBER, SERVER_CPU_NUMBER, Case, tcp

from howfar.analysis import cells
from howfar.bottleneck import cycle as cycles
from howfar.bottleneck.cycle import PARTS, Cycle, behind_others, cycle_of, part_us
from howfar.bottleneck.evidence import Evidence, gather
from howfar.bottleneck.limit import Limit, find_limit
from howfar.bottleneck.traffic import carried, carried_payload, ceilings
from howfar.model.resource import Resource

MIB = 2**20
FULL = Case(connections=16, tps=92.7, bytes_to_client=1_270_000, client_us=2000, server_us=5000, server_wait_us=3000)
"""Results of 1000 rows over 1 Gb/s."""


def limit_of(*cases: Case) -> Limit:
    trials = [case.trial(number) for number, case in enumerate(cases)]
    return find_limit(trials, cases[0].setting())[2]


def of(case: Case) -> tuple[Evidence, Cycle, Limit]:
    return find_limit([case.trial()], case.setting())


def test_ceilings_of_a_gigabit() -> None:
    found = ceilings(1e9)
    assert found.interface / MIB == pytest.approx(117.3, abs=0.05)
    assert found.payload / MIB == pytest.approx(112.2, abs=0.05)
    jumbo = ceilings(1e9, 9000)
    assert jumbo.interface / MIB == pytest.approx(118.9, abs=0.05)
    assert jumbo.payload / MIB == pytest.approx(118.0, abs=0.05)
    assert ceilings(1e10).payload == pytest.approx(10 * found.payload)


def test_full_frames_at_the_ceiling_fill_the_wire() -> None:
    interface = ceilings(1e9).interface
    assert carried(interface, interface / 1514).wire == pytest.approx(1e9 / 8)
    assert carried_payload(ceilings(1e9).payload, 0).wire == pytest.approx(1e9 / 8)


def test_a_full_link_is_named_with_interface_against_interface() -> None:
    limit = limit_of(FULL)
    assert limit.resource is Resource.LINK_TO_CLIENT
    assert limit.says.startswith("the link to the client is full: 117.")
    assert limit.says.endswith(" of 117.3 MiB/s")
    assert limit.confidence == "high"
    assert "more connections" in limit.would_not


def test_what_a_full_queue_drops_is_not_said_to_have_crossed() -> None:
    """Counted where it is sent: 8 % more than the link carries."""
    limit = limit_of(replace(FULL, tps=100))
    assert limit.says == "the link to the client is full: 117.3 of 117.3 MiB/s"
    assert any("126." in fact and "drops" in fact for fact in limit.evidence)


def test_small_packets_fill_a_link_long_before_its_bytes_do() -> None:
    """64 bytes of payload are 154 on the wire: at 1 Mb/s, 100-odd transactions of 8 turns."""
    small = Case(tps=100, connections=4, turns=8, bytes_to_client=512, bytes_to_server=300, rate_bps=1_000_000)
    limit = limit_of(small)
    assert limit.resource is Resource.LINK_TO_CLIENT
    assert "framing of small packets" in limit.says


def test_without_a_window_payload_is_never_held_against_the_interface_s_ceiling() -> None:
    limit = limit_of(replace(FULL, window=False))
    assert limit.resource is Resource.LINK_TO_CLIENT
    assert limit.confidence == "medium"
    nearly = replace(FULL, window=False, tps=92.7 * 0.9)
    assert limit_of(nearly).resource is not Resource.LINK_TO_CLIENT


def test_a_full_server_is_named_and_a_faster_link_does_not_help() -> None:
    limit = limit_of(Case(connections=16, tps=1200, server_us=820, client_us=150, server_wait_us=11_000))
    assert limit.resource is Resource.SERVER_CPU
    assert "server 98 %" in limit.says
    assert "more bandwidth: the link is" in limit.would_not


def test_who_has_more_of_a_full_cpu_is_the_limit_and_the_other_is_said() -> None:
    busy = Case(connections=16, tps=700, server_us=900, client_us=300, server_wait_us=15_000)
    ours = limit_of(replace(busy, emulator={SERVER_CPU_NUMBER: 0.35}))
    assert ours.resource is Resource.SERVER_CPU
    assert "server 63 %, emulator 35 %" in ours.says
    assert "the emulator had 35 % of it" in ours.would_change
    theirs = limit_of(replace(busy, server_us=400, emulator={SERVER_CPU_NUMBER: 0.7}))
    assert theirs.resource is Resource.INSTRUMENT_CPU
    assert "this instrument's" in theirs.says
    others = limit_of(replace(busy, server_us=400, others={SERVER_CPU_NUMBER: 0.72}))
    assert others.resource is Resource.INVALID
    assert "what else runs on this machine" in others.says


def test_a_client_without_time_left_says_whose_figures_these_are() -> None:
    limit = limit_of(Case(connections=64, tps=9800, client_us=99, server_us=60, rtt_us=None))
    assert limit.resource is Resource.CLIENT_CPU
    assert "about the load generator" in limit.says


def test_a_client_that_others_keep_from_its_cpu_is_not_itself_the_limit() -> None:
    """Half of its CPU is somebody else's: it is ready and waits, and its own work would fit four times."""
    case = Case(connections=4, tps=1000, client_us=240, client_wait_us=500, server_us=300, rtt_us=None)
    limit = limit_of(replace(case, others={CLIENT_CPU_NUMBER: 0.76}))
    assert limit.resource is Resource.INVALID
    assert "other programs 76 %" in limit.says
    by_emulator = limit_of(replace(case, rtt_us=100, turns=4, emulator={CLIENT_CPU_NUMBER: 0.76}))
    assert by_emulator.resource is Resource.INSTRUMENT_CPU


def test_a_full_cpu_that_nobody_waits_for_is_no_limit() -> None:
    """Others fill the machine, but at 10 ms of round trip nothing of ours waits for them."""
    far = Case(tps=6, turns=16, rtt_us=10_000, client_us=200, server_us=900, others={0: 0.99, 1: 0.99})
    limit = limit_of(far)
    assert limit.resource is Resource.LATENCY
    assert limit.says.startswith("round trips take 9")
    assert "x1.9" in limit.would_change or "x2" in limit.would_change
    assert "more bandwidth" in limit.would_not


def test_a_small_receive_window() -> None:
    case = Case(tps=3, turns=16, rtt_us=10_000, bytes_to_client=1_270_000, tcp=(tcp("server", 1, 0.95, rwnd=0.85),))
    limit = limit_of(case)
    assert limit.resource is Resource.RECEIVE_WINDOW
    assert "client's receive window holds the server back" in limit.says
    assert "tcp_rmem" in limit.would_change
    send = limit_of(replace(case, tcp=(tcp("server", 1, 0.95, sndbuf=0.85),)))
    assert send.resource is Resource.SEND_BUFFER
    idle = replace(case, tps=6, bytes_to_client=400, tcp=(tcp("server", 1, 0.02, rwnd=0.02),))
    assert limit_of(idle).resource is Resource.LATENCY, "three tenths of nothing"


def test_loss_is_named_when_nothing_is_full() -> None:
    case = Case(tps=2, connections=4, turns=16, rtt_us=10_000, bytes_to_client=1_270_000, retransmits=70)
    limit = limit_of(case)
    assert limit.resource is Resource.LOSS
    assert "sent again" in limit.says
    assert (
        limit_of(replace(case, tps=6, bytes_to_client=400, connections=1, retransmits=0)).resource is Resource.LATENCY
    )
    assert limit_of(replace(FULL, retransmits=900)).resource is Resource.LINK_TO_CLIENT, "a full queue drops too"


def test_segments_sent_again_at_once_cost_a_round_trip_and_no_timeout() -> None:
    """Half a segment a transaction, 1 %: 5 of 182 ms if it was seen at once, 105 ms if a timer had to run out."""
    case = Case(tps=22, connections=4, turns=16, rtt_us=10_000, bytes_to_client=40_000, retransmits=44)
    assert limit_of(case).resource is Resource.LATENCY
    slow = limit_of(replace(case, timeouts=40))
    assert slow.resource is Resource.LOSS and slow.confidence == "high"
    assert any("timers ran out" in fact for fact in slow.evidence)
    unknown = limit_of(replace(case, timeouts=None))
    assert (unknown.resource, unknown.confidence) == (Resource.LOSS, "low"), "an upper bound accuses nobody for sure"


def test_loss_that_keeps_windows_small_costs_the_rounds_that_a_reply_then_takes() -> None:
    """127 kB over 10 ms with 0.9 % loss, as measured: no timer ran out, and a cycle of 375 ms has 40 ms of turns."""
    case = Case(tps=10.67, connections=4, turns=4, rtt_us=10_000, bytes_to_client=504_096, retransmits=145)
    _, cycle, limit = of(replace(case, client_us=750, server_us=2300))
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


def test_nothing_is_full_is_not_sure_where_upper_bounds_explain_most() -> None:
    """Waiting for a CPU counts threads of no transaction too: up to 18 % of 8 connections' cycle may be something that is full."""
    case = Case(connections=8, tps=48, turns=16, rtt_us=10_000, bytes_to_client=400, server_us=1000, client_us=500)
    assert limit_of(case).confidence == "high"
    bounded = limit_of(replace(case, tps=40, server_wait_us=36_000))
    assert (bounded.resource, bounded.confidence) == (Resource.LATENCY, "low")
    assert any("upper bounds" in fact for fact in bounded.evidence)


def test_a_round_that_is_mostly_an_upper_bound_is_not_established() -> None:
    """28 % of the cycle is row locks if each wait that the server calls 0 ms took one; if not, something may be full."""
    case = Case(connections=8, tps=1000, turns=2, rtt_us=1000, server_wait_us=1400, bytes_to_client=200)
    counters = {"Innodb_row_lock_waits": 9000, "Innodb_row_lock_time": 0}
    limit = limit_of(replace(case, counters=counters, tcp=(tcp("server", 8, 0.9, sndbuf=0.2),)))
    assert limit.resource is Resource.NOT_ESTABLISHED, limit.says
    assert "row locks 28 %" in limit.says


def test_a_lock() -> None:
    counters = {"Innodb_row_lock_waits": 800, "Innodb_row_lock_time": 5600}
    case = Case(connections=8, tps=200, turns=6, rtt_us=1000, server_us=400, bytes_to_client=200, counters=counters)
    limit = limit_of(replace(case, tps=940))
    assert limit.resource is Resource.LATENCY, "a fifth of the cycle is no lock problem"
    busy = limit_of(replace(case, counters={"Innodb_row_lock_waits": 800, "Innodb_row_lock_time": 20_000}))
    assert busy.resource is Resource.LOCK
    assert "row locks" in busy.says
    assert "more connections" in busy.would_not


def test_lock_conflicts_are_no_errors_of_the_run_and_others_are() -> None:
    case = Case(connections=8, tps=200, turns=6, rtt_us=1000, bytes_to_client=200)
    assert limit_of(replace(case, errors={"1213": 100})).resource is not Resource.ERRORS
    failed = limit_of(replace(case, errors={"1064": 100}))
    assert failed.resource is Resource.ERRORS and "other programs" not in failed.would_change


def test_a_commit_that_waits_for_the_disk() -> None:
    counters = {"Innodb_data_fsyncs": 1600, "Handler_commit": 1600}
    case = Case(connections=1, tps=400, turns=1, rtt_us=None, server_us=200, bytes_to_client=50)
    limit = limit_of(replace(case, counters=counters, fsync_us=2000.0))
    assert limit.resource is Resource.COMMIT
    assert "2 ms for a durable write" in limit.says
    memory = limit_of(replace(case, tps=2400, counters=counters, fsync_us=2.0))
    assert memory.resource is not Resource.COMMIT


def test_a_commit_that_waits_for_a_replica() -> None:
    told = {"window": {"mean_wait_us": 85_700.0}}
    case = Case(connections=16, tps=185, turns=1, rtt_us=None, server_us=200, bytes_to_client=50, replication=told)
    limit = limit_of(replace(case, acknowledgement_us=85_100.0))
    assert limit.resource is Resource.ACKNOWLEDGEMENT and limit.confidence == "high"
    assert "98 % of the cycle" in limit.says and "85.7 ms each" in limit.evidence[0]
    assert "half the distance: about x2" in limit.would_change and "bandwidth" in limit.would_not
    assert limit_of(case).resource is not Resource.ACKNOWLEDGEMENT, "nobody waits"
    reads = replace(case, tps=12_000, acknowledgement_us=85_100.0)
    assert limit_of(reads).resource is not Resource.ACKNOWLEDGEMENT, "they are done before a packet is there"


def test_a_few_writes_of_the_background_are_no_commits() -> None:
    """Group commit is told from a log that is written once a second."""
    case = Case(connections=8, tps=1000, counters={"Innodb_data_fsyncs": 8, "Handler_commit": 4000}, fsync_us=5000.0)
    assert part_us(cycle_of(case.evidence()), cycles.COMMIT) < 20
    grouped = replace(case, counters={"Innodb_data_fsyncs": 1000, "Handler_commit": 4000})
    assert part_us(cycle_of(grouped.evidence()), cycles.COMMIT) > 2500


def test_one_connection_that_waits_for_itself() -> None:
    limit = limit_of(Case(tps=2000, rtt_us=None, client_us=100, server_us=380))
    assert limit.resource is Resource.LATENCY
    assert "nothing is full" in limit.says
    assert "then the CPU of the server is full" in limit.would_change


def test_what_is_not_explained_is_refused_with_the_largest_parts() -> None:
    limit = limit_of(Case(connections=8, tps=1000, turns=2, rtt_us=None, client_us=100, server_us=300))
    assert limit.resource is Resource.NOT_ESTABLISHED
    assert "rest 95 %" in limit.says and limit.says.count("%") == 3
    waiting = Case(connections=8, tps=1000, turns=2, rtt_us=None, client_us=100, counters={"Threads_running": 8})
    assert limit_of(waiting).resource is Resource.SERVER_WAIT


def test_what_is_not_explained_on_a_crowded_machine_is_laid_to_the_machine() -> None:
    case = Case(connections=8, tps=1000, turns=2, rtt_us=None, client_us=100, server_us=300, others={0: 0.7, 1: 0.9})
    limit = limit_of(case)
    assert limit.resource is Resource.INVALID
    assert "other programs have the machine" in limit.says


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
    evidence, cycle, _ = of(case)
    assert sum(part.us for part in cycle.parts) == pytest.approx(cycle.us)
    assert cycle.us == pytest.approx(case.connections / case.tps * 1e6, rel=0.02)
    assert [part.name for part in cycle.parts] == [name for name in PARTS if name in {p.name for p in cycle.parts}]
    assert cycle.parts[-1].name == "rest" and cycle.rest_share == pytest.approx(cycle.parts[-1].us / cycle.us)
    assert sum(cells.time_split_us(cycle).values()) == pytest.approx(evidence.cycle_s * 1e6)


def test_a_full_link_s_cycle_is_mostly_its_queue() -> None:
    """16 connections share 10.4 ms a transaction on the wire: the others' take up most of 172 ms."""
    _, cycle, _ = of(FULL)
    assert part_us(cycle, cycles.WIRE) == pytest.approx(10_750, rel=0.02)
    assert part_us(cycle, cycles.LINK_QUEUE) > 0.8 * cycle.us
    assert cycle.rest_share < 0.05


@given(st.floats(1e-6, 1), st.floats(0, 2), st.integers(1, 4096))
def test_nobody_waits_longer_than_behind_everybody(demand: float, used: float, connections: int) -> None:
    waited = behind_others(demand, used, connections)
    assert 0 <= waited <= demand * (connections - 1) + 1e-12
    assert behind_others(demand, used, 1) == 0


@given(
    st.integers(1, 256),
    st.floats(1, 20_000),
    st.floats(0, 5000),
    st.floats(0, 5000),
    st.floats(0, 1e5),
    st.integers(0, 5_000_000),
    st.sampled_from([None, 0.0, 200.0, 10_000.0]),
    st.integers(0, 10_000),
)
def test_any_load_is_judged_and_its_parts_add_up(
    connections: int, tps: float, client: float, server: float, wait: float, size: int, rtt: float | None, count: int
) -> None:
    case = Case(
        connections=connections,
        tps=tps,
        client_us=client,
        server_us=server,
        server_wait_us=wait,
        bytes_to_client=size,
        rtt_us=rtt,
        retransmits=count,
        counters={
            "Innodb_data_fsyncs": count,
            "Handler_commit": count,
            "Innodb_row_lock_waits": count,
            "Innodb_row_lock_time": count,
        },
        fsync_us=1000.0,
        tcp=(tcp("server", connections, 0.5, rwnd=0.2),),
    )
    _, cycle, limit = of(case)
    assert min(part.us for part in cycle.parts) >= 0
    assert sum(part.us for part in cycle.parts) == pytest.approx(cycle.us)
    assert limit.says and limit.would_change and "nan" not in limit.says
