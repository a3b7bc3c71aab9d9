"""Private installs without the network: apt's settings, what it refuses, what is found again, what a launcher does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from howfar.cli.main import run_command_line
from howfar.errors import ServerMissing, UsageError
from howfar.lab.servers import private as debian
from howfar.lab.servers import private as getting
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.private import (
    PackageSelection,
    Recipe,
    fetch_packages,
    find_install,
    install_recipe,
    list_installs,
    relocate,
    servers_home,
)
from howfar.lab.servers.program import kind_of

needs_apt = pytest.mark.skipif(
    shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None or not debian._KEYRINGS[0].is_file(),
    reason="this is no Debian machine",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "howfar"


def _install(name: str, description: str = "mysqld  Ver 9.9.9 for Linux") -> Path:
    program = servers_home() / name / "sbin" / "mysqld"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{description}'\n")
    program.chmod(0o755)
    (servers_home() / name / "receipt.json").write_text(json.dumps({"program": "sbin/mysqld"}))
    return program


def test_versions_are_ordered_by_value() -> None:
    for name in ("mysql-9.10.1-1", "mysql-9.9.2-1", "mysql-10.0.0-1", "mariadb-11.8.6-1"):
        _install(name)
    assert [one.name for one in list_installs()] == [
        "mariadb-11.8.6-1",
        "mysql-9.9.2-1",
        "mysql-9.10.1-1",
        "mysql-10.0.0-1",
    ]


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        ("mysql", "mysql-10.0.0-1"),
        ("mysql-9", "mysql-9.10.1-1"),
        ("mysql-9.9", "mysql-9.9.2-1"),
        ("mysql-9.9.2-1", "mysql-9.9.2-1"),
        ("mysql-1", None),
        ("my", None),
    ],
)
def test_a_name_means_the_newest_that_it_fits(requested: str, found: str | None) -> None:
    for name in ("mysql-9.10.1-1", "mysql-9.9.2-1", "mysql-10.0.0-1"):
        _install(name)
    one = find_install(requested, list_installs())
    assert (one.name if one else None) == found


def test_what_is_half_made_is_not_found() -> None:
    (servers_home() / "mysql-9.9.9" / "sbin").mkdir(parents=True)
    building = servers_home() / ".building-1"
    building.mkdir()
    (building / "receipt.json").write_text("{}")
    assert list_installs() == []
    with pytest.raises(ServerMissing, match=r"no server is called 'mysql-9\.9\.9'"):
        find_server("mysql-9.9.9")


def test_one_that_is_there_is_left_alone_without_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _install("mysql-9.9.9-1")
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_recipe("mysql", print) == (find_install("mysql", list_installs()), False)
    assert find_server("mysql-9.9.9-1").path == program


def test_one_that_can_be_had_is_named_with_the_way_to_it() -> None:
    with pytest.raises(ServerMissing, match="there is no private installation") as caught:
        find_server("mariadb-11")
    assert "howfar servers get mariadb-11" in caught.value.advice


def test_an_unknown_name_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="oracle"):
        install_recipe("oracle", print)


def test_the_list_shows_what_is_there_and_what_can_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    _install("mysql-9.9.9-1")
    assert run_command_line(["servers"]) == 0
    shown = capsys.readouterr().out
    assert "mysql-9.9.9-1" in shown
    assert "mariadb-11" in shown


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))", "mysql"),
        ("/usr/sbin/mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server - GPL)", "mysql"),
        ("mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)", "mariadb"),
        ("mysqld from 11.8.6-MariaDB, client 15.2 for debian-linux-gnu", None),
        ("hello", None),
    ],
)
def test_a_program_is_known_by_what_it_says(output: str, kind: str | None) -> None:
    assert kind_of(output) == kind


def _package(folder: Path, name: str) -> Path:
    (folder / name / "DEBIAN").mkdir(parents=True)
    (folder / name / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1:2.3-4\nArchitecture: all\nMaintainer: nobody <n@localhost>\nDescription: a test\n"
    )
    built = folder / f"{name}_2.3-4_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", folder / name, built], check=True, capture_output=True)
    shutil.rmtree(folder / name)
    return built


def _unsigned_archive(folder: Path, package: str, suite: str) -> str:
    """An unsigned archive in files."""
    folder.mkdir()
    built = _package(folder, package)
    size = built.stat().st_size
    digest = subprocess.run(["sha256sum", built], check=True, capture_output=True, text=True).stdout.split()[0]
    control = subprocess.run(["dpkg-deb", "--field", built], check=True, capture_output=True, text=True).stdout.strip()
    listed = f"{control}\nFilename: {built.name}\nSize: {size}\nSHA256: {digest}\n"
    architecture = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout
    index = f"main/binary-{architecture.strip()}/Packages"
    dists = folder / "dists" / suite
    (dists / index).parent.mkdir(parents=True)
    (dists / index).write_text(listed)
    summed = subprocess.run(["sha256sum", dists / index], check=True, capture_output=True, text=True).stdout.split()[0]
    (dists / "Release").write_text(
        f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nComponents: main\nArchitectures: {architecture}"
        f"SHA256:\n {summed} {len(listed)} {index}\n"
    )
    return f"file:{folder}"


@needs_apt
def test_what_nobody_signed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = _unsigned_archive(tmp_path / "archive", "a-server", "sid")
    monkeypatch.setattr(debian, "_find_archive", lambda: address)
    home = tmp_path / "apt"
    home.mkdir()
    with pytest.raises(ServerMissing, match="is not signed"):
        fetch_packages(PackageSelection("sid", "a-server"), home, print)
    assert not list(home.rglob("*.deb"))


@needs_apt
def test_without_an_archive_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debian, "_find_archive", lambda: f"file:{tmp_path}/not-there")
    assert run_command_line(["servers", "get", "mysql"]) == 3
    output = capsys.readouterr().err
    assert "apt-get update failed" in output
    assert "not-there" in output
    assert list(servers_home().iterdir()) == []


@needs_apt
def test_debians_keys_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_KEYRINGS", (tmp_path / "no-keys.gpg",))
    with pytest.raises(ServerMissing, match="unsigned packages are not accepted"):
        install_recipe("mysql", print)


def test_without_apt_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerMissing, match="there is no apt-get here") as caught:
        install_recipe("mysql", print)
    assert "--server PATH" in caught.value.advice


@needs_apt
def test_what_a_killed_one_left_is_removed_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(selection: PackageSelection, home: Path, tell: object) -> list[Path]:
        return [_package(home, selection.package)]

    def relocated(root: Path, server: str) -> Path:
        program = root / "sbin" / server
        program.parent.mkdir()
        shutil.copy(_install("elsewhere"), program)
        shutil.rmtree(servers_home() / "elsewhere")
        return program

    (servers_home() / ".building-1" / "apt").mkdir(parents=True)
    monkeypatch.setattr(getting, "fetch_packages", fetched)
    monkeypatch.setattr(getting, "relocate", relocated)
    monkeypatch.setitem(
        getting.RECIPES, "mysql", Recipe("mysql", "mysqld", PackageSelection("sid", "a-server"), "a test")
    )
    installed, made = install_recipe("mysql", print)
    assert made
    assert installed.name == "mysql-2.3-4"
    assert [entry.name for entry in servers_home().iterdir()] == ["mysql-2.3-4"]
    assert find_server("mysql-2.3-4").version == "9.9.9"


def _run(program: Path, *arguments: str) -> Sequence[str]:
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_launcher_keeps_the_first_argument_first_and_can_be_moved(tmp_path: Path) -> None:
    """Servers obey --no-defaults only as the first argument. The loader here prints its arguments."""
    root = tmp_path / "one"
    usr = root / "packages" / "usr"
    loader = usr / "lib" / "x86_64-linux-gnu" / "ld-linux-x86-64.so.2"
    for folder in (loader.parent, usr / "sbin", usr / "bin", usr / "share" / "mysql", usr / "share" / "doc"):
        folder.mkdir(parents=True)
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    loader.chmod(0o755)
    for name in ("sbin/mysqld", "bin/tool"):
        (usr / name).write_text("a program")
    launcher = relocate(root, "mysqld").relative_to(root)
    assert not (usr / "share" / "doc").exists()
    assert not (usr / "bin" / "tool").exists()
    root.rename(tmp_path / "another one")
    moved = tmp_path / "another one"
    arguments = _run(moved / launcher, "--no-defaults", "--user=x y")
    at = arguments.index("--no-defaults")
    assert arguments[at - 1] == f"{moved}/sbin/../packages/usr/sbin/mysqld"
    assert arguments[at + 1].startswith("--basedir=")
    assert arguments[-1] == "--user=x y"
    assert Path(arguments[at + 1].removeprefix("--basedir=")).samefile(moved)
    assert _run(moved / launcher, "--version")[-1] == "--version"
