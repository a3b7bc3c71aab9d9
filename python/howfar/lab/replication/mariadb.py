"""How MariaDB is told to replicate. See `verbs.Verbs`."""

from __future__ import annotations

from collections.abc import Mapping

from howfar.lab.replication.links import Compression, ReplicationSpec
from howfar.lab.replication.status import MariadbPositions, Positions
from howfar.lab.replication.verbs import ACCOUNT, ReplicaState, Source, durability_options, text_of
from howfar.lab.servers.dialect import quotable


class MariadbVerbs:
    kind = "mariadb"
    positions: Positions = MariadbPositions()
    compressions: tuple[Compression, ...] = ("zlib",)
    most_to_wait_for: int | None = 1
    primary_plugins: tuple[tuple[str, str], ...] = ()
    replica_plugins: tuple[tuple[str, str], ...] = ()
    position_sql = "SELECT @@global.gtid_binlog_pos AS position"
    applied_sql = "SELECT @@global.gtid_slave_pos AS position"
    state_sql = "SELECT @@global.gtid_binlog_state AS position"
    origin_sql = "SELECT @@global.server_id AS position"
    status_sql = "SHOW SLAVE STATUS"
    reasons_sql: str | None = None
    start_sql = "START SLAVE"
    stop_sql = "STOP SLAVE"
    stop_receiving_sql = "STOP SLAVE IO_THREAD"
    forget_sql = "RESET SLAVE ALL"
    read_only_sql = "SET GLOBAL read_only = ON"
    writable_sql = "SET GLOBAL read_only = OFF"

    def options(self, asked: ReplicationSpec) -> tuple[str, ...]:
        compressed = ("--slave-compressed-protocol=ON",) if asked.compression else ()
        return ("--gtid-strict-mode=ON", "--log-slave-updates=ON", *compressed, *durability_options(asked))

    def account_sql(self, password: str, *, tls: bool) -> str:
        secret = f"IDENTIFIED VIA mysql_native_password USING PASSWORD('{quotable(password)}')"
        lines = [
            f"CREATE OR REPLACE USER '{ACCOUNT}'@'%' {secret}{' REQUIRE SSL' if tls else ''};",
            f"GRANT REPLICATION SLAVE ON *.* TO '{ACCOUNT}'@'%';",
        ]
        return "\n".join(lines) + "\n"

    def follow_sql(self, source: Source) -> str:
        encrypted = (
            f"MASTER_SSL = 1, MASTER_SSL_CA = '{source.ca}', MASTER_SSL_VERIFY_SERVER_CERT = 1"
            if source.ca
            else "MASTER_SSL = 0, MASTER_SSL_VERIFY_SERVER_CERT = 0"
        )
        return (
            f"CHANGE MASTER TO MASTER_HOST = '{source.address}', MASTER_PORT = {source.port}, MASTER_USER = '{ACCOUNT}', "
            f"MASTER_PASSWORD = '{quotable(source.password)}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1, "
            f"MASTER_HEARTBEAT_PERIOD = 1, {encrypted}"
        )

    def replica_state(self, row: Mapping[str, object]) -> ReplicaState:
        return ReplicaState(
            receiving=text_of(row, "Slave_IO_Running"),
            applying=text_of(row, "Slave_SQL_Running"),
            errors=tuple(filter(None, (text_of(row, "Last_IO_Error"), text_of(row, "Last_SQL_Error")))),
            received=text_of(row, "Gtid_IO_Pos"),
        )
