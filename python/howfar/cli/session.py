"""The environment of a run: enter the sandbox, open the laboratory that a plan needs, provide the real instruments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from howfar.cli.sandbox_entry import run_in_sandbox
from howfar.engine.process import engine_info
from howfar.errors import RunFileError, UsageError
from howfar.plan.factors import FACTORS
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS
from howfar.runner.loads import check_workload
from howfar.runner.run import program_facts
from howfar.runner.trial import Instruments
from howfar.store.records import RunInfo
from howfar.store.run_file import RunFile, create
from howfar.testbed import Testbed

if TYPE_CHECKING:
    from howfar.lab.request import LabRequest


_MAX_NAMES = 100


def check_machine(plan: Plan) -> None:
    """Check, before anything is built, that the plan has one server, that there are CPUs for two machines if pages need two, and that
    the engine has our version and accepts the workload. Raises UsageError, PlanError, MissingError, EngineError."""
    from howfar.lab.network import usable_cpus
    from howfar.lab.servers.kinds import check_name

    for server in plan.factors.server:
        check_name(server)
    if len(plan.factors.server) > 1:
        raise UsageError(
            f"plan {plan.name} names {len(plan.factors.server)} servers, but a laboratory has only one",
            "Make one run for each server, then compare them with `howfar compare`.",
        )
    WORKLOADS[plan.workload.kind].check_cpus(plan, len(usable_cpus()))
    engine_info()
    check_workload(plan)


def enter_sandbox(leave: Callable[[], None]) -> int | None:
    """Run this same command in the sandbox, after calling `leave`, and return its exit code; None if this process is inside already.

    Raises SandboxForbidden, MissingError; LabError when the sandbox was killed.
    """
    from howfar.lab import sandbox

    if sandbox.inside():
        return None
    leave()
    return run_in_sandbox(has_run_file=True)


def machine_notes(plan: Plan) -> list[str]:
    """Sentences about what this machine lacks for the plan; the run is possible nevertheless."""
    from howfar.lab import sandbox

    late = sandbox.lacking_timing() if lab_request(plan).needs_link else None
    return [] if late is None else [late]


def open_testbed(plan: Plan, on_step: Callable[[str], None] = lambda step: None) -> AbstractContextManager[Testbed]:
    """The laboratory for all cells of a plan. `on_step` is called with each step that takes a while."""
    from howfar.lab.laboratory import open_laboratory

    return open_laboratory(lab_request(plan), on_step)


def lab_request(plan: Plan) -> LabRequest:
    """The request for a laboratory that serves all cells of a plan."""
    from howfar.lab.link import LOCAL_NETWORK
    from howfar.lab.request import LabRequest
    from howfar.lab.server_group import replicas_spec
    from howfar.runner.loads import load_class

    factors, load = plan.factors, load_class(plan)
    return LabRequest(
        server=factors.server[0],
        tables=plan.data.tables,
        table_size=plan.data.table_size,
        link=LOCAL_NETWORK.with_levels({name: getattr(factors, name)[0] for name in FACTORS}),
        placement=factors.placement[0],
        connections=_max_connections(plan),  # a confirmation may halve their number, but never adds any
        paths=factors.path,
        contents=factors.content,
        replicas=replicas_spec(plan),
        prepare=load.table_statements(plan),
        auxiliary_servers=load.find_auxiliary_servers(plan),
        application=load.find_application(plan),
        keeps_connections=not WORKLOADS[plan.workload.kind].operation.is_composite,
    )


def _max_connections(plan: Plan) -> int:
    """Maximum number of concurrent connections. With one per transaction it is doubled, because a server notices late that a
    connection was closed."""
    threads: int = max(plan.factors.threads)
    return 2 * threads if "per-transaction" in plan.factors.connect else threads


def instruments() -> Instruments:
    """The real instruments of a trial: the engine, the clocks, and the watch for other load on the machine."""
    from howfar.lab.cpu_speed import measure_speed
    from howfar.lab.environment import LoadWatch
    from howfar.lab.programs import ProgramWatch
    from howfar.other_programs import waits_for_programs

    return Instruments(
        watch=LoadWatch,
        programs=ProgramWatch,
        measure_speed=measure_speed,
        waits=waits_for_programs(),
        facts=program_facts,
    )


def default_run_path(plan: str, utc: str) -> Path:
    """`howfar-paths-20261121T201500Z.howfar` in the current directory, with a number if a run that began in the same second has
    that name."""
    return _unused_path(Path(f"howfar-{plan}-{utc}.howfar"))


def create_run_file(path: Path, may_rename: bool, info: RunInfo) -> RunFile:
    """Create the run file. `may_rename`: whether to number the name if another run has taken it meanwhile. Raises DiskFull,
    RunFileError."""
    for _ in range(_MAX_NAMES):
        try:
            return create(path, info)
        except RunFileError:
            if not (may_rename and path.exists()):
                raise
            path = _unused_path(path)
    return create(path, info)


def _unused_path(path: Path) -> Path:
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return path if not path.exists() else next(candidate for candidate in numbered if not candidate.exists())
