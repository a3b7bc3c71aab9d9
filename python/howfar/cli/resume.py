"""`howfar resume`: continue a run that was cut off."""

from __future__ import annotations

import time
from pathlib import Path

import click

from howfar.cli import ground
from howfar.cli.finish import finish
from howfar.cli.observe import observer
from howfar.cli.screen import no_colour_option
from howfar.cli.words import STOPPED
from howfar.conduct.conductor import conduct
from howfar.errors import SandboxForbidden
from howfar.plan.types import LOCAL_PATHS, restore_plan
from howfar.results.records import StopReason
from howfar.results.store import RunFile, read_run

_GO_ON = (None, StopReason.INTERRUPTED)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The HTML page; beside the run file by default.")
@no_colour_option
def resume(run: Path, html: Path | None, no_colour: bool) -> int:
    """Continue the interrupted run in the file RUN. Finished trials are kept and not repeated.

    The time budget is that of the run: what earlier sessions measured is taken off it.
    """
    began_ns = time.monotonic_ns()
    found = read_run(run)
    if found.stop not in _GO_ON:
        assert found.stop is not None
        click.echo(f"Nothing to do: the run is complete ({STOPPED[found.stop]}).", err=True)
        return finish(run, html, no_colour)
    plan = restore_plan(found.info.plan)
    ground.check_ground(plan)
    try:
        code = ground.enter_sandbox()
    except SandboxForbidden:
        if not LOCAL_PATHS.issuperset(plan.factors.path):
            raise
        code = None
    if code is not None:
        return code
    with RunFile(run) as file, observer(no_colour) as watching, ground.open_ground(plan) as laboratory:
        conduct(file, laboratory, began_ns, ground.instruments(), watching)
    return finish(run, html, no_colour)
