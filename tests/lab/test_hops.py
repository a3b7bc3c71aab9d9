"""Programs on the path, real ones: receipts prove that they carried the load, their CPU is counted, and their death voids a trial."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from howfar.store.records import StopReason, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import BLOCKS, PATHS, TINY, Session, came_through
from tests.lab.sandboxes import PATIENCE_S, wait_until
from tests.lab.undisturbed import lasting

pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    pytest.mark.skipif(
        shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin") is None,
        reason="haproxy is not installed (./setup --tests brings it)",
    ),
]
_HOPS = {"haproxy": ("client_side",), "sidecar": ("client_side", "server_side")}
_SEEN_FROM = {"haproxy": "10.77.0.1", "sidecar": "127.0.0.1"}
CONNECTIONS = 2
"""Of the scenario."""


@pytest.fixture(scope="module")
def seen(cache: Path) -> list[dict[str, Any]]:
    request = json.dumps({"tables": 1, "table_size": 1000, "connections": 8})
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.scenario", request, "remote", *_HOPS],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["trials"]
    return found


@pytest.mark.parametrize("path", list(_HOPS))
def test_its_own_counters_prove_that_it_carried_the_load(seen: list[dict[str, Any]], path: str) -> None:
    for trial in (each for each in seen if each["path"] == path):
        assert trial["transactions"] > 0 and lasting(trial["violations"]) == []
        carried = trial["receipt"]["forwarder"]["carried"]
        assert tuple(sorted(carried)) == _HOPS[path]
        counters = trial["receipt"]["server"]["counters"]
        for hop in carried.values():
            assert hop["connections_most"] >= CONNECTIONS
            # The server counts the laboratory's own session too, and no headers of packets it compresses: none here.
            assert hop["bytes_to_server"] == pytest.approx(counters["Bytes_received"], rel=0.05)
            assert hop["bytes_to_client"] == pytest.approx(counters["Bytes_sent"], rel=0.05)


@pytest.mark.parametrize("path", list(_HOPS))
def test_the_server_sees_the_hop_and_its_cpu_is_counted(seen: list[dict[str, Any]], path: str) -> None:
    for trial in (each for each in seen if each["path"] == path):
        assert trial["receipt"]["server"]["session_view"]["host"].partition(":")[0] == _SEEN_FROM[path]
        assert set(trial["roles"]) == {"client", "server", "forwarder", "link"}
        assert trial["receipt"]["link"]["counters"]["to_server"]["segments"] > 0


def test_two_hops_take_more_cpu_than_one(seen: list[dict[str, Any]]) -> None:
    def per_query(path: str) -> float:
        return min(float(each["cpu"]["forwarder"] / each["transactions"]) for each in seen if each["path"] == path)

    assert per_query("sidecar") > 1.3 * per_query("haproxy")


def test_a_hop_that_is_killed_voids_its_trial_and_the_run_goes_on(tmp_path: Path, cache: Path) -> None:
    plan = TINY.replace(PATHS, '["remote", "haproxy"]').replace('path = "socket"', 'path = "remote"')
    (tmp_path / "hops.toml").write_text(plan.replace(f"blocks = {BLOCKS}", "blocks = 3"))
    session = Session(["run", "hops.toml", "--out", "a.howfar"], cache, tmp_path)
    try:
        wait_until(partial(_under_way, session), "a trial")
        victim = session.await_part("haproxy -db", PATIENCE_S)
        assert victim is not None, session.say()
        os.kill(victim, signal.SIGKILL)
        code = session.code()
        wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
    finally:
        session.end()
    came_through(code, session.say())
    run = read_run(tmp_path / "a.howfar")
    assert run.stop is StopReason.BLOCKS
    reasons = [trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID]
    assert all(reasons) and len(lasting(reasons)) <= 1, reasons


def _under_way(session: Session) -> bool:
    return bool(session.reported()) or session.process.poll() is not None
