"""Each page of a plan in a line: its turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from howfar.plan.page import PageShape

_RANGE_SIZE = 100
"""Where a plan does not say; sysbench's."""


def page_scripts(plan: Mapping[str, Any]) -> dict[str, str]:
    """By the page's name. Empty: a plan without pages."""
    shapes, workload = plan.get("pages"), plan.get("workload")
    if not isinstance(shapes, Mapping):
        return {}
    size = workload.get("range_size", _RANGE_SIZE) if isinstance(workload, Mapping) else _RANGE_SIZE
    return {str(name): _line(shape, int(size)) for name, shape in shapes.items()}


def _line(shape: object, range_size: int) -> str:
    """Empty: a later version's page."""
    try:
        return PageShape.model_validate(shape).in_words(range_size)
    except ValidationError:
        return ""
