"""What a run at given rates may find, and its advice, in words."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "too-high": "{per_s:,g} transactions/s is too high for {subject}",
    "too-high, next": "{per_s:,g} for {subject}",
    "too-high-of": "{per_s:,g} transactions/s is too high for {subject}, which does {capacity:n} at most",
    "too-high-of, next": "{per_s:,g} for {subject}, which does {capacity:n} at most",
    "sustained": "{per_s:,g} is not too high for {subject}",
    "unclear": "it is too close to call whether {per_s:,g} transactions/s is too high for {subject}",
    "unclear, after too-high-of": "too close to call: {per_s:,g} for {subject}",
    "unclear, after too-high": "too close to call: {per_s:,g} for {subject}",
    "unclear, next": "or {per_s:,g} for {subject}",
    # Among paths at the highest rate that all sustain.
    "p99": "at {per_s:,g}, 99 of 100 answers take up to {estimate:ms} over {subject}",
    "p99, next": "{estimate:ms} over {subject}",
    # Why a rate is too high.
    "capacity": "in a closed loop, where each connection sends as soon as it has its answer, {subject} does {estimate:table} a second",
    "capacity, next": "{subject} {estimate:table}",
    "occupied": "over {subject}, a transaction occupies a connection for {time_ms:table} ms, {part_ms:table} ms of it {part}; "
    "{connections:of connection} cannot do more",
}

KEEP_BELOW = (
    "On {path}, keep below {most} transactions/s{cautious:?, four fifths of the lower end of its interval}, or give it more "
    "connections or fewer round trips."
)
ANSWERED = (
    "At {per_s:,g}/s, it answered {answered} in time; in a closed loop with as many connections, it does {capacity}/s"
)
HEADROOM = "{reason}, of which {share:share}{low:?, at the lower end of its interval,} leaves room for bursts."
"""The reason if a share of the capacity is the advice. It is no guide if the path queues below it, or if its interval reaches 0."""

CAPACITIES = "In a closed loop, which no rate can exceed without a growing queue: {capacities}."
"""Note with the throughput of each path."""

MARKS = {"*": "*: more than chance.", "?": "?: too close to call whether it keeps up."}
"""Meanings of the marks in the table."""
TIMES_NOTE = (
    "Where less than 99 % is answered in time, requests queue, and no time is given. Response times count from when a transaction "
    "was due. Load: of what {baseline} does in a closed loop. A quantile that fewer than 10 transactions of a trial exceed is not "
    "given either."
)
