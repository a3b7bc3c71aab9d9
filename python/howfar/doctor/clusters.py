"""Galera and Group Replication, as described by one of their nodes: finds settings that waste round trips or risk a stall."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from howfar.doctor.findings import Change, Cluster, Draft, Gain, Server, Severity
from howfar.doctor.proposals import file_of
from howfar.plan.agreement import PACKET, WINDOW, Pieces, provider_options

GALERA, GROUP = "Galera", "Group Replication"
_VARIABLES = (
    "wsrep_on", "wsrep_sync_wait", "wsrep_slave_threads", "wsrep_provider_options", "group_replication_consistency",
    "group_replication_paxos_single_leader", "group_replication_single_primary_mode", "group_replication_member_expel_timeout",
    "group_replication_flow_control_mode", "group_replication_flow_control_applier_threshold",
    "group_replication_flow_control_certifier_threshold", "binlog_annotate_row_events",
)  # fmt: skip
_OPTIONS = (
    "evs.keepalive_period", "evs.suspect_timeout", "evs.inactive_timeout", "gcs.fc_limit", "pc.ignore_quorum", "pc.ignore_sb",
    WINDOW, "evs.send_window", PACKET,
)  # fmt: skip
"""The only options that are read from `wsrep_provider_options`, because it also contains the names of key files."""
_PERIOD = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")
_STATUS = (
    "wsrep_replicated", "wsrep_replicated_bytes",
    "wsrep_cluster_size", "wsrep_cluster_weight", "wsrep_flow_control_paused", "wsrep_evs_repl_latency",
    "Gr_data_messages_sent_count", "Gr_data_messages_sent_roundtrip_time_sum", "Gr_transactions_consistency_before_begin_count",
    "Gr_transactions_consistency_before_begin_time_sum", "Gr_transactions_consistency_after_termination_count",
    "Gr_transactions_consistency_after_termination_time_sum",
)  # fmt: skip
_MEMBERS = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"
_QUEUE = (
    "SELECT MAX(GREATEST(COUNT_TRANSACTIONS_IN_QUEUE, COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE)) "
    "FROM performance_schema.replication_group_member_stats"
)

_WAITS = {
    "BEFORE": "a transaction, also one that only reads, first waits until this member has applied all before it",
    "AFTER": "a commit waits until every member has prepared it",
}
_COUNTERS = {
    "BEFORE": "transactions_consistency_before_begin",
    "AFTER": "transactions_consistency_after_termination",
}
"""Counters by the part of the name of a level of `group_replication_consistency`."""

PAUSED_SHARE = 0.01
"""Minimum share of the time in which flow control stopped all nodes that justifies a change."""
_LIMIT = 256
"""Transactions that may queue at a Galera node before it stops the others: enough for bursts, not for a node that is always slower."""
_FAR_S = 0.005
_WINDOW, _FEW = 512, 16
"""Messages in flight: the recommended number, and the largest that counts as few (default: two). At an RTT of 85 ms, a row of 1 MB
took 0.12 s with 512, and 1.4 s with two."""
_LARGE_BYTES = 10_000
"""Mean size of a large transaction as sent: it takes 80 µs on a link of 1 Gb/s, as long as a round trip in a rack."""
_ROUND_TRIPS = 10
"""A node must not be considered dead before this multiple of the slowest message's time."""
_NEAR = {"evs.keepalive_period": "PT1S", "evs.suspect_timeout": "PT5S", "evs.inactive_timeout": "PT15S"}
"""Galera's defaults, for nodes that are close to each other."""
_FAR = {
    "evs.keepalive_period": "PT3S",
    "evs.suspect_timeout": "PT30S",
    "evs.inactive_timeout": "PT1M",
    "evs.install_timeout": "PT1M",
}
"""The values of Galera's manual for nodes that are far apart."""
_LONG_EXPEL_S = 60
_ARBITER = Change(
    where="a machine apart from the nodes: a vote without data",
    lines=("garbd --group CLUSTER --address gcomm://NODES",),
    restarts=False,
)
_EXPEL_S = 5
"""MySQL's default; it is added to the 5 s after which a silent node is suspected."""
_THRESHOLD = 25_000
"""MySQL's default of the thresholds of flow control, in transactions."""


def read_cluster(
    pairs: Callable[[str, Sequence[str]], dict[str, str]], rows: Callable[[str], Sequence[Sequence[Any]]]
) -> Cluster | None:
    """The cluster of a server; None if it is in none. `pairs`: reads settings (`VARIABLES`) or counters (`STATUS`) by name.

    Raises Refused.
    """
    settings = pairs("VARIABLES", _VARIABLES)
    status = pairs("STATUS", _STATUS)
    counted = {name: float(value) for name, value in status.items() if re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", value)}
    nodes = int(counted.pop("wsrep_cluster_size", 0))
    if settings.pop("wsrep_on", "OFF") == "ON" and nodes:
        slowest = status.get("wsrep_evs_repl_latency", "").split("/")
        if len(slowest) == 5:  # minimum, mean, maximum, deviation, number of messages
            counted["fastest_message_s"], counted["slowest_message_s"] = float(slowest[0]), float(slowest[2])
        given = provider_options(settings.pop("wsrep_provider_options", ""))
        known = {name: given[name] for name in _OPTIONS if name in given}
        settings |= {
            name: value
            for name, value in known.items()
            if not name.endswith(("_period", "_timeout")) or _PERIOD.fullmatch(value)
        }
        return Cluster(product=GALERA, nodes=nodes, settings=settings, counted=counted)
    if "group_replication_consistency" not in settings or not (online := rows(_MEMBERS)[0][0]):
        return None
    counted["longest_queue"] = float(rows(_QUEUE)[0][0] or 0)
    settings = {name.removeprefix("group_replication_"): value for name, value in settings.items()}
    return Cluster(product=GROUP, nodes=int(online), settings=settings, counted=counted)


def _lines(server: Server, *lines: str) -> tuple[Change, ...]:
    return (Change(where=f"{file_of(server)} of every node", lines=("[mysqld]", *lines), restarts=True),)


def _provider(server: Server, cluster: Cluster, *more: str) -> tuple[Change, ...]:
    """Lines with all wanted provider options: the server uses only the last such line, so each finding shows the complete line."""
    options = ";".join(f"{name}={value}" for name, value in sorted(_wanted_options(cluster).items()))
    beside = "# with the options that are there already, in one line: the last one counts"
    return _lines(server, beside, f'wsrep_provider_options = "{options}"', *more)


def _wanted_options(cluster: Cluster) -> dict[str, str]:
    return _tolerant(cluster) | _longer_queue(cluster) | _with_quorum(cluster) | _wider(cluster)


def _mean_ms(cluster: Cluster, name: str, time: str = "time") -> float | None:
    """Mean in ms of a time whose sum Group Replication counts in microseconds; None if it counted none."""
    count = cluster.counted.get(f"Gr_{name}_count", 0)
    return cluster.counted.get(f"Gr_{name}_{time}_sum", 0) / count / 1e3 if count else None


def _number(cluster: Cluster, name: str, otherwise: int) -> int:
    text = cluster.settings.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else otherwise


def reads_wait(server: Server, cluster: Cluster) -> list[Draft]:
    """Statements or commits that wait for other nodes longer than agreement needs, in every session. A note: it may be required."""
    if cluster.product == GALERA:
        wait = cluster.settings.get("wsrep_sync_wait", "0")
        if wait == "0":
            return []
        what = "reads wait" if wait == "1" else "statements wait"
        says = f"wsrep_sync_wait = {wait}: in every session {what} until this node has applied all that it knows to be under way"
        line = (
            "wsrep_sync_wait = 0   # SET SESSION wsrep_sync_wait = 1 where a read must see what was committed elsewhere"
        )
        return [Draft(says, _lines(server, line), None, Severity.NOTE)]
    level = cluster.settings.get("consistency", "EVENTUAL")
    if level in ("EVENTUAL", "BEFORE_ON_PRIMARY_FAILOVER"):
        return []
    means = [
        mean
        for word, counter in _COUNTERS.items()
        if word in level and (mean := _mean_ms(cluster, counter)) is not None
    ]
    gain = None
    if means:
        says = f"{sum(means):.3g} ms of each such transaction"
        gain = Gain(says=says, basis="Gr_transactions_consistency_…_time_sum, the mean since the start", saves_ns=None)
    name = "group_replication_consistency"
    line = f"{name} = BEFORE_ON_PRIMARY_FAILOVER   # SET SESSION {name} = '{level}' where it is needed"
    says = f"{name} = {level}: in every session {' and '.join(text for word, text in _WAITS.items() if word in level)}"
    return [Draft(says, _lines(server, line), gain, Severity.NOTE)]


def idle_turns(server: Server, cluster: Cluster) -> list[Draft]:
    """Members take turns as leader of the agreement although only one of them writes."""
    found = cluster.settings
    if (found.get("paxos_single_leader"), found.get("single_primary_mode")) != ("OFF", "ON") or cluster.nodes < 2:
        return []
    mean = _mean_ms(cluster, "data_messages_sent", "roundtrip_time")
    gain = None
    if mean is not None:
        says = f"the part of {mean:.3g} ms that is not a round trip to a majority"
        basis = "Gr_data_messages_sent_roundtrip_time_sum, the mean since the start"
        gain = Gain(says=says, basis=basis, saves_ns=None)
    name = "group_replication_paxos_single_leader"
    says = f"one member writes, but each commit also waits for the turns of the idle ones ({name} = OFF)"
    line = f"{name} = ON   # then stop all members and bootstrap the group again"
    return [Draft(says, _lines(server, line), gain)]


def timeouts(server: Server, cluster: Cluster) -> list[Draft]:
    """Timeouts after which the others continue without a silent node: too short or too long."""
    if cluster.product == GALERA:
        if not _tolerant(cluster):
            return []
        found = cluster.settings
        needed = _least_timeout_s(cluster)
        says = (
            f"a node that is silent for evs.suspect_timeout = {found['evs.suspect_timeout']} (evs.inactive_timeout = "
            f"{found['evs.inactive_timeout']}) is taken for dead; two keepalives and {_ROUND_TRIPS} of the slowest messages "
            f"seen take {needed:.3g} s"
        )
        gain = Gain(says="no node is lost to a late answer", basis="wsrep_evs_repl_latency", saves_ns=None)
        return [Draft(says, _provider(server, cluster), gain)]
    seconds = _number(cluster, "member_expel_timeout", _EXPEL_S)
    if 0 < seconds <= _LONG_EXPEL_S:
        return []
    says = (
        "a member that is not heard for 5 s is expelled, and joins again by itself if group_replication_autorejoin_tries allows it. "
        "In return the group goes on sooner after its primary died: 7 s in place of 22 in howfar's laboratory"
        if seconds == 0
        else f"when the primary dies nothing is committed for {seconds} s, and 7 to 17 s more in howfar's laboratory: so long it is "
        "waited for"
    )
    name = "group_replication_member_expel_timeout"
    severity = Severity.CHANGE if seconds else Severity.NOTE  # 0 may be intended, for a short outage
    return [Draft(f"{says} ({name} = {seconds})", _lines(server, f"{name} = {_EXPEL_S}"), None, severity)]


def _least_timeout_s(cluster: Cluster) -> float:
    keepalive = _seconds(cluster.settings.get("evs.keepalive_period", "PT1S"))
    return 2 * keepalive + _ROUND_TRIPS * cluster.counted.get("slowest_message_s", 0.0)


def _tolerant(cluster: Cluster) -> dict[str, str]:
    """Timeouts that are long enough for the cluster; empty if its present ones are."""
    found = cluster.settings
    if "evs.suspect_timeout" not in found or "evs.inactive_timeout" not in found:
        return {}
    suspect, inactive = (_seconds(found[f"evs.{name}_timeout"]) for name in ("suspect", "inactive"))
    if _least_timeout_s(cluster) <= suspect <= inactive:
        return {}
    near = _ROUND_TRIPS * cluster.counted.get("slowest_message_s", 0.0) <= 3
    return _NEAR if near else _FAR


def _seconds(text: str) -> float:
    """Seconds of a period such as `PT1M30S`; Galera writes no days."""
    found = _PERIOD.fullmatch(text)
    assert found is not None, "only such are kept"
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def flow_control(server: Server, cluster: Cluster) -> list[Draft]:
    """Flow control stopped all nodes, or soon may, because one node applies transactions too slowly."""
    if cluster.product == GALERA:
        paused = cluster.counted.get("wsrep_flow_control_paused", 0.0)
        if paused < PAUSED_SHARE:
            return []
        share, limit = f"{paused * 100:.2g} % of the time", cluster.settings.get("gcs.fc_limit", "unknown")
        gain = Gain(says=f"up to {share}", basis="wsrep_flow_control_paused, since FLUSH STATUS", saves_ns=None)
        says = (
            f"all commits stood still for {share}, because a node had more to apply than gcs.fc_limit = {limit} allows"
        )
        if not _longer_queue(cluster):
            return [Draft(f"{says}: it is too slow for the others", (), gain, Severity.NOTE)]
        threads = ("wsrep_slave_threads = 4",) if cluster.settings.get("wsrep_slave_threads") == "1" else ()
        return [Draft(says, _provider(server, cluster, *threads), gain)]
    if cluster.settings.get("flow_control_mode") != "QUOTA":
        return []
    names = [f"flow_control_{which}_threshold" for which in ("applier", "certifier")]
    threshold = min(_number(cluster, name, _THRESHOLD) for name in names)
    queue = int(cluster.counted.get("longest_queue", 0))
    if threshold >= _THRESHOLD and queue <= threshold:
        return []
    says = f"commits are held back once a member has {threshold:,} transactions to apply, and the longest queue is {queue:,}"
    if threshold >= _THRESHOLD:
        return [Draft(f"{says}: it is too slow for the others", (), None, Severity.NOTE)]
    lines = _lines(server, *(f"group_replication_{name} = {_THRESHOLD}" for name in names))
    return [Draft(says, lines, None, Severity.CHANGE if queue > threshold else Severity.NOTE)]


def annotated(server: Server, cluster: Cluster) -> list[Draft]:
    """Large transactions that send the text of their statements to every node, in addition to the rows."""
    count = cluster.counted.get("wsrep_replicated", 0)
    mean = cluster.counted.get("wsrep_replicated_bytes", 0) / count if count else 0.0
    if cluster.product != GALERA or cluster.settings.get("binlog_annotate_row_events") != "ON" or mean < _LARGE_BYTES:
        return []
    says = (
        f"a transaction sends {mean / 1e3:,.0f} kB to every other node in the mean, its statements' text among them "
        "(binlog_annotate_row_events = ON): of statements with long values that is half, of statements that change many rows little"
    )
    line = "binlog_annotate_row_events = OFF   # SET GLOBAL for new sessions; the binary log no longer shows the statements"
    change = Change(where=f"{file_of(server)} of every node", lines=("[mysqld]", line), restarts=False)
    return [Draft(says, (change,), None, Severity.NOTE)]


def few_pieces(server: Server, cluster: Cluster) -> list[Draft]:
    """Galera's nodes are far apart, but its send window is sized for a rack: large transactions wait after every few messages.
    A note: messages in flight also burden a struggling node."""
    if not _wider(cluster):
        return []
    least_ms, window = cluster.counted["fastest_message_s"] * 1e3, _number(cluster, WINDOW, _WINDOW)
    turn_bytes = window * _number(cluster, PACKET, Pieces().packet_bytes)
    says = (
        f"a node has {window} messages under way ({WINDOW}), {turn_bytes / 1e3:,.0f} kB at most, and the fastest took "
        f"{least_ms:.3g} ms: large transactions, and many connections, wait for their turn"
    )
    gain = Gain(
        says=f"up to {least_ms:.3g} ms for each {turn_bytes / 1e3:,.0f} kB of a transaction",
        basis="wsrep_evs_repl_latency",
        saves_ns=None,
    )
    return [Draft(says, _provider(server, cluster), gain, Severity.NOTE)]


def _wider(cluster: Cluster) -> dict[str, str]:
    far = cluster.counted.get("fastest_message_s", 0.0) >= _FAR_S
    if not far or _number(cluster, WINDOW, _WINDOW) > _FEW:
        return {}
    return {
        "evs.send_window": str(max(_WINDOW, _number(cluster, "evs.send_window", 0))),
        WINDOW: str(_WINDOW),
    }


def _longer_queue(cluster: Cluster) -> dict[str, str]:
    paused = cluster.counted.get("wsrep_flow_control_paused", 0.0) >= PAUSED_SHARE
    short = _number(cluster, "gcs.fc_limit", _LIMIT) < _LIMIT
    return {"gcs.fc_limit": str(_LIMIT)} if paused and short else {}


def quorum(server: Server, cluster: Cluster) -> list[Draft]:
    """A partition may continue without a majority, or an even number of votes makes both halves of a split cluster stop."""
    drafts = []
    if wanted := _with_quorum(cluster):
        options = ", ".join(f"{name} = YES" for name in wanted)
        says = f"a part without a majority of the nodes goes on writing for itself ({options})"
        drafts.append(Draft(says, _provider(server, cluster)))
    votes = int(cluster.counted.get("wsrep_cluster_weight", cluster.nodes))
    if cluster.nodes == 1:
        drafts.append(Draft("it is the only node of its cluster", (), None, Severity.NOTE))
    elif votes % 2 == 0:
        says = (
            f"a half of {votes} votes is no majority: when its {cluster.nodes} nodes are cut in two halves, both stop"
        )
        drafts.append(Draft(says, (_ARBITER,) if cluster.product == GALERA else (), None, Severity.NOTE))
    return drafts


def _with_quorum(cluster: Cluster) -> dict[str, str]:
    names = ("pc.ignore_quorum", "pc.ignore_sb")
    return {name: "NO" for name in names if cluster.settings.get(name, "").lower() in ("true", "yes", "1")}


CHECKS: Mapping[str, Callable[[Server, Cluster], list[Draft]]] = {
    "cluster-reads": reads_wait,
    "cluster-turns": idle_turns,
    "cluster-timeouts": timeouts,
    "cluster-flow-control": flow_control,
    "cluster-quorum": quorum,
    "cluster-text": annotated,
    "cluster-window": few_pieces,
}
