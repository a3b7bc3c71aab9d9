"""Help screens, man pages and shell completion, all made from the commands themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from tests.shipped import skip_without
from tests.unit.rendered import GOLDEN, is_golden

from howfar.cli.completion import SHELLS
from howfar.cli.exit_codes import EXIT_CODES
from howfar.cli.main import COMPLETE, cli, run_command_line

ROOT = Path(__file__).parents[2]
HELP = GOLDEN / "help"


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and subcommand; no words stand for the program itself."""
    yield words
    context = click.Context(group)
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        if isinstance(inner, click.Group):
            yield from commands(inner, (*words, name))
        else:
            yield (*words, name)


@pytest.mark.parametrize("words", list(commands(cli)), ids=" ".join)
def test_a_help_screen(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It equals a golden text at 80 columns; no line is wider, or cut off. `howfar help X` prints the same as `howfar X --help`."""
    if words == ("lab",):
        skip_without("replication")  # which has options of this command
    monkeypatch.setenv("COLUMNS", "80")
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    # Else click keeps what it cached in the first test that used this command alone.
    monkeypatch.setattr(command, "_help_option", None)
    assert run_command_line(("help", *words)) == 0
    screen = capsys.readouterr().out
    assert run_command_line((*words, "--help")) == 0
    assert capsys.readouterr().out == screen
    assert [line for line in screen.splitlines() if len(line) > 80] == []
    assert [line for line in screen.splitlines() if line.endswith("...") and "[" not in line] == []
    is_golden(HELP / f"{'-'.join(('howfar', *words))}.txt", screen)


def test_each_help_screen_is_that_of_a_command() -> None:
    assert {path.stem for path in HELP.iterdir()} == {"-".join(("howfar", *words)) for words in commands(cli)}


def test_the_help_begins_with_what_answers_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--help"]) == 0
    first = capsys.readouterr().out.splitlines()[:8]
    assert first[0] == "Usage: howfar TARGET [OPTIONS]"
    assert sum(line.startswith("  howfar ") for line in first) >= 2, first


def test_the_exit_codes_are_documented_once() -> None:
    """[cli-9] The table of docs/commands.md equals the program's; 1 is not an exit code of howfar."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = tuple((int(code), says) for code, says in re.findall(r"^\| (\d+) \| (.*) \|$", text, flags=re.MULTILINE))
    assert rows == EXIT_CODES
    assert 1 not in dict(EXIT_CODES)


def test_man_pages_are_clean(tmp_path: Path) -> None:
    assert run_command_line(["help", "--man", str(tmp_path / "man1")]) == 0
    pages = sorted((tmp_path / "man1").iterdir())
    names = {"-".join(("howfar", *words)) for words in commands(cli)} | {"howfar-target"}
    assert {page.stem for page in pages} == names
    for program in (["groff", "-man", "-Tutf8", "-ww", "-z"], ["mandoc", "-Tlint", "-W", "warning"]):
        if shutil.which(program[0]) is None:
            continue
        done = subprocess.run([*program, *pages], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("", "")
    text = (tmp_path / "man1" / "howfar-run.1").read_text(encoding="ascii")
    assert all(word in text for word in (".SH NAME", ".SH SYNOPSIS", "\\-\\-time\\-budget", ".BR howfar (1)"))


def test_a_directory_for_man_pages_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run_command_line(["help", "--man", str(tmp_path / "file" / "man1")]) == 6
    assert "cannot be written" in capsys.readouterr().err


COMPLETED = [
    ("re", {"record", "replay", "resume", "report"}),
    ("--ver", {"--version"}),
    ("--js", {"--json"}),
    ("mysql://u@h/d --fail", {"--fail-if"}),
    ("run pat", {"paths"}),
    ("run --full lat", {"latency"}),
    ("run --time", {"--time-budget"}),
    ("run --idle ", {"as-found", "polling"}),
    ("run --server post", {"postgresql"}),
    ("load --thread", {"--threads", "--thread-init-timeout"}),
    ("load mysql://u@h/d oltp_read", {"oltp_read_only", "oltp_read_write"}),
    ("load mysql://u@h/d tpcb", {"tpcb-like"}),
    ("lab --link us", {"us-coasts"}),
    ("plans cluster-r", {"cluster-rows", "cluster-reads"}),
    ("servers g", {"get"}),
    ("help serv", {"servers"}),
    ("completion ", set(SHELLS)),
]


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_a_word_is_completed(words: str, expected: set[str]) -> None:
    skip_without(*(expected & {"latency", "cluster-rows"}))
    before, _, incomplete = words.rpartition(" ")
    found = BashComplete(cli, {}, "howfar", COMPLETE).get_completions(before.split(), incomplete)
    assert {item.value for item in found} == expected


def test_every_command_is_offered_and_files_where_files_belong() -> None:
    shell = BashComplete(cli, {}, "howfar", COMPLETE)
    assert {item.value for item in shell.get_completions([], "")} == set(cli.list_commands(click.Context(cli)))
    for words in (["run"], ["report"], ["resume"], ["predict"]):
        assert [item.type for item in shell.get_completions(words, "./x")] == ["file"], words


IN_BASH = [
    ("howfar re", "record replay resume report"),
    ("howfar run pat", "paths"),
    ("howfar report ./a", "./a.howfar"),
]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes(tmp_path: Path) -> None:
    """A real bash sources the script; the script leaves files to bash, and a fake `compopt` answers its request."""
    program = tmp_path / "howfar"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom howfar.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    (tmp_path / "a.howfar").write_text("")
    lines = [
        'eval "$(howfar completion bash)"',
        'compopt() { COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")); }  # what readline does for -o default',
    ]
    for words, _ in IN_BASH:
        lines += [
            f"COMP_WORDS=({words}) COMPREPLY=()",
            'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _howfar_completion howfar; echo "${COMPREPLY[*]}"',
        ]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.stdout.splitlines(), done.stderr) == ([found for _, found in IN_BASH], "")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_can_read_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_HOWFAR_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", "-c", script], check=True)
