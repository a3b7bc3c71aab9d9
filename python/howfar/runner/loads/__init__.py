"""The loads of trials, by kind of workload. A new kind is a subclass of `TrialLoad` in a module here, and a line in `_LOADS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howfar.plan.types import Plan
from howfar.runner.loads.keys import KeyLoad
from howfar.runner.loads.load import TrialLoad
from howfar.runner.loads.pages import PageLoad
from howfar.runner.loads.transactions import TransactionLoad
from howfar.runner.loads.writers import WritersLoad
from howfar.store.records import Arm
from howfar.testbed import TrialEnvironment

_LOADS: Mapping[str, type[TrialLoad[Any]]] = {"key_value": KeyLoad, "page": PageLoad, "single_row_updates": WritersLoad}
"""Loads other than plain SQL transactions."""


def prepare_load(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> TrialLoad[Any]:
    """The load of an arm, ready to start. Raises LabError, EngineError."""
    return _load_class(plan).prepare(plan, arm, environment, seed)


def check_workload(plan: Plan) -> None:
    """Check, before anything is created, that the engine accepts the plan's workload. Raises PlanError."""
    _load_class(plan).check_plan(plan)


def _load_class(plan: Plan) -> type[TrialLoad[Any]]:
    return _LOADS.get(plan.workload.kind, TransactionLoad)
