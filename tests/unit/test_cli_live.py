"""Live progress: what a terminal of any width shows while a run goes on."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.fake_lab import fake_info, fakes

from howfar.cli.progress import LivePicture, ratio, time_left
from howfar.engine.messages import LoadJob
from howfar.runner.run import conduct
from howfar.runner.stopping import ArmStanding
from howfar.stats.estimate import Estimate
from howfar.store.records import ArmRole
from howfar.store.run_file import create


def drawn(picture: LivePicture, width: int) -> str:
    """The picture as it is now, as plain text."""
    stream = io.StringIO()
    Console(file=stream, width=width, no_color=True).print(picture._picture())
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 120])
def test_the_picture_says_what_runs_and_fits(tmp_path: Path, width: int) -> None:
    laboratory, engine, instruments = fakes()
    laboratory.trouble = lambda path, number: ("too busy",) if number == 2 else ()
    stream = io.StringIO()
    seen: list[str] = []
    with LivePicture(stream, colour=False, width=width) as picture:
        assert "building the laboratory" in drawn(picture, width)

        def look(job: LoadJob) -> None:
            seen.append(drawn(picture, width))

        engine.before = look
        with create(tmp_path / "a.howfar", fake_info()) as file:
            conduct(file, laboratory, laboratory.clock(), instruments, picture)
    assert all(len(line) <= width for text in seen for line in text.splitlines())
    assert "block 1 of about 9, 1/5" in seen[0]
    assert "attempt 2" in seen[3] or width == 40
    assert "left" in seen[0]
    for text in ("after block 7", "forward", "7496", "0.250", "baseline", "1 void"):
        assert text in seen[-1]
    last = drawn(picture, width)
    assert "ended: every" in last
    assert "left" not in last
    written = stream.getvalue().replace("\n", " ").replace("  ", " ")
    assert "void: block 1" in written
    assert "ended: every interval is as" in written
    assert "\x1b[3" not in written, "no colour was asked for"


def test_times_are_read_at_a_glance() -> None:
    found = [time_left(seconds * 10**9) for seconds in (0, 59, 60, 250, 3600, 7260)]
    assert found == ["0 s", "59 s", "1 min 00 s", "4 min 10 s", "1 h 00 min", "2 h 01 min"]
    assert time_left(-5) == "0 s"


@pytest.mark.parametrize(
    ("half", "expected"), [(None, "0.780"), (0.0412, "0.780 ±4.12 %"), (147.0, "0.780 (> ±100 %)")]
)
def test_an_interval_wider_than_the_ratio_is_no_figure(half: float | None, expected: str) -> None:
    arm = ArmStanding("tcp", ArmRole.CONTENDER, 1.0, "socket", Estimate(value=0.78, low=None, high=None), half, None)
    assert ratio(arm) == expected
