"""MySQL's Group Replication, single-primary or multi-primary: the members agree on the order of commits by a kind of Paxos (XCom).

All members begin with equal data and without their own transactions, so none has to fetch anything when it joins. Encryption between
the members is off, as between the laboratory's other servers; MySQL 9.7 would require it by default.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from howfar.contract.replication_receipt import NodeFacts, PrimaryState, ReplicaState
from howfar.experiments.replication.lab.binary_log import MysqlReplication, make_schema, query_status, query_variables
from howfar.experiments.replication.lab.dialect import ACCOUNT, Seed, Source, query_one_row
from howfar.experiments.replication.lab.links import ReplicationSpec
from howfar.experiments.replication.lab.member import Member, wait_for, wait_for_node
from howfar.lab.servers import RunQuery, ServerContext
from howfar.lab.servers.dialect import BinaryLog, check_quotable

PORT = 33061
"""Port on which the members communicate with each other."""
_CACHE_BYTES = 128 << 20
_MEMBERS_TABLE = "performance_schema.replication_group_members"
_OWN_STATE_SQL = (
    f"SELECT MEMBER_STATE AS state, MEMBER_ROLE AS role FROM {_MEMBERS_TABLE} WHERE MEMBER_ID = @@server_uuid"
)
_ONLINE_COUNT_SQL = f"SELECT COUNT(*) AS n FROM {_MEMBERS_TABLE} WHERE MEMBER_STATE = 'ONLINE'"
_SURVIVORS_SQL = (
    f"SELECT COUNT(*) AS members, CAST(SUM(MEMBER_ROLE = 'PRIMARY') AS SIGNED) AS primaries, "
    "(SELECT COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE FROM performance_schema.replication_group_member_stats "
    f"WHERE MEMBER_ID = @@server_uuid) AS queue FROM {_MEMBERS_TABLE} WHERE MEMBER_STATE = 'ONLINE'"
)
_STATS_SQL = (
    "SELECT COUNT_CONFLICTS_DETECTED AS conflicts, COUNT_TRANSACTIONS_LOCAL_PROPOSED AS ordered, "
    "COUNT_TRANSACTIONS_LOCAL_ROLLBACK AS rolled_back FROM performance_schema.replication_group_member_stats "
    "WHERE MEMBER_ID = @@server_uuid"
)
_PROTOCOL_SQL = "SELECT group_replication_get_communication_protocol() AS protocol"
_COUNTERS = (
    "Gr_data_messages_sent_count",
    "Gr_data_messages_sent_roundtrip_time_sum",
    "Gr_all_consensus_proposals_count",
    "Gr_empty_consensus_proposals_count",
)


class GroupReplication(MysqlReplication):
    modes = ("group", "group-leader")
    origin_sql = "SELECT @@group_replication_group_name AS position"

    def binary_log(self, seed: Seed) -> BinaryLog:
        log, spec = super().binary_log(seed), seed.spec
        # XCom listens on all addresses of a host, without a password. On the user's hosts, communicate through the server's own port
        # and accounts instead.
        port = ServerContext.port_on(self.port) if seed.on_hosts else PORT
        address = seed.nodes[seed.number]
        group_options = {
            "group-name": seed.group,
            "start-on-boot": "OFF",
            "local-address": f"{address}:{port}",
            "group-seeds": ",".join(f"{node}:{port}" for node in seed.nodes),
            "ip-allowlist": "10.0.0.0/8",
            "ssl-mode": "DISABLED",
            "recovery-use-ssl": "OFF",
            "recovery-get-public-key": "ON",
            "message-cache-size": _CACHE_BYTES,
            "consistency": _consistency_level(spec),
            "single-primary-mode": _single_primary_mode(spec),
            "enforce-update-everywhere-checks": "ON" if spec.multi_writer else "OFF",
            "paxos-single-leader": "ON" if spec.mode == "group-leader" else "OFF",
            **({"communication-stack": "MYSQL"} if seed.on_hosts else {}),
            **({"clone-threshold": 1} if seed.join_mode == "new" else {}),
        }
        options = (
            "--plugin-load-add=group_replication.so",
            "--plugin-load-add=mysql_clone.so",
            f"--report-host={address}",
            *(f"--group-replication-{name}={value}" for name, value in group_options.items()),
        )
        recovery_sql = (
            f"CHANGE REPLICATION SOURCE TO SOURCE_USER = '{ACCOUNT}', SOURCE_PASSWORD = '{check_quotable(seed.secret)}' "
            "FOR CHANNEL 'group_replication_recovery';\n"
        )
        privileges = "BACKUP_ADMIN, GROUP_REPLICATION_STREAM" if seed.on_hosts else "BACKUP_ADMIN"
        grant_sql = f"GRANT {privileges} ON *.* TO '{ACCOUNT}'@'%';\n"
        fetches_data = seed.join_mode != "founds"
        init_sql = log.init_sql + grant_sql + recovery_sql
        return replace(log, options=(*log.options, *options), init_sql=init_sql, fetches_data=fetches_data)

    def rejoin(self, member: Member, seed: Seed, timeout_s: float) -> str:
        self._start(member, seed, timeout_s)
        method = "binary log"
        if seed.join_mode == "new":
            # After cloning another member, the server exits and expects a supervisor to restart it; here we are the supervisor.
            wait_for(
                lambda: not member.server.alive(),
                timeout_s,
                lambda: f"{member.name} did not end to begin anew with its clone",
                "Its log says how far it came.",
            )
            self._start(member, replace(seed, join_mode="returns"), timeout_s)
            method = "clone"
        wait_for_node(member, timeout_s)
        return method

    def _start(self, member: Member, seed: Seed, timeout_s: float) -> None:
        self.restart_member(member, seed).become_ready()
        member.execute("START GROUP_REPLICATION", timeout_s)

    def follow(self, replica: Member, source: Source) -> None:
        """Do nothing: a node's options name the group to join."""

    def join(self, primary: Member, replicas: tuple[Member, ...], spec: ReplicationSpec, timeout_s: float) -> None:
        primary.execute("SET GLOBAL group_replication_bootstrap_group = ON", timeout_s)
        primary.execute("START GROUP_REPLICATION", timeout_s)
        primary.execute("SET GLOBAL group_replication_bootstrap_group = OFF", timeout_s)
        with ThreadPoolExecutor(len(replicas)) as pool:
            for future in [pool.submit(replica.execute, "START GROUP_REPLICATION", timeout_s) for replica in replicas]:
                future.result()
        for member in (primary, *replicas):
            wait_for_node(member, timeout_s)
        make_schema(primary, timeout_s)

    def read_state(self, run_query: RunQuery) -> ReplicaState | None:
        row = query_one_row(run_query, _OWN_STATE_SQL)
        ready = "Yes" if row["state"] == "ONLINE" else "Connecting"
        received = str(query_one_row(run_query, self.applied_sql)["position"] or "")
        return ReplicaState(receiving=ready, applying=ready, errors=(), received=received)

    def read_node_facts(self, run_query: RunQuery, name: str, spec: ReplicationSpec) -> NodeFacts:
        own_member, online, stats, protocol = (
            query_one_row(run_query, sql) for sql in (_OWN_STATE_SQL, _ONLINE_COUNT_SQL, _STATS_SQL, _PROTOCOL_SQL)
        )
        settings = query_variables(
            run_query,
            "WHERE Variable_name IN ('group_replication_consistency', 'group_replication_paxos_single_leader', "
            "'group_replication_single_primary_mode', 'group_replication_flow_control_mode')",
        )
        reported = {**settings, "state": own_member["state"], "role": own_member["role"], "members online": online["n"]}
        requested = {
            "state": "ONLINE",
            "role": "PRIMARY" if spec.multi_writer or name == "primary" else "SECONDARY",
            "members online": spec.replicas + 1,
            "group_replication_consistency": _consistency_level(spec),
            "group_replication_single_primary_mode": _single_primary_mode(spec),
            "group_replication_paxos_single_leader": "ON" if spec.mode == "group-leader" else "OFF",
        }
        listed = ", ".join(f"'{counter}'" for counter in _COUNTERS)
        counters = query_status(run_query, f"WHERE Variable_name IN ({listed})")
        return NodeFacts(
            name=name,
            role=str(own_member["role"]),
            settings={**settings, **{key: str(value) for key, value in protocol.items()}},
            counters={key: int(value) for key, value in {**stats, **counters}.items()},
            mismatches=tuple(
                f"had {setting} {reported.get(setting)} instead of {value}"
                for setting, value in requested.items()
                if reported.get(setting) != value
            ),
        )

    def promote(self, replica: Member, timeout_s: float) -> int:
        """Wait until the group has elected a primary, which may be another member, and this member has applied everything."""

        def has_recovered() -> bool:
            row = query_one_row(replica.query, _SURVIVORS_SQL)
            return row["members"] <= replica.spec.replicas and (row["primaries"], row["queue"]) == (1, 0)

        wait_for(has_recovered, timeout_s, lambda: f"{replica.name} did not go on without the member that died")
        return 0

    def read_primary_end(self, run_query: RunQuery, primary: object, spec: ReplicationSpec) -> PrimaryState | None:
        return None

    def acknowledges(self, run_query: RunQuery, spec: ReplicationSpec) -> bool | None:
        return None


def _consistency_level(spec: ReplicationSpec) -> str:
    return spec.consistency.replace("-", "_").upper()


def _single_primary_mode(spec: ReplicationSpec) -> str:
    return "OFF" if spec.multi_writer else "ON"
