"""A forwarder's processes are counted while they live."""

from __future__ import annotations

import os
import subprocess

import pytest

from howfar.lab.reached import HopWatch, child_count, fork_violations, look_at
from howfar.paths.path import Hop


class _Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self.alive = lambda: process.poll() is None


def _watch(name: str, process: subprocess.Popen[str]) -> HopWatch:
    look = look_at(Hop(name, _Child(process), forks=True))
    assert look is not None
    return HopWatch({name: look})


@pytest.mark.skipif(child_count(os.getpid()) is None, reason="this kernel does not list a process's children")
def test_the_most_children_at_once_are_kept_after_they_have_gone() -> None:
    script = "sleep 100 & sleep 100 & sleep 100 & echo up; read line; kill %1 %2 %3; wait; echo gone; read line"
    with subprocess.Popen(
        ["bash", "-mc", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        watch = _watch("server_side", parent)
        print("go", file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "gone\n"
        assert child_count(parent.pid) == 0
        assert watch.finish() == watch.finish() == {"server_side": {"processes": 3}}
        parent.stdin.close()


def test_a_process_that_is_gone_is_unknown() -> None:
    process = subprocess.Popen(["true"], text=True)
    process.wait()
    assert child_count(process.pid) is None
    assert _watch("client_side", process).finish() == {"client_side": {}}


def test_fewer_processes_than_connections_are_a_violation_and_unknown_is_not() -> None:
    assert fork_violations({"server_side": 8, "client_side": 9}, 8) == ()
    assert fork_violations({"server_side": None}, 8) == ()
    assert fork_violations({"server_side": 0}, None) == ()
    (found,) = fork_violations({"server_side": 8, "client_side": 7}, 8)
    assert "client side had 7 processes for 8 connections" in found
