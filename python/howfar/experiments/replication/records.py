"""The records of replication: how far replicas were behind, what a crash lost, and what a fallback to asynchronous replication left
unprotected."""

from __future__ import annotations

from typing import Literal

from howfar.contract.message import Count
from howfar.store.records import FaultRecord, FollowerLag, Record, Window


class LagRecord(FollowerLag):
    """How far one replica was behind at one moment of the window."""

    replica: str
    behind: Count
    """Transactions that the primary had committed and the replica had not applied. The primary is queried first."""
    heartbeat_ns: Count | None
    """Age of the newest heartbeat row that the replica has applied; at least the one-way delay. None: none has arrived yet."""


class JoinRecord(Record):
    """Time and traffic that a node needed to join its cluster."""

    how: str
    """How it got the data that it lacked, in the server's terms: `SST`, `IST`, `clone`, `binary log`."""
    took_ns: int
    """From the start of its server until it was a full member."""
    received_bytes: int
    """Bytes that it received over all its links, as the kernel counts them on the senders' interfaces."""
    wire_bytes: int
    """The same by the links' own count, with the framing of each segment."""
    donor: str
    """The node at the other end of the link that carried the most bytes."""
    donor_wire_bytes: int
    segments: int
    """Number of segments over all links. A packet can have several; the kernel then counts one set of headers."""
    packets: int


class CpuShares(Record):
    """How a machine's CPUs were used, in CPUs."""

    busy: float
    idle: float
    """Idle, stolen or waiting for a disk."""
    replicas: float
    """Part of `busy` that the replicas used."""


class CrashRecord(FaultRecord):
    """What a fault lost, found by comparing the clients' logs with the survivor's rows. Times are since the load began, by one
    clock."""

    total_unit = "commits lost"
    kind: Literal["crash"] = "crash"
    fault: str
    """A level of the factor `fault`."""
    fault_ns: int
    """Right before the first action of the fault."""
    in_force_ns: int | None = None
    """When all actions of the fault were done. It took effect between `fault_ns` and this. None: older files."""
    dead_ns: int
    """When the primary was killed: by the fault itself, or some time after it."""
    watched_ns: int
    """Mean interval at which another connection polled the primary for new keys."""
    commits_per_s: float
    """Rate of acknowledged commits, from the beginning of the measured window to the fault."""
    acknowledged: int
    """Total number of commits that the primary acknowledged to clients."""
    lost: int
    """Acknowledged commits that are not on the survivor."""
    lost_after: int = 0
    """Lost commits that were acknowledged after the fault had begun, by a primary that survived it."""
    lost_in_force: int | None = None
    """Lost commits that were acknowledged after the fault was in force. None: older files."""
    first_lost_ns: int | None
    """When the first of the lost commits was acknowledged. None: nothing was lost."""
    refused: int
    unknown: int
    """Commits in progress when the primary died: no client got an answer to them."""
    applied_unknown: int
    """Unknown commits that are on the survivor: committed, but not reported to a client."""
    applied_refused: int
    seen: int
    """Keys that another connection saw on the primary."""
    seen_early: int
    """Commits that were seen before their client got its acknowledgement, or that were never acknowledged."""
    seen_early_median_ns: int | None
    """Median time from when such a commit was seen until its acknowledgement, if there was one; a lower bound."""
    phantoms: int
    """Keys that another connection saw and that are not on the survivor."""
    behind_before: int | None
    """Transactions that the replica had not applied right before the fault. It was queried before the primary, so the number may be
    too high. Of several replicas, the most advanced one. None: not queried."""
    unreceived_before: int | None = None
    """Those of `behind_before` that had not arrived: in transit, or not sent yet."""
    applied_per_s_before: float | None = None
    """Rate at which this replica applied transactions, from the beginning of the load to the fault. None: older files."""
    cpus_before: CpuShares | None = None
    """CPUs in use on the primary's machine in the measured window before the fault. None: not counted, or older files."""
    heartbeat_before_ns: int | None
    replica_rtt_ns: int
    """RTT to the replica, measured without load."""
    promoted: str | None
    """Name of the server that took over. None: none could, and the trial is void."""
    promotion_ns: int
    unapplied: int
    """Transactions that the promoted server had received but not yet applied."""
    lost_keys: tuple[int, ...]
    """The first lost keys, at most twenty."""
    stall_ns: int | None = None
    """In a cluster: the longest time without an acknowledged commit in the part that continued, from the last commit before the fault
    on. Clients at its other nodes retry continuously. None: no cluster, or older files."""
    by_itself: int | None = None
    """Commits that were sent to a node after it was cut off and that it acknowledged nevertheless."""
    meanwhile_per_s: float | None = None
    """Rate of commits that the primary acknowledged while a member was cut off or slow. None: the primary died, or older files."""
    back_ns: int | None = None
    """Time from the end of that member's fault until it was a full member again. None: it was not, or not within a minute."""
    joined: JoinRecord | None = None
    """For a fault in which a member left and joined. Then `stall_ns` ends when the primary died, and `meanwhile_per_s` is the rate
    during the join."""

    @property
    def total(self) -> int:
        return self.lost


class FallbackSample(Record):
    """The state that a primary reported at one moment."""

    at_ns: int
    semi_sync: bool
    clients: int
    waiting: int
    acknowledged: int
    """The primary's own counter; what it counts differs between servers."""
    unacknowledged: int
    behind: int | None
    """Transactions that the replica lacks. None: it could not be queried."""


class FallbackRecord(FaultRecord):
    """Effects of a replica that is away for longer than the server's timeout, and returns. Times are since the load began."""

    total_unit = "commits unprotected"
    kind: Literal["fallback"] = "fallback"
    timeout_ms: int | None
    """None: the primary has none, and waits forever."""
    left_ns: int
    returned_ns: int
    """When the link was restored."""
    reconnected_ns: int | None
    """When the replica was first seen to receive again."""
    stall_ns: int
    """The longest time in which no commit was acknowledged to any client."""
    longest_commit_ns: int
    fell_ns: int | None
    """When the primary was first seen asynchronous. None: it never fell back."""
    back_ns: int | None
    """When it was first seen semi-synchronous and stayed so. Perhaps only after the load, if commits never pause. None: not even
    then."""
    load_ended_ns: int | None = None
    """Time of the last acknowledgement to any client."""
    unprotected: int
    """Commits acknowledged to clients between `fell_ns` and `back_ns`, from the clients' logs. No replica had acknowledged them,
    although one may have received them soon after."""
    unacknowledged: int
    """Unacknowledged commits by the server's own counter, in its unit: under AFTER_SYNC MySQL counts a group of commits as
    one."""
    acknowledged: int
    """Total number of commits acknowledged to clients."""
    samples: tuple[FallbackSample, ...]
    commits: tuple[tuple[int, int], ...]
    """The start of each slice of time, and the number of commits acknowledged to clients in it. Slices have equal lengths."""
    log_lines: tuple[str, ...]
    """Lines of the primary's log about the fallback."""

    @property
    def total(self) -> int:
        return self.unprotected


FAULTS = (CrashRecord, FallbackRecord)
LAGS = (LagRecord,)


def replica_lag(window: Window) -> tuple[LagRecord, ...]:
    """The samples of the replicas' lag in a window. Empty: no replica."""
    return tuple(lag for lag in window.lag if isinstance(lag, LagRecord))
