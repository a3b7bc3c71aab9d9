"""Texts of an examination about all its servers. The sentence of each finding is in its check."""

from __future__ import annotations

from howfar.findings import Texts
from howfar.report.texts import SEPARATOR

QUESTION = "Which costs of the path to a database can you avoid here?"
ANSWERS: Texts = {
    "avoidable": "{count:of problem} can be avoided: {subject}",
    "notes": "nothing has to change; worth knowing: {subject}",
    "nothing": "none: there is nothing to change at {servers:of server}",
    "nothing-seen": "nothing to change in what could be seen, but {unseen:of thing} could not be inspected",
    "none-found": "no server was found that can be reached from here",
}
PROBLEMS: Texts = {
    "socket-gone": "a missing socket",
    "authority-bundle": "reading the CA bundle",
    "loopback-tcp": "TCP where a socket works",
    "socket-off": "TCP without a socket",
    "socket-out-of-reach": "a socket out of reach",
    "forwarder": "TCP from a proxy",
    "connect-churn": "a connection for each use",
    "compressed-local": "compression within one machine",
    "encrypted-local": "TLS within one machine",
    "encrypted-socket": "TLS in a socket",
    "pooler-missing": "idle sessions without a pooler",
    "pooler-mode": "idle sessions behind a pooler",
    "statement-by-statement": "waiting between statements",
    "options-ignored": "options without effect",
    "cluster-reads": "reads waiting for other nodes",
    "cluster-turns": "commits waiting for idle members",
    "cluster-timeouts": "timeouts unsuited to the network",
    "cluster-flow-control": "commits stopped by slow nodes",
    "cluster-quorum": "writes without a majority",
    "cluster-text": "statement texts sent between nodes",
    "cluster-window": "a small window between nodes",
    "idle-states": "waking idle CPUs",
}
"""What each check finds, in at most five words: at least three of them fit an answer."""
TRANSPORTS: Texts = {"socket": "socket", "tcp": "TCP", "tls": "TLS", "socket-tls": "TLS in a socket"}
CAUSES: Texts = {"saving": "{subject} costs {time} per {per}", "saving, next": "{subject} {time} per {per}"}
CERTAINTY: Texts = {
    "times": "times are medians of up to {rounds:of round}{intervals:? with 95 % intervals}",
    "logins": "{logins} of {servers:of server} accepted a login",
    "idle": "the server was idle while watched",
    "idle-some": "idle while watched: {idle} of {servers:of server}",
    "unseen": "{unseen:of thing} could not be inspected",
}
SETTING = SEPARATOR.join(
    (
        "{servers:of server}",
        "watched for {seconds:.1f} s and sampled {samples:of time}",
        "load average {load:.1f} on {cpus:of CPU}",
        "{when}",
    )
)
STEPS: Texts = {
    "socket-gone": "restore the server's socket",
    "authority-bundle": "name one certificate authority for the client",
    "loopback-tcp": "connect over the socket",
    "socket-off": "give the server a socket, and connect over it",
    "socket-out-of-reach": "let the client reach the socket",
    "forwarder": "let the proxy reach the server over the socket",
    "connect-churn": "keep connections open",
    "compressed-local": "turn off compression within this machine",
    "encrypted-local": "turn off TLS within this machine",
    "encrypted-socket": "turn off TLS in the socket",
    "pooler-missing": "connect through a pooler",
    "pooler-mode": "let the pooler share sessions",
    "statement-by-statement": "send several statements at once",
    "options-ignored": "remove options without effect",
    "cluster-reads": "let reads wait only where they must",
    "cluster-turns": "stop commits waiting for idle members",
    "cluster-timeouts": "set timeouts that fit the network",
    "cluster-flow-control": "let a slow node fall further behind",
    "cluster-quorum": "let only a majority write",
    "cluster-text": "send no statement texts between nodes",
    "cluster-window": "allow more messages in flight between nodes",
    "idle-states": "keep idle CPUs awake",
}
"""What to do about each finding."""
STEP: Texts = {
    "step": "{step}{server:? at }{server}.",
    "found": "Found: {text} [{check}].",
    "gain": "Gain: {gain} ({basis}).",
    "restart": "{where}, then restart the server",
    "again": "To see what is left, run this again:",
}
"""A step, why it helps, and the place for its lines."""
CHOICE = "Use only the lines for your application."
"""For a step that has lines for several applications."""
AGAIN = "howfar doctor"
WHERE_SEARCHED = "Looked for {programs} among the processes, and at their usual ports and sockets."
LINES: Texts = {
    "note": "Note: {text}. [{check}]",
    "gain": "Gain: {text} ({basis})",
    "listens": "Listens on {where}",
    "no-socket": "No Unix socket",
    "socket-unknown": "Whether it has a Unix socket is unknown",
    "compression": "Compression offered: {algorithms}",
    "client": "Client {client}",
    "socket-clients": "{connections:of connection} over the socket",
    "no-clients": "No clients seen",
    "no-listener": "No clients: it does not listen",
    "rates": "Per second: {connects:count} connects, {statements:count} {counted}",
    "handshakes": ", {handshakes:count} TLS handshakes",
    "unseen": "{what}: {why}",
    "unseen-how": "{what}: {why}. To see it: {how}",
    "of-server": "Not seen: {text}",
}
"""Lines about one server."""
