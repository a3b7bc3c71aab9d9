"""What the doctor reports about a cluster, from its servers' answers; `tests/lab/test_cluster.py` asks real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.made_doctor import looked, server

from howfar.doctor.clusters import read_cluster
from howfar.doctor.findings import Cluster, Finding, Severity

_OPTIONS = {
    "base_dir": "/var/lib/mysql/", "evs.inactive_timeout": "PT15S", "evs.keepalive_period": "PT1S", "evs.suspect_timeout": "PT5S",
    "gcs.fc_limit": "16", "pc.ignore_quorum": "false", "pc.ignore_sb": "false", "socket.ssl_password_file": "/secret",
}  # fmt: skip
_GALERA = {
    "wsrep_on": "ON", "wsrep_sync_wait": "0", "wsrep_slave_threads": "1", "wsrep_cluster_size": "3", "wsrep_cluster_weight": "3",
    "wsrep_flow_control_paused": "0.002", "wsrep_evs_repl_latency": "0.085/0.086/0.1/0.001/40",
}  # fmt: skip
_GROUP = {
    "group_replication_consistency": "EVENTUAL", "group_replication_paxos_single_leader": "ON",
    "group_replication_single_primary_mode": "ON", "group_replication_member_expel_timeout": "5",
    "group_replication_flow_control_mode": "QUOTA", "group_replication_flow_control_applier_threshold": "25000",
    "group_replication_flow_control_certifier_threshold": "25000", "Gr_data_messages_sent_count": "100",
    "Gr_data_messages_sent_roundtrip_time_sum": "2000000", "Gr_transactions_consistency_before_begin_count": "10",
    "Gr_transactions_consistency_before_begin_time_sum": "30000",
}  # fmt: skip


def galera(options: dict[str, str] | None = None, **more: str) -> Cluster | None:
    told = "; ".join(f"{name} = {value}" for name, value in {**_OPTIONS, **(options or {})}.items())
    return _read({**_GALERA, "wsrep_provider_options": f"{told}; ", **more})


def group(members: int = 3, queue: int | None = 0, **more: str) -> Cluster | None:
    return _read({**_GROUP, **{f"group_replication_{name}": value for name, value in more.items()}}, members, queue)


def _read(told: dict[str, str], members: int = 0, queue: int | None = None) -> Cluster | None:
    def pairs(what: str, names: Sequence[str]) -> dict[str, str]:
        of_status = {
            name for name in told if name.startswith(("Gr_", "wsrep_cluster", "wsrep_flow", "wsrep_evs", "wsrep_repl"))
        }
        return {n: told[n] for n in names if n in told and (n in of_status) == (what == "STATUS")}

    def rows(statement: str) -> list[tuple[Any]]:
        return [(queue if "QUEUE" in statement else members,)]

    return read_cluster(pairs, rows)


def seen(cluster: Cluster | None) -> tuple[Finding, ...]:
    assert cluster is not None
    return looked(server(cluster=cluster, config_file="/etc/my.cnf"))


def lines(finding: Finding) -> str:
    return "\n".join(line for change in finding.changes for line in change.lines)


def test_a_server_in_no_cluster_has_none() -> None:
    alone = {"wsrep_on": "OFF", "wsrep_provider_options": "", "wsrep_cluster_size": "0"}
    assert _read(alone) is _read({}) is _read(_GROUP, members=0) is None


@pytest.mark.parametrize(
    "cluster",
    [
        galera(),
        galera({"evs.suspect_timeout": "PT1M30S", "evs.inactive_timeout": "PT2M"}),
        galera({"evs.suspect_timeout": "in a while"}),
        galera(wsrep_evs_repl_latency="", wsrep_flow_control_paused="8.1e-05"),
        galera(binlog_annotate_row_events="ON", wsrep_replicated="90", wsrep_replicated_bytes="90000"),
        galera(binlog_annotate_row_events="ON", wsrep_replicated="0", wsrep_replicated_bytes="0"),
        galera(binlog_annotate_row_events="OFF", wsrep_replicated="9", wsrep_replicated_bytes="90000000"),
        galera({"evs.user_send_window": "2"}, wsrep_evs_repl_latency="0.0003/0.008/0.1/0.001/40"),
        galera(wsrep_cluster_size="2"),  # an arbiter, or one of them has two votes
        group(),
        group(consistency="BEFORE_ON_PRIMARY_FAILOVER", queue=20_000),
        group(single_primary_mode="OFF", paxos_single_leader="OFF"),
        group(flow_control_mode="DISABLED", flow_control_applier_threshold="10", queue=100),
        group(queue=None),
    ],
)
def test_a_cluster_that_is_set_up_well_has_no_findings(cluster: Cluster | None) -> None:
    assert seen(cluster) == ()


@pytest.mark.parametrize(
    ("cluster", "check", "severity", "says", "line"),
    [
        (galera(wsrep_sync_wait="7"), "cluster-reads", "note", "statements wait", "wsrep_sync_wait = 0"),
        (galera(wsrep_cluster_weight="4"), "cluster-quorum", "note", "half of 4 votes", "garbd"),
        (galera(wsrep_cluster_size="1", wsrep_cluster_weight="1"), "cluster-quorum", "note", "only node", ""),
        (galera({"pc.ignore_sb": "true"}), "cluster-quorum", "change", "without a majority", '"pc.ignore_sb=NO"'),
        (galera({"evs.suspect_timeout": "PT1.5S"}), "cluster-timeouts", "change", "take 3 s", "suspect_timeout=PT5S"),
        (galera({"evs.inactive_timeout": "PT4S"}), "cluster-timeouts", "change", "PT4S", "inactive_timeout=PT15S"),
        # 2 x 1 s and 10 x 0.4 s are more than 5 s.
        (galera(wsrep_evs_repl_latency="0.2/0.3/0.4/0.1/9"), "cluster-timeouts", "change", "take 6 s", "suspect_timeout=PT30S"),
        (galera(wsrep_flow_control_paused="0.12"), "cluster-flow-control", "change", "12 % of",
         '"gcs.fc_limit=256"\nwsrep_slave_threads = 4'),
        (galera({"gcs.fc_limit": "500"}, wsrep_flow_control_paused="0.12"), "cluster-flow-control", "note", "too slow", ""),
        (galera(binlog_annotate_row_events="ON", wsrep_replicated="9", wsrep_replicated_bytes="20241000"), "cluster-text", "note",
         "sends 2,249 kB to every", "binlog_annotate_row_events = OFF"),
        (galera({"evs.user_send_window": "2", "evs.send_window": "1024"}), "cluster-window", "note", "129 kB at most",
         '"evs.send_window=1024;evs.user_send_window=512"'),
        (group(consistency="BEFORE"), "cluster-reads", "note", "first waits", "consistency = BEFORE_ON_PRIMARY_FAILOVER"),
        (group(consistency="AFTER"), "cluster-reads", "note", "every member", "SESSION group_replication_consistency = 'AFTER'"),
        (group(paxos_single_leader="OFF"), "cluster-turns", "change", "idle", "group_replication_paxos_single_leader = ON"),
        (group(member_expel_timeout="0"), "cluster-timeouts", "note", "joins again by itself", "member_expel_timeout = 5"),
        (group(member_expel_timeout="3600"), "cluster-timeouts", "change", "for 3600 s, and 7 to 17 s more",
         "member_expel_timeout = 5"),
        (group(flow_control_applier_threshold="10"), "cluster-flow-control", "note", "10 trans", "applier_threshold = 25000"),
        (group(flow_control_certifier_threshold="10", queue=70), "cluster-flow-control", "change", "is 70",
         "certifier_threshold = 25000"),
        (group(queue=30_000), "cluster-flow-control", "note", "too slow", ""),
        (group(members=4), "cluster-quorum", "note", "half of 4 votes", ""),
    ],
)  # fmt: skip
def test_what_wastes_round_trips_or_risks_a_stall_is_found_with_its_line(
    cluster: Cluster | None, check: str, severity: str, says: str, line: str
) -> None:
    (finding,) = seen(cluster)
    assert (finding.check, finding.severity) == (check, severity)
    assert says in finding.text and line in lines(finding)
    assert finding.changes or finding.severity is Severity.NOTE
    if "[mysqld]" in lines(finding):
        assert finding.changes[0].where == "/etc/my.cnf of every node"


def test_what_it_costs_is_what_the_server_counted() -> None:
    (finding,) = seen(group(paxos_single_leader="OFF"))
    assert finding.gain is not None and "20 ms" in finding.gain.text, "2 s of 100 messages"
    (finding,) = seen(group(consistency="BEFORE_AND_AFTER"))
    assert finding.gain is not None and "3 ms" in finding.gain.text, "30 ms of 10 transactions"


def test_the_options_of_all_findings_are_in_one_line() -> None:
    """The server uses only the last such line."""
    cluster = galera({"evs.suspect_timeout": "PT1.5S", "pc.ignore_quorum": "true"}, wsrep_flow_control_paused="0.5")
    options = {line for finding in seen(cluster) for line in lines(finding).splitlines() if "provider" in line}
    (line,) = options
    assert all(word in line for word in ("evs.suspect_timeout=PT5S", "pc.ignore_quorum=NO", "gcs.fc_limit=256"))


def test_files_of_keys_are_not_shown() -> None:
    cluster = galera()
    assert cluster is not None and "/secret" not in cluster.model_dump_json()
