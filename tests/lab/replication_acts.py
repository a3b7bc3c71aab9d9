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
from howfar.doctor.targets import Login, Logins, Target
from howfar.errors import HowfarError, LabError
from howfar.lab.replication import Pair
from howfar.lab.replication.binary_log import BinaryLogReplication, status, variables
from howfar.lab.replication.links import EmulatedWire
from howfar.lab.replication.member import Member, wait_for
from howfar.lab.replication.pair import promote
from howfar.lab.replication.proof import latency_violation, violations
from howfar.lab.replication.watch import CommitWatch, LagWatch
from howfar.lab.servers import USER

INSERTS = 15
WRITERS = 4
PATIENCE_S = 120.0
Answer = dict[str, Any]


def _insert(pair: Pair, count: int, patience_s: float = PATIENCE_S) -> list[int]:
    """Single-row inserts of one connection over the primary's socket; returns their times, sorted."""
    times = []
    with pair.primary.server.asking(patience_s, as_client=True) as ask:
        for _ in range(count):
            began = time.monotonic_ns()
            ask("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'howfar', '')")
            times.append(time.monotonic_ns() - began)
    return sorted(times)


def _binary_log(pair: Pair) -> BinaryLogReplication:
    assert isinstance(pair.dialect, BinaryLogReplication)
    return pair.dialect


def _refused(tried: Callable[[], object]) -> str | None:
    try:
        tried()
    except LabError as error:
        return error.message
    return None


def commits(pair: Pair) -> Answer:
    before, times, after = pair.snapshot(), _insert(pair, INSERTS), pair.snapshot()
    rtts = [wire.begin().p50_ns for wire in pair.wires]
    return {
        "p50_ns": times[INSERTS // 2],
        "rtt_ns": rtts,
        "after": asdict(after),
        "violations": violations(pair.spec, before, after, INSERTS),
        "too_fast": latency_violation(pair.spec, times[INSERTS // 2], min(rtts, default=0)),
    }


def recorded(pair: Pair) -> Answer:
    """Output of the servers that serves as input of unit tests."""
    return {
        "primary": [variables(pair.primary.ask), status(pair.primary.ask)],
        "replicas": [[variables(replica.ask), status(replica.ask)] for replica in pair.replicas],
        "statuses": [replica.ask(_binary_log(pair).status_sql) for replica in pair.replicas],
        "states": [member.position(pair.dialect.state_sql) for member in (pair.primary, *pair.replicas)],
    }


def fallback(pair: Pair) -> Answer:
    """The link is cut under a short timeout, and repaired."""
    before = pair.snapshot()
    pair.wires[0].cut()
    times = _insert(pair, 3)
    after = pair.snapshot()
    pair.wires[0].mend()
    _refused(lambda: pair.await_caught_up(pair.replicas[0]))
    return {
        "longest_ns": times[-1],
        "violations": violations(pair.spec, before, after, 3),
        "late_violations": violations(pair.spec, before, pair.snapshot(), 3),
        "before": asdict(before),
        "after": asdict(after),
    }


def half_cut(pair: Pair) -> Answer:
    """Acknowledgements are lost, but the primary's data arrives: the row is on the replica, and its writer gets no answer."""
    pair.wires[0].cut(("to_server",))
    error = _refused(
        lambda: pair.primary.write("INSERT INTO sbtest1 (k, c, pad) VALUES (4242, '', '')", patience_s=3.0)
    )
    rows = pair.replicas[0].ask("SELECT COUNT(*) AS n FROM sbtest1 WHERE k = 4242")
    pair.wires[0].mend()
    return {"error": error, "rows": rows[0]["n"]}


def cancelled(pair: Pair) -> Answer:
    """The link is cut; another session cancels the wait of a commit, and its client gets a success."""
    before = pair.snapshot()
    pair.wires[0].cut()
    errors: list[str | None] = []
    writing = threading.Thread(target=lambda: errors.append(_refused(lambda: _insert(pair, 1))))
    writing.start()
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_for(lambda: bool(pair.primary.ask(cancel)), PATIENCE_S, lambda: "no commit waited")
    writing.join(PATIENCE_S)
    pair.wires[0].mend()
    pair.await_caught_up(pair.replicas[0])
    return {"error": errors[0], "violations": violations(pair.spec, before, pair.snapshot(), 1)}


def hang(pair: Pair) -> Answer:
    """The replica dies; a commit hangs until the watch ends it."""
    watch = CommitWatch(pair, patience_s=2.0)
    pair.replicas[0].server.kill()
    error = _refused(lambda: pair.primary.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, '', '')", patience_s=120.0))
    history = watch.finish()
    return {"error": error, "said": history, "afterwards": _refused(pair.snapshot)}


def calm(pair: Pair) -> Answer:
    """A watch that sees nothing wrong reports nothing."""
    watch = CommitWatch(pair, patience_s=PATIENCE_S)
    _insert(pair, 5)
    return {"said": watch.finish()}


def _leave(pair: Pair, replica: Member) -> None:
    """Stop replicating; the primary learns of it only by the lost connection."""
    replica.ask(_binary_log(pair).stop_sql)


def _rejoin(pair: Pair, replica: Member) -> None:
    """Resume replication from the present position. Raises LabError if the replica has written on its own."""
    pair.refuse_strangers(replica)
    replica.ask(_binary_log(pair).start_sql)
    pair.await_replicating(replica)


def lag(pair: Pair) -> Answer:
    """Replication stops and resumes under a lag watch."""
    replica, watch = pair.replicas[0], LagWatch(pair, interval_s=0.05)
    wait_for(lambda: any(s.heartbeat_ns for s in watch.samples), PATIENCE_S, lambda: "no heartbeat came")
    _leave(pair, replica)
    _insert(pair, 10)
    wait_for(lambda: max(s.behind for s in watch.samples) >= 10, PATIENCE_S, lambda: "no lag was seen")
    _rejoin(pair, replica)
    pair.await_caught_up(replica)
    return {"samples": [asdict(sample) for sample in watch.finish()]}


def promotion(pair: Pair) -> Answer:
    """With the primary dead, promotion is refused while the replica cannot apply, and succeeds once it can."""
    replica = pair.replicas[0]
    with replica.server.asking(PATIENCE_S) as lock:
        lock("LOCK TABLES sbtest1 READ")
        _insert(pair, 4)
        wait_for(lambda: _received_all(pair, replica), PATIENCE_S, lambda: "it did not receive all")
        pair.primary.server.kill()
        refused = _refused(lambda: promote(replica, patience_s=1.0))
        lock("UNLOCK TABLES")
    promoted = promote(replica)
    before = replica.ask("SELECT COUNT(*) AS n FROM sbtest1")[0]["n"]
    replica.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'mine', '')", patience_s=PATIENCE_S)
    again = _refused(lambda: promote(replica))
    return {"refused": refused, "promoted": asdict(promoted), "rows": before, "again": again}


def _received_all(pair: Pair, replica: Member) -> bool:
    state = replica.replica_state()
    assert state is not None
    return pair.dialect.positions.lacking(pair.primary.position(pair.dialect.position_sql), state.received) == 0


def diverge(pair: Pair) -> Answer:
    """The replica writes on its own and tries to rejoin."""
    replica = pair.replicas[0]
    _leave(pair, replica)
    replica.ask(_binary_log(pair).writable_sql)
    replica.write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'own', '')", patience_s=PATIENCE_S)
    return {"refused": _refused(lambda: _rejoin(pair, replica))}


def crash(pair: Pair) -> Answer:
    """The primary dies under inserts of several connections, which choose the keys; compares acknowledged and surviving keys."""
    acknowledged: list[int] = []

    def insert(first: int) -> None:
        with (
            suppress(HowfarError, OSError),
            pair.primary.server.asking(PATIENCE_S, as_client=True) as ask,
        ):
            for key in range(first, first + 100_000):
                ask(f"INSERT INTO sbtest1 (id, k, c, pad) VALUES ({key}, 1, '', '')")
                acknowledged.append(key)

    writers = [threading.Thread(target=insert, args=(1_000_000 * number,)) for number in range(1, WRITERS + 1)]
    for writer in writers:
        writer.start()
    wait_for(lambda: len(acknowledged) >= 20 * WRITERS, PATIENCE_S, lambda: "too few were acknowledged")
    pair.wires[0].cut()  # otherwise data in the dead server's sockets would still arrive
    if not pair.spec.needed:
        cut_at = len(acknowledged)  # a busy machine may commit nothing between the cut and the death
        wait_for(
            lambda: len(acknowledged) >= cut_at + WRITERS, PATIENCE_S, lambda: "nothing was acknowledged after the cut"
        )
    pair.primary.server.kill()
    for writer in writers:
        writer.join(PATIENCE_S)
    promoted = promote(pair.replicas[0])
    found = {int(row["id"]) for row in pair.replicas[0].ask("SELECT id FROM sbtest1 WHERE id >= 1000000")}
    pair.wires[0].mend()
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


def doctor(pair: Pair) -> Answer:
    """Misconfigure the cluster, load it briefly, examine it, apply the proposed lines, and examine it again."""
    _configure(pair, _WRONG[pair.spec.mode])
    pair.primary.ask("FLUSH LOCAL STATUS")
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda _: _insert(pair, 10 * INSERTS), range(WRITERS)))
    first = _looked(pair)
    _configure(pair, (line for finding in first for change in finding.changes for line in change.lines))
    looks = (first, _looked(pair))
    return {
        "found": [{finding.check: finding.severity for finding in found} for found in looks],
        "says": [finding.model_dump(mode="json") for finding in first],
    }


def _configure(pair: Pair, lines: Iterable[str]) -> None:
    """Set these lines on each server, as if it had started with them."""
    for line in lines:
        name, _, value = line.partition("#")[0].strip().partition(" = ")
        for member in pair.members if value else ():
            member.ask(f"SET GLOBAL {name} = {value if value.isdigit() else repr(value.strip(chr(34)))}")


def _looked(pair: Pair) -> tuple[Finding, ...]:
    server = pair.primary.server
    login, nobody = Login(USER, server.password), Login("", "")
    target = Target(Kind.MYSQL, str(server.socket), None, None, USER, tls=False)
    wire = pair.wires[0]
    assert isinstance(wire, EmulatedWire)
    host = wire.network.server
    (seen,) = host.within(lambda: examine((target,), Logins(login, nobody, nobody), seconds=0.5)).servers
    return tuple(finding for finding in seen.findings if finding.check.startswith("cluster"))


def torn(pair: Pair) -> Answer:
    """Cut the link in the middle of a large row; returns how long a promotion then takes, and whether the row is there."""
    replica = pair.replicas[0]
    pair.primary.write("CREATE TABLE big (id INT PRIMARY KEY, t LONGBLOB)", patience_s=PATIENCE_S)
    pair.await_caught_up(replica)
    pair.wires[0].begin()
    pair.primary.write(f"INSERT INTO big VALUES (1, '{'x' * 12_000_000}')", patience_s=PATIENCE_S)
    wait_for(lambda: _bytes_to_replica(pair) > 100_000, PATIENCE_S, lambda: "the row was not sent")
    pair.wires[0].cut()
    pair.primary.server.kill()
    promoted = promote(replica)
    pair.wires[0].mend()
    return {"promoted": asdict(promoted), "rows": replica.ask("SELECT COUNT(*) AS n FROM big")[0]["n"]}


def _bytes_to_replica(pair: Pair) -> int:
    crossed = pair.wires[0].counters()
    assert crossed is not None
    return crossed.to_client.wire_bytes


ACTS: dict[str, Callable[[Pair], Answer]] = {
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
