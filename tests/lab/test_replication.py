"""Real primaries and replicas, over links that are slow, cut, and repaired."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.cache import file_system_of
from howfar.lab.servers.kinds import find_server
from tests.lab.programs import answers
from tests.lab.replication_acts import INSERTS, WRITERS
from tests.lab.replication_breaks import TIMEOUT_S as BREAKS_PATIENCE_S
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
_BOTH = pytest.mark.parametrize("name", rarely_but(("mariadb",), ("mariadb", "mysql")), indirect=True)
RTT_NS = 20_000_000
_LESS = 0.96
"""Minimum of a commit in round trips: a link that is 3 % off is void anyway; a commit that did not wait takes a hundredth."""


def pairs(server: str, cache: Path, *cases: dict[str, Any], **environment: str) -> list[dict[str, Any]]:
    """Each case's answer; all run over the same links, one after the other. The program is given by its path: private installs are in
    a cache that these tests do not share."""
    program = str(find_server(server).path)
    results = answers("replication_scenario", program, str(RTT_NS), *map(json.dumps, cases), cache=cache, **environment)
    assert len(results) == len(cases)
    for answer in results:
        assert answer["servers_left"] == answer["files_left"] == []
    return results


@_BOTH
def test_an_acknowledgement_costs_a_round_trip(name: str, cache: Path) -> None:
    sync, late, alone, apart = pairs(
        name,
        cache,
        {"settings": {"wait_point": "AFTER_SYNC"}, "acts": ["commits", "calm"]},
        {"settings": {"wait_point": "AFTER_COMMIT", "durability": "relaxed", "tls": True}, "acts": ["commits"]},
        {"settings": {"mode": "none", "replicas": 0, "durability": "off"}, "acts": ["commits"]},
        {"settings": {"mode": "async", "compression": "zlib"}, "acts": ["commits", "lag"]},
    )
    for seen, wait_point in ((sync, "AFTER_SYNC"), (late, "AFTER_COMMIT")):
        found, end = seen["commits"], seen["commits"]["after"]["primary"]
        assert (found["violations"], found["too_fast"]) == ([], None)
        assert found["p50_ns"] >= _LESS * RTT_NS
        assert (end["wait_point"], end["clients"], end["no_tx"]) == (wait_point, 1, 0)
        assert end["tx_waits"] > INSERTS, "one connection: no commit shares a wait"
    for seen in (alone, apart):
        assert seen["commits"]["violations"] == []
        assert seen["commits"]["p50_ns"] < RTT_NS / 2
    assert sync["calm"]["said"] is None
    for seen, tls, squeezed in ((sync, 0, False), (late, 1, False), (alone, 0, None), (apart, 0, True)):
        channel = seen["facts"]["channel"]
        assert channel["tls_handshakes"] == tls
        assert [crossed < channel["row_bytes"] / 4 for crossed in channel["wire_bytes"].values()] == (
            [] if squeezed is None else [squeezed]
        )
    samples = apart["lag"]["samples"]
    assert max(sample["behind"] for sample in samples) >= 10, "ten commits while it had left"
    assert all(sample["heartbeat_ns"] >= _LESS * RTT_NS / 2 for sample in samples if sample["heartbeat_ns"])
    assert [seen["facts"]["durability"]["replica1"]["sync_binlog"] for seen in (sync, late, apart)] == ["1", "0", "1"]


_SMALL_DISK = {"disk_fills": "little_room"}


@_BOTH
def test_what_breaks_is_seen(name: str, cache: Path) -> None:
    fallen, half, hung, squeezed = pairs(
        name,
        cache,
        {"settings": {"timeout_ms": 500}, "acts": ["fallback"]},
        {"acts": ["half_cut"]},
        {"acts": ["hang"]},
        {"settings": {"compression": "zstd"}},
    )
    assert fallen["fallback"]["longest_ns"] >= 500_000_000
    fragments = (
        "asynchronous silently",
        "3 commits of the window were not acknowledged",
        "fell back",
        "no acknowledgement",
    )
    sentences = fallen["fallback"]["violations"]
    assert all(any(word in sentence for sentence in sentences) for word in fragments), sentences
    assert any("fell back" in sentence for sentence in fallen["fallback"]["late_violations"]), "mended, it has happened"
    assert half["half_cut"]["error"] is not None, "whoever wrote it was not told"
    assert half["half_cut"]["rows"] == 1, "and it is there"
    assert "replica1 died): the primary was killed" in hung["hang"]["said"]
    assert hung["hang"]["error"] is not None and "ended" in hung["hang"]["afterwards"]
    assert ("error" in squeezed) == (name == "mariadb"), "it has zlib only"


@_BOTH
def test_what_is_wrong_beforehand_is_said(name: str, cache: Path) -> None:
    """Nothing is left of it either, which `pairs` checks."""
    expected = {
        "port_taken": ("ServerCrashed", "replica1 does not start: ", "already in use"),
        "bad_option": ("ServerCrashed", "replica1 does not start: ", "no-such-option"),
        "dies": ("ServerCrashed", "replica1 does not start: ", "signal 9"),
        "no_room": ("LabError", "replica1 is not seeded: ", "No space left"),
        "damaged": ("ServerCrashed", "primary does not start: ", "ibdata1"),
        "cut": ("LabError", "replica1 did not begin to replicate", ""),
        "stranger": ("LabError", "replica1 has transactions that its primary never had", "histories have parted"),
    }
    # Faults that act alike on both are tried on the faster one.
    rare = {"dies", "no_room", "damaged"} if name == "mysql" else set()
    slow = {"cut"}  # found only by a timeout
    tried = [fault for fault in expected if fault not in rare]
    results = pairs(name, cache, *({"wrong": fault, "patience_s": 5 if fault in slow else 60} for fault in tried))
    for fault, answer in zip(tried, results, strict=True):
        kind, begin, fragment = expected[fault]
        found, message, advice = answer["error"]
        assert (found, message.startswith(begin), fragment in message) == (kind, True, True), message
        assert advice


@_BOTH
def test_what_breaks_under_writes_voids_the_window(name: str, cache: Path) -> None:
    """The reason is given, and soon. The link's emulator is broken last: the other cases need it."""
    rare = ("primary_dies", "replica_dies") if name == "mariadb" else ()
    acts = ("clash", "own_write", *rare, "disk_fills", "emulator_dies")
    cases = [{"settings": {"mode": "async"}, "acts": [act], "wrong": _SMALL_DISK.get(act)} for act in acts]
    results = pairs(name, cache, *cases[:-1], {"acts": ["emulator_dies"]})
    found = {act: answer[act] for act, answer in zip(acts, results, strict=True)}
    (clash,) = found["clash"]["violations"]
    assert "applying No" in clash and "Duplicate entry" in clash, "the replica's own sentence"
    assert any("their histories have parted" in one for one in found["own_write"]["violations"])
    for act in rare:
        assert found[act]["error"][0] == "ServerCrashed"
        assert found[act]["error"][1].startswith(act.removesuffix("_dies")) and "(signal 9)" in found[act]["error"][1]
    full = found["disk_fills"]
    assert full["hung"] is None or "the primary had" in full["hung"], full
    assert full["error"][1].startswith("primary had ") and "MiB left on its file system" in full["error"][1]
    assert "the link of replica1 had died): the primary was killed" in found["emulator_dies"]["hung"]
    for act, seen in found.items():
        assert seen["acknowledged"] >= 4 * WRITERS and seen["took_s"] < BREAKS_PATIENCE_S / 2, (
            act,
            "nothing hangs until somebody's patience ends",
        )


@_BOTH
def test_histories_that_part_and_a_replica_that_takes_over(name: str, cache: Path) -> None:
    taken, parted = pairs(
        name,
        cache,
        {"acts": ["promotion"]},
        {"settings": {"mode": "async"}, "acts": ["diverge"]},
    )
    found = taken["promotion"]
    assert found["refused"].startswith("replica1 cannot be promoted: 4 transactions that it received were not applied")
    assert found["rows"] == 1004, "what its primary told its clients is safe"
    assert found["promoted"]["position"]
    assert "nothing to promote" in found["again"]
    assert "transactions that its primary never had" in parted["diverge"]["refused"]


@_BOTH
def test_what_was_acknowledged_survives_its_primary(name: str, cache: Path) -> None:
    """Only with semi-synchronous replication. Asynchronously, at least what was in flight is lost; half a row does not count."""
    tear = {"settings": {"mode": "async"}, "acts": ["torn"]}
    sync, late, apart, torn = pairs(
        name,
        cache,
        {"settings": {"wait_point": "AFTER_SYNC"}, "acts": ["crash"]},
        {"settings": {"wait_point": "AFTER_COMMIT"}, "acts": ["crash"]},
        {"settings": {"mode": "async"}, "acts": ["crash"]},
        tear,
    )
    assert (sync["crash"]["lost"], late["crash"]["lost"]) == (0, 0)
    assert max(sync["crash"]["never_acknowledged"], late["crash"]["never_acknowledged"]) <= WRITERS, (
        "one in flight for each"
    )
    assert apart["crash"]["lost"] > 0
    for _ in range(2):  # on a busy machine all of it may arrive before the link is cut; if torn, it never does
        if torn["torn"]["rows"] == 0:
            break
        (torn,) = pairs(name, cache, tear)
    assert torn["torn"]["rows"] == 0
    assert torn["torn"]["promoted"]["took_ns"] < 45_000_000_000, (
        "an applier that is left alone waits 60 s for the other half"
    )


@pytest.mark.parametrize("name", [pytest.param("mysql", marks=pytest.mark.thorough)], indirect=True)
def test_two_replicas_of_which_both_must_acknowledge(name: str, cache: Path) -> None:
    settings = {"replicas": 2, "wait_for": 2, "compression": "zstd", "tls": True}
    (seen,) = pairs(name, cache, {"settings": settings, "acts": ["commits"]}, HOWFAR_WORK=str(cache))
    assert seen["facts"]["data_file_system"] == file_system_of(cache), "where the user wants it"
    end = seen["commits"]["after"]["primary"]
    assert (end["clients"], end["wait_for"], seen["commits"]["violations"]) == (2, 2, [])
