"""The templates of the violations of replication and clusters."""

from __future__ import annotations

from howfar.contract.violation import ViolationText
from howfar.errors import NotAsConfigured

_CONFIGURATION = (
    ViolationText(
        NotAsConfigured.id,
        "{message}",
        in_older_files=False,
        older_messages=r"replication (was not as configured before|is not what was asked)\b.*"
        r"|\d+ commits waited .* no replica acknowledged any .*",
    ),
    ViolationText(
        "replica-not-replicating",
        "{subject} was not replicating {moment:before|after} the window: receiving {receiving}, applying {applying}",
    ),
    ViolationText(
        "replica-failed",
        "{subject} was not replicating {moment:before|after} the window: receiving {receiving}, applying {applying} ({errors:texts})",
    ),
    ViolationText("replica-did-not-acknowledge", "{subject} did not acknowledge {moment:before|after} the window"),
    ViolationText(
        "unrequested-acknowledgement",
        "{subject} acknowledged {moment:before|after} the window, which was not requested",
    ),
    ViolationText(
        "fell-back-silently",
        "the primary was not semi-synchronous {moment:before|after} the window: it fell back to asynchronous silently",
    ),
    ViolationText(
        "semi-sync-replicas",
        "{connected:d} semi-synchronous replicas of {requested:d} were connected {moment:before|after} the window",
        "too few semi-synchronous replicas were connected {moment} the window",
    ),
    ViolationText("wait-point", "the wait point was {actual} instead of {expected} {moment:before|after} the window"),
    ViolationText(
        "acknowledgement-timeout",
        "the timeout in ms was {actual_ms:d} instead of {expected_ms:d} {moment:before|after} the window",
        "the timeout was not as requested {moment} the window",
    ),
    ViolationText(
        "primary-without-semi-sync",
        "the primary had no semi-synchronous replication {moment:before|after} the window",
    ),
    ViolationText("unrequested-semi-sync", "the primary was semi-synchronous {moment:before|after} the window"),
    ViolationText(
        "counters-went-back",
        "the primary's counters went back during the window: it was started again, or they were reset",
    ),
    ViolationText(
        "commits-not-acknowledged",
        "{commits:d} commits of the window were not acknowledged by a replica, as the primary counts them",
        "commits of the window were not acknowledged by a replica",
    ),
    ViolationText(
        "commit-groups-not-acknowledged",
        "{groups:d} commits of the window were not acknowledged by a replica, as the primary counts them (MySQL: groups of them)",
        "commits of the window were not acknowledged by a replica",
    ),
    ViolationText(
        "fell-back",
        "the primary fell back to asynchronous replication {fallbacks:times}",
        "the primary fell back to asynchronous replication",
    ),
    ViolationText(
        "no-acknowledgement-counted",
        "{commits:d} commits returned and the primary counted no acknowledgement",
        "the primary counted no acknowledgement",
    ),
    ViolationText(
        "log-not-sent",
        "{acknowledged_bytes:d} bytes of log were acknowledged and {sent_bytes:d} bytes were sent to a replica that a commit needs",
        "more log was acknowledged than sent to a replica that a commit needs",
    ),
    ViolationText(
        "commits-too-fast",
        "half of the commits took less than {commit_p50_ns:ms} where the round trip to the replica takes {rtt_ns:ms}: "
        "nobody waited for it",
        "commits took less than the round trip to the replica",
    ),
)
NOT_AS_CONFIGURED = frozenset(text.id for text in _CONFIGURATION)
"""Ids of violations that mean that semi-synchronous replication was not as configured."""
VIOLATIONS = (
    *_CONFIGURATION,
    ViolationText(
        "wait-count",
        "the number of replicas to wait for was {actual:d} instead of {expected:d} {moment:before|after} the window",
        "the number of replicas to wait for was not as requested {moment} the window",
    ),
    ViolationText(
        "channel-without-tls",
        "{encrypted:d} of {replicas:d} replicas connected to the primary over TLS",
        "not all replicas connected to the primary over TLS",
    ),
    ViolationText(
        "unrequested-channel-tls",
        "{encrypted:d} replicas connected to the primary over TLS, which was not requested",
        "replicas connected to the primary over TLS",
    ),
    ViolationText(
        "channel-not-compressed",
        "a row of {row_bytes:d} bytes went to {replica:word} in {sent_bytes:d}: it was not compressed",
        "a row went to {replica:word} without compression",
    ),
    ViolationText(
        "channel-compressed",
        "a row of {row_bytes:d} bytes went to {replica:word} in {sent_bytes:d}: it was compressed",
        "a row went to {replica:word} with compression",
    ),
    ViolationText(
        "errant-transactions",
        "{subject} had transactions that its primary never had ({transactions}) {moment:before|after} the window: "
        "their histories have diverged",
    ),
    ViolationText(
        "replica-count",
        "{replicas:d} replicas {moment:before|after} the window",
        "there was another number of replicas {moment} the window",
    ),
    ViolationText("replication-broken", "{failure} {moment:before|after} the window", in_older_files=False),
    ViolationText("node-setting", "{subject} {difference} {moment:before|after} the window", in_older_files=False),
    ViolationText("primary-setting", "{difference} {moment:before|after} the window", in_older_files=False),
    ViolationText(
        "node-restarted",
        "{subject} counted {count:d} {counter} in the window: it was started again",
        "{subject} was started again in the window",
    ),
    ViolationText(
        "too-few-ordered",
        "{commits:d} commits returned and the cluster ordered {ordered:d} transactions",
        "the cluster ordered fewer transactions than commits returned",
    ),
    ViolationText(
        "links-mean-lateness",
        "the links made each {operation:commit|read} up to {change_ns:duration} {change:longer|shorter} on average "
        "(allowed {allowed_ns:duration}, {allowed_share:.0%} of a {operation:commit|read}): "
        "the machine was too busy for the emulators",
        "the links made each {operation} {change} on average",
        over_link=True,
        older_sentences=(
            (
                "the links made each {operation:commit|read} up to {change_ns:duration} {change:longer|shorter} on average "
                "(allowed {allowed_ns:duration}, {allowed_share:.0%} of one): the machine was too busy for the emulators"
            ),
        ),
    ),
    ViolationText(
        "rows-differ",
        "clients saw {commits:d} commits and {answers} answers, and the rows of {node:word} count {rows:d}",
        "the rows of {node:word} do not agree with the commits",
    ),
)
