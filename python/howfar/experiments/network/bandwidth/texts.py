"""Texts of runs that vary links and connections."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    # A full link, and what the next faster one gives: measured, or at most.
    "link-full": "{subject} the link is full: {faster_bps:rate} gives {estimate:fewer} transactions/s",
    "link-full-at-most": "{subject} the link is full: a faster one gives at most {most:fewer} transactions/s",
    "link-full-unknown": "{subject} the link is {unsure:?perhaps }full",
    # Another limit at the highest throughput.
    "link-slower": "{subject}: {faster_bps:rate} gives {estimate:fewer} transactions/s",
    "link-not-full": "{subject} the link is not full, yet {faster_bps:rate} gives {estimate:fewer} transactions/s",
    "client-cpu": "{subject} the load generator is {unsure:?perhaps }full{on_link:?, not the link}",
    "server-cpu": "{subject} the server's CPU is {unsure:?perhaps }full{on_link:?, not the link}",
    "forwarder-cpu": "{subject} the forwarder's CPU is {unsure:?perhaps }full{on_link:?, not the link}",
    "instrument-cpu": "{subject} the link's emulator has {unsure:?perhaps }too little CPU to tell",
    "divided-cpu": "{subject} the CPUs are {unsure:?perhaps }full, and no program uses most of them",
    "one-thread": "{subject} one thread is {unsure:?perhaps }the limit{on_link:?, not the link}",
    "receive-window": "{subject} the receive window is {unsure:?perhaps }the limit, not the rate",
    "send-buffer": "{subject} the send buffer is {unsure:?perhaps }the limit, not the rate",
    "loss": "{subject} lost segments are {unsure:?perhaps }the limit, not the rate",
    "commit": "{subject} commits wait for the disk{on_link:?, not for the link}",
    "acknowledgement": "{subject} commits wait for a replica{on_link:?, not for the link}",
    "lock": "{subject} transactions wait for row locks{on_link:?, not for the link}",
    "server-wait": "{subject} transactions wait inside the server{on_link:?, not for the link}",
    "latency": "{subject} nothing is full: each connection waits for its own answers",
    "errors": "{subject} transactions fail, so the figures show no limit",
    "invalid": "{subject} other programs were busy, so the figures show no limit",
    "not-established": "{subject} no limit is established",
    "refuted": "{subject} a test refuted the supposed limit",
}

CURVES: Texts = {
    "predicted": (
        "The model predicted each curve over a link from another with a mean error of {mean:.1f} % over {points:of point} "
        "(worst {worst:.1f} %)."
    ),
    # What a ceiling follows from.
    "cpu": "{station}: {ms:.3g} ms per transaction, {cpus}",
    "cpu beside the emulator": "{cpu} in addition to {emulator:.2g} used by the link's emulator",
    "link": "{station}: {size} per transaction over {rate}",
    "read off": "{ceiling}, taken at the highest throughput itself",
    # What a prediction follows from.
    "from itself": "from {ends} of the curve itself",
    "from a link": "from {name} at {ends}, {size} of answers per transaction",
    "from the loopback": (
        "from {name} at the same numbers of connections, {size} of answers per transaction, the link's rate and its round trip at "
        "rest, {cpu}"
    ),
    "cpu of a link": "CPU as over the nearest other link that was not full",
    "cpu of the loopback": "the emulator's share of the CPUs",
    "cpu of both": "{cpu} (at {lacking} connections: as on {name}, and the emulator's share)",
}

REPORT: Texts = {
    # Charts: their titles are findings.
    "tops": "Highest transactions per second: {tops}",
    "top": "{tps:table} with {curve}",
    "curves": "Points: measured{intervals:?, with 95 % intervals}.",
    "model": " Dashed line and band: the model{foreign:?, predicted from other cells of this run where possible}.",
    "ceilings": " Dotted: the maximum that a resource allows.",
    "limits": "The closest ceiling: {curve} reaches {share:share} of what {resource} allows",
    "shapes": "Each curve relative to its own maximum: machines differ, but where a curve bends can be compared.",
    "budget": "At the highest throughput, {share:share} of the time between two transactions is {part}",
    "budgets": (
        "Each bar is one cycle of a connection, from one transaction to the next. Grey, last: the unexplained rest. "
        "Next to the bar: the length of the cycle, and the limit."
    ),
    "computed": " Computed from rates and delays: {parts}.",
    "bounded": " An upper bound: {parts}.",
    "letters": " On a narrow screen, a letter names the limit. {legend}",
    "networks": (
        "The last good trial of the fastest cell of each column. Bytes are as the interface counts them, so compare them with the "
        "upper ceiling; the lower one is for payload. A ceiling far above the curve is left out."
    ),
    "queue": " Below: the maximum bytes waiting in the link's queue to the client.",
    "network": "up to {mib:,.1f}{ceiling} MiB/s; {resent}",
    "resent": "{segments:.0f} segments retransmitted",
    "not resent": "nothing retransmitted",
    # Tables.
    "intervals": "95 % intervals: half-widths up to {width}.",
    "no intervals": "No intervals: measured too few times.",
    "closed loop": "Closed loop: beyond the limit, further connections only wait.",
    "what if": (
        "From {arm}: {measured} transactions per second measured, {model} by the model at the same settings ({error}: its error "
        "there). Changes are relative to the model's own figure."
    ),
    "what if, extrapolated": "* beyond the measured range of links, round trips or connections: an extrapolation.",
    "predicted": "Predicted, {curves}: {basis}.",
    "by construction": (
        "{points} measured points are excluded from these errors: they are right by construction (the model was fitted to them, or "
        "a full link passed its rate)."
    ),
    "extrapolated": "* beyond the connections that were measured: an extrapolation.",
    "fitted": "Fitted: to the curve's own ends; the error shows only whether the shape is right.",
    "published": "Published: {sources}. Not our measurement.",
    "published differs": "The published workload differs: compare where the curves bend, not transactions per second.",
}
