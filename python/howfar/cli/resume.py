"""`howfar resume` and `howfar confirm`: continue an interrupted run, add to one that has ended, test the limits that it named."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from howfar.cli import on_hosts, output, session
from howfar.cli.hop_binary import hop_binary_option
from howfar.cli.on_hosts import refuse_confirmation
from howfar.cli.output import MORE_TIME, details_option, finish, more_command
from howfar.cli.progress import STOP_TEXT, Progress, make_observer
from howfar.cli.screen import html_option, no_colour_option, note
from howfar.contract.environment import UserServerOptions
from howfar.errors import SandboxForbidden, UsageError
from howfar.paths import is_local
from howfar.plan.estimate import LABORATORY_NS, NEW_LINK_NS, REPORT_NS
from howfar.plan.quantities import BudgetNs, HalfWidth, read_option
from howfar.plan.types import Plan, restore_plan
from howfar.runner.run import arms_to_confirm, execute_run
from howfar.runner.stopping import Extension, block_cost_ns, blocks_done, confirmation_cost_ns, remaining_slots
from howfar.store.records import Run, StopReason, confirmation
from howfar.store.run_file import RunFile, read_run
from howfar.units import format_duration_ns, format_share

_UNFINISHED = (None, StopReason.INTERRUPTED)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--time-budget", metavar="TIME", help="Time for this session alone, such as 10min.")
@click.option(
    "--target",
    metavar="SHARE",
    help="Stop when all ratios are known to within ± SHARE, such as 3%; replaces the run's target.",
)
@click.option("--confirm", is_flag=True, help="Test each named limit by changing it.")
@hop_binary_option
@html_option
@details_option
@no_colour_option
def resume(
    run: Path, time_budget: str | None, target: str | None, confirm: bool, html: Path | None, no_colour: bool
) -> int:
    """Continue the run in the file RUN. Finished trials are kept and not repeated.

    An interrupted run continues within its own time budget, less the time used by earlier sessions. With --time-budget or --target,
    any run continues, even one that has ended; the change is kept in the run file.
    """
    began_ns = time.monotonic_ns()
    extension = Extension(
        None if time_budget is None else read_option("--time-budget", time_budget, BudgetNs, "howfar resume"),
        None if target is None else read_option("--target", target, HalfWidth, "howfar resume"),
    )
    return resume_run(run, extension, confirm, html, no_colour, began_ns)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@hop_binary_option
@html_option
@details_option
@no_colour_option
def confirm(run: Path, html: Path | None, no_colour: bool) -> int:
    """Change the resources that RUN named as limits, and see whether throughput changes as predicted.

    Up to three limits are tested, in four blocks each: the unchanged and the changed arm, in random order, in one laboratory. Earlier
    trials stay as they are. An interrupted run is finished first. A run is confirmed only once. `howfar run --confirm` does this too.
    """
    return resume_run(run, Extension(), True, html, no_colour, time.monotonic_ns())


def resume_run(
    run: Path, extension: Extension, confirm: bool, html: Path | None, no_colour: bool, began_ns: int
) -> int:
    """Continue the run in a file. `confirm`: test its limits afterwards, unless that has been done."""
    recorded = read_run(run)
    if confirm:
        extension = _with_confirmation(recorded, extension)
    output.check_page_path(output.page_path(html, run))
    if recorded.stop not in _UNFINISHED and extension == Extension():
        assert recorded.stop is not None
        click.echo(
            f"Nothing to do: the run is complete ({STOP_TEXT[recorded.stop]}){_describe_tested(recorded) if confirm else ''}.",
            err=True,
        )
        click.echo(f"  To continue measuring: {more_command(run, recorded)}", err=True)
        return finish(run, html, no_colour)
    plan = restore_plan(recorded.info.plan)
    _check_has_effect(recorded, plan, extension)
    if (source := recorded.info.environment.hosts_file) is not None:
        refuse_confirmation(extension.confirm)
        return _continue_on_hosts(run, recorded, source, extension, html, no_colour, began_ns)
    with make_observer(plan, no_colour, began_ns) as progress:
        code = _continue_here(run, recorded, plan, extension, progress, began_ns)
    return finish(run, html, no_colour) if code is None else code


def _continue_here(
    run: Path, recorded: Run, plan: Plan, extension: Extension, progress: Progress, began_ns: int
) -> int | None:
    """Continue the run in the sandbox. Returns the exit code of the process in the sandbox; None if this process continued the run."""
    session.check_machine(plan)
    try:
        code = session.enter_sandbox(progress.leave)
    except SandboxForbidden:
        progress.stay()
        if not all(map(is_local, plan.factors.path)):
            raise
        code = None
    if code is not None:
        return code
    if extension.only_confirms:
        extension = replace(
            extension, time_ns=REPORT_NS + confirmation_cost_ns(plan, arms_to_confirm(recorded), recorded.trials)
        )
    with RunFile(run) as file, session.open_testbed(plan, progress.preparing) as laboratory:
        # The confirmation's time begins here, because filling the tables of a laboratory can take minutes.
        if extension.only_confirms:
            began_ns = time.monotonic_ns()
        execute_run(file, laboratory, began_ns, session.instruments(), progress, extension)
    return None


def _continue_on_hosts(
    run: Path, recorded: Run, source: str, extension: Extension, html: Path | None, no_colour: bool, began_ns: int
) -> int:
    """Continue the run between the hosts on which it began, each in its recorded role. `source`: see `HostOptions`."""
    cluster, code = on_hosts.enter_cluster(source)
    if code is not None:
        return code
    environment = recorded.info.environment
    roles = environment.roles
    assert roles is not None, "a run between hosts has roles"
    options = environment.user_server or UserServerOptions()
    password_file = None if options.password_file is None else Path(options.password_file)
    user_server = on_hosts.find_user_server(
        on_hosts.HostOptions(source, dsn=options.dsn, password_file=password_file), note
    )
    hosts_of_roles = [("client", roles.client), ("server", roles.server)]
    hosts_of_roles += [*(("replica", name) for name in roles.replicas), *([("hop", roles.hop)] if roles.hop else [])]
    place = ",".join(f"{role}={name}" for role, name in hosts_of_roles)
    clients = ",".join((roles.client, *roles.others))
    plan = restore_plan(recorded.info.plan)
    with (
        make_observer(plan, no_colour, began_ns) as progress,
        on_hosts.prepare_hosts(plan, cluster, place, clients, recorded_roles=roles, user_server=user_server) as hosts,
        RunFile(run) as file,
    ):
        for sentence in hosts.notes:
            progress.note(f"howfar: {sentence}")
        cluster.record_run_file(run)
        execute_run(file, hosts.testbed, began_ns, hosts.instruments, progress, extension)
    return finish(run, html, no_colour)


def _describe_tested(run: Run) -> str:
    """The part of a message that says that the requested test was made earlier; empty if it was not."""
    past_confirmation = confirmation(run.events)
    if past_confirmation is None or not past_confirmation.ended:
        return ""
    tested_arms = ", ".join(arms_to_confirm(run))
    return (
        f", and its limits were tested earlier: {tested_arms}"
        if tested_arms
        else ", and none of its limits can be tested"
    )


def _with_confirmation(run: Run, extension: Extension) -> Extension:
    """The extension with a confirmation. If the run has ended and no time is given, it has only the confirmation, with its own
    time."""
    past_confirmation = confirmation(run.events)
    if past_confirmation is not None and past_confirmation.ended:
        return extension
    if run.stop in _UNFINISHED or extension.time_ns is not None:
        return replace(extension, confirm=True)
    return replace(extension, confirm=True, only_confirms=True)


def _check_has_effect(run: Run, plan: Plan, extension: Extension) -> None:
    """Refuse options with which no further trial would be measured. Raises UsageError."""
    timing, past_confirmation = plan.timing, confirmation(run.events)
    if extension.confirm and (past_confirmation is not None or run.stop not in _UNFINISHED):
        _check_time(extension, 2, 2 * NEW_LINK_NS + block_cost_ns(plan, 2, run.trials))
        return
    if run.stop is StopReason.WIDTH and (extension.target is None or extension.target >= timing.target_half_width):
        raise UsageError(
            f"every interval is already as narrow as requested, ±{format_share(timing.target_half_width)}",
            "Request a narrower one with --target.",
        )
    if run.stop is StopReason.TIME and extension.time_ns is None:
        raise UsageError("the time budget of the run is used up", f"Give this session more: --time-budget {MORE_TIME}.")
    target = timing.target_half_width if extension.target is None else extension.target
    slots = len(list(remaining_slots(run, blocks_done(run, target), target)))
    _check_time(extension, slots, block_cost_ns(plan, slots, run.trials))


def _check_time(extension: Extension, trials: int, trials_ns: int) -> None:
    """Refuse a time that is too short for these trials. Raises UsageError."""
    needed_ns = LABORATORY_NS + REPORT_NS + trials_ns
    if extension.time_ns is None or extension.time_ns >= needed_ns:
        return
    min_s = -(-needed_ns // 10**9)
    raise UsageError(
        f"{format_duration_ns(extension.time_ns)} is too short: laboratory, report and {trials} trials take about"
        f" {min_s} s",
        f"Give at least --time-budget {min_s}s.",
    )
