"""The waits of semi-synchronous commits for a replica, as a limit of throughput."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.model.resource import Acknowledgement
from howfar.store.records import Trial


def _semi_sync_wait_s(trials: Sequence[Trial]) -> float | None:
    windows = [trial.receipt.replication_window for trial in trials]
    known = [window.mean_wait_us / 1e6 for window in windows if window is not None and window.mean_wait_us]
    return sum(known) / len(known) if known else None


ACKNOWLEDGEMENTS = (
    Acknowledgement(
        part="acknowledgement of a replica",
        mean_wait_s=_semi_sync_wait_s,
        limit="commits wait for a replica for {share:share} of transaction time, in round trips of {wait_ns:time}",
        measured="the primary measured waits of {wait_ns:time} each",
        unmeasured="the primary's own measure of these waits was not read",
        nearer="a replica at half the distance",
        more_waits="more connections, which wait at the same time",
        no_wait="asynchronous replication, which may lose commits in a crash",
        no_help="a faster disk, or more bandwidth to the replica",
        untestable="the replica is nearer in other cells of the plan, or in none",
        action="commit from more connections, or more rows at a time, or move the replica closer: commits wait for it",
    ),
)
