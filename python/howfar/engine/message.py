"""What every message of the contract is: a frozen, closed value, checked by the rules of its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator


class Message(BaseModel):
    """Frozen, and closed: an unknown field is a contract broken, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rules: ClassVar[dict[str, Callable[[Any], None]]] = {}
    """By the name of the type: what raises ValueError when its fields do not fit each other (`rules.py`)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rule = self.rules.get(type(self).__name__)
        if rule is not None:
            rule(self)
        return self
