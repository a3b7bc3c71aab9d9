"""Trials with replication: what an acknowledgement costs, what the receipt proves, and what voids a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from howfar.experiments.replication.records import CrashRecord, replica_lag
from howfar.lab.servers.kinds import find_server
from howfar.store.records import Measured, Trial, TrialStatus
from tests.lab.howfar_runs import require
from tests.lab.replicated_scenario import RTT_NS
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import skip_if_busy, skip_if_disturbed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.thorough, pytest.mark.usefixtures("namespaces")]
RTT_S = RTT_NS / 1e9
CRASHING = 8
"""Connections of a load into which a fault is injected."""
_BOTH = pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
MIN_ROUND_TRIPS, MAX_ROUND_TRIPS = 0.96, 2.2
"""Bounds of a commit's duration in RTTs. A link that deviates by 3 % voids its trial. Commits that wait for each other, and a busy
machine, add at most a little over one."""
CASES: dict[str, dict[str, Any]] = {
    "alone": {"factors": {"replication": "none"}},
    "async": {
        "factors": {"replication": "async", "threads": 4, "path": "tcp", "tls": "1.3"},
        "kind": "oltp_write_only",
    },
    "link dies": {"factors": {"replication": "after-sync"}, "link_fault": "killed"},
    "one": {"factors": {"replication": "after-sync"}},
    "four": {"factors": {"replication": "after-sync", "threads": 4}},
    "fallback": {"factors": {"replication": "after-commit"}, "timeout_ms": 200, "link_fault": "cut"},
    "link cut": {"factors": {"replication": "after-sync"}, "link_fault": "cut"},
    "hang": {
        "factors": {"replication": "after-sync"},
        "link_fault": "cut",
        "measure_ns": 4 * 10**9,
        "hang_timeout_s": 0.5,
    },
    "lost": {"factors": {"replication": "async", "threads": CRASHING, "fault": "cut"}},
    "kept": {"factors": {"replication": "after-sync", "threads": CRASHING, "fault": "kill-primary"}},
}
"""All run in one laboratory. After the case whose link dies, the next one gets a new link."""
Trials = dict[str, Trial]
ROUNDS = 3


def _measured(server: str, cache: Path, *names: str) -> Trials:
    program = str(find_server(server).path)
    found = run_scenario("replicated_scenario", program, *(json.dumps(CASES[name]) for name in names), cache=cache)
    return dict(zip(names, map(Trial.model_validate, found), strict=True))


@pytest.fixture(scope="module")
def trials(name: str, cache: Path) -> Trials:
    return _measured(name, cache, *CASES)


def _check_good(trial: Trial) -> Measured:
    skip_if_disturbed(trial.void_reason)
    assert (trial.status, trial.void_reason) == (TrialStatus.OK, None)
    assert trial.measured is not None
    return trial.measured


def _void_reason(trial: Trial) -> str:
    """The reason of a void trial."""
    skip_if_disturbed(trial.void_reason)
    assert trial.status is TrialStatus.VOID
    return str(trial.void_reason)


@_BOTH
def test_an_acknowledgement_takes_at_least_a_round_trip(trials: Trials) -> None:
    single, several = _check_good(trials["one"]), _check_good(trials["four"])
    for measured, threads in ((single, 1), (several, 4)):
        commit_s = threads * measured.elapsed_ns / measured.transactions / 1e9
        assert commit_s >= MIN_ROUND_TRIPS * RTT_S
        assert measured.histograms[0].p50_ns >= MIN_ROUND_TRIPS * RTT_NS
    window = require(require(trials["one"].receipt.replication).window)
    assert require(window.mean_wait_us) >= MIN_ROUND_TRIPS * RTT_NS / 1e3, "no other connection commits"


@_BOTH
def test_an_acknowledgement_takes_hardly_more_than_a_round_trip(trials: Trials, name: str, cache: Path) -> None:
    """Other programs can slow down any trial, differently each time; a commit that costs too much does so each time."""
    names = ("alone", "one", "four")
    tried = [trials[each] for each in names]
    for _ in range(ROUNDS - 1):
        if all(trial.void_reason is None for trial in tried) and _costs_no_more(*tried):
            break
        tried = list(_measured(name, cache, *names).values())
    for trial in tried:
        _check_good(trial)
    with skip_if_busy(*tried):
        assert _costs_no_more(*tried), [_check_good(trial).transactions for trial in tried]


def _costs_no_more(alone: Trial, one: Trial, four: Trial) -> bool:
    """Whether a commit takes hardly more than its round trip, four connections commit concurrently, and a commit without a replica is
    faster."""
    counts = []
    for trial, threads in ((alone, 0), (one, 1), (four, 4)):
        assert trial.measured is not None
        counts.append(trial.measured.transactions)
        if threads * trial.measured.elapsed_ns / counts[-1] / 1e9 > MAX_ROUND_TRIPS * RTT_S:
            return False
    alone_count, single, several = counts
    return several > 1.5 * single and alone_count > 2 * single


@_BOTH
@pytest.mark.parametrize("case", ["one", "four"])
def test_the_receipt_proves_replication(trials: Trials, case: str) -> None:
    _check_good(trials[case])
    _check_receipt(trials[case])


@_BOTH
def test_asynchronous_commits_do_not_wait(trials: Trials) -> None:
    _check_asynchronous(trials["async"])


@_BOTH
def test_a_server_without_replica_has_no_lag(trials: Trials) -> None:
    _check_good(trials["alone"])
    window = trials["alone"].window
    assert window is not None and window.lag == ()


@_BOTH
def test_a_broken_link_voids_the_trial(trials: Trials) -> None:
    assert "link died" in _void_reason(trials["link dies"])
    fallback = _void_reason(trials["fallback"])
    assert "fell back to asynchronous replication" in fallback
    assert "commits of the window were not acknowledged" in fallback
    assert "the link to client was interrupted" in _void_reason(trials["link cut"]), (
        "the cut is found without a lost acknowledgement"
    )
    assert "no replica acknowledged any" in _void_reason(trials["hang"])


@_BOTH
def test_a_crash_of_an_asynchronous_primary_loses_commits(trials: Trials) -> None:
    _check_loss(trials["lost"])


@_BOTH
def test_a_crash_of_a_semi_synchronous_primary_loses_no_commit(trials: Trials) -> None:
    _check_no_loss(trials["kept"])


def _check_receipt(trial: Trial) -> None:
    found = require(trial.receipt.replication)
    window = require(found.window)
    before, after = (require(require(snapshot).primary) for snapshot in (window.before, window.after))
    assert (after.status, after.clients, after.no_tx, after.wait_point) == (True, 1, 0, "AFTER_SYNC")
    assert require(after.yes_tx) > require(before.yes_tx)
    assert set(found.durability) == {"primary", "replica1"}
    assert require(found.rtt_at_rest_ns["replica1"]) >= MIN_ROUND_TRIPS * RTT_NS
    assert require(found.links["replica1"].counters).to_client.packets > 0
    assert {"replica", "replica_link"} <= {cpu.role for cpu in require(trial.measured).cpu}


def _check_asynchronous(trial: Trial) -> None:
    """Clients' sessions are encrypted and replication is not; all lag samples are within the window."""
    measured, requested = _check_good(trial), require(trial.receipt.replication).requested
    assert measured.transactions / measured.elapsed_ns * 1e9 > 2 * 4 / RTT_S / 4
    assert (require(trial.receipt.session).tls_version, requested.tls) == ("TLSv1.3", False)
    assert trial.window is not None
    samples = replica_lag(trial.window)
    assert samples and all(0 <= lag.at_ns <= trial.window.length_ns for lag in samples)
    seen = [lag.heartbeat_ns for lag in samples if lag.heartbeat_ns is not None]
    assert min(seen) >= MIN_ROUND_TRIPS * RTT_NS / 2, "a heartbeat takes at least half an RTT"
    assert max(lag.behind for lag in samples) > 0


def _crash(trial: Trial) -> CrashRecord:
    """The crash record of a valid trial; also checks the trial's receipt."""
    assert _check_good(trial).transactions > 0
    found, window = require(trial.receipt.replication), require(require(trial.receipt.replication).window)
    assert require(trial.receipt.session).address_family == "unix"
    assert require(require(trial.receipt.server).session_view).host
    assert found.links["replica1"].rest_rtt_ns == require(found.rtt_at_rest_ns["replica1"]) >= MIN_ROUND_TRIPS * RTT_NS
    assert window.before is not None and window.after is not None
    assert isinstance(trial.fault, CrashRecord)
    assert trial.fault.acknowledged > 0 and trial.fault.replica_rtt_ns >= MIN_ROUND_TRIPS * RTT_NS
    assert trial.fault.unknown <= CRASHING and trial.fault.applied_unknown <= trial.fault.unknown
    assert trial.fault.promoted == "replica1"
    return trial.fault


def _check_loss(trial: Trial) -> None:
    seen = _crash(trial)
    assert seen.lost >= seen.lost_after > 0, "a cut-off primary acknowledges more commits"
    assert seen.in_force_ns is not None and seen.lost_in_force is not None
    assert seen.fault_ns < seen.in_force_ns <= seen.dead_ns - 10**9
    assert 0 < seen.lost_in_force <= seen.lost_after
    crossed = require(require(trial.receipt.replication).links["replica1"].counters)
    assert crossed.to_client.drops.outage + crossed.to_server.drops.outage > 0


def _check_no_loss(trial: Trial) -> None:
    seen = _crash(trial)
    assert (seen.fault, seen.lost, seen.lost_keys) == ("kill-primary", 0, ())
