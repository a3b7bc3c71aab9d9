"""Real primaries and replicas over slow links and links that are cut and restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.cache import file_system_of
from howfar.lab.servers.kinds import find_server
from tests.lab.replication_actions import INSERTS, TIMEOUT_S, WRITERS
from tests.lab.scenario_programs import run_scenario
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
_BOTH = pytest.mark.parametrize("name", rarely_but(("mariadb",), ("mariadb", "mysql")), indirect=True)
RTT_NS = 20_000_000
MIN_ROUND_TRIPS = 0.96
"""Minimum duration of a commit in RTTs. A link that deviates by 3 % voids a trial; a commit that does not wait takes a hundredth."""


def run_replication(server: str, cache: Path, *cases: dict[str, Any], **environment: str) -> list[dict[str, Any]]:
    """Run the cases one after the other over the same links; returns each one's answer, checked to leave no server and no file."""
    program = str(find_server(server).path)  # the tests' cache has no private installs
    results = run_scenario(
        "replication_scenario", program, str(RTT_NS), *map(json.dumps, cases), cache=cache, env=environment
    )
    assert len(results) == len(cases)
    for answer in results:
        assert answer["servers_left"] == answer["files_left"] == []
    return results


@_BOTH
def test_a_semi_synchronous_commit_takes_a_round_trip(name: str, cache: Path) -> None:
    sync, commit, alone, asynchronous = run_replication(
        name,
        cache,
        {"settings": {"wait_point": "AFTER_SYNC"}, "actions": ["commits", "calm"]},
        {"settings": {"wait_point": "AFTER_COMMIT", "durability": "relaxed", "tls": True}, "actions": ["commits"]},
        {"settings": {"mode": "none", "replicas": 0, "durability": "off"}, "actions": ["commits"]},
        {"settings": {"mode": "async", "compression": "zlib"}, "actions": ["commits", "lag"]},
    )
    for seen, wait_point in ((sync, "AFTER_SYNC"), (commit, "AFTER_COMMIT")):
        found, end = seen["commits"], seen["commits"]["after"]["primary"]
        assert (found["violations"], found["too_fast"]) == ([], None)
        assert found["p50_ns"] >= MIN_ROUND_TRIPS * RTT_NS
        assert (end["wait_point"], end["clients"], end["no_tx"]) == (wait_point, 1, 0)
        assert end["tx_waits"] > INSERTS, "commits of one connection do not share a wait"
    for seen in (alone, asynchronous):
        assert seen["commits"]["violations"] == []
        assert seen["commits"]["p50_ns"] < RTT_NS / 2
    assert sync["calm"]["watch"] is None
    for seen, tls, compressed in ((sync, 0, [False]), (commit, 1, [False]), (alone, 0, []), (asynchronous, 0, [True])):
        channel = seen["facts"]["channel"]
        assert channel["tls_handshakes"] == tls
        assert [sent < channel["row_bytes"] / 4 for sent in channel["wire_bytes"].values()] == compressed
    samples = asynchronous["lag"]["samples"]
    assert max(sample["behind"] for sample in samples) >= 10, "the replica missed ten commits"
    assert all(sample["heartbeat_ns"] >= MIN_ROUND_TRIPS * RTT_NS / 2 for sample in samples if sample["heartbeat_ns"])
    assert [seen["facts"]["durability"]["replica1"]["sync_binlog"] for seen in (sync, commit, asynchronous)] == [
        "1",
        "0",
        "1",
    ]


@_BOTH
def test_faults_are_found(name: str, cache: Path) -> None:
    fallback, half_cut, hang, zstd = run_replication(
        name,
        cache,
        {"settings": {"timeout_ms": 500}, "actions": ["fallback"]},
        {"actions": ["half_cut"]},
        {"actions": ["hang"]},
        {"settings": {"compression": "zstd"}},
    )
    assert fallback["fallback"]["longest_ns"] >= 500_000_000
    violations = "; ".join(fallback["fallback"]["violations"])
    for fragment in ("asynchronous silently", "3 commits of the window were not", "fell back", "no acknowledgement"):
        assert fragment in violations
    assert "fell back" in "; ".join(fallback["fallback"]["late_violations"]), (
        "it is also found after the link is restored"
    )
    assert half_cut["half_cut"]["error"] is not None, "the writer got no success"
    assert half_cut["half_cut"]["rows"] == 1, "the row arrived"
    assert "replica1 died): the primary was killed" in hang["hang"]["watch"]
    assert hang["hang"]["error"] is not None and "ended" in hang["hang"]["afterwards"]
    assert ("error" in zstd) == (name == "mariadb"), "MariaDB has zlib only"


@_BOTH
def test_faults_before_the_start_are_reported(name: str, cache: Path) -> None:
    """`run_replication` also checks that no server and no file remains."""
    expected = {
        "port_taken": ("ServerCrashed", "replica1 does not start: ", "already in use"),
        "bad_option": ("ServerCrashed", "replica1 does not start: ", "no-such-option"),
        "replica_dies": ("ServerCrashed", "replica1 does not start: ", "signal 9"),
        "replica_disk_too_small": ("LabError", "replica1 is not seeded: ", "No space left"),
        "damaged_template": ("ServerCrashed", "primary does not start: ", "ibdata1"),
        "cut": ("LabError", "replica1 did not begin to replicate", ""),
        "diverged_replica": (
            "LabError",
            "replica1 has transactions that its primary never had",
            "histories have diverged",
        ),
    }
    # Faults with the same effect on both servers are tested only on the faster one.
    rare = {"replica_dies", "replica_disk_too_small", "damaged_template"} if name == "mysql" else set()
    faults = [fault for fault in expected if fault not in rare]
    # Only a timeout finds the cut.
    results = run_replication(
        name, cache, *({"fault": fault, "timeout_s": 2 if fault == "cut" else 60} for fault in faults)
    )
    for fault, answer in zip(faults, results, strict=True):
        kind, begin, fragment = expected[fault]
        found, message, advice = answer["error"]
        assert (found, message.startswith(begin), fragment in message) == (kind, True, True), message
        assert advice


@_BOTH
def test_faults_under_writes_violate_the_window(name: str, cache: Path) -> None:
    """The violation names the fault. The link's emulator is killed last, because the other cases need it."""
    rare = ("primary_dies", "replica_dies") if name == "mariadb" else ()
    faults = ("clash", "own_write", *rare, "disk_fills", "emulator_dies")
    setup = {"disk_fills": "small_primary_disk"}
    cases = [{"settings": {"mode": "async"}, "actions": [fault], "fault": setup.get(fault)} for fault in faults]
    results = run_replication(name, cache, *cases[:-1], {"actions": ["emulator_dies"]})
    found = {fault: answer[fault] for fault, answer in zip(faults, results, strict=True)}
    (clash,) = found["clash"]["violations"]
    assert "applying No" in clash and "Duplicate entry" in clash, "the replica's own message"
    assert any("their histories have diverged" in violation for violation in found["own_write"]["violations"])
    for fault in rare:
        kind, message, *_ = found[fault]["error"]
        assert kind == "ServerCrashed"
        assert message.startswith(fault.removesuffix("_dies")) and "(signal 9)" in message
    full = found["disk_fills"]
    assert full["hung"] is None or "the primary had" in full["hung"], full
    assert full["error"][1].startswith("primary had ") and "MiB left on its file system" in full["error"][1]
    assert "the link of replica1 had died): the primary was killed" in found["emulator_dies"]["hung"]
    for fault, seen in found.items():
        assert seen["acknowledged"] >= 4 * WRITERS, fault
        assert seen["took_s"] < TIMEOUT_S / 2, f"{fault} is found without waiting for a timeout"


@_BOTH
def test_promotion_and_diverged_histories(name: str, cache: Path) -> None:
    promoted, diverged = run_replication(
        name, cache, {"actions": ["promotion"]}, {"settings": {"mode": "async"}, "actions": ["diverge"]}
    )
    found = promoted["promotion"]
    assert found["refused"].startswith("replica1 cannot be promoted: 4 transactions that it received were not applied")
    assert found["rows"] == 1004, "all acknowledged rows are on the replica"
    assert found["promoted"]["position"]
    assert "nothing to promote" in found["again"]
    assert "transactions that its primary never had" in diverged["diverge"]["refused"]


@_BOTH
def test_semi_synchronous_commits_survive_the_primary(name: str, cache: Path) -> None:
    """Asynchronous replication loses at least the commits in flight. A row that arrived in part is not applied."""
    tear = {"settings": {"mode": "async"}, "actions": ["torn"]}
    sync, commit, asynchronous, torn = run_replication(
        name,
        cache,
        {"settings": {"wait_point": "AFTER_SYNC"}, "actions": ["crash"]},
        {"settings": {"wait_point": "AFTER_COMMIT"}, "actions": ["crash"]},
        {"settings": {"mode": "async"}, "actions": ["crash"]},
        tear,
    )
    for seen in (sync, commit):
        assert seen["crash"]["lost"] == 0
        assert seen["crash"]["never_acknowledged"] <= WRITERS, "each writer has at most one commit in flight"
    assert asynchronous["crash"]["lost"] > 0
    for _ in range(2):  # on a busy machine the whole row may arrive before the link is cut
        if torn["torn"]["rows"] == 0:
            break
        (torn,) = run_replication(name, cache, tear)
    assert torn["torn"]["rows"] == 0
    assert torn["torn"]["promoted"]["took_ns"] < 45 * 10**9, (
        "without promotion, an applier waits 60 s for the rest of the row"
    )


@pytest.mark.parametrize("name", [pytest.param("mysql", marks=pytest.mark.thorough)], indirect=True)
def test_two_replicas_must_both_acknowledge(name: str, cache: Path) -> None:
    settings = {"replicas": 2, "wait_for": 2, "compression": "zstd", "tls": True}
    (seen,) = run_replication(name, cache, {"settings": settings, "actions": ["commits"]}, HOWFAR_WORK=str(cache))
    assert seen["facts"]["data_file_system"] == file_system_of(cache), "the data is in HOWFAR_WORK"
    end = seen["commits"]["after"]["primary"]
    assert (end["clients"], end["wait_for"], seen["commits"]["violations"]) == (2, 2, [])
