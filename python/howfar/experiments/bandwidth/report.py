"""The report of a plan that varies links, connections or other factors: throughput of every cell, its limit, and how it scales."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.grid import grid_document, scaling
from howfar.report.document import Document
from howfar.report.figures import has_own_tables
from howfar.report.grid import is_grid


class Bandwidth:
    name = "bandwidth"

    def applies(self, summary: Summary) -> bool:
        return is_grid(summary) and not has_own_tables(summary)

    def document(self, summary: Summary) -> Document:
        return grid_document(summary, chart=scaling(summary))
