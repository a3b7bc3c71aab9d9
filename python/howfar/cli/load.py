"""`howfar load`: the engine against a user's own server, with sysbench's options. Thin: reads, calls, chooses the exit code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click

from howfar.cli.load_address import find_login
from howfar.cli.load_run import Stopped, check_outputs, head, measure, show, tables
from howfar.cli.load_search import search
from howfar.engine.messages import Custom
from howfar.errors import UsageError
from howfar.load import workload_file
from howfar.load.cmdline import Options, parse_command_line
from howfar.load.job import load_job, session_of, tables_job, transport_line, without_effect, workload_of
from howfar.load.options import GROUPS, IGNORED, OPTIONS, REFUSED, Option
from howfar.load.search import parse_goal
from howfar.load.verdict import Stamp

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
