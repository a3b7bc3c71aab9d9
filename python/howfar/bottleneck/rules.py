"""The rules of attribution, in the order in which they are applied. The first rule that applies names the limit.

A rule is a function of the evidence and the cycle; a new one is a function and its position in `RULES`. docs/bottleneck.md describes
the thresholds.
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
    largest,
    part_us,
)
from howfar.bottleneck.evidence import CpuSet, Evidence, connects_each_time
from howfar.bottleneck.traffic import (
    DIRECTION_LABELS,
    milliseconds,
    owners_text,
    percent,
    speed,
    speed_pair,
)
from howfar.model.resource import Resource

Confidence = Literal["high", "medium", "low"]

FULL_SHARE = 0.95
"""A link, a CPU or a thread that is used for this share of the time counts as full. The rest is within the resolution of clocks and
windows."""
INTERNAL_SHARE = 0.30
"""Share of the cycle in waits that the server itself counts."""
HALF = 0.5
REST_SHARE = 0.15
"""Unexplained share of the cycle beyond which it could hide a resource that nothing here counts."""


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
"""Share of the cycle spent on or waiting for a full CPU, below which it does not limit the transactions."""
WAITS_SHARE = 0.20
"""Share of the cycle spent runnable without a CPU, beyond which it is a queue and not an accident of scheduling."""
CLIENT_WAITS_SHARE = 0.10
"""Share of the time that the load generator's thread was ready and had no CPU, from which the figures describe its own scheduling."""


DOMINANCE_RATIO = 2.0
"""Ratio of the largest share of a CPU to the next from which its user dominates, as it does with half of the CPU time in use."""


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
    """The CPUs of a host are full with the load's own work, or so that transactions wait there. Their main user is the limit."""
    full = [cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE]
    by_load = any(cpus.ours - cpus.owners.get("link", 0.0) >= FULL_SHARE for cpus in full)
    if not full or not (by_load or cpu_residence(evidence, cycle, full) >= MATTERS_SHARE):
        return None
    shares = _pooled(full)
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
    """The largest user of a CPU, and whether it does not dominate. Then other programs are passed over: whether a cell's figures
    are invalid must not depend on a small difference."""
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


def _pooled(sets: list[CpuSet]) -> dict[str, float]:
    """Mean shares over CPUs."""
    number = sum(cpus.cpus for cpus in sets)
    roles = {role for cpus in sets for role in cpus.owners}
    return {role: sum(cpus.owners.get(role, 0.0) * cpus.cpus for cpus in sets) / number for role in sorted(roles)}


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
    """The server's threads wait for CPUs that are not quite full on average."""
    waited = min(part_us(cycle, WAITING), evidence.role("server").wait_s * 1e6 / evidence.transactions) / cycle.us
    cpus = evidence.server_cpus
    if waited <= WAITS_SHARE:
        return None
    is_accounted = cpus.used >= HALF  # otherwise a process that is not accounted for uses it
    main_user, divided = _largest_user(cpus.owners) if is_accounted and cpus.owners else ("others", False)
    says = f"the server's threads wait for a CPU for {percent(waited)} of the cycle: {owners_text(cpus.owners)}"
    says += _NO_DOMINANT_USER if divided else ""
    facts = (
        f"the server's threads were runnable without a CPU for {percent(waited)} of the cycle",
        f"CPU of the server: {percent(cpus.used)} in use",
    )
    return RuleFinding(_RESOURCE_OF_USER[main_user], says, facts, "low" if divided else "medium", divided)


def one_thread(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """A single thread is always busy, which the mean over several CPUs hides."""
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
    """The load generator was ready and had no CPU: other programs used it, or it needs more CPUs than exist."""
    share = evidence.client_waited_share
    share_of_cycle = (
        evidence.role("client").wait_s * 1e6 / evidence.transactions + part_us(cycle, CLIENT_QUEUE)
    ) / cycle.us
    cpus = evidence.cpu_sets[-1]
    if share <= CLIENT_WAITS_SHARE or share_of_cycle <= CLIENT_WAITS_SHARE:
        return None
    if cpus.busy is not None and cpus.used < HALF:
        return None  # mostly idle: no program occupies it, and the wait is a part of the cycle like others
    owners = cpus.owners
    main_user, divided = _largest_user(owners) if owners else ("client", False)
    says = f"the load generator waited for a CPU for {percent(share)} of the time: {owners_text(owners)}"
    note = _NO_DOMINANT_USER if divided else _user_note(main_user) if main_user == "client" else ""
    facts = (f"client runnable without a CPU for {percent(share)} of the time (limit {percent(CLIENT_WAITS_SHARE)})",)
    return RuleFinding(
        _RESOURCE_OF_USER[main_user], says + note, facts, "low" if divided or cpus.busy is None else "medium", divided
    )


def busy_machine(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Too much is unexplained, and other programs occupy the CPUs: no counter here shows their effect on wake-ups and queues."""
    crowded = [cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE and cpus.owners.get("others", 0.0) >= HALF]
    if not crowded or cycle.rest_share <= REST_SHARE:
        return None
    users = "; ".join(f"CPU of the {cpus.name}: {owners_text(cpus.owners)}" for cpus in crowded)
    says = f"other programs occupy the machine ({users}), and {percent(cycle.rest_share)} of the cycle is unexplained"
    return RuleFinding(Resource.INVALID, says, (users,), "medium")


HIDDEN_SHARE = 0.95
"""Connections x the unexplained share: the mean number in unexplained waits. With less than one, no hidden resource is full."""


def latency(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Nothing is full, and most of the time is spent on round trips: distance."""
    share = part_us(cycle, ROUND_TRIPS) / cycle.us
    if share <= HALF or _could_hide_resource(evidence, cycle.rest_share):
        return None
    rtt_text = milliseconds(evidence.setting.rest_rtt_s or 0)
    says = f"round trips take {percent(share)} of the cycle: {evidence.round_trips:.3g} x {rtt_text}"
    is_clear = cycle.rest_share <= REST_SHARE and share - double_counted_share(evidence, cycle) > HALF
    confidence: Confidence = "high" if is_clear else "medium"
    return _own_cycle_finding(says, evidence, cycle, confidence)


def own_round(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Nothing is full, whichever part takes the time: each connection waits for its own transaction."""
    first = largest(cycle, 1)[0]
    if first.name == REST or _could_hide_resource(evidence, cycle.rest_share):
        return None
    if first.basis == "bounded" and _could_hide_resource(evidence, _unproven_share(cycle)):
        return None  # the text would name a largest part that may really be almost nothing
    says = (
        f"no resource is full: each connection waits for its own cycle of {milliseconds(cycle.us / 1e6)}, "
        f"the largest part of which is {first.name} ({percent(first.us / cycle.us)})"
    )
    return _own_cycle_finding(says, evidence, cycle, "medium")


def _own_cycle_finding(says: str, evidence: Evidence, cycle: Cycle, confidence: Confidence) -> RuleFinding:
    """A finding about a connection's own cycle; of low confidence if upper bounds claim time that a full resource could have taken."""
    facts, unproven = _nothing_full(evidence), _unproven_share(cycle)
    if not _could_hide_resource(evidence, unproven):
        return RuleFinding(Resource.LATENCY, says, facts, confidence)
    doubt = f"{percent(unproven)} of the cycle is unexplained or explained by upper bounds: a full resource could hide there"
    return RuleFinding(Resource.LATENCY, says, (*facts, doubt), "low")


def _unproven_share(cycle: Cycle) -> float:
    """Share that may be unexplained: the rest plus the upper bounds, which may not be reached."""
    return cycle.rest_share + sum(part.us for part in cycle.parts if part.basis == "bounded") / cycle.us


def _could_hide_resource(evidence: Evidence, share: float) -> bool:
    """Whether this share of the cycle is enough for a full resource that nothing here counts."""
    return share > REST_SHARE and evidence.setting.connections * share >= HIDDEN_SHARE


def _nothing_full(evidence: Evidence) -> tuple[str, ...]:
    facts = [f"CPU of the {cpus.name}: {percent(cpus.ours)} in use by this load" for cpus in evidence.cpu_sets]
    facts += [
        f"link {DIRECTION_LABELS[link.name]} {'at most ' if link.rate_is_least else ''}{percent(link.used)} in use"
        for link in evidence.directions
        if link.used is not None
    ]
    if connects_each_time(evidence.setting.factors):
        facts.append("windows and send buffers are unknown, because connections come and go")
    return tuple(facts)


def not_established(evidence: Evidence, cycle: Cycle) -> RuleFinding:
    """No limit: no counter shows a full resource, and too much is unexplained to exclude one."""
    parts = ", ".join(f"{part.name} {percent(part.us / cycle.us)}" for part in largest(cycle, 3))
    says = f"not established: no counter shows a full resource; the largest parts of the cycle are {parts}"
    return RuleFinding(Resource.NOT_ESTABLISHED, says, _nothing_full(evidence), "low")


MAX_WAIT_RATIO = 1.5
"""Factor within which the wait measured by the primary and the round trips at rest count as the same wait."""
ERRORS_SHARE = 0.01
"""Share of failed transactions from which the figures also describe these, which are a different workload."""


def errors(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Transactions fail, so the figures describe a different workload."""
    if evidence.errors_share < ERRORS_SHARE:
        return None
    says = f"{percent(evidence.errors_share)} of the transactions got an error from the server"
    return RuleFinding(Resource.ERRORS, says, (f"{says} (limit {percent(ERRORS_SHARE)})",), "high")


def acknowledgements(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Commits wait for a replica for the larger part of a cycle."""
    us, wait_s = part_us(cycle, ACKNOWLEDGEMENT), evidence.setting.acknowledgement_s
    if not wait_s or us <= HALF * cycle.us:
        return None
    says = (
        f"commits wait for a replica: {percent(us / cycle.us)} of the cycle, {milliseconds(wait_s)} of round trips each"
    )
    measured_wait_s = evidence.semi_sync_wait_s
    if measured_wait_s is None:
        return RuleFinding(
            Resource.ACKNOWLEDGEMENT, says, ("the primary's own measure of these waits was not read",), "medium"
        )
    agree = wait_s / MAX_WAIT_RATIO <= measured_wait_s <= wait_s * MAX_WAIT_RATIO
    fact = f"the primary measured waits of {milliseconds(measured_wait_s)} each"
    return RuleFinding(Resource.ACKNOWLEDGEMENT, says, (fact,), "high" if agree else "medium")


def commits(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Making commits durable takes the larger part of what the server waits for."""
    us, locks = part_us(cycle, COMMIT), part_us(cycle, LOCKS)
    if us <= INTERNAL_SHARE * cycle.us or us < locks or evidence.setting.fsync_s is None or not evidence.fsyncs:
        return None
    disk = milliseconds(evidence.setting.fsync_s)
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
    """Statements are in progress in the server, and neither CPU time nor its counters explain the time."""
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
"""Mean use, and stretch of the round trip, from which a link is full in bursts."""
DROPPED_RATIO = 1.01
"""Ratio of bytes sent into a link to bytes carried from which segments were dropped; a smaller ratio is within the resolution of
counting."""
LIMITED_SHARE, LIMITED_WINDOW_SHARE = 0.30, 0.10
"""Shares of the time with data to send, and of the whole window, in which a window held the sender back."""
LOSS_MATTERS_SHARE = 0.10
"""Share of the cycle spent waiting for lost segments, below which they do not limit anything."""


def full_link(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """The busier direction compared with its rate."""
    link = max(evidence.directions, key=lambda link: link.used or 0.0, default=None)
    if link is None or link.used is None or link.rate_is_least:
        return None
    stretch = max((tcp.rtt_stretch or 0.0 for tcp in evidence.tcp.values()), default=0.0)
    bursty = link.used >= BURSTY_SHARE and stretch > BURSTY_STRETCH
    if link.used < FULL_SHARE and not bursty:
        return None
    full = link.used >= FULL_SHARE
    facts = [f"the wire {DIRECTION_LABELS[link.name]} carries {percent(link.used)} of its rate, including framing"]
    facts += [f"round trips take {stretch:.1f} times as long as the shortest"] if stretch > BURSTY_STRETCH else []
    if link.offered_bytes_per_s > DROPPED_RATIO * link.interface_bytes_per_s:
        facts.append(f"{speed(link.offered_bytes_per_s)} MiB/s were sent into it: its queue drops what does not fit")
    facts += [f"up to {link.queue_bytes / 1e3:.0f} kB wait in its queue"] if link.queue_bytes else []
    resource = Resource.LINK_TO_CLIENT if link.name == "to_client" else Resource.LINK_TO_SERVER
    says = f"the link {DIRECTION_LABELS[link.name]} is {'full' if full else 'full in bursts'}: {speed_pair(link)}"
    return RuleFinding(resource, says, tuple(facts), "high" if full and link.counted else "medium")


def perhaps_full_link(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """A real link that carries about what one connection got before the run: no counter says whether it could carry more."""
    link = max(evidence.directions, key=lambda link: link.used or 0.0, default=None)
    if link is None or not link.rate_is_least or (link.used or 0.0) < BURSTY_SHARE:
        return None
    says = (
        f"not established: the link {DIRECTION_LABELS[link.name]} carries {speed(link.interface_bytes_per_s)} MiB/s, at least "
        f"{percent(BURSTY_SHARE)} of what one connection got before the run; whether it is full is not known"
    )
    return RuleFinding(Resource.NOT_ESTABLISHED, says, _nothing_full(evidence), "low")


def held_windows(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """The sender had data and could not send: because of the receiver's window, or its own buffer."""
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
    return f"one window passes in each round trip of {milliseconds(rtt)}" if rtt else "no link: its round trip is short"


def loss(evidence: Evidence, cycle: Cycle) -> RuleFinding | None:
    """Segments were retransmitted although nothing was full."""
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
    held_windows,
    loss,
    acknowledgements,
    commits,
    locks,
    server_wait,
    latency,
    perhaps_full_link,
    own_round,
    busy_machine,
)


def judge(evidence: Evidence, cycle: Cycle) -> RuleFinding:
    """The finding of the first rule that applies, or `not_established`."""
    for rule in RULES:
        finding = rule(evidence, cycle)
        if finding is not None:
            return finding
    return not_established(evidence, cycle)
