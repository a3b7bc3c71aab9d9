"""Losses over all crashes of an arm, and the losses that the replica's lag predicts.

The interval of the mean loss is Student's, cut at zero. With the skewed counts that crashes give, it covers the true mean in 85 to 95
of 100 experiments of 20 crashes, where a percentile bootstrap always covers fewer (a test repeats that). If nothing was lost at all,
the mean has no interval. The report then quotes the upper 95 % limit of the share of crashes with a loss, given that none of n lost
anything: 1 - 0.05^(1/n), close to the rule of three, 3/n.

The prediction for a crash under asynchronous replication is the number of commits acknowledged while the primary was alive and nothing
reached the replica, at the rate before the fault. Replicas that share full CPUs with the primary leave them to it once they have
applied what arrived. For a primary killed while its link works, only the order of magnitude is predicted: what the replica had not
received when it was last queried, some milliseconds before the fault. If only acknowledgements are cut, nothing is predicted, because
TCP continues to send for a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from howfar.analysis.advice import capital
from howfar.bottleneck.rules import FULL_SHARE
from howfar.experiments.replication.arms import mode_name, plural, rate_interval, with_mode
from howfar.plan.factors import LOSSLESS, REPLICA_RATE_BPS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import interval_text, mean_interval, mean_of_counts
from howfar.store.records import Arm, ArmRole, CrashRecord, Run, TrialStatus

CHANCE = 0.05
"""Probability of no loss in all crashes where the share of crashes with a loss is at the upper limit."""
_GOES_ON = "and the primary continues until it is killed a second later"


_JOINED = "a second after it is whole the primary is killed, and all rows must be on that node"


class Fault(NamedTuple):
    """One level of the factor `fault`, for readers."""

    name: str
    """Short name for labels of charts; `text` explains it."""
    clause: str
    text: str = ""
    cut_off: bool = False
    """Whether the primary stays alive and nothing that it sends arrives. Not `cut-to-primary`, where TCP sends for a while."""
    machine: bool = False
    """Whether the link is left in the state in which the failure of the primary's machine would leave it."""


FAULTS = {
    "cut": Fault(
        "link cut",
        "the link was cut and then the primary was killed",
        f"both directions are cut, {_GOES_ON}",
        True,
        True,
    ),
    "cut-to-replica": Fault(
        "link to replica cut",
        "the link to the replica was cut and then the primary was killed",
        f"packets to the replica are dropped, {_GOES_ON}",
        True,
        True,
    ),
    "kill-primary": Fault(
        "server killed",
        "the primary's server was killed",
        "SIGKILL to the primary's server; its kernel still delivers what was in the sockets",
    ),
    "stop-replica": Fault(
        "replica stopped first",
        "the replica stopped and then the primary was killed",
        f"the replica stops receiving, {_GOES_ON}",
        True,
    ),
    "cut-to-primary": Fault(
        "link from replica cut",
        "the link from the replica was cut and then the primary was killed",
        f"packets from the replica are dropped, {_GOES_ON}",
    ),
    "cut-off-primary": Fault(
        "primary cut off",
        "the primary was cut off from the other nodes and later killed",
        "its links to all other nodes are cut and its clients still reach it; it is killed a second after the others go on",
        True,
        True,
    ),
    "partition": Fault(
        "partition",
        "the primary and another node were cut off from the majority",
        "the links of the primary and another node to the others are cut, and clients still reach both; the primary is killed a "
        "second after the others go on",
        True,
        True,
    ),
    "cut-off-member": Fault(
        "member cut off",
        "another node was cut off",
        "all links of a node that no load writes to are cut; a client of its own tries to write there",
    ),
    "member-returns": Fault(
        "member away for 3 s",
        "another node was cut off for 3 s",
        "all links of a node that no load writes to are cut and mended 3 s later, before the others expel it",
    ),
    "member-restarts": Fault(
        "member restarts",
        "another node was shut down for 3 s and joined again",
        f"a node that no load writes to is shut down, and started again with its data 3 s later; {_JOINED}",
    ),
    "member-joins": Fault(
        "new member",
        "another node was replaced by one without data",
        f"a node that no load writes to is shut down, and one without data joins in its place; {_JOINED}",
    ),
    "slow-member": Fault(
        "slow member",
        "another node was slow",
        "the server of a node that no load writes to runs for 10 ms of each 100 ms, for 10 s",
    ),
    "replica-leaves": Fault("replica leaves", "the replica left"),
}
"""Faults, the one most like the failure of a machine first: if a run made several, it represents the others."""

_MENDED = ("member-returns", "slow-member")
"""Faults of a member that end while the load continues."""


class CrashPoint(Part):
    """One crash, for charts. Times count from the fault; those before it are negative."""

    trial: int
    acknowledged: int
    lost: int
    first_lost_ms: float | None
    """When the earliest of the lost commits was acknowledged. None: nothing was lost."""
    dead_ms: float
    """When the primary was killed."""
    promotion_ms: float
    """How long the survivor took to take over."""
    commits_per_s: float
    unknown: int
    """Commits in flight when the primary died."""
    applied_unknown: int
    seen_early: int
    phantoms: int
    behind_before: int | None
    unapplied: int


class JoinCost(Part):
    """Cost of a node that joined, over all its joins. The time is in `CrashLoss.back_s`."""

    how: tuple[str, ...]
    """Methods by which it fetched the data that it lacked, by the server's names for them."""
    received_bytes: Estimate
    """Bytes received over its links, by the kernel's count; they include the load's writes meanwhile."""
    link_busy: Estimate
    """Share of the join's time in which the donor's link was busy. Near 1, that link is the limit."""


class CrashLoss(Part):
    """One mode under one fault, over all its crashes."""

    arm: str
    mode: str
    fault: str
    threads: int
    replica_rtt_ns: int
    crashes: int
    void_crashes: int
    commits_per_s: Estimate
    """Commits per second before the fault."""
    acknowledged: int
    """Commits acknowledged to clients, over all crashes."""
    lost: int
    lost_before: int = 0
    """Lost commits acknowledged before the fault was started. If the link to the replica was cut: the lower bound of the loss if the
    whole machine had failed at that moment."""
    lost_by_force: int | None = None
    """Lost commits acknowledged before the fault was in force: the upper bound. None: an older run file does not record that
    moment."""
    lost_per_crash: Estimate
    """Mean loss with its interval. Without any loss there is no interval: see `share_that_may_lose`."""
    share_that_may_lose: float | None = None
    """Upper limit of the share of crashes with a loss (95 %). None: some were lost."""
    crashes_with_loss: int
    most_lost: int
    predicted_lost: Estimate | None
    """Expected loss per crash, as rate x time cut off; for a killed primary, the order of magnitude of the maximum. None: this mode
    may lose none, or there is no prediction."""
    lost_age_ms: float | None
    """How long before the fault the earliest lost commit had been acknowledged: median over crashes with a loss."""
    done_untold: int
    """Keys on the survivor that were acknowledged to no client, over all crashes."""
    done_refused: int = 0
    """Keys on the survivor whose client received an error."""
    seen_early: int
    """Keys that other clients read before their own client had its acknowledgement, or though it never got one, over all crashes."""
    seen: int
    seen_early_median_ms: float | None
    phantoms: int
    """Keys that other clients read and that were gone after the crash."""
    promotion_ms: float
    stall_s: Estimate | None = None
    """Longest time without an acknowledged commit, in a cluster. None: another mode."""
    by_itself: int | None = None
    """Writes acknowledged by a node that was cut off, over all crashes."""
    meanwhile: Estimate | None = None
    """Commits per second while a member was cut off or slow, over those before. None: the primary died."""
    back_s: Estimate | None = None
    """Time until that member had recovered, over the trials in which it did. None: in no trial, or its fault was not removed."""
    not_back: int = 0
    """Trials in which it had not recovered within a minute."""
    join: JoinCost | None = None
    """Cost of joining. None: no node joined."""
    sound: bool
    """Whether each account adds up: no unknown key, no key twice."""
    each: tuple[CrashPoint, ...] = ()
    """Crashes in the order in which they were made."""


class CrashFindings(Part):
    losses: tuple[CrashLoss, ...]
    sentences: tuple[str, ...]


def crash_findings(run: Run) -> CrashFindings | None:
    """Findings about crashes. None: nothing crashed in this run, or every crash is void."""
    arms = [_loss(run, arm) for arm in run.info.arms if arm.role is not ArmRole.DUPLICATE]
    losses = tuple(loss for loss in arms if loss is not None)
    return CrashFindings(losses=losses, sentences=loss_sentences(losses)) if losses else None


def _loss(run: Run, arm: Arm) -> CrashLoss | None:
    trials = sorted((trial for trial in run.trials if trial.arm == arm.name), key=lambda trial: trial.number)
    good = [trial for trial in trials if trial.status is TrialStatus.OK]
    crashes = [(trial.number, trial.fault) for trial in good if isinstance(trial.fault, CrashRecord)]
    if not crashes:
        return None
    records = [record for _, record in crashes]
    mode, losses = str(arm.factors.get("replication", "")), [record.lost for record in records]
    ages = [(r.fault_ns - r.first_lost_ns) / 1e6 for r in records if r.first_lost_ns is not None]
    stalls = [r.stall_ns / 1e9 for r in records if r.stall_ns is not None]
    slowed = [r.meanwhile_per_s / r.commits_per_s for r in records if r.meanwhile_per_s is not None and r.commits_per_s]
    back = [r.back_ns / 1e9 for r in records if r.back_ns is not None]
    early = [r.seen_early_median_ns for r in records if r.seen_early_median_ns is not None]
    return CrashLoss(
        arm=arm.name,
        mode=mode,
        fault=records[0].fault,
        threads=int(arm.factors.get("threads", 1)),
        replica_rtt_ns=int(median(record.replica_rtt_ns for record in records)),
        crashes=len(records),
        void_crashes=sum(trial.status is TrialStatus.VOID for trial in trials),
        commits_per_s=mean_interval([record.commits_per_s for record in records]),
        acknowledged=sum(record.acknowledged for record in records),
        lost=sum(losses),
        lost_before=sum(record.lost - record.lost_after for record in records),
        lost_by_force=_by_force(records),
        lost_per_crash=lost_per_crash(losses),
        share_that_may_lose=None if any(losses) else may_lose(len(losses)),
        crashes_with_loss=sum(lost > 0 for lost in losses),
        most_lost=max(losses),
        predicted_lost=None if mode in LOSSLESS else _predicted(records),
        lost_age_ms=median(ages) if ages else None,
        done_untold=sum(record.applied_unknown for record in records),
        done_refused=sum(record.applied_refused for record in records),
        seen_early=sum(record.seen_early for record in records),
        seen=sum(record.seen for record in records),
        seen_early_median_ms=median(early) / 1e6 if early else None,
        phantoms=sum(record.phantoms for record in records),
        promotion_ms=median(record.promotion_ns for record in records) / 1e6,
        stall_s=mean_interval(stalls) if stalls else None,
        by_itself=sum(record.by_itself or 0 for record in records) if stalls else None,
        meanwhile=mean_of_counts(slowed) if slowed else None,
        back_s=mean_of_counts(back) if back else None,
        not_back=len(records) - len(back) if records[0].fault in _MENDED else 0,
        join=_join_cost(records, REPLICA_RATE_BPS.given(arm.factors)),
        sound=True,
        each=tuple(_point(number, record) for number, record in crashes),
    )


def _join_cost(records: Sequence[CrashRecord], rate_bps: int | None) -> JoinCost | None:
    joins = [record.joined for record in records if record.joined is not None]
    if not joins or rate_bps is None:
        return None
    return JoinCost(
        how=tuple(dict.fromkeys(join.how for join in joins)),
        received_bytes=mean_of_counts([join.received_bytes for join in joins]),
        link_busy=mean_of_counts([join.donor_wire_bytes * 8e9 / rate_bps / join.took_ns for join in joins]),
    )


def _point(number: int, crash: CrashRecord) -> CrashPoint:
    first = None if crash.first_lost_ns is None else (crash.first_lost_ns - crash.fault_ns) / 1e6
    return CrashPoint(
        trial=number,
        acknowledged=crash.acknowledged,
        lost=crash.lost,
        first_lost_ms=first,
        dead_ms=(crash.dead_ns - crash.fault_ns) / 1e6,
        promotion_ms=crash.promotion_ns / 1e6,
        commits_per_s=crash.commits_per_s,
        unknown=crash.unknown,
        applied_unknown=crash.applied_unknown,
        seen_early=crash.seen_early,
        phantoms=crash.phantoms,
        behind_before=crash.behind_before,
        unapplied=crash.unapplied,
    )


def _by_force(records: Sequence[CrashRecord]) -> int | None:
    """Commits acknowledged before the fault was in force, and lost. None: not every record has that moment."""
    after = [record.lost_in_force for record in records if record.lost_in_force is not None]
    return sum(record.lost for record in records) - sum(after) if len(after) == len(records) else None


def lost_per_crash(losses: Sequence[int]) -> Estimate:
    """Mean loss; see the module for its interval."""
    return mean_of_counts(losses) if any(losses) else Estimate(value=0.0, low=None, high=None)


def may_lose(crashes: int) -> float:
    """Upper limit of the share of crashes with a loss, when none of `crashes` had one: 95 %, exact."""
    return float(1 - CHANCE ** (1 / crashes))


def _predicted(records: Sequence[CrashRecord]) -> Estimate | None:
    found = [lost for record in records if (lost := predicted_loss(record)) is not None]
    return mean_of_counts(found) if found else None


def predicted_loss(crash: CrashRecord) -> float | None:
    """Commits that an asynchronous primary loses. None: the lag before the fault is unknown, or does not predict it."""
    if FAULTS[crash.fault].cut_off:
        since_ns = crash.fault_ns if crash.in_force_ns is None else crash.in_force_ns
        lived_s = (crash.dead_ns - since_ns) / 1e9
        return crash.commits_per_s * (lived_s + _gained_s(crash, lived_s))
    if crash.fault != "kill-primary":
        return None
    lag = crash.behind_before if crash.unreceived_before is None else crash.unreceived_before
    return None if lag is None else float(lag)


def _gained_s(crash: CrashRecord, lived_s: float) -> float:
    """Time that a primary gains by sharing full CPUs with its replicas: once they have nothing to apply, their share of the CPUs is
    free for it. 0 on separate machines, and in older run files."""
    cpus, applied_per_s = crash.cpus_before, crash.applied_per_s_before
    if cpus is None or not applied_per_s or cpus.busy < FULL_SHARE * (cpus.busy + cpus.idle):
        return 0.0
    received = (crash.behind_before or 0) - (crash.unreceived_before or 0)
    alone_s = max(lived_s - max(received, 0) / applied_per_s, 0.0)
    return alone_s * cpus.replicas / (cpus.busy - cpus.replicas) if cpus.replicas < cpus.busy else 0.0


# ---------------------------------------------------------------- sentences


def loss_sentences(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    """Sentences on losses of asynchronous and semi-synchronous replication, on unsafe reads, and on unacknowledged commits."""
    kept = [loss for loss in losses if loss.mode in LOSSLESS]
    found = [_lost(loss) for loss in losses if loss.mode not in LOSSLESS]
    found += [*(_kept(mode, kept) for mode in LOSSLESS), *(_stall(mode, kept) for mode in LOSSLESS)]
    found += [*(_joins(loss) for loss in losses), _by_itself(losses), _early(kept), _unacknowledged(losses)]
    return tuple(sentence for sentence in found if sentence)


def loss_verdict(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    """One sentence per mode. Losses where there should be none come first; for each other mode, the fault that loses most."""
    modes = list(dict.fromkeys(loss.mode for loss in losses))
    safe = [mode for mode in LOSSLESS if mode in modes]
    broken = [mode for mode in safe if any(loss.lost for loss in losses if loss.mode == mode)]
    worst = [
        max((loss for loss in losses if loss.mode == mode), key=lambda loss: loss.lost_per_crash.value)
        for mode in modes
        if mode not in LOSSLESS
    ]
    kept = [_kept(mode, losses) for mode in safe if mode not in broken]
    joins = [text for loss in losses if (text := _joins(loss))]
    kept += [text for text in (*(_stall(mode, losses) for mode in safe), _by_itself(losses)) if text]
    return (*(_kept(mode, losses) for mode in broken), *joins, *(_lost(loss, brief=True) for loss in worst), *kept)


def percent_up(share: float) -> str:
    """A share in percent, rounded up because it is an upper limit: `12` for 11.29 %."""
    return f"{math.ceil(round(share * 100, 6))}"


def before_the_fault(loss: CrashLoss) -> str:
    """Losses from before the fault: `9`, `9 to 130`; in an older file, which records only when the fault was started, `at least 9`."""
    if loss.lost_by_force is None and loss.lost:
        return f"at least {loss.lost_before:,}"
    if loss.lost_by_force in (None, loss.lost_before):
        return f"{loss.lost_before:,}"
    return f"{loss.lost_before:,} to {loss.lost_by_force:,}"


def _lost(loss: CrashLoss, brief: bool = False) -> str:
    begin = f"{capital(with_mode(loss.mode))}, when {FAULTS[loss.fault].clause}, "
    if not loss.lost:
        limit = loss.share_that_may_lose
        text = f"{begin}none of {loss.acknowledged:,} acknowledged commits was lost in {plural(loss.crashes, 'crash')}"
        return f"{text}{'' if limit is None else f' (at most {percent_up(limit)} % of crashes lose any)'}."
    text = f"{begin}a crash lost {rate_interval(loss.lost_per_crash)} acknowledged commits ({plural(loss.crashes, 'crash')}"
    if loss.predicted_lost is not None:
        order = "" if FAULTS[loss.fault].cut_off else "at most about "
        text += f"; predicted: {order}{rate_interval(loss.predicted_lost)}"
    text += ")"
    if not brief and FAULTS[loss.fault].machine:
        text += (
            f", {before_the_fault(loss)} of all {loss.lost:,} acknowledged before the cut took effect, which is what the failure of "
            "the machine at that moment would lose"
        )
    if not brief and loss.lost_age_ms is not None and loss.lost_age_ms > 0:
        text += f"; the earliest had been acknowledged {loss.lost_age_ms:.3g} ms before the fault"
    return text + "."


def _kept(mode: str, losses: Sequence[CrashLoss]) -> str:
    """Sentence on a mode that should lose nothing, over all faults together."""
    here = [loss for loss in losses if loss.mode == mode]
    if not here:
        return ""
    crashes, lost = sum(loss.crashes for loss in here), sum(loss.lost for loss in here)
    acknowledged = sum(loss.acknowledged for loss in here)
    if lost:
        worst = max(here, key=lambda loss: loss.most_lost)
        return (
            f"{capital(mode_name(mode))} lost {lost:,} of {acknowledged:,} acknowledged commits in {plural(crashes, 'crash')}, at "
            f"most {worst.most_lost:,} in one, when {FAULTS[worst.fault].clause}: it should lose none."
        )
    faults = len({loss.fault for loss in here})
    pooled = f" of {faults} kinds" if faults > 1 else ""
    return (
        f"{capital(mode_name(mode))} lost none of {acknowledged:,} acknowledged commits in {plural(crashes, 'crash')}{pooled}, so "
        f"at most {percent_up(may_lose(crashes))} % of crashes lose any."
    )


def _stall(mode: str, losses: Sequence[CrashLoss]) -> str:
    """Time that clients waited, by fault. Empty: no cluster."""
    parts = [
        f"{rate_interval(loss.stall_s)} s when {FAULTS[loss.fault].clause}{_meanwhile(loss)}"
        for loss in losses
        if loss.mode == mode and loss.stall_s is not None
    ]
    return f"{capital(mode_name(mode))}: no client was told of a commit for {', '.join(parts)}." if parts else ""


def _meanwhile(loss: CrashLoss) -> str:
    """Effect of a member's fault: ` (meanwhile 0.41 of the commits per second; whole again after 1.2 s)`. Empty: the primary died."""
    if loss.meanwhile is None:
        return ""
    back = "" if loss.back_s is None else f"; whole again after {rate_interval(loss.back_s)} s"
    if loss.not_back:
        back += f"; in {loss.not_back} of {plural(loss.crashes, 'trial')} not whole within a minute"
    return f" (meanwhile {interval_text(loss.meanwhile)} of the commits per second{back})"


def _joins(loss: CrashLoss) -> str:
    """Time that a node took to join. Empty: none joined, or its time has no interval."""
    if loss.join is None or loss.back_s is None:
        return ""
    whose = "a new node" if loss.fault == "member-joins" else "a node that was restarted"
    busy = loss.join.link_busy.value
    limit = ", which was its limit" if busy > LINK_IS_LIMIT else ""
    return (
        f"{capital(mode_name(loss.mode))}: {whose} was whole after {rate_interval(loss.back_s)} s, by {' or '.join(loss.join.how)} "
        f"with {megabytes(loss.join.received_bytes)} MB; that occupied its donor's link for {busy * 100:.0f} % of the time{limit}."
    )


LINK_IS_LIMIT = 0.8
"""Share of a join's time beyond which the donor's busy link counts as the limit of the join."""


def megabytes(found: Estimate) -> str:
    """Megabytes with their interval."""
    low, high = (None if end is None else end / 1e6 for end in (found.low, found.high))
    return rate_interval(Estimate(value=found.value / 1e6, low=low, high=high))


_CUTS = ("cut-off", "partition", "member-returns")


def _by_itself(losses: Sequence[CrashLoss]) -> str:
    cut = [loss for loss in losses if loss.by_itself is not None and loss.fault.startswith(_CUTS)]
    if not cut:
        return ""
    bad = [f"{mode_name(loss.mode)} {loss.by_itself:,}" for loss in cut if loss.by_itself]
    crashes = sum(loss.crashes for loss in cut)
    if bad:
        return f"Nodes that were cut off acknowledged writes by themselves, which they should not: {', '.join(bad)}."
    return (
        f"In {crashes} cuts no node that was cut off acknowledged a write by itself (at most {percent_up(may_lose(crashes))} % of "
        "cuts let it)."
    )


def _early(losses: Sequence[CrashLoss]) -> str:
    """Sentence on commits that other clients read before they were acknowledged to their own."""
    here = [loss for loss in losses if loss.seen_early and loss.seen]
    if not here:
        return ""
    mode = max(here, key=lambda loss: loss.seen_early / loss.seen).mode
    alike = [loss for loss in losses if loss.mode == mode]
    early, seen = sum(loss.seen_early for loss in alike), sum(loss.seen for loss in alike)
    text = f"{capital(with_mode(mode))} others see commits before they are acknowledged, or that never are: {early:,} of {seen:,} seen"
    earlier = max(here, key=lambda loss: loss.seen_early / loss.seen).seen_early_median_ms
    if earlier is not None:
        text += f", {earlier:.3g} ms earlier in the median"
    gone = sum(loss.phantoms for loss in alike)
    return text + (f"; {gone:,} of them were gone after the crash." if gone else ".")


def _unacknowledged(losses: Sequence[CrashLoss]) -> str:
    done, refused = sum(loss.done_untold for loss in losses), sum(loss.done_refused for loss in losses)
    found = [f"{done:,} commits were applied on the survivor without an acknowledgement"] if done else []
    found += [f"{refused:,} were applied there though their clients received an error"] if refused else []
    if not found:
        return ""
    crashes = sum(loss.crashes for loss in losses)
    return f"In {plural(crashes, 'crash')} {'; '.join(found)}: a client that retries applies them twice."
