"""`howfar report`: a run in the terminal, or as a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from howfar.cli import output as pages
from howfar.cli.output import details_option
from howfar.cli.screen import no_colour_option, program
from howfar.errors import UsageError
from howfar.store.run_file import read_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--html",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Write one self-contained HTML page, next to the run file unless FILE is given (--html=FILE).",
)
@click.option("--md", is_flag=True, help="Write Markdown to stdout.")
@click.option("--csv", is_flag=True, help="Write CSV to stdout, one line per arm.")
@click.option("--json", "json_", is_flag=True, help="Write JSON to stdout; its schema is schema/report.json.")
@details_option
@no_colour_option
def report(run: Path, html: str | None, md: bool, csv: bool, json_: bool, no_colour: bool) -> int:
    """Show the run in the file RUN, even while it is being measured."""
    forms = [form for form, wanted in (("md", md), ("csv", csv), ("json", json_)) if wanted]
    if len(forms) + (html is not None) > 1:
        raise UsageError("more than one format was requested", "Choose one of --html, --md, --csv, --json.")
    found = read_run(run)
    if html is not None:
        page = pages.page_path(Path(html) if html else None, run)
        pages.write(page, pages.as_text(pages.summarise(found), "html"))
        click.echo(page)
    elif forms:
        click.echo(pages.as_text(pages.summarise(found), forms[0]).rstrip("\n"))
    else:
        pages.show(found, pages.summarise(found), no_colour)
        if found.stop is None:
            name = shlex.quote(str(run))
            click.echo(
                f"\nThis run has not ended. If it is not being measured now, continue it: {program()} resume {name}",
                err=True,
            )
    return 0
