"""Skip what this machine cannot do, with the reason; share one cache of templates among the tests of a session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from howfar.errors import HowfarError
from howfar.lab import sandbox


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
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache home of our own; short, because sockets live below it."""
    return tmp_path_factory.mktemp("c")
