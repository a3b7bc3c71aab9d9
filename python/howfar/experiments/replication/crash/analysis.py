"""Losses over all crashes of an arm, and the losses that the replica's lag predicts.

The interval of the mean loss is Student's, cut at zero. Counts of lost commits are skewed, so with 20 crashes it contains the true
mean in only 85 to 95 % of experiments; a percentile bootstrap always does worse (a test checks that). If nothing was lost at all, the
mean has no interval. The report then quotes the upper 95 % limit of the share of crashes with a loss, given that none of n lost
anything: 1 - 0.05^(1/n), close to the rule of three, 3/n.

The loss that is predicted for a crash under asynchronous replication is the number of commits acknowledged while the primary was alive
and nothing reached the replica, at the rate before the fault. If replicas share fully used CPUs with the primary, the primary becomes
faster once they have applied what arrived. For a primary killed while its link works, only the order of magnitude is predicted: what
the replica had not received when it was last queried, some milliseconds before the fault. If only acknowledgements are cut, nothing is
predicted, because TCP continues to send for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from howfar.analysis.answer import sentences
from howfar.bottleneck.rules import FULL_SHARE
from howfar.experiments.replication.arms import replication_name
from howfar.experiments.replication.crash.texts import FAULT_TEXTS, TEXTS
from howfar.experiments.replication.factors import LOSSLESS, REPLICA_RATE_BPS, REPLICATION
from howfar.experiments.replication.records import CrashRecord
from howfar.findings import Finding, Quantity
from howfar.plan.factors import THREADS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import mean_interval, mean_of_counts
from howfar.store.records import Arm, ArmRole, Run, TrialStatus

CHANCE_OF_NO_LOSS = 0.05
"""Probability that no crash loses anything if the share of crashes with a loss is at its upper limit; 1 - confidence."""


class Fault(NamedTuple):
    """One level of the factor `fault`."""

    cut_off: bool = False
    """Whether the primary stays alive but nothing that it sends arrives. False for `cut-to-primary`, where TCP sends for a while."""
    like_machine_failure: bool = False
    """Whether the link ends up in the same state as after a failure of the primary's machine."""


FAULTS = {
    "cut": Fault(cut_off=True, like_machine_failure=True),
    "cut-to-replica": Fault(cut_off=True, like_machine_failure=True),
    "kill-primary": Fault(),
    "stop-replica": Fault(cut_off=True),
    "cut-to-primary": Fault(),
    "cut-off-primary": Fault(cut_off=True, like_machine_failure=True),
    "partition": Fault(cut_off=True, like_machine_failure=True),
    "cut-off-member": Fault(),
    "member-returns": Fault(),
    "member-restarts": Fault(),
    "member-joins": Fault(),
    "slow-member": Fault(),
    "replica-leaves": Fault(),
}
"""Faults by their level; the most similar to the failure of a machine is first. If a run injected several, the first represents the
others."""

_TEMPORARY_FAULTS = ("member-returns", "slow-member")
"""Faults of a member that are removed while the load continues."""


class CrashPoint(Part):
    """One crash, for charts. Times are relative to the fault; those before it are negative."""

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
    """Cost of a node's joining, over all trials. The time that it took is in `CrashLoss.back_s`."""

    how: tuple[str, ...]
    """Methods by which the node fetched missing data, by the server's names for them."""
    received_bytes: Estimate
    """Bytes received over the node's links, by the kernel's count. They include the load's writes during the join."""
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
    """Lost commits acknowledged before injecting the fault began. If the link to the replica was cut, this is the lower bound of what
    a failure of the whole machine at that moment would have lost."""
    lost_by_force: int | None = None
    """Lost commits acknowledged before the fault was in effect: the upper bound. None: an older run file does not record that
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
    """Keys that other clients read before the client that wrote them got an acknowledgement, if it ever got one; over all crashes."""
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
    """Trials in which that member had not recovered within a minute."""
    join: JoinCost | None = None
    """Cost of joining. None: no node joined."""
    sound: bool
    """Whether the keys of each trial add up: no unknown key, and no key twice."""
    each: tuple[CrashPoint, ...] = ()
    """Crashes in the order in which they were made."""


class CrashFindings(Part):
    losses: tuple[CrashLoss, ...]
    sentences: tuple[str, ...]
    """What the tables do not have."""


def crash_findings(run: Run) -> CrashFindings | None:
    """Findings about crashes. None: nothing crashed in this run, or every crash is void."""
    losses_or_none = [_summarise_crashes(run, arm) for arm in run.info.arms if arm.role is not ArmRole.DUPLICATE]
    losses = tuple(loss for loss in losses_or_none if loss is not None)
    return CrashFindings(losses=losses, sentences=sentences(detail_findings(losses), TEXTS)) if losses else None


def _summarise_crashes(run: Run, arm: Arm) -> CrashLoss | None:
    trials = sorted((trial for trial in run.trials if trial.arm == arm.name), key=lambda trial: trial.number)
    good = [trial for trial in trials if trial.status is TrialStatus.OK]
    crashes = [(trial.number, trial.fault) for trial in good if isinstance(trial.fault, CrashRecord)]
    if not crashes:
        return None
    records = [record for _, record in crashes]
    mode, losses = (REPLICATION.level_or_none(arm.factors) or ""), [record.lost for record in records]
    ages = [(record.fault_ns - record.first_lost_ns) / 1e6 for record in records if record.first_lost_ns is not None]
    stalls = [record.stall_ns / 1e9 for record in records if record.stall_ns is not None]
    slowed = [
        record.meanwhile_per_s / record.commits_per_s
        for record in records
        if record.meanwhile_per_s is not None and record.commits_per_s
    ]
    back = [record.back_ns / 1e9 for record in records if record.back_ns is not None]
    early = [record.seen_early_median_ns for record in records if record.seen_early_median_ns is not None]
    return CrashLoss(
        arm=arm.name,
        mode=mode,
        fault=records[0].fault,
        threads=THREADS.level_in(arm.factors),
        replica_rtt_ns=int(median(record.replica_rtt_ns for record in records)),
        crashes=len(records),
        void_crashes=sum(trial.status is TrialStatus.VOID for trial in trials),
        commits_per_s=mean_interval([record.commits_per_s for record in records]),
        acknowledged=sum(record.acknowledged for record in records),
        lost=sum(losses),
        lost_before=sum(record.lost - record.lost_after for record in records),
        lost_by_force=_lost_by_force(records),
        lost_per_crash=lost_per_crash(losses),
        share_that_may_lose=None if any(losses) else max_loss_share(len(losses)),
        crashes_with_loss=sum(lost > 0 for lost in losses),
        most_lost=max(losses),
        predicted_lost=None if mode in LOSSLESS else _mean_predicted_loss(records),
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
        not_back=len(records) - len(back) if records[0].fault in _TEMPORARY_FAULTS else 0,
        join=_join_cost(records, REPLICA_RATE_BPS.level_or_none(arm.factors)),
        sound=True,
        each=tuple(_crash_point(number, record) for number, record in crashes),
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


def _crash_point(number: int, crash: CrashRecord) -> CrashPoint:
    first_lost_ms = None if crash.first_lost_ns is None else (crash.first_lost_ns - crash.fault_ns) / 1e6
    return CrashPoint(
        trial=number,
        acknowledged=crash.acknowledged,
        lost=crash.lost,
        first_lost_ms=first_lost_ms,
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


def _lost_by_force(records: Sequence[CrashRecord]) -> int | None:
    """Lost commits that were acknowledged before the fault was in effect. None: not every record has that moment."""
    lost_in_force = [record.lost_in_force for record in records if record.lost_in_force is not None]
    return sum(record.lost for record in records) - sum(lost_in_force) if len(lost_in_force) == len(records) else None


def lost_per_crash(losses: Sequence[int]) -> Estimate:
    """Mean loss per crash; the module's docstring explains its interval."""
    return mean_of_counts(losses) if any(losses) else Estimate(value=0.0, low=None, high=None)


def max_loss_share(crashes: int) -> float:
    """Exact upper 95 % limit of the share of crashes with a loss, if none of `crashes` had one."""
    return float(1 - CHANCE_OF_NO_LOSS ** (1 / crashes))


def _mean_predicted_loss(records: Sequence[CrashRecord]) -> Estimate | None:
    predictions = [lost for record in records if (lost := predicted_loss(record)) is not None]
    return mean_of_counts(predictions) if predictions else None


def predicted_loss(crash: CrashRecord) -> float | None:
    """Commits that an asynchronous primary is expected to lose. None: the lag before the fault is unknown, or predicts nothing."""
    if FAULTS[crash.fault].cut_off:
        cut_at_ns = crash.fault_ns if crash.in_force_ns is None else crash.in_force_ns
        alive_s = (crash.dead_ns - cut_at_ns) / 1e9
        return crash.commits_per_s * (alive_s + _cpu_time_gained_s(crash, alive_s))
    if crash.fault != "kill-primary":
        return None
    lag = crash.behind_before if crash.unreceived_before is None else crash.unreceived_before
    return None if lag is None else float(lag)


def _cpu_time_gained_s(crash: CrashRecord, alive_s: float) -> float:
    """CPU time that a primary gains from its replicas if they share fully used CPUs: once they have nothing to apply, it can use their
    share. 0 on separate machines, and in older run files."""
    cpus, applied_per_s = crash.cpus_before, crash.applied_per_s_before
    if cpus is None or not applied_per_s or cpus.busy < FULL_SHARE * (cpus.busy + cpus.idle):
        return 0.0
    received_unapplied = (crash.behind_before or 0) - (crash.unreceived_before or 0)
    alone_s = max(alive_s - max(received_unapplied, 0) / applied_per_s, 0.0)
    return alone_s * cpus.replicas / (cpus.busy - cpus.replicas) if cpus.replicas < cpus.busy else 0.0


# ---------------------------------------------------------------- what the crashes show


def conclude(losses: Sequence[CrashLoss], shown: Mapping[str, Estimate]) -> tuple[Finding, ...]:
    """The answer: first losses of modes that should lose nothing, then writes on an isolated node, joins, expected losses, and what
    held. `shown`: the loss per crash of a mode where the main table has one; otherwise that under the first of `FAULTS`."""
    by_mode = _losses_by_mode(losses)
    totals = [_totals(of_mode) for mode, of_mode in by_mode.items() if mode in LOSSLESS]
    expected = [_loss_finding(of_mode, shown.get(mode)) for mode, of_mode in by_mode.items() if mode not in LOSSLESS]
    stalls = [stall for of_mode in by_mode.values() if (stall := _longest_stall(of_mode))]
    isolated = _isolated(losses)
    writes = [_finding("isolated-writes", loss, writes=loss.by_itself) for loss in isolated if loss.by_itself]
    cuts = sum(loss.crashes for loss in isolated)
    silence = [_finding("isolated-silence", cuts=cuts)] if isolated and not writes else []
    is_about_isolation = len(isolated) == len(losses)
    return (
        *(finding for finding in totals if finding.id == "broken-promise"),
        *writes,
        *(silence if is_about_isolation else ()),
        *(finding for loss in joined(losses) for finding in _join_findings(loss)),
        *(finding for finding in expected if finding.id == "lost"),
        *(finding for finding in (*expected, *totals) if finding.id == "none-lost"),
        *stalls,
        *(() if is_about_isolation else silence),
    )


def explain(losses: Sequence[CrashLoss], answer: Finding) -> tuple[Finding, ...]:
    """What a node that joins has to fetch, or how old the earliest lost commit of the answer's mode was. Empty: the answer is about
    neither."""
    if answer.id in FETCHED:
        return tuple(_fetched(loss, loss.join) for loss in joined(losses) if loss.join and loss.fault in FETCHED)
    if answer.id != "lost":
        return ()
    ages = [
        _finding("unprotected", loss, age_ms=loss.lost_age_ms)
        for loss in _losses_with_age(losses)
        if replication_name(loss.mode) == answer.subject
    ]
    return tuple(ages[:1])


def _losses_with_age(losses: Sequence[CrashLoss]) -> list[CrashLoss]:
    """Losses of modes that may lose some, where the age of the earliest lost commit is known."""
    return [loss for loss in losses if loss.mode not in LOSSLESS and (loss.lost_age_ms or 0) > 0]


def detail_findings(losses: Sequence[CrashLoss]) -> tuple[Finding, ...]:
    """What the tables do not have: bounds, ages of lost commits, early reads, commits that a retry would repeat."""
    by_mode = _losses_by_mode(losses)
    findings = [
        _finding("age", loss, fault=FAULT_TEXTS[loss.fault].clause, age_ms=loss.lost_age_ms)
        for loss in _losses_with_age(losses)
    ]
    for of_mode in by_mode.values():
        worst, totals = max(of_mode, key=lambda loss: loss.most_lost), _totals(of_mode).parameters
        if not worst.lost:
            share = max_loss_share(int(totals["crashes"]))
            findings.append(_finding("bound", worst, None, share=share, **totals))
        elif worst.mode in LOSSLESS:
            findings.append(_finding("worst", worst, most=worst.most_lost, fault=FAULT_TEXTS[worst.fault].clause))
    findings += [
        _finding("donor-limit", loss, busy=loss.join.link_busy.value)
        for loss in losses
        if loss.join is not None and loss.join.link_busy.value > MIN_SHARE_OF_LIMITING_LINK
    ]
    isolated = _isolated(losses)
    if isolated and not any(loss.by_itself for loss in isolated):
        findings.append(_finding("cuts-bound", share=max_loss_share(sum(loss.crashes for loss in isolated))))
    findings += _early_read_findings([loss for loss in losses if loss.mode in LOSSLESS])
    crashes = sum(loss.crashes for loss in losses)
    for name, applied in (
        ("applied", sum(loss.done_untold for loss in losses)),
        ("refused", sum(loss.done_refused for loss in losses)),
    ):
        findings += [_finding(name, crashes=crashes, applied=applied)] if applied else []
    return tuple(findings)


_METRICS = {"lost": Quantity.LOST, "meanwhile": Quantity.THROUGHPUT, "stall": Quantity.STALL}
"""What the estimate of a finding is of. The ids of others are faults after which a node joins again."""


def _finding(name: str, loss: CrashLoss | None = None, estimate: Estimate | None = None, **figures: Any) -> Finding:
    """A finding; the subject is the mode of `loss`."""
    subject, metric = (
        replication_name(loss.mode) if loss else "",
        None if estimate is None else _METRICS.get(name, Quantity.REJOIN),
    )
    return Finding(id=name, subject=subject, metric=metric, estimate=estimate, parameters=figures)


def _losses_by_mode(losses: Sequence[CrashLoss]) -> dict[str, list[CrashLoss]]:
    """Losses by mode; modes that should lose nothing in the order of `LOSSLESS`, after the others."""
    modes = dict.fromkeys(loss.mode for loss in losses)
    ordered = [*(mode for mode in modes if mode not in LOSSLESS), *(mode for mode in LOSSLESS if mode in modes)]
    return {mode: [loss for loss in losses if loss.mode == mode] for mode in ordered}


def _totals(losses: Sequence[CrashLoss]) -> Finding:
    """Whether a mode lost anything, over all faults."""
    lost, crashes, acknowledged = (
        sum(getattr(loss, name) for loss in losses) for name in ("lost", "crashes", "acknowledged")
    )
    several = int(len({loss.fault for loss in losses}) > 1)
    name = "broken-promise" if lost else "none-lost"
    return _finding(name, losses[0], lost=lost, acknowledged=acknowledged, crashes=crashes, several=several)


def _loss_finding(losses: Sequence[CrashLoss], shown: Estimate | None) -> Finding:
    """The loss of a mode that may lose commits."""
    if not any(loss.lost for loss in losses):
        return _totals(losses)
    first = min(losses, key=lambda loss: list(FAULTS).index(loss.fault))
    return _finding("lost", first, shown or first.lost_per_crash, fault=first.fault, crashes=first.crashes)


FETCHED = {"member-restarts": "fetched-rest", "member-joins": "fetched-all"}
"""Findings of what a node fetches, by the fault after which it joins."""


def joined(losses: Sequence[CrashLoss]) -> list[CrashLoss]:
    """Those in which a node joined within a minute."""
    return [loss for loss in losses if loss.join is not None and loss.back_s is not None]


def join_finding(loss: CrashLoss) -> Finding:
    """How long a node took to join."""
    return _finding(loss.fault, loss, loss.back_s)


def _fetched(loss: CrashLoss, cost: JoinCost) -> Finding:
    how = " or ".join(cost.how)
    return _finding(FETCHED[loss.fault], loss, how=how, megabytes=cost.received_bytes.value / 1e6)


def _join_findings(loss: CrashLoss) -> list[Finding]:
    """How long a node took to join, and what it cost meanwhile."""
    slowed = loss.meanwhile is not None and loss.meanwhile.high is not None and loss.meanwhile.high < 1
    return [join_finding(loss), *([_finding("meanwhile", loss, loss.meanwhile)] if slowed else [])]


def _longest_stall(losses: Sequence[CrashLoss]) -> Finding | None:
    """The longest mean time in which no client of a cluster was told of a commit. None: no cluster."""
    stalls = [(loss.stall_s, loss) for loss in losses if loss.stall_s is not None]
    if not stalls:
        return None
    estimate, loss = max(stalls, key=lambda stall: stall[0].value)
    return _finding("stall", loss, estimate, fault=FAULT_TEXTS[loss.fault].clause)


def _isolated(losses: Sequence[CrashLoss]) -> list[CrashLoss]:
    return [loss for loss in losses if loss.by_itself is not None and loss.fault.startswith(_ISOLATING_FAULTS)]


def _early_read_findings(losses: Sequence[CrashLoss]) -> list[Finding]:
    """Commits that other clients read before they were acknowledged to the client that wrote them, in the mode with most of them."""
    worst = max(losses, key=lambda loss: loss.seen_early / loss.seen if loss.seen else 0.0, default=None)
    if worst is None or not worst.seen_early:
        return []
    of_mode = [loss for loss in losses if loss.mode == worst.mode]
    early, seen, phantoms = (
        sum(getattr(loss, name) for loss in of_mode) for name in ("seen_early", "seen", "phantoms")
    )
    lead_ms = worst.seen_early_median_ms
    lead = {} if lead_ms is None else {"lead_ms": lead_ms}
    return [
        _finding("early-reads-by" if lead else "early-reads", worst, None, early=early, seen=seen, **lead),
        *([_finding("phantoms", worst, phantoms=phantoms)] if phantoms else []),
    ]


_ISOLATING_FAULTS = ("cut-off", "partition", "member-returns")
MIN_SHARE_OF_LIMITING_LINK = 0.8
"""Share of a join's time with a busy donor's link beyond which that link counts as the limit of the join."""


def lost_before_text(loss: CrashLoss) -> str:
    """Lost commits from before the fault: `9`, `9 to 130`; in an older file, which records only when injecting it began, `at least
    9`."""
    if loss.lost_by_force is None and loss.lost:
        return f"at least {loss.lost_before:,}"
    if loss.lost_by_force in (None, loss.lost_before):
        return f"{loss.lost_before:,}"
    return f"{loss.lost_before:,} to {loss.lost_by_force:,}"
