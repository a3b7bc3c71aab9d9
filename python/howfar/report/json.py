"""The report for programs. Names are public: a name is added, never renamed; `REPORT_VERSION` is raised when a meaning changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import create_model

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.plan.factors import breaks
from howfar.stats.estimate import Part

REPORT_VERSION = 1


def document(summary: Summary) -> dict[str, Any]:
    """The summary as plain values. CPU per query is a number there, its interval has a key of its own. Cells that broke something are
    not in it: their rates would include the outage. Their result is in `replication`."""
    plain = summary.model_dump(mode="json")
    plain |= plain.pop("findings")
    plain["cells"] = [_cell(cell) for cell in summary.cells if not breaks(cell.factors)]
    return {"report_version": REPORT_VERSION, **plain}


def _cell(cell: CellSummary) -> dict[str, Any]:
    plain = cell.model_dump(mode="json")
    intervals = plain["cpu_us_per_query"]
    plain["cpu_us_per_query"] = {role: found and found["value"] for role, found in intervals.items()}
    plain["cpu_us_per_query_interval"] = intervals
    return plain


def render(summary: Summary) -> str:
    """JSON text with a final newline; NaN and infinity cannot occur."""
    return json.dumps(document(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def schema(findings: Mapping[str, type[Part]]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `document`, whose experiments find these."""
    optional_findings: dict[str, Any] = {key: (kind | None, None) for key, kind in findings.items()}
    whole = create_model("Summary", __base__=Summary, **optional_findings)
    found = whole.model_json_schema(mode="serialization")
    del found["properties"]["findings"], found["$defs"]["Part"]
    cell = found["$defs"]["CellSummary"]
    cell["properties"]["cpu_us_per_query_interval"] = {"$ref": "#/$defs/CpuPerQuery"}
    cell["properties"]["cpu_us_per_query"] = {"$ref": "#/$defs/CpuNumbers"}
    cell["required"].append("cpu_us_per_query_interval")
    numbers = {name: {"type": "number"} for name in ("client", "server")}
    optional = {name: {"anyOf": [{"type": "number"}, {"type": "null"}]} for name in ("forwarder", "link")}
    found["$defs"]["CpuNumbers"] = {
        "type": "object",
        "description": "CPU microseconds a query, by who spent them; null: no such part on this path.",
        "properties": {**numbers, **optional},
        "required": ["client", "server", "forwarder", "link"],
        "additionalProperties": False,
    }
    found["properties"] = {"report_version": {"const": REPORT_VERSION}, **found["properties"]}
    found["required"] = ["report_version", *found["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "howfar report"}
