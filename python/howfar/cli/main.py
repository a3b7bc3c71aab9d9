"""The `howfar` command: a target, or a subcommand, which is loaded only when used. Errors become exit codes here."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING

import click

from howfar.cli.exit_codes import BROKEN_PIPE, BUG, CODES_OF_FAILURES, ERROR_NAMES, EXIT_CODES, INTERRUPTED, NO_MEMORY
from howfar.cli.hide_arguments import learn_passwords
from howfar.cli.memory import check_room_for_libraries, is_out_of_memory
from howfar.cli.sandbox_entry import enter_early
from howfar.cli.screen import abandon_output, as_called, holds_output, note, open_streams, show_json
from howfar.cli.suggest import TARGET_FORM, TARGET_USAGE, Group, UnknownCommand, command_for_file, explain
from howfar.errors import (
    Explanation,
    FailedCommand,
    HowfarError,
    MissingError,
    RunFileError,
    UsageError,
    incomplete_installation,
)
from howfar.passwords import without_passwords
from howfar.stopping import EndRequested, deferring_end_signals, raising_on_end_signals

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_OUTPUT_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Errors of writing to a stdout that is full or closed."""
_FILE_ERRNOS = {*_OUTPUT_ERRNOS, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors that a file or its directory causes, not a bug in howfar."""

TARGET = "TARGET"
"""Name in the help for the command that measures how far a database is, which has no name on the command line."""
_NAMELESS = "\0"
"""Internal name of that command, which `parse_args` puts before its arguments; no real argument can be equal to it."""


_EMPTY_TARGET = ("the target is empty", f"Check the variable that it comes from, or use {TARGET_USAGE}.")
_TARGET_HELP = "Say how far a database is, and what that means for a page."
_GROUPS: dict[str, dict[str, str]] = {
    "Your database": {
        "doctor": "Examine this machine's database servers; say what to change.",
        "load": "Load-test your own server as sysbench and pgbench do.",
    },
    "Your application": {
        "slope": "Count the round trips that your application waits for.",
        "record": "Record its round trips: which statements, how long.",
        "mark": "Run a command as a named page of the recording in progress.",
        "predict": "Predict its pages on another path; say what to change.",
        "replay": "Repeat the round trips of a recording on another path.",
    },
    "Your servers": {"hosts": "Join your own hosts, show the network between them."},
    "Laboratory": {
        "run": "Run an experiment and report the result.",
        "resume": "Continue a run without repeating finished trials.",
        "confirm": "Test each limit that a run named by changing it.",
        "report": "Show a run, or write HTML, Markdown, CSV or JSON.",
        "compare": "Compare runs with the first one.",
        "plans": "List the experiments and how long they take, or show one.",
        "lab": "Run any program inside the laboratory.",
        "links": "List the named links, or show one.",
        "servers": "List the servers for the laboratory, or install another.",
    },
    "howfar itself": {
        "setup": "Install what the laboratory starts; say what works here.",
        "bench": "Measure howfar's own overhead.",
        "help": "Show the help of a command, or write man pages.",
        "completion": "Write what completes commands in your shell.",
        "version": "Show the versions, and where the documents are.",
    },
}
_COMMANDS = {name: summary for group in _GROUPS.values() for name, summary in group.items()}
"""Each command and its line in the help. Function and module are named like the command, except those in `_ELSEWHERE`."""
_ELSEWHERE = {"confirm": ("resume", "confirm"), "help": ("help", "help_command"), "version": ("help", "version")}


def looks_like_target(word: str) -> bool:
    """Whether a word can only be the address of a server: a bare word is a command, or a mistake, never a host."""
    return word == "localhost" or (not word.startswith("-") and any(character in word for character in ".:/@="))


class _NamelessContext(click.Context):
    """A context in which the command without a name appears as the program itself."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent is not None else TARGET


class MainGroup(Group):
    """The program: commands by name, each imported when it is used, and a command without a name that measures a database."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        nameless = cmd_name in (_NAMELESS, TARGET)
        if not nameless and cmd_name not in _COMMANDS:
            return None
        name = "distance" if nameless else cmd_name
        module, attribute = _ELSEWHERE.get(name, (name, name))
        with deferring_end_signals():  # an exception in code that runs while modules are loaded may be lost
            command = getattr(import_module(f"howfar.cli.{module}"), attribute)
        assert isinstance(command, click.Command), f"{cmd_name} is a command"
        if nameless:
            command.context_class = _NamelessContext
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first == "-h" and len(args) > 1 and not args[1].startswith("-") and args[1] not in _COMMANDS:
            raise UsageError("-h shows the help: it takes no host", f"Use {TARGET_FORM}.")
        own_options = [name for param in self.get_params(ctx) for name in param.opts]
        if first.startswith("-") and first not in own_options:
            nameless = True
        else:
            nameless = looks_like_target(first) if args else not ctx.resilient_parsing
        if nameless and not ctx.resilient_parsing:
            self._check_target(ctx, args)
        return super().parse_args(ctx, [_NAMELESS, *args] if nameless else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0]:
            raise UsageError(*_EMPTY_TARGET)
        if args[0] == TARGET:
            raise UsageError("TARGET stands for the address of your database", f"Use {TARGET_USAGE}.")
        return super().resolve_command(ctx, args)

    def _check_target(self, ctx: click.Context, args: list[str]) -> None:
        """Check that the argument in the target's position can be a target. Raises UsageError, UnknownCommand."""
        command = self.get_command(ctx, _NAMELESS)
        assert command is not None, "the command without a name is registered"
        try:
            values = command.make_parser(click.Context(command, ctx)).parse_args(list(args))[0]
        except click.UsageError:
            return  # reported when the command reads its options
        words = (values.get(param.name or "") for param in command.params if isinstance(param, click.Argument))
        for word in (word for word in words if isinstance(word, str)):
            if not word:
                raise UsageError(*_EMPTY_TARGET)
            if (file_command := command_for_file(word)) is not None:
                raise UsageError(f"{word} is a file, not the address of a server", f"Use {file_command}.")
            if word in _COMMANDS:
                raise UsageError(f"the command {word} has to come first", f"Write `howfar {word} …`.")
            if not looks_like_target(word):
                raise UnknownCommand(word, self.list_commands(ctx), ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if not incomplete.startswith("-"):  # from the table, without importing a command
            return [CompletionItem(name, help=_COMMANDS[name]) for name in _COMMANDS if name.startswith(incomplete)]
        command = self.get_command(ctx, _NAMELESS)
        assert command is not None, "the command without a name is registered"
        target_options = command.shell_complete(click.Context(command, ctx, ""), incomplete)
        return list({item.value: item for item in (*super().shell_complete(ctx, incomplete), *target_options)}.values())

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, f"{TARGET} [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [ARGUMENTS]", " " * len("Usage: "))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, _COMMANDS))
        for title, entries in _GROUPS.items():
            rows = list(entries.items())
            if title == "Your database":
                rows.insert(0, (TARGET, _TARGET_HELP))
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{longest}}", description) for name, description in rows])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code:>3}", description) for code, description in EXIT_CODES])
        formatter.write_paragraph()
        formatter.write_text("`howfar version` shows the directory of docs/ and schema/, which messages name.")


def _show_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        command = cli.get_command(context, "version")
        assert command is not None, "the command `version` is registered"
        context.invoke(command)
        context.exit()


@click.command(cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions and exit.",
)
def cli() -> None:
    """How far is your database, and what does the distance cost?

    \b
    howfar mysql://app@db.internal/shop      how far this database is, in seconds
    howfar db.internal:3306                  or a socket's path, or --env NAME
    howfar                                   the databases of this machine

    These only read, and need no root. `howfar help TARGET` lists their options.
    """


_default_unraisable_hook = sys.unraisablehook


def _ignore_broken_pipe(unraisable: sys.UnraisableHookArgs) -> None:
    """Ignore a broken pipe of a client library that could not send its last message because the server had closed the connection."""
    if not isinstance(unraisable.exc_value, BrokenPipeError):
        _default_unraisable_hook(unraisable)


COMPLETE = "_HOWFAR_COMPLETE"
"""The variable in which a shell asks for completions."""


def run_command_line(arguments: Sequence[str] | None = None, on_loaded: Callable[[], None] = lambda: None) -> int:
    """Run a command and return its exit code. A mistake of the user never shows a traceback.

    `on_loaded` is called as soon as signals that request the end can be handled. With `--json`, stdout always gets a JSON object: the
    command's own, or a FailedCommand if the command ends without one.
    """
    open_streams()
    _set_home()
    check_room_for_libraries()
    sys.unraisablehook = _ignore_broken_pipe
    words = list(sys.argv[1:] if arguments is None else arguments)
    learn_passwords(words)
    try:
        outcome = _run(words, arguments is None, on_loaded)
        if not isinstance(outcome, int):
            _print_error(outcome.failure.message, outcome.failure.advice)
            if "--json" in (words[: words.index("--")] if "--" in words else words) and not holds_output():
                show_json(json.dumps(asdict(outcome)))
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else outcome.exit_code
    except BrokenPipeError:
        abandon_output()  # the reader has exited, as with `| head`
        return BROKEN_PIPE
    except OSError as error:
        abandon_output()
        _print_error(f"writing the output failed: {error.strerror}", "Write it where there is enough space.")
        return RunFileError.exit_code


def _set_home() -> None:
    """Set HOME if it is not set, by this user's account: in a sandbox this process is root, whose home is another."""
    if not os.environ.get("HOME"):
        from howfar.cli.target import home_directory

        os.environ["HOME"] = str(home_directory(os.environ))


def _run(words: list[str], are_own_words: bool, on_loaded: Callable[[], None]) -> int | FailedCommand:
    """The exit code of a command, or the error that ended it. Raises OSError for an output that cannot be written.

    `are_own_words`: whether `words` are the arguments of this process, so that it can start itself again.
    """
    try:
        on_loaded()
        if are_own_words and (completion := os.environ.get(COMPLETE)):
            from click.shell_completion import shell_complete

            return shell_complete(cli, {}, "howfar", COMPLETE, completion)
        # Not `cli.main`, which handles a broken pipe itself, with its own exit code.
        with raising_on_end_signals():
            if are_own_words and (code := enter_early(words)) is not None:
                return code
            with cli.make_context("howfar", list(words)) as context:
                result = cli.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (HowfarError, click.ClickException) as error:
        failure = getattr(error, "code", "")
        return _failed_command(CODES_OF_FAILURES.get(failure, error.exit_code), *explain(error, words), failure)
    except (KeyboardInterrupt, click.Abort) as ended:
        if _cannot_start_thread():
            return _resource_failure("threads", "Raise the limit on processes (`ulimit -u`), or end some.")
        return _failed_command(
            ended.exit_code if isinstance(ended, EndRequested) else INTERRUPTED, "interrupted", "", "interrupted"
        )
    except MemoryError:
        return _memory_failure()
    except OSError as error:
        return _os_error_failure(error)
    except Exception as error:
        if isinstance(error, ImportError | RuntimeError) and is_out_of_memory(error):
            return _memory_failure()
        if (missing := incomplete_installation(error)) is not None:
            return _failed_command(missing.exit_code, missing.message, missing.advice)
        return _bug_failure(error)


def _failed_command(exit_code: int, message: str, advice: str, code: str = "") -> FailedCommand:
    explanation = Explanation(
        code or ERROR_NAMES[exit_code], without_passwords(message), without_passwords(as_called(advice))
    )
    return FailedCommand(explanation, exit_code)


def _os_error_failure(error: OSError) -> FailedCommand:
    """The failure for an OSError: an unusable file, an exhausted resource, else a bug. Errors of stdout are raised again."""
    if error.errno == errno.ENOMEM:
        return _memory_failure()
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _resource_failure("open files", "Raise the limit (`ulimit -n`); 64 are enough for most commands.")
    if error.filename is not None and error.errno in _FILE_ERRNOS:
        return _failed_command(
            RunFileError.exit_code,
            f"{os.fsdecode(error.filename)}: {error.strerror}",
            "Name another file, or correct its permissions or those of its directory.",
        )
    if error.errno == errno.ENOENT and error.filename is None and not _has_temporary_folder():
        return _failed_command(
            MissingError.exit_code,
            "no directory for temporary files can be written",
            "Name one that can: TMPDIR=DIRECTORY.",
        )
    if error.filename is None and (error.errno in _OUTPUT_ERRNOS or isinstance(error, BrokenPipeError)):
        raise error
    return _bug_failure(error)


def _has_temporary_folder() -> bool:
    import tempfile

    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return False
    return True


def _cannot_start_thread() -> bool:
    """Whether no thread can be started. OpenBLAS then sends SIGINT to its own process, which looks like Ctrl-C."""
    import threading

    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return True
    return False


def _memory_failure() -> FailedCommand:
    return _resource_failure("memory", "Free some, or raise the limit (`ulimit -v`, the container's).")


def _resource_failure(resource: str, advice: str) -> FailedCommand:
    return _failed_command(NO_MEMORY, f"this process may not have enough {resource}", advice)


def _print_error(message: str, advice: str) -> None:
    with contextlib.suppress(OSError):
        note(message)
        for line in advice.splitlines():
            click.echo(f"  {line}", err=True)


def _bug_failure(error: Exception) -> FailedCommand:
    import tempfile
    import traceback

    if os.environ.get("HOWFAR_DEBUG") == "1":
        traceback.print_exc()
    trace_hint = "set HOWFAR_DEBUG=1 to see the trace"
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(prefix="howfar-trace-", suffix=".txt")
        with os.fdopen(descriptor, "w") as file:
            traceback.print_exception(error, file=file)
        trace_hint = f"the trace is in {name}"
    message = f"a bug in howfar: {type(error).__name__}: {str(error)[:200]}; {trace_hint}"
    return _failed_command(BUG, message, "Please report it.")
