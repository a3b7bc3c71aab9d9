"""What a rule answers, and the thresholds that several rules share, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from howfar.analysis.findings import Cycle, Resource
from howfar.bottleneck.evidence import Evidence

Confidence = Literal["high", "medium", "low"]

FULL_SHARE = 0.95
"""A link, a CPU or a thread used so much has no time left; the rest is the grain of clocks and windows."""
INTERNAL_SHARE = 0.30
"""Of the cycle, in waits that the server itself counts."""
HALF = 0.5
REST_SHARE = 0.15
"""Of the cycle, unexplained: more could hide a resource that nothing here counts."""


@dataclass(frozen=True)
class Finding:
    """A rule's answer."""

    resource: Resource
    says: str
    evidence: tuple[str, ...]
    confidence: Confidence
    divided: bool = False
    """Nobody has most of the CPUs."""


Rule = Callable[[Evidence, Cycle], Finding | None]
"""None: this is not it."""
