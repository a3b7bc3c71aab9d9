"""The tap, an engine program that forwards between the application and its server, and the application that connects to the tap."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from howfar.contract.messages import TapCounts, TapDelay, TapJob, Target, TcpListen, UnixTarget
from howfar.engine.process import Launcher
from howfar.errors import EngineError, LabError, SandboxForbidden, UsageError
from howfar.recording.insertion import Insertion
from howfar.recording.record_tap import start_tap
from howfar.recording.sandbox_runner import SandboxAnswer, SandboxRequest
from howfar.stopping import temporary_folder


class Tap:
    """A running tap in front of `server`. Use as a context manager."""

    def __init__(self, server: Target, listen: UnixTarget | TcpListen) -> None:
        self._process, self.address = start_tap(TapJob(listen=listen, server=server), Launcher())

    def set_delay(self, delay_ns: int) -> TapCounts:
        """Add `delay_ns` to each round trip from now on. Returns the counts since the last call."""
        self._process.send(TapDelay(delay_ns=delay_ns))
        counts = self._process.read()
        if not isinstance(counts, TapCounts):
            raise EngineError("the tap answered something else than its counts", "Please report this.")
        return counts

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.__exit__(*error)


def listen_address(server: Target, folder: Path) -> UnixTarget | TcpListen:
    """Address at which a tap in front of `server` listens: a socket in `folder` for a socket, else a TCP port."""
    if isinstance(server, UnixTarget):
        return UnixTarget(path=str(folder / "tap.sock"))
    return TcpListen(host="::1" if ":" in server.host else "127.0.0.1", port=0)


@contextmanager
def tap_folder(server: Target) -> Iterator[Path]:
    """A folder for the tap's socket, which a helper process removes if this program is killed. For TCP, no folder is made."""
    if not isinstance(server, UnixTarget):
        yield Path()
        return
    with temporary_folder() as folder:
        folder.chmod(0o711)
        yield folder


class TappedApplication:
    """Runs the user's command with an insertion. Use as a context manager: on exit, all processes that it started have ended."""

    def __init__(self, insertion: Insertion) -> None:
        self._insertion = insertion
        self._started_program: str | None = None
        helper = [sys.executable, "-I", str(Path(__file__).parent / "sandbox_runner.py")]
        bind = ["--bind", *insertion.bind] if insertion.bind else []
        try:
            self._process = subprocess.Popen(
                [*insertion.prefix, *helper, *bind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=insertion.environment(),
            )
        except OSError as error:
            raise LabError(f"{insertion.prefix[0]}: {error.strerror}", "Install Debian's util-linux.") from error
        self._read_answer()

    def start(self, command: Sequence[str]) -> None:
        """Start a command that runs until the context manager exits. Raises UsageError if it cannot be started."""
        self._started_program = command[0]
        self._request({"start": self._insertion.argv(command)})

    def check(self) -> None:
        """Raise UsageError if the started command has ended with an error."""
        if self._started_program is not None:
            self._request({"started": self._started_program})

    def run(self, command: Sequence[str], timeout_s: float) -> float:
        """Run the command and return its time in seconds. Raises UsageError if it fails."""
        answer = self._request({"run": self._insertion.argv(command), "timeout_s": timeout_s})
        return answer["took_ns"] / 1e9

    def _request(self, request: SandboxRequest) -> SandboxAnswer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # `_read_answer` reports why the runner ended
        answer = self._read_answer()
        if "error" in answer:
            raise UsageError(f"the command failed: {answer['error']}", "Try it alone first, without howfar.")
        return answer

    def _read_answer(self) -> SandboxAnswer:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if line:
            answer: SandboxAnswer = json.loads(line)
            return answer
        self._process.wait()
        message = self._process.stderr.read().strip()[-500:]
        raise SandboxForbidden(
            f"a mount namespace for the application could not be made: {message or 'no reason was given'}",
            "Run as root, permit user namespaces, or let the application connect by itself with --listen.",
        )

    def __enter__(self) -> TappedApplication:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
