"""Real primaries and standbys of PostgreSQL over slow links and links that are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.replication_acts import INSERTS
from tests.lab.test_replication import RTT_NS, pairs

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "postgresql")]
_LESS = 0.96


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = {
        "on": {"settings": {"wait_point": "on"}, "acts": ["commits", "calm", "cancelled"]},
        "apply": {"settings": {"wait_point": "remote_apply", "replicas": 2, "tls": True}, "acts": ["commits"]},
        "write": {"settings": {"wait_point": "remote_write", "durability": "off"}, "acts": ["commits", "hang"]},
        "both": {"settings": {"wait_point": "on", "replicas": 2, "wait_for": 2}, "acts": ["commits", "crash"]},
        "local": {"settings": {"mode": "async"}, "acts": ["commits"]},
        "off": {"settings": {"mode": "async", "flushes": False}, "acts": ["commits", "crash"]},
        "alone": {"settings": {"mode": "none", "replicas": 0}, "acts": ["commits"]},
    }
    return dict(zip(cases, pairs("postgresql", cache, *cases.values()), strict=True))


@pytest.mark.parametrize(
    ("case", "level", "named"),
    [
        ("on", "on", "ANY 1 (replica1)"),
        ("apply", "remote_apply", "ANY 1 (replica1, replica2)"),
        ("write", "remote_write", "ANY 1 (replica1)"),
        ("both", "on", "ANY 2 (replica1, replica2)"),
    ],
)
def test_a_commit_waits_as_the_primary_says(seen: dict[str, dict[str, Any]], case: str, level: str, named: str) -> None:
    found, end = seen[case]["commits"], seen[case]["commits"]["after"]["primary"]
    assert (found["violations"], found["too_fast"]) == ([], None)
    assert found["p50_ns"] >= _LESS * RTT_NS
    assert (end["settings"]["synchronous_commit"], end["settings"]["synchronous_standby_names"]) == (level, named)
    assert {(each["state"], each["sync_state"]) for each in end["standbys"]} == {("streaming", "quorum")}
    assert end["acknowledged_bytes"] > 0 and end["yes_tx"] is None, "it counts bytes of its log, no commits"
    assert sum(found["after"]["sent"].values()) > 0


@pytest.mark.parametrize(
    ("case", "level", "states"), [("local", "local", ["async"]), ("off", "off", ["async"]), ("alone", "local", [])]
)
def test_a_commit_that_waits_for_nobody(
    seen: dict[str, dict[str, Any]], case: str, level: str, states: list[str]
) -> None:
    found, end = seen[case]["commits"], seen[case]["commits"]["after"]["primary"]
    assert found["violations"] == [] and found["p50_ns"] < RTT_NS / 2
    assert end["settings"]["synchronous_commit"] == level and not end["enabled"]
    assert [each["sync_state"] for each in end["standbys"]] == states


def test_the_channel_is_as_asked(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["apply"]["facts"]["channel"]["tls_handshakes"] == 2
    assert seen["on"]["facts"]["channel"]["tls_handshakes"] == 0
    assert seen["write"]["facts"]["durability"]["replica1"]["fsync"] == "off"


def test_a_cancelled_wait_is_found_though_its_client_heard_of_success(seen: dict[str, dict[str, Any]]) -> None:
    found = seen["on"]["cancelled"]
    assert found["error"] is None, "the client is told that it is done"
    assert any("1 commits of the window were not acknowledged" in sentence for sentence in found["violations"])


def test_a_commit_that_waits_for_a_dead_replica_is_ended(seen: dict[str, dict[str, Any]]) -> None:
    found = seen["write"]["hang"]
    assert found["said"].startswith("1 commits waited") and "replica1 died" in found["said"]
    assert found["error"] is not None


def test_what_is_acknowledged_survives_where_it_was_waited_for_and_only_there(seen: dict[str, dict[str, Any]]) -> None:
    kept, lost = seen["both"]["crash"], seen["off"]["crash"]
    assert kept["acknowledged"] >= INSERTS and kept["lost"] == 0
    assert lost["lost"] > 0, "acknowledged after the link was cut"
