"""Pairs broken under load lose nothing that was acknowledged, and a loss would be noticed; a replica leaves and returns.

`test_replicated.py` covers what asynchronous replication loses, as trials.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.servers.kinds import find_server
from howfar.store.records import CrashRecord, FallbackRecord
from howfar.store.run_file import read_run
from tests.lab.fault_scenario import PLANTED, THREADS
from tests.lab.howfar_runs import Session, all_namespaces
from tests.lab.programs import answers
from tests.lab.sandboxes import TIMEOUT_S, state_of_machine, wait_until
from tests.lab.undisturbed import lasting

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
RTT_NS = 20_000_000
SECOND = 1_000_000_000
AFTER_SYNC = {"wait_point": "AFTER_SYNC", "durability": "off"}


def _broken(server: str, cache: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Each case's answer, one pair after the other over the same link."""
    program = str(find_server(server).path)  # private installs are in the cache that these tests do not share
    results = answers("fault_scenario", program, str(RTT_NS), *map(json.dumps, cases), cache=cache)
    assert len(results) == len(cases)
    return results


def _crash(settings: dict[str, Any], fault: str, **more: Any) -> dict[str, Any]:
    return {"settings": settings, "fault": fault, "after_ns": SECOND // 2, **more}


@pytest.mark.parametrize("name", ["mariadb", pytest.param("mysql", marks=pytest.mark.thorough)], indirect=True)
def test_what_a_crash_loses(name: str, cache: Path) -> None:
    leaves = {
        "settings": AFTER_SYNC,
        "fault": "replica-leaves",
        "after_ns": SECOND // 2,
        "timeout_ms": 1000,
        "away_ns": SECOND,
        "measure_ns": 8 * SECOND,
        "threads": 2,
    }
    sync, lied, gone = _broken(
        name, cache, _crash(AFTER_SYNC, "cut"), _crash(AFTER_SYNC, "cut-to-primary", planted=True), leaves
    )
    assert "record" in sync and "record" in lied and "record" in gone, (sync, lied, gone)
    if gone["record"]["back_ns"] is None:  # on a busy machine the replica returns too late for this short window
        (gone,) = _broken(name, cache, leaves | {"measure_ns": 40 * SECOND})
    kept = CrashRecord(**sync["record"])
    assert (kept.lost, kept.lost_keys) == (0, ())
    assert kept.acknowledged > 0 and kept.unknown <= THREADS
    assert kept.applied_unknown <= kept.unknown
    assert kept.replica_rtt_ns >= 0.9 * RTT_NS and kept.promoted == "replica1"
    planted = CrashRecord(**lied["record"])
    assert (planted.lost, planted.lost_keys) == (1, (PLANTED,)), "the only one that was lost is the lie"
    _check_fallback(FallbackRecord(**gone["record"]))


def _check_fallback(seen: FallbackRecord) -> None:
    assert seen.timeout_ms == 1000
    assert seen.stall_ns >= 0.9 * SECOND, "nobody was told anything until the timeout"
    assert seen.fell_ns is not None and seen.left_ns + 0.9 * SECOND < seen.fell_ns < seen.returned_ns
    assert seen.back_ns is not None and seen.back_ns > seen.returned_ns
    assert 0 < seen.unprotected <= seen.acknowledged
    assert seen.unacknowledged > 0, "by the server's own account too"
    assert any("imeout" in line for line in seen.log_lines), seen.log_lines
    assert max(sample.behind or 0 for sample in seen.samples) > 0
    assert sum(count for _, count in seen.commits) == seen.acknowledged


TINY = """\
name = "tiny"
question = "What is left of a crash that is itself killed?"
[workload]
kind = "single_row_inserts"
[data]
tables = 1
table_size = 1000
[factors]
path = "socket"
threads = 4
replication = "after-sync"
replica_rtt = "5ms"
fault = "cut"
[baseline]
path = "socket"
[timing]
warmup = "100ms"
measure = "1s"
min_blocks = 2
max_blocks = 2
"""


@pytest.mark.usefixtures("mariadb")
def test_a_crash_that_is_killed_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    before = state_of_machine()
    session = Session(["run", "tiny.toml", "--out", "r.howfar"], cache, tmp_path)
    try:
        assert session.await_part("howfar-engine watch", TIMEOUT_S) is not None, session.say()
        namespaces = session.namespaces()
        os.kill(session.process.pid, signal.SIGKILL)
        wait_until(lambda: not session.marked.pids(), "the end of what it had started")
    finally:
        session.end()
    wait_until(lambda: not namespaces & all_namespaces(), "the end of the namespaces")
    assert state_of_machine() == before
    assert not any((tmp_path / "tmp").iterdir())
    run = read_run(tmp_path / "r.howfar")
    assert run.stop is None and lasting(str(trial.void_reason) for trial in run.trials) == [], "half a crash is none"
