"""Skip what this machine cannot do, with the reason; share one cache of templates and one server of each kind among all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from howfar.errors import HowfarError
from howfar.lab import sandbox
from howfar.lab.cache import cache_home
from howfar.lab.servers.kinds import find_server
from tests.lab import certificates
from tests.lab.servers_here import SERVERS, Running, prepared, short_directory, started


@pytest.fixture(scope="session")
def namespaces() -> None:
    """For tests that need a sandbox."""
    try:
        sandbox.namespace_flags()
    except HowfarError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def mariadb() -> None:
    """For tests that need the server."""
    if shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        pytest.skip("mariadbd is not installed")


@pytest.fixture(scope="session")
def postgresql() -> None:
    """For tests that need the server."""
    try:
        find_server("postgresql")
    except HowfarError as error:
        pytest.skip(f"{error.message} {error.advice}")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache home for the tests; its path is short because sockets live below it."""
    home = tmp_path_factory.mktemp("c")
    (home / "howfar").mkdir()
    (home / "howfar/galera").symlink_to(cache_home() / "galera")  # what `./setup --clusters` has unpacked
    return home


@pytest.fixture(scope="session", params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    """An installed server. pytest groups the tests of one server, so that each is started once."""
    try:
        find_server(request.param)
    except HowfarError as error:
        pytest.skip(f"{request.param}: {error.message} {error.advice}")
    return str(request.param)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    """The authority that signed the certificates of all `running` servers."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def running(
    name: str, authority: certificates.Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server with networking and TLS, for tests that change only their own accounts."""
    work = short_directory(tmp_path_factory.mktemp("s", numbered=True))
    with started(prepared(name, work), tls=authority.server) as server:
        yield server
