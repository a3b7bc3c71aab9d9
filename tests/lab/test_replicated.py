"""Trials with replication on real servers: what an acknowledgement costs, what the receipt proves, what makes a trial void."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.servers.kinds import find_server
from howfar.results.records import CrashRecord, Measured, Trial, TrialStatus
from tests.lab.replicated_scenario import RTT_NS
from tests.lab.sandboxes import PATIENCE_S

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
RTT_S = RTT_NS / 1e9
CRASHING = 8
"""Connections of a load that something is done to."""
_LESS, _MORE = 0.99, 2.2
"""A commit takes a round trip at least; where commits wait for each other, and on a machine that is full, less than two and a bit."""


def _trials(server: str, cache: Path, *cases: dict[str, Any]) -> list[Trial]:
    program = str(find_server(server).path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.replicated_scenario", program, *map(json.dumps, cases)],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    trials = [Trial.model_validate_json(line) for line in done.stdout.splitlines()]
    assert len(trials) == len(cases)
    return trials


def _good(trial: Trial) -> Measured:
    assert (trial.status, trial.void_reason) == (TrialStatus.OK, None)
    assert trial.measured is not None
    return trial.measured


@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_what_an_acknowledgement_costs_and_what_is_proven(name: str, cache: Path) -> None:
    alone, apart, torn, one, four, fallen, still, hung, lost, kept = _trials(
        name,
        cache,
        {"factors": {"replication": "none"}},
        {
            "factors": {"replication": "async", "threads": 4, "path": "tcp", "tls": "1.3"},
            "kind": "oltp_write_only",
        },
        {"factors": {"replication": "after-sync"}, "breaks": "killed"},
        {"factors": {"replication": "after-sync"}},
        {"factors": {"replication": "after-sync", "threads": 4}},
        {"factors": {"replication": "after-commit"}, "timeout_ms": 200, "breaks": "cut"},
        {"factors": {"replication": "after-sync"}, "breaks": "cut"},
        {"factors": {"replication": "after-sync"}, "breaks": "cut", "measure_ns": 4 * 10**9, "hangs_s": 0.5},
        {"factors": {"replication": "async", "threads": CRASHING, "fault": "cut"}},
        {"factors": {"replication": "after-sync", "threads": CRASHING, "fault": "kill-primary"}},
    )
    single, several = _good(one), _good(four)
    for measured, threads in ((single, 1), (several, 4)):
        commit_s = threads * measured.elapsed_ns / measured.transactions / 1e9
        assert _LESS * RTT_S <= commit_s <= _MORE * RTT_S
        assert measured.histograms[0].p50_ns >= _LESS * RTT_NS
    assert several.transactions > 1.5 * single.transactions, "commits share their wait"
    assert _good(alone).transactions > 2 * single.transactions
    assert alone.window is not None and alone.window.lag == ()
    _proves(one, four)
    assert one.receipt["replication"]["window"]["mean_wait_us"] >= _LESS * RTT_NS / 1e3, "nobody else commits"
    _replicates_without_waiting(apart)
    assert torn.status is fallen.status is still.status is hung.status is TrialStatus.VOID
    assert "link died" in str(torn.void_reason), "and those after it have another"
    assert "fell back to asynchronous replication" in str(fallen.void_reason)
    assert "commits of the window were not acknowledged" in str(fallen.void_reason)
    assert "the link to client was cut for a while" in str(still.void_reason), "though no commit went without"
    assert "no replica acknowledged any" in str(hung.void_reason)
    _loses(lost)
    _keeps(kept)


def _proves(*trials: Trial) -> None:
    for trial in trials:
        found = trial.receipt["replication"]
        before, after = found["window"]["before"]["primary"], found["window"]["after"]["primary"]
        assert (after["status"], after["clients"], after["no_tx"], after["wait_point"]) == (True, 1, 0, "AFTER_SYNC")
        assert after["yes_tx"] > before["yes_tx"]
        assert set(found["durability"]) == {"primary", "replica1"}
        assert found["rtt_at_rest_ns"]["replica1"] >= _LESS * RTT_NS
        assert found["wires"]["replica1"]["counters"]["to_client"]["packets"] > 0
        assert trial.measured is not None
        assert {"replica", "replica_link"} <= {cpu.role for cpu in trial.measured.cpu}


def _replicates_without_waiting(trial: Trial) -> None:
    """Clients encrypted, replication not; each look at the lag is of the window."""
    measured, found = _good(trial), trial.receipt["replication"]
    assert measured.transactions / measured.elapsed_ns * 1e9 > 2 * 4 / RTT_S / 4
    assert (trial.receipt["session"]["tls_version"], found["asked"]["tls"]) == ("TLSv1.3", False)
    assert trial.window is not None
    assert trial.window.lag and all(0 <= lag.at_ns <= trial.window.length_ns for lag in trial.window.lag)
    seen = [lag.heartbeat_ns for lag in trial.window.lag if lag.heartbeat_ns is not None]
    assert min(seen) >= RTT_NS / 2, "no news is faster than its way"
    assert max(lag.behind for lag in trial.window.lag) > 0


def _crash(trial: Trial) -> CrashRecord:
    """Of a counted trial, with what it was proven by."""
    assert _good(trial).transactions > 0
    found = trial.receipt["replication"]
    assert trial.receipt["session"]["address_family"] == "unix"
    assert trial.receipt["server"]["session_view"]["host"]
    assert found["wires"]["replica1"]["rtt_at_rest_ns"]["p50"] == found["rtt_at_rest_ns"]["replica1"] >= _LESS * RTT_NS
    assert {"before", "after"} <= set(found["window"])
    assert isinstance(trial.fault, CrashRecord)
    assert trial.fault.acknowledged > 0 and trial.fault.replica_rtt_ns >= _LESS * RTT_NS
    assert trial.fault.unknown <= CRASHING and trial.fault.applied_unknown <= trial.fault.unknown
    assert trial.fault.promoted == "replica1"
    return trial.fault


def _loses(trial: Trial) -> None:
    seen = _crash(trial)
    assert seen.lost >= seen.lost_after > 0, "who is cut off goes on promising"
    assert seen.in_force_ns is not None and seen.lost_in_force is not None
    assert seen.fault_ns < seen.in_force_ns <= seen.dead_ns - 10**9
    assert 0 < seen.lost_in_force <= seen.lost_after
    crossed = trial.receipt["replication"]["wires"]["replica1"]["counters"]
    assert crossed["to_client"]["drops"]["outage"] + crossed["to_server"]["drops"]["outage"] > 0


def _keeps(trial: Trial) -> None:
    seen = _crash(trial)
    assert (seen.fault, seen.lost, seen.lost_keys) == ("kill-primary", 0, ())
