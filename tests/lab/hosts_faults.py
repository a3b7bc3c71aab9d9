"""A program for the tests: injects faults into a run on two hosts and reports the effect of each.

python -m tests.lab.hosts_faults OUT FAULT...        each fault in a separate trial; then the run continues until it is complete
python -m tests.lab.hosts_faults OUT random N SEED   N kills of random processes at random moments

`namespace_hosts` must start it in a directory with the hosts file `hosts.toml` and a plan `plan.toml`. Writes JSON to OUT.
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
from functools import partial
from pathlib import Path
from typing import Any

from howfar.store.records import StopReason
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import HOWFAR
from tests.lab.sandboxes import TIMEOUT_S, wait_until

RUN = Path("run.howfar")
_CLEANUP_S = 10.0
"""Time after its end within which all processes of a run must have ended."""
_ALL_PROCESSES = re.compile(r"howfar-engine |mariadbd|raylet/raylet|gcs_server|howfar\.fleet\.|ray::Agent")
_TRIAL_PROCESSES = re.compile(r"howfar-engine (load|usage)|mariadbd")
_RUN_PROCESSES = re.compile(r"howfar-engine |mariadbd|ray::Agent")
STEP = Path("clock") / "step"


def processes() -> dict[int, str]:
    """The command lines of all visible processes by pid, excluding this process and zombies."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if line:  # a zombie has no command line
                found[int(entry.name)] = line
    return found


def network_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def pids_on(host: str, pattern: str) -> list[int]:
    """The processes of a host whose command lines match `pattern`."""
    running = processes()
    (sshd, *_) = [
        pid for pid, line in running.items() if line.startswith(("/usr/sbin/sshd", "sshd")) and f"sshd-{host}" in line
    ]
    network = network_namespace(sshd)
    return [pid for pid, line in running.items() if re.search(pattern, line) and network_namespace(pid) == network]


def matching_pids(pattern: str) -> list[int]:
    return [pid for pid, line in processes().items() if re.search(pattern, line)]


_wait_until = partial(wait_until, interval_s=0.05)
"""Conditions of a run read its file and the command lines of all processes, too much work for each 5 ms of a measurement."""


def _seconds_until(condition: Callable[[], object], timeout_s: float = _CLEANUP_S) -> float | None:
    """Seconds until `condition` holds; None if it does not hold within `timeout_s`."""
    start = time.monotonic()
    while time.monotonic() - start < timeout_s:
        if condition():
            return round(time.monotonic() - start, 1)
        time.sleep(0.05)
    return None


def cleanup_time_s(pattern: re.Pattern[str]) -> float | None:
    """Seconds until no process matches `pattern`; None if one still does after _CLEANUP_S."""
    return _seconds_until(lambda: not matching_pids(pattern.pattern))


def start_time(pid: int) -> str | None:
    """The start time of a process, which distinguishes it from a later one with its pid; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def time_until_ended_s(start_times: dict[int, str | None]) -> float | None:
    """Seconds until none of these processes runs; None if one still does after _CLEANUP_S."""
    started = {pid: start for pid, start in start_times.items() if start is not None}
    return _seconds_until(lambda: not any(start_time(pid) == start for pid, start in started.items()))


class Howfar:
    """The command of the run; it is resumed if it ends early."""

    def __init__(self) -> None:
        self.exit_codes: list[int] = []
        self.process = self._start_run()

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        with Path("err.txt").open("ab") as log:
            return subprocess.Popen([HOWFAR, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def resume_if_failed(self) -> bool:
        """Resume the run if its command failed. Returns False, so that an `or` evaluates its right side."""
        if self.process.poll() and not self.is_complete():
            self.exit_codes.append(self.process.returncode)
            self.process = self._spawn("resume", str(RUN)) if RUN.exists() else self._start_run()
        return False

    def _start_run(self) -> subprocess.Popen[bytes]:
        return self._spawn("run", "plan.toml", "--on", "hosts.toml", "--place", "client=a,server=b", "--out", str(RUN))

    def trials(self) -> int:
        return Path("err.txt").read_text(errors="replace").count("\nblock ")

    def is_complete(self) -> bool:
        """Whether the run is complete, whatever the exit code: a complete run may have an arm without a valid trial."""
        return RUN.exists() and self.process.poll() is not None and read_run(RUN).stop is StopReason.BLOCKS

    def is_under_load(self) -> bool:
        """Whether a load runs; resumes the run if its command failed."""
        return self.resume_if_failed() or bool(pids_on("a", "howfar-engine load"))


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _link_down(seconds: float) -> None:
    """Take the second host's link down for some seconds."""
    subprocess.run(["ip", "link", "set", "v1", "down"], check=True)
    time.sleep(seconds)
    subprocess.run(["ip", "link", "set", "v1", "up"], check=True)


def _run_on(host: str, command: str) -> None:
    """Run a shell command in the host's mount namespace."""
    (raylet, *_) = pids_on(host, "raylet/raylet")
    subprocess.run(["nsenter", f"--target={raylet}", "--mount", "--pid", "sh", "-ec", command], check=True)


_FILL = """
mount -o remount,size=$(($(df --output=used -k /dev/shm | tail -1) + 64))k /dev/shm
end=$(($(date +%s) + 8))
while [ $(date +%s) -lt $end ]; do head -c 4000000 /dev/zero >>/dev/shm/fill 2>/dev/null || true; sleep 0.02; done
mount -o remount,size=4g /dev/shm
rm /dev/shm/fill
"""


def _disk_full() -> None:
    """Fill the second host's file system for 8 s, including space that a terminating server frees."""
    _run_on("b", _FILL)


FAULTS: dict[str, Callable[[Howfar], None]] = {
    "engine": lambda run: _kill(pids_on("a", "howfar-engine load")),
    "actor": lambda run: _kill(pids_on("b", "ray::Agent")),
    "raylet": lambda run: _kill(pids_on("b", "raylet/raylet")),
    "head": lambda run: _kill(matching_pids("gcs_server")),
    "driver": lambda run: _kill([run.process.pid]),
    "link-5s": lambda run: _link_down(5),
    "link-60s": lambda run: _link_down(60),
    "clock-step": lambda run: (STEP.write_text("5"), None)[1],
    "disk-full": lambda run: _disk_full(),
}
RANDOM_FAULTS: dict[str, Callable[[Howfar], None]] = {
    **{name: FAULTS[name] for name in ("engine", "actor", "raylet", "head", "driver")},
    "client's actor": lambda run: _kill(pids_on("a", "ray::Agent")),
    "client's raylet": lambda run: _kill(pids_on("a", "raylet/raylet")),
    "server": lambda run: _kill(pids_on("b", "mariadbd")),
    "guard": lambda run: _kill(matching_pids(r"howfar\.fleet\.guard")[:1]),
    "host's first process": lambda run: _kill(pids_on("b", r"howfar\.fleet\.node")[:1]),
}


def _void_reasons() -> list[str]:
    return [trial.void_reason for trial in read_run(RUN).trials if trial.void_reason] if RUN.exists() else []


def inject(run: Howfar, name: str, fault: Callable[[Howfar], None], delay_s: float) -> dict[str, Any]:
    """Inject a fault into a trial under load, and wait for the next valid trial."""
    _wait_until(run.is_under_load, f"a load, before {name}")
    time.sleep(delay_s)
    before, trials, start = len(_void_reasons()), run.trials(), time.monotonic()
    start_times = {pid: start_time(pid) for pid in matching_pids(_TRIAL_PROCESSES.pattern)}
    fault(run)
    result: dict[str, Any] = {"fault": name}
    _wait_until(lambda: run.process.poll() is not None or run.trials() > trials, f"the trial's end after {name}")
    result["processes_ended_s"] = time_until_ended_s(start_times)
    result["ended"] = run.process.poll()
    if result["ended"] not in (None, 0):
        result["cleanup_s"] = cleanup_time_s(_ALL_PROCESSES if name in ("head", "guard") else _RUN_PROCESSES)
    result["void"] = _void_reasons()[before:]

    def has_good_trial() -> bool:
        return run.is_complete() or run.trials() > trials + 1 + len(_void_reasons()) - before

    _wait_until(lambda: run.resume_if_failed() or has_good_trial(), f"a good trial after {name}")
    return {**result, "recovery_s": round(time.monotonic() - start, 1)}


def _replace_clocks() -> None:
    """Give host b a monotonic clock that is 5 s ahead, and a wall clock that can be stepped."""
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


def main() -> int:
    out, *names = sys.argv[1:]
    if "clock-step" in names:
        _replace_clocks()
    subprocess.run([HOWFAR, "hosts", "up"], check=True, stdin=subprocess.DEVNULL)
    run, results = Howfar(), []
    try:
        if names[0] == "random":
            rng = random.Random(int(names[2]))
            chosen = [(rng.choice(list(RANDOM_FAULTS)), rng.uniform(0, 2)) for _ in range(int(names[1]))]
            faults = [(name, RANDOM_FAULTS[name], delay_s) for name, delay_s in chosen]
        else:
            faults = [(name, FAULTS[name], 0.7) for name in names]
        for name, fault, delay_s in faults:
            results.append(inject(run, name, fault, delay_s))
            Path(out).write_text(json.dumps({"faults": results}, indent=1))
        _wait_until(lambda: run.resume_if_failed() or run.is_complete(), "the run's end", timeout_s=2 * TIMEOUT_S)
        finished = read_run(RUN)
    finally:
        _kill([run.process.pid] if run.process.poll() is None else [])
    subprocess.run([HOWFAR, "hosts", "down"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report = {
        "faults": results,
        "stop": finished.stop,
        "codes": run.exit_codes,
        "cleanup_s": cleanup_time_s(_ALL_PROCESSES),
        "leftover_processes": [line for line in processes().values() if _ALL_PROCESSES.search(line)],
        "clocks": [
            trial.receipt.hosts.start["b"].as_json() for trial in finished.trials if trial.receipt.hosts is not None
        ][:3],
    }
    Path(out).write_text(json.dumps(report, indent=1, default=str))
    shutil.copy("err.txt", f"{out}.err")
    return 0


if __name__ == "__main__":
    sys.exit(main())
