"""A recorded page laid out on two paths: the cost of its round trips on each, and the page's time there. Pure; the entry point is
`lay_out`.

If round trips overlap, it is not known which wait for which: the time of such a page is a range."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from howfar.recording.costs import PathCosts, Window
from howfar.recording.kinds import Kind, kind_of
from howfar.recording.recording import Connection, Digest, Page, Recording, RoundTrip
from howfar.services import SERVICES


@dataclass(frozen=True)
class Trip:
    """A round trip that its page waited for."""

    number: int
    connection: int
    digest: Digest | None
    command: str
    kind: Kind
    keys: int | None
    phase: str
    begun_ns: int
    took_ns: int
    gap_ns: int
    """Time before the round trip, including the tap's share."""
    to_server: int
    to_client: int
    rounds: tuple[int, ...] = ()
    """Bytes of each slow-start round that the answer waits for on a link."""
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

    now_ns: np.ndarray
    there_ns: np.ndarray
    """Cost on the target path, including `slow_ns` and `ack_ns`."""
    slow_ns: np.ndarray
    """Waits for the congestion window."""
    ack_ns: np.ndarray
    """Time between the two writes of a request, including the round trip of the acknowledgement."""

    @property
    def added_ns(self) -> np.ndarray:
        return np.asarray(self.there_ns - self.now_ns)


@dataclass(frozen=True)
class Concurrent:
    """Range of the time on the target path, by block, of a page whose round trips overlap: it is not known which wait for which."""

    shortest_ns: np.ndarray
    """Time if no connection waits for another: that of the longest chain of round trips on one connection. Of the application's time
    before each round trip, the chain includes only the part after the last answer on any connection."""
    longest_ns: np.ndarray
    """Time if the recorded order of round trips is kept."""
    chain: int
    """Connection of the longest chain."""
    rtts: int
    """Number of round trips in this chain, including those of its connect."""


@dataclass(frozen=True)
class LaidPage:
    """One recorded page without the time that the tap added, and the costs of its round trips on both paths."""

    page: Page
    trips: tuple[Trip, ...]
    overlapped: int
    """Number of round trips that overlapped a longer one and do not count as waited for."""
    took_ns: float
    path: PathTimes
    smallest_ns: np.ndarray
    """Cost of a round trip of the smallest sizes on the target path, by block."""
    connecting_ns: Mapping[int, np.ndarray]
    """Time that connecting adds on the target path, by block, for each connection that the page opened."""
    connect_whole_ns: np.ndarray
    """Total time for connecting on the target path, before the login, by block."""
    connect_rtts: int
    """Round trips of connecting on the target path that are not among the recorded ones."""
    waking_ns: float = 0.0
    """See `PathCosts.waking_ns`; for the target path."""
    floor_ns: float | None = None
    """Time of a round trip without work between recorder and server. The time to wake the recorder is not included; it is in the gap
    before. None if unknown: the observed time is then the application's wait."""
    concurrent: Concurrent | None = None
    """None if its round trips do not overlap."""

    @property
    def now_ns(self) -> np.ndarray:
        """Cost on the present path, shape (blocks, round trips)."""
        return self.path.now_ns

    @property
    def there_ns(self) -> np.ndarray:
        """Cost on the target path, shape (blocks, round trips)."""
        return self.path.there_ns

    @property
    def opened(self) -> Set[int]:
        """Connections that the page opened."""
        return self.connecting_ns.keys()

    @property
    def connects(self) -> int:
        return len(self.connecting_ns)

    @property
    def connect_ns(self) -> np.ndarray:
        """Time that connecting adds on the target path, by block, for all connections of the page."""
        return sum(self.connecting_ns.values(), np.zeros(len(self.there_ns)))

    @property
    def rtts(self) -> float:
        """Number of RTTs of the target path that the page waits for, without slow start."""
        found = len(self.trips) + sum(trip.ack_wait_ns > 0 for trip in self.trips) + self.connect_rtts
        return found if self.concurrent is None else (found + self.concurrent.rtts) / 2

    @cached_property
    def observed_ns(self) -> np.ndarray:
        return np.asarray([trip.took_ns for trip in self.trips], dtype=float)

    @cached_property
    def gaps_ns(self) -> float:
        """The application's own time."""
        return max(self.took_ns - float((self.observed_ns + self.unseen_ns).sum()), 0.0)

    @cached_property
    def unseen_ns(self) -> np.ndarray:
        """Time that the application waited for each round trip before and after the recorder saw it. Recorded gaps include it,
        `gaps_ns` does not."""
        return np.asarray(np.maximum(self.now_ns.mean(axis=0) - self.path_ns.mean(axis=0), 0.0))

    @cached_property
    def own_ns(self) -> np.ndarray:
        """The application's time before each round trip, without what the recorder added or did not see."""
        tap_ns = (self.page.took_ns - self.took_ns) / max(len(self.trips), 1)
        return np.asarray(np.maximum([trip.gap_ns - tap_ns for trip in self.trips] - self.unseen_ns, 0.0))

    @property
    def path_ns(self) -> np.ndarray:
        """The path's part of the observed time, shape (blocks, round trips)."""
        if self.floor_ns is None:
            return self.now_ns
        return np.full_like(self.now_ns, self.floor_ns) + [trip.ack_wait_ns for trip in self.trips]

    @cached_property
    def server_ns(self) -> np.ndarray:
        """The server's time for each round trip, at least 0; shape (blocks, round trips)."""
        return np.asarray(np.maximum(self.observed_ns - self.path_ns, 0.0))

    @property
    def clipped(self) -> float:
        """The share of round trips that took less than their path."""
        return float((self.observed_ns < self.path_ns.mean(axis=0)).mean()) if self.trips else 0.0

    @cached_property
    def predicted_ns(self) -> np.ndarray:
        """The time on the target path, by block; the middle of the range if only a range is known."""
        return np.asarray((self.range_ns[0] + self.range_ns[1]) / 2)

    @cached_property
    def range_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """The shortest and the longest time on the target path, by block. Server times are not clipped at 0 here, so that errors of
        both signs cancel in the sum."""
        if self.concurrent is not None:
            return self.concurrent.shortest_ns, self.concurrent.longest_ns
        found = np.maximum(self.took_ns + self.path.added_ns.sum(axis=1) + self.connect_ns, 0.0)
        return found, found

    def present_ns(self, shift_ns: float) -> np.ndarray:
        """The time on the present path in its current state, by block. `shift_ns`: how much longer a round trip without work takes now
        than during the recording, by the recorder's own measure."""
        path_ns = self.path_ns.sum(axis=1)
        server_ns = np.maximum(self.observed_ns.sum() - path_ns, 0.0)
        beside_ns = max(self.took_ns - float(self.observed_ns.sum()), 0.0)
        return np.asarray(beside_ns + server_ns + path_ns + shift_ns * len(self.trips))


def lay_out(recording: Recording, present: PathCosts, target: PathCosts) -> dict[str, list[LaidPage]]:
    """Lay out all pages that made a round trip and share none with another page; by name."""
    found: dict[str, list[LaidPage]] = {}
    rounds = _rounds(recording)
    for page in recording.pages:
        trips, overlapped = waited_for(page, recording, rounds)
        if trips and not page.contested:
            laid = _laid(page, trips, overlapped, recording, present, target)
            found.setdefault(page.name, []).append(laid)
    for name, pages in found.items():
        if any(page.overlapped for page in pages):
            found[name] = [_concurrent(page, recording, rounds, present, target) for page in pages]
    return found


def _concurrent(
    laid: LaidPage,
    recording: Recording,
    rounds: Mapping[int, tuple[int, ...]],
    present: PathCosts,
    target: PathCosts,
) -> LaidPage:
    """The page with the range of its time. The order of round trips that do not wait for each other depends on the RTT, so it may
    differ at another RTT."""
    clusters = overlapping(laid.page)
    trips = [trip for cluster in clusters for trip in cluster]
    added = _path_times([_trip(trip, recording, rounds) for trip in trips], present, target).added_ns.T
    by_id = {trip.id: added[number] for number, trip in enumerate(trips)}
    in_order = laid.took_ns + laid.connect_ns
    for cluster in clusters:
        within = defaultdict[int, np.ndarray](lambda: np.zeros_like(laid.connect_ns))
        for trip in cluster:
            within[trip.connection_id] += by_id[trip.id]
        in_order = in_order + np.max(list(within.values()), axis=0)
    chains = {
        one: laid.connecting_ns.get(one, np.zeros_like(laid.connect_ns)) for one in {t.connection_id for t in trips}
    }
    ends = [laid.page.begun_ns]
    for trip in trips:
        # It may have waited for any earlier answer, so only the application's time after the last of these is certain.
        own_ns = trip.begun_ns - ends[bisect_right(ends, max(trip.begun_ns, ends[0])) - 1] - tap_ns(recording)
        took_ns = max(own_ns, 0) + trip.ended_ns - trip.begun_ns
        chains[trip.connection_id] = chains[trip.connection_id] + took_ns + by_id[trip.id]
        insort(ends, trip.ended_ns)
    last = max(chains, key=lambda one: float(chains[one].mean()))
    alone = np.maximum(chains[last], np.minimum(laid.took_ns, in_order))
    shortest, longest = (np.maximum(limit(alone, in_order), 0.0) for limit in (np.minimum, np.maximum))
    count = sum(trip.connection_id == last for trip in trips)
    connects = round(laid.connect_rtts / laid.connects) if last in laid.connecting_ns else 0
    return replace(laid, concurrent=Concurrent(shortest, longest, last, count + connects))


def _rounds(recording: Recording) -> dict[int, tuple[int, ...]]:
    """Slow-start rounds of each round trip. A congestion window persists from page to page, as long as its connection."""
    windows: dict[int, tuple[Window, int]] = {}
    found = {}
    for trip in recording.round_trips:
        window, ended_ns = windows.get(trip.connection_id, (Window(), trip.begun_ns))
        window.rest(max(trip.begun_ns - ended_ns, 0))
        found[trip.id] = window.earlier_rounds(trip.bytes_to_client)
        windows[trip.connection_id] = window, trip.ended_ns
    return found


def waited_for(page: Page, recording: Recording, rounds: Mapping[int, tuple[int, ...]]) -> tuple[tuple[Trip, ...], int]:
    """Round trips that the page waited for in sequence, and the number of the others. Of overlapping ones the longest counts; the rest
    of their time is a gap."""
    found = overlapping(page)
    trips, before = [], page.begun_ns
    for number, cluster in enumerate(found):
        longest = max(cluster, key=lambda trip: trip.ended_ns - trip.begun_ns)
        trips.append(_trip(longest, recording, rounds, number, max(longest.begun_ns - before, 0)))
        before = longest.ended_ns
    return tuple(trips), sum(map(len, found)) - len(found)


def overlapping(page: Page) -> list[list[RoundTrip]]:
    """Answered round trips in groups that overlap, directly or through others."""
    found: list[list[RoundTrip]] = []
    end = page.begun_ns
    for trip in page.round_trips:
        if not trip.is_answered:
            continue
        if found and trip.begun_ns < end:
            found[-1].append(trip)
        else:
            found.append([trip])
        end = max(end, trip.ended_ns)
    return found


def _trip(
    one: RoundTrip, recording: Recording, rounds: Mapping[int, tuple[int, ...]], number: int = 0, gap_ns: int = 0
) -> Trip:
    digest = None if one.digest_id is None else recording.digest_by_id.get(one.digest_id)
    return Trip(
        number=number,
        connection=one.connection_id,
        digest=digest,
        command=one.command,
        kind=kind_of(one.phase, one.command, one.command if digest is None else digest.text),
        keys=one.keys,
        phase=one.phase,
        begun_ns=one.begun_ns,
        took_ns=one.ended_ns - one.begun_ns,
        gap_ns=gap_ns,
        to_server=one.bytes_to_server,
        to_client=one.bytes_to_client,
        rounds=rounds.get(one.id, ()),
        failed=one.failed,
        ack_wait_ns=recording.ack_wait_ns(one),
    )


def _laid(
    page: Page,
    trips: tuple[Trip, ...],
    overlapped: int,
    recording: Recording,
    present: PathCosts,
    target: PathCosts,
) -> LaidPage:
    path = _path_times(trips, present, target)
    opened = _opened(page, recording)
    more = {one.id: _more_round_trips(one, page, target) for one in opened}
    longer, round_trip = target.connect_ns - present.connect_ns, target.smallest_ns - present.smallest_ns
    return LaidPage(
        page=page,
        trips=trips,
        overlapped=overlapped,
        took_ns=max(page.took_ns - len(trips) * tap_ns(recording), 1.0),
        path=path,
        smallest_ns=target.smallest_ns,
        connecting_ns={one.id: longer + more[one.id] * round_trip for one in opened},
        connect_whole_ns=len(opened) * target.connect_ns,
        connect_rtts=len(opened) * (1 + target.encrypted) + sum(more.values()),
        waking_ns=target.waking_ns,
        floor_ns=float(recording.facts.get("floor_ns") or 0) or None,
    )


def _path_times(trips: Sequence[Trip], present: PathCosts, target: PathCosts) -> PathTimes:
    to_server, to_client = [trip.to_server for trip in trips], [trip.to_client for trip in trips]
    slow_ns = target.slow_start_ns([trip.rounds for trip in trips])
    ack_ns = _ack_ns(trips, present, target)
    return PathTimes(
        now_ns=present.of(to_server, to_client) + [trip.ack_wait_ns for trip in trips],
        there_ns=target.of(to_server, to_client) + slow_ns + ack_ns,
        slow_ns=slow_ns,
        ack_ns=ack_ns,
    )


def _ack_ns(trips: Sequence[Trip], present: PathCosts, target: PathCosts) -> np.ndarray:
    """Time between two writes of a request on the target path, shape (blocks, round trips). The acknowledgement takes a round trip."""
    waits = np.asarray([trip.ack_wait_ns for trip in trips], dtype=float)
    longer_ns = (target.smallest_ns - present.smallest_ns)[:, None]
    return np.asarray(np.maximum(waits + longer_ns, 0.0) * ((waits > 0) & (not target.by_socket)))


def tap_ns(recording: Recording) -> float:
    """Time that the tap added to each round trip."""
    return float(recording.facts.get("tap_ns") or 0)


def _opened(page: Page, recording: Recording) -> list[Connection]:
    """Connections that the page opened."""
    used = {trip.connection_id for trip in page.round_trips}
    known = [recording.connection_by_id[number] for number in used if number in recording.connection_by_id]
    return [one for one in known if one.opened_ns >= page.begun_ns]


def _more_round_trips(connection: Connection, page: Page, target: PathCosts) -> int:
    """Round trips of a connect that are neither recorded nor part of the target path's own connect time."""
    logged_in = [trip for trip in page.round_trips if trip.connection_id == connection.id and trip.phase == "connect"]
    more = max(connection.login_round_trips - len(logged_in), 0)
    if not target.encrypted:
        return more
    if connection.tls:
        return more - 1  # the handshake's round trip is recorded and also part of the connect time
    return more + (connection.protocol in SERVICES and SERVICES[connection.protocol].asks_for_tls)


def middle(pages: Sequence[LaidPage], took_ns: Callable[[LaidPage], float]) -> list[LaidPage]:
    """The page of median time, or the two around the median."""
    ordered = sorted(pages, key=took_ns)
    return ordered[(len(pages) - 1) // 2 : len(pages) // 2 + 1]
