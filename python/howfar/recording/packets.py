"""Records the round trips in TCP packets that are captured on an interface or read from a file. No program is on the path."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from howfar.contract.messages import PacketsEnded, PacketsJob, Recorded, TapReady
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LabError, MissingError, UsageError, shell_exit_code
from howfar.lab.network import cpu_s_of
from howfar.lab.programs import NONE_MEASURED, MeasuredPrograms, watching_programs
from howfar.recording.collecting import (
    CollectedEvents,
    add_pages,
    collect,
    new_facts,
    new_recording,
    reporting_write_errors,
    wait_for,
)
from howfar.recording.marks import VARIABLE, Marks
from howfar.recording.other_programs import RecordedPrograms, RecordingWatch
from howfar.recording.recording import RecordingFile, TimedPage
from howfar.recording.texts import phrase
from howfar.stopping import forwarding_end_signals_to

_START_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 5.0
_BUFFER_KIB = 65_536
_TUNNELS = " or ".join(
    [
        *(f"udp dst port {port}" for port in (4789, 8472, 6081)),
        *(f"{protocol} proto {number}" for protocol in ("ip", "ip6") for number in (4, 41, 47)),
        *(f"ether proto {kind:#x}" for kind in (0x8100, 0x88A8, 0x9100, 0x8864, 0x8847, 0x8848)),
    ]
)
"""Filter for encapsulated traffic that `tcp port` does not match: VXLAN, GENEVE, IP in IP, GRE, VLANs, PPPoE, MPLS."""
_MAX_REASONS = 5
_TCPDUMP_COUNTS = re.compile(
    rb"(\d+) packets? captured.*?(\d+) packets? received by filter.*?(\d+) packets? dropped", re.DOTALL
)


@dataclass(frozen=True)
class PacketsRequest:
    """The packets to record, and the file to write. Either `interface` or `file` is given."""

    port: int
    address: str | None
    out: Path
    interface: str | None = None
    file: Path | None = None
    command: tuple[str, ...] = ()
    """The command to run during the capture. Without one, the capture lasts for `seconds`, or until it is interrupted."""
    seconds: float | None = None
    gaps: bool = False
    output_fd: int | None = None
    measured: MeasuredPrograms = NONE_MEASURED
    """Programs outside the command that do not count as others: those of the server."""


class PacketReader:
    """An engine process that reads packets from `path`."""

    def __init__(self, path: str, request: PacketsRequest, epoch_ns: int, launcher: Launcher) -> None:
        job = PacketsJob(path=path, port=request.port, address=request.address, epoch_ns=epoch_ns)
        self._process = EngineProcess(job, launcher)
        assert isinstance(self._process.read(), TapReady), "the first message of the engine is TapReady"

    def events(self) -> Iterator[Recorded | PacketsEnded]:
        """Yield all events, including the last. Raises EngineError."""
        while True:
            event = self._process.read()
            assert isinstance(event, Recorded | PacketsEnded), "a reader of packets sends no other events"
            yield event
            if isinstance(event, PacketsEnded):
                self._process.close()
                return

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        return cpu_s_of(self._process.pid)


class Tcpdump:
    """A tcpdump process that writes the captured packets to a pipe. Use as a context manager."""

    def __init__(self, request: PacketsRequest, output_fd: int) -> None:
        host = f" and host {request.address}" if request.address else ""
        # Until a packet arrives, tcpdump does not notice that its reader has ended, so the kernel signals it when this process dies.
        # `-Z root` keeps its credentials, because changing them would cancel that signal. tcpdump only writes packets here: it parses
        # nothing as root.
        command = ["setpriv", "--pdeathsig", "TERM", "--", "tcpdump", "-i", str(request.interface), "-n", "-s", "0"]
        command += [*(("-Z", "root") if os.geteuid() == 0 else ()), "-U", "-B", str(_BUFFER_KIB), "-w", "-"]
        command += ["--time-stamp-precision=nano", f"(tcp port {request.port}{host}) or {_TUNNELS}"]
        if shutil.which("tcpdump") is None:
            raise MissingError("tcpdump was not found", "`howfar setup --capture` installs it; or use --pcap.")
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output_fd, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise MissingError(f"setpriv: {error.strerror}", "Install Debian's util-linux.") from error
        messages = self._read_messages(b"listening on", _START_TIMEOUT_S)
        if b"listening on" not in messages:
            self._process.kill()
            self._process.wait()
            advice = "Is it the name of an interface (`ip link`)?"
            if os.geteuid() != 0:
                advice = "Run as root."
            elif b"not permitted" in messages:
                advice = "A container needs --cap-add NET_RAW to capture, and a user namespace more users than root. Or use --pcap."
            reason = phrase("error/tcpdump", reason=messages.decode(errors="replace").strip()[:500])
            raise LabError(reason, advice)

    def _read_messages(self, end: bytes, timeout_s: float) -> bytes:
        assert self._process.stderr is not None
        messages, deadline = b"", time.monotonic() + timeout_s
        while end not in messages and (remaining_s := deadline - time.monotonic()) > 0:
            if select.select([self._process.stderr], [], [], remaining_s)[0]:
                chunk = os.read(self._process.stderr.fileno(), 4096)
                if not chunk:
                    break
                messages += chunk
        return messages

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        return cpu_s_of(self._process.pid)

    def is_capturing(self) -> bool:
        """Whether tcpdump still runs: it ends if its interface disappears."""
        return self._process.poll() is None

    def end(self) -> int:
        """End the capture after all received packets are written. Returns how many packets the kernel dropped."""
        deadline, dropped = time.monotonic() + _EXIT_TIMEOUT_S, 0
        while time.monotonic() < deadline and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)
            totals = _TCPDUMP_COUNTS.search(self._read_messages(b"dropped", 1.0))
            if totals is None:
                continue
            captured, received, dropped = (int(number) for number in totals.groups())
            if captured >= received - dropped:
                break
            time.sleep(0.05)  # then request the totals again
        return dropped

    def __enter__(self) -> Tcpdump:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        self._process.kill()
        self._process.wait()


def record(request: PacketsRequest, say: Callable[[str], None]) -> int:
    """Record packets; returns the command's exit code, 0 without one.

    Raises UsageError, LabError, MissingError, EngineError, RunFileError.
    """
    name = Path(request.command[0]).name if request.command else None
    facts = new_facts("pcap" if request.file else "packets", "tcp", name)
    with new_recording(request.out, facts) as file:
        collected = CollectedEvents()
        if request.file is not None:
            collect(PacketReader(str(request.file.resolve()), request, 0, Launcher()), file, collected)
            capture = _LiveCapture()
        else:
            capture = _capture_live(request, file, collected, say)
        if not collected.round_trips and collected.stopped is not None:
            raise UsageError(
                phrase("error/nothing-recorded", reason=collected.stopped),
                "A file must be pcap or pcapng, as `tcpdump -w` writes it." if request.file else "Record again.",
            )
        if not collected.round_trips:
            raise UsageError(
                phrase("error/no-packet", port=request.port, kinds=_packet_kinds_text(collected)),
                "Is --server the address in the packets? Only TCP has packets, a Unix socket does not.",
            )
        with reporting_write_errors(file, say):
            _finish(file, request, collected, capture)
        return capture.code


def _packet_kinds_text(collected: CollectedEvents) -> str:
    """The kinds of packets that were captured, the most frequent first, as the end of a sentence."""
    ended = collected.ended
    if not isinstance(ended, PacketsEnded):
        return ""
    counts = Counter(ended.skipped)
    if ended.packets:
        counts["of its connections, without an answered request"] = ended.packets
    if not counts:
        return phrase("error/no-packets")
    descriptions = [f"{count:,} are {reason}" for reason, count in counts.most_common(_MAX_REASONS)]
    other_packets = counts.total() - sum(count for _, count in counts.most_common(_MAX_REASONS))
    descriptions += [f"{other_packets:,} are others"] if other_packets else []
    return phrase("error/packet-kinds", packets=counts.total(), kinds=", ".join(descriptions))


def _finish(file: RecordingFile, request: PacketsRequest, collected: CollectedEvents, capture: _LiveCapture) -> None:
    ended = collected.ended
    assert ended is None or isinstance(ended, PacketsEnded), "a reader of packets ends with PacketsEnded"
    unknown = {
        **add_pages(file, capture.marks, capture.run_page, request.gaps),
        "packets dropped by the kernel": capture.dropped,
        "bytes that were not captured": ended.missing if ended else 0,
    }
    facts = collected.facts(unknown, capture.code)
    facts.capture_cpus, facts.others = capture.cpus, capture.others
    if ended is not None:
        facts.repeated_syns, facts.repeated_syns_ns = ended.repeated_syns, ended.repeated_syns_ns
    file.finish(facts)


@dataclass(frozen=True)
class _LiveCapture:
    """Results of a live capture other than its round trips; all have their defaults if a file is read."""

    marks: Marks | None = None
    run_page: TimedPage | None = None
    code: int = 0
    dropped: int = 0
    """Packets that the kernel dropped."""
    cpus: float | None = None
    """Mean number of CPUs that the capture kept busy, without the kernel's time for copying packets."""
    others: RecordedPrograms | None = None


def _capture_live(
    request: PacketsRequest, file: RecordingFile, collected: CollectedEvents, say: Callable[[str], None]
) -> _LiveCapture:
    read_end, write_end = os.pipe()
    epoch_ns = time.time_ns() - time.monotonic_ns()
    with ExitStack() as stack:
        # The reader has its own session, so an interrupt from the terminal ends the capture, but not the reading of captured packets.
        reader = PacketReader(f"/proc/self/fd/{read_end}", request, epoch_ns, Launcher(("setsid",), (read_end,)))
        marks = stack.enter_context(Marks())
        try:
            tcpdump = stack.enter_context(Tcpdump(request, write_end))
        finally:
            os.close(write_end)
            os.close(read_end)
        collector = Thread(target=collect, args=(reader, file, collected, marks), name="collect", daemon=True)
        collector.start()
        say(phrase("say/recording/packets", interface=request.interface))

        def cpu_used_s() -> float:
            return tcpdump.cpu_s() + reader.cpu_s() + time.process_time()

        begun_s, begun_ns = cpu_used_s(), time.monotonic_ns()
        with RecordingWatch(stack.enter_context(watching_programs(request.measured))) as others:
            code = _run_or_wait(request, marks)
        ended_ns = time.monotonic_ns()
        dropped = tcpdump.end()
        is_complete = tcpdump.is_capturing()
        cpus = (cpu_used_s() - begun_s) / ((time.monotonic_ns() - begun_ns) / 1e9) if is_complete else None
        stack.close()
    collector.join()
    if not is_complete:
        collected.stopped = collected.stopped or "tcpdump ended before the recording did; is the interface gone?"
    name = Path(request.command[0]).name if request.command else "all"
    return _LiveCapture(
        marks,
        TimedPage(1, name, "command", 1.0, None, begun_ns, ended_ns),
        code,
        dropped,
        cpus,
        others.found(are_others=bool(request.command)),
    )


def _run_or_wait(request: PacketsRequest, marks: Marks) -> int:
    if not request.command:
        wait_for(request.seconds)
        return 0
    environment = {**os.environ, VARIABLE: marks.address}
    try:
        process = subprocess.Popen(request.command, env=environment, stdout=request.output_fd)
    except OSError as error:
        raise UsageError(f"{request.command[0]}: {error.strerror}", "Try the command alone first.") from error
    with forwarding_end_signals_to(process):
        return shell_exit_code(process.wait())
