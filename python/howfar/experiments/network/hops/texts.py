"""What a program on the path may cost, and from how many clients a pooler pays off, in words."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "slower": "compared with {baseline}, {subject} makes {estimate:fewer} {units}/s",
    "slower, next": "{subject} {estimate:fewer}",
    "faster": "compared with {baseline}, {subject} makes {estimate:fewer} {units}/s",
    "faster, next": "{subject} {estimate:fewer}",
    # Where the throughput shows no difference.
    "delay": "at {per_s:,g}/s, {subject} adds {estimate:us} to the median answer",
    "delay, next": "{subject} {estimate:us}",
    "saves": "at {per_s:,g}/s, {subject} takes {saved:us} off the median answer",
    "saves, next": "{subject} {saved:us}",
    "unmeasured": "there is no result for {subject}",
    # Why a pooler pays off.
    "connect": "on {subject}, a transaction that opens its own connection takes {connect_ms:table} ms longer",
    # Poolers, by how clients connect.
    "pays-from/persistent": "with kept connections, {subject} pays off from {estimate:n} clients on",
    "pays/persistent": "with kept connections, {subject} pays off for {fewest} to {most} clients",
    "costs/persistent": "with kept connections, {subject} costs throughput for {fewest} to {most} clients",
    "unclear/persistent": "with kept connections, it is too close to call whether {subject} pays off",
    "pays-from/per-transaction": "with a connection per transaction, {subject} pays off from {estimate:n} clients on",
    "pays/per-transaction": "with a connection per transaction, {subject} pays off for {fewest} to {most} clients",
    "costs/per-transaction": "with a connection per transaction, {subject} costs throughput for {fewest} to {most} clients",
    "unclear/per-transaction": "with a connection per transaction, it is too close to call whether {subject} pays off",
    "unclear/per-transaction, after unclear/persistent": "with a connection per transaction too",
}

COSTS_NOTE = (
    "Against {baseline}, within blocks{intervals:?, with 95 % intervals. *: more than chance}. Throughput and CPU time: in a closed "
    "loop. CPU time is that of all programs of the path; on the same CPUs it is taken from the client or the server."
)
CONNECT_NOTE = (
    "Per connect: the extra time of a transaction that opens its own connection; through {baseline} itself, {connect}."
)
POOLERS_NOTE = (
    "Throughput relative to {baseline} with as many clients, within blocks, and the connections to the server. A "
    "pooler pays off from where the ratio rises through 1, on straight lines between the logarithms."
)
POOLERS_CAPTION = (
    "Above the dashed line, the pooler pays off. Grey band: may be chance. Bars: 95 % intervals; of many, one may "
    "exclude 1 by chance."
)
POOLERS_AXIS = "throughput, {baseline} = 1 (log scale)"
HOP_CPU = "hop CPU µs\nper {unit}"
PUBLISHED_NOTE = "Throughput relative to the other path. Published: single runs on other machines, links and versions."
OPPOSITE = (
    "{path}, {connect}: the published ratio and ours lie on opposite sides of 1. The set-ups differ, and this run "
    "does not tell which difference is the cause."
)
