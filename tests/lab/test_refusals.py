"""`howfar lab` on unsuitable machines and with broken servers: message, exit code, cleanup, and the paths that still work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.sandboxes import (
    FORBID_NAMESPACES,
    TIMEOUT_S,
    cache_variable,
    lab_command,
    python_of_nobody,
    run_lab,
    write_program,
)
from tests.rarely import rarely_but

pytestmark = pytest.mark.lab
_SMALL = ("--tables", "1", "--table-size", "100")


@pytest.mark.usefixtures("namespaces_forbidden")
def test_forbidden_namespaces_are_named_with_the_remedy() -> None:
    done = run_lab("--path", "remote", "--server", "none", "--", "true", prefix=FORBID_NAMESPACES)
    assert done.returncode == 3
    assert "No space left on device" in done.stderr or "not permitted" in done.stderr
    assert "set user.max_user_namespaces to 10000 (it is 0)" in done.stderr
    assert "socket and tcp work" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("namespaces_forbidden", "mariadb")
@pytest.mark.parametrize("path", rarely_but(("tcp",), ("socket", "tcp")))
def test_local_paths_work_without_namespaces(path: str, cache: Path) -> None:
    """The server must not change its user: this root's user namespace maps no other user."""
    work = cache / "howfar" / "work"
    done = run_lab("--path", path, *_SMALL, "--", "env", prefix=FORBID_NAMESPACES, cache=cache)
    assert done.returncode == 0, done.stderr
    assert ("HOWFAR_SOCKET=" if path == "socket" else "HOWFAR_HOST=127.0.0.1") in done.stdout
    assert not any(work.iterdir())


@pytest.mark.usefixtures("mariadb", "namespaces")
@pytest.mark.parametrize("path", rarely_but(("remote",), ("socket", "remote", "forwarded-socket", "ssh")))
def test_an_ordinary_user_has_every_path(path: str, nobodys_home: Path) -> None:
    arguments = lab_command("--path", path, *_SMALL, "--", "sh", "-c", "id -u; echo got here")[1:]
    done = subprocess.run(
        [*python_of_nobody(), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "HOME": str(nobodys_home), **cache_variable(nobodys_home)},
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


def test_a_program_that_is_no_server_is_named(tmp_path: Path) -> None:
    done = run_lab("--server", str(write_program(tmp_path / "s", "echo hello")), "--", "true")
    assert done.returncode == 3
    assert "hello" in done.stderr
    done = run_lab("--server", str(write_program(tmp_path / "s", "echo broken >&2; exit 1")), "--", "true")
    assert done.returncode == 4
    assert "broken" in done.stderr
    assert "exit code 1" in done.stderr


@pytest.mark.usefixtures("mariadb", "namespaces")
def test_a_server_that_crashes_at_start_shows_its_last_words(tmp_path: Path, cache: Path) -> None:
    version = "case $* in *--version*) echo 'mariadbd  Ver 10.0.0-MariaDB fake';; *) echo 'last words'; exit 1;; esac"
    done = run_lab("--server", str(write_program(tmp_path / "s", version)), *_SMALL, "--", "true", cache=cache)
    assert done.returncode == 4
    assert "last words" in done.stderr
    assert "exit code 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((cache / "howfar" / "templates" / "loaded").glob("mariadb-10.0.0*"))


def test_a_cache_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    done = run_lab("--server", "none", "--", "true", cache=deep)
    assert done.returncode == 4
    assert "107" in done.stderr
