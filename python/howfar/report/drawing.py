"""Altair under the name `alt`, imported when the first chart is drawn. That takes longer than a whole report in a terminal, which
draws none."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt
else:

    class _Altair:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("altair"), name)

    alt = _Altair()

__all__ = ["alt"]
