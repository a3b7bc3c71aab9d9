"""A load's result in Prometheus' text format, for a node exporter's textfile collector. Pure.

Gauges of one finished run: what is scraped later is that run, with its time in `howfar_load_timestamp_seconds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from howfar.load.figures import SHARES, Latency, Result
from howfar.load.verdict import Stamp

Sample = tuple[Mapping[str, str], float]


def prometheus_text(result: Result, workload: str) -> str:
    """The whole file."""
    finished, base = result.finished, {"workload": workload, "server_version": result.receipt.server_version}
    lines: list[str] = []

    def family(name: str, meaning: str, samples: Sequence[Sample]) -> None:
        if samples:
            lines.extend((f"# HELP howfar_load_{name} {meaning}", f"# TYPE howfar_load_{name} gauge"))
            lines.extend(_sample(f"howfar_load_{name}", {**base, **labels}, value) for labels, value in samples)

    family("timestamp_seconds", "When the measured window began.", [({}, result.measuring.unix_time_ns / 1e9)])
    family("window_seconds", "Length of the measured window.", [({}, result.seconds)])
    family("connections", "Connections that carried load.", [({}, result.job.connections)])
    family("transactions", "Transactions in the window.", [({}, finished.transactions)])
    family("transactions_per_second", "Throughput.", [({}, result.per_second(finished.transactions))])
    family("queries_per_second", "Throughput by what came back.", [
        ({"class": name}, result.per_second(getattr(finished.classes, name))) for name in ("read", "write", "other")
    ])  # fmt: skip
    family(
        "errors",
        "Errors by code, ignored as asked.",
        [({"code": code}, n) for code, n in sorted(finished.errors.items())],
    )
    family("reconnects", "Connections opened again.", [({}, finished.reconnects)])
    family("latency_seconds", "Latency at a quantile; a lower bound where censored is true.", [
        sample for latency in result.shown for sample in _quantiles(latency)
    ])  # fmt: skip
    family(
        "latency_max_seconds", "Highest latency.", [({"kind": each.kind}, each.max_ns / 1e9) for each in result.shown]
    )
    if finished.open_loop is not None:
        account = finished.open_loop
        family("requests", "Open loop: what became of every request that was due.", [
            ({"outcome": name}, getattr(account, name)) for name in ("answered", "unanswered", "failed")
        ])  # fmt: skip
    if result.in_flight is not None:
        family("in_flight", "Transactions under way when the window ended.", [({}, result.in_flight.count)])
        family("in_flight_max_seconds", "Age of the oldest of them.", [({}, result.in_flight.max_ns / 1e9)])
    if result.client is not None and finished.queries:
        each = result.client.cpu_ns / 1e9 / finished.queries
        family("client_cpu_seconds_per_query", "CPU time of this client.", [({}, each)])
    family("client_memory_bytes", "Peak memory of this client.", [({}, finished.peak_memory_bytes)])
    family(
        "stamp", "1: this stamp is on the result.", [({"stamp": str(s)}, float(result.verdict.has(s))) for s in Stamp]
    )
    return "\n".join(lines) + "\n"


def _quantiles(latency: Latency) -> list[Sample]:
    found: list[Sample] = []
    for _, share in SHARES:
        at = latency.at(share)
        if at is not None:
            labels = {"kind": latency.kind, "quantile": f"{share:g}", "censored": str(not at.exact).lower()}
            found.append((labels, at.low_ns / 1e9))
    return found


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
