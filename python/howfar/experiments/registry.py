"""All experiments, one line each. The first that applies to a run writes its report; the last applies to every run."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.bandwidth.report import Bandwidth
from howfar.experiments.compression.report import Compression
from howfar.experiments.crash import report as crash
from howfar.experiments.encryption.report import Encryption
from howfar.experiments.experiment import Experiment
from howfar.experiments.fallback import report as fallback
from howfar.experiments.paths import Paths
from howfar.experiments.replication import report as replication
from howfar.report.document import Document

EXPERIMENTS: tuple[Experiment, ...] = (
    replication,
    crash,
    fallback,
    Compression(),
    Encryption(),
    Bandwidth(),
    Paths(),
)


def experiment_of(summary: Summary) -> Experiment | None:
    return next((each for each in EXPERIMENTS if each.applies(summary)), None)


def document(summary: Summary) -> Document | None:
    """The report of a run. None: its experiment makes no document yet."""
    found = experiment_of(summary)
    return found.document(summary) if found else None
