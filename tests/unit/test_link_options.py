"""The options of a link, as click hands them over, become one value; mistakes name the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from howfar.cli.link_options import LinkChoice, link_options, read_link
from howfar.engine.link_messages import EmpiricalJitter, IndependentLoss
from howfar.errors import UsageError
from howfar.lab.link import WAYS


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
    assert (choice.asked.rtt_ns, choice.asked.rate_bps, choice.given) == (200_000, 10**9, False)
    assert not read("--rtt", "10ms", "--rate", "none").given, (
        "these two have always been there, also for paths without a link"
    )


def test_single_options_change_a_named_link() -> None:
    choice = read("--link", "us-coasts", "--rtt", "70ms", "--loss", "to-client:2%", "--loss", "to-server:1%")
    assert choice.given
    assert (choice.asked.rtt_ns, choice.asked.rate_bps) == (70_000_000, 10**9)
    assert [choice.asked.way(name).loss for name in WAYS] == [
        IndependentLoss(probability=0.01),
        IndependentLoss(probability=0.02),
    ]


def test_a_bare_cable_is_asked_for_nothing() -> None:
    asked = read("--link-backend", "none").asked
    assert (asked.rtt_ns, asked.rate_bps) == (0, None)


def test_traces_and_scripts_are_read_from_files(tmp_path: Path) -> None:
    rtts, rates, script = tmp_path / "rtts", tmp_path / "rates", tmp_path / "script"
    rtts.write_text("12ms\n10ms\n")
    rates.write_text("10ms 5mbit\n")
    script.write_text("1s rtt 20ms\n2s down 1s\n")
    choice = read("--rtt-trace", str(rtts), "--rate-trace", str(rates), "--link-script", str(script))
    assert choice.asked.rtt_ns == 10_000_000
    assert choice.asked.to_client.jitter == EmpiricalJitter(extra_ns=[2_000_000, 0])
    assert [choice.asked.mean_rate_bps(name) for name in WAYS] == [5_000_000] * 2
    assert len(choice.asked.to_server.outages) == 1
    assert [at_ns for at_ns, _ in choice.script.changes] == [10**9]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rtt", "10"), "--rtt 10: '10' is not a duration"),
        (("--link", "moon"), "--link moon: no link is called"),
        (("--loss", "1%", "--loss", "to-moon:1%"), "--loss to-moon:1%"),
    ],
)
def test_a_mistake_names_its_option(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(*arguments)
    assert said in error.value.message


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("1s rtt 20ms\n2s rtt soon\n")
    with pytest.raises(UsageError) as error:
        read("--link-script", str(script))
    assert error.value.message.startswith(f"{script}:2: ")
