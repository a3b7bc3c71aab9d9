"""Costs of a made-up path measured in blocks, some of which the machine disturbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.made_recording import FLOOR_NS, Step, costs, made

from howfar.contract.messages import Replayed, ReplayPage, UnixTarget
from howfar.contract.violation import OTHER, Violation, violation
from howfar.engine.process import Launcher
from howfar.errors import LinkFailed
from howfar.lab.link import LinkSpec
from howfar.paths import find_path
from howfar.recording import path_measurement
from howfar.recording.calibration import Rhythm
from howfar.recording.costs import Sizes
from howfar.recording.page_costs import cost_pages
from howfar.recording.predict import analyze
from howfar.recording.prediction_report import document
from howfar.report import terminal

SIZES = Sizes(to_server=(16,), to_client=(8, 1000))


@dataclass(frozen=True)
class MadePath(path_measurement.OpenPath):
    """A path on which each round trip takes 1 ms; in the attempts listed in `spoiled` its link is not as requested."""

    spoiled: Sequence[int] = ()
    attempts: list[int] = field(default_factory=list)

    def replay(self, pages: Sequence[ReplayPage]) -> list[Replayed]:
        return [
            Replayed(took_ns=len(page.steps) * 10**6, opened_ns=(10**6,) * len(page.steps),
                     round_trips_ns=(10**6,) * len(page.steps), client_late_ns=0, server_late_ns=0)
            for page in pages
        ]  # fmt: skip

    def start_monitoring(self) -> Callable[[], tuple[Violation, ...]]:
        self.attempts.append(len(self.attempts))
        return lambda: (violation(OTHER, text="the RTT was 9 ms"),) if self.attempts[-1] in self.spoiled else ()


def path(spoiled: Sequence[int] = (), spec: LinkSpec | None = None) -> MadePath:
    link = cast(Any, SimpleNamespace(spec=spec)) if spec else None
    return MadePath(find_path("remote"), UnixTarget(path="/made"), None, "sizes", Launcher(), link, spoiled)


def measured(spoiled: Sequence[int], said: list[str]) -> Any:
    (present, target), _ = path_measurement.measure(
        (path(), path(spoiled)), ("now", "there"), SIZES, Rhythm(), 5, said.append
    )
    assert len(present.blocks) == len(target.blocks)
    return target


def test_a_block_whose_link_cannot_be_had_is_left_out_and_named() -> None:
    """[app-22] Four attempts at the second block fail; a block with one failed attempt is kept."""
    said: list[str] = []
    found = measured((1, 2, 3, 4, 6), said)
    assert len(found.blocks) == 4
    assert "the RTT was 9 ms" in found.void[0] and len(found.void) == 1
    assert any(line.startswith("block 2 is left out") for line in said)
    assert "s a block" in said[0], "the time is announced"


def test_without_any_block_the_reason_is_the_error() -> None:
    with pytest.raises(LinkFailed, match="the RTT was 9 ms"):
        measured(range(100), [])


def test_sizes_beyond_what_the_rate_sends_in_a_moment_are_not_measured() -> None:
    """[app-24] 22 MB at 100 Mbit/s took minutes; 3 MB take a quarter of a second."""
    assert path(spec=LinkSpec(rtt_ns=20_000_000, rate_bps=100_000_000)).max_sizes == (3_125_000, 3_125_000)


def test_what_a_small_receive_buffer_would_cost_is_said(tmp_path: Path) -> None:
    """[app-24] 2 MB through a window of 16 kB are 123 round trips of 20 ms."""
    recording = made(tmp_path / "b.recording", [Step("SELECT body", to_client=2_000_000)], pages=4)
    now, far = costs(FLOOR_NS / 1e3), costs(20_000, label="remote", rtt_ns=20_000_000)
    found = analyze(recording, now, far)
    (page,) = found.pages
    assert page.small_window_ms == pytest.approx(123 * 20, rel=0.03)
    report = terminal.render(document(found, (), cost_pages(recording, now, far)), 100, colour=False)
    assert "receive buffer of 16 kB" in report
    (small,) = analyze(made(tmp_path / "s.recording", [Step("SELECT a")], pages=4), now, far).pages
    assert small.small_window_ms is None
