"""Base of all messages of the contract: a frozen, closed value, checked by the rules of its type."""

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from howfar.passwords import without_passwords
from howfar.terminal_text import one_line

_MAX_TEXT_CHARS, _MAX_VERSION_CHARS = 1000, 100
"""Maximum lengths, in characters, to which a server's texts are cut."""


class Message(BaseModel):
    """A frozen, closed message: an unknown field breaks the contract and is never ignored."""

    # A message's validator is built when the message is first used: a command needs only a few of about a hundred.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    rules: ClassVar[dict[str, Callable[[Any], None]]] = {}
    """Rules by the name of the type: they raise ValueError when its fields do not fit each other (`rules.py`)."""

    @field_validator("message", "refusal", "refusals", "server_version", check_fields=False)
    @classmethod
    def _clean(cls, text: Any, info: ValidationInfo) -> Any:
        """Reduce a server's version or error message to one line of bounded length, without passwords and terminal control
        characters."""
        max_chars = _MAX_VERSION_CHARS if info.field_name == "server_version" else _MAX_TEXT_CHARS
        if isinstance(text, tuple):
            return tuple(_legible(item, max_chars) for item in text)
        return _legible(text, max_chars)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rule = self.rules.get(type(self).__name__)
        if rule is not None:
            rule(self)
        return self


def _legible(text: Any, max_chars: int) -> Any:
    if not isinstance(text, str):
        return text
    clean = without_passwords(one_line(text))
    return clean if len(clean) <= max_chars else f"{clean[: max_chars - 1]}…"


_Rule = TypeVar("_Rule", bound=Callable[[Any], None])


def rule_of(kind: type[Message]) -> Callable[[_Rule], _Rule]:
    """A decorator: the rule checks each message of this type."""

    def register(rule: _Rule) -> _Rule:
        Message.rules[kind.__name__] = rule
        return rule

    return register
