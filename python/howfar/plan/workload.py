"""What a plan's load asks for, and of which data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, StrictBool, model_validator

from howfar.plan.part import Part
from howfar.plan.quantities import refuse


class Data(Part):
    """The tables, in sysbench's schema."""

    tables: int = Field(default=10, ge=1, le=1000)
    table_size: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    fit: StrictBool = False
    """Where memory does not hold such tables, the largest that fit; the run file says how large they were."""


class Distribution(Part):
    """How row ids are drawn; sysbench's names and meaning."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: float = Field(default=0.2, gt=0, lt=1)
    spec_iter: int = Field(default=12, ge=1)
    spec_pct: int = Field(default=1, ge=1, le=100)
    spec_res: int = Field(default=75, ge=1, le=99)
    zipfian_exp: float = Field(default=0.8, ge=0)


WorkloadKind = Literal[
    "oltp_read_only",
    "oltp_read_write",
    "oltp_write_only",
    "oltp_point_select",
    "oltp_insert",
    "oltp_update_index",
    "oltp_update_non_index",
    "oltp_delete",
    "select_random_points",
    "select_random_ranges",
    "bulk_insert",
    "single_row_inserts",
    "page",
    "key_value",
]
"""Sysbench's are the engine's (`engine.workloads.SysbenchKind`; a test holds them together). Those that write leave the tables changed
for the trials after them, inserted and deleted rows add up over a run; in cells with replication each trial has fresh tables.
`single_row_inserts`: one short row a transaction into a table of its own, keys drawn by the clients, autocommit. `page`: one request
to an application, of turns to MySQL, Redis and Memcached (`page.py`). `key_value`: commands to Redis or Memcached alone."""


READS_ONLY: frozenset[WorkloadKind] = frozenset(
    {"oltp_read_only", "oltp_point_select", "select_random_points", "select_random_ranges", "key_value"}
)
"""Those whose transactions leave nothing to commit. What a page commits its shape says."""


class Workload(Part):
    """One of sysbench's workloads, with sysbench's option names and 1.0 defaults; the tables are in `Data`. Options that a kind does
    not use are ignored, as sysbench does."""

    kind: WorkloadKind = "oltp_read_only"
    range_size: int = Field(default=100, ge=1)
    point_selects: int = Field(default=10, ge=0)
    range_selects: bool = True
    simple_ranges: int = Field(default=1, ge=0)
    sum_ranges: int = Field(default=1, ge=0)
    order_ranges: int = Field(default=1, ge=0)
    distinct_ranges: int = Field(default=1, ge=0)
    index_updates: int = Field(default=1, ge=0)
    non_index_updates: int = Field(default=1, ge=0)
    delete_inserts: int = Field(default=1, ge=0)
    skip_trx: bool = False
    db_ps_mode: Literal["auto", "disable"] = "auto"
    distribution: Distribution = Distribution()

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        ranges = self.simple_ranges + self.sum_ranges + self.order_ranges + self.distinct_ranges
        reads = self.point_selects + (ranges if self.range_selects else 0)
        writes = self.index_updates + self.non_index_updates + self.delete_inserts
        asked = {"oltp_read_only": reads, "oltp_write_only": writes, "oltp_read_write": reads + writes}
        if asked.get(self.kind, 1) == 0:
            raise refuse("a transaction without a query measures nothing; set point_selects or a range kind")
        return self
