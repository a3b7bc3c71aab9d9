"""The distance as text of at most 21 lines of 80 columns: the answer first, then its parts, what it means, and what to ask next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from howfar.distance.record import Distance, NewConnection, StepName

WIDTH = 80
LINES = 21
_INDENT = 16
_STEPS: dict[StepName, str] = {"connect": "TCP", "greeting": "greeting", "tls_request": "TLS request", "login": "login"}


def shown(ns: float, digits: int = 2) -> str:
    """A time with its unit and two significant digits, `0.42 ms`; three from 100 on, so that nothing is rounded to zeros."""
    for factor, unit, most in ((1e3, "µs", 100e3), (1e6, "ms", 1e9), (1e9, "s", float("inf"))):
        if ns < most:
            return f"{plain(ns / factor, digits)} {unit}"
    raise AssertionError("every time is below infinity")


def plain(value: float, digits: int = 2) -> str:
    """A number with so many significant digits, never in powers of ten: `0.42`, `85`, `128`."""
    if value >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.3f}"


def together(times_ns: Sequence[float]) -> tuple[list[str], str]:
    """Times in the one unit of the largest."""
    largest = max(times_ns)
    factor, unit = (1e3, "µs") if largest < 100e3 else (1e6, "ms") if largest < 1e9 else (1e9, "s")
    return [plain(one / factor) for one in times_ns], unit


def render(distance: Distance) -> str:
    """The screen of a measurement that has an answer."""
    lines = list(_lines(distance))
    assert len(lines) <= LINES, f"{len(lines)} lines"
    return "\n".join(lines)


def headline(distance: Distance) -> str:
    """`MariaDB 10.11.19 at db.internal:3306 is 0.42 ms away.`"""
    assert distance.request is not None, "it was measured"
    who = distance.product or "The server"
    return f"{who} {distance.place} is {shown(distance.request.p50_ns)} away."


def _lines(distance: Distance) -> Iterator[str]:
    yield from textwrap.wrap(headline(distance), WIDTH, break_on_hyphens=False)
    yield ""
    yield from _request(distance)
    yield from _connection(distance)
    yield from _path(distance)
    yield ""
    yield from _pages(distance)
    yield ""
    if distance.light_km is not None and distance.network_ns is not None:
        yield (
            f"Light in fibre goes {plain(distance.light_km)} km and back in {shown(distance.network_ns)}: "
            "what answers is no farther."
        )
    yield _next(distance)


def _row(label: str, text: str, lines: int = 2) -> list[str]:
    wrapped = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=True,
        break_on_hyphens=False,
        max_lines=lines,
        placeholder=" …",
    )
    return wrapped or [label]


def _request(distance: Distance) -> list[str]:
    request, ping = distance.request, distance.ping
    assert request is not None, "it was measured"
    named = [("min", request.min_ns), ("p50", request.p50_ns), ("p95", request.p95_ns), ("p99", request.p99_ns)]
    known = [(name, ns) for name, ns in named if ns is not None]
    figures, unit = together([ns for _, ns in known])
    text = "  ".join(f"{name} {figure}" for (name, _), figure in zip(known, figures, strict=True))
    rows = _row("one request", f"{text} {unit}  ({request.count} x {request.request}, one at a time)")
    network = distance.network_ns
    if network is not None:
        parts = [f"network {shown(network)}"]
        if ping is not None:
            parts.append(f"a ping {shown(ping.p50_ns)}")
        parts.append(f"not network: {shown(max(request.p50_ns - network, 0))}")
        rows += _row("  of which", ", ".join(parts))
    elif ping is not None:
        rows += _row("  a ping", shown(ping.p50_ns))
    return rows


def _connection(distance: Distance) -> list[str]:
    connection = distance.connection
    assert connection is not None, "it was measured"
    parts = [f"name {shown(distance.name.took_ns)}"] if distance.name is not None else []
    parts += [f"{step_name(distance, one.name)} {shown(one.took_ns)}" for one in connection.steps]
    total = connection.took_ns + (distance.name.took_ns if distance.name is not None else 0)
    return _row("new connection", f"{shown(total)}: {', '.join(parts)} ({_how(connection)})")


def _how(connection: NewConnection) -> str:
    trips = f"{connection.round_trips} round trip{'' if connection.round_trips == 1 else 's'}"
    return f"{trips}; median of {connection.count}" if connection.count > 1 else trips


def step_name(distance: Distance, name: StepName) -> str:
    """How the screen calls a step: `TLS 1.3`."""
    if name == "tls":
        version = distance.encryption.version.removeprefix("TLSv") if distance.encryption is not None else ""
        return f"TLS {version}".rstrip()
    if name == "connect" and distance.place.startswith("on "):
        return "socket"
    return _STEPS.get(name, name)


def _path(distance: Distance) -> list[str]:
    path, encryption = distance.path, distance.encryption
    if path is None:
        return []
    parts = [path.says]
    if path.kind == "other_machine" and path.mtu is not None:
        parts.append(f"MTU {path.mtu}")
    if encryption is not None:
        parts.append(f"{encryption.version.replace('TLSv', 'TLS ')}, verified against {encryption.verified}")
    elif path.kind not in ("socket", "loopback"):
        parts.append("not encrypted")
    rows = _row("path", "; ".join(parts))
    if path.between:
        first = path.between[0]
        rows += _row("", f"{first.says}: {first.evidence}")
    dead = [one for one in (distance.name.addresses if distance.name is not None else ()) if one.state == "failed"]
    if dead:
        rows += _row("", f"{dead[0].address} of the same name did not answer: {dead[0].why}", lines=1)
    return rows


def _pages(distance: Distance) -> Iterator[str]:
    yield f"{'a page of':<{_INDENT}}" + "".join(f"{page.requests:>10}" for page in distance.pages) + "  requests in turn waits"
    yield _page_row("  kept", [page.kept_ns for page in distance.pages], "on a connection that is kept")
    yield _page_row("  new", [page.new_ns for page in distance.pages], "on a new one")
    for other in distance.elsewhere:
        rtt = "" if other.rtt_ns is None else f"if the network's RTT were {shown(other.rtt_ns)}"
        yield _page_row(f"  {other.name}", other.kept_ns, rtt)


def _page_row(label: str, times_ns: Sequence[int], remark: str) -> str:
    return f"{label:<{_INDENT}}" + "".join(f"{shown(one):>10}" for one in times_ns) + f"  {remark}".rstrip()


def _next(distance: Distance) -> str:
    local = distance.path is not None and distance.path.kind in ("loopback", "this_machine", "passed_on")
    if local:
        return "Next: howfar doctor                (is this path slower than it must be?)"
    return "Next: howfar slope -- YOUR COMMAND     (how many requests does a page make?)"
