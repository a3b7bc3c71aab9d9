"""How MySQL is told to replicate. See `verbs.Verbs`."""

from __future__ import annotations

from collections.abc import Mapping

from howfar.lab.replication.links import Compression, ReplicationSpec
from howfar.lab.replication.status import MysqlPositions, Positions
from howfar.lab.replication.verbs import ACCOUNT, ReplicaState, Source, durability_options, text_of
from howfar.lab.servers.dialect import quotable


class MysqlVerbs:
    kind = "mysql"
    positions: Positions = MysqlPositions()
    compressions: tuple[Compression, ...] = ("zlib", "zstd")
    most_to_wait_for: int | None = None
    primary_plugins: tuple[tuple[str, str], ...] = (
        ("rpl_semi_sync_source", "semisync_source.so"),
        ("rpl_semi_sync_master", "semisync_master.so"),
    )
    replica_plugins: tuple[tuple[str, str], ...] = (
        ("rpl_semi_sync_replica", "semisync_replica.so"),
        ("rpl_semi_sync_slave", "semisync_slave.so"),
    )
    position_sql = "SELECT @@global.gtid_executed AS position"
    applied_sql = position_sql
    state_sql = position_sql
    origin_sql = "SELECT @@global.server_uuid AS position"
    status_sql = "SHOW REPLICA STATUS"
    reasons_sql: str | None = (
        "SELECT LAST_ERROR_MESSAGE AS said FROM performance_schema.replication_applier_status_by_worker "
        "WHERE LAST_ERROR_NUMBER NOT IN (0, 3030)"  # 3030: it stopped because another one had
    )
    start_sql = "START REPLICA"
    stop_sql = "STOP REPLICA"
    stop_receiving_sql = "STOP REPLICA IO_THREAD"
    forget_sql = "RESET REPLICA ALL"
    read_only_sql = "SET GLOBAL super_read_only = ON"
    writable_sql = "SET GLOBAL read_only = OFF"

    def options(self, asked: ReplicationSpec) -> tuple[str, ...]:
        return ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", *durability_options(asked))

    def account_sql(self, password: str, *, tls: bool) -> str:
        secret = f"IDENTIFIED WITH caching_sha2_password BY '{quotable(password)}'"
        lines = [
            f"DROP USER IF EXISTS '{ACCOUNT}'@'%';",
            f"CREATE USER '{ACCOUNT}'@'%' {secret}{' REQUIRE SSL' if tls else ''};",
            f"GRANT REPLICATION SLAVE ON *.* TO '{ACCOUNT}'@'%';",
        ]
        return "\n".join(lines) + "\n"

    def follow_sql(self, source: Source) -> str:
        encrypted = (
            f"SOURCE_SSL = 1, SOURCE_SSL_CA = '{source.ca}', SOURCE_SSL_VERIFY_SERVER_CERT = 1"
            if source.ca
            else "SOURCE_SSL = 0, GET_SOURCE_PUBLIC_KEY = 1"
        )
        return (
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{source.address}', SOURCE_PORT = {source.port}, "
            f"SOURCE_USER = '{ACCOUNT}', SOURCE_PASSWORD = '{quotable(source.password)}', SOURCE_AUTO_POSITION = 1, "
            "SOURCE_CONNECT_RETRY = 1, SOURCE_HEARTBEAT_PERIOD = 1, "
            f"SOURCE_COMPRESSION_ALGORITHMS = '{source.compression or 'uncompressed'}', {encrypted}"
        )

    def replica_state(self, row: Mapping[str, object]) -> ReplicaState:
        return ReplicaState(
            receiving=text_of(row, "Replica_IO_Running"),
            applying=text_of(row, "Replica_SQL_Running"),
            errors=tuple(filter(None, (text_of(row, "Last_IO_Error"), text_of(row, "Last_SQL_Error")))),
            received=text_of(row, "Retrieved_Gtid_Set"),
        )
