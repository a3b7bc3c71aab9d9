"""The grammar of sentences that are put together. Pure."""

from __future__ import annotations


def capital(text: str) -> str:
    """As a sentence begins; the rest stays as it is."""
    return text[:1].upper() + text[1:]
