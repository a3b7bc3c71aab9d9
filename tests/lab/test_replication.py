"""Primaries and replicas that are real, over links that are slow, cut, and mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.servers.kinds import find_server
from tests.lab.replication_acts import INSERTS, WRITERS
from tests.lab.sandboxes import PATIENCE_S

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
RTT_NS = 20_000_000
_LESS = 0.995
"""A link's round trip is right within that."""


def _pairs(server: str, cache: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Each case's answer; all are over the same links, one after the other. The program by its path: private installs are in the cache
    that these tests do not share."""
    program = str(find_server(server).path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.replication_scenario", program, str(RTT_NS), *map(json.dumps, cases)],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases)
    for answer in answers:
        assert answer["servers_left"] == answer["files_left"] == []
    return answers


def test_an_acknowledgement_costs_a_round_trip(name: str, cache: Path) -> None:
    sync, late, alone, apart = _pairs(
        name,
        cache,
        {"asked": {"wait_point": "AFTER_SYNC"}, "acts": ["commits", "calm"]},
        {"asked": {"wait_point": "AFTER_COMMIT", "durability": "relaxed", "tls": True}, "acts": ["commits"]},
        {"asked": {"mode": "none", "replicas": 0, "durability": "off"}, "acts": ["commits"]},
        {"asked": {"mode": "async", "compression": "zlib"}, "acts": ["commits", "lag"]},
    )
    for seen, wait_point in ((sync, "AFTER_SYNC"), (late, "AFTER_COMMIT")):
        found, end = seen["commits"], seen["commits"]["after"]["primary"]
        assert (found["violations"], found["too_fast"]) == ([], None)
        assert found["p50_ns"] >= _LESS * RTT_NS
        assert (end["wait_point"], end["clients"], end["no_tx"]) == (wait_point, 1, 0)
        assert end["tx_waits"] > INSERTS, "one connection: no commit shares a wait"
    for seen in (alone, apart):
        assert seen["commits"]["violations"] == []
        assert seen["commits"]["p50_ns"] < RTT_NS / 4
    assert sync["calm"]["said"] is None
    samples = apart["lag"]["samples"]
    assert max(sample["behind"] for sample in samples) >= 10, "ten commits while it had left"
    assert all(sample["heartbeat_ns"] >= _LESS * RTT_NS / 2 for sample in samples if sample["heartbeat_ns"])
    assert [seen["facts"]["durability"]["replica1"]["sync_binlog"] for seen in (sync, late, apart)] == ["1", "0", "1"]


_BOTH = pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)


@_BOTH
def test_what_breaks_is_seen(name: str, cache: Path) -> None:
    fallen, half, hung, taken, cut, squeezed = _pairs(
        name,
        cache,
        {"asked": {"timeout_ms": 500}, "acts": ["fallback"]},
        {"acts": ["half_cut"]},
        {"acts": ["hang"]},
        {"port_taken": True},
        {"cut": True, "patience_s": 5},
        {"asked": {"compression": "zstd"}},
    )
    assert fallen["fallback"]["longest_ns"] >= 500_000_000
    words = ("without saying so", "3 commits of the window were not acknowledged", "fell back", "no acknowledgement")
    said = fallen["fallback"]["violations"]
    assert all(any(word in sentence for sentence in said) for word in words), said
    assert any("fell back" in sentence for sentence in fallen["fallback"]["late_violations"]), "mended, it has happened"
    assert half["half_cut"]["told"] is not None, "whoever wrote it was not told"
    assert half["half_cut"]["rows"] == 1, "and it is there"
    assert "replica1 died): the primary was killed" in hung["hang"]["said"]
    assert hung["hang"]["told"] is not None and "ended" in hung["hang"]["afterwards"]
    kind, message, advice = taken["error"]
    assert kind == "ServerCrashed" and message.startswith("replica1 does not start: ") and advice
    assert "already in use" in message
    assert cut["error"][1].startswith("replica1 did not begin to replicate")
    assert ("error" in squeezed) == (name == "mariadb"), "it has zlib only"


@_BOTH
def test_histories_that_part_and_a_replica_that_takes_over(name: str, cache: Path) -> None:
    taken, parted, clashed = _pairs(
        name,
        cache,
        {"acts": ["promotion"]},
        {"asked": {"mode": "async"}, "acts": ["diverge"]},
        {"asked": {"mode": "async"}, "acts": ["conflict"]},
    )
    found = taken["promotion"]
    assert found["refused"].startswith("replica1 cannot be promoted: 4 transactions that it received were not applied")
    assert found["rows"] == 1004, "what its primary told its clients is safe"
    assert found["promoted"]["position"]
    assert "nothing to promote" in found["again"]
    assert "transactions that its primary never had" in parted["diverge"]["refused"]
    assert clashed["conflict"]["refused"].startswith("replica1 cannot replicate: ")


@_BOTH
def test_what_was_acknowledged_survives_its_primary(name: str, cache: Path) -> None:
    """Semi-synchronous only. Asynchronous, at least what was on the way is gone; a row of which half has come is none."""
    sync, late, apart, torn = _pairs(
        name,
        cache,
        {"asked": {"wait_point": "AFTER_SYNC"}, "acts": ["crash"]},
        {"asked": {"wait_point": "AFTER_COMMIT"}, "acts": ["crash"]},
        {"asked": {"mode": "async"}, "acts": ["crash"]},
        {"asked": {"mode": "async"}, "acts": ["torn"]},
    )
    assert (sync["crash"]["lost"], late["crash"]["lost"]) == (0, 0)
    assert max(sync["crash"]["never_told"], late["crash"]["never_told"]) <= WRITERS, "one in flight for each"
    assert apart["crash"]["lost"] > 0
    assert torn["torn"]["rows"] == 0
    assert torn["torn"]["promoted"]["took_ns"] < 45_000_000_000, (
        "an applier that is left alone waits 60 s for the other half"
    )


@pytest.mark.parametrize("name", ["mysql"], indirect=True)
def test_two_replicas_of_which_both_must_acknowledge(name: str, cache: Path) -> None:
    asked = {"replicas": 2, "wait_for": 2, "compression": "zstd", "tls": True}
    (seen,) = _pairs(name, cache, {"asked": asked, "acts": ["commits"]})
    end = seen["commits"]["after"]["primary"]
    assert (end["clients"], end["wait_for"], seen["commits"]["violations"]) == (2, 2, [])
