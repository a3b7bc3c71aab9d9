"""Tests of style: sizes, names, directions, words. An exception is listed here with its reason, and must still be one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.fstrings import PRODUCT, sentences_in_code

ROOT = Path(__file__).parents[1]
FILE_LINES_MAX = 800
UNSAFE_FILE_LINES_MAX = 400
FOLDERS_NEVER = {"core", "common", "helpers", "utils"}

LONG_FILES: dict[str, str] = {
    "python/howfar/contract/messages.py": "generated from the contract in Rust",
}
"""Path: why it is longer than the limit."""
SENTENCES_IN_CODE = {
    "analysis": 1,
    "bottleneck": 0,
    "doctor": 100,
    "experiments": 2,
    "load": 62,
    "recording": 18,
    "report": 1,
    "runner": 26,
}
"""Number of f-strings with three or more words; only to be lowered. `python tests/fstrings.py FOLDER` lists them."""
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
# Paths of a machine and addresses of package registries do not belong in the project. Only lock files must name the latter.
NEVER = re.compile(r"/work/|/root/|/home/\w|https?://(?!(?:www\.apache\.org|www\.w3\.org|json-schema\.org)\b)[a-z]")
LOCKS = {"Cargo.lock", "fuzz/Cargo.lock"}
THIS = "tests/test_tidy.py"
MADE = {"target", "dist", "__pycache__"}
MADE_FILES = (".howfar", ".howfar-wal", ".howfar-shm", ".html", ".pyc")


def kept() -> list[Path]:
    """The project's files: all files here, except built and fetched ones. Found without git, which may not be available."""
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(
            name for name in folders if name not in MADE and (name == ".ci" or not name.startswith("."))
        )
        found += [Path(folder, name) for name in sorted(files) if name != ".git" and not name.endswith(MADE_FILES)]
    return found


def texts(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Name and text of each kept file that is text (and has one of `suffixes`)."""
    for path in kept():
        if suffixes and path.suffix not in suffixes:
            continue
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_files_are_short() -> None:
    long = {name: size for name, text in texts(".py", ".rs", ".sh", "") if (size := text.count("\n")) > FILE_LINES_MAX}
    long.pop("LICENSE", None)
    assert {name: size for name, size in long.items() if name not in LONG_FILES} == {}
    stale = set(LONG_FILES) - set(long)
    assert not stale, f"no exception any more: {stale}"


@pytest.mark.parametrize("folder", SENTENCES_IN_CODE)
def test_sentences_are_templates(folder: str) -> None:
    found = [f"{path.name}:{node.lineno}" for path, node in sentences_in_code(PRODUCT / folder)]
    assert len(found) <= SENTENCES_IN_CODE[folder], found
    assert len(found) == SENTENCES_IN_CODE[folder], "lower the number"


def test_folders_have_names_that_mean_something() -> None:
    folders = {part for path in kept() for part in path.relative_to(ROOT).parts[:-1]}
    assert folders & FOLDERS_NEVER == set()


def test_nothing_is_left_unfinished() -> None:
    assert [name for name, text in texts() if name != THIS and UNFINISHED.search(text)] == []


def test_no_word_of_a_machine_or_a_registry() -> None:
    found = {
        f"{name}:{text.count(chr(10), 0, hit.start()) + 1}": hit.group()
        for name, text in texts()
        if name not in LOCKS and name != THIS
        for hit in NEVER.finditer(text)
    }
    assert found == {}


def test_examples_are_run_or_are_not_examples() -> None:
    """A fence marked `ignore` or `no_run` shows code that was never executed."""
    fence = re.compile(r"^\s*(?://[/!] ?)?```[\w, ]*\b(ignore|no_run|compile_fail)\b", re.MULTILINE)
    assert [name for name, text in texts(".md", ".rs", ".py") if fence.search(text)] == []


def test_imports_go_one_way() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_are_executable_posix_shell() -> None:
    for name in ("setup", "run", "test", ".ci/run"):
        script = ROOT / name
        assert script.stat().st_mode & 0o111, f"{name} is not executable"
        assert script.read_text().startswith("#!/bin/sh\n")
        done = subprocess.run(["sh", "-n", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_unsafe_rust_is_fenced_in() -> None:
    """Unsafe code needs its file's permission, a reason beside each block, and a small file."""
    for name, text in texts(".rs"):
        blocks = len(re.findall(r"\bunsafe (\{|impl|fn)", text))
        if blocks == 0:
            continue
        assert "#![allow(unsafe_code)]" in text, f"{name}: unsafe without the file's own leave"
        assert text.count("SAFETY:") >= blocks - text.count("unsafe fn"), f"{name}: an unsafe block without its reason"
        assert text.count("\n") <= UNSAFE_FILE_LINES_MAX


def test_types_have_names_of_their_own() -> None:
    """No type has a vague name: a way, a place, a line, what was asked."""
    vague = re.compile(
        r"^\s*(?:class|(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait)) (_?(?:Way|Place|Line|Ground)|\w+Asked)\b",
        re.MULTILINE,
    )
    found = [(name, *vague.findall(text)) for suffix in (".py", ".rs") for name, text in texts(suffix)]
    assert [names for names in found if len(names) > 1] == []


def test_every_shipped_plan_loads() -> None:
    from howfar.plan.load import load_plan, shipped_plans

    assert "paths" in shipped_plans()
    for name in shipped_plans():
        assert load_plan(name).plan.name == name
        assert load_plan(name, quick=True).plan.name == name, "every shipped plan has a short form"


def test_every_command_explains_itself_and_is_in_the_readme() -> None:
    from howfar.cli.main import cli

    readme = (ROOT / "README.md").read_text()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert command.help, f"howfar {name} has no help"
        silent = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
        assert not silent, f"howfar {name}: options without help: {silent}"
        assert f"howfar {name}" in readme, f"README.md does not name `howfar {name}`"
