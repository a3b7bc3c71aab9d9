"""Division of the cycle, the time from one transaction of a connection to its next, into parts. Unexplained time is the part `rest`.

In a closed loop each of N connections always has one transaction in progress, so the cycle is N x elapsed / transactions. Each part is
known from a source other than the clock. Parts claim their time in this order; a later part gets at most the time that the earlier
ones leave:

- CPU time of client, server and forwarder per transaction, measured. Only one of them at a time works on a transaction, so the cycle
  contains all of it, whatever N is.
- round trips: their number x the unloaded RTT.
- acknowledgement: the round trips to another server for which a commit waits, without load.
- bytes on the wire: a transaction's bytes at the link's rate, both directions, framing included. A large answer is processed while it
  crosses the link; the overlap with CPU time is not counted twice, because this part is cut to what is left. Of a real link only the
  rate of one connection is known: an upper bound.
- row locks, as the server counts them, and the disk: durable writes x the measured time of one, or one and a half such times for each
  commit if commits share writes (a commit waits for the group in progress, then for its own).
- waiting for a CPU: the scheduler's count for these processes, also of threads that work for no transaction: an upper bound.
- queue at the link, queue in the client: work of other connections that is served first. At a station with demand D, utilisation U
  and a squared coefficient of variation C² of services, at most D x U / (1 - U) x (1 + C²) / 2 (Pollaczek-Khinchine), and in a closed
  loop of N never more than D x (N - 2) plus the remaining service in progress.
- windows: time in which TCP had data to send and was not allowed to.
- loss: 200 ms and a round trip for each retransmission timeout, a round trip for each other retransmitted segment, and the additional
  round trips of a reply because loss keeps the sender's window small. If timeouts were not counted, each retransmitted segment may
  have cost one: an upper bound.
"""

from __future__ import annotations

import math
from typing import Literal

from howfar.bottleneck import acknowledgement
from howfar.bottleneck.evidence import RTO_S, ArmSetting, Evidence
from howfar.model.facts import unevenness
from howfar.paths import crosses_link
from howfar.plan.factors import PATH, PLACEMENT
from howfar.stats.estimate import Part
from howfar.store.records import Arm, RunInfo

Basis = Literal["measured", "computed", "bounded"]


class CyclePart(Part):
    """A share of the mean time from one transaction of a connection to the next."""

    name: str
    us: float
    basis: Basis
    """Read from a counter; computed from a measured rate or delay; or an upper bound cut to what was left."""


class Cycle(Part):
    """Parts add up to `us` = connections x elapsed / transactions. The last part, `rest`, is what none of the others explains."""

    us: float
    parts: tuple[CyclePart, ...]
    rest_share: float


CLIENT_CPU, SERVER_CPU, FORWARDER_CPU = "client CPU", "server CPU", "forwarder CPU"
ROUND_TRIPS, WIRE = "round trips", "bytes on the wire"
ACKNOWLEDGEMENT = acknowledgement.ACKNOWLEDGEMENT.part
LOCKS, COMMIT = "row locks", "commit to disk"
WAITING = "waiting for a CPU"
LINK_QUEUE, WINDOWS, LOSS, CLIENT_QUEUE = "queue at the link", "TCP windows", "loss", "queue in the client"
REST = "rest"
PARTS = (
    CLIENT_CPU,
    SERVER_CPU,
    FORWARDER_CPU,
    ROUND_TRIPS,
    ACKNOWLEDGEMENT,
    WIRE,
    LOCKS,
    COMMIT,
    WAITING,
    LINK_QUEUE,
    WINDOWS,
    LOSS,
    CLIENT_QUEUE,
    REST,
)
"""Names of all parts, in the order in which they are shown and claim their time."""
CPU_ROLES = {CLIENT_CPU: "client", SERVER_CPU: "server", FORWARDER_CPU: "forwarder"}

LOSS_COUNTS_SHARE = 0.001
"""Share of retransmitted segments below which they are tail loss probes, which cost almost nothing."""
LOSS_WINDOW = 1.5
"""Square of the mean window in segments, times the share of lost segments: a window is halved at each loss and grows by one segment
per round trip."""
GROUP_WAIT = 1.5
"""Mean wait of a commit that shares writes, in multiples of one write: half of the write in progress, then its own."""

MIN_COMMIT_WAIT_SHARE = 0.6
"""If a cycle is shorter than this share of the wait for another server, its transactions commit nothing: even a commit with a free
slot on the path waits two thirds of it."""


def cycle_of(evidence: Evidence) -> Cycle:
    """The cycle of an arm. Its parts add up to `evidence.cycle_s`, except for rounding. Parts of 0 are left out, but `rest` is not."""
    cycle_s = evidence.cycle_s
    parts = _cpu_claims(evidence, cycle_s)
    remaining = cycle_s - sum(seconds for _, seconds, _ in parts)
    for name, seconds, basis in _other_claims(evidence):
        claimed = min(max(remaining, 0.0), seconds)
        parts.append((name, claimed, basis))
        remaining -= claimed
    rest = max(0.0, remaining)
    nonzero_parts = [CyclePart(name=name, us=s * 1e6, basis=basis) for name, s, basis in parts if s > 0]
    return Cycle(
        us=cycle_s * 1e6,
        parts=(*nonzero_parts, CyclePart(name=REST, us=rest * 1e6, basis="computed")),
        rest_share=rest / cycle_s,
    )


def _cpu_claims(evidence: Evidence, cycle: float) -> list[tuple[str, float, Basis]]:
    """CPU time of the roles, scaled down if overlapping work (a server that cleans up after its answer) exceeds the cycle."""
    cpu_s = {part: evidence.role(role).cpu_s / evidence.transactions for part, role in CPU_ROLES.items()}
    total = sum(cpu_s.values())
    scale = cycle / total if total > cycle else 1.0
    return [(part, seconds * scale, "measured") for part, seconds in cpu_s.items()]


def _other_claims(evidence: Evidence) -> list[tuple[str, float, Basis]]:
    """Claims of all parts except CPU, in the order of PARTS."""
    setting = evidence.setting
    commit_s, commit_basis = _commit_wait(evidence)
    wire_basis: Basis = "bounded" if any(link.is_rate_lower_bound for link in evidence.directions) else "computed"
    return [
        (ROUND_TRIPS, (setting.rest_rtt_s or 0.0) * evidence.round_trips, "computed"),
        (ACKNOWLEDGEMENT, _acknowledgement_wait_s(evidence), "computed"),
        (WIRE, sum(link.wire_s or 0.0 for link in evidence.directions), wire_basis),
        (LOCKS, evidence.lock_s or 0.0, "bounded"),
        (COMMIT, commit_s, commit_basis),
        (WAITING, sum(evidence.role(role).wait_s for role in CPU_ROLES.values()) / evidence.transactions, "bounded"),
        (LINK_QUEUE, _link_queue_s(evidence), "bounded"),
        (WINDOWS, _window_wait_s(evidence), "bounded"),
        (LOSS, _loss_wait_s(evidence), "bounded"),
        (CLIENT_QUEUE, _client_queue_s(evidence), "bounded"),
    ]


def _acknowledgement_wait_s(evidence: Evidence) -> float:
    """Wait for another server. 0 if cycles are too short for it, because then transactions commit nothing."""
    wait_s = evidence.setting.acknowledgement_s or 0.0
    return wait_s if evidence.cycle_s >= MIN_COMMIT_WAIT_SHARE * wait_s else 0.0


def _commit_wait(evidence: Evidence) -> tuple[float, Basis]:
    """Wait for the disk. A single connection waits for each of its writes. One of several connections waits at most for the present
    group of commits and then for its own."""
    if evidence.fsyncs is None or evidence.setting.fsync_s is None:
        return 0.0, "computed"
    if evidence.setting.connections == 1 or not evidence.commits or evidence.fsyncs >= evidence.commits:
        return evidence.fsyncs * evidence.setting.fsync_s, "computed"
    if evidence.fsyncs * evidence.setting.connections < evidence.commits:  # background tasks made most of these writes
        return evidence.fsyncs * evidence.setting.fsync_s, "computed"
    return GROUP_WAIT * evidence.commits * evidence.setting.fsync_s, "bounded"


def max_queue_wait_s(demand_s: float, utilisation: float, connections: int, unevenness: float = 1.0) -> float:
    """Upper bound of the mean wait at a station with this demand per transaction and this utilisation, in a closed loop.
    `unevenness`: the remaining time of a service in progress over the mean service, (1 + C²) / 2."""
    bound_s = demand_s * (connections - 2 + unevenness) if connections > 1 else 0.0
    return bound_s if utilisation >= 1 else min(bound_s, demand_s * utilisation / (1 - utilisation) * unevenness)


def _link_queue_s(evidence: Evidence) -> float:
    setting = evidence.setting
    return sum(
        max_queue_wait_s(link.wire_s, link.used, setting.connections, setting.unevenness)
        for link in evidence.directions
        if link.wire_s and link.used
    )


def _window_wait_s(evidence: Evidence) -> float:
    """Time of a cycle in which a window kept either sender from sending."""
    limited_shares = [tcp.rwnd_of_window + tcp.sndbuf_of_window for tcp in evidence.tcp.values()]
    return min(1.0, sum(limited_shares)) * evidence.cycle_s


def _loss_wait_s(evidence: Evidence) -> float:
    if not evidence.retransmits or (evidence.retransmit_share or 0.0) < LOSS_COUNTS_SHARE:
        return 0.0
    rtt_s = evidence.setting.rest_rtt_s or 0.0
    timeouts = evidence.retransmits if evidence.timeouts is None else min(evidence.timeouts, evidence.retransmits)
    fast_retransmits = evidence.retransmits - timeouts
    return (
        timeouts * RTO_S
        + (timeouts + fast_retransmits + (_extra_round_trips(evidence) if fast_retransmits else 0.0)) * rtt_s
    )


def _extra_round_trips(evidence: Evidence) -> float:
    """Additional round trips of a transaction at the mean window for this loss: sqrt(3/2p) segments (Mathis and others, 1997)."""
    share = evidence.retransmit_share or 0.0
    segments = max((link.segments for link in evidence.directions), default=0.0)
    return max(0.0, segments / math.sqrt(LOSS_WINDOW / share) - evidence.round_trips) if share else 0.0


def _client_queue_s(evidence: Evidence) -> float:
    """Wait of answers: each of the client's threads serves many connections, so an answer waits for those ahead of it."""
    client, workers = evidence.role("client"), evidence.client_workers
    busy_s = client.cpu_s + client.wait_s
    connections_per_worker = -(-evidence.setting.connections // workers)
    utilisation = busy_s / (evidence.elapsed_s * workers)
    return max_queue_wait_s(
        busy_s / evidence.transactions, utilisation, connections_per_worker, evidence.setting.unevenness
    )


def double_counted_share(evidence: Evidence, cycle: Cycle) -> float:
    """The share of the cycle that may be counted twice: a ping without load includes work of both kernels, which also counts as CPU
    time."""
    hosts_us = (evidence.setting.hosts_rtt_s or 0.0) * evidence.round_trips * 1e6
    return min(hosts_us, part_us(cycle, *CPU_ROLES), part_us(cycle, ROUND_TRIPS)) / cycle.us


def max_link_us(evidence: Evidence, cycle: Cycle) -> float:
    """Upper bound for bytes on the wire and the queue for it, at most the cycle without CPU time and round trips: the true values
    of other upper bounds, which claim their time earlier, may be nearly 0."""
    link_s = sum(link.wire_s or 0.0 for link in evidence.directions) + _link_queue_s(evidence)
    return min(link_s * 1e6, cycle.us - part_us(cycle, *CPU_ROLES, ROUND_TRIPS))


def part_us(cycle: Cycle, *names: str) -> float:
    """Sum of the times of these parts."""
    return sum(part.us for part in cycle.parts if part.name in names)


def largest_parts(cycle: Cycle, count: int) -> tuple[CyclePart, ...]:
    return tuple(sorted(cycle.parts, key=lambda part: -part.us)[:count])


def setting_of(
    info: RunInfo,
    arm: Arm,
    connections: int,
    rest_rtt_s: float | None,
    acknowledgement_s: float | None = None,
    hosts_rtt_s: float | None = None,
) -> ArmSetting:
    """Facts that the arm's trials share. Client and server share CPUs on local paths of the placement `share_cpus`."""
    environment = info.environment
    server_cpus, fsync_ns = tuple(environment.server_cpus), environment.fsync_ns
    share_cpus = (PLACEMENT.level_or_none(arm.factors) or environment.placement) == "machines" and not crosses_link(
        PATH.level_or_none(arm.factors)
    )
    return ArmSetting(
        connections=connections,
        factors=arm.factors,
        client_cpus=server_cpus if share_cpus else tuple(environment.client_cpus),
        server_cpus=server_cpus,
        rest_rtt_s=rest_rtt_s,
        machine_cpus=environment.cpu_count,
        fsync_s=fsync_ns / 1e9 if fsync_ns else None,
        acknowledgement_s=acknowledgement_s,
        hosts_rtt_s=hosts_rtt_s,
        unevenness=unevenness(info.stored_plan.workload),
    )
