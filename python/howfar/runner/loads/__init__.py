"""The loads of trials, by kind of workload. A slice registers the class of its load in its module `load`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from howfar.plan.types import Plan
from howfar.runner.loads.load import TrialLoad
from howfar.runner.loads.transactions import TransactionLoad
from howfar.slices import collect
from howfar.store.records import Arm
from howfar.testbed import TrialEnvironment


def prepare_load(plan: Plan, arm: Arm, environment: TrialEnvironment, seed: int) -> TrialLoad[Any]:
    """The load of an arm, ready to start. Raises LabError, EngineError."""
    return load_class(plan).prepare(plan, arm, environment, seed)


def check_workload(plan: Plan) -> None:
    """Check, before anything is created, that the engine accepts the plan's workload. Raises PlanError."""
    load_class(plan).check_plan(plan)


def load_class(plan: Plan) -> type[TrialLoad[Any]]:
    """The class of a plan's loads."""
    return _loads_by_kind().get(plan.workload.kind, TransactionLoad)


@cache
def _loads_by_kind() -> Mapping[str, type[TrialLoad[Any]]]:
    """Loads other than plain SQL transactions. Collected when first needed, because the slices' modules import this package."""
    return {load.kind: load for load in cast(tuple[type[TrialLoad[Any]], ...], collect("load", "LOADS", type))}
