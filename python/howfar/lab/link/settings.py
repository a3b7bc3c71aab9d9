"""The vocabulary that describes a link: `rtt 85ms`, `loss 1%`. Options, named links and scripts share it.

A value that begins with `to-server:` or `to-client:` applies to that direction alone, any other to both.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from howfar.engine.messages import (
    DELAY_MAX_NS,
    LONGEST_NS,
    RATE_MAX_BPS,
    BurstLoss,
    EmpiricalJitter,
    IndependentLoss,
    NormalJitter,
    Outage,
    ParetoJitter,
    RateStep,
)
from howfar.errors import HowfarError, LabError, QuantityError, UsageError, did_you_mean
from howfar.lab.link.spec import DIRECTIONS, FRAMING_BYTES, MTU, QUEUE_MAX_BYTES, DirectionName, DirectionSpec, LinkSpec
from howfar.plan.distances import NAMED_LINKS
from howfar.units import (
    format_duration_ns,
    format_rate_bps,
    format_size_bytes,
    parse_duration_ns,
    parse_rate_bps,
    parse_share,
    parse_size_bytes,
)

RTT_MAX_NS = 10 * 10**9
RATE_LEAST_BPS = 8_000
MTU_LEAST, MTU_MOST = 576, 9000
OUTAGES_MOST = 1_000
_DIGITS_MOST = 20
"""Maximum digits of a number, more than any valid one has."""
_DirectionChange = Callable[[DirectionSpec, str], DirectionSpec]


def apply(spec: LinkSpec, word: str, value: str) -> LinkSpec:
    """The link with one setting changed. Raises QuantityError, also for an unknown word."""
    if word in _OF_THE_LINK:
        return _OF_THE_LINK[word](spec, value)
    for name in DIRECTIONS:
        suffix = f"-{_option(name)}"
        if word.endswith(suffix) and word.removesuffix(suffix) in _OF_A_DIRECTION:
            word, value = word.removesuffix(suffix), f"{_option(name)}:{value}"
    if word not in _OF_A_DIRECTION:
        raise QuantityError(
            f"{word!r} is not a property of a link", f"Known: {', '.join([*_OF_THE_LINK, *_OF_A_DIRECTION])}."
        )
    names, value = _directions(value)
    for name in names:
        spec = spec.with_direction(name, _OF_A_DIRECTION[word](spec.direction(name), value))
    return spec


def _option(name: DirectionName) -> str:
    return name.replace("_", "-")


def _directions(value: str) -> tuple[Sequence[DirectionName], str]:
    """The directions that a value applies to, and the value without them. Raises QuantityError for a misspelt direction."""
    word, colon, rest = value.partition(":")
    if not colon or not word.startswith("to"):
        return DIRECTIONS, value
    for name in DIRECTIONS:
        if word == _option(name):
            return (name,), rest
    raise QuantityError(
        f"{word!r} is not a direction of a link", f"Write {' or '.join(f'{_option(name)}:…' for name in DIRECTIONS)}."
    )


def _limited(what: str, value: int, least: int, most: int, text: str, show: Callable[[float], str]) -> int:
    if not least <= value <= most:
        raise QuantityError(f"{text!r} is out of range for {what}", f"Give a value from {show(least)} to {show(most)}.")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MOST


def schedule_ns(text: str) -> int:
    """Parse a time or a duration of a schedule: at most a day. Raises QuantityError."""
    found_ns = parse_duration_ns(text)
    if found_ns > LONGEST_NS:
        raise QuantityError(f"{text!r} is more than a day", "Schedules of a link are at most a day long.")
    return found_ns


def check(links: Sequence[LinkSpec]) -> None:
    """Check `links`, the successive states of one link, for impossible or ineffective requests. Raises QuantityError."""
    directions = [spec.direction(name) for spec in links for name in DIRECTIONS]
    if any(direction.reorder for direction in directions) and not any(
        direction.reorder and direction.jitter for direction in directions
    ):
        raise QuantityError(
            "nothing is reordered without jitter", "Give --jitter for the same direction, or omit --reorder."
        )
    if any(direction.loss_burst for direction in directions) and not any(
        direction.loss_burst and direction.loss for direction in directions
    ):
        raise QuantityError(
            "bursts of loss require a loss", "Give --loss for the same direction, or omit --loss-burst."
        )
    for spec in links:
        for name in DIRECTIONS:
            if len(spec.direction(name).outages) > OUTAGES_MOST:
                raise QuantityError(
                    f"more than {OUTAGES_MOST} outages in one direction",
                    "Write repeated outages as one: --outage 5s:1s/30s.",
                )
            if spec.queue_bytes(name) > QUEUE_MAX_BYTES:
                raise QuantityError("the queue would have more than 64 GiB", "Give a smaller --queue, rate or RTT.")
            _check_queue(spec, name)
            _check_jitter(spec, name)


def _check_queue(spec: LinkSpec, name: DirectionName) -> None:
    """Check the queue: if no packet fits, every packet that arrives during a transmission is lost, and no real link does that."""
    packet, queue = spec.mtu + FRAMING_BYTES, spec.queue_bytes(name)
    if queue < packet:
        raise QuantityError(
            f"a queue of {queue} bytes holds no packet: one takes {packet} with its framing",
            f"Give --queue {packet}B or more, or a time such as 1ms.",
        )


def _check_jitter(spec: LinkSpec, name: DirectionName) -> None:
    """Check the jitter: delays are never negative, and normal jitter cut off at zero has neither the requested mean nor deviation."""
    jitter, delay_ns = spec.direction(name).jitter, spec.delay_ns(name)
    if isinstance(jitter, NormalJitter) and jitter.deviation_ns > delay_ns:
        raise QuantityError(
            f"a jitter of {format_duration_ns(jitter.deviation_ns)} around a delay of {format_duration_ns(delay_ns)}"
            f" {name.replace('_', ' ')} would often be negative",
            "Give a longer --rtt, less --jitter, or :pareto after it, which only adds delay.",
        )


def _rtt(spec: LinkSpec, text: str) -> LinkSpec:
    rtt_ns = _limited("an RTT", parse_duration_ns(text), 0, RTT_MAX_NS, text, format_duration_ns)
    if spec.delay_to_server_ns is None or spec.rtt_ns == 0:
        return replace(spec, rtt_ns=rtt_ns)
    # A requested split keeps its proportion.
    return replace(spec, rtt_ns=rtt_ns, delay_to_server_ns=spec.delay_to_server_ns * rtt_ns // spec.rtt_ns)


def _delay_to_server(spec: LinkSpec, text: str) -> LinkSpec:
    delay_ns = _limited("a part of the RTT", parse_duration_ns(text), 0, spec.rtt_ns, text, format_duration_ns)
    return replace(spec, delay_to_server_ns=delay_ns)


def _seed(spec: LinkSpec, text: str) -> LinkSpec:
    if not _is_number(text) or int(text) >= 2**63:
        raise QuantityError(f"{text!r} is not a seed", "Write a whole number, 0 or more.")
    return replace(spec, seed=int(text))


def _mtu(spec: LinkSpec, text: str) -> LinkSpec:
    if not _is_number(text):
        raise QuantityError(f"{text!r} is not an MTU", "Write a number of bytes, such as 1500.")
    return replace(spec, mtu=_limited("an MTU", int(text), MTU_LEAST, MTU_MOST, text, lambda size: f"{size:.0f} bytes"))


def _rate(spec: LinkSpec, text: str) -> LinkSpec:
    """Set the rate of both directions, or of one; `none` means unshaped."""
    names, text = _directions(text)
    rate_bps = _read_rate(text)
    if len(names) == 2:
        for name in DIRECTIONS:
            spec = spec.with_direction(name, replace(spec.direction(name), rate_bps=None, rate_trace=()))
        return replace(spec, rate_bps=rate_bps)
    (name,), other = names, DIRECTIONS[1 - DIRECTIONS.index(names[0])]
    # Remove the link's common rate: the other direction keeps its present rate as its own.
    if not spec.direction(other).rate_trace:
        spec = spec.with_direction(other, replace(spec.direction(other), rate_bps=spec.mean_rate_bps(other)))
    spec = spec.with_direction(name, replace(spec.direction(name), rate_bps=rate_bps, rate_trace=()))
    return replace(spec, rate_bps=None)


def _read_rate(text: str) -> int | None:
    if text == "none":
        return None
    return _limited("a rate", parse_rate_bps(text), RATE_LEAST_BPS, RATE_MAX_BPS, text, format_rate_bps)


def _queue(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Set the queue, in bytes or as the time that it takes to drain at the rate; `auto` is the default."""
    if text == "auto":
        return replace(direction, queue_bytes=None, queue_ns=None)
    if (size := _parsed(parse_size_bytes, text)) is not None:
        size = _limited("a queue", size, 1, QUEUE_MAX_BYTES, text, format_size_bytes)
        return replace(direction, queue_bytes=size, queue_ns=None)
    if (time_ns := _parsed(parse_duration_ns, text)) is not None:
        time_ns = _limited("a queue", time_ns, 1, RTT_MAX_NS, text, format_duration_ns)
        return replace(direction, queue_bytes=None, queue_ns=time_ns)
    raise QuantityError(
        f"{text!r} is neither a size nor a time", "Write 64kB, 1MiB, 10ms (as long as it takes at the rate) or auto."
    )


def _parsed(parse: Callable[[str], int], text: str) -> int | None:
    try:
        return parse(text)
    except QuantityError:
        return None


def _jitter(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Set the jitter: `2ms[:normal|pareto[:shape]]` or `none`."""
    if text == "none":
        return replace(direction, jitter=None)
    size, _, kind = text.partition(":")
    ns = _limited("jitter", parse_duration_ns(size), 1, DELAY_MAX_NS, text, format_duration_ns)
    name, _, shape = kind.partition(":")
    if name in ("", "normal") and not shape:
        return replace(direction, jitter=NormalJitter(deviation_ns=ns))
    if name == "pareto":
        try:
            exponent = float(shape) if shape else 3.0
        except ValueError:
            exponent = 0.0
        if 1 < exponent <= 100:
            return replace(direction, jitter=ParetoJitter(mean_ns=ns, shape=exponent))
    raise QuantityError(
        f"{text!r} is not a jitter", "Write 2ms, 2ms:normal, 2ms:pareto or 2ms:pareto:2.5 (shape above 1)."
    )


def loss_share(loss: IndependentLoss | BurstLoss | None) -> float:
    """Share of all segments lost in the long run."""
    if loss is None:
        return 0.0
    if isinstance(loss, IndependentLoss):
        return loss.probability
    moves = loss.to_bad + loss.to_good
    bad = loss.to_bad / moves if moves else 0.0
    return bad * loss.loss_bad + (1 - bad) * loss.loss_good


def _loss(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Set the share of lost segments; a requested burst length still applies."""
    return replace(direction, loss=_made_loss(parse_share(text), direction.loss_burst))


def _loss_burst(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Make losses occur in bursts of this mean length; `none`: each segment independently."""
    if text == "none":
        return replace(direction, loss=_made_loss(loss_share(direction.loss), None), loss_burst=None)
    try:
        length = float(text)
    except ValueError:
        length = 0.0
    if not 1 <= length <= 1e6:
        raise QuantityError(
            f"{text!r} is not a mean length of a burst", "Write how many segments are lost in a row, such as 8."
        )
    return replace(direction, loss=_made_loss(loss_share(direction.loss), length), loss_burst=length)


def _made_loss(share: float, burst: float | None) -> IndependentLoss | BurstLoss | None:
    """Loss of this share; bursts are a Gilbert model whose bad state loses every segment."""
    if not share:
        return None
    if burst is None:
        return IndependentLoss(probability=share)
    if share > (1 - share) * burst:
        raise QuantityError(
            f"bursts of {burst:g} cannot make a loss of {share:.0%}", "Use longer bursts, or less loss."
        )
    return BurstLoss(to_bad=share / burst / (1 - share), to_good=1 / burst)


def _reorder(direction: DirectionSpec, text: str) -> DirectionSpec:
    if text not in ("on", "off"):
        raise QuantityError(f"reorder is on or off, not {text!r}", "Write reorder on.")
    return replace(direction, reorder=text == "on")


def _outage(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Add outages: `5s:1s[/30s]` begins at 5 s, lasts 1 s, and repeats every 30 s. Repeated settings accumulate."""
    when, _, again = text.partition("/")
    at, colon, duration = when.partition(":")
    if not colon:
        raise QuantityError(f"{text!r} is not an outage", "Write at:for or at:for/every, such as 5s:1s/30s.")
    at_ns, for_ns = schedule_ns(at), schedule_ns(duration)
    every_ns = schedule_ns(again) if again else None
    if for_ns == 0 or (every_ns is not None and every_ns <= for_ns):
        raise QuantityError(
            f"{text!r} is not an outage",
            "It must last for some time, and for less than the time after which it repeats.",
        )
    return replace(direction, outages=(*direction.outages, Outage(at_ns=at_ns, for_ns=for_ns, every_ns=every_ns)))


_OF_THE_LINK: dict[str, Callable[[LinkSpec, str], LinkSpec]] = {
    "rtt": _rtt,
    "delay-to-server": _delay_to_server,
    "rate": _rate,
    "rate-to-server": lambda spec, text: _rate(spec, f"to-server:{text}"),
    "rate-to-client": lambda spec, text: _rate(spec, f"to-client:{text}"),
    "seed": _seed,
    "mtu": _mtu,
}
_OF_A_DIRECTION: dict[str, _DirectionChange] = {
    "queue": _queue,
    "jitter": _jitter,
    "loss": _loss,
    "loss-burst": _loss_burst,
    "duplicate": lambda direction, text: replace(direction, duplicate=parse_share(text)),
    "corrupt": lambda direction, text: replace(direction, corrupt=parse_share(text)),
    "reorder": _reorder,
    "outage": _outage,
}


MOST_LINES = 10_000
_FIXED = {"mtu": "an interface keeps its MTU", "seed": "a link keeps its seed", "outage": "write: 10s down 2s"}


@dataclass(frozen=True)
class Script:
    """A link's settings over time."""

    first: LinkSpec
    """Settings at the start, with the outages of all lines."""
    changes: tuple[tuple[int, LinkSpec], ...] = ()
    """Time from the start in ns, and the complete link from then on; in order of time."""

    def links(self) -> tuple[LinkSpec, ...]:
        return (self.first, *(spec for _, spec in self.changes))


def read_script(text: str, spec: LinkSpec, source: str = "the script") -> Script:
    """Parse the script for a link that begins as `spec`. Raises UsageError with the line number."""
    lines: list[tuple[int, int, list[tuple[str, str]]]] = []
    outages: list[Outage] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        with _in_line(source, number):
            at_ns, settings = _line(fields)
            if lines and at_ns < lines[-1][1]:
                raise QuantityError(
                    f"{fields[0]} is before the line above", "Write the lines in the order of their times."
                )
            outages += [Outage(at_ns=at_ns, for_ns=_down(value)) for word, value in settings if word == "down"]
            if len(outages) > OUTAGES_MOST:
                raise QuantityError(
                    f"the link is down more than {OUTAGES_MOST} times", "Write repeated outages as --outage 5s:1s/30s."
                )
            if len(lines) == MOST_LINES:
                raise QuantityError(f"more than {MOST_LINES} lines", "Shorten it.")
        lines.append((number, at_ns, [pair for pair in settings if pair[0] != "down"]))
    for name in DIRECTIONS:
        direction = spec.direction(name)
        spec = spec.with_direction(name, replace(direction, outages=(*direction.outages, *outages)))
    first, changes = spec, []
    for number, at_ns, settings in lines:
        with _in_line(source, number):
            for word, value in settings:
                spec = apply(spec, word, value)
        if settings:
            changes.append((at_ns, spec))
    return Script(first, tuple(changes))


@contextmanager
def _in_line(source: str, number: int) -> Iterator[None]:
    try:
        yield
    except QuantityError as error:
        raise UsageError(f"{source}:{number}: {error.message}", error.advice) from error


def _line(fields: list[str]) -> tuple[int, list[tuple[str, str]]]:
    at_ns, rest = schedule_ns(fields[0]), fields[1:]
    if not rest or len(rest) % 2:
        raise QuantityError("a line is a time, then pairs of a word and its value", "Write: 5s rtt 50ms loss 1%")
    settings = list(zip(rest[::2], rest[1::2], strict=True))
    for word, _ in settings:
        if word in _FIXED:
            raise QuantityError(f"{word} cannot change while a program runs", f"{_FIXED[word].capitalize()}.")
    return at_ns, settings


def _down(text: str) -> int:
    for_ns = schedule_ns(text)
    if for_ns == 0:
        raise QuantityError("the link would be down for no time", "Write: 10s down 2s")
    return for_ns


class Player:
    """Plays a script in a separate thread. Use as a context manager around the program."""

    def __init__(self, script: Script, change: Callable[[LinkSpec, int], None]) -> None:
        """`change` gets the link and the time since the start."""
        self.script, self._change = script, change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._play, name="link script", daemon=True)
        self._start_ns = 0
        self.played: list[tuple[int, int]] = []
        """For each change, when it was due and when it was in force, in ns from the start."""
        self.failure: HowfarError | None = None
        """Error of a change that failed; no change follows it."""

    def __enter__(self) -> Player:
        self._start_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _play(self) -> None:
        for at_ns, spec in self.script.changes:
            rest_ns = self._start_ns + at_ns - time.monotonic_ns()
            if self._ended.wait(max(rest_ns, 0) / 1e9):
                return
            try:
                self._change(spec, time.monotonic_ns() - self._start_ns)
            except HowfarError as error:
                self.failure = error
                return
            except Exception as error:  # in a thread it would end the script unnoticed
                self.failure = LabError(f"{type(error).__name__}: {error}", "Please report this.")
                return
            self.played.append((at_ns, time.monotonic_ns() - self._start_ns))


_DESCRIPTION = ("about", "source", "stated", "ours")


@dataclass(frozen=True)
class NamedLink:
    name: str
    spec: LinkSpec
    options: dict[str, str]
    """Options as written in the file, in this module's vocabulary."""
    about: str
    source: str
    stated: str
    """Figures as the source states them."""
    ours: str
    """Figures that were rounded, or that are not from a source."""


@cache
def named_links() -> dict[str, NamedLink]:
    """All named links, in the order of the file."""
    return {name: _read(name, table) for name, table in NAMED_LINKS.items()}


def find_link(name: str) -> NamedLink:
    """The link of this name. Raises QuantityError."""
    links = named_links()
    if name not in links:
        near = did_you_mean(name, links)
        raise QuantityError(
            f"no link is called {name!r}", f"{near}Known links: {', '.join(links)}; `howfar links` explains them."
        )
    return links[name]


def _read(name: str, table: Mapping[str, str]) -> NamedLink:
    options = {word: value for word, value in table.items() if word not in _DESCRIPTION}
    spec = LinkSpec(rtt_ns=0, rate_bps=None)
    for word, value in options.items():
        spec = apply(spec, word, value)
    return NamedLink(name=name, spec=spec, options=options, **{word: table[word] for word in _DESCRIPTION})


STEPS_MAX = 100_000
_MS = 1_000_000
_DIGITS_OF_A_DAY = 8
"""Digits of a day in milliseconds."""
_OPPORTUNITY_BITS = (MTU + FRAMING_BYTES) * 8
"""Each line of a mahimahi trace delivers one full-size packet; on our wire that packet also has its framing."""


def rate_trace(text: str) -> tuple[RateStep, ...]:
    """Parse lines `10ms 5mbit` (rate 0: a stopped link), or a mahimahi trace: one delivery per line, in ms. Raises QuantityError."""
    lines = list(_lines(text))
    if not lines:
        raise QuantityError("the rate trace is empty", "Write lines such as: 10ms 5mbit")
    steps = _mahimahi(lines) if all(line.isdecimal() for _, line in lines) else [_step(at, line) for at, line in lines]
    if len(steps) > STEPS_MAX:
        raise QuantityError(f"the rate trace has {len(steps)} steps, but only {STEPS_MAX} are possible", "Shorten it.")
    if not any(step.rate_bps for step in steps):
        raise QuantityError("nothing ever passes in the rate trace", "At least one step needs a rate.")
    return tuple(steps)


def rtt_trace(text: str) -> tuple[int, EmpiricalJitter]:
    """Parse round trips, one per line, with a unit or in ms: the shortest, and each one's excess over it. Raises QuantityError."""
    found = []
    for at, line in _lines(text):
        try:
            found.append(parse_duration_ns(line if line[-1].isalpha() else f"{line}ms"))
        except QuantityError as error:
            raise QuantityError(f"line {at} of the RTT trace: {error.message}", error.advice) from error
    if not found:
        raise QuantityError("the RTT trace is empty", "Write one round trip per line, such as 12.5ms")
    if len(found) > STEPS_MAX:
        raise QuantityError(
            f"the RTT trace has {len(found)} values, but only {STEPS_MAX} are possible", "Take a sample of it."
        )
    least = min(found)
    if max(found) - least > DELAY_MAX_NS:
        raise QuantityError("the round trips of the RTT trace differ by more than a minute", "Check the unit.")
    if least > RTT_MAX_NS:
        raise QuantityError("the round trips of the RTT trace are longer than 10 s", "Check the unit.")
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
    """Rate steps of a mahimahi trace: the deliveries within a millisecond become its rate; equal adjacent steps are merged."""
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
