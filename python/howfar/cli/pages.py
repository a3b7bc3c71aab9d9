"""Turn a run file into what a user looks at: the terminal's page, and files in other formats."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from howfar.analysis.analyse import summarise
from howfar.analysis.summary import Summary
from howfar.cli.screen import has_colour, width
from howfar.errors import DiskFull, HowfarError
from howfar.results.records import Run

FORMATS = ("html", "md", "csv", "json")


def show(summary: Summary, no_colour: bool) -> None:
    """The report on stdout."""
    from howfar.report.terminal import render

    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    click.echo(render(summary, width(), has_colour(sys.stdout, no_colour), unicode), nl=False, color=True)


def as_text(run: Run, form: str) -> str:
    """The report in one of FORMATS."""
    summary = summarise(run)
    if form == "html":
        from howfar.report.html import render
    elif form == "md":
        from howfar.report.markdown import render
    elif form == "csv":
        from howfar.report.csv import render
    else:
        assert form == "json", f"{form} is one of FORMATS"
        from howfar.report.json import render
    return render(summary)


def write(path: Path, text: str) -> None:
    """The whole file or none. Raises DiskFull, HowfarError."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                Path(file.name).chmod(0o666 & ~_umask())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        kind = DiskFull if error.errno in (28, 122, 27) else HowfarError
        raise kind(
            f"cannot write {path}: {error.strerror}", "The run file is complete; `howfar report` makes it again."
        ) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
