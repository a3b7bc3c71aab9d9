"""What only `./test thorough` runs of a list of cases."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def rarely_but(usual: Collection[object], every: Iterable[object]) -> list[Any]:
    """The cases of a parametrised test: always those of `usual`, all others in `./test thorough`."""
    return [case if case in usual else pytest.param(case, marks=pytest.mark.thorough) for case in every]
