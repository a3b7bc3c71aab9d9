"""Unit tests of replication: variable names, GTID positions, verification and rejected requests.

Values were recorded from MariaDB 10.11 and MySQL 9.7.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, Literal

import pytest

from howfar.contract.replication_receipt import ChannelFacts, ReplicaFacts, ReplicationWindow, Snapshot
from howfar.contract.violation import Violation, violation
from howfar.errors import PlanError
from howfar.experiments.replication.lab import ReplicationSpec, galera
from howfar.experiments.replication.lab.binary_log import BinaryLogReplication
from howfar.experiments.replication.lab.dialect import Seed, Source, replication_dialect
from howfar.experiments.replication.lab.proof import (
    FILLING,
    latency_violation,
)
from howfar.experiments.replication.lab.status import (
    MariadbPositions,
    MysqlPositions,
    is_acknowledging,
    parse_primary_end,
    parse_semi_sync_prefixes,
)
from howfar.experiments.replication.lab.watch import HangClock
from howfar.experiments.replication.violations import NOT_AS_CONFIGURED
from howfar.lab.link import LinkSpec
from howfar.lab.link.backends.kernel_qdiscs import qdisc_batch
from howfar.lab.network import MAX_REPLICAS, host_batch, link_addresses, middle_batch
from howfar.store.void_reasons import parse_reason

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_replication.json").read_text())
KINDS = ("mariadb", "mysql")
REQUESTED = ReplicationSpec()


def changed(spec: ReplicationSpec, **fields: object) -> ReplicationSpec:
    return spec.model_copy(update=fields)


def binary_log(kind: str) -> BinaryLogReplication:
    dialect = replication_dialect(kind)
    assert isinstance(dialect, BinaryLogReplication)
    return dialect


def snapshot(kind: str, *, add: dict[str, int] | None = None, replica: dict[str, str] | None = None) -> Snapshot:
    """A snapshot as recorded, with `add` added to counters of the primary, and columns of the replica's status changed."""
    seen, dialect = RECORDED[kind], binary_log(kind)
    (variables, status), (replica_variables, replica_status_rows) = seen["primary"], seen["replica"]
    ending = {name.rpartition("source_" if kind == "mysql" else "master_")[2]: name for name in status}
    status = status | {ending[name]: str(int(status[ending[name]]) + more) for name, more in (add or {}).items()}
    return Snapshot(
        position=seen["states"][0],
        primary=parse_primary_end(parse_semi_sync_prefixes(variables), variables, status),
        replicas=(
            ReplicaFacts(
                name="replica1",
                state=dialect.parse_replica_state(seen["replica_status"] | (replica or {})),
                semi_sync=is_acknowledging(parse_semi_sync_prefixes(replica_variables), replica_status_rows),
                applied=seen["states"][1],
                behind=0,
            ),
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_semi_sync_variables_are_detected(kind: str) -> None:
    names = parse_semi_sync_prefixes(RECORDED[kind]["primary"][0])
    roles = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}[kind]
    assert (names.primary, names.replica) == tuple(f"rpl_semi_sync_{word}_" for word in roles)
    assert (names.wait_for is None) == (kind == "mariadb")
    statements = names.enable_primary_sql(changed(REQUESTED, wait_point="AFTER_COMMIT"))
    assert f"SET GLOBAL {names.primary}wait_point = 'AFTER_COMMIT'" in statements
    assert statements[-1].endswith("enabled = ON"), "replication must be enabled only after all settings"


def test_older_names_of_mysql_are_detected_and_absent_ones_are_none() -> None:
    old = parse_semi_sync_prefixes(["rpl_semi_sync_master_enabled", "rpl_semi_sync_master_wait_for_slave_count"])
    assert (old.primary, old.replica, old.wait_for) == (
        "rpl_semi_sync_master_",
        None,
        "rpl_semi_sync_master_wait_for_slave_count",
    )
    none = parse_semi_sync_prefixes(["server_id"])
    assert (none.primary, none.replica) == (None, None)
    assert parse_primary_end(none, {}, {}) is None
    assert is_acknowledging(none, {}) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledged_window_has_no_violations(kind: str) -> None:
    before, after = snapshot(kind), snapshot(kind, add={"yes_tx": 10, "tx_waits": 10, "tx_wait_time": 20500})
    assert ReplicationWindow.between(before, after).violations(REQUESTED, commits=10) == ()
    assert ReplicationWindow.between(before, after).mean_wait_us == 2050
    assert before.primary is not None and before.primary.timeout_ms == 3_600_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("add", "commits", "expected"),
    [
        ({"no_tx": 3, "yes_tx": 7}, 10, violation("commit-groups-not-acknowledged", groups=3)),
        ({"no_times": 1, "yes_tx": 10}, 10, violation("fell-back", fallbacks=1)),
        ({}, 10, violation("no-acknowledgement-counted", commits=10)),
        ({"yes_tx": -1}, None, violation("counters-went-back")),
        ({"clients": -1, "yes_tx": 1}, 1, violation("semi-sync-replicas", connected=0, requested=1, moment="after")),
    ],
    ids=lambda value: value.id if isinstance(value, Violation) else None,
)
def test_window_violations(kind: str, add: dict[str, int], commits: int | None, expected: Violation) -> None:
    found = ReplicationWindow.between(snapshot(kind), snapshot(kind, add=add)).violations(REQUESTED, commits)
    assert found == (expected,)


@pytest.mark.parametrize("kind", KINDS)
def test_both_ends_must_have_the_requested_settings(kind: str) -> None:
    now = snapshot(kind)
    for spec, expected in (
        (
            changed(REQUESTED, wait_point="AFTER_COMMIT"),
            violation("wait-point", actual="AFTER_SYNC", expected="AFTER_COMMIT", moment="before"),
        ),
        (
            changed(REQUESTED, timeout_ms=10_000),
            violation("acknowledgement-timeout", actual_ms=3_600_000, expected_ms=10_000, moment="before"),
        ),
        (
            changed(REQUESTED, replicas=2, wait_for=2),
            violation("wait-count", actual=1, expected=2, moment="before"),
        ),
        (changed(REQUESTED, mode="async"), violation("unrequested-semi-sync", moment="before")),
    ):
        assert expected in ReplicationWindow.between(now, now).violations(spec)
    assert now.primary is not None
    after_fallback = now.model_copy(update={"primary": now.primary.model_copy(update={"status": False})})
    silently = violation("fell-back-silently", moment="after")
    assert silently in ReplicationWindow.between(now, after_fallback).violations(REQUESTED)
    not_acknowledging = now.model_copy(update={"replicas": (now.replicas[0].model_copy(update={"semi_sync": False}),)})
    assert ReplicationWindow.between(now, not_acknowledging).violations(REQUESTED) == (
        violation("replica-did-not-acknowledge", "replica1", moment="after"),
    )
    without_plugin = now.model_copy(update={"primary": None})
    missing = violation("primary-without-semi-sync", moment="after")
    assert missing in ReplicationWindow.between(now, without_plugin).violations(REQUESTED)
    io = "Replica_IO_Running" if kind == "mysql" else "Slave_IO_Running"
    diverged = now.model_copy(update={"replicas": (now.replicas[0].model_copy(update={"errant": "0-2-58"}),)})
    assert ReplicationWindow.between(now, diverged).violations(REQUESTED) == (
        violation("errant-transactions", "replica1", transactions="0-2-58", moment="after"),
    )
    with_dead_link = now.model_copy(update={"broken": ("the link of replica1 had died",)})
    assert ReplicationWindow.between(now, with_dead_link).violations(REQUESTED) == (
        violation("replication-broken", failure="the link of replica1 had died", moment="after"),
    )
    disconnected = snapshot(kind, replica={io: "Connecting", "Last_IO_Error": "cannot reach it"})
    threads = {"receiving": "Connecting", "applying": "Yes", "errors": "cannot reach it"}
    assert ReplicationWindow.between(now, disconnected).violations(REQUESTED) == (
        violation("replica-failed", "replica1", moment="after", **threads),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_that_stopped_says_why(kind: str) -> None:
    """MySQL's status names a worker; the worker's row has the reason."""
    dialect = binary_log(kind)
    applying = "Replica_SQL_Running" if kind == "mysql" else "Slave_SQL_Running"
    status = RECORDED[kind]["replica_status"] | {applying: "No", "Last_SQL_Error": "it stopped"}
    answers = {dialect.status_sql: [status], dialect.reasons_sql: [{"said": "Duplicate entry"}]}
    state = dialect.read_state(answers.__getitem__)
    assert state is not None
    assert state.errors == (("Duplicate entry", "it stopped") if kind == "mysql" else ("it stopped",))
    assert dialect.read_state(lambda _: []) is None


def test_the_channel_is_as_requested() -> None:
    """In recordings, a row of 27 000 bytes took 27 900 to 28 060 on the wire, 480 to 620 compressed."""

    def violations(handshakes: int, wire_bytes: int, **spec: Any) -> tuple[Violation, ...]:
        seen = ChannelFacts(tls_handshakes=handshakes, row_bytes=len(FILLING), wire_bytes={"replica1": wire_bytes})
        return seen.violations(changed(REQUESTED, **spec))

    assert violations(0, 28_000) == violations(1, 28_500, tls=True) == violations(0, 500, compression="zlib") == ()
    assert violations(1, 700, tls=True, compression="zlib") == ()
    assert violations(0, 28_000, tls=True) == (violation("channel-without-tls", encrypted=0, replicas=1),)
    assert violations(1, 28_000) == (violation("unrequested-channel-tls", encrypted=1),)
    (plain,) = violations(0, 28_000, compression="zlib")
    assert plain.id == "channel-not-compressed"
    (squeezed,) = violations(0, 500)
    assert squeezed.id == "channel-compressed"
    assert ChannelFacts(tls_handshakes=0, row_bytes=1).violations(changed(REQUESTED, mode="none", replicas=0)) == ()


def test_commits_faster_than_the_rtt_are_violations() -> None:
    assert latency_violation(REQUESTED, 20_000_000, 20_000_000) is None
    assert latency_violation(changed(REQUESTED, mode="async"), 1, 20_000_000) is None
    too_fast = violation("commits-too-fast", commit_p50_ns=1_000_000, rtt_ns=20_000_000)
    assert latency_violation(REQUESTED, 1_000_000, 20_000_000) == too_fast


UUID, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fa47-71ca-11e1-9e33-c80aa9429562"


def test_positions_of_mysql() -> None:
    count_missing = MysqlPositions().count_missing
    assert count_missing(f"{UUID}:1-57:60", f"{UUID}:1-50") == 8
    assert count_missing(f"{UUID}:1-57,\n{OTHER}:1-2:7", f"{UUID}:1-57") == 3
    assert count_missing("", f"{UUID}:1-5") == 0
    assert count_missing(f"{UUID}:1-5:red:1-3", f"{UUID}:1-5") == 3, "each tag is a separate origin"
    assert count_missing(f"{UUID}:red:1-3", f"{UUID}:1-5:red:2") == 2
    assert count_missing(f"{UUID}:1-10", f"{UUID}:1-3:5-6:9-20") == 3
    assert MysqlPositions().errant_transactions(f"{UUID}:1-5,{OTHER}:1", f"{UUID}:1-9") == f"1 of {OTHER}"
    assert MysqlPositions().errant_transactions(f"{UUID}:1-9,{OTHER}:1", f"{UUID}:1-5", writer=UUID) == f"1 of {OTHER}"
    with pytest.raises(ValueError, match="no set"):
        count_missing("nonsense", "")


def test_positions_of_mariadb() -> None:
    count_missing, errant = MariadbPositions().count_missing, MariadbPositions().errant_transactions
    assert count_missing("0-1-57", "0-1-50") == 7
    assert count_missing("0-1-57,1-4-9", "0-1-57") == 9
    assert count_missing("0-1-57", "") == 57
    assert count_missing("0-2-58", "0-1-57") == 1, "sequence numbers are per domain, regardless of the server"
    assert count_missing("0-1-5", "0-1-9") == 0
    assert errant("0-1-57,0-2-58", "0-1-60") == "0-2-58"
    assert errant("0-1-57", "0-1-57") == ""
    assert errant("0-1-58,0-2-59", "0-1-57", writer="1") == "0-2-59", (
        "transactions of the primary itself are not errant, because it may be writing"
    )
    with pytest.raises(ValueError, match="invalid literal"):
        count_missing("x-y-z", "")


def test_a_hung_commit_is_distinguished_from_a_slow_one() -> None:
    end, clock = snapshot("mysql").primary, HangClock()
    assert end is not None and end.yes_tx is not None
    waiting = end.model_copy(update={"waiting": 3})
    answered = waiting.model_copy(update={"yes_tx": end.yes_tx + 1})
    assert clock.sample(0, waiting) == 0
    assert clock.sample(5, waiting) == 5
    assert clock.sample(9, answered) == 0, "a commit was acknowledged"
    assert clock.sample(12, answered) == 3
    assert clock.sample(20, end) == 0, "no commit is waiting"
    assert clock.sample(30, waiting) == 10


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (changed(REQUESTED, replicas=0), "semi_sync with 0 replicas"),
        (changed(REQUESTED, mode="none"), "none with 1 replicas"),
        (changed(REQUESTED, wait_for=2), "2 of 1"),
        (changed(REQUESTED, timeout_ms=0), "0 ms"),
        (changed(REQUESTED, replicas=MAX_REPLICAS + 1), "too many"),
    ],
)
def test_contradictory_requests_are_rejected(spec: ReplicationSpec, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        spec.check()


@pytest.mark.parametrize("kind", KINDS)
def test_sql_uses_each_servers_syntax(kind: str) -> None:
    dialect = binary_log(kind)
    plain = dialect.follow_sql(Source("10.77.1.2", 3306, "secret", None, None))
    assert "'10.77.1.2'" in plain and "_SSL = 0" in plain, (
        "TLS must be set explicitly, because its default differs between versions"
    )
    encrypted = dialect.follow_sql(Source("10.77.1.2", 3306, "secret", "ca.pem", dialect.compressions[0]))
    assert "_SSL = 1" in encrypted and "VERIFY_SERVER_CERT = 1" in encrypted and "ca.pem" in encrypted
    assert "REQUIRE SSL" in dialect.account_sql("secret", tls=True), "the server must enforce encryption"
    assert "--sync-binlog=0" in dialect.options(changed(REQUESTED, durability="relaxed"))
    assert "--innodb-flush-method=nosync" in dialect.options(changed(REQUESTED, durability="off"))


def test_each_link_has_its_own_names_and_addresses() -> None:
    ends = [link_addresses(number) for number in range(MAX_REPLICAS + 1)]
    values = [value for link_ends in ends for value in vars(link_ends).values()]
    assert len(set(values)) == len(values)
    assert all(len(f"{link_ends.client_middle}-{link_ends.server_middle}") <= 15 for link_ends in ends), (
        "the devices must fit into a thread name of 15 characters"
    )
    lines = [*middle_batch(7, 8, ends=ends[2]), *host_batch("client", "cubic", ends=ends[2])]
    lines += qdisc_batch(LinkSpec(10**6, 10**9), "to_server", 0, ends[2])
    text = "\n".join(lines)
    assert "dev lp2 root" in text and "neigh replace 10.77.2.2 lladdr 02:00:0a:4d:02:02 dev r2" in text
    assert not [word for word in text.split() if word in {"c0", "s0", "lc", "ls", "10.77.0.1"}]


@pytest.mark.parametrize("kind", KINDS)
def test_violations_not_explained_by_an_absence_remain(kind: str) -> None:
    io, sql = {
        "mariadb": ("Slave_IO_Running", "Slave_SQL_Running"),
        "mysql": ("Replica_IO_Running", "Replica_SQL_Running"),
    }[kind]
    assert snapshot(kind).violations_after_absence() == ()
    assert snapshot(kind, replica={io: "Connecting"}).violations_after_absence() == (), (
        "a returning replica may still be connecting"
    )
    for column in (io, sql):
        (found,) = snapshot(kind, replica={column: "No"}).violations_after_absence()
        assert (found.id, found.subject) == ("replica-not-replicating", "replica1")
    seen = snapshot(kind)
    with_errant = seen.replicas[0].model_copy(update={"errant": "0-9-1"})
    (dead_link, divergence) = seen.model_copy(
        update={"broken": ("the link of replica1 had died",), "replicas": (with_errant,)}
    ).violations_after_absence()
    assert (dead_link.id, divergence.id) == ("replication-broken", "errant-transactions")


@pytest.mark.parametrize(
    ("kind", "mode", "wanted"),
    [
        (
            "mariadb",
            "galera",
            (
                "--wsrep-cluster-address=gcomm://10.0.0.1:24567,10.0.0.2:24567,10.0.0.3:24567",
                "--wsrep-provider-options=gcache.size=64M;base_port=24567;gmcast.listen_addr=tcp://10.0.0.2:24567",
            ),
        ),
        (
            "mysql",
            "group",
            (
                "--group-replication-communication-stack=MYSQL",
                "--group-replication-local-address=10.0.0.2:23306",
                "--report-host=10.0.0.2",
            ),
        ),
    ],
)
def test_a_node_on_a_user_host_listens_only_on_its_address(
    kind: str, mode: Literal["galera", "group"], wanted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(galera, "find_provider", lambda: Path("libgalera_smm.so"))
    spec = ReplicationSpec(mode=mode, replicas=2)
    addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    seed = Seed("replica1", 1, spec, "secret", None, None, str(uuid.uuid4()), addresses, on_hosts=True)
    dialect = replication_dialect(kind, mode)
    assert isinstance(dialect, BinaryLogReplication)
    assert set(wanted) <= set(dialect.binary_log(seed).options)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (violation("fell-back", fallbacks=1), "the primary fell back to asynchronous replication once"),
        (
            violation("commits-too-fast", commit_p50_ns=1_000_000, rtt_ns=20_000_000),
            "half of the commits took less than 1.000 ms where the round trip to the replica takes 20.000 ms: nobody waited for it",
        ),
        (
            violation("replica-failed", "replica1", moment="after", receiving="No", applying="Yes", errors="a; b"),
            "replica1 was not replicating after the window: receiving No, applying Yes (a; b)",
        ),
    ],
    ids=lambda value: value.id if isinstance(value, Violation) else None,
)
def test_violations_are_sentences(found: Violation, words: str) -> None:
    assert found.sentence == words
    assert parse_reason(words) == (found,)


def test_replication_that_was_not_as_configured_is_known_in_older_files() -> None:
    reason = "replication was not as configured before the fault: replica1 did not acknowledge after the window"
    (found,) = parse_reason(reason)
    assert found.id in NOT_AS_CONFIGURED and found.sentence == reason
