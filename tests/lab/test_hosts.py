"""Hosts of one's own: namespaces with an sshd each, joined, shown, and let go without a trace."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sandboxes import PATIENCE_S

pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (./setup --tests brings it)"
    ),
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="sshd is not installed (./setup --tests brings it)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="an sshd that lets somebody in needs root"),
]


def among_hosts(
    cache: Path, directory: Path, script: str, hosts: tuple[str, ...] = ("a", "b"), **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a shell script where the file of hosts is `hosts.toml`."""
    request = json.dumps({"directory": str(directory), "hosts": hosts, **more})
    bin_directory = Path(sys.executable).parent
    return subprocess.run(
        [sys.executable, "-m", "tests.lab.hosts_here", request, "bash", "-ec", script],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(cache),
            "PATH": f"{bin_directory}:{os.environ['PATH']}:/usr/sbin",
        },
    )


_LIFE = """
howfar hosts up
howfar hosts show --json >show.json
ps -eo args >ps.txt
ls /dev/shm >shm.txt
howfar hosts down
sleep 0.5
ps -eo stat,args >after.txt
! howfar hosts down
"""


@pytest.fixture(scope="module")
def lived(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hosts that were up, seen, and let go."""
    directory = tmp_path_factory.mktemp("h")
    done = among_hosts(cache, directory, _LIFE)
    assert done.returncode == 0, done.stderr
    assert "are not up" in done.stderr.splitlines()[-2]
    return directory


def test_hosts_are_shown_with_clocks_that_agree_and_the_distance_between_them(lived: Path) -> None:
    shown = json.loads((lived / "show.json").read_text())
    assert set(shown["hosts"]) == {"a", "b"}
    for host in shown["hosts"].values():
        assert abs(host["clock"]["offset_ns"]) <= host["clock"]["bound_ns"], "both are one kernel"
    (apart,) = shown["distances"]
    assert (apart["from"], apart["to"]) == ("a", "b") and 0 < apart["min_ns"] <= apart["p50_ns"]


def test_what_runs_shows_no_token_and_leaves_no_file_where_others_see_it(lived: Path) -> None:
    running = (lived / "ps.txt").read_text()
    assert running.count("raylet/raylet") == 3, "two hosts and the head"
    assert "token" not in running.lower().replace("auth_token_path", "")
    assert "ray" not in (lived / "shm.txt").read_text()


def test_nothing_runs_any_more_when_they_are_down(lived: Path) -> None:
    alive = [line for line in (lived / "after.txt").read_text().splitlines() if not line.startswith("Z")]
    assert not [line for line in alive if "ray" in line or "howfar.fleet" in line]
