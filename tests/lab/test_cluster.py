"""Clusters of real servers, over a link between any two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_replication import pairs

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
MS = 1_000_000
NEAR, FAR = 2 * MS, 50 * MS
_MODES = {"mariadb": ("galera",), "mysql": ("group-leader", "group")}
_SETTINGS = {
    "mariadb": ("wsrep_sync_wait", ("0", "7")),
    "mysql": ("group_replication_consistency", ("EVENTUAL", "BEFORE")),
}


@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_a_commit_waits_for_the_nodes_that_its_cluster_needs(name: str, cache: Path) -> None:
    """And each node says that the cluster is whole, by the protocol and consistency that were asked for."""
    first, *others = _MODES[name]
    cases: list[dict[str, Any]] = [_case(mode) for mode in (first, *others)]
    cases.append(_case(first, consistency="before"))
    setting, levels = _SETTINGS[name]
    for case, seen in zip(cases, pairs(name, cache, *cases), strict=True):
        found, mode = seen["commits"], case["settings"]["mode"]
        assert found["violations"] == []
        assert found["p50_ns"] >= (NEAR if mode == "group-leader" else FAR), mode
        nodes = found["after"]["nodes"]
        assert [node["name"] for node in nodes] == ["primary", "replica1", "replica2"]
        assert {node["settings"][setting] for node in nodes} == {levels["consistency" in case["settings"]]}
        assert all(rtt_ns >= FAR * 0.9 for rtt_ns in found["rtt_ns"][1:]), "the two links of the far node"


@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_what_a_cluster_acknowledged_survives_the_node_that_did(name: str, cache: Path) -> None:
    """By the clients' own account, though the survivor that is asked was cut off from it before."""
    for case, seen in zip(_MODES[name], pairs(name, cache, *(_crash(mode) for mode in _MODES[name])), strict=True):
        assert "error" not in seen, (case, seen)
        assert (seen["crash"]["lost"], seen["crash"]["acknowledged"] >= 20) == (0, True), case


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_five_nodes_are_ready_and_a_commit_waits_for_its_majority(name: str, cache: Path) -> None:
    """The second of the two others that complete it is at 20 ms; the other two nodes are far."""
    others = ("20ms", "50ms", "50ms", "20ms", "50ms", "50ms", "50ms", "50ms", "50ms")
    cases: list[dict[str, Any]] = [
        {"distances": ",".join(("2ms", *others)), "settings": {"mode": mode, "replicas": 4}, "acts": ["commits"]}
        for mode in _MODES[name]
    ]
    for case, seen in zip(cases, pairs(name, cache, *cases), strict=True):
        assert "error" not in seen, seen
        mode, found = case["settings"]["mode"], seen["commits"]
        print(
            f"{mode}: five nodes ready in {seen['ready_s']:.1f} s ({seen['facts']['seconds']}), p50 {found['p50_ns'] / MS:.1f} ms"
        )
        assert (found["violations"], len(found["after"]["nodes"])) == ([], 5)
        assert found["p50_ns"] >= (20 * MS if mode == "group-leader" else FAR)


_FOUND = {
    "mariadb": {"cluster-quorum": "change", "cluster-timeouts": "change", "cluster-reads": "note"},
    "mysql": {"cluster-turns": "change", "cluster-timeouts": "change", "cluster-flow-control": "note", "cluster-reads": "note"},
}  # fmt: skip


@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_the_doctor_finds_what_is_set_wrong_and_its_lines_end_it(name: str, cache: Path) -> None:
    mode = _MODES[name][-1]
    case = {"distances": "same-rack", "settings": {"mode": mode, "replicas": 2}, "acts": ["doctor"]}
    (seen,) = pairs(name, cache, case)
    assert "error" not in seen, seen
    first, second = seen["doctor"]["found"]
    for finding in seen["doctor"]["says"]:
        print(finding["check"], finding["says"], finding["gain"], finding["changes"][0]["lines"])
    if name == "mariadb":  # whether one node was behind the others is the machine's
        first.pop("cluster-flow-control", None)
    assert first == _FOUND[name]
    assert second.pop("cluster-flow-control", "note") == "note", "how long it stood still is counted since FLUSH STATUS"
    assert second == {}


def _crash(mode: str) -> dict[str, Any]:
    return {"settings": {"mode": mode, "replicas": 2}, "acts": ["crash"]}


def _case(mode: str, **more: str) -> dict[str, Any]:
    settings = {"mode": mode, "replicas": 2, **more}
    return {"distances": "2ms,50ms,50ms", "settings": settings, "acts": ["commits"]}
