"""The laboratory and hosts of one's own do the same for a trial."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.sandboxes import PATIENCE_S
from tests.lab.test_hosts import among_hosts, needs_hosts

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
_PROGRAM = "tests.lab.testbed_conformance"


def test_the_laboratory_conforms(cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", _PROGRAM],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0 and "conforms" in done.stdout, done.stderr


@needs_hosts
def test_hosts_conform(cache: Path, tmp_path: Path) -> None:
    done = among_hosts(cache, tmp_path, f"{sys.executable} -m {_PROGRAM} hosts.toml")
    assert done.returncode == 0 and "conforms" in done.stdout, done.stderr
