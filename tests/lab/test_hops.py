"""Real programs on the path: receipts prove that they carried the load, their CPU is counted, and their death voids a trial.

Every path of the registry with a program on it is included automatically, with the first server that it carries.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from functools import cache as kept
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import HowfarError
from howfar.lab.servers.kinds import STORES, find_server
from howfar.paths import PATHS, check_programs
from howfar.paths import Path as NetworkPath
from howfar.store.records import StopReason, TrialStatus
from howfar.store.run_file import read_run
from tests.lab import howfar_runs
from tests.lab.howfar_runs import BLOCKS, TINY, Session, all_namespaces, came_through
from tests.lab.programs import answers
from tests.lab.sandboxes import TIMEOUT_S, wait_until
from tests.lab.undisturbed import EMPTY_WINDOW, lasting

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
CONNECTIONS = 2
"""Connections of the scenario's load."""
_HOPS = tuple(name for name, path in PATHS.items() if path.hops)
_READ = ("postgresql", "redis", "memcached")


def _server(path: NetworkPath) -> str:
    return next((kind for kind in path.protocols if kind in _READ), "mariadb")


def _lacking(name: str, server: str = "") -> str | None:
    """What is not installed, a program of the path or its server; else None."""
    try:
        check_programs(PATHS[name])
        find_server(server or _server(PATHS[name]))
    except HowfarError as error:
        return f"{error.message}: {error.advice}"
    return None


def _needs(name: str, server: str = "") -> None:
    if reason := _lacking(name, server):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def seen(cache: Path) -> Any:
    """The trials of a path."""

    @kept
    def measured(server: str) -> Mapping[str, list[dict[str, Any]]]:
        names = [name for name, kind in _CARRIED if kind == server and _lacking(name, server) is None]
        request = json.dumps({"server": server, "tables": 1, "table_size": 1000, "connections": 8})
        trials = answers("scenario", request, *names, cache=cache)[0]["trials"]
        return {name: [trial for trial in trials if trial["path"] == name] for name in names}

    def of(name: str, server: str = "") -> list[dict[str, Any]]:
        _needs(name, server)
        return measured(server or _server(PATHS[name]))[name]

    return of


_CARRIED = [(name, kind) for name in _HOPS for kind in _READ if kind in PATHS[name].protocols]
_CARRIED += [(name, "mariadb") for name in _HOPS if _server(PATHS[name]) == "mariadb"]
# A program that forwards bytes also carries a key-value store.
_CARRIED += [("haproxy", "redis"), ("haproxy", "memcached")]


@pytest.mark.parametrize(
    ("path", "server"),
    [pytest.param(*pair, marks=pytest.mark.thorough if pair[1] == "memcached" else ()) for pair in _CARRIED],
)
def test_a_receipt_proves_that_its_programs_carried_the_load(seen: Any, path: str, server: str) -> None:
    for trial in seen(path, server):
        assert trial["transactions"] > 0 and lasting(trial["violations"]) == []
        receipt = trial["receipt"]["forwarder"]
        assert receipt["program"]
        for hop in receipt.get("carried", {}).values():
            assert hop.get("connections_most", CONNECTIONS) >= CONNECTIONS
            assert hop["bytes_to_client"] > hop["bytes_to_server"] > 0
        assert set(trial["roles"]) - {"link"} == {"client", "server", "forwarder"}
        if PATHS[path].crosses_link:
            assert trial["receipt"]["link"]["counters"]["to_server"]["segments"] > 0


@pytest.mark.parametrize("path", ("haproxy", "sidecar"))
def test_its_own_counters_agree_with_the_servers(seen: Any, path: str) -> None:
    """The server counts the laboratory's own session too."""
    for trial in seen(path):
        counters = trial["receipt"]["server"]["counters"]
        for hop in trial["receipt"]["forwarder"]["carried"].values():
            # On a busy machine a window may have only a few transactions, so that this session matters.
            assert hop["bytes_to_server"] == pytest.approx(counters["bytes_received"], rel=0.05, abs=2000)
            assert hop["bytes_to_client"] == pytest.approx(counters["bytes_sent"], rel=0.05, abs=2000)


@pytest.mark.parametrize("path", [name for name in _HOPS if PATHS[name].pools])
def test_a_pooler_tells_its_connections_on_both_sides(seen: Any, path: str) -> None:
    for trial in seen(path):
        for hop in trial["receipt"]["forwarder"]["at_once"].values():
            assert hop["to_clients"] == CONNECTIONS and 1 <= hop["to_server"] <= CONNECTIONS


def test_two_hops_take_more_cpu_than_one(seen: Any) -> None:
    def per_query(path: str) -> float:
        return min(float(each["cpu"]["forwarder"] / each["transactions"]) for each in seen(path))

    assert per_query("sidecar") > 1.3 * per_query("haproxy")


_PLAN = (
    TINY.replace(howfar_runs.PATHS, '["{base}", "{path}"]')
    .replace('path = "socket"', 'path = "{base}"')
    .replace("skip_trx = true", 'skip_trx = true\ndb_ps_mode = "disable"')
    .replace(f"blocks = {BLOCKS}", "blocks = 3")
)


_OF_KEYS = _PLAN[_PLAN.index("[factors]") :]


def _session(path: str, where: Path, cache: Path) -> Session:
    base = "remote" if PATHS[path].crosses_link else "socket"
    plan = _PLAN
    if _server(PATHS[path]) in STORES:
        plan = f'name = "tiny"\nquestion = "Keys?"\n[workload]\nkind = "key_value"\n[keys]\ncount = 500\n{_OF_KEYS}'
    (where / "hops.toml").write_text(plan.replace("{base}", base).replace("{path}", path))
    return Session(["run", "hops.toml", "--server", _server(PATHS[path]), "--out", "a.howfar"], cache, where)


@pytest.mark.parametrize(
    "path",
    [pytest.param(name, marks=() if name == "pgbouncer" else pytest.mark.thorough) for name in _HOPS],
)
def test_a_hop_that_is_killed_voids_its_trial_and_the_run_goes_on(tmp_path: Path, cache: Path, path: str) -> None:
    _needs(path)
    session = _session(path, tmp_path, cache)
    try:
        wait_until(partial(_under_way, session), "a trial")
        _kill(session, PATHS[path].hops[0])
        code = session.code()
        wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
    finally:
        session.end()
    came_through(code, session.say())
    run = read_run(tmp_path / "a.howfar")
    assert run.stop is StopReason.BLOCKS
    reasons = [trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID]
    assert all(reasons) and len([one for one in lasting(reasons) if one != EMPTY_WINDOW]) <= 1, reasons


@pytest.mark.thorough
@pytest.mark.parametrize("path", _HOPS)
def test_a_server_that_is_killed_behind_a_hop_is_named(tmp_path: Path, cache: Path, path: str) -> None:
    _needs(path)
    session = _session(path, tmp_path, cache)
    try:
        wait_until(partial(_under_way, session), "a trial")
        # A server that ends with its trial would not be missed.
        assert session.await_part("howfar-engine load", TIMEOUT_S) is not None, session.say()
        _kill(session, find_server(_server(PATHS[path])).path.name)
        code = session.code()
        wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
    finally:
        session.end()
    came_through(code, session.say())
    run = read_run(tmp_path / "a.howfar")
    reasons = lasting([trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID])
    assert len([reason for reason in reasons if "signal 9" in reason]) == 1, session.say()
    assert {reason for reason in reasons if "signal 9" not in reason} <= {EMPTY_WINDOW}, session.say()


@pytest.mark.thorough
@pytest.mark.parametrize("path", _HOPS)
def test_nothing_is_left_of_a_run_that_is_killed_with_a_hop(tmp_path: Path, cache: Path, path: str) -> None:
    _needs(path)
    session = _session(path, tmp_path, cache)
    try:
        wait_until(partial(_under_way, session), "a trial")
        assert session.await_part(PATHS[path].hops[0], TIMEOUT_S) is not None, session.say()
        own = session.namespaces()
        session.process.kill()
        # sshd overwrites its environment and with it the mark; its namespaces still reveal it.
        wait_until(lambda: not session.marked.pids() and not own & all_namespaces(), "the end of all of it")
    finally:
        session.end()
    assert read_run(tmp_path / "a.howfar").trials


def _kill(session: Session, words: str) -> None:
    victim = session.await_part(words, TIMEOUT_S)
    assert victim is not None, session.say()
    os.kill(victim, signal.SIGKILL)


def _under_way(session: Session) -> bool:
    return bool(session.reported()) or session.process.poll() is not None
