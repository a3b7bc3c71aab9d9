"""Plans and workloads of slices, for tests of the core that use one as an example."""

from __future__ import annotations

from typing import Any

import pytest

from howfar.plan.load import LoadedPlan, load_plan
from howfar.plan.workload import WORKLOADS
from howfar.slices import plan_files


def load_shipped(name: str, *arguments: Any, **named: Any) -> LoadedPlan:
    """Load a plan; skips the test in a copy of the project without the plan's slice."""
    skip_without(name)
    return load_plan(name, *arguments, **named)


def skip_without(*names: str) -> None:
    """Skip the test in a copy of the project that lacks one of these plans."""
    for name in names:
        if name not in plan_files():
            pytest.skip(f"the plan {name} is not part of this copy")


def skip_without_workload(kind: str) -> None:
    """Skip the test in a copy of the project that lacks this kind of workload."""
    if kind not in WORKLOADS:
        pytest.skip(f"the workload {kind} is not part of this copy")
