"""Actions of the replication scenario on a primary and its replicas, including faults; each returns its observations."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from howfar.contract.replication_receipt import ReplicationWindow
from howfar.contract.violation import sentences
from howfar.doctor.examine import examine
from howfar.doctor.findings import Finding, Kind
from howfar.doctor.targets import DoctorTarget, Logins, TargetLogin
from howfar.errors import HowfarError, LabError
from howfar.experiments.replication.lab import ReplicaSet
from howfar.experiments.replication.lab.binary_log import BinaryLogReplication, query_status, query_variables
from howfar.experiments.replication.lab.links import EmulatedReplicationLink
from howfar.experiments.replication.lab.member import Member, refuse_errant_transactions, wait_for
from howfar.experiments.replication.lab.proof import latency_violation
from howfar.experiments.replication.lab.replica_set import promote
from howfar.experiments.replication.lab.watch import CommitWatch, LagWatch
from howfar.lab.servers import USER

INSERTS = 15
WRITERS = 4
TIMEOUT_S = 120.0
DETECTION_TIMEOUT_S = 60.0
"""Time within which a fault must have an effect."""
HANG_S = 2.0
FREE_BYTES = 4 << 20
"""Bytes left free on the disk that fills up: enough for some seconds of the log."""
Answer = dict[str, Any]


def _insert(replica_set: ReplicaSet, count: int, timeout_s: float = TIMEOUT_S) -> list[int]:
    """Insert single rows over one connection to the primary's socket; returns the sorted times in ns."""
    times = []
    with replica_set.primary.server.open_session(timeout_s, as_client=True) as run_query:
        for _ in range(count):
            began = time.monotonic_ns()
            run_query("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'howfar', '')")
            times.append(time.monotonic_ns() - began)
    return sorted(times)


def _binary_log(replica_set: ReplicaSet) -> BinaryLogReplication:
    assert isinstance(replica_set.dialect, BinaryLogReplication)
    return replica_set.dialect


def _error_of(action: Callable[[], object]) -> str | None:
    """The message of an action's LabError; None if the action succeeds."""
    try:
        action()
    except LabError as error:
        return error.message
    return None


def commits(replica_set: ReplicaSet) -> Answer:
    before, times, after = replica_set.snapshot(), _insert(replica_set, INSERTS), replica_set.snapshot()
    rtts = [link.prepare_load().p50_ns for link in replica_set.links]
    too_fast = latency_violation(replica_set.spec, times[INSERTS // 2], min(rtts, default=0))
    return {
        "p50_ns": times[INSERTS // 2],
        "rtt_ns": rtts,
        "after": after.as_json(),
        "violations": sentences(ReplicationWindow.between(before, after).violations(replica_set.spec, INSERTS)),
        "too_fast": None if too_fast is None else too_fast.sentence,
    }


def recorded(replica_set: ReplicaSet) -> Answer:
    """The servers' output that unit tests use as input."""
    return {
        "primary": [query_variables(replica_set.primary.query), query_status(replica_set.primary.query)],
        "replicas": [[query_variables(replica.query), query_status(replica.query)] for replica in replica_set.replicas],
        "statuses": [replica.query(_binary_log(replica_set).status_sql) for replica in replica_set.replicas],
        "states": [
            member.query_position(replica_set.dialect.state_sql)
            for member in (replica_set.primary, *replica_set.replicas)
        ],
    }


def fallback(replica_set: ReplicaSet) -> Answer:
    """Cut the link with a short timeout of the primary, and restore it."""
    before = replica_set.snapshot()
    replica_set.links[0].cut()
    times = _insert(replica_set, 3)
    after = replica_set.snapshot()
    replica_set.links[0].restore()
    _error_of(lambda: replica_set.wait_until_caught_up(replica_set.replicas[0]))
    return {
        "longest_ns": times[-1],
        "violations": sentences(ReplicationWindow.between(before, after).violations(replica_set.spec, 3)),
        "late_violations": sentences(
            ReplicationWindow.between(before, replica_set.snapshot()).violations(replica_set.spec, 3)
        ),
        "before": before.as_json(),
        "after": after.as_json(),
    }


def half_cut(replica_set: ReplicaSet) -> Answer:
    """Cut only the direction of acknowledgements: a row arrives at the replica, and its writer gets no reply."""
    replica_set.links[0].cut(("to_server",))
    error = _error_of(
        lambda: replica_set.primary.write("INSERT INTO sbtest1 (k, c, pad) VALUES (4242, '', '')", timeout_s=3.0)
    )
    rows = replica_set.replicas[0].query("SELECT COUNT(*) AS n FROM sbtest1 WHERE k = 4242")
    replica_set.links[0].restore()
    return {"error": error, "rows": rows[0]["n"]}


def cancelled(replica_set: ReplicaSet) -> Answer:
    """Cut the link and cancel a waiting commit from another session: its client gets a success."""
    before = replica_set.snapshot()
    replica_set.links[0].cut()
    errors: list[str | None] = []
    writing = threading.Thread(target=lambda: errors.append(_error_of(lambda: _insert(replica_set, 1))))
    writing.start()
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_for(lambda: bool(replica_set.primary.query(cancel)), TIMEOUT_S, lambda: "no commit waited")
    writing.join(TIMEOUT_S)
    replica_set.links[0].restore()
    replica_set.wait_until_caught_up(replica_set.replicas[0])
    return {
        "error": errors[0],
        "violations": sentences(
            ReplicationWindow.between(before, replica_set.snapshot()).violations(replica_set.spec, 1)
        ),
    }


def hang(replica_set: ReplicaSet) -> Answer:
    """Kill the replica: a commit hangs until the watch ends it."""
    watch = CommitWatch(replica_set, timeout_s=2.0)
    replica_set.replicas[0].server.kill()
    error = _error_of(
        lambda: replica_set.primary.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, '', '')", timeout_s=120.0)
    )
    history = watch.finish()
    return {"error": error, "watch": history, "afterwards": _error_of(replica_set.snapshot)}


def calm(replica_set: ReplicaSet) -> Answer:
    """Watch commits without a fault."""
    watch = CommitWatch(replica_set, timeout_s=TIMEOUT_S)
    _insert(replica_set, 5)
    return {"watch": watch.finish()}


def _leave(replica_set: ReplicaSet, replica: Member) -> None:
    """Stop replication, which the primary notices only by the lost connection."""
    replica.query(_binary_log(replica_set).stop_sql)


def _rejoin(replica_set: ReplicaSet, replica: Member) -> None:
    """Resume replication from the present position. Raises LabError if the replica has its own transactions."""
    refuse_errant_transactions(replica_set.primary, replica)
    replica.query(_binary_log(replica_set).start_sql)
    replica_set.wait_until_replicating(replica)


def lag(replica_set: ReplicaSet) -> Answer:
    """Stop and resume replication under a lag watch."""
    replica, watch = replica_set.replicas[0], LagWatch(replica_set, interval_s=0.05)
    wait_for(lambda: any(s.heartbeat_ns for s in watch.samples), TIMEOUT_S, lambda: "no heartbeat arrived")
    _leave(replica_set, replica)
    _insert(replica_set, 10)
    wait_for(lambda: max(s.behind for s in watch.samples) >= 10, TIMEOUT_S, lambda: "no lag was observed")
    _rejoin(replica_set, replica)
    replica_set.wait_until_caught_up(replica)
    return {"samples": [asdict(sample) for sample in watch.finish()]}


def promotion(replica_set: ReplicaSet) -> Answer:
    """Kill the primary: promotion is refused while the replica cannot apply transactions, and succeeds once it can."""
    replica = replica_set.replicas[0]
    with replica.server.open_session(TIMEOUT_S) as lock:
        lock("LOCK TABLES sbtest1 READ")
        _insert(replica_set, 4)
        wait_for(lambda: _received_all(replica_set, replica), TIMEOUT_S, lambda: "it did not receive all")
        replica_set.primary.server.kill()
        refused = _error_of(lambda: promote(replica, timeout_s=1.0))
        lock("UNLOCK TABLES")
    promoted = promote(replica)
    before = replica.query("SELECT COUNT(*) AS n FROM sbtest1")[0]["n"]
    replica.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'mine', '')", timeout_s=TIMEOUT_S)
    again = _error_of(lambda: promote(replica))
    return {"refused": refused, "promoted": asdict(promoted), "rows": before, "again": again}


def _received_all(replica_set: ReplicaSet, replica: Member) -> bool:
    state = replica.read_replica_state()
    assert state is not None
    position = replica_set.primary.query_position(replica_set.dialect.position_sql)
    return replica_set.dialect.positions.count_missing(position, state.received) == 0


def diverge(replica_set: ReplicaSet) -> Answer:
    """Write on a replica that has left, and let it rejoin."""
    replica = replica_set.replicas[0]
    _leave(replica_set, replica)
    replica.query(_binary_log(replica_set).writable_sql)
    replica.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'own', '')", timeout_s=TIMEOUT_S)
    return {"refused": _error_of(lambda: _rejoin(replica_set, replica))}


def crash(replica_set: ReplicaSet) -> Answer:
    """Kill the primary under inserts with known keys, and compare acknowledged with surviving keys."""
    writers = Writers(replica_set, lambda key: f"INSERT INTO sbtest1 (id, k, c, pad) VALUES ({key}, 1, '', '')")
    writers.wait_until_written(20 * WRITERS)
    replica_set.links[0].cut()  # otherwise data in the dead server's sockets would still arrive
    if not replica_set.spec.acknowledgements_needed:
        # A busy machine may commit nothing between the cut and the death.
        writers.wait_until_written(len(writers.acknowledged) + WRITERS)
    replica_set.primary.server.kill()
    writers.finish()
    acknowledged = set(writers.acknowledged)
    promoted = promote(replica_set.replicas[0])
    found = {int(row["id"]) for row in replica_set.replicas[0].query("SELECT id FROM sbtest1 WHERE id >= 1000000")}
    replica_set.links[0].restore()
    return {
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - found),
        "never_acknowledged": len(found - acknowledged),
        "promoted": asdict(promoted),
    }


_MISCONFIGURATION = {
    "galera": (
        "wsrep_sync_wait = 7",
        'wsrep_provider_options = "evs.suspect_timeout=PT1.9S;gcs.fc_limit=1;pc.ignore_sb=YES"',
    ),
    "group": (
        "group_replication_consistency = BEFORE",
        "group_replication_member_expel_timeout = 0",
        "group_replication_flow_control_applier_threshold = 10",
    ),
}


def doctor(replica_set: ReplicaSet) -> Answer:
    """Misconfigure the cluster, load it, examine it, apply the proposed lines, and examine it again."""
    _configure(replica_set, _MISCONFIGURATION[replica_set.spec.mode])
    replica_set.primary.query("FLUSH LOCAL STATUS")
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda _: _insert(replica_set, 10 * INSERTS), range(WRITERS)))
    first = _examine_cluster(replica_set)
    _configure(replica_set, (line for finding in first for change in finding.changes for line in change.lines))
    examinations = (first, _examine_cluster(replica_set))
    return {
        "found": [{finding.check: finding.severity for finding in found} for found in examinations],
        "findings": [finding.model_dump(mode="json") for finding in first],
    }


def _configure(replica_set: ReplicaSet, lines: Iterable[str]) -> None:
    """Set the variables of option-file lines on each server."""
    for line in lines:
        name, _, value = line.partition("#")[0].strip().partition(" = ")
        for member in replica_set.members if value else ():
            member.query(f"SET GLOBAL {name} = {value if value.isdigit() else repr(value.strip(chr(34)))}")


def _examine_cluster(replica_set: ReplicaSet) -> tuple[Finding, ...]:
    server = replica_set.primary.server
    login, no_login = TargetLogin(USER, server.password), TargetLogin("", "")
    target = DoctorTarget(Kind.MYSQL, str(server.socket), None, None, USER, tls=False)
    link = replica_set.links[0]
    assert isinstance(link, EmulatedReplicationLink)
    host = link.network.server
    (examined,) = host.run(lambda: examine((target,), Logins(login, no_login, no_login), seconds=0.5)).servers
    return tuple(finding for finding in examined.findings if finding.check.startswith("cluster"))


def torn(replica_set: ReplicaSet) -> Answer:
    """Cut the link in the middle of a large row; returns the promotion and whether the replica has the row."""
    replica = replica_set.replicas[0]
    replica_set.primary.write("CREATE TABLE big (id INT PRIMARY KEY, t LONGBLOB)", timeout_s=TIMEOUT_S)
    replica_set.wait_until_caught_up(replica)
    replica_set.links[0].prepare_load()
    replica_set.primary.write(f"INSERT INTO big VALUES (1, '{'x' * 12_000_000}')", timeout_s=TIMEOUT_S)
    wait_for(lambda: _bytes_to_replica(replica_set) > 100_000, TIMEOUT_S, lambda: "the row was not sent")
    replica_set.links[0].cut()
    replica_set.primary.server.kill()
    promoted = promote(replica)
    replica_set.links[0].restore()
    return {"promoted": asdict(promoted), "rows": replica.query("SELECT COUNT(*) AS n FROM big")[0]["n"]}


def _bytes_to_replica(replica_set: ReplicaSet) -> int:
    crossed = replica_set.links[0].counters()
    assert crossed is not None
    return crossed.to_client.wire_bytes


class Writers:
    """Threads that write rows with known keys until they are stopped or their server ends."""

    def __init__(self, replica_set: ReplicaSet, write: Callable[[int], str]) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[str] = []
        self._replica_set, self._write, self._stop = replica_set, write, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(1_000_000 * n,)) for n in range(1, WRITERS + 1)]
        for thread in self._threads:
            thread.start()

    def _run(self, first: int) -> None:
        try:
            with self._replica_set.primary.server.open_session(TIMEOUT_S, as_client=True) as run_query:
                for key in range(first, first + 1_000_000):
                    if self._stop.is_set():
                        return
                    run_query(self._write(key))
                    self.acknowledged.append(key)
        except (HowfarError, OSError) as error:
            self.errors.append(str(error)[:300])

    def wait_until_written(self, count: int) -> None:
        wait_for(
            lambda: len(self.acknowledged) >= count or self.have_ended(), TIMEOUT_S, lambda: "too few rows were written"
        )

    def have_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)


def _small_row(key: int) -> str:
    return f"INSERT INTO wide VALUES ({key}, '')"


def _large_row(key: int) -> str:
    """A statement that adds much to the log and little to the data."""
    return f"REPLACE INTO wide VALUES ({key // 1_000_000}, '{'x' * 16_000}')"


def _inject(
    replica_set: ReplicaSet,
    fault: Callable[[ReplicaSet], None],
    has_effect: Callable[[ReplicaSet, Writers], bool],
    write: Callable[[int], str] = _small_row,
) -> Answer:
    """Run a window under writes, inject a fault, wait for its effect, and judge the window like a trial's."""
    replica_set.primary.write("CREATE TABLE wide (id INT PRIMARY KEY, t VARCHAR(16000))", timeout_s=TIMEOUT_S)
    before, began = replica_set.snapshot(), time.monotonic()
    watch, lag, writers = CommitWatch(replica_set, timeout_s=HANG_S), LagWatch(replica_set), Writers(replica_set, write)
    answer: Answer = {}
    try:
        writers.wait_until_written(4 * WRITERS)
        fault(replica_set)
        with suppress(HowfarError):
            wait_for(lambda: has_effect(replica_set, writers), DETECTION_TIMEOUT_S, lambda: "the fault had no effect")
    finally:
        writers.finish()
        answer["writing_s"] = time.monotonic() - began
        answer["hung"] = watch.finish()
        answer["samples"] = len(lag.finish())
        answer["acknowledged"], answer["errors"] = len(writers.acknowledged), writers.errors[:1]
    try:
        window = ReplicationWindow.between(before, replica_set.snapshot())
        answer["violations"] = sentences(window.violations(replica_set.spec, len(writers.acknowledged)))
    except HowfarError as error:
        answer["error"] = [type(error).__name__, error.message, error.advice]
    answer["took_s"] = time.monotonic() - began
    return answer


def _applier_stopped(replica_set: ReplicaSet, writers: Writers) -> bool:
    state = replica_set.replicas[0].read_replica_state()
    return state is None or state.applying != "Yes"


def _writers_ended(replica_set: ReplicaSet, writers: Writers) -> bool:
    return writers.have_ended()


def _writers_ended_or_need_no_replica(replica_set: ReplicaSet, writers: Writers) -> bool:
    return not replica_set.spec.semi_sync or writers.have_ended()


def clash(replica_set: ReplicaSet) -> Answer:
    """The replica gets its own rows with keys that the primary will insert."""

    def fault(replica_set: ReplicaSet) -> None:
        replica = replica_set.replicas[0]
        replica.query(_binary_log(replica_set).writable_sql)
        keys = ",".join(f"({1_000_000 * number + 900}, '')" for number in range(1, WRITERS + 1))
        near = ",".join(f"({1_000_000 + number}, '')" for number in range(60, 900))
        replica.write(
            "SET SESSION sql_log_bin = 0", f"INSERT INTO sbtest.wide VALUES {keys},{near}", timeout_s=TIMEOUT_S
        )

    return _inject(replica_set, fault, _applier_stopped)


def own_write(replica_set: ReplicaSet) -> Answer:
    """The replica commits and logs its own write, so that the histories diverge."""

    def fault(replica_set: ReplicaSet) -> None:
        replica = replica_set.replicas[0]
        replica.query(_binary_log(replica_set).writable_sql)
        replica.write("INSERT INTO sbtest.sbtest1 (k, c, pad) VALUES (1, 'own', '')", timeout_s=TIMEOUT_S)

    return _inject(
        replica_set,
        fault,
        lambda replica_set, writers: _applier_stopped(replica_set, writers) or len(writers.acknowledged) > 400,
    )


def replica_dies(replica_set: ReplicaSet) -> Answer:
    return _inject(
        replica_set, lambda replica_set: replica_set.replicas[0].server.kill(), _writers_ended_or_need_no_replica
    )


def primary_dies(replica_set: ReplicaSet) -> Answer:
    return _inject(replica_set, lambda replica_set: replica_set.primary.server.kill(), _writers_ended)


def disk_fills(replica_set: ReplicaSet) -> Answer:
    """The primary's own disk fills up; `small_primary_disk` must have limited it."""

    def fault(replica_set: ReplicaSet) -> None:
        where = replica_set.primary.server.socket.parent
        with (where / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while (free := shutil.disk_usage(where).free) > FREE_BYTES:
                ballast.write(bytes(min(free - FREE_BYTES, FREE_BYTES)))

    return _inject(replica_set, fault, _writers_ended, _large_row)


def emulator_dies(replica_set: ReplicaSet) -> Answer:
    def fault(replica_set: ReplicaSet) -> None:
        pid = replica_set.links[0].pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    return _inject(replica_set, fault, _writers_ended_or_need_no_replica)


ACTIONS: dict[str, Callable[[ReplicaSet], Answer]] = {
    action.__name__: action
    for action in (
        *(commits, recorded, fallback, half_cut, cancelled, hang, calm, lag, promotion, diverge, crash, doctor, torn),
        *(clash, own_write, replica_dies, primary_dies, disk_fills, emulator_dies),
    )
}
