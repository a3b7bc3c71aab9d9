"""All that a run says of replication, put together: `replication_findings`. Pure."""

from __future__ import annotations

from howfar.analysis.trials import TrialTable
from howfar.experiments.replication.arms import replication_arms
from howfar.experiments.replication.cost import replication_cost
from howfar.experiments.replication.fallback import fallback_sentence, fallback_stories
from howfar.experiments.replication.findings import ReplicationFindings
from howfar.experiments.replication.loss import crash_findings
from howfar.experiments.replication.loss_words import loss_verdict
from howfar.experiments.replication.trade import trade_rows


def replication_findings(table: TrialTable) -> ReplicationFindings | None:
    """None: this run is about something else, or has no good trial yet."""
    arms = replication_arms(table)
    cost, crash, stories = (
        replication_cost(arms, table.run.info.plan),
        crash_findings(table.run),
        fallback_stories(table.run),
    )
    if cost is None and crash is None and not stories:
        return None
    return ReplicationFindings(
        cost=cost, trade=trade_rows(arms, crash, table.run.info.arms), crash=crash, fallback=stories
    )


def replication_verdict(found: ReplicationFindings) -> str:
    """The answer of such a run. Empty: its figures say nothing yet."""
    if found.crash is not None:
        return " ".join(loss_verdict(found.crash.losses))
    if found.fallback:
        return " ".join(fallback_sentence(story) for story in found.fallback)
    if found.cost is None:
        return ""
    said = found.cost.sentences
    return " ".join(said[:2] if len(said) > 2 else said[:1])  # the last is about the model
