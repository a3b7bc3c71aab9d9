"""The templates of this slice's violations."""

from __future__ import annotations

from howfar.contract.violation import ViolationText

VIOLATIONS = (
    ViolationText("session-compression", "the session was compressed by {obtained:word}, expected by {requested:word}"),
)
