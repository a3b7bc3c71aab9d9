"""Faults in a replicated pair under load: acknowledged commits survive, a planted loss is found, and a replica leaves and returns.

`test_replicated.py` covers the losses of asynchronous replication.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from howfar.experiments.replication.records import CrashRecord, FallbackRecord
from howfar.lab.servers.kinds import find_server
from howfar.store.run_file import read_run
from tests.lab.fault_scenario import PLANTED, THREADS
from tests.lab.howfar_runs import ONE_TABLE, Session, all_namespaces, plan_toml, timing
from tests.lab.sandboxes import TIMEOUT_S, machine_state, wait_until
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import unexcused

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
RTT_NS = 20_000_000
SECOND = 1_000_000_000
AFTER_SYNC = {"wait_point": "AFTER_SYNC", "durability": "off"}


def _run_cases(server: str, cache: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each case with a new pair over the same link; returns what each reports."""
    program = str(find_server(server).path)  # the tests' cache has no private installs
    results = run_scenario("fault_scenario", program, str(RTT_NS), *map(json.dumps, cases), cache=cache)
    assert len(results) == len(cases)
    return results


def _crash_case(settings: dict[str, Any], fault: str, **more: Any) -> dict[str, Any]:
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
    sync, planted, gone = _run_cases(
        name, cache, _crash_case(AFTER_SYNC, "cut"), _crash_case(AFTER_SYNC, "cut-to-primary", planted=True), leaves
    )
    assert "record" in sync and "record" in planted and "record" in gone, (sync, planted, gone)
    if gone["record"]["back_ns"] is None:  # on a busy machine the replica returns too late for this short window
        (gone,) = _run_cases(name, cache, leaves | {"measure_ns": 40 * SECOND})
    kept = CrashRecord(**sync["record"])
    assert (kept.lost, kept.lost_keys) == (0, ())
    assert kept.acknowledged > 0 and kept.unknown <= THREADS
    assert kept.applied_unknown <= kept.unknown
    assert kept.replica_rtt_ns >= 0.9 * RTT_NS and kept.promoted == "replica1"
    false_entry = CrashRecord(**planted["record"])
    assert (false_entry.lost, false_entry.lost_keys) == (1, (PLANTED,)), "only the planted commit is reported as lost"
    _check_fallback(FallbackRecord(**gone["record"]))


def _check_fallback(seen: FallbackRecord) -> None:
    assert seen.timeout_ms == 1000
    assert seen.stall_ns >= 0.9 * SECOND, "no commit is acknowledged before the timeout"
    assert seen.fell_ns is not None and seen.left_ns + 0.9 * SECOND < seen.fell_ns < seen.returned_ns
    assert seen.back_ns is not None and seen.back_ns > seen.returned_ns
    assert 0 < seen.unprotected <= seen.acknowledged
    assert seen.unacknowledged > 0, "the server counts them, too"
    assert any("imeout" in line for line in seen.log_lines), seen.log_lines
    assert max(sample.behind or 0 for sample in seen.samples) > 0
    assert sum(count for _, count in seen.commits) == seen.acknowledged


PLAN = plan_toml(
    workload={"kind": "single_row_inserts"},
    data=ONE_TABLE,
    factors={"path": "socket", "threads": 4, "replication": "after-sync", "replica_rtt": "5ms", "fault": "cut"},
    baseline={"path": "socket"},
    timing=timing(2, measure="1s", controls=True),
)


@pytest.mark.usefixtures("mariadb")
def test_a_killed_crash_trial_leaves_no_process_and_no_file(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(PLAN)
    before = machine_state()
    with Session(["run", "tiny.toml", "--out", "r.howfar"], cache, tmp_path) as session:
        assert session.wait_for_pid("howfar-engine watch", TIMEOUT_S) is not None, session.output()
        namespaces = session.namespaces()
        os.kill(session.process.pid, signal.SIGKILL)
        session.marked.wait_until_gone()
    wait_until(lambda: not namespaces & all_namespaces(), "the end of the namespaces")
    assert machine_state() == before
    assert not any((tmp_path / "tmp").iterdir())
    run = read_run(tmp_path / "r.howfar")
    assert run.stop is None
    assert unexcused(str(trial.void_reason) for trial in run.trials) == [], "an incomplete crash trial is not stored"
