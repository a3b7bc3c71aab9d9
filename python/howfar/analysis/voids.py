"""Why trials are void: their violations counted by kind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pydantic import Field

from howfar.contract.violation import DISTURBED, FREE_TEXTS, NO_REASON, Violation, violation
from howfar.contract.violation_formats import Value
from howfar.stats.estimate import Part
from howfar.store.records import Trial, TrialStatus, is_repeated

_FIGURE = re.compile(r"\d[\d.,]*\s?(?:[a-zµ%]+)?")


class VoidKind(Part):
    """Violations with the same id, subject and words, which differ in figures only."""

    id: str
    subject: str = ""
    """The host, server, replica or link that it is about. Empty: the only one of its kind."""
    parameters: dict[str, Value] = Field(default_factory=dict)
    """Those of one of the trials; units end the names."""
    ranges: dict[str, tuple[int | float, int | float]] = Field(default_factory=dict)
    """Smallest and largest value of the figures that differ between trials."""
    varies: bool = False
    """Whether figures differ between trials, those within messages included."""
    count: int
    """Number of void trials with it."""
    trials: tuple[int, ...] = ()
    """Numbers of these trials."""

    @property
    def violation(self) -> Violation:
        return Violation(id=self.id, subject=self.subject, parameters=self.parameters)


def count_voids(trials: Iterable[Trial]) -> tuple[VoidKind, ...]:
    """The kinds of violations of the void ones of these trials, the most frequent first."""
    void_trials = (trial for trial in trials if trial.status is TrialStatus.VOID)
    by_reason = sorted(void_trials, key=lambda trial: "" if is_repeated(trial) else trial.void_reason or "")
    return count_kinds((trial.number, _violations_of(trial)) for trial in by_reason)


def count_kinds(violations_by_trial: Iterable[tuple[int, Sequence[Violation]]]) -> tuple[VoidKind, ...]:
    """The kinds of violations, the most frequent first. A trial counts once for each kind, with the last of its violations: those of
    a higher percentile follow."""
    by_kind: dict[object, list[tuple[int, Violation]]] = defaultdict(list)
    for number, violations in violations_by_trial:
        for kind, each in {_kind(each): each for each in violations}.items():
            by_kind[kind].append((number, each))
    return tuple(sorted(map(_void_kind, by_kind.values()), key=lambda kind: -kind.count))


def _violations_of(trial: Trial) -> tuple[Violation, ...]:
    """Why the trial is void. What else was wrong when other programs disturbed it does not count."""
    return (violation(DISTURBED),) if is_repeated(trial) else trial.why_void or (violation(NO_REASON),)


def _kind(each: Violation) -> object:
    """What violations of one kind have in common: everything but figures."""
    words = {
        name: _FIGURE.sub("#", value) if name in FREE_TEXTS else value
        for name, value in each.parameters.items()
        if isinstance(value, str)
    }
    return each.id, each.subject, tuple(sorted(words.items()))


def _void_kind(found: Sequence[tuple[int, Violation]]) -> VoidKind:
    first, all_parameters = found[0][1], [each.parameters for _, each in found]
    values = {name: [parameters.get(name) for parameters in all_parameters] for name in first.parameters}
    numbers = {name: [value for value in each if isinstance(value, int | float)] for name, each in values.items()}
    trials = tuple(sorted(number for number, _ in found))
    return VoidKind(
        id=first.id,
        subject=first.subject,
        parameters=first.parameters,
        ranges={name: (min(each), max(each)) for name, each in numbers.items() if len(set(each)) > 1},
        varies=len({each.sentence for _, each in found}) > 1,
        count=len(trials),
        trials=trials,
    )
