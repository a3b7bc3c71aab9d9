"""What `howfar lab` refuses before it builds anything, and the option file that it hands to a client."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from howfar.cli.lab import NOT_EXECUTABLE, NOT_FOUND, clear_receipt, client_options, code_with_receipt, lab
from howfar.engine.messages import TcpTarget, UnixTarget
from howfar.errors import LabError, UsageError
from howfar.plan.quantities import RateBps, RttNs, read_option

_TCP = TcpTarget(host="10.77.0.2", port=3306)


@pytest.mark.parametrize(
    ("option", "text", "quantity", "expected"),
    [
        ("--rtt", "99s", RttNs, "more than 10s"),
        ("--rtt", "10", RttNs, "is not a duration"),
        ("--rate", "1kbit", RateBps, "less than 1mbit"),
        ("--rate", "1000gbit", RateBps, "more than 100gbit"),
    ],
)
def test_what_a_plan_may_not_ask_the_laboratory_may_not_either(
    option: str, text: str, quantity: object, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_option(option, text, quantity, "howfar lab")
    assert caught.value.message.startswith(f"{option} {text}: ")
    assert expected in caught.value.message


def test_what_a_plan_may_ask_is_taken() -> None:
    assert read_option("--rtt", "0.2ms", RttNs, "howfar lab") == 200_000
    assert read_option("--rate", "1gbit", RateBps, "howfar lab") == 10**9


def test_a_command_that_cannot_be_run_is_named_before_anything_is_built(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command, code, expected in (
        ("no-such-program", NOT_FOUND, "was not found"),
        (str(tmp_path / "nothing"), NOT_FOUND, "was not found"),
        (str(plain), NOT_EXECUTABLE, "may not be executed"),
        (str(tmp_path), NOT_EXECUTABLE, "may not be executed"),
    ):
        done = CliRunner().invoke(lab, ["--server", "none", "--", command])
        assert done.exit_code == code
        assert f"the program {command} {expected}" in done.output


def test_servers_beside_none_are_refused() -> None:
    done = CliRunner().invoke(lab, ["--server", "none", "--beside", "redis", "--", "true"])
    assert isinstance(done.exception, UsageError) and "--beside adds" in done.exception.message


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_an_option_file_keeps_any_password(password: str) -> None:
    (line,) = [line for line in client_options("u", password, _TCP).splitlines() if line.startswith("password=")]
    value = line.partition("=")[2]
    assert value[0] == value[-1] == '"'
    assert re.sub(r"\\(.)", r"\1", value[1:-1]) == password


def test_an_option_file_leads_where_the_path_does() -> None:
    def read(text: str) -> dict[str, str | None]:
        parser = configparser.ConfigParser(allow_no_value=True)
        parser.read_string(text)
        return dict(parser["client"])

    assert read(client_options("u", "p", _TCP)) == {
        "user": '"u"',
        "password": '"p"',
        "protocol": "tcp",
        "host": '"10.77.0.2"',
        "port": "3306",
        "loose-skip-ssl": None,
    }
    local = read(client_options("u", "p", UnixTarget(path="/w/my s.sock")))
    assert (local["protocol"], local["socket"]) == ("socket", '"/w/my s.sock"')


def test_a_place_that_is_none_is_told_first(tmp_path: Path) -> None:
    clear_receipt(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "file").touch()
    clear_receipt(tmp_path / "file")
    (tmp_path / "file").touch()
    for place, why in (
        (tmp_path / "none" / "x", "No such file"),
        (tmp_path, "Is a directory|Permission"),
        (tmp_path / "file" / "x", "Not a directory"),
    ):
        with pytest.raises(UsageError, match=why):
            clear_receipt(place)


def test_the_exit_code_of_the_command_outlives_a_receipt_that_failed(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "x"
    assert code_with_receipt(7, gone, {}) == 7
    assert code_with_receipt(0, gone, {}) == LabError.exit_code
    assert code_with_receipt(0, tmp_path / "x", {"a": 1}) == 0
    assert (tmp_path / "x").read_text() == '{\n  "a": 1\n}\n'


def test_an_older_receipt_goes_first(tmp_path: Path) -> None:
    """Whatever ends the run early, nobody finds another run's verdict in its place."""
    receipt = tmp_path / "old.json"
    receipt.write_text('{"verdict": {"valid": true}}')
    clear_receipt(receipt)
    assert not receipt.exists()
