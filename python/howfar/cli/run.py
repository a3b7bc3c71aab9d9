"""`howfar run`: measure an experiment and report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.completion import complete_plans, complete_servers
from howfar.cli.hop_binary import hop_binary_option
from howfar.cli.on_hosts import HostOptions, check_options, on_options
from howfar.cli.opening import show_opening
from howfar.cli.output import details_option
from howfar.cli.screen import OutputFile, html_option, no_colour_option, note
from howfar.contract.environment import RunEnvironment
from howfar.errors import SandboxForbidden, UsageError
from howfar.paths import is_local
from howfar.paths.path import chosen_programs
from howfar.plan.cells import cells
from howfar.plan.estimate import describe_duration, estimate_cost
from howfar.plan.factors import CLOSED, LOAD, SERVER_LINKS
from howfar.plan.load import LoadedPlan, Override, load_plan
from howfar.plan.types import Plan, local_plan
from howfar.units import counted, format_duration_ns

if TYPE_CHECKING:
    from howfar.cli.progress import Progress
    from howfar.runner.observer import Observer
    from howfar.runner.trial import Instruments
    from howfar.testbed import Testbed

_TIMING_OPTIONS = ("target", "time_budget", "confirm")
"""Options that override the plan's timing; the others override its factors, each under its own name."""


@click.command()
@click.argument("plan", default="paths", shell_complete=complete_plans)
@click.option("--full", is_flag=True, help="Larger tables, longer trials, narrower intervals: hours, not minutes.")
@click.option("--quick", is_flag=True, hidden=True, help="The default.")
@click.option(
    "--server",
    metavar="KIND|PATH",
    shell_complete=complete_servers,
    help="mariadb, mysql, postgresql, another name from `howfar servers`, or a path.",
)
@click.option("--path", metavar="PATHS", help="Paths, separated by commas, including the baseline's.")
@click.option("--threads", type=int, metavar="N", help="Number of concurrent connections.")
@click.option(
    "--placement", type=click.Choice(["isolated", "machines"]), help="How CPUs are assigned to client and server."
)
@click.option("--rtt", metavar="TIME", help="Round trip time of the link, such as 0.2ms.")
@click.option("--rate", metavar="RATE", help="Bandwidth of the link, such as 1gbit.")
@click.option(
    "--idle",
    type=click.Choice(["as-found", "polling"]),
    help="Leave idle CPUs as they are, or make them poll, so that nothing waits for one to wake up (requires root).",
)
@click.option(
    "--load",
    metavar="LOADS",
    help="Rates, separated by commas: shares of the baseline's capacity, such as 50%, or numbers, such as 300/s.",
)
@click.option("--replica-rtt", metavar="TIME", help="Round trip time between primary and replica, such as 85ms.")
@click.option(
    "--distances",
    metavar="LEVELS",
    help="How far apart the servers of a cluster are: three-zones, or the pairs 1-2, 1-3 and 2-3, such as 1ms,20ms,30ms. Separate "
    "several levels with semicolons.",
)
@click.option(
    "--durability", type=click.Choice(["strict", "relaxed", "off"]), help="Durability of primary and replica."
)
@click.option("--target", metavar="SHARE", help="Stop when all ratios are known to within ± SHARE, such as 5%.")
@click.option("--time-budget", metavar="TIME", help="Time limit for the whole command, such as 5min.")
@click.option("--confirm", is_flag=True, default=None, help="Afterwards, test each named limit by changing it.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Seed of the random order; the same seed gives the same order.",
)
@click.option("--out", type=OutputFile(), help="The run file.  [default: a new one in this directory]")
@hop_binary_option
@on_options
@html_option
@details_option
@no_colour_option
def run(
    plan: str,
    full: bool,
    quick: bool,
    seed: int | None,
    out: Path | None,
    on: str | None,
    place: str | None,
    clients: str | None,
    dsn: str | None,
    password_file: Path | None,
    html: Path | None,
    no_colour: bool,
    **options: Any,
) -> int:
    """Measure PLAN (a name from `howfar plans`, or a TOML file; default: `paths`) and report the result.

    A plan takes minutes. With --full it takes up to hours, and says how many before it starts. Whatever is started, here or on the
    hosts of --on, ends with the command; the run file, its HTML page and caches remain. Ctrl-C keeps what was measured.
    """
    began_ns = time.monotonic_ns()
    overrides = [
        Override(
            f"--{name.replace('_', '-')}",
            ("timing" if name in _TIMING_OPTIONS else "factors", name),
            _parse_levels(name, value),
        )
        for name, value in options.items()
        if value is not None
    ]
    host_options = None if on is None else HostOptions(on, place, clients, dsn, password_file)
    check_options(host_options, (place, clients, dsn, password_file), {override.option for override in overrides})
    _check_no_server(plan)
    if full and quick:
        raise UsageError("--full and --quick contradict each other", "Leave out --quick: it is the default.")
    loaded = load_plan(plan, not full, overrides)
    show_opening(loaded.plan, began_ns)
    is_on_this_machine = host_options is None
    command = partial(_repeat_command, plan, loaded.quick, overrides=overrides, host_options=host_options)
    request = _RunRequest(out, seed, html, no_colour, began_ns, command)
    with _make_observer(loaded, request) as progress:
        if is_on_this_machine:
            from howfar.lab.servers.kinds import check_name  # the laboratory, which --help need not import

            for server in loaded.plan.factors.server:  # before any check that depends on the names
                check_name(server)
        plan_for_budget = partial(_plan_for_budget, is_on_this_machine=is_on_this_machine)
        _check_budget(plan_for_budget(loaded), loaded.quick, lambda: plan_for_budget(load_plan(plan, True, overrides)))
        _check_files(loaded, request)
        if not loaded.quick:
            minutes = ", or minutes without --full" if full else ""
            progress.note(f"This takes {describe_duration(loaded.plan)}{minutes}. Ctrl-C keeps what was measured.")
        if host_options is None:
            outcome = _measure(loaded, request, progress)
    if host_options is not None:
        outcome = _measure_on_hosts(loaded, request, host_options)
    if isinstance(outcome, int):
        return outcome
    from howfar.cli.output import finish

    return finish(outcome, html, no_colour)


def _check_no_server(plan: str) -> None:
    """Refuse the address of a server, which may hold a password, in place of a plan. Raises UsageError."""
    if "://" in plan or "@" in plan or re.fullmatch(r"[\w.-]+:\d+", plan):
        raise UsageError(
            "a plan was expected, not the address of a server: `howfar run` starts servers of its own",
            "For your own server, use `howfar TARGET`, or `howfar load TARGET oltp_read_only`.",
        )


@dataclass(frozen=True)
class _RunRequest:
    """Options of a run other than those of its plan."""

    out: Path | None
    seed: int | None
    html: Path | None
    no_colour: bool
    began_ns: int
    repeat_command: Callable[[int], tuple[str, ...]]
    """Returns the command that repeats the run, given its seed."""


def _make_observer(loaded: LoadedPlan, request: _RunRequest) -> Progress:
    from howfar.cli.progress import make_observer

    return make_observer(loaded.plan, request.no_colour, request.began_ns)


def _run_path(plan: Plan, request: _RunRequest) -> Path:
    from howfar.cli import session

    return request.out or session.default_run_path(plan.name, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))


def _check_files(loaded: LoadedPlan, request: _RunRequest) -> None:
    from howfar.cli import output
    from howfar.store.run_file import check_absent

    path = _run_path(loaded.plan, request)
    check_absent(path)
    output.check_page_path(output.page_path(request.html, path))


def _measure_on_hosts(loaded: LoadedPlan, request: _RunRequest, host_options: HostOptions) -> Path | int:
    """Measure between the user's own hosts. Returns the run file, or, if another process measured, its exit code."""
    from howfar.cli import on_hosts

    place, clients = host_options.place, host_options.clients
    user_server = on_hosts.find_user_server(host_options, note)
    on_hosts.check_plan(loaded.plan, user_server)
    cluster, code = on_hosts.enter_cluster(
        host_options.source, lambda file: on_hosts.find_roles(loaded.plan, file, place, clients, user_server)
    )
    if code is not None:
        return code
    with _make_observer(loaded, request) as progress:
        progress.preparing("connecting the hosts and measuring the links between them")
        with on_hosts.prepare_hosts(loaded.plan, cluster, place, clients, user_server=user_server) as hosts:
            for sentence in hosts.notes:
                progress.note(f"howfar: {sentence}")
            options, notes = host_options.user_server_options, list(hosts.notes)
            facts = RunEnvironment(hosts_file=str(cluster.path), user_server=options, not_as_requested=notes)
            fitted = replace(loaded, plan=hosts.plan)
            return _measure_into_file(
                fitted, request, hosts.testbed, hosts.instruments, facts, progress, cluster.record_run_file
            )


def _measure(loaded: LoadedPlan, request: _RunRequest, progress: Progress) -> Path | int:
    """Measure in the sandbox. Returns the run file, or the exit code of the process in the sandbox."""
    from howfar.cli import session
    from howfar.runner.preflight import fit_plan

    session.check_machine(loaded.plan)
    fitted = fit_plan(loaded.plan)
    loaded, notes = replace(loaded, plan=fitted.plan), list(fitted.notes)
    try:
        code = session.enter_sandbox(progress.leave)
    except SandboxForbidden as error:
        progress.stay()
        loaded, code = _fit_to_local_paths(loaded, error, progress), None
        paths = [path for path in fitted.plan.factors.path if path not in loaded.plan.factors.path]
        notes += [f"left out: path {', '.join(paths)}: {error.message}"] if paths else []
    if code is not None:
        return code
    for sentence in (*fitted.notes, *session.machine_notes(loaded.plan)):
        progress.note(f"howfar: {sentence}")
    facts = RunEnvironment(not_as_requested=notes)
    with session.open_testbed(loaded.plan, progress.preparing) as laboratory:
        return _measure_into_file(loaded, request, laboratory, session.instruments(), facts, progress)


def _measure_into_file(
    loaded: LoadedPlan,
    request: _RunRequest,
    testbed: Testbed,
    tools: Instruments,
    facts: RunEnvironment,
    progress: Observer,
    on_start: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Measure all trials into a new run file, whose path is passed to `on_start`."""
    from howfar.cli import session
    from howfar.runner.preflight import with_rates
    from howfar.runner.run import execute_run, new_seed, run_info

    seed = new_seed() if request.seed is None else request.seed
    plan_with_rates, capacity = with_rates(loaded.plan, seed, testbed, tools, progress)
    all_facts = tools.facts().updated(facts).updated(capacity)
    info = run_info(replace(loaded, plan=plan_with_rates), seed, request.repeat_command(seed), testbed, all_facts)
    with session.create_run_file(_run_path(loaded.plan, request), request.out is None, info) as file:
        on_start(file.path)
        execute_run(file, testbed, request.began_ns, tools, progress)
    return file.path


def _parse_levels(name: str, value: Any) -> Any:
    """The levels that an option gives; paths, loads and distances may have several. The closed loop is added to loads, because it
    shows the highest rate."""
    if any(name == links.pairs.name for links in SERVER_LINKS) and ";" in value:
        return tuple(dict.fromkeys(level.strip() for level in value.split(";")))
    if name not in (LOAD.name, "path"):
        return value
    levels = (level.strip() for level in value.split(","))
    return tuple(dict.fromkeys((CLOSED, *levels) if name == LOAD.name else levels))


def _repeat_command(
    plan: str, quick: bool, seed: int, overrides: list[Override], host_options: HostOptions | None = None
) -> tuple[str, ...]:
    """The command that repeats this run, for the run file and the report."""
    host_arguments = () if host_options is None else host_options.arguments
    arguments = ["howfar", "run", plan, *([] if quick else ["--full"])]
    for override in overrides:
        arguments += [override.option] if override.value is True else [override.option, override.option_value]
    for name, program in chosen_programs().items():
        arguments += ["--hop-binary", f"{name}={program}"]
    return (*arguments, *host_arguments, "--seed", str(seed))


def _fit_to_local_paths(loaded: LoadedPlan, error: SandboxForbidden, progress: Progress) -> LoadedPlan:
    """The plan with only its local paths, for a machine that forbids namespaces. Raises `error` if fewer than two paths are left."""
    plan = local_plan(loaded.plan)
    local_paths = [path for path in plan.factors.path if is_local(path)]
    if len(local_paths) < 2:
        raise error
    progress.note(f"howfar: {error.message}\n  {error.advice}\n  Measuring {' and '.join(local_paths)} only.")
    cells(plan)  # the baseline may have been on a path that is left out
    return replace(loaded, plan=plan)


def _plan_for_budget(loaded: LoadedPlan, is_on_this_machine: bool) -> Plan:
    """The plan whose trials a budget must cover. `is_on_this_machine`: whether to reduce it to what this machine's server can
    replicate.

    Raises ServerMissing, ServerCrashed.
    """
    from howfar.runner.preflight import with_server_levels  # the laboratory, which --help need not import

    return with_server_levels(loaded.plan).plan if is_on_this_machine else loaded.plan


def _check_budget(plan: Plan, quick: bool, make_short_plan: Callable[[], Plan]) -> None:
    """Refuse a budget too short for the blocks that an interval needs. Raises UsageError.

    `make_short_plan` returns the plan without --full.
    """
    blocks = _min_blocks(plan)
    budget_ns, needed_ns = plan.timing.time_budget_ns, _min_duration_ns(plan)
    if budget_ns >= needed_ns:
        return
    min_s = -(-needed_ns // 10**9)
    raise UsageError(
        f"a time budget of {format_duration_ns(budget_ns)} is too short: laboratory, report and {counted(blocks, 'block')} of"
        f" {len(cells(plan))} trials take about {min_s} s",
        f"Give at least --time-budget {min_s}s{', or leave out --full' if not quick and _fits(make_short_plan) else ''}.",
    )


def _min_duration_ns(plan: Plan) -> int:
    cost = estimate_cost(plan)
    return cost.fixed_ns + _min_blocks(plan) * cost.block_ns


def _min_blocks(plan: Plan) -> int:
    from howfar.stats.intervals import MIN_BLOCKS  # numpy, which --help need not import

    return min(MIN_BLOCKS, plan.timing.max_blocks)


def _fits(make_short_plan: Callable[[], Plan]) -> bool:
    """Whether the plan without --full fits into its budget."""
    plan = make_short_plan()
    return plan.timing.time_budget_ns >= _min_duration_ns(plan)
