"""Crashes in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from howfar.analysis.sentence import capital
from howfar.experiments.replication.findings import CrashLoss
from howfar.experiments.replication.words import mode_words, rate
from howfar.plan.types import SEMI_SYNC
from howfar.stats.estimate import Estimate

_CHANCE = 0.05
"""Of seeing no loss in all crashes where the share of crashes that lose something is at the upper limit."""
UNHEARD = frozenset({"cut", "cut-to-replica", "stop-replica"})
"""Faults after which the primary lives on, and nothing of it arrives. Not `cut-to-primary`: what TCP sends without an acknowledgement
still arrives then."""
MACHINE = frozenset({"cut", "cut-to-replica"})
"""Faults that leave on the line what the death of the primary's machine would."""
_FAULT_CLAUSES = {
    "kill-primary": "the primary's server was killed",
    "cut": "the link was cut and then the primary died",
    "cut-to-replica": "the link to the replica was cut and then the primary died",
    "cut-to-primary": "the link from the replica was cut and then the primary died",
    "stop-replica": "the replica stopped and then the primary died",
}
"""After "when". A chart's labels and what is done in each fault are in `report/replication/words.py`."""


def loss_sentences(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    """What asynchronous loses, what semi-synchronous keeps, who saw what was not safe, what was done untold."""
    apart = [loss for loss in losses if loss.mode not in SEMI_SYNC]
    kept = [loss for loss in losses if loss.mode in SEMI_SYNC]
    found = (
        [_lost(loss) for loss in apart] + [_kept(mode, kept) for mode in SEMI_SYNC] + [_early(kept), _untold(losses)]
    )
    return tuple(sentence for sentence in found if sentence)


def loss_verdict(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    """One sentence a mode. What should not be comes first: a semi-synchronous loss; of other modes the fault that loses most."""
    by_mode: dict[str, list[CrashLoss]] = {}
    for loss in losses:
        by_mode.setdefault(loss.mode, []).append(loss)
    semi = [mode for mode in SEMI_SYNC if mode in by_mode]
    broken = [mode for mode in semi if any(loss.lost for loss in by_mode[mode])]
    apart = [
        _lost(max(found, key=lambda loss: loss.lost_per_crash.value))
        for mode, found in by_mode.items()
        if mode not in SEMI_SYNC
    ]
    kept = [_kept(mode, losses) for mode in semi if mode not in broken]
    return (*(_kept(mode, losses) for mode in broken), *apart, *kept)


def may_lose(crashes: int) -> float:
    """The share of crashes that lose something, at most, when none of so many did: 95 %, exact."""
    return float(1 - _CHANCE ** (1 / crashes))


def percent_up(share: float) -> str:
    """An upper limit is rounded up: `12` of 11.29 %."""
    return f"{math.ceil(round(share * 100, 6))}"


def count_interval(value: Estimate) -> str:
    """`5,130 [4,700, 5,560]`."""
    if value.low is None or value.high is None:
        return f"{rate(value.value)} (no interval)"
    return f"{rate(value.value)} [{rate(value.low)}, {rate(value.high)}]"


def _crashes(count: int) -> str:
    return f"{count} crash{'' if count == 1 else 'es'}"


def _lost(loss: CrashLoss) -> str:
    where = _FAULT_CLAUSES.get(loss.fault, loss.fault)
    text = f"{capital(mode_words(loss.mode))}, when {where}: "
    if not loss.lost:
        return (
            text
            + f"none of {loss.acknowledged:,} acknowledged commits was lost in {_crashes(loss.crashes)}{_at_most(loss)}."
        )
    text += f"{count_interval(loss.lost_per_crash)} acknowledged commits lost a crash ({_crashes(loss.crashes)})"
    if loss.fault in MACHINE:
        text += (
            f", {before_the_fault(loss)} of all {loss.lost:,} acknowledged before it was in force (what the death of the machine at "
            "that moment loses) and the others until it was noticed"
        )
    if loss.predicted_lost is not None:
        text += (
            f", foreseen {rate(loss.predicted_lost.value)} from rate and time"
            if loss.fault in UNHEARD
            else f", foreseen at most in the order of {rate(loss.predicted_lost.value)}: what the replica lacked, "
            "most of it on its way"
        )
    if loss.lost_age_ms is not None and loss.lost_age_ms > 0:
        text += f"; the earliest had been acknowledged {loss.lost_age_ms:.3g} ms before the fault"
    return text + "."


def before_the_fault(loss: CrashLoss) -> str:
    """`9`, `9 to 130`; of a file of before, which says only when the fault was asked for, `at least 9`."""
    if loss.lost_by_force is None and loss.lost:
        return f"at least {loss.lost_before:,}"
    if loss.lost_by_force in (None, loss.lost_before):
        return f"{loss.lost_before:,}"
    return f"{loss.lost_before:,} to {loss.lost_by_force:,}"


def _kept(mode: str, losses: Sequence[CrashLoss]) -> str:
    """Over all faults together."""
    here = [loss for loss in losses if loss.mode == mode]
    if not here:
        return ""
    crashes, lost = sum(loss.crashes for loss in here), sum(loss.lost for loss in here)
    acknowledged = sum(loss.acknowledged for loss in here)
    if lost:
        worst = max(here, key=lambda loss: loss.most_lost)
        return (
            f"{capital(mode_words(mode))} lost {lost:,} of {acknowledged:,} acknowledged commits in {_crashes(crashes)}, at most "
            f"{worst.most_lost:,} in one, when {_FAULT_CLAUSES.get(worst.fault, worst.fault)}: it should have lost none."
        )
    faults = len({loss.fault for loss in here})
    pooled = f", {faults} kinds of fault taken together" if faults > 1 else ""
    return (
        f"{capital(mode_words(mode))} lost none of {acknowledged:,} acknowledged commits in {_crashes(crashes)}{pooled}; "
        f"so many crashes exclude a share of more than {percent_up(may_lose(crashes))} % that lose any."
    )


def _at_most(loss: CrashLoss) -> str:
    share = loss.share_that_may_lose
    return (
        "" if share is None else f", which excludes a share of more than {percent_up(share)} % of crashes that lose any"
    )


def _early(losses: Sequence[CrashLoss]) -> str:
    """Where others read what its own client was not told yet."""
    here = [loss for loss in losses if loss.seen_early and loss.seen]
    if not here:
        return ""
    worst = max(here, key=lambda loss: loss.seen_early / loss.seen)
    alike = [loss for loss in losses if loss.mode == worst.mode]
    early, seen = sum(loss.seen_early for loss in alike), sum(loss.seen for loss in alike)
    text = (
        f"{capital(mode_words(worst.mode))} shows commits to others before their client is told, if it ever is: "
        f"{early:,} of {seen:,} that were seen"
    )
    if worst.seen_early_median_ms is not None:
        text += f", in the median {worst.seen_early_median_ms:.3g} ms earlier"
    gone = sum(loss.phantoms for loss in alike)
    return text + (f"; {gone:,} that were seen were gone after the crash." if gone else ".")


def _untold(losses: Sequence[CrashLoss]) -> str:
    done, refused = sum(loss.done_untold for loss in losses), sum(loss.done_refused for loss in losses)
    said = [f"{done:,} commits were done on the survivor and no client was told"] if done else []
    said += [f"{refused:,} were done there and their clients were told of an error"] if refused else []
    if not said:
        return ""
    crashes = sum(loss.crashes for loss in losses)
    return f"{'; '.join(said)}, over {_crashes(crashes)}: who asks again does them twice."
