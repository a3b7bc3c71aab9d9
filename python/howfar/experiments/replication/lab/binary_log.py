"""Replication by the binary log of MariaDB and MySQL, whose statements and semi-synchronous acknowledgements are similar.

The variables of semi-synchronous replication have two sets of names (master and slave, source and replica). The version does not tell
which set a server uses, so it is detected from the names of the server's variables.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import ClassVar

from howfar.contract.replication_receipt import PrimaryState, ReplicaState
from howfar.errors import HowfarError, LabError
from howfar.experiments.replication.lab.dialect import ACCOUNT, SCHEMA, ReplicationDialect, Seed, Source
from howfar.experiments.replication.lab.links import ReplicationSpec
from howfar.experiments.replication.lab.member import Member, refuse_errant_transactions, wait_for
from howfar.experiments.replication.lab.status import (
    MariadbPositions,
    MysqlPositions,
    Positions,
    SemiSyncPrefixes,
    is_acknowledging,
    parse_primary_end,
    parse_semi_sync_prefixes,
)
from howfar.lab.servers import RunQuery, ServerContext, Tables, TableServer
from howfar.lab.servers.dialect import BinaryLog, check_quotable
from howfar.lab.servers.features import SEMI_SYNC_PLUGINS
from howfar.lab.servers.kinds import DIALECTS
from howfar.lab.servers.program import Program
from howfar.lab.servers.sql_store import SqlServer, SqlStore
from howfar.paths.path import Row

PRIMARY_ID = 1
"""Server id of the primary; the replicas' ids follow it."""
_PORT = 3306
_SEMI_SYNC = "LIKE 'rpl\\_semi%'"
_DURABILITY = ("innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_flush_method")
_HANDSHAKE_COUNTER = "Ssl_finished_accepts"
_UNBLOCK_INTERVAL_S = 0.5
_STOP_TIMEOUT_S = 120.0
"""Time allowed for stopping replication; longer than the servers' own timeouts."""


class BinaryLogReplication(ReplicationDialect):
    """The part of replication by the binary log that MariaDB and MySQL share."""

    port = _PORT
    modes: tuple[str, ...] = ("async", "after-sync", "after-commit")
    always_acknowledges = False
    replica_plugins: tuple[tuple[str, str], ...]
    status_sql: str
    reasons_sql: str | None
    """Query whose column `said` has the reasons why parallel applier threads stopped; None if the status already contains them."""
    start_sql: str
    stop_sql: str
    stop_receiving_sql: str
    reset_replica_sql: str
    """Makes a stopped replica forget its primary."""
    read_only_sql: str
    writable_sql: str
    account: tuple[str, ...]
    """Statements that create the replicas' account, with `{name}` and `{secret}`, before its privileges are granted."""
    password_clause: str
    """The clause of an account that sets its password, with `{password}`."""
    state_columns: tuple[str, str, str]
    """Columns of the replica's status: whether it receives, whether it applies, and the position that it has received."""

    @abstractmethod
    def options(self, spec: ReplicationSpec) -> tuple[str, ...]:
        """Options at start, the same for primary and replicas."""

    @abstractmethod
    def follow_sql(self, source: Source) -> str:
        """SQL that makes a replica follow `source`, from the first transaction that it lacks."""

    def account_sql(self, password: str, *, tls: bool) -> str:
        """SQL that creates the replicas' account, one statement per line."""
        secret = self.password_clause.format(password=check_quotable(password)) + (" REQUIRE SSL" if tls else "")
        statements = [statement.format(name=f"'{ACCOUNT}'@'%'", secret=secret) for statement in self.account]
        return "\n".join([*statements, f"GRANT REPLICATION SLAVE ON *.* TO '{ACCOUNT}'@'%';"]) + "\n"

    def start_server(self, seed: Seed, context: ServerContext, program: Program, tables: Tables) -> TableServer:
        store = SqlStore(program, DIALECTS[program.kind], tables)
        store.prepare(context)
        return store.begin(binary_log=self.binary_log(seed), tls=seed.tls)

    def restart_member(self, member: Member, seed: Seed) -> SqlServer:
        """Start a server in place of a member's server that has ended, on its data, or without data if the seed's `join_mode` is
        `new`. Does not wait until it is ready."""
        old = member.server
        assert isinstance(old, SqlServer) and member.start_server is not None, "only the laboratory restarts members"
        if seed.join_mode == "new":
            shutil.rmtree(old.context.work)
            old.context.work.mkdir()
            member.server = member.start_server(seed)
        else:
            member.server = old.restart(self.binary_log(seed))
        assert isinstance(member.server, SqlServer)
        return member.server

    def binary_log(self, seed: Seed) -> BinaryLog:
        return BinaryLog(
            server_id=PRIMARY_ID + seed.number,
            options=self.options(seed.spec),
            init_sql=self.account_sql(seed.secret, tls=seed.spec.tls),
        )

    def follow(self, replica: Member, source: Source) -> None:
        replica.query(self.follow_sql(source), "the statement that names its primary")

    def join(self, primary: Member, replicas: tuple[Member, ...], spec: ReplicationSpec, timeout_s: float) -> None:
        """Create the tables and start replication. The primary becomes semi-synchronous before any replica connects."""
        make_schema(primary, timeout_s)
        names = {
            member.name: self.find_semi_sync_prefixes(member, load=spec.semi_sync) for member in (primary, *replicas)
        }
        if spec.semi_sync:
            for statement in names[primary.name].enable_primary_sql(spec):
                primary.query(statement)
        for replica in replicas:
            replica.query(self.read_only_sql)
            if spec.semi_sync:
                replica.query(names[replica.name].enable_replica_sql())
            refuse_errant_transactions(primary, replica)
            replica.query(self.start_sql)

    def find_semi_sync_prefixes(self, member: Member, *, load: bool) -> SemiSyncPrefixes:
        """The server's names for semi-synchronous replication. `load`: first load the plugins for both roles, if there are any,
        so that a replica can become a primary. Raises LabError."""
        names = parse_semi_sync_prefixes(query_variables(member.query))
        if not load:
            return names
        for prefix, plugins in ((names.primary, self.primary_plugins), (names.replica, self.replica_plugins)):
            if prefix is None:
                _load_any_plugin(member, plugins)
        names = parse_semi_sync_prefixes(query_variables(member.query))
        if names.primary is None or names.replica is None:
            raise LabError(
                f"{member.name} ({member.server.kind} {member.server.version}) has no semi-synchronous replication",
                "Ask for asynchronous replication, or use another server.",
            )
        return names

    def marker_sql(self, word: str, filling: str) -> str:
        return f"REPLACE INTO {SCHEMA}.marker VALUES (1, '{word}', '{filling}')"

    def heartbeat_sql(self, at_ns: int, row: int = 1) -> str:
        return f"REPLACE INTO {SCHEMA}.heartbeat VALUES ({row}, {at_ns})"

    def parse_replica_state(self, row: Row) -> ReplicaState:
        receiving, applying, received = (_text(row, name) for name in self.state_columns)
        errors = (_text(row, "Last_IO_Error"), _text(row, "Last_SQL_Error"))
        return ReplicaState(
            receiving=receiving, applying=applying, errors=tuple(filter(None, errors)), received=received
        )

    def read_state(self, run_query: RunQuery) -> ReplicaState | None:
        rows = run_query(self.status_sql)
        if not rows:
            return None
        state = self.parse_replica_state(rows[0])
        if not state.errors or self.reasons_sql is None:
            return state
        reasons = tuple(str(row["said"]) for row in run_query(self.reasons_sql))
        return state.model_copy(update={"errors": (*reasons, *state.errors)})

    def read_primary_end(self, run_query: RunQuery, primary: TableServer, spec: ReplicationSpec) -> PrimaryState | None:
        server_variables = query_variables(run_query)
        return parse_primary_end(parse_semi_sync_prefixes(server_variables), server_variables, query_status(run_query))

    def acknowledges(self, run_query: RunQuery, spec: ReplicationSpec) -> bool | None:
        return is_acknowledging(parse_semi_sync_prefixes(query_variables(run_query)), query_status(run_query))

    def read_durability(self, run_query: RunQuery, spec: ReplicationSpec) -> tuple[dict[str, str], dict[str, str]]:
        listed = ", ".join(f"'{name}'" for name in _DURABILITY)
        reported = query_variables(run_query, f"WHERE Variable_name IN ({listed})")
        flushing = spec.log_flushing
        values = (flushing.flush_log_at_commit, flushing.sync_binlog, flushing.flush_method)
        requested = zip(_DURABILITY, values, strict=True)
        return reported, {name: str(value) for name, value in requested if value is not None}

    def count_tls_handshakes(self, run_query: RunQuery) -> int:
        """The number of TLS handshakes that the primary has finished since it started; so far only its replicas have connected over
        the network."""
        return int(query_status(run_query, f"LIKE '{_HANDSHAKE_COUNTER}'")[_HANDSHAKE_COUNTER])

    def stop_receiving(self, replica: Member, timeout_s: float) -> None:
        replica.execute(self.stop_receiving_sql, timeout_s)

    def promote(self, replica: Member, timeout_s: float) -> int:
        _stop(replica, self.stop_receiving_sql, lambda: replica.server.context.host.run(_end_connections))
        unapplied = self._unapplied(replica)
        wait_for(
            lambda: self._unapplied(replica) == 0,
            timeout_s,
            lambda: (
                f"{replica.name} cannot be promoted: {self._unapplied(replica)} transactions that it received were not applied"
            ),
            "Is something locked there, or is the machine overloaded?",
        )
        _stop(replica, self.stop_sql, lambda: _kill_applier(replica))
        for statement in (self.reset_replica_sql, self.writable_sql):
            replica.query(statement)
        if replica.query("SELECT @@global.read_only AS is_read_only")[0]["is_read_only"]:
            raise LabError(f"{replica.name} was promoted and is still read-only")
        return unapplied

    def _unapplied(self, replica: Member) -> int:
        state = replica.read_replica_state()
        if state is None or state.applying != "Yes":
            why = "; ".join(state.errors) if state and state.errors else "it does not apply what it received"
            raise LabError(f"{replica.name} cannot be promoted: {why}", "Seed the replica again.")
        return self.positions.count_missing(state.received, replica.query_position(self.applied_sql))

    def set_timeout(self, primary: Member, timeout_ms: int | None) -> None:
        value = "DEFAULT" if timeout_ms is None else str(timeout_ms)
        names = parse_semi_sync_prefixes(query_variables(primary.query))
        primary.query(f"SET GLOBAL {names.primary}timeout = {value}")

    def replication_log(self, lines: list[str]) -> list[str]:
        return [line for line in lines if "semi-sync" in line.lower()]


def make_schema(primary: Member, timeout_s: float) -> None:
    """Create the laboratory's own tables on the primary. Raises LabError."""
    primary.write(
        f"CREATE DATABASE {SCHEMA}",
        f"CREATE TABLE {SCHEMA}.marker (id INT PRIMARY KEY, word VARCHAR(64), filling TEXT) ENGINE = InnoDB",
        f"CREATE TABLE {SCHEMA}.heartbeat (id INT PRIMARY KEY, sent_ns BIGINT UNSIGNED) ENGINE = InnoDB",
        timeout_s=timeout_s,
    )


def query_variables(run_query: RunQuery, pattern: str = _SEMI_SYNC) -> dict[str, str]:
    return {row["Variable_name"]: row["Value"] for row in run_query(f"SHOW GLOBAL VARIABLES {pattern}")}


def query_status(run_query: RunQuery, pattern: str = _SEMI_SYNC) -> dict[str, str]:
    return {row["Variable_name"]: row["Value"] for row in run_query(f"SHOW GLOBAL STATUS {pattern}")}


def durability_options(spec: ReplicationSpec) -> tuple[str, ...]:
    flushing = spec.log_flushing
    options = (
        f"--innodb-flush-log-at-trx-commit={flushing.flush_log_at_commit}",
        f"--sync-binlog={flushing.sync_binlog}",
    )
    return options if flushing.flush_method is None else (*options, f"--innodb-flush-method={flushing.flush_method}")


def _load_any_plugin(member: Member, plugins: tuple[tuple[str, str], ...]) -> None:
    refusals = []
    for name, file in plugins:
        try:
            member.query(f"INSTALL PLUGIN {name} SONAME '{file}'")
        except LabError as error:
            refusals.append(error.message.splitlines()[0])
            continue
        return
    if refusals:
        raise LabError(f"{member.name} loads no plugin for semi-synchronous replication: {'; '.join(refusals)}")


def _text(row: Row, name: str) -> str:
    """A column of a status, without newlines; empty for None."""
    value = row.get(name)
    return "" if value is None else str(value).replace("\n", "")


def _stop(replica: Member, sql: str, unblock: Callable[[], None]) -> None:
    """Run a statement that stops replication. While it has not ended, call `unblock` repeatedly. Raises LabError."""
    errors: list[HowfarError] = []

    def stop() -> None:
        try:
            replica.execute(sql, _STOP_TIMEOUT_S)
        except HowfarError as error:
            errors.append(error)

    thread = threading.Thread(target=stop, name="promote", daemon=True)
    thread.start()
    thread.join(_UNBLOCK_INTERVAL_S)
    while thread.is_alive():
        unblock()
        thread.join(_UNBLOCK_INTERVAL_S)
    if errors:
        raise LabError(f"{replica.name} cannot be promoted: {errors[0].message}", errors[0].advice)


def _end_connections() -> None:
    """Kill this host's connections to servers: a receiver whose primary is dead would wait for seconds. It has been ordered to stop,
    so it does not reconnect. If the kernel cannot kill connections, the receiver stops after its own timeout."""
    command = ["ss", "--kill", "--tcp", "--numeric", "--no-header", f"dport = :{_PORT}"]
    subprocess.run(command, capture_output=True)


def _kill_applier(replica: Member) -> None:
    """Kill the applier's threads; complete transactions are already applied. MySQL's applier that has received only part of a
    transaction waits a minute for the remainder before it stops; when killed, it rolls the part back at once."""
    threads = replica.query(
        "SELECT ID AS id FROM information_schema.processlist WHERE USER = 'system user' AND COMMAND <> 'Daemon'"
    )
    for row in threads:
        with suppress(LabError):  # the thread may have ended meanwhile
            replica.query(f"KILL {row['id']}")


class MariadbReplication(BinaryLogReplication):
    kind = "mariadb"
    modes = (*BinaryLogReplication.modes, "galera")
    positions: Positions = MariadbPositions()
    compressions = ("zlib",)
    max_replicas_to_wait_for = 1
    primary_plugins = ()
    replica_plugins = ()
    position_sql = "SELECT @@global.gtid_binlog_pos AS position"
    applied_sql = "SELECT @@global.gtid_slave_pos AS position"
    state_sql = "SELECT @@global.gtid_binlog_state AS position"
    origin_sql = "SELECT @@global.server_id AS position"
    status_sql = "SHOW SLAVE STATUS"
    reasons_sql = None
    start_sql = "START SLAVE"
    stop_sql = "STOP SLAVE"
    stop_receiving_sql = "STOP SLAVE IO_THREAD"
    reset_replica_sql = "RESET SLAVE ALL"
    read_only_sql = "SET GLOBAL read_only = ON"
    writable_sql = "SET GLOBAL read_only = OFF"
    account = ("CREATE OR REPLACE USER {name} {secret};",)
    password_clause = "IDENTIFIED VIA mysql_native_password USING PASSWORD('{password}')"
    state_columns = ("Slave_IO_Running", "Slave_SQL_Running", "Gtid_IO_Pos")

    def options(self, spec: ReplicationSpec) -> tuple[str, ...]:
        compressed = ("--slave-compressed-protocol=ON",) if spec.compression else ()
        return ("--gtid-strict-mode=ON", "--log-slave-updates=ON", *compressed, *durability_options(spec))

    def follow_sql(self, source: Source) -> str:
        encrypted = (
            f"MASTER_SSL = 1, MASTER_SSL_CA = '{source.ca}', MASTER_SSL_VERIFY_SERVER_CERT = 1"
            if source.ca
            else "MASTER_SSL = 0, MASTER_SSL_VERIFY_SERVER_CERT = 0"
        )
        return (
            f"CHANGE MASTER TO MASTER_HOST = '{source.address}', MASTER_PORT = {source.port}, MASTER_USER = '{ACCOUNT}', "
            f"MASTER_PASSWORD = '{check_quotable(source.password)}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1, "
            f"MASTER_HEARTBEAT_PERIOD = 1, {encrypted}"
        )


class MysqlReplication(BinaryLogReplication):
    kind = "mysql"
    replacements: ClassVar[Mapping[str, tuple[str, ...]]] = {"galera": ("group", "group-leader")}
    modes = (*BinaryLogReplication.modes, "group", "group-leader")
    positions = MysqlPositions()
    compressions = ("zlib", "zstd")
    max_replicas_to_wait_for = None
    primary_plugins = SEMI_SYNC_PLUGINS
    replica_plugins = (("rpl_semi_sync_replica", "semisync_replica.so"), ("rpl_semi_sync_slave", "semisync_slave.so"))
    position_sql = "SELECT @@global.gtid_executed AS position"
    applied_sql = position_sql
    state_sql = position_sql
    origin_sql = "SELECT @@global.server_uuid AS position"
    status_sql = "SHOW REPLICA STATUS"
    reasons_sql = (
        "SELECT LAST_ERROR_MESSAGE AS said FROM performance_schema.replication_applier_status_by_worker "
        "WHERE LAST_ERROR_NUMBER NOT IN (0, 3030)"  # 3030: it stopped because another worker had
    )
    start_sql = "START REPLICA"
    stop_sql = "STOP REPLICA"
    stop_receiving_sql = "STOP REPLICA IO_THREAD"
    reset_replica_sql = "RESET REPLICA ALL"
    read_only_sql = "SET GLOBAL super_read_only = ON"
    writable_sql = "SET GLOBAL read_only = OFF"
    account = ("DROP USER IF EXISTS {name};", "CREATE USER {name} {secret};")
    password_clause = "IDENTIFIED WITH caching_sha2_password BY '{password}'"
    state_columns = ("Replica_IO_Running", "Replica_SQL_Running", "Retrieved_Gtid_Set")

    def options(self, spec: ReplicationSpec) -> tuple[str, ...]:
        return ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", *durability_options(spec))

    def follow_sql(self, source: Source) -> str:
        encrypted = (
            f"SOURCE_SSL = 1, SOURCE_SSL_CA = '{source.ca}', SOURCE_SSL_VERIFY_SERVER_CERT = 1"
            if source.ca
            else "SOURCE_SSL = 0, GET_SOURCE_PUBLIC_KEY = 1"
        )
        return (
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{source.address}', SOURCE_PORT = {source.port}, "
            f"SOURCE_USER = '{ACCOUNT}', SOURCE_PASSWORD = '{check_quotable(source.password)}', SOURCE_AUTO_POSITION = 1, "
            "SOURCE_CONNECT_RETRY = 1, SOURCE_HEARTBEAT_PERIOD = 1, "
            f"SOURCE_COMPRESSION_ALGORITHMS = '{source.compression or 'uncompressed'}', {encrypted}"
        )
