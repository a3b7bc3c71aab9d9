"""Renders a distance as at most 21 lines of 80 columns: the answer, its parts, their meaning for a page, and the next command."""

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
"""A digit and the space between it and a unit, where no line may break."""
_COLD_FACTOR, _MIN_COLD_NS = 5, 1_000_000
"""The first request is shown if it takes more than five times the median and more than a millisecond."""
_STEPS: dict[StepName, str] = {"connect": "TCP", "greeting": "greeting", "tls_request": "TLS request", "login": "login"}


def choose_unit(ns: float) -> tuple[float, str]:
    """Choose the unit for a time; returns the unit's nanoseconds, and its name."""
    for factor, unit, limit in ((1e3, "µs", 100e3), (1e6, "ms", 1e9)):
        if ns < limit:
            return factor, unit
    return 1e9, "s"


def format_time(ns: float) -> str:
    """Format a time with its unit and two significant digits, more for large numbers: `0.42 ms`, `128 ms`."""
    factor, unit = choose_unit(ns)
    return f"{format_number(ns / factor)} {unit}"


def format_number(value: float) -> str:
    """Format a number with two significant digits, more for large numbers, and no exponent: `0.042`, `0.42`, `4.2`, `42`, `4,242`."""
    for minimum, digits in ((9.95, 0), (0.995, 1), (0.0995, 2)):
        if value >= minimum:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


class _LabelledText(NamedTuple):
    """A label and its text, wrapped to at most `lines` lines."""

    label: str
    text: str
    lines: int = 2


class _Cells(NamedTuple):
    """A row of the table of pages. Of its remarks, only the first that fits is printed."""

    label: str
    cells: Sequence[object]
    remarks: Sequence[str]


_Line = _LabelledText | _Cells | str


def render(distance: Distance, width: int = WIDTH) -> str:
    """Render a measurement that has a result, in at least 40 columns."""
    groups = [(rank, [text for line in lines for text in _wrap(line, width)]) for rank, lines in _line_groups(distance)]
    while sum(len(lines) for _, lines in groups) > LINES and any(rank for rank, _ in groups):
        groups.remove(max(groups, key=lambda part: part[0]))
    return "\n".join(line for _, lines in groups for line in lines)


def headline(distance: Distance) -> str:
    """Format the result in one sentence: `MariaDB 10.11.19 at db.internal:3306 is 0.42 ms away.`"""
    assert distance.request is not None, "a rendered distance has a result"
    server = distance.product or "The server"
    proxy = (
        next((fact.what for fact in distance.path.between if fact.what), None) if distance.path is not None else None
    )
    if proxy is not None:
        server = f"{server} behind {proxy}"
    request = distance.request
    caveat = "" if request.p50_ns is not None else f", judging by {counted(request.count, 'request')}"
    return f"{server} {distance.place} is {format_time(request.middle_ns)} away{caveat}."


def _line_groups(distance: Distance) -> Iterator[tuple[int, list[_Line]]]:
    """Yield ranked groups of lines. If space is short, groups of the highest rank are dropped first; rank 0 is never dropped."""
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
        remarks: Sequence[str] = ("an estimate, by its socket",)
        if other.rtt_ns is not None:
            remarks = f"if the RTT were {other.rtt_ns / 1e6:g} ms", f"RTT {other.rtt_ns / 1e6:g} ms"
        yield 2 if other.name == "another zone" else 0, [_page_row(f"  {other.name}", other.kept_ns, *remarks)]
    yield 0, [""]
    if distance.light_km is not None:
        km = format_number(distance.light_km)
        yield 4, [f"At the speed of light in fibre, what answers is at most {km} km away."]
    yield 0, [_next_command(distance)]


def _wrap(line: _Line, width: int) -> list[str]:
    max_lines = math.ceil(WIDTH / width)
    match line:
        case _LabelledText(label, text, lines):
            first, indent, max_lines = f"{label:<{_INDENT}}", " " * _INDENT, max_lines * lines
        case _Cells(label, cells, remarks):
            cell_width = 10 if width >= _INDENT + 30 else 8
            row = f"{label:<{_INDENT}}" + "".join(f"{cell:>{cell_width}}" for cell in cells)
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
    assert request is not None, "a rendered distance has a result"
    factor, unit = choose_unit(request.middle_ns)
    percentiles = [("min", request.min_ns), ("p50", request.p50_ns), ("p95", request.p95_ns), ("p99", request.p99_ns)]
    figures = [
        f"{name} {format_number(ns / factor)}"
        for name, ns in (*percentiles, ("mean", request.mean_ns))
        if ns is not None
    ]
    if request.count == 1:
        figures = [format_number(request.min_ns / factor)]
    rows: list[_Line] = [_LabelledText("one request", f"{'  '.join(figures)} {unit}")]
    if distance.network_ns is not None:
        rest_ns = request.middle_ns - distance.network_ns
        rest_text = f"; everything else: {format_time(rest_ns)}" if rest_ns > 0 else ""
        rows.append(_LabelledText("  network", f"{format_time(distance.network_ns)} (TCP handshake){rest_text}"))
    sample_text = f"{request.count} x {request.request}"
    if ping is None:
        return [*rows, _LabelledText("  sample", f"{sample_text}, one at a time")]
    refusal = "" if ping.refusal is None else f"; the server refused each ping: {ping.refusal}"
    samples_text = f"{sample_text}, {counted(ping.count, 'ping')}, one at a time{refusal}"
    if ping.p50_ns is None:
        return [*rows, _LabelledText("  sample", samples_text)]
    return [*rows, _LabelledText("  ping", f"{format_time(ping.p50_ns)} ({ping.request}); {samples_text}")]


def _connection_lines(distance: Distance) -> list[_Line]:
    connection = distance.connection
    assert connection is not None, "a rendered distance has a result"
    parts = [f"name {format_time(distance.name.took_ns)}"] if distance.name is not None else []
    parts += [f"{step_name(distance, step.name)} {format_time(step.took_ns)}" for step in connection.steps]
    total_ns = connection.took_ns + (distance.name.took_ns if distance.name is not None else 0)
    text = f"{format_time(total_ns)}: {', '.join(parts)} ({_describe_round_trips(connection)})"
    first_ns, request = distance.first_request_ns, distance.request
    if first_ns is not None and request is not None and first_ns > max(_COLD_FACTOR * request.middle_ns, _MIN_COLD_NS):
        text += f"; first request {format_time(first_ns)}"
    return [_LabelledText("new connection", text)]


def _describe_round_trips(connection: NewConnection) -> str:
    text = f"{connection.round_trips} round trip{'' if connection.round_trips == 1 else 's'}"
    return f"{text}; each the median of {connection.count}" if connection.count > 1 else text


def failure_lines(distance: Distance) -> Iterator[str]:
    """Yield two or three lines for a failed measurement: the failure, the steps that worked, and what to do."""
    failure = distance.failure
    assert failure is not None, "a failed distance has a failure"
    steps = [f"name lookup {format_time(distance.name.took_ns)}"] if distance.name is not None else []
    if distance.connection is not None:
        steps += [f"{step_name(distance, step.name)} {format_time(step.took_ns)}" for step in distance.connection.steps]
    yield f"howfar: {failure.message}"
    if steps:
        yield f"  Worked so far: {', '.join(steps)}."
    yield f"  {failure.advice}"


def limit_line(limit: Limit) -> str:
    """Format a limit and its verdict: `p95>2ms: crossed, 2.6 ms [2.3, 3.1]`."""
    if limit.value_ns is None:
        return f"{limit.expression}: undecided, as this measurement has no such figure"
    bounds = ""
    if limit.interval_ns is not None:
        low, high = ("?" if bound is None else format_time(bound) for bound in limit.interval_ns)
        bounds = f" [{low}, {high}]"
    return f"{limit.expression}: {limit.verdict}, {format_time(limit.value_ns)}{bounds}"


def step_name(distance: Distance, name: StepName) -> str:
    """Return the name of a step as shown on the screen, such as `TLS 1.3`."""
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
    parts = [path.text]
    if path.kind == "other_machine" and path.mtu is not None:
        parts.append(f"MTU {path.mtu}")
    if encryption is not None:
        parts.append(_describe_encryption(encryption))
    elif path.kind not in ("socket", "loopback"):
        parts.append("not encrypted")
    return [_LabelledText("path", "; ".join(parts))]


def _between_lines(distance: Distance) -> list[_Line]:
    facts = distance.path.between if distance.path is not None else ()
    return [_LabelledText("", f"{facts[0].text}: {facts[0].evidence}")] if facts else []


def _failed_addresses(distance: Distance) -> list[_Line]:
    """Show the name's first address if it did not accept the connection, because it delays every new connection."""
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
            "  8 MiB",
            f"{format_time(bandwidth.took_ns)} for one answer: {format_number(rate)} Mbit/s, slow start included",
            lines=1,
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
    return _Cells(label, [format_time(time_ns) for time_ns in times_ns], remarks)


def _next_command(distance: Distance) -> str:
    is_local = distance.path is not None and distance.path.kind in ("loopback", "this_machine", "passed_on")
    if is_local:
        return "Next: howfar doctor                (is this path slower than it must be?)"
    return "Next: howfar slope -- YOUR COMMAND     (how many requests does a page make?)"
