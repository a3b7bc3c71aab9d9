"""The `howfar` command: its subcommands, each loaded only when used. Errors become exit codes here."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

import howfar
from howfar.cli.screen import abandon_output, as_called, note, open_streams
from howfar.errors import HowfarError, RunFileError

VOID = 7
INTERRUPTED = 130
BROKEN_PIPE = 141
BUG = 70
_OUTPUT_LOST = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of a stdout that accepts no more."""
_OF_A_FILE = {*_OUTPUT_LOST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of a file that was named, or of its directory, whatever we do right."""

_COMMANDS = {
    "run": ("howfar.cli.run:run", "Run an experiment and report the result."),
    "resume": ("howfar.cli.resume:resume", "Continue an interrupted run without repeating finished trials."),
    "confirm": (
        "howfar.cli.resume:confirm",
        "Change each limit that a run named, to test it.",
    ),
    "report": ("howfar.cli.report:report", "Show the report of a run, or write it as HTML, Markdown, CSV or JSON."),
    "compare": ("howfar.cli.compare:compare", "Compare two runs."),
    "plans": ("howfar.cli.plans:plans", "List the experiments, the question that each answers, and how long it takes."),
    "load": ("howfar.cli.load:load", "Load-test your own server with sysbench's options and workloads."),
    "slope": (
        "howfar.cli.slope:slope",
        "Measure how many round trips your application waits for, and extrapolate to other paths.",
    ),
    "record": ("howfar.cli.record:record", "Record the round trips that your application makes to its database."),
    "mark": ("howfar.cli.mark:mark", "Run a command as a named page of the recording in progress."),
    "predict": (
        "howfar.cli.predict:predict",
        "Predict how long recorded pages take on another path, and say what to change.",
    ),
    "replay": ("howfar.cli.replay:replay", "Repeat the round trips of a recording on another path."),
    "doctor": ("howfar.cli.doctor:doctor", "Examine this machine's database servers and say what to change."),
    "hosts": ("howfar.cli.hosts:hosts", "Join your own hosts, show the network between them, and release them."),
    "lab": ("howfar.cli.lab:lab", "Run any program inside the laboratory."),
    "links": ("howfar.cli.links:links", "List the named links and the back-ends that work on this machine."),
    "servers": ("howfar.cli.servers:servers", "List the servers that can be measured, or install another."),
    "bench": ("howfar.cli.bench:bench", "Measure howfar's own overhead."),
}

_EPILOG = """\b
Exit codes:
  0    done
  2    invalid option, plan or value
  3    something is missing on this machine, such as a server or a permission
  4    the laboratory could not be built, or failed
  5    the load failed
  6    the run file or the output cannot be read or written
  7    nothing valid was measured: every trial, or the load, is void; or `howfar predict` mispredicted every page on its present path
  8    `howfar doctor --strict` found something to change
  70   a bug in howfar
  130  interrupted; the run file holds every finished trial
"""


class _Lazy(click.Group):
    """Commands by name. A module is imported when its command is used, so that `howfar --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{cmd_name} is a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in _COMMANDS.items()])


UNKNOWN = "unknown"


def version_text() -> str:
    """Versions of package and engine and the engine's commit, a line each; what cannot be determined is unknown, never an error."""
    import subprocess
    from importlib import metadata
    from pathlib import Path

    from howfar.engine.process import engine_info, find_engine

    engine = commit = UNKNOWN
    try:
        info = engine_info()
        engine = f"{info.version} (contract {info.protocol}), {find_engine()}"
        # Baked into the engine when it was built; an older engine does not say.
        done = subprocess.run([find_engine(), "commit"], capture_output=True, text=True, timeout=20, check=True)
        commit = done.stdout.strip() or UNKNOWN
    except HowfarError as error:
        engine = f"{UNKNOWN}: {error.message}"
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        wheel = metadata.version("howfar")
    except metadata.PackageNotFoundError:
        wheel = "not installed"
    return f"engine {engine}\nwheel  {wheel}, {Path(howfar.__file__).parent}\ncommit {commit}"


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Show the version. Only `--version` asks the engine, which takes time."""
    if value and not context.resilient_parsing:
        click.echo(f"howfar {howfar.__version__}\n{version_text()}")
        context.exit()


@click.command(cls=_Lazy, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the versions and exit.",
)
def cli() -> None:
    """How far is your database? howfar measures, on real servers, what the path between an application and its data costs.

    Start with: howfar run paths --quick
    """


_unraisable_as_python_has_it = sys.unraisablehook


def _unraisable(raised: sys.UnraisableHookArgs) -> None:
    """Ignore an error from a client library's buffer whose goodbye could not be sent because the server had closed the connection."""
    if not isinstance(raised.exc_value, BrokenPipeError):
        _unraisable_as_python_has_it(raised)


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. A user's mistake never gives a traceback."""
    open_streams()
    sys.unraisablehook = _unraisable
    try:
        # Not `cli.main`: it answers a broken pipe by itself, with an exit code of its own.
        with cli.make_context("howfar", list(sys.argv[1:] if arguments is None else arguments)) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except HowfarError as error:
        _say(error.message, error.advice)
        return error.exit_code
    except click.ClickException as error:
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "howfar"
        _say(error.format_message(), f"`{command} --help` lists the options.")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted", "")
        return INTERRUPTED
    except BrokenPipeError:
        abandon_output()  # the reader has gone, as with `| head`
        return BROKEN_PIPE
    except OSError as error:
        if error.filename is not None and error.errno in _OF_A_FILE:
            _say(
                f"{os.fsdecode(error.filename)}: {error.strerror}",
                "Name another file, or correct its permissions or those of its directory.",
            )
            return RunFileError.exit_code
        if error.errno not in _OUTPUT_LOST or error.filename is not None:
            return _bug(error)
        abandon_output()
        _say(
            f"writing the output failed: {error.strerror}",
            "Write it where there is enough space.",
        )
        return RunFileError.exit_code
    except Exception as error:
        return _bug(error)


def _say(message: str, advice: str) -> None:
    with contextlib.suppress(OSError):
        note(message)
        for line in as_called(advice).splitlines():
            click.echo(f"  {line}", err=True)


def _bug(error: Exception) -> int:
    if os.environ.get("HOWFAR_DEBUG") == "1":
        traceback.print_exc()
        return BUG
    trace = "set HOWFAR_DEBUG=1 to see the trace"
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(prefix="howfar-trace-", suffix=".txt")
        with os.fdopen(descriptor, "w") as file:
            traceback.print_exception(error, file=file)
        trace = f"the trace is in {name}"
    _say(f"a bug in howfar: {type(error).__name__}: {str(error)[:200]}; {trace}", "Please report it.")
    return BUG
