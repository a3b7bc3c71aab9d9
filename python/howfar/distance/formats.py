"""Formats a distance as CSV and as Prometheus' text format. The JSON form is that of the record itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from howfar.distance.record import Distance


def csv_text(distance: Distance) -> str:
    """Format the figures as CSV, one per line: its name, which ends with the unit, and its value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("target", "metric", "value"))
    for metric, value in list_figures(distance):
        writer.writerow((distance.target, metric, value))
    return buffer.getvalue()


def list_figures(distance: Distance) -> Iterator[tuple[str, object]]:
    """Yield the name and value of every figure on the screen."""
    yield "product", distance.product or ""
    if distance.name is not None:
        yield "name_ns", distance.name.took_ns
    if distance.connection is not None:
        yield "connect_ns", distance.connection.took_ns
        yield "connect_round_trips", distance.connection.round_trips
        for step in distance.connection.steps:
            yield f"connect_{step.name}_ns", step.took_ns
    for label, latencies in (("request", distance.request), ("ping", distance.ping)):
        if latencies is None:
            continue
        yield f"{label}_count", latencies.count
        for field in ("min_ns", "p50_ns", "p95_ns", "p99_ns", "mean_ns", "max_ns"):
            value = getattr(latencies, field)
            if value is not None:
                yield f"{label}_{field}", value
    if distance.network_ns is not None:
        yield "network_ns", distance.network_ns
    for page in distance.pages:
        yield f"page{page.requests}_kept_ns", page.kept_ns
        yield f"page{page.requests}_new_ns", page.new_ns
    if distance.bandwidth is not None:
        yield "bandwidth_bits_per_s", round(distance.bandwidth.bytes * 8e9 / max(distance.bandwidth.took_ns, 1))
    if distance.failure is not None:
        yield "failed_step", distance.failure.step


_HELP = {
    "up": "Whether the server was reached and let us in.",
    "name_seconds": "The lookup of the server's name.",
    "connect_seconds": "A new connection with its login, without the name lookup.",
    "connect_step_seconds": "The steps of a new connection.",
    "network_seconds": "The smallest time of TCP's handshake.",
    "request_seconds": "Requests that only the server can answer, one at a time, at a quantile.",
    "request_mean_seconds": "Their mean.",
    "requests": "How many there were.",
    "limit_crossed": "Whether a limit of --fail-if was crossed.",
}


def prometheus_text(distance: Distance) -> str:
    """Format gauges for the textfile collector of Prometheus' node exporter."""
    lines: list[str] = []
    for name, description in _HELP.items():
        samples = list(_samples(distance, name))
        if samples:
            lines += [f"# HELP howfar_{name} {description}", f"# TYPE howfar_{name} gauge"]
            lines += [f"howfar_{name}{{{_labels(distance, labels)}}} {value:.9g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(distance: Distance, labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escape_label(value)}"' for name, value in {"target": distance.target, **labels}.items())


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _samples(distance: Distance, name: str) -> Iterator[tuple[dict[str, str], float]]:
    request, connection = distance.request, distance.connection
    if name == "up":
        yield {}, float(request is not None)
    elif name == "name_seconds" and distance.name is not None:
        yield {}, distance.name.took_ns / 1e9
    elif name == "connect_seconds" and connection is not None and connection.count:
        yield {}, connection.took_ns / 1e9
    elif name == "connect_step_seconds" and connection is not None:
        yield from (({"step": str(step.name)}, step.took_ns / 1e9) for step in connection.steps)
    elif name == "network_seconds" and distance.network_ns is not None:
        yield {}, distance.network_ns / 1e9
    elif name == "request_seconds" and request is not None:
        quantiles = (("0", request.min_ns), ("0.5", request.p50_ns), ("0.95", request.p95_ns), ("0.99", request.p99_ns))
        yield from (({"quantile": quantile}, ns / 1e9) for quantile, ns in quantiles if ns is not None)
    elif name == "request_mean_seconds" and request is not None:
        yield {}, request.mean_ns / 1e9
    elif name == "requests" and request is not None:
        yield {}, float(request.count)
    elif name == "limit_crossed":
        yield from (({"limit": limit.expression}, float(limit.verdict == "crossed")) for limit in distance.limits)
