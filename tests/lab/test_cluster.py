"""Galera and Group Replication clusters, with a link between each two servers."""

from __future__ import annotations

import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from howfar.experiments.replication.lab.group import PORT as GROUP_PORT
from howfar.experiments.replication.lab.links import node_address
from howfar.experiments.replication.records import CrashRecord
from howfar.lab.servers.galera_programs import transfer_obstacle
from howfar.lab.servers.kinds import find_server
from tests.lab.sandboxes import run_lab
from tests.lab.scenario_programs import run_scenario
from tests.lab.test_replication import run_replication

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
MS = 1_000_000
NEAR, FAR = 2 * MS, 50 * MS
_RARELY = partial(pytest.param, marks=pytest.mark.thorough)
_BOTH = pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
_MODES = {"mariadb": ("galera",), "mysql": ("group-leader", "group")}
_SETTINGS = {
    "mariadb": ("wsrep_sync_wait", ("0", "7")),
    "mysql": ("group_replication_consistency", ("EVENTUAL", "BEFORE")),
}


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("mysql", (("group", {}), ("group-leader", {"consistency": "before"}))),
        _RARELY("mysql", (("group-leader", {}),)),
        _RARELY("mariadb", (("galera", {}), ("galera", {"consistency": "before"}))),
    ],
    indirect=["name"],
)
def test_a_commit_waits_for_the_nodes_that_its_cluster_needs(
    name: str, modes: tuple[tuple[str, dict[str, str]], ...], cache: Path
) -> None:
    """Each node also reports a complete cluster and the requested consistency."""
    cases = [_commit_case(mode, **more) for mode, more in modes]
    setting, levels = _SETTINGS[name]
    for case, seen in zip(cases, run_replication(name, cache, *cases), strict=True):
        found, mode = seen["commits"], case["settings"]["mode"]
        assert found["violations"] == []
        assert found["p50_ns"] >= (NEAR if mode == "group-leader" else FAR), mode
        nodes = found["after"]["nodes"]
        assert [node["name"] for node in nodes] == ["primary", "replica1", "replica2"]
        assert {node["settings"][setting] for node in nodes} == {levels["consistency" in case["settings"]]}
        assert all(rtt_ns >= FAR * 0.9 for rtt_ns in found["rtt_ns"][1:]), "the far node has two long links"


_FAULTS = {
    "mariadb": (("galera", "kill-primary"), ("galera", "cut-off-primary"), ("galera", "cut-off-member")),
    "mysql": (("group", "kill-primary"), ("group-leader", "cut-off-primary"), ("group", "cut-off-member")),
}


@pytest.mark.thorough
@_BOTH
def test_acknowledged_commits_survive_the_death_of_their_node(name: str, cache: Path) -> None:
    """The clients' logs prove it. A cut-off node acknowledges no commit; clients of the other nodes continue after a while."""
    cases = [_fault_case(mode, fault) for mode, fault in _FAULTS[name]]
    for case, record in zip(cases, _run_faults(name, cache, *cases), strict=True):
        assert (record.lost, record.by_itself) == (0, 0), (case, record)
        assert record.acknowledged > 0 and record.promoted in ("replica1", "replica2")
        assert record.stall_ns is not None
        assert record.stall_ns > NEAR or case["fault"] == "cut-off-member", (
            "commits resume after the others have agreed"
        )


@pytest.mark.thorough
@_BOTH
def test_a_cluster_continues_with_a_slow_member_and_readmits_one(name: str, cache: Path) -> None:
    mode = _MODES[name][-1]
    slow, away = _run_faults(name, cache, _fault_case(mode, "slow-member"), _fault_case(mode, "member-returns"))
    for record in (slow, away):
        assert (record.lost, record.by_itself) == (0, 0), record
        assert record.back_ns is not None, record
    assert slow.meanwhile_per_s is not None and away.meanwhile_per_s is not None
    assert 0 < slow.meanwhile_per_s < slow.commits_per_s, "commits wait for the slow member"


_JOINS = {"mariadb": ("IST", "SST"), "mysql": ("binary log", "clone")}
_HEADERS = 20 + 20 + 12
"""Bytes of the headers of IPv4 and of TCP with timestamps."""
_ETHERNET, _FRAMING = 14, 38
"""Bytes of an Ethernet frame that the kernel counts per packet, and that the wire carries per segment."""


@pytest.mark.thorough
@_BOTH
def test_a_node_that_joins_with_or_without_data_gets_all_rows(name: str, cache: Path) -> None:
    """It has all rows after the primary's death. The kernel and the links count the same bytes of its data transfer."""
    if name == "mariadb" and (lacking := transfer_obstacle()) is not None:
        pytest.skip(lacking)
    mode = _MODES[name][0]
    cases = (_fault_case(mode, fault, threads=1) for fault in ("member-restarts", "member-joins"))
    records = _run_faults(name, cache, *cases)
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
    small, full = (record.joined.received_bytes for record in records if record.joined is not None)
    assert full > 5 * small, "a full transfer is larger than the missed transactions"


@pytest.mark.thorough
@_BOTH
def test_a_minority_of_two_nodes_accepts_no_write(name: str, cache: Path) -> None:
    mode = _MODES[name][0]
    case = _fault_case(mode, "partition", settings={"mode": mode, "replicas": 4})
    (record,) = _run_faults(name, cache, case)
    assert (record.lost, record.by_itself) == (0, 0)
    assert record.promoted in ("replica2", "replica3", "replica4"), "one of the majority"


@pytest.mark.thorough
@_BOTH
def test_five_nodes_are_ready_and_a_commit_waits_for_its_majority(name: str, cache: Path) -> None:
    """A majority needs two other nodes, of which the second is at 20 ms; the last two nodes are farther."""
    others = ("20ms", "50ms", "50ms", "20ms", "50ms", "50ms", "50ms", "50ms", "50ms")
    cases: list[dict[str, Any]] = [
        {"distances": ",".join(("2ms", *others)), "settings": {"mode": mode, "replicas": 4}, "actions": ["commits"]}
        for mode in _MODES[name]
    ]
    for case, seen in zip(cases, run_replication(name, cache, *cases), strict=True):
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
def test_the_doctor_finds_wrong_settings_and_its_lines_correct_them(name: str, cache: Path) -> None:
    mode = _MODES[name][-1]
    case = {"distances": "same-rack", "settings": {"mode": mode, "replicas": 2}, "actions": ["doctor"]}
    (seen,) = run_replication(name, cache, case)
    assert "error" not in seen, seen
    first, second = seen["doctor"]["found"]
    for finding in seen["doctor"]["findings"]:
        print(finding["check"], finding["says"], finding["gain"], finding["changes"][0]["lines"])
    # How far a node lags behind the others depends on the machine.
    severity = first.pop("cluster-flow-control", None)
    if name == "mysql":
        (text,) = (each["says"] for each in seen["doctor"]["findings"] if each["check"] == "cluster-flow-control")
        threshold, queue = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", text))
        assert (threshold, severity) == (10, "change" if queue > threshold else "note")
    assert first == _FOUND[name]
    assert second.pop("cluster-flow-control", "note") == "note", "the pause is counted since FLUSH STATUS"
    assert second == {}


@pytest.mark.alone
@pytest.mark.thorough
@_BOTH
def test_howfars_commit_rate_agrees_with_sysbench_and_the_command_line_client(name: str, cache: Path) -> None:
    """Each tool in turn has one connection to the same cluster. There are three attempts, because other programs may disturb one."""
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
    inner = [sys.executable, "-m", "tests.lab.cluster_tools_scenario", "3", "2"]
    deviations: dict[str, float] = {}
    for _ in range(3):
        done = run_lab(*cluster, "--tables=1", "--table-size=1000", "--", *inner, cache=cache)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        ours = median(found.pop("howfar"))
        deviations = {tool: ours / median(per_s) - 1 for tool, per_s in found.items()}
        print(ours, found, deviations)
        if max(map(abs, deviations.values())) <= 0.03:
            return
    pytest.fail(f"commits/s differ by more than 3 %: {deviations}")


_NO_QUORUM = {
    "mariadb": "SET GLOBAL wsrep_provider_options = 'pc.ignore_quorum=true;pc.ignore_sb=true'",
    # The statement is refused while the node sees a majority.
    "mysql": "CREATE EVENT sbtest.alone ON SCHEDULE EVERY 1 SECOND DO SET GLOBAL group_replication_force_members = "
    f"'{node_address(0)}:{GROUP_PORT}'",
}
"""Statements after which the primary needs no other node for a quorum."""


@pytest.mark.thorough
@_BOTH
def test_commits_of_a_node_without_quorum_are_found(name: str, cache: Path) -> None:
    """A node that needs no quorum acknowledges commits while it is cut off, which the others never get."""
    case = _fault_case(_MODES[name][-1], "cut-off-primary", statement=_NO_QUORUM[name], failover_ns=5 * 10**9)
    (record,) = _run_faults(name, cache, case)
    assert record.by_itself is not None and record.by_itself > 0
    assert record.lost >= record.by_itself, "commits of the node alone are lost"


def _run_faults(name: str, cache: Path, *cases: dict[str, Any]) -> list[CrashRecord]:
    found = run_scenario("fault_scenario", str(find_server(name).path), str(NEAR), *map(json.dumps, cases), cache=cache)
    assert ["error" in each for each in found] == [False] * len(cases), found
    return [CrashRecord(**each["record"]) for each in found]


def _fault_case(mode: str, fault: str, **more: Any) -> dict[str, Any]:
    return {"settings": {"mode": mode, "replicas": 2}, "fault": fault, "after_ns": 500 * MS, **more}


def _commit_case(mode: str, **more: str) -> dict[str, Any]:
    settings = {"mode": mode, "replicas": 2, **more}
    return {"distances": "2ms,50ms,50ms", "settings": settings, "actions": ["commits"]}
