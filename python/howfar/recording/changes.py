"""Finds possible changes to an application, and how much of a page's time on the target path each would save. No I/O.

Each saving is a range. The minimum counts only the path's time of the round trips that are saved; the maximum also counts the server's
and the application's time for them. What a statement means to the application is unknown here: changes are hints, not certainties.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from howfar.recording.kinds import TripKind, is_assignment
from howfar.recording.page_costs import CostedPage, Trip
from howfar.recording.predict import quantiles
from howfar.stats.estimate import Estimate, Part

ChangeKind = Literal[
    "nagle", "loop", "connect", "transaction", "memo", "cache", "initial", "prepare", "fetch", "bytes", "pipeline"
]
MIN_LOOP = 3
"""Minimum number of runs of one statement, and of different keys, in a loop."""
_MAX_LOOP_BODY = 4
"""Maximum number of runs from one occurrence of a loop's statement to the next."""
_RESAMPLES = 400
"""Number of resamples per change; small, because there may be many changes."""


class PossibleChange(Part):
    """One possible change, for pages of one name."""

    kind: ChangeKind
    page: str
    digest: str
    """The statement or command that it concerns."""
    count: float
    """Mean number of occurrences in a page that has it."""
    gone: float
    """Mean number of round trips in these pages that would be saved or become shorter."""
    pages: int
    """Number of pages that have it."""
    low_ms: float
    """Minimum saving, as the median of these pages."""
    high_ms: float
    """Maximum saving; never more than the page takes."""
    target_share: float
    """Maximum saving as a share of the time of all pages of this name."""


@dataclass(frozen=True)
class PageChange:
    """A possible change in one page. `gone`: indices of the round trips that the change would save or shorten."""

    kind: ChangeKind
    digest: str
    gone: tuple[int, ...]
    count: int


def find_changes(costed: Mapping[str, Sequence[CostedPage]]) -> list[PossibleChange]:
    """Find the changes of all pages, the largest saving first."""
    changes = []
    for name, pages in costed.items():
        grouped: dict[tuple[ChangeKind, str], dict[int, list[PageChange]]] = defaultdict(lambda: defaultdict(list))
        seen_reads: set[tuple[str, int]] = set()
        for page_index, page in enumerate(pages):
            for change in _find_in_page(page, seen_reads):
                grouped[change.kind, change.digest][page_index].append(change)
        changes += [_combine(name, pages, key, by_page) for key, by_page in grouped.items()]
        changes += _find_connects(name, pages)
    return sorted(
        (change for change in changes if change.high_ms > 0),
        key=lambda change: (-change.pages * (change.low_ms + change.high_ms), change.digest),
    )


def _combine(
    name: str, pages: Sequence[CostedPage], key: tuple[ChangeKind, str], by_page: Mapping[int, Sequence[PageChange]]
) -> PossibleChange:
    kind, digest = key
    savings = {
        page_index: _saving_ns(
            kind, pages[page_index], sorted({index for page_change in page_changes for index in page_change.gone})
        )
        for page_index, page_changes in by_page.items()
    }
    count = sum(page_change.count for page_changes in by_page.values() for page_change in page_changes) / len(by_page)
    gone = sum(
        len({index for page_change in page_changes for index in page_change.gone}) for page_changes in by_page.values()
    ) / len(by_page)
    return _make_change(kind, name, digest, count, gone, savings, pages)


def _saving_ns(kind: ChangeKind, page: CostedPage, gone: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Minimum and maximum saving, by block. If round trips overlap, only those of the longest chain count toward the minimum."""
    low, high = _sequential_saving_ns(kind, page, gone)
    if page.overlap_range is not None:
        chain = [index for index in gone if page.trips[index].connection == page.overlap_range.longest_chain]
        low = np.minimum(_sequential_saving_ns(kind, page, chain)[0], high)
    unknown_ns = len(gone) * page.waking_ns
    return low - unknown_ns, high + unknown_ns


def _sequential_saving_ns(kind: ChangeKind, page: CostedPage, gone: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The minimum and maximum saving, by block, if round trips do not overlap."""
    ack = page.path.ack_ns[:, gone].sum(axis=1)
    if kind == "nagle":
        return ack, ack
    path, server, application = (
        page.path.target_cost_ns[:, gone].sum(axis=1) - ack,
        page.server_ns[:, gone].sum(axis=1),
        page.application_gaps_ns[gone].sum(),
    )
    min_cost = np.minimum(len(gone) * page.smallest_ns, path)
    if kind == "pipeline":
        return np.zeros_like(path), path
    if kind == "transaction":
        # The server still commits after the statement, so the server's time is not saved.
        return path, path + application
    if kind == "cache":
        # Each read of a shared cache still takes a round trip of the smallest sizes over the same path.
        return path + server - min_cost, path + server
    if kind == "loop":
        # The one query that replaces the loop must still produce and send all rows: the cost of their bytes remains.
        return min_cost, path + server + application
    if kind == "fetch":
        # The same rows are still produced, sent and used.
        return min_cost, path
    if kind == "bytes":
        # The minimum consists of the waits for the congestion window, which end if the remaining bytes fit into the window.
        return page.path.slow_ns[:, gone].sum(axis=1), path - min_cost
    return path, path + server + application


def _make_change(
    kind: ChangeKind,
    name: str,
    digest: str,
    count: float,
    gone: float,
    savings: Mapping[int, tuple[np.ndarray, np.ndarray]],
    pages: Sequence[CostedPage],
) -> PossibleChange:
    """Make a change from the savings of its pages. `savings`: minimum and maximum by page index; limited to the page's time."""
    limits = {page_index: pages[page_index].predicted_ns for page_index in savings}
    low, high = (
        quantiles(
            np.asarray([np.minimum(saving[side], limits[page_index]) for page_index, saving in savings.items()]),
            _RESAMPLES,
            prediction_interval=True,
        ).p50_ms
        for side in (0, 1)
    )
    page_ms = float(np.median([page.predicted_ns.mean() for page in pages])) / 1e6
    high_ms = min(_limit_or_value(high, high.high), page_ms)
    return PossibleChange(
        kind=kind,
        page=name,
        digest=digest,
        count=count,
        gone=gone,
        pages=len(savings),
        low_ms=min(max(_limit_or_value(low, low.low), 0.0), high_ms),
        high_ms=high_ms,
        target_share=high.value * len(savings) / len(pages) / page_ms if page_ms else 0.0,
    )


def _limit_or_value(estimate: Estimate, limit: float | None) -> float:
    return estimate.value if limit is None else limit


def _find_connects(name: str, pages: Sequence[CostedPage]) -> Iterator[PossibleChange]:
    """Find the connects and logins that persistent connections would save. Inside TLS, a login cannot be distinguished from later
    requests: round trips that may belong to the login then count only toward the maximum saving."""
    savings = {}
    for page_index, page in enumerate(pages):
        if not page.connects:
            continue
        gone = [index for index, trip in enumerate(page.trips) if trip.kind is TripKind.CONNECT]
        path = page.path.target_cost_ns[:, gone].sum(axis=1) + page.target_connect_ns
        # The application's time before the first round trip of a connection is not part of connecting.
        first_trips = {page.trips[index].connection: index for index in reversed(gone)}.values()
        application_ns = sum(page.application_gaps_ns[index] for index in gone if index not in first_trips)
        possible_logins = _possible_login_trips(page)
        high = path + page.server_ns[:, gone].sum(axis=1) + application_ns
        high += (
            page.path.target_cost_ns[:, possible_logins].sum(axis=1)
            + page.server_ns[:, possible_logins].sum(axis=1)
            + page.application_gaps_ns[possible_logins].sum()
        )
        unknown_ns = (len(gone) + page.connect_rtts) * page.waking_ns
        savings[page_index] = path - unknown_ns, high + unknown_ns
    if savings:
        connecting_pages = [pages[page_index] for page_index in savings]
        at_least = "at least " if any(_possible_login_trips(page) for page in connecting_pages) else ""
        count = float(np.mean([page.connects for page in connecting_pages]))
        login_trips = float(np.mean([_count_login_trips(page) for page in connecting_pages]))
        digest = f"connect and log in ({at_least}{login_trips:.1f} round trips of login)"
        yield _make_change("connect", name, digest, count, login_trips, savings, pages)


def _possible_login_trips(page: CostedPage) -> list[int]:
    """Round trips inside TLS that may be part of the login of a connection that the page opened."""
    return [
        index
        for index, trip in enumerate(page.trips)
        if trip.phase == "hidden" and trip.connection in page.opened_connections
    ]


def _count_login_trips(page: CostedPage) -> int:
    return sum(trip.kind is TripKind.CONNECT for trip in page.trips)


# ---------------------------------------------------------------- in one page


def _find_in_page(page: CostedPage, seen_reads: set[tuple[str, int]]) -> list[PageChange]:
    """Find the changes in one page, except for statements that failed. `seen_reads`: the reads of earlier pages; this page's reads are
    added to it."""
    trips = page.trips
    operations = [index for index, trip in enumerate(trips) if trip.phase == "operation"]
    answered = [index for index in operations if not trips[index].failed]
    runs = [index for index in answered if trips[index].kind.is_run]
    loops = list(_find_loops(trips, [index for index in runs if not is_assignment(trips[index].text)]))
    indices_in_loops = {index for run in loops for index in run}
    changes = [_make_loop(trips, run, answered) for run in loops]
    changes += _find_transactions(trips, operations)
    changes += _find_unneeded(TripKind.SETTING, "initial", trips, answered)
    changes += _find_prepares(trips, answered)
    changes += _find_fetches(trips, answered)
    repeated = list(_find_repeated_reads(trips, [index for index in runs if index not in indices_in_loops]))
    changes += repeated
    changes += _find_cacheable_reads(trips, runs, seen_reads)
    changes += _find_slow_starts(page, runs)
    excluded = indices_in_loops.union(*(read.gone for read in repeated))
    changes += _find_two_writes(page)
    changes += _find_pipelines(trips, [index for index in runs if index not in excluded])
    return changes


def _make_loop(trips: Sequence[Trip], run: Sequence[int], answered: Sequence[int]) -> PageChange:
    """The change for a loop; it also saves repeated preparations and closings of the statement, which one request needs once."""
    between = [
        index for index in answered if run[0] < index < run[-1] and trips[index].connection == trips[run[0]].connection
    ]
    prepares = [
        index for index in between if trips[index].kind is TripKind.PREPARE and trips[index].text == trips[run[0]].text
    ]
    closes = [index for index in between if trips[index].kind is TripKind.CLOSE][: len(prepares)]
    gone = sorted({*run[1:], *prepares, *closes})
    return PageChange("loop", trips[run[0]].text, tuple(gone), len(run))


def _group_trips(trips: Sequence[Trip], indices: Sequence[int]) -> dict[tuple[int, str], list[int]]:
    """Round trips grouped by connection and statement."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index in indices:
        groups[trips[index].connection, trips[index].text].append(index)
    return groups


def _find_loops(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[list[int]]:
    """Find loops: a statement repeated on one connection with changing keys, which may recur. Other statements of the loop's body may
    occur in between."""
    position = {index: number for number, index in enumerate(runs)}
    for group in _group_trips(trips, runs).values():
        run: list[int] = []
        for index in (*group, None):
            if run and (index is None or position[index] - position[run[-1]] > _MAX_LOOP_BODY):
                keys = {trips[member].keys for member in run} - {None}
                if min(len(run), len(keys)) >= MIN_LOOP:
                    yield run
                run = []
            if index is not None:
                run.append(index)


def _find_transactions(trips: Sequence[Trip], operations: Sequence[int]) -> Iterator[PageChange]:
    """Find transactions around a single statement."""
    for triple in zip(operations, operations[1:], operations[2:], strict=False):
        first, middle, last = (trips[index] for index in triple)
        is_on_one_connection = len({trip.connection for trip in (first, middle, last)}) == 1
        if (
            is_on_one_connection
            and not middle.failed
            and first.kind is TripKind.BEGIN
            and last.kind is TripKind.END
            and middle.kind is not TripKind.END
        ):
            yield PageChange("transaction", middle.text, (triple[0], triple[2]), 1)


def _find_unneeded(
    kind: TripKind, change_kind: ChangeKind, trips: Sequence[Trip], answered: Sequence[int]
) -> Iterator[PageChange]:
    """Find all round trips of `kind`, which a page does not need."""
    for (_, text), group in _group_trips(trips, [index for index in answered if trips[index].kind is kind]).items():
        yield PageChange(change_kind, text, tuple(group), len(group))


def _find_prepares(trips: Sequence[Trip], answered: Sequence[int]) -> Iterator[PageChange]:
    """Find preparations of statements, together with the closing of these statements, which would be saved too."""
    closes: dict[int, list[int]] = defaultdict(list)
    for index in answered:
        if trips[index].kind is TripKind.CLOSE:
            closes[trips[index].connection].append(index)
    for prepare in _find_unneeded(TripKind.PREPARE, "prepare", trips, answered):
        connection_closes = closes[trips[prepare.gone[0]].connection]
        close_indices = {
            next((close for close in connection_closes if close > index), None) for index in prepare.gone
        } - {None}
        gone = tuple(sorted({*prepare.gone, *(index for index in close_indices if index is not None)}))
        yield PageChange("prepare", prepare.digest, gone, len(prepare.gone))


def _find_fetches(trips: Sequence[Trip], answered: Sequence[int]) -> Iterator[PageChange]:
    """Find results fetched in parts. The first fetch is still needed, unless the answer to the statement itself had some rows."""
    groups = _group_trips(trips, [index for index in answered if trips[index].kind is TripKind.FETCH])
    for (connection, text), group in groups.items():
        already_ran = any(trip.connection == connection and trip.text == text for trip in trips[: group[0]])
        yield PageChange("fetch", text, tuple(group if already_ran else group[1:]), len(group))


def _find_repeated_reads(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[PageChange]:
    """Find reads repeated within one page."""
    repeats: dict[str, list[int]] = defaultdict(list)
    earlier_reads: set[tuple[str, int]] = set()
    for index, key in _keyed_reads(trips, runs):
        if key in earlier_reads:
            repeats[key[0]].append(index)
        earlier_reads.add(key)
    for text, group in repeats.items():
        yield PageChange("memo", text, tuple(group), len(group))


def _find_cacheable_reads(
    trips: Sequence[Trip], runs: Sequence[int], seen_reads: set[tuple[str, int]]
) -> Iterator[PageChange]:
    """Find reads already made by an earlier page."""
    repeats: dict[str, list[int]] = defaultdict(list)
    page_reads: set[tuple[str, int]] = set()
    for index, key in _keyed_reads(trips, runs):
        if key in seen_reads and key not in page_reads:
            repeats[key[0]].append(index)
        page_reads.add(key)
    seen_reads |= page_reads
    for text, group in repeats.items():
        yield PageChange("cache", text, tuple(group), len(group))


def _keyed_reads(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Reads with known keys: index, and (statement, keys)."""
    for index in runs:
        keys = trips[index].keys
        if trips[index].kind is TripKind.READ and keys is not None:
            yield index, (trips[index].text, keys)


def _find_slow_starts(page: CostedPage, runs: Sequence[int]) -> Iterator[PageChange]:
    """Find answers that wait for the congestion window of their connection."""
    waiting: dict[str, list[int]] = defaultdict(list)
    for index in runs:
        if page.path.slow_ns[:, index].mean() > 0:
            waiting[page.trips[index].text].append(index)
    for text, group in waiting.items():
        yield PageChange("bytes", text, tuple(group), len(group))


def _find_two_writes(page: CostedPage) -> Iterator[PageChange]:
    """Find requests whose second write waits for the acknowledgement of the first."""
    gone = [index for index, trip in enumerate(page.trips) if trip.ack_wait_ns]
    if gone:
        yield PageChange("nagle", "requests in two writes", tuple(gone), len(gone))


def _find_pipelines(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[PageChange]:
    """Find statements that follow each other on one connection and could be sent together if none needs another's answer."""
    run: list[int] = []
    for index in (*runs, None):
        continues_run = run and index == run[-1] + 1 and trips[index].connection == trips[run[0]].connection
        if run and not continues_run:
            if len(run) >= MIN_LOOP:
                yield PageChange("pipeline", f"{trips[run[0]].text}, and those after it", tuple(run[1:]), len(run))
            run = []
        if index is not None:
            run.append(index)
