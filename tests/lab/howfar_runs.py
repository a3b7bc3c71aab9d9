"""Start the real `howfar` on a tiny plan, follow its output, find its processes, and read its run file."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from tests.lab.sandboxes import MARK, Marked
from tests.lab.undisturbed import skip_if_disturbed

HOWFAR = str(Path(sys.executable).with_name("howfar"))
ARMS = 5
BLOCKS = 4
LONGEST_S = 600.0
"""Timeout of one command, which takes half a minute on a quiet machine."""
GAVE_UP = "trials in a row were void, the last because: "
TINY = f"""
name = "tiny"
question = "Does it come through?"
[workload]
kind = "oltp_read_only"
point_selects = 1
simple_ranges = 0
sum_ranges = 0
order_ranges = 0
distinct_ranges = 0
skip_trx = true
[data]
tables = 1
table_size = 1000
[factors]
path = ["socket", "tcp", "remote", "forwarded-socket"]
threads = 1
rtt = "20ms" # the longer, the more lateness is forgiven: tests may meet a busy machine
rate = "100mbit"
[baseline]
path = "socket"
[timing]
warmup = "50ms"
measure = "200ms"
min_blocks = {BLOCKS}
max_blocks = {BLOCKS}
target = "0.1%"
time_budget = "30min"
controls = false
"""
PATHS = '["socket", "tcp", "remote", "forwarded-socket"]'
LOCAL = TINY.replace(PATHS, '["socket", "tcp"]')
"""TINY without a link, which takes seconds to calibrate at each start; its arms are two and the baseline again."""
_TRIAL = re.compile(r"block (\d+), (\d+)/\d+ ([a-z -]+(?: \([^)]+\))?): (.*)")
Reported = tuple[int, int, str, bool]
"""Block, position (both from 0), arm, void."""


def run_howfar(
    *arguments: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `howfar` to its end."""
    return subprocess.run(
        [*prefix, HOWFAR, *arguments],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )


def came_through(code: int, output: str) -> None:
    """Check that a command succeeded; if it gave up because this machine was too busy, skip with the command's own sentence."""
    if code != 0:
        skip_if_disturbed(*(line.partition(GAVE_UP)[2] for line in output.splitlines()))
    assert code == 0, output


class Session:
    """One running `howfar`. `lines` grows with its output on stderr."""

    def __init__(self, arguments: list[str], cache: Path, where: Path, prefix: tuple[str, ...] = ()) -> None:
        self.marked = Marked((), cache)
        temporary = where / "tmp"
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*prefix, HOWFAR, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=where,
            env={**os.environ, MARK: self.marked.mark, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)},
        )
        self.lines: list[str] = []
        self.out = ""
        self._readers = [threading.Thread(target=self._listen), threading.Thread(target=self._keep)]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _keep(self) -> None:
        assert self.process.stdout is not None
        self.out = self.process.stdout.read()

    def ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def code(self, timeout_s: float = LONGEST_S) -> int:
        """Wait for its exit code and for all its output. Raises TimeoutExpired."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def say(self) -> str:
        return "\n".join(self.lines)

    def reported(self) -> list[Reported]:
        """The trials that it reported as finished."""
        found = [_TRIAL.fullmatch(line) for line in list(self.lines)]
        return [(int(m[1]) - 1, int(m[2]) - 1, m[3], m[4].startswith("void")) for m in found if m]

    def find(self, role: str) -> int | None:
        """The pid of `parent`, `unshare`, `inside`, or of a program with its first argument. None if no such process runs now."""
        if role == "parent":
            return self.process.pid if self.process.poll() is None else None
        for pid, command in self.marked.pids().items():
            arguments = command.split()
            if not arguments or arguments[-1] == "true":  # unshare that only tests whether it is permitted
                continue
            if role == "inside":
                found = _parent_name(pid) == "unshare"
            else:
                found = " ".join([Path(arguments[0]).name, *arguments[1:2]]).startswith(role)
            if found:
                return pid
        return None

    def await_part(self, role: str, timeout_s: float) -> int | None:
        """`find`, waiting up to `timeout_s`; None if the process did not appear or the session has ended."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            pid = self.find(role)
            if pid is not None:
                return pid
            time.sleep(0.005)
        return None

    def namespaces(self) -> set[str]:
        """The namespaces of all its processes, without those of the machine."""
        return {name for pid in self.marked.pids() for name in namespaces_of(pid)} - namespaces_of(os.getpid())

    def end(self) -> None:
        """Kill all its processes, so that a failed test leaves nothing behind."""
        for pid in [self.process.pid, *self.marked.pids()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def namespaces_of(pid: int) -> set[str]:
    """The namespaces of a process, such as `net:[4026531840]`; empty if the process is gone."""
    try:
        return {str(entry.readlink()) for entry in Path(f"/proc/{pid}/ns").iterdir()}
    except OSError:
        return set()


def all_namespaces() -> set[str]:
    """The namespaces of all processes."""
    return {
        name for entry in Path("/proc").iterdir() if entry.name.isdigit() for name in namespaces_of(int(entry.name))
    }


def _parent_name(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        parent = stat.rpartition(")")[2].split()[1]
        return Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return ""


Part = TypeVar("Part")


def known(part: Part | None) -> Part:
    """A part of a trial or of its receipt, which must have it."""
    assert part is not None
    return part


Rows = dict[str, set[tuple[object, ...]]]


def trial_rows(run_file: Path) -> Rows:
    """All rows of all tables as SQLite returns them, except the two tables that a resume may add to."""
    with closing(sqlite3.connect(f"file:{run_file}?mode=ro", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: set(db.execute(f'SELECT * FROM "{name}"')) for name in tables if name not in ("run", "event")}
