"""What each transaction did, in one line for a reader who knows sysbench and one who does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from howfar.plan.page import PageShape
from howfar.units import format_duration_ns

_WRITES = {"index_updates": "indexed updates", "non_index_updates": "updates", "delete_inserts": "delete-inserts"}
_FLUSHES = {
    "strict": "each commit is flushed",
    "relaxed": "flushed every second",
    "off": "no commit is flushed",
}
_WRITING = ("oltp_read_write", "oltp_write_only")
RANGE_KINDS = ("simple_ranges", "sum_ranges", "order_ranges", "distinct_ranges")


def workload_line(plan: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """`oltp_read_only: 25 point selects + 4 ranges of 5 rows a transaction, 10 tables x 100000 rows, pareto ids`, and what of the
    plan could not be had here."""
    missed = environment.get("not_as_asked")
    return "; ".join([_workload(plan), *_durability(plan, environment), *(str(sentence) for sentence in missed or ())])


def _durability(plan: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """Of plans with replication: when a commit is on the disk, and what that costs where the data lies."""
    factors = _table(plan, "factors")
    if set(factors.get("replication", ("off",))) <= {"off"}:
        return []
    levels = " and ".join(f"{level} ({_FLUSHES[level]})" for level in factors.get("durability", ("strict",)))
    fsync = _table(_table(environment, "data_fsync_ns"), "512").get("p50")
    where = f", on {environment['work_file_system']}" if environment.get("work_file_system") else ""
    cost = f"{where}, where a write with fsync takes {format_duration_ns(float(fsync))}" if fsync else where
    return [f"durability {levels}{cost}"]


def _workload(plan: Mapping[str, Any]) -> str:
    workload, data = _table(plan, "workload"), _table(plan, "data")
    kind = str(workload.get("kind", "workload"))
    if kind == "single_row_inserts":
        return f"{kind}: one short row per transaction, autocommit, into an empty table"
    if kind == "key_value":
        return _of_keys(_table(plan, "keys"))
    if kind == "page":
        return _of_pages(plan)
    parts = [] if kind == "oltp_write_only" else _reads(workload)
    if kind in _WRITING:
        parts += [f"{count} {word}" for option, word in _WRITES.items() if (count := workload.get(option))]
    known = kind in ("oltp_read_only", *_WRITING, "workload")
    line = f"{kind}: {' + '.join(parts) or 'queries'} per transaction" if known else kind
    if data.get("tables"):
        line += f", {data['tables']} tables x {data.get('table_size', '?')} rows"
    ids = _table(workload, "distribution").get("kind")
    return line + (f", {ids} ids" if ids else "")


def _of_keys(keys: Mapping[str, Any]) -> str:
    """`key_value: 9 get : 1 set, 10000 keys of 100 bytes, even`."""
    mix = " : ".join(f"{keys[name]} {name}" for name in ("get", "set", "multi_get") if keys.get(name))
    several = keys.get("pipeline", 1)
    return f"key_value: {mix or 'commands'}{f', {several} at once' if several > 1 else ''}, {_keys(keys)}"


def _keys(keys: Mapping[str, Any]) -> str:
    return f"{keys.get('count', '?')} keys with values of {keys.get('value_bytes', '?')} bytes, drawn evenly"


def _of_pages(plan: Mapping[str, Any]) -> str:
    """Each page with its turns; a damaged plan says only that there are pages."""
    size = int(_table(plan, "workload").get("range_size", 100))
    try:
        shapes = {name: PageShape.model_validate(shape) for name, shape in _table(plan, "pages").items()}
    except ValidationError:
        return "pages"
    asked = [f"{name} page: {shape.described(size)}" for name, shape in shapes.items()]
    rows = f"table of {_table(plan, 'data').get('table_size', '?')} rows, drawn evenly"
    return "; ".join([*asked, rows, _keys(_table(plan, "keys"))])


def _reads(workload: Mapping[str, Any]) -> list[str]:
    parts = [f"{workload['point_selects']} point selects"] if workload.get("point_selects") else []
    ranges = sum(int(workload.get(kind, 0)) for kind in RANGE_KINDS) if workload.get("range_selects", True) else 0
    return [*parts, f"{ranges} ranges of {workload.get('range_size', '?')} rows"] if ranges else parts


def _table(plan: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = plan.get(key)
    return value if isinstance(value, Mapping) else {}
