"""One suite for every back-end that works here and for a bare cable: a link is as requested, or reports that it cannot be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pydantic
import pytest

import howfar
from howfar.lab.link.backends import backends
from tests.lab.conftest import namespaces  # noqa: F401 - a fixture
from tests.lab.sandboxes import TIMEOUT_S
from tests.lab.undisturbed import Others, disagrees
from tests.physics.conformance_checks import CHECKS

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
ROOT = Path(__file__).parents[2]
NOBODY = 65534
others_had: dict[str, float] = {}
"""CPUs that other processes used while the checks of a back-end ran."""


@cache
def results(backend: str) -> dict[str, Any]:
    """The results of all checks of a back-end, made in one run. A run that fails or hangs is not repeated for the next check."""
    try:
        with Others() as others:
            done = subprocess.run(
                [sys.executable, "-m", "tests.physics.conformance_run", backend],
                capture_output=True,
                text=True,
                timeout=5 * TIMEOUT_S,
                cwd=ROOT,
            )
    except subprocess.TimeoutExpired as error:
        return {"broken": f"not done after {error.timeout} s: {error.stderr!r}"}
    if done.returncode != 0:
        return {"broken": done.stderr}
    found: dict[str, Any] = json.loads(done.stdout)
    others_had[backend] = others.cpus
    return found


@pytest.mark.parametrize("check", list(CHECKS))
@pytest.mark.parametrize("backend", list(backends()))
def test_a_link_is_what_was_asked(backend: str, check: str) -> None:
    found = results(backend)
    assert "broken" not in found, found["broken"]
    if "absent" in found:
        assert backend != "packet", f"the default back-end works wherever a sandbox does: {found['absent']}"
        pytest.skip(f"{backend} does not work here: {found['absent']}")
    result = found[check]
    if "skipped" in result:
        pytest.skip(f"{backend} cannot: {result['skipped']}")
    if not result["right"]:
        disagrees([json.dumps(each) for each in result["seen"]], [others_had[backend]])


def test_the_default_back_end_leaves_no_check_out() -> None:
    found = results("packet")
    assert list(found) == list(CHECKS), found
    assert [name for name, result in found.items() if "skipped" in result] == []


@pytest.fixture()
def nobodys_home() -> Iterator[Path]:
    """A home below the machine's own directory of temporary files, which other users may enter, too."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; without privilege this whole suite is that test")
    home = Path(tempfile.mkdtemp(prefix="howfar-nobody-"))
    shutil.chown(home, NOBODY, NOBODY)
    yield home
    shutil.rmtree(home)


def test_a_user_without_any_privilege_has_a_link(nobodys_home: Path) -> None:
    """The complete command works as uid 65534, without groups and capabilities."""
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--"]
    if subprocess.run([*as_nobody, "unshare", "--user", "--map-root-user", "--net", "true"]).returncode != 0:
        pytest.skip("NOT TESTED WITHOUT PRIVILEGE: this machine gives no user namespaces to ordinary users")
    command = _python_of(as_nobody)
    script = 'echo "$(id -u) $HOWFAR_HOST"'
    done = subprocess.run(
        [*command, "-m", "howfar.cli.lab", "--link", "region", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=nobodys_home,
        env={**os.environ, "HOME": str(nobodys_home), "XDG_CACHE_HOME": str(nobodys_home)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 10.77.0.2\n", "root of a namespace of its own, and of nothing else"
    measured = re.search(r"link 5gbit, RTT 10ms \(measured ([0-9.]+)ms at rest\)", done.stderr)
    assert measured, done.stderr
    assert float(measured[1]) >= 9.5, "packets crossed a link, and none of them too soon"


def _python_of(as_nobody: list[str]) -> list[str]:
    """The Python of the tests, unless it is in a home that other users may not enter; then the system's, with our packages."""
    packages = f"{Path(howfar.__file__).parents[1]}:{Path(pydantic.__file__).parents[1]}"
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*as_nobody, "env", f"PYTHONPATH={packages}", python]
        if subprocess.run([*command, "-c", "import howfar.cli.lab"], capture_output=True).returncode == 0:
            return command
    pytest.skip("NOT TESTED WITHOUT PRIVILEGE: no python here that an ordinary user may run")
