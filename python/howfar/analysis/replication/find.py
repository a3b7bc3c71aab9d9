"""All that a run says of replication, put together: `replication_findings`. Pure."""

from __future__ import annotations

from howfar.analysis.replication.arms import replication_arms
from howfar.analysis.replication.cost import replication_cost
from howfar.analysis.replication.fallback import fallback_sentence, fallback_stories
from howfar.analysis.replication.findings import ReplicationFindings
from howfar.analysis.replication.loss import crash_findings
from howfar.analysis.replication.loss_words import loss_verdict
from howfar.analysis.replication.trade import trade_rows
from howfar.analysis.trials import TrialTable


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
