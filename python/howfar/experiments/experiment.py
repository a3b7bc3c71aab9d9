"""What every experiment offers, whoever wrote it. A new one is a module or folder that has this, and a line in `registry.py`."""

from __future__ import annotations

from typing import Protocol

from howfar.analysis.summary import Summary
from howfar.report.document import Document


class Experiment(Protocol):
    """One kind of question. Which one a run answers is decided by what was measured, never by the name of its plan."""

    @property
    def name(self) -> str: ...

    def applies(self, summary: Summary) -> bool:
        """Whether this run is of the experiment's kind; the first in the registry that says yes writes the report."""

    def document(self, summary: Summary) -> Document:
        """The report. Pure."""
