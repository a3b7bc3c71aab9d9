"""Texts of the comparison of paths."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "difference": "compared with {baseline}, {subject} makes {estimate:fewer} {units}/s",
    "difference, next": "{subject} {estimate:fewer}",
    "cpu": "per {unit}, {subject} costs {bound:?at least }{stated:more} CPU",
    # One path under two names: what this machine can tell apart.
    "equal": "no difference larger than the noise, {noise_floor:floor}, was found between two equal runs of {subject}",
    "unequal": "two equal runs of {subject} differ by more than chance; trust only differences above {noise_floor:floor}",
    "unknown-floor": "too few blocks to tell what this machine can resolve",
}

RATIOS_CAPTION = (
    "Dot and bar: the ratio with its 95 % interval, grey where it is too close to call. Circles: single blocks. Grey band: "
    "how much the same path may differ if measured twice."
)
PUBLISHED_CAPTION = " Diamond: published elsewhere."
CUT_CAPTION = " Arrowhead: the interval continues beyond the axis."
CAUSES_CAPTION = " Below a path: what its round trips take of a transaction's mean time."
TIME_TITLE = "With {path}, {part_ms:table} of the {total_ms:table} ms of a transaction are {part}"
TIME_CAPTION = (
    "The length of a bar is the mean time of a connection from one transaction to the next. CPU is measured; link is "
    "the measured unloaded RTT times the round trips. Waiting for a CPU overlaps the others, so it is cut to "
    "the time they leave; rest is what none of these explains: wake-ups, queueing behind another connection, locks."
)
LATENCY_TITLE = "1 of 100 transactions takes longer than {most:table} ms with {worst}, {least:table} ms with {best}"
LATENCY_CAPTION = (
    "Closed loop: each connection sends its next transaction when the last one is answered, so these are service "
    "times. All good trials of a path are merged; each line ends where only ten transactions were slower. Both axes are "
    "logarithmic."
)
ROUND_TRIPS_LABEL = "{turns:of round-trip} × {rtt_ms:table} ms = {part_ms:table} of {time_ms:table} ms"
RATIOS_AXIS = "{unit} per second, relative to {baseline} (log scale)"
CPU_QUESTION = "How much CPU does a {unit} use?"
CPU_TITLE = "A {unit} takes {most:table} µs of CPU with {worst}, {least:table} µs with {best}"
CPU_CAPTION = (
    "From the scheduler's accounting of each process. The link's emulator is not included: it is part of the "
    "instrument. {note}"
)
WAKING_NOTE = (
    "{unit} per second with this machine's own idle states, relative to polling idle CPUs: below 1, "
    "waking CPUs costs throughput. The last column is the factor by which waking changes the ratio."
)
