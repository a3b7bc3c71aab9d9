"""The factors of pages, and the names of their cells."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from howfar.plan.factor import Factor, FactorLevels, Naming
from howfar.plan.quantities import SECOND_NS, duration
from howfar.units import format_duration_ns

KIND = "page"
"""The kind of workload, and the factor that names the page."""
NO_PAGE = "none"
PHP = "php"
"""The level of the factor `application` with PHP-FPM."""
ShapeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,29}$")]
Application = Literal["php", "engine"]
APPLICATION_LABELS = {"php": "PHP", "engine": "engine"}
AppCpuNs = Annotated[
    int, duration(0, 10 * SECOND_NS, "a time is never negative", "nothing that computes for so long is a page")
]

PAGE: Factor[str] = Factor("page", ShapeName, default=NO_PAGE, implied_level=NO_PAGE, kinds=(KIND,))
"""Name of one of the plan's pages."""
APP_CPU_NS: Factor[int] = Factor(
    "app_cpu_ns", AppCpuNs, default=0, implied_level=0, toml_name="app_cpu", format=format_duration_ns, kinds=(KIND,)
)
"""Time that the application computes for a page, in addition to what its round trips need."""
APPLICATION: Factor[str] = Factor("application", Application, default="engine", implied_level="engine", kinds=(KIND,))
"""Application that runs the page: PHP under PHP-FPM, or the engine itself."""

FACTORS = (PAGE, APP_CPU_NS, APPLICATION)


def is_page(cell: FactorLevels) -> bool:
    """Whether the cell's load requests pages."""
    return PAGE.level_in(cell) != NO_PAGE


NAMINGS = (
    Naming(
        is_page,
        first=("page", "path", "application", "threads"),
        labels={
            "threads": lambda count: f"{count} in flight",
            "connect": lambda level: "connect per page" if level == "per-transaction" else "persistent",
            "app_cpu_ns": lambda ns: f"{ns / 1e6:g} ms CPU",
            "application": lambda level: APPLICATION_LABELS[level],
        },
    ),
)
