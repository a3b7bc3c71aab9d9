"""A receipt that cannot be written is told before anything is built, and never takes the place of CMD's exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.cli.lab import code_with_receipt, make_way
from howfar.errors import LabError, UsageError


def test_a_place_that_is_none_is_told_first(tmp_path: Path) -> None:
    make_way(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "file").touch()
    make_way(tmp_path / "file")
    (tmp_path / "file").touch()
    for place, why in (
        (tmp_path / "none" / "x", "there is no directory"),
        (tmp_path, "is a directory"),
        (tmp_path / "file" / "x", "file is no directory"),
    ):
        with pytest.raises(UsageError, match=why):
            make_way(place)


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
    make_way(receipt)
    assert not receipt.exists()
