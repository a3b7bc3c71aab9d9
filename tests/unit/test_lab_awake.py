"""Spinners that keep processors awake: of the idle class, one a processor, and gone afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from howfar.lab import awake as module
from howfar.lab.awake import awake, spinning


def _spinners() -> set[int]:
    """Children of this process, and theirs, that run in the idle class."""
    found: set[int] = set()
    left = [os.getpid()]
    while left:
        pid = left.pop()
        try:
            children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
        left += children
        found |= {child for child in children if _policy(child) == os.SCHED_IDLE}
    return found


def _policy(pid: int) -> int | None:
    try:
        return os.sched_getscheduler(pid)
    except ProcessLookupError:
        return None


def test_processors_are_kept_awake_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cannot_poll", lambda: "this one is no root")
    cpu = min(os.sched_getaffinity(0))
    before = _spinners()
    with awake([cpu]):
        deadline = time.monotonic() + 20
        while not (found := _spinners() - before):
            assert time.monotonic() < deadline, "no spinner came"
            time.sleep(0.01)
        assert all(os.sched_getaffinity(pid) == {cpu} for pid in found if _policy(pid) is not None)
    deadline = time.monotonic() + 20
    while _spinners() - before:
        assert time.monotonic() < deadline, "a spinner stayed"
        time.sleep(0.01)


def test_nothing_spins_where_idle_cpus_can_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []

    @contextmanager
    def hold() -> Iterator[None]:
        held.append("on")
        yield
        held.append("off")

    monkeypatch.setattr(module, "cannot_poll", lambda: None)
    monkeypatch.setattr(module, "polling", hold)
    before = _spinners()
    with awake([min(os.sched_getaffinity(0))]):
        assert (held, _spinners()) == (["on"], before)
    assert held == ["on", "off"]


def test_nothing_is_left_of_one_that_does_not_pass_signals_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `timeout` for a moment after its fork: ended by a signal, it would leave its child behind."""
    names = tmp_path / "names"
    deaf = tmp_path / "timeout"
    deaf.write_text(f"#!/bin/sh\nsleep 60 &\necho $$ $! >{names}.new && mv {names}.new {names}\nwait\n")
    deaf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with spinning([()], 60):
        deadline = time.monotonic() + 20
        while not names.exists():
            assert time.monotonic() < deadline, "it did not start"
            time.sleep(0.01)
    deadline = time.monotonic() + 20
    for pid in map(int, names.read_text().split()):
        while _alive(pid):
            assert time.monotonic() < deadline, f"{pid} stayed"
            time.sleep(0.01)


def _alive(pid: int) -> bool:
    """A zombie that nobody has waited for yet spins no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
