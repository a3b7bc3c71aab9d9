"""What a run with encryption may find, in words."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "invalid": "the figures do not show what TLS costs",
    "no-difference": "TLS makes no measurable difference in {cells:of case}",
    # Throughput with a version of TLS, at worst over the numbers of connections and links.
    "per-transaction": "with a connection per transaction {subject} is {several:?up to }{estimate:slower}",
    "per-transaction, next": "{subject} {several:?up to }{estimate:slower}",
    "per-transaction-unresolved": "with a connection per transaction {subject} made no measurable difference",
    "persistent": "with persistent connections {subject} is {several:?up to }{estimate:slower}",
    "persistent, next": "{subject} {several:?up to }{estimate:slower}",
    "persistent-unresolved": "with persistent connections {subject} made no measurable difference",
    # Causes.
    "cpu/per-transaction": "with a connection per transaction {subject} costs {estimate:more} CPU",
    "cpu/persistent": "with persistent connections {subject} costs {estimate:more} CPU",
}

ECONOMICS: Texts = {
    # Notes of a version of TLS.
    "ratios": "{version}: {resolved} of {cells:of ratio} resolved{invalid:?, with some that do not describe the path}.",
    "retried": "The server asks for another key share, which takes one of the round trips of a connect.",
    "model": (
        "From other numbers of connections, the model predicted {predicted} of these {cells}, off by {mean:.1f} % on average and "
        "{worst:.1f} % at worst."
    ),
}

NOTE = (
    "All relative to the same cell without TLS, both ends together; x: throughput relative to it, at the fewest and the most "
    "connections{predicted:? (in brackets: predicted from other numbers of connections)}."
)
"""Note of the table of costs."""
