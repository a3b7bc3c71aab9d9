"""Computes what the round trips of a recorded page cost on two paths, and the page's time on the target path. No I/O; the entry point
is `cost_pages`.

If round trips overlap, it is unknown which of them wait for others, so the predicted time of the page is a range."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from howfar.contract.messages import RecordedConnection, RecordedDigest
from howfar.recording.costs import PathCosts, SlowStartWindow
from howfar.recording.kinds import TripKind, classify_round_trip
from howfar.recording.recording import Recording, RoundTrip, TimedPage
from howfar.services import SERVICES


@dataclass(frozen=True)
class Trip:
    """A round trip that its page waited for."""

    number: int
    """Position among the round trips that the page waited for."""
    connection: int
    digest: RecordedDigest | None
    command: str
    kind: TripKind
    keys: int | None
    phase: str
    begun_ns: int
    took_ns: int
    gap_ns: int
    """Time between the previous round trip and this one, including the time that the tap added."""
    to_server: int
    to_client: int
    rounds: tuple[int, ...] = ()
    """Bytes of each slow-start round before the answer's last; on a link, the answer waits for these rounds."""
    failed: bool = False
    """Whether the server refused the request."""
    ack_wait_ns: int = 0
    """How long the rest of the request waited for the acknowledgement of its first part."""

    @property
    def text(self) -> str:
        """The statement without literals, or the command."""
        return self.command if self.digest is None else self.digest.text


@dataclass(frozen=True)
class PathTimes:
    """Costs of round trips on both paths; arrays of shape (blocks, round trips)."""

    present_cost_ns: np.ndarray
    target_cost_ns: np.ndarray
    """Cost on the target path, including `slow_ns` and `ack_ns`."""
    slow_ns: np.ndarray
    """Waits for the congestion window."""
    ack_ns: np.ndarray
    """Time between the two writes of a request, including the round trip of the acknowledgement."""

    @property
    def added_ns(self) -> np.ndarray:
        return np.asarray(self.target_cost_ns - self.present_cost_ns)


@dataclass(frozen=True)
class OverlapRange:
    """Range of a page's time on the target path, by block, if its round trips overlap: it is unknown which of them wait for others."""

    shortest_ns: np.ndarray
    """The page's time if no connection waits for another: that of the longest chain, the round trips of one connection. A chain
    includes the application's time before a round trip only from the last answer on any connection."""
    longest_ns: np.ndarray
    """Time if the recorded order of round trips is kept."""
    longest_chain: int
    """ID of the connection of the longest chain."""
    chain_rtts: int
    """Number of round trips in this chain, including those of its connect."""


@dataclass(frozen=True)
class CostedPage:
    """One recorded page without the time that the tap added, and the costs of its round trips on both paths."""

    page: TimedPage
    trips: tuple[Trip, ...]
    overlapped: int
    """Number of round trips that are not in `trips`, because they overlapped a longer one."""
    took_ns: float
    path: PathTimes
    smallest_ns: np.ndarray
    """Cost of a round trip of the smallest sizes on the target path, by block."""
    added_connect_ns_by_connection: Mapping[int, np.ndarray]
    """Added time of connecting on the target path compared with the present one, by block and connection that the page opened."""
    target_connect_ns: np.ndarray
    """Total time for connecting on the target path, without logins, by block, for all connections that the page opened."""
    connect_rtts: int
    """Number of unrecorded round trips for connecting on the target path."""
    waking_ns: float = 0.0
    """See `PathCosts.waking_ns`; for the target path."""
    floor_ns: float | None = None
    """Time of a round trip between recorder and server, without server work. The time to wake the recorder is not included: it is part
    of the recorded gap before the round trip. If None (unknown), the application is assumed to wait for the observed time."""
    overlap_range: OverlapRange | None = None
    """None if the page's round trips do not overlap."""

    @property
    def opened_connections(self) -> Set[int]:
        """Connections that the page opened."""
        return self.added_connect_ns_by_connection.keys()

    @property
    def connects(self) -> int:
        return len(self.added_connect_ns_by_connection)

    @property
    def added_connect_ns(self) -> np.ndarray:
        """How much longer connecting takes on the target path than on the present one, by block, for all connections of the page."""
        return sum(self.added_connect_ns_by_connection.values(), np.zeros(len(self.path.target_cost_ns)))

    @property
    def rtts(self) -> float:
        """Number of RTTs of the target path that the page waits for, without slow start."""
        sequential_rtts = len(self.trips) + sum(trip.ack_wait_ns > 0 for trip in self.trips) + self.connect_rtts
        return sequential_rtts if self.overlap_range is None else (sequential_rtts + self.overlap_range.chain_rtts) / 2

    @cached_property
    def observed_ns(self) -> np.ndarray:
        """The recorded time of each round trip."""
        return np.asarray([trip.took_ns for trip in self.trips], dtype=float)

    @cached_property
    def application_ns(self) -> float:
        """The application's own time in the page."""
        return max(self.took_ns - float((self.observed_ns + self.unseen_ns).sum()), 0.0)

    @cached_property
    def unseen_ns(self) -> np.ndarray:
        """For each round trip, the time for which the application waited before and after the recorder saw it. Recorded gaps include
        this time; `application_ns` does not."""
        return np.asarray(np.maximum(self.path.present_cost_ns.mean(axis=0) - self.path_ns.mean(axis=0), 0.0))

    @cached_property
    def application_gaps_ns(self) -> np.ndarray:
        """The application's own time before each round trip, without `unseen_ns` and without the time that the tap added."""
        tap_ns = (self.page.took_ns - self.took_ns) / max(len(self.trips), 1)
        return np.asarray(np.maximum([trip.gap_ns - tap_ns for trip in self.trips] - self.unseen_ns, 0.0))

    @property
    def path_ns(self) -> np.ndarray:
        """The part of the observed time that the path took, shape (blocks, round trips)."""
        if self.floor_ns is None:
            return self.path.present_cost_ns
        return np.full_like(self.path.present_cost_ns, self.floor_ns) + [trip.ack_wait_ns for trip in self.trips]

    @cached_property
    def server_ns(self) -> np.ndarray:
        """The server's time for each round trip, at least 0; shape (blocks, round trips)."""
        return np.asarray(np.maximum(self.observed_ns - self.path_ns, 0.0))

    @property
    def clipped(self) -> float:
        """The share of round trips that took less time than the path should take; their server time is set to 0."""
        return float((self.observed_ns < self.path_ns.mean(axis=0)).mean()) if self.trips else 0.0

    @cached_property
    def predicted_ns(self) -> np.ndarray:
        """The page's time on the target path, by block; the middle of the range if only a range is known."""
        return np.asarray((self.range_ns[0] + self.range_ns[1]) / 2)

    @cached_property
    def range_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """The shortest and the longest time of the page on the target path, by block. Negative server times are not set to 0 here, so
        that errors of both signs cancel in the sum."""
        if self.overlap_range is not None:
            return self.overlap_range.shortest_ns, self.overlap_range.longest_ns
        time_ns = np.maximum(self.took_ns + self.path.added_ns.sum(axis=1) + self.added_connect_ns, 0.0)
        return time_ns, time_ns

    def present_ns(self, shift_ns: float) -> np.ndarray:
        """The page's time on the present path as it is now, by block. `shift_ns`: how much longer a round trip without server work
        takes now than at the recording, both measured by the recorder."""
        path_ns = self.path_ns.sum(axis=1)
        server_ns = np.maximum(self.observed_ns.sum() - path_ns, 0.0)
        outside_ns = max(self.took_ns - float(self.observed_ns.sum()), 0.0)
        return np.asarray(outside_ns + server_ns + path_ns + shift_ns * len(self.trips))


def cost_pages(recording: Recording, present: PathCosts, target: PathCosts) -> dict[str, list[CostedPage]]:
    """Compute the costs of all pages that made a round trip and share none with another page. Returns the pages by name."""
    pages_by_name: dict[str, list[CostedPage]] = {}
    rounds = _slow_start_rounds(recording)
    for page in recording.pages:
        trips, overlapped = sequential_trips(page, recording, rounds)
        if trips and not page.contested:
            costed = _cost_page(page, trips, overlapped, recording, present, target)
            pages_by_name.setdefault(page.name, []).append(costed)
    for name, pages in pages_by_name.items():
        if any(page.overlapped for page in pages):
            pages_by_name[name] = [_with_overlap_range(page, recording, rounds, present, target) for page in pages]
    return pages_by_name


def _with_overlap_range(
    costed: CostedPage,
    recording: Recording,
    rounds: Mapping[int, tuple[int, ...]],
    present: PathCosts,
    target: PathCosts,
) -> CostedPage:
    """The page with the range of its time. Round trips that do not wait for each other may have another order at another RTT."""
    groups = group_overlapping(costed.page)
    trips = [trip for group in groups for trip in group]
    added_ns = _path_times([_make_trip(trip, recording, rounds) for trip in trips], present, target).added_ns.T
    added_ns_by_trip_id = {trip.id: added_ns[index] for index, trip in enumerate(trips)}
    recorded_order_ns = costed.took_ns + costed.added_connect_ns
    for group in groups:
        added_by_connection = defaultdict[int, np.ndarray](lambda: np.zeros_like(costed.added_connect_ns))
        for trip in group:
            added_by_connection[trip.connection_id] += added_ns_by_trip_id[trip.id]
        recorded_order_ns = recorded_order_ns + np.max(list(added_by_connection.values()), axis=0)
    chain_ns = {
        connection: costed.added_connect_ns_by_connection.get(connection, np.zeros_like(costed.added_connect_ns))
        for connection in {trip.connection_id for trip in trips}
    }
    answer_ends = [costed.page.begun_ns]
    for trip in trips:
        # The application may have waited for any earlier answer, so only its time after the last of these is certain.
        last_answer_ns = answer_ends[bisect_right(answer_ends, max(trip.begun_ns, answer_ends[0])) - 1]
        application_ns = trip.begun_ns - last_answer_ns - tap_ns(recording)
        took_ns = max(application_ns, 0) + trip.ended_ns - trip.begun_ns
        chain_ns[trip.connection_id] = chain_ns[trip.connection_id] + took_ns + added_ns_by_trip_id[trip.id]
        insort(answer_ends, trip.ended_ns)
    longest_chain = max(chain_ns, key=lambda connection: float(chain_ns[connection].mean()))
    independent_ns = np.maximum(chain_ns[longest_chain], np.minimum(costed.took_ns, recorded_order_ns))
    shortest, longest = (
        np.maximum(choose_limit(independent_ns, recorded_order_ns), 0.0) for choose_limit in (np.minimum, np.maximum)
    )
    chain_trips = sum(trip.connection_id == longest_chain for trip in trips)
    chain_connects = (
        round(costed.connect_rtts / costed.connects) if longest_chain in costed.added_connect_ns_by_connection else 0
    )
    return replace(costed, overlap_range=OverlapRange(shortest, longest, longest_chain, chain_trips + chain_connects))


def _slow_start_rounds(recording: Recording) -> dict[int, tuple[int, ...]]:
    """Slow-start rounds of each round trip, by its ID. A congestion window lasts as long as its connection, also across pages."""
    windows: dict[int, tuple[SlowStartWindow, int]] = {}
    rounds = {}
    for trip in recording.round_trips:
        window, ended_ns = windows.get(trip.connection_id, (SlowStartWindow(), trip.begun_ns))
        window.apply_idle_time(max(trip.begun_ns - ended_ns, 0))
        rounds[trip.id] = window.earlier_rounds(trip.bytes_to_client)
        windows[trip.connection_id] = window, trip.ended_ns
    return rounds


def sequential_trips(
    page: TimedPage, recording: Recording, rounds: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[Trip, ...], int]:
    """Round trips that the page waited for one after another, and the number of the others. Of round trips that overlap, only the
    longest counts; the rest of the others' time becomes part of a gap."""
    groups = group_overlapping(page)
    trips, previous_end_ns = [], page.begun_ns
    for position, group in enumerate(groups):
        longest = max(group, key=lambda trip: trip.ended_ns - trip.begun_ns)
        trips.append(_make_trip(longest, recording, rounds, position, max(longest.begun_ns - previous_end_ns, 0)))
        previous_end_ns = longest.ended_ns
    return tuple(trips), sum(map(len, groups)) - len(groups)


def group_overlapping(page: TimedPage) -> list[list[RoundTrip]]:
    """Group the answered round trips: those of a group overlap, directly or through others of the group."""
    groups: list[list[RoundTrip]] = []
    group_end_ns = page.begun_ns
    for trip in page.round_trips:
        if not trip.is_answered:
            continue
        if groups and trip.begun_ns < group_end_ns:
            groups[-1].append(trip)
        else:
            groups.append([trip])
        group_end_ns = max(group_end_ns, trip.ended_ns)
    return groups


def _make_trip(
    trip: RoundTrip, recording: Recording, rounds: Mapping[int, tuple[int, ...]], number: int = 0, gap_ns: int = 0
) -> Trip:
    digest = None if trip.digest_id is None else recording.digest_by_id.get(trip.digest_id)
    return Trip(
        number=number,
        connection=trip.connection_id,
        digest=digest,
        command=trip.command,
        kind=classify_round_trip(trip.phase, trip.command, trip.command if digest is None else digest.text),
        keys=trip.keys,
        phase=trip.phase,
        begun_ns=trip.begun_ns,
        took_ns=trip.ended_ns - trip.begun_ns,
        gap_ns=gap_ns,
        to_server=trip.bytes_to_server,
        to_client=trip.bytes_to_client,
        rounds=rounds.get(trip.id, ()),
        failed=trip.failed,
        ack_wait_ns=recording.ack_wait_ns(trip),
    )


def _cost_page(
    page: TimedPage,
    trips: tuple[Trip, ...],
    overlapped: int,
    recording: Recording,
    present: PathCosts,
    target: PathCosts,
) -> CostedPage:
    path = _path_times(trips, present, target)
    opened = _opened_connections(page, recording)
    unrecorded = {connection.id: _unrecorded_connect_round_trips(connection, page, target) for connection in opened}
    added_connect_ns, added_round_trip_ns = (
        target.connect_ns - present.connect_ns,
        target.smallest_ns - present.smallest_ns,
    )
    return CostedPage(
        page=page,
        trips=trips,
        overlapped=overlapped,
        took_ns=max(page.took_ns - len(trips) * tap_ns(recording), 1.0),
        path=path,
        smallest_ns=target.smallest_ns,
        added_connect_ns_by_connection={
            connection.id: added_connect_ns + unrecorded[connection.id] * added_round_trip_ns for connection in opened
        },
        target_connect_ns=len(opened) * target.connect_ns,
        connect_rtts=len(opened) * (1 + target.encrypted) + sum(unrecorded.values()),
        waking_ns=target.waking_ns,
        floor_ns=recording.facts.floor_ns or None,
    )


def _path_times(trips: Sequence[Trip], present: PathCosts, target: PathCosts) -> PathTimes:
    to_server, to_client = [trip.to_server for trip in trips], [trip.to_client for trip in trips]
    slow_ns = target.slow_start_ns([trip.rounds for trip in trips])
    ack_ns = _ack_ns(trips, present, target)
    return PathTimes(
        present_cost_ns=present.costs_ns(to_server, to_client) + [trip.ack_wait_ns for trip in trips],
        target_cost_ns=target.costs_ns(to_server, to_client) + slow_ns + ack_ns,
        slow_ns=slow_ns,
        ack_ns=ack_ns,
    )


def _ack_ns(trips: Sequence[Trip], present: PathCosts, target: PathCosts) -> np.ndarray:
    """Time between the two writes of a request on the target path, shape (blocks, round trips); 0 for a request sent in one write.
    A second write waits for the acknowledgement of the first, which takes a round trip."""
    waits = np.asarray([trip.ack_wait_ns for trip in trips], dtype=float)
    added_ns = (target.smallest_ns - present.smallest_ns)[:, None]
    return np.asarray(np.maximum(waits + added_ns, 0.0) * ((waits > 0) & (not target.by_socket)))


def tap_ns(recording: Recording) -> float:
    """Time that the tap added to each round trip."""
    return recording.facts.tap_ns or 0


def _opened_connections(page: TimedPage, recording: Recording) -> list[RecordedConnection]:
    """Connections that the page opened."""
    connection_ids = {trip.connection_id for trip in page.round_trips}
    connections = [
        recording.connection_by_id[connection_id]
        for connection_id in connection_ids
        if connection_id in recording.connection_by_id
    ]
    return [connection for connection in connections if connection.opened_ns >= page.begun_ns]


def _unrecorded_connect_round_trips(connection: RecordedConnection, page: TimedPage, target: PathCosts) -> int:
    """Number of round trips of a connect that are neither recorded nor included in the target path's connect time."""
    recorded = [trip for trip in page.round_trips if trip.connection_id == connection.id and trip.phase == "connect"]
    unrecorded = max(connection.login_round_trips - len(recorded), 0)
    if not target.encrypted:
        return unrecorded
    if connection.tls:
        return unrecorded - 1  # the handshake's round trip is recorded and also part of the connect time
    return unrecorded + (connection.protocol in SERVICES and SERVICES[connection.protocol].asks_for_tls)


def median_pages(pages: Sequence[CostedPage], took_ns: Callable[[CostedPage], float]) -> list[CostedPage]:
    """The page of median time, or the two around the median."""
    ordered = sorted(pages, key=took_ns)
    return ordered[(len(pages) - 1) // 2 : len(pages) // 2 + 1]
