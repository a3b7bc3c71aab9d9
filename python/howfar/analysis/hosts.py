"""Facts about the hosts from the receipts of a run between hosts: limits of the load, and the effect of exchanging roles."""

from __future__ import annotations

import math
from collections.abc import Callable

from howfar.contract.receipt import HostReport
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import welch_ratio
from howfar.stats.trials import TrialTable
from howfar.store.records import Run, Trial, TrialStatus

LATE_NS = 1_000_000
"""Delay from which a late start, or a late request of an open loop, is reported."""
BUSY_SHARE = 0.9
"""Share of a CPU beyond which a client's busiest thread limited the load."""


class HostNote(Part):
    """Number of a host's good trials in which something limited its load."""

    host: str
    what: str
    """`late`: the load began late; `clipped`: requests began later than they were due; `limited`: a thread used all of its CPU."""
    trials: int
    of: int
    most: float
    """The worst value: ns of lateness, or the share of a CPU."""


class HostsSeen(Part):
    """Facts about the hosts, from the receipts of good trials."""

    notes: tuple[HostNote, ...]
    swapped: tuple[str, str] | None
    """The two hosts that exchanged their roles: the server of even blocks, and of odd ones. None if roles were not exchanged."""
    machines: Estimate | None
    """Ratio of the baseline's operations per second with the first of those hosts as the server to that with the second. None
    if it was not measured with both."""


_ReadFact = Callable[[HostReport], float | None]
_LIMIT_RULES: tuple[tuple[str, _ReadFact, float], ...] = (
    ("late", lambda host: host.late_ns, LATE_NS),
    ("clipped", lambda host: host.lateness_p99_ns, LATE_NS),
    ("limited", lambda host: host.busiest_thread_share, BUSY_SHARE),
)


def summarise_hosts(run: Run, table: TrialTable) -> HostsSeen | None:
    """Facts about the hosts of a run. None if the run was in the laboratory."""
    trials = [trial for trial in run.trials if trial.status is TrialStatus.OK and trial.receipt.hosts is not None]
    if not trials:
        return None
    roles = run.info.environment.roles
    swapped = (roles.server, roles.client) if roles is not None and roles.swaps else None
    return HostsSeen(
        notes=tuple(_collect_notes(trials)),
        swapped=swapped,
        machines=_server_ratio(trials, table, swapped) if swapped else None,
    )


def _collect_notes(trials: list[Trial]) -> list[HostNote]:
    notes = []
    reports_of_trials = [trial.receipt.hosts.start for trial in trials if trial.receipt.hosts is not None]
    for host in dict.fromkeys(name for reports in reports_of_trials for name in reports):
        reports_of_host = [reports[host] for reports in reports_of_trials if host in reports]
        for what, read_fact, limit in _LIMIT_RULES:
            values = [value for report in reports_of_host if (value := read_fact(report)) is not None]
            exceeding = [value for value in values if value > limit]
            if exceeding:
                notes.append(HostNote(host=host, what=what, trials=len(exceeding), of=len(values), most=max(exceeding)))
    return notes


def _server_ratio(trials: list[Trial], table: TrialTable, swapped: tuple[str, str]) -> Estimate | None:
    baseline = table.baseline
    if baseline is None:
        return None
    log_rates: dict[str, list[float]] = {name: [] for name in swapped}
    for trial in trials:
        rate = table.rate(trial.measured) if trial.arm == baseline.name and trial.measured else None
        if rate and trial.receipt.hosts is not None and trial.receipt.hosts.server is not None:
            log_rates[trial.receipt.hosts.server].append(math.log(rate))
    first, second = (log_rates[name] for name in swapped)
    return welch_ratio(first, second) if first and second else None
