"""`howfar load`: the engine against a user's own server, with sysbench's options. Thin: reads, calls, chooses the exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import click

import howfar
from howfar.cli.load_address import find_login
from howfar.engine.messages import (
    Arrivals,
    Custom,
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
from howfar.errors import EngineError, RunFileError, UsageError
from howfar.load import export, report_human, report_sysbench, workload_file
from howfar.load.cmdline import Options, parse_command_line
from howfar.load.export import hdr_log, prometheus_text
from howfar.load.job import limit_advice, load_job, session_of, tables_job, transport_line, without_effect, workload_of
from howfar.load.options import GROUPS, IGNORED, OPTIONS, REFUSED, Option
from howfar.load.report_human import time
from howfar.load.result import Result, result_of
from howfar.load.search import MOST_TRIALS, Goal, Trial, answer, next_rate, parse_goal, sentence
from howfar.load.verdict import Stamp

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


def search(options: Options, job: LoadJob, goal: Goal) -> Result | None:
    """The result of the last trial that held at the answer; None when none held. Raises EngineError, Stopped."""
    high = options.value("search-high")
    low = min(options.value("search-low"), high) if high else options.value("search-low")
    trials: list[Trial] = []
    results: dict[float, Result] = {}
    while (rate := next_rate(trials, low, high)) is not None:
        arrivals = Arrivals(rate_per_s=rate, shape=options.value("arrivals"), burst=options.value("burst"))
        tried = job.model_copy(update={"arrivals": arrivals, "seed": (job.seed + len(trials)) % 2**63})
        result = measure(options, tried, quiet=True)
        if result.verdict.has(Stamp.VOID):
            raise EngineError(
                f"the search ended: {'; '.join(result.mismatches)}",
                "Correct the server or the options, and search again.",
            )
        trial = judged(result, goal, rate)
        trials.append(trial)
        if trial.held:
            results[rate] = result
        _show(options, trial, len(trials), result)
    found = answer(trials)
    if options.value("json"):
        click.echo(
            json.dumps({"event": "search", "goal": str(goal), **asdict(found), "trials": [asdict(t) for t in trials]})
        )
    else:
        click.echo(f"\n{sentence(goal, found)}")
        if any("client" in trial.why_not for trial in trials):
            click.echo("In trials that failed this client was short of CPU: the server may carry more.")
    return results.get(found.rate) if found.rate is not None else None


def judged(result: Result, goal: Goal, rate: float) -> Trial:
    """Whether a trial holds the goal: by the upper bound, so that what was never answered counts against it."""
    at = result.transaction.at(goal.share)
    if at is None:
        return Trial(rate, None, False, "nothing was answered")
    reasons = []
    reasons += [str(stamp) for stamp in (Stamp.FAILING, Stamp.OVERLOADED) if result.verdict.has(stamp)]
    if at.high_ns is None or at.high_ns >= goal.limit_ns:
        reasons.append(f"{'' if at.exact else '≥ '}{time(at.low_ns)}")
        if at.low_ns < goal.limit_ns:
            missing = result.transaction.all_requests.count - result.transaction.answered.count
            reasons.append(f"{missing} unanswered at the end leave it open (a longer --time has fewer in a thousand)")
    if reasons:
        reasons += [str(stamp) for stamp in (Stamp.CLIENT_LIMITED, Stamp.LATE) if result.verdict.has(stamp)]
    return Trial(rate, at.low_ns, not at.exact, ", ".join(reasons))


def _show(options: Options, trial: Trial, number: int, result: Result) -> None:
    if options.value("json"):
        click.echo(json.dumps({"event": "trial", "number": number, **asdict(trial)}))
        return
    seen = "-" if trial.observed_ns is None else time(trial.observed_ns)
    carried = result.per_second(result.finished.transactions)
    verdict = "holds" if trial.held else f"fails: {trial.why_not}"
    click.echo(
        f"trial {number:2d} of at most {MOST_TRIALS}: {trial.rate:>12,.1f}/s due {carried:>12,.1f}/s answered  {seen:>9}  {verdict}"
    )


VOID = 7
"""The session obtained is not the one requested, so the figures describe something else."""

_METAVARS = {"int": "N", "number": "X", "switch": "[on|off]", "text": "TEXT", "list": "LIST", "seconds": "SECONDS",
             "duration": "TIME", "file": "FILE"}  # fmt: skip


class _SysbenchLike(click.Command):
    """Its options are in a table of their own (`howfar.load.options`): click would know neither sysbench's forms nor dialects."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            raise click.UsageError("no workload is named", ctx)
        if "--help" in args or "-h" in args or args[-1] == "help":
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params = {"words": tuple(args)}
        ctx.args = []
        return []

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[DSN] WORKLOAD|--workload=FILE [OPTIONS] [prepare|warmup|run|cleanup]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in GROUPS:
            rows = [_help_row(option) for option in OPTIONS if option.group == group and not option.same_as]
            with formatter.section(group):
                formatter.write_dl(rows)


def _help_row(option: Option) -> tuple[str, str]:
    if option.group in (IGNORED, REFUSED):
        return f"--{option.name}", option.why
    value = "|".join(option.choices) if option.choices else _METAVARS[option.kind]
    default = f" [{option.default}]" if option.default else ""
    if option.default_11 is not None:
        default = f" [{option.default}; dialect 1.1: {option.default_11}]"
    shown = f"--{option.name}{value}" if option.kind == "switch" else f"--{option.name}={value}"
    return shown.replace("[on|off]", "[=on|off]"), f"{option.help}{default}"


@click.command(cls=_SysbenchLike, add_help_option=False)
def load(words: tuple[str, ...]) -> int:
    """Load a server of your own, and say what it answered, how long that took, and whether to believe it.

    DSN: mysql://user@host:3306/db?ssl-mode=REQUIRED or mysql:///path/to.sock?user=u&db=d, or sysbench's --mysql-… options.
    WORKLOAD: oltp_read_only, oltp_read_write and the other workloads of sysbench. A command line of sysbench works when
    the program's name is changed, except for the password: --password-file, --ask-password or HOWFAR_PASSWORD.
    """
    options = parse_command_line(words)
    for note in options.notes:
        _note(note)
    try:
        return _act(options)
    except Stopped as stopped:
        _note("interrupted; the engine has ended")
        return stopped.exit_code


@dataclass(frozen=True)
class _Named:
    """A workload and what it is called in reports."""

    name: str
    custom: Custom | None


def _act(options: Options) -> int:
    named = _workload(options)
    goal = parse_goal(options.value("search")) if options.said("search") else None
    if goal is not None and options.value("rate"):
        raise UsageError("--search tries rates of its own; --rate names one", "Leave one of them out.")
    if named.custom is not None:
        for name in without_effect(options):
            _note(f"--{name} has no effect with --workload, whose file says it all")
    login = find_login(options, _note)
    workload = workload_of(options, named.custom)
    seed = options.value("rand-seed") or int.from_bytes(os.urandom(4), "big") + 1
    _note(transport_line(login, session_of(login.address, options)))
    if options.action != "run":
        tables(options, tables_job(options, login, workload, seed))
        return 0
    job = load_job(options, login, workload, seed)
    check_outputs(options)
    head(options, job)
    result = search(options, job, goal) if goal is not None else measure(options, job)
    if result is None:
        return 0
    show(options, result, named.name)
    return VOID if result.verdict.has(Stamp.VOID) else 0


def _workload(options: Options) -> _Named:
    """Raises UsageError."""
    if options.kind is not None:
        return _Named(options.kind, None)
    word = str(options.value("workload"))
    if word in workload_file.examples():
        return _Named(word, workload_file.parse_workload(f"{word}.toml", workload_file.example(word)))
    path = Path(word)
    try:
        with path.open("rb") as file:
            text = file.read(workload_file.MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"--workload {word} cannot be read: {error.strerror}",
            f"Name a TOML file, or one that comes along: {', '.join(workload_file.examples())}.",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--workload {word} is not UTF-8 text", "Save it as UTF-8.") from error
    return _Named(path.stem, workload_file.parse_workload(word, text))


def _note(text: str) -> None:
    click.echo(f"howfar: {text}", err=True)
