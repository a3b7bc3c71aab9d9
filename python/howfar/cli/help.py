"""`howfar help`: the help of a command, and man pages made from all commands; `howfar version`."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click

import howfar
from howfar.cli.completion import complete_commands
from howfar.cli.exit_codes import EXIT_CODES
from howfar.cli.main import TARGET, cli
from howfar.cli.suggest import UnknownCommand, first_sentence
from howfar.errors import HowfarError, RunFileError


@click.command("help")
@click.argument("command", nargs=-1, metavar="[COMMAND]", shell_complete=complete_commands)
@click.option("--man", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
              help="Write a man page of each command into this directory.")  # fmt: skip
def help_command(command: tuple[str, ...], man: Path | None) -> None:
    """Show the help of COMMAND, such as `run` or `servers get`; TARGET is the help of `howfar TARGET`."""
    if man is not None:
        for name, text in man_pages():
            _write(man / f"{name}.1", text)
        click.echo(f"{len(list(man_pages()))} pages are in {man}: man -l {man}/howfar.1")
        return
    root = click.get_current_context().parent
    assert root is not None, "help is a subcommand"
    current: click.Command = cli
    context = click.Context(cli, info_name=root.info_name, **cli.context_settings)
    for word in command:
        subcommand = current.get_command(context, word) if isinstance(current, click.Group) else None
        if subcommand is None:
            names = current.list_commands(context) if isinstance(current, click.Group) else []
            raise UnknownCommand(word, names, context)
        current, context = subcommand, subcommand.context_class(subcommand, parent=context, info_name=word)
    click.echo(current.get_help(context))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror}", "Name a writable directory.") from error


# ---------------------------------------------------------------- versions


UNKNOWN = "unknown"


@click.command()
def version() -> None:
    """Show the versions, and where the documents are."""
    click.echo(version_text())


def version_text() -> str:
    """Versions of package and engine, commit, and documents, one line each; what cannot be determined is unknown."""
    from howfar.engine.process import engine_info, find_engine  # pydantic, which the help need not import

    engine = commit = UNKNOWN
    try:
        info = engine_info()
        engine = f"{info.version} (contract {info.protocol}), {find_engine()}"
        # Baked into the engine when it was built; an older engine does not report it.
        completed = subprocess.run([find_engine(), "commit"], capture_output=True, text=True, timeout=20, check=True)
        commit = completed.stdout.strip() or UNKNOWN
    except HowfarError as error:
        engine = f"{UNKNOWN}: {error.message}"
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        wheel = metadata.version("howfar")
    except metadata.PackageNotFoundError:
        wheel = "not installed"
    folder = Path(howfar.__file__).parent
    documents = documents_directory() or UNKNOWN
    return (
        f"howfar {howfar.__version__}\nengine {engine}\nwheel  {wheel}, {folder}\ncommit {commit}\ndocs   {documents}"
    )


def documents_directory() -> Path | None:
    """The directory that holds docs/ and schema/, which messages name: a checkout, or where a wheel or Debian's package has them."""
    prefixes = sysconfig.get_path("data"), sysconfig.get_path("data", sysconfig.get_preferred_scheme("user")), "/usr"
    candidates = (Path(howfar.__file__).parents[2], *(Path(prefix, "share", "doc", "howfar") for prefix in prefixes))
    return next((path for path in candidates if (path / "docs" / "load.md").is_file()), None)


# ---------------------------------------------------------------- man pages


def man_pages() -> Iterator[tuple[str, str]]:
    """Name and text of a man page for every command, made from the commands themselves."""
    context = click.Context(cli, info_name="howfar", **cli.context_settings)
    yield "howfar", _man_page(cli, context)
    yield from _subcommand_pages(cli, context)
    target = cli.get_command(context, TARGET)
    assert target is not None, "the command without a name is registered"
    yield "howfar-target", _man_page(target, target.context_class(target, parent=context, info_name=TARGET), TARGET)


def _subcommand_pages(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, "a listed command is registered"
        subcontext = click.Context(command, parent=context, info_name=name)
        yield subcontext.command_path.replace(" ", "-"), _man_page(command, subcontext)
        if isinstance(command, click.Group):
            yield from _subcommand_pages(command, subcontext)


def _man_page(command: click.Command, context: click.Context, name: str = "") -> str:
    """A page in man(7): the command's own help, section by section."""
    title = (context.command_path + (f" {name}" if name else "")).replace(" ", "-")
    build_date = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    lines = [
        f'.TH "{_escape(title.upper())}" 1 "{time.strftime("%Y-%m-%d", build_date)}" "howfar {howfar.__version__}" "User commands"',
        ".ad l",
        ".SH NAME",
        f"{_escape(title)} \\- {_escape(first_sentence(command)).rstrip('.')}",
        ".SH SYNOPSIS",
        "\n.br\n".join(f".B {_escape(usage)}" for usage in _usage_lines(command, context)),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    formatter = _SectionCollector()
    command.format_options(context, formatter)
    if command is cli:
        formatter.sections.append(("Exit status", [(str(code), description) for code, description in EXIT_CODES]))
    for heading, rows in formatter.sections:
        lines.append(f'.SH "{_escape(heading.upper())}"')
        for term, description in rows:
            lines += [".TP", f"\\fB{_escape(term.strip())}\\fR", _escape(description)]
    if command is not cli:
        lines += [".SH SEE ALSO", ".BR howfar (1)"]
    return "\n".join(lines) + "\n"


class _SectionCollector(click.HelpFormatter):
    """Collects the definition lists of a help screen instead of laying them out."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[tuple[str, list[tuple[str, str]]]] = []

    def write_heading(self, heading: str) -> None:
        self.sections.append((heading, []))

    def write_dl(self, rows: object, col_max: int = 30, col_spacing: int = 2) -> None:
        self.sections[-1][1].extend(rows)  # type: ignore[arg-type] # as the base class takes them


def _usage_lines(command: click.Command, context: click.Context) -> list[str]:
    formatter = click.HelpFormatter(width=1000)
    command.format_usage(context, formatter)
    return [line.strip().removeprefix("Usage: ") for line in formatter.getvalue().splitlines() if line.strip()]


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; those that click does not rewrap keep their line breaks."""
    for number, paragraph in enumerate(part.strip("\n") for part in inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *map(_escape, paragraph.splitlines()[1:]), ".fi")
        else:
            yield _escape(" ".join(paragraph.split()))


def _escape(text: str) -> str:
    """Text escaped for roff: nothing in it is a request or an escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    escaped = "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in escaped)
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)
