"""Message templates for the violations that the network experiments find."""

from __future__ import annotations

from howfar.contract.violation import ViolationText

VIOLATIONS = (
    ViolationText(
        "session-compression",
        "the session's compression was {obtained:word} instead of {requested:word}",
        "the session's compression was not as requested",
        older_sentences=("the session was compressed by {obtained:word}, expected by {requested:word}",),
    ),
)
