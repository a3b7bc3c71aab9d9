"""Turn a run file into what a user looks at: the terminal's page, and files in other formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from howfar.analysis.analyse import summarise
from howfar.analysis.summary import Summary
from howfar.cli.screen import has_colour, width
from howfar.errors import DiskFull, RunFileError, UsageError
from howfar.store.partial import NO_ROOM, unfinished
from howfar.store.records import Run

FORMATS = ("html", "md", "csv", "json")


_DETAILS = "howfar.details"


def details_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--details` to a command that ends with a report in the terminal; `show` asks the command's context for it."""

    def keep(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[_DETAILS] = value

    return click.option(
        "--details",
        is_flag=True,
        expose_value=False,
        callback=keep,
        help="The whole report in the terminal, not only its first screen.",
    )(command)


def show(summary: Summary, no_colour: bool) -> None:
    """The report on stdout."""
    from howfar.report.compose import in_terminal

    context = click.get_current_context(silent=True)
    details = bool(context and context.meta.get(_DETAILS))
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = in_terminal(summary, width(), has_colour(sys.stdout, no_colour), unicode, details)
    click.echo(text, nl=False, color=True)


def as_text(run: Run, form: str) -> str:
    """The report in one of FORMATS."""
    summary = summarise(run)
    if form == "html":
        from howfar.report.compose import as_html as render
    elif form == "md":
        from howfar.report.compose import as_markdown as render
    elif form == "csv":
        from howfar.report.compose import as_csv as render
    else:
        assert form == "json", f"{form} is one of FORMATS"
        from howfar.report.json import render
    return render(summary)


def place(html: Path | None, run_file: Path) -> Path:
    """Where the HTML page goes: as asked, or beside the run file; never over it. Raises UsageError."""
    page = html or run_file.with_suffix(".html")
    if page.absolute() == run_file.absolute() or (page.exists() and run_file.exists() and page.samefile(run_file)):
        raise UsageError(
            f"{page} would be both the run file and the HTML page", "Give the page another name with --html."
        )
    return page


def check_place(path: Path) -> None:
    """Before anything is measured: a page can be written there. Raises RunFileError."""
    if path.is_dir():
        raise RunFileError(f"{path} is a directory, not a place for the HTML page", "Name a file with --html.")
    if not path.parent.is_dir():
        raise RunFileError(f"there is no directory {path.parent} for the HTML page", "Make it, or name another.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RunFileError(
            f"the directory {path.parent} cannot be written to", "Choose a directory of yours with --html."
        )


def write(path: Path, text: str) -> None:
    """The whole file or none. Raises DiskFull, RunFileError."""
    try:
        with unfinished(path) as partial:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    except OSError as error:
        kind = DiskFull if error.errno in NO_ROOM else RunFileError
        raise kind(
            f"cannot write {path}: {error.strerror}",
            "Make room, or name another place with --html. The run file has all; `howfar report` makes the page again.",
        ) from error
