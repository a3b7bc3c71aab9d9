"""Requests to end: SIGINT, SIGTERM and SIGHUP act alike, and nothing that was created remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from howfar.lab import sandbox
from howfar.recording.calibration import Rhythm, _count_round_trips, calibration_s
from howfar.stopping import (
    END_SIGNALS,
    EndRequested,
    deferring_end_signals,
    end_signal_exit_code,
    forwarding_end_signals_to,
    handling_end_signals,
    raising_on_end_signals,
    temporary_folder,
)


@pytest.mark.parametrize("number", END_SIGNALS)
def test_each_request_raises_what_undoes_all(number: int) -> None:
    """[rec-15] The exit code contains the signal's number."""
    before = [signal.getsignal(one) for one in END_SIGNALS]
    with pytest.raises(KeyboardInterrupt) as raised, raising_on_end_signals(), temporary_folder() as folder:
        made = folder
        os.kill(os.getpid(), number)
    assert not made.exists() and end_signal_exit_code() == 128 + number
    assert number == signal.SIGINT or (
        isinstance(raised.value, EndRequested) and raised.value.exit_code == 128 + number
    )
    assert [signal.getsignal(one) for one in END_SIGNALS] == before


def test_a_request_while_a_folder_is_made_comes_when_it_can_be_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """[rec-16] The request is withheld until the folder is registered for removal."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make = os.mkdir

    def make_and_ask(*arguments: object) -> None:
        make(*arguments)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("os.mkdir", make_and_ask)
    with pytest.raises(EndRequested), raising_on_end_signals(), temporary_folder():
        pytest.fail("it was not asked to end")
    assert list(tmp_path.iterdir()) == []


def test_a_groups_signal_that_comes_late_does_not_end_what_follows_the_command() -> None:
    """The command received the signal and has ended; its exit code counts."""
    script = "trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    with raising_on_end_signals():
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        with forwarding_end_signals_to(process):
            os.kill(os.getpid(), signal.SIGTERM)
            assert process.wait(MAX_S) == 6
        os.kill(os.getpid(), signal.SIGTERM)
        sandbox._interrupt(signal.SIGTERM, None)  # the handler inside a sandbox has the same clock
    process.stdout.close()


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handling_end_signals(lambda number: pytest.fail(f"signal {number}")), deferring_end_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("size", [0, 1_000, 100_000, 22_000_000])
def test_a_calibration_is_bounded_whatever_the_answers_size(size: int) -> None:
    """[rec-14] Where each round trip takes long, fewer are made."""
    rhythm = Rhythm(to_client=size, gap_ns=3_000_000, server_ns=3_000_000)
    settle, rounds = _count_round_trips(rhythm)
    assert 3 <= rounds <= 200 and 3 <= settle <= 5
    assert calibration_s(rhythm) < 6


HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
MAX_S = 60
_SIGNAL_AT_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test may itself run in the background, where it is ignored

class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder)
"""


def signalled(where: Path, module: str, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `howfar`, which receives a signal as it begins to import `module`."""
    (where / "sitecustomize.py").write_text(_SIGNAL_AT_IMPORT.format(module=module, number=int(number)))
    path = os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*HOWFAR, *words], capture_output=True, text=True, timeout=MAX_S, env={**os.environ, "PYTHONPATH": path}
    )


@pytest.mark.parametrize(
    "module", ["howfar.cli.hide_arguments", "howfar.cli.main", "click", "howfar.cli.suggest", "howfar.cli.links"]
)
def test_a_signal_during_the_start_is_said_in_one_line(module: str, tmp_path: Path) -> None:
    done = signalled(tmp_path, module, signal.SIGINT, "links")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "howfar: interrupted\n")


@pytest.mark.parametrize("number", END_SIGNALS)
def test_each_signal_has_the_exit_code_that_shells_give_it_and_json_an_object(number: int, tmp_path: Path) -> None:
    done = signalled(tmp_path, "howfar.cli.main", number, "links", "--json")
    assert (done.returncode, done.stderr) == (128 + number, "howfar: interrupted\n")
    said = json.loads(done.stdout)
    assert (said["failure"]["code"], said["exit_code"]) == ("interrupted", 128 + number)
