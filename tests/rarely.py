"""Marks the cases of a parametrised test that only `./test thorough` runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def rarely_but(usual: Collection[object], every: Iterable[object]) -> list[Any]:
    """The cases of a parametrised test: those of `usual` always run, all others only in `./test thorough`."""
    return [case if case in usual else pytest.param(case, marks=pytest.mark.thorough) for case in every]
