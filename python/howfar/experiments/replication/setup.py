"""What the line on the workload says about replication."""

from __future__ import annotations

from howfar.analysis.summary import WorkloadNote
from howfar.contract.environment import RunEnvironment
from howfar.experiments.replication.factors import DURABILITY, REPLICATION
from howfar.findings import Texts, fill
from howfar.plan.types import StoredPlan
from howfar.units import format_duration_ns

TEXTS: Texts = {
    "durability": "durability {levels}{location:?, on {location}}{flush:?, where a write with fsync takes {flush}}",
}
_FLUSH_LABELS = {
    "strict": "each commit is flushed",
    "relaxed": "flushed every second",
    "off": "no commit is flushed",
}


def _durability_text(plan: StoredPlan, environment: RunEnvironment) -> str:
    """For plans with replication: when a commit is on disk, and what a flush costs on the file system of the data."""
    if set(plan.levels_of(REPLICATION)) <= {"off"}:
        return ""
    levels = " and ".join(f"{level} ({_FLUSH_LABELS[level]})" for level in plan.levels_of(DURABILITY))
    flush = format_duration_ns(environment.fsync_ns) if environment.fsync_ns else ""
    return fill(TEXTS["durability"], levels=levels, location=environment.work_file_system, flush=flush)


WORKLOAD_NOTES = (WorkloadNote(_durability_text),)
