"""Texts about the cost of programs on the path, and the number of clients above which a pooler pays off."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    "slower": "compared with {baseline}, {subject} makes {estimate:fewer} {units}/s",
    "slower, next": "{subject} {estimate:fewer}",
    "faster": "compared with {baseline}, {subject} makes {estimate:fewer} {units}/s",
    "faster, next": "{subject} {estimate:fewer}",
    # Where the throughput shows no difference.
    "delay": "at {per_s:,g}/s, {subject} adds {estimate:us} to the median response",
    "delay, next": "{subject} {estimate:us}",
    "saves": "at {per_s:,g}/s, {subject} takes {saved:us} off the median response",
    "saves, next": "{subject} {saved:us}",
    "unmeasured": "there is no result for {subject}",
    # Why a pooler pays off.
    "connect": "on {subject}, a transaction that opens its own connection takes {connect_ms:table} ms longer",
    # Poolers, by how clients connect.
    "pays-from/persistent": "with persistent connections, {subject} pays off above {estimate:n} clients",
    "pays/persistent": "with persistent connections, {subject} pays off for {fewest} to {most} clients",
    "costs/persistent": "with persistent connections, {subject} costs throughput for {fewest} to {most} clients",
    "unclear/persistent": "with persistent connections, it is too close to call whether {subject} pays off",
    "pays-from/per-transaction": "with a connection per transaction, {subject} pays off above {estimate:n} clients",
    "pays/per-transaction": "with a connection per transaction, {subject} pays off for {fewest} to {most} clients",
    "costs/per-transaction": "with a connection per transaction, {subject} costs throughput for {fewest} to {most} clients",
    "unclear/per-transaction": "with a connection per transaction, it is too close to call whether {subject} pays off",
    "unclear/per-transaction, after unclear/persistent": "with a connection per transaction too",
}

COSTS_NOTE = (
    "Against {baseline}{intervals:?, with 95 % intervals}.{stars:? *: more than chance.} Throughput and CPU time: in a closed "
    "loop. CPU time is that of all programs of the path; on shared CPUs, they take it from the client or the server."
)
CONNECT_NOTE = (
    "Per connect: the extra time of a transaction that opens its own connection; through {baseline} itself, {connect}."
)
POOLERS_NOTE = (
    "Throughput relative to {baseline} with as many clients, and the connections to the server. A "
    "pooler pays off where the ratio rises above 1, interpolated between the logarithms."
)
POOLERS_CAPTION = (
    "Above the dashed line, the pooler pays off. Grey band: too close to call. Bars: 95 % intervals; of many, one "
    "may exclude 1 by chance."
)
POOLERS_AXIS = "throughput, {baseline} = 1 (log scale)"
HOP_CPU = "hop CPU µs\nper {unit}"
PUBLISHED_NOTE = "Throughput relative to the other path. Published: single runs on other machines, links and versions."
OPPOSITE = (
    "{path}, {connect}: the published ratio and ours lie on opposite sides of 1. The set-ups differ, and this run "
    "does not tell which difference is the cause."
)
