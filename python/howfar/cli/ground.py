"""Where a run happens: enter the sandbox, open the laboratory that a plan needs, take the real instruments."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from howfar.conduct.trial import Instruments
from howfar.engine.process import engine_info
from howfar.errors import UsageError
from howfar.lab.stage import Laboratory
from howfar.plan.types import Plan


def check_ground(plan: Plan) -> None:
    """Before anything is built: one server, and the engine is there and ours. Raises UsageError, MissingError, EngineError."""
    if len(plan.factors.server) > 1:
        raise UsageError(
            f"plan {plan.name} names {len(plan.factors.server)} servers; a laboratory holds one",
            "Make one run for each server, then `howfar compare` them.",
        )
    engine_info()


def enter_sandbox() -> int | None:
    """None when already inside; else run this very command inside and give back its exit code. Raises SandboxForbidden."""
    from howfar.lab import sandbox

    return None if sandbox.inside() else sandbox.run_inside()


def open_ground(plan: Plan) -> AbstractContextManager[Laboratory]:
    """The laboratory for all cells of a plan."""
    from howfar.lab.laboratory import LabRequest, open_laboratory

    factors = plan.factors
    request = LabRequest(
        server=factors.server[0],
        tables=plan.data.tables,
        table_size=plan.data.table_size,
        rtt_ns=factors.rtt_ns[0],
        rate_bps=factors.rate_bps[0],
        placement=factors.placement[0],
        connections=max(factors.threads),
        paths=factors.path,
    )
    return open_laboratory(request)


def instruments() -> Instruments:
    """The engine, the clocks and the watch over the machine."""
    from howfar.lab.environment import LoadWatch

    return Instruments(watch=LoadWatch)


def default_out(plan: str, utc: str) -> Path:
    """`howfar-paths-20261121T201500Z.howfar` in the current directory."""
    return Path(f"howfar-{plan}-{utc}.howfar")
