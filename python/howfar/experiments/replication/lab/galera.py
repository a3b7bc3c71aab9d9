"""Galera: every node of MariaDB has the same data, and a commit is ordered among all of them before it returns.

Nodes begin with equal data, and files that say so: `grastate.dat` has the same state on all nodes, and `gvwstate.dat` lists the
members of a supposed earlier cluster. So the nodes start in parallel and resume that cluster without transferring data. Positions are
the cluster's sequence numbers.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from howfar.contract.replication_receipt import NodeFacts, PrimaryState, ReplicaState
from howfar.errors import LabError
from howfar.experiments.replication.lab.binary_log import MariadbReplication, make_schema, query_status, query_variables
from howfar.experiments.replication.lab.dialect import Seed, Source
from howfar.experiments.replication.lab.links import ReplicationSpec
from howfar.experiments.replication.lab.member import Member, wait_for, wait_for_node
from howfar.lab.servers import RunQuery, ServerContext
from howfar.lab.servers.dialect import BinaryLog
from howfar.lab.servers.galera_programs import TRANSFER_METHOD, find_provider, transfer_path
from howfar.services.galera import PACKET, WINDOW, provider_options

PORT = 4567
"""Port on which the nodes communicate with each other."""
SYNC_WAIT = {"eventual": 0, "before": 7}
"""Value of `wsrep_sync_wait` for each level of `consistency`: which statements wait until their node has applied all earlier
transactions. 7: reads, updates, deletes and inserts."""
SYNCED = "Synced"
_TRANSFER_LOG_TEXTS = {"IST": "Running IST", "SST": "SST received"}
"""Text in the log of a node that fetched the transactions that it had missed (IST) or all data (SST). After an IST the log has
both."""
_COUNTERS = {
    "wsrep_replicated": "ordered",
    "wsrep_local_cert_failures": "conflicts",
    "wsrep_local_bf_aborts": "wsrep_local_bf_aborts",
    "wsrep_flow_control_paused_ns": "wsrep_flow_control_paused_ns",
    "wsrep_flow_control_sent": "wsrep_flow_control_sent",
    "wsrep_flow_control_recv": "wsrep_flow_control_recv",
}
_ROOT_BY_SOCKET_SQL = "ALTER USER 'root'@'localhost' IDENTIFIED VIA unix_socket;\n"
"""Lets root log in by Unix socket: the program that copies the data for another node would show a password in its command line."""
_SETTINGS = ("wsrep_protocol_version", "wsrep_provider_version", "wsrep_cluster_conf_id")
_REPORTED_OPTIONS = (WINDOW, PACKET)
"""Options of Galera's library that the receipt contains."""
_STATUS_SQL = "SELECT VARIABLE_VALUE AS position FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '{}'"


class GaleraPositions:
    """See `status.Positions`. A state is the UUID of the cluster's state."""

    counts_received = False

    def count_missing(self, ahead: str, behind: str) -> int:
        return max(int(ahead) - int(behind), 0)

    def errant_transactions(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        return "" if replica_state == primary_state else f"its cluster is {replica_state} and not {primary_state}"


class GaleraReplication(MariadbReplication):
    modes = ("galera",)
    positions = GaleraPositions()
    position_sql = applied_sql = _STATUS_SQL.format("wsrep_last_committed")
    state_sql = _STATUS_SQL.format("wsrep_cluster_state_uuid")

    def binary_log(self, seed: Seed) -> BinaryLog:
        log, spec = super().binary_log(seed), seed.spec
        if (library := find_provider()) is None:
            raise LabError("Galera's library was not found", "Run `howfar setup --clusters`.")
        nodes = [str(uuid.uuid5(uuid.UUID(seed.group), str(number))) for number in range(spec.replicas + 1)]
        port = ServerContext.port_on(PORT) if seed.on_hosts else PORT
        address, addresses = seed.nodes[seed.number], ",".join(f"{node}:{port}" for node in seed.nodes)
        listen_options = f";base_port={port};gmcast.listen_addr=tcp://{address}:{port}" if seed.on_hosts else ""
        is_founder = seed.join_mode == "founds"
        start_position = (f"--wsrep-start-position={seed.group}:0",) if is_founder else ()
        options = (
            *start_position,
            "--wsrep-on=ON",
            f"--wsrep-provider={library}",
            f"--wsrep-cluster-name={uuid.UUID(seed.group).hex}",  # a node with another name cannot join
            f"--wsrep-cluster-address=gcomm://{addresses}",
            f"--wsrep-node-address={address}",
            f"--wsrep-node-name={seed.name}",
            f"--wsrep-sst-method={'skip' if is_founder else TRANSFER_METHOD}",
            "--wsrep-sst-auth=root:",
            "--wsrep-dirty-reads=ON",  # a node that is cut off still answers reads; it refuses writes anyway
            f"--wsrep-sync-wait={SYNC_WAIT[spec.consistency]}",
            f"--wsrep-provider-options=gcache.size=64M{listen_options}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        )
        members = "".join(f"member: {node} 0\n" for node in nodes)
        return replace(
            log,
            options=(*log.options, *options),
            unlogged_sql="SET SESSION wsrep_on = OFF;\n" + log.unlogged_sql,
            init_sql=log.init_sql + _ROOT_BY_SOCKET_SQL,
            path=transfer_path(),
            uses_option_file=True,
            fetches_data=not is_founder,
            files={
                "grastate.dat": f"version: 2.1\nuuid: {seed.group}\nseqno: 0\nsafe_to_bootstrap: 0\n",
                "gvwstate.dat": f"my_uuid: {nodes[seed.number]}\n#vwbeg\nview_id: 3 {nodes[0]} 1\nbootstrap: 0\n{members}#vwend\n",
            }
            if is_founder
            else {},
        )

    def rejoin(self, member: Member, seed: Seed, timeout_s: float) -> str:
        server = self.restart_member(member, seed)
        server.become_ready()
        wait_for_node(member, timeout_s)
        log_text = "\n".join(server.log_lines())
        return next((method for method, text in _TRANSFER_LOG_TEXTS.items() if text in log_text), "nothing")

    def follow(self, replica: Member, source: Source) -> None:
        """Do nothing: a node joins the cluster when it starts."""

    def join(self, primary: Member, replicas: tuple[Member, ...], spec: ReplicationSpec, timeout_s: float) -> None:
        for member in (primary, *replicas):
            wait_for_node(member, timeout_s)
        make_schema(primary, timeout_s)

    def read_state(self, run_query: RunQuery) -> ReplicaState | None:
        reported = query_status(run_query, "LIKE 'wsrep%'")
        ready = (
            "Yes"
            if reported["wsrep_local_state_comment"] == SYNCED and reported["wsrep_connected"] == "ON"
            else "Connecting"
        )
        return ReplicaState(
            receiving=ready,
            applying="Yes" if reported["wsrep_ready"] == "ON" else "No",
            errors=(),
            received=reported["wsrep_last_committed"],
        )

    def read_node_facts(self, run_query: RunQuery, name: str, spec: ReplicationSpec) -> NodeFacts:
        reported = query_status(run_query, "LIKE 'wsrep%'")
        settings = query_variables(
            run_query, "WHERE Variable_name IN ('wsrep_sync_wait', 'wsrep_slave_threads', 'wsrep_on')"
        )
        options = query_variables(run_query, "WHERE Variable_name = 'wsrep_provider_options'")["wsrep_provider_options"]
        provider_values = provider_options(options)
        settings |= {name: provider_values[name] for name in _REPORTED_OPTIONS if name in provider_values}
        requested = {
            "wsrep_local_state_comment": SYNCED,
            "wsrep_cluster_size": str(spec.replicas + 1),
            "wsrep_cluster_status": "Primary",
            "wsrep_ready": "ON",
            "wsrep_on": "ON",
            "wsrep_sync_wait": str(SYNC_WAIT[spec.consistency]),
        }
        actual = {**reported, **settings}
        return NodeFacts(
            name=name,
            role=reported["wsrep_cluster_status"],
            settings={**settings, **{setting: reported[setting] for setting in _SETTINGS}},
            counters={own_name: int(reported[server_name]) for server_name, own_name in _COUNTERS.items()},
            mismatches=tuple(
                f"had {setting} {actual.get(setting)} instead of {value}"
                for setting, value in requested.items()
                if actual.get(setting) != value
            ),
        )

    def promote(self, replica: Member, timeout_s: float) -> int:
        """Wait until the remaining nodes continue without the lost node. Every node accepts writes, so none has to be promoted."""

        def has_recovered() -> bool:
            reported = query_status(replica.query, "LIKE 'wsrep%'")
            size = int(reported["wsrep_cluster_size"])
            return (
                reported["wsrep_ready"] == "ON"
                and reported["wsrep_local_recv_queue"] == "0"
                and size <= replica.spec.replicas
            )

        wait_for(has_recovered, timeout_s, lambda: f"{replica.name} did not go on without the node that died")
        return 0

    def read_primary_end(self, run_query: RunQuery, primary: object, spec: ReplicationSpec) -> PrimaryState | None:
        return None

    def acknowledges(self, run_query: RunQuery, spec: ReplicationSpec) -> bool | None:
        return None
