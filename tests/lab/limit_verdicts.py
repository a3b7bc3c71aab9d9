"""Whether analysis named the right limit of a measured case, and whether to measure it again.

A wrong limit and a void trial are errors. That no limit is named is accepted only if other programs used many CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from howfar.model.resource import Resource
from tests.lab.undisturbed import BUSY_CPUS

_NO_LIMIT = (Resource.INVALID, Resource.NOT_ESTABLISHED)

Verdict = Literal["right", "wrong", "void", "others"]


def other_programs_cpus(found: Mapping[str, Any]) -> float:
    """CPUs that other programs used in the last trial's window."""
    busy = found["window"]["cpus_busy"] if found["window"] else {}
    return float(sum(busy.values()) - found["used_cpus"]) if busy else 0.0


def judge(found: Mapping[str, Any], expected: Resource) -> Verdict:
    if found["cell"] is None:
        return "void"
    resource = found["cell"]["limit"]["resource"]
    if resource == expected:
        return "right"
    return "others" if resource in _NO_LIMIT and other_programs_cpus(found) > BUSY_CPUS else "wrong"


def should_retry(found: Mapping[str, Any], expected: Resource) -> bool:
    """Whether to measure again; the caller limits the attempts. A wrong limit on a quiet machine is final."""
    judged = judge(found, expected)
    return judged in ("void", "others") or (judged == "wrong" and other_programs_cpus(found) > BUSY_CPUS)
