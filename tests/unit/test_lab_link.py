"""The link's arithmetic, its calibration against a fake emulator, and its judgement."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.engine.messages import DirectionStats, Drops, LinkReady, LinkStats, RttResult
from howfar.lab.link import Link, LinkAsked, goodput_warnings, link_violations, ping_count

_ASKED = LinkAsked(rtt_ns=200_000, rate_bps=10**9)


def _way(**changes: object) -> DirectionStats:
    fields: dict[str, object] = {
        "packets": 10,
        "segments": 10,
        "wire_bytes": 15380,
        "drops": Drops(queue=0, arena=0, socket=0, transmit=0),
        "queue_bytes_max": 0,
        "lateness_p50_ns": 300,
        "lateness_p99_ns": 5_000,
        "lateness_p999_ns": 20_000,
        "lateness_max_ns": 90_000,
        "cpu_ns": 1,
    }
    return DirectionStats.model_validate({**fields, **changes})


def _stats(**changes: object) -> LinkStats:
    return LinkStats(to_server=_way(**changes), to_client=_way())


def _rtt(p50_ns: int) -> RttResult:
    return RttResult(count=100, min_ns=p50_ns, p50_ns=p50_ns, p99_ns=p50_ns, max_ns=p50_ns)


def test_queue_is_ten_milliseconds_or_one_product_of_bandwidth_and_delay() -> None:
    assert _ASKED.queue_bytes == 10**9 * 10 // 1000 // 8
    assert LinkAsked(100_000_000, 10**9).queue_bytes == 10**9 // 10 // 8


def test_expected_goodput_counts_ethernet_framing() -> None:
    """1448 bytes of payload in 1500 + 14 + 4 + 8 + 12 = 1538 on the wire."""
    assert _ASKED.expected_goodput_bps == pytest.approx(941.48e6, rel=1e-4)
    assert LinkAsked(200_000, None).expected_goodput_bps is None


@given(st.integers(0, 10**10))
def test_a_probe_is_short_and_never_empty(rtt_ns: int) -> None:
    count = ping_count(rtt_ns)
    assert 10 <= count <= 400
    assert count == 10 or count * rtt_ns <= 200_000_000


@pytest.mark.parametrize(("p50_ns", "off"), [(200_000, False), (229_000, False), (231_000, True), (169_000, True)])
def test_an_rtt_at_rest_too_far_off_is_a_violation(p50_ns: int, off: bool) -> None:
    assert bool(link_violations(_ASKED, _rtt(p50_ns), _stats())) == off


def test_tolerance_grows_with_the_rtt() -> None:
    assert not link_violations(LinkAsked(100_000_000, 10**9), _rtt(102_900_000), _stats())
    assert link_violations(LinkAsked(100_000_000, 10**9), _rtt(103_100_000), _stats())


def test_only_modelled_drops_are_allowed() -> None:
    rest = _rtt(200_000)
    assert not link_violations(_ASKED, rest, _stats(drops=Drops(queue=99, arena=0, socket=0, transmit=0)))
    for cause in ("arena", "socket", "transmit"):
        drops = Drops.model_validate({"queue": 0, "arena": 0, "socket": 0, "transmit": 0, cause: 1})
        (found,) = link_violations(_ASKED, rest, _stats(drops=drops))
        assert f"{cause} 1" in found


@pytest.mark.parametrize(
    ("rtt_ns", "late", "violated"),
    [
        (200_000, {"lateness_p99_ns": 99_000, "lateness_p999_ns": 990_000}, False),
        (200_000, {"lateness_p99_ns": 101_000, "lateness_p999_ns": 101_000}, True),
        (200_000, {"lateness_p999_ns": 1_010_000}, True),
        (20_000_000, {"lateness_p99_ns": 190_000, "lateness_p999_ns": 1_900_000}, False),
        (20_000_000, {"lateness_p99_ns": 210_000}, True),
    ],
)
def test_late_packets_are_a_violation_beyond_a_share_of_the_rtt(
    rtt_ns: int, late: dict[str, int], violated: bool
) -> None:
    assert bool(link_violations(LinkAsked(rtt_ns, 10**9), _rtt(rtt_ns), _stats(**late))) == violated


def test_goodput_more_than_a_fiftieth_off_is_a_warning() -> None:
    expected = _ASKED.expected_goodput_bps
    assert expected is not None
    goodput = {"to_server": expected * 0.985, "to_client": expected * 0.97}
    (warning,) = goodput_warnings(_ASKED, {"goodput_bps": goodput})
    assert "to client" in warning
    assert goodput_warnings(LinkAsked(200_000, None), {"goodput_bps": goodput}) == ()


@dataclass
class _FakeLink(Link):
    """The RTT is the delay set plus a fixed excess, as of a machine that is slow to wake."""

    excess_ns: int = 0

    def _set(self, asked: LinkAsked, compensate_ns: int) -> None:
        assert compensate_ns <= asked.rtt_ns // 2, "a delay is never negative"
        self.asked, self.compensate_ns = asked, compensate_ns

    def ping(self, count: int | None = None) -> RttResult:
        return _rtt(self.asked.rtt_ns - 2 * self.compensate_ns + self.excess_ns)


def _fake(excess_ns: int, known_compensation_ns: int = 0) -> _FakeLink:
    ready = LinkReady(realtime=True, offload=True)
    fake = _FakeLink(None, None, None, None, 1, ready, _ASKED, excess_ns=excess_ns)  # type: ignore[arg-type]
    fake.calibrations[_ASKED] = {"compensate_ns": known_compensation_ns}
    fake._set(_ASKED, known_compensation_ns)
    return fake


@given(st.integers(0, 200_000))
def test_tuning_takes_off_what_the_machine_adds(excess_ns: int) -> None:
    assert abs(_fake(excess_ns).at_rest().p50_ns - _ASKED.rtt_ns) <= 15_000


def test_tuning_gives_up_where_no_delay_is_left_to_take_off() -> None:
    assert _fake(500_000).at_rest().p50_ns == 500_000


def test_tuning_gives_back_what_was_taken_when_the_machine_gets_faster() -> None:
    fake = _fake(0, known_compensation_ns=60_000)
    assert abs(fake.at_rest().p50_ns - _ASKED.rtt_ns) <= 15_000
    assert fake.compensate_ns < 60_000
