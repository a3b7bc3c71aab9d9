"""Texts of runs with compression."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    # One kind of data over one link, with the best algorithm.
    "helps": "{subject}: {estimate:fewer} transactions/s with {algorithm}",
    "helps, next": "{subject}: {estimate:fewer} with {algorithm}",
    # All data over one link, or one kind of it.
    "slower": "{subject} no algorithm helps",
    "no-gain": "{subject} no algorithm measurably helps",
    "no-difference": "{subject} compression makes no measurable difference",
    "invalid": "{subject} the figures do not show what compression does",
    # Causes.
    "bytes": "{subject} {algorithm} compresses {content} to {bytes:share}",
    "cpu": "{subject} a transaction costs {estimate:more} CPU with {algorithm}",
    "bytes-and-cpu": "{subject} {algorithm} compresses {content} to {bytes:share}, and a transaction costs {estimate:more} "
    "CPU",
}

ECONOMICS: Texts = {
    # How often the model was right.
    "resolved": (
        "{resolved} of {cells} measured cells differ by more than chance, of which the model predicted {predicted}, {right} of "
        "them correctly."
    ),
    # The model's gains at a rate.
    "gains": "at {rate:rate} {gains}",
    "gain": "{algorithm} {times} times",
}

REPORT: Texts = {
    # The chart; its title is a finding.
    "gain": (
        "With {algorithm}, {content} {location}: {transactions_per_s:table} instead of {plain_transactions_per_s:table} "
        "transactions/s"
    ),
    "no gain": "No algorithm gives measurably more transactions per second",
    "measured": "Transactions per second by the rate of the link, with and without compression",
    "points": "Points: measured{intervals:?, with 95 % intervals}.",
    "lines": " Lines: the model of each algorithm on this machine and data. Tick: below this link rate, compression pays off.",
    "break-even": "{algorithm} pays off {pays}",
    "below": "below {rate:rate}",
    "everywhere": "at all rates",
    "never": "never",
    "not resolved": "too close to call",
    # The table.
    "open": "An interval from 1 Mb/s or to 100 Gb/s: compression may never, or always, pay off.",
    "extrapolated": "* beyond the rates that were measured: an extrapolation.",
    "wrong": "! the model predicted a gain where there was a loss, or vice versa.",
    "advice": "Throughput by the model, relative to none, {content}: {advice}.",
}

CONTENTS: Texts = {"incompressible": "incompressible data"}
"""Kinds of data whose name is not a noun."""
