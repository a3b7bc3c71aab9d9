"""Masks known passwords in text from outside, such as a server's error or a command's arguments."""

from __future__ import annotations

import re
from contextlib import suppress

from howfar.terminal_text import in_utf8

MASK = "***"
_SHORT_LENGTH = 4
"""A password with fewer characters is often part of other words, so it is masked only as a separate word."""
_known: set[str] = set()


def learn(password: str) -> None:
    """Mask this password in texts from now on, also in the spelling of the engine, which reads UTF-8."""
    if password:
        _known.add(password)
        with suppress(UnicodeError):
            _known.add(in_utf8(password))


def without_passwords(text: str) -> str:
    """Mask each known password in a text."""
    for password in sorted(_known, key=len, reverse=True):  # a password may be part of another
        pattern = re.escape(password)
        text = re.sub(rf"(?<!\w){pattern}(?!\w)" if len(password) < _SHORT_LENGTH else pattern, MASK, text)
    return text


def forget() -> None:
    """Forget all passwords learnt so far."""
    _known.clear()
