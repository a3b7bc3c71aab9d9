"""The rules of attribution, in the order in which they are applied. The first rule that applies names the limit.

A rule is a function of the evidence and the cycle; a new one is a function and its position in `RULES`. docs/bottleneck.md
describes the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from howfar.bottleneck import cycle as cycles
from howfar.bottleneck.cycle import Cycle, double_counted_share, largest_parts, part_us
from howfar.bottleneck.evidence import CpuSet, Evidence, connects_each_time
from howfar.bottleneck.texts import CPU_USER_SHARE, CPU_USERS, DIRECTIONS, NO_CPU_USERS, PART_SHARE, UNEXPLAINED
from howfar.findings import Finding, fill
from howfar.model.resource import Resource

Confidence = Literal["high", "medium", "low"]

FULL_SHARE = 0.95
"""Use from which a link, a CPU or a thread counts as full. The remaining share is within the resolution of clocks and windows."""
INTERNAL_SHARE = 0.30
"""Share of the cycle spent in waits that the server counts itself, beyond which they are the limit."""
HALF = 0.5
REST_SHARE = 0.15
"""Unexplained share of the cycle beyond which it could hide a full resource without a counter."""


@dataclass(frozen=True)
class RuleFinding:
    """Result of a rule. Its texts are in `texts.py`."""

    resource: Resource
    limit: Finding
    """With an id of `LIMITS`."""
    facts: tuple[Finding, ...]
    """Each a measured figure, often with its limit, and an id of `FACTS`."""
    confidence: Confidence
    divided: bool = False
    """Whether no user dominates the CPUs."""


DIGITS = 4
"""Decimals of parameters. Further digits are noise."""
MIB = 2**20
_MIN_NAMED_SHARE = 0.02
"""Minimum share of a CPU from which its user is named."""


def make_finding(finding_id: str, **parameters: str | int | float) -> Finding:
    """A finding with rounded parameters."""
    rounded = {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in parameters.items()}
    return Finding(id=finding_id, parameters=rounded)


def _users_text(shares: Mapping[str, float]) -> str:
    """Users of a CPU, the largest first: `server 62 %, emulator 35 %`."""
    named = sorted((item for item in shares.items() if item[1] >= _MIN_NAMED_SHARE), key=lambda item: -item[1])
    return (
        ", ".join(fill(CPU_USER_SHARE, name=CPU_USERS.get(role, role), share=share) for role, share in named)
        or NO_CPU_USERS
    )


def _cpu_use(cpus: CpuSet) -> Finding:
    return make_finding("cpu-use", host=cpus.name, used=cpus.used, users=_users_text(cpus.owners))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


Rule = Callable[[Evidence, Cycle], RuleFinding | None]
"""Returns a finding. None: the rule does not apply."""
MATTERS_SHARE = 0.30
"""Share of the cycle spent on a full CPU or waiting for it, below which the CPU does not limit the transactions."""
WAITS_SHARE = 0.20
"""Share of the cycle spent runnable without a CPU, beyond which it counts as a queue and not as a chance effect of scheduling."""
CLIENT_WAITS_SHARE = 0.10
"""Share of the time in which the load generator's thread was runnable without a CPU, from which the figures describe its own
scheduling."""
DOMINANCE_RATIO = 2.0
"""Ratio of the largest share of a CPU to the next, from which its user dominates, as does a user with half of the CPU time in use."""
_RESOURCE_OF_USER = {
    "server": Resource.SERVER_CPU,
    "client": Resource.CLIENT_CPU,
    "forwarder": Resource.FORWARDER_CPU,
    "link": Resource.INSTRUMENT_CPU,
    "others": Resource.INVALID,
}


def client_thread(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the load generator's thread is always busy."""
    share = evidence.thread_share("client")
    if share < FULL_SHARE:
        return None
    limit = make_finding("busy-load-generator", share=share)
    return RuleFinding(Resource.CLIENT_CPU, limit, (_thread_time(share),), "high")


def _thread_time(share: float) -> Finding:
    return make_finding("thread-time", share=share, limit=FULL_SHARE)


def full_cpus(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the CPUs of a host are full, with the load's own work or so that transactions wait for them. Their main user is the
    limit."""
    full = [cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE]
    is_load_use_full = any(cpus.own_use - cpus.owners.get("link", 0.0) >= FULL_SHARE for cpus in full)
    if not full or not (is_load_use_full or cpu_residence(evidence, cycle, full) >= MATTERS_SHARE):
        return None
    shares = _pool_shares(full)
    main_user, divided = _largest_user(shares)
    users = _users_text(shares)
    limit = make_finding("full-cpus", users=users)
    if len(full) == 1:
        limit = make_finding("full-cpu", host=full[0].name, users=users)
    facts = (*map(_cpu_use, full), make_finding("cpu-time", share=cpu_residence(evidence, cycle, full)))
    is_clear = shares[main_user] >= HALF and all(cpus.busy is not None for cpus in full)
    confidence: Confidence = "low" if divided else "high" if is_clear else "medium"
    return RuleFinding(_RESOURCE_OF_USER[main_user], limit, facts, confidence, divided)


def _largest_user(shares: dict[str, float]) -> tuple[str, bool]:
    """The largest user of a CPU, and whether no user dominates. If none does, the largest user other than `others` is returned:
    whether a cell's figures are invalid must not depend on a small difference."""
    first, *rest = sorted(shares, key=lambda role: -shares[role])
    next_share = shares[rest[0]] if rest else 0.0
    is_dominant = shares[first] >= HALF * sum(shares.values()) or shares[first] >= DOMINANCE_RATIO * next_share
    return (rest[0] if not is_dominant and first == "others" else first), not is_dominant


def _pool_shares(sets: list[CpuSet]) -> dict[str, float]:
    """Mean shares over the CPUs of all sets."""
    count = sum(cpus.cpus for cpus in sets)
    roles = {role for cpus in sets for role in cpus.owners}
    return {role: sum(cpus.owners.get(role, 0.0) * cpus.cpus for cpus in sets) / count for role in sorted(roles)}


def cpu_residence(evidence: Evidence, cycle: Cycle, sets: list[CpuSet]) -> float:
    """Share of the cycle spent on the CPUs of these hosts, or waiting for them."""
    names = {cpus.name for cpus in sets}
    us, waits_s = 0.0, 0.0
    for host, parts in (("server", (cycles.SERVER_CPU,)), ("client", (cycles.CLIENT_CPU, cycles.CLIENT_QUEUE))):
        if host in names or len(evidence.cpu_sets) == 1:
            share = evidence.forwarder_share[host]
            us += part_us(cycle, *parts) + share * part_us(cycle, cycles.FORWARDER_CPU)
            waits_s += evidence.role(host).wait_s + share * evidence.role("forwarder").wait_s
    return (us + min(part_us(cycle, cycles.WAITING), waits_s * 1e6 / evidence.transactions)) / cycle.us


def cpu_queue(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the server's threads wait for CPUs that are not quite full on average."""
    wait_share = (
        min(part_us(cycle, cycles.WAITING), evidence.role("server").wait_s * 1e6 / evidence.transactions) / cycle.us
    )
    cpus = evidence.server_cpus
    if wait_share <= WAITS_SHARE:
        return None
    is_accounted = cpus.used >= HALF  # otherwise an unknown process uses it
    main_user, divided = _largest_user(cpus.owners) if is_accounted and cpus.owners else ("others", False)
    facts = (make_finding("waiting", role="server", share=wait_share, limit=WAITS_SHARE), _cpu_use(cpus))
    limit = make_finding("waiting-server", share=wait_share, users=_users_text(cpus.owners))
    return RuleFinding(_RESOURCE_OF_USER[main_user], limit, facts, "low" if divided else "medium", divided)


def one_thread(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: a single thread is always busy, which the mean over several CPUs hides."""
    for role in ("server", "forwarder", "link"):
        share = evidence.thread_share(role)
        if share < FULL_SHARE:
            continue
        if role == "link":
            limit = make_finding("busy-emulator", share=share)
            return RuleFinding(Resource.INSTRUMENT_CPU, limit, (_thread_time(share),), "medium")
        others_have_time = all(cpus.used < FULL_SHARE for cpus in evidence.cpu_sets)
        limit = make_finding("busy-thread" if others_have_time else "busy-thread-and-cpus", role=role, share=share)
        return RuleFinding(Resource.ONE_THREAD, limit, (_thread_time(share),), "high" if others_have_time else "medium")
    return None


def waiting_client(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the load generator was runnable without a CPU: other programs used the CPUs, or it needs more CPUs than there are."""
    share = evidence.client_waited_share
    share_of_cycle = (
        evidence.role("client").wait_s * 1e6 / evidence.transactions + part_us(cycle, cycles.CLIENT_QUEUE)
    ) / cycle.us
    cpus = evidence.cpu_sets[-1]
    if share <= CLIENT_WAITS_SHARE or share_of_cycle <= CLIENT_WAITS_SHARE:
        return None
    if cpus.busy is not None and cpus.used < HALF:
        return None  # the CPUs were mostly idle, so the wait is only one of the parts of the cycle
    owners = cpus.owners
    main_user, divided = _largest_user(owners) if owners else ("client", False)
    limit = make_finding("waiting-load-generator", share=share, users=_users_text(owners))
    confidence: Confidence = "low" if divided or cpus.busy is None else "medium"
    facts = (make_finding("waiting", role="load generator", share=share, limit=CLIENT_WAITS_SHARE),)
    return RuleFinding(_RESOURCE_OF_USER[main_user], limit, facts, confidence, divided)


def busy_machine(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: too much is unexplained, and other programs use the CPUs. No counter shows their effect on wake-ups and queues."""
    busy_sets = [
        cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE and cpus.owners.get("others", 0.0) >= HALF
    ]
    if not busy_sets or cycle.rest_share <= REST_SHARE:
        return None
    limit = make_finding("crowded-machine", share=cycle.rest_share)
    return RuleFinding(Resource.INVALID, limit, tuple(map(_cpu_use, busy_sets)), "medium")


HIDDEN_SHARE = 0.95
"""Minimum of connections x unexplained share, the mean number of connections in unexplained waits, for a hidden resource to be
full."""


def latency(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: no resource is full, and round trips take most of the time."""
    share = part_us(cycle, cycles.ROUND_TRIPS) / cycle.us
    if share <= HALF or _could_hide_resource(evidence, cycle.rest_share):
        return None
    limit = make_finding(
        "round-trips", share=share, round_trips=evidence.round_trips, rtt_ns=_ns(evidence.setting.rest_rtt_s or 0)
    )
    is_clear = cycle.rest_share <= REST_SHARE and share - double_counted_share(evidence, cycle) > HALF
    return _latency_finding(limit, evidence, cycle, "high" if is_clear else "medium")


def one_at_a_time(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: no resource is full, and each connection waits for its own transaction."""
    first = largest_parts(cycle, 1)[0]
    if first.name == cycles.REST or _could_hide_resource(evidence, cycle.rest_share):
        return None
    if first.basis == "bounded" and _could_hide_resource(evidence, _unproven_share(cycle)):
        return None  # the largest part is an upper bound, and may in fact be almost nothing
    limit = make_finding("one-at-a-time", part=first.name, share=first.us / cycle.us)
    return _latency_finding(limit, evidence, cycle, "medium")


def _latency_finding(limit: Finding, evidence: Evidence, cycle: Cycle, confidence: Confidence) -> RuleFinding:
    """A finding about transaction time. Its confidence is low if upper bounds claim time that a full resource could have
    taken."""
    time, unproven = make_finding("transaction", transaction_ns=round(cycle.us * 1e3)), _unproven_share(cycle)
    facts = (time, *_usage_facts(evidence))
    if not _could_hide_resource(evidence, unproven):
        return RuleFinding(Resource.LATENCY, limit, facts, confidence)
    return RuleFinding(Resource.LATENCY, limit, (*facts, make_finding("unproven", share=unproven)), "low")


def _unproven_share(cycle: Cycle) -> float:
    """Share of the cycle that may be unexplained: the rest, and the parts that are only upper bounds."""
    return cycle.rest_share + sum(part.us for part in cycle.parts if part.basis == "bounded") / cycle.us


def _could_hide_resource(evidence: Evidence, share: float) -> bool:
    """Whether a full resource without a counter could account for this share of the cycle."""
    return share > REST_SHARE and evidence.setting.connections * share >= HIDDEN_SHARE


def _usage_facts(evidence: Evidence) -> tuple[Finding, ...]:
    facts = [make_finding("load-cpu-use", host=cpus.name, used=cpus.own_use) for cpus in evidence.cpu_sets]
    facts += [
        make_finding("link-use", direction=DIRECTIONS[link.name], used=link.used, bound=int(link.is_rate_lower_bound))
        for link in evidence.directions
        if link.used is not None
    ]
    facts += [make_finding("unknown-windows")] if connects_each_time(evidence.setting.factors) else []
    return tuple(facts)


def not_established(evidence: Evidence, cycle: Cycle) -> RuleFinding:
    """The finding if no rule applies: no counter shows a full resource, and too much is unexplained to exclude one."""
    shares = {part.name: part.us / cycle.us for part in largest_parts(cycle, 3)}
    parts = ", ".join(
        fill(PART_SHARE, name=UNEXPLAINED if name == cycles.REST else name, share=share)
        for name, share in shares.items()
    )
    return RuleFinding(Resource.NOT_ESTABLISHED, make_finding("unknown", parts=parts), _usage_facts(evidence), "low")


MAX_WAIT_RATIO = 1.5
"""Maximum ratio between the wait measured by the primary and the unloaded round trips, up to which they count as the same wait."""
ERRORS_SHARE = 0.01
"""Share of failed transactions from which the figures describe a different workload."""


def errors(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: transactions fail, so the figures describe a different workload."""
    if evidence.errors_share < ERRORS_SHARE:
        return None
    limit = make_finding("errors", share=evidence.errors_share)
    return RuleFinding(
        Resource.ERRORS, limit, (make_finding("failures", share=evidence.errors_share, limit=ERRORS_SHARE),), "high"
    )


def acknowledgements(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: commits wait for another server for the larger part of a cycle."""
    us, wait_s = part_us(cycle, cycles.ACKNOWLEDGEMENT), evidence.setting.acknowledgement_s
    if not wait_s or us <= HALF * cycle.us:
        return None
    limit = make_finding("acknowledgement", share=us / cycle.us, wait_ns=_ns(wait_s))
    measured_wait_s = evidence.measured_acknowledgement_s
    if measured_wait_s is None:
        return RuleFinding(Resource.ACKNOWLEDGEMENT, limit, (make_finding("unknown-primary-wait"),), "medium")
    agree = wait_s / MAX_WAIT_RATIO <= measured_wait_s <= wait_s * MAX_WAIT_RATIO
    facts = (make_finding("primary-wait", wait_ns=_ns(measured_wait_s)),)
    return RuleFinding(Resource.ACKNOWLEDGEMENT, limit, facts, "high" if agree else "medium")


def commits(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: commits wait for durable writes for a large part of a cycle, and for longer than for row locks."""
    us, locks = part_us(cycle, cycles.COMMIT), part_us(cycle, cycles.LOCKS)
    if us <= INTERNAL_SHARE * cycle.us or us < locks or evidence.setting.fsync_s is None or not evidence.fsyncs:
        return None
    busy = evidence.fsync_busy_share or 0.0
    facts = (make_finding("writes", count=evidence.fsyncs), make_finding("writes-in-turn", share=busy))
    is_clear = busy >= HALF or evidence.setting.connections == 1
    limit = make_finding("commit", share=us / cycle.us, write_ns=_ns(evidence.setting.fsync_s))
    return RuleFinding(Resource.COMMIT, limit, facts, "high" if is_clear else "medium")


def locks(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: transactions wait for row locks for a large part of a cycle."""
    us = part_us(cycle, cycles.LOCKS)
    if us <= INTERNAL_SHARE * cycle.us:
        return None
    facts = (make_finding("lock-waits", count=evidence.lock_waits or 0), make_finding("lock-time", ms=us / 1e3))
    return RuleFinding(Resource.LOCK, make_finding("lock", share=us / cycle.us), facts, "high")


def server_wait(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: statements are in progress in the server for a time that neither CPU time nor its counters explain."""
    running, connections = evidence.threads_running, evidence.setting.connections
    if running is None or cycle.rest_share <= INTERNAL_SHARE or running < HALF * connections:
        return None
    fact = make_finding("statements", running=running, connections=connections)
    return RuleFinding(Resource.SERVER_WAIT, make_finding("server-wait", share=cycle.rest_share), (fact,), "low")


BURSTY_SHARE, BURSTY_STRETCH = 0.90, 2.0
"""Mean use of a link, and ratio of the round trip to the shortest, from which the link is full in bursts."""
DROPPED_RATIO = 1.01
"""Ratio of bytes sent into a link to bytes carried, from which segments were dropped. A smaller ratio is within the resolution of the
counters."""
LIMITED_SHARE, LIMITED_WINDOW_SHARE = 0.30, 0.10
"""Minimum time in which a TCP window or buffer kept the sender from sending, if that is the limit: as a share of the time with data to
send, and of the measured window."""
SMALL_PACKETS_SHARE = 0.02
"""Difference between the use of a link and its bytes as a share of the ceiling in full frames, from which packets are small."""
LOSS_MATTERS_SHARE = 0.10
"""Share of the cycle spent waiting for lost segments, below which they do not limit anything."""


def full_link(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the busier direction of the link is full, compared with its rate."""
    link = max(evidence.directions, key=lambda link: link.used or 0.0, default=None)
    if link is None or link.used is None or link.is_rate_lower_bound:
        return None
    stretch = max((tcp.rtt_stretch or 0.0 for tcp in evidence.tcp.values()), default=0.0)
    bursty = link.used >= BURSTY_SHARE and stretch > BURSTY_STRETCH
    if link.used < FULL_SHARE and not bursty:
        return None
    full, direction = link.used >= FULL_SHARE, DIRECTIONS[link.name]
    facts = [make_finding("wire-use", direction=direction, used=link.used)]
    facts += [make_finding("longer-round-trips", ratio=stretch)] if stretch > BURSTY_STRETCH else []
    if link.offered_bytes_per_s > DROPPED_RATIO * link.interface_bytes_per_s:
        facts.append(make_finding("dropping-queue", speed=link.offered_bytes_per_s / MIB))
    facts += [make_finding("queue", kb=link.queue_bytes / 1e3)] if link.queue_bytes else []
    assert link.ceilings is not None, "a link in use has a rate"
    share_of_ceiling = link.interface_bytes_per_s / link.ceilings.interface
    is_small = abs(share_of_ceiling - link.used) > SMALL_PACKETS_SHARE
    limit = make_finding(
        "full-link-of-small-packets" if is_small else "full-link",
        direction=direction,
        bursts=int(not full),
        speed=link.interface_bytes_per_s / MIB,
        ceiling=link.ceilings.interface / MIB,
        used=link.used,
    )
    resource = Resource.LINK_TO_CLIENT if link.name == "to_client" else Resource.LINK_TO_SERVER
    return RuleFinding(resource, limit, tuple(facts), "high" if full and link.counted else "medium")


def possibly_full_link(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: a real link carries about the rate of one connection before the run. No counter tells whether it could carry more."""
    link = max(evidence.directions, key=lambda link: link.used or 0.0, default=None)
    if link is None or not link.is_rate_lower_bound or (link.used or 0.0) < BURSTY_SHARE:
        return None
    limit = make_finding(
        "perhaps-full-link",
        direction=DIRECTIONS[link.name],
        speed=link.interface_bytes_per_s / MIB,
        share=BURSTY_SHARE,
    )
    return RuleFinding(Resource.NOT_ESTABLISHED, limit, _usage_facts(evidence), "low")


def limiting_windows(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the sender had data and could not send because of the receiver's window or its own buffer."""
    for host, tcp in sorted(evidence.tcp.items(), key=lambda item: item[0] != "server"):
        facts = (make_finding("sending-time", sender=host, share=tcp.busy_share), _window_fact(evidence))
        if tcp.rwnd_of_busy > LIMITED_SHARE and tcp.rwnd_of_window > LIMITED_WINDOW_SHARE:
            receiver = "client" if host == "server" else "server"
            limit = make_finding("receive-window", receiver=receiver, sender=host, share=tcp.rwnd_of_busy)
            return RuleFinding(Resource.RECEIVE_WINDOW, limit, facts, "high")
        if tcp.sndbuf_of_busy > LIMITED_SHARE and tcp.sndbuf_of_window > LIMITED_WINDOW_SHARE:
            limit = make_finding("send-buffer", sender=host, share=tcp.sndbuf_of_busy)
            return RuleFinding(Resource.SEND_BUFFER, limit, facts, "high")
    return None


def _window_fact(evidence: Evidence) -> Finding:
    rtt_s = evidence.setting.rest_rtt_s
    return make_finding("window", rtt_ns=_ns(rtt_s)) if rtt_s else make_finding("window-without-link")


def loss(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: segments were retransmitted, and no resource was seen to be full."""
    share = evidence.retransmit_share
    if (
        share is None
        or share <= cycles.LOSS_COUNTS_SHARE
        or part_us(cycle, cycles.LOSS) <= LOSS_MATTERS_SHARE * cycle.us
    ):
        return None
    uses = [link.used for link in evidence.directions]
    not_full = bool(uses) and all(used is not None and used < FULL_SHARE for used in uses)
    limit = make_finding("loss", share=share, not_full=int(not_full))
    retransmits = make_finding("retransmits", count=evidence.retransmits or 0.0, limit=cycles.LOSS_COUNTS_SHARE)
    if evidence.timeouts is None:
        return RuleFinding(Resource.LOSS, limit, (retransmits, make_finding("unknown-timeouts")), "low")
    facts = (retransmits, make_finding("timeouts", count=evidence.timeouts))
    return RuleFinding(Resource.LOSS, limit, facts, "high" if share > 3 * cycles.LOSS_COUNTS_SHARE else "medium")


RULES: tuple[Rule, ...] = (
    errors,
    full_link,
    client_thread,
    full_cpus,
    one_thread,
    cpu_queue,
    waiting_client,
    limiting_windows,
    possibly_full_link,
    loss,
    acknowledgements,
    commits,
    locks,
    server_wait,
    latency,
    one_at_a_time,
    busy_machine,
)


def judge(evidence: Evidence, cycle: Cycle) -> RuleFinding:
    """The finding of the first rule that applies, or `not_established`."""
    for rule in RULES:
        finding = rule(evidence, cycle)
        if finding is not None:
            return finding
    return not_established(evidence, cycle)
