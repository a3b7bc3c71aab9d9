"""What every message of the contract is: a frozen, closed value."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

PROTOCOL_VERSION: Final = 2
"""Raised when a message changes its meaning; the engine refuses a job of another version."""

LONGEST_NS = 86_400_000_000_000
"""A day: no field names a longer time. What is longer is a mistake of a unit."""


class Message(BaseModel):
    """Frozen, and closed: an unknown field is a contract broken, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")
