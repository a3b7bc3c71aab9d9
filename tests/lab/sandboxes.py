"""Helpers for tests of `howfar lab`: start it, find its processes, and check that none of them remains."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pydantic
import pytest

import howfar

MARK = "HOWFAR_TEST_MARK"
TIMEOUT_S = 180.0
"""Timeout of operations that take seconds on a quiet machine. It bounds hangs and is not a performance limit."""
FORBID_NAMESPACES = (
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- "$@"',
    "sh",
)
"""Prefix of a command that must not make namespaces: it has no capability, and the limit of user namespaces is 0."""


_ENTER = "import sys; from howfar.lab import sandbox; sys.exit(sandbox.run_inside(sys.argv[1:]))"


def cache_variable(cache: Path | None) -> dict[str, str]:
    """The environment variable of a cache home; none if `cache` is None."""
    return {} if cache is None else {"XDG_CACHE_HOME": str(cache)}


def lab_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "howfar", "lab", *arguments]


def in_sandbox(*command: str) -> list[str]:
    """A command that runs in a sandbox. One that enters its sandbox itself, by starting again, imports howfar a second time."""
    return [sys.executable, "-c", _ENTER, *command]


def run_lab(*arguments: str, prefix: Sequence[str] = (), cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `howfar lab` until it ends. `cache`: its cache home, if not the user's; `prefix`: a command that starts it, which then
    enters its sandbox itself."""
    command = lab_command(*arguments)
    return subprocess.run(
        [*prefix, *command] if prefix else in_sandbox(*command),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **cache_variable(cache)},
    )


def write_program(path: Path, script: str) -> Path:
    """Write a shell script that can be executed."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def python_of_nobody(*setpriv_options: str) -> list[str]:
    """A command that runs Python as uid 65534: the tests' Python if other users may enter its directory, else the system's with our
    packages. Skips the test if neither works."""
    packages = f"{Path(howfar.__file__).parents[1]}:{Path(pydantic.__file__).parents[1]}"
    for python in (sys.executable, "/usr/bin/python3"):
        setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *setpriv_options, "--"]
        command = [*setpriv, "env", f"PYTHONPATH={packages}", python]
        if subprocess.run([*command, "-c", "import howfar.cli.lab"], capture_output=True).returncode == 0:
            return command
    pytest.skip("NOT TESTED WITHOUT PRIVILEGE: no Python here that an ordinary user may run")


def wait_until(
    condition: Callable[[], bool], what: str, *, timeout_s: float = TIMEOUT_S, interval_s: float = 0.005
) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for: {what}"
        time.sleep(interval_s)


def machine_state() -> tuple[str, str]:
    """The machine's mounts and network interfaces, which a sandbox must not change."""
    mounts = Path("/proc/self/mountinfo").read_text()
    interfaces = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    return mounts, "\n".join(line.split()[0] for line in interfaces.splitlines())


@dataclass
class MarkedLab:
    """A laboratory whose processes are found by a mark in their environment."""

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
            env={**os.environ, MARK: self.mark, **cache_variable(self.cache)},
        )

    def pids(self) -> dict[int, str]:
        """The running processes of this laboratory, with their command lines."""
        variable = f"{MARK}={self.mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if variable in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def find_pid(self, program: str) -> int | None:
        """The pid of a process whose program's path ends with `program`; None if there is none."""
        commands = self.pids().items()
        return next((pid for pid, command in commands if command.split(" ")[0].endswith(program)), None)

    def wait_until_gone(self) -> None:
        """Wait until no process of this laboratory runs."""
        wait_until(lambda: not self.pids(), f"the end of {self.pids()}")
