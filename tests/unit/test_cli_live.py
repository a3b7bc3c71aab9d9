"""Live progress: what a terminal of any size shows during a run, frame by frame, and the lines printed elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from rich.console import Console, ConsoleDimensions
from tests.shipped import load_shipped
from tests.unit.fake_lab import FakeClock, fake_info, fakes
from tests.unit.rendered import GOLDEN, is_golden

from howfar.cli.opening import hand_over, show_opening, take_over
from howfar.cli.progress import (
    ExpectedEnd,
    LineProgress,
    PictureProgress,
    Progress,
    describe_end,
    format_number,
    format_ratio,
    format_time,
    make_observer,
)
from howfar.contract.messages import LoadJob
from howfar.plan.load import LoadedPlan, load_plan
from howfar.runner.preflight import with_rates
from howfar.runner.run import execute_run
from howfar.runner.stopping import ArmProgress, Forecast
from howfar.stats.estimate import Estimate
from howfar.store.records import ArmRole, StopReason
from howfar.store.run_file import create

SIZES = [(40, 12), (80, 24), (120, 40)]


@dataclass(frozen=True)
class Film:
    """The frames and the output of terminals during a run of `plan`."""

    plan: str
    frames: dict[str, list[str]]
    """Frames by terminal: its width, or `ascii`."""
    written: str
    """All output sent to one terminal."""


T = TypeVar("T")


class Terminal(io.StringIO):
    """A terminal that keeps everything written to it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def picture_on(width: int, height: int, plan: LoadedPlan) -> PictureProgress:
    stream = Terminal()
    console = Console(file=stream, width=width, height=height, no_color=True, highlight=False, force_terminal=True)
    return PictureProgress(plan.plan, stream, 1_000_000_000, console)


def text_of(picture: PictureProgress) -> str:
    return "".join(f"{line.plain.rstrip()}\n" for line in picture.lines())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that only the fake laboratory advances."""
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic_ns", clock)
    return clock


def filmed(progress: Progress, see: Callable[[], T], clock: FakeClock, path: Path, loaded: LoadedPlan) -> list[T]:
    """Conduct a run under this observer; returns what `update` returned right before each measurement of the engine."""
    laboratory, engine, instruments = fakes(clock)
    laboratory.trouble = lambda path, number: ("the link was too slow",) if number == 9 else ()
    frames: list[T] = []

    def sample(job: LoadJob) -> None:
        frames.append(see())

    with progress:
        progress.preparing("calibrating the link, usually 6 s")
        frames.append(see())
        rated, _ = with_rates(loaded.plan, 42, laboratory, instruments, progress)
        engine.before = sample
        with create(path, fake_info(laboratory, loaded=LoadedPlan(rated, loaded.text, loaded.quick))) as file:
            execute_run(file, laboratory, progress._began_ns, instruments, progress)
        frames.append(see())
    return frames


@pytest.fixture(scope="module", params=["paths", "latency"])
def film(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Film:
    """One run of each plan, seen on terminals of several sizes at once, and the output to one of them."""
    plan = str(request.param)
    loaded = load_shipped(plan, quick=True)
    picture = picture_on(80, 24, loaded)

    def update() -> dict[str, str]:
        found = {}
        for width, height in SIZES:
            picture._console.size = ConsoleDimensions(width, height)
            found[f"{width}"] = text_of(picture)
        picture._console.size = ConsoleDimensions(80, 24)
        picture._unicode = False
        found["ascii"] = text_of(picture)
        picture._unicode = True
        return found

    with pytest.MonkeyPatch.context() as patch:
        clock = FakeClock()
        patch.setattr("time.monotonic_ns", clock)
        frames = filmed(picture, update, clock, tmp_path_factory.mktemp("film") / "a.howfar", loaded)
    written = picture._stream.getvalue()  # type: ignore[attr-defined]
    return Film(plan, {name: [frame[name] for frame in frames] for name in frames[0]}, written)


def test_frames(film: Film) -> None:
    """Frames during preparation, in the first block, in an attempt after a void trial, with intervals, at the end."""
    arms = 7 if film.plan == "paths" else 17
    chosen = [film.frames["80"][index] for index in (0, 1, 4, 12, 5 * arms, -1)]
    is_golden(GOLDEN / f"live-{film.plan}.txt", ("-" * 80 + "\n").join(chosen))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_picture_fits_and_does_not_jump(film: Film, width: int, height: int) -> None:
    frames = film.frames[f"{width}"]
    assert all(len(line) < width for frame in frames for line in frame.splitlines())
    assert all(frame.count("\n") < height for frame in frames)
    assert len({frame.count("\n") for frame in frames[1:]}) == 1, "as high before a void trial as after it"
    expected = [found[0] for frame in frames if (found := re.findall(r"block \d+ of about (\d+)", frame))]
    assert len(list(dict.fromkeys(expected))) <= 2, expected


def test_ascii_is_ascii(film: Film) -> None:
    assert all(frame.isascii() for frame in film.frames["ascii"])
    assert "+/-" in film.frames["ascii"][-1] and "####" in film.frames["ascii"][-1]


def test_the_end_reads_as_a_success(film: Film) -> None:
    written = _screen(film.written)
    done = r"^Done in \d+ min \d\d s, \d blocks: every interval is as narrow as requested\.$"
    assert re.search(done, written, re.M), "a line of its own, above the picture"
    assert "\x1b[3" not in film.written, "no colour was asked for"
    if film.plan == "latency":
        said = r"^capacity of the baseline \(socket, closed loop\): 1,0\d\d transactions/s; loads:"
        assert re.search(said, written, re.M)


def _screen(written: str) -> str:
    """The output without control sequences; the sequence that erases a line ends it."""
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", written.replace("\x1b[2K", "\n"))


def test_without_a_terminal_there_is_a_line_after_each_trial(tmp_path: Path, clock: FakeClock) -> None:
    loaded = load_plan("paths", quick=True)
    stream = io.StringIO()
    filmed(LineProgress(loaded.plan, stream, clock()), lambda: "", clock, tmp_path / "a.howfar", loaded)
    text = stream.getvalue()
    assert "\x1b" not in text and "\r" not in text
    assert text.startswith("paths: What do TCP and")
    assert text.count("after block") == 8
    assert "\nblock 1, 1/7 socket: 30,000 queries/s\n" in text
    assert "\nblock 2, 3/7 socket (again): void: the link was too slow\n" in text
    assert not describe_end(StopReason.TIME, 0, 158e9).startswith("Done")


def test_the_expected_end_is_calm() -> None:
    outlook, shown = ExpectedEnd(), []
    for done, blocks in enumerate((9, 5, 9, 8, 7, 7, 7, 7)):
        outlook.update(Forecast(blocks, (blocks - done) * 30 * 10**9), done, done * 30e9)
        shown.append(outlook.blocks)
    assert shown == [9, 9, 9, 9, 7, 7, 7, 7]


def test_the_opening_is_there_at_once_and_the_picture_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.delenv("HOWFAR_PICTURE", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    plan = load_plan("paths", quick=True).plan
    show_opening(plan, 5)
    lines = stream.getvalue().count("\n")
    assert stream.getvalue().startswith("paths on mariadb\nWhat do TCP and")
    show_opening(plan, 7)
    assert stream.getvalue().count("\n") == lines, "the process in the sandbox finds it there"
    with make_observer(plan, True, 7) as picture:
        assert isinstance(picture, PictureProgress) and picture._began_ns == 5
    assert f"\x1b[{lines}A\r\x1b[J" in stream.getvalue()
    assert take_over(7) == (0, 7), "nothing is left"


def test_a_picture_is_handed_over_or_taken_back(clock: FakeClock) -> None:
    with picture_on(80, 24, load_plan("paths", quick=True)) as picture:
        stream = picture._stream
        assert isinstance(stream, Terminal)
        picture.leave()
        lines, began = take_over(0)
        assert (lines, began) == (len(picture.lines()), 1_000_000_000)
        hand_over(lines, began)
        picture.stay()
        assert take_over(3) == (0, 3)
        assert f"\x1b[{lines}A\r\x1b[J" in stream.getvalue()
        picture.leave()
        written = stream.getvalue()
    assert stream.getvalue() == written, "what the other process printed stays"


def test_times_are_read_at_a_glance() -> None:
    found = [format_time(seconds * 10**9) for seconds in (0, 59, 60, 250, 3600, 7260)]
    assert found == ["0 s", "59 s", "1 min 00 s", "4 min 10 s", "1 h 00 min", "2 h 01 min"]
    assert format_time(-5) == "0 s"


def test_figures_have_separators_and_three_digits() -> None:
    assert [format_number(value) for value in (26108.4, 123.4, 14.72, 0.9351, 3.0)] == [
        "26,108",
        "123",
        "14.7",
        "0.94",
        "3",
    ]


@pytest.mark.parametrize(("half", "expected"), [(None, "0.780"), (0.0412, "0.780 ±4.1 %"), (147.0, "0.780 (> ±100 %)")])
def test_an_interval_wider_than_the_ratio_is_no_figure(half: float | None, expected: str) -> None:
    arm = ArmProgress("tcp", ArmRole.CONTENDER, None, "socket", Estimate(value=0.78, low=None, high=None), half, None)
    assert format_ratio(arm) == expected
