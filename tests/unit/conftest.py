"""Shared by all unit tests: each chart is drawn only once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import vl_convert


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Iterator[None]:
    """Cache drawn charts: many tests render the same report, and drawing takes most of the time."""
    drawn: dict[str, str] = {}
    draw = vl_convert.vegalite_to_svg

    def recalled(spec: dict[str, Any], **options: Any) -> str:
        key = json.dumps([spec, options], sort_keys=True)
        if key not in drawn:
            drawn[key] = draw(spec, **options)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_svg", recalled)
        yield
