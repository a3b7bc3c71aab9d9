"""Repeats recorded pages against a real server, with statements that the user provides. No I/O.

A recording has statements without their literals, so the user provides a file of complete statements. If several of these differ from
a recorded statement only in their literals, its occurrences run them in turn. Recorded gaps are kept, not arrival times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise

import numpy as np

from howfar.contract.messages import Repeated, RepeatPage, RepeatStep
from howfar.errors import UsageError
from howfar.recording.kinds import TripKind
from howfar.recording.page_costs import Trip, sequential_trips, tap_ns
from howfar.recording.predict import Quantiles, quantiles
from howfar.recording.prediction_report import compare, format_estimate
from howfar.recording.recording import Recording, TimedPage
from howfar.recording.replay import BEHIND_SHARE, OPEN_BEFORE, missing_answer
from howfar.recording.texts import advise, certainty, format_ms, interval, phrase, rounded_count, setting
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Cell,
    Column,
    Document,
    Heading,
    Table,
    Text,
    Warnings,
    make_table,
    what_to_do,
)
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
"""Exceptions to `_READS`: changes that a read-only session does not prevent, and statements that make it writable."""
_HIDDEN_CHANGES = re.compile(r"/\*M?! | \b set_config \b .* read_only", re.IGNORECASE | re.VERBOSE | re.DOTALL)
"""Exceptions to `_READS` that only the complete statement shows: comments that a server may execute, and a setting in a literal."""
_MAX_LISTED, _MAX_STATEMENT_LENGTH = 5, 100
_STATEMENT_END = re.compile(r";\s*(?:\n|\Z)")
_PLACEHOLDER = re.compile(r"\?|\.\.\.|…")


class RepeatedPage(Part):
    """All repetitions of the pages of one name."""

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
    """The same time in the recording."""
    connecting_ms: float
    """Mean time for connects and logins, per page."""
    recorded_connecting_ms: float
    """The same time in the recording."""
    left_out: dict[str, int]
    """Number of round trips of all these pages that were not repeated because they have no statement, by command."""
    client_late: float
    """Total lateness of the requests that howfar sent, as a share of the pages' time."""


class Repetition(Part):
    """The repetition of a recording against a server."""

    server: str
    read_only: bool
    """Whether the sessions were read only."""
    blocks: int
    pages: tuple[RepeatedPage, ...]
    lacking: tuple[str, ...]
    """Sentences about pages that were left out, with the reason."""
    recorded_unix_ns: int | None
    """When the recording began; None if unknown."""


def split_statements(text: str) -> tuple[str, ...]:
    """The statements of a file, each ended by a semicolon at the end of a line."""
    return tuple(statement.strip() for statement in _STATEMENT_END.split(text) if statement.strip())


@dataclass(frozen=True)
class RepeatScript:
    """The pages to repeat, and the statements to which their steps refer by index."""

    recording: Recording
    """The recording reduced to the pages that can be repeated."""
    statements: tuple[str, ...]
    pages: tuple[RepeatPage, ...]
    left_out: tuple[Counter[str], ...]
    """Round trips of each page that are left out, by command."""
    lacking: tuple[str, ...]
    """For each name of pages that are left out, a sentence with the reason."""


def make_script(recording: Recording, statements: Sequence[str], digests: Sequence[str], writes: bool) -> RepeatScript:
    """The script that repeats those pages of a recording whose statements are all known with their literals. `digests`: the
    statements without literals; `writes`: also run statements that change data. Raises UsageError."""
    indices_by_digest: dict[str, list[int]] = {}
    for index, digest in enumerate(digests):
        indices_by_digest.setdefault(_without_semicolon(digest), []).append(index)
    page_trips = [sequential_trips(page, recording, {})[0] for page in recording.pages]
    needed = [Counter(text for trip in page if (text := executed_statement(trip)) is not None) for page in page_trips]
    all_statements = list(statements)
    for text in dict.fromkeys(text for page in needed for text in page):
        if text not in indices_by_digest and not _PLACEHOLDER.search(text):
            indices_by_digest[text] = [len(all_statements)]
            all_statements.append(text)
    complete = [index for index, texts in enumerate(needed) if texts and texts.keys() <= indices_by_digest.keys()]
    lacking = _explain_left_out(recording.pages, needed, indices_by_digest)
    if not complete:
        raise UsageError(
            phrase("error/no-repeat", reasons="; ".join(lacking)),
            "Add to the file at least one of each statement, complete, with a semicolon at the end of its last line.",
        )
    _check_permitted(
        sum((needed[index] for index in complete), Counter[str]()), all_statements, indices_by_digest, writes
    )
    repeatable = replace(recording, pages=tuple(recording.pages[index] for index in complete))
    index_cycles = {digest: cycle(indices) for digest, indices in indices_by_digest.items()}
    recorder_ns_per_trip = tap_ns(recording) + unseen_round_trip_ns(recording)
    pages_and_left_out = [
        _make_page(recording.pages[index], page_trips[index], index_cycles, recorder_ns_per_trip) for index in complete
    ]
    return RepeatScript(
        repeatable,
        tuple(all_statements),
        tuple(page for page, _ in pages_and_left_out),
        tuple(left_out for _, left_out in pages_and_left_out),
        lacking,
    )


def _explain_left_out(
    pages: Sequence[TimedPage], needed: Sequence[Counter[str]], known: Mapping[str, Sequence[int]]
) -> tuple[str, ...]:
    """Sentences about why pages cannot be repeated, one per page name."""
    missing: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for page, texts in zip(pages, needed, strict=True):
        unknown_texts = [text for text in texts if text not in known]
        if unknown_texts or not texts:
            missing.setdefault(page.name, Counter()).update(unknown_texts)
            counts[page.name] += 1
    return tuple(
        phrase(
            "repeat/lacks" if texts else "repeat/no-statement",
            page=name,
            pages=counts[name],
            missing=len(texts),
            listed=", ".join(text[:_MAX_STATEMENT_LENGTH] for text, _ in texts.most_common(_MAX_LISTED)),
        )
        for name, texts in missing.items()
    )


def _without_semicolon(digest: str) -> str:
    """A digest without the final semicolon that some applications send."""
    return digest.rstrip("; ")


def executed_statement(trip: Trip) -> str | None:
    """The statement that a round trip ran, without literals. None if it ran no statement but was a login, a ping, a preparation, or a
    fetch from the result of an earlier statement."""
    if trip.digest is None or trip.kind in (TripKind.CONNECT, TripKind.PREPARE):
        return None
    if trip.kind is TripKind.FETCH and not trip.text.lower().startswith("fetch "):
        return None
    return _without_semicolon(trip.digest.text) or None


def unseen_round_trip_ns(recording: Recording) -> float:
    """Time for which an application waits for a round trip before and after the recorder sees it. Recorded gaps include it."""
    return max((recording.facts.path_ns or 0) - (recording.facts.floor_ns or 0), 0)


def _check_permitted(
    needed: Counter[str], statements: Sequence[str], indices_by_digest: Mapping[str, Sequence[int]], writes: bool
) -> None:
    """Check that the statements of the pages are permitted. Raises UsageError."""
    changing = [digest for digest in needed if may_change(digest)]
    changing += [
        digest
        for digest in needed
        if any(_HIDDEN_CHANGES.search(statements[index]) for index in indices_by_digest[digest])
    ]
    if changing and not writes:
        listed_statements = "; ".join(digest[:_MAX_STATEMENT_LENGTH] for digest in changing[:_MAX_LISTED])
        raise UsageError(
            phrase("error/may-change", statements=listed_statements),
            "Give --writes to run them at this server, or record pages that only read.",
        )


def may_change(digest: str) -> bool:
    """Whether a digest has a statement that may change something even in a read-only session."""
    parts = [part.strip() for part in digest.split(";") if part.strip()]
    return any(_READS.match(part) is None or _CHANGES.search(part) is not None for part in parts)


def _make_page(
    page: TimedPage, trips: Sequence[Trip], index_cycles: Mapping[str, Iterator[int]], recorder_ns_per_trip: float
) -> tuple[RepeatPage, Counter[str]]:
    """A page's steps, and counts of the round trips left out. Gaps keep the application's time around these."""
    steps: list[RepeatStep] = []
    # All pages number their connections in the same way, so a connection that one opens replaces that of the page before.
    opened: set[int] = set()
    numbers: dict[int, int] = {}
    left_out: Counter[str] = Counter()
    gap_ns = 0.0
    for trip in trips:
        gap_ns += max(trip.gap_ns - recorder_ns_per_trip, 0.0)
        is_opened_here = trip.connection in opened or trip.phase == "connect"
        connection = numbers.setdefault(trip.connection, len(numbers) + (0 if is_opened_here else OPEN_BEFORE))
        if trip.phase == "connect":
            if trip.connection not in opened:
                opened.add(trip.connection)
                steps.append(RepeatStep(connection=connection, opens=True, gap_ns=round(gap_ns)))
            gap_ns = 0.0  # the repeated login includes the computing between its own round trips
        elif (text := executed_statement(trip)) is not None:
            steps.append(
                RepeatStep(
                    connection=connection,
                    gap_ns=round(gap_ns),
                    statement=next(index_cycles[text]),
                    may_fail=trip.failed,
                )
            )
            gap_ns = 0.0
        else:
            left_out[trip.command] += 1
    last = trips[-1]
    remaining_ns = page.ended_ns - last.begun_ns - last.took_ns + gap_ns
    return RepeatPage(steps=tuple(steps), rest_ns=max(round(remaining_ns), 0)), left_out


def analyze(
    repeated_script: RepeatScript, blocks: Sequence[Sequence[Repeated]], server: str, read_only: bool
) -> Repetition:
    """Analyze a repetition. `blocks`: for each block the repetitions of all pages of the script, in their order."""
    recording = repeated_script.recording
    tap_ns_per_trip, unseen_ns = tap_ns(recording), unseen_round_trip_ns(recording)
    names = dict.fromkeys(page.name for page in recording.pages)
    repeated_pages = []
    for name in names:
        indices = [index for index, page in enumerate(recording.pages) if page.name == name]
        times = np.asarray([[float(block[index].took_ns) for block in blocks] for index in indices])
        waited_trips = [sequential_trips(recording.pages[index], recording, {})[0] for index in indices]
        recorded = [
            recording.pages[index].took_ns - len(trips) * tap_ns_per_trip
            for index, trips in zip(indices, waited_trips, strict=True)
        ]
        repeated = [block[index] for index in indices for block in blocks]
        waits_ns = [
            trip.took_ns + unseen_ns for trips in waited_trips for trip in trips if executed_statement(trip) is not None
        ]
        repeated_pages.append(
            RepeatedPage(
                name=name,
                pages=len(indices),
                repeated=quantiles(times),
                recorded=quantiles(np.repeat(np.asarray(recorded)[:, None], len(blocks), axis=1)),
                round_trips=len(waits_ns) / len(indices),
                waiting_ms=sum(sum(page.round_trips_ns) for page in repeated) / len(repeated) / 1e6,
                recorded_waiting_ms=sum(waits_ns) / len(indices) / 1e6,
                connecting_ms=sum(sum(page.opened_ns) for page in repeated) / len(repeated) / 1e6,
                recorded_connecting_ms=sum(
                    _connect_and_login_ns(trips, tap_ns_per_trip, unseen_ns) for trips in waited_trips
                )
                / len(indices)
                / 1e6,
                left_out=dict(sum((repeated_script.left_out[index] for index in indices), Counter[str]())),
                client_late=sum(page.client_late_ns for page in repeated) / float(times.sum()),
            )
        )
    return Repetition(
        server=server,
        read_only=read_only,
        blocks=len(blocks),
        pages=tuple(repeated_pages),
        lacking=repeated_script.lacking,
        recorded_unix_ns=recording.facts.began_unix_ns,
    )


def _connect_and_login_ns(trips: Sequence[Trip], tap_ns_per_trip: float, unseen_ns: float) -> float:
    """Total time of logins: their round trips, and the application's time between the round trips of one login."""
    return sum(
        trip.took_ns
        + unseen_ns
        + (
            max(trip.gap_ns - tap_ns_per_trip - unseen_ns, 0.0)
            if previous and previous.connection == trip.connection
            else 0.0
        )
        for previous, trip in pairwise((None, *trips))
        if trip is not None and trip.phase == "connect"
    )


def document(repetition: Repetition) -> Document:
    """The report."""
    page = max(repetition.pages, key=lambda page: page.repeated.p50_ms.value)
    warnings = tuple(_warnings(repetition))
    if page.repeated.p50_ms.low is None:
        answer, *steps = missing_answer(page.pages, repetition.blocks)
        blocks = [answer]
    else:
        steps = what_to_do(_advice(repetition))
        blocks = [_answer(repetition, page), Heading("Repeated and recorded"), _pages_table(repetition)]
    blocks += [Warnings(warnings)] if warnings else []
    read_only = f" {phrase('repeat/read-only')}" if repetition.read_only else ""
    method = phrase("repeat/method", blocks=repetition.blocks, server=repetition.server) + read_only
    settings = setting(
        repetition.server,
        phrase("replay/blocks", blocks=repetition.blocks, pages=sum(page.pages for page in repetition.pages)),
        unix_ns=repetition.recorded_unix_ns,
        is_recorded=True,
    )
    blocks += [Heading("How it was repeated"), Text(method), *steps]
    return Document("howfar replay", tuple(blocks), (), phrase("repeat/question"), settings)


def _answer(repetition: Repetition, page: RepeatedPage) -> Answer:
    repeated, recorded_ms = page.repeated.p50_ms, page.recorded.p50_ms.value
    text = phrase(
        f"repeat/answer/{compare(recorded_ms, repeated)}",
        page=page.name,
        took=format_ms(repeated.value),
        server=repetition.server,
        recorded=format_ms(recorded_ms),
        low=format_ms(repeated.low or 0.0),
        high=format_ms(repeated.high or 0.0),
        ratio=recorded_ms / repeated.value,
    )
    why = phrase(
        "repeat/why",
        trips=rounded_count(page.round_trips),
        waiting=format_ms(page.waiting_ms),
        recorded=format_ms(page.recorded_waiting_ms),
    )
    if page.connecting_ms:
        connecting, recorded_connecting = format_ms(page.connecting_ms), format_ms(page.recorded_connecting_ms)
        why = f"{why} {phrase('repeat/why/connecting', connecting=connecting, recorded=recorded_connecting)}"
    figures = {"pages": page.pages, "blocks": repetition.blocks, "interval": interval(repeated)}
    doubts = {
        "replay/doubt/tool": any(other.client_late > BEHIND_SHARE for other in repetition.pages),
        "repeat/doubt/lacking": bool(repetition.lacking),
    }
    basis = phrase("repeat/sure", client=page.client_late, **figures)
    return Answer(text, why=why, certainty=certainty([basis], (phrase(name) for name in doubts if doubts[name])))


def _advice(repetition: Repetition) -> Iterator[AdviceBlock]:
    late_sentences = [
        phrase("replay/behind/tool", page=page.name, share=page.client_late)
        for page in repetition.pages
        if page.client_late > BEHIND_SHARE
    ]
    yield advise("replay/do/quiet", because=" ".join(late_sentences)) if late_sentences else advise("repeat/do/predict")


def _warnings(repetition: Repetition) -> Iterator[str]:
    yield from (phrase("repeat/lacking", reason=reason) for reason in repetition.lacking)
    for page in repetition.pages:
        if page.left_out:
            listed = ", ".join(f"{count} {command}" for command, count in sorted(page.left_out.items()))
            yield phrase("repeat/left-out", page=page.name, listed=listed, pages=page.pages)


def _pages_table(repetition: Repetition) -> Table:
    return make_table(
        "",
        repetition.pages,
        {
            "page": lambda page: Cell(page.name, counted(page.pages, "page")),
            "repeated\nms, p50": lambda page: format_estimate(page.repeated.p50_ms).replace(" ms", ""),
            "recorded\nms, p50": lambda page: format_ms(page.recorded.p50_ms.value),
            "repeated\nms, p95": lambda page: format_ms(page.repeated.p95_ms.value),
            "recorded\nms, p95": lambda page: format_ms(page.recorded.p95_ms.value),
            "statements\nof a page": lambda page: f"{rounded_count(page.round_trips):,}",
            "waiting\nms": lambda page: format_ms(page.waiting_ms),
            "recorded\nms": lambda page: format_ms(page.recorded_waiting_ms),
            Column("tool late", optional=True): lambda page: f"{page.client_late:.1%}",
        },
        main=True,
    )
