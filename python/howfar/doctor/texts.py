"""What an examination says of its servers as a whole, in words. The sentence of each finding is in its check."""

from __future__ import annotations

from howfar.findings import Texts

QUESTION = "Which costs of the path to a database can you avoid here?"
ANSWERS: Texts = {
    "avoidable": "{count:of cost} can be avoided: {subject}",
    "notes": "nothing has to change; worth knowing: {subject}",
    "nothing": "none: there is nothing to change at {servers:of server}",
    "nothing-seen": "nothing to change in what could be seen, but {unseen:of thing} could not be inspected",
    "none-found": "no server was found that can be reached from here",
}
COSTS: Texts = {
    "socket-gone": "a socket that is gone",
    "authority-bundle": "the CA bundle, read for each connect",
    "loopback-tcp": "TCP where a socket works",
    "socket-off": "TCP for lack of a socket",
    "socket-out-of-reach": "TCP because a socket is out of reach",
    "forwarder": "TCP from a proxy to its server",
    "connect-churn": "a new connection for each use",
    "compressed-local": "compression within one machine",
    "encrypted-local": "TLS within one machine",
    "encrypted-socket": "TLS inside a socket",
    "pooler-missing": "idle sessions without a pooler",
    "pooler-mode": "idle sessions behind a pooler",
    "statement-by-statement": "waiting between statements",
    "options-ignored": "options without effect",
    "cluster-reads": "reads that wait for other nodes",
    "cluster-turns": "commits that wait for idle members",
    "cluster-timeouts": "timeouts that do not fit the network",
    "cluster-flow-control": "commits that stop for a slow node",
    "cluster-quorum": "writes without a majority",
    "cluster-text": "texts of statements sent between nodes",
    "cluster-window": "a small window between nodes",
    "idle-states": "waking idle CPUs",
}
"""What each check finds, as the subject of an answer."""
CAUSES: Texts = {
    "per-round-trip": "{subject} costs {time} per round trip",
    "per-round-trip, next": "{subject} {time}",
    "per-connect": "{subject} costs {time} per connect",
    "per-connect, next": "{subject} {time}",
}
PER_CONNECT = frozenset({"authority-bundle", "connect-churn", "encrypted-socket"})
"""Checks whose saving is per connect, not per round trip."""
CERTAINTY: Texts = {
    "times": "times are medians of up to {rounds:of round} with 95 % intervals",
    "logins": "{logins} of {servers:of server} accepted a login",
    "unseen": "{unseen:of thing} could not be inspected",
}
SETTING = (
    "{servers:of server} · watched for {seconds:.1f} s and sampled {looks:of time} "
    "· load average {load:.1f} on {cpus:of CPU} · {when}"
)
ADVICE = "Of the lines below each CHANGE above, apply those for your application, then run `howfar doctor` again."
WHERE_SEARCHED = "Looked for {programs} among the processes, and at their usual ports and sockets."
LINES: Texts = {
    "change": "CHANGE: {says}. [{check}]",
    "note": "Note: {says}. [{check}]",
    "gain": "Gain: {says} ({basis})",
    "where": "{where}:",
    "where-restart": "{where}, then restart the server:",
    "listens": "Listens on {where}",
    "no-socket": "No Unix socket",
    "socket-unknown": "Whether it has a Unix socket is unknown",
    "compression": "Compression offered: {algorithms}",
    "client": "Client {client}",
    "socket-clients": "{connections:of connection} over the socket",
    "no-clients": "No clients seen",
    "no-listener": "No clients: it does not listen",
    "rates": "Per second: {connects:.3g} connects, {statements:.3g} {counted}",
    "handshakes": ", {handshakes:.3g} TLS handshakes",
    "unseen": "{what}: {why}",
    "unseen-how": "{what}: {why}. To see it: {how}",
    "of-server": "Not seen: {text}",
}
"""Lines about one server."""
