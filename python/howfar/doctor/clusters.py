"""Finds settings of Galera and Group Replication that waste round trips or risk a stall. One node describes its cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from howfar.doctor.findings import Change, Cluster, Draft, Gain, Server, Severity, format_time
from howfar.doctor.proposals import config_file_of
from howfar.findings import fill
from howfar.services.galera import DEFAULT_PACKET_BYTES, PACKET, WINDOW, provider_options

GALERA, GROUP = "Galera", "Group Replication"
_SETTING_NAMES = (
    "wsrep_on", "wsrep_sync_wait", "wsrep_slave_threads", "wsrep_provider_options", "group_replication_consistency",
    "group_replication_paxos_single_leader", "group_replication_single_primary_mode", "group_replication_member_expel_timeout",
    "group_replication_flow_control_mode", "group_replication_flow_control_applier_threshold",
    "group_replication_flow_control_certifier_threshold", "binlog_annotate_row_events",
)  # fmt: skip
_PROVIDER_OPTIONS = (
    "evs.keepalive_period", "evs.suspect_timeout", "evs.inactive_timeout", "gcs.fc_limit", "pc.ignore_quorum", "pc.ignore_sb",
    WINDOW, "evs.send_window", PACKET,
)  # fmt: skip
"""The options of `wsrep_provider_options` that are kept. The others are dropped, because the names of key files are among them."""
_PERIOD_PATTERN = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")
_COUNTER_NAMES = (
    "wsrep_replicated", "wsrep_replicated_bytes",
    "wsrep_cluster_size", "wsrep_cluster_weight", "wsrep_flow_control_paused", "wsrep_evs_repl_latency",
    "Gr_data_messages_sent_count", "Gr_data_messages_sent_roundtrip_time_sum", "Gr_transactions_consistency_before_begin_count",
    "Gr_transactions_consistency_before_begin_time_sum", "Gr_transactions_consistency_after_termination_count",
    "Gr_transactions_consistency_after_termination_time_sum",
)  # fmt: skip
_COUNT_ONLINE_MEMBERS = (
    "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"
)
_LONGEST_QUEUE = (
    "SELECT MAX(GREATEST(COUNT_TRANSACTIONS_IN_QUEUE, COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE)) "
    "FROM performance_schema.replication_group_member_stats"
)

_WAIT_DESCRIPTIONS = {
    "BEFORE": "a transaction, also one that only reads, first waits until this member has applied all before it",
    "AFTER": "a commit waits until every member has prepared it",
}
_WAIT_COUNTERS = {
    "BEFORE": "transactions_consistency_before_begin",
    "AFTER": "transactions_consistency_after_termination",
}
"""Counter by the word that the names of levels of `group_replication_consistency` contain."""

PAUSED_SHARE = 0.01
"""Share of the time stopped by flow control from which a change is justified."""
_MIN_QUEUE_LIMIT = 256
"""Minimum number of transactions that should be allowed to queue at a Galera node before it stops the others: enough for bursts.
For a node that is always slower, no limit helps."""
_FAR_MESSAGE_S = 0.005
_RECOMMENDED_WINDOW, _MAX_SMALL_WINDOW = 512, 16
"""Numbers of messages in flight: the recommended one, and the largest that counts as too small (Galera's default is two). At an RTT
of 85 ms, a row of 1 MB took 0.12 s with 512 messages in flight, and 1.4 s with two."""
_LARGE_BYTES = 10_000
"""Mean size, as sent, from which transactions count as large. On a link of 1 Gb/s, sending 10 kB takes 80 µs, as long as a round trip
in a rack."""
_TIMEOUT_FACTOR = 10
"""Multiple of the slowest message's latency before which a node must not be considered dead."""
_NEAR_TIMEOUTS = {"evs.keepalive_period": "PT1S", "evs.suspect_timeout": "PT5S", "evs.inactive_timeout": "PT15S"}
"""Galera's defaults, for nodes that are close to each other."""
_FAR_TIMEOUTS = {
    "evs.keepalive_period": "PT3S",
    "evs.suspect_timeout": "PT30S",
    "evs.inactive_timeout": "PT1M",
    "evs.install_timeout": "PT1M",
}
"""The values of Galera's manual for nodes that are far apart."""
_MAX_EXPEL_S = 60
_ARBITER = Change(
    where="a machine apart from the nodes: a vote without data",
    lines=("garbd --group CLUSTER --address gcomm://NODES",),
    restarts=False,
)
_DEFAULT_EXPEL_S = 5
"""MySQL's default of `group_replication_member_expel_timeout`, which is added to the 5 s after which a silent member is suspected."""
_DEFAULT_THRESHOLD = 25_000
"""MySQL's default for both thresholds of flow control, in transactions."""


def read_cluster(
    read_pairs: Callable[[str, Sequence[str]], dict[str, str]], query: Callable[[str], Sequence[Sequence[Any]]]
) -> Cluster | None:
    """Read the cluster of a server; None if it is in none. `read_pairs`: reads settings (`VARIABLES`) or counters (`STATUS`) by name.

    Raises ServerRefused.
    """
    settings = read_pairs("VARIABLES", _SETTING_NAMES)
    status = read_pairs("STATUS", _COUNTER_NAMES)
    counters = {name: float(value) for name, value in status.items() if re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", value)}
    nodes = int(counters.pop("wsrep_cluster_size", 0))
    if settings.pop("wsrep_on", "OFF") == "ON" and nodes:
        latencies = status.get("wsrep_evs_repl_latency", "").split("/")
        if len(latencies) == 5:  # minimum, mean, maximum, deviation, number of messages
            counters["fastest_message_s"], counters["slowest_message_s"] = float(latencies[0]), float(latencies[2])
        all_options = provider_options(settings.pop("wsrep_provider_options", ""))
        read_options = {name: all_options[name] for name in _PROVIDER_OPTIONS if name in all_options}
        settings |= {
            name: value
            for name, value in read_options.items()
            if not name.endswith(("_period", "_timeout")) or _PERIOD_PATTERN.fullmatch(value)
        }
        return Cluster(product=GALERA, nodes=nodes, settings=settings, counted=counters)
    if "group_replication_consistency" not in settings or not (online_members := query(_COUNT_ONLINE_MEMBERS)[0][0]):
        return None
    counters["longest_queue"] = float(query(_LONGEST_QUEUE)[0][0] or 0)
    settings = {name.removeprefix("group_replication_"): value for name, value in settings.items()}
    return Cluster(product=GROUP, nodes=int(online_members), settings=settings, counted=counters)


def _config_change(server: Server, *lines: str) -> tuple[Change, ...]:
    return (Change(where=f"{config_file_of(server)} of every node", lines=("[mysqld]", *lines), restarts=True),)


def _provider_change(server: Server, cluster: Cluster, *further_lines: str) -> tuple[Change, ...]:
    """Return the line with the provider options that all findings propose together. Each finding shows this complete line, because the
    server uses only the last such line."""
    options = ";".join(f"{name}={value}" for name, value in sorted(_proposed_options(cluster).items()))
    comment = "# with the options that are there already, in one line: the last one counts"
    return _config_change(server, comment, f'wsrep_provider_options = "{options}"', *further_lines)


def _proposed_options(cluster: Cluster) -> dict[str, str]:
    return (
        _longer_timeout_options(cluster)
        | _longer_queue_options(cluster)
        | _quorum_options(cluster)
        | _wider_window_options(cluster)
    )


def _mean_ms(cluster: Cluster, name: str, time: str = "time") -> float | None:
    """Return the mean in ms of a time whose sum Group Replication counts in microseconds; None if it counted none."""
    count = cluster.counted.get(f"Gr_{name}_count", 0)
    return cluster.counted.get(f"Gr_{name}_{time}_sum", 0) / count / 1e3 if count else None


def _integer_setting(cluster: Cluster, name: str, default: int) -> int:
    text = cluster.settings.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


def check_reads_wait(server: Server, cluster: Cluster) -> list[Draft]:
    """In every session, statements or commits wait for other nodes longer than agreement needs. Only a note: it may be intended."""
    if cluster.product == GALERA:
        wait = cluster.settings.get("wsrep_sync_wait", "0")
        if wait == "0":
            return []
        what_waits = "reads" if wait == "1" else "statements"
        sentence = (
            f"wsrep_sync_wait = {wait}: in every session {what_waits} wait until this node has applied all "
            "that it knows to be under way"
        )
        line = (
            "wsrep_sync_wait = 0   # SET SESSION wsrep_sync_wait = 1 where a read must see what was committed elsewhere"
        )
        return [Draft(sentence, _config_change(server, line), None, Severity.NOTE)]
    level = cluster.settings.get("consistency", "EVENTUAL")
    if level in ("EVENTUAL", "BEFORE_ON_PRIMARY_FAILOVER"):
        return []
    means_ms = [
        mean_ms
        for word, counter in _WAIT_COUNTERS.items()
        if word in level and (mean_ms := _mean_ms(cluster, counter)) is not None
    ]
    gain = None
    if means_ms:
        saving = f"{format_time(sum(means_ms) * 1e6)} of each such transaction"
        gain = Gain(
            text=saving, basis="Gr_transactions_consistency_…_time_sum, the mean since the start", saves_ns=None
        )
    name = "group_replication_consistency"
    line = f"{name} = BEFORE_ON_PRIMARY_FAILOVER   # SET SESSION {name} = '{level}' where it is needed"
    sentence = f"{name} = {level}: in every session {' and '.join(text for word, text in _WAIT_DESCRIPTIONS.items() if word in level)}"
    return [Draft(sentence, _config_change(server, line), gain, Severity.NOTE)]


def check_single_leader(server: Server, cluster: Cluster) -> list[Draft]:
    """All members take turns as leader of the agreement although only one of them writes."""
    settings = cluster.settings
    if (settings.get("paxos_single_leader"), settings.get("single_primary_mode")) != ("OFF", "ON") or cluster.nodes < 2:
        return []
    mean_ms = _mean_ms(cluster, "data_messages_sent", "roundtrip_time")
    gain = None
    if mean_ms is not None:
        saving = f"the part of {format_time(mean_ms * 1e6)} that is not a round trip to a majority"
        basis = "Gr_data_messages_sent_roundtrip_time_sum, the mean since the start"
        gain = Gain(text=saving, basis=basis, saves_ns=None)
    name = "group_replication_paxos_single_leader"
    sentence = f"one member writes, but each commit also waits for the turns of the idle ones ({name} = OFF)"
    line = f"{name} = ON   # then stop all members and bootstrap the group again"
    return [Draft(sentence, _config_change(server, line), gain)]


def check_timeouts(server: Server, cluster: Cluster) -> list[Draft]:
    """The timeouts after which the other nodes continue without a silent node are too short or too long."""
    if cluster.product == GALERA:
        if not _longer_timeout_options(cluster):
            return []
        settings = cluster.settings
        min_timeout_s = _min_timeout_s(cluster)
        sentence = (
            f"a node that is silent for evs.suspect_timeout = {settings['evs.suspect_timeout']} (evs.inactive_timeout = "
            f"{settings['evs.inactive_timeout']}) is taken for dead; two keepalives and {_TIMEOUT_FACTOR} of the slowest messages "
            f"seen take {format_time(min_timeout_s * 1e9)}"
        )
        gain = Gain(text="no node is lost to a late answer", basis="wsrep_evs_repl_latency", saves_ns=None)
        return [Draft(sentence, _provider_change(server, cluster), gain)]
    seconds = _integer_setting(cluster, "member_expel_timeout", _DEFAULT_EXPEL_S)
    if 0 < seconds <= _MAX_EXPEL_S:
        return []
    sentence = (
        "a member that is not heard for 5 s is expelled, and joins again by itself if group_replication_autorejoin_tries allows it. "
        "In return the group goes on sooner after its primary died: 7 s in place of 22 in howfar's laboratory"
        if seconds == 0
        else f"when the primary dies nothing is committed for {seconds} s, and 7 to 17 s more in howfar's laboratory: so long it is "
        "waited for"
    )
    name = "group_replication_member_expel_timeout"
    severity = Severity.CHANGE if seconds else Severity.NOTE  # 0 may be intended, for a short outage
    return [
        Draft(
            f"{sentence} ({name} = {seconds})", _config_change(server, f"{name} = {_DEFAULT_EXPEL_S}"), None, severity
        )
    ]


def _min_timeout_s(cluster: Cluster) -> float:
    keepalive = _period_s(cluster.settings.get("evs.keepalive_period", "PT1S"))
    return 2 * keepalive + _TIMEOUT_FACTOR * cluster.counted.get("slowest_message_s", 0.0)


def _longer_timeout_options(cluster: Cluster) -> dict[str, str]:
    """Return options with timeouts that are long enough for the cluster; empty if the present timeouts are."""
    settings = cluster.settings
    if "evs.suspect_timeout" not in settings or "evs.inactive_timeout" not in settings:
        return {}
    suspect, inactive = (_period_s(settings[f"evs.{name}_timeout"]) for name in ("suspect", "inactive"))
    if _min_timeout_s(cluster) <= suspect <= inactive:
        return {}
    is_near = _TIMEOUT_FACTOR * cluster.counted.get("slowest_message_s", 0.0) <= 3
    return _NEAR_TIMEOUTS if is_near else _FAR_TIMEOUTS


def _period_s(text: str) -> float:
    """Seconds of a period such as `PT1M30S`; Galera writes no days."""
    match = _PERIOD_PATTERN.fullmatch(text)
    assert match is not None, "`read_cluster` keeps only periods that match"
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def check_flow_control(server: Server, cluster: Cluster) -> list[Draft]:
    """Flow control stopped all nodes, or soon may, because one node applies transactions too slowly."""
    if cluster.product == GALERA:
        paused_share = cluster.counted.get("wsrep_flow_control_paused", 0.0)
        if paused_share < PAUSED_SHARE:
            return []
        share_text, limit = (
            fill("{share:share} of the time", share=paused_share),
            cluster.settings.get("gcs.fc_limit", "unknown"),
        )
        gain = Gain(text=f"up to {share_text}", basis="wsrep_flow_control_paused, since FLUSH STATUS", saves_ns=None)
        sentence = f"all commits stood still for {share_text}, because a node had more to apply than gcs.fc_limit = {limit} allows"
        if not _longer_queue_options(cluster):
            return [Draft(f"{sentence}: it is too slow for the others", (), gain, Severity.NOTE)]
        thread_lines = ("wsrep_slave_threads = 4",) if cluster.settings.get("wsrep_slave_threads") == "1" else ()
        return [Draft(sentence, _provider_change(server, cluster, *thread_lines), gain)]
    if cluster.settings.get("flow_control_mode") != "QUOTA":
        return []
    names = [f"flow_control_{stage}_threshold" for stage in ("applier", "certifier")]
    threshold = min(_integer_setting(cluster, name, _DEFAULT_THRESHOLD) for name in names)
    queue = int(cluster.counted.get("longest_queue", 0))
    if threshold >= _DEFAULT_THRESHOLD and queue <= threshold:
        return []
    sentence = f"commits are held back once a member has {threshold:,} transactions to apply, and the longest queue is {queue:,}"
    if threshold >= _DEFAULT_THRESHOLD:
        return [Draft(f"{sentence}: it is too slow for the others", (), None, Severity.NOTE)]
    changes = _config_change(server, *(f"group_replication_{name} = {_DEFAULT_THRESHOLD}" for name in names))
    return [Draft(sentence, changes, None, Severity.CHANGE if queue > threshold else Severity.NOTE)]


def check_statement_text(server: Server, cluster: Cluster) -> list[Draft]:
    """Large transactions send the text of their statements to every node, in addition to the rows."""
    count = cluster.counted.get("wsrep_replicated", 0)
    mean_bytes = cluster.counted.get("wsrep_replicated_bytes", 0) / count if count else 0.0
    if (
        cluster.product != GALERA
        or cluster.settings.get("binlog_annotate_row_events") != "ON"
        or mean_bytes < _LARGE_BYTES
    ):
        return []
    sentence = (
        f"a transaction sends {mean_bytes / 1e3:,.0f} kB to every other node in the mean, its statements' text among them "
        "(binlog_annotate_row_events = ON): of statements with long values that is half, of statements that change many rows little"
    )
    line = "binlog_annotate_row_events = OFF   # SET GLOBAL for new sessions; the binary log no longer shows the statements"
    change = Change(where=f"{config_file_of(server)} of every node", lines=("[mysqld]", line), restarts=False)
    return [Draft(sentence, (change,), None, Severity.NOTE)]


def check_send_window(server: Server, cluster: Cluster) -> list[Draft]:
    """Galera's nodes are far apart, but its send window is sized for a rack: large transactions wait after every few messages. Only a
    note, because messages in flight also burden a struggling node."""
    if not _wider_window_options(cluster):
        return []
    fastest_ns, window = (
        cluster.counted["fastest_message_s"] * 1e9,
        _integer_setting(cluster, WINDOW, _RECOMMENDED_WINDOW),
    )
    window_bytes = window * _integer_setting(cluster, PACKET, DEFAULT_PACKET_BYTES)
    sentence = (
        f"a node has {window} messages under way ({WINDOW}), {window_bytes / 1e3:,.0f} kB at most, and the fastest took "
        f"{format_time(fastest_ns)}: large transactions, and many connections, wait for their turn"
    )
    gain = Gain(
        text=f"up to {format_time(fastest_ns)} for each {window_bytes / 1e3:,.0f} kB of a transaction",
        basis="wsrep_evs_repl_latency",
        saves_ns=None,
    )
    return [Draft(sentence, _provider_change(server, cluster), gain, Severity.NOTE)]


def _wider_window_options(cluster: Cluster) -> dict[str, str]:
    is_far = cluster.counted.get("fastest_message_s", 0.0) >= _FAR_MESSAGE_S
    if not is_far or _integer_setting(cluster, WINDOW, _RECOMMENDED_WINDOW) > _MAX_SMALL_WINDOW:
        return {}
    return {
        "evs.send_window": str(max(_RECOMMENDED_WINDOW, _integer_setting(cluster, "evs.send_window", 0))),
        WINDOW: str(_RECOMMENDED_WINDOW),
    }


def _longer_queue_options(cluster: Cluster) -> dict[str, str]:
    is_paused = cluster.counted.get("wsrep_flow_control_paused", 0.0) >= PAUSED_SHARE
    is_short = _integer_setting(cluster, "gcs.fc_limit", _MIN_QUEUE_LIMIT) < _MIN_QUEUE_LIMIT
    return {"gcs.fc_limit": str(_MIN_QUEUE_LIMIT)} if is_paused and is_short else {}


def check_quorum(server: Server, cluster: Cluster) -> list[Draft]:
    """A partition may continue without a majority, or an even number of votes makes both halves of a split cluster stop."""
    drafts = []
    if changed_options := _quorum_options(cluster):
        options = ", ".join(f"{name} = YES" for name in changed_options)
        sentence = f"a part without a majority of the nodes goes on writing for itself ({options})"
        drafts.append(Draft(sentence, _provider_change(server, cluster)))
    votes = int(cluster.counted.get("wsrep_cluster_weight", cluster.nodes))
    if cluster.nodes == 1:
        drafts.append(Draft("it is the only node of its cluster", (), None, Severity.NOTE))
    elif votes % 2 == 0:
        sentence = (
            f"a half of {votes} votes is no majority: when its {cluster.nodes} nodes are cut in two halves, both stop"
        )
        drafts.append(Draft(sentence, (_ARBITER,) if cluster.product == GALERA else (), None, Severity.NOTE))
    return drafts


def _quorum_options(cluster: Cluster) -> dict[str, str]:
    names = ("pc.ignore_quorum", "pc.ignore_sb")
    return {name: "NO" for name in names if cluster.settings.get(name, "").lower() in ("true", "yes", "1")}


CHECKS: Mapping[str, Callable[[Server, Cluster], list[Draft]]] = {
    "cluster-reads": check_reads_wait,
    "cluster-turns": check_single_leader,
    "cluster-timeouts": check_timeouts,
    "cluster-flow-control": check_flow_control,
    "cluster-quorum": check_quorum,
    "cluster-text": check_statement_text,
    "cluster-window": check_send_window,
}
