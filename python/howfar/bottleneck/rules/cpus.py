"""Rules about processors: who has them, and who waits for them."""

from __future__ import annotations

from howfar.analysis.findings import Cycle, Resource
from howfar.bottleneck.cycle import CLIENT_CPU, CLIENT_QUEUE, FORWARDER_CPU, SERVER_CPU, WAITING, part_us
from howfar.bottleneck.evidence import CpuSet, Evidence
from howfar.bottleneck.rules.finding import FULL_SHARE, HALF, REST_SHARE, Confidence, Finding
from howfar.bottleneck.words import hold_words, percent

MATTERS_SHARE = 0.30
"""A full CPU limits only those who wait for it: of the cycle, so much is spent on it or before it."""
WAITS_SHARE = 0.20
"""Of the cycle, spent ready and without a CPU: more is a queue and no accident of scheduling."""
CLIENT_WAITS_SHARE = 0.10
"""Of the time, that the load generator's thread was ready and had no CPU: then it measures its own scheduling."""


CLEARLY = 2.0
"""Times the next largest share of a CPU: whoever has so much, or half of what is in use, is its owner. Below, a hair decides."""


_OWNER = {
    "server": Resource.SERVER_CPU,
    "client": Resource.CLIENT_CPU,
    "forwarder": Resource.FORWARDER_CPU,
    "link": Resource.INSTRUMENT_CPU,
    "others": Resource.INVALID,
}


def client_thread(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """The load generator has no time left: the oldest way to measure nothing."""
    share = evidence.thread_share("client")
    if share < FULL_SHARE:
        return None
    words = f"the load generator's thread was on its CPU for {percent(share)} of the time: these figures are about the load generator"
    return Finding(Resource.CLIENT_CPU, words, (f"client thread {percent(share)} on a CPU",), "high")


def full_cpus(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """No time left on the CPUs of a host, by the load's own work, or because transactions spend theirs there waiting. Whose they
    are is whose limit it is."""
    full = [cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE]
    by_load = any(cpus.ours - cpus.owners.get("link", 0.0) >= FULL_SHARE for cpus in full)
    if not full or not (by_load or cpu_residence(evidence, cycle, full) >= MATTERS_SHARE):
        return None
    shares = _pooled(full)
    owner, divided = _largest(shares)
    hosts = "both hosts" if len(full) > 1 else f"the {full[0].name}"
    facts: tuple[str, ...] = tuple(
        f"CPU of the {cpus.name}: {percent(cpus.used)} in use ({hold_words(cpus.owners)})" for cpus in full
    )
    facts += (
        f"{percent(cpu_residence(evidence, cycle, full))} of the cycle is spent on these CPUs or waiting for them",
    )
    sure: Confidence = "high" if shares[owner] >= HALF and all(cpus.busy is not None for cpus in full) else "medium"
    held = f"the CPU of {hosts} is full: {hold_words(shares)}"
    if divided:
        return Finding(_OWNER[owner], held + _NOBODY, facts, "low", divided=True)
    return Finding(_OWNER[owner], held + _about(owner), facts, sure)


_NOBODY = "; nobody has most of it"


def _largest(shares: dict[str, float]) -> tuple[str, bool]:
    """Who has most of a CPU; and whether that is hardly more than the next. Then other programs are not it: whether a cell's figures
    are invalid is not for a hair to say."""
    first, *rest = sorted(shares, key=lambda role: -shares[role])
    next_share = shares[rest[0]] if rest else 0.0
    clear = shares[first] >= HALF * sum(shares.values()) or shares[first] >= CLEARLY * next_share
    return (rest[0] if not clear and first == "others" else first), not clear


def _about(owner: str) -> str:
    match owner:
        case "client":
            return "; these figures are about the load generator"
        case "link":
            return "; the emulator of the link is this instrument's, and not the path's"
        case "others":
            return "; these figures are about what else runs on this machine"
        case _:
            return ""


def _pooled(sets: list[CpuSet]) -> dict[str, float]:
    """Mean over CPUs."""
    number = sum(cpus.cpus for cpus in sets)
    roles = {role for cpus in sets for role in cpus.owners}
    return {role: sum(cpus.owners.get(role, 0.0) * cpus.cpus for cpus in sets) / number for role in sorted(roles)}


def cpu_residence(evidence: Evidence, cycle: Cycle, sets: list[CpuSet]) -> float:
    """Share of the cycle on the CPUs of these hosts, or waiting for them. A forwarder has a half on each."""
    names = {cpus.name for cpus in sets}
    half_us, half_wait_s = part_us(cycle, FORWARDER_CPU) / 2, evidence.role("forwarder").wait_s / 2
    us, waits = 0.0, 0.0
    if "server" in names:
        us += part_us(cycle, SERVER_CPU) + half_us
        waits += evidence.role("server").wait_s + half_wait_s
    if "client" in names or len(evidence.cpu_sets) == 1:
        us += part_us(cycle, CLIENT_CPU, CLIENT_QUEUE) + half_us
        waits += evidence.role("client").wait_s + half_wait_s
    return (us + min(part_us(cycle, WAITING), waits * 1e6 / evidence.transactions)) / cycle.us


def cpu_queue(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """The server's threads wait for a CPU that is not quite full on the mean."""
    waited = min(part_us(cycle, WAITING), evidence.role("server").wait_s * 1e6 / evidence.transactions) / cycle.us
    cpus = evidence.server_cpus
    if waited <= WAITS_SHARE:
        return None
    known = cpus.used >= HALF  # else somebody has it who is in no account
    owner, divided = _largest(cpus.owners) if known and cpus.owners else ("others", False)
    words = f"threads of the server wait for a CPU for {percent(waited)} of the cycle: {hold_words(cpus.owners)}"
    words += _NOBODY if divided else ""
    facts = (
        f"the server's threads were ready and without a CPU for {percent(waited)} of the cycle",
        f"CPU of the server: {percent(cpus.used)} in use",
    )
    return Finding(_OWNER[owner], words, facts, "low" if divided else "medium", divided)


def one_thread(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """A single thread without time left hides in half of two CPUs."""
    for role in ("server", "forwarder", "link"):
        share = evidence.thread_share(role)
        if share < FULL_SHARE:
            continue
        if role == "link":
            words = f"one thread of the link's emulator was on a CPU for {percent(share)} of the time"
            return Finding(Resource.INSTRUMENT_CPU, words, (words,), "medium")
        words = (
            f"one thread of the {role} was on a CPU for {percent(share)} of the time, while other CPUs had time left"
        )
        return Finding(Resource.ONE_THREAD, words, (words,), "high")
    return None


def waiting_client(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """The load generator was ready and had no CPU. Because others had it, or because it wants more than there is?"""
    share = evidence.client_waited_share
    matters = (evidence.role("client").wait_s * 1e6 / evidence.transactions + part_us(cycle, CLIENT_QUEUE)) / cycle.us
    cpus = evidence.cpu_sets[-1]
    if share <= CLIENT_WAITS_SHARE or matters <= CLIENT_WAITS_SHARE:
        return None
    if cpus.busy is not None and cpus.used < HALF:
        return None  # idle for longer than it is not: nobody has it, and the wait is a part of the cycle like others
    owners = cpus.owners
    owner, divided = _largest(owners) if owners else ("client", False)
    words = f"the load generator waited for a CPU for {percent(share)} of the time: {hold_words(owners)}"
    tail = _NOBODY if divided else _about(owner) if owner == "client" else ""
    facts = (
        f"client ready and without a CPU for {percent(share)} of the time (allowed {percent(CLIENT_WAITS_SHARE)})",
    )
    return Finding(_OWNER[owner], words + tail, facts, "low" if divided or cpus.busy is None else "medium", divided)


def busy_machine(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Too much is unexplained, and other programs have the CPUs: what they do to wake-ups and queues is in no counter of ours."""
    crowded = [cpus for cpus in evidence.cpu_sets if cpus.used >= FULL_SHARE and cpus.owners.get("others", 0.0) >= HALF]
    if not crowded or cycle.rest_share <= REST_SHARE:
        return None
    held = "; ".join(f"CPU of the {cpus.name}: {hold_words(cpus.owners)}" for cpus in crowded)
    words = f"other programs have the machine ({held}), and {percent(cycle.rest_share)} of the cycle is unexplained"
    return Finding(Resource.INVALID, words, (held,), "medium")
