"""Estimated duration of a plan on this machine. It is shown to the user, and the runner uses it before the first trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from howfar.plan.cells import NamedCell, cells
from howfar.plan.factors import RATE_BPS, RTT_NS, SERVER_LINKS
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS

_TRIAL_OVERHEAD_NS, _MYSQL_OVERHEAD_NS = 1_200_000_000, 3_300_000_000
"""Time before and after a trial's load: to start a server from the template, read its data into memory, build the path, connect and
prepare; then to shut all down. Medians of runs with 10 x 100000 rows on two CPUs: MariaDB 0.4 to 3 s, MySQL 2.2 on local paths and
3.3 over a link."""
LABORATORY_NS = 5_000_000_000
"""Time to build the hosts and the link and to calibrate it, if the server's template exists already."""
ROWS_PER_S = 150_000
"""Rate of loading the tables, which is done the first time only."""
REPORT_NS = 10_000_000_000
"""Time for the analysis and the report; reserved at the end of a time budget."""

CONFIRMED_LIMITS = 3
"""Maximum number of limits tested after a plan's blocks. Each costs two trials a block."""
CONFIRMATION_BLOCKS = 4
_SERVER_LINK_NS, _CALIBRATION_ROUND_TRIPS = 1_500_000_000, 40
"""Time to calibrate a link between two servers, without its goodput: a fixed time plus round trips."""
NEW_LINK_NS = 6_000_000_000
"""Additional time of the first trial that uses a link, to calibrate it. `LABORATORY_NS` includes the first link of a plan."""


@dataclass(frozen=True)
class Cost:
    """Estimated times of a run in nanoseconds. `min_ns`: the run stops at min_blocks; `max_ns`: at max_blocks or the time
    budget."""

    arms: int
    fixed_ns: int
    """Time that does not depend on the number of blocks: laboratory, links, report, confirmation."""
    trial_ns: int
    """Mean time of a trial over a block."""
    block_ns: int
    first_time_ns: int
    """Additional time, once, to load tables that do not exist yet."""
    min_ns: int
    max_ns: int


def estimate_cost(plan: Plan) -> Cost:
    """Estimated times of a run. Raises PlanError when the plan has no baseline cell."""
    plan_cells = cells(plan)
    arms = len(plan_cells)
    timing = plan.timing
    block_ns = sum(_cell_cost_ns(plan, cell) for cell in plan_cells)
    trial_ns = block_ns // arms
    links = {
        (RTT_NS.level_in(cell.factors), RATE_BPS.level_in(cell.factors))
        for cell in plan_cells
        if "rate_bps" in cell.factors
    }
    links_ns = max(len(links) - 1, 0) * NEW_LINK_NS + _server_links_ns(plan_cells)
    fixed_ns = LABORATORY_NS + links_ns + REPORT_NS + confirmation_ns(plan, trial_ns)
    rows = plan.data.tables * plan.data.table_size * len(plan.factors.server) * len(plan.factors.content)
    if not WORKLOADS[plan.workload.kind].reads_tables:
        rows = 0
    return Cost(
        arms=arms,
        fixed_ns=fixed_ns,
        trial_ns=trial_ns,
        block_ns=block_ns,
        first_time_ns=rows * 1_000_000_000 // ROWS_PER_S,
        min_ns=min(timing.time_budget_ns, fixed_ns + timing.min_blocks * block_ns),
        max_ns=min(timing.time_budget_ns, fixed_ns + timing.max_blocks * block_ns),
    )


def trial_cost_ns(plan: Plan) -> int:
    """Time of one trial, the mean over a block, on the slowest of the plan's servers."""
    return estimate_cost(plan).trial_ns


def _cell_cost_ns(plan: Plan, cell: NamedCell) -> int:
    timing = plan.timing
    # The name of an install or the path of a program may also contain it.
    mysql = any("mysql" in PurePath(server).name for server in plan.factors.server)
    cost_ns = timing.warmup_ns + timing.measure_ns + (_MYSQL_OVERHEAD_NS if mysql else _TRIAL_OVERHEAD_NS)
    cost_ns += WORKLOADS[plan.workload.kind].extra_servers_ns
    return cost_ns + sum(links.trial_ns(cell.factors, mysql) for links in SERVER_LINKS)


def _server_links_ns(plan_cells: Sequence[NamedCell]) -> int:
    """Time to calibrate each distinct link once for each pair of servers, without its goodput."""
    distinct = {
        (pair, rtt_ns, links.rate.level_or_none(cell.factors))
        for links in SERVER_LINKS
        for cell in plan_cells
        for pair, rtt_ns in links.rtts_ns(cell.factors).items()
    }
    return sum(_SERVER_LINK_NS + _CALIBRATION_ROUND_TRIPS * rtt_ns for _, rtt_ns, _ in distinct)


def confirmation_ns(plan: Plan, trial_ns: int) -> int:
    """Time of a confirmation, with one limit for each curve, whatever its number of connections."""
    if not plan.timing.confirm:
        return 0
    curves = {
        tuple((k, v) for k, v in sorted(cell.factors.items()) if k != "threads")
        for cell in cells(plan)
        if cell.role != "control"
    }
    return min(CONFIRMED_LIMITS, len(curves)) * (2 * CONFIRMATION_BLOCKS * trial_ns + NEW_LINK_NS)


def describe_duration(plan: Plan) -> str:
    """Estimated time of a plan, and of loading its tables the first time: `2.4 h to 6.0 h, and about 22 min the first time to load
    its tables`."""
    forecast = estimate_cost(plan)
    duration = format_range(forecast)
    if forecast.first_time_ns < 60 * 10**9:
        return duration
    return f"{duration}, and about {format_time(forecast.first_time_ns)} more the first time, to load its tables"


def format_range(forecast: Cost) -> str:
    """`8 min to 10 min`; one time if both are equal."""
    low, high = format_time(forecast.min_ns), format_time(forecast.max_ns)
    return low if low == high else f"{low} to {high}"


def format_time(ns: int) -> str:
    """`50 s`, `5 min`, `2.4 h`."""
    seconds = ns / 1e9
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
