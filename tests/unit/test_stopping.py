"""Requests to end: SIGINT, SIGTERM and SIGHUP alike, and nothing that was made stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from howfar.recording.calibration import Rhythm, _round_trips, calibration_s
from howfar.stopping import REQUESTS, Ended, ended_by_request, on_request, temporary_folder, withheld


@pytest.mark.parametrize("number", REQUESTS)
def test_each_request_raises_what_undoes_all(number: int) -> None:
    """[rec-15] A signal's number is in the exit code."""
    before = [signal.getsignal(one) for one in REQUESTS]
    with pytest.raises(KeyboardInterrupt) as raised, ended_by_request(), temporary_folder() as folder:
        made = folder
        os.kill(os.getpid(), number)
    assert not made.exists()
    assert number == signal.SIGINT or (isinstance(raised.value, Ended) and raised.value.exit_code == 128 + number)
    assert [signal.getsignal(one) for one in REQUESTS] == before


def test_a_request_while_a_folder_is_made_comes_when_it_can_be_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """[rec-16] It is withheld until what was made is known to what removes it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make = os.mkdir

    def make_and_ask(*arguments: object) -> None:
        make(*arguments)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("os.mkdir", make_and_ask)
    with pytest.raises(Ended), ended_by_request(), temporary_folder():
        pytest.fail("it was not asked to end")
    assert list(tmp_path.iterdir()) == []


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_request(lambda number: pytest.fail(f"signal {number}")), withheld():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 22_000_000])
def test_a_calibration_is_bounded_whatever_the_answers_size(size: int) -> None:
    """[rec-14] Fewer round trips where each takes long."""
    rhythm = Rhythm(to_client=size, gap_ns=3_000_000, server_ns=3_000_000)
    settle, rounds = _round_trips(rhythm)
    assert 3 <= rounds <= 200 and 3 <= settle <= 5
    assert calibration_s(rhythm) < 6
