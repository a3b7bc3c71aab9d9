"""What a plan will cost here, in seconds. A forecast for the user and the first guess of the conductor; never a result."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.plan.cells import cells
from howfar.plan.types import Plan

TRIAL_OVERHEAD_NS = 1_200_000_000
"""Fresh server from the template, its data read into memory, the path, connections, statements; then all ended again."""
LABORATORY_NS = 5_000_000_000
"""Hosts, link and its calibration, the server's template found ready."""
ROWS_PER_S = 150_000
"""Loading the tables, the first time only."""
REPORT_NS = 10_000_000_000
"""Analysis, charts and the pages; kept free at the end of a time budget."""

CONFIRMED_LIMITS = 3
"""Put to the test after a plan's blocks, at most. Each costs two trials a block."""
CONFIRMATION_BLOCKS = 3
NEW_LINK_NS = 6_000_000_000
"""A link that the plan has not is calibrated in the first trial that asks for it."""


@dataclass(frozen=True)
class Cost:
    """Nanoseconds. `least_ns` stops at min_blocks, `most_ns` at max_blocks or the time budget."""

    arms: int
    trial_ns: int
    block_ns: int
    first_time_ns: int
    """More, once, while the tables are not there yet."""
    least_ns: int
    most_ns: int


def cost(plan: Plan) -> Cost:
    """Forecast of a run. Raises PlanError when the plan has no baseline cell."""
    arms = len(cells(plan))
    timing = plan.timing
    trial_ns = timing.warmup_ns + timing.measure_ns + TRIAL_OVERHEAD_NS
    block_ns = arms * trial_ns
    around_ns = LABORATORY_NS + REPORT_NS + confirmation_ns(plan, trial_ns)
    rows = plan.data.tables * plan.data.table_size * len(plan.factors.server) * len(plan.factors.content)
    return Cost(
        arms=arms,
        trial_ns=trial_ns,
        block_ns=block_ns,
        first_time_ns=rows * 1_000_000_000 // ROWS_PER_S,
        least_ns=min(timing.time_budget_ns, around_ns + timing.min_blocks * block_ns),
        most_ns=min(timing.time_budget_ns, around_ns + timing.max_blocks * block_ns),
    )


def confirmation_ns(plan: Plan, trial_ns: int) -> int:
    """Of a plan that confirms: one limit is named for each curve, whatever its number of connections."""
    if not plan.timing.confirm:
        return 0
    curves = {tuple((k, v) for k, v in sorted(cell.factors.items()) if k != "threads") for cell in cells(plan)}
    return min(CONFIRMED_LIMITS, len(curves)) * (2 * CONFIRMATION_BLOCKS * trial_ns + NEW_LINK_NS)
