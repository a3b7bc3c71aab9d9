"""The rules of attribution, in the order in which they are applied. The first rule that applies names the limit.

A rule is a function of the evidence and the cycle; a new one is a function and its position in `RULES`. docs/bottleneck.md
describes the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from howfar.bottleneck.cycle import (
    ACKNOWLEDGEMENT,
    CLIENT_CPU,
    CLIENT_QUEUE,
    COMMIT,
    FORWARDER_CPU,
    LOCKS,
    LOSS,
    LOSS_COUNTS_SHARE,
    REST,
    ROUND_TRIPS,
    SERVER_CPU,
    WAITING,
    Cycle,
    double_counted_share,
    largest_parts,
    part_us,
)
from howfar.bottleneck.evidence import CpuSet, Evidence, connects_each_time
from howfar.bottleneck.traffic import (
    DIRECTION_LABELS,
    owners_text,
    percent,
    speed_pair,
    speed_text,
    time_text,
)
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
    """Result of a rule."""

    resource: Resource
    says: str
    evidence: tuple[str, ...]
    confidence: Confidence
    divided: bool = False
    """Whether no user dominates the CPUs."""


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
"""Ratio of the largest share of a CPU to the next, from which its user dominates. A user with half of the CPU time in use dominates,
too."""


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
    says = f"the load generator's thread was on its CPU for {percent(share)} of the time, so these figures describe the load generator"
    return RuleFinding(Resource.CLIENT_CPU, says, (f"client thread {percent(share)} on a CPU",), "high")


def full_cpus(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the CPUs of a host are full, with the load's own work or so that transactions wait for them. Their main user is the
    limit."""
    full = [cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE]
    is_load_use_full = any(cpus.own_use - cpus.owners.get("link", 0.0) >= FULL_SHARE for cpus in full)
    if not full or not (is_load_use_full or cpu_residence(evidence, cycle, full) >= MATTERS_SHARE):
        return None
    shares = _pool_shares(full)
    main_user, divided = _largest_user(shares)
    hosts = "the CPUs of both hosts are" if len(full) > 1 else f"the CPU of the {full[0].name} is"
    facts: tuple[str, ...] = tuple(
        f"CPU of the {cpus.name}: {percent(cpus.used)} in use ({owners_text(cpus.owners)})" for cpus in full
    )
    facts += (
        f"{percent(cpu_residence(evidence, cycle, full))} of the cycle is spent on these CPUs or waiting for them",
    )
    confidence: Confidence = (
        "high" if shares[main_user] >= HALF and all(cpus.busy is not None for cpus in full) else "medium"
    )
    says = f"{hosts} full: {owners_text(shares)}"
    if divided:
        return RuleFinding(_RESOURCE_OF_USER[main_user], says + _NO_DOMINANT_USER, facts, "low", divided=True)
    return RuleFinding(_RESOURCE_OF_USER[main_user], says + _user_note(main_user), facts, confidence)


_NO_DOMINANT_USER = "; no single program uses most of it"


def _largest_user(shares: dict[str, float]) -> tuple[str, bool]:
    """The largest user of a CPU, and whether no user dominates. If none does, the largest user other than `others` is returned:
    whether a cell's figures are invalid must not depend on a small difference."""
    first, *rest = sorted(shares, key=lambda role: -shares[role])
    next_share = shares[rest[0]] if rest else 0.0
    is_dominant = shares[first] >= HALF * sum(shares.values()) or shares[first] >= DOMINANCE_RATIO * next_share
    return (rest[0] if not is_dominant and first == "others" else first), not is_dominant


def _user_note(owner: str) -> str:
    match owner:
        case "client":
            return "; these figures describe the load generator"
        case "link":
            return "; the link's emulator is part of the instrument, not of the path"
        case "others":
            return "; these figures describe the other programs on this machine"
        case _:
            return ""


def _pool_shares(sets: list[CpuSet]) -> dict[str, float]:
    """Mean shares over the CPUs of all sets."""
    count = sum(cpus.cpus for cpus in sets)
    roles = {role for cpus in sets for role in cpus.owners}
    return {role: sum(cpus.owners.get(role, 0.0) * cpus.cpus for cpus in sets) / count for role in sorted(roles)}


def cpu_residence(evidence: Evidence, cycle: Cycle, sets: list[CpuSet]) -> float:
    """Share of the cycle spent on the CPUs of these hosts, or waiting for them."""
    names = {cpus.name for cpus in sets}
    us, waits_s = 0.0, 0.0
    for host, parts in (("server", (SERVER_CPU,)), ("client", (CLIENT_CPU, CLIENT_QUEUE))):
        if host in names or len(evidence.cpu_sets) == 1:
            share = evidence.forwarder_share[host]
            us += part_us(cycle, *parts) + share * part_us(cycle, FORWARDER_CPU)
            waits_s += evidence.role(host).wait_s + share * evidence.role("forwarder").wait_s
    return (us + min(part_us(cycle, WAITING), waits_s * 1e6 / evidence.transactions)) / cycle.us


def cpu_queue(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the server's threads wait for CPUs that are not quite full on average."""
    wait_share = min(part_us(cycle, WAITING), evidence.role("server").wait_s * 1e6 / evidence.transactions) / cycle.us
    cpus = evidence.server_cpus
    if wait_share <= WAITS_SHARE:
        return None
    is_accounted = cpus.used >= HALF  # otherwise an unknown process uses it
    main_user, divided = _largest_user(cpus.owners) if is_accounted and cpus.owners else ("others", False)
    says = f"the server's threads wait for a CPU for {percent(wait_share)} of the cycle: {owners_text(cpus.owners)}"
    says += _NO_DOMINANT_USER if divided else ""
    facts = (
        f"the server's threads were runnable without a CPU for {percent(wait_share)} of the cycle",
        f"CPU of the server: {percent(cpus.used)} in use",
    )
    return RuleFinding(_RESOURCE_OF_USER[main_user], says, facts, "low" if divided else "medium", divided)


def one_thread(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: a single thread is always busy, which the mean over several CPUs hides."""
    for role in ("server", "forwarder", "link"):
        share = evidence.thread_share(role)
        if share < FULL_SHARE:
            continue
        if role == "link":
            says = f"one thread of the link's emulator was on a CPU for {percent(share)} of the time"
            return RuleFinding(Resource.INSTRUMENT_CPU, says, (says,), "medium")
        others_have_time = all(cpus.used < FULL_SHARE for cpus in evidence.cpu_sets)
        says = f"one thread of the {role} was on a CPU for {percent(share)} of the time"
        says += ", while other CPUs had time left" if others_have_time else "; the other CPUs had hardly any time left"
        return RuleFinding(Resource.ONE_THREAD, says, (says,), "high" if others_have_time else "medium")
    return None


def waiting_client(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the load generator was runnable without a CPU: other programs used the CPUs, or it needs more CPUs than there are."""
    share = evidence.client_waited_share
    share_of_cycle = (
        evidence.role("client").wait_s * 1e6 / evidence.transactions + part_us(cycle, CLIENT_QUEUE)
    ) / cycle.us
    cpus = evidence.cpu_sets[-1]
    if share <= CLIENT_WAITS_SHARE or share_of_cycle <= CLIENT_WAITS_SHARE:
        return None
    if cpus.busy is not None and cpus.used < HALF:
        return None  # the CPUs were mostly idle, so the wait is only one of the parts of the cycle
    owners = cpus.owners
    main_user, divided = _largest_user(owners) if owners else ("client", False)
    says = f"the load generator waited for a CPU for {percent(share)} of the time: {owners_text(owners)}"
    note = _NO_DOMINANT_USER if divided else _user_note(main_user) if main_user == "client" else ""
    facts = (f"client runnable without a CPU for {percent(share)} of the time (limit {percent(CLIENT_WAITS_SHARE)})",)
    return RuleFinding(
        _RESOURCE_OF_USER[main_user], says + note, facts, "low" if divided or cpus.busy is None else "medium", divided
    )


def busy_machine(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: too much is unexplained, and other programs use the CPUs. No counter shows their effect on wake-ups and queues."""
    busy_sets = [
        cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE and cpus.owners.get("others", 0.0) >= HALF
    ]
    if not busy_sets or cycle.rest_share <= REST_SHARE:
        return None
    users = "; ".join(f"CPU of the {cpus.name}: {owners_text(cpus.owners)}" for cpus in busy_sets)
    says = f"other programs occupy the machine ({users}), and {percent(cycle.rest_share)} of the cycle is unexplained"
    return RuleFinding(Resource.INVALID, says, (users,), "medium")


HIDDEN_SHARE = 0.95
"""Minimum of connections x unexplained share, the mean number of connections in unexplained waits, for a hidden resource to be
full."""


def latency(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: no resource is full, and round trips take most of the time."""
    share = part_us(cycle, ROUND_TRIPS) / cycle.us
    if share <= HALF or _could_hide_resource(evidence, cycle.rest_share):
        return None
    rtt_text = time_text(evidence.setting.rest_rtt_s or 0)
    says = f"round trips take {percent(share)} of the cycle: {evidence.round_trips:.3g} x {rtt_text}"
    is_clear = cycle.rest_share <= REST_SHARE and share - double_counted_share(evidence, cycle) > HALF
    confidence: Confidence = "high" if is_clear else "medium"
    return _own_cycle_finding(says, evidence, cycle, confidence)


def own_cycle(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: no resource is full, and each connection waits for its own transaction."""
    first = largest_parts(cycle, 1)[0]
    if first.name == REST or _could_hide_resource(evidence, cycle.rest_share):
        return None
    if first.basis == "bounded" and _could_hide_resource(evidence, _unproven_share(cycle)):
        return None  # the largest part is an upper bound, and may in fact be almost nothing
    says = (
        f"no resource is full: each connection waits for its own cycle of {time_text(cycle.us / 1e6)}, "
        f"the largest part of which is {first.name} ({percent(first.us / cycle.us)})"
    )
    return _own_cycle_finding(says, evidence, cycle, "medium")


def _own_cycle_finding(says: str, evidence: Evidence, cycle: Cycle, confidence: Confidence) -> RuleFinding:
    """A finding about a connection's own cycle. Its confidence is low if upper bounds claim time that a full resource could have
    taken."""
    facts, unproven = _usage_facts(evidence), _unproven_share(cycle)
    if not _could_hide_resource(evidence, unproven):
        return RuleFinding(Resource.LATENCY, says, facts, confidence)
    doubt = f"{percent(unproven)} of the cycle is unexplained or explained by upper bounds: a full resource could hide there"
    return RuleFinding(Resource.LATENCY, says, (*facts, doubt), "low")


def _unproven_share(cycle: Cycle) -> float:
    """Share of the cycle that may be unexplained: the rest, and the parts that are only upper bounds."""
    return cycle.rest_share + sum(part.us for part in cycle.parts if part.basis == "bounded") / cycle.us


def _could_hide_resource(evidence: Evidence, share: float) -> bool:
    """Whether a full resource without a counter could account for this share of the cycle."""
    return share > REST_SHARE and evidence.setting.connections * share >= HIDDEN_SHARE


def _usage_facts(evidence: Evidence) -> tuple[str, ...]:
    facts = [f"CPU of the {cpus.name}: {percent(cpus.own_use)} in use by this load" for cpus in evidence.cpu_sets]
    facts += [
        f"link {DIRECTION_LABELS[link.name]} {'at most ' if link.is_rate_lower_bound else ''}{percent(link.used)} in use"
        for link in evidence.directions
        if link.used is not None
    ]
    if connects_each_time(evidence.setting.factors):
        facts.append("windows and send buffers are unknown, because connections come and go")
    return tuple(facts)


def not_established(evidence: Evidence, cycle: Cycle) -> RuleFinding:
    """The finding if no rule applies: no counter shows a full resource, and too much is unexplained to exclude one."""
    parts = ", ".join(f"{part.name} {percent(part.us / cycle.us)}" for part in largest_parts(cycle, 3))
    says = f"not established: no counter shows a full resource; the largest parts of the cycle are {parts}"
    return RuleFinding(Resource.NOT_ESTABLISHED, says, _usage_facts(evidence), "low")


MAX_WAIT_RATIO = 1.5
"""Maximum ratio between the wait measured by the primary and the round trips at rest, up to which they count as the same wait."""
ERRORS_SHARE = 0.01
"""Share of failed transactions from which the figures describe a different workload."""


def errors(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: transactions fail, so the figures describe a different workload."""
    if evidence.errors_share < ERRORS_SHARE:
        return None
    says = f"{percent(evidence.errors_share)} of the transactions got an error from the server"
    return RuleFinding(Resource.ERRORS, says, (f"{says} (limit {percent(ERRORS_SHARE)})",), "high")


def acknowledgements(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: commits wait for a replica for the larger part of a cycle."""
    us, wait_s = part_us(cycle, ACKNOWLEDGEMENT), evidence.setting.acknowledgement_s
    if not wait_s or us <= HALF * cycle.us:
        return None
    says = f"commits wait for a replica: {percent(us / cycle.us)} of the cycle, {time_text(wait_s)} of round trips each"
    measured_wait_s = evidence.semi_sync_wait_s
    if measured_wait_s is None:
        return RuleFinding(
            Resource.ACKNOWLEDGEMENT, says, ("the primary's own measure of these waits was not read",), "medium"
        )
    agree = wait_s / MAX_WAIT_RATIO <= measured_wait_s <= wait_s * MAX_WAIT_RATIO
    fact = f"the primary measured waits of {time_text(measured_wait_s)} each"
    return RuleFinding(Resource.ACKNOWLEDGEMENT, says, (fact,), "high" if agree else "medium")


def commits(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: commits wait for durable writes for a large part of a cycle, and for longer than for row locks."""
    us, locks = part_us(cycle, COMMIT), part_us(cycle, LOCKS)
    if us <= INTERNAL_SHARE * cycle.us or us < locks or evidence.setting.fsync_s is None or not evidence.fsyncs:
        return None
    disk = time_text(evidence.setting.fsync_s)
    says = f"commits wait for the disk: {percent(us / cycle.us)} of the cycle, {disk} per durable write"
    busy = evidence.fsync_busy_share or 0.0
    facts = (
        f"{evidence.fsyncs:.2g} durable writes per transaction",
        f"one after the other, they take {percent(busy)} of the time",
    )
    return RuleFinding(
        Resource.COMMIT, says, facts, "high" if busy >= HALF or evidence.setting.connections == 1 else "medium"
    )


def locks(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: transactions wait for row locks for a large part of a cycle."""
    us = part_us(cycle, LOCKS)
    if us <= INTERNAL_SHARE * cycle.us:
        return None
    says = f"transactions wait for each other's row locks: {percent(us / cycle.us)} of the cycle"
    facts = (
        f"{evidence.lock_waits or 0:.2g} row lock waits per transaction",
        f"at most {us / 1e3:.2f} ms of them per transaction",
    )
    return RuleFinding(Resource.LOCK, says, facts, "high")


def server_wait(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: statements are in progress in the server for a time that neither CPU time nor its counters explain."""
    running, connections = evidence.threads_running, evidence.setting.connections
    if running is None or cycle.rest_share <= INTERNAL_SHARE or running < HALF * connections:
        return None
    says = f"statements wait inside the server for something uncounted: {percent(cycle.rest_share)} of the cycle is unexplained"
    return RuleFinding(
        Resource.SERVER_WAIT,
        says,
        (f"{running:.0f} of {connections} statements in progress at the window's end",),
        "low",
    )


BURSTY_SHARE, BURSTY_STRETCH = 0.90, 2.0
"""Mean use of a link, and ratio of the round trip to the shortest, from which the link is full in bursts."""
DROPPED_RATIO = 1.01
"""Ratio of bytes sent into a link to bytes carried, from which segments were dropped. A smaller ratio is within the resolution of the
counters."""
LIMITED_SHARE, LIMITED_WINDOW_SHARE = 0.30, 0.10
"""Minimum time in which a TCP window or buffer kept the sender from sending, if that is the limit: as a share of the time with data to
send, and of the measured window."""
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
    full = link.used >= FULL_SHARE
    facts = [f"the wire {DIRECTION_LABELS[link.name]} carries {percent(link.used)} of its rate, including framing"]
    facts += [f"round trips take {stretch:.1f} times as long as the shortest"] if stretch > BURSTY_STRETCH else []
    if link.offered_bytes_per_s > DROPPED_RATIO * link.interface_bytes_per_s:
        facts.append(
            f"{speed_text(link.offered_bytes_per_s)} MiB/s were sent into it: its queue drops what does not fit"
        )
    facts += [f"up to {link.queue_bytes / 1e3:.0f} kB wait in its queue"] if link.queue_bytes else []
    resource = Resource.LINK_TO_CLIENT if link.name == "to_client" else Resource.LINK_TO_SERVER
    says = f"the link {DIRECTION_LABELS[link.name]} is {'full' if full else 'full in bursts'}: {speed_pair(link)}"
    return RuleFinding(resource, says, tuple(facts), "high" if full and link.counted else "medium")


def possibly_full_link(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: a real link carries about the rate of one connection before the run. No counter tells whether it could carry more."""
    link = max(evidence.directions, key=lambda link: link.used or 0.0, default=None)
    if link is None or not link.is_rate_lower_bound or (link.used or 0.0) < BURSTY_SHARE:
        return None
    says = (
        f"not established: the link {DIRECTION_LABELS[link.name]} carries {speed_text(link.interface_bytes_per_s)} MiB/s, at least "
        f"{percent(BURSTY_SHARE)} of what one connection got before the run; whether it is full is not known"
    )
    return RuleFinding(Resource.NOT_ESTABLISHED, says, _usage_facts(evidence), "low")


def limiting_windows(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: the sender had data and could not send because of the receiver's window or its own buffer."""
    for host, tcp in sorted(evidence.tcp.items(), key=lambda item: item[0] != "server"):
        receiver = "client" if host == "server" else "server"
        sending = f"{percent(tcp.busy_share)} of the measured window"
        if tcp.rwnd_of_busy > LIMITED_SHARE and tcp.rwnd_of_window > LIMITED_WINDOW_SHARE:
            says = f"the {receiver}'s receive window holds the {host} back for {percent(tcp.rwnd_of_busy)} of its sending time"
            return RuleFinding(
                Resource.RECEIVE_WINDOW, says, (f"sending time is {sending}", _window_fact(evidence)), "high"
            )
        if tcp.sndbuf_of_busy > LIMITED_SHARE and tcp.sndbuf_of_window > LIMITED_WINDOW_SHARE:
            says = f"the {host}'s send buffer holds it back for {percent(tcp.sndbuf_of_busy)} of its sending time"
            return RuleFinding(
                Resource.SEND_BUFFER, says, (f"sending time is {sending}", _window_fact(evidence)), "high"
            )
    return None


def _window_fact(evidence: Evidence) -> str:
    rtt = evidence.setting.rest_rtt_s
    return f"one window passes in each round trip of {time_text(rtt)}" if rtt else "no link: its round trip is short"


def loss(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Rule: segments were retransmitted although no resource was full."""
    share = evidence.retransmit_share
    if share is None or share <= LOSS_COUNTS_SHARE or part_us(cycle, LOSS) <= LOSS_MATTERS_SHARE * cycle.us:
        return None
    says = f"segments are lost: {percent(share)} were sent again, although the link is not full"
    facts: tuple[str, ...] = (
        f"{evidence.retransmits:.2g} segments sent again per transaction (limit {percent(LOSS_COUNTS_SHARE)} of them)",
    )
    if evidence.timeouts is None:
        return RuleFinding(
            Resource.LOSS, says, (*facts, "retransmission timeouts were not counted: the cost is an upper bound"), "low"
        )
    facts += (f"{evidence.timeouts:.2g} retransmission timeouts per transaction, of 200 ms each",)
    return RuleFinding(Resource.LOSS, says, facts, "high" if share > 3 * LOSS_COUNTS_SHARE else "medium")


RULES: tuple[Rule, ...] = (
    errors,
    full_link,
    client_thread,
    full_cpus,
    one_thread,
    cpu_queue,
    waiting_client,
    limiting_windows,
    loss,
    acknowledgements,
    commits,
    locks,
    server_wait,
    latency,
    possibly_full_link,
    own_cycle,
    busy_machine,
)


def judge(evidence: Evidence, cycle: Cycle) -> RuleFinding:
    """The finding of the first rule that applies, or `not_established`."""
    for rule in RULES:
        finding = rule(evidence, cycle)
        if finding is not None:
            return finding
    return not_established(evidence, cycle)
