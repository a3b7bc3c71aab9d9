"""Runs the application in the namespace in which this program was started, and times it.

A line of JSON on stdin is one request: `{"run": argv}` runs a command to its end, `{"start": argv}` starts a command that runs until
stdin ends, `{"started": name}` checks whether the started command has failed. The answer is a line of JSON on stdout. With
`--bind SOURCE TARGET` this program first mounts socket SOURCE over TARGET, visible only to the processes that it starts. At its end it
removes SOURCE's folder, even if its parent was killed. It uses only the standard library, to start quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TypedDict

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_MAX_OUTPUT = 2000
_EXIT_TIMEOUT_S = 5.0


class SandboxRequest(TypedDict, total=False):
    """A request: `run` with `timeout_s`, `start` or `started`."""

    run: list[str]
    timeout_s: float
    start: list[str]
    started: str


class SandboxAnswer(TypedDict, total=False):
    """The answer to a request; empty if a command was started, or has not failed."""

    error: str
    took_ns: int


def main() -> int:
    if sys.argv[1:2] == ["--bind"]:
        code = subprocess.run(["mount", "--bind", *sys.argv[2:4]]).returncode
        if code:
            return code
    started: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryFile() as output:
        print(json.dumps({"ready": True}), flush=True)
        try:
            for line in sys.stdin:
                request: SandboxRequest = json.loads(line)
                answer: SandboxAnswer
                if "start" in request:
                    answer, started = _start(request["start"], output)
                elif "started" in request:
                    answer = {} if started is None else _failure(started, request["started"], output)
                else:
                    answer = _run(request["run"], request["timeout_s"], output)
                print(json.dumps(answer), flush=True)
        finally:
            if started is not None:
                end_session(started)
            if sys.argv[1:2] == ["--bind"]:
                shutil.rmtree(os.path.dirname(sys.argv[2]), ignore_errors=True)  # noqa: PTH120 - pathlib takes milliseconds
    return 0


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _spawn(argv: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    # The session allows ending the command's child processes with it.
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _start(argv: list[str], output: IO[bytes]) -> tuple[SandboxAnswer, subprocess.Popen[bytes] | None]:
    try:
        return {}, _spawn(argv, output)
    except OSError as error:
        return {"error": f"{argv[0]}: {error.strerror}"}, None


def _run(argv: list[str], timeout_s: float, output: IO[bytes]) -> SandboxAnswer:
    output.seek(0)
    output.truncate()
    began_ns = time.monotonic_ns()
    try:
        process = _spawn(argv, output)
    except OSError as error:
        return {"error": f"{argv[0]}: {error.strerror}"}
    # `wait` with a timeout would poll every 50 ms.
    with os.fdopen(os.pidfd_open(process.pid)) as process_end:
        # No request arrives during a run, so stdin is readable only if stdin has ended.
        readable, _, _ = select.select([process_end, sys.stdin], [], [], timeout_s)
        has_ended = process_end in readable
    took_ns = time.monotonic_ns() - began_ns
    if not has_ended:
        end_session(process)
        return {"error": f"{argv[0]} did not end within {timeout_s:.0f} s"}
    process.wait()
    return _failure(process, argv[0], output) or {"took_ns": took_ns}


def _failure(process: subprocess.Popen[bytes], name: str, output: IO[bytes]) -> SandboxAnswer:
    """An answer with the error of a failed process; empty if the process runs or has succeeded."""
    code = process.poll()
    if not code:
        return {}
    output.seek(0)
    message = output.read()[-_MAX_OUTPUT:].decode(errors="replace").strip()
    return {"error": f"{name} ended with exit code {code}{': ' + message if message else ''}"}


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
            return


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
