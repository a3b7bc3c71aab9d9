"""Texts of the comparison of clusters."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    # The answer.
    "same-row": "two nodes writing the same row make {estimate:fewer} commits with {subject} than with a row each",
    "refused": "{refused:share} of attempts are refused",
    "starved": "the second node's clients committed nothing in {starved} of {trials:of trial}",
    "slowed": "the median {operation} takes {estimate:table} ms with {subject} over {distances} instead of {alone_ms:table} ms alone",
    "slowed, next": "{estimate:table} ms with {subject}",
    "takes": "the median {operation} takes {estimate:table} ms with {subject} over {distances}",
    "takes, next": "{estimate:table} ms with {subject}",
    "elsewhere": "{estimate:table} ms with {subject} over {distances}",
    # Why it takes so long.
    "round-trips": "over {subject}, a {operation} waits for other nodes: round trips take {nearest_ms:table} to "
    "{farthest_ms:table} ms",
    # Titles, notes and advice.
    "rates": "{subject} makes {estimate:table} {operation}s/s over {distances}, the farthest",
    "connections": "the answer is for {threads:of connection}",
    "model": "the model predicts the p50 of a {operation} with a mean error of {mean:share}, at most {worst:share}",
    "no-model": "the model predicts nothing here: it needs each mode at two distances, or a primary alone",
    "sent-twice": "Galera sent {times:n} times the bytes of a large row to each node: by default (binlog_annotate_row_events = ON), "
    "MariaDB also sends the text of the statement",
    "by-construction": "no error shown: correct by construction, because over nine tenths of it is the counted bytes at the set "
    "rate",
    "crowded": "* For nodes with CPUs of their own: here the other nodes and the emulators kept most of this machine's CPUs busy, "
    "so the model is not judged",
    "hosts": "the links between the nodes (hosts {nodes}) are real: measured before the run, and their round trips before each "
    "trial; distances are those of the pairs 1-2, 1-3, 2-3 and so on",
    "single-leader": "Set group_replication_paxos_single_leader = ON on every member, and bootstrap the group again.",
    "single-leader-because": "Over {distances}, the median commit takes {with_ms:table} ms with it and {without_ms:table} ms "
    "without it, because each commit then also waits for every idle member's turn.",
    "third-node": "the p50 of one connection, with {near_ms:.3g} ms between the first two nodes and the given time from both to the "
    "third: measured, or by the model (~), with its largest error of this run in the interval; without an interval, it was "
    "untested in this run",
    "beyond": "* Farther or nearer than any node of this run",
    # Captions and notes.
    "rates-caption": "{operation}s/s of the fewest connections over the round trip to the second nearest node, with 95 % intervals. "
    "Horizontal line: the server alone. Dashed: one {operation} per stated number of these round trips",
    "predicted": "RTT: as measured without load, from the clients' node to the others. Predicted: the agreement at this distance, and "
    "the local work of the same mode at its shortest distance. {large:?For large rows, and where}{short:?Where} there is only one "
    "distance, the work of the server alone{shared_cpus:?. For one connection, plus what the other nodes and the emulators use "
    "of the shared CPUs}",
    # Captions of tables.
    "sending-uncounted": "Large rows are not predicted: bytes between hosts are not counted.",
    "sending": "To send: by the link's rate, or by Galera's turns, if they take longer: of a row's pieces (gcs.max_packet_size), as "
    "many as evs.user_send_window are in flight. Here each pair of nodes has a link of its own; a node with one network card sends to "
    "all others over that card.",
    "conflicts-caption": "Refused: errors as clients saw them; each repeats the transaction within the same latency, so p50 and p99 "
    "include the repeats. Repeated: their share of all attempts. Servers counted, over all trials and the warm-up: conflicts found by "
    "certification, and transactions rolled back for another node's that came first. Clients see both, and deadlocks on one node.",
}

DISTANCE_LABELS = {"two near one far": "two near nodes and one far"}
"""Labels of distances whose level is not a noun."""
