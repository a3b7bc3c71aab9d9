"""What is requested of a link: options, names, scripts and traces become values, and errors are reported with their position."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.cli.lab import script_violations
from howfar.contract.messages import (
    BurstLoss,
    EmpiricalJitter,
    IndependentLoss,
    NormalJitter,
    Outage,
    ParetoJitter,
    RateStep,
)
from howfar.errors import QuantityError, UsageError
from howfar.lab.link import DIRECTIONS, DirectionSpec, LinkSpec
from howfar.lab.link.backends import backends, find_backend
from howfar.lab.link.backends.kernel_qdiscs import qdisc_batch
from howfar.lab.link.settings import (
    ScriptPlayer,
    apply_setting,
    find_link,
    loss_share,
    named_links,
    parse_rate_trace,
    parse_rtt_trace,
    parse_script,
)
from howfar.lab.link.spec import remaining_outages, rotate_trace

_BASE = LinkSpec(rtt_ns=10_000_000, rate_bps=10**9)
_MS, _S = 10**6, 10**9


def spec_of(*pairs: str) -> LinkSpec:
    spec = _BASE
    for pair in pairs:
        word, _, value = pair.partition(" ")
        spec = apply_setting(spec, word, value)
    return spec


def test_one_word_holds_for_both_ways_and_a_prefix_for_one() -> None:
    both = spec_of("loss 1%")
    assert both.to_server.loss == both.to_client.loss == IndependentLoss(probability=0.01)
    one = spec_of("loss to-client:1%")
    assert (one.to_server.loss, one.to_client.loss) == (None, IndependentLoss(probability=0.01))
    assert spec_of("loss-to-client 1%") == one


def test_a_rate_for_one_way_leaves_the_other_alone() -> None:
    spec = spec_of("rate-to-server 10mbit")
    assert [spec.mean_rate_bps(name) for name in DIRECTIONS] == [10**7, 10**9]
    assert [spec_of("rate to-client:none").mean_rate_bps(name) for name in DIRECTIONS] == [10**9, None]
    again = apply_setting(spec, "rate", "5mbit")
    assert [again.mean_rate_bps(name) for name in DIRECTIONS] == [5 * 10**6] * 2
    each = spec_of("rate-to-server 640kbit", "rate-to-client 6144kbit")
    assert [each.mean_rate_bps(name) for name in DIRECTIONS] == [640_000, 6_144_000]


def test_the_rtt_is_split_evenly_unless_told() -> None:
    assert [_BASE.delay_ns(name) for name in DIRECTIONS] == [5 * _MS, 5 * _MS]
    uneven = spec_of("delay-to-server 8ms")
    assert [uneven.delay_ns(name) for name in DIRECTIONS] == [8 * _MS, 2 * _MS]
    assert [apply_setting(uneven, "rtt", "20ms").delay_ns(name) for name in DIRECTIONS] == [16 * _MS, 4 * _MS]


@pytest.mark.parametrize(
    ("text", "jitter"),
    [
        ("2ms", NormalJitter(deviation_ns=2 * _MS)),
        ("2ms:normal", NormalJitter(deviation_ns=2 * _MS)),
        ("2ms:pareto", ParetoJitter(mean_ns=2 * _MS, shape=3.0)),
        ("2ms:pareto:2.5", ParetoJitter(mean_ns=2 * _MS, shape=2.5)),
    ],
)
def test_jitter(text: str, jitter: object) -> None:
    assert spec_of(f"jitter {text}").to_server.jitter == jitter


@given(st.floats(0.0001, 0.5), st.floats(1, 1000))
def test_bursts_keep_the_loss_and_have_the_length(share: float, length: float) -> None:
    spec = apply_setting(
        _BASE.with_direction("to_server", DirectionSpec(loss=IndependentLoss(probability=share))),
        "loss-burst",
        str(length),
    )
    loss = spec.to_server.loss
    assert isinstance(loss, BurstLoss)
    assert loss_share(loss) == pytest.approx(share, rel=1e-9)
    assert 1 / loss.to_good == pytest.approx(length)


@pytest.mark.parametrize(
    "settings",
    [
        "rtt 10",
        "rtt 11s",
        "rate 1kbit",
        "jitter 0ms",
        "jitter 2ms:pareto:1",
        "jitter 2ms:cauchy",
        "loss 2",
        "loss 101%",
        "duplicate -1%",
        "reorder yes",
        "outage 5s",
        "outage 5s:0s",
        "outage 5s:2s/1s",
        "queue 0B",
        "mtu 100",
        "delay-to-server 11ms",
        "colour red",
    ],
)
def test_what_makes_no_sense_is_refused(settings: str) -> None:
    with pytest.raises(QuantityError):
        spec_of(settings)


def test_loss_that_no_burst_can_make_is_refused() -> None:
    with pytest.raises(QuantityError, match="cannot reach"):
        spec_of("loss 90%", "loss-burst 2")


def test_bursts_stay_as_long_when_a_script_says_another_loss() -> None:
    spec = spec_of("loss 1%", "loss-burst 8", "loss 2%")
    loss = spec.to_server.loss
    assert isinstance(loss, BurstLoss)
    assert loss_share(loss) == pytest.approx(0.02)
    assert 1 / loss.to_good == 8
    assert spec_of("loss 1%", "loss-burst 8", "loss 0%").to_server.loss is None
    assert spec_of("loss 1%", "loss-burst 8", "loss 0%", "loss 2%") == spec
    assert spec_of("loss 1%", "loss-burst 8", "loss-burst none") == spec_of("loss 1%")
    with pytest.raises(QuantityError, match="cannot reach"):
        spec_of("loss 1%", "loss-burst 2", "loss 90%")


def test_a_queue_in_bytes_or_as_a_time() -> None:
    assert spec_of("queue 64KiB").queue_bytes("to_server") == 65536
    assert spec_of("queue 20ms").queue_bytes("to_client") == 10**9 // 50 // 8
    assert spec_of("queue 20ms", "queue auto").queue_bytes("to_client") == _BASE.queue_bytes("to_client")


def test_a_link_at_rest_has_no_effect_and_serves_as_a_key() -> None:
    spec = spec_of("jitter 1ms", "loss 1%", "outage 1s:1s", "seed 7")
    spec = spec.with_direction("to_client", DirectionSpec(jitter=EmpiricalJitter(extra_ns=[1, 2]), rate_bps=10**9))
    assert not spec.without_effects().has_effects
    assert spec.without_effects() == _BASE.without_effects()
    assert hash(spec.without_effects()) == hash(_BASE.without_effects())
    assert [spec.direction_message(name).seed for name in DIRECTIONS] == [14, 15], "both ways draw differently"


@given(
    st.integers(0, 10 * _S), st.integers(1, 3 * _S), st.none() | st.integers(4 * _S, 9 * _S), st.integers(0, 40 * _S)
)
def test_a_schedule_goes_on_where_it_is(at_ns: int, for_ns: int, every_ns: int | None, elapsed_ns: int) -> None:
    def down(outages: list[Outage], now_ns: int) -> bool:
        return any(
            now_ns >= one.at_ns and (now_ns - one.at_ns) % (one.every_ns or 10**18) < one.for_ns for one in outages
        )

    whole = Outage(at_ns=at_ns, for_ns=for_ns, every_ns=every_ns)
    rest = remaining_outages(whole, elapsed_ns)
    for later_ns in range(0, 30 * _S, _S // 3):
        assert down(rest, later_ns) == down([whole], elapsed_ns + later_ns)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 500))
def test_a_trace_goes_on_where_it_is(steps: list[tuple[int, int]], elapsed_ns: int) -> None:
    trace = tuple(RateStep(for_ns=for_ns, rate_bps=rate_bps) for for_ns, rate_bps in steps)

    def rates(trace: list[RateStep] | tuple[RateStep, ...]) -> list[int]:
        return [step.rate_bps for step in trace for _ in range(step.for_ns)]

    whole = rates(trace)
    phase = elapsed_ns % len(whole)
    assert rates(rotate_trace(trace, elapsed_ns)) == whole[phase:] + whole[:phase]


def test_a_rate_trace_in_our_form_and_in_mahimahis() -> None:
    assert parse_rate_trace("10ms 5mbit\n\n5ms 0 # still\n") == (
        RateStep(for_ns=10 * _MS, rate_bps=5 * 10**6),
        RateStep(for_ns=5 * _MS, rate_bps=0),
    )
    # Two packets in the first millisecond, none in the second, one in the third and fourth.
    packet = 1538 * 8 * 1000
    assert parse_rate_trace("1\n1\n3\n4\n") == (
        RateStep(for_ns=_MS, rate_bps=2 * packet),
        RateStep(for_ns=_MS, rate_bps=0),
        RateStep(for_ns=2 * _MS, rate_bps=packet),
    )


@pytest.mark.parametrize(
    "text", ["", "10ms", "10ms fast", "0ms 5mbit", "10ms 0", "5\n4\n", "25h 1mbit", "9" * 5000, "1\n" * 90_000]
)
def test_a_bad_rate_trace_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_rate_trace(text)


def test_an_rtt_trace_becomes_its_least_and_what_is_more() -> None:
    assert parse_rtt_trace("12\n10.5ms\n11000us\n") == (10_500_000, EmpiricalJitter(extra_ns=[1_500_000, 0, 500_000]))
    for text in ("", "soon", "-1", "11s"):
        with pytest.raises(QuantityError):
            parse_rtt_trace(text)


def test_a_script_is_read_and_outages_stand_on_its_own_clock() -> None:
    script = parse_script("# comment\n5s rtt 50ms rate 100mbit loss 1%\n\n10s down 2s\n12s loss 0%\n", _BASE)
    assert script.initial.to_server.outages == (Outage(at_ns=10 * _S, for_ns=2 * _S),)
    (first_ns, first), (second_ns, second) = script.changes
    assert (first_ns, second_ns) == (5 * _S, 12 * _S)
    assert (first.rtt_ns, first.rate_bps, first.to_client.loss) == (50 * _MS, 10**8, IndependentLoss(probability=0.01))
    assert (second.rtt_ns, second.to_client.loss) == (50 * _MS, None)
    # At 12 s the outage of 10 s is over, at 11 s one second of it is left.
    assert second.direction_message("to_server", elapsed_ns=12 * _S).outages == ()
    assert second.direction_message("to_server", elapsed_ns=11 * _S).outages == (Outage(at_ns=0, for_ns=_S),)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1s rtt 5ms\nsoon rtt 5ms\n", 2),
        ("1s rtt\n", 1),
        ("2s rtt 5ms\n1s rtt 5ms\n", 2),
        ("# x\n1s colour red\n", 2),
        ("1s mtu 1400\n", 1),
        ("1s down 0s\n", 1),
        ("1s down 25h\n", 1),
        ("25h rtt 1ms\n", 1),
        ("1s down 1ms\n" * 1001, 1001),
    ],
)
def test_a_mistake_in_a_script_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"^here:{line}: "):
        parse_script(text, _BASE, "here")


def test_a_player_makes_each_change_once_and_in_order() -> None:
    script = parse_script("0s rtt 1ms\n1ms rtt 2ms\n2ms rtt 3ms\n3600s rtt 4ms\n", _BASE)
    made: list[tuple[int, int]] = []
    with ScriptPlayer(script, lambda spec, elapsed_ns: made.append((spec.rtt_ns, elapsed_ns))) as player:
        while len(player.played) < 3:
            time.sleep(0.001)
    assert [rtt_ns for rtt_ns, _ in made] == [_MS, 2 * _MS, 3 * _MS], "what was not due is not made"
    assert all(elapsed_ns >= at_ns for (_, elapsed_ns), (at_ns, _) in zip(made, script.changes, strict=False))


def test_whatever_goes_wrong_in_a_script_is_known_afterwards() -> None:
    def change(spec: LinkSpec, elapsed_ns: int) -> None:
        if spec.rtt_ns == 2 * _MS:
            raise ValueError("a value that nobody foresaw")

    with ScriptPlayer(parse_script("0s rtt 1ms\n1ms rtt 2ms\n2ms rtt 3ms\n", _BASE), change) as player:
        while player.failure is None:
            time.sleep(0.001)
    assert len(player.played) == 1
    (found,) = script_violations(player)
    assert (found.id, found.parameters["at_ns"]) == ("link-script-failed", 1_000_000)
    assert "ValueError: a value that nobody foresaw" in str(found.parameters["message"])


def test_named_links_are_those_of_the_documentation() -> None:
    names = ["lan-1g", "lan-10g", "same-zone", "cross-zone", "region", "us-coasts", "transatlantic", "adsl"]
    assert list(named_links()) == names
    assert find_link("us-coasts").spec.rtt_ns == 85 * _MS
    adsl = find_link("adsl").spec
    assert [adsl.mean_rate_bps(name) for name in DIRECTIONS] == [640_000, 6_144_000]
    for link in named_links().values():
        assert link.source and link.stated and link.ours, "each figure is somebody's"
        for name in DIRECTIONS:
            link.spec.direction_message(name)
    with pytest.raises(QuantityError, match="no link is called"):
        find_link("moon")


def test_a_back_end_refuses_what_it_cannot_be() -> None:
    assert list(backends()) == ["packet", "kernel", "none"]
    with pytest.raises(UsageError, match="no delay"):
        find_backend("none", _BASE)
    assert find_backend("none", LinkSpec(0, None)).NAME == "none"
    with pytest.raises(UsageError, match="outages"):
        find_backend("kernel", spec_of("outage 1s:1s"))


def test_tbf_is_told_the_rate_that_super_packets_need() -> None:
    """tbf charges a super-packet's own bytes: 1514 where the wire carries 1538."""
    (line,) = qdisc_batch(LinkSpec(0, 10**9), "to_server", 0)
    assert line.startswith("qdisc replace "), "what is queued stays"
    assert f"rate {10**9 * 1514 // 1538} burst 131072 limit 1250000" in line
    netem, tbf = qdisc_batch(spec_of("loss 1%"), "to_client", 1000)
    assert "root handle 1: netem" in netem
    assert "delay 4999us" in netem
    assert "loss random 1.0" in netem
    assert "parent 1:1" in tbf
    assert "corrupt 0%" in netem, "a netem that is changed keeps what it is not told"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("queue 4KiB",), "bucket of 128 KiB"),
        (("rate 1mbit", "queue 20ms"), "bucket of 128 KiB"),
        (("queue 3GiB",), "2 GiB"),
        (("loss 1%", "seed 7"), "leave out --seed"),
    ],
)
def test_the_kernel_back_end_refuses_what_it_would_not_do(settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_backend("kernel", spec_of(*settings))
    assert find_backend("packet", spec_of(*settings))
