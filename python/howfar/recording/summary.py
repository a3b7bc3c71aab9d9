"""The summary of a recording: its pages, their round trips, the wait for the database, and the cost of recording. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from howfar.recording.facts import RecordingFacts
from howfar.recording.recording import Recording, RoundTrip, TimedPage, cold_start_note, uncertainty_note
from howfar.report.document import Answer, Cell, Column, Document, Heading, Table, Text, Warnings, make_table
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import estimate_text, limits_text, mean_interval, median_interval
from howfar.units import counted

_MAX_ROWS = 10
_NOTABLE_COST_SHARE = 0.05
"""The report begins with the cost of recording if that is more than this share of a page's time."""
_NOTABLE_CAPTURE_CPUS = 0.03
"""The report begins with the cost of capturing packets if that is more than this share of a CPU."""
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
    """Share of the page's time spent sending, from the first byte of a request to its last, but not already counted as waiting."""
    unsure: str | None
    """A note that the page's begin and end are uncertain, if they were not marked."""
    cold: str | None
    """A note about a first page that took much longer."""
    recording: Estimate | None
    """Share of the page's time that the tap added: its cost per round trip times their number. None if there was no tap or its cost is
    unknown."""


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
    """A server's name that the tap's address replaced, with what it costs the application when it is not recorded."""

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
    """The statements with the longest total wait."""
    more_statements: int
    """Number of the other statements."""
    more_round_trips: int
    """Round trips of the other statements."""
    unknown: dict[str, int]
    tap_us: Estimate | None
    """Time that the tap adds to a round trip; None if unknown."""
    floor_us: float
    capture_cpus: float | None
    """Number of CPUs that capturing packets kept busy. None if no packets were captured, or unknown."""
    no_page: int
    """Round trips that belong to no page."""
    nagle: int
    """Small requests delayed by Nagle's algorithm: sending them took as long as a delayed ACK."""
    repeated_syns: int
    """Retransmitted SYNs; only recordings from packets count them."""
    repeated_syns_ms: float
    names: tuple[ReplacedName, ...]
    complete: bool
    stopped: str | None
    all_passed_on: bool | None
    exit_code: int | None


def summarize(recording: Recording) -> RecordingSummary:
    """Compute the figures of a recording."""
    facts = recording.facts
    added_us = tap_us(facts)
    is_tapped = added_us is not None and facts.method == "tap"
    tap_ns = max(added_us.value, 0.0) * 1e3 if added_us is not None and is_tapped else None
    by_name: dict[tuple[str, str], list[TimedPage]] = defaultdict(list)
    left_out: Counter[tuple[str, str, str]] = Counter()
    for page in recording.pages:
        if reason := _unusable_reason(page, tap_ns):
            left_out[page.name, page.method, reason] += 1
        else:
            by_name[page.name, page.method].append(page)
    answered = [trip for trip in recording.round_trips if trip.is_answered]
    statements = _summarize_statements(recording)
    return RecordingSummary(
        protocol=facts.protocol or "unknown",
        transport=facts.transport or "unknown",
        tls=bool(facts.tls),
        round_trips=len(answered),
        connections=len(recording.connections),
        pages=tuple(_summarize_page(name, method, pages, tap_ns) for (name, method), pages in by_name.items()),
        left_out=tuple(
            UnusablePages(name=name, method=method, count=count, reason=reason)
            for (name, method, reason), count in left_out.items()
        ),
        statements=statements[:_MAX_ROWS],
        more_statements=len(statements[_MAX_ROWS:]),
        more_round_trips=sum(statement.count for statement in statements[_MAX_ROWS:]),
        unknown=facts.unknown,
        tap_us=added_us,
        floor_us=(facts.floor_ns or 0) / 1e3,
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
    )


def tap_us(facts: RecordingFacts) -> Estimate | None:
    """Time that the tap added to a round trip, as measured with the recording; None if unknown."""
    if facts.tap_ns is None:
        return None
    low, high = (None if limit is None else limit / 1e3 for limit in facts.tap_limits_ns)
    return Estimate(value=facts.tap_ns / 1e3, low=low, high=high)


def _unusable_reason(page: TimedPage, tap_ns: float | None) -> str | None:
    """Why the page is unusable, or None. A page is also unusable if, by calculation, the tap added more time than the page took."""
    if page.unusable_reason is not None:
        return page.unusable_reason
    if tap_ns is not None and _count_answered(page) * tap_ns > max(page.took_ns, 1):
        return "by its own measure the tap added more than the page took"
    return None


def _count_answered(page: TimedPage) -> int:
    return sum(trip.is_answered for trip in page.round_trips)


def _summarize_page(name: str, method: str, pages: Sequence[TimedPage], tap_ns: float | None) -> PageSummary:
    took_ns = [max(page.took_ns, 1) for page in pages]
    trips = [_count_answered(page) for page in pages]
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
        round_trips=mean_interval(trips),
        connections=mean_interval([len({trip.connection_id for trip in page.round_trips}) for page in pages]),
        waiting=median_interval([waiting for waiting, _ in shares]),
        sending=median_interval([sending for _, sending in shares]),
        recording=None
        if tap_ns is None
        else median_interval([count * tap_ns / ns for count, ns in zip(trips, took_ns, strict=True)]),
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
    names = {page.id: page.name for page in recording.pages}
    pages = Counter(names.values())
    by_text: dict[tuple[str | None, str], list[RoundTrip]] = defaultdict(list)
    for trip in recording.round_trips:
        if not trip.is_answered:
            continue
        digest = recording.digest_by_id.get(trip.digest_id or 0)
        page = None if trip.page_id is None else names.get(trip.page_id)
        by_text[page, digest.text if digest else trip.command].append(trip)
    waited_ns = Counter({key: sum(trip.ended_ns - trip.sent_ns for trip in trips) for key, trips in by_text.items()})
    total_ns = max(waited_ns.total(), 1)
    return tuple(
        Statement(
            text=text,
            page=page,
            count=len(by_text[page, text]),
            each=None if page is None else len(by_text[page, text]) / pages[page],
            keys=_count_distinct_keys(by_text[page, text]),
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
    """The summary as a document, shown after a recording. `file_name`: that of the recording."""
    answer = Answer(_stopped_sentence(summary) + _cost_sentence(summary) + _answer_sentence(summary))
    return Document(
        "howfar record",
        (
            answer,
            *((Heading("Pages"), _pages_table(summary)) if summary.pages else ()),
            *_warnings(summary),
            Heading("What is waited for"),
            _statement_table(summary),
            Heading("How it was recorded"),
            Text(_method_text(summary, file_name)),
        ),
    )


def _pages_table(summary: RecordingSummary) -> Table:
    more = len(summary.pages) - _MAX_ROWS
    return make_table(
        "",
        summary.pages[:_MAX_ROWS],
        {
            "page": lambda page: page.name,
            "pages": lambda page: f"{page.count:,}",
            "time, p50\n95 % interval": lambda page: Cell(
                _format_ms(page.took_ms.value), limits_text(page.took_ms, _time_format(page.took_ms.value))
            ),
            "round trips": lambda page: _format_number(page.round_trips.value),
            "connections": lambda page: _format_number(page.connections.value),
            "waiting\nfor the database": lambda page: _format_percent(page.waiting.value),
            "recording\nof the time": lambda page: (
                "" if page.recording is None else _format_percent(page.recording.value)
            ),
        },
        (f"{more} more in the recording.",) if more > 0 else (),
        main=True,
    )


def _statement_table(summary: RecordingSummary) -> Table:
    """The table of statements, with their pages if there are several."""
    by_page = len({page.name for page in summary.pages}) > 1
    columns = (
        Column("statement or command", left_aligned=True),
        *([Column("page", left_aligned=True), Column("times", "a page")] if by_page else [Column("times")]),
        Column("with keys"),
        Column("waited"),
        Column("share"),
    )

    def counts(statement: Statement) -> tuple[Cell, ...]:
        if not by_page:
            return (Cell(f"{statement.count:,}"),)
        each = f"{statement.count:,}" if statement.each is None else _format_number(statement.each)
        return Cell("none" if statement.page is None else statement.page), Cell(each)

    rows = tuple(
        (
            Cell(_shorten(statement.text, _MAX_TEXT_WITH_PAGE if by_page else _MAX_TEXT)),
            *counts(statement),
            Cell("" if statement.keys is None else f"{statement.keys:,}"),
            Cell(_format_ms(statement.waited_ms)),
            Cell(_format_percent(statement.share)),
        )
        for statement in summary.statements
    )
    statements = counted(summary.more_statements, "more statement", ",")
    trips = counted(summary.more_round_trips, "round trip", ",")
    notes = (f"{statements} with {trips}.",) if summary.more_statements else ()
    return Table("", columns, rows, notes)


def _answer_sentence(summary: RecordingSummary) -> str:
    kind = f"{summary.protocol} over {'a Unix socket' if summary.transport == 'unix' else 'TCP'}"
    if not summary.pages:
        trips = counted(summary.round_trips, "round trip", ",")
        connections = counted(summary.connections, "connection", ",")
        return f"{trips} over {connections} {'was' if summary.round_trips == 1 else 'were'} recorded ({kind})."
    page = max(summary.pages, key=lambda page: page.took_ms.value * page.count)
    return (
        f"{page.name} takes {_format_ms(page.took_ms.value)} {limits_text(page.took_ms, _time_format(page.took_ms.value))}".rstrip()
        + f" and makes {_format_count(page.round_trips.value, 'round trip')} over "
        f"{_format_count(page.connections.value, 'connection')} ({kind}); "
        f"{_format_percent(page.waiting.value)} of its time it waits for the database."
    )


def _stopped_sentence(summary: RecordingSummary) -> str:
    if summary.stopped is None:
        return ""
    return (
        f"The recording is not complete: {summary.stopped}. The application was not disturbed; what follows is of the round trips "
        "before that. "
    )


def _cost_sentence(summary: RecordingSummary) -> str:
    if (summary.capture_cpus or 0.0) > _NOTABLE_CAPTURE_CPUS:
        return f"{_capture_cost_text(summary)} "
    costs = [page.recording.value for page in summary.pages if page.recording is not None]
    if not costs or max(costs) <= _NOTABLE_COST_SHARE:
        return ""
    return f"Recording itself took at least {_format_percent(max(costs))} of the time of a page. "


def _warnings(summary: RecordingSummary) -> tuple[Warnings, ...]:
    lines = []
    if summary.all_passed_on is False:
        lines.append("Not every byte that came was passed on: a connection broke while bytes were on their way.")
    if summary.exit_code:
        lines.append(f"The command ended with exit code {summary.exit_code}.")
    if summary.pages and summary.no_page:
        lines.append(f"{summary.no_page:,} round trips belong to no page.")
    lines += [
        f"{pages.name}: {counted(pages.count, 'page', ',')} in no page's figure ({pages.reason})."
        for pages in summary.left_out
    ]
    lines += [
        f"{page.name} also sends requests for {_format_percent(page.sending.value)} of its time: from the first byte of each to the "
        "last."
        for page in summary.pages[:_MAX_ROWS]
        if page.sending.value >= _NOTABLE_SENDING_SHARE
    ]
    if summary.nagle:
        lines.append(
            f"{counted(summary.nagle, 'small request', ',')} took about 40 ms to send: Nagle's algorithm held the second part back "
            "until a delayed ACK came. Set TCP_NODELAY, or send each request in one write."
        )
    if summary.repeated_syns:
        lines.append(
            f"{counted(summary.repeated_syns, 'connect')} had to be asked for again (the first packet, or its answer, was lost): "
            f"that cost {_format_ms(summary.repeated_syns_ms)} in all."
        )
    lines += map(_replaced_name_warning, summary.names)
    lines += [note for page in summary.pages[:_MAX_ROWS] for note in (page.unsure, page.cold) if note]
    lines += [f"Not known: {reason} ({count:,})." for reason, count in sorted(summary.unknown.items())]
    return (Warnings(tuple(lines)),) if lines else ()


def _replaced_name_warning(name: ReplacedName) -> str:
    dead_address = (
        ""
        if name.dead_address is None
        else f", and {_format_ms(name.dead_ms)} for its first address, {name.dead_address}"
    )
    return (
        f"The command names the server {name.name}, which the recorder replaced by its own address: without it, each connect also "
        f"pays {_format_ms(name.lookup_ms)} for the lookup{dead_address}, measured here."
    )


def _method_text(summary: RecordingSummary, file_name: str) -> str:
    tls = "Connections were encrypted, so round trips have no names. " if summary.tls else ""
    cost = _recording_cost_text(summary)
    return f"{tls}{cost}The recording, {file_name}, holds no literal, key or value."


def _recording_cost_text(summary: RecordingSummary) -> str:
    if summary.tap_us is None:
        return "What the tap added is not known. "
    if summary.tap_us.value or summary.floor_us:
        return _tap_cost_text(summary.tap_us, summary.floor_us)
    capture_cost = "" if summary.capture_cpus is None else f"{_capture_cost_text(summary)} "
    return f"Packets were captured: no program was on the application's path. {capture_cost}"


def _capture_cost_text(summary: RecordingSummary) -> str:
    return (
        f"Capturing packets kept {_format_percent(summary.capture_cpus or 0.0)} of a CPU busy, "
        "beside what the kernel takes to copy each."
    )


def _tap_cost_text(added: Estimate, floor_us: float) -> str:
    return (
        f"With pauses and sizes as in this recording, a round trip takes {estimate_text(added, '{:.0f}'.format)} µs more through "
        f"the tap, and {floor_us:.0f} µs between tap and a server without work, which is taken off the server's time. "
    )


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _format_count(value: float, noun: str) -> str:
    return f"{_format_number(value)} {noun}" if value == 1 else f"{_format_number(value)} {noun}s"


def _format_percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.1f} %"


def _format_ms(value: float) -> str:
    return _time_format(value)(value)


def _time_format(first: float) -> Callable[[float], str]:
    """A function that formats all times of a line, in the unit that suits the first of them."""
    if first < 0.1:
        return lambda value: f"{value * 1e3:,.0f} µs"
    return lambda value: f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
