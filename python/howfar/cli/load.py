"""`howfar load`: load tests of a user's own server, with sysbench's options. Reads files, runs the engine, chooses the exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

import howfar
from howfar.address import ServerAddress
from howfar.cli.exit_codes import VOID
from howfar.cli.screen import STDOUT, note, read_text, show_document, show_json_line
from howfar.cli.target import Say, find_server, numeric_target, resolve_tls_mode
from howfar.contract.messages import Custom, Event, Interval, LoadJob, Ready, TablesDone, TablesJob, TablesProgress
from howfar.contract.receipt import ProgramUse
from howfar.contract.violation import sentences
from howfar.doctor.peer_location import find_measured_programs
from howfar.engine.process import EngineFailed, Launcher, check_job
from howfar.engine.receipt_check import mismatches
from howfar.engine.run_load import run_load, run_tables
from howfar.errors import EngineError, RunFileError, UsageError
from howfar.lab.programs import watching_programs
from howfar.load import report_text
from howfar.load.cmdline import ACTIONS, WORKLOADS, Options, parse_command_line
from howfar.load.conclusion import Conclusion, conclude, conclude_search
from howfar.load.job import (
    ADVICE,
    DEFAULT_NAME,
    WORKLOAD_MAX_BYTES,
    LoadLogin,
    address_from_options,
    arrivals,
    build_load_job,
    build_session,
    build_tables_job,
    build_workload,
    check_sources,
    check_values,
    example_workload,
    example_workloads,
    limit_advice,
    options_without_effect,
    parse_workload,
    transport_line,
)
from howfar.load.options import GROUPS, IGNORED, OPTIONS, REFUSED, Option
from howfar.load.report_text import (
    pgbench_first_line,
    pgbench_notes,
    pgbench_report,
    sysbench_first_line,
    sysbench_head,
    sysbench_interval_lines,
    sysbench_report,
    sysbench_started,
)
from howfar.load.result import (
    Result,
    failed_line,
    format_latency,
    hdr_log,
    job_line,
    make_result,
    partial_line,
    prometheus_text,
    summary_line,
)
from howfar.load.search import (
    MAX_TRIALS,
    Goal,
    RateTrial,
    judge_trial,
    next_rate,
    parse_goal,
    summarize_search,
)
from howfar.load.verdict import Stamp
from howfar.services import SqlProtocol
from howfar.stopping import handling_end_signals
from howfar.store.partial import is_written_in_place, write_atomically

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SYSBENCH_DEFAULTS = ServerAddress(protocol="mysql", user=DEFAULT_NAME, database=DEFAULT_NAME)
"""sysbench's defaults, for what neither options nor a file specify."""
MIN_INTERVAL_SHARE = 0.9
"""An interval shorter than this share of the configured length was cut short by the end of the window."""
KILLED_BY_SIGINT = "(signal 2)"
"""Part of the message of an engine that SIGINT ended."""


class Stopped(Exception):
    """An end signal arrived while the engine was running."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"signal {signal_number}")
        self.exit_code = 128 + signal_number


@contextlib.contextmanager
def stopping_on_request() -> Iterator[None]:
    """Raise `Stopped` on an end signal; when it propagates, the engine is ended."""

    def stop(number: int) -> None:
        raise Stopped(number)

    try:
        with handling_end_signals(stop):
            yield
    except EngineError as error:
        # A terminal's Ctrl-C also reaches the engine, and the engine's exit may be noticed first.
        if KILLED_BY_SIGINT in error.message:
            raise Stopped(signal.SIGINT) from error
        raise


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


@dataclass
class LoadObserver:
    """Shows a load while it runs; keeps its intervals for the report of an interrupted one."""

    options: Options
    job: LoadJob
    quiet: bool = False
    """Whether this is a trial of a search, of which only JSON lines are shown."""
    intervals: list[Interval] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Interval):
            self.intervals.append(event)
        if self.options.value("json"):
            show_json_line(event.model_dump_json())
        elif not self.quiet:
            self._show(event)

    def _show(self, event: Event) -> None:
        options, job = self.options, self.job
        layout = options.value("report")
        if isinstance(event, Ready) and layout == "sysbench":
            _print_lines(sysbench_started(job, options.dialect))
        if not isinstance(event, Interval) or not options.value("report-interval"):
            return
        if layout == "pgbench":
            click.echo(report_text.pgbench_progress(event))
        elif layout != "sysbench":
            click.echo(report_text.interval_line(event, job.arrivals is not None))
        elif event.length_ns >= MIN_INTERVAL_SHARE * job.interval_ns:  # sysbench prints no line for a shorter interval
            _print_lines(sysbench_interval_lines(event, job, options.value("percentile")))

    def show_partial(self, reason: str) -> None:
        """Show the intervals of an interrupted or failed load."""
        if self.options.value("json"):
            show_json_line(partial_line(self.intervals))
        for line in report_text.partial_report(self.intervals, reason):
            click.echo(line, err=True)


def measure(options: Options, job: LoadJob, quiet: bool = False) -> Result:
    """Run one load to its end. Raises EngineError or Stopped, after showing the partial figures."""
    observer = LoadObserver(options, job, quiet)
    try:
        with stopping_on_request(), watching_programs(find_measured_programs(job.target)) as start_watch:
            watch = start_watch()
            outcome = run_load(job, Launcher(), observer)
            programs = None if watch is None else watch.finish()
    except Stopped:
        observer.show_partial("interrupted")
        raise
    except EngineError as error:
        if observer.intervals:
            observer.show_partial("failed")
        if isinstance(error, EngineFailed):
            raise _with_limit_advice(options, job, error) from None
        raise
    differences = sentences(mismatches(job, outcome.ready.receipt))
    return make_result(
        job, outcome.ready, outcome.measuring, outcome.intervals, outcome.finished, differences, programs
    )


def run_tables_job(options: Options, job: TablesJob) -> None:
    """Run prepare, warmup or cleanup. Raises EngineError, Stopped."""
    last_shown = ("", 0)

    def show_event(event: Event) -> None:
        nonlocal last_shown
        if options.value("json"):
            show_json_line(event.model_dump_json())
        elif isinstance(event, TablesProgress):
            tenths = 10 * event.done // max(event.total, 1)
            if (event.doing, tenths) != last_shown:
                last_shown = (event.doing, tenths)
                click.echo(f"{event.doing} ({10 * tenths} % of all rows)" if tenths else event.doing)
        elif isinstance(event, TablesDone) and options.value("report") == "human":
            rows = f": {event.rows:,} row{'' if event.rows == 1 else 's'}" if event.rows else ""
            click.echo(f"{job.action} done{rows} in {event.elapsed_ns / 1e9:.3g} s")

    show_job(options, job)
    try:
        with stopping_on_request():
            run_tables(job, Launcher(), show_event)
    except EngineFailed as failed:
        raise _with_limit_advice(options, job, failed) from None


def _with_limit_advice(options: Options, job: LoadJob | TablesJob, failed: EngineFailed) -> EngineFailed:
    """The failure, with the exact statement to run as its advice if a limit of the server was reached. With --json, also writes it."""
    failed.advice = limit_advice(job, failed.message) or failed.advice
    if options.value("json"):
        click.echo(failed_line(failed.code, failed.message, failed.advice))
    return failed


def show_job(options: Options, job: LoadJob | TablesJob) -> None:
    """Show the lines that precede a job, before the engine starts."""
    if options.value("json"):
        show_json_line(job_line(job))
    elif options.value("report") == "pgbench":
        _print_lines(pgbench_first_line(howfar.__version__))
    elif options.value("report") == "sysbench":
        _print_lines(sysbench_first_line(howfar.__version__, options.dialect))
        if isinstance(job, LoadJob):
            report_interval_ns, seed = options.value("report-interval"), options.value("rand-seed")
            _print_lines(sysbench_head(job, options.dialect, report_interval_ns, seed))


def show(options: Options, result: Result, name: str, conclusion: Conclusion | None = None) -> None:
    """Show the reports of a finished load, on stdout and in files. `conclusion`: that of a search. Raises RunFileError."""
    if options.value("json"):
        click.echo(summary_line(result, conclude(result).answer))
    elif options.value("report") == "sysbench":
        _print_lines(sysbench_report(result, options.dialect, options.value("percentile"), options.value("histogram")))
        for finding in result.verdict.findings:  # sysbench's layout has no line for a verdict
            note(f"{finding.stamp}: {finding.because}")
    elif options.value("report") == "pgbench":
        _print_lines(pgbench_report(result, name))
        for text in pgbench_notes(result.job, bool(options.value("report-interval"))):
            note(text)
        for finding in result.verdict.findings:
            note(f"{finding.stamp}: {finding.because}")
    else:
        if conclusion is not None or options.value("report-interval"):
            click.echo()
        show_document(report_text.document(result, name, conclusion, options.value("histogram")))
    if options.is_given("prometheus"):
        write_file(Path(options.value("prometheus")), prometheus_text(result, name))
    if options.is_given("hdr-log"):
        write_file(Path(options.value("hdr-log")), hdr_log(result))


def write_file(path: Path, text: str) -> None:
    """Write a file that other users may read: a node exporter runs as another user. Raises RunFileError."""
    with _translate_write_errors(path):
        write_atomically(path, text, 0o644)


def check_outputs(options: Options) -> None:
    """Check that the files of reports can be written, before a load is spent on them. Raises RunFileError, UsageError."""
    for path in (Path(options.value(name)) for name in ("prometheus", "hdr-log") if options.is_given(name)):
        if path == STDOUT:
            raise UsageError("a file of the result cannot be written to standard output", "Name a file.")
        if path.is_dir():
            raise RunFileError(f"{path} cannot be written: it is a directory", "Name a file.")
        if is_written_in_place(path):
            continue
        path = path.resolve()
        with _translate_write_errors(path), tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
            pass


@contextlib.contextmanager
def _translate_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFileError(
            f"{path} cannot be written: {error.strerror}", "Name a file in a writable directory."
        ) from error


def search(options: Options, job: LoadJob, goal: Goal) -> tuple[Result | None, Conclusion]:
    """Search for a rate; returns the last successful trial at the rate found, if any, and the conclusion.

    Raises EngineError, Stopped.
    """
    high = options.value("search-high")
    low = min(options.value("search-low"), high) if high else options.value("search-low")
    trials: list[RateTrial] = []
    results: dict[float, Result] = {}
    programs: tuple[ProgramUse, ...] = ()
    while (rate := next_rate(trials, low, high)) is not None:
        seed = (job.seed + len(trials)) % 2**63
        trial_job = job.model_copy(update={"arrivals": arrivals(options, rate), "seed": seed})
        result = measure(options, trial_job, quiet=True)
        if result.verdict.has_stamp(Stamp.VOID):
            raise EngineError(
                f"the search ended: {'; '.join(result.mismatches)}",
                "Correct the server or the options, and search again.",
            )
        trial = judge_trial(result, goal, rate)
        trials.append(trial)
        if trial.met_goal:
            results[rate] = result
        elif result.verdict.has_stamp(Stamp.DISTURBED):
            programs = result.programs or ()
        _show_trial(options, trial, len(trials), result)
    search_result = summarize_search(trials)
    best_result = results.get(search_result.rate) if search_result.rate is not None else None
    is_client_limited = any("client" in trial.why_not for trial in trials)
    conclusion = conclude_search(goal, search_result, is_client_limited, programs)
    if options.value("json"):
        event_fields = {
            "event": "search",
            "question": conclusion.answer.question,
            "answer": conclusion.answer.sentence,
            "goal": str(goal),
            **asdict(search_result),
            "trials": [asdict(trial) for trial in trials],
        }
        click.echo(json.dumps(event_fields))
    elif best_result is not None and options.value("report") != "human":
        # The layouts of sysbench and pgbench, which follow, have no line for it.
        _print_lines(
            ["", conclusion.answer.sentence, *([conclusion.certainty] if is_client_limited or programs else [])]
        )
    return best_result, conclusion


def _show_trial(options: Options, trial: RateTrial, number: int, result: Result) -> None:
    if options.value("json"):
        show_json_line(json.dumps({"event": "trial", "number": number, **asdict(trial)}))
        return
    observed = "-" if trial.observed_ns is None else format_latency(trial.observed_ns)
    throughput = result.per_second(result.finished.transactions)
    verdict = "holds" if trial.met_goal else f"fails: {trial.why_not}"
    click.echo(
        f"trial {number:2d} of at most {MAX_TRIALS}: {trial.rate:>12,.1f}/s due {throughput:>12,.1f}/s answered  "
        f"{observed:>9}  {verdict}"
    )


_METAVARS = {"int": "N", "number": "X", "switch": "[on|off]", "text": "TEXT", "list": "LIST", "seconds": "SECONDS",
             "duration": "TIME", "file": "FILE"}  # fmt: skip


class _SysbenchCommand(click.Command):
    """A command whose options are in `howfar.load.options`, because click supports neither sysbench's syntax nor dialects."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            ctx.args = args
            return args
        if not args:
            raise click.UsageError("no workload is named", ctx)
        if "--help" in args or args[-1] in ("-h", "help"):  # elsewhere -h is pgbench's host
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params = {"arguments": tuple(args)}
        ctx.args = []
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            words = [f"--{option.name}" for option in OPTIONS if option.treatment == "used" and not option.same_as]
        else:
            words = [*WORKLOADS, *ACTIONS]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[DSN] WORKLOAD|--workload=FILE [OPTIONS] [prepare|warmup|run|cleanup]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in GROUPS:
            with formatter.section(group):
                formatter.write_dl(
                    [_help_row(option) for option in OPTIONS if option.group == group and not option.same_as]
                )


def _help_row(option: Option) -> tuple[str, str]:
    if option.group in (IGNORED, REFUSED):
        return f"--{option.name}", option.why
    value = "|".join(option.choices) if option.choices else _METAVARS[option.kind]
    default = f" [{option.default}]" if option.default else ""
    if option.default_11 is not None:
        default = f" [{option.default}; dialect 1.1: {option.default_11}]"
    term = f"--{option.name}[=on|off]" if option.kind == "switch" else f"--{option.name}={value}"
    return term, f"{option.help}{default}"


def find_login(options: Options, say: Say, environment: Mapping[str, str] | None = None) -> LoadLogin:
    """The server's account, address and TLS settings, which a job needs. Raises UsageError, EngineError."""

    def option_path(name: str) -> Path | None:
        return Path(options.value(name)) if options.is_given(name) else None

    env_name = options.value("env") if options.is_given("env") else None
    option_address = check_sources(options.dsn is not None or env_name is not None, address_from_options(options))
    login = find_server(
        options.dsn,
        option_address=option_address,
        defaults=_SYSBENCH_DEFAULTS,
        defaults_file=option_path("defaults-file"),
        env_name=env_name,
        password_file=option_path("password-file"),
        ask_password=options.value("ask-password"),
        environment=environment,
        say=say,
    )
    for remark in login.notes:
        say(remark)
    address = login.address
    if address.protocol not in get_args(SqlProtocol):
        raise UsageError(
            "howfar load speaks to MySQL, MariaDB and PostgreSQL", "Begin the DSN with mysql:// or postgresql://."
        )
    if options.dsn is None and address.host == "localhost" and not options.is_given("mysql-host"):
        say("localhost is reached by TCP here; sysbench takes the socket: --mysql-socket=PATH does so too")
    target = numeric_target(address, say)
    return LoadLogin(resolve_tls_mode(address, target, say), login.password, target=target)


@click.command(cls=_SysbenchCommand, add_help_option=False)
def load(arguments: tuple[str, ...]) -> int:
    """Load-test your own server, and report throughput, latencies, and whether they can be trusted.

    DSN names the server in any form of docs/addresses.md, such as mysql://user@host:3306/db?ssl-mode=REQUIRED,
    mysql:///path/to.sock?user=u&db=d, postgresql://user@host/db?sslmode=require or 'host=/run/postgresql dbname=db'. In its place,
    sysbench's --mysql-… options or --env NAME can be used. WORKLOAD is oltp_read_only, oltp_read_write or another workload of
    sysbench; on PostgreSQL, also pgbench's select-only, simple-update and tpcb-like. A sysbench command line works with the program
    name changed, except for its option for the password: use --password-file, --ask-password or HOWFAR_PASSWORD.
    """
    options = parse_command_line(arguments)
    for text in options.notes:
        note(text)
    try:
        return _run(options)
    except Stopped as stopped:
        note("interrupted; the engine has ended")
        return stopped.exit_code


def _run(options: Options) -> int:
    name, file = _read_workload(options)
    goal = parse_goal(options.value("search")) if options.is_given("search") else None
    if goal is not None and options.value("rate"):
        raise UsageError("--search chooses the rates itself", "Leave out --rate.")
    if file is not None:
        for option in options_without_effect(options):
            note(f"--{option} has no effect with --workload: the file describes the workload")
    login = find_login(options, note)
    if file is not None:
        check_values(file.source, file.text, file.custom, login.address.protocol)
    workload = build_workload(options, file.custom if file else None)
    seed = options.value("rand-seed") or int.from_bytes(os.urandom(4), "big") + 1
    note(transport_line(login, build_session(login.address, options)))
    if options.action != "run":
        tables_job = build_tables_job(options, login, workload, seed)
        _check_accepted(tables_job, file)
        run_tables_job(options, tables_job)
        return 0
    job = build_load_job(options, login, workload, seed)
    _check_accepted(job, file)
    check_outputs(options)
    show_job(options, job)
    result, conclusion = search(options, job, goal) if goal is not None else (measure(options, job), None)
    if result is None:
        assert conclusion is not None, "only a search ends without a result"
        if not options.value("json"):
            click.echo()
            show_document(report_text.conclusion_document(conclusion, name))
        return 0
    show(options, result, name, conclusion)
    return VOID if result.verdict.has_stamp(Stamp.VOID) else 0


def _check_accepted(job: LoadJob | TablesJob, file: _WorkloadFile | None) -> None:
    """Have the engine check a job before anything is shown. Raises EngineFailed; its advice names the workload's file."""
    try:
        check_job(job)
    except EngineFailed as error:
        if file is not None and error.code == "bad_job":
            error.advice = f"The workload is {file.source}. {ADVICE}"
        raise


@dataclass(frozen=True)
class _WorkloadFile:
    """A user-defined workload, and the text that describes it."""

    source: str
    text: str
    custom: Custom


def _read_workload(options: Options) -> tuple[str, _WorkloadFile | None]:
    """The workload's name in reports, and the file that defines it, if any. Raises UsageError, PlanError."""
    if options.kind is not None:
        return options.kind, None
    file = str(options.value("workload"))
    if file in example_workloads():
        source, text = f"{file}.toml", example_workload(file)
    else:
        source, text = file, read_text(Path(file), "--workload", WORKLOAD_MAX_BYTES)
    return Path(file).stem, _WorkloadFile(source, text, parse_workload(source, text))
