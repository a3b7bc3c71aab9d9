"""The end of `run` and `resume`: the report, where things are, what to do next."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import click

from howfar.analysis.analyse import summarise
from howfar.analysis.summary import Summary
from howfar.bottleneck.confirmation import choose
from howfar.cli import pages
from howfar.cli.main import INTERRUPTED
from howfar.cli.program import program
from howfar.store.events import confirmation
from howfar.store.parts import plan_part
from howfar.store.records import Run, StopReason
from howfar.store.run_file import read_run

MORE_TIME = "10min"
"""What is offered to who wants narrower intervals."""
_OF_ONE_RUN = {"--seed", "--time-budget", "--target"}
"""Options that a longer run of the same plan must not take over."""


def finish(path: Path, html: Path | None, no_colour: bool) -> int:
    """Report a run that has ended and give back the exit code. After Ctrl-C nothing is rendered: the user wants out."""
    run = read_run(path)
    name = shlex.quote(str(path))
    if run.stop is StopReason.INTERRUPTED:
        click.echo(f"howfar: interrupted; {len(run.trials)} trials are kept in {path}", err=True)
        click.echo(f"  Go on with: {program()} resume {name}\n  See it so far: {program()} report {name}", err=True)
        return INTERRUPTED
    summary = summarise(run)
    pages.show(summary, no_colour)
    page = pages.place(html, path)
    pages.write(page, pages.as_text(run, "html"))
    click.echo(f"\nRun file:  {path}\nHTML page: {page}")
    if run.stop in (StopReason.TIME, StopReason.BLOCKS):
        click.echo(f"Narrower:  {more_command(path, run)}")
    if _can_be_confirmed(run, summary):
        click.echo(f"Confirm:   {program()} confirm {name}")
    if run.info.quick:
        click.echo(f"In full:   {_full_command(run)}")
    return 0


def _can_be_confirmed(run: Run, summary: Summary) -> bool:
    """A limit was named that this laboratory can put to the test, and that was not done or not to its end."""
    begun = confirmation(run.events)
    if begun is not None:
        return not begun.ended
    return bool(choose(summary, plan_part(run).info.arms).asked)


def more_command(path: Path, run: Run) -> str:
    """What goes on with a run that has ended."""
    narrower = ""
    if run.stop is StopReason.WIDTH:
        narrower = f" --target {float(run.info.plan['timing']['target_half_width']) * 50:.3g}%"
    return f"{program()} resume {shlex.quote(str(path))} --time-budget {MORE_TIME}{narrower}"


def _full_command(run: Run) -> str:
    """The plan without `--quick`, with the run's other options but for its seed, budget and target."""
    words = run.info.command
    kept = [words[1]]
    for before, word in pairwise(words[1:]):
        if word != "--quick" and word not in _OF_ONE_RUN and before not in _OF_ONE_RUN:
            kept.append(word)
    return f"{program()} {shlex.join(kept)}"
