"""Find out what this machine and the plan's server can do, and fit the plan to them.

Memory and disk limit the number of rows: memory holds each table twice (as a file and in the server's pool), and the disk holds its
template. `plan/fitting.py` applies this limit to the plan. If loads are shares of the baseline's capacity, that capacity is measured
here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from howfar.contract.environment import Capacity, RunEnvironment
from howfar.contract.messages import ServiceName
from howfar.errors import LabError, PlanError
from howfar.lab.cache import cache_home
from howfar.lab.environment import memory_bytes
from howfar.lab.servers.contents import find_rows
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED_TEMPLATES, POOL_PER_DATA, ROW_BYTES, template_name
from howfar.paths import check_programs, find_path, reason_not_carried
from howfar.plan.cells import cells, combinations
from howfar.plan.estimate import trial_cost_ns
from howfar.plan.factor import Level
from howfar.plan.factors import CLOSED, PATH, Content, hiding_levels
from howfar.plan.fitting import (
    FittedPlan,
    check_keys,
    check_rows,
    closed_loop_baseline,
    describe_unresumed_sessions,
    needs_capacity,
    round_below,
    with_capacity,
    with_keys,
    with_rows,
    without_levels,
)
from howfar.plan.sessions import session_spec
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS, Data
from howfar.runner.loads import load_class
from howfar.runner.observer import Observer
from howfar.runner.stopping import Slot
from howfar.runner.trial import Instruments, run_trial
from howfar.slices import collect
from howfar.store.records import Arm, ArmRole
from howfar.testbed import Testbed


@dataclass(frozen=True)
class ServerSupport:
    """What servers support of the factors of a slice, which registers it in its module `preflight`."""

    unsupported: Callable[[Plan], dict[str, dict[Level, str]]]
    """Levels that the server does not support, by factor, with the reason."""
    servers: Callable[[Plan], int] = lambda plan: 1
    """Number of servers that a trial of the plan runs at once, at most, each with the plan's tables."""
    with_server_levels: Callable[[Plan], FittedPlan] = FittedPlan
    """The plan with the server's own levels in place of other servers'. Raises ServerMissing, ServerCrashed."""


@cache
def _server_support() -> tuple[ServerSupport, ...]:
    """Collected when first needed, because the slices' modules import this one."""
    return collect("preflight", "SERVER_SUPPORT", ServerSupport)


def fit_plan(plan: Plan, on_other_host: bool = False) -> FittedPlan:
    """The plan without what is not available here. The server is started and queried once; its answer is cached. `on_other_host`:
    whether programs that can have their own host run on another host.

    Raises ServerMissing, ServerCrashed, LabError; PlanError when nothing is left.
    """
    converted = with_keys(plan) if _stores_keys(plan) else FittedPlan(plan)
    plan = converted.plan
    _check_server(plan)
    _check_keys(plan)
    carried = _without_uncarried_paths(plan)
    plan = carried.plan
    _check_paths(plan, on_other_host)
    if not WORKLOADS[plan.workload.kind].reads_tables:
        supported = without_levels(plan, unsupported_by_machine(plan))
        return FittedPlan(supported.plan, (*converted.notes, *carried.notes, *supported.notes))
    _check_auxiliary_programs(plan)
    if not plan.data.fit:
        check_rows(plan, max_possible_rows(plan.data))
    adapted = with_server_levels(plan)
    supported = without_levels(adapted.plan, unsupported_levels(adapted.plan))
    sized = with_rows(supported.plan, _max_rows(plan) if plan.data.fit else 0)
    return FittedPlan(
        sized.plan,
        (*carried.notes, *adapted.notes, *supported.notes, *sized.notes, *describe_unresumed_sessions(sized.plan)),
    )


def server_kind(server: str) -> str:
    """The kind of a server. Raises ServerMissing, ServerCrashed."""
    from howfar.lab.servers.kinds import KINDS, find_server

    return server if server in KINDS else find_server(server).kind


def _stores_keys(plan: Plan) -> bool:
    """Whether all servers of the plan store keys. Raises ServerMissing, ServerCrashed."""
    from howfar.lab.servers.kinds import STORES

    return all(server_kind(server) in STORES for server in plan.factors.server)


def _check_server(plan: Plan) -> None:
    """Check that the workload fits the server's kind. Raises PlanError, ServerMissing, ServerCrashed."""
    from howfar.lab.servers.kinds import KINDS, STORES

    uses_keys = not WORKLOADS[plan.workload.kind].reads_tables
    for server in plan.factors.server:
        kind = server_kind(server)
        if uses_keys == (kind in STORES):
            if not KINDS[kind].tls_on_socket and kind not in STORES:
                _check_socket_plain(plan, kind)
            continue
        if uses_keys:
            raise PlanError(
                f"{kind} speaks SQL, but the workload of the plan {plan.name} uses keys",
                f"Name a store of keys: {', '.join(STORES)}.",
            )
        raise PlanError(
            f"{kind} stores keys, but the workload of the plan {plan.name} uses SQL",
            "Name a server that speaks SQL, or give the plan the workload key_value.",
        )


def _without_uncarried_paths(plan: Plan) -> FittedPlan:
    """The plan without paths that cannot carry it. Raises PlanError if only one of several paths is left; ServerMissing,
    ServerCrashed."""
    carried = without_levels(plan, {"path": _uncarried_paths(plan)})
    left = carried.plan.factors.path
    if len(left) == 1 < len(plan.factors.path):
        raise PlanError(
            f"no path of plan {plan.name} is left to compare with {left[0]}: {'; '.join(carried.notes)}",
            "Choose another server with --server, or other paths with --path.",
        )
    return carried


def _uncarried_paths(plan: Plan) -> dict[Level, str]:
    """Paths whose programs cannot read the protocols of the plan's servers. Raises ServerMissing, ServerCrashed."""
    from howfar.lab.servers.kinds import KINDS

    servers = (*plan.factors.server, *load_class(plan).find_auxiliary_servers(plan))
    services = {KINDS[server_kind(server)].service for server in servers}
    return {name: reason for name in plan.factors.path if (reason := reason_not_carried(find_path(name), services))}


def check_hop_programs(plan: Plan) -> None:
    """Check that the programs that can run on their own host are installed on this one. Raises MissingError."""
    for path in map(find_path, plan.factors.path):
        if path.movable:
            check_programs(path)


def _check_paths(plan: Plan, on_other_host: bool = False) -> None:
    """Check that the paths' programs are installed and can carry the plan's sessions. `on_other_host`: see `fit_plan`. Raises
    PlanError, MissingError."""
    prepares = WORKLOADS[plan.workload.kind].prepares and plan.workload.db_ps_mode == "auto"
    for levels in combinations(plan):
        if any(excluded.matches(levels) for excluded in plan.leave_out):
            continue
        path = find_path(PATH.level_in(levels))
        if not (on_other_host and path.movable):
            check_programs(path)
        if (hidden_by := hiding_levels(levels)) and not path.passes_tls:
            raise PlanError(
                f"the path {path.name} reads what it carries, but plan {plan.name} hides it there by {' and '.join(hidden_by)}",
                "Leave those cells out: name the path and these levels in [[leave_out]].",
            )
        if prepares and not path.keeps_sessions:
            raise PlanError(
                f"on the path {path.name}, a client's transactions use changing connections to the server, on which its prepared "
                f"statements are unknown, but plan {plan.name} prepares its statements",
                'Set db_ps_mode = "disable" in [workload], or name a path that pools sessions.',
            )


def _check_socket_plain(plan: Plan, kind: str) -> None:
    """Check the plan for a server that has no TLS over its socket. Raises PlanError."""
    with_tls = [cell.factors for cell in cells(plan) if session_spec(cell.factors).tls]
    if any(find_path(PATH.level_in(factors)).by_socket for factors in with_tls):
        raise PlanError(
            f"{kind} has TLS only over TCP, but plan {plan.name} asks for it over its Unix socket",
            "Leave those cells out: [[leave_out]] with path and tls.",
        )


def _check_keys(plan: Plan) -> None:
    """Check that the stores can hold the plan's keys in memory. Raises PlanError, ServerMissing, ServerCrashed."""
    stores = load_class(plan).find_auxiliary_servers(plan)
    if not WORKLOADS[plan.workload.kind].reads_tables:
        stores = tuple(map(server_kind, plan.factors.server[:1]))
    if stores:
        check_keys(plan, stores, available_memory())


def service_of(plan: Plan) -> ServiceName:
    """The service that clients use as the plan's main server. Raises ServerMissing, ServerCrashed."""
    from howfar.lab.servers.kinds import KINDS

    return KINDS[server_kind(plan.factors.server[0])].service


def _check_auxiliary_programs(plan: Plan) -> None:
    """Check that the other servers and the programs of the load are installed. Raises ServerMissing, ServerCrashed, MissingError."""
    from howfar.lab.servers.kinds import find_server

    load = load_class(plan)
    for server in load.find_auxiliary_servers(plan):
        find_server(server)
    load.check_client(plan, service_of(plan))


def _max_rows(plan: Plan) -> int:
    from howfar.lab.servers.kinds import find_server

    servers = max((support.servers(plan) for support in _server_support()), default=1)
    return rows_that_fit(plan.data, plan.factors.content, find_server(plan.factors.server[0]), servers)


def unsupported_levels(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels that the server or this machine does not support, by factor, with the reason."""
    return {**_unsupported_tls(plan), **unsupported_by_server(plan), **unsupported_by_machine(plan)}


def unsupported_by_machine(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels of the plan that this machine does not support, by factor, with the reason."""
    from howfar.lab.idle import polling_obstacle

    reason = polling_obstacle() if "polling" in plan.factors.idle else None
    return {} if reason is None else {"idle": {"polling": reason}}


def with_server_levels(plan: Plan) -> FittedPlan:
    """The plan with the server's own levels in place of other servers'. Raises ServerMissing, ServerCrashed."""
    notes: tuple[str, ...] = ()
    for support in _server_support():
        adapted = support.with_server_levels(plan)
        plan, notes = adapted.plan, (*notes, *adapted.notes)
    return FittedPlan(plan, notes)


def unsupported_by_server(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels of the slices' factors that the server does not support, by factor, with the reason."""
    return {name: reasons for support in _server_support() for name, reasons in support.unsupported(plan).items()}


def _unsupported_tls(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels of TLS that the server does not support, with the reason."""
    from howfar.lab.servers.features import find_features
    from howfar.lab.servers.kinds import KINDS, find_server

    specs = {level: spec for level in plan.factors.tls if (spec := session_spec({"tls": level})).tls}
    if not specs:
        return {}
    program = find_server(plan.factors.server[0])
    server_name = f"{program.kind} {program.version}"
    if not find_features(program).tls:
        return {"tls": dict.fromkeys(specs, f"{server_name} was built without TLS")}
    resumed = () if KINDS[program.kind].resumes_tls else [level for level, spec in specs.items() if spec.resumption]
    return {"tls": dict.fromkeys(resumed, f"{server_name} does not resume TLS sessions")}


_MEMORY_SHARE = 0.7
"""Share of all memory that may be used. It is small enough to be available on any day; the rest is for other processes."""
_AVAILABLE_SHARE = 0.9
"""Share of the available memory that may be used, if other processes take more than that rest."""
_SERVER_BYTES = 1536 * 2**20
"""Memory of a server without its pool, with up to 2048 connections (MySQL with 2048 was measured to take 1 GB)."""
_DISK_SHARE = 0.9
_CGROUPS = Path("/sys/fs/cgroup")


def rows_that_fit(data: Data, contents: Sequence[Content], program: Program, servers: int = 1) -> int:
    """Maximum rows of each table, with a data directory for each content, on `servers` servers at once. 0: none fit."""
    memory = min(_memory_bytes_of_machine() * _MEMORY_SHARE, memory_bytes("MemAvailable") * _AVAILABLE_SHARE)
    kept = template_sizes(cache_home() / LOADED_TEMPLATES, program, data.tables, contents)
    sizes = [size for size in kept if size == data.table_size or (size < data.table_size and size == round_below(size))]
    return rows_in(memory, shutil.disk_usage(cache_home()).free, data.tables, len(contents), sizes, servers)


def max_possible_rows(data: Data) -> int:
    """Maximum rows of each table if the server's pool takes all memory. With more rows, memory would run out."""
    return max(int(available_memory() / POOL_PER_DATA / (data.tables * ROW_BYTES)), 0)


def available_memory() -> float:
    """Bytes of memory that one program could allocate now."""
    return min(_memory_bytes_of_machine(), memory_bytes("MemAvailable"))


def _memory_bytes_of_machine() -> float:
    return min(memory_bytes("MemTotal"), memory_limit(Path("/proc/self/cgroup").read_text(), _CGROUPS))


def rows_in(
    memory_bytes: float, disk_bytes: float, tables: int, contents: int, kept: Sequence[int] = (), servers: int = 1
) -> int:
    """Maximum rows of each table. `kept`: table sizes for which a template exists, so that they need no more disk space."""
    row_bytes = tables * ROW_BYTES
    in_memory = int((memory_bytes / servers - _SERVER_BYTES) / (contents + POOL_PER_DATA) / row_bytes)
    on_disk = int(disk_bytes * _DISK_SHARE / contents / row_bytes)
    with_template = max((size for size in kept if size <= in_memory), default=0)
    return max(min(in_memory, max(on_disk, with_template)), 0)


def template_sizes(directory: Path, program: Program, tables: int, contents: Sequence[Content]) -> tuple[int, ...]:
    """Table sizes, in rows, for which a template exists for every content."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    common: set[int] | None = None
    for content in contents:
        rows = find_rows(content)
        sizes_of_names = ((name, int(size)) for name in names for size in re.findall(r"x(\d+)-", name))
        sizes = {size for name, size in sizes_of_names if name == template_name(program, tables, size, rows)}
        common = sizes if common is None else common & sizes
    return tuple(sorted(common or ()))


def memory_limit(membership: str, root: Path) -> float:
    """The lowest memory limit of this process's control groups (v1 or v2). `membership`: /proc/self/cgroup. Infinite: no limit."""
    limit = float("inf")
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = base / path.lstrip("/")
        # Inside a container the path may be the host's, while the container's own group is mounted as the root.
        for folder in (group, *group.parents):
            if folder == base or base in folder.parents:
                limit = min(limit, _read_limit(folder / name))
    return limit


def _read_limit(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return float("inf")


CAPACITY_TRIALS = 3
MAX_CAPACITY_TRIALS = 6
"""Maximum number of trials to measure a capacity, void ones included."""


def with_rates(
    plan: Plan, seed: int, laboratory: Testbed, instruments: Instruments, observer: Observer
) -> tuple[Plan, RunEnvironment]:
    """The plan with every load as a rate, and the measurement of the capacity for the run file. Raises LabError.

    The capacity is the median of a few trials of the baseline in a closed loop. It only sets the rates: results are compared with
    cells that are measured in the same block.
    """
    if not needs_capacity(plan):
        return plan, RunEnvironment()
    cell = closed_loop_baseline(plan)
    usual_s = CAPACITY_TRIALS * trial_cost_ns(plan) // 10**9
    observer.preparing(f"measuring the capacity of {cell.name}, which sets the rates; usually {usual_s} s")
    arm = Arm(name=cell.name, role=ArmRole.BASELINE, factors=dict(cell.factors))
    rates: list[float] = []
    reason = ""
    for number in range(MAX_CAPACITY_TRIALS):
        trial = run_trial(
            number, Slot(0, 0, number, arm.name), arm, plan, seed, laboratory, instruments, lambda event: None
        )
        if trial.measured is not None and trial.void_reason is None:
            rates.append(trial.measured.transactions * 1e9 / trial.measured.elapsed_ns)
        reason = trial.void_reason or reason
        if len(rates) == CAPACITY_TRIALS:
            break
    if not rates:
        raise LabError(
            f"the capacity of {arm.name} could not be measured: {MAX_CAPACITY_TRIALS} trials were void, the last because: {reason}",
            "Fix the cause, or give rates instead of shares: --load 300/s.",
        )
    per_s = median(rates)
    plan_with_rates = with_capacity(plan, per_s)
    loads = ", ".join(level for level in plan_with_rates.factors.load if level != CLOSED)
    observer.note(f"capacity of the baseline ({arm.name}): {per_s:,.0f} transactions/s; loads: {loads}")
    return plan_with_rates, RunEnvironment(capacity=Capacity(arm=arm.name, per_s=per_s, trials=rates))
