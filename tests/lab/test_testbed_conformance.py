"""The laboratory and the user's own hosts behave the same for a trial."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.scenario_programs import run_scenario
from tests.lab.test_hosts import needs_hosts, run_on_hosts

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]


def test_the_laboratory_conforms(cache: Path) -> None:
    assert {"conforms": True} in run_scenario("testbed_conformance", cache=cache)


@needs_hosts
def test_hosts_conform(cache: Path, tmp_path: Path) -> None:
    done = run_on_hosts(cache, tmp_path, f"{sys.executable} -m tests.lab.testbed_conformance hosts.toml")
    assert done.returncode == 0 and "conforms" in done.stdout, done.stderr
