"""Helpers that run the installed `howfar`: tiny plans, its output and processes while it runs, and its run file."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from unittest import mock

from howfar.cli.main import run_command_line
from howfar.store.records import Run, Trial, TrialStatus
from tests.lab.sandboxes import MARK, MarkedLab, cache_variable
from tests.lab.undisturbed import skip_if_disturbed

HOWFAR = str(Path(sys.executable).with_name("howfar"))
PYTHON_HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
"""The same command where it is not installed as a program."""
ARMS = 5
BLOCKS = 4
RUN_TIMEOUT_S = 600.0
"""Timeout of one command, which takes half a minute on a quiet machine."""
GAVE_UP = "trials in a row were void, the last because: "
"""Words of the error with which howfar gives up because too many trials were void."""
PATHS = ("socket", "tcp", "remote", "forwarded-socket")
POINT_SELECT = {
    "kind": "oltp_read_only",
    "point_selects": 1,
    "simple_ranges": 0,
    "sum_ranges": 0,
    "order_ranges": 0,
    "distinct_ranges": 0,
    "skip_trx": True,
}
ONE_TABLE = {"tables": 1, "table_size": 1000}
LONG_RTT = "20ms"
"""A longer RTT allows more lateness, which a busy machine causes."""
Values = Mapping[str, object]


def plan_toml(name: str = "tiny", /, **tables: Values) -> str:
    """A plan as TOML, from its tables. Values are written as JSON, which is also TOML."""
    lines = [f'name = "{name}"', 'question = "Does it work?"']
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def timing(blocks: int, warmup: str = "100ms", measure: str = "500ms", **more: object) -> Values:
    """The timing of exactly `blocks` blocks."""
    end = {"target": "0.1%", "time_budget": "30min", "controls": False}
    return {"warmup": warmup, "measure": measure, "min_blocks": blocks, "max_blocks": blocks, **end, **more}


def tiny_plan(
    paths: Sequence[str] = PATHS,
    *,
    blocks: int = BLOCKS,
    link: bool = True,
    workload: Values = POINT_SELECT,
    contents: Mapping[str, Values] = MappingProxyType({"data": ONE_TABLE}),
    factors: Values = MappingProxyType({}),
    baseline: Values = MappingProxyType({}),
    warmup: str = "50ms",
    measure: str = "200ms",
) -> str:
    """A plan of short trials on these paths, of which the first is the baseline. `link`: with an emulated link; `contents`: the tables
    of the plan that say what the server holds."""
    links = {"rtt": LONG_RTT, "rate": "100mbit"} if link else {}
    return plan_toml(
        workload=workload,
        **contents,
        factors={"path": list(paths), "threads": 1, **links, **factors},
        baseline={"path": paths[0], **baseline},
        timing=timing(blocks, warmup, measure),
    )


LOCAL_PATHS = ("socket", "tcp")
"""Paths without a link, which takes seconds to calibrate at each start. The arms are both, and the baseline again."""
_TRIAL = re.compile(r"block (\d+), (\d+)/\d+ ([a-z -]+(?: \([^)]+\))?): (.*)")
ReportedTrial = tuple[int, int, str, bool]
"""Block, position (both from 0), arm, void."""


def run_howfar(
    *arguments: str,
    cache: Path | None = None,
    cwd: Path | None = None,
    prefix: tuple[str, ...] = (),
    timeout_s: float = RUN_TIMEOUT_S,
    env: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run `howfar` until it ends. `cache`: its cache home, if not the user's; `prefix`: a command that starts it."""
    return subprocess.run(
        [*prefix, HOWFAR, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **cache_variable(cache), **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )


def call_howfar(*arguments: str, env: Mapping[str, str] = MappingProxyType({})) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has imported howfar already; one that would enter a sandbox fails."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    refuse_sandbox = mock.patch(
        "howfar.lab.sandbox.run_inside", side_effect=AssertionError("this command enters a sandbox")
    )
    with refuse_sandbox, mock.patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
        code = run_command_line(arguments)
    printed = []
    for stream in (out, err):
        stream.seek(0)
        printed.append(stream.read())
    return subprocess.CompletedProcess(arguments, code, *printed)


def assert_completed(code: int, output: str) -> None:
    """Check that a command succeeded; if it gave up because this machine was too busy, skip the test with the command's message."""
    if code != 0:
        skip_if_disturbed(*(line.partition(GAVE_UP)[2] for line in output.splitlines()))
    assert code == 0, output


class Session:
    """A running `howfar`, as a context that kills all its processes on leaving. `lines` grows with its output on stderr."""

    def __init__(self, arguments: list[str], cache: Path, where: Path, prefix: tuple[str, ...] = ()) -> None:
        self.marked = MarkedLab((), cache)
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
            env={**os.environ, MARK: self.marked.mark, **cache_variable(cache), "TMPDIR": str(temporary)},
        )
        self.lines: list[str] = []
        self.out = ""
        self._readers = [threading.Thread(target=self._read_stderr), threading.Thread(target=self._read_stdout)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in [self.process.pid, *self.marked.pids()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        self.out = self.process.stdout.read()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def ends_within(self, timeout_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.has_ended()

    def wait(self) -> int:
        """Wait for its exit code and for all its output. Raises TimeoutExpired."""
        code = self.process.wait(RUN_TIMEOUT_S)
        for reader in self._readers:
            reader.join(RUN_TIMEOUT_S)
        return code

    def output(self) -> str:
        """Its output on stderr so far."""
        return "\n".join(self.lines)

    def reported_trials(self) -> list[ReportedTrial]:
        """The trials that it reported as finished."""
        found = [_TRIAL.fullmatch(line) for line in list(self.lines)]
        return [(int(m[1]) - 1, int(m[2]) - 1, m[3], m[4].startswith("void")) for m in found if m]

    def find_pid(self, role: str) -> int | None:
        """The pid of `parent`, `unshare`, `inside`, or of a program with its first argument; None if no such process runs."""
        if role == "parent":
            return None if self.has_ended() else self.process.pid
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

    def wait_for_pid(self, role: str, timeout_s: float) -> int | None:
        """`find_pid`, waiting up to `timeout_s`; None if the process did not appear or the session has ended."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self.has_ended():
            if (pid := self.find_pid(role)) is not None:
                return pid
            time.sleep(0.005)
        return None

    def namespaces(self) -> set[str]:
        """The namespaces of its processes that are not the machine's."""
        return {name for pid in self.marked.pids() for name in namespaces_of(pid)} - namespaces_of(os.getpid())


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


T = TypeVar("T")


def require(part: T | None) -> T:
    """An optional part of a trial or of its receipt, which must be present."""
    assert part is not None
    return part


def good_trials(run: Run) -> list[Trial]:
    """The trials that are not void."""
    return [trial for trial in run.trials if trial.status is TrialStatus.OK]


Rows = dict[str, set[tuple[object, ...]]]


def trial_rows(run_file: Path) -> Rows:
    """All rows of all tables, without the two tables that a resume may add to."""
    with closing(sqlite3.connect(f"file:{run_file}?mode=ro", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: set(db.execute(f'SELECT * FROM "{name}"')) for name in tables if name not in ("run", "event")}
