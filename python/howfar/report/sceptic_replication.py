"""What a sceptic asks first of a run about replication, answered from the run's own figures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from howfar.analysis.facts_in import number_in
from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import MACHINE, CrashLoss, before_the_fault, may_lose
from howfar.experiments.replication.analysis import CommitCost, ReplicationCurve
from howfar.experiments.replication.report import words
from howfar.plan.factors import SEMI_SYNC
from howfar.report import figures
from howfar.report.tables import share

MEMORY_FSYNC_NS = 20_000
"""No disk writes and flushes a block in less: it went to memory."""

Pair = tuple[str, str]


def replication_questions(summary: Summary) -> list[Pair]:
    """(question, answer), before those that are asked of every run."""
    found = [
        ("Was semi-sync on in every commit? How do you know?", _held(summary)),
        ("Is a SIGKILL a power failure?", _fault(summary)),
        (f"Why trust a zero of {_zeros(summary)}?" if _zeros(summary) else "", _rule_of_three(summary)),
        ("Are the clients' logs complete?", _logs(summary)),
        ("Is fsync real here?", _fsync(summary)),
        ("Do primary, replica and clients share a machine?", _machine(summary)),
        ("Is the model fitted to what it predicts?", _model(summary)),
        ("Is it the published experiment?", _published(summary)),
        ("Is one fallback like the next?", _fallback(summary)),
    ]
    return [(question, answer) for question, answer in found if question and answer]


def _crashes(summary: Summary) -> tuple[CrashLoss, ...]:
    crash = summary.replication.crash if summary.replication else None
    return crash.losses if crash else ()


def _semi_sync_points(summary: Summary) -> list[tuple[ReplicationCurve, CommitCost]]:
    cost = summary.replication.cost if summary.replication else None
    curves = [curve for curve in cost.curves if curve.mode in SEMI_SYNC] if cost else []
    return [(curve, point) for curve in curves for point in curve.points]


def _held(summary: Summary) -> str:
    modes = {row.mode for row in (summary.replication.trade if summary.replication else ())}
    modes |= {loss.mode for loss in _crashes(summary)} | {curve.mode for curve, _ in _semi_sync_points(summary)}
    if not modes & set(SEMI_SYNC):
        return ""
    rule = (
        "Before and after each window both ends are asked: status, semi-synchronous clients, and the primary's count of commits that "
        "nobody acknowledged. Its timeout is set to an hour, so that it cannot give up within a trial. One commit without an "
        "acknowledgement makes the trial void."
    )
    return " ".join(part for part in (rule, _counted(summary), _clock(summary), _void_for_it(summary)) if part)


def _counted(summary: Summary) -> str:
    """From the receipts: what the primary counted in the last good trial of each cell."""
    acknowledged = unacknowledged = cells = 0
    for cell in summary.cells:
        ends = _ends(cell.receipt) if cell.factors.get("replication") in SEMI_SYNC else None
        if ends is not None:
            cells += 1
            acknowledged += ends[1]["yes_tx"] - ends[0]["yes_tx"]
            unacknowledged += ends[1]["no_tx"] - ends[0]["no_tx"]
    if not cells:
        return ""
    return (
        f"In the last good trials of its {cells} cells the primary counted {acknowledged:,} acknowledgements (some servers count "
        f"groups) and {unacknowledged:,} commits without one."
    )


def _ends(receipt: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]] | None:
    """What the primary said before and after. None: another kind of receipt."""
    replication = receipt.get("replication")
    section = replication.get("window") if isinstance(replication, dict) else None
    if not isinstance(section, dict):
        return None
    found = []
    for when in ("before", "after"):
        moment = section.get(when)
        end = moment.get("primary") if isinstance(moment, dict) else None
        if not isinstance(end, dict) or not all(isinstance(end.get(name), int) for name in ("yes_tx", "no_tx")):
            return None
        found.append(end)
    return found[0], found[1]


def _clock(summary: Summary) -> str:
    """Counters can lie, a round trip cannot."""
    found = [
        point.p50_ms / (curve.rest_rtt_ns / 1e6)
        for curve, point in _semi_sync_points(summary)
        if curve.rest_rtt_ns and curve.replica_rtt_ns
    ]
    if not found:
        return ""
    return (
        f"Apart from all counters: the median commit never took less than {min(found):.2f} round trips to the replica."
    )


_MARKS = (
    "acknowledge",
    "semi-sync",
    "asynchronous",
    "round trip to the replica",
    "was not replicating",
    "wait point was",
    "timeout in ms was",
    "counters went back",
)
"""Of the sentences of `lab/replication/proof.py`."""
_OTHERWISE = ("no commit was acknowledged before the fault",)
"""The load's failing, not the replica's."""


def _not_as_asked(reason: str) -> bool:
    return any(mark in reason for mark in _MARKS) and not any(other in reason for other in _OTHERWISE)


def _void_for_it(summary: Summary) -> str:
    void = sum(count for reason, count in summary.void_reasons.items() if _not_as_asked(reason))
    return (
        f"Void for such a reason in this run: {void}." if void else "No trial of this run was void for such a reason."
    )


def _fault(summary: Summary) -> str:
    losses = _crashes(summary)
    if not losses:
        return ""
    killed = (
        "No. A killed process leaves a kernel that still delivers what was in its socket buffers, and page cache that the dead "
        "server's restart would find: it loses less than a machine does."
    )
    said = [killed]
    counts = {fault: sum(loss.crashes for loss in losses if loss.fault == fault) for fault in words.FAULT_WORDS}
    tried = [f"{words.FAULT_WORDS[fault]} {count} times" for fault, count in counts.items() if count]
    said.append(f"Here: {', '.join(tried)}.")
    said.append(_machine_death([loss for loss in losses if loss.fault in MACHINE and loss.crashes]))
    said.append("The survivor is the replica, never the restarted primary: what the primary's disk kept is not asked.")
    return " ".join(said)


def _machine_death(cut: list[CrashLoss]) -> str:
    if not cut:
        return "In none of them was the way to the replica cut first, so a machine's death was not measured."
    found = sorted({loss.mode: [each for each in cut if each.mode == loss.mode] for loss in cut}.items())
    modes = [f"{words.mode_words(mode)} {_of_crashes(losses)}" for mode, losses in found]
    return (
        "Where the way to the replica is cut first, nothing reaches it any more, as when the primary's machine or its network dies; "
        "acknowledged before the cut was in force and lost, which is what the machine's death at that moment loses: "
        f"{'; '.join(modes)}. Of two figures the first counts until the cut was asked for, the second until it was done."
    )


def _of_crashes(losses: list[CrashLoss]) -> str:
    bounds = [before_the_fault(loss) for loss in losses]
    crashes = sum(loss.crashes for loss in losses)
    return f"{' and '.join(bounds)} in {crashes} crash{'' if crashes == 1 else 'es'}"


def _safe(summary: Summary) -> list[CrashLoss]:
    return [loss for loss in _crashes(summary) if loss.crashes and not loss.lost]


def _zeros(summary: Summary) -> int:
    return max((loss.crashes for loss in _safe(summary)), default=0)


def _rule_of_three(summary: Summary) -> str:
    safe = _safe(summary)
    if not safe:
        return ""
    most, limit = _zeros(summary), may_lose(_zeros(summary))
    alone = (
        f"Not beyond what {most} crashes can show: were one crash in {1 / limit:.0f} to lose something, {most} without a "
        f"loss would still come up once in twenty tries (upper limit {share(limit)})."
    )
    semi = [loss for loss in safe if loss.mode in SEMI_SYNC]
    crashes, commits = sum(loss.crashes for loss in semi), sum(loss.acknowledged for loss in semi)
    pooled = (
        f" Over all {crashes} semi-synchronous crashes without a loss: {share(may_lose(crashes))}; {commits:,} commits "
        "had been acknowledged in them."
        if len(semi) > 1
        else ""
    )
    lossy = [loss for loss in _crashes(summary) if loss.lost]
    contrast = (
        f" The same accounting found {sum(loss.lost for loss in lossy):,} lost commits elsewhere in this run: it can find them."
        if lossy
        else " No mode of this run lost any, so this run does not show that the accounting would find them."
    )
    return f"{alone}{pooled}{contrast}"


def _logs(summary: Summary) -> str:
    losses = _crashes(summary)
    if not losses:
        return ""
    told = sum(loss.acknowledged for loss in losses)
    void = sum(loss.void_crashes for loss in losses)
    unsound = [loss.arm for loss in losses if not loss.sound]
    sound = (
        "In every crash that counts the account adds up: each key on the survivor is in a log, none twice."
        if not unsound
        else f"Not everywhere: in {', '.join(unsound)} an account does not add up."
    )
    voided = f"{void or 'No'} crash{'' if void == 1 else 'es'} {'was' if void == 1 else 'were'} void"
    return (
        f"Clients draw keys that nobody else draws, and note each before it is sent and when it is acknowledged: {told:,} in all. "
        f"After the takeover every key of the survivor is read and held against them. {sound} {voided}, and in no figure."
    )


def _fsync(summary: Summary) -> str:
    found = number_in(summary.environment, "data_fsync_ns", "512", "p50")
    system = summary.environment.get("work_file_system")
    where = f" on {system}" if isinstance(system, str) else ""
    levels = sorted({str(cell.factors["durability"]) for cell in summary.cells if "durability" in cell.factors})
    asked = f" Durability in this run: {', '.join(levels)}." if levels else ""
    if found is None:
        return f"This run does not say what one costs{where}.{asked}"
    took = f"{found / 1e3:.0f} µs" if found < 1e6 else f"{found / 1e6:.1f} ms"
    if found < MEMORY_FSYNC_NS:
        return (
            f"No: the data lie{where}, where writing and flushing 512 bytes takes {took} (median): that is memory. On a disk every "
            f"commit, or group of them, costs a flush more, on the primary and before the replica's acknowledgement.{asked}"
        )
    return f"Writing and flushing 512 bytes{where} takes {took} (median), before the load began.{asked}"


def _machine(summary: Summary) -> str:
    cpus = f" of {summary.machine_cpus} CPUs" if summary.machine_cpus else ""
    return (
        f"Yes, one machine{cpus}: replica, primary, clients and the emulator of the link take time from each other. Where commits are "
        "many, as without an acknowledgement, the replica's work makes the primary slower than two machines would; where each "
        "waits for a round trip, the CPUs are idle and it does not matter. Each server has its own network namespace, and packets "
        "between them pass the link."
    )


def _model(summary: Summary) -> str:
    cost = summary.replication.cost if summary.replication else None
    if cost is None or cost.mean_error is None or cost.worst_error is None:
        return ""
    points = [point for curve in cost.curves for point in curve.points]
    foreseen = [point for point in points if point.predicted is not None]
    off = f"{share(cost.mean_error)} on average, by {share(abs(cost.worst_error))} at worst"
    return (
        f"{len(foreseen)} of {len(points)} figures are predicted, the rest is what the model is made of. Off by {off}; every error "
        "stands beside its figure."
    )


def _published(summary: Summary) -> str:
    cost = summary.replication.cost if summary.replication else None
    if cost is None or not cost.published:
        return ""
    sources = "; ".join(figures.published_sources(summary)) or "two regions"
    return (
        f"Its workload and its distance, not its machines. Theirs: {sources}. Ours: "
        f"{summary.server['kind']} {summary.server['version']} ({summary.workload}) over an emulated link. With an acknowledgement "
        "the distance decides, so the rates agree; without one the machine does, so only the shares can be compared."
    )


def _fallback(summary: Summary) -> str:
    stories = summary.replication.fallback if summary.replication else ()
    if not stories:
        return ""
    pairs = zip(stories, words.story_names(stories), strict=True)
    trials = ", ".join(f"{story.trials} of {name}" for story, name in pairs)
    return (
        f"Trials: {trials}. The stall is the server's own timeout, and hardly varies. How long it stays asynchronous after the return "
        "depends on the load and on how long the replica was away: it must fetch what it lacks, and then overtake a primary that "
        "waits for nobody. Commits are counted by the clients' logs, states by asking the primary: two looks lie "
        f"{_look(summary)} apart in the median, and no moment of a state is known better."
    )


def _look(summary: Summary) -> str:
    """The median time between two looks at the primary."""
    stories = summary.replication.fallback if summary.replication else ()
    gaps = sorted(
        later - earlier for story in stories if story.series for earlier, later in pairwise(story.series.at_s)
    )
    return f"{figures.number(gaps[len(gaps) // 2])} s" if gaps else "some time"
