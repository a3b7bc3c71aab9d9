"""`howfar resume` and `howfar confirm`: continue an interrupted run, add to one that has ended, test the limits that it named."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from howfar.cli import on_hosts, session
from howfar.cli import output as pages
from howfar.cli.hop_binary import hop_binary_option
from howfar.cli.on_hosts import check_confirms
from howfar.cli.output import MORE_TIME, details_option, finish, more_command
from howfar.cli.progress import STOPPED, Progress, observer
from howfar.cli.screen import html_option, no_colour_option, note
from howfar.errors import SandboxForbidden, UsageError
from howfar.paths import is_local
from howfar.plan.estimate import LABORATORY_NS, NEW_LINK_NS, REPORT_NS
from howfar.plan.quantities import BudgetNs, HalfWidth, read_option
from howfar.plan.types import Plan, restore_plan
from howfar.runner.run import conduct, to_confirm
from howfar.runner.stopping import Extension, block_cost_ns, blocks_done, confirmation_cost_ns, places_left
from howfar.store.records import Run, StopReason, confirmation
from howfar.store.run_file import RunFile, read_run
from howfar.units import format_duration_ns, format_share

_GO_ON = (None, StopReason.INTERRUPTED)


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
    more = Extension(
        None if time_budget is None else read_option("--time-budget", time_budget, BudgetNs, "howfar resume"),
        None if target is None else read_option("--target", target, HalfWidth, "howfar resume"),
    )
    return go_on(run, more, confirm, html, no_colour, began_ns)


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
    return go_on(run, Extension(), True, html, no_colour, time.monotonic_ns())


def go_on(run: Path, more: Extension, confirm: bool, html: Path | None, no_colour: bool, began_ns: int) -> int:
    """Continue the run in a file. `confirm`: test its limits afterwards, unless that has been done."""
    found = read_run(run)
    if confirm:
        more = _confirming(found, more)
    pages.check_page_path(pages.page_path(html, run))
    if found.stop not in _GO_ON and more == Extension():
        assert found.stop is not None
        click.echo(
            f"Nothing to do: the run is complete ({STOPPED[found.stop]}){_tested(found) if confirm else ''}.", err=True
        )
        click.echo(f"  To continue measuring: {more_command(run, found)}", err=True)
        return finish(run, html, no_colour)
    plan = restore_plan(found.info.plan)
    _check_helps(found, plan, more)
    if (on := found.info.environment.get("hosts_file")) is not None:
        check_confirms(True, more.confirm)
        return _go_on_hosts(run, found, on, more, html, no_colour, began_ns)
    with observer(plan, no_colour, began_ns) as watching:
        code = _go_on_here(run, found, plan, more, watching, began_ns)
    return finish(run, html, no_colour) if code is None else code


def _go_on_here(run: Path, found: Run, plan: Plan, more: Extension, watching: Progress, began_ns: int) -> int | None:
    """Continue the run in the sandbox. None if done in this process, else the exit code of the process in the sandbox."""
    session.check_machine(plan)
    try:
        code = session.enter_sandbox(watching.leave)
    except SandboxForbidden:
        watching.stay()
        if not all(map(is_local, plan.factors.path)):
            raise
        code = None
    if code is not None:
        return code
    if more.only_confirms:
        more = replace(more, time_ns=REPORT_NS + confirmation_cost_ns(plan, to_confirm(found), found.trials))
    with RunFile(run) as file, session.open_testbed(plan, watching.preparing) as laboratory:
        if (
            more.only_confirms
        ):  # its time begins here: no end was requested, and a laboratory can take minutes to fill its tables
            began_ns = time.monotonic_ns()
        conduct(file, laboratory, began_ns, session.instruments(), watching, more)
    return None


def _go_on_hosts(
    run: Path, found: Run, on: str, more: Extension, html: Path | None, no_colour: bool, began_ns: int
) -> int:
    """Continue the run between the hosts where it was begun, each in its role."""
    cluster, code = on_hosts.enter(on)
    if code is not None:
        return code
    roles = found.info.environment["place"]
    given = on_hosts.find_given(on_hosts.OnHosts(on, **found.info.environment.get("given") or {}), note)
    hosts_of_roles = [("client", roles["client"]), ("server", roles["server"])]
    hosts_of_roles += [("replica", name) for name in roles.get("replicas", ())]
    hosts_of_roles += [("hop", roles["hop"])] if roles.get("hop") else []
    place = ",".join(f"{role}={name}" for role, name in hosts_of_roles)
    clients = ",".join((roles["client"], *roles.get("others", ())))
    plan = restore_plan(found.info.plan)
    with (
        observer(plan, no_colour, began_ns) as watching,
        on_hosts.opened(plan, cluster, place, clients, before=roles, given=given) as hosts,
        RunFile(run) as file,
    ):
        for sentence in hosts.notes:
            watching.said(f"howfar: {sentence}")
        cluster.measures_into(run)
        conduct(file, hosts.testbed, began_ns, hosts.tools, watching, more)
    return finish(run, html, no_colour)


def _tested(run: Run) -> str:
    """The message when a requested test has already been made."""
    begun = confirmation(run.events)
    if begun is None or not begun.ended:
        return ""
    tested = ", ".join(to_confirm(run))
    return f", and its limits were tested earlier: {tested}" if tested else ", and none of its limits can be tested"


def _confirming(run: Run, more: Extension) -> Extension:
    """The extension with a confirmation; if the run has ended and no time is given, only the confirmation, with its own time."""
    begun = confirmation(run.events)
    if begun is not None and begun.ended:
        return more
    if run.stop in _GO_ON or more.time_ns is not None:
        return replace(more, confirm=True)
    return replace(more, confirm=True, only_confirms=True)


def _check_helps(run: Run, plan: Plan, more: Extension) -> None:
    """Refuse options with which no further block would be measured. Raises UsageError."""
    timing, begun = plan.timing, confirmation(run.events)
    if more.confirm and (begun is not None or run.stop not in _GO_ON):
        _check_time(more, 2, 2 * NEW_LINK_NS + block_cost_ns(plan, 2, run.trials))
        return
    if run.stop is StopReason.WIDTH and (more.target is None or more.target >= timing.target_half_width):
        raise UsageError(
            f"every interval is already as narrow as requested, ±{format_share(timing.target_half_width)}",
            "Request a narrower one with --target.",
        )
    if run.stop is StopReason.TIME and more.time_ns is None:
        raise UsageError("the time budget of the run is used up", f"Give this session more: --time-budget {MORE_TIME}.")
    target = timing.target_half_width if more.target is None else more.target
    places = len(list(places_left(run, blocks_done(run, target), target)))
    _check_time(more, places, block_cost_ns(plan, places, run.trials))


def _check_time(more: Extension, trials: int, trials_ns: int) -> None:
    needed = LABORATORY_NS + REPORT_NS + trials_ns
    if more.time_ns is None or more.time_ns >= needed:
        return
    least_s = -(-needed // 10**9)
    raise UsageError(
        f"{format_duration_ns(more.time_ns)} is too short: laboratory, report and {trials} trials take about"
        f" {least_s} s",
        f"Give at least --time-budget {least_s}s.",
    )
