"""What PostgreSQL reports about replication, and which reports contradict the request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from howfar.contract.replication_receipt import PrimaryState, ReplicaFacts, ReplicationWindow, Snapshot
from howfar.contract.violation import violation
from howfar.experiments.replication.lab.links import ReplicationSpec
from howfar.experiments.replication.lab.postgresql import PostgresPositions, PostgresReplication, parse_log_bytes
from howfar.lab.servers import TableServer
from howfar.plan.cells import cells
from howfar.plan.fitting import with_replacements
from howfar.plan.load import load_plan

ASKED = ReplicationSpec(wait_point="on", replicas=2)
CANCELLED = "WARNING:  canceling wait for synchronous replication due to user request"
_DIALECT = PostgresReplication()


def changed(spec: ReplicationSpec, **fields: object) -> ReplicationSpec:
    return spec.model_copy(update=fields)


def _standby(name: str, flush: str, **changed: str) -> dict[str, str]:
    lsns = {"sent_lsn": "0/900", "write_lsn": "0/800", "flush_lsn": flush, "replay_lsn": "0/100"}
    return {"application_name": name, "state": "streaming", "sync_state": "quorum", **lsns, **changed}


def _end(spec: ReplicationSpec, log: tuple[str, ...] = (), **changed: Any) -> PrimaryState:
    settings = {"synchronous_commit": "on", "synchronous_standby_names": "ANY 1 (replica1, replica2)", "fsync": "on"}
    standbys = [_standby("replica1", "0/500"), _standby("replica2", "0/700")]
    row = {"settings": settings, "waiting": 3, "log_bytes": 0x900, "standbys": standbys} | changed
    server = cast(TableServer, SimpleNamespace(log_lines=lambda: list(log)))
    found = _DIALECT.read_primary_end(lambda _: [row], server, spec)
    assert found is not None
    return found


def _snapshot(end: PrimaryState, sent: int = 0) -> Snapshot:
    state = _DIALECT.read_state(
        lambda _: [
            {"follows": True, "receiver": "streaming", "has_primary": True, "paused": "not paused", "received": "0/1"}
        ]
    )
    assert state is not None
    replicas = tuple(
        ReplicaFacts(name=f"replica{n}", state=state, semi_sync=True, applied="0/1@5", behind=0) for n in (1, 2)
    )
    return Snapshot(position="0/900@9", primary=end, replicas=replicas, sent={"replica1": sent, "replica2": 0})


def test_a_position_is_compared_by_transactions_or_by_the_log() -> None:
    lacking = PostgresPositions().count_missing
    assert parse_log_bytes("16/B374D848") == 0x16B374D848
    assert parse_log_bytes("") == 0
    assert lacking("1/10@900", "0/FFFFFFFF@850") == 50
    assert lacking("1/10@900", "1/10@905") == 0, "its own transactions end later than they are replayed"
    assert lacking("1/10@", "0/FFFFFFF0@850") == 0x20, "received and not replayed has no number"
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        lacking("x@1", "0/0@1")


def test_as_much_is_acknowledged_as_the_replicas_that_a_commit_needs_have() -> None:
    assert _end(ASKED).acknowledged_bytes == 0x700, "any one"
    names = {"synchronous_commit": "on", "synchronous_standby_names": "ANY 2 (replica1, replica2)", "fsync": "on"}
    assert _end(changed(ASKED, wait_for=2), settings=names).acknowledged_bytes == 0x500, "both"
    gone = [_standby("replica1", "0/500", state="catchup")]
    assert _end(ASKED, standbys=gone).acknowledged_bytes is None
    assert _end(ASKED, standbys=gone).clients == 0


def test_a_window_that_held_and_those_that_did_not() -> None:
    before = _snapshot(_end(ASKED))
    after_end = _end(ASKED, standbys=[_standby("replica1", "0/1500"), _standby("replica2", "0/1500")])
    assert ReplicationWindow.between(before, _snapshot(after_end, sent=0x1000)).violations(ASKED, commits=10) == ()
    unsent = ReplicationWindow.between(before, _snapshot(after_end)).violations(ASKED, 10)
    assert "log-not-sent" in [each.id for each in unsent]
    assert ReplicationWindow.between(before, before).violations(ASKED, 10) == (
        violation("no-acknowledgement-counted", commits=10),
    )
    cancelled = after_end.model_copy(update={"no_tx": _end(ASKED, log=("LOG: ready", CANCELLED)).no_tx})
    found = ReplicationWindow.between(before, _snapshot(cancelled, sent=0x1000)).violations(ASKED, 10)
    assert found == (violation("commits-not-acknowledged", commits=1),)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (changed(ASKED, wait_point="remote_apply"), "synchronous_commit was 'on' instead of 'remote_apply'"),
        (changed(ASKED, wait_for=2), "instead of 'ANY 2 (replica1, replica2)'"),
        (changed(ASKED, mode="async"), "synchronous_commit was 'on' instead of 'local'"),
        (changed(ASKED, mode="async", flushes=False), "synchronous_commit was 'on' instead of 'off'"),
        (changed(ASKED, durability="off"), "fsync was 'on' instead of 'off'"),
    ],
)
def test_each_setting_must_be_as_asked(spec: ReplicationSpec, expected: str) -> None:
    assert any(expected in sentence for sentence in _end(spec).mismatches)


def test_a_replica_that_was_promoted_follows_nobody() -> None:
    row = {"follows": False, "receiver": None, "has_primary": True, "paused": None, "received": None}
    assert _DIALECT.read_state(lambda _: [row]) is None
    state = _DIALECT.read_state(lambda _: [row | {"follows": True, "paused": "not paused"}])
    assert state is not None and (state.receiving, state.received) == ("Connecting", "@")


@pytest.mark.parametrize("name", ["replication", "crash", "fallback"])
def test_a_plan_of_other_servers_modes_is_measured_with_its_own(name: str) -> None:
    plan = load_plan(name).plan
    fitted = with_replacements(plan, "replication", _DIALECT.replacements)
    levels = set(fitted.plan.factors.replication)
    assert levels <= {"none", *_DIALECT.modes} and "remote-flush" in levels
    assert cells(fitted.plan), "it still has one baseline"
    assert with_replacements(fitted.plan, "replication", _DIALECT.replacements).plan is fitted.plan
    assert with_replacements(plan, "replication", {}).plan is plan
