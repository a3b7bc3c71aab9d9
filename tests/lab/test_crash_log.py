"""A real server is killed under inserts and restarted: all inserts that the clients' log reports as acknowledged are there."""

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
    UnixTarget,
)
from howfar.engine import acknowledged
from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.lab.servers import DATABASE, USER
from howfar.runner.fault.crash import ClientLog, KeyComparison, Keys, compare_keys
from tests.acknowledged_scenario import INSERTS, MILLISECOND, SECOND, TABLE, ending, job, log_event, run
from tests.lab.servers_here import Running, prepared, short_directory, started

pytestmark = pytest.mark.lab
CONNECTIONS = 16


@dataclass(frozen=True)
class CrashResult:
    """The clients' log, and the keys that were on the server after its restart."""

    events: list[Event]
    log: KeyLog
    found: Keys

    def held_against(self, records: NDArray[Any]) -> KeyComparison:
        """The account according to these records of the log."""
        return compare_keys([client_log(records)], self.found)


def client_log(records: NDArray[Any]) -> ClientLog:
    parts = [
        records["key"][records["fate"] == fate]
        for fate in (KeyOutcome.ACKNOWLEDGED, KeyOutcome.REFUSED, KeyOutcome.UNKNOWN)
    ]
    return ClientLog(*parts)


def _load_on(running: Running, log: Path, **more: Any) -> LoadJob:
    target = UnixTarget(path=str(running.server.socket))
    who = {"user": USER, "password": running.password, "database": DATABASE}
    return job(target, log, measure_ns=60 * SECOND, **who, **more)


def keys_of(running: Running) -> Keys:
    return np.array([row["id"] for row in running.execute("SELECT id FROM inserted")], np.int64)


@pytest.fixture(scope="module")
def crashed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashResult]:
    """One crash in the middle of the load, with every commit flushed."""
    work = short_directory(tmp_path_factory.mktemp("k", numbered=True))
    store = prepared(name, work)
    path = tmp_path_factory.mktemp("log") / "keys"
    with started(store, networking=False) as running:
        running.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1", TABLE)
        slices: list[int] = []

        def at(event: Event) -> None:
            if isinstance(event, Interval):
                slices.append(event.transactions)
                if len(slices) > 2 and sum(slices) > 100:
                    os.kill(running.server.pid, signal.SIGKILL)

        wanted = _load_on(running, path, connections=CONNECTIONS, session=ending("end"), interval_ns=100 * MILLISECOND)
        events = run(wanted, at)
    with started(store, networking=False) as running:
        yield CrashResult(events, acknowledged.read(path), keys_of(running))


def test_the_job_ends_by_itself_and_tells_all(crashed: CrashResult) -> None:
    finished = crashed.events[-1]
    assert isinstance(finished, Finished) and finished.interrupted is not None, crashed.events[-1]
    assert finished.interrupted.code == "server_gone"
    assert finished.elapsed_ns < 60 * SECOND
    event = log_event(crashed.events)
    # The window ends with the interruption; commits acknowledged at that moment are only in the log.
    assert event.refused == 0 and 0 <= event.acknowledged - finished.transactions <= CONNECTIONS
    # Each connection had one commit under way.
    assert 0 < event.unknown <= CONNECTIONS


def test_nothing_that_was_acknowledged_is_lost(crashed: CrashResult) -> None:
    found = crashed.held_against(crashed.log.records)
    assert found.is_sound
    assert found.lost.tolist() == []
    assert found.kept == len(crashed.log.keys(KeyOutcome.ACKNOWLEDGED)) > 100
    # Keys on the server that were not acknowledged belong to commits that were under way.
    assert len(found.applied_unknown) + found.kept == len(crashed.found)
    assert len(found.applied_unknown) + found.absent_unknown <= CONNECTIONS


def test_faults_planted_in_the_log_are_found(crashed: CrashResult) -> None:
    records = np.array(crashed.log.records)
    at = int(np.flatnonzero(records["fate"] == KeyOutcome.ACKNOWLEDGED)[50])
    key = int(records["key"][at])
    assert crashed.held_against(np.delete(records, at)).uninserted.tolist() == [key]
    turned = records.copy()
    turned["fate"][at] = KeyOutcome.UNKNOWN
    assert key in crashed.held_against(turned).applied_unknown
    made_up = records.copy()
    made_up["key"][at] = 2**40
    planted = crashed.held_against(made_up)
    assert (planted.lost.tolist(), planted.uninserted.tolist()) == ([2**40], [key])


def test_a_row_that_vanishes_is_found(crashed: CrashResult) -> None:
    key = crashed.log.keys(KeyOutcome.ACKNOWLEDGED)[7]
    found = compare_keys([client_log(crashed.log.records)], crashed.found[crashed.found != key])
    assert found.lost.tolist() == [key]


def test_a_crash_fails_a_job_that_is_to_stop(name: str, tmp_path: Path) -> None:
    with started(prepared(name, short_directory(tmp_path)), networking=False) as running:
        running.execute(TABLE)

        def at(event: Event) -> None:
            if isinstance(event, Interval):
                os.kill(running.server.pid, signal.SIGKILL)

        path = tmp_path / "keys"
        events = run(_load_on(running, path, interval_ns=100 * MILLISECOND), at)
    assert isinstance(events[-1], Failed) and events[-1].code == "server_gone"
    assert len(acknowledged.read(path).records) == log_event(events).records


def test_what_is_refused_is_logged_with_its_error(name: str, tmp_path: Path) -> None:
    """Transactions have several statements; two keys are already taken by existing rows. There is one connection: of several, one
    might still wait for its refusal when another ends the load."""
    insert = INSERTS.statements[0]
    steps = tuple(CustomStep(statement=statement) for statement in ("begin", insert.name, "commit"))
    workload = Custom(
        statements=(CustomStatement(name="begin", sql="BEGIN"), insert, CustomStatement(name="commit", sql="COMMIT")),
        transactions=(CustomTransaction(name="insert", steps=steps),),
    )
    with started(prepared(name, short_directory(tmp_path)), networking=False) as running:
        running.execute(TABLE, "INSERT INTO inserted (id) VALUES (5), (6)")
        wanted = _load_on(
            running, tmp_path / "keys", workload=workload, ignore_errors=(1062,), transactions=100, connections=1
        )
        finished = run(wanted)[-1]
        found = keys_of(running)
    assert isinstance(finished, Finished)
    log = acknowledged.read(tmp_path / "keys")
    refused = log.records[log.records["fate"] == KeyOutcome.REFUSED]
    assert sorted(zip(refused["key"].tolist(), refused["error"].tolist(), strict=True)) == [(5, 1062), (6, 1062)]
    held = compare_keys([client_log(log.records)], found)
    assert (held.kept, held.lost.tolist(), held.applied_refused.tolist()) == (100, [], [5, 6])
    assert finished.transactions == 100 and finished.errors == {"1062": 2}
