"""`howfar report`: a run in the terminal, or as a file."""

from __future__ import annotations

import lzma
import tempfile
from contextlib import nullcontext
from importlib import resources
from pathlib import Path

import click

from howfar.cli import output
from howfar.cli.output import Form, details_option, form_options
from howfar.cli.screen import no_colour_option, program, show_result
from howfar.errors import UsageError
from howfar.file_kinds import RECORDING
from howfar.store.database import kind_of
from howfar.store.records import Run
from howfar.store.run_file import read_run

_EXAMPLES = resources.files("howfar.report") / "examples"
_EXAMPLE_SUFFIX = ".howfar.xz"


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--example",
    is_flag=False,
    flag_value="paths",
    metavar="[PLAN]",
    help="Show an example run that comes with howfar, of the plan `paths`, instead of a file.",
)
@form_options("; its schema is schema/report.json")
@details_option
@no_colour_option
def report(runs: tuple[Path, ...], example: str | None, form: Form, no_colour: bool) -> int:
    """Show the run in the file RUN, even while it is being measured. RUN may also be a recording.

    Several runs are shown side by side: their answers, and ratios to the first one, as `howfar compare` shows them.

    In the terminal a long report ends with its answer, so that it stays in sight.
    """
    if len(runs) > 1:
        return _show_side_by_side(runs, example, form, no_colour)
    run = runs[0] if runs else None
    if run is not None and example is None and kind_of(run) is RECORDING:
        return _show_recording(run, form, no_colour)
    recorded_run, path = _read(run, example)
    with nullcontext() if example is not None else output.reporting_damage(path, recorded_run.is_verified):
        from howfar.experiments.registry import summarise  # slow to import: it draws charts

        summary = summarise(recorded_run)
        if form.name == "html":
            page = output.page_path(form.page, path)
            output.write(page, output.render_summary(summary, "html"))
            click.echo(page)
        elif form.name:
            click.echo(output.render_summary(summary, form.name).rstrip("\n"))
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


def _show_side_by_side(paths: tuple[Path, ...], example: str | None, form: Form, no_colour: bool) -> int:
    """Show runs side by side. Raises UsageError."""
    from howfar.cli.compare import read_runs, show_comparison
    from howfar.experiments.registry import summarise  # slow to import: it draws charts

    if example is not None:
        raise UsageError("both files and an example were requested", "Choose one of them.")
    for path in paths:
        if str(path) in output.FORMATS and not path.exists():
            raise UsageError(f"there is no file {path}", f"For this format, use --{path}.")
    runs = read_runs(paths)
    answers = []
    for path, run in zip(paths, runs, strict=True):
        with output.reporting_damage(path, run.is_verified):
            answers.append(summarise(run).answer)
    show_comparison(paths, runs, form, no_colour, answers)
    return 0


def _show_recording(path: Path, form: Form, no_colour: bool) -> int:
    """Show a recording as `howfar record` showed it. Raises UsageError."""
    from howfar.recording.recording import read
    from howfar.recording.summary import document, summarise_recording
    from howfar.report import html as page
    from howfar.report.text import as_markdown

    if form.name == "csv":
        raise UsageError("a recording has no CSV", "Use --json, or `sqlite3 -csv` with a query.")
    recording = read(path)
    with output.reporting_damage(path, recording.is_verified):
        summary = summarise_recording(recording)
        report = document(summary, str(path))
        if form.name == "html":
            html_path = output.page_path(form.page, path)
            output.write(html_path, page.render(report))
            click.echo(html_path)
        elif form.name == "md":
            click.echo(as_markdown(report).rstrip("\n"))
        else:
            show_result(summary, report, form.name == "json", no_colour)
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
