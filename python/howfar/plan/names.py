"""Names of cells, made of their levels."""

from __future__ import annotations

from howfar.plan.factors import FACTORS, NO_PAGE, PAGE, Level

_OF_A_PAGE = ("page", "path", "application", "threads")
"""How the name of a page begins."""


def cell_name(cell: dict[str, Level], varied: list[str]) -> str:
    """The path, then the level of every other factor that is varied."""
    if PAGE.of(cell) != NO_PAGE:
        order = [*_OF_A_PAGE, *(factor for factor in varied if factor not in _OF_A_PAGE)]
        shown = [factor for factor in order if factor in cell and (factor in varied or factor == "path")]
        return ", ".join((FACTORS[name].page_label or FACTORS[name].label)(cell[name]) for name in shown)
    shown = ["path", *(factor for factor in varied if factor != "path")]
    name = ", ".join(FACTORS[factor].label(cell[factor]) for factor in shown if factor in cell)
    return name.removeprefix(f"{cell['path']}, ") if "path" not in varied and "replication" in varied else name
