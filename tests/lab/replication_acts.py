"""Acts that the tests perform on a pair; each returns what it observed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from howfar.doctor.examine import examine
from howfar.doctor.findings import Finding, Kind
from howfar.doctor.targets import DoctorTarget, Logins, TargetLogin
from howfar.errors import HowfarError, LabError
from howfar.lab.replication import ReplicaSet
from howfar.lab.replication.binary_log import BinaryLogReplication, status, variables
from howfar.lab.replication.links import EmulatedReplicationLink
from howfar.lab.replication.member import Member, wait_for
from howfar.lab.replication.proof import latency_violation, violations
from howfar.lab.replication.replica_set import promote
from howfar.lab.replication.watch import CommitWatch, LagWatch
from howfar.lab.servers import USER

INSERTS = 15
WRITERS = 4
TIMEOUT_S = 120.0
Answer = dict[str, Any]


def _insert(replica_set: ReplicaSet, count: int, timeout_s: float = TIMEOUT_S) -> list[int]:
    """Single-row inserts of one connection over the primary's socket; returns their times, sorted."""
    times = []
    with replica_set.primary.server.open_session(timeout_s, as_client=True) as ask:
        for _ in range(count):
            began = time.monotonic_ns()
            ask("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'howfar', '')")
            times.append(time.monotonic_ns() - began)
    return sorted(times)


def _binary_log(replica_set: ReplicaSet) -> BinaryLogReplication:
    assert isinstance(replica_set.dialect, BinaryLogReplication)
    return replica_set.dialect


def _refused(tried: Callable[[], object]) -> str | None:
    try:
        tried()
    except LabError as error:
        return error.message
    return None


def commits(replica_set: ReplicaSet) -> Answer:
    before, times, after = replica_set.snapshot(), _insert(replica_set, INSERTS), replica_set.snapshot()
    rtts = [link.begin().p50_ns for link in replica_set.links]
    return {
        "p50_ns": times[INSERTS // 2],
        "rtt_ns": rtts,
        "after": after.as_json(),
        "violations": violations(replica_set.spec, before, after, INSERTS),
        "too_fast": latency_violation(replica_set.spec, times[INSERTS // 2], min(rtts, default=0)),
    }


def recorded(replica_set: ReplicaSet) -> Answer:
    """Output of the servers that serves as input of unit tests."""
    return {
        "primary": [variables(replica_set.primary.ask), status(replica_set.primary.ask)],
        "replicas": [[variables(replica.ask), status(replica.ask)] for replica in replica_set.replicas],
        "statuses": [replica.ask(_binary_log(replica_set).status_sql) for replica in replica_set.replicas],
        "states": [
            member.position(replica_set.dialect.state_sql) for member in (replica_set.primary, *replica_set.replicas)
        ],
    }


def fallback(replica_set: ReplicaSet) -> Answer:
    """The link is cut under a short timeout, and repaired."""
    before = replica_set.snapshot()
    replica_set.links[0].cut()
    times = _insert(replica_set, 3)
    after = replica_set.snapshot()
    replica_set.links[0].mend()
    _refused(lambda: replica_set.await_caught_up(replica_set.replicas[0]))
    return {
        "longest_ns": times[-1],
        "violations": violations(replica_set.spec, before, after, 3),
        "late_violations": violations(replica_set.spec, before, replica_set.snapshot(), 3),
        "before": before.as_json(),
        "after": after.as_json(),
    }


def half_cut(replica_set: ReplicaSet) -> Answer:
    """Acknowledgements are lost, but the primary's data arrives: the row is on the replica, and its writer gets no answer."""
    replica_set.links[0].cut(("to_server",))
    error = _refused(
        lambda: replica_set.primary.write("INSERT INTO sbtest1 (k, c, pad) VALUES (4242, '', '')", timeout_s=3.0)
    )
    rows = replica_set.replicas[0].ask("SELECT COUNT(*) AS n FROM sbtest1 WHERE k = 4242")
    replica_set.links[0].mend()
    return {"error": error, "rows": rows[0]["n"]}


def cancelled(replica_set: ReplicaSet) -> Answer:
    """The link is cut; another session cancels the wait of a commit, and its client gets a success."""
    before = replica_set.snapshot()
    replica_set.links[0].cut()
    errors: list[str | None] = []
    writing = threading.Thread(target=lambda: errors.append(_refused(lambda: _insert(replica_set, 1))))
    writing.start()
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_for(lambda: bool(replica_set.primary.ask(cancel)), TIMEOUT_S, lambda: "no commit waited")
    writing.join(TIMEOUT_S)
    replica_set.links[0].mend()
    replica_set.await_caught_up(replica_set.replicas[0])
    return {"error": errors[0], "violations": violations(replica_set.spec, before, replica_set.snapshot(), 1)}


def hang(replica_set: ReplicaSet) -> Answer:
    """The replica dies; a commit hangs until the watch ends it."""
    watch = CommitWatch(replica_set, timeout_s=2.0)
    replica_set.replicas[0].server.kill()
    error = _refused(
        lambda: replica_set.primary.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, '', '')", timeout_s=120.0)
    )
    history = watch.finish()
    return {"error": error, "said": history, "afterwards": _refused(replica_set.snapshot)}


def calm(replica_set: ReplicaSet) -> Answer:
    """A watch that sees nothing wrong reports nothing."""
    watch = CommitWatch(replica_set, timeout_s=TIMEOUT_S)
    _insert(replica_set, 5)
    return {"said": watch.finish()}


def _leave(replica_set: ReplicaSet, replica: Member) -> None:
    """Stop replicating; the primary learns of it only by the lost connection."""
    replica.ask(_binary_log(replica_set).stop_sql)


def _rejoin(replica_set: ReplicaSet, replica: Member) -> None:
    """Resume replication from the present position. Raises LabError if the replica has written on its own."""
    replica_set.refuse_errant_transactions(replica)
    replica.ask(_binary_log(replica_set).start_sql)
    replica_set.await_replicating(replica)


def lag(replica_set: ReplicaSet) -> Answer:
    """Replication stops and resumes under a lag watch."""
    replica, watch = replica_set.replicas[0], LagWatch(replica_set, interval_s=0.05)
    wait_for(lambda: any(s.heartbeat_ns for s in watch.samples), TIMEOUT_S, lambda: "no heartbeat came")
    _leave(replica_set, replica)
    _insert(replica_set, 10)
    wait_for(lambda: max(s.behind for s in watch.samples) >= 10, TIMEOUT_S, lambda: "no lag was seen")
    _rejoin(replica_set, replica)
    replica_set.await_caught_up(replica)
    return {"samples": [asdict(sample) for sample in watch.finish()]}


def promotion(replica_set: ReplicaSet) -> Answer:
    """With the primary dead, promotion is refused while the replica cannot apply, and succeeds once it can."""
    replica = replica_set.replicas[0]
    with replica.server.open_session(TIMEOUT_S) as lock:
        lock("LOCK TABLES sbtest1 READ")
        _insert(replica_set, 4)
        wait_for(lambda: _received_all(replica_set, replica), TIMEOUT_S, lambda: "it did not receive all")
        replica_set.primary.server.kill()
        refused = _refused(lambda: promote(replica, timeout_s=1.0))
        lock("UNLOCK TABLES")
    promoted = promote(replica)
    before = replica.ask("SELECT COUNT(*) AS n FROM sbtest1")[0]["n"]
    replica.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'mine', '')", timeout_s=TIMEOUT_S)
    again = _refused(lambda: promote(replica))
    return {"refused": refused, "promoted": asdict(promoted), "rows": before, "again": again}


def _received_all(replica_set: ReplicaSet, replica: Member) -> bool:
    state = replica.replica_state()
    assert state is not None
    return (
        replica_set.dialect.positions.lacking(
            replica_set.primary.position(replica_set.dialect.position_sql), state.received
        )
        == 0
    )


def diverge(replica_set: ReplicaSet) -> Answer:
    """The replica writes on its own and tries to rejoin."""
    replica = replica_set.replicas[0]
    _leave(replica_set, replica)
    replica.ask(_binary_log(replica_set).writable_sql)
    replica.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'own', '')", timeout_s=TIMEOUT_S)
    return {"refused": _refused(lambda: _rejoin(replica_set, replica))}


def crash(replica_set: ReplicaSet) -> Answer:
    """The primary dies under inserts of several connections, which choose the keys; compares acknowledged and surviving keys."""
    acknowledged: list[int] = []

    def insert(first: int) -> None:
        with (
            suppress(HowfarError, OSError),
            replica_set.primary.server.open_session(TIMEOUT_S, as_client=True) as ask,
        ):
            for key in range(first, first + 100_000):
                ask(f"INSERT INTO sbtest1 (id, k, c, pad) VALUES ({key}, 1, '', '')")
                acknowledged.append(key)

    writers = [threading.Thread(target=insert, args=(1_000_000 * number,)) for number in range(1, WRITERS + 1)]
    for writer in writers:
        writer.start()
    wait_for(lambda: len(acknowledged) >= 20 * WRITERS, TIMEOUT_S, lambda: "too few were acknowledged")
    replica_set.links[0].cut()  # otherwise data in the dead server's sockets would still arrive
    if not replica_set.spec.needed:
        cut_at = len(acknowledged)  # a busy machine may commit nothing between the cut and the death
        wait_for(
            lambda: len(acknowledged) >= cut_at + WRITERS, TIMEOUT_S, lambda: "nothing was acknowledged after the cut"
        )
    replica_set.primary.server.kill()
    for writer in writers:
        writer.join(TIMEOUT_S)
    promoted = promote(replica_set.replicas[0])
    found = {int(row["id"]) for row in replica_set.replicas[0].ask("SELECT id FROM sbtest1 WHERE id >= 1000000")}
    replica_set.links[0].mend()
    return {
        "acknowledged": len(acknowledged),
        "lost": len(set(acknowledged) - found),
        "never_acknowledged": len(found - set(acknowledged)),
        "promoted": asdict(promoted),
    }


_WRONG = {
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
    """Misconfigure the cluster, load it briefly, examine it, apply the proposed lines, and examine it again."""
    _configure(replica_set, _WRONG[replica_set.spec.mode])
    replica_set.primary.ask("FLUSH LOCAL STATUS")
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda _: _insert(replica_set, 10 * INSERTS), range(WRITERS)))
    first = _looked(replica_set)
    _configure(replica_set, (line for finding in first for change in finding.changes for line in change.lines))
    looks = (first, _looked(replica_set))
    return {
        "found": [{finding.check: finding.severity for finding in found} for found in looks],
        "says": [finding.model_dump(mode="json") for finding in first],
    }


def _configure(replica_set: ReplicaSet, lines: Iterable[str]) -> None:
    """Set these lines on each server, as if it had started with them."""
    for line in lines:
        name, _, value = line.partition("#")[0].strip().partition(" = ")
        for member in replica_set.members if value else ():
            member.ask(f"SET GLOBAL {name} = {value if value.isdigit() else repr(value.strip(chr(34)))}")


def _looked(replica_set: ReplicaSet) -> tuple[Finding, ...]:
    server = replica_set.primary.server
    login, nobody = TargetLogin(USER, server.password), TargetLogin("", "")
    target = DoctorTarget(Kind.MYSQL, str(server.socket), None, None, USER, tls=False)
    link = replica_set.links[0]
    assert isinstance(link, EmulatedReplicationLink)
    host = link.network.server
    (seen,) = host.within(lambda: examine((target,), Logins(login, nobody, nobody), seconds=0.5)).servers
    return tuple(finding for finding in seen.findings if finding.check.startswith("cluster"))


def torn(replica_set: ReplicaSet) -> Answer:
    """Cut the link in the middle of a large row; returns how long a promotion then takes, and whether the row is there."""
    replica = replica_set.replicas[0]
    replica_set.primary.write("CREATE TABLE big (id INT PRIMARY KEY, t LONGBLOB)", timeout_s=TIMEOUT_S)
    replica_set.await_caught_up(replica)
    replica_set.links[0].begin()
    replica_set.primary.write(f"INSERT INTO big VALUES (1, '{'x' * 12_000_000}')", timeout_s=TIMEOUT_S)
    wait_for(lambda: _bytes_to_replica(replica_set) > 100_000, TIMEOUT_S, lambda: "the row was not sent")
    replica_set.links[0].cut()
    replica_set.primary.server.kill()
    promoted = promote(replica)
    replica_set.links[0].mend()
    return {"promoted": asdict(promoted), "rows": replica.ask("SELECT COUNT(*) AS n FROM big")[0]["n"]}


def _bytes_to_replica(replica_set: ReplicaSet) -> int:
    crossed = replica_set.links[0].counters()
    assert crossed is not None
    return crossed.to_client.wire_bytes


ACTS: dict[str, Callable[[ReplicaSet], Answer]] = {
    act.__name__: act
    for act in (
        commits,
        recorded,
        fallback,
        half_cut,
        cancelled,
        hang,
        calm,
        lag,
        promotion,
        diverge,
        crash,
        doctor,
        torn,
    )
}
