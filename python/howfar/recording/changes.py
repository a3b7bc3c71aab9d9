"""Possible changes to an application, and the time of a page on the target path that each would save. Pure.

Each saving is a range. The minimum counts only the path's time of the round trips that are saved; the maximum also counts the server's
and the application's time for them. The meaning of a statement to the application is unknown here: changes are hints, not certainties.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from howfar.recording.kinds import Kind, is_assignment
from howfar.recording.layout import LaidPage, Trip
from howfar.recording.predict import quantiles
from howfar.stats.estimate import Estimate, Part

Advised = Literal[
    "nagle", "loop", "connect", "transaction", "memo", "cache", "initial", "prepare", "fetch", "bytes", "pipeline"
]
LEAST_LOOP = 3
"""Minimum number of runs of one statement, and of different keys, in a loop."""
_SPREAD = 4
"""Within a loop, at least every fourth run is the loop's statement."""
_DRAWS = 400
"""Resamples per change; few, because there may be many changes."""


class Change(Part):
    """One possible change, for pages of one name."""

    kind: Advised
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
class Found:
    """One change in one page; `gone` has the indices of the round trips that would be saved or become shorter."""

    kind: Advised
    digest: str
    gone: tuple[int, ...]
    count: int


def changes(laid: Mapping[str, Sequence[LaidPage]]) -> list[Change]:
    """Find the changes of all pages, the largest saving first."""
    found = []
    for name, pages in laid.items():
        grouped: dict[tuple[Advised, str], dict[int, list[Found]]] = defaultdict(lambda: defaultdict(list))
        seen: set[tuple[str, int]] = set()
        for number, page in enumerate(pages):
            for one in _in_page(page, seen):
                grouped[one.kind, one.digest][number].append(one)
        found += [_change(name, pages, key, by_page) for key, by_page in grouped.items()]
        found += _connecting(name, pages)
    return sorted(
        (one for one in found if one.high_ms > 0), key=lambda one: (-one.pages * (one.low_ms + one.high_ms), one.digest)
    )


def _change(
    name: str, pages: Sequence[LaidPage], key: tuple[Advised, str], by_page: Mapping[int, Sequence[Found]]
) -> Change:
    kind, digest = key
    savings = {
        number: _saved(kind, pages[number], sorted({at for one in founds for at in one.gone}))
        for number, founds in by_page.items()
    }
    count = sum(one.count for founds in by_page.values() for one in founds) / len(by_page)
    gone = sum(len({at for one in founds for at in one.gone}) for founds in by_page.values()) / len(by_page)
    return _made(kind, name, digest, count, gone, savings, pages)


def _saved(kind: Advised, page: LaidPage, gone: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The minimum and maximum saving, by block. If round trips overlap, only those of the longest chain certainly save time."""
    least, most = _saved_in_order(kind, page, gone)
    if page.concurrent is not None:
        chain = [at for at in gone if page.trips[at].connection == page.concurrent.chain]
        least = np.minimum(_saved_in_order(kind, page, chain)[0], most)
    unknown_ns = len(gone) * page.waking_ns
    return least - unknown_ns, most + unknown_ns


def _saved_in_order(kind: Advised, page: LaidPage, gone: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The minimum and maximum saving, by block, if round trips do not overlap."""
    ack = page.path.ack_ns[:, gone].sum(axis=1)
    if kind == "nagle":
        return ack, ack
    path, server, own = (
        page.there_ns[:, gone].sum(axis=1) - ack,
        page.server_ns[:, gone].sum(axis=1),
        page.own_ns[gone].sum(),
    )
    least = np.minimum(len(gone) * page.smallest_ns, path)
    if kind == "pipeline":
        return np.zeros_like(path), path
    if kind == "transaction":
        # The server still commits after the statement, so the server's time is not saved.
        return path, path + own
    if kind == "cache":
        # A shared cache is reached over the same path, with a round trip of the smallest sizes for each read.
        return path + server - least, path + server
    if kind == "loop":
        # One query instead must still produce and send all rows: the cost of their bytes remains.
        return least, path + server + own
    if kind == "fetch":
        # The same rows are still produced, sent and used.
        return least, path
    if kind == "bytes":
        # Minimum: the waits for the window, if the remaining bytes fit into it.
        return page.path.slow_ns[:, gone].sum(axis=1), path - least
    return path, path + server + own


def _made(
    kind: Advised,
    name: str,
    digest: str,
    count: float,
    gone: float,
    savings: Mapping[int, tuple[np.ndarray, np.ndarray]],
    pages: Sequence[LaidPage],
) -> Change:
    """Combine the savings of pages in a change. `savings`: minimum and maximum by page number, each limited to the page's time."""
    limits = {number: pages[number].predicted_ns for number in savings}
    least, most = (
        quantiles(
            np.asarray([np.minimum(both[side], limits[number]) for number, both in savings.items()]),
            _DRAWS,
            another_run=True,
        ).p50_ms
        for side in (0, 1)
    )
    whole_ms = float(np.median([page.predicted_ns.mean() for page in pages])) / 1e6
    high_ms = min(_limit(most, most.high), whole_ms)
    return Change(
        kind=kind,
        page=name,
        digest=digest,
        count=count,
        gone=gone,
        pages=len(savings),
        low_ms=min(max(_limit(least, least.low), 0.0), high_ms),
        high_ms=high_ms,
        target_share=most.value * len(savings) / len(pages) / whole_ms if whole_ms else 0.0,
    )


def _limit(estimate: Estimate, limit: float | None) -> float:
    return estimate.value if limit is None else limit


def _connecting(name: str, pages: Sequence[LaidPage]) -> Iterator[Change]:
    """Find what persistent connections would save: connects and logins. Inside TLS a login cannot be distinguished from what follows:
    its known round trips are a lower bound, and those that may belong to it count only toward the maximum saving."""
    savings = {}
    for number, page in enumerate(pages):
        if not page.connects:
            continue
        gone = [at for at, trip in enumerate(page.trips) if trip.kind is Kind.CONNECT]
        path = page.there_ns[:, gone].sum(axis=1) + page.connect_whole_ns
        # The application's time before the first round trip of a connection is not part of connecting.
        first = {page.trips[at].connection: at for at in reversed(gone)}.values()
        own_ns = sum(page.own_ns[at] for at in gone if at not in first)
        perhaps = _perhaps_logins(page)
        most = path + page.server_ns[:, gone].sum(axis=1) + own_ns
        most += (
            page.there_ns[:, perhaps].sum(axis=1) + page.server_ns[:, perhaps].sum(axis=1) + page.own_ns[perhaps].sum()
        )
        unknown_ns = (len(gone) + page.connect_rtts) * page.waking_ns
        savings[number] = path - unknown_ns, most + unknown_ns
    if savings:
        having = [pages[number] for number in savings]
        at_least = "at least " if any(_perhaps_logins(page) for page in having) else ""
        digest = (
            f"connect and log in ({at_least}{np.mean([_logins(page) for page in having]):.1f} round trips of login)"
        )
        count = float(np.mean([page.connects for page in having]))
        logins = float(np.mean([_logins(page) for page in having]))
        yield _made("connect", name, digest, count, logins, savings, pages)


def _perhaps_logins(page: LaidPage) -> list[int]:
    """Round trips inside TLS of connections that the page opened, which may be part of their login."""
    return [at for at, trip in enumerate(page.trips) if trip.phase == "hidden" and trip.connection in page.opened]


def _logins(page: LaidPage) -> int:
    return sum(trip.kind is Kind.CONNECT for trip in page.trips)


# ---------------------------------------------------------------- in one page


def _in_page(page: LaidPage, seen: set[tuple[str, int]]) -> list[Found]:
    """Find the changes in one page. `seen`: reads of earlier pages; this page's are added. Statements that failed get no advice."""
    trips = page.trips
    operations = [at for at, trip in enumerate(trips) if trip.phase == "operation"]
    answered = [at for at in operations if not trips[at].failed]
    runs = [at for at in answered if trips[at].kind.is_run]
    loops = list(_loops(trips, [at for at in runs if not is_assignment(trips[at].text)]))
    looped = {at for run in loops for at in run}
    found = [_loop(trips, run, answered) for run in loops]
    found += _transactions(trips, operations)
    found += _all_of(Kind.SETTING, "initial", trips, answered)
    found += _prepares(trips, answered)
    found += _fetches(trips, answered)
    repeated = list(_repeated(trips, [at for at in runs if at not in looped]))
    found += repeated
    found += _cached(trips, runs, seen)
    found += _slow_starts(page, runs)
    taken = looped.union(*(one.gone for one in repeated))
    found += _two_writes(page)
    found += _pipelines(trips, [at for at in runs if at not in taken])
    return found


def _loop(trips: Sequence[Trip], run: Sequence[int], answered: Sequence[int]) -> Found:
    """A loop, including the repeated preparation and closing of its statement: a single request needs each only once."""
    between = [at for at in answered if run[0] < at < run[-1] and trips[at].connection == trips[run[0]].connection]
    prepares = [at for at in between if trips[at].kind is Kind.PREPARE and trips[at].text == trips[run[0]].text]
    closes = [at for at in between if trips[at].kind is Kind.CLOSE][: len(prepares)]
    gone = sorted({*run[1:], *prepares, *closes})
    return Found("loop", trips[run[0]].text, tuple(gone), len(run))


def _grouped(trips: Sequence[Trip], numbers: Sequence[int]) -> dict[tuple[int, str], list[int]]:
    """Round trips grouped by connection and statement."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for at in numbers:
        groups[trips[at].connection, trips[at].text].append(at)
    return groups


def _loops(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[list[int]]:
    """Loops: one statement repeated on one connection with changing keys, however often each key occurs. Other statements of the
    loop's body may occur in between."""
    place = {at: number for number, at in enumerate(runs)}
    for group in _grouped(trips, runs).values():
        run: list[int] = []
        for at in (*group, None):
            if run and (at is None or place[at] - place[run[-1]] > _SPREAD):
                keys = {trips[each].keys for each in run} - {None}
                if min(len(run), len(keys)) >= LEAST_LOOP:
                    yield run
                run = []
            if at is not None:
                run.append(at)


def _transactions(trips: Sequence[Trip], operations: Sequence[int]) -> Iterator[Found]:
    """Find transactions around a single statement."""
    for three in zip(operations, operations[1:], operations[2:], strict=False):
        first, middle, last = (trips[at] for at in three)
        together = len({one.connection for one in (first, middle, last)}) == 1 and not middle.failed
        if together and first.kind is Kind.BEGIN and last.kind is Kind.END and middle.kind is not Kind.END:
            yield Found("transaction", middle.text, (three[0], three[2]), 1)


def _all_of(kind: Kind, advised: Advised, trips: Sequence[Trip], answered: Sequence[int]) -> Iterator[Found]:
    """Find the round trips of a kind that a page does not need."""
    for (_, text), group in _grouped(trips, [at for at in answered if trips[at].kind is kind]).items():
        yield Found(advised, text, tuple(group), len(group))


def _prepares(trips: Sequence[Trip], answered: Sequence[int]) -> Iterator[Found]:
    """Find preparations of statements, with the closing of these statements, which is saved too."""
    closing: dict[int, list[int]] = defaultdict(list)
    for at in answered:
        if trips[at].kind is Kind.CLOSE:
            closing[trips[at].connection].append(at)
    for one in _all_of(Kind.PREPARE, "prepare", trips, answered):
        ends = closing[trips[one.gone[0]].connection]
        closed = {next((end for end in ends if end > at), None) for at in one.gone} - {None}
        gone = tuple(sorted({*one.gone, *(at for at in closed if at is not None)}))
        yield Found("prepare", one.digest, gone, len(one.gone))


def _fetches(trips: Sequence[Trip], answered: Sequence[int]) -> Iterator[Found]:
    """Find results fetched in parts. The first fetch is still needed, unless the statement itself had fetched a part."""
    groups = _grouped(trips, [at for at in answered if trips[at].kind is Kind.FETCH])
    for (connection, text), group in groups.items():
        ran = any(one.connection == connection and one.text == text for one in trips[: group[0]])
        yield Found("fetch", text, tuple(group if ran else group[1:]), len(group))


def _repeated(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[Found]:
    """Find reads repeated within one page."""
    again: dict[str, list[int]] = defaultdict(list)
    seen: set[tuple[str, int]] = set()
    for at, key in _reads(trips, runs):
        if key in seen:
            again[key[0]].append(at)
        seen.add(key)
    for text, group in again.items():
        yield Found("memo", text, tuple(group), len(group))


def _cached(trips: Sequence[Trip], runs: Sequence[int], seen: set[tuple[str, int]]) -> Iterator[Found]:
    """Find reads already made by an earlier page."""
    again: dict[str, list[int]] = defaultdict(list)
    now: set[tuple[str, int]] = set()
    for at, key in _reads(trips, runs):
        if key in seen and key not in now:
            again[key[0]].append(at)
        now.add(key)
    seen |= now
    for text, group in again.items():
        yield Found("cache", text, tuple(group), len(group))


def _reads(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Reads with known keys: index, and (statement, keys)."""
    for at in runs:
        keys = trips[at].keys
        if trips[at].kind is Kind.READ and keys is not None:
            yield at, (trips[at].text, keys)


def _slow_starts(page: LaidPage, runs: Sequence[int]) -> Iterator[Found]:
    """Find answers that wait for the congestion window of their connection."""
    waiting: dict[str, list[int]] = defaultdict(list)
    for at in runs:
        if page.path.slow_ns[:, at].mean() > 0:
            waiting[page.trips[at].text].append(at)
    for text, group in waiting.items():
        yield Found("bytes", text, tuple(group), len(group))


def _two_writes(page: LaidPage) -> Iterator[Found]:
    """Find requests whose second write waits for the acknowledgement of the first."""
    gone = [at for at, trip in enumerate(page.trips) if trip.ack_wait_ns]
    if gone:
        yield Found("nagle", "requests in two writes", tuple(gone), len(gone))


def _pipelines(trips: Sequence[Trip], runs: Sequence[int]) -> Iterator[Found]:
    """Find statements that follow each other on one connection and could be sent together if none needs another's answer."""
    run: list[int] = []
    for at in (*runs, None):
        joins = run and at == run[-1] + 1 and trips[at].connection == trips[run[0]].connection
        if run and not joins:
            if len(run) >= LEAST_LOOP:
                yield Found("pipeline", f"{trips[run[0]].text}, and those after it", tuple(run[1:]), len(run))
            run = []
        if at is not None:
            run.append(at)


def advice(change: Change) -> str:
    """Short advice for a change; docs/predict.md explains each."""
    return {
        "nagle": "set TCP_NODELAY",
        "loop": "one request for all keys",
        "connect": "keep the connection open",
        "transaction": "no transaction for one",
        "memo": "remember the answer",
        "cache": "cache between pages",
        "initial": "set once for a connection",
        "prepare": "prepare once, or interpolate",
        "fetch": "raise the fetch size",
        "bytes": "fetch fewer bytes",
        "pipeline": "perhaps send together",
    }[change.kind]
