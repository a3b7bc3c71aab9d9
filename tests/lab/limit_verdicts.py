"""The verdict of a test of limits on a measured case: right, wrong, or not to be judged because other processes used the machine.

A wrong verdict is never excused, nor is a void trial. A refusal to judge is accepted only if other processes used many CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from howfar.model.resource import Resource
from tests.lab.undisturbed import MANY_OTHERS

_REFUSALS = (Resource.INVALID, Resource.NOT_ESTABLISHED)

Verdict = Literal["right", "wrong", "void", "others"]


def others_cpus(found: Mapping[str, Any]) -> float:
    """CPUs that other processes kept busy in the last trial's window."""
    busy = found["window"]["cpus_busy"] if found["window"] else {}
    return float(sum(busy.values()) - found["used_cpus"]) if busy else 0.0


def verdict(found: Mapping[str, Any], expected: Resource) -> Verdict:
    if found["cell"] is None:
        return "void"
    named = found["cell"]["limit"]["resource"]
    if named == expected:
        return "right"
    return "others" if named in _REFUSALS and others_cpus(found) > MANY_OTHERS else "wrong"


def try_again(found: Mapping[str, Any], expected: Resource) -> bool:
    """Whether to measure again; the caller bounds the attempts. A wrong verdict on a quiet machine is final."""
    judged = verdict(found, expected)
    return judged in ("void", "others") or (judged == "wrong" and others_cpus(found) > MANY_OTHERS)
