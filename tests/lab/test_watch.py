"""A second connection sees the keys of a load on a real server: no key before it was sent, and every acknowledged key."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from howfar.contract.messages import Watched, Watching, WatchJob
from howfar.engine import acknowledged
from howfar.engine.acknowledged import KeyOutcome
from howfar.engine.process import EngineFailed, EngineProcess
from howfar.experiments.replication.fault.crash import compare_visibility
from tests.acknowledged_scenario import MILLISECOND, SECOND, TABLE, job, null_server, run
from tests.lab.local_servers import LocalServer, run_server

pytestmark = [pytest.mark.alone, pytest.mark.lab]
CONNECTIONS = 8


@pytest.fixture
def alone(name: str, tmp_path: Path) -> Iterator[LocalServer]:
    """The test's own server, with an empty table."""
    with run_server(name, tmp_path, networking=False) as server:
        server.execute(TABLE)
        yield server


def watch_job(server: LocalServer, seen: Path) -> WatchJob:
    return WatchJob(
        target=server.unix,
        **server.login,
        table="inserted",
        column="id",
        connections=CONNECTIONS,
        seen=str(seen),
        watch_ns=60 * SECOND,
    )


def read_result(engine: EngineProcess) -> Watched:
    (event,) = engine.events()
    assert isinstance(event, Watched)
    return event


def test_each_key_is_seen_once_and_not_before_it_was_sent(alone: LocalServer, tmp_path: Path) -> None:
    with EngineProcess(watch_job(alone, tmp_path / "seen")) as watcher:
        assert isinstance(watcher.read(), Watching)
        times = {"connections": CONNECTIONS, "measure_ns": 500 * MILLISECOND}
        run(job(alone.unix, tmp_path / "keys", **alone.login, **times))
        watcher.close_input()
        watched = read_result(watcher)
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


def test_the_watch_ends_with_its_server(alone: LocalServer, tmp_path: Path) -> None:
    with EngineProcess(watch_job(alone, tmp_path / "seen")) as watcher:
        assert isinstance(watcher.read(), Watching)
        os.kill(alone.process.pid, signal.SIGKILL)
        watched = read_result(watcher)
    assert watched.interrupted is not None and watched.interrupted.code == "server_gone"
    assert len(acknowledged.read(tmp_path / "seen").records) == 0


def test_a_missing_table_is_reported(alone: LocalServer, tmp_path: Path) -> None:
    watching = watch_job(alone, tmp_path / "seen").model_copy(update={"table": "nowhere"})
    with EngineProcess(watching) as watcher, pytest.raises(EngineFailed, match="1146"):
        watcher.read()
    assert not (tmp_path / "seen").exists()


def test_a_reply_that_is_not_a_key_is_reported(tmp_path: Path) -> None:
    with null_server(tmp_path) as (_, target):
        null: dict[str, Any] = {"user": "null", "database": "null", "table": "t", "column": "id"}
        watching = WatchJob(target=target, **null, connections=1, seen=str(tmp_path / "seen"), watch_ns=SECOND)
        with EngineProcess(watching) as watcher, pytest.raises(EngineFailed, match="something else"):
            while True:
                watcher.read()
