"""A test of limits is skipped only if other programs used the machine, never for a wrong verdict or a void trial."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lab.limit_verdicts import judge, other_programs_cpus, should_retry

from howfar.model.resource import Resource

LINK = Resource.LINK_TO_CLIENT


def found(resource: Resource | None, others: float = 0.0) -> dict[str, Any]:
    cell = None if resource is None else {"limit": {"resource": resource.value}}
    return {"cell": cell, "window": {"cpus_busy": {"0": 0.5, "1": 0.4 + others}}, "used_cpus": 0.9}


@pytest.mark.parametrize(
    ("resource", "others", "judged", "again"),
    [
        (LINK, 0.0, "right", False),
        (LINK, 0.9, "right", False),
        (Resource.LOSS, 0.0, "wrong", False),
        (Resource.LOSS, 0.9, "wrong", True),
        (Resource.INVALID, 0.0, "wrong", False),
        (Resource.INVALID, 0.9, "others", True),
        (Resource.NOT_ESTABLISHED, 0.0, "wrong", False),
        (Resource.NOT_ESTABLISHED, 0.9, "others", True),
        (None, 0.0, "void", True),
    ],
)
def test_only_a_refusal_on_a_busy_machine_is_excused(
    resource: Resource | None, others: float, judged: str, again: bool
) -> None:
    case = found(resource, others)
    assert other_programs_cpus(case) == pytest.approx(others)
    assert judge(case, LINK) == judged
    assert should_retry(case, LINK) is again


def test_without_a_window_nobody_is_blamed() -> None:
    assert judge(found(Resource.INVALID) | {"window": None}, LINK) == "wrong"
