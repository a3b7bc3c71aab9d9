"""What each transaction did, in one line for a reader who knows sysbench and one who does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RANGE_KINDS = ("simple_ranges", "sum_ranges", "order_ranges", "distinct_ranges")


def workload_line(plan: Mapping[str, Any]) -> str:
    """`oltp_read_only: 25 point selects + 4 ranges of 5 rows a transaction, 10 tables x 100000 rows, pareto ids`."""
    workload, data = _table(plan, "workload"), _table(plan, "data")
    parts = []
    if workload.get("point_selects"):
        parts.append(f"{workload['point_selects']} point selects")
    ranges = sum(int(workload.get(kind, 0)) for kind in RANGE_KINDS) if workload.get("range_selects", True) else 0
    if ranges:
        parts.append(f"{ranges} ranges of {workload.get('range_size', '?')} rows")
    line = f"{workload.get('kind', 'workload')}: {' + '.join(parts) or 'queries'} a transaction"
    if data.get("tables"):
        line += f", {data['tables']} tables x {data.get('table_size', '?')} rows"
    ids = _table(workload, "distribution").get("kind")
    return line + (f", {ids} ids" if ids else "")


def _table(plan: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = plan.get(key)
    return value if isinstance(value, Mapping) else {}
