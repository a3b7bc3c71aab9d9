"""MySQL's replication statements. See `binary_log.BinaryLogReplication`."""

from __future__ import annotations

from howfar.lab.replication.binary_log import BinaryLogReplication, durability_options
from howfar.lab.replication.dialect import ACCOUNT, Source
from howfar.lab.replication.links import ReplicationSpec
from howfar.lab.replication.status import MysqlPositions
from howfar.lab.servers.dialect import quotable


class MysqlReplication(BinaryLogReplication):
    kind = "mysql"
    positions = MysqlPositions()
    compressions = ("zlib", "zstd")
    most_to_wait_for = None
    primary_plugins = (
        ("rpl_semi_sync_source", "semisync_source.so"),
        ("rpl_semi_sync_master", "semisync_master.so"),
    )
    replica_plugins = (
        ("rpl_semi_sync_replica", "semisync_replica.so"),
        ("rpl_semi_sync_slave", "semisync_slave.so"),
    )
    position_sql = "SELECT @@global.gtid_executed AS position"
    applied_sql = position_sql
    state_sql = position_sql
    origin_sql = "SELECT @@global.server_uuid AS position"
    status_sql = "SHOW REPLICA STATUS"
    reasons_sql = (
        "SELECT LAST_ERROR_MESSAGE AS said FROM performance_schema.replication_applier_status_by_worker "
        "WHERE LAST_ERROR_NUMBER NOT IN (0, 3030)"  # 3030: it stopped because another one had
    )
    start_sql = "START REPLICA"
    stop_sql = "STOP REPLICA"
    stop_receiving_sql = "STOP REPLICA IO_THREAD"
    forget_sql = "RESET REPLICA ALL"
    read_only_sql = "SET GLOBAL super_read_only = ON"
    writable_sql = "SET GLOBAL read_only = OFF"
    account = ("DROP USER IF EXISTS {name};", "CREATE USER {name} {secret};")
    identified = "IDENTIFIED WITH caching_sha2_password BY '{password}'"
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
            f"SOURCE_USER = '{ACCOUNT}', SOURCE_PASSWORD = '{quotable(source.password)}', SOURCE_AUTO_POSITION = 1, "
            "SOURCE_CONNECT_RETRY = 1, SOURCE_HEARTBEAT_PERIOD = 1, "
            f"SOURCE_COMPRESSION_ALGORITHMS = '{source.compression or 'uncompressed'}', {encrypted}"
        )
