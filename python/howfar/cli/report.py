"""`howfar report`: a run in the terminal, or as a file."""

from __future__ import annotations

import lzma
import tempfile
from contextlib import nullcontext
from importlib import resources
from pathlib import Path

import click

from howfar.cli import output
from howfar.cli.output import details_option
from howfar.cli.screen import STDOUT, no_colour_option, program, show_result
from howfar.errors import UsageError
from howfar.file_kinds import RECORDING
from howfar.store.database import kind_of
from howfar.store.records import Run
from howfar.store.run_file import read_run

_EXAMPLES = resources.files("howfar.report") / "examples"
_EXAMPLE_SUFFIX = ".howfar.xz"


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option(
    "--example",
    is_flag=False,
    flag_value="paths",
    metavar="[PLAN]",
    help="Show an example run that comes with howfar, of the plan `paths`, instead of a file.",
)
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
def report(
    run: Path | None, example: str | None, html: str | None, md: bool, csv: bool, json_: bool, no_colour: bool
) -> int:
    """Show the run in the file RUN, even while it is being measured. RUN may also be a recording.

    In the terminal a long report ends with its answer, so that it stays in sight.
    """
    formats = [form for form, is_requested in (("md", md), ("csv", csv), ("json", json_)) if is_requested]
    if len(formats) + (html is not None) > 1:
        raise UsageError("more than one format was requested", "Choose one of --html, --md, --csv, --json.")
    if html == str(STDOUT):
        raise UsageError("the page cannot be written to standard output", "Name a file: --html=FILE.")
    if run is not None and example is None and kind_of(run) is RECORDING:
        return _show_recording(run, "html" if html is not None else formats[0] if formats else "", html, no_colour)
    recorded_run, path = _read(run, example)
    with nullcontext() if example is not None else output.reporting_damage(path, recorded_run.is_verified):
        from howfar.experiments.registry import summarise  # slow to import: it draws charts

        summary = summarise(recorded_run)
        if html is not None:
            page = output.page_path(Path(html) if html else None, path)
            output.write(page, output.render_summary(summary, "html"))
            click.echo(page)
        elif formats:
            click.echo(output.render_summary(summary, formats[0]).rstrip("\n"))
        else:
            commands = (
                [f"Measure it here: {program()} run {recorded_run.info.plan_name}"]
                if example is not None
                else output.answer_commands(path, recorded_run, summary)
            )
            output.show(recorded_run, summary, no_colour, commands=commands)
            if recorded_run.stop is None and not commands:
                click.echo(
                    f"\nThis run has not ended. If it is not being measured now, continue it"
                    f"{f', {remaining}' if (remaining := output.remaining_time(recorded_run)) else ''}: "
                    f"{output.resume_command(path)}",
                    err=True,
                )
    return 0


def _show_recording(path: Path, output_format: str, html: str | None, no_colour: bool) -> int:
    """Show a recording as `howfar record` showed it. Raises UsageError."""
    from howfar.recording.recording import read
    from howfar.recording.summary import document, summarize
    from howfar.report import html as page
    from howfar.report.text import as_markdown

    if output_format == "csv":
        raise UsageError("a recording has no CSV", "Use --json, or `sqlite3 -csv` with a query.")
    recording = read(path)
    with output.reporting_damage(path, recording.is_verified):
        summary = summarize(recording)
        report = document(summary, str(path))
        if output_format == "html":
            html_path = output.page_path(Path(html) if html else None, path)
            output.write(html_path, page.render(report))
            click.echo(html_path)
        elif output_format == "md":
            click.echo(as_markdown(report).rstrip("\n"))
        else:
            show_result(summary, report, output_format == "json", no_colour)
    return 0


def _read(run: Path | None, example: str | None) -> tuple[Run, Path]:
    """The run, and the path from which the name of its HTML page is derived. Raises UsageError, and the errors of `read_run`."""
    if run is not None and example is not None:
        raise UsageError(f"both the file {run} and an example were requested", "Choose one of them.")
    if example is not None:
        return _read_example(example), Path(f"howfar-{example}-example.howfar")
    if run is None:
        raise UsageError(
            "no run file was named",
            "Name one, as in `howfar report FILE`, or look at an example: `howfar report --example`.",
        )
    return read_run(run), run


def _read_example(name: str) -> Run:
    """A run that comes with this package. Raises UsageError."""
    example_names = sorted(
        entry.name.removesuffix(_EXAMPLE_SUFFIX)
        for entry in _EXAMPLES.iterdir()
        if entry.name.endswith(_EXAMPLE_SUFFIX)
    )
    if name not in example_names:
        raise UsageError(f"there is no example run of {name!r}", f"There are examples of: {', '.join(example_names)}.")
    with tempfile.TemporaryDirectory(prefix="howfar-example-") as folder:
        path = Path(folder, "example.howfar")
        path.write_bytes(lzma.decompress((_EXAMPLES / f"{name}{_EXAMPLE_SUFFIX}").read_bytes()))
        return read_run(path)
