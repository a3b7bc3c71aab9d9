"""The summary of a recording: its pages, their round trips, the wait for the database, and the cost of recording. No I/O."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from howfar.recording.facts import RecordingFacts
from howfar.recording.other_programs import BusyPrograms, busy_pages_note, find_busy_calibration, find_busy_pages
from howfar.recording.recording import Recording, RoundTrip, TimedPage, cold_start_note, uncertainty_note
from howfar.recording.texts import advise, certainty, next_step, phrase, rounded_count, setting
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
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
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_RANK_BLOCKS, estimate_text, limits_text, mean_interval, median_interval
from howfar.units import counted

_MAX_ROWS = 10
_NOTABLE_COST_SHARE = 0.05
"""The report's answer mentions the cost of recording if it is more than this share of a page's time."""
_NOTABLE_CAPTURE_CPUS = 0.03
"""The report's answer mentions the cost of capturing packets if it is more than this share of a CPU."""
_MAX_TEXT, _MAX_TEXT_WITH_PAGE = 78, 60
_NOTABLE_SENDING_SHARE = 0.01
"""A warning reports the time to send requests if it is at least this share of a page's time."""


class PageSummary(Part):
    """The pages of one name. Times and shares are medians over these pages, counts are means; times are in milliseconds."""

    name: str
    method: str
    count: int
    took_ms: Estimate
    round_trips: Estimate
    connections: Estimate
    waiting: Estimate
    """Share of the page's time spent waiting: from the last byte of a request to the last byte of its answer."""
    sending: Estimate
    """Share of the page's time spent sending, from the first byte of a request to its last, unless it also waited for another."""
    unsure: str | None
    """A note that the page's begin and end are uncertain, if they were not marked."""
    cold: str | None
    """A note about a first page that took much longer."""
    recording: Estimate | None
    """Share of the page's time that the tap added, which is its cost per round trip times the number of round trips. None if there was
    no tap or its cost is unknown."""
    others: BusyPrograms | None
    """Other programs during these pages; None if unknown."""


class UnusablePages(Part):
    """Pages of one name and method that are excluded from all figures of pages, for one reason."""

    name: str
    method: str
    count: int
    reason: str


class Statement(Part):
    """A statement of the pages of one name, with the time spent waiting for it."""

    text: str
    page: str | None
    """Name of the pages; None for round trips outside any page."""
    count: int
    each: float | None
    """Mean number of occurrences in a page of this name; None outside any page."""
    keys: int | None
    """Number of distinct sets of literals; None if unknown."""
    waited_ms: float
    share: float


class ReplacedName(Part):
    """A server's name that the tap's address replaced, and what this name costs the application without the tap."""

    name: str
    lookup_ms: float
    dead_address: str | None
    """The first address of the name, if it is not the server's."""
    dead_ms: float
    """Duration of an attempt to connect to `dead_address`."""


class RecordingSummary(Part):
    """The figures of a recording."""

    protocol: str
    transport: str
    tls: bool
    round_trips: int
    """Round trips with an answer."""
    connections: int
    pages: tuple[PageSummary, ...]
    left_out: tuple[UnusablePages, ...]
    statements: tuple[Statement, ...]
    """The statements with the longest total waits, at most `_MAX_ROWS`."""
    more_statements: int
    """Number of the other statements."""
    more_round_trips: int
    """Round trips of the other statements."""
    unknown: dict[str, int]
    """How often something is unknown, by reason."""
    tap_us: Estimate | None
    """Time that the tap adds to a round trip; None if unknown."""
    floor_us: float
    """Time of a round trip between tap and server without server work; 0 if unknown."""
    others_calibrating: BusyPrograms | None
    """Other programs that were busy while the cost of the tap was measured; None if none were, or if unknown."""
    capture_cpus: float | None
    """Mean number of CPUs that capturing packets kept busy; None if no packets were captured, or if unknown."""
    no_page: int
    """Round trips that belong to no page."""
    nagle: int
    """Number of small requests that Nagle's algorithm delayed: sending each took as long as a delayed acknowledgement."""
    repeated_syns: int
    """Number of retransmitted SYNs; only recordings from packets count them."""
    repeated_syns_ms: float
    """Time that connections waited for these retransmissions."""
    names: tuple[ReplacedName, ...]
    complete: bool
    stopped: str | None
    all_passed_on: bool | None
    """Whether the tap passed on all bytes that it received; None without a tap."""
    exit_code: int | None
    command: str | None
    """Name of the command, interface or service that was recorded; None if unknown."""
    began_unix_ns: int | None
    span_ns: int
    """Time from the first round trip to the end of the last one."""


def summarise_recording(recording: Recording) -> RecordingSummary:
    """Compute the figures of a recording."""
    facts = recording.facts
    tap_cost_us = tap_us(facts)
    is_tapped = tap_cost_us is not None and facts.method == "tap"
    tap_ns = max(tap_cost_us.value, 0.0) * 1e3 if tap_cost_us is not None and is_tapped else None
    usable_pages: dict[tuple[str, str], list[TimedPage]] = defaultdict(list)
    left_out: Counter[tuple[str, str, str]] = Counter()
    for page in recording.pages:
        if reason := _unusable_reason(page, tap_ns):
            left_out[page.name, page.method, reason] += 1
        else:
            usable_pages[page.name, page.method].append(page)
    answered = [trip for trip in recording.round_trips if trip.is_answered]
    statements = _summarize_statements(recording)
    return RecordingSummary(
        protocol=facts.protocol or "unknown",
        transport=facts.transport or "unknown",
        tls=bool(facts.tls),
        round_trips=len(answered),
        connections=len(recording.connections),
        pages=tuple(
            _summarize_page(name, method, pages, tap_ns, facts) for (name, method), pages in usable_pages.items()
        ),
        left_out=tuple(
            UnusablePages(name=name, method=method, count=count, reason=reason)
            for (name, method, reason), count in left_out.items()
        ),
        statements=statements[:_MAX_ROWS],
        more_statements=len(statements[_MAX_ROWS:]),
        more_round_trips=sum(statement.count for statement in statements[_MAX_ROWS:]),
        unknown=facts.unknown,
        tap_us=tap_cost_us,
        floor_us=(facts.floor_ns or 0) / 1e3,
        others_calibrating=find_busy_calibration(facts.others),
        capture_cpus=facts.capture_cpus,
        no_page=sum(trip.page_id is None for trip in answered),
        nagle=sum(recording.ack_wait_ns(trip) > 0 for trip in answered),
        repeated_syns=facts.repeated_syns,
        repeated_syns_ms=facts.repeated_syns_ns / 1e6,
        names=_replaced_names(facts),
        complete=bool(facts.complete),
        stopped=facts.stopped,
        all_passed_on=facts.passed.all_passed_on if facts.passed else None,
        exit_code=facts.exit_code,
        command=facts.command,
        began_unix_ns=facts.began_unix_ns,
        span_ns=max((trip.ended_ns for trip in answered), default=0)
        - min((trip.begun_ns for trip in answered), default=0),
    )


def tap_us(facts: RecordingFacts) -> Estimate | None:
    """Time that the tap added to a round trip, as measured with the recording; None if unknown."""
    if facts.tap_ns is None:
        return None
    low, high = (None if limit is None else limit / 1e3 for limit in facts.tap_limits_ns)
    return Estimate(value=facts.tap_ns / 1e3, low=low, high=high)


def _unusable_reason(page: TimedPage, tap_ns: float | None) -> str | None:
    """Why the page is unusable, or None. Here a page is also unusable if the calculated time that the tap added exceeds its time."""
    if page.unusable_reason is not None:
        return page.unusable_reason
    if tap_ns is not None and _count_answered(page) * tap_ns > max(page.took_ns, 1):
        return "by its own measure the tap added more than the page took"
    return None


def _count_answered(page: TimedPage) -> int:
    return sum(trip.is_answered for trip in page.round_trips)


def _summarize_page(
    name: str, method: str, pages: Sequence[TimedPage], tap_ns: float | None, facts: RecordingFacts
) -> PageSummary:
    took_ns = [max(page.took_ns, 1) for page in pages]
    trip_counts = [_count_answered(page) for page in pages]
    waiting_and_sending = [_waiting_and_sending_ns(page) for page in pages]
    shares = [(waiting / ns, sending / ns) for (waiting, sending), ns in zip(waiting_and_sending, took_ns, strict=True)]
    assert all(waiting + sending <= 1 for waiting, sending in shares), (
        "waiting and sending do not overlap and lie within the page"
    )
    return PageSummary(
        name=name,
        method=method,
        unsure=uncertainty_note(name, pages),
        cold=cold_start_note(name, pages),
        count=len(pages),
        took_ms=median_interval([ns / 1e6 for ns in took_ns]),
        round_trips=mean_interval(trip_counts),
        connections=mean_interval([len({trip.connection_id for trip in page.round_trips}) for page in pages]),
        waiting=median_interval([waiting for waiting, _ in shares]),
        sending=median_interval([sending for _, sending in shares]),
        recording=None
        if tap_ns is None
        else median_interval([count * tap_ns / ns for count, ns in zip(trip_counts, took_ns, strict=True)]),
        others=find_busy_pages(facts.others, [(page.begun_ns, page.ended_ns) for page in pages]),
    )


def _waiting_and_sending_ns(page: TimedPage) -> tuple[int, int]:
    """Time during which the page waited for an answer, and time during which it sent without waiting for any."""
    answered = [trip for trip in page.round_trips if trip.is_answered]
    waits = [(trip.sent_ns, trip.ended_ns) for trip in answered]
    sends = [(trip.begun_ns, trip.sent_ns) for trip in answered]
    waiting_ns = covered_ns(waits, page)
    return waiting_ns, covered_ns(waits + sends, page) - waiting_ns


def covered_ns(spans: Iterable[tuple[int, int]], page: TimedPage) -> int:
    """The part of the page's time that lies in at least one of the spans."""
    total, covered_until = 0, page.begun_ns
    for begun_ns, ended_ns in sorted(spans):
        ended_ns = min(ended_ns, page.ended_ns)
        total += max(ended_ns - max(begun_ns, covered_until), 0)
        covered_until = max(covered_until, ended_ns)
    return total


def _replaced_names(facts: RecordingFacts) -> tuple[ReplacedName, ...]:
    return tuple(
        ReplacedName(
            name=name,
            lookup_ms=cost.lookup_ns / 1e6,
            dead_address=cost.addresses[0] if cost.first_address_ns else None,
            dead_ms=cost.first_address_ns / 1e6,
        )
        for name, cost in facts.names.items()
    )


def _summarize_statements(recording: Recording) -> tuple[Statement, ...]:
    page_names = {page.id: page.name for page in recording.pages}
    page_counts = Counter(page_names.values())
    trips_by_key: dict[tuple[str | None, str], list[RoundTrip]] = defaultdict(list)
    for trip in recording.round_trips:
        if not trip.is_answered:
            continue
        digest = recording.digest_by_id.get(trip.digest_id or 0)
        page = None if trip.page_id is None else page_names.get(trip.page_id)
        trips_by_key[page, digest.text if digest else trip.command].append(trip)
    waited_ns = Counter(
        {key: sum(trip.ended_ns - trip.sent_ns for trip in trips) for key, trips in trips_by_key.items()}
    )
    total_ns = max(waited_ns.total(), 1)
    return tuple(
        Statement(
            text=text,
            page=page,
            count=len(trips_by_key[page, text]),
            each=None if page is None else len(trips_by_key[page, text]) / page_counts[page],
            keys=_count_distinct_keys(trips_by_key[page, text]),
            waited_ms=ns / 1e6,
            share=ns / total_ns,
        )
        for (page, text), ns in waited_ns.most_common()
    )


def _count_distinct_keys(trips: Sequence[RoundTrip]) -> int | None:
    """Number of distinct sets of keys with which a statement ran; None if unknown. Its preparation has no keys and does not count."""
    key_sets = {trip.keys for trip in trips if trip.command != "prepare"}
    return len(key_sets) if key_sets and None not in key_sets else None


def document(summary: RecordingSummary, file_name: str) -> Document:
    """The summary as a document, shown after a recording. `file_name`: name of the recording."""
    figures: list[Block] = [Heading("Pages"), _pages_table(summary)] if summary.pages else []
    figures += _warnings(summary)
    figures += [Heading("What is waited for"), _statement_table(summary)] if summary.statements else []
    method = (Heading("How it was recorded"), Text(_method_text(summary, file_name)))
    answer, steps = _answer_and_steps(summary, file_name)
    blocks = (answer, *figures, *method, *steps)
    return Document("howfar record", blocks, (), phrase("record/question"), _setting(summary))


def _setting(summary: RecordingSummary) -> str:
    protocol = "unknown protocol" if summary.protocol == "unknown" else summary.protocol
    kind = phrase(f"record/kind/{'unix' if summary.transport == 'unix' else 'tcp'}", protocol=protocol)
    trips, connections = summary.round_trips, summary.connections
    counts = phrase("record/counts", trips=trips, connections=connections, took=summary.span_ns)
    return setting(summary.command, kind, counts, unix_ns=summary.began_unix_ns, is_recorded=False)


def _answer_and_steps(summary: RecordingSummary, file_name: str) -> tuple[Answer, list[Block]]:
    """The answer, which is about the page with the longest total time, and what to do next."""
    if not summary.pages:
        answer_id = "no-page" if summary.round_trips else "nothing"
        text = phrase(f"record/answer/{answer_id}", trips=summary.round_trips, connections=summary.connections)
        return Answer(text, certainty=certainty([], _doubts(summary))), next_step(f"record/next/{answer_id}")
    page = max(summary.pages, key=lambda page: page.took_ms.value * page.count)
    text = phrase(
        f"record/answer/{'most' if len(summary.pages) > 1 else 'one'}",
        page=page.name,
        took=_format_ms(page.took_ms.value),
        trips=rounded_count(page.round_trips.value),
        waiting=page.waiting.value,
    )
    doubts = list(_doubts(summary))
    if page.others is not None and page.others.disturb_pages:
        doubts.insert(0, phrase("others/doubt", program=page.others.name))
    basis = certainty([_page_count_text(page), *_cost_notes(summary)], doubts)
    return Answer(text, why=_cause(summary, page), certainty=basis), what_to_do(_advice(summary, page, file_name))


def _cause(summary: RecordingSummary, page: PageSummary) -> str:
    """A sentence about the statement with the longest wait in a page. Empty if there is none, or if its waits overlap."""
    statement = next((statement for statement in summary.statements if statement.page == page.name), None)
    if statement is None or not statement.each:
        return ""
    mean_ms = statement.waited_ms / statement.count
    if mean_ms * statement.each > page.took_ms.value:
        return ""
    return phrase(
        "record/why",
        each=rounded_count(statement.each),
        mean=_format_ms(mean_ms),
        total=_format_ms(mean_ms * statement.each),
        took=_format_ms(page.took_ms.value),
        statement=_shorten(statement.text, _MAX_TEXT_WITH_PAGE),
    )


def _page_count_text(page: PageSummary) -> str:
    if page.took_ms.low is None:
        return phrase("record/few", pages=page.count)
    low, high = map(_time_format(page.took_ms.value), (page.took_ms.low, page.took_ms.high or page.took_ms.value))
    return f"{counted(page.count, 'page', ',')}; {phrase('interval', low=low, high=high)}"


def _doubts(summary: RecordingSummary) -> Iterator[str]:
    """Phrases for what casts doubt on the answer, the most serious first."""
    left_out = sum(pages.count for pages in summary.left_out)
    doubts = {
        "record/doubt/stopped": summary.stopped is not None,
        "record/doubt/bytes": summary.all_passed_on is False,
        "record/doubt/left-out": left_out > 0,
        "record/doubt/no-page": bool(summary.pages) and summary.no_page > 0,
        "record/doubt/cold": any(page.cold for page in summary.pages),
        "record/doubt/gaps": any(page.unsure for page in summary.pages),
    }
    return (phrase(name, pages=left_out, trips=summary.no_page) for name, applies in doubts.items() if applies)


def _advice(summary: RecordingSummary, page: PageSummary, file_name: str) -> Iterator[AdviceBlock]:
    if (others := page.others) is not None and others.disturb_pages:
        because = {"use": others.use, "disturbed": others.disturbed, "of": others.of, "page": page.name}
        yield advise("record/do/quiet", program=others.name, because=phrase("record/do/quiet/because", **because))
    if summary.nagle:
        yield advise("record/do/nagle", requests=summary.nagle)
    if page.took_ms.low is None:
        yield advise("record/do/repeat", page=page.name, needed=MIN_RANK_BLOCKS, pages=page.count)
    elif page.round_trips.value:
        trips = rounded_count(page.round_trips.value)
        yield advise("record/do/predict", file=shlex.quote(file_name), trips=trips, page=page.name)


def _pages_table(summary: RecordingSummary) -> Table:
    hidden_count = len(summary.pages) - _MAX_ROWS
    return make_table(
        "",
        summary.pages[:_MAX_ROWS],
        {
            "page": lambda page: page.name,
            "pages": lambda page: f"{page.count:,}",
            "time, p50\n95 % interval": lambda page: Cell(
                _format_ms(page.took_ms.value), limits_text(page.took_ms, _time_format(page.took_ms.value))
            ),
            "round trips": lambda page: f"{rounded_count(page.round_trips.value):,}",
            "connections": lambda page: f"{rounded_count(page.connections.value):,}",
            "waiting\nfor the database": lambda page: _format_percent(page.waiting.value),
            "recording\nof the time": lambda page: (
                "" if page.recording is None else _format_percent(page.recording.value)
            ),
        },
        (phrase("record/more-pages", count=hidden_count),) if hidden_count > 0 else (),
        main=True,
    )


def _statement_table(summary: RecordingSummary) -> Table:
    """The table of statements, with their pages if the pages have different names."""
    has_page_column = len({page.name for page in summary.pages}) > 1
    columns = (
        Column("statement or command", left_aligned=True),
        *([Column("page", left_aligned=True), Column("times", "a page")] if has_page_column else [Column("times")]),
        Column("with keys"),
        Column("waited"),
        Column("share"),
    )

    def counts(statement: Statement) -> tuple[Cell, ...]:
        if not has_page_column:
            return (Cell(f"{statement.count:,}"),)
        each = f"{statement.count:,}" if statement.each is None else f"{rounded_count(statement.each):,}"
        return Cell("none" if statement.page is None else statement.page), Cell(each)

    rows = tuple(
        (
            Cell(_shorten(statement.text, _MAX_TEXT_WITH_PAGE if has_page_column else _MAX_TEXT)),
            *counts(statement),
            Cell("" if statement.keys is None else f"{statement.keys:,}"),
            Cell(_format_ms(statement.waited_ms)),
            Cell(_format_percent(statement.share)),
        )
        for statement in summary.statements
    )
    note = phrase("record/more-statements", statements=summary.more_statements, trips=summary.more_round_trips)
    return Table("", columns, rows, (note,) if summary.more_statements else ())


def _cost_notes(summary: RecordingSummary) -> Iterator[str]:
    """Sentences about the cost of recording, if it was high."""
    if (summary.capture_cpus or 0.0) > _NOTABLE_CAPTURE_CPUS:
        yield phrase("record/capture/doubt", share=_format_percent(summary.capture_cpus or 0.0))
        return
    costs = [page.recording.value for page in summary.pages if page.recording is not None]
    if costs and max(costs) > _NOTABLE_COST_SHARE:
        yield phrase("record/cost", share=_format_percent(max(costs)))


def _warnings(summary: RecordingSummary) -> tuple[Warnings, ...]:
    """All warnings as one block, including details of `_doubts`."""
    lines = [] if summary.stopped is None else [phrase("record/stopped", reason=summary.stopped)]
    if summary.all_passed_on is False:
        lines.append(phrase("record/bytes"))
    if summary.exit_code:
        lines.append(phrase("record/exit-code", code=summary.exit_code))
    lines += filter(None, (busy_pages_note(page.name, page.others) for page in summary.pages[:_MAX_ROWS]))
    if summary.others_calibrating is not None:
        lines.append(phrase("record/busy/calibration", use=summary.others_calibrating.use))
    lines += [
        phrase("record/left-out", page=pages.name, pages=pages.count, reason=pages.reason) for pages in summary.left_out
    ]
    lines += [
        phrase("record/sending", page=page.name, share=_format_percent(page.sending.value))
        for page in summary.pages[:_MAX_ROWS]
        if page.sending.value >= _NOTABLE_SENDING_SHARE
    ]
    if summary.repeated_syns:
        took = _format_ms(summary.repeated_syns_ms)
        lines.append(phrase("record/syns", connects=summary.repeated_syns, took=took))
    lines += map(_replaced_name_warning, summary.names)
    lines += [note for page in summary.pages[:_MAX_ROWS] for note in (page.unsure, page.cold) if note]
    lines += [phrase("record/unknown", reason=reason, count=count) for reason, count in sorted(summary.unknown.items())]
    return (Warnings(tuple(lines)),) if lines else ()


def _replaced_name_warning(name: ReplacedName) -> str:
    dead_note = name.dead_address and phrase(
        "record/name/dead", took=_format_ms(name.dead_ms), address=name.dead_address
    )
    return phrase("record/name", name=name.name, lookup=_format_ms(name.lookup_ms), dead=dead_note or "")


def _method_text(summary: RecordingSummary, file_name: str) -> str:
    tls = [phrase("record/tls")] if summary.tls else []
    return " ".join((*tls, *_recording_cost_texts(summary), phrase("record/file", file=file_name)))


def _recording_cost_texts(summary: RecordingSummary) -> Iterator[str]:
    if summary.tap_us is None:
        yield phrase("record/tap-unknown")
    elif summary.tap_us.value or summary.floor_us:
        yield phrase("record/tap", added=estimate_text(summary.tap_us, "{:.0f}".format), floor_us=summary.floor_us)
    else:
        yield phrase("record/packets")
        if summary.capture_cpus is not None:
            yield phrase("record/capture", share=_format_percent(summary.capture_cpus))


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _format_percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.1f} %"


def _format_ms(value: float) -> str:
    return _time_format(value)(value)


def _time_format(first: float) -> Callable[[float], str]:
    """A function that formats all times of a line, in the unit that suits the first of them."""
    if first < 0.1:
        return lambda value: f"{value * 1e3:,.0f} µs"
    return lambda value: f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
