"""Runs the user's application, or a systemd service, with a recorder between it and its server.

The application survives if any of howfar's processes dies: the tap continues without this program, a keeper process continues without
the tap, and both end with the application. The mount disappears with the application's namespace.

For a service, a systemd drop-in mounts the tap's socket over the server's, for this service alone. The drop-in is in /run, so it does
not survive a reboot; a separate process removes it when this one ends, cleanly or not. The mount itself remains until the service is
restarted; until then the tap forwards the service's connections.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from howfar.address.server_address import format_host_port
from howfar.contract.messages import Recorded, RecordedRoundTrip, RecordEnded, TcpTarget, UnixTarget
from howfar.distance.resolve import look_up_name
from howfar.errors import (
    EngineError,
    HowfarError,
    LabError,
    MissingError,
    SandboxForbidden,
    UsageError,
    shell_exit_code,
)
from howfar.lab.programs import NONE_MEASURED, MeasuredPrograms, watching_programs
from howfar.other_programs import StartWatch
from howfar.recording.collecting import (
    CollectedEvents,
    add_pages,
    collecting,
    finish,
    new_facts,
    new_recording,
    reporting_write_errors,
    wait_for,
)
from howfar.recording.facts import NameCost, RecordingFacts
from howfar.recording.insertion import Insertion, NamedServer, make_insertion, mount_namespace_prefix
from howfar.recording.marks import HTTP_VARIABLE, VARIABLE, Marks
from howfar.recording.other_programs import RecordingWatch
from howfar.recording.record_tap import RecordTap
from howfar.recording.recording import RecordingFile, TimedPage
from howfar.recording.tap import listen_address, tap_folder
from howfar.recording.texts import phrase
from howfar.stopping import deferring_end_signals, forwarding_end_signals_to
from howfar.units import format_duration_ns

_LOOKUP_TIMEOUT_S = 2.0
_MAX_NAMED_PAGES = 5
_PHP = Path(__file__).parent / "php"
_BODY_NAME = "data"
"""Name of the round trip that carries a request's body after the server's `100 Continue`."""


@dataclass(frozen=True)
class RecordRequest:
    """The application to record, its server, and the file to write."""

    server: NamedServer
    command: tuple[str, ...]
    out: Path
    php: bool = False
    gaps: bool = False
    """Whether to infer pages from the longer pauses between round trips if no pages are marked."""
    http: TcpTarget | None = None
    """Address at which the command serves HTTP: each request through a tap in front of it is a page."""
    page_by: tuple[str, ...] = ()
    """Parts of the URL that page names keep: parameters of the query, and parts of the path, which begin with `/`."""
    output_fd: int | None = None
    """File descriptor for the command's standard output; None for that of this process."""
    measured: MeasuredPrograms = NONE_MEASURED
    """Programs outside the command that do not count as others: those of the server."""


def record(request: RecordRequest, say: Callable[[str], None]) -> int:
    """Run the command and record it; returns its exit code. `say` prints a message for the user. Raises UsageError, LabError,
    EngineError, RunFileError."""
    kind = "unix" if isinstance(request.server.target, UnixTarget) else "tcp"
    facts = new_facts("tap", kind, Path(request.command[0]).name)
    with new_recording(request.out, facts) as file, watching_programs(request.measured) as start_watch:
        return _record(request, file, start_watch, say)


def _record(request: RecordRequest, file: RecordingFile, start_watch: StartWatch, say: Callable[[str], None]) -> int:
    collected = CollectedEvents()
    with Marks(request.page_by) as marks, ExitStack() as stack:
        tap, page = None, None
        http = stack.enter_context(_http_tap(request.http, marks, request.page_by)) if request.http else None
        try:
            with tap_folder(request.server.target) as folder:
                tap = RecordTap(request.server.target, listen_address(request.server.target, folder))
                insertion = make_insertion(request.server, tap.address)
                with collecting(tap, file, collected, marks):
                    say(phrase("say/recording/http", address=_address_text(http)) if http else phrase("say/recording"))
                    with RecordingWatch(start_watch) as others:
                        code, page = _run_command(request, insertion, (tap, http), marks)
        finally:
            if tap is not None and not tap.leave():
                say(phrase("say/left-processes"))
        collected.others = others.found()
    if not collected.round_trips and collected.stopped is not None:
        reason = phrase("error/nothing-recorded", reason=collected.stopped)
        raise LabError(reason, "The application was not disturbed. Record again.")
    if not collected.round_trips:
        refusal = collected.ended.refusal if isinstance(collected.ended, RecordEnded) else None
        phrase_id = "error/no-connect" if refusal else "error/no-round-trip"
        raise UsageError(phrase(phrase_id, reason=refusal, code=code), insertion.advice(request.command))
    if (failed_pages := _failed_pages_sentence(marks)) is not None:
        say(failed_pages)
    with reporting_write_errors(file, say):
        unknown = {**add_pages(file, marks, page, request.gaps), **_unmarked_reasons(request, marks)}
        finish(file, collected, unknown, code, say, lambda: _measure_name_costs(request, insertion, say), start_watch)
    return code


def _measure_name_costs(request: RecordRequest, insertion: Insertion, say: Callable[[str], None]) -> RecordingFacts:
    """Measure the cost of the host names that the tap's address replaced: the lookup and, if the first address found is not the
    server's, an attempt to connect to it."""
    costs: dict[str, NameCost] = {}
    for name in insertion.replaced_names(request.command):
        assert isinstance(request.server.target, TcpTarget), "only a server on TCP has a name"
        port = request.server.target.port
        try:
            took_ns, addresses = look_up_name(name, port, _LOOKUP_TIMEOUT_S)
        except HowfarError as error:
            say(phrase("say/name-lost", name=name, reason=error.message))
            continue
        attempt_ns, dead_note = 0, ""
        if addresses[0] != request.server.target.host:
            attempt_ns = _connect_attempt_ns(addresses[0], port)
            dead_note = phrase("say/name/dead", address=addresses[0], took=format_duration_ns(attempt_ns))
        costs[name] = NameCost(lookup_ns=took_ns, addresses=addresses, first_address_ns=attempt_ns)
        say(phrase("say/name", name=name, lookup=format_duration_ns(took_ns), dead=dead_note))
    return RecordingFacts(names=costs) if costs else RecordingFacts()


def _connect_attempt_ns(address: str, port: int) -> int:
    """Time until a connection to an address succeeds or fails."""
    began_ns = time.monotonic_ns()
    with contextlib.suppress(OSError), socket.create_connection((address, port), _LOOKUP_TIMEOUT_S):
        pass
    return time.monotonic_ns() - began_ns


def _unmarked_reasons(request: RecordRequest, marks: Marks) -> dict[str, int]:
    """Sentences about requested methods of marking that marked no page. The value is 1, or 0 if the sentence does not apply."""
    methods = {page.method for page in marks.pages}
    return {
        phrase("say/unmarked-php"): int(request.php and "php" not in methods),
        phrase("say/unmarked-http"): int(request.http is not None and "http" not in methods),
    }


def _failed_pages_sentence(marks: Marks) -> str | None:
    """A sentence about pages that were answered with a server error, or None."""
    failed = Counter(page.name for page in marks.pages if page.failed)
    if not failed:
        return None
    totals = Counter(page.name for page in marks.pages)
    descriptions = [
        phrase("say/failed-pages/each", count=count, total=totals[name], page=name)
        for name, count in failed.most_common(_MAX_NAMED_PAGES)
    ]
    return phrase("say/failed-pages", pages=", ".join(descriptions))


@contextmanager
def _http_tap(target: TcpTarget, marks: Marks, page_by: tuple[str, ...]) -> Iterator[RecordTap]:
    """A tap in front of the application's HTTP port. Requests through it are marked until the context manager exits."""
    tap = RecordTap(target, listen_address(target, Path()), page_by=page_by)
    marker = threading.Thread(target=_mark_requests, args=(tap, marks), name="http", daemon=True)
    marker.start()
    try:
        yield tap
    finally:
        with contextlib.suppress(EngineError):
            tap.finish()
        marker.join()
        tap.leave()


def _mark_requests(tap: RecordTap, marks: Marks) -> None:
    """Add each HTTP request that passes the tap as a page, until the tap ends."""
    names: dict[int | None, str] = {}
    spans: dict[int, tuple[str, int, int, bool]] = {}
    """The latest request of each connection: name, begin, end, failed. It is not marked at once, because its body may follow."""
    with contextlib.suppress(EngineError):  # the tap was killed: requests before that are marked
        for event in tap.events():
            if not isinstance(event, Recorded):
                continue
            names |= {trip.id: trip.text for trip in event.digests if trip.protocol == "http"}
            for trip in event.round_trips:
                _extend_or_mark(spans, trip, names.get(trip.digest_id), marks)
            for closed_id in spans.keys() & {trip.id for trip in event.connections if trip.closed_ns is not None}:
                marks.add(*spans.pop(closed_id))
    for span in spans.values():
        marks.add(*span)


def _extend_or_mark(
    spans: dict[int, tuple[str, int, int, bool]], trip: RecordedRoundTrip, name: str | None, marks: Marks
) -> None:
    """Extend the connection's latest request if the round trip carries its body; else mark that request, and keep this round trip as
    the latest. `name`: the round trip's name; None if it is not HTTP."""
    previous = spans.get(trip.connection_id)
    if name == _BODY_NAME and previous is not None:
        spans[trip.connection_id] = (*previous[:2], trip.ended_ns, previous[3] or trip.failed)
    elif name not in (None, _BODY_NAME):
        if previous is not None:
            marks.add(*previous)
        spans[trip.connection_id] = (name, trip.begun_ns, trip.ended_ns, trip.failed)


def _address_text(tap: RecordTap) -> str:
    assert isinstance(tap.address, TcpTarget), "a TCP server has a TCP tap"
    return format_host_port(tap.address.host, tap.address.port)


def _command_environment(
    request: RecordRequest, insertion: Insertion, marks: Marks, http: RecordTap | None
) -> Mapping[str, str]:
    php, page_by = request.php, request.page_by
    environment = {**insertion.environment(), VARIABLE: marks.address}
    if http is not None:
        environment[HTTP_VARIABLE] = _address_text(http)
    if php:
        # An empty entry stands for PHP's own directory.
        environment["PHP_INI_SCAN_DIR"] = f"{os.environ.get('PHP_INI_SCAN_DIR', '')}:{_PHP}"
        environment["HOWFAR_PREPEND"] = str(_PHP / "prepend.php")
        environment["HOWFAR_PAGE_BY"] = ",".join(page_by)
    return environment


def _run_command(
    request: RecordRequest, insertion: Insertion, taps: tuple[RecordTap, RecordTap | None], marks: Marks
) -> tuple[int, TimedPage]:
    """Run the command to its end. Returns its exit code, and its run as a page. `taps`: those in front of the server and, if any, of
    the HTTP port."""
    http = taps[1]
    # Even if nothing is mounted, the tap identifies the processes that it serves by their mount namespace.
    prefix = mount_namespace_prefix()
    report_read, report_write = os.pipe()
    go_read, go_write = os.pipe()
    helper = [sys.executable, "-I", str(Path(__file__).parent / "sandbox_entry.py"), str(report_write), str(go_read)]
    with ExitStack() as stack:
        stack.callback(os.close, report_read)
        stack.callback(os.close, go_write)
        try:
            process = subprocess.Popen(
                [*prefix, *helper, *(insertion.bind or ("", "")), *insertion.argv(request.command)],
                stdout=request.output_fd,
                env=_command_environment(request, insertion, marks, http),
                pass_fds=(report_write, go_read),
            )
        except OSError as error:
            raise LabError(f"{prefix[0]}: {error.strerror}", "Install Debian's util-linux.") from error
        finally:
            os.close(report_write)
            os.close(go_read)
        namespace = os.read(report_read, 32)
        if not namespace:
            process.wait()
            raise SandboxForbidden(
                "a mount namespace for the application could not be made",
                "Run as root, or permit user namespaces; the reason is printed above.",
            )
        for tap in filter(None, taps):
            tap.serve(int(namespace))
        with forwarding_end_signals_to(process):
            begun_ns = time.monotonic_ns()
            os.write(go_write, b"!")
            code = process.wait()
            ended_ns = time.monotonic_ns()
        start_error = os.read(report_read, 200).decode()
    if start_error:
        raise UsageError(f"{request.command[0]}: {start_error}", "Try the command on its own first.")
    return shell_exit_code(code), TimedPage(1, Path(request.command[0]).name, "command", 1.0, None, begun_ns, ended_ns)


_UNIT = re.compile(r"[A-Za-z0-9@_.:\\-]{1,200}")
_SYSTEMCTL_TIMEOUT_S = 120.0
_REMOVAL_SCRIPT = """
cat >/dev/null
rm -f "$1"
rmdir "$2" 2>/dev/null
folder=$3
shift 3
"$@" daemon-reload
rm -f "$folder/tap.sock"
rmdir "$folder" 2>/dev/null
"""


@dataclass(frozen=True)
class ServiceRequest:
    """What to record of a service: unit, server, file and duration."""

    unit: str
    server: UnixTarget
    out: Path
    seconds: float | None
    gaps: bool = False
    measured: MeasuredPrograms = NONE_MEASURED
    """Programs outside the service that do not count as others: those of the server."""


class DropIn:
    """The systemd drop-in of `unit` that mounts `source` over `target`. Use as a context manager: on exit, it is removed."""

    def __init__(
        self,
        unit: str,
        source: str,
        target: str,
        marks: str,
        root: Path = Path("/"),
        systemctl: Sequence[str] = ("systemctl",),
    ) -> None:
        if not _UNIT.fullmatch(unit):
            raise UsageError(phrase("error/no-unit", unit=unit), "Write for example php8.2-fpm.service.")
        self.unit = unit if unit.endswith(".service") else f"{unit}.service"
        self.path = root / "run/systemd/system" / f"{self.unit}.d" / "howfar-record.conf"
        self.text = (
            "# Written by `howfar record --service`, which removes it. Safe to remove; then: systemctl daemon-reload\n"
            f"[Service]\nBindPaths={source}:{target}\nEnvironment={VARIABLE}={marks}\n"
        )
        self._folder = str(Path(source).parent)
        self._systemctl = tuple(systemctl)
        self._remover: subprocess.Popen[bytes] | None = None
        self.main_pids: frozenset[int] = frozenset()
        """PID of the service's main process, after its restart."""

    def __enter__(self) -> DropIn:
        if self.path.exists():
            raise UsageError(
                phrase("error/drop-in-exists", path=self.path, unit=self.unit),
                "Wait until the other recording ends; if there is none, remove the file and run `systemctl daemon-reload`.",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Start the process that removes the drop-in before writing the drop-in.
            remove_command = [
                "setsid",
                "sh",
                "-c",
                _REMOVAL_SCRIPT,
                "sh",
                str(self.path),
                str(self.path.parent),
                self._folder,
            ]
            self._remover = subprocess.Popen(
                [*remove_command, *self._systemctl],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.path.write_text(self.text)
        except OSError as error:
            self.__exit__()
            reason = phrase("error/drop-in-unwritten", path=self.path, reason=error.strerror)
            raise LabError(reason, "Run as root.") from error
        try:
            self.run_systemctl("daemon-reload")
        except BaseException:
            self.__exit__()
            raise
        return self

    def restart(self) -> int:
        """Restart the service; returns the number of its mount namespace. Raises MissingError, LabError."""
        self.run_systemctl("restart", self.unit)
        pid = self.run_systemctl("show", "--property=MainPID", "--value", self.unit)
        try:
            self.main_pids = frozenset({int(pid)})
            return Path(f"/proc/{int(pid)}/ns/mnt").stat().st_ino
        except (OSError, ValueError) as error:
            raise LabError(phrase("error/no-process", unit=self.unit), "See the service's own log.") from error

    def run_systemctl(self, *arguments: str) -> str:
        """Run systemctl and return its output. Raises MissingError, LabError."""
        try:
            completed = subprocess.run(
                [*self._systemctl, *arguments], capture_output=True, text=True, timeout=_SYSTEMCTL_TIMEOUT_S
            )
        except FileNotFoundError as error:
            raise MissingError("systemctl is not here", "Record the command itself: howfar record -- CMD.") from error
        except subprocess.TimeoutExpired as error:
            reason = phrase("error/systemctl-slow", arguments=" ".join(arguments))
            raise LabError(reason, "See the service's own log.") from error
        if completed.returncode:
            message = completed.stderr.strip()[-500:]
            reason = phrase("error/systemctl", arguments=" ".join(arguments), reason=message)
            raise LabError(reason, "See the service's own log.")
        return completed.stdout.strip()

    def __exit__(self, *_: object) -> None:
        if self._remover is None:
            return
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._remover.wait(_SYSTEMCTL_TIMEOUT_S)


def record_service(request: ServiceRequest, say: Callable[[str], None], confirm: Callable[[str], bool]) -> None:
    """Record a service. `confirm` shows the user the text of the drop-in and returns whether to write it.

    Raises UsageError, LabError, MissingError, EngineError.
    """
    with new_recording(request.out, new_facts("tap", "unix", request.unit)) as file:
        _record_service(request, file, say, confirm)


def _record_service(
    request: ServiceRequest, file: RecordingFile, say: Callable[[str], None], confirm: Callable[[str], bool]
) -> None:
    collected = CollectedEvents()
    folder = Path()
    tap: RecordTap | None = None
    try:
        with deferring_end_signals():
            folder = Path(tempfile.mkdtemp(prefix="howfar-", dir="/run"))
            folder.chmod(0o711)
        with Marks() as marks:
            tap = RecordTap(request.server, UnixTarget(path=str(folder / "tap.sock")))
            drop_in = DropIn(request.unit, str(folder / "tap.sock"), request.server.path, marks.address)
            if not confirm(f"{drop_in.path}:\n{drop_in.text}"):
                raise UsageError("nothing was written", "Say yes, or give --yes.")
            with collecting(tap, file, collected, marks), drop_in:
                page = _run_service(drop_in, tap, request, collected, say)
        with reporting_write_errors(file, say):
            unknown = add_pages(file, marks, page, request.gaps)
            with watching_programs(_with_service(request, drop_in)) as start_watch:
                finish(file, collected, unknown, 0, say, start_watch=start_watch)
        say(phrase("say/drop-in-gone", unit=drop_in.unit))
    finally:
        if tap is not None:
            tap.leave()
        with contextlib.suppress(OSError):
            (folder / "tap.sock").unlink(missing_ok=True)
            folder.rmdir()


def _with_service(request: ServiceRequest, drop_in: DropIn) -> MeasuredPrograms:
    """The programs of the server and of the service."""
    return request.measured._replace(pids=request.measured.pids | drop_in.main_pids)


def _run_service(
    drop_in: DropIn, tap: RecordTap, request: ServiceRequest, collected: CollectedEvents, say: Callable[[str], None]
) -> TimedPage:
    say(phrase("say/restarting", unit=drop_in.unit))
    tap.serve(drop_in.restart())
    say(phrase("say/recording"))
    begun_ns = time.monotonic_ns()
    with watching_programs(_with_service(request, drop_in)) as start_watch:
        with RecordingWatch(start_watch) as others:
            wait_for(request.seconds)
        collected.others = others.found()
    return TimedPage(1, drop_in.unit, "command", 1.0, None, begun_ns, time.monotonic_ns())
