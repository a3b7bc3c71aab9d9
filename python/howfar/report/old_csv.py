"""One line a cell, for a spreadsheet; in runs of replication also one an arm that broke something. Factors come first, then figures
with their limits; an empty field is unknown."""

from __future__ import annotations

import csv
import io

from howfar.analysis.summary import CellSummary, Summary
from howfar.experiments.page.report import spreadsheet as page_spreadsheet
from howfar.plan.factors import breaks
from howfar.report.figures import tps
from howfar.stats.estimate import Estimate


def render(summary: Summary) -> str:
    """CSV with a header line and `\\n` line ends."""
    factors = sorted({name for cell in summary.cells for name in cell.factors})
    told = page_spreadsheet.told(summary)
    rows = [_row(cell, factors) | told.get(cell.arm, {}) for cell in summary.cells]
    rows += [{"arm": arm} | line for arm, line in told.items() if all(cell.arm != arm for cell in summary.cells)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def _limits(name: str, estimate: Estimate | None) -> dict[str, object]:
    if estimate is None:
        return {name: "", f"{name}_low": "", f"{name}_high": ""}
    return {name: _text(estimate.value), f"{name}_low": _text(estimate.low), f"{name}_high": _text(estimate.high)}


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _row(cell: CellSummary, factors: list[str]) -> dict[str, object]:
    """Of a cell that broke something who it is: rates and CPU would be over the outage too."""
    known: dict[str, object] = {
        "arm": cell.arm,
        "role": cell.role.value,
        **{name: cell.factors.get(name, "") for name in factors},
        "trials": cell.trials,
        "void_trials": cell.void_trials,
    }
    return known if breaks(cell.factors) else known | _measured(cell)


def _measured(cell: CellSummary) -> dict[str, object]:
    cpu, latency = cell.cpu_us_per_query, cell.latency_ms
    return {
        **_limits("qps", cell.qps),
        **_limits("ratio", cell.ratio),
        "resolution": cell.resolution.value,
        **_limits("client_cpu_us_per_query", cpu.client),
        **_limits("server_cpu_us_per_query", cpu.server),
        **_limits("forwarder_cpu_us_per_query", cpu.forwarder),
        **_limits("cpu_ratio", cell.cpu_ratio),
        "cpu_bound": cell.cpu_bound.value,
        **{f"{name}_ms": _text(getattr(latency, name)) for name in ("p50", "p95", "p99", "max")},
        **_limits("latency_ratio", cell.latency_ratio),
        **_limits("tps", tps(cell)),
        "turns_per_txn": _text(cell.turns_per_txn),
        "queries_per_txn": _text(cell.queries_per_txn),
        "bytes_to_server_per_txn": _text(cell.bytes_per_txn.to_server),
        "bytes_to_client_per_txn": _text(cell.bytes_per_txn.to_client),
        "published_ratio": _text(cell.published.ratio if cell.published else None),
        "published_qps": _text(cell.published.qps if cell.published else None),
        "cycle_us": _text(cell.cycle.us if cell.cycle else None),
        "cycle_rest_share": _text(cell.cycle.rest_share if cell.cycle else None),
        "limit": cell.limit.resource.value if cell.limit else "",
        "limit_confidence": cell.limit.confidence if cell.limit else "",
        "limit_says": cell.limit.says if cell.limit else "",
        "warnings": "; ".join(warning.value for warning in cell.warnings),
    }
