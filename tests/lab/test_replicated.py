"""Trials with replication on real servers: what an acknowledgement costs, what the receipt proves, what makes a trial void."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.servers.kinds import find_server
from howfar.store.records import CrashRecord, Measured, Trial, TrialStatus
from tests.lab.howfar_runs import known
from tests.lab.programs import answers
from tests.lab.replicated_scenario import RTT_NS
from tests.lab.undisturbed import skip_if_crowded, skip_if_disturbed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.thorough, pytest.mark.usefixtures("namespaces")]
RTT_S = RTT_NS / 1e9
CRASHING = 8
"""Connections of a load into which a fault is injected."""
_BOTH = pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
_LESS, _MORE = 0.96, 2.2
"""Bounds of a commit in round trips. It takes at least one, on a link that voids its trial if it is 3 % off. It takes a little over
two at most, even where commits wait for each other and on a busy machine."""


CASES: dict[str, dict[str, Any]] = {
    "alone": {"factors": {"replication": "none"}},
    "apart": {
        "factors": {"replication": "async", "threads": 4, "path": "tcp", "tls": "1.3"},
        "kind": "oltp_write_only",
    },
    "torn": {"factors": {"replication": "after-sync"}, "breaks": "killed"},
    "one": {"factors": {"replication": "after-sync"}},
    "four": {"factors": {"replication": "after-sync", "threads": 4}},
    "fallen": {"factors": {"replication": "after-commit"}, "timeout_ms": 200, "breaks": "cut"},
    "still": {"factors": {"replication": "after-sync"}, "breaks": "cut"},
    "hung": {"factors": {"replication": "after-sync"}, "breaks": "cut", "measure_ns": 4 * 10**9, "hangs_s": 0.5},
    "lost": {"factors": {"replication": "async", "threads": CRASHING, "fault": "cut"}},
    "kept": {"factors": {"replication": "after-sync", "threads": CRASHING, "fault": "kill-primary"}},
}
"""All run in one laboratory; the case after the one whose link dies has another link."""
Trials = dict[str, Trial]
ROUNDS = 3


def _measured(server: str, cache: Path, *names: str) -> Trials:
    program = str(find_server(server).path)
    found = answers("replicated_scenario", program, *(json.dumps(CASES[name]) for name in names), cache=cache)
    return dict(zip(names, map(Trial.model_validate, found), strict=True))


@pytest.fixture(scope="module")
def trials(name: str, cache: Path) -> Trials:
    return _measured(name, cache, *CASES)


def _good(trial: Trial) -> Measured:
    skip_if_disturbed(trial.void_reason)
    assert (trial.status, trial.void_reason) == (TrialStatus.OK, None)
    assert trial.measured is not None
    return trial.measured


def _void(trial: Trial) -> str:
    """The reason why a trial is void, which it must be."""
    skip_if_disturbed(trial.void_reason)
    assert trial.status is TrialStatus.VOID
    return str(trial.void_reason)


@_BOTH
def test_what_an_acknowledgement_costs(trials: Trials) -> None:
    single, several = _good(trials["one"]), _good(trials["four"])
    for measured, threads in ((single, 1), (several, 4)):
        commit_s = threads * measured.elapsed_ns / measured.transactions / 1e9
        assert commit_s >= _LESS * RTT_S
        assert measured.histograms[0].p50_ns >= _LESS * RTT_NS
    window = known(known(trials["one"].receipt.replication).window)
    assert known(window.mean_wait_us) >= _LESS * RTT_NS / 1e3, "nobody else commits"


@_BOTH
def test_an_acknowledgement_costs_no_more_than_it_must(trials: Trials, name: str, cache: Path) -> None:
    """Other programs can make any trial slower, differently each time; a commit that really costs too much does so each time."""
    names = ("alone", "one", "four")
    tried = [trials[each] for each in names]
    for _ in range(ROUNDS - 1):
        if all(trial.void_reason is None for trial in tried) and _costs_no_more(*tried):
            break
        tried = list(_measured(name, cache, *names).values())
    for trial in tried:
        _good(trial)
    with skip_if_crowded(*tried):
        assert _costs_no_more(*tried), [_good(trial).transactions for trial in tried]


def _costs_no_more(alone: Trial, one: Trial, four: Trial) -> bool:
    """Whether a commit costs little more than its round trip, four connections commit concurrently, and no replica costs less."""
    counts = []
    for trial, threads in ((alone, 0), (one, 1), (four, 4)):
        assert trial.measured is not None
        counts.append(trial.measured.transactions)
        if threads * trial.measured.elapsed_ns / counts[-1] / 1e9 > _MORE * RTT_S:
            return False
    at_once, single, several = counts
    return several > 1.5 * single and at_once > 2 * single


@_BOTH
@pytest.mark.parametrize("case", ["one", "four"])
def test_what_the_receipt_proves(trials: Trials, case: str) -> None:
    _good(trials[case])
    _proves(trials[case])


@_BOTH
def test_without_acknowledgements_nobody_waits(trials: Trials) -> None:
    _replicates_without_waiting(trials["apart"])


@_BOTH
def test_a_server_alone_lags_behind_nobody(trials: Trials) -> None:
    _good(trials["alone"])
    window = trials["alone"].window
    assert window is not None and window.lag == ()


@_BOTH
def test_what_breaks_voids_the_trial(trials: Trials) -> None:
    assert "link died" in _void(trials["torn"])
    fallen = _void(trials["fallen"])
    assert "fell back to asynchronous replication" in fallen
    assert "commits of the window were not acknowledged" in fallen
    assert "the link to client was cut for a while" in _void(trials["still"]), "though no commit went without"
    assert "no replica acknowledged any" in _void(trials["hung"])


@_BOTH
def test_what_a_crash_loses(trials: Trials) -> None:
    _loses(trials["lost"])


@_BOTH
def test_what_a_crash_does_not_lose(trials: Trials) -> None:
    _keeps(trials["kept"])


def _proves(trial: Trial) -> None:
    found = known(trial.receipt.replication)
    window = known(found.window)
    before, after = (known(known(snapshot).primary) for snapshot in (window.before, window.after))
    assert (after.status, after.clients, after.no_tx, after.wait_point) == (True, 1, 0, "AFTER_SYNC")
    assert known(after.yes_tx) > known(before.yes_tx)
    assert set(found.durability) == {"primary", "replica1"}
    assert known(found.rtt_at_rest_ns["replica1"]) >= _LESS * RTT_NS
    assert known(found.links["replica1"].counters).to_client.packets > 0
    assert {"replica", "replica_link"} <= {cpu.role for cpu in known(trial.measured).cpu}


def _replicates_without_waiting(trial: Trial) -> None:
    """Clients' sessions are encrypted, replication is not; all samples of the lag are within the window."""
    measured, requested = _good(trial), known(trial.receipt.replication).requested
    assert measured.transactions / measured.elapsed_ns * 1e9 > 2 * 4 / RTT_S / 4
    assert (known(trial.receipt.session).tls_version, requested["tls"]) == ("TLSv1.3", False)
    assert trial.window is not None
    assert trial.window.lag and all(0 <= lag.at_ns <= trial.window.length_ns for lag in trial.window.lag)
    seen = [lag.heartbeat_ns for lag in trial.window.lag if lag.heartbeat_ns is not None]
    assert min(seen) >= _LESS * RTT_NS / 2, "no news is faster than its way"
    assert max(lag.behind for lag in trial.window.lag) > 0


def _crash(trial: Trial) -> CrashRecord:
    """The crash record of a valid trial; also checks the trial's receipt."""
    assert _good(trial).transactions > 0
    found, window = known(trial.receipt.replication), known(known(trial.receipt.replication).window)
    assert known(trial.receipt.session).address_family == "unix"
    assert known(known(trial.receipt.server).session_view).host
    assert found.links["replica1"].rest_rtt_ns == known(found.rtt_at_rest_ns["replica1"]) >= _LESS * RTT_NS
    assert window.before is not None and window.after is not None
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
    crossed = known(known(trial.receipt.replication).links["replica1"].counters)
    assert crossed.to_client.drops.outage + crossed.to_server.drops.outage > 0


def _keeps(trial: Trial) -> None:
    seen = _crash(trial)
    assert (seen.fault, seen.lost, seen.lost_keys) == ("kill-primary", 0, ())
