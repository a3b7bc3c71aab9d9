"""A second connection sees each key of a load on a real server: none before it was sent, and all that were acknowledged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from howfar.contract.messages import (
    UnixTarget,
    Watched,
    Watching,
    WatchJob,
)
from howfar.engine import acknowledged
from howfar.engine.acknowledged import KeyOutcome
from howfar.engine.process import EngineFailed, EngineProcess
from howfar.lab.servers import DATABASE, USER
from howfar.runner.fault.crash import compare_visibility
from tests.acknowledged_scenario import MILLISECOND, SECOND, TABLE, job, null_server, run
from tests.lab.servers_here import Running, prepared, short_directory, started

pytestmark = [pytest.mark.alone, pytest.mark.lab]
CONNECTIONS = 8


@pytest.fixture
def alone(name: str, tmp_path: Path) -> Iterator[Running]:
    """The test's own server, with an empty table."""
    with started(prepared(name, short_directory(tmp_path)), networking=False) as running:
        running.execute(TABLE)
        yield running


def watch(running: Running, seen: Path) -> WatchJob:
    return WatchJob(
        target=UnixTarget(path=str(running.server.socket)),
        user=USER,
        password=running.password,
        database=DATABASE,
        table="inserted",
        column="id",
        connections=CONNECTIONS,
        seen=str(seen),
        watch_ns=60 * SECOND,
    )


def last(engine: EngineProcess) -> Watched:
    (event,) = engine.events()
    assert isinstance(event, Watched)
    return event


def test_each_key_is_seen_once_and_not_before_it_was_sent(alone: Running, tmp_path: Path) -> None:
    with EngineProcess(watch(alone, tmp_path / "seen")) as watcher:
        assert isinstance(watcher.read(), Watching)
        run(
            job(
                UnixTarget(path=str(alone.server.socket)),
                tmp_path / "keys",
                user=USER,
                password=alone.password,
                database=DATABASE,
                connections=CONNECTIONS,
                measure_ns=500 * MILLISECOND,
            )
        )
        watcher.end_input()
        watched = last(watcher)
    written, seen = acknowledged.read(tmp_path / "keys"), acknowledged.read(tmp_path / "seen")
    found = np.array([row["id"] for row in alone.execute("SELECT id FROM inserted")], np.int64)
    assert watched.interrupted is None and watched.polls > 1
    assert watched.keys == len(seen.records) == len(found) > CONNECTIONS
    assert np.array_equal(seen.keys(KeyOutcome.SEEN), np.sort(found))
    seen_keys, seen_ns = seen.ended(KeyOutcome.SEEN)
    order = np.argsort(written.records["key"])
    sent = written.records[order]
    at = np.searchsorted(sent["key"], seen_keys)
    assert (sent["sent_ns"].astype(np.int64)[at] + written.origin_ns < seen_ns).all()
    assert (sent["connection"][at] == seen.records["connection"]).all()
    visibility = compare_visibility(seen_keys, seen_ns, *written.ended(KeyOutcome.ACKNOWLEDGED), found)
    assert (visibility.unacknowledged.tolist(), visibility.phantoms.tolist()) == ([], [])


def test_the_servers_end_is_the_watchers(alone: Running, tmp_path: Path) -> None:
    with EngineProcess(watch(alone, tmp_path / "seen")) as watcher:
        assert isinstance(watcher.read(), Watching)
        os.kill(alone.server.pid, signal.SIGKILL)
        watched = last(watcher)
    assert watched.interrupted is not None and watched.interrupted.code == "server_gone"
    assert len(acknowledged.read(tmp_path / "seen").records) == 0


def test_a_table_that_is_not_there_is_told(alone: Running, tmp_path: Path) -> None:
    wanted = watch(alone, tmp_path / "seen").model_copy(update={"table": "nowhere"})
    with EngineProcess(wanted) as watcher, pytest.raises(EngineFailed, match="1146"):
        watcher.read()
    assert not (tmp_path / "seen").exists()


def test_an_answer_that_is_no_key_is_told(tmp_path: Path) -> None:
    with null_server(tmp_path) as (_, target):
        wanted = WatchJob(
            target=target,
            user="null",
            database="null",
            table="t",
            column="id",
            connections=1,
            seen=str(tmp_path / "seen"),
            watch_ns=SECOND,
        )
        with EngineProcess(wanted) as watcher, pytest.raises(EngineFailed, match="something else"):
            while True:
                watcher.read()
