"""The options of a link, as click hands them over, become one value; mistakes name the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from howfar.cli.lab import lab
from howfar.cli.links import LinkChoice, link_options, read_link
from howfar.engine.messages import (
    BurstLoss,
    EmpiricalJitter,
    IndependentLoss,
)
from howfar.errors import UsageError
from howfar.lab.link import DIRECTIONS


def read(*arguments: str) -> LinkChoice:
    found: list[LinkChoice] = []

    @click.command()
    @link_options
    def command(**values: Any) -> None:
        found.append(read_link(values))

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_without_an_option_the_link_is_what_it_always_was() -> None:
    choice = read()
    assert (choice.spec.rtt_ns, choice.spec.rate_bps, choice.given) == (200_000, 10**9, False)
    assert not choice.alone


@pytest.mark.parametrize(
    "arguments", [("--rtt", "10ms"), ("--rate", "none"), ("--tcp", "tuned"), ("--congestion-control", "reno")]
)
def test_any_option_of_a_link_asks_for_one_but_these_keep_the_server(arguments: tuple[str, str]) -> None:
    choice = read(*arguments)
    assert (choice.given, choice.alone) == (True, False)
    assert read(*arguments, "--loss", "1%").alone
    assert read("--link-backend", "packet").alone, "also where it says what is the default"


def test_a_path_without_a_link_is_refused_with_an_option_of_a_link() -> None:
    done = CliRunner().invoke(lab, ["--path", "socket", "--rtt", "20ms", "--", "true"])
    assert isinstance(done.exception, UsageError)
    assert "the path socket crosses no link" in done.exception.message


def test_single_options_change_a_named_link() -> None:
    choice = read("--link", "us-coasts", "--rtt", "70ms", "--loss", "to-client:2%", "--loss", "to-server:1%")
    assert choice.given
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
        (("--loss", "1%", "--loss", "to-moon:1%"), "--loss to-moon:1%: 'to-moon' is no direction of a link"),
        (("--rtt", "20s"), "'20s' is out of range for an RTT"),
        (("--queue", "5"), "--queue 5: '5' is neither a size nor a time"),
        (("--queue", "1B"), "a queue of 1 bytes holds no packet: one takes 1538 with its framing"),
        (("--queue", "to-client:1537B"), "holds no packet"),
        (("--mtu", "9000", "--queue", "1538B"), "holds no packet"),
        (("--jitter", "5ms"), "a jitter of 5ms around a delay of 0.1ms to server"),
        (("--rtt", "20ms", "--delay-to-server", "1ms", "--jitter", "2ms"), "a delay of 1ms to server"),
        (("--mtu", "٣٠٠٠"), "is not an MTU"),
        (("--loss-burst", "8"), "bursts of loss require a loss"),
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
        ("--rtt", "20s", "From 0ns to 10s."),
        ("--rate", "1kbit", "From 8kbit to 1000gbit."),
        ("--queue", "100GiB", "From 1B to 64GiB."),
        ("--delay-to-server", "5ms", "From 0ns to 0.2ms."),
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
    """A variable that is not set, for instance."""
    with pytest.raises(UsageError, match="--link"):
        read("--link", "")
