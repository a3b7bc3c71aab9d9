"""One suite for every link back-end and for a bare veth pair: a link is as requested, or reports that it cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.link.backends import backends
from tests.lab.conftest import namespaces, nobodys_home  # noqa: F401 - fixtures
from tests.lab.sandboxes import TIMEOUT_S, cache_variable, in_sandbox, python_of_nobody
from tests.lab.undisturbed import OtherProgramsCpu, fail_or_skip
from tests.physics.conformance_checks import CHECKS

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
ROOT = Path(__file__).parents[2]
other_programs_cpus: dict[str, float] = {}
"""CPUs that other programs used while a back-end's checks ran, by back-end."""


@cache
def results(backend: str) -> dict[str, Any]:
    """The results of all checks of a back-end, from one run. A run that fails or hangs is not repeated."""
    try:
        with OtherProgramsCpu() as others:
            done = subprocess.run(
                in_sandbox(sys.executable, "-m", "tests.physics.conformance_run", backend),
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
    other_programs_cpus[backend] = others.cpus
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
        fail_or_skip([json.dumps(each) for each in result["seen"]], [other_programs_cpus[backend]])


def test_the_default_back_end_leaves_no_check_out() -> None:
    found = results("packet")
    assert list(found) == list(CHECKS), found
    assert [name for name, result in found.items() if "skipped" in result] == []


def test_a_user_without_any_privilege_has_a_link(nobodys_home: Path) -> None:  # noqa: F811 - the fixture
    """The complete command works as uid 65534, without groups and capabilities."""
    python = python_of_nobody("--inh-caps=-all")
    unshare = "import os; os.execvp('unshare', ['unshare', '--user', '--map-root-user', '--net', 'true'])"
    if subprocess.run([*python, "-c", unshare]).returncode != 0:
        pytest.skip("NOT TESTED WITHOUT PRIVILEGE: this machine gives no user namespaces to ordinary users")
    script = 'echo "$(id -u) $HOWFAR_HOST"'
    done = subprocess.run(
        [*python, "-m", "howfar.cli.lab", "--link", "region", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=nobodys_home,
        env={**os.environ, "HOME": str(nobodys_home), **cache_variable(nobodys_home)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 10.77.0.2\n", "the user is root only inside its namespace"
    measured = re.search(r"link 5gbit, RTT 10ms \(measured ([0-9.]+)ms unloaded\)", done.stderr)
    assert measured, done.stderr
    assert float(measured[1]) >= 9.5, "no packet crossed the link too soon"
