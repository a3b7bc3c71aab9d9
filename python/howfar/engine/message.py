"""Base of all messages of the contract: a frozen, closed value, checked by the rules of its type."""

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from howfar.terminal_text import one_line


class Message(BaseModel):
    """A frozen, closed message: an unknown field breaks the contract and is never ignored."""

    # A message's validator is built when the message is first used: a command needs few of the hundred.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    rules: ClassVar[dict[str, Callable[[Any], None]]] = {}
    """Rules by the name of the type: they raise ValueError when its fields do not fit each other (`rules.py`)."""

    @field_validator("message", "refusal", "refusals", "server_version", check_fields=False)
    @classmethod
    def _clean(cls, text: Any) -> Any:
        """What a server says of itself, or of an error, is one line, without characters that act on a terminal."""
        if isinstance(text, tuple):
            return tuple(cls._clean(one) for one in text)
        return one_line(text) if isinstance(text, str) else text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rule = self.rules.get(type(self).__name__)
        if rule is not None:
            rule(self)
        return self


_Rule = TypeVar("_Rule", bound=Callable[[Any], None])


def rule_of(kind: type[Message]) -> Callable[[_Rule], _Rule]:
    """A decorator: the rule checks each message of this type."""

    def register(rule: _Rule) -> _Rule:
        Message.rules[kind.__name__] = rule
        return rule

    return register
