"""Start the laboratory from outside, find everything that belongs to it, and see that it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MARK = "HOWFAR_TEST_MARK"
TIMEOUT_S = 180.0
"""Timeout of operations that take seconds on a quiet machine: it bounds hangs and is no performance limit."""


def lab_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "howfar.cli.lab", *arguments]


def run_lab(
    *arguments: str, prefix: Sequence[str] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `howfar lab` to its end."""
    return subprocess.run(
        [*prefix, *lab_command(*arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(env or {})},
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds, for at most TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S:.0f} s for: {what}"
        time.sleep(0.005)


def state_of_machine() -> tuple[str, str]:
    """The state that a sandbox must not change outside: mounts and interfaces."""
    mounts = Path("/proc/self/mountinfo").read_text()
    interfaces = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    return mounts, "\n".join(line.split()[0] for line in interfaces.splitlines())


@dataclass
class Marked:
    """A laboratory whose processes all carry a mark in their environment."""

    arguments: Sequence[str]
    cache: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            lab_command(*self.arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, MARK: self.mark, "XDG_CACHE_HOME": str(self.cache)},
        )

    def pids(self) -> dict[int, str]:
        """Living processes of this laboratory, with their command lines."""
        wanted = f"{MARK}={self.mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def pid_of(self, word: str) -> int | None:
        """The process whose program ends with `word`."""
        for pid, command in self.pids().items():
            if command.split(" ")[0].endswith(word):
                return pid
        return None
