"""The timer that measures the machine's own lateness."""

from __future__ import annotations

import pytest

from howfar.bench.links import probes
from howfar.errors import LabError


def test_a_timer_is_late_by_something() -> None:
    assert 0 < probes.timer_lateness_us(20) < 60e6


def test_one_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PATIENCE_S", 0.001)
    with pytest.raises(LabError, match="timed out"):
        probes.timer_lateness_us(1_000_000)
