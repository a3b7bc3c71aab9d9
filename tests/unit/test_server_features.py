"""`howfar servers list` without a real server: one that is missing, one that does not start, one that was queried before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from howfar.cli import servers as command
from howfar.cli.main import run_command_line
from howfar.lab.servers import features as module
from howfar.lab.servers.features import Features, find_features
from howfar.lab.servers.program import Program, identify

ABLE = Features(tls="OpenSSL", compression=("zlib", "zstd"), semi_sync=True, clone=False, group_replication=False)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all servers of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("howfar.lab.servers.program.EXTRA_DIRECTORIES", ())


def _program(folder: Path) -> Program:
    """A program that reports a version of MySQL, and fails at once on any other command."""
    path = folder / "mysqld"
    path.write_text("#!/bin/sh\ncase $* in *--version*) echo 'mysqld  Ver 9.9.9 for Linux' ;; *) exit 3 ;; esac\n")
    path.chmod(0o755)
    return identify(path)


def _listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert run_command_line(["servers", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["servers"]}


def test_a_server_that_is_not_here_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no mariadb server was found" in str(_listed(capsys)["mariadb"]["missing"])


def test_one_that_fails_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _program(tmp_path)
    row = _listed(capsys)["mysql"]
    assert (row["version"], "features" in row) == ("9.9.9", False)
    assert "exit code 3" in str(row["not_asked"])
    assert run_command_line(["servers"]) == 0
    assert "?" in capsys.readouterr().out


def test_what_was_found_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(tmp_path)
    kept = tmp_path / "c" / "howfar" / "features" / f"{program.key}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(ABLE.model_dump_json())
    assert find_features(program) == ABLE
    kept.write_text('{"of another": "version"}')
    assert "exit code 3" in str(module.features_or_reason(program)), "what cannot be read is asked anew"


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"protocol_compression_algorithms": "zlib,zstd,uncompressed"}, ("zlib", "zstd")),
        ({"protocol_compression_algorithms": "uncompressed"}, ()),
        ({"have_compress": "YES"}, ("zlib",)),
        ({"have_compress": "NO"}, ()),
        ({}, ()),
    ],
)
def test_compression_as_each_kind_says_it(variables: dict[str, str], found: tuple[str, ...]) -> None:
    assert module._find_compressions(variables) == found


def test_the_table_has_words_for_what_works(tmp_path: Path) -> None:
    row = command.InstalledServer(name="mysql", kind="mysql", version="9", program="/p", features=ABLE)
    assert command._row_cells(row)[3:7] == ("yes", "zlib+zstd", "yes", "no")
