"""The libraries that draw charts: Altair, named `alt`, and vl-convert. Both belong to the extra `howfar[report]`, 90 MB that only HTML
pages need. They are imported when the first chart is drawn, because the import takes longer than an entire report in a terminal."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt
else:

    class _Altair:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("altair"), name)

    alt = _Altair()

__all__ = ["INSTALL_ADVICE", "NOT_DRAWN", "alt", "can_draw"]
INSTALL_ADVICE = "Reinstall howfar with its extra `report`."
"""Advice if the libraries are missing."""
NOT_DRAWN = "This chart was not drawn: the libraries that draw it are not installed."
"""Text in a page in place of each chart that could not be drawn."""


def can_draw() -> bool:
    """Whether the libraries are installed."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))
