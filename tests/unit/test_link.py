"""The link's arithmetic, its calibration against a fake emulator, and its judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from howfar.cli.lab import lab
from howfar.cli.links import LinkChoice, link_options, read_link
from howfar.contract.messages import (
    BurstLoss,
    DirectionStats,
    Drops,
    EmpiricalJitter,
    GoodputResult,
    IndependentLoss,
    LinkReady,
    LinkStats,
    RttResult,
)
from howfar.contract.receipt import MEAN_MAX_SHARE, ByDirection, LatenessLimits, LinkCalibration, TcpSettings
from howfar.contract.violation import Violation, violation
from howfar.errors import UsageError
from howfar.lab.link import DIRECTIONS, DirectionName, Link, LinkSpec
from howfar.lab.link.receipt import (
    RUN_LIMITS,
    STRICT_LIMITS,
    crossing_violations,
    effect_warnings,
    goodput_warnings,
    limits_for_trial,
    link_counters,
    link_receipt,
    rest_warnings,
    unknown_properties,
)
from howfar.lab.link.running import can_count_goodput, goodput_times_ns, measure_goodput, ping_count, probe_count
from howfar.lab.link.settings import apply_setting
from howfar.store.server_metrics import ServerMetrics

_ASKED = LinkSpec(rtt_ns=200_000, rate_bps=10**9)


def _direction(**changes: object) -> DirectionStats:
    fields: dict[str, object] = {
        "packets": 10,
        "segments": 10,
        "wire_bytes": 15380,
        "admitted": 10,
        "drops": Drops(queue=0, loss=0, outage=0, arena=0, socket=0, transmit=0),
        "duplicated": 0,
        "corrupted": 0,
        "reordered": 0,
        "queue_bytes_max": 0,
        "queue_bytes_lately": 0,
        "lateness_p50_ns": 300,
        "lateness_p99_ns": 5_000,
        "lateness_p999_ns": 20_000,
        "lateness_max_ns": 90_000,
        "cpu_ns": 1,
    }
    return DirectionStats.model_validate({**fields, **changes})


def _stats(**changes: object) -> LinkStats:
    return LinkStats(to_server=_direction(**changes), to_client=_direction())


def _rtt(p50_ns: int) -> RttResult:
    return RttResult(count=100, min_ns=p50_ns, p50_ns=p50_ns, p99_ns=p50_ns, max_ns=p50_ns)


def test_queue_is_ten_milliseconds_or_one_product_of_bandwidth_and_delay() -> None:
    for direction in DIRECTIONS:
        assert _ASKED.queue_bytes(direction) == 10**9 * 10 // 1000 // 8
        assert LinkSpec(100_000_000, 10**9).queue_bytes(direction) == 10**9 // 10 // 8


def test_a_cell_names_what_differs_from_the_laboratorys_link() -> None:
    slow = apply_setting(_ASKED, "loss", "1%")
    assert slow.with_levels({"path": "remote"}) == slow
    assert slow.with_levels({"rtt_ns": 0, "rate_bps": 10**8}) == replace(slow, rtt_ns=0, rate_bps=10**8)


def test_expected_goodput_counts_ethernet_framing() -> None:
    """1448 bytes of payload in 1500 + 14 + 4 + 8 + 12 = 1538 on the wire."""
    assert _ASKED.expected_goodput_bps("to_server") == pytest.approx(941.48e6, rel=1e-4)
    assert LinkSpec(200_000, None).expected_goodput_bps("to_server") is None


@given(st.integers(0, 10**10))
def test_a_probe_is_short_and_never_empty(rtt_ns: int) -> None:
    count = ping_count(rtt_ns)
    assert 10 <= count <= 400
    assert count == 10 or count * rtt_ns <= 100_000_000


def _violations(
    spec: LinkSpec,
    at_rest: RttResult,
    stats: LinkStats | None,
    limits: LatenessLimits = RUN_LIMITS,
    backend: str = "packet",
) -> tuple[Violation, ...]:
    fake = _fake(0)
    fake.spec, fake.backend = spec, backend
    fake.calibrations[spec.without_effects()] = LinkCalibration()
    return link_receipt(fake, at_rest, stats, TcpSettings()).violations(limits)


def _counter_violations(spec: LinkSpec, stats: LinkStats, limits: LatenessLimits) -> tuple[Violation, ...]:
    counters = link_counters(stats)
    assert counters is not None
    return counters.violations(spec.rtt_ns, limits)


def test_a_ping_takes_its_own_time_on_the_wire() -> None:
    """91 bytes in each direction: 1 of payload, 52 of headers, 38 of framing."""
    assert LinkSpec(10_000_000, 10**6).rest_rtt_ns == 10_000_000 + 2 * 728_000
    assert LinkSpec(10_000_000, None).rest_rtt_ns == 10_000_000
    one_way = apply_setting(LinkSpec(10_000_000, None), "rate", "to-client:10mbit")
    assert one_way.rest_rtt_ns == 10_000_000 + 72_800


@pytest.mark.parametrize("bounds", [STRICT_LIMITS, RUN_LIMITS])
def test_a_slow_link_is_not_accused_of_the_time_that_the_ping_takes(bounds: LatenessLimits) -> None:
    slow = LinkSpec(10_000_000, 10**6)
    assert _violations(slow, _rtt(11_456_000), None, bounds) == ()
    (found,) = _violations(slow, _rtt(10_000_000), None, bounds)
    assert found.id == "link-rtt-with-transmission"
    assert found.parameters == {"measured_ns": 10_000_000, "requested_ns": 10_000_000, "transmission_ns": 1_456_000}


def test_calibration_takes_nothing_off_for_the_ping_s_own_bytes() -> None:
    slow = LinkSpec(10_000_000, 10**6)
    fake = _fake(60_000)
    assert fake.shape(slow).compensate_ns == 0, "60 µs are less than 1 %"
    fake = _fake(120_000)
    assert fake.shape(slow).compensate_ns == 60_000


def test_a_back_end_that_lets_a_lone_packet_through_is_held_against_the_rtt_alone() -> None:
    assert _violations(LinkSpec(10_000_000, 10**6), _rtt(10_000_000), None, STRICT_LIMITS, "kernel") == ()


@pytest.mark.parametrize(("p50_ns", "off"), [(230_000, False), (233_000, True), (299_000, True), (169_000, True)])
def test_the_rtt_of_a_link_used_alone_is_within_its_tolerance(p50_ns: int, off: bool) -> None:
    assert bool(_violations(_ASKED, _rtt(p50_ns), None, STRICT_LIMITS)) == off


def test_where_no_delay_is_asked_the_way_itself_may_take_some() -> None:
    assert _violations(LinkSpec(0, None), _rtt(46_000), None, STRICT_LIMITS) == ()
    assert _violations(LinkSpec(0, None), _rtt(101_000), None, STRICT_LIMITS)


@pytest.mark.parametrize(("p50_ns", "off"), [(200_000, False), (299_000, False), (302_000, True), (99_000, True)])
def test_an_rtt_at_rest_too_far_off_is_a_violation(p50_ns: int, off: bool) -> None:
    assert bool(_violations(_ASKED, _rtt(p50_ns), _stats())) == off


def test_tolerance_grows_with_the_rtt() -> None:
    assert not _violations(LinkSpec(100_000_000, 10**9), _rtt(102_900_000), _stats())
    assert _violations(LinkSpec(100_000_000, 10**9), _rtt(103_100_000), _stats())


def test_only_modelled_drops_are_allowed() -> None:
    rest = _rtt(200_000)
    assert not _violations(_ASKED, rest, _stats(drops=Drops(queue=99, loss=9, outage=9, arena=0, socket=0, transmit=0)))
    for cause in ("arena", "socket", "transmit"):
        drops = Drops.model_validate(
            {"queue": 0, "loss": 0, "outage": 0, "arena": 0, "socket": 0, "transmit": 0, cause: 1}
        )
        (found,) = _violations(_ASKED, rest, _stats(drops=drops))
        assert found.id == "link-lost-packets" and sum(number == 1 for number in found.parameters.values()) == 1


@pytest.mark.parametrize(
    ("rtt_ns", "late", "violated"),
    [
        (200_000, {"lateness_p999_ns": 4_990_000}, False),
        (200_000, {"lateness_p999_ns": 5_010_000}, True),
        (50_000_000, {"lateness_p999_ns": 4_990_000}, False),
        (60_000_000, {"lateness_p999_ns": 5_990_000}, False),
        (60_000_000, {"lateness_p999_ns": 6_010_000}, True),
    ],
)
def test_late_packets_are_a_violation_beyond_a_share_of_the_rtt(
    rtt_ns: int, late: dict[str, int], violated: bool
) -> None:
    assert bool(_violations(LinkSpec(rtt_ns, 10**9), _rtt(rtt_ns), _stats(**late))) == violated


def test_goodput_more_than_a_fiftieth_off_is_a_warning() -> None:
    expected = _ASKED.expected_goodput_bps("to_server")
    assert expected is not None
    goodput = ByDirection(to_server=expected * 0.985, to_client=expected * 0.97)
    calibration = LinkCalibration(goodput_bps=goodput)
    (warning,) = goodput_warnings(_ASKED, calibration)
    assert "to client" in warning
    assert goodput_warnings(LinkSpec(200_000, None), calibration) == ()


@given(st.integers(1_000, 10**11), st.integers(0, 10**10))
def test_a_window_is_longer_than_what_it_counts_or_gives_no_figure(rate_bps: int, rtt_ns: int) -> None:
    """[dist-3] At 13 kbit/s a segment takes 0.95 s: a window of 0.5 s held none, and a valid receipt reported 0 bit/s."""
    segment_ns = LinkSpec(rtt_ns, rate_bps).segment_ns("to_server")
    _, measure_ns = goodput_times_ns(rtt_ns, segment_ns)
    assert not can_count_goodput(segment_ns) or measure_ns >= 100 * segment_ns
    assert can_count_goodput(segment_ns) == (rate_bps >= 123_040 or segment_ns <= 100_000_000)


def test_a_rate_too_low_to_count_leaves_the_goodput_out() -> None:
    """[dist-3]"""
    fake = _fake(0)
    fake.spec = LinkSpec(10_000_000, 13_000)
    assert Link.goodput(fake, "to_server") is None
    fake.goodput = lambda to_server: None  # type: ignore[method-assign, assignment, return-value]
    found = measure_goodput(fake, fake.spec)
    assert found.goodput_bps == ByDirection() and found.mss is None
    assert goodput_warnings(fake.spec, found) == tuple(
        f"goodput {name} is unknown: at 12.24kbit too few segments cross in 10 s" for name in ("to server", "to client")
    )


@pytest.mark.parametrize(
    ("rtt_ns", "measured_ns", "said"),
    [
        (30_000, 53_700, "the unloaded RTT is 53.7us, 79% longer than requested"),
        (10_000_000, 10_030_000, None),
        (100_000, 85_000, "the unloaded RTT is 85us, 15% shorter than requested"),
        (0, 40_000, None),
    ],
)
def test_an_absolute_tolerance_is_said_as_a_share(rtt_ns: int, measured_ns: int, said: str | None) -> None:
    """[dist-4] 30 us are within the tolerance of every link, but for a link of 30 us they are all of its RTT."""
    found = rest_warnings(LinkSpec(rtt_ns, None), rtt_ns, LinkCalibration(rtt_p50_ns=measured_ns))
    assert [each.partition(":")[0] for each in found] == ([] if said is None else [said])


def test_a_load_that_did_not_cross_the_link_is_a_violation() -> None:
    assert crossing_violations(_stats(), ServerMetrics()) == ()
    (found,) = crossing_violations(_stats(packets=0), ServerMetrics())
    assert (found.id, found.parameters) == ("link-not-crossed", {"end": "server"})
    carried = _stats(wire_bytes=50_000_000)
    assert crossing_violations(carried, ServerMetrics(bytes_received=48_000_000, bytes_sent=15_000_000)) == ()
    (found,) = crossing_violations(carried, ServerMetrics(bytes_received=51_000_000, bytes_sent=0))
    assert found.parameters == {"end": "server", "carried_bytes": 50_000_000, "counted_bytes": 51_000_000}
    (found,) = crossing_violations(carried, ServerMetrics(bytes_received=0, bytes_sent=20_000_000))
    assert (found.parameters["end"], found.parameters["counted_bytes"]) == ("client", 20_000_000)


@given(st.integers(0, 10**10))
def test_a_round_of_calibration_and_a_transfer_are_bounded(rtt_ns: int) -> None:
    probes = probe_count(rtt_ns)
    assert 1 <= probes <= 5
    assert probes == 1 or probes * ping_count(rtt_ns) * rtt_ns <= 500_000_000
    warmup_ns, measure_ns = goodput_times_ns(rtt_ns)
    assert 1_000_000_000 <= warmup_ns <= 10_000_000_000
    assert 500_000_000 <= measure_ns <= 10_000_000_000


class _FakeBackendLink:
    ready = LinkReady(realtime=True, short_slice=False, offload=True)
    pid = 1

    def alive(self) -> bool:
        return True

    def set(self, spec: LinkSpec, compensate_ns: int, elapsed_ns: int) -> None:
        raise AssertionError("a link that is faked has no line to set")

    def stats(self, *, reset: bool = False) -> LinkStats:
        return _stats()


@dataclass
class _FakeLink(Link):
    """A link whose RTT is the delay set, plus an excess, as on a machine that is slow to wake, plus the noise of each probe."""

    excess_ns: int = 0
    noise: Iterator[int] = field(default_factory=lambda: repeat(0))
    settings: list[int] = field(default_factory=list)

    def set_without_effects(self, spec: LinkSpec, compensate_ns: int) -> None:
        assert 0 <= compensate_ns <= spec.rtt_ns // 2, "a delay is never negative"
        self.spec, self.compensate_ns = spec, compensate_ns
        self.settings.append(compensate_ns)

    def ping(self) -> RttResult:
        return _rtt(max(self.spec.rest_rtt_ns - 2 * self.compensate_ns + self.excess_ns + next(self.noise), 1))

    def ping_from_idle(self) -> RttResult:
        return _rtt(self.spec.rtt_ns)

    def goodput(self, direction: DirectionName) -> GoodputResult:
        return GoodputResult(
            bytes=1, elapsed_ns=1, bits_per_second=1.0, retransmits=0, congestion_control="cubic", mss=1448
        )

    def counters(self, *, reset: bool = False) -> LinkStats:
        return _stats()


def _fake(excess_ns: int, noise: Iterable[int] = ()) -> _FakeLink:
    return _FakeLink(
        _FakeBackendLink(),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        1,
        _ASKED,
        excess_ns=excess_ns,
        noise=chain(noise, repeat(0)),
    )


@given(st.integers(0, 150_000))
def test_calibration_takes_off_what_the_machine_adds(excess_ns: int) -> None:
    fake = _fake(excess_ns)
    found = fake.shape(_ASKED)
    assert found.rtt_p50_ns is not None and abs(found.rtt_p50_ns - _ASKED.rest_rtt_ns) <= 2_000
    assert found.rounds[-1].rtt_p50_ns == found.rtt_p50_ns, "what is frozen has been measured"
    assert found.rounds[-1].compensate_ns == found.compensate_ns == fake.compensate_ns


def test_what_only_a_busy_machine_adds_stays() -> None:
    """At most 75 µs are subtracted in each direction; if the delay is shorter than that, all of it."""
    found = _fake(500_000).shape(_ASKED)
    assert (found.compensate_ns, found.rtt_p50_ns) == (75_000, 551_456)
    short = LinkSpec(rtt_ns=100_000, rate_bps=10**9)
    assert _fake(500_000).shape(short).compensate_ns == 50_000


@given(st.lists(st.sampled_from([(), (0,), (4,), (1, 3), (0, 2)]), min_size=4, max_size=4))
def test_two_disturbed_probes_of_five_do_not_move_the_correction(disturbed: list[tuple[int, ...]]) -> None:
    noise = [400_000 if place in places else 0 for places in disturbed for place in range(5)]
    assert _fake(60_000, noise).shape(_ASKED).compensate_ns == 30_000


@given(st.lists(st.integers(-90_000, 90_000), max_size=40))
def test_between_trials_nothing_is_tuned(noise: list[int]) -> None:
    """The arms of a run are compared over the same programmed delays, whatever the probes say."""
    fake = _fake(60_000)
    frozen = fake.shape(_ASKED).compensate_ns
    fake.noise = chain(noise, repeat(0))
    calibrated = len(fake.settings)
    for _ in range(5):
        at_rest = fake.measure_rtt_at_rest()
        assert fake.compensate_ns == frozen
        receipt = link_receipt(fake, at_rest, _stats(), TcpSettings())
        assert receipt.compensate_ns == frozen
        assert receipt.rest_rtt_ns == at_rest.p50_ns
        assert fake.shape(_ASKED).compensate_ns == frozen
    assert set(fake.settings[calibrated:]) <= {frozen}


def test_no_trial_waits_for_a_calm_moment() -> None:
    """Neither do arms on local paths: a burst is measured, and voids the trial if it is large."""
    fake = _fake(60_000)
    fake.shape(_ASKED)
    fake.noise = chain([50_000, 150_000], repeat(0))
    small, large = fake.measure_rtt_at_rest(), fake.measure_rtt_at_rest()
    assert not _violations(_ASKED, small, _stats())
    (found,) = _violations(_ASKED, large, _stats())
    assert (found.id, found.parameters["measured_ns"]) == ("link-rtt", 351_456)


def test_each_batch_calibrates_anew_from_what_was_found() -> None:
    fake = _fake(60_000)
    assert fake.shape(_ASKED).compensate_ns == 30_000
    calibrated = len(fake.settings)
    fake.shape(_ASKED)
    assert fake.settings[calibrated:] == [30_000], "once a batch"
    fake.noise = repeat(20_000)
    fake.begin_batch()
    assert fake.shape(_ASKED).compensate_ns == 40_000, "nothing of an earlier error is left"
    assert len(fake.settings) <= calibrated + 4, "two rounds, and what is then in force"


def test_links_of_nearly_the_same_rtt_share_a_correction() -> None:
    """A control's RTT is therefore longer by exactly what was put in."""
    fake = _fake(60_000)
    found = fake.shape(_ASKED).compensate_ns
    calibrated = len(fake.settings)
    longer = fake.shape(replace(_ASKED, rtt_ns=_ASKED.rtt_ns * 105 // 100))
    assert (longer.compensate_ns, longer.of_rtt_ns) == (found, _ASKED.rtt_ns)
    assert fake.settings[calibrated:] == [found]
    fake.shape(replace(_ASKED, rtt_ns=2 * _ASKED.rtt_ns))
    assert len(fake.settings) > calibrated + 2, "another distance has a calibration of its own"


@pytest.mark.parametrize(
    ("rtt_ns", "late_ns", "void"), [(200_000, 99_000, False), (200_000, 101_000, True), (85_000_000, 849_000, False)]
)
def test_a_link_used_alone_is_judged_strictly(rtt_ns: int, late_ns: int, void: bool) -> None:
    """The p99.9 of lateness may be 100 µs, or 1 % of the RTT; a trial of a run is allowed up to ten times that."""
    spec, stats = LinkSpec(rtt_ns, 10**9), _stats(lateness_p999_ns=late_ns)
    assert bool(_counter_violations(spec, stats, STRICT_LIMITS)) == void
    assert not _counter_violations(spec, stats, RUN_LIMITS)


def test_a_back_end_that_counts_nothing_is_accused_of_nothing() -> None:
    assert _violations(_ASKED, _rtt(200_000), None, STRICT_LIMITS) == ()
    assert effect_warnings(_ASKED, None) == ()


def _lost(lost: int, of: int) -> DirectionStats:
    drops = Drops(queue=0, loss=lost, outage=0, arena=0, socket=0, transmit=0)
    return _direction(segments=of - lost, admitted=of, drops=drops)


@pytest.mark.parametrize(("lost", "warned"), [(1000, False), (1250, True), (750, True)])
def test_a_loss_outside_its_interval_is_a_warning(lost: int, warned: bool) -> None:
    """Of 100,000 segments 1 % is 1000, with a standard deviation of 31.5: 250 off is eight of them."""
    spec = apply_setting(_ASKED, "loss", "to-server:1%")
    warnings = effect_warnings(spec, LinkStats(to_server=_lost(lost, 100_000), to_client=_direction()))
    assert bool(warnings) == warned
    assert all("loss to server: requested 1.000%" in warning for warning in warnings)


def test_what_is_on_its_way_at_the_end_came_to_the_loss() -> None:
    """A short program over a long link: of 1000 segments admitted 10 were lost, and 800 are still in flight."""
    spec = apply_setting(_ASKED, "loss", "to-server:1%")
    drops = Drops(queue=0, loss=10, outage=0, arena=0, socket=0, transmit=0)
    seen = _direction(segments=190, admitted=1000, drops=drops)
    assert effect_warnings(spec, LinkStats(to_server=seen, to_client=_direction())) == ()


def test_drops_that_the_kernel_does_not_tell_prove_nothing() -> None:
    assert unknown_properties(_stats()) == ()
    silent = Drops(queue=0, loss=0, outage=0, arena=0, socket=None, transmit=0)
    stats = _stats(drops=silent)
    assert _counter_violations(_ASKED, stats, STRICT_LIMITS) == ()
    (sentence,) = unknown_properties(stats)
    assert "to server" in sentence
    lost = _stats(drops=silent.model_copy(update={"arena": 3}))
    assert _counter_violations(_ASKED, lost, STRICT_LIMITS)[0].parameters["socket_packets"] == "unknown"
    assert unknown_properties(None) and unknown_properties(
        _stats(packets=0).model_copy(update={"to_client": _direction(packets=0)})
    )


def test_bursts_may_miss_their_share_by_more() -> None:
    """In bursts of 50 there are a fiftieth of the independent events: the standard deviation is about ten times as large."""
    spec = apply_setting(apply_setting(_ASKED, "loss", "to-server:1%"), "loss-burst", "50")
    assert effect_warnings(spec, LinkStats(to_server=_lost(1250, 100_000), to_client=_direction())) == ()
    assert effect_warnings(spec, LinkStats(to_server=_lost(2500, 100_000), to_client=_direction()))


def test_duplicates_and_spoilt_segments_are_held_against_what_was_asked() -> None:
    spec = apply_setting(apply_setting(_ASKED, "duplicate", "to-client:10%"), "corrupt", "to-client:20%")
    right = _direction(segments=11_000, duplicated=1000, corrupted=2000)
    assert effect_warnings(spec, LinkStats(to_server=_direction(), to_client=right)) == ()
    none = _direction(segments=10_000, duplicated=0, corrupted=0)
    assert len(effect_warnings(spec, LinkStats(to_server=_direction(), to_client=none))) == 2


def test_a_packet_may_be_late_by_little_of_a_round_trip() -> None:
    """256 connections at 4000 round trips per second: a round trip takes 64 ms, of which 2 % are 1.28 ms, 20 % are 12.8 ms."""
    assert limits_for_trial(5e6).p999_ns == RUN_LIMITS.p999_ns
    crowded = limits_for_trial(64e6)
    assert (crowded.mean_ns, crowded.p999_ns) == (1_280_000, 12_800_000)
    assert not crowded.strict_rtt


@pytest.mark.parametrize("early_ns", [0, 3_000])
@pytest.mark.parametrize("scatter", [0.1, 1.0, 2.5])
def test_a_trial_that_just_passes_is_off_by_two_percent(scatter: float, early_ns: int) -> None:
    """The throughput that a closed loop loses over a link whose lateness has any distribution, and is sometimes negative."""
    rng, round_trip_ns = np.random.default_rng(1), 280_000.0
    late = rng.lognormal(0, scatter, (2, 100_000))
    allowed_ns = MEAN_MAX_SHARE * round_trip_ns / (1 - MEAN_MAX_SHARE)
    late = late / late.mean() * (allowed_ns / 2 + early_ns) - early_ns
    for share, passes in ((0.999, True), (1.01, False)):
        means = [round(each * share) for each in late.mean(axis=1)]
        slowed_ns = round_trip_ns + float((share * late).sum(axis=0).mean())
        stats = LinkStats(
            to_server=_direction(lateness_mean_ns=means[0], lateness_p50_ns=6_000),
            to_client=_direction(lateness_mean_ns=means[1]),
        )
        assert (_counter_violations(_ASKED, stats, limits_for_trial(slowed_ns)) == ()) == passes
        assert (1 - round_trip_ns / slowed_ns <= MEAN_MAX_SHARE) == passes


@pytest.mark.parametrize(
    ("late_ns", "median_ns", "passes"), [(27, 0, True), (29, 0, False), (5, 6, True), (6, 6, False)]
)
def test_rare_stalls_may_make_packets_later_than_a_link_that_is_always_late(
    late_ns: int, median_ns: int, passes: bool
) -> None:
    """In µs, for a round trip of 280 µs under load: 10 % are 28, 2 % are 5.6."""
    stats = LinkStats(
        to_server=_direction(lateness_mean_ns=late_ns * 1000, lateness_p50_ns=median_ns * 1000),
        to_client=_direction(lateness_mean_ns=0),
    )
    assert (_counter_violations(_ASKED, stats, limits_for_trial(280_000)) == ()) is passes


def test_packets_that_leave_too_early_make_a_trial_void_too() -> None:
    stats = LinkStats(to_server=_direction(lateness_mean_ns=-9_000), to_client=_direction(lateness_mean_ns=1_000))
    (found,) = _counter_violations(_ASKED, stats, limits_for_trial(280_000))
    assert found == violation(
        "link-mean-lateness", change_ns=8_000, change="shorter", allowed_ns=5_600.0, allowed_share=MEAN_MAX_SHARE
    )
    for unknown in (RUN_LIMITS, limits_for_trial(0)):
        assert _counter_violations(_ASKED, stats, unknown) == (), "nothing is known of a round trip"


# ---------------------------------------------------------------- the options


def read(*arguments: str) -> LinkChoice:
    found: list[LinkChoice] = []

    @click.command()
    @link_options
    def command(**values: Any) -> None:
        found.append(read_link(**values))

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_without_an_option_the_link_is_what_it_always_was() -> None:
    choice = read()
    assert (choice.spec.rtt_ns, choice.spec.rate_bps, choice.has_options) == (200_000, 10**9, False)
    assert not choice.wants_only_link


@pytest.mark.parametrize(
    "arguments", [("--rtt", "10ms"), ("--rate", "none"), ("--tcp", "tuned"), ("--congestion-control", "reno")]
)
def test_any_option_of_a_link_asks_for_one_but_these_keep_the_server(arguments: tuple[str, str]) -> None:
    choice = read(*arguments)
    assert (choice.has_options, choice.wants_only_link) == (True, False)
    assert read(*arguments, "--loss", "1%").wants_only_link
    assert read("--link-backend", "packet").wants_only_link, "also where it says what is the default"


def test_a_path_without_a_link_is_refused_with_an_option_of_a_link() -> None:
    done = CliRunner().invoke(lab, ["--path", "socket", "--rtt", "20ms", "--", "true"])
    assert isinstance(done.exception, UsageError)
    assert "the path socket crosses no link" in done.exception.message


def test_single_options_change_a_named_link() -> None:
    choice = read("--link", "us-coasts", "--rtt", "70ms", "--loss", "to-client:2%", "--loss", "to-server:1%")
    assert choice.has_options
    assert (choice.spec.rtt_ns, choice.spec.rate_bps) == (70_000_000, 10**9)
    assert [choice.spec.direction(name).loss for name in DIRECTIONS] == [
        IndependentLoss(probability=0.01),
        IndependentLoss(probability=0.02),
    ]


def test_a_bare_cable_is_asked_for_nothing() -> None:
    spec = read("--link-backend", "none").spec
    assert (spec.rtt_ns, spec.rate_bps) == (0, None)


def test_traces_and_scripts_are_read_from_files(tmp_path: Path) -> None:
    rtts, rates, script = tmp_path / "rtts", tmp_path / "rates", tmp_path / "script"
    rtts.write_text("12ms\n10ms\n")
    rates.write_text("10ms 5mbit\n")
    script.write_text("1s rtt 20ms\n2s down 1s\n")
    choice = read("--rtt-trace", str(rtts), "--rate-trace", str(rates), "--link-script", str(script))
    assert choice.spec.rtt_ns == 10_000_000
    assert choice.spec.to_client.jitter == EmpiricalJitter(extra_ns=[2_000_000, 0])
    assert [choice.spec.mean_rate_bps(name) for name in DIRECTIONS] == [5_000_000] * 2
    assert len(choice.spec.to_server.outages) == 1
    assert [at_ns for at_ns, _ in choice.script.changes] == [10**9]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rtt", "10"), "--rtt 10: '10' is not a duration"),
        (("--link", "moon"), "--link moon: no link is called"),
        (("--loss", "1%", "--loss", "to-moon:1%"), "--loss to-moon:1%: 'to-moon' is not a direction of a link"),
        (("--rtt", "20s"), "'20s' is out of range for an RTT"),
        (("--queue", "5"), "--queue 5: '5' is neither a size nor a time"),
        (("--queue", "1B"), "a queue of 1 bytes cannot hold a packet of 1538 bytes (with framing)"),
        (("--queue", "to-client:1537B"), "cannot hold a packet"),
        (("--mtu", "9000", "--queue", "1538B"), "cannot hold a packet"),
        (("--jitter", "5ms"), "a jitter of 5ms around a delay of 0.1ms to server"),
        (("--rtt", "20ms", "--delay-to-server", "1ms", "--jitter", "2ms"), "a delay of 1ms to server"),
        (("--mtu", "٣٠٠٠"), "is not an MTU"),
        (("--loss-burst", "8"), "burst loss requires a loss rate"),
        (("--reorder", "on"), "nothing is reordered without jitter"),
        (("--reorder", "to-server:on", "--jitter", "to-client:2ms"), "nothing is reordered without jitter"),
        (("--outage", "25h:1s"), "--outage 25h:1s: '25h' is more than a day"),
        (("--outage", "1s:1s", "--seed", "9" * 5000), "is not a seed"),
        (("--rate", "100gbit", "--rtt", "10s"), "more than 64 GiB"),
        (("--link-backend", "kernel", "--outage", "1s:1s"), "back-end kernel cannot do that: no outages"),
        (("--link-backend", "none", "--rtt", "1ms"), "back-end none cannot do that"),
    ],
)
def test_a_mistake_names_its_option(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError) as error:
        read(*arguments)
    assert expected in error.value.message


def test_a_range_is_said_in_the_units_of_its_option() -> None:
    for option, value, advice in (
        ("--rtt", "20s", "Give a value from 0ns to 10s."),
        ("--rate", "1kbit", "Give a value from 8kbit to 1000gbit."),
        ("--queue", "100GiB", "Give a value from 1B to 64GiB."),
        ("--delay-to-server", "5ms", "Give a value from 0ns to 0.2ms."),
    ):
        with pytest.raises(UsageError) as error:
            read(option, value)
        assert error.value.advice == advice


def test_a_jitter_as_wide_as_the_delay_is_let_through_and_so_is_one_that_only_adds() -> None:
    for spec in ("0.1ms", "5ms:pareto"):
        assert read("--jitter", spec).spec.to_client.jitter is not None
    assert read("--queue", "1538B").spec.queue_bytes("to_client") == 1538


def test_one_option_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    rtts, rates = tmp_path / "rtts", tmp_path / "rates"
    rtts.write_text("12ms\n10ms\n")
    rates.write_text("10ms 5mbit\n")
    with pytest.raises(UsageError, match="both vary the delay"):
        read("--rtt-trace", str(rtts), "--jitter", "1ms")
    assert read("--rtt-trace", str(rtts), "--jitter", "to-server:1ms").spec.to_server.jitter is not None
    for word in ("--rate", "--rate-to-client"):
        with pytest.raises(UsageError, match=f"--rate-trace and {word} both set the rate"):
            read("--rate-trace", str(rates), word, "1mbit")


def test_a_script_may_bring_what_an_option_needs_and_no_back_end_learns_of_it_too_late(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("1s loss 2% jitter 1ms\n")
    choice = read("--rtt", "5ms", "--loss-burst", "8", "--reorder", "on", "--link-script", str(script))
    ((_, later),) = choice.script.changes
    assert isinstance(later.to_server.loss, BurstLoss)
    script.write_text("1s jitter 1ms:pareto\n")
    with pytest.raises(UsageError, match="no jitter but the normal"):
        read("--link-backend", "kernel", "--link-script", str(script))


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("1s rtt 20ms\n2s rtt soon\n")
    with pytest.raises(UsageError) as error:
        read("--link-script", str(script))
    assert error.value.message.startswith(f"{script}:2: ")


@pytest.mark.parametrize(
    "twice", [("to-server:1%", "to-server:2%"), ("1%", "2%"), ("to-client:1%", "to-server:1%", "to-client:1%")]
)
def test_a_way_is_said_once(twice: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="given twice"):
        read(*[word for value in twice for word in ("--loss", value)])


def test_a_link_of_no_name_is_a_mistake() -> None:
    """As from a shell variable that is not set."""
    with pytest.raises(UsageError, match="--link"):
        read("--link", "")
