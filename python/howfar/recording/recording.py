"""A recording: the round trips that an application made, as values and as one SQLite file (docs/recording.md).

It contains no literal of a statement, no key and no value: the program that writes it never receives one. While being written, the
file is in WAL mode; a killed recorder leaves a recording that is marked as not complete.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from howfar.contract.messages import RecordedConnection, RecordedDigest, RecordedRoundTrip
from howfar.errors import RunFileError
from howfar.file_kinds import RECORDING
from howfar.recording.facts import RecordingFacts
from howfar.recording.texts import phrase
from howfar.store.database import (
    Schema,
    check_schema,
    check_structure,
    checksum,
    damage_error,
    loads,
    open_for_reading,
    schema_of,
    translate_errors,
)

FORMAT = 2
"""Since format 2, a complete recording has the fact `checksum`, and a page has the column `failed`."""
SUFFIX = RECORDING.suffix
_COLD_FACTOR, _MIN_PAGES_FOR_COLD = 2, 3
"""A first page is cold if it takes at least `_COLD_FACTOR` times the median of the others, of at least `_MIN_PAGES_FOR_COLD` pages."""
_SMALL_REQUEST = 1448
"""Bytes of one segment: Nagle's algorithm delays nothing larger."""
_ACK_WAIT_NS = (38_000_000, 60_000_000)
"""Shortest and longest time between two writes that is attributed to a delayed acknowledgement of 40 ms."""
_PHASES: tuple[str, ...] = get_args(RecordedRoundTrip.model_fields["phase"].annotation)
"""`hidden`: inside TLS, soon after its handshake, where a login cannot be distinguished from an operation."""
PageMethod = Literal["mark", "php", "http", "command", "gap"]
KILLED = "the recorder ended before it could complete the recording"

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE connections (
    id INTEGER PRIMARY KEY, protocol TEXT NOT NULL, opened_ns INTEGER NOT NULL, closed_ns INTEGER, pid INTEGER, uid INTEGER,
    tls INTEGER NOT NULL, login_round_trips INTEGER NOT NULL, login_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE digests (id INTEGER PRIMARY KEY, protocol TEXT NOT NULL, text TEXT NOT NULL) STRICT;
CREATE TABLE round_trips (
    id INTEGER PRIMARY KEY, connection_id INTEGER NOT NULL, page_id INTEGER, begun_ns INTEGER NOT NULL,
    sent_ns INTEGER NOT NULL, answered_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL, bytes_to_server INTEGER NOT NULL,
    bytes_to_client INTEGER NOT NULL, requests INTEGER NOT NULL, command TEXT NOT NULL, digest_id INTEGER, keys INTEGER,
    phase TEXT NOT NULL, rows INTEGER, failed INTEGER NOT NULL
) STRICT;
CREATE TABLE pages (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, method TEXT NOT NULL, confidence REAL NOT NULL, pid INTEGER,
    begun_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL{pages_since_2}
) STRICT;
"""


def _create_tables_sql(version: int = FORMAT) -> str:
    """The SQL statements that create the tables of a format."""
    return _TABLES.format(pages_since_2=", failed INTEGER" if version > 1 else "")


class RoundTrip(RecordedRoundTrip):
    """A recorded round trip with its page. Without an answer, all four times are that of the last request."""

    page_id: int | None = None
    server_ns: int = 0
    """Time from the request's last byte to the answer's last, minus `RecordingFacts.floor_ns`; derived."""
    gap_ns: int = 0
    """Time from the end of the page's previous round trip, or from the page's beginning, to `begun_ns`; 0 if they overlap; derived."""

    @property
    def is_answered(self) -> bool:
        return self.ended_ns > self.sent_ns

    @property
    def is_in_order(self) -> bool:
        return self.begun_ns <= self.sent_ns <= self.answered_ns <= self.ended_ns


@dataclass(frozen=True, slots=True)
class TimedPage:
    """A unit of work that a user waits for: a page, a run of a command, or the span of a mark."""

    id: int
    name: str
    method: PageMethod
    confidence: float
    """Probability that the page's begin and end are right, 0 to 1; 1 if the application or the user marked them."""
    pid: int | None
    begun_ns: int
    ended_ns: int
    failed: bool | None = None
    """Whether the answer was a server error (5xx); None if unknown, as in recordings of format 1."""
    round_trips: tuple[RoundTrip, ...] = ()
    """Round trips, ordered by their beginning."""
    contested: int = 0
    """Number of round trips in the page's time that belong to no page, because another page claims them too; derived."""

    @property
    def took_ns(self) -> int:
        return self.ended_ns - self.begun_ns

    @property
    def unusable_reason(self) -> str | None:
        """Why the page is excluded from all figures: it failed, or its times are impossible, for example because the clock was set
        during a capture. None if it is included."""
        if self.failed:
            return "answered with a server error, 5xx"
        if self.took_ns < 0:
            return "it ends before it begins"
        if not all(trip.is_in_order for trip in self.round_trips):
            return "a round trip in it ends before it begins"
        return None


def uncertainty_note(name: str, pages: Sequence[TimedPage]) -> str | None:
    """A note about pages whose begin and end were inferred from gaps; None if they were marked."""
    if all(page.method != "gap" for page in pages):
        return None
    confidence = sum(page.confidence for page in pages) / len(pages)
    return phrase("page/inferred", page=name, confidence=confidence)


def cold_start_note(name: str, pages: Sequence[TimedPage]) -> str | None:
    """A note about a first page that took much longer than the others, or None."""
    if len(pages) < _MIN_PAGES_FOR_COLD:
        return None
    first_ms, *other_ms = (page.took_ns / 1e6 for page in sorted(pages, key=lambda page: page.begun_ns))
    typical_ms = median(other_ms)
    if first_ms < _COLD_FACTOR * typical_ms:
        return None
    return phrase("page/cold", page=name, first_ms=first_ms, typical_ms=typical_ms)


@dataclass(frozen=True)
class Recording:
    """A complete recording in memory."""

    facts: RecordingFacts
    connections: tuple[RecordedConnection, ...] = ()
    digests: tuple[RecordedDigest, ...] = ()
    round_trips: tuple[RoundTrip, ...] = ()
    """All round trips, ordered by their beginning, including those that belong to no page."""
    pages: tuple[TimedPage, ...] = ()
    digest_by_id: Mapping[int, RecordedDigest] = field(default_factory=dict)
    connection_by_id: Mapping[int, RecordedConnection] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of pages that were removed as unusable, by name and reason."""
    is_verified: bool = True
    """Whether the recording was checked against its checksum, which is written last and is missing if the recording was cut off."""

    def ack_wait_ns(self, trip: RoundTrip) -> int:
        """How long the rest of a small request waited for the acknowledgement of its first part, which the server's kernel delays by
        40 ms. Such a request was sent over TCP in two writes without TCP_NODELAY; 0 for other requests."""
        waited_ns = trip.sent_ns - trip.begun_ns
        is_small = trip.bytes_to_server <= _SMALL_REQUEST and self.facts.transport != "unix"
        return waited_ns if is_small and _ACK_WAIT_NS[0] <= waited_ns <= _ACK_WAIT_NS[1] else 0


_ROUND_TRIP_COLUMNS = ("page_id", *RecordedRoundTrip.model_fields)
_ROUND_TRIP_FIELDS = set(RoundTrip.model_fields)
# attrgetter is many times faster than a copy of each value. The application runs on the same machine meanwhile.
_connection_row, _digest_row, _recorded_row = (
    attrgetter(*kind.model_fields) for kind in (RecordedConnection, RecordedDigest, RecordedRoundTrip)
)
_page_row = attrgetter(*(column.name for column in fields(TimedPage)[:-2]))


class RecordingFile:
    """A recording that is being written. Only one thread may use it at a time; end with `finish` or `close`."""

    def __init__(self, path: Path, facts: RecordingFacts) -> None:
        """Create the file, readable by its owner alone. Raises RunFileError if it exists or cannot be created."""
        self.path = path
        self.facts = facts
        """The facts that were known at the start."""
        try:
            path.touch(0o600, exist_ok=False)
        except OSError as error:
            raise RunFileError(
                f"{path} cannot be made: {error.strerror}", "Name another file with --out, in a folder that exists."
            ) from error
        try:
            with translate_errors(path, "write", RECORDING):
                self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                self._db.executescript(
                    f"PRAGMA application_id = {RECORDING.application_id}; PRAGMA user_version = {FORMAT}; PRAGMA journal_mode = WAL;"
                    f"PRAGMA synchronous = OFF; BEGIN; {_create_tables_sql()} COMMIT;"
                )
            self.set_facts(facts.updated(RecordingFacts(format=FORMAT, complete=False, stopped=KILLED)))
        except RunFileError:
            self.remove()
            raise

    def set_facts(self, facts: RecordingFacts) -> None:
        """Add or replace facts."""
        self._insert_rows("facts", _encode_facts(facts))

    def add_connections(self, connections: Iterable[RecordedConnection]) -> None:
        """Add connections, or replace those that have changed."""
        self._insert_rows(
            "connections", [_connection_row(connection) for connection in connections], RecordedConnection.model_fields
        )

    def add_digests(self, digests: Iterable[RecordedDigest]) -> None:
        self._insert_rows("digests", [_digest_row(digest) for digest in digests], RecordedDigest.model_fields)

    def add_round_trips(self, round_trips: Iterable[RecordedRoundTrip]) -> None:
        """Add round trips, without derived values."""
        rows = [(getattr(trip, "page_id", None), *_recorded_row(trip)) for trip in round_trips]
        self._insert_rows("round_trips", rows, _ROUND_TRIP_COLUMNS)

    def add_pages(self, pages: Iterable[TimedPage]) -> None:
        """Add pages, without the round trips that refer to them."""
        self._insert_rows("pages", [_page_row(page) for page in pages])

    def assign_pages(self) -> int:
        """Assign each round trip to the page during which it began: a page of its process, or one that covers all processes. A round
        trip that two pages claim is assigned to neither. Returns the number of these; the fact `contested` counts them by page."""
        with translate_errors(self.path, "write", RECORDING):
            pages = self._db.execute("SELECT id, pid, begun_ns, ended_ns FROM pages").fetchall()
            # LEFT JOIN: a connection that was open when the recorder was killed has no row.
            sql = (
                "SELECT r.id, c.pid, r.begun_ns, r.connection_id, r.phase FROM round_trips r "
                "LEFT JOIN connections c ON c.id = r.connection_id ORDER BY r.begun_ns, r.id"
            )
            assignment = _assign_round_trips(pages, self._db.execute(sql))
        self.set_page_ids(assignment.pages)
        self.set_facts(RecordingFacts(contested=assignment.contested))
        return assignment.ambiguous

    def set_page_ids(self, pages: Mapping[int, int | None]) -> None:
        """Assign round trips to pages. `pages`: page ID by round trip ID; None for no page."""
        rows = [(page, round_trip) for round_trip, page in pages.items()]
        with translate_errors(self.path, "write", RECORDING):
            self._db.execute("BEGIN")
            self._db.executemany("UPDATE round_trips SET page_id = ? WHERE id = ?", rows)
            self._db.execute("COMMIT")

    def ordered_round_trips(self) -> list[tuple[int, int, int | None, int, int, str | None]]:
        """All round trips, ordered by their beginning: ID, connection ID, process ID, begin, end, statement."""
        sql = (
            "SELECT r.id, r.connection_id, c.pid, r.begun_ns, r.ended_ns, d.text FROM round_trips r "
            "LEFT JOIN connections c ON c.id = r.connection_id LEFT JOIN digests d ON d.id = r.digest_id "
            "ORDER BY r.begun_ns, r.id"
        )
        with translate_errors(self.path, "read", RECORDING):
            return self._db.execute(sql).fetchall()

    def page_timings(self) -> list[tuple[int, int, int, int, int, int]]:
        """Answered round trips of pages, at most 100,000: page ID, begin, end of sending, end, bytes to the server, to the client."""
        sql = (
            "SELECT page_id, begun_ns, sent_ns, ended_ns, bytes_to_server, bytes_to_client FROM round_trips "
            "WHERE page_id IS NOT NULL AND ended_ns > sent_ns ORDER BY page_id, begun_ns LIMIT 100000"
        )
        with translate_errors(self.path, "read", RECORDING):
            return self._db.execute(sql).fetchall()

    def finish(self, facts: RecordingFacts) -> None:
        """Write the last facts and close the recording as a single file."""
        self.seal(RecordingFacts(complete=True, stopped=None).updated(facts))
        self.close()

    def seal(self, facts: RecordingFacts) -> None:
        """Add or replace facts and write the checksum of the file's contents, in one transaction."""
        with translate_errors(self.path, "write", RECORDING):
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", _encode_facts(facts))
            seal(self._db)
            self._db.execute("COMMIT")

    def has_round_trips(self) -> bool:
        """Whether any round trip was recorded; True if the file cannot be read."""
        with contextlib.suppress(sqlite3.Error):
            return self._db.execute("SELECT 1 FROM round_trips LIMIT 1").fetchone() is not None
        return True

    def close(self) -> None:
        """Close the recording and leave a single file, without WAL."""
        with contextlib.suppress(sqlite3.Error):
            self._db.rollback()  # a signal may have interrupted a transaction, in which the mode cannot be changed
            self._db.execute("PRAGMA journal_mode = DELETE")
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def remove(self) -> None:
        """Remove the closed file, and the auxiliary files that SQLite could not remove."""
        for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
            self.path.with_name(name).unlink(missing_ok=True)

    def _insert_rows(self, table: str, rows: Sequence[tuple[Any, ...]], columns: Iterable[str] = ()) -> None:
        """Add or replace rows. `columns`: their names in the order of the values; without them, all of the table in its order."""
        if not rows:
            return
        names = f" ({', '.join(columns)})" if columns else ""
        placeholders = ", ".join("?" * len(rows[0]))
        with translate_errors(self.path, "write", RECORDING):
            self._db.execute("BEGIN")
            self._db.executemany(f"INSERT OR REPLACE INTO {table}{names} VALUES ({placeholders})", rows)
            self._db.execute("COMMIT")


def _encode_facts(facts: RecordingFacts) -> list[tuple[str, str]]:
    values = facts.model_dump(mode="json", include=facts.model_fields_set)
    return [(name, json.dumps(value)) for name, value in values.items()]


class _PageIndex:
    """Finds the pages of a process at a given time."""

    def __init__(self, pages: Sequence[tuple[int, int | None, int, int]]) -> None:
        self._by_pid: dict[int | None, list[tuple[int, int, int]]] = defaultdict(list)
        for page_id, pid, begun_ns, ended_ns in pages:
            self._by_pid[pid].append((begun_ns, ended_ns, page_id))
        self._longest = {pid: max(end - begin for begin, end, _ in spans) for pid, spans in self._by_pid.items()}
        for spans in self._by_pid.values():
            spans.sort()

    def claiming_pages(self, pid: int | None, at_ns: int) -> list[int]:
        """IDs of the pages of process `pid` (of any process if None) at this time; if there are none, of the pages that cover all
        processes."""
        processes = [process for process in self._by_pid if process is not None] if pid is None else [pid]
        page_ids = [page_id for process in processes for page_id in self._pages_at(process, at_ns)]
        return page_ids or self._pages_at(None, at_ns)

    def _pages_at(self, pid: int | None, at_ns: int) -> list[int]:
        spans = self._by_pid.get(pid, [])
        first = bisect_left(spans, (at_ns - self._longest.get(pid, 0),))
        last = bisect_right(spans, (at_ns + 1,))
        return [page_id for begin, end, page_id in spans[first:last] if begin <= at_ns <= end]


def read(path: Path) -> Recording:
    """Read a recording. Raises NotARunFile, NewerRunFile, RunFileError."""
    with open_for_reading(path, RECORDING, FORMAT) as (db, version):
        check_schema(db, path, _schema(version))
        values = {name: loads(value) for name, value in db.execute("SELECT name, value FROM facts")}
        stored_checksum = values.pop(_CHECKSUM, None)
        if stored_checksum is not None and stored_checksum != _checksum(db):
            raise damage_error(path, "it is not as it was written")
        if stored_checksum is None:
            if version > 1 and values.get("complete"):
                raise damage_error(path, "its checksum is missing")
            check_structure(db, path)
            _check_values(db, path)
        connections = tuple(
            RecordedConnection(**values)
            for values in _named_rows(db, RecordedConnection.model_fields, "connections ORDER BY id")
        )
        digests = tuple(
            RecordedDigest(**values) for values in _named_rows(db, RecordedDigest.model_fields, "digests ORDER BY id")
        )
        trips = [
            {**values, "failed": bool(values["failed"])}
            for values in _named_rows(db, _ROUND_TRIP_COLUMNS, "round_trips ORDER BY begun_ns, sent_ns, id")
        ]
        pages = [_page_from_row(row) for row in db.execute("SELECT * FROM pages ORDER BY begun_ns, id")]
        facts = RecordingFacts.model_validate(values)
        return replace(_join_rows(facts, connections, digests, trips, pages), is_verified=stored_checksum is not None)


def _named_rows(db: sqlite3.Connection, columns: Iterable[str], source: str) -> Iterator[dict[str, Any]]:
    """The rows of a table as values by column. `source`: the table and its order."""
    names = tuple(columns)
    for row in db.execute(f"SELECT {', '.join(names)} FROM {source}"):
        yield dict(zip(names, row, strict=True))


_CHECKSUM = "checksum"
"""The fact that holds the checksum of all other facts and of all rows."""


def seal(db: sqlite3.Connection) -> None:
    """Write the checksum of a recording's contents, so that it counts as complete."""
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (_CHECKSUM, json.dumps(_checksum(db))))


def _checksum(db: sqlite3.Connection) -> str:
    tables = {"facts": f"name != '{_CHECKSUM}' ORDER BY name"}
    tables |= dict.fromkeys(("connections", "digests", "round_trips", "pages"), "1 ORDER BY id")
    rows = (
        (table, *row)
        for table, where_clause in tables.items()
        for row in db.execute(f"SELECT * FROM {table} WHERE {where_clause}")
    )
    return checksum(rows)


@cache
def _schema(version: int) -> Schema:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_create_tables_sql(version))
        return schema_of(db)


_IMPOSSIBLE_VALUES = {
    "connection": "FROM connections WHERE opened_ns < 0 OR closed_ns < opened_ns OR login_ns < 0 OR login_round_trips < 0",
    "page": "FROM pages WHERE begun_ns < 0 OR ended_ns < begun_ns OR confidence NOT BETWEEN 0 AND 1"
    f" OR method NOT IN ({', '.join(map(repr, get_args(PageMethod)))})",
    "round trip": "FROM round_trips WHERE begun_ns < 0 OR sent_ns < begun_ns OR answered_ns < sent_ns OR ended_ns < answered_ns"
    " OR min(bytes_to_server, bytes_to_client, requests, ifnull(rows, 0)) < 0"
    f" OR phase NOT IN ({', '.join(map(repr, _PHASES))})"
    " OR digest_id NOT IN (SELECT id FROM digests)",
}
"""SQL that finds impossible values. A connection may be missing: it has no row if it was open when the recorder was killed."""


def _check_values(db: sqlite3.Connection, path: Path) -> None:
    """Check a recording without a checksum for impossible values. Raises NotARunFile."""
    for subject, query in _IMPOSSIBLE_VALUES.items():
        impossible = db.execute(f"SELECT id {query} LIMIT 1").fetchone()
        if impossible is not None:
            raise damage_error(path, f"{subject} {impossible[0]} is impossible")


def _page_from_row(row: Sequence[Any]) -> TimedPage:
    """A page from its row; in format 1 it is unknown whether a page failed."""
    failed = row[7] if len(row) > 7 else None
    return TimedPage(*(*row[:7], None if failed is None else bool(failed)))


def _join_rows(
    facts: RecordingFacts,
    connections: tuple[RecordedConnection, ...],
    digests: tuple[RecordedDigest, ...],
    rows: Sequence[dict[str, Any]],
    pages: Sequence[TimedPage],
) -> Recording:
    floor_ns = facts.floor_ns or 0
    contested = facts.contested
    if facts.stopped == KILLED:  # the recorder was killed before it assigned round trips to pages
        processes = {connection.id: connection.pid for connection in connections}
        assignment = _assign_round_trips(
            [(page.id, page.pid, page.begun_ns, page.ended_ns) for page in pages],
            [
                (row["id"], processes.get(row["connection_id"]), row["begun_ns"], row["connection_id"], row["phase"])
                for row in rows
            ],
        )
        rows = [{**row, "page_id": assignment.pages[row["id"]]} for row in rows]
        contested = assignment.contested
    last_end_ns = {page.id: page.begun_ns for page in pages}
    trips_by_page: dict[int, list[RoundTrip]] = defaultdict(list)
    trips = []
    for row in rows:
        gap_ns = 0
        if (page_id := row["page_id"]) is not None:
            previous_end_ns = last_end_ns.get(page_id, row["begun_ns"])
            gap_ns = max(row["begun_ns"] - previous_end_ns, 0)
            last_end_ns[page_id] = max(previous_end_ns, row["ended_ns"])
        server_ns = max(row["ended_ns"] - row["sent_ns"] - floor_ns, 0)
        # Not validated: the values were when they were written. The shared set halves the memory of many round trips.
        trip = RoundTrip.model_construct(_ROUND_TRIP_FIELDS, **row, server_ns=server_ns, gap_ns=gap_ns)
        trips.append(trip)
        if trip.page_id is not None:
            trips_by_page[trip.page_id].append(trip)
    complete_pages = tuple(
        TimedPage(*(*_page_row(page), tuple(trips_by_page[page.id]), contested.get(page.id, 0))) for page in pages
    )
    return Recording(
        facts,
        connections,
        digests,
        tuple(trips),
        complete_pages,
        {digest.id: digest for digest in digests},
        {connection.id: connection for connection in connections},
    )


@dataclass(frozen=True)
class _Assignment:
    """An assignment of round trips to pages."""

    pages: Mapping[int, int | None]
    """Page ID by round trip ID; None if the round trip belongs to no page."""
    ambiguous: int
    """Number of round trips that belong to no page because two pages claim them."""
    contested: Mapping[int, int]
    """Number of these ambiguous round trips that each page claims, by page ID."""


def _assign_round_trips(
    pages: Sequence[tuple[int, int | None, int, int]], trips: Iterable[tuple[int, int | None, int, int, str]]
) -> _Assignment:
    """Assign round trips to pages. `pages`: ID, process, begin, end. `trips`: ID, process, begin, connection, phase; ordered by begin.

    The application does not wait for the message that closes a connection, so the page may have ended when the recorder sees this
    message. The message is then assigned to the page of the connection's previous round trip."""
    page_finder = _PageIndex(pages)
    claims_by_trip: dict[int, list[int]] = {}
    previous_claims: dict[int, list[int]] = {}
    for trip_id, pid, begun_ns, connection, phase in trips:
        claims = page_finder.claiming_pages(pid, begun_ns)
        claims_by_trip[trip_id] = claims or (previous_claims.get(connection, []) if phase == "close" else [])
        previous_claims[connection] = claims_by_trip[trip_id]
    shared = [claims for claims in claims_by_trip.values() if len(claims) > 1]
    return _Assignment(
        pages={trip_id: claims[0] if len(claims) == 1 else None for trip_id, claims in claims_by_trip.items()},
        ambiguous=len(shared),
        contested=Counter(page for claims in shared for page in claims),
    )
