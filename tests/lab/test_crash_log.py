"""A server is killed under inserts and restarted: it has all rows that the clients' log reports as acknowledged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from howfar.contract.messages import (
    Custom,
    CustomStatement,
    CustomStep,
    CustomTransaction,
    Event,
    Failed,
    Finished,
    Interval,
    LoadJob,
)
from howfar.engine import acknowledged
from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.experiments.replication.fault.crash import ClientLog, KeyComparison, Keys, compare_keys
from tests.acknowledged_scenario import INSERTS, MILLISECOND, SECOND, TABLE, ending, job, log_event, run
from tests.lab.local_servers import LocalServer, make_short_directory, prepare_store, run_server, run_store

pytestmark = pytest.mark.lab
CONNECTIONS = 16


@dataclass(frozen=True)
class CrashResult:
    """The clients' log, and the keys that were on the server after its restart."""

    events: list[Event]
    log: KeyLog
    found: Keys

    def compare(self, records: NDArray[Any]) -> KeyComparison:
        """Compare the keys on the server with these records of the log."""
        return compare_keys([client_log(records)], self.found)


def client_log(records: NDArray[Any]) -> ClientLog:
    parts = [
        records["key"][records["fate"] == fate]
        for fate in (KeyOutcome.ACKNOWLEDGED, KeyOutcome.REFUSED, KeyOutcome.UNKNOWN)
    ]
    return ClientLog(*parts)


def _load_on(server: LocalServer, log: Path, **more: Any) -> LoadJob:
    return job(server.unix, log, measure_ns=60 * SECOND, **server.login, **more)


def keys_of(server: LocalServer) -> Keys:
    return np.array([row["id"] for row in server.execute("SELECT id FROM inserted")], np.int64)


@pytest.fixture(scope="module")
def crashed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashResult]:
    """A crash during the load, with every commit flushed."""
    work = make_short_directory(tmp_path_factory.mktemp("k", numbered=True))
    store = prepare_store(name, work)
    path = tmp_path_factory.mktemp("log") / "keys"
    with run_store(store, networking=False) as server:
        server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1", TABLE)
        transactions: list[int] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Interval):
                transactions.append(event.transactions)
                if len(transactions) > 2 and sum(transactions) > 100:
                    os.kill(server.process.pid, signal.SIGKILL)

        load = _load_on(server, path, connections=CONNECTIONS, session=ending("end"), interval_ns=100 * MILLISECOND)
        events = run(load, on_event)
    with run_store(store, networking=False) as server:
        yield CrashResult(events, acknowledged.read(path), keys_of(server))


def test_the_job_ends_by_itself_and_reports_the_crash(crashed: CrashResult) -> None:
    finished = crashed.events[-1]
    assert isinstance(finished, Finished) and finished.interrupted is not None, crashed.events[-1]
    assert finished.interrupted.code == "server_gone"
    assert finished.elapsed_ns < 60 * SECOND
    event = log_event(crashed.events)
    # Commits acknowledged while the window is being ended are only in the log.
    assert event.refused == 0 and 0 <= event.acknowledged - finished.transactions <= CONNECTIONS
    # Each connection had at most one commit in flight.
    assert 0 < event.unknown <= CONNECTIONS


def test_no_acknowledged_key_is_lost(crashed: CrashResult) -> None:
    found = crashed.compare(crashed.log.records)
    assert found.is_sound
    assert found.lost.tolist() == []
    assert found.kept == len(crashed.log.keys(KeyOutcome.ACKNOWLEDGED)) > 100
    # Keys on the server that were not acknowledged belong to commits in flight.
    assert len(found.applied_unknown) + found.kept == len(crashed.found)
    assert len(found.applied_unknown) + found.absent_unknown <= CONNECTIONS


def test_false_entries_of_the_log_are_found(crashed: CrashResult) -> None:
    records = np.array(crashed.log.records)
    at = int(np.flatnonzero(records["fate"] == KeyOutcome.ACKNOWLEDGED)[50])
    key = int(records["key"][at])
    assert crashed.compare(np.delete(records, at)).uninserted.tolist() == [key]
    unknown = records.copy()
    unknown["fate"][at] = KeyOutcome.UNKNOWN
    assert key in crashed.compare(unknown).applied_unknown
    false_entry = records.copy()
    false_entry["key"][at] = 2**40
    planted = crashed.compare(false_entry)
    assert (planted.lost.tolist(), planted.uninserted.tolist()) == ([2**40], [key])


def test_a_lost_row_is_found(crashed: CrashResult) -> None:
    key = crashed.log.keys(KeyOutcome.ACKNOWLEDGED)[7]
    found = compare_keys([client_log(crashed.log.records)], crashed.found[crashed.found != key])
    assert found.lost.tolist() == [key]


def test_a_crash_fails_a_job_that_stops_on_disconnect(name: str, tmp_path: Path) -> None:
    with run_server(name, tmp_path, networking=False) as server:
        server.execute(TABLE)

        def on_event(event: Event) -> None:
            if isinstance(event, Interval):
                os.kill(server.process.pid, signal.SIGKILL)

        path = tmp_path / "keys"
        events = run(_load_on(server, path, interval_ns=100 * MILLISECOND), on_event)
    assert isinstance(events[-1], Failed) and events[-1].code == "server_gone"
    assert len(acknowledged.read(path).records) == log_event(events).records


def test_a_refused_key_is_logged_with_its_error(name: str, tmp_path: Path) -> None:
    """Transactions have several statements, and two keys exist already. There is only one connection: with several, one might still
    wait for its refusal when another ends the load."""
    insert = INSERTS.statements[0]
    steps = tuple(CustomStep(statement=statement) for statement in ("begin", insert.name, "commit"))
    workload = Custom(
        statements=(CustomStatement(name="begin", sql="BEGIN"), insert, CustomStatement(name="commit", sql="COMMIT")),
        transactions=(CustomTransaction(name="insert", steps=steps),),
    )
    with run_server(name, tmp_path, networking=False) as server:
        server.execute(TABLE, "INSERT INTO inserted (id) VALUES (5), (6)")
        fields = {"workload": workload, "ignore_errors": (1062,), "transactions": 100, "connections": 1}
        finished = run(_load_on(server, tmp_path / "keys", **fields))[-1]
        found = keys_of(server)
    assert isinstance(finished, Finished)
    log = acknowledged.read(tmp_path / "keys")
    refused = log.records[log.records["fate"] == KeyOutcome.REFUSED]
    assert sorted(zip(refused["key"].tolist(), refused["error"].tolist(), strict=True)) == [(5, 1062), (6, 1062)]
    comparison = compare_keys([client_log(log.records)], found)
    assert (comparison.kept, comparison.lost.tolist(), comparison.applied_refused.tolist()) == (100, [], [5, 6])
    assert finished.transactions == 100 and finished.errors == {"1062": 2}
