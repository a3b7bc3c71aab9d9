"""Clusters of real servers, over a link between any two of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from howfar.lab.replication.galera import missing_for_transfer
from howfar.lab.replication.group import PORT as GROUP_PORT
from howfar.lab.replication.links import node_address
from howfar.lab.servers.kinds import find_server
from howfar.store.records import CrashRecord
from tests.lab.programs import answers
from tests.lab.sandboxes import run_lab
from tests.lab.test_replication import pairs

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
MS = 1_000_000
NEAR, FAR = 2 * MS, 50 * MS
_MODES = {"mariadb": ("galera",), "mysql": ("group-leader", "group")}
_SETTINGS = {
    "mariadb": ("wsrep_sync_wait", ("0", "7")),
    "mysql": ("group_replication_consistency", ("EVENTUAL", "BEFORE")),
}


@pytest.mark.parametrize("name", [pytest.param("mariadb", marks=pytest.mark.thorough), "mysql"], indirect=True)
def test_a_commit_waits_for_the_nodes_that_its_cluster_needs(name: str, cache: Path) -> None:
    """Each node also reports a complete cluster, with the requested protocol and consistency."""
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


_FAULTS = {
    "mariadb": (("galera", "kill-primary"), ("galera", "cut-off-primary"), ("galera", "cut-off-member")),
    "mysql": (("group", "kill-primary"), ("group-leader", "cut-off-primary"), ("group", "cut-off-member")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_what_a_cluster_acknowledged_survives_the_node_that_did(name: str, cache: Path) -> None:
    """By the clients' own logs. A node that is cut off acknowledges nothing more; clients of the others continue after a while."""
    cases = [_fault(mode, fault) for mode, fault in _FAULTS[name]]
    for case, record in zip(cases, _broken(name, cache, *cases), strict=True):
        assert (record.lost, record.by_itself) == (0, 0), (case, record)
        assert record.acknowledged > 0 and record.promoted in ("replica1", "replica2")
        assert record.stall_ns is not None
        assert record.stall_ns > NEAR or case["fault"] == "cut-off-member", (
            "nobody is told before the rest has agreed to go on"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_a_cluster_goes_on_with_a_slow_member_and_takes_one_back(name: str, cache: Path) -> None:
    mode = _MODES[name][-1]
    slow, away = _broken(name, cache, _fault(mode, "slow-member"), _fault(mode, "member-returns"))
    for record in (slow, away):
        assert (record.lost, record.by_itself) == (0, 0), record
        assert record.back_ns is not None, record
    assert slow.meanwhile_per_s is not None and away.meanwhile_per_s is not None
    assert 0 < slow.meanwhile_per_s < slow.commits_per_s, "each commit waits for the member, or for its turn"


_JOINS = {"mariadb": ("IST", "SST"), "mysql": ("binary log", "clone")}
_HEADERS = 20 + 20 + 12
"""Bytes of the headers of IPv4 and of TCP with timestamps."""
_ETHERNET, _FRAMING = 14, 38
"""Bytes of Ethernet that the kernel counts for a packet, and that a segment takes on the wire."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_a_node_joins_with_its_data_and_without_and_has_everything(name: str, cache: Path) -> None:
    """It has all rows after the primary's death. What it fetched crossed its links, by the kernel's count and by the links' own."""
    if name == "mariadb" and (lacking := missing_for_transfer()) is not None:
        pytest.skip(lacking)
    mode = _MODES[name][0]
    cases = (_fault(mode, fault, threads=1) for fault in ("member-restarts", "member-joins"))
    records = _broken(name, cache, *cases)
    for record, how in zip(records, _JOINS[name], strict=True):
        joined = record.joined
        assert joined is not None and record.meanwhile_per_s is not None and record.meanwhile_per_s > 0
        print(
            record.fault,
            joined,
            f"stall {record.stall_ns} ns, {record.meanwhile_per_s:.0f} of {record.commits_per_s:.0f}/s",
        )
        assert (joined.how, record.lost, record.by_itself) == (how, 0, 0)
        kernel = joined.wire_bytes - (_FRAMING + _HEADERS) * joined.segments + (_ETHERNET + _HEADERS) * joined.packets
        assert joined.received_bytes == pytest.approx(kernel, rel=0.02)
        assert joined.took_ns >= joined.donor_wire_bytes * 8, "no faster than 1 Gb/s"
    small, whole = (record.joined.received_bytes for record in records if record.joined is not None)
    assert whole > 5 * small, "all data, and not only what it missed"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_two_of_five_nodes_that_are_cut_off_accept_no_write(name: str, cache: Path) -> None:
    mode = _MODES[name][0]
    case = _fault(mode, "partition", settings={"mode": mode, "replicas": 4})
    (record,) = _broken(name, cache, case)
    assert (record.lost, record.by_itself) == (0, 0)
    assert record.promoted in ("replica2", "replica3", "replica4"), "one of the majority"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_five_nodes_are_ready_and_a_commit_waits_for_its_majority(name: str, cache: Path) -> None:
    """A majority needs two other nodes, of which the second is at 20 ms; the other two nodes are far."""
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
    "mysql": {"cluster-turns": "change", "cluster-timeouts": "note", "cluster-reads": "note"},
}


@pytest.mark.parametrize("name", ["mariadb", pytest.param("mysql", marks=pytest.mark.thorough)], indirect=True)
def test_the_doctor_finds_what_is_set_wrong_and_its_lines_end_it(name: str, cache: Path) -> None:
    mode = _MODES[name][-1]
    case = {"distances": "same-rack", "settings": {"mode": mode, "replicas": 2}, "acts": ["doctor"]}
    (seen,) = pairs(name, cache, case)
    assert "error" not in seen, seen
    first, second = seen["doctor"]["found"]
    for finding in seen["doctor"]["says"]:
        print(finding["check"], finding["says"], finding["gain"], finding["changes"][0]["lines"])
    # How far one node lags behind the others depends on the machine.
    held_back = first.pop("cluster-flow-control", None)
    if name == "mysql":
        (says,) = (each["says"] for each in seen["doctor"]["says"] if each["check"] == "cluster-flow-control")
        threshold, queue = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", says))
        assert (threshold, held_back) == (10, "change" if queue > threshold else "note")
    assert first == _FOUND[name]
    assert second.pop("cluster-flow-control", "note") == "note", "how long it stood still is counted since FLUSH STATUS"
    assert second == {}


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_its_figures_are_those_of_sysbench_and_of_the_command_line_client(name: str, cache: Path) -> None:
    """Each tool in turn has one connection to the same cluster. Three attempts, because other processes may disturb one of them."""
    if (missing := next((tool for tool in ("sysbench", "mariadb") if shutil.which(tool) is None), None)) is not None:
        pytest.skip(f"{missing} is not installed (./setup --tests brings it)")
    cluster = [
        "--server",
        str(find_server(name).path),
        "--replication",
        _MODES[name][0],
        "--distances",
        "three-regions",
    ]
    inner = [sys.executable, "-m", "tests.lab.cluster_beside_scenario", "3", "2"]
    off: dict[str, float] = {}
    for _ in range(3):
        done = run_lab(*cluster, "--tables=1", "--table-size=1000", "--", *inner, env={"XDG_CACHE_HOME": str(cache)})
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        ours = median(found.pop("howfar"))
        off = {tool: ours / median(per_s) - 1 for tool, per_s in found.items()}
        print(ours, found, off)
        if max(map(abs, off.values())) <= 0.03:
            return
    pytest.fail(f"commits/s differ by more than 3 %: {off}")


_ALONE = {
    "mariadb": "SET GLOBAL wsrep_provider_options = 'pc.ignore_quorum=true;pc.ignore_sb=true'",
    # Refused as long as it sees a majority.
    "mysql": "CREATE EVENT sbtest.alone ON SCHEDULE EVERY 1 SECOND DO SET GLOBAL group_replication_force_members = "
    f"'{node_address(0)}:{GROUP_PORT}'",
}
"""Statements for the primary: a quorum of one is enough."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_a_node_that_goes_on_alone_is_found_out(name: str, cache: Path) -> None:
    """A quorum of one is forced on it: the others never get what it acknowledges while it is cut off."""
    case = _fault(_MODES[name][-1], "cut-off-primary", told=_ALONE[name], failover_ns=5 * 10**9)
    (record,) = _broken(name, cache, case)
    assert record.by_itself is not None and record.by_itself > 0
    assert record.lost >= record.by_itself, "and they are lost"


def _broken(name: str, cache: Path, *cases: dict[str, Any]) -> list[CrashRecord]:
    found = answers("fault_scenario", str(find_server(name).path), str(NEAR), *map(json.dumps, cases), cache=cache)
    assert ["error" in each for each in found] == [False] * len(cases), found
    return [CrashRecord(**each["record"]) for each in found]


def _fault(mode: str, fault: str, **more: Any) -> dict[str, Any]:
    return {"settings": {"mode": mode, "replicas": 2}, "fault": fault, "after_ns": 500 * MS, **more}


def _case(mode: str, **more: str) -> dict[str, Any]:
    settings = {"mode": mode, "replicas": 2, **more}
    return {"distances": "2ms,50ms,50ms", "settings": settings, "acts": ["commits"]}
