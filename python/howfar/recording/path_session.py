"""Opens the laboratory with the present and the target path of a recording, for predictions and replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import cast, get_args

from howfar.contract.messages import Speech
from howfar.errors import UsageError
from howfar.lab.laboratory import LabRequest, open_laboratory
from howfar.lab.link import LOCAL_NETWORK, LinkSpec
from howfar.lab.network import TcpPreset, usable_cpus
from howfar.lab.programs import watching_programs
from howfar.other_programs import MAX_LOST_SHARE, StartWatch
from howfar.paths import Path, find_path
from howfar.plan.sessions import TlsVersion
from howfar.recording.calibration import RecorderCost, Rhythm, calibrate, calibration_s, median_rhythm
from howfar.recording.costs import PathCosts, Sizes, choose_sizes
from howfar.recording.other_programs import BlockWatch, BusyPrograms
from howfar.recording.path_measurement import OpenPath, measure, open_path
from howfar.recording.recording import Recording
from howfar.recording.texts import phrase
from howfar.units import format_duration_ns, format_rate_bps


@dataclass(frozen=True)
class TargetPath:
    """The target path of a prediction or replay."""

    path: Path
    tls: TlsVersion | None
    link: LinkSpec | None
    backend: str
    tcp: TcpPreset
    congestion_control: str
    link_name: str | None = None

    @property
    def label(self) -> str:
        """The path in words: `remote, RTT 0.5ms, 1gbit, TLS 1.3`."""
        parts = [self.path.name]
        if self.path.crosses_link and self.link is not None:
            parts.append(self.link_name or f"RTT {format_duration_ns(self.link.rtt_ns)}")
            if self.link_name is None and self.link.rate_bps is not None:
                parts.append(format_rate_bps(self.link.rate_bps))
        return ", ".join([*parts, *([f"TLS {self.tls}"] if self.tls else [])])


@dataclass(frozen=True)
class PathPair:
    """The present path and the target path, both open."""

    present: OpenPath
    target: OpenPath
    labels: tuple[str, str]
    sizes: Sizes
    rhythm: Rhythm
    recorder: RecorderCost
    """The recorder's cost with this rhythm, measured now, not during the recording."""
    busy_programs: list[BusyPrograms]
    """Other programs that were busy while the recorder's cost and the costs of the paths were measured; empty if unknown."""
    start_watch: StartWatch

    def costs(self, blocks: int, say: Callable[[str], None]) -> tuple[PathCosts, PathCosts]:
        """Measure the costs of both paths. Raises LinkFailed, EngineError."""
        paths = (self.present, self.target)
        (present, target), found = measure(paths, self.labels, self.sizes, self.rhythm, blocks, say, self.start_watch)
        self.busy_programs.extend([found] if found is not None else [])
        return present, target


def find_present_path(recording: Recording) -> Path:
    """The path on which a recording was made. Raises UsageError."""
    transport = recording.facts.transport
    if transport not in ("unix", "tcp"):
        raise UsageError(phrase("error/no-transport", transport=transport), "Record again.")
    return find_path("socket" if transport == "unix" else "tcp")


def present_tls(recording: Recording) -> TlsVersion | None:
    """The TLS version to measure with, or None. The version that the application used is not recorded."""
    return "1.3" if recording.facts.tls else None


def required_protocol(path: Path, recording: Recording) -> Speech:
    """The protocol that the server of a path measurement must speak on this path. Raises UsageError."""
    if not path.protocols:
        return "sizes"  # no program reads the protocol: messages of given sizes
    protocol = recording.facts.protocol
    if protocol not in path.protocols:
        raise UsageError(
            phrase(
                "error/other-protocol",
                path=path.name,
                protocols=" and ".join(path.protocols),
                protocol="unknown" if protocol is None else protocol,
            ),
            "Choose another path.",
        )
    if protocol not in get_args(Speech):
        raise UsageError(
            phrase("error/unspoken-protocol", path=path.name, protocol=protocol),
            "Choose another path; `howfar run hops` measures what the program costs.",
        )
    return cast(Speech, protocol)


def usable_pages(recording: Recording) -> Recording:
    """The recording without unusable pages; if it stopped early, also without pages that ended after its last round trip. Raises
    UsageError."""
    left_out = Counter(f"{page.name}: {page.unusable_reason}" for page in recording.pages if page.unusable_reason)
    if left_out:
        usable = tuple(page for page in recording.pages if not page.unusable_reason)
        if not usable:
            raise UsageError(phrase("error/no-usable-page", reasons="; ".join(left_out)), "Record again.")
        recording = replace(recording, pages=usable, left_out=left_out)
    stopped = recording.facts.stopped
    if stopped is None:
        return recording
    stopped_ns = max((trip.ended_ns for trip in recording.round_trips), default=0)
    pages = tuple(page for page in recording.pages if page.ended_ns <= stopped_ns)
    if not pages:
        raise UsageError(phrase("error/no-whole-page", reason=stopped), "Record again.")
    return replace(recording, pages=pages)


def rhythm_of_recording(recording: Recording) -> Rhythm:
    """The typical round trip of the recording's pages."""
    if recording.facts.rhythm is not None:
        return recording.facts.rhythm
    return median_rhythm(
        (page.id, trip.begun_ns, trip.sent_ns, trip.ended_ns, trip.bytes_to_server, trip.bytes_to_client)
        for page in recording.pages
        for trip in page.round_trips
        if trip.ended_ns > trip.sent_ns
    )


@contextmanager
def open_path_pair(recording: Recording, target: TargetPath, say: Callable[[str], None]) -> Iterator[PathPair]:
    """Open the laboratory with both paths, and measure the recorder's cost there. `say` is called with a message before each
    wait for other programs.

    Raises SandboxForbidden, LabError, MissingError, UsageError.
    """
    trips = [trip for page in recording.pages for trip in page.round_trips]
    if not trips:
        raise UsageError(
            "no round trip of this recording belongs to a page",
            "Mark pages while recording, with `howfar mark`, or record with --gaps.",
        )
    present_path, tls = find_present_path(recording), present_tls(recording)
    speech = required_protocol(target.path, recording)
    request = LabRequest(
        server="none",
        link=target.link or LOCAL_NETWORK,
        backend=target.backend,
        tcp=target.tcp,
        congestion_control=target.congestion_control,
        with_goodput=False,
        paths=(present_path.name, target.path.name),
    )
    with ExitStack() as stack:
        lab = stack.enter_context(open_laboratory(request))
        placement = recording.facts.cpus.without_missing_cpus()
        opened_present = stack.enter_context(open_path(lab, present_path, tls, number=1, placement=placement))
        target_tls = target.tls or (tls if target.path.passes_tls else None)
        opened_target = stack.enter_context(
            open_path(lab, target.path, target_tls, number=2, placement=placement, speech=speech)
        )
        to_server, to_client = opened_target.max_sizes
        sizes = choose_sizes(
            [min(trip.bytes_to_server, to_server) for trip in trips],
            [min(trip.bytes_to_client, to_client) for trip in trips],
        )
        label = present_path.name + (f", TLS {tls}" if tls else "")
        rhythm = rhythm_of_recording(recording)
        start_watch = stack.enter_context(watching_programs())
        max_extra_s = MAX_LOST_SHARE * calibration_s(rhythm)
        watch = BlockWatch(start_watch, lambda extra_s: extra_s < max_extra_s, say)
        recorder = watch.run(
            lambda: calibrate(
                opened_present.path.by_socket,
                rhythm,
                placement,
                lambda cpus: lab.server_host.launcher(cpus or usable_cpus()),
            )
        )
        busy_programs = [found] if (found := watch.found()) is not None else []
        labels = (label, target.label)
        yield PathPair(opened_present, opened_target, labels, sizes, rhythm, recorder, busy_programs, start_watch)
