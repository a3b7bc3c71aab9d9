"""Faults while several connections write, and what is then reported about the window. For the scenario."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from howfar.errors import HowfarError
from howfar.lab.replication import ReplicaSet
from howfar.lab.replication.binary_log import BinaryLogReplication
from howfar.lab.replication.member import wait_for
from howfar.lab.replication.proof import violations
from howfar.lab.replication.watch import CommitWatch, LagWatch

WRITERS = 4
TIMEOUT_S = 120.0
SEEN_S = 60.0
"""Time within which a window must notice a fault by itself."""
HANG_S = 2.0
LEFT = 4 << 20
"""Bytes left free on the disk that fills up: room for some seconds of the log."""
Answer = dict[str, Any]


class Writers:
    """Threads that write single rows, with keys that they choose, until they are stopped or their server ends."""

    def __init__(self, replica_set: ReplicaSet, write: Callable[[int], str]) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[str] = []
        self._pair, self._write, self._stop = replica_set, write, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(1_000_000 * n,)) for n in range(1, WRITERS + 1)]
        for thread in self._threads:
            thread.start()

    def _run(self, first: int) -> None:
        try:
            with self._pair.primary.server.open_session(TIMEOUT_S, as_client=True) as ask:
                for key in range(first, first + 1_000_000):
                    if self._stop.is_set():
                        return
                    ask(self._write(key))
                    self.acknowledged.append(key)
        except (HowfarError, OSError) as error:
            self.errors.append(str(error)[:300])

    def have_written(self, count: int) -> None:
        wait_for(lambda: len(self.acknowledged) >= count or self.over(), TIMEOUT_S, lambda: "too few rows were written")

    def over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)


def _small(key: int) -> str:
    return f"INSERT INTO wide VALUES ({key}, '')"


def _large(key: int) -> str:
    """A statement that fills the log, but hardly the data."""
    return f"REPLACE INTO wide VALUES ({key // 1_000_000}, '{'x' * 16_000}')"


def _broken(
    replica_set: ReplicaSet,
    how: Callable[[ReplicaSet], None],
    done: Callable[[ReplicaSet, Writers], bool],
    write: Callable[[int], str] = _small,
) -> Answer:
    """Run a window under writes, break the pair in the middle, and judge the window like a trial's."""
    replica_set.primary.write("CREATE TABLE wide (id INT PRIMARY KEY, t VARCHAR(16000))", timeout_s=TIMEOUT_S)
    before, began = replica_set.snapshot(), time.monotonic()
    watch, lag, writers = CommitWatch(replica_set, timeout_s=HANG_S), LagWatch(replica_set), Writers(replica_set, write)
    answer: Answer = {}
    try:
        writers.have_written(4 * WRITERS)
        how(replica_set)
        with suppress(HowfarError):
            wait_for(lambda: done(replica_set, writers), SEEN_S, lambda: "nothing was seen")
    finally:
        writers.finish()
        answer["writing_s"] = time.monotonic() - began
        answer["hung"] = watch.finish()
        answer["samples"] = len(lag.finish())
        answer["acknowledged"], answer["errors"] = len(writers.acknowledged), writers.errors[:1]
    try:
        answer["violations"] = violations(replica_set.spec, before, replica_set.snapshot(), len(writers.acknowledged))
    except HowfarError as error:
        answer["error"] = [type(error).__name__, error.message, error.advice]
    answer["took_s"] = time.monotonic() - began
    return answer


def _applier_stopped(replica_set: ReplicaSet, writers: Writers) -> bool:
    state = replica_set.replicas[0].replica_state()
    return state is None or state.applying != "Yes"


def _over(replica_set: ReplicaSet, writers: Writers) -> bool:
    return writers.over()


def _over_or_nobody_waits(replica_set: ReplicaSet, writers: Writers) -> bool:
    return not replica_set.spec.semi_sync or writers.over()


def clash(replica_set: ReplicaSet) -> Answer:
    """The replica has its own rows under keys that the primary will insert."""

    def how(replica_set: ReplicaSet) -> None:
        replica = replica_set.replicas[0]
        assert isinstance(replica_set.dialect, BinaryLogReplication)
        replica.ask(replica_set.dialect.writable_sql)
        keys = ",".join(f"({1_000_000 * number + 900}, '')" for number in range(1, WRITERS + 1))
        near = ",".join(f"({1_000_000 + number}, '')" for number in range(60, 900))
        replica.write(
            "SET SESSION sql_log_bin = 0", f"INSERT INTO sbtest.wide VALUES {keys},{near}", timeout_s=TIMEOUT_S
        )

    return _broken(replica_set, how, _applier_stopped)


def own_write(replica_set: ReplicaSet) -> Answer:
    """The replica commits a write of its own and logs it: from then on the histories diverge."""

    def how(replica_set: ReplicaSet) -> None:
        replica = replica_set.replicas[0]
        assert isinstance(replica_set.dialect, BinaryLogReplication)
        replica.ask(replica_set.dialect.writable_sql)
        replica.write("INSERT INTO sbtest.sbtest1 (k, c, pad) VALUES (1, 'own', '')", timeout_s=TIMEOUT_S)

    return _broken(
        replica_set,
        how,
        lambda replica_set, writers: _applier_stopped(replica_set, writers) or len(writers.acknowledged) > 400,
    )


def replica_dies(replica_set: ReplicaSet) -> Answer:
    return _broken(replica_set, lambda replica_set: replica_set.replicas[0].server.kill(), _over_or_nobody_waits)


def primary_dies(replica_set: ReplicaSet) -> Answer:
    return _broken(replica_set, lambda replica_set: replica_set.primary.server.kill(), _over)


def disk_fills(replica_set: ReplicaSet) -> Answer:
    """The primary's own disk fills up: see `little_room`."""

    def how(replica_set: ReplicaSet) -> None:
        where = replica_set.primary.server.socket.parent
        with (where / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while (free := shutil.disk_usage(where).free) > LEFT:
                ballast.write(bytes(min(free - LEFT, LEFT)))

    return _broken(replica_set, how, _over, _large)


def emulator_dies(replica_set: ReplicaSet) -> Answer:
    def how(replica_set: ReplicaSet) -> None:
        pid = replica_set.links[0].pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    return _broken(replica_set, how, _over_or_nobody_waits)


BREAKS: dict[str, Callable[[ReplicaSet], Answer]] = {
    act.__name__: act for act in (clash, own_write, replica_dies, primary_dies, disk_fills, emulator_dies)
}
