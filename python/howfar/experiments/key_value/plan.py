"""The workload `key_value`: commands to Redis or Memcached alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from howfar.plan.factors import factor_refusal
from howfar.plan.kinds import Keys, Operation, WorkloadKind, refuse_sql_factors

if TYPE_CHECKING:
    from howfar.plan.types import Plan, StoredPlan

KIND = "key_value"


def _check(plan: Plan) -> None:
    refuse_sql_factors(plan)
    if plan.factors.content != ("digits",):
        raise factor_refusal("content", f"content applies to tables: the workload {KIND} has none")


def _replaces(plan: Plan) -> Plan | None:
    """The plan with gets of a key in place of point selects. None for other workloads, and if a factor needs tables."""
    if plan.workload.kind != "oltp_point_select":
        return None
    replaced = plan.model_copy(update={"workload": type(plan.workload)(kind=KIND), "keys": Keys(set=0)})
    try:
        _check(replaced)
    except PydanticCustomError:
        return None
    return replaced


def _describe(plan: StoredPlan) -> str:
    """`key_value: 9 get : 1 set, 10000 keys with values of 100 bytes, drawn evenly`."""
    keys = plan.keys or Keys()
    commands = (keys.get, "get"), (keys.set, "set"), (keys.multi_get, "multi_get")
    mix = " : ".join(f"{weight} {command}" for weight, command in commands if weight)
    return f"{KIND}: {mix}{f', {keys.pipeline} at once' if keys.pipeline > 1 else ''}, {keys.describe()}"


WORKLOADS = (
    WorkloadKind(
        KIND,
        used_keys=frozenset(Keys.model_fields),
        reads_only=True,
        reads_tables=False,
        prepares=False,
        operation=Operation("request", "requests"),
        check=_check,
        replaces=_replaces,
        describe=_describe,
    ),
)
