"""Links that are named, and traces of links: those that are included and those in a file."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from howfar.engine.messages import DELAY_MAX_NS, LONGEST_NS, RATE_MAX_BPS, EmpiricalJitter, RateStep
from howfar.errors import HowfarError, LabError, QuantityError
from howfar.lab import sandbox
from howfar.lab.link.backends import Backend, backends
from howfar.lab.link.running import Link, open_link
from howfar.lab.link.settings import RTT_MAX_NS, apply, schedule_ns
from howfar.lab.link.spec import FRAMING_BYTES, MTU, LinkSpec
from howfar.lab.network import Host, build_network, share_cpus, usable_cpus
from howfar.units import parse_duration_ns, parse_rate_bps

_DESCRIPTION = ("about", "source", "stated", "ours")


@dataclass(frozen=True)
class NamedLink:
    name: str
    spec: LinkSpec
    options: dict[str, str]
    """What the file says, in the words of `settings.py`."""
    about: str
    source: str
    stated: str
    """What the source says."""
    ours: str
    """What was rounded, or is no figure of a source."""


@cache
def named_links() -> dict[str, NamedLink]:
    """All of them, in the order of the file."""
    text = (resources.files("howfar.lab.link") / "named_links.toml").read_text(encoding="utf-8")
    return {name: _read(name, table) for name, table in tomllib.loads(text).items()}


def find_link(name: str) -> NamedLink:
    """Raises QuantityError."""
    links = named_links()
    if name not in links:
        raise QuantityError(f"no link is called {name!r}", f"Known: {', '.join(links)}; `howfar links` explains them.")
    return links[name]


def _read(name: str, table: dict[str, str]) -> NamedLink:
    options = {word: value for word, value in table.items() if word not in _DESCRIPTION}
    spec = LinkSpec(rtt_ns=0, rate_bps=None)
    for word, value in options.items():
        spec = apply(spec, word, value)
    return NamedLink(name=name, spec=spec, options=options, **{word: table[word] for word in _DESCRIPTION})


STEPS_MAX = 100_000
_MS = 1_000_000
_DIGITS_OF_A_DAY = 8
"""In milliseconds."""
_OPPORTUNITY_BITS = (MTU + FRAMING_BYTES) * 8
"""A line of a mahimahi trace lets one packet of full size pass; on our wire that packet has its framing too."""


def rate_trace(text: str) -> tuple[RateStep, ...]:
    """Lines `10ms 5mbit` (0 for a line that stands still), or a mahimahi trace: one delivery a line, in ms. Raises QuantityError."""
    lines = list(_lines(text))
    if not lines:
        raise QuantityError("the rate trace is empty", "Write lines like: 10ms 5mbit")
    steps = _mahimahi(lines) if all(line.isdecimal() for _, line in lines) else [_step(at, line) for at, line in lines]
    if len(steps) > STEPS_MAX:
        raise QuantityError(f"the rate trace has {len(steps)} steps, {STEPS_MAX} are possible", "Shorten it.")
    if not any(step.rate_bps for step in steps):
        raise QuantityError("nothing ever passes in the rate trace", "At least one step needs a rate.")
    return tuple(steps)


def rtt_trace(text: str) -> tuple[int, EmpiricalJitter]:
    """The least of the round trips, and what each has more: one a line, with its unit or in ms. Raises QuantityError."""
    found = []
    for at, line in _lines(text):
        try:
            found.append(parse_duration_ns(line if line[-1].isalpha() else f"{line}ms"))
        except QuantityError as error:
            raise QuantityError(f"line {at} of the RTT trace: {error.message}", error.advice) from error
    if not found:
        raise QuantityError("the RTT trace is empty", "Write one round trip a line, like 12.5ms")
    if len(found) > STEPS_MAX:
        raise QuantityError(f"the RTT trace has {len(found)} values, {STEPS_MAX} are possible", "Take a sample of it.")
    least = min(found)
    if max(found) - least > DELAY_MAX_NS:
        raise QuantityError("the round trips of the RTT trace differ by more than a minute", "Is the unit right?")
    if least > RTT_MAX_NS:
        raise QuantityError("the round trips of the RTT trace are longer than 10 s", "Is the unit right?")
    return least, EmpiricalJitter(extra_ns=[value - least for value in found])


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments and empty ones."""
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


def _step(at: int, line: str) -> RateStep:
    fields = line.split()
    if len(fields) != 2:
        raise QuantityError(f"line {at} of the rate trace: {line!r} is not a time and a rate", "Write: 10ms 5mbit")
    try:
        for_ns = schedule_ns(fields[0])
        rate_bps = 0 if fields[1] in ("0", "0bit") else parse_rate_bps(fields[1])
    except QuantityError as error:
        raise QuantityError(f"line {at} of the rate trace: {error.message}", error.advice) from error
    if for_ns == 0 or rate_bps > RATE_MAX_BPS:
        raise QuantityError(f"line {at} of the rate trace: {line!r} is out of range", "Write: 10ms 5mbit")
    return RateStep(for_ns=for_ns, rate_bps=rate_bps)


def _mahimahi(lines: list[tuple[int, str]]) -> list[RateStep]:
    """Deliveries within a millisecond become a rate of that millisecond; neighbours that are alike become one step."""
    for at, line in lines:
        if len(line.lstrip("0")) > _DIGITS_OF_A_DAY:
            raise QuantityError(f"line {at} of the rate trace is longer than a day", "A line is a time in ms.")
    times = [int(line.lstrip("0") or "0") for _, line in lines]
    for (at, _), before, after in zip(lines[1:], times, times[1:], strict=False):
        if after < before:
            raise QuantityError(f"line {at} of the rate trace: {after} ms is before {before} ms", "Sort the trace.")
    # The delivery at t ends the millisecond before t; one at 0 belongs to the first.
    counts = Counter(max(time - 1, 0) for time in times)
    last = max(times[-1], 1)
    if last > LONGEST_NS // _MS:
        raise QuantityError("the rate trace is longer than a day", "Shorten it.")
    if max(counts.values()) * _OPPORTUNITY_BITS * 1000 > RATE_MAX_BPS:
        raise QuantityError("more than 1 Tb/s in a millisecond of the rate trace", "Is it a list of deliveries in ms?")
    steps: list[RateStep] = []
    for ms in range(last):
        rate_bps = counts.get(ms, 0) * _OPPORTUNITY_BITS * 1000
        if steps and steps[-1].rate_bps == rate_bps:
            steps[-1] = RateStep(for_ns=steps[-1].for_ns + _MS, rate_bps=rate_bps)
        else:
            steps.append(RateStep(for_ns=_MS, rate_bps=rate_bps))
    return steps


_QDISCS = {
    "tbf": "tbf rate 1gbit burst 128kb limit 1mb",
    "htb": "htb default 1",
    "netem": "netem delay 1ms",
}
_SCRATCH = "scratch0"


@dataclass(frozen=True)
class Presence:
    name: str
    about: str
    works: bool
    notes: tuple[str, ...]
    """What was found, or why it does not work."""


def try_all() -> tuple[Presence, ...]:
    """Call in the sandbox."""
    assert sandbox.inside(), "a trial elsewhere would touch the machine's network"
    return tuple(_try(backend) for backend in backends().values())


def _try(backend: Backend) -> Presence:
    notes: list[str] = []
    try:
        with ExitStack() as ledger:
            network = build_network(ledger)
            shares = share_cpus(usable_cpus())
            bare = LinkSpec(rtt_ns=0, rate_bps=None)
            spec = bare if backend.NAME == "none" else replace(bare, rate_bps=10**9)
            client, server = network.client.launcher(shares.client), network.server.launcher(shares.server)
            known = {spec.calm(): {"compensate_ns": 0}}
            link = ledger.enter_context(open_link(network, spec, client, server, known, backend=backend.NAME))
            notes += _notes(link)
            if backend.NAME == "kernel":
                notes += _qdiscs()
    except HowfarError as error:
        return Presence(backend.NAME, backend.ABOUT, False, (error.message,))
    return Presence(backend.NAME, backend.ABOUT, True, tuple(notes))


def _notes(link: Link) -> list[str]:
    link.ping_from_idle()  # a packet crosses it, there and back
    ready = link.ready
    if ready is None:
        return []
    scheduling = (
        "real-time class" if ready.realtime else "short time slice" if ready.short_slice else "ordinary scheduling"
    )
    return [scheduling, "super-packets kept" if ready.offload else "no offload: slower"]


def _qdiscs() -> list[str]:
    missing = missing_qdiscs()
    return [f"{name} is not here ({missing[name]})" if name in missing else f"{name} works" for name in _QDISCS]


def missing_qdiscs() -> dict[str, str]:
    """Which disciplines this kernel lacks, and what it says: each is added to an interface made for that. Call in the sandbox."""
    base = Host("base", None)
    missing: dict[str, str] = {}
    base.ip([f"link add name {_SCRATCH} type veth peer name {_SCRATCH}p"])
    try:
        for name, arguments in _QDISCS.items():
            try:
                base.tc([f"qdisc add dev {_SCRATCH} root {arguments}"])
            except LabError as error:
                missing[name] = error.message.rpartition("failed: ")[2].splitlines()[0]
                continue
            base.tc([f"qdisc del dev {_SCRATCH} root"])
    finally:
        base.ip([f"link del dev {_SCRATCH}"])
    return missing
