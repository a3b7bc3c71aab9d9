"""Texts of runs at given rates."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "too-high": "{per_s:,g} transactions/s is too high for {subject}",
    "too-high, next": "{per_s:,g} for {subject}",
    "too-high-of": "{per_s:,g} transactions/s is too high for {subject}, which handles about {capacity:n}",
    "too-high-of, next": "{per_s:,g} for {subject}, which handles about {capacity:n}",
    "sustained": "{per_s:,g}/s is not too high for {subject}",
    "unclear": "it is too close to call whether {per_s:,g} transactions/s is too high for {subject}",
    "unclear, after too-high-of": "too close to call: {per_s:,g} for {subject}",
    "unclear, after too-high": "too close to call: {per_s:,g} for {subject}",
    "unclear, next": "or {per_s:,g} for {subject}",
    # Among paths at the highest rate that all sustain.
    "p99": "at {per_s:,g}/s, 99 of 100 answers take up to {estimate:ms} over {subject}",
    "p99, next": "{estimate:ms} over {subject}",
    # Why a rate is too high.
    "capacity": "in a closed loop, where each connection sends as soon as it has its answer, {subject} handles {estimate:table}/s",
    "capacity, next": "{subject} {estimate:table}",
    "occupied": "over {subject}, a transaction occupies a connection for {time_ms:table} ms, {part_ms:table} ms of it {part}; "
    "{connections:of connection} cannot handle more",
}

KEEP_BELOW = (
    "On {path}, keep below {rate} transactions/s{lower_limit:?, four fifths of its capacity's lower limit}, or give it more "
    "connections or fewer round trips."
)
ANSWERED = "At {per_s:,g}/s, it answered {answered} in time; in a closed loop with as many connections, it handles {capacity}/s"
HEADROOM = "{reason}; {share:share} of that{low:?, at the lower limit,} leaves room for bursts."
"""The reason if a share of the capacity is advised. It is not advised if the path queues below it, or if its interval reaches 0."""

CURVES_TOPIC = "Response times by percentile, a panel per rate"
CURVES_TITLE = (
    "At {per_s:n}/s, 1 of 100 transactions takes longer than {most:table} ms with {worst}, {least:table} ms with {best}"
)

CAPACITIES = "Capacities in a closed loop (at any higher rate, the queue grows): {capacities}."
"""Note with the throughput of each path."""

MARKS = {"*": "*: more than chance.", "?": "?: too close to call whether the path keeps up."}
"""Meanings of the marks in the table."""
TIMES_NOTE = (
    "Where less than 99 % is answered in time, requests queue and no times are shown. Response times count from when a transaction "
    "was due. Capacity: {baseline} in a closed loop. Quantiles that fewer than 10 transactions of a trial exceed are not shown either."
)
