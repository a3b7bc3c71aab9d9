"""Recorded pages repeated against a real server, with statements that the user provides. Pure.

A recording has statements without their literals. A file of complete statements determines what is run: for each recorded statement,
cyclically, those of the file that are equal to it without literals. Gaps are kept, not arrival times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise

import numpy as np

from howfar.engine.messages import Repeated, RepeatPage, RepeatStep
from howfar.errors import UsageError
from howfar.recording.kinds import Kind
from howfar.recording.layout import Trip, tap_ns, waited_for
from howfar.recording.predict import Quantiles, quantiles
from howfar.recording.prediction_report import ms, with_interval
from howfar.recording.recording import Page, Recording
from howfar.recording.replay import BEHIND_SHARE, was_behind
from howfar.report.document import Answer, Block, Cell, Column, Document, Heading, Table, Text, Warnings
from howfar.stats.estimate import Part
from howfar.units import counted

_READS = re.compile(
    r"""\(* \s* ( ABORT | BEGIN (?!\s+NOT) | CLOSE | COMMIT | DEALLOCATE | DECLARE | DESC | DESCRIBE | DISCARD\s+ALL | END | EXPLAIN
    | FETCH | RELEASE | RESET\s+ALL | ROLLBACK | SAVEPOINT | SELECT | SET (?!\s+(DEFAULT|PASSWORD|RESOURCE|STATEMENT)\b) | SHOW
    | START\s+TRANSACTION | TABLE | UNLISTEN | USE | VALUES | WITH ) \b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Statements that change nothing in a session whose transactions are read only."""
_CHANGES = re.compile(
    r"""\A SET \b .* ( \b (GLOBAL | PERSIST | PERSIST_ONLY) \b | (transaction|tx)_read_only )
    | \A (BEGIN | SET | START) \b .* \b READ \s+ WRITE \b | \b INTO \s+ (OUTFILE | DUMPFILE) \b""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Exceptions from `_READS`: changes that a read-only session does not prevent, and statements that make it writable."""
_HIDDEN = re.compile(r"/\*M?! | \b set_config \b .* read_only", re.IGNORECASE | re.VERBOSE | re.DOTALL)
"""Exceptions that a digest does not show: comments that a server may execute, and a setting named in a literal."""
_MOST_NAMED, _LONGEST_NAMED = 5, 100
_KEPT = 5000
"""Added to the number of a connection that was open before its page."""
_END = re.compile(r";\s*(?:\n|\Z)")
_INCOMPLETE = re.compile(r"\?|\.\.\.|…")


class RepeatedPage(Part):
    """All repetitions of pages of one name."""

    name: str
    pages: int
    repeated: Quantiles
    recorded: Quantiles
    """Times as recorded, without the time that the tap added."""
    round_trips: float
    """Mean number of round trips that were repeated, per page."""
    waiting_ms: float
    """Mean time waiting for these round trips, per page."""
    recorded_waiting_ms: float
    connecting_ms: float
    """Mean time for connections and their logins, per page."""
    recorded_connecting_ms: float
    left_out: dict[str, int]
    """Round trips of all these pages that have no statement, by command."""
    client_late: float
    """Delay of the tool's requests relative to the recording, as a share of the pages' time."""


class Repetition(Part):
    """The repetition of a recording at a server."""

    server: str
    read_only: bool
    """Whether the sessions were read only."""
    blocks: int
    pages: tuple[RepeatedPage, ...]
    lacking: tuple[str, ...]
    """Pages that were left out, with the reason."""


def statements_in(text: str) -> tuple[str, ...]:
    """The statements of a file, each ended by a semicolon at the end of a line."""
    return tuple(statement.strip() for statement in _END.split(text) if statement.strip())


@dataclass(frozen=True)
class Script:
    """The pages of a job and the statements that their steps name."""

    recording: Recording
    """The recording reduced to the pages that can be repeated."""
    statements: tuple[str, ...]
    pages: tuple[RepeatPage, ...]
    left_out: tuple[Counter[str], ...]
    """Round trips of each page that are left out, by command."""
    lacking: tuple[str, ...]
    """A sentence for each name of pages that are left out, with the reason."""


def script(recording: Recording, given: Sequence[str], digests: Sequence[str], writes: bool) -> Script:
    """The script that repeats the pages of a recording whose statements are all known. `digests`: those of the given statements;
    `writes`: also run statements that change data. Raises UsageError."""
    known: dict[str, list[int]] = {}
    for at, digest in enumerate(digests):
        known.setdefault(_bare(digest), []).append(at)
    trips = [waited_for(page, recording, {})[0] for page in recording.pages]
    asked = [Counter(text for trip in page if (text := statement_of(trip)) is not None) for page in trips]
    statements = list(given)
    for text in dict.fromkeys(text for page in asked for text in page):
        if text not in known and not _INCOMPLETE.search(text):
            known[text] = [len(statements)]
            statements.append(text)
    whole = [at for at, texts in enumerate(asked) if texts and texts.keys() <= known.keys()]
    lacking = _lacking(recording.pages, asked, known)
    if not whole:
        raise UsageError(
            f"no page can be repeated: {'; '.join(lacking)}",
            "Add to the file at least one of each statement, complete, with a semicolon at the end of its last line.",
        )
    _check_changes(sum((asked[at] for at in whole), Counter[str]()), statements, known, writes)
    kept = replace(recording, pages=tuple(recording.pages[at] for at in whole))
    turns = {digest: cycle(places) for digest, places in known.items()}
    each_ns = tap_ns(recording) + unseen_ns(recording)
    made = [_page(recording.pages[at], trips[at], turns, each_ns) for at in whole]
    return Script(kept, tuple(statements), tuple(page for page, _ in made), tuple(left for _, left in made), lacking)


def _lacking(
    pages: Sequence[Page], asked: Sequence[Counter[str]], known: Mapping[str, Sequence[int]]
) -> tuple[str, ...]:
    """Why pages cannot be repeated, by name."""
    missing: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for page, texts in zip(pages, asked, strict=True):
        absent = [text for text in texts if text not in known]
        if absent or not texts:
            missing.setdefault(page.name, Counter()).update(absent)
            counts[page.name] += 1
    return tuple(
        f"{name} ({counted(counts[name], 'page')}) has no statement"
        if not texts
        else f"{name} ({counted(counts[name], 'page')}) lacks {counted(len(texts), 'statement')}: "
        + ", ".join(text[:_LONGEST_NAMED] for text, _ in texts.most_common(_MOST_NAMED))
        for name, texts in missing.items()
    )


def _bare(digest: str) -> str:
    """A digest without the final semicolon that some applications send."""
    return digest.rstrip("; ")


def statement_of(trip: Trip) -> str | None:
    """The statement that a round trip ran, without its literals. None if it ran none: a login, a ping, a preparation, or a fetch from
    the result of an earlier statement."""
    if trip.digest is None or trip.kind in (Kind.CONNECT, Kind.PREPARE):
        return None
    if trip.kind is Kind.FETCH and not trip.text.lower().startswith("fetch "):
        return None
    return _bare(trip.digest.text) or None


def unseen_ns(recording: Recording) -> float:
    """Time for which an application waits for a round trip before and after the recorder sees it. Recorded gaps include it."""
    path_ns, floor_ns = (float(recording.facts.get(name) or 0) for name in ("path_ns", "floor_ns"))
    return max(path_ns - floor_ns, 0.0)


def _check_changes(
    asked: Counter[str], statements: Sequence[str], known: Mapping[str, Sequence[int]], writes: bool
) -> None:
    """Check that the statements of the pages are permitted. Raises UsageError."""
    changing = [digest for digest in asked if may_change(digest)]
    changing += [digest for digest in asked if any(_HIDDEN.search(statements[at]) for at in known[digest])]
    if changing and not writes:
        raise UsageError(
            f"statements may change data: {'; '.join(digest[:_LONGEST_NAMED] for digest in changing[:_MOST_NAMED])}",
            "Give --writes to run them at this server, or record pages that only read.",
        )


def may_change(digest: str) -> bool:
    """Whether a digest has a statement that may change something even in a read-only session."""
    parts = [part.strip() for part in digest.split(";") if part.strip()]
    return any(_READS.match(part) is None or _CHANGES.search(part) is not None for part in parts)


def _page(
    page: Page, trips: Sequence[Trip], turns: Mapping[str, Iterator[int]], each_ns: float
) -> tuple[RepeatPage, Counter[str]]:
    """A page's steps, and counts of the round trips left out. The application's time around those is kept as gaps."""
    steps: list[RepeatStep] = []
    # Numbered alike in each page: a connection that a page opens replaces the one that the page before it opened.
    opened: set[int] = set()
    numbers: dict[int, int] = {}
    left: Counter[str] = Counter()
    waits_ns = 0.0
    for trip in trips:
        waits_ns += max(trip.gap_ns - each_ns, 0.0)
        is_own = trip.connection in opened or trip.phase == "connect"
        connection = numbers.setdefault(trip.connection, len(numbers) + (0 if is_own else _KEPT))
        if trip.phase == "connect":
            if trip.connection not in opened:
                opened.add(trip.connection)
                steps.append(RepeatStep(connection=connection, opens=True, gap_ns=round(waits_ns)))
            waits_ns = 0.0  # the repeated login includes the computing between its own round trips
        elif (text := statement_of(trip)) is not None:
            steps.append(
                RepeatStep(
                    connection=connection,
                    gap_ns=round(waits_ns),
                    statement=next(turns[text]),
                    may_fail=trip.failed,
                )
            )
            waits_ns = 0.0
        else:
            left[trip.command] += 1
    last = trips[-1]
    rest_ns = page.ended_ns - last.begun_ns - last.took_ns + waits_ns
    return RepeatPage(steps=tuple(steps), rest_ns=max(round(rest_ns), 0)), left


def analyze(made: Script, blocks: Sequence[Sequence[Repeated]], server: str, read_only: bool) -> Repetition:
    """Analyze a repetition. `blocks`: for each block the repetitions of all pages of the script, in their order."""
    recording = made.recording
    each_ns, beside_ns = tap_ns(recording), unseen_ns(recording)
    names = dict.fromkeys(page.name for page in recording.pages)
    found = []
    for name in names:
        places = [at for at, page in enumerate(recording.pages) if page.name == name]
        times = np.asarray([[float(block[at].took_ns) for block in blocks] for at in places])
        waited = [waited_for(recording.pages[at], recording, {})[0] for at in places]
        recorded = [
            recording.pages[at].took_ns - len(trips) * each_ns for at, trips in zip(places, waited, strict=True)
        ]
        repeated = [block[at] for at in places for block in blocks]
        statements = [trip.took_ns + beside_ns for trips in waited for trip in trips if statement_of(trip) is not None]
        found.append(
            RepeatedPage(
                name=name,
                pages=len(places),
                repeated=quantiles(times),
                recorded=quantiles(np.repeat(np.asarray(recorded)[:, None], len(blocks), axis=1)),
                round_trips=len(statements) / len(places),
                waiting_ms=sum(sum(page.round_trips_ns) for page in repeated) / len(repeated) / 1e6,
                recorded_waiting_ms=sum(statements) / len(places) / 1e6,
                connecting_ms=sum(sum(page.opened_ns) for page in repeated) / len(repeated) / 1e6,
                recorded_connecting_ms=sum(_connecting_ns(trips, each_ns, beside_ns) for trips in waited)
                / len(places)
                / 1e6,
                left_out=dict(sum((made.left_out[at] for at in places), Counter[str]())),
                client_late=sum(page.client_late_ns for page in repeated) / float(times.sum()),
            )
        )
    return Repetition(server=server, read_only=read_only, blocks=len(blocks), pages=tuple(found), lacking=made.lacking)


def _connecting_ns(trips: Sequence[Trip], tap_ns: float, beside_ns: float) -> float:
    """Time of the round trips of logins, and of the application between the round trips of one login."""
    return sum(
        trip.took_ns
        + beside_ns
        + (max(trip.gap_ns - tap_ns - beside_ns, 0.0) if before and before.connection == trip.connection else 0.0)
        for before, trip in pairwise((None, *trips))
        if trip is not None and trip.phase == "connect"
    )


def document(found: Repetition) -> Document:
    """The report."""
    blocks: list[Block] = [Answer(_answer(found)), Heading("Repeated and recorded"), _table(found)]
    if warnings := tuple(_warnings(found)):
        blocks.append(Warnings(warnings))
    blocks += [
        Heading("How it was repeated"),
        Text(
            f"{found.blocks} blocks, each with every page once, on {found.server} as it is, after one that is not counted. Gaps "
            "between round trips are those of the recording. Statements are those given, as text: what the application prepared is "
            f"not prepared here. {'Sessions were read only.' if found.read_only else ''}".rstrip()
        ),
    ]
    return Document("howfar replay", tuple(blocks))


def _answer(found: Repetition) -> str:
    page = max(found.pages, key=lambda page: page.repeated.p50_ms.value)
    text = (
        f"{page.name} took {with_interval(page.repeated.p50_ms)} on {found.server}, and {with_interval(page.recorded.p50_ms)} when it "
        f"was recorded: its {page.round_trips:g} statements {ms(page.waiting_ms)} ms, and {ms(page.recorded_waiting_ms)} ms then"
    )
    if page.connecting_ms:
        text += f"; connecting {ms(page.connecting_ms)} ms, and {ms(page.recorded_connecting_ms)} ms then"
    return f"{text}."


def _warnings(found: Repetition) -> Iterator[str]:
    yield from (f"Left out: {reason}." for reason in found.lacking)
    for page in found.pages:
        if page.client_late > BEHIND_SHARE:
            yield was_behind(page.name, "this tool", page.client_late)
        if page.left_out:
            named = ", ".join(f"{count} {command}" for command, count in sorted(page.left_out.items()))
            yield f"{page.name}: round trips that are no statements were left out ({named}, in {counted(page.pages, 'page')})."


def _table(found: Repetition) -> Table:
    heads = (
        Column("page", left=True),
        Column("repeated", "ms, p50"),
        Column("recorded", "ms, p50"),
        Column("repeated", "ms, p95"),
        Column("recorded", "ms, p95"),
        Column("statements", "of a page"),
        Column("waiting", "ms"),
        Column("recorded", "ms"),
        Column("tool late", optional=True),
    )
    cell: Callable[[float], Cell] = lambda value: Cell(ms(value))  # noqa: E731
    rows = [
        (
            Cell(page.name, counted(page.pages, "page")),
            Cell(with_interval(page.repeated.p50_ms).replace(" ms", "")),
            cell(page.recorded.p50_ms.value),
            cell(page.repeated.p95_ms.value),
            cell(page.recorded.p95_ms.value),
            Cell(f"{page.round_trips:g}"),
            cell(page.waiting_ms),
            cell(page.recorded_waiting_ms),
            Cell(f"{page.client_late:.1%}"),
        )
        for page in found.pages
    ]
    return Table("", heads, tuple(rows), main=True)
