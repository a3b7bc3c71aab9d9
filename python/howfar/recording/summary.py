"""The summary of a recording: its pages, their round trips, the wait for the database, and the cost of recording. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from howfar.recording.recording import Page, Recording, RoundTrip, cold_start, unsure
from howfar.report.document import Answer, Cell, Column, Document, Heading, Table, Text, Warnings
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import brackets, in_brackets, mean_interval, median_interval
from howfar.units import counted

_TOP = 10
_COST_SAID_FIRST = 0.05
"""The cost of recording is reported first if it is more than this share of a page's time."""
_CAPTURE_SAID_FIRST = 0.03
"""The cost of capturing packets is reported first if it is more than this share of a CPU."""
_CLIPPED, _CLIPPED_BESIDE_PAGE = 78, 60
_SENDING_SAID = 0.01
"""The time to send requests is reported if it is at least this share of a page's time."""


class PageSummary(Part):
    """Pages of one name; figures per page, in milliseconds: medians of times and of their shares, means of counts."""

    name: str
    method: str
    count: int
    took_ms: Estimate
    round_trips: Estimate
    connections: Estimate
    waiting: Estimate
    """Share of the page's time spent waiting: from the last byte of a request to the last byte of its answer."""
    sending: Estimate
    """Share of the page's time spent sending: from the first byte of a request to its last, without times that count as waiting."""
    unsure: str | None
    """A note about the page's begin and end, if these were not marked."""
    cold: str | None
    """A note about a first page that took much longer."""
    recording: Estimate | None
    """Share of the page's time that recording added, by the tap's cost per round trip. None if there was no tap or it is unknown."""


class LeftOut(Part):
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


class Summary(Part):
    """The figures of a recording."""

    protocol: str
    transport: str
    tls: bool
    round_trips: int
    """Round trips with an answer."""
    connections: int
    pages: tuple[PageSummary, ...]
    left_out: tuple[LeftOut, ...]
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
    """Small requests that took as long to send as a delayed ACK takes."""
    repeated_syns: int
    """Retransmitted SYNs; only recordings from packets count them."""
    repeated_syns_ms: float
    names: tuple[ReplacedName, ...]
    complete: bool
    stopped: str | None
    all_passed_on: bool | None
    exit_code: int | None


def summarize(recording: Recording) -> Summary:
    """Compute the figures of a recording."""
    facts = recording.facts
    added_us = tap_us(facts)
    is_tapped = added_us is not None and facts.get("method") == "tap"
    tap_ns = max(added_us.value, 0.0) * 1e3 if added_us is not None and is_tapped else None
    by_name: dict[tuple[str, str], list[Page]] = defaultdict(list)
    left_out: Counter[tuple[str, str, str]] = Counter()
    for page in recording.pages:
        if reason := _fault(page, tap_ns):
            left_out[page.name, page.method, reason] += 1
        else:
            by_name[page.name, page.method].append(page)
    answered = [one for one in recording.round_trips if one.is_answered]
    passed = facts.get("bytes")
    statements = _statements(recording)
    return Summary(
        protocol=facts.get("protocol", "unknown"),
        transport=facts.get("transport", "unknown"),
        tls=bool(facts.get("tls")),
        round_trips=len(answered),
        connections=len(recording.connections),
        pages=tuple(_page(name, method, pages, tap_ns) for (name, method), pages in by_name.items()),
        left_out=tuple(
            LeftOut(name=name, method=method, count=count, reason=reason)
            for (name, method, reason), count in left_out.items()
        ),
        statements=statements[:_TOP],
        more_statements=len(statements[_TOP:]),
        more_round_trips=sum(one.count for one in statements[_TOP:]),
        unknown=facts.get("unknown", {}),
        tap_us=added_us,
        floor_us=int(facts.get("floor_ns") or 0) / 1e3,
        capture_cpus=facts.get("capture_cpus"),
        no_page=sum(one.page_id is None for one in answered),
        nagle=sum(recording.ack_wait_ns(one) > 0 for one in answered),
        repeated_syns=facts.get("repeated_syns", 0),
        repeated_syns_ms=facts.get("repeated_syns_ns", 0) / 1e6,
        names=_names(facts),
        complete=bool(facts.get("complete")),
        stopped=facts.get("stopped"),
        all_passed_on=passed.get("all_passed_on") if passed else None,
        exit_code=facts.get("exit_code"),
    )


def tap_us(facts: Mapping[str, Any]) -> Estimate | None:
    """Time that the tap added to a round trip, as measured with the recording; None if unknown."""
    if facts.get("tap_ns") is None:
        return None
    low, high = (None if limit is None else limit / 1e3 for limit in facts.get("tap_limits_ns", (None, None)))
    return Estimate(value=facts["tap_ns"] / 1e3, low=low, high=high)


def _fault(page: Page, tap_ns: float | None) -> str | None:
    """Why the page is unusable, or None. A tap cannot have added more time than the page took."""
    if page.unusable is not None:
        return page.unusable
    if tap_ns is not None and _trips(page) * tap_ns > max(page.took_ns, 1):
        return "by its own measure the tap added more than the page took"
    return None


def _trips(page: Page) -> int:
    return sum(one.is_answered for one in page.round_trips)


def _page(name: str, method: str, pages: Sequence[Page], tap_ns: float | None) -> PageSummary:
    took = [max(page.took_ns, 1) for page in pages]
    trips = [_trips(page) for page in pages]
    spans = [_waiting_and_sending_ns(page) for page in pages]
    shares = [(waiting / ns, sending / ns) for (waiting, sending), ns in zip(spans, took, strict=True)]
    assert all(waiting + sending <= 1 for waiting, sending in shares), (
        "what is cut to a page is no longer than the page"
    )
    return PageSummary(
        name=name,
        method=method,
        unsure=unsure(name, pages),
        cold=cold_start(name, pages),
        count=len(pages),
        took_ms=median_interval([ns / 1e6 for ns in took]),
        round_trips=mean_interval(trips),
        connections=mean_interval([len({one.connection_id for one in page.round_trips}) for page in pages]),
        waiting=median_interval([waiting for waiting, _ in shares]),
        sending=median_interval([sending for _, sending in shares]),
        recording=None
        if tap_ns is None
        else median_interval([count * tap_ns / ns for count, ns in zip(trips, took, strict=True)]),
    )


def _waiting_and_sending_ns(page: Page) -> tuple[int, int]:
    """Time during which the page waited for an answer, and time during which it sent without waiting for any."""
    answered = [one for one in page.round_trips if one.is_answered]
    waits = [(one.sent_ns, one.ended_ns) for one in answered]
    sends = [(one.begun_ns, one.sent_ns) for one in answered]
    waiting_ns = covered_ns(waits, page)
    return waiting_ns, covered_ns(waits + sends, page) - waiting_ns


def covered_ns(spans: Iterable[tuple[int, int]], page: Page) -> int:
    """The part of the page's time that lies in at least one of the spans."""
    total, until = 0, page.begun_ns
    for begun_ns, ended_ns in sorted(spans):
        ended_ns = min(ended_ns, page.ended_ns)
        total += max(ended_ns - max(begun_ns, until), 0)
        until = max(until, ended_ns)
    return total


def _names(facts: Mapping[str, Any]) -> tuple[ReplacedName, ...]:
    """The replaced names in the facts. `addresses` come from the lookup; `first_address_ns` is 0 if the first is the server's."""
    return tuple(
        ReplacedName(
            name=name,
            lookup_ms=cost["lookup_ns"] / 1e6,
            dead_address=cost["addresses"][0] if cost["first_address_ns"] else None,
            dead_ms=cost["first_address_ns"] / 1e6,
        )
        for name, cost in facts.get("names", {}).items()
    )


def _statements(recording: Recording) -> tuple[Statement, ...]:
    names = {page.id: page.name for page in recording.pages}
    pages = Counter(names.values())
    by_text: dict[tuple[str | None, str], list[RoundTrip]] = defaultdict(list)
    for one in recording.round_trips:
        if not one.is_answered:
            continue
        digest = recording.digest_by_id.get(one.digest_id or 0)
        page = None if one.page_id is None else names.get(one.page_id)
        by_text[page, digest.text if digest else one.command].append(one)
    waited = Counter({key: sum(one.ended_ns - one.sent_ns for one in trips) for key, trips in by_text.items()})
    whole = max(waited.total(), 1)
    return tuple(
        Statement(
            text=text,
            page=page,
            count=len(by_text[page, text]),
            each=None if page is None else len(by_text[page, text]) / pages[page],
            keys=_keys(by_text[page, text]),
            waited_ms=ns / 1e6,
            share=ns / whole,
        )
        for (page, text), ns in waited.most_common()
    )


def _keys(trips: Sequence[RoundTrip]) -> int | None:
    """Number of distinct keys of the runs of a statement, or None. Its preparation has no keys."""
    known = {one.keys for one in trips if one.command != "prepare"}
    return len(known) if known and None not in known else None


def document(found: Summary, where: str) -> Document:
    """The summary as a document, shown after a recording. `where`: the recording's file."""
    head = Answer(_stopped(found) + _cost(found) + _answer(found))
    columns = (
        Column("page", left=True),
        Column("pages"),
        Column("time, p50", "95 % interval"),
        Column("round trips"),
        Column("connections"),
        Column("waiting", "for the database"),
        Column("recording", "of the time"),
    )
    rows = tuple(
        (
            Cell(page.name),
            Cell(f"{page.count:,}"),
            Cell(_ms(page.took_ms.value), brackets(page.took_ms, _like(page.took_ms.value))),
            Cell(_number(page.round_trips.value)),
            Cell(_number(page.connections.value)),
            Cell(_percent(page.waiting.value)),
            Cell("" if page.recording is None else _percent(page.recording.value)),
        )
        for page in found.pages[:_TOP]
    )
    more = len(found.pages) - _TOP
    notes = (f"{more} more in the recording.",) if more > 0 else ()
    return Document(
        "howfar record",
        (
            head,
            *((Heading("Pages"), Table("", columns, rows, notes, main=True)) if rows else ()),
            *_warnings(found),
            Heading("What is waited for"),
            _statement_table(found),
            Heading("How it was recorded"),
            Text(_how(found, where)),
        ),
    )


def _statement_table(found: Summary) -> Table:
    """The table of statements, with their pages if there are several."""
    by_page = len({page.name for page in found.pages}) > 1
    columns = (
        Column("statement or command", left=True),
        *([Column("page", left=True), Column("times", "a page")] if by_page else [Column("times")]),
        Column("with keys"),
        Column("waited"),
        Column("share"),
    )

    def counts(one: Statement) -> tuple[Cell, ...]:
        if not by_page:
            return (Cell(f"{one.count:,}"),)
        each = f"{one.count:,}" if one.each is None else _number(one.each)
        return Cell("none" if one.page is None else one.page), Cell(each)

    rows = tuple(
        (
            Cell(_clipped(one.text, _CLIPPED_BESIDE_PAGE if by_page else _CLIPPED)),
            *counts(one),
            Cell("" if one.keys is None else f"{one.keys:,}"),
            Cell(_ms(one.waited_ms)),
            Cell(_percent(one.share)),
        )
        for one in found.statements
    )
    others, trips = (
        counted(found.more_statements, "more statement", ","),
        counted(found.more_round_trips, "round trip", ","),
    )
    notes = (f"{others} with {trips}.",) if found.more_statements else ()
    return Table("", columns, rows, notes)


def _answer(found: Summary) -> str:
    kind = f"{found.protocol} over {'a Unix socket' if found.transport == 'unix' else 'TCP'}"
    if not found.pages:
        trips, lines = counted(found.round_trips, "round trip", ","), counted(found.connections, "connection", ",")
        return f"{trips} over {lines} {'was' if found.round_trips == 1 else 'were'} recorded ({kind})."
    page = max(found.pages, key=lambda page: page.took_ms.value * page.count)
    return (
        f"{page.name} takes {_ms(page.took_ms.value)} {brackets(page.took_ms, _like(page.took_ms.value))}".rstrip()
        + f" and makes {_counted(page.round_trips.value, 'round trip')} over {_counted(page.connections.value, 'connection')} "
        f"({kind}); {_percent(page.waiting.value)} of its time it waits for the database."
    )


def _stopped(found: Summary) -> str:
    if found.stopped is None:
        return ""
    return (
        f"The recording is not complete: {found.stopped}. The application was not disturbed; what follows is of the round trips "
        "before that. "
    )


def _cost(found: Summary) -> str:
    if (found.capture_cpus or 0.0) > _CAPTURE_SAID_FIRST:
        return f"{_capture(found)} "
    costs = [page.recording.value for page in found.pages if page.recording is not None]
    if not costs or max(costs) <= _COST_SAID_FIRST:
        return ""
    return f"Recording itself took at least {_percent(max(costs))} of the time of a page. "


def _warnings(found: Summary) -> tuple[Warnings, ...]:
    lines = []
    if found.all_passed_on is False:
        lines.append("Not every byte that came was passed on: a connection broke while bytes were on their way.")
    if found.exit_code:
        lines.append(f"The command ended with exit code {found.exit_code}.")
    if found.pages and found.no_page:
        lines.append(f"{found.no_page:,} round trips belong to no page.")
    lines += [
        f"{one.name}: {counted(one.count, 'page', ',')} in no page's figure ({one.reason})." for one in found.left_out
    ]
    lines += [
        f"{page.name} also sends requests for {_percent(page.sending.value)} of its time: from the first byte of each to the last."
        for page in found.pages[:_TOP]
        if page.sending.value >= _SENDING_SAID
    ]
    if found.nagle:
        lines.append(
            f"{counted(found.nagle, 'small request', ',')} took about 40 ms to send: Nagle's algorithm held the second part back "
            "until a delayed ACK came. Set TCP_NODELAY, or send each request in one write."
        )
    if found.repeated_syns:
        lines.append(
            f"{counted(found.repeated_syns, 'connect')} had to be asked for again (the first packet, or its answer, was lost): "
            f"that cost {_ms(found.repeated_syns_ms)} in all."
        )
    lines += map(_replaced, found.names)
    lines += [note for page in found.pages[:_TOP] for note in (page.unsure, page.cold) if note]
    lines += [f"Not known: {reason} ({count:,})." for reason, count in sorted(found.unknown.items())]
    return (Warnings(tuple(lines)),) if lines else ()


def _replaced(name: ReplacedName) -> str:
    dead = "" if name.dead_address is None else f", and {_ms(name.dead_ms)} for its first address, {name.dead_address}"
    return (
        f"The command names the server {name.name}, which the recorder replaced by its own address: without it, each connect also "
        f"pays {_ms(name.lookup_ms)} for the lookup{dead}, measured here."
    )


def _how(found: Summary, where: str) -> str:
    tls = "Connections were encrypted, so round trips have no names. " if found.tls else ""
    cost = _how_much(found)
    return f"{tls}{cost}The recording, {where}, holds no literal, key or value."


def _how_much(found: Summary) -> str:
    if found.tap_us is None:
        return "What the tap added is not known. "
    if found.tap_us.value or found.floor_us:
        return _added(found.tap_us, found.floor_us)
    said = "" if found.capture_cpus is None else f"{_capture(found)} "
    return f"Packets were captured: no program was on the application's path. {said}"


def _capture(found: Summary) -> str:
    return f"Capturing packets kept {_percent(found.capture_cpus or 0.0)} of a CPU busy, beside what the kernel takes to copy each."


def _added(added: Estimate, floor_us: float) -> str:
    return (
        f"With pauses and sizes as in this recording, a round trip takes {in_brackets(added, '{:.0f}'.format)} µs more through the "
        f"tap, and {floor_us:.0f} µs between tap and a server without work, which is taken off the server's time. "
    )


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _counted(value: float, noun: str) -> str:
    return f"{_number(value)} {noun}" if value == 1 else f"{_number(value)} {noun}s"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.1f} %"


def _ms(value: float) -> str:
    return _like(value)(value)


def _like(first: float) -> Callable[[float], str]:
    """The format of all times of a line, in the unit that suits the first one."""
    if first < 0.1:
        return lambda value: f"{value * 1e3:,.0f} µs"
    return lambda value: f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
