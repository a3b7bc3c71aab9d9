"""A script changes a link while a program runs over it: `5s rtt 50ms rate 100mbit`, `10s down 2s`. Read here, played by `Player`.

Time 0 is the start of the program. A change begins no schedule anew: outages and traces go on where they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from howfar.engine.messages import Outage
from howfar.errors import HowfarError, LabError, QuantityError, UsageError
from howfar.lab.link.asked import WAYS, LinkAsked
from howfar.lab.link.settings import OUTAGES_MOST, apply, schedule_ns

MOST_LINES = 10_000
_FIXED = {"mtu": "an interface keeps its MTU", "seed": "a link keeps its seed", "outage": "write: 10s down 2s"}


@dataclass(frozen=True)
class Script:
    """What a link is from when on."""

    first: LinkAsked
    """At the start, with the outages of all lines."""
    changes: tuple[tuple[int, LinkAsked], ...] = ()
    """Time from the start in ns, and the whole link from then on; in order."""

    def links(self) -> tuple[LinkAsked, ...]:
        return (self.first, *(asked for _, asked in self.changes))


def read_script(text: str, asked: LinkAsked, source: str = "the script") -> Script:
    """The script for a link that begins as `asked`. Raises UsageError with the number of the line."""
    lines: list[tuple[int, int, list[tuple[str, str]]]] = []
    outages: list[Outage] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            at_ns, said = _line(words)
            if lines and at_ns < lines[-1][1]:
                raise QuantityError(
                    f"{words[0]} is before the line above", "Write the lines in the order of their times."
                )
            outages += [Outage(at_ns=at_ns, for_ns=_down(value)) for word, value in said if word == "down"]
            if len(outages) > OUTAGES_MOST:
                raise QuantityError(f"more than {OUTAGES_MOST} times down", "Those that repeat: --outage 5s:1s/30s.")
            changes = [(word, value) for word, value in said if word != "down"]
        except QuantityError as error:
            raise UsageError(f"{source}:{number}: {error.message}", error.advice) from error
        lines.append((number, at_ns, changes))
        if len(lines) > MOST_LINES:
            raise UsageError(f"{source}:{number}: more than {MOST_LINES} lines", "Shorten it.")
    for name in WAYS:
        way = asked.way(name)
        asked = asked.with_way(name, replace(way, outages=(*way.outages, *outages)))
    return _compiled(asked, lines, source)


def _line(words: list[str]) -> tuple[int, list[tuple[str, str]]]:
    at_ns = schedule_ns(words[0])
    rest = words[1:]
    if not rest or len(rest) % 2:
        raise QuantityError("a line is a time, then pairs of a word and its value", "Write: 5s rtt 50ms loss 1%")
    said = list(zip(rest[::2], rest[1::2], strict=True))
    for word, _ in said:
        if word in _FIXED:
            raise QuantityError(f"{word} cannot change while a program runs", f"{_FIXED[word].capitalize()}.")
    return at_ns, said


def _down(text: str) -> int:
    for_ns = schedule_ns(text)
    if for_ns == 0:
        raise QuantityError("down for no time", "Write: 10s down 2s")
    return for_ns


def _compiled(asked: LinkAsked, lines: list[tuple[int, int, list[tuple[str, str]]]], source: str) -> Script:
    first, changes = asked, []
    for number, at_ns, said in lines:
        try:
            for word, value in said:
                asked = apply(asked, word, value)
        except QuantityError as error:
            raise UsageError(f"{source}:{number}: {error.message}", error.advice) from error
        if said:
            changes.append((at_ns, asked))
    return Script(first, tuple(changes))


class Player:
    """Plays a script in a thread of its own. Use as a context manager around the program."""

    def __init__(self, script: Script, change: Callable[[LinkAsked, int], None]) -> None:
        """`change` is told the link and the time since the start."""
        self.script, self._change = script, change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._play, name="link script", daemon=True)
        self._start_ns = 0
        self.played: list[tuple[int, int]] = []
        """When each change was asked for and when it was in force, in ns from the start."""
        self.failure: HowfarError | None = None
        """Why a change could not be made; none was made after it."""

    def __enter__(self) -> Player:
        self._start_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _play(self) -> None:
        for at_ns, asked in self.script.changes:
            rest_ns = self._start_ns + at_ns - time.monotonic_ns()
            if self._ended.wait(max(rest_ns, 0) / 1e9):
                return
            try:
                self._change(asked, time.monotonic_ns() - self._start_ns)
            except HowfarError as error:
                self.failure = error
                return
            except Exception as error:  # in a thread it would end the script and be lost
                self.failure = LabError(f"{type(error).__name__}: {error}", "Please report this.")
                return
            self.played.append((at_ns, time.monotonic_ns() - self._start_ns))
