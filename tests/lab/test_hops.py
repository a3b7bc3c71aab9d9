"""Proxies and poolers on the path: receipts prove that they carried the load, their CPU is counted, and their death voids a trial.

Includes every path of the registry that has a hop, with each server that the hop's protocol allows.
"""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import HowfarError
from howfar.lab.servers.kinds import STORES, find_server
from howfar.paths import PATHS, check_programs
from howfar.paths import Path as NetworkPath
from howfar.store.records import StopReason, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import POINT_SELECT, Session, all_namespaces, assert_completed, tiny_plan
from tests.lab.sandboxes import TIMEOUT_S, wait_until
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import EMPTY_WINDOW, unexcused

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
CONNECTIONS = 2
"""Connections of the scenario's load."""
_HOPS = tuple(name for name, path in PATHS.items() if path.hops)
_READ_PROTOCOLS = ("postgresql", "redis", "memcached")
_COMPARED = ("haproxy", "sidecar")
"""These paths have two trials, because the smaller CPU time of each is compared."""


def _server(path: NetworkPath) -> str:
    return next((kind for kind in path.protocols if kind in _READ_PROTOCOLS), "mariadb")


def _missing_program(name: str, server: str = "") -> str | None:
    """Which program of the path or server is missing; None if all are installed."""
    try:
        check_programs(PATHS[name])
        find_server(server or _server(PATHS[name]))
    except HowfarError as error:
        return f"{error.message}: {error.advice}"
    return None


def _skip_if_missing(name: str, server: str = "") -> None:
    if reason := _missing_program(name, server):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def seen(cache: Path) -> Any:
    """A function that returns the trials of a path with a server; each server's paths are measured once."""

    @functools.cache
    def measure(server: str) -> Mapping[str, list[dict[str, Any]]]:
        names = [name for name, kind in _CASES if kind == server and _missing_program(name, server) is None]
        request = json.dumps({"server": server, "tables": 1, "table_size": 1000, "connections": 8})
        repeated = [name for name in names if name in _COMPARED and server == _server(PATHS[name])]
        trials = run_scenario("paths_scenario", request, *names, *repeated, cache=cache)[0]["trials"]
        return {name: [trial for trial in trials if trial["path"] == name] for name in names}

    def trials_of(name: str, server: str = "") -> list[dict[str, Any]]:
        _skip_if_missing(name, server)
        return measure(server or _server(PATHS[name]))[name]

    return trials_of


_CASES = [(name, kind) for name in _HOPS for kind in _READ_PROTOCOLS if kind in PATHS[name].protocols]
_CASES += [(name, "mariadb") for name in _HOPS if _server(PATHS[name]) == "mariadb"]
# A program that forwards bytes also carries a key-value store.
_CASES += [("haproxy", "redis"), ("haproxy", "memcached")]


@pytest.mark.parametrize(
    ("path", "server"),
    [pytest.param(*pair, marks=pytest.mark.thorough if pair[1] == "memcached" else ()) for pair in _CASES],
)
def test_a_receipt_proves_that_its_programs_carried_the_load(seen: Any, path: str, server: str) -> None:
    for trial in seen(path, server):
        assert trial["transactions"] > 0 and unexcused(trial["violations"]) == []
        receipt = trial["receipt"]["forwarder"]
        assert receipt["program"]
        for hop in receipt.get("carried", {}).values():
            assert hop.get("connections_most", CONNECTIONS) >= CONNECTIONS
            assert hop["bytes_to_client"] > hop["bytes_to_server"] > 0
        assert set(trial["roles"]) - {"link"} == {"client", "server", "forwarder"}
        if PATHS[path].crosses_link:
            assert trial["receipt"]["link"]["counters"]["to_server"]["segments"] > 0


@pytest.mark.parametrize("path", _COMPARED)
def test_byte_counters_of_a_hop_agree_with_the_servers(seen: Any, path: str) -> None:
    """The server also counts the laboratory's own session."""
    for trial in seen(path):
        counters = trial["receipt"]["server"]["counters"]
        for hop in trial["receipt"]["forwarder"]["carried"].values():
            # On a busy machine a window may have so few transactions that this session matters.
            assert hop["bytes_to_server"] == pytest.approx(counters["bytes_received"], rel=0.05, abs=2000)
            assert hop["bytes_to_client"] == pytest.approx(counters["bytes_sent"], rel=0.05, abs=2000)


@pytest.mark.parametrize("path", [name for name in _HOPS if PATHS[name].pools])
def test_a_pooler_reports_its_connections_on_both_sides(seen: Any, path: str) -> None:
    for trial in seen(path):
        for hop in trial["receipt"]["forwarder"]["at_once"].values():
            assert hop["to_clients"] == CONNECTIONS and 1 <= hop["to_server"] <= CONNECTIONS


def test_two_hops_take_more_cpu_than_one(seen: Any) -> None:
    def per_query(path: str) -> float:
        return min(float(trial["cpu"]["forwarder"] / trial["transactions"]) for trial in seen(path))

    one, two = map(per_query, _COMPARED)
    assert two > 1.3 * one


def _start_session(path: str, where: Path, cache: Path) -> Session:
    paths = ("remote" if PATHS[path].crosses_link else "socket", path)
    plan = tiny_plan(paths, blocks=2, workload={**POINT_SELECT, "db_ps_mode": "disable"})
    if _server(PATHS[path]) in STORES:
        plan = tiny_plan(paths, blocks=2, workload={"kind": "key_value"}, contents={"keys": {"count": 500}})
    (where / "hops.toml").write_text(plan)
    return Session(["run", "hops.toml", "--server", _server(PATHS[path]), "--out", "a.howfar"], cache, where)


@pytest.mark.parametrize(
    "path", [pytest.param(name, marks=() if name == "pgbouncer" else pytest.mark.thorough) for name in _HOPS]
)
def test_a_killed_hop_voids_its_trial_and_the_run_continues(tmp_path: Path, cache: Path, path: str) -> None:
    _skip_if_missing(path)
    with _start_session(path, tmp_path, cache) as session:
        _wait_for_trial(session)
        _kill(session, PATHS[path].hops[0])
        code = session.wait()
        session.marked.wait_until_gone()
    assert_completed(code, session.output())
    run = read_run(tmp_path / "a.howfar")
    assert run.stop is StopReason.BLOCKS
    reasons = [trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID]
    assert all(reasons) and len([one for one in unexcused(reasons) if one != EMPTY_WINDOW]) <= 1, reasons


@pytest.mark.thorough
@pytest.mark.parametrize("path", _HOPS)
def test_a_server_killed_behind_a_hop_is_named(tmp_path: Path, cache: Path, path: str) -> None:
    _skip_if_missing(path)
    with _start_session(path, tmp_path, cache) as session:
        _wait_for_trial(session)
        # A server killed after its load would end without an effect on the trial.
        assert session.wait_for_pid("howfar-engine load", TIMEOUT_S) is not None, session.output()
        _kill(session, find_server(_server(PATHS[path])).path.name)
        code = session.wait()
        session.marked.wait_until_gone()
    assert_completed(code, session.output())
    run = read_run(tmp_path / "a.howfar")
    reasons = unexcused([trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID])
    assert len([reason for reason in reasons if "signal 9" in reason]) == 1, session.output()
    assert {reason for reason in reasons if "signal 9" not in reason} <= {EMPTY_WINDOW}, session.output()


@pytest.mark.thorough
@pytest.mark.parametrize("path", _HOPS)
def test_a_killed_run_leaves_no_process_of_its_hop(tmp_path: Path, cache: Path, path: str) -> None:
    _skip_if_missing(path)
    with _start_session(path, tmp_path, cache) as session:
        _wait_for_trial(session)
        assert session.wait_for_pid(PATHS[path].hops[0], TIMEOUT_S) is not None, session.output()
        own = session.namespaces()
        session.process.kill()
        # sshd overwrites its environment, including the mark, but its namespaces still identify it.
        wait_until(lambda: not session.marked.pids() and not own & all_namespaces(), "the end of all of it")
    assert read_run(tmp_path / "a.howfar").trials


def _kill(session: Session, words: str) -> None:
    victim = session.wait_for_pid(words, TIMEOUT_S)
    assert victim is not None, session.output()
    os.kill(victim, signal.SIGKILL)


def _wait_for_trial(session: Session) -> None:
    wait_until(lambda: bool(session.reported_trials()) or session.has_ended(), "a trial")
