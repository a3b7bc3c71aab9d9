"""MariaDB's replication statements. See `binary_log.BinaryLogReplication`."""

from __future__ import annotations

from howfar.lab.replication.binary_log import BinaryLogReplication, durability_options
from howfar.lab.replication.dialect import ACCOUNT, Source
from howfar.lab.replication.links import ReplicationSpec
from howfar.lab.replication.status import MariadbPositions
from howfar.lab.servers.dialect import quotable


class MariadbReplication(BinaryLogReplication):
    kind = "mariadb"
    positions = MariadbPositions()
    compressions = ("zlib",)
    most_to_wait_for = 1
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
    forget_sql = "RESET SLAVE ALL"
    read_only_sql = "SET GLOBAL read_only = ON"
    writable_sql = "SET GLOBAL read_only = OFF"
    account = ("CREATE OR REPLACE USER {name} {secret};",)
    identified = "IDENTIFIED VIA mysql_native_password USING PASSWORD('{password}')"
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
            f"MASTER_PASSWORD = '{quotable(source.password)}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1, "
            f"MASTER_HEARTBEAT_PERIOD = 1, {encrypted}"
        )
