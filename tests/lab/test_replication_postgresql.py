"""Real primaries and standbys of PostgreSQL over slow links and links that are cut and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.replication_actions import INSERTS
from tests.lab.test_replication import MIN_ROUND_TRIPS, RTT_NS, run_replication

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "postgresql")]


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = {
        "on": {"settings": {"wait_point": "on"}, "actions": ["commits", "calm", "cancelled"]},
        "apply": {"settings": {"wait_point": "remote_apply", "replicas": 2, "tls": True}, "actions": ["commits"]},
        "write": {"settings": {"wait_point": "remote_write", "durability": "off"}, "actions": ["commits", "hang"]},
        "both": {"settings": {"wait_point": "on", "replicas": 2, "wait_for": 2}, "actions": ["commits", "crash"]},
        "local": {"settings": {"mode": "async"}, "actions": ["commits"]},
        "off": {"settings": {"mode": "async", "flushes": False}, "actions": ["commits", "crash"]},
        "alone": {"settings": {"mode": "none", "replicas": 0}, "actions": ["commits"]},
    }
    return dict(zip(cases, run_replication("postgresql", cache, *cases.values()), strict=True))


@pytest.mark.parametrize(
    ("case", "level", "named"),
    [
        ("on", "on", "ANY 1 (replica1)"),
        ("apply", "remote_apply", "ANY 1 (replica1, replica2)"),
        ("write", "remote_write", "ANY 1 (replica1)"),
        ("both", "on", "ANY 2 (replica1, replica2)"),
    ],
)
def test_a_commit_waits_for_the_configured_standbys(
    seen: dict[str, dict[str, Any]], case: str, level: str, named: str
) -> None:
    found, end = seen[case]["commits"], seen[case]["commits"]["after"]["primary"]
    assert (found["violations"], found["too_fast"]) == ([], None)
    assert found["p50_ns"] >= MIN_ROUND_TRIPS * RTT_NS
    assert (end["settings"]["synchronous_commit"], end["settings"]["synchronous_standby_names"]) == (level, named)
    assert {(each["state"], each["sync_state"]) for each in end["standbys"]} == {("streaming", "quorum")}
    assert end["acknowledged_bytes"] > 0 and end["yes_tx"] is None, "PostgreSQL counts bytes of its log, not commits"
    assert sum(found["after"]["sent"].values()) > 0


@pytest.mark.parametrize(
    ("case", "level", "states"), [("local", "local", ["async"]), ("off", "off", ["async"]), ("alone", "local", [])]
)
def test_an_asynchronous_commit_does_not_wait(
    seen: dict[str, dict[str, Any]], case: str, level: str, states: list[str]
) -> None:
    found, end = seen[case]["commits"], seen[case]["commits"]["after"]["primary"]
    assert found["violations"] == [] and found["p50_ns"] < RTT_NS / 2
    assert end["settings"]["synchronous_commit"] == level and not end["enabled"]
    assert [each["sync_state"] for each in end["standbys"]] == states


def test_the_channel_is_as_requested(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["apply"]["facts"]["channel"]["tls_handshakes"] == 2
    assert seen["on"]["facts"]["channel"]["tls_handshakes"] == 0
    assert seen["write"]["facts"]["durability"]["replica1"]["fsync"] == "off"


def test_a_cancelled_wait_is_found_though_its_client_got_a_success(seen: dict[str, dict[str, Any]]) -> None:
    found = seen["on"]["cancelled"]
    assert found["error"] is None, "the client gets a success"
    assert any("1 commits of the window were not acknowledged" in sentence for sentence in found["violations"])


def test_a_commit_that_waits_for_a_dead_replica_is_ended(seen: dict[str, dict[str, Any]]) -> None:
    found = seen["write"]["hang"]
    assert found["watch"].startswith("1 commits waited") and "replica1 died" in found["watch"]
    assert found["error"] is not None


def test_only_commits_that_waited_for_the_standby_survive_a_crash(seen: dict[str, dict[str, Any]]) -> None:
    kept, lost = seen["both"]["crash"], seen["off"]["crash"]
    assert kept["acknowledged"] >= INSERTS and kept["lost"] == 0
    assert lost["lost"] > 0, "commits acknowledged after the cut are lost"
