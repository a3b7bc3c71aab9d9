"""Standard streams and the terminal: width, colour, closed streams, small text files, and how this program is called.

All output of all commands goes through `_PrintableStream`, or through `rich_console` and `show_rendered`, which write their own
control sequences around texts that have none.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import select
import shlex
import shutil
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from howfar.errors import UsageError
from howfar.file_kinds import find_file_kind
from howfar.passwords import without_passwords
from howfar.terminal_text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from howfar.report.document import Document
    from howfar.stats.estimate import Part

WIDTH_WITHOUT_TERMINAL = 100
"""Width of files and pipes: wide enough that no table is cut."""
MIN_WIDTH = 40


STDOUT = Path("-")
"""The name of standard output in place of a file."""


class OutputFile(click.Path):
    """An output file of a command that cannot write to stdout: `-` is refused, so that no file of that name is created."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == str(STDOUT):
            self.fail("this cannot be written to standard output. Name a file.", param, ctx)
        return super().convert(value, param, ctx)


def no_colour_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--no-colour` to a command."""
    return click.option(
        "--no-colour",
        "--no-color",
        "no_colour",
        is_flag=True,
        help="Do not use colour; NO_COLOR and TERM=dumb have the same effect.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")(command)


def blocks_option(
    default: int, help_text: str, maximum: int = 1000
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--blocks` to a command; `help_text`: its help."""
    return click.option("--blocks", type=click.IntRange(1, maximum), default=default, show_default=True, help=help_text)


def html_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--html` to a command that ends with a report."""
    return click.option("--html", type=OutputFile(), help="File for the HTML page.  [default: next to the run file]")(
        command
    )


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO, no_colour: bool) -> bool:
    """Whether to use colour: only on a terminal, and not if an option or variable forbids it."""
    return not no_colour and not os.environ.get("NO_COLOR") and is_terminal(stream)


def width(stream: TextIO | None = None) -> int:
    """The number of columns for output: COLUMNS, else the terminal's width, else that for files."""
    setting = os.environ.get("COLUMNS", "")
    if setting.isdigit() and int(setting) > 0:
        return max(int(setting), MIN_WIDTH)
    stream = stream or sys.stdout
    if not stream.isatty():
        return WIDTH_WITHOUT_TERMINAL
    return max(shutil.get_terminal_size((80, 24)).columns, MIN_WIDTH)


class _PrintableStream:
    """A standard stream whose text loses its control characters."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream
        self.holds_output = False
        """Whether a result has been written, to which nothing may be added."""

    def write(self, text: str | bytes) -> int:
        """Write text without its control characters. Bytes, which Click's shell completion writes, are decoded as UTF-8."""
        self.holds_output = True
        self.unfiltered.write(printable(text.decode(errors="replace") if isinstance(text, bytes) else text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # it would bypass the filter
            raise AttributeError(name)
        return getattr(self.unfiltered, name)


def _unfiltered(stream: TextIO) -> TextIO:
    return stream.unfiltered if isinstance(stream, _PrintableStream) else stream


def rich_console(stream: TextIO, **options: Any) -> Console:
    """A console of Rich on a standard stream. Its texts lose their control characters."""
    from rich.console import Console, ConsoleOptions, RenderableType  # `howfar --help` does not need it
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return PrintableConsole(file=_unfiltered(stream), highlight=False, **options)


def console(no_colour: bool) -> Console:
    """The console for the answer, on stdout."""
    return rich_console(sys.stdout, no_color=not has_colour(sys.stdout, no_colour), width=width(), soft_wrap=False)


def rich_table(headings: Sequence[str], right_aligned: Sequence[str]) -> Table:
    """A table of Rich without lines. Its columns fold long texts; those of `right_aligned` come after the others."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for heading in right_aligned:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def show_rendered(text: str) -> None:
    """Write a report that `howfar.report.terminal` made, with its colours, to stdout."""
    click.echo(text, file=_unfiltered(sys.stdout), nl=False, color=True)


def erase_lines(stream: TextIO, lines: int) -> None:
    """Clear the cursor's line and this many lines above it, and move the cursor to the first of them."""
    move_up = f"\x1b[{lines}A" if lines else ""
    _unfiltered(stream).write(f"{move_up}\r\x1b[J")
    stream.flush()


def rewrite_line(text: str, is_last: bool) -> None:
    """Write a text over the current line of the terminal on stderr."""
    print(f"\r{printable(text)}", end="\n" if is_last else "", file=_unfiltered(sys.stderr), flush=True)


def show_json(text: str) -> None:
    """Write JSON text to stdout."""
    click.echo(printable_json(text))


def show_json_line(text: str) -> None:
    """Write one JSON object of a sequence to stdout."""
    show_json(text)
    sys.stdout.flush()
    if isinstance(sys.stdout, _PrintableStream):
        sys.stdout.holds_output = False


def holds_output() -> bool:
    """Whether stdout already has a result, to which no other JSON object may be added."""
    return isinstance(sys.stdout, _PrintableStream) and sys.stdout.holds_output


def show_result(result: Part, report: Document, as_json: bool, no_colour: bool) -> None:
    """Write a result to stdout: as JSON, or its report for the terminal."""
    from howfar.report.text import answer_values

    if as_json:
        values = json.loads(result.model_dump_json())  # unlike `model_dump`, it has null for NaN
        show_json(json.dumps({**answer_values(report), **values}, indent=2, ensure_ascii=False))
    else:
        show_document(report, no_colour, details=False)
        show_rendered("\n")


def show_document(report: Document, no_colour: bool = False, details: bool = True) -> None:
    """Write a report to stdout."""
    from howfar.report import terminal

    show_rendered(terminal.render(report, width(), has_colour(sys.stdout, no_colour), details=details))


def cpu_list(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, cpus))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose columns are as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(rows: Sequence[Sequence[str]], max_width: int) -> list[str]:
    """Lines of a table in at most `max_width` characters; its second column is wrapped if the others leave too little room."""
    other_widths = [max(map(len, column)) for index, column in enumerate(zip(*rows, strict=True)) if index != 1]
    column_width = max(max_width - sum(other_widths) - 2 * len(other_widths), 20)
    lines: list[Sequence[str]] = []
    for row in rows:
        first_line, *other_lines = textwrap.wrap(row[1], column_width) or [""]
        lines.append((row[0], first_line, *row[2:]))
        lines += [("", line, *[""] * (len(row) - 2)) for line in other_lines]
    return columns(lines)


def note(text: str) -> None:
    """Write a message to stderr. Its further lines are indented, so that none looks like a separate message."""
    indented = "\n  ".join(without_passwords(text).split("\n"))
    click.echo(f"howfar: {indented}", err=True)


def try_note(text: str) -> None:
    """Like `note`, but ignores a message that cannot be written, for work that continues after the terminal was closed."""
    with contextlib.suppress(OSError):
        note(text)


_REPLACE_UNENCODABLE = "howfar-nearest"
_REPLACEMENTS = {"µ": "u", "…": "...", "×": "x", "≤": "<=", "≥": ">=", "–": "-", "\N{NO-BREAK SPACE}": " "}
"""Characters that an encoding may lack, and what is written instead; `?` for all others."""


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "only output has this handler"
    unencodable = error.object[error.start : error.end]
    return "".join(_REPLACEMENTS.get(character, "?") for character in unencodable), error.end


codecs.register_error(_REPLACE_UNENCODABLE, _replace_unencodable)


def open_streams() -> None:
    """Open the null device for each closed standard stream, and filter control characters from stdout and stderr.

    Otherwise the next file that is opened, perhaps a run file, would get the stream's number, and messages would be written into
    it. Writing to a closed stdout remains an error, because the result would be lost.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_REPLACE_UNENCODABLE)  # a report has characters that other encodings lack
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - a descriptor, for the life of the program
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    sys.stdout = cast(TextIO, _PrintableStream(_unfiltered(sys.stdout)))
    sys.stderr = cast(TextIO, _PrintableStream(_unfiltered(sys.stderr)))


def abandon_output() -> None:
    """Prevent further writes to stdout, including those of the interpreter at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


_TIMEOUT_S = 5.0
"""Time limit for the process that writes into a pipe, as in `--password-file <(pass show db)`."""


def _read_bytes(path: Path, option: str, max_bytes: int) -> bytes:
    """The first `max_bytes` bytes of a file or a pipe. Raises OSError, UsageError."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        with path.open("rb") as file:
            return file.read(max_bytes)
    data, deadline = b"", time.monotonic() + _TIMEOUT_S
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(data) < max_bytes:
            if not select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise UsageError(
                    f"{option} {path} is a pipe, and nothing was written to it within {_TIMEOUT_S:g} s", "Write to it."
                )
            chunk = os.read(descriptor, max_bytes - len(data))
            if not chunk:
                break
            data += chunk
        return data
    finally:
        os.close(descriptor)


def read_text(path: Path, option: str, max_bytes: int) -> str:
    """The text of a file. Raises UsageError if it cannot be read, is larger than `max_bytes`, or is not text."""
    try:
        data = _read_bytes(path, option, max_bytes + 1)
        if len(data) > max_bytes:
            raise UsageError(f"{option} {path} has more than {max_bytes} bytes", "It is probably the wrong file.")
        if (kind := find_file_kind(data)) is not None:
            raise UsageError(f"{option} {path} is a {kind.name}", kind.use(path))
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"{option} {path} cannot be read: {error.strerror}", "Check its name and permissions."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} is not UTF-8 text", "Save it as UTF-8.") from error


_NAME = "howfar"


def program() -> str:
    """The name of this program: `howfar` if that word finds it, else its path, relative when that is shorter. Quoted for a shell."""
    own_path = Path(sys.argv[0]) if sys.argv else Path(_NAME)
    if own_path.name != _NAME or not own_path.exists():
        return _NAME  # `python -m`, or a program that imports this one
    in_path = shutil.which(_NAME)
    if in_path is not None and Path(in_path).resolve() == own_path.resolve():
        return _NAME
    absolute = str(own_path.absolute())
    try:
        relative = os.path.relpath(absolute)
    except OSError:  # the current directory has been removed
        relative = absolute
    if os.sep not in relative:
        relative = f".{os.sep}{relative}"
    return shlex.quote(min(relative, absolute, key=len))


def as_called(advice: str) -> str:
    """Text with commands `howfar …` between backquotes, in which this program's own name replaces `howfar`."""
    return advice.replace(f"`{_NAME} ", f"`{program()} ")
