"""Base of all messages of the contract: a frozen, closed value."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from howfar.passwords import without_passwords
from howfar.terminal_text import one_line

_MAX_TEXT_CHARS, _MAX_VERSION_CHARS = 1000, 100
"""Maximum lengths, in characters, to which a server's texts are cut."""

Count = Annotated[int, Field(ge=0, lt=2**62)]
"""A number of things, bytes or nanoseconds; a sum of two still fits in a 64-bit integer."""


class Message(BaseModel):
    """A frozen, closed message of finite numbers: an unknown field breaks the contract and is never ignored."""

    # A message's validator is built when the message is first used: a command needs only a few of about a hundred.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("message", "refusal", "refusals", "server_version", check_fields=False)
    @classmethod
    def _clean(cls, text: Any, info: ValidationInfo) -> Any:
        """Reduce a server's version or error message to one line of bounded length, without passwords and terminal control
        characters."""
        max_chars = _MAX_VERSION_CHARS if info.field_name == "server_version" else _MAX_TEXT_CHARS
        if isinstance(text, tuple):
            return tuple(_legible(item, max_chars) for item in text)
        return _legible(text, max_chars)


def _legible(text: Any, max_chars: int) -> Any:
    if not isinstance(text, str):
        return text
    clean = without_passwords(one_line(text))
    return clean if len(clean) <= max_chars else f"{clean[: max_chars - 1]}…"
