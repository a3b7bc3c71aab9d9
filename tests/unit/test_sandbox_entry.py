"""A command that needs a sandbox enters it before it imports what only the process inside needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click
import pytest

from howfar.cli import sandbox_entry
from howfar.cli.main import cli
from howfar.cli.sandbox_entry import enter_early, needs_sandbox
from howfar.cli.target_options import enter_sandbox
from howfar.errors import LabError, MissingError, SandboxForbidden
from howfar.lab import sandbox
from howfar.paths import find_path


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["run"], True),
        (["run", "paths", "--on=hosts.toml"], False),
        (["run", "--on", "hosts.toml"], False),
        (["run", "-h"], False),
        (["lab", "--", "mariadb", "-h", "db1"], True),
        (["lab", "--help"], False),
        (["replay", "shop.recording", "--statements", "shop.sql"], False),
        (["report", "run"], False),
        (["run", "mysql://app:secret@db/shop"], False),
        (["replay", "shop.recording", "--dsn", "mysql://app:secret@db/shop"], False),
        (["lab", "--password", "secret", "--", "true"], False),
        (["run", "paths", "--rtt", "0.5ms", "--time-budget", "10min", "--out", "a/b.howfar"], True),
        (["db1:3306"], False),
        ([], False),
    ],
)
def test_the_arguments_show_whether_a_command_runs_in_a_sandbox(words: Sequence[str], needed: bool) -> None:
    assert needs_sandbox(words) is needed


@pytest.mark.parametrize("name", sandbox_entry._COMMANDS)
def test_each_option_without_a_sandbox_exists(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert set(sandbox_entry._COMMANDS[name]) <= {word for parameter in command.params for word in parameter.opts}


def test_nothing_heavy_is_imported_outside_of_the_sandbox() -> None:
    script = (
        "import sys; from howfar.cli import main; from howfar.lab import sandbox; sys.argv = ['howfar', 'run', 'paths']\n"
        "sandbox.run_inside = lambda: print([m for m in ('numpy', 'pydantic', 'rich') if m in sys.modules]) or 5\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "[]\n"), done.stderr


@pytest.mark.parametrize("code", [1, 137])
def test_only_the_code_of_a_users_program_may_look_like_a_killed_sandbox(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "run_inside", lambda: code)
    assert enter_early(["lab", "false"]) == code
    with pytest.raises(SystemExit) as ended:
        enter_sandbox(find_path("tcp"), runs_program=True)
    assert ended.value.code == code
    with pytest.raises(LabError, match="killed"):
        enter_early(["run"])


@pytest.mark.parametrize("command", ["predict", "replay"])
def test_a_killed_sandbox_is_reported_alike_however_early_it_was_entered(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "run_inside", lambda: 137)
    with pytest.raises(LabError) as early:
        enter_early([command, "shop.recording"])
    with pytest.raises(LabError) as late:
        enter_sandbox(find_path("tcp"))
    assert (late.value.message, late.value.advice) == (early.value.message, early.value.advice)


@pytest.mark.parametrize("error", [SandboxForbidden("no namespaces", "Run as root."), MissingError("no unshare", "")])
def test_the_command_itself_decides_what_to_do_without_a_sandbox(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setattr(sandbox, "run_inside", fail)
    assert enter_early(["run"]) is None


def test_forbidden_namespaces_are_tried_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[tuple[str, ...]] = []

    def refuse(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
        attempts.append(tuple(command))
        return subprocess.CompletedProcess(command, 1, "", "unshare failed")

    sandbox._try_namespaces.cache_clear()
    try:
        monkeypatch.setattr(subprocess, "run", refuse)
        assert enter_early(["predict", "shop.recording"]) is None
        enter_sandbox(find_path("tcp"))  # which needs no sandbox
        with pytest.raises(SandboxForbidden, match="unshare failed"):
            enter_sandbox(find_path("remote"))
    finally:
        sandbox._try_namespaces.cache_clear()
    assert len(attempts) == len(set(attempts)) > 0
