"""Parses the settings that describe a link, such as `rtt 85ms` or `loss 1%`, from options, named links and scripts.

A value that begins with `to-server:` or `to-client:` applies to that direction only, any other value to both directions.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from howfar.contract.messages import (
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
from howfar.lab.link.spec import DIRECTIONS, FRAMING_BYTES, MAX_QUEUE_BYTES, MTU, DirectionName, DirectionSpec, LinkSpec
from howfar.plan.named_links import NAMED_LINKS
from howfar.units import (
    format_duration_ns,
    format_rate_bps,
    format_size_bytes,
    parse_duration_ns,
    parse_rate_bps,
    parse_share,
    parse_size_bytes,
)

MAX_RTT_NS = 10 * 10**9
MIN_RATE_BPS = 8_000
MIN_MTU, MAX_MTU = 576, 9000
MAX_OUTAGES = 1_000
_MAX_DIGITS = 20
"""Maximum number of digits that are parsed; longer numbers are out of range."""
_DirectionChange = Callable[[DirectionSpec, str], DirectionSpec]


def apply_setting(spec: LinkSpec, setting: str, value: str) -> LinkSpec:
    """The link with one setting changed. Raises QuantityError, also for an unknown setting."""
    if setting in _LINK_SETTINGS:
        return _LINK_SETTINGS[setting](spec, value)
    for name in DIRECTIONS:
        suffix = f"-{_option_name(name)}"
        if setting.endswith(suffix) and setting.removesuffix(suffix) in _DIRECTION_SETTINGS:
            setting, value = setting.removesuffix(suffix), f"{_option_name(name)}:{value}"
    if setting not in _DIRECTION_SETTINGS:
        raise QuantityError(
            f"{setting!r} is not a property of a link", f"Known: {', '.join([*_LINK_SETTINGS, *_DIRECTION_SETTINGS])}."
        )
    names, value = _split_directions(value)
    for name in names:
        spec = spec.with_direction(name, _DIRECTION_SETTINGS[setting](spec.direction(name), value))
    return spec


def _option_name(name: DirectionName) -> str:
    return name.replace("_", "-")


def _split_directions(value: str) -> tuple[Sequence[DirectionName], str]:
    """The directions that a value applies to, and the value without them. Raises QuantityError for a misspelt direction."""
    prefix, colon, rest = value.partition(":")
    if not colon or not prefix.startswith("to"):
        return DIRECTIONS, value
    for name in DIRECTIONS:
        if prefix == _option_name(name):
            return (name,), rest
    raise QuantityError(
        f"{prefix!r} is not a direction of a link",
        f"Write {' or '.join(f'{_option_name(name)}:…' for name in DIRECTIONS)}.",
    )


def _check_range(
    quantity: str, value: int, minimum: int, maximum: int, text: str, format_value: Callable[[float], str]
) -> int:
    """Return `value`. Raises QuantityError if it is out of range; `text` is the value as the user wrote it."""
    if not minimum <= value <= maximum:
        raise QuantityError(
            f"{text!r} is out of range for {quantity}",
            f"Give a value from {format_value(minimum)} to {format_value(maximum)}.",
        )
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def parse_schedule_ns(text: str) -> int:
    """Parse a time or a duration in a script, outage or trace, at most a day. Raises QuantityError."""
    time_ns = parse_duration_ns(text)
    if time_ns > LONGEST_NS:
        raise QuantityError(f"{text!r} is more than a day", "Schedules of a link are at most a day long.")
    return time_ns


def check_link(specs: Sequence[LinkSpec]) -> None:
    """Check `specs`, the successive settings of one link, for impossible or ineffective requests. Raises QuantityError."""
    directions = [spec.direction(name) for spec in specs for name in DIRECTIONS]
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
            "burst loss requires a loss rate", "Give --loss for the same direction, or omit --loss-burst."
        )
    for spec in specs:
        for name in DIRECTIONS:
            if len(spec.direction(name).outages) > MAX_OUTAGES:
                raise QuantityError(
                    f"more than {MAX_OUTAGES} outages in one direction",
                    "Write repeated outages as one: --outage 5s:1s/30s.",
                )
            if spec.queue_bytes(name) > MAX_QUEUE_BYTES:
                raise QuantityError("the queue would have more than 64 GiB", "Give a smaller --queue, rate or RTT.")
            _check_queue(spec, name)
            _check_jitter(spec, name)


def _check_queue(spec: LinkSpec, name: DirectionName) -> None:
    """Check that the queue holds at least one packet; otherwise every packet that arrives during a transmission would be lost, which
    happens on no real link. Raises QuantityError."""
    packet, queue = spec.mtu + FRAMING_BYTES, spec.queue_bytes(name)
    if queue < packet:
        raise QuantityError(
            f"a queue of {queue} bytes cannot hold a packet of {packet} bytes (with framing)",
            f"Give --queue {packet}B or more, or a time such as 1ms.",
        )


def _check_jitter(spec: LinkSpec, name: DirectionName) -> None:
    """Check that normal jitter rarely makes a delay negative: cut off at zero, delays would have neither the requested mean nor the
    requested deviation. Raises QuantityError."""
    jitter, delay_ns = spec.direction(name).jitter, spec.delay_ns(name)
    if isinstance(jitter, NormalJitter) and jitter.deviation_ns > delay_ns:
        raise QuantityError(
            f"a jitter of {format_duration_ns(jitter.deviation_ns)} around a delay of {format_duration_ns(delay_ns)}"
            f" {name.replace('_', ' ')} would often be negative",
            "Increase --rtt, decrease --jitter, or use --jitter …:pareto, which only adds delay.",
        )


def _set_rtt(spec: LinkSpec, text: str) -> LinkSpec:
    rtt_ns = _check_range("an RTT", parse_duration_ns(text), 0, MAX_RTT_NS, text, format_duration_ns)
    if spec.delay_to_server_ns is None or spec.rtt_ns == 0:
        return replace(spec, rtt_ns=rtt_ns)
    # If the delays of the two directions were requested separately, keep their ratio.
    return replace(spec, rtt_ns=rtt_ns, delay_to_server_ns=spec.delay_to_server_ns * rtt_ns // spec.rtt_ns)


def _set_delay_to_server(spec: LinkSpec, text: str) -> LinkSpec:
    delay_ns = _check_range("a part of the RTT", parse_duration_ns(text), 0, spec.rtt_ns, text, format_duration_ns)
    return replace(spec, delay_to_server_ns=delay_ns)


def _set_seed(spec: LinkSpec, text: str) -> LinkSpec:
    if not _is_number(text) or int(text) >= 2**63:
        raise QuantityError(f"{text!r} is not a seed", "Write a whole number, 0 or more.")
    return replace(spec, seed=int(text))


def _set_mtu(spec: LinkSpec, text: str) -> LinkSpec:
    if not _is_number(text):
        raise QuantityError(f"{text!r} is not an MTU", "Write a number of bytes, such as 1500.")
    return replace(
        spec, mtu=_check_range("an MTU", int(text), MIN_MTU, MAX_MTU, text, lambda size: f"{size:.0f} bytes")
    )


def _set_rate(spec: LinkSpec, text: str) -> LinkSpec:
    """Set the rate of both directions, or of one; `none` means unshaped."""
    names, text = _split_directions(text)
    rate_bps = _parse_rate(text)
    if len(names) == 2:
        for name in DIRECTIONS:
            spec = spec.with_direction(name, replace(spec.direction(name), rate_bps=None, rate_trace=()))
        return replace(spec, rate_bps=rate_bps)
    (name,), other = names, DIRECTIONS[1 - DIRECTIONS.index(names[0])]
    # Replace the link's common rate by one rate for each direction; the other direction keeps its present rate.
    if not spec.direction(other).rate_trace:
        spec = spec.with_direction(other, replace(spec.direction(other), rate_bps=spec.mean_rate_bps(other)))
    spec = spec.with_direction(name, replace(spec.direction(name), rate_bps=rate_bps, rate_trace=()))
    return replace(spec, rate_bps=None)


def _parse_rate(text: str) -> int | None:
    if text == "none":
        return None
    return _check_range("a rate", parse_rate_bps(text), MIN_RATE_BPS, RATE_MAX_BPS, text, format_rate_bps)


def _set_queue(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Set the queue's length, in bytes or as the time in which the queue drains at the rate; `auto` is the default."""
    if text == "auto":
        return replace(direction, queue_bytes=None, queue_ns=None)
    if (size := _parse_or_none(parse_size_bytes, text)) is not None:
        size = _check_range("a queue", size, 1, MAX_QUEUE_BYTES, text, format_size_bytes)
        return replace(direction, queue_bytes=size, queue_ns=None)
    if (time_ns := _parse_or_none(parse_duration_ns, text)) is not None:
        time_ns = _check_range("a queue", time_ns, 1, MAX_RTT_NS, text, format_duration_ns)
        return replace(direction, queue_bytes=None, queue_ns=time_ns)
    raise QuantityError(
        f"{text!r} is neither a size nor a time",
        "Write 64kB, 1MiB, 10ms (the time to drain the queue at the link's rate) or auto.",
    )


def _parse_or_none(parse: Callable[[str], int], text: str) -> int | None:
    try:
        return parse(text)
    except QuantityError:
        return None


def _set_jitter(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Set the jitter: `2ms[:normal|pareto[:shape]]` or `none`."""
    if text == "none":
        return replace(direction, jitter=None)
    size, _, kind = text.partition(":")
    ns = _check_range("jitter", parse_duration_ns(size), 1, DELAY_MAX_NS, text, format_duration_ns)
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
        f"{text!r} is not a value of jitter", "Write 2ms, 2ms:normal, 2ms:pareto or 2ms:pareto:2.5 (shape above 1)."
    )


def loss_share(loss: IndependentLoss | BurstLoss | None) -> float:
    """Expected share of lost segments in the long run."""
    if loss is None:
        return 0.0
    if isinstance(loss, IndependentLoss):
        return loss.probability
    transitions = loss.to_bad + loss.to_good
    bad_share = loss.to_bad / transitions if transitions else 0.0
    return bad_share * loss.loss_bad + (1 - bad_share) * loss.loss_good


def _set_loss(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Set the share of lost segments; an earlier setting of the burst length still applies."""
    return replace(direction, loss=_build_loss(parse_share(text), direction.loss_burst))


def _set_loss_burst(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Make losses occur in bursts of this mean length; `none` makes them independent."""
    if text == "none":
        return replace(direction, loss=_build_loss(loss_share(direction.loss), None), loss_burst=None)
    try:
        length = float(text)
    except ValueError:
        length = 0.0
    if not 1 <= length <= 1e6:
        raise QuantityError(
            f"{text!r} is not a mean length of a burst", "Write how many segments are lost in a row, such as 8."
        )
    return replace(direction, loss=_build_loss(loss_share(direction.loss), length), loss_burst=length)


def _build_loss(share: float, burst_length: float | None) -> IndependentLoss | BurstLoss | None:
    """The loss with this rate. Bursts follow a Gilbert model, in whose bad state every segment is lost. Raises QuantityError."""
    if not share:
        return None
    if burst_length is None:
        return IndependentLoss(probability=share)
    if share > (1 - share) * burst_length:
        raise QuantityError(
            f"bursts of {burst_length:g} segments cannot reach a loss rate of {share:.0%}",
            "Use longer bursts, or a lower loss rate.",
        )
    return BurstLoss(to_bad=share / burst_length / (1 - share), to_good=1 / burst_length)


def _set_reorder(direction: DirectionSpec, text: str) -> DirectionSpec:
    if text not in ("on", "off"):
        raise QuantityError(f"reorder is on or off, not {text!r}", "Write reorder on.")
    return replace(direction, reorder=text == "on")


def _add_outage(direction: DirectionSpec, text: str) -> DirectionSpec:
    """Add outages: `5s:1s[/30s]` begins at 5 s, lasts 1 s, and repeats every 30 s. Earlier outages remain."""
    first_outage, _, period = text.partition("/")
    start, colon, duration = first_outage.partition(":")
    if not colon:
        raise QuantityError(f"{text!r} is not an outage", "Write at:for or at:for/every, such as 5s:1s/30s.")
    at_ns, for_ns = parse_schedule_ns(start), parse_schedule_ns(duration)
    every_ns = parse_schedule_ns(period) if period else None
    if for_ns == 0 or (every_ns is not None and every_ns <= for_ns):
        raise QuantityError(
            f"{text!r} is not an outage",
            "Its duration must be above 0 and shorter than its period.",
        )
    return replace(direction, outages=(*direction.outages, Outage(at_ns=at_ns, for_ns=for_ns, every_ns=every_ns)))


_LINK_SETTINGS: dict[str, Callable[[LinkSpec, str], LinkSpec]] = {
    "rtt": _set_rtt,
    "delay-to-server": _set_delay_to_server,
    "rate": _set_rate,
    "rate-to-server": lambda spec, text: _set_rate(spec, f"to-server:{text}"),
    "rate-to-client": lambda spec, text: _set_rate(spec, f"to-client:{text}"),
    "seed": _set_seed,
    "mtu": _set_mtu,
}
_DIRECTION_SETTINGS: dict[str, _DirectionChange] = {
    "queue": _set_queue,
    "jitter": _set_jitter,
    "loss": _set_loss,
    "loss-burst": _set_loss_burst,
    "duplicate": lambda direction, text: replace(direction, duplicate=parse_share(text)),
    "corrupt": lambda direction, text: replace(direction, corrupt=parse_share(text)),
    "reorder": _set_reorder,
    "outage": _add_outage,
}


MAX_LINES = 10_000
_UNCHANGEABLE_REASONS = {
    "mtu": "an interface keeps its MTU",
    "seed": "a link keeps its seed",
    "outage": "write: 10s down 2s",
}


@dataclass(frozen=True)
class Script:
    """A link's settings over time."""

    initial: LinkSpec
    """The settings at the start, with the outages of all lines."""
    changes: tuple[tuple[int, LinkSpec], ...] = ()
    """For each change, in order of time: its time since the start in ns, and the link's complete settings from then on."""

    def all_specs(self) -> tuple[LinkSpec, ...]:
        """The successive settings of the link."""
        return (self.initial, *(spec for _, spec in self.changes))


def parse_script(text: str, spec: LinkSpec, source: str = "the script") -> Script:
    """Parse a script for a link with the settings `spec` at the start. Raises UsageError with the line number."""
    # For each line: its number, its time in ns, and its settings with their values.
    lines: list[tuple[int, int, list[tuple[str, str]]]] = []
    outages: list[Outage] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        with _locate_errors(source, number):
            at_ns, settings = _parse_line(fields)
            if lines and at_ns < lines[-1][1]:
                raise QuantityError(
                    f"{fields[0]} is before the line above", "Write the lines in the order of their times."
                )
            outages += [
                Outage(at_ns=at_ns, for_ns=_parse_down_ns(value)) for setting, value in settings if setting == "down"
            ]
            if len(outages) > MAX_OUTAGES:
                raise QuantityError(
                    f"the link is down more than {MAX_OUTAGES} times", "Write repeated outages as --outage 5s:1s/30s."
                )
            if len(lines) == MAX_LINES:
                raise QuantityError(f"more than {MAX_LINES} lines", "Shorten it.")
        lines.append((number, at_ns, [setting for setting in settings if setting[0] != "down"]))
    for name in DIRECTIONS:
        direction = spec.direction(name)
        spec = spec.with_direction(name, replace(direction, outages=(*direction.outages, *outages)))
    initial, changes = spec, []
    for number, at_ns, settings in lines:
        with _locate_errors(source, number):
            for setting, value in settings:
                spec = apply_setting(spec, setting, value)
        if settings:
            changes.append((at_ns, spec))
    return Script(initial, tuple(changes))


@contextmanager
def _locate_errors(source: str, number: int) -> Iterator[None]:
    try:
        yield
    except QuantityError as error:
        raise UsageError(f"{source}:{number}: {error.message}", error.advice) from error


def _parse_line(fields: list[str]) -> tuple[int, list[tuple[str, str]]]:
    at_ns, words = parse_schedule_ns(fields[0]), fields[1:]
    if not words or len(words) % 2:
        raise QuantityError(
            "a line must have a time, followed by pairs of a setting and its value", "Write: 5s rtt 50ms loss 1%"
        )
    settings = list(zip(words[::2], words[1::2], strict=True))
    for setting, _ in settings:
        if setting in _UNCHANGEABLE_REASONS:
            raise QuantityError(
                f"{setting} cannot change while a program runs", f"{_UNCHANGEABLE_REASONS[setting].capitalize()}."
            )
    return at_ns, settings


def _parse_down_ns(text: str) -> int:
    for_ns = parse_schedule_ns(text)
    if for_ns == 0:
        raise QuantityError("the duration of `down` must be above 0", "Write: 10s down 2s")
    return for_ns


class ScriptPlayer:
    """Applies a script's changes at their times, in a separate thread. Use as a context manager around the program."""

    def __init__(self, script: Script, change: Callable[[LinkSpec, int], None]) -> None:
        """`change` is called with the link's new settings and the time since the start in ns."""
        self.script, self._change = script, change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._play, name="link script", daemon=True)
        self._start_ns = 0
        self.played: list[tuple[int, int]] = []
        """For each change, the times at which it was due and took effect, in ns since the start."""
        self.failure: HowfarError | None = None
        """The error of the change that failed, after which the script stopped; None if none failed."""

    def __enter__(self) -> ScriptPlayer:
        self._start_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _play(self) -> None:
        for at_ns, spec in self.script.changes:
            remaining_ns = self._start_ns + at_ns - time.monotonic_ns()
            if self._ended.wait(max(remaining_ns, 0) / 1e9):
                return
            try:
                self._change(spec, time.monotonic_ns() - self._start_ns)
            except HowfarError as error:
                self.failure = error
                return
            except Exception as error:  # otherwise it would end this thread, and with it the script, unnoticed
                self.failure = LabError(f"{type(error).__name__}: {error}", "Please report this.")
                return
            self.played.append((at_ns, time.monotonic_ns() - self._start_ns))


_DESCRIPTION_KEYS = ("about", "source", "stated", "ours")
"""Keys of a named link that describe it; all its other keys are settings."""


@dataclass(frozen=True)
class NamedLink:
    """A link of `named_links.toml`, such as a home connection or a satellite."""

    name: str
    spec: LinkSpec
    options: dict[str, str]
    """The settings as written in the file."""
    about: str
    source: str
    stated: str
    """Figures as the source states them."""
    ours: str
    """Figures that were rounded, or that are not from a source."""


@cache
def named_links() -> dict[str, NamedLink]:
    """All named links, in the order of the file."""
    return {name: _parse_named_link(name, table) for name, table in NAMED_LINKS.items()}


def find_link(name: str) -> NamedLink:
    """The link of this name. Raises QuantityError."""
    links = named_links()
    if name not in links:
        suggestion = did_you_mean(name, links)
        raise QuantityError(
            f"no link is called {name!r}", f"{suggestion}Known links: {', '.join(links)}; `howfar links` explains them."
        )
    return links[name]


def _parse_named_link(name: str, table: Mapping[str, str]) -> NamedLink:
    options = {setting: value for setting, value in table.items() if setting not in _DESCRIPTION_KEYS}
    spec = LinkSpec(rtt_ns=0, rate_bps=None)
    for setting, value in options.items():
        spec = apply_setting(spec, setting, value)
    return NamedLink(
        name=name, spec=spec, options=options, **{setting: table[setting] for setting in _DESCRIPTION_KEYS}
    )


MAX_STEPS = 100_000
_NS_PER_MS = 1_000_000
_MAX_MS_DIGITS = 8
"""Number of digits of a day in milliseconds (86 400 000)."""
_OPPORTUNITY_BITS = (MTU + FRAMING_BYTES) * 8
"""Bits that each line of a mahimahi trace allows to be delivered: one packet of full size, here with framing."""


def parse_rate_trace(text: str) -> tuple[RateStep, ...]:
    """Parse a rate trace: lines `10ms 5mbit` (rate 0 stops the link), or mahimahi's format, in which each line is the time of a
    delivery in ms. Raises QuantityError."""
    lines = list(_numbered_lines(text))
    if not lines:
        raise QuantityError("the rate trace is empty", "Write lines such as: 10ms 5mbit")
    steps = (
        _parse_mahimahi(lines)
        if all(line.isdecimal() for _, line in lines)
        else [_parse_step(number, line) for number, line in lines]
    )
    if len(steps) > MAX_STEPS:
        raise QuantityError(f"the rate trace has {len(steps)} steps; at most {MAX_STEPS} are allowed", "Shorten it.")
    if not any(step.rate_bps for step in steps):
        raise QuantityError("the rate trace is 0 throughout", "At least one step needs a rate above 0.")
    return tuple(steps)


def parse_rtt_trace(text: str) -> tuple[int, EmpiricalJitter]:
    """Parse an RTT trace: one round trip time per line, with a unit or in ms. Returns the shortest one, and the jitter: the excess of
    each over the shortest. Raises QuantityError."""
    rtts_ns = []
    for number, line in _numbered_lines(text):
        try:
            rtts_ns.append(parse_duration_ns(line if line[-1].isalpha() else f"{line}ms"))
        except QuantityError as error:
            raise QuantityError(f"line {number} of the RTT trace: {error.message}", error.advice) from error
    if not rtts_ns:
        raise QuantityError("the RTT trace is empty", "Write one round trip per line, such as 12.5ms")
    if len(rtts_ns) > MAX_STEPS:
        raise QuantityError(
            f"the RTT trace has {len(rtts_ns)} values; at most {MAX_STEPS} are allowed", "Take a sample of it."
        )
    shortest_ns = min(rtts_ns)
    if max(rtts_ns) - shortest_ns > DELAY_MAX_NS:
        raise QuantityError("the round trips of the RTT trace differ by more than a minute", "Check the unit.")
    if shortest_ns > MAX_RTT_NS:
        raise QuantityError("the round trips of the RTT trace are longer than 10 s", "Check the unit.")
    return shortest_ns, EmpiricalJitter(extra_ns=[rtt_ns - shortest_ns for rtt_ns in rtts_ns])


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, without comments, each after its number."""
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


def _parse_step(number: int, line: str) -> RateStep:
    fields = line.split()
    if len(fields) != 2:
        raise QuantityError(f"line {number} of the rate trace: {line!r} is not a time and a rate", "Write: 10ms 5mbit")
    try:
        for_ns = parse_schedule_ns(fields[0])
        rate_bps = 0 if fields[1] in ("0", "0bit") else parse_rate_bps(fields[1])
    except QuantityError as error:
        raise QuantityError(f"line {number} of the rate trace: {error.message}", error.advice) from error
    if for_ns == 0 or rate_bps > RATE_MAX_BPS:
        raise QuantityError(f"line {number} of the rate trace: {line!r} is out of range", "Write: 10ms 5mbit")
    return RateStep(for_ns=for_ns, rate_bps=rate_bps)


def _parse_mahimahi(lines: list[tuple[int, str]]) -> list[RateStep]:
    """Rate steps of a mahimahi trace: the number of deliveries in a millisecond determines its rate; adjacent steps of equal rate are
    merged."""
    for number, line in lines:
        if len(line.lstrip("0")) > _MAX_MS_DIGITS:
            raise QuantityError(f"line {number} of the rate trace: the time is beyond a day", "A line is a time in ms.")
    times_ms = [int(line.lstrip("0") or "0") for _, line in lines]
    for (number, _), earlier, later in zip(lines[1:], times_ms, times_ms[1:], strict=False):
        if later < earlier:
            raise QuantityError(
                f"line {number} of the rate trace: {later} ms is before {earlier} ms", "Sort the trace."
            )
    # A delivery at t belongs to the millisecond that ends at t; one at 0 belongs to the first millisecond.
    deliveries_by_ms = Counter(max(time_ms - 1, 0) for time_ms in times_ms)
    duration_ms = max(times_ms[-1], 1)
    if duration_ms > LONGEST_NS // _NS_PER_MS:
        raise QuantityError("the rate trace is longer than a day", "Shorten it.")
    if max(deliveries_by_ms.values()) * _OPPORTUNITY_BITS * 1000 > RATE_MAX_BPS:
        raise QuantityError("more than 1 Tb/s in a millisecond of the rate trace", "Is it a list of deliveries in ms?")
    steps: list[RateStep] = []
    for ms in range(duration_ms):
        rate_bps = deliveries_by_ms.get(ms, 0) * _OPPORTUNITY_BITS * 1000
        if steps and steps[-1].rate_bps == rate_bps:
            steps[-1] = RateStep(for_ns=steps[-1].for_ns + _NS_PER_MS, rate_bps=rate_bps)
        else:
            steps.append(RateStep(for_ns=_NS_PER_MS, rate_bps=rate_bps))
    return steps
