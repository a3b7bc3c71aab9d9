"""Record a service of systemd: a drop-in mounts the tap's socket over the server's, for this service alone.

The drop-in is in /run, so it does not survive a reboot. A separate process waits for this one to end, cleanly or not, and removes it;
nothing else does. An existing mount stays until the service is restarted; until then the tap forwards its connections.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from howfar.engine.messages import UnixTarget
from howfar.errors import EngineError, LabError, MissingError, UsageError
from howfar.recording.marks import VARIABLE, Marks
from howfar.recording.recorder import Collected, RecordTap, collect, finish, new_facts
from howfar.recording.recording import Page, RecordingFile

_UNIT = re.compile(r"[A-Za-z0-9@_.:\\-]{1,200}")
_ANSWER_S = 120.0
_UNTIL_INTERRUPTED_S = 365 * 86_400.0
_SWITCH = """
cat >/dev/null
rm -f "$1"
rmdir "$2" 2>/dev/null
shift 2
"$@" daemon-reload
"""


@dataclass(frozen=True)
class Requested:
    """The service to record, and for how long."""

    unit: str
    server: UnixTarget
    out: Path
    seconds: float | None


class DropIn:
    """The drop-in of `unit` that mounts `source` over `target`. Use as a context manager: it is removed on leaving."""

    def __init__(
        self,
        unit: str,
        source: str,
        target: str,
        marks: str,
        root: Path = Path("/"),
        control: Sequence[str] = ("systemctl",),
    ) -> None:
        if not _UNIT.fullmatch(unit):
            raise UsageError(f"{unit!r} is no name of a unit", "Write for example php8.2-fpm.service.")
        self.unit = unit if unit.endswith(".service") else f"{unit}.service"
        self.path = root / "run/systemd/system" / f"{self.unit}.d" / "howfar-record.conf"
        self.text = (
            "# Written by `howfar record --service`, which removes it. Safe to remove; then: systemctl daemon-reload\n"
            f"[Service]\nBindPaths={source}:{target}\nEnvironment={VARIABLE}={marks}\n"
        )
        self._control = tuple(control)
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DropIn:
        if self.path.exists():
            raise UsageError(
                f"{self.path} exists: {self.unit} is being recorded, or its recorder and its switch were killed",
                "Wait for the other one; else remove the file and run `systemctl daemon-reload`.",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # First who takes it back, then what is to be taken back.
            self._switch = subprocess.Popen(
                ["setsid", "sh", "-c", _SWITCH, "sh", str(self.path), str(self.path.parent), *self._control],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.path.write_text(self.text)
        except OSError as error:
            self.__exit__(None, None, None)
            raise LabError(f"{self.path} cannot be written: {error.strerror}", "Run as root.") from error
        try:
            self.control("daemon-reload")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def control(self, *words: str) -> str:
        """Run systemctl and return its output. Raises MissingError, LabError."""
        try:
            done = subprocess.run([*self._control, *words], capture_output=True, text=True, timeout=_ANSWER_S)
        except FileNotFoundError as error:
            raise MissingError("systemctl is not here", "Record the command itself: howfar record -- CMD.") from error
        except subprocess.TimeoutExpired as error:
            raise LabError(f"systemctl {' '.join(words)} did not end", "See the service's own log.") from error
        if done.returncode:
            raise LabError(f"systemctl {' '.join(words)}: {done.stderr.strip()[-500:]}", "See the service's own log.")
        return done.stdout.strip()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._switch is None:
            return
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._switch.wait(_ANSWER_S)


def record(requested: Requested, say: Callable[[str], None], agreed: Callable[[str], bool]) -> None:
    """Record a service; `agreed` sees the drop-in before it is written. Raises UsageError, LabError, MissingError, EngineError."""
    file, collected = RecordingFile(requested.out, new_facts("tap", "unix", requested.unit)), Collected()
    folder = Path(tempfile.mkdtemp(prefix="howfar-", dir="/run"))
    folder.chmod(0o711)
    tap: RecordTap | None = None
    try:
        with Marks() as marks:
            tap = RecordTap(requested.server, UnixTarget(path=str(folder / "tap.sock")))
            drop_in = DropIn(requested.unit, str(folder / "tap.sock"), requested.server.path, marks.address)
            if not agreed(f"{drop_in.path}:\n{drop_in.text}"):
                raise UsageError("nothing was written", "Say yes, or give --yes.")
            collector = threading.Thread(target=collect, args=(tap, file, collected), name="collect", daemon=True)
            collector.start()
            with drop_in:
                page = _recorded(drop_in, tap, requested, say)
            with contextlib.suppress(EngineError):
                tap.finish()
            collector.join()
        finish(file, collected, marks, page, 0)
        say(f"the drop-in is gone; until its next restart {drop_in.unit} goes through the tap, unrecorded")
    except BaseException:
        file.close()
        requested.out.unlink(missing_ok=True)
        raise
    finally:
        if tap is not None:
            tap.leave()
        with contextlib.suppress(OSError):
            (folder / "tap.sock").unlink(missing_ok=True)
            folder.rmdir()


def _recorded(drop_in: DropIn, tap: RecordTap, requested: Requested, say: Callable[[str], None]) -> Page:
    say(f"restarting {drop_in.unit}")
    drop_in.control("restart", drop_in.unit)
    pid = drop_in.control("show", "--property=MainPID", "--value", drop_in.unit)
    tap.serve(Path(f"/proc/{int(pid)}/ns/mnt").stat().st_ino)
    say("recording")
    begun_ns = time.monotonic_ns()
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(requested.seconds if requested.seconds is not None else _UNTIL_INTERRUPTED_S)
    return Page(1, drop_in.unit, "command", 1.0, None, begun_ns, time.monotonic_ns())
