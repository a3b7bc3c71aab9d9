"""`howfar doctor` on servers with wrong and correct setups: it finds exactly the wrong settings, and its proposals correct them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from howfar.lab.idle import polling_obstacle
from tests.lab.doctor_cases import CASES, RIGHT, USUAL, WRONG, Case
from tests.rarely import rarely_but

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "schema" / "doctor.json"
NAMESPACES = ("unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(scope="module")
def seen(mariadb: None, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The scenario's results for the usual cases and the selected ones."""
    if os.geteuid() != 0:
        pytest.skip("servers and clients of several accounts need root")
    cases = (item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec"))
    names = {case.name for case in (*USUAL, *cases) if isinstance(case, Case)}
    done = subprocess.run(
        [*NAMESPACES, sys.executable, "-m", "tests.lab.doctor_scenario", *names],
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def server_of(seen: dict[str, Any], sample: str, case: Case) -> dict[str, Any]:
    if case.server in seen["absent"]:
        pytest.skip(seen["absent"][case.server])
    found: dict[str, Any] = seen[sample][case.name]
    assert found, "the doctor finds the server"
    return found


def checks(server: dict[str, Any], severity: str) -> set[str]:
    return {finding["check"] for finding in server["findings"] if finding["severity"] == severity}


def test_there_are_at_least_twenty_wrong_setups() -> None:
    assert len(WRONG) >= 20 and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", rarely_but(USUAL, WRONG), ids=lambda case: case.name)
def test_a_wrong_setup_is_found_and_corrected_by_its_proposals(case: Case, seen: dict[str, Any]) -> None:
    before, after = server_of(seen, "first", case), server_of(seen, "second", case)
    assert checks(before, "change") == case.finds
    assert checks(before, "note") >= case.notes
    assert checks(after, "change") == set(), seen["lines"][case.name]
    for finding in before["findings"]:
        assert finding["severity"] == "note" or finding["changes"], "a change has proposed lines"


@pytest.mark.parametrize("case", rarely_but(USUAL, RIGHT), ids=lambda case: case.name)
def test_a_correct_setup_has_no_findings(case: Case, seen: dict[str, Any]) -> None:
    for sample in ("first", "second"):
        found = server_of(seen, sample, case)["findings"]
        assert [finding for finding in found if finding["check"] != "idle-states"] == [], (
            "idle states are a property of the machine"
        )


@pytest.mark.parametrize("case", rarely_but(USUAL, CASES), ids=lambda case: case.name)
def test_an_account_without_privileges_has_no_false_findings(case: Case, seen: dict[str, Any]) -> None:
    """It often cannot know which sockets belong to a server, and reports that."""
    if case.server in seen["absent"]:
        pytest.skip(seen["absent"][case.server])
    found = seen["by_nobody"][case.name]
    assert not found or checks(found, "change") <= case.finds
    assert seen["unseen_by_nobody"]


def test_sockets_of_two_servers_of_one_account_are_distinguished_without_privileges(seen: dict[str, Any]) -> None:
    if "redis" in seen["absent"]:
        pytest.skip(seen["absent"]["redis"])
    servers = [seen["by_nobody"][case.name] for case in CASES if "two redis of an account" in case.name]
    paths = [[found["path"] for found in server["listeners"] if found["path"]] for server in servers]
    assert [len(each) for each in paths] == [1, 1] and paths[0] != paths[1]


def test_no_other_process_is_taken_for_a_server(seen: dict[str, Any]) -> None:
    assert seen["unknown_servers"] == []


def test_a_change_of_the_clients_group_needs_no_restart(seen: dict[str, Any]) -> None:
    """[doc-3] Only the client's group was wrong: the server keeps running with its data."""
    case = next(case for case in WRONG if case.name == "redis whose group the client lacks")
    before, after = server_of(seen, "first", case), server_of(seen, "second", case)
    assert before["pid"] == after["pid"]
    assert not any("unixsocket" in line for line in seen["lines"][case.name] if not line.startswith("'"))


MOVED = [case for case in WRONG if case.finds & {"loopback-tcp", "socket-off", "socket-out-of-reach"}]


@pytest.mark.parametrize("case", rarely_but(USUAL, MOVED), ids=lambda case: case.name)
def test_a_client_with_the_proposed_lines_uses_the_socket(case: Case, seen: dict[str, Any]) -> None:
    before, after = server_of(seen, "first", case), server_of(seen, "second", case)
    assert {client["local"] for client in before["clients"] if client["by"] == "tcp"} == {True}
    assert [client for client in after["clients"] if client["by"] == "tcp"] == []
    assert after["socket_connections"] >= 1


def test_the_socket_has_the_shorter_round_trip(seen: dict[str, Any]) -> None:
    """Compares the minimum round trips of each server; a busy machine may disturb fewer than half of them."""
    shorter = []
    for server in seen["second"].values():
        floors = {floor["transport"]: floor["round_trip_ns"]["median"] for floor in server.get("floors", [])}
        if {"socket", "tcp"} <= floors.keys():
            shorter.append(floors["socket"] < floors["tcp"])
    assert sum(shorter) > len(shorter) / 2


def test_the_cost_of_waking_is_measured_unless_polling_is_impossible(seen: dict[str, Any]) -> None:
    measured = [server["idle"] for server in seen["second"].values() if server.get("floors")]
    assert measured
    if polling_obstacle() is None:
        assert all(cost["as_found"]["median"] > 0 and cost["waking"]["low"] is not None for cost in measured)
    else:
        assert measured == [None] * len(measured)


@pytest.mark.parametrize(
    "case", rarely_but(USUAL, [case for case in WRONG if "connect-churn" in case.finds]), ids=lambda case: case.name
)
def test_a_client_with_persistent_connections_opens_no_more(case: Case, seen: dict[str, Any]) -> None:
    before, after = server_of(seen, "first", case), server_of(seen, "second", case)
    assert seen["activity_first"][case.name][0] > 0 and seen["activity_second"][case.name][0] == 0
    assert before["rates"]["connects"] > 10 * after["rates"]["connects"]


def test_without_the_authority_bundle_a_connect_saves_the_predicted_time(seen: dict[str, Any]) -> None:
    case = next(case for case in WRONG if "authority-bundle" in case.finds)
    before = server_of(seen, "first", case)
    predicted_ns = next(
        finding["gain"]["saves_ns"]["median"]
        for finding in before["findings"]
        if finding["check"] == "authority-bundle"
    )
    (connects, cpu_ns), (connects_after, cpu_after_ns) = (
        seen["activity_first"][case.name],
        seen["activity_second"][case.name],
    )
    saved = cpu_ns / connects - cpu_after_ns / connects_after
    assert 1 / 3 < saved / predicted_ns < 3, "the client's CPU time per connect agrees with the prediction"


def test_an_examination_follows_its_schema(seen: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text())
    validator = Draft202012Validator({**schema["$defs"]["Server"], "$defs": schema["$defs"]})
    for server in [*seen["first"].values(), *seen["second"].values()]:
        validator.validate(server)
