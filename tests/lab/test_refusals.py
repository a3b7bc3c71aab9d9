"""Machines and servers that do not cooperate: a clear message, the right exit code, nothing left behind; and what still works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest

import howfar
from tests.lab.sandboxes import TIMEOUT_S, lab_command, run_lab
from tests.rarely import rarely_but

pytestmark = pytest.mark.lab
_SMALL = ("--tables", "1", "--table-size", "100")
FORBID = (
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- "$@"',
    "sh",
)
"""Prefix of a command that then cannot make namespaces: it has no capability, and no further user namespace is allowed."""


@pytest.fixture(scope="module")
def forbidding() -> None:
    tried = subprocess.run([*FORBID, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"this machine cannot be made to forbid namespaces: {tried.stderr.strip()}")


@pytest.mark.usefixtures("forbidding")
def test_forbidden_namespaces_are_named_with_the_remedy() -> None:
    done = run_lab("--path", "remote", "--server", "none", "--", "true", prefix=FORBID)
    assert done.returncode == 3
    assert "No space left on device" in done.stderr or "not permitted" in done.stderr
    assert "set user.max_user_namespaces to 10000 (it is 0)" in done.stderr
    assert "socket and tcp work" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("forbidding", "mariadb")
@pytest.mark.parametrize("path", ["socket", "tcp"])
def test_local_paths_work_without_namespaces(path: str, cache: Path) -> None:
    """As root of a user namespace that maps no other user, the server must not try to become another user."""
    work = cache / "howfar" / "work"
    done = run_lab("--path", path, *_SMALL, "--", "env", prefix=FORBID, env={"XDG_CACHE_HOME": str(cache)})
    assert done.returncode == 0, done.stderr
    assert ("HOWFAR_SOCKET=" if path == "socket" else "HOWFAR_HOST=127.0.0.1") in done.stdout
    assert not any(work.iterdir())


@pytest.fixture()
def nobodys_home() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    home = Path(f"/tmp/howfar-nobody-{os.getpid()}")
    home.mkdir()
    os.chown(home, 65534, 65534)
    yield home
    shutil.rmtree(home)


def _python_for_nobody() -> list[str]:
    """The Python of the tests, unless it is in a home that other users may not enter; then the system's, with our packages."""
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
    for python in (sys.executable, "/usr/bin/python3"):
        packages = f"{Path(howfar.__file__).parents[1]}:{Path(pydantic.__file__).parents[1]}"
        command = [*nobody, "env", f"PYTHONPATH={packages}", python]
        tried = subprocess.run([*command, "-c", "import howfar.cli.lab"], capture_output=True)
        if tried.returncode == 0:
            return command
    pytest.skip("no python here that an ordinary user may run")


@pytest.mark.usefixtures("mariadb", "namespaces")
@pytest.mark.parametrize("path", rarely_but(("remote",), ("socket", "remote", "forwarded-socket", "ssh")))
def test_an_ordinary_user_has_every_path(path: str, nobodys_home: Path) -> None:
    command = [
        *_python_for_nobody(),
        *lab_command("--path", path, *_SMALL, "--", "sh", "-c", "id -u; echo got here")[1:],
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "HOME": str(nobodys_home), "XDG_CACHE_HOME": str(nobodys_home)},
    )
    if "do not let" in done.stderr or "does not let" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert "got here" in done.stdout, done.stderr
    assert done.returncode == 0


def test_a_missing_server_is_named() -> None:
    done = run_lab("--server", "/nowhere/mariadbd", "--", "true")
    assert done.returncode == 3
    assert "/nowhere/mariadbd" in done.stderr
    done = run_lab("--server", "oracle", "--", "true")
    assert done.returncode == 3
    assert "Known servers: mariadb" in done.stderr


def _fake(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_program_that_is_no_server_is_named(tmp_path: Path) -> None:
    done = run_lab("--server", str(_fake(tmp_path / "s", "echo hello")), "--", "true")
    assert done.returncode == 3
    assert "hello" in done.stderr
    done = run_lab("--server", str(_fake(tmp_path / "s", "echo broken >&2; exit 1")), "--", "true")
    assert done.returncode == 4
    assert "broken" in done.stderr
    assert "exit code 1" in done.stderr


@pytest.mark.usefixtures("mariadb", "namespaces")
def test_a_server_that_crashes_at_start_shows_its_last_words(tmp_path: Path, cache: Path) -> None:
    version = "case $* in *--version*) echo 'mariadbd  Ver 10.0.0-MariaDB fake';; *) echo 'last words'; exit 1;; esac"
    done = run_lab(
        "--server", str(_fake(tmp_path / "s", version)), *_SMALL, "--", "true", env={"XDG_CACHE_HOME": str(cache)}
    )
    assert done.returncode == 4
    assert "last words" in done.stderr
    assert "exit code 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((cache / "howfar" / "templates" / "loaded").glob("mariadb-10.0.0*"))


def test_a_cache_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    done = run_lab("--server", "none", "--", "true", env={"XDG_CACHE_HOME": str(deep)})
    assert done.returncode == 4
    assert "107" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rtt", "10"), "is not a duration"),
        (("--rtt", "-1ms"), "never negative"),
        (("--rtt", "nan"), "is not a duration"),
        (("--rate", "fast"), "is not a rate"),
        (("--rate", "0gbit"), "carries nothing"),
        (("--path", "pigeon"), "pigeon"),
        (("--placement", "here"), "here"),
    ],
)
def test_impossible_options_are_the_users_mistake(arguments: tuple[str, str], expected: str) -> None:
    done = run_lab(*arguments, "--server", "none", "--", "true")
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
