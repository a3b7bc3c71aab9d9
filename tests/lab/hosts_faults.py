"""A program for the tests: injects faults into a run between two hosts, one by one or at random; reports the effect of each.

python -m tests.lab.hosts_faults OUT INJURY...       each in a separate trial, then the run continues to its end
python -m tests.lab.hosts_faults OUT random N SEED   N kills of parts drawn at random, at random moments

Run it by `hosts_here`, with the hosts file `hosts.toml` and a plan `plan.toml`. OUT gets JSON.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from howfar.store.records import Run, StopReason
from howfar.store.run_file import read_run

RUN = Path("run.howfar")
_HOWFAR = str(Path(sys.executable).with_name("howfar"))
_LONGEST_S = 150.0
_LEFT_S = 10.0
"""This long after its end, nothing of a run may be left on a host."""
_PARTS = re.compile(r"howfar-engine |mariadbd|raylet/raylet|gcs_server|howfar\.fleet\.|ray::Agent")
_OF_A_TRIAL = re.compile(r"howfar-engine (load|usage)|mariadbd")
_OF_A_RUN = re.compile(r"howfar-engine |mariadbd|ray::Agent")
STEP = Path("clock") / "step"


def processes() -> dict[int, str]:
    """The running processes here, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if line:  # a zombie has none
                found[int(entry.name)] = line
    return found


def network_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def on(host: str, pattern: str) -> list[int]:
    """The processes of a host whose command lines match `pattern`."""
    running = processes()
    (sshd, *_) = [
        pid for pid, line in running.items() if line.startswith(("/usr/sbin/sshd", "sshd")) and f"sshd-{host}" in line
    ]
    network = network_of(sshd)
    return [pid for pid, line in running.items() if re.search(pattern, line) and network_of(pid) == network]


def here(pattern: str) -> list[int]:
    return [pid for pid, line in processes().items() if re.search(pattern, line)]


def await_that(what: Callable[[], Any], why: str, timeout_s: float = _LONGEST_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise SystemExit(f"waited {timeout_s:.0f} s for {why}")


def cleared(pattern: re.Pattern[str]) -> float | None:
    """Seconds until no such process is left; None if some are left after _LEFT_S."""
    began = time.monotonic()
    while time.monotonic() - began < _LEFT_S:
        if not here(pattern.pattern):
            return round(time.monotonic() - began, 1)
        time.sleep(0.1)
    return None


def lives(pid: int) -> str | None:
    """The start time of a process, which distinguishes it from a later one with the same pid; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def gone(were: dict[int, str | None]) -> float | None:
    """Seconds until none of these processes runs; None if some still do after _LEFT_S."""
    began = time.monotonic()
    while time.monotonic() - began < _LEFT_S:
        if not any(since is not None and lives(pid) == since for pid, since in were.items()):
            return round(time.monotonic() - began, 1)
        time.sleep(0.1)
    return None


class Howfar:
    """The command of the run; it is resumed if it ends early."""

    def __init__(self) -> None:
        self.commands: list[int] = []
        self.process = self._start(
            "run", "plan.toml", "--on", "hosts.toml", "--place", "client=a,server=b", "--out", str(RUN)
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with Path("err.txt").open("ab") as log:
            return subprocess.Popen([_HOWFAR, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def goes_on(self) -> bool:
        """Resume a run whose command failed. Returns False, so that an `or` evaluates what follows."""
        if self.process.poll() and not self.complete():
            self.commands.append(self.process.returncode)
            self.process = self._start("resume", str(RUN)) if RUN.exists() else self._begin()
        return False

    def _begin(self) -> subprocess.Popen[bytes]:
        return self._start("run", "plan.toml", "--on", "hosts.toml", "--place", "client=a,server=b", "--out", str(RUN))

    def trials(self) -> int:
        return Path("err.txt").read_text(errors="replace").count("\nblock ")

    def complete(self) -> bool:
        """Whatever the exit code: if each trial of an arm was void, the run is complete and cannot be resumed."""
        return RUN.exists() and self.process.poll() is not None and read_run(RUN).stop is StopReason.BLOCKS

    def under_load(self) -> list[int]:
        """Engines of the client, once a load is under way; resumes the run where needed."""
        self.goes_on()
        return on("a", "howfar-engine load")


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _link_down(seconds: float) -> None:
    """Take the second host's link down for a while."""
    subprocess.run(["ip", "link", "set", "v1", "down"], check=True)
    time.sleep(seconds)
    subprocess.run(["ip", "link", "set", "v1", "up"], check=True)


def _memory(host: str, command: str) -> None:
    """Run a shell command in the host's mount namespace."""
    (raylet, *_) = on(host, "raylet/raylet")
    subprocess.run(["nsenter", f"--target={raylet}", "--mount", "--pid", "sh", "-ec", command], check=True)


_FILL = """
mount -o remount,size=$(($(df --output=used -k /dev/shm | tail -1) + 64))k /dev/shm
end=$(($(date +%s) + 8))
while [ $(date +%s) -lt $end ]; do head -c 4000000 /dev/zero >>/dev/shm/fill 2>/dev/null || true; sleep 0.02; done
mount -o remount,size=4g /dev/shm
rm /dev/shm/fill
"""


def _disk_full() -> None:
    """Fill the host's file system. Space that an ending server frees is taken before the next server gets it."""
    _memory("b", _FILL)


INJURIES: dict[str, Callable[[Howfar], None]] = {
    "engine": lambda run: _kill(on("a", "howfar-engine load")),
    "actor": lambda run: _kill(on("b", "ray::Agent")),
    "raylet": lambda run: _kill(on("b", "raylet/raylet")),
    "head": lambda run: _kill(here("gcs_server")),
    "driver": lambda run: _kill([run.process.pid]),
    "link-5s": lambda run: _link_down(5),
    "link-60s": lambda run: _link_down(60),
    "clock-step": lambda run: (STEP.write_text("5"), None)[1],
    "disk-full": lambda run: _disk_full(),
}
RANDOM: dict[str, Callable[[Howfar], None]] = {
    **{name: INJURIES[name] for name in ("engine", "actor", "raylet", "head", "driver")},
    "client's actor": lambda run: _kill(on("a", "ray::Agent")),
    "client's raylet": lambda run: _kill(on("a", "raylet/raylet")),
    "server": lambda run: _kill(on("b", "mariadbd")),
    "guard": lambda run: _kill(here(r"howfar\.fleet\.guard")[:1]),
    "host's first process": lambda run: _kill(on("b", r"howfar\.fleet\.node")[:1]),
}


def _reasons() -> list[str]:
    return [trial.void_reason for trial in read_run(RUN).trials if trial.void_reason] if RUN.exists() else []


def injure(run: Howfar, name: str, injury: Callable[[Howfar], None], moment_s: float) -> dict[str, Any]:
    """Inject a fault into a trial under load, and wait for the next valid trial."""
    await_that(run.under_load, f"a load, before {name}")
    time.sleep(moment_s)
    before, trials, began = len(_reasons()), run.trials(), time.monotonic()
    were = {pid: lives(pid) for pid in here(_OF_A_TRIAL.pattern)}
    injury(run)
    found: dict[str, Any] = {"injury": name}
    await_that(lambda: run.process.poll() is not None or run.trials() > trials, f"the trial's end after {name}")
    found["gone_s"] = gone(were)
    found["ended"] = run.process.poll()
    if found["ended"] not in (None, 0):
        found["cleared_s"] = cleared(_PARTS if name in ("head", "guard") else _OF_A_RUN)
    found["void"] = _reasons()[before:]
    good = lambda: run.goes_on() or run.complete() or run.trials() > trials + 1 + len(_reasons()) - before  # noqa: E731
    await_that(good, f"a good trial after {name}")
    return {**found, "back_s": round(time.monotonic() - began, 1)}


def _slow_clock() -> None:
    """Host b gets a separate monotonic clock, 5 s ahead, and a wall clock that can be stepped."""
    STEP.parent.mkdir()
    STEP.write_text("0")
    (STEP.parent / "sitecustomize.py").write_text(
        "import time\n"
        f"def _step(): return float(open({str(STEP.resolve())!r}).read() or 0)\n"
        "_time, _time_ns = time.time, time.time_ns\n"
        "time.time = lambda: _time() + _step()\n"
        "time.time_ns = lambda: _time_ns() + int(_step() * 1e9)\n"
    )
    program = STEP.parent / "python"
    program.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{STEP.parent.resolve()}:$PYTHONPATH"\n'
        f'exec unshare --time --monotonic 5 --boottime 5 --fork --kill-child {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    first, mark, second = Path("hosts.toml").read_text().partition("[hosts.b]")
    Path("hosts.toml").write_text(first + mark + second.replace(sys.executable, str(program.resolve())))


def _ended(run: Howfar) -> Run:
    await_that(lambda: run.goes_on() or run.complete(), "the run's end", 2 * _LONGEST_S)
    return read_run(RUN)


def main() -> int:
    out, *wanted = sys.argv[1:]
    if "clock-step" in wanted:
        _slow_clock()
    subprocess.run([_HOWFAR, "hosts", "up"], check=True, stdin=subprocess.DEVNULL)
    run, found = Howfar(), []
    try:
        if wanted[0] == "random":
            draws = random.Random(int(wanted[2]))
            for _ in range(int(wanted[1])):
                name = draws.choice(list(RANDOM))
                found.append(injure(run, name, RANDOM[name], draws.uniform(0, 2)))
                Path(out).write_text(json.dumps({"injuries": found}, indent=1))
        else:
            for name in wanted:
                found.append(injure(run, name, INJURIES[name], 0.7))
                Path(out).write_text(json.dumps({"injuries": found}, indent=1))
        ended = _ended(run)
    finally:
        _kill([run.process.pid] if run.process.poll() is None else [])
    subprocess.run([_HOWFAR, "hosts", "down"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = {
        "injuries": found,
        "stop": ended.stop,
        "codes": run.commands,
        "cleared_s": cleared(_PARTS),
        "left": [line for line in processes().values() if _PARTS.search(line)],
        "clocks": [
            trial.receipt.hosts.start["b"].as_json() for trial in ended.trials if trial.receipt.hosts is not None
        ][:3],
    }
    Path(out).write_text(json.dumps(told, indent=1, default=str))
    shutil.copy("err.txt", f"{out}.err")
    return 0


if __name__ == "__main__":
    sys.exit(main())
