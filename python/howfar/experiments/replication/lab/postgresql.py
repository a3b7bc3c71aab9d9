"""PostgreSQL's physical streaming replication. See `dialect.ReplicationDialect`.

Replicas start from a copy of the primary's template, so they have its history, and fetch what it has written since. A commit waits
for `ANY n` of them, up to the point that `synchronous_commit` names, without timeout or fallback. When a wait is cancelled, the
server only warns, and the client sees a successful commit; the server's log shows how often that happened.

A position is `log@transaction`: the end of the log, and the number that the next transaction gets. The position up to which a replica
has received, but not applied, has no second part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from howfar.contract.replication_receipt import PrimaryState, ReplicaState, StandbyState
from howfar.errors import LabError
from howfar.experiments.replication.lab.dialect import ACCOUNT, SCHEMA, ReplicationDialect, Seed, Source, query_one_row
from howfar.experiments.replication.lab.links import ReplicationSpec
from howfar.experiments.replication.lab.member import Member, wait_for
from howfar.lab.servers import USER, RunQuery, ServerContext, Tables, TableServer
from howfar.lab.servers.postgresql import PostgresStore, Streaming, password_verifier
from howfar.lab.servers.program import Program

_POSITIONS: dict[str, Callable[[StandbyState], str | None]] = {
    "on": lambda standby: standby.flush_lsn,
    "remote_write": lambda standby: standby.write_lsn,
    "remote_apply": lambda standby: standby.replay_lsn,
}
"""For each level of `synchronous_commit` that waits for a replica: the position that the replica must have reached."""
_CANCELLED_WAIT = "canceling wait for synchronous replication"
_ANY_REPLICAS = re.compile(r"ANY (\d+) \(")
_SETTINGS = ("synchronous_commit", "synchronous_standby_names", "fsync", "full_page_writes", "wal_level")
_PRIMARY_END_SQL = (
    "SELECT (SELECT jsonb_object_agg(name, CASE source WHEN 'session' THEN reset_val ELSE setting END) FROM pg_settings "
    f"WHERE name IN ({', '.join(repr(name) for name in _SETTINGS)})) AS settings, "
    "(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS waiting, "
    "pg_current_wal_lsn() - '0/0' AS log_bytes, "
    "(SELECT jsonb_agg(to_jsonb(s) ORDER BY s.application_name) FROM (SELECT application_name, client_addr, state, sync_state, "
    "sent_lsn, write_lsn, flush_lsn, replay_lsn FROM pg_stat_replication) s) AS standbys"
)
_STATE_SQL = (
    "SELECT pg_is_in_recovery() AS follows, (SELECT status FROM pg_stat_wal_receiver) AS receiver, "
    "current_setting('primary_conninfo') <> '' AS has_primary, "
    "CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() END AS paused, "
    "pg_last_wal_receive_lsn() AS received"
)
_NEXT_TRANSACTION_SQL = "pg_snapshot_xmax(pg_current_snapshot())"
_PROMOTION_TIMEOUT_S = 60


class PostgresPositions:
    """See `status.Positions`. A state identifies the history: PostgreSQL's system identifier."""

    counts_received = False

    def count_missing(self, ahead: str, behind: str) -> int:
        """Transactions if both positions have a transaction number, else bytes of the log."""
        (log, number), (other_log, other_number) = _parse_position(ahead), _parse_position(behind)
        if number is not None and other_number is not None:
            return max(number - other_number, 0)
        return max(log - other_log, 0)

    def errant_transactions(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        return "" if replica_state == primary_state else f"its history is {replica_state} and not {primary_state}"


def _parse_position(text: str) -> tuple[int, int | None]:
    """Parse a position. Raises ValueError."""
    log, _, number = text.partition("@")
    return parse_log_bytes(log), int(number) if number else None


def parse_log_bytes(lsn: str) -> int:
    """Convert a log position such as `16/B374D848` to bytes since the log began; 0 for an empty text: nothing has been received."""
    if not lsn:
        return 0
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class PostgresReplication(ReplicationDialect):
    kind = "postgresql"
    copies_primary_data = True
    port = 5432
    replacements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "async": ("async", "commit-off"),
        "after-sync": ("remote-flush",),
        "after-commit": ("remote-write", "remote-apply"),
    }
    modes = ("async", "commit-off", "remote-write", "remote-flush", "remote-apply")
    durabilities = ("strict", "off")
    positions = PostgresPositions()
    compressions = ()
    max_replicas_to_wait_for = None
    always_acknowledges = True
    position_sql = f"SELECT pg_current_wal_lsn() || '@' || {_NEXT_TRANSACTION_SQL} AS position"
    applied_sql = f"SELECT coalesce(pg_last_wal_replay_lsn()::text, '') || '@' || {_NEXT_TRANSACTION_SQL} AS position"
    state_sql = "SELECT system_identifier::text AS position FROM pg_control_system()"
    origin_sql = "SELECT '' AS position"

    def start_server(self, seed: Seed, context: ServerContext, program: Program, tables: Tables) -> TableServer:
        store = PostgresStore(program, tables)
        store.prepare(context)
        options = _requested_settings(seed.spec) | {
            "wal_receiver_status_interval": "1s",
            # A replica may start before its account on the primary exists; it then retries after this time.
            "wal_retrieve_retry_interval": "50ms",
        }
        if seed.source is not None:
            options["synchronous_standby_names"] = ""
        primary = None if seed.source is None else _connection_string(seed.name, seed.source)
        return store.begin(Streaming(ACCOUNT, password_verifier(seed.secret), options, primary), seed.tls)

    def follow(self, replica: Member, source: Source) -> None:
        """Do nothing: a standby follows its primary from the start."""

    def join(self, primary: Member, replicas: tuple[Member, ...], spec: ReplicationSpec, timeout_s: float) -> None:
        """Create the tables in the laboratory's own session, whose commits do not wait for replicas."""
        primary.query(
            f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {USER} "
            "CREATE TABLE marker (id INT PRIMARY KEY, word VARCHAR(64), filling TEXT) "
            "CREATE TABLE heartbeat (id INT PRIMARY KEY, sent_ns BIGINT)"
        )
        # Store the text uncompressed, so that the log carries it uncompressed.
        primary.query(f"ALTER TABLE {SCHEMA}.marker ALTER filling SET STORAGE EXTERNAL")

    def marker_sql(self, word: str, filling: str) -> str:
        return (
            f"INSERT INTO {SCHEMA}.marker VALUES (1, '{word}', '{filling}') "
            "ON CONFLICT (id) DO UPDATE SET word = excluded.word, filling = excluded.filling"
        )

    def heartbeat_sql(self, at_ns: int, row: int = 1) -> str:
        return f"INSERT INTO {SCHEMA}.heartbeat VALUES ({row}, {at_ns}) ON CONFLICT (id) DO UPDATE SET sent_ns = excluded.sent_ns"

    def read_state(self, run_query: RunQuery) -> ReplicaState | None:
        row = query_one_row(run_query, _STATE_SQL)
        if not row["follows"]:
            return None
        receiving = "Yes" if row["receiver"] == "streaming" else "Connecting" if row["has_primary"] else "No"
        applying = "Yes" if row["paused"] == "not paused" else "No"
        return ReplicaState(receiving=receiving, applying=applying, errors=(), received=f"{row['received'] or ''}@")

    def read_primary_end(self, run_query: RunQuery, primary: TableServer, spec: ReplicationSpec) -> PrimaryState | None:
        row = query_one_row(run_query, _PRIMARY_END_SQL)
        settings: Mapping[str, str] = row["settings"]
        standbys = [StandbyState.model_validate(standby) for standby in row["standbys"] or []]
        level, any_replicas = settings["synchronous_commit"], _ANY_REPLICAS.match(settings["synchronous_standby_names"])
        enabled = any_replicas is not None and level in _POSITIONS
        wait_for = int(any_replicas[1]) if any_replicas is not None else 0
        streaming = [standby for standby in standbys if standby.state == "streaming"]
        acknowledged = [parse_log_bytes(_POSITIONS[level](standby) or "") for standby in streaming] if enabled else []
        return PrimaryState(
            enabled=enabled,
            status=enabled,
            clients=sum(standby.sync_state in ("sync", "quorum") for standby in streaming),
            timeout_ms=None,
            wait_point=level,
            wait_for=wait_for,
            yes_tx=None,
            no_tx=sum(_CANCELLED_WAIT in line for line in primary.log_lines()),
            no_times=0,
            tx_waits=0,
            tx_wait_us=0,
            waiting=int(row["waiting"]),
            acknowledged_bytes=sorted(acknowledged, reverse=True)[wait_for - 1]
            if 0 < wait_for <= len(acknowledged)
            else None,
            log_bytes=int(row["log_bytes"]),
            settings={**settings},
            standbys=tuple(standbys),
            mismatches=tuple(
                f"{name} was {settings[name]!r} instead of {requested!r}"
                for name, requested in _requested_settings(spec).items()
                if settings[name] != requested
            ),
        )

    def acknowledges(self, run_query: RunQuery, spec: ReplicationSpec) -> bool | None:
        """Whether the replica streams: it then reports its position. Whether a commit waits for that is a setting of the primary."""
        state = self.read_state(run_query)
        return state is not None and state.receiving == "Yes" if spec.semi_sync else None

    def read_durability(self, run_query: RunQuery, spec: ReplicationSpec) -> tuple[dict[str, str], dict[str, str]]:
        requested = _requested_settings(spec)
        del requested["synchronous_standby_names"]  # a replica has none
        names = ", ".join(repr(name) for name in requested)
        setting = "CASE source WHEN 'session' THEN reset_val ELSE setting END"
        rows = run_query(f"SELECT name, {setting} AS setting FROM pg_settings WHERE name IN ({names})")
        return {row["name"]: row["setting"] for row in rows}, requested

    def count_tls_handshakes(self, run_query: RunQuery) -> int:
        return int(
            query_one_row(
                run_query, "SELECT count(*) AS n FROM pg_stat_ssl JOIN pg_stat_replication USING (pid) WHERE ssl"
            )["n"]
        )

    def stop_receiving(self, replica: Member, timeout_s: float) -> None:
        replica.execute("ALTER SYSTEM SET primary_conninfo = ''", timeout_s)
        replica.execute("SELECT pg_reload_conf()", timeout_s)
        wait_for(
            lambda: not replica.query("SELECT 1 FROM pg_stat_wal_receiver"),
            timeout_s,
            lambda: f"{replica.name} went on receiving",
        )

    def promote(self, replica: Member, timeout_s: float) -> int:
        received = replica.query_position(self.applied_sql)
        replica.execute(f"SELECT pg_promote(true, {_PROMOTION_TIMEOUT_S})", timeout_s + _PROMOTION_TIMEOUT_S)
        wait_for(
            lambda: replica.read_replica_state() is None,
            timeout_s,
            lambda: f"{replica.name} cannot be promoted: it is still in recovery",
        )
        return self.positions.count_missing(replica.query_position(self.applied_sql), received)

    def set_timeout(self, primary: Member, timeout_ms: int | None) -> None:
        """Raises LabError unless `timeout_ms` is None: PostgreSQL has no timeout."""
        if timeout_ms is not None:
            raise LabError("PostgreSQL waits for its replicas forever: it has no timeout to set")

    def replication_log(self, lines: list[str]) -> list[str]:
        return [line for line in lines if "synchronous" in line]


def _requested_settings(spec: ReplicationSpec) -> dict[str, str]:
    """The requested settings of a primary."""
    level = spec.wait_point if spec.semi_sync else "local" if spec.flushes else "off"
    listed = ", ".join(f"replica{number}" for number in range(1, spec.replicas + 1))
    return {
        "synchronous_commit": level,
        "synchronous_standby_names": f"ANY {spec.wait_for} ({listed})" if spec.semi_sync else "",
        "fsync": "off" if spec.durability == "off" else "on",
    }


def _connection_string(name: str, source: Source) -> str:
    parameters = {
        "host": source.address,
        "port": str(source.port),
        "user": ACCOUNT,
        "password": source.password,
        "application_name": name,
        "sslmode": "disable" if source.ca is None else "verify-full",
    }
    if source.ca is not None:
        parameters["sslrootcert"] = source.ca
    return " ".join(f"{key}={value}" for key, value in parameters.items())
