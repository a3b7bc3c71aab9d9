"""All experiments, one line each. The first that applies to a run writes its report; the last applies to every run."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.bandwidth.report import Bandwidth
from howfar.experiments.compression.report import Compression
from howfar.experiments.crash import report as crash
from howfar.experiments.encryption.report import Encryption
from howfar.experiments.experiment import Experiment
from howfar.experiments.fallback import report as fallback
from howfar.experiments.page.report import Pages
from howfar.experiments.paths import Paths
from howfar.experiments.replication import report as replication
from howfar.report.document import Document

EXPERIMENTS: tuple[Experiment, ...] = (
    replication,
    crash,
    fallback,
    Pages(),
    Compression(),
    Encryption(),
    Bandwidth(),
    Paths(),
)


def experiment_of(summary: Summary) -> Experiment:
    return next((each for each in EXPERIMENTS if each.applies(summary)), EXPERIMENTS[-1])


def document(summary: Summary) -> Document:
    """The report of a run."""
    return experiment_of(summary).document(summary)
