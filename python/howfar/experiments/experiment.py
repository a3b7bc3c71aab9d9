"""The base class of experiments. A new one is a subclass of `Experiment` in a module or folder, and a line in `registry.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.summary import Analysis, Summary
from howfar.report.document import Document
from howfar.stats.estimate import Part

Keys = Mapping[str, type[Part]]
"""Types of findings by their key in `report --json`."""


class Experiment(Analysis, ABC):
    """An experiment: one kind of question. The measurements of a run decide which question it answers, never the name of its plan."""

    name: ClassVar[str]
    is_about_ratios: ClassVar[bool] = True
    """Whether the answer compares throughputs, so that a wide interval of a ratio makes it poor."""

    def applies(self, summary: Summary) -> bool:
        """Whether this experiment found something and so can write the report. The first such experiment in the registry writes it."""
        return any(summary.find_findings(kind) is not None for kind in self.findings.values())

    @abstractmethod
    def document(self, summary: Summary) -> Document:
        """The report, computed without I/O. Its records are the lines of the CSV."""
