"""The head of a new run: enough to repeat it."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import howfar
from howfar.lab.stage import Laboratory
from howfar.plan.cells import cells
from howfar.plan.load import LoadedPlan
from howfar.store.records import Arm, ArmRole, RunInfo

SEED_BITS = 31
"""Short enough to be typed again."""


def new_seed() -> int:
    """From the system; the only randomness of a run that is not in its plan."""
    return secrets.randbits(SEED_BITS)


def run_info(
    loaded: LoadedPlan,
    seed: int,
    command: Sequence[str],
    laboratory: Laboratory,
    facts: Mapping[str, Any] | None = None,
) -> RunInfo:
    """`command` repeats the run; the seed must be in it. `facts`: of the programs, beside those of the laboratory."""
    kind, version = laboratory.server()
    return RunInfo(
        run_id=str(uuid.uuid4()),
        created_unix_ns=time.time_ns(),
        howfar_version=howfar.__version__,
        command=tuple(command),
        plan_name=loaded.plan.name,
        quick=loaded.quick,
        plan_toml=loaded.text,
        plan=loaded.plan.model_dump(mode="json"),
        seed=seed,
        arms=tuple(
            Arm(name=cell.name, role=ArmRole(cell.role), factors=dict(cell.factors)) for cell in cells(loaded.plan)
        ),
        environment=laboratory.environment() | dict(facts or {}),
        server_kind=kind,
        server_version=version,
    )
