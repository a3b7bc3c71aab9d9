"""What happened to a run between its trials, as texts of the table `event`: a word, and for some a JSON object after a colon."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from howfar.store.records import RunEvent, StopReason

CREATED = "created"
_RESUMED = "resumed"
_EXTENDED = "extended"
_CONFIRMING = "confirming"
_CONFIRMED = "confirmed"
CONFIRMED_COMPLETE = "complete"
CONFIRMED_TIME = "time"
CONFIRMED_NOTHING = "nothing to confirm"


@dataclass(frozen=True)
class Confirming:
    """What was decided when the plan's blocks had ended."""

    stop: StopReason
    """Why they had."""
    asked: tuple[dict[str, Any], ...]
    """The interventions, as `analysis/confirmation.py` writes and reads them."""
    refused: tuple[dict[str, Any], ...]
    """Limits that cannot be changed here, and why."""
    ended: bool
    """Its blocks are measured, or there are none. One that the time cut short has not ended: it can go on."""


def stopped(stop: StopReason) -> str:
    return f"stopped: {stop.value}"


def resumed(trial: int, environment: Mapping[str, Any], differs: Sequence[str]) -> str:
    """`trial`: the number of the first one after the break. `environment`: as it is now. `differs`: from the run's head, in words."""
    return _text(_RESUMED, {"trial": trial, "differs": list(differs), "environment": dict(environment)})


def extended(trial: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The plan's timing that changed, before and after."""
    return _text(_EXTENDED, {"trial": trial, "before": dict(before), "after": dict(after)})


def confirming(stop: StopReason, asked: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]]) -> str:
    return _text(_CONFIRMING, {"stop": stop.value, "asked": [*map(dict, asked)], "refused": [*map(dict, refused)]})


def confirmed(blocks: int, why: str) -> str:
    """`why`: `CONFIRMED_COMPLETE`, `_TIME` or `_NOTHING`."""
    return _text(_CONFIRMED, {"blocks": blocks, "why": why})


def confirmation(events: Iterable[RunEvent]) -> Confirming | None:
    """None: none was begun. A run has at most one."""
    found: Confirming | None = None
    for event in events:
        word, _, detail = event.what.partition(": ")
        if word == _CONFIRMING:
            said = json.loads(detail)
            found = Confirming(StopReason(said["stop"]), tuple(said["asked"]), tuple(said["refused"]), ended=False)
        elif word == _CONFIRMED and found is not None:
            found = replace(found, ended=json.loads(detail)["why"] != CONFIRMED_TIME)
    return found


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
