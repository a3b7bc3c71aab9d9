"""Tests of style: sizes, names, directions, words. An exception is listed here with its reason, and must still be one."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
FILE_LINES_MAX = 800
UNSAFE_FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
FOLDERS_NEVER = {"core", "common", "helpers", "utils"}

LONG_FILES: dict[str, str] = {
    "python/howfar/engine/messages.py": "generated from the contract in Rust",
}
"""Path: why it is longer than the limit."""
SINGLE_IMPORTERS_MAX = 32
"""Maximum number of modules with a single importer, each an idea of its own; modules that a registry imports do not count."""
REGISTRIES = {
    "howfar.address",
    "howfar.bench.clients",
    "howfar.doctor.protocols",
    "howfar.experiments.registry",
    "howfar.lab.link.backends",
    "howfar.lab.replication.dialect",
    "howfar.lab.servers.kinds",
    "howfar.paths",
    "howfar.services",
}
"""Where paths, servers, forms of addresses, experiments and the like register."""
LONG_FUNCTIONS: dict[str, str] = {}
"""`path::function`: why it is longer than the limit."""

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


def statements(text: str) -> Iterator[ast.AST]:
    """All statements of a Python file, nested ones included; no expressions, which make up most of a tree."""
    left: list[ast.AST] = [ast.parse(text)]
    while left:
        node = left.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, [])


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function, without its decorators."""
    for node in statements(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def rust_functions(text: str) -> Iterator[tuple[str, int]]:
    """The same for Rust, as rustfmt lays it out: a function ends at the first closing brace on its own indentation."""
    lines = text.splitlines()
    head = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)")
    for number, line in enumerate(lines):
        if (found := head.match(line)) is None:
            continue
        closing = found.group(1) + "}"
        for end in range(number, len(lines)):
            if lines[end] == closing or (lines[end].rstrip().endswith((";", "}")) and end == number):
                yield found.group(2), end - number + 1
                break
            if lines[end].startswith(found.group(1) + ") ") and lines[end].endswith(";"):
                break


def too_long_functions() -> dict[str, int]:
    found: dict[str, int] = {}
    for name, text in texts(".py", ".rs"):
        functions = python_functions if name.endswith(".py") else rust_functions
        found |= {f"{name}::{what}": size for what, size in functions(text) if size > FUNCTION_LINES_MAX}
    return found


def test_the_scans_see_functions() -> None:
    source = (
        "impl X {\n    pub(crate) fn long(\n        a: u8,\n    ) -> u8 {\n        {\n        }\n        a\n    }\n}\n"
        "trait T {\n    fn declared(&self);\n    fn short(&self) {}\n}\n"
    )
    assert list(rust_functions(source)) == [("long", 7), ("declared", 1), ("short", 1)]
    assert list(python_functions("@x\ndef f():\n    def g():\n        pass\n")) == [("f", 3), ("g", 2)]


def test_files_are_short() -> None:
    long = {name: size for name, text in texts(".py", ".rs", ".sh", "") if (size := text.count("\n")) > FILE_LINES_MAX}
    long.pop("LICENSE", None)
    assert {name: size for name, size in long.items() if name not in LONG_FILES} == {}
    stale = set(LONG_FILES) - set(long)
    assert not stale, f"no exception any more: {stale}"


def test_functions_are_short() -> None:
    long = too_long_functions()
    assert {name: size for name, size in long.items() if name not in LONG_FUNCTIONS} == {}
    assert not set(LONG_FUNCTIONS) - set(long), "an exception that is none any more"


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


def imported_by() -> dict[str, set[str]]:
    """Which modules import each module of ours."""
    files = {path: path.relative_to(ROOT / "python").with_suffix("").parts for path in (ROOT / "python").rglob("*.py")}
    modules = {".".join(parts).removesuffix(".__init__"): path for path, parts in files.items()}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        for node in statements(path.read_text(encoding="utf-8")):
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                named = [one if one in modules else str(node.module) for one in whole]
            for one in set(named) & set(modules) - {name}:
                found.setdefault(one, set()).add(name)
    return found


def test_few_modules_have_a_single_importer() -> None:
    single = sorted(name for name, by in imported_by().items() if len(by) == 1 and not by & REGISTRIES)
    assert len(single) <= SINGLE_IMPORTERS_MAX, single


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
