"""What happened to a run between its trials, as texts of the table `event`: a word, and for some a JSON object after a colon."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from howfar.results.records import RunEvent, StopReason

CREATED = "created"
_RESUMED = "resumed"
_EXTENDED = "extended"


def stopped(stop: StopReason) -> str:
    return f"stopped: {stop.value}"


def resumed(trial: int, environment: Mapping[str, Any], differs: Sequence[str]) -> str:
    """`trial`: the number of the first one after the break. `environment`: as it is now. `differs`: from the run's head, in words."""
    return _text(_RESUMED, {"trial": trial, "differs": list(differs), "environment": dict(environment)})


def extended(trial: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The plan's timing that changed, before and after."""
    return _text(_EXTENDED, {"trial": trial, "before": dict(before), "after": dict(after)})


def breaks(events: Iterable[RunEvent]) -> tuple[int, ...]:
    """Numbers of the trials that were the first after a resume, ascending; a block may span such a break."""
    found = set()
    for event in events:
        word, _, detail = event.what.partition(": ")
        if word == _RESUMED and detail:
            found.add(int(json.loads(detail)["trial"]))
    return tuple(sorted(found))


def _text(word: str, detail: dict[str, Any]) -> str:
    return f"{word}: {json.dumps(detail, ensure_ascii=False, allow_nan=False)}"
