"""Possible changes to an application, and how much of a page's time on the target path each would save. Pure.

Each saving lies between what the path alone gives (at least) and that with the server's and the application's own time for what
is left out (at most). Nothing here knows what a statement means to the application: each is a place to look at, not a certainty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from howfar.recording.predict import LaidPage, Trip, resampled_mean
from howfar.stats.estimate import Part

Kind = Literal["loop", "connect", "transaction", "memo", "cache", "initial", "pipeline"]
LEAST_LOOP = 3
"""Fewer runs of one statement are no loop."""
_SPREAD = 4
"""A loop's statement is at least every fourth round trip between its first and its last run."""
_READS = ("select", "show", "with", "get", "mget", "hget", "hmget", "hgetall", "exists", "lrange", "smembers", "gets")
_BEGINS = ("begin", "start transaction")
_ENDS = ("commit", "end", "rollback")
_INITIAL = ("set ", "set names", "use ", "ping", "init_db", "hello", "client setinfo", "reset_connection", "select ?")


class Change(Part):
    """One thing to look at, for pages of one name."""

    kind: Kind
    page: str
    digest: str
    """The statement or command that it is about."""
    count: float
    """How often a page has it, in the mean."""
    pages: int
    """Pages that have it."""
    low_ms: float
    """It saves at least this, a page."""
    high_ms: float
    """At most this."""
    target_share: float
    """What it could save at most, of the predicted page."""


@dataclass(frozen=True)
class Found:
    """One change in one page: indices of the round trips that would go, and of those that stay in their place."""

    kind: Kind
    digest: str
    gone: tuple[int, ...]
    count: int


def changes(laid: Mapping[str, Sequence[LaidPage]]) -> list[Change]:
    """Find the changes of all pages, the largest saving first."""
    found = []
    for name, pages in laid.items():
        grouped: dict[tuple[Kind, str], dict[int, list[Found]]] = defaultdict(lambda: defaultdict(list))
        seen: set[tuple[str, int]] = set()
        for number, page in enumerate(pages):
            for one in _in_page(page.trips, seen):
                grouped[one.kind, one.digest][number].append(one)
        found += [_change(name, pages, key, by_page) for key, by_page in grouped.items()]
        found += _connecting(name, pages)
    return sorted((one for one in found if one.high_ms > 0), key=lambda one: (-one.low_ms - one.high_ms, one.digest))


def _change(
    name: str, pages: Sequence[LaidPage], key: tuple[Kind, str], by_page: Mapping[int, Sequence[Found]]
) -> Change:
    kind, digest = key
    least = np.zeros((len(pages), len(pages[0].there_ns)))
    most = np.zeros_like(least)
    for number, founds in by_page.items():
        page = pages[number]
        gone = sorted({at for one in founds for at in one.gone})
        path = page.there_ns[:, gone].sum(axis=1)
        server = page.server_ns[:, gone].sum(axis=1)
        own = sum(page.trips[at].gap_ns for at in gone)
        least[number], most[number] = _saved(kind, page, gone, path, server, own)
    count = sum(one.count for founds in by_page.values() for one in founds) / len(by_page)
    return _made(kind, name, digest, count, len(by_page), least, most, pages)


def _saved(
    kind: Kind, page: LaidPage, gone: Sequence[int], path: np.ndarray, server: np.ndarray, own_ns: float
) -> tuple[np.ndarray, np.ndarray]:
    """The minimum and maximum saving, by block."""
    if kind == "pipeline":
        return np.zeros_like(path), path
    if kind == "transaction":
        # The work of a commit stays with the statement.
        return path, path + own_ns
    if kind == "cache":
        # A shared cache is asked over the same path: a round trip of the smallest sizes each.
        smallest = page.there_ns.min(axis=1, keepdims=True)
        return np.maximum(path + server - len(gone) * smallest[:, 0], 0.0), path + server
    if kind == "loop":
        # One query instead has the rows of all to send and to make: their bytes stay.
        sizes = (page.there_ns[:, list(gone)] - page.there_ns.min(axis=1, keepdims=True)).sum(axis=1)
        return np.maximum(path - sizes, 0.0), path + server + own_ns
    return path, path + server + own_ns


def _made(
    kind: Kind, name: str, digest: str, count: float, having: int, least: np.ndarray, most: np.ndarray,
    pages: Sequence[LaidPage],
) -> Change:  # fmt: skip
    low, high = resampled_mean(least), resampled_mean(most)
    whole = float(np.mean([page.predicted_ns.mean() for page in pages]))
    return Change(
        kind=kind,
        page=name,
        digest=digest,
        count=count,
        pages=having,
        low_ms=max((low.value if low.low is None else low.low) / 1e6, 0.0),
        high_ms=(high.value if high.high is None else high.high) / 1e6,
        target_share=high.value / whole if whole else 0.0,
    )


def _connecting(name: str, pages: Sequence[LaidPage]) -> Iterator[Change]:
    """Find what persistent connections would save: logins and connects."""
    having = [page for page in pages if page.connects]
    if not having:
        return
    least = np.zeros((len(pages), len(pages[0].there_ns)))
    most = np.zeros_like(least)
    count = 0.0
    for number, page in enumerate(pages):
        gone = [at for at, trip in enumerate(page.trips) if trip.phase == "connect"]
        path = page.there_ns[:, gone].sum(axis=1) + page.connect_whole_ns
        least[number] = path
        # What was before the first of a connection is no part of connecting.
        first = {page.trips[at].connection: at for at in reversed(gone)}.values()
        own_ns = sum(page.trips[at].gap_ns for at in gone if at not in first)
        most[number] = path + page.server_ns[:, gone].sum(axis=1) + own_ns
        count += page.connects
    digest = f"connect and log in ({np.mean([_logins(page) for page in having]):.1f} round trips of login)"
    yield _made("connect", name, digest, count / len(having), len(having), least, most, pages)


def _logins(page: LaidPage) -> int:
    return sum(trip.phase == "connect" for trip in page.trips)


# ---------------------------------------------------------------- in one page


def _in_page(trips: Sequence[Trip], seen: set[tuple[str, int]]) -> list[Found]:
    """`seen`: reads of the pages before, which this page's are added to."""
    operations = [at for at, trip in enumerate(trips) if trip.phase == "operation"]
    found: list[Found] = []
    looped: set[int] = set()
    for run in _loops(trips, operations):
        looped.update(run)
        found.append(Found("loop", _text(trips[run[0]]), tuple(run[1:]), len(run)))
    transactions = list(_transactions(trips, operations))
    found += transactions
    around = {at for one in transactions for at in one.gone}
    found += _initial(trips, [at for at in operations if at not in around | looped])
    found += _repeated(trips, operations)
    found += _cached(trips, operations, seen)
    found += _pipelines(trips, operations, looped | around)
    return found


def _text(trip: Trip) -> str:
    return trip.digest.text if trip.digest is not None else trip.command


def _by_statement(trips: Sequence[Trip], numbers: Sequence[int]) -> dict[tuple[int, str], list[int]]:
    """Round trips grouped by connection and statement."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for at in numbers:
        groups[trips[at].connection, _text(trips[at])].append(at)
    return groups


def _loops(trips: Sequence[Trip], operations: Sequence[int]) -> Iterator[list[int]]:
    """Runs of one statement on one connection whose keys differ; other statements of the loop's body may stand between."""
    for group in _by_statement(trips, operations).values():
        run: list[int] = []
        for at in group:
            if run and at - run[-1] > _SPREAD:
                yield from _loop(trips, run)
                run = []
            run.append(at)
        yield from _loop(trips, run)


def _loop(trips: Sequence[Trip], run: list[int]) -> Iterator[list[int]]:
    keys = {trips[at].keys for at in run}
    first = trips[run[0]]
    is_control = _text(first).lower().startswith((*_BEGINS, *_ENDS, *_INITIAL[:-1], "savepoint", "release"))
    if len(run) >= LEAST_LOOP and len(keys) > len(run) / 2 and None not in keys and not is_control:
        yield run


def _transactions(trips: Sequence[Trip], operations: Sequence[int]) -> Iterator[Found]:
    """Find transactions around a single statement."""
    for first, middle, last in zip(operations, operations[1:], operations[2:], strict=False):
        texts = [_text(trips[at]).lower() for at in (first, middle, last)]
        together = len({trips[at].connection for at in (first, middle, last)}) == 1
        if together and texts[0].startswith(_BEGINS) and texts[2].startswith(_ENDS) and not texts[1].startswith(_ENDS):
            yield Found("transaction", _text(trips[middle]), (first, last), 1)


def _initial(trips: Sequence[Trip], operations: Sequence[int]) -> Iterator[Found]:
    for (_, text), group in _by_statement(trips, operations).items():
        if text.lower().startswith(_INITIAL[:-1]) or text.lower() == _INITIAL[-1]:
            yield Found("initial", text, tuple(group), len(group))


def _is_read(trip: Trip) -> bool:
    return trip.keys is not None and _text(trip).lower().startswith(_READS) and "for update" not in _text(trip).lower()


def _repeated(trips: Sequence[Trip], operations: Sequence[int]) -> Iterator[Found]:
    """Find reads repeated within one page."""
    again: dict[str, list[int]] = defaultdict(list)
    seen: set[tuple[str, int | None]] = set()
    for at in operations:
        if not _is_read(trips[at]):
            continue
        key = (_text(trips[at]), trips[at].keys)
        if key in seen:
            again[key[0]].append(at)
        seen.add(key)
    for text, group in again.items():
        yield Found("memo", text, tuple(group), len(group))


def _cached(trips: Sequence[Trip], operations: Sequence[int], seen: set[tuple[str, int]]) -> Iterator[Found]:
    """Find reads already made by an earlier page."""
    again: dict[str, list[int]] = defaultdict(list)
    now: set[tuple[str, int]] = set()
    for at in operations:
        keys = trips[at].keys
        if keys is None or not _is_read(trips[at]):
            continue
        key = (_text(trips[at]), keys)
        if key in seen and key not in now:
            again[key[0]].append(at)
        now.add(key)
    seen |= now
    for text, group in again.items():
        yield Found("cache", text, tuple(group), len(group))


def _pipelines(trips: Sequence[Trip], operations: Sequence[int], taken: set[int]) -> Iterator[Found]:
    """Statements that follow each other on one connection and could leave together if none needs another's answer."""
    run: list[int] = []

    def ended() -> Iterator[Found]:
        if len(run) >= LEAST_LOOP:
            yield Found("pipeline", f"{_text(trips[run[0]])} and the {len(run) - 1} after it", tuple(run[1:]), len(run))

    for at in operations:
        joins = run and at == run[-1] + 1 and trips[at].connection == trips[run[0]].connection
        if at in taken or not joins:
            yield from ended()
            run = []
        if at not in taken:
            run.append(at)
    yield from ended()


def advice(change: Change) -> str:
    """The advice for a change, in one line."""
    return {
        "loop": "one request for all keys instead of a loop",
        "connect": "keep the connection open",
        "transaction": "no transaction around a single statement",
        "memo": "remember the answer within the page",
        "cache": "cache the answer between pages",
        "initial": "leave out, or set once for each connection",
        "pipeline": "candidate: send together, if none needs another's answer",
    }[change.kind]
