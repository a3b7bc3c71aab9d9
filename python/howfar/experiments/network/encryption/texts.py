"""Texts of runs with encryption."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "invalid": "the figures do not show what TLS costs",
    "no-difference": "TLS makes no measurable difference in {cells:of case}",
    # Throughput with a version of TLS, at worst over the numbers of connections and links.
    "per-transaction": "connecting for each transaction, {subject} makes {several:?up to }{estimate:fewer} transactions/s than plain",
    "per-transaction, next": "{subject} {several:?up to }{estimate:fewer}",
    "per-transaction-unresolved": "connecting for each transaction, {subject} made no measurable difference",
    "persistent": "keeping connections, {subject} makes {several:?up to }{estimate:fewer} transactions/s than plain",
    "persistent, next": "{subject} {several:?up to }{estimate:fewer}",
    "persistent, after per-transaction": "keeping connections, {subject} {several:?up to }{estimate:fewer}",
    "persistent-unresolved": "keeping connections, {subject} made no measurable difference",
    # Causes.
    "cpu/per-transaction": "connecting for each transaction, {subject} costs {estimate:more} CPU",
    "cpu/persistent": "keeping connections, {subject} costs {estimate:more} CPU",
}

ECONOMICS: Texts = {
    # Notes of a version of TLS.
    "ratios": "{version}: {resolved} of {cells:of ratio} beyond chance{invalid:?, with some that do not describe the path}.",
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
