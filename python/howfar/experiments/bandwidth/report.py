"""Links, connections or other factors varied together: throughput of every cell, its limit, and how it scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.bandwidth.analysis import Scaling, scaling, verdict
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import grid_document
from howfar.experiments.grid import scaling as scaling_blocks
from howfar.experiments.what_if import what_if
from howfar.model.what_if import WhatIf
from howfar.report.document import Document
from howfar.report.grid import is_grid
from howfar.stats.estimate import Part


class Bandwidth(Experiment):
    name = "bandwidth"
    findings: ClassVar[Keys] = {"scaling": Scaling, "what_if": WhatIf}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {
            "scaling": scaling(evidence.table.run, evidence.facts),
            "what_if": what_if(evidence.facts, evidence.workload),
        }

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def applies(self, summary: Summary) -> bool:
        return summary.found(Scaling) is not None or is_grid(summary)

    def document(self, summary: Summary) -> Document:
        return grid_document(summary, chart=scaling_blocks(summary))
