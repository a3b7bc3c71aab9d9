"""Paths compared: the same load over each of them, against the first. A path against itself (A/A) is the smallest case."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.paths import charts
from howfar.report.document import Document
from howfar.report.figures import has_own_tables
from howfar.report.frame import cell_table, confirmations, frame, ratio_cards, trials
from howfar.report.grid import is_grid


class Paths:
    """Applies to every run that no other experiment claims."""

    name = "paths"

    def applies(self, summary: Summary) -> bool:
        return not is_grid(summary) and not has_own_tables(summary)

    def document(self, summary: Summary) -> Document:
        below = (*charts.all_of(summary), *trials(summary), *confirmations(summary))
        return frame(summary, (cell_table(summary),), cards=ratio_cards(summary), below=below)
