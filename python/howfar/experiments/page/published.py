"""The published figures of set-up C beside ours: the like page, two machines over one."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.published import published_sets
from howfar.experiments.page.chief import way_rank
from howfar.experiments.page.findings import PageChoice

PLAN = "page"
Row = tuple[str, float, float, float | None]


def published_rows(plan_name: str, choices: Sequence[PageChoice]) -> tuple[Row, ...]:
    """Page, their milliseconds on two machines and on one, ours as pages a second of two over one. Ours is the real application's
    where there is one, with the fewest pages in flight and the least application CPU: theirs were single pages as they were. Empty: of
    another plan, whose pages only have the same names."""
    if plan_name != PLAN:
        return ()
    rows: list[Row] = []
    for entry in (entry for entry in published_sets() if entry.plan == PLAN):
        means = {(str(c.factors["page"]), str(c.factors["path"])): c.latency_ms.get("avg") for c in entry.cells}
        for page in dict.fromkeys(page for page, _ in means):
            two, one = means.get((page, "remote")), means.get((page, "socket"))
            if two is not None and one is not None:
                ours = _ours(choices, page)
                rows.append((page, two, one, ours.two_over_one.value if ours is not None else None))
    return tuple(rows)


def _ours(choices: Sequence[PageChoice], page: str) -> PageChoice | None:
    alike = [choice for choice in choices if choice.page == page]
    return min(
        alike,
        key=lambda c: (c.application != "php", c.connect != "persistent", c.threads, c.app_cpu_ns, way_rank(c)),
        default=None,
    )
