"""Limits of a server that a load runs into, and the exact statement that lifts each. Pure.

The server itself says when a limit is met; what it does not say is how high it must be.
"""

from __future__ import annotations

import re

from howfar.engine.messages import Custom, LoadJob, Sysbench, TablesJob

_CODE = re.compile(r"\b(1040|1203|1461)\b")
_SPARE = 10
"""Connections for whoever looks at the server meanwhile."""


def statements_a_connection(job: LoadJob) -> int:
    """Statements that one connection prepares; the most that the mix can need."""
    work = job.workload
    if isinstance(work, Custom):
        return len(work.statements) if work.db_ps_mode == "auto" else 0
    if not isinstance(work, Sysbench):
        return 0
    if work.db_ps_mode != "auto" or work.kind in ("oltp_insert", "bulk_insert"):
        return 0
    if work.kind in ("select_random_points", "select_random_ranges"):
        return 1
    if work.kind in ("oltp_point_select", "oltp_update_index", "oltp_update_non_index", "oltp_delete"):
        return work.tables
    reads = [work.point_selects]
    if work.range_selects:
        reads += [work.simple_ranges, work.sum_ranges, work.order_ranges, work.distinct_ranges]
    writes = [work.index_updates, work.non_index_updates, work.delete_inserts, work.delete_inserts]
    counts = (reads if work.kind != "oltp_write_only" else []) + (writes if work.kind != "oltp_read_only" else [])
    return work.tables * sum(count > 0 for count in counts) + (0 if work.skip_trx else 2)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def advice(job: LoadJob | TablesJob, message: str) -> str | None:
    """What to run on the server, if `message` tells of a limit; else None."""
    found = _CODE.search(message)
    if found is None:
        return None
    connections = job.connections + (job.idle_connections if isinstance(job, LoadJob) else 0)
    if found.group(1) == "1461":
        if not isinstance(job, LoadJob):
            return None
        each = statements_a_connection(job)
        return (
            f"{_many(job.connections, 'connection')} x {_many(each, 'statement')}: "
            f"run `SET GLOBAL max_prepared_stmt_count = {job.connections * each};` "
            "on the server, or use --db-ps-mode=disable."
        )
    return (
        f"{_many(connections, 'connection')} {'is' if connections == 1 else 'are'} asked for: "
        f"run `SET GLOBAL max_connections = {connections + _SPARE};` on the server, "
        "or use fewer --threads. If the account has a limit of its own (max_user_connections), raise that."
    )
