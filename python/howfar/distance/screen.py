"""The distance as text of at most 21 lines of 80 columns: the answer, then its parts, their meaning, and a suggested next command."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from howfar.distance.record import NOT_VERIFIED, Distance, Encryption, Limit, NewConnection, StepName
from howfar.units import counted

WIDTH = 80
LINES = 21
_INDENT = 16
_NUMBER = re.compile(r"([0-9]) (?=(?:µs|ms|s)\b)")
"""A number before its unit; no line break may separate them."""
_COLD_FACTOR, _MIN_COLD_NS = 5, 1_000_000
"""The first request is shown if it takes more than five times the median and more than a millisecond."""
_STEPS: dict[StepName, str] = {"connect": "TCP", "greeting": "greeting", "tls_request": "TLS request", "login": "login"}


def unit_of(ns: float) -> tuple[float, str]:
    """The unit in which to show a time: its nanoseconds, and its name."""
    for factor, unit, limit in ((1e3, "µs", 100e3), (1e6, "ms", 1e9)):
        if ns < limit:
            return factor, unit
    return 1e9, "s"


def shown(ns: float) -> str:
    """A time with its unit and two significant digits, more for large numbers: `0.42 ms`, `128 ms`."""
    factor, unit = unit_of(ns)
    return f"{plain(ns / factor)} {unit}"


def plain(value: float) -> str:
    """A number with two significant digits, more for large numbers, never with an exponent: `0.042`, `0.42`, `4.2`, `42`, `4,242`."""
    for minimum, digits in ((9.95, 0), (0.995, 1), (0.0995, 2)):
        if value >= minimum:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


class _LabelledText(NamedTuple):
    """A label and its text, in at most `lines` lines."""

    label: str
    text: str
    lines: int = 2


class _Cells(NamedTuple):
    """A row of the table of pages. Of the remarks, the first that fits is shown."""

    label: str
    cells: Sequence[object]
    remarks: Sequence[str]


_Line = _LabelledText | _Cells | str


def render(distance: Distance, width: int = WIDTH) -> str:
    """The screen of a measurement that has a result, in at least 40 columns."""
    groups = [(rank, [text for line in lines for text in _wrap(line, width)]) for rank, lines in _line_groups(distance)]
    while sum(len(lines) for _, lines in groups) > LINES and any(rank for rank, _ in groups):
        groups.remove(max(groups, key=lambda part: part[0]))
    return "\n".join(line for _, lines in groups for line in lines)


def headline(distance: Distance) -> str:
    """The result in one sentence: `MariaDB 10.11.19 at db.internal:3306 is 0.42 ms away.`"""
    assert distance.request is not None, "it was measured"
    server = distance.product or "The server"
    between = (
        next((fact.what for fact in distance.path.between if fact.what), None) if distance.path is not None else None
    )
    if between is not None:
        server = f"{server} behind {between}"
    doubt = "" if distance.request.p50_ns is not None else f", judging by {counted(distance.request.count, 'request')}"
    return f"{server} {distance.place} is {shown(distance.request.middle_ns)} away{doubt}."


def _line_groups(distance: Distance) -> Iterator[tuple[int, list[_Line]]]:
    """Groups of lines, each with a rank: groups of the highest rank are dropped first if space is short, those of rank 0 never."""
    yield 0, [headline(distance)]
    yield 0, [""]
    yield 0, _request_lines(distance)
    if distance.bandwidth is not None or distance.bandwidth_refusal is not None:
        yield 0, _bandwidth_lines(distance)
    yield 0, _connection_lines(distance)
    yield 0, _path_lines(distance)
    yield 1, _between_lines(distance)
    yield 3, _failed_addresses(distance)
    yield 0, [""]
    yield 0, _page_lines(distance)
    for other in distance.elsewhere:
        rtt: Sequence[str] = ("an estimate, by its socket",)
        if other.rtt_ns is not None:
            rtt = f"if the RTT were {other.rtt_ns / 1e6:g} ms", f"RTT {other.rtt_ns / 1e6:g} ms"
        yield 2 if other.name == "another zone" else 0, [_page_row(f"  {other.name}", other.kept_ns, *rtt)]
    yield 0, [""]
    if distance.light_km is not None:
        km = plain(distance.light_km)
        yield 4, [f"At the speed of light in fibre, what answers is at most {km} km away."]
    yield 0, [_next_step(distance)]


def _wrap(line: _Line, width: int) -> list[str]:
    max_lines = math.ceil(WIDTH / width)
    match line:
        case _LabelledText(label, text, lines):
            first, indent, max_lines = f"{label:<{_INDENT}}", " " * _INDENT, max_lines * lines
        case _Cells(label, cells, remarks):
            size = 10 if width >= _INDENT + 30 else 8
            row = f"{label:<{_INDENT}}" + "".join(f"{cell:>{size}}" for cell in cells)
            return [next((with_remark for piece in remarks if len(with_remark := f"{row}  {piece}") <= width), row)]
        case text:
            label = first = indent = ""
            max_lines *= 2
    wrapped = textwrap.wrap(
        _NUMBER.sub("\\1\N{NO-BREAK SPACE}", text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=True,
        break_on_hyphens=False,
        max_lines=max_lines,
        placeholder=" …",
    )
    return [piece.replace("\N{NO-BREAK SPACE}", " ") for piece in wrapped] or [label]


def _request_lines(distance: Distance) -> list[_Line]:
    request, ping = distance.request, distance.ping
    assert request is not None, "it was measured"
    factor, unit = unit_of(request.middle_ns)
    percentiles = [("min", request.min_ns), ("p50", request.p50_ns), ("p95", request.p95_ns), ("p99", request.p99_ns)]
    figures = [
        f"{name} {plain(ns / factor)}" for name, ns in (*percentiles, ("mean", request.mean_ns)) if ns is not None
    ]
    if request.count == 1:
        figures = [plain(request.min_ns / factor)]
    rows: list[_Line] = [_LabelledText("one request", f"{'  '.join(figures)} {unit}")]
    if distance.network_ns is not None:
        rest = request.middle_ns - distance.network_ns
        rest_shown = f"; everything else: {shown(rest)}" if rest > 0 else ""
        rows.append(_LabelledText("  network", f"{shown(distance.network_ns)} (TCP handshake){rest_shown}"))
    count = f"{request.count} x {request.request}"
    if ping is None:
        return [*rows, _LabelledText("  sample", f"{count}, one at a time")]
    refused = "" if ping.refusal is None else f"; the server refused each ping: {ping.refusal}"
    counts = f"{count}, {counted(ping.count, 'ping')}, one at a time{refused}"
    if ping.p50_ns is None:
        return [*rows, _LabelledText("  sample", counts)]
    return [*rows, _LabelledText("  ping", f"{shown(ping.p50_ns)} ({ping.request}); {counts}")]


def _connection_lines(distance: Distance) -> list[_Line]:
    connection = distance.connection
    assert connection is not None, "it was measured"
    parts = [f"name {shown(distance.name.took_ns)}"] if distance.name is not None else []
    parts += [f"{step_name(distance, step.name)} {shown(step.took_ns)}" for step in connection.steps]
    total = connection.took_ns + (distance.name.took_ns if distance.name is not None else 0)
    text = f"{shown(total)}: {', '.join(parts)} ({_describe_round_trips(connection)})"
    cold, request = distance.first_request_ns, distance.request
    if cold is not None and request is not None and cold > max(_COLD_FACTOR * request.middle_ns, _MIN_COLD_NS):
        text += f"; first request {shown(cold)}"
    return [_LabelledText("new connection", text)]


def _describe_round_trips(connection: NewConnection) -> str:
    trips = f"{connection.round_trips} round trip{'' if connection.round_trips == 1 else 's'}"
    return f"{trips}; each the median of {connection.count}" if connection.count > 1 else trips


def failure(distance: Distance) -> Iterator[str]:
    """The lines for a failed measurement: the failure, the steps that worked, and what to do; two or three lines."""
    failed = distance.failure
    assert failed is not None, "it failed"
    worked = [f"name lookup {shown(distance.name.took_ns)}"] if distance.name is not None else []
    if distance.connection is not None:
        worked += [f"{step_name(distance, step.name)} {shown(step.took_ns)}" for step in distance.connection.steps]
    yield f"howfar: {failed.message}"
    if worked:
        yield f"  Worked so far: {', '.join(worked)}."
    yield f"  {failed.advice}"


def limit_line(limit: Limit) -> str:
    """A limit as text: `p95>2ms: crossed, 2.6 ms [2.3, 3.1]`."""
    if limit.value_ns is None:
        return f"{limit.expression}: undecided, as this measurement has no such figure"
    bounds = ""
    if limit.interval_ns is not None:
        low, high = ("?" if bound is None else shown(bound) for bound in limit.interval_ns)
        bounds = f" [{low}, {high}]"
    return f"{limit.expression}: {limit.verdict}, {shown(limit.value_ns)}{bounds}"


def step_name(distance: Distance, name: StepName) -> str:
    """The name of a step on the screen: `TLS 1.3`."""
    if name == "tls":
        version = distance.encryption.version.removeprefix("TLSv") if distance.encryption is not None else ""
        return f"TLS {version}".rstrip()
    if name == "connect" and distance.place.startswith("on "):
        return "socket"
    return _STEPS.get(name, name)


def _path_lines(distance: Distance) -> list[_Line]:
    path, encryption = distance.path, distance.encryption
    if path is None:
        return []
    parts = [path.says]
    if path.kind == "other_machine" and path.mtu is not None:
        parts.append(f"MTU {path.mtu}")
    if encryption is not None:
        parts.append(_describe_encryption(encryption))
    elif path.kind not in ("socket", "loopback"):
        parts.append("not encrypted")
    return [_LabelledText("path", "; ".join(parts))]


def _between_lines(distance: Distance) -> list[_Line]:
    facts = distance.path.between if distance.path is not None else ()
    return [_LabelledText("", f"{facts[0].says}: {facts[0].evidence}")] if facts else []


def _failed_addresses(distance: Distance) -> list[_Line]:
    """The name's first address, if it did not accept the connection: it delays every new connection."""
    failed = [
        address
        for address in (distance.name.addresses if distance.name is not None else ())
        if address.state == "failed"
    ]
    return [_LabelledText("", f"first tried {failed[0].address}: {failed[0].why}", lines=1)] if failed else []


def _bandwidth_lines(distance: Distance) -> list[_Line]:
    bandwidth = distance.bandwidth
    if bandwidth is None:
        return [_LabelledText("  8 MiB", distance.bandwidth_refusal or "", lines=1)]
    rate = bandwidth.bytes * 8e3 / max(bandwidth.took_ns, 1)
    return [
        _LabelledText(
            "  8 MiB", f"{shown(bandwidth.took_ns)} for one answer: {plain(rate)} Mbit/s, slow start included", lines=1
        )
    ]


def _describe_encryption(encryption: Encryption) -> str:
    version = encryption.version.replace("TLSv", "TLS ")
    if encryption.verified == NOT_VERIFIED:
        return f"{version} {encryption.handshake} handshake, not verified"
    return f"{version} {encryption.handshake} handshake, verified by {encryption.verified}"


def _page_lines(distance: Distance) -> list[_Line]:
    counts = [page.requests for page in distance.pages]
    return [
        _Cells("a page of", counts, ("requests in turn (by their mean)", "requests")),
        _page_row("  reused", [page.kept_ns for page in distance.pages], "over an open connection"),
        _page_row("  new", [page.new_ns for page in distance.pages], "over a new connection"),
    ]


def _page_row(label: str, times_ns: Sequence[int], *remarks: str) -> _Cells:
    return _Cells(label, [shown(time_ns) for time_ns in times_ns], remarks)


def _next_step(distance: Distance) -> str:
    local = distance.path is not None and distance.path.kind in ("loopback", "this_machine", "passed_on")
    if local:
        return "Next: howfar doctor                (is this path slower than it must be?)"
    return "Next: howfar slope -- YOUR COMMAND     (how many requests does a page make?)"
