"""Servers that the user unpacked: found in a directory or a tarball, given their base directory, refused if they are not servers."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from howfar.cli.main import run_command_line
from howfar.errors import LabError, ServerMissing
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.private import install_from, list_installs, servers_home

PROGRAM = "#!/bin/sh\ncase $* in *--version*) echo 'mysqld  Ver 8.4.9-1 for Linux (Percona Server)' ;; *) echo \"$@\" ;; esac\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


def _unpacked(folder: Path) -> Path:
    base = folder / "Percona Server 8.4"
    for name in ("bin", "lib", "share"):
        (base / name).mkdir(parents=True)
    program = base / "bin" / "mysqld"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return base


def _tarball(folder: Path) -> Path:
    packed = folder / "server.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(_unpacked(folder), arcname="percona-8.4.9")
    return packed


def _quiet(_: str) -> None:
    """Discard a progress message."""


@pytest.mark.parametrize("pack", [_unpacked, _tarball])
def test_it_is_found_by_kind_and_told_its_base(
    pack: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = pack(tmp_path)  # type: ignore[operator]
    assert run_command_line(["servers", "get", "--from", str(source)]) == 0
    assert capsys.readouterr().out.startswith("mysql-8.4.9-1-")
    (installed,) = list_installs()
    assert find_server(installed.name).version == "8.4.9-1"
    output = subprocess.run(
        [installed.program, "--no-defaults", "--x"], capture_output=True, text=True, check=True
    ).stdout
    base = next(word for word in output.split("--") if word.startswith("basedir="))
    assert output.startswith("--no-defaults --basedir=")
    assert (Path(base.removeprefix("basedir=").strip()) / "share").is_dir()
    assert (installed.program.parents[1] / "lib").is_dir()


def test_the_same_one_is_taken_once(tmp_path: Path) -> None:
    base = _unpacked(tmp_path)
    first, made = install_from(base, _quiet)
    again, made_again = install_from(base, _quiet)
    assert (first, made, made_again) == (again, True, False)


def test_a_directory_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerMissing, match="contains no server program"):
        install_from(tmp_path, _quiet)
    assert list(servers_home().iterdir()) == []


def test_a_name_beside_it_is_refused_and_nothing_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested: list[str] = []
    monkeypatch.setattr("howfar.cli.servers.install_recipe", lambda name, tell: requested.append(name))
    assert run_command_line(["servers", "get", "mysql", "--from", str(tmp_path)]) == 2
    assert (requested, servers_home().exists()) == ([], False)
    assert "leave out mysql" in capsys.readouterr().err


def test_a_torn_tarball_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    whole = _tarball(tmp_path).read_bytes()
    torn = tmp_path / "torn.tar.gz"
    torn.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LabError, match="unpacking"):
        install_from(torn, _quiet)
    assert list(servers_home().iterdir()) == []


def test_nothing_asked_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["servers", "get"]) == 2
