"""`howfar load`: run one job, or a search over many, and hand every report to where it belongs. No figure is made here."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import click

import howfar
from howfar.engine.messages import (
    Interval,
    LoadJob,
    Measuring,
    Ready,
    TablesDone,
    TablesJob,
    TablesProgress,
)
from howfar.engine.process import EngineFailed, Event, Launcher, run_load, run_tables
from howfar.engine.receipt_check import mismatches
from howfar.errors import EngineError, RunFileError
from howfar.load import export, report_human, report_sysbench
from howfar.load.cmdline import Options
from howfar.load.export import hdr_log, prometheus_text
from howfar.load.job import limit_advice
from howfar.load.result import Result, result_of

WHOLE = 0.9
"""Of its length: a slice cut short by the end of the window is less."""
DIED_OF_SIGINT = "(signal 2)"


class Stopped(Exception):
    """SIGINT or SIGTERM came while the engine worked."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"signal {signal_number}")
        self.exit_code = 128 + signal_number


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM as `Stopped`, wherever they strike; the engine is ended on the way out."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except EngineError as error:
        # A terminal's Ctrl-C strikes the engine too, and its end may be seen first.
        if DIED_OF_SIGINT in error.message:
            raise Stopped(signal.SIGINT) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Watch:
    """Shows a load while it goes on; keeps what an interrupted one leaves."""

    options: Options
    job: LoadJob
    quiet: bool = False
    """A trial of a search: only JSON lines are shown."""
    measuring: Measuring | None = None
    intervals: list[Interval] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Measuring):
            self.measuring = event
        elif isinstance(event, Interval):
            self.intervals.append(event)
        if self.options.value("json"):
            click.echo(export.event_line(event))
        elif not self.quiet:
            self._show(event)

    def _show(self, event: Event) -> None:
        options, job = self.options, self.job
        sysbench = options.value("report") == "sysbench"
        if isinstance(event, Ready) and sysbench:
            _echo(report_sysbench.started(job, options.dialect))
        if not isinstance(event, Interval) or not options.value("report-interval"):
            return
        if sysbench and event.length_ns < WHOLE * job.interval_ns:
            return  # sysbench has no line for the rest of a second
        if sysbench:
            _echo(report_sysbench.interval_lines(event, job, options.value("percentile")))
        else:
            _echo([report_human.interval_line(event, job.arrivals is not None)])

    def say_partial(self, how: str) -> None:
        """What a load leaves that was interrupted or failed."""
        if self.options.value("json"):
            click.echo(export.partial_line(self.intervals))
        for line in report_human.partial(self.intervals, how):
            click.echo(line, err=True)


def measure(options: Options, job: LoadJob, quiet: bool = False) -> Result:
    """One load to its end. Raises EngineError, Stopped, both after the partial figures are said."""
    watch = Watch(options, job, quiet)
    try:
        with stoppable():
            outcome = run_load(job, Launcher(), watch)
    except Stopped:
        watch.say_partial("interrupted")
        raise
    except EngineError as error:
        if watch.intervals:
            watch.say_partial("failed")
        if isinstance(error, EngineFailed):
            raise _advised(options, job, error) from None
        raise
    wrong = mismatches(job, outcome.ready.receipt)
    return result_of(job, outcome.ready, outcome.measuring, outcome.intervals, outcome.finished, wrong)


def tables(options: Options, job: TablesJob) -> None:
    """prepare, warmup or cleanup. Raises EngineError, Stopped."""
    shown = ("", 0)

    def show(event: Event) -> None:
        nonlocal shown
        if options.value("json"):
            click.echo(export.event_line(event))
        elif isinstance(event, TablesProgress):
            tenths = 10 * event.done // max(event.total, 1)
            if (event.doing, tenths) != shown:
                shown = (event.doing, tenths)
                click.echo(f"{event.doing} ({10 * tenths} % of all rows)" if tenths else event.doing)
        elif isinstance(event, TablesDone) and options.value("report") == "human":
            rows = f": {event.rows:,} row{'' if event.rows == 1 else 's'}" if event.rows else ""
            click.echo(f"{job.action} done{rows} in {event.elapsed_ns / 1e9:.3g} s")

    if options.value("json"):
        click.echo(export.job_line(job))
    elif options.value("report") == "sysbench":
        _echo(report_sysbench.first_line(howfar.__version__, options.dialect))
    try:
        with stoppable():
            run_tables(job, Launcher(), show)
    except EngineFailed as failed:
        raise _advised(options, job, failed) from None


def _advised(options: Options, job: LoadJob | TablesJob, failed: EngineFailed) -> EngineFailed:
    """With the exact statement, where a limit of the server was met."""
    failed.advice = limit_advice(job, failed.message) or failed.advice
    if options.value("json"):
        click.echo(export.failed_line(failed.code, failed.message, failed.advice))
    return failed


def head(options: Options, job: LoadJob) -> None:
    """What is said before the load."""
    if options.value("json"):
        click.echo(export.job_line(job))
    elif options.value("report") == "sysbench":
        _echo(report_sysbench.first_line(howfar.__version__, options.dialect))
        _echo(report_sysbench.head(job, options.dialect, options.value("report-interval"), options.value("rand-seed")))


def show(options: Options, result: Result, name: str) -> None:
    """The reports of a finished load, on stdout and in files. Raises RunFileError."""
    if options.value("json"):
        click.echo(export.summary_line(result))
    elif options.value("report") == "sysbench":
        _echo(report_sysbench.report(result, options.dialect, options.value("percentile"), options.value("histogram")))
        _warn(result)
    else:
        _echo(report_human.report(result, name))
        if options.value("histogram"):
            _echo(["", *report_human.histogram(result)])
    if options.said("prometheus"):
        write_whole(Path(options.value("prometheus")), prometheus_text(result, name))
    if options.said("hdr-log"):
        write_whole(Path(options.value("hdr-log")), hdr_log(result))


def _warn(result: Result) -> None:
    """sysbench's layout has no place for a verdict: it goes to stderr."""
    for finding in result.verdict.findings:
        click.echo(f"howfar: {finding.stamp}: {finding.because}", err=True)


def check_outputs(options: Options) -> None:
    """That the files of reports can be written, before a load is spent on them. Raises RunFileError."""
    for option in ("prometheus", "hdr-log"):
        if options.said(option):
            path = Path(options.value(option))
            try:
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
                    pass
            except OSError as error:
                raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RunFileError:
    return RunFileError(f"{path} cannot be written: {error.strerror}", "Name a file in a folder that takes one.")


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half of it. Raises RunFileError."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def _echo(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)
