"""The end of `run` and `resume`: the report, where things are, what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from howfar.analysis.analyse import summarise
from howfar.cli import pages
from howfar.cli.main import INTERRUPTED
from howfar.results.records import StopReason
from howfar.results.store import read_run


def finish(path: Path, html: Path | None, no_colour: bool) -> int:
    """Report a run that has ended and give back the exit code. After Ctrl-C nothing is rendered: the user wants out."""
    run = read_run(path)
    name = shlex.quote(str(path))
    if run.stop is StopReason.INTERRUPTED:
        click.echo(f"howfar: interrupted; {len(run.trials)} trials are kept in {path}", err=True)
        click.echo(f"  Go on with: howfar resume {name}\n  See it so far: howfar report {name}", err=True)
        return INTERRUPTED
    pages.show(summarise(run), no_colour)
    page = html or path.with_suffix(".html")
    pages.write(page, pages.as_text(run, "html"))
    click.echo(f"\nRun file:  {path}\nHTML page: {page}")
    if run.info.quick:
        full = [word for word in run.info.command if word != "--quick"]
        click.echo(f"Narrower:  {shlex.join(_without_seed(full))}")
    return 0


def _without_seed(words: list[str]) -> list[str]:
    at = words.index("--seed") if "--seed" in words else len(words)
    return words[:at] + words[at + 2 :]
