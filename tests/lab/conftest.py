"""Fixtures of the lab tests: they skip tests that this machine cannot run, and share one cache and one server of each kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from howfar.errors import HowfarError
from howfar.lab import sandbox
from howfar.lab.cache import cache_home
from howfar.other_programs import NO_WAIT
from tests.lab import certificates
from tests.lab.local_servers import SERVERS, LocalServer, require_server, run_server
from tests.lab.sandboxes import FORBID_NAMESPACES

# Tests run side by side, so other programs are always busy.
os.environ[NO_WAIT] = "1"


@pytest.fixture(scope="session")
def namespaces() -> None:
    """For tests that need a sandbox."""
    try:
        sandbox.namespace_flags()
    except HowfarError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def namespaces_forbidden() -> None:
    """Skips tests whose namespaces cannot be forbidden."""
    trial = subprocess.run([*FORBID_NAMESPACES, "true"], capture_output=True, text=True)
    if trial.returncode != 0:
        pytest.skip(f"this machine cannot be made to forbid namespaces: {trial.stderr.strip()}")


@pytest.fixture
def nobodys_home() -> Iterator[Path]:
    """A home for uid 65534, below a directory that other users may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; tests run without privilege test this anyway")
    home = Path(tempfile.mkdtemp(prefix="howfar-nobody-"))
    shutil.chown(home, 65534, 65534)
    yield home
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def mariadb() -> None:
    """For tests that need the server."""
    if shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        pytest.skip("mariadbd is not installed")


@pytest.fixture(scope="session")
def postgresql() -> None:
    """For tests that need the server."""
    require_server("postgresql")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache home for the tests; its path is short because sockets live below it."""
    home = tmp_path_factory.mktemp("c")
    (home / "howfar").mkdir()
    (home / "howfar/galera").symlink_to(cache_home() / "galera")  # unpacked by `./setup --clusters`
    return home


@pytest.fixture(scope="session", params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    """The name of an installed server. pytest groups the tests of one server, so that each is started once."""
    require_server(request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    """The authority that signed the certificates of all `running` servers."""
    return certificates.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server(
    name: str, authority: certificates.Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server with networking and TLS, for tests that change only their own accounts."""
    with run_server(name, tmp_path_factory.mktemp("s", numbered=True), tls=authority.server) as server:
        yield server
