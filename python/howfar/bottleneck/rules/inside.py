"""Rules about what happens inside the server: errors, commits, locks, and waits that it does not count."""

from __future__ import annotations

from howfar.analysis.findings import Cycle, Resource
from howfar.bottleneck.cycle import ACKNOWLEDGEMENT, COMMIT, LOCKS, part_us
from howfar.bottleneck.evidence import Evidence
from howfar.bottleneck.rules.finding import HALF, INTERNAL_SHARE, Finding
from howfar.bottleneck.words import milliseconds, percent

AGREE = 1.5
"""Within this factor the primary's clock of its waits and the round trips at rest are about the same wait."""
ERRORS_SHARE = 0.01
"""Transactions that fail are another workload: from one in a hundred on the figure is about them too."""


def errors(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Figures of transactions that fail are about something else."""
    if evidence.errors_share < ERRORS_SHARE:
        return None
    words = f"{percent(evidence.errors_share)} of the transactions met an error of the server"
    return Finding(Resource.ERRORS, words, (f"{words} (allowed {percent(ERRORS_SHARE)})",), "high")


def acknowledgements(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Commits wait for a replica for the larger part of a cycle."""
    us, wait_s = part_us(cycle, ACKNOWLEDGEMENT), evidence.setting.acknowledgement_s
    if not wait_s or us <= HALF * cycle.us:
        return None
    words = (
        f"commits wait for a replica: {percent(us / cycle.us)} of the cycle, {milliseconds(wait_s)} of round trips each"
    )
    counted = evidence.semi_sync_wait_s
    if counted is None:
        return Finding(
            Resource.ACKNOWLEDGEMENT, words, ("the primary's own clock of these waits was not read",), "medium"
        )
    agree = wait_s / AGREE <= counted <= wait_s * AGREE
    fact = f"the primary counted waits of {milliseconds(counted)} each"
    return Finding(Resource.ACKNOWLEDGEMENT, words, (fact,), "high" if agree else "medium")


def commits(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Making commits durable takes the larger part of what the server waits for."""
    us, locks = part_us(cycle, COMMIT), part_us(cycle, LOCKS)
    if us <= INTERNAL_SHARE * cycle.us or us < locks or evidence.setting.fsync_s is None or not evidence.fsyncs:
        return None
    disk = milliseconds(evidence.setting.fsync_s)
    words = f"commits wait for the disk: {percent(us / cycle.us)} of the cycle, {disk} for a durable write"
    busy = evidence.fsync_busy_share or 0.0
    facts = (
        f"{evidence.fsyncs:.2g} durable writes a transaction",
        f"one after the other they take {percent(busy)} of the time",
    )
    return Finding(
        Resource.COMMIT, words, facts, "high" if busy >= HALF or evidence.setting.connections == 1 else "medium"
    )


def locks(evidence: Evidence, cycle: Cycle) -> Finding | None:
    us = part_us(cycle, LOCKS)
    if us <= INTERNAL_SHARE * cycle.us:
        return None
    words = f"transactions wait for each other's row locks: {percent(us / cycle.us)} of the cycle"
    facts = (
        f"{evidence.lock_waits or 0:.2g} waits for a row lock a transaction",
        f"at most {us / 1e3:.2f} ms of them a transaction",
    )
    return Finding(Resource.LOCK, words, facts, "high")


def server_wait(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Statements are under way in the server, and neither CPU nor what it counts explains it."""
    running, connections = evidence.threads_running, evidence.setting.connections
    if running is None or cycle.rest_share <= INTERNAL_SHARE or running < HALF * connections:
        return None
    words = f"statements wait inside the server for what it does not count: {percent(cycle.rest_share)} of the cycle is unexplained"
    return Finding(
        Resource.SERVER_WAIT,
        words,
        (f"{running:.0f} of {connections} statements under way at the window's end",),
        "low",
    )
