"""The end of a run: its page, then the report on the terminal with the answer last (`report/terminal.py` has the rule)."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.exit_codes import VOID
from howfar.cli.screen import STDOUT, has_colour, note, program, show_rendered, width
from howfar.errors import DiskFull, HowfarError, RunFileError, UsageError
from howfar.stopping import end_signal_exit_code
from howfar.store.database import damage_error
from howfar.store.partial import NO_ROOM, is_written_in_place, write_atomically
from howfar.store.records import Run, StopReason, TrialStatus, compared_part, confirmation, plan_part
from howfar.store.run_file import read_run
from howfar.units import counted

if TYPE_CHECKING:
    from howfar.analysis.summary import Summary

FORMATS = ("html", "md", "csv", "json")


_DETAILS_KEY = "howfar.details"


def details_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--details` to a command that ends with a report in the terminal; `show` reads it from the command's context."""

    def keep_choice(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[_DETAILS_KEY] = value

    return click.option(
        "--details",
        is_flag=True,
        expose_value=False,
        callback=keep_choice,
        help="Show the whole report in the terminal, not only its first screen.",
    )(command)


@dataclass(frozen=True)
class Form:
    """The form of a result: `html`, `md`, `csv` or `json`. Empty: text for the terminal."""

    name: str = ""
    page: Path | None = None
    """The file of the HTML page. None: next to the run file."""


def form_options(json_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--html`, `--md`, `--csv` and `--json` to a command, which receives them as the `Form` `form`. `json_help`: what the JSON
    has."""
    options = (
        click.option(
            "--html",
            is_flag=False,
            flag_value="",
            metavar="[FILE]",
            help="Write one self-contained HTML page, next to the run file unless FILE is given (--html=FILE).",
        ),
        click.option("--md", is_flag=True, help="Write Markdown to stdout."),
        click.option("--csv", is_flag=True, help="Write CSV to stdout, one line per arm."),
        click.option("--json", "json_", is_flag=True, help=f"Write JSON to stdout{json_help}."),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_form(*args: Any, html: str | None, md: bool, csv: bool, json_: bool, **others: Any) -> Any:
            requested = {"html": html is not None, "md": md, "csv": csv, "json": json_}
            names = [name for name, is_requested in requested.items() if is_requested]
            if len(names) > 1:
                raise UsageError("more than one format was requested", "Choose one of --html, --md, --csv, --json.")
            if html == str(STDOUT):
                raise UsageError("the page cannot be written to standard output", "Name a file: --html=FILE.")
            return command(*args, form=Form("".join(names), Path(html) if html else None), **others)

        for option in reversed(options):
            with_form = option(with_form)
        return with_form

    return decorate


def wants_details() -> bool:
    """Whether the command was given `--details`."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(_DETAILS_KEY))


@contextmanager
def reporting_damage(path: Path, is_verified: bool) -> Iterator[None]:
    """Context for computations from a file. Without checksums its values may be damaged: a note reports that, and an error is then
    damage, not a bug. Raises NotARunFile."""
    if not is_verified:
        note(f"{path} has no checksums: a damaged value in it may stay unnoticed")
    try:
        yield
    except Exception as error:
        if is_verified or isinstance(error, HowfarError | click.ClickException | OSError | MemoryError):
            raise
        raise damage_error(path, f"it makes no report ({type(error).__name__}: {str(error)[:200]})") from error


def show(run: Run, summary: Summary, no_colour: bool, files: Sequence[str] = (), commands: Sequence[str] = ()) -> None:
    """Write the report to stdout, with files that were written and suggested next commands."""
    from howfar.experiments.registry import render_in_terminal
    from howfar.report.terminal import Surroundings

    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    surroundings = Surroundings(tuple(files), tuple(commands))
    text = render_in_terminal(
        summary, width(), has_colour(sys.stdout, no_colour), unicode, wants_details(), surroundings
    )
    show_rendered(text)


def render_summary(summary: Summary, form: str) -> str:
    """The report in one of FORMATS."""
    from howfar.experiments.registry import render_as

    return render_as(summary, form)


def page_path(html: Path | None, run_file: Path) -> Path:
    """The path of the HTML page: as given, or next to the run file. Raises UsageError if it is the run file."""
    page = html or run_file.with_suffix(".html")
    if page.absolute() == run_file.absolute() or (page.exists() and run_file.exists() and page.samefile(run_file)):
        raise UsageError(
            f"{page} would be both the run file and the HTML page", "Give the page another name with --html."
        )
    return page


def check_page_path(path: Path) -> None:
    """Check, before anything is measured, that a page can be written there. Raises RunFileError."""
    if path.is_dir():
        raise RunFileError(f"{path} is a directory, not a file for the HTML page", "Name a file with --html.")
    if is_written_in_place(path):
        return
    folder = path.resolve().parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise RunFileError(f"there is no directory {folder} for the HTML page", "Create it, or name another.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunFileError(f"the directory {folder} cannot be written to", "Choose a writable directory with --html.")


def write(path: Path, text: str, rewrite_hint: str = " `howfar report --html` rewrites it from the run file.") -> None:
    """Write the complete page or nothing; a note reports missing charts. `rewrite_hint`: how to write it later. Raises DiskFull,
    RunFileError."""
    from howfar.report.drawing import INSTALL_ADVICE, NOT_DRAWN

    if NOT_DRAWN in text:
        note(f"{path} has no charts: the libraries that draw them are not installed\n{INSTALL_ADVICE}")
    try:
        write_atomically(path, text)
    except OSError as error:
        kind, advice = (DiskFull, "Free some space, or name") if error.errno in NO_ROOM else (RunFileError, "Name")
        raise kind(
            f"cannot write {path}: {error.strerror}", f"{advice} another file with --html.{rewrite_hint}"
        ) from error


MORE_MINUTES = 10
MORE_TIME = f"{MORE_MINUTES}min"
"""Additional time that is offered for narrower intervals."""


def finish(path: Path, html: Path | None, no_colour: bool) -> int:
    """Report a run that has ended and return the exit code. After Ctrl-C nothing is rendered, because the user wants to leave."""
    from howfar.cli.progress import temporary_line

    run = read_run(path)
    name = shlex.quote(str(path))
    if run.stop is StopReason.INTERRUPTED:
        note(f"interrupted; {counted(len(run.trials), 'trial')} kept in {path}")
        click.echo(f"  To continue: {resume_command(path)}", err=True)
        if remaining := remaining_time(run):
            click.echo(f"  It takes {remaining}.", err=True)
        click.echo(f"  The results so far: {program()} report {name}", err=True)
        return end_signal_exit_code()
    page = page_path(html, path)
    try:
        with (
            temporary_line("Writing the report and its page, usually a few seconds"),
            reporting_damage(path, run.is_verified),
        ):
            from howfar.experiments import registry  # slow to import: it draws charts

            summary = registry.summarise(run)
            write(page, render_summary(summary, "html"))
    except (DiskFull, RunFileError):
        show(run, registry.summarise(run), no_colour)  # what was measured is worth more than its page
        raise
    files = [f"Run file:           {path}", f"HTML page:          {page}"]
    files += [f"Tested limit:       {line}" for line in _tested_limits(summary)]
    show(run, summary, no_colour, files, _next_commands(path, run, summary))
    has_valid_trial = any(trial.status is TrialStatus.OK for trial in plan_part(run).trials)
    return 0 if has_valid_trial or not run.trials else VOID


def _next_commands(path: Path, run: Run, summary: Summary) -> list[str]:
    """Suggested next commands, each with its purpose. Without an answer, only the one that gets it."""
    if commands := answer_commands(path, run, summary):
        return commands
    if run.stop in (StopReason.TIME, StopReason.BLOCKS):
        commands.append(f"Narrower intervals: {more_command(path, run)}")
    if _can_be_confirmed(run, summary):
        commands.append(f"Confirm the limits: {program()} confirm {shlex.quote(str(path))}")
    if run.info.quick and all(advice.id != "full-plan" for advice in summary.advice):
        commands.append(f"The full plan:      {_full_command(run)}")
    return commands


def answer_commands(path: Path, run: Run, summary: Summary) -> list[str]:
    """The command that measures as many blocks as an answer needs, below what to do first and how long it takes. Empty: there is an
    answer."""
    from howfar.report.certainty import more_minutes, what_answers  # numpy, which --help need not import
    from howfar.report.terminal import wrap

    if not summary.answer.is_missing and summary.good_trials != 0:
        return []
    has_ended = run.stop in (StopReason.TIME, StopReason.BLOCKS)
    command = resume_command(path, more_minutes(summary)) if has_ended else resume_command(path)
    remaining = "" if has_ended else remaining_time(run)
    return [*wrap(f"{what_answers(summary, remaining)}:", width()), f"  {command}"]


def remaining_time(run: Run) -> str:
    """How long `howfar resume` continues a run that has not ended: `about 4 minutes`. Empty: unknown."""
    from howfar.runner.stopping import overtime_ns  # the analysis, which --help need not import

    timing = run.info.stored_plan.timing
    if timing is None:
        return ""
    used_ns = sum(trial.ended_unix_ns - trial.started_unix_ns for trial in run.trials)
    left_ns = timing.time_budget_ns + overtime_ns(timing, run.trials) - used_ns
    return f"about {counted(-(-max(left_ns, 1) // 60_000_000_000), 'minute')}"


def _tested_limits(summary: Summary) -> Iterator[str]:
    """A line for each limit that was tested: the arm, the limit, the outcome."""
    from howfar.bottleneck.texts import resource_name
    from howfar.report import sections  # slow to import: it draws charts

    for tested in summary.confirmations:
        yield f"{tested.arm}, {resource_name(tested.resource)}: {sections.confirmation_outcome(tested)}"


def _can_be_confirmed(run: Run, summary: Summary) -> bool:
    """Whether the run named a limit that this laboratory can test and has not yet fully tested."""
    from howfar.analysis.confirmation import choose_tests  # numpy, which --help need not import

    past_confirmation = confirmation(run.events)
    if past_confirmation is not None:
        return not past_confirmation.ended
    return bool(choose_tests(summary.cells, compared_part(run)).interventions)


def resume_command(path: Path, more_minutes: int = 0) -> str:
    """Command that continues a run. `more_minutes`: needed for a run that has ended."""
    time = f" --time-budget {more_minutes}min" if more_minutes else ""
    return f"{program()} resume {shlex.quote(str(path))}{time}"


def more_command(path: Path, run: Run) -> str:
    """Command that continues a run that has ended."""
    narrower = ""
    if run.stop is StopReason.WIDTH and (timing := run.info.stored_plan.timing):
        narrower = f" --target {timing.target_half_width * 50:.3g}%"
    return f"{resume_command(path, MORE_MINUTES)}{narrower}"


def _full_command(run: Run) -> str:
    from howfar.analysis.advice import full_command  # numpy, which --help need not import

    return f"{program()} {shlex.join(full_command(run.info.command)[1:])}"
