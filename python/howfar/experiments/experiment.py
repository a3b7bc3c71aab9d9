"""The base of experiments. A new one is a subclass of `Experiment` in a module or folder, and a line in `registry.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.advice import Advice
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.report.document import Document
from howfar.stats.estimate import Part
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm

Keys = Mapping[str, type[Part]]
"""Types of findings by their key in `report --json`."""


class Experiment(ABC):
    """One kind of question. What was measured, never the name of the plan, decides which one a run answers."""

    name: ClassVar[str]
    findings: ClassVar[Keys] = {}
    """Types of the findings of `analyse`, by key."""
    own_model: ClassVar[bool] = False
    """Whether its findings explain throughput themselves, so that the model of sessions does not apply to such a run."""

    def acknowledgement_s(self, table: TrialTable, arm: Arm) -> float | None:
        """How long a commit of this arm waits for another machine. None: it does not, or this experiment does not know."""
        return None

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        """Findings by the keys of `findings`. None: this run does not answer the question."""
        return {}

    def worded(self, found: Part) -> Part:
        """A finding with its sentences, which are made once its figures have their intervals."""
        return found

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        """The answer in a sentence or two. Empty: it belongs to another experiment."""
        return ""

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        """Advice. None: the advice for every run."""
        return None

    def applies(self, summary: Summary) -> bool:
        """Whether this experiment writes the report: it found something. The first in the registry that says yes does."""
        return any(summary.found(kind) is not None for kind in self.findings.values())

    @abstractmethod
    def document(self, summary: Summary) -> Document:
        """The report. Pure. Its records are the lines of the CSV."""
