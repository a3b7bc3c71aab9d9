"""The results of measuring one server, as frozen models. Their JSON form is public (`howfar TARGET --json`, `schema/distance.json`).

Times are nanoseconds. None means that a value was not measured or is unknown, never zero.

    python -m howfar.distance.record            # writes schema/distance.json
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from howfar.errors import FailedCommand

FORMAT: Literal[1] = 1
"""Version of the JSON form; incremented when a field changes its meaning."""

StepName = Literal["name", "connect", "greeting", "tls_request", "tls", "login", "request"]
PathKind = Literal["socket", "loopback", "this_machine", "passed_on", "other_machine", "unknown"]
MAX_REQUESTS = 500
"""Maximum number of requests of a measurement, timed or not; --watch has no such limit."""
_OTHER_REQUESTS = 10
"""Maximum number of requests that are not timed: they identify the server, warm it up, or estimate the time of a request."""
MAX_COUNT = MAX_REQUESTS - _OTHER_REQUESTS
"""Maximum number of timed requests and pings."""
MAX_CONNECTS = 20
_MIN_SAMPLES_BEYOND = 3
"""Minimum number of samples beyond a percentile for it to be printed."""


class DistancePart(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, validate_by_name=True, serialize_by_alias=True
    )


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest sample that at least `share` of the samples do not exceed. `ordered` is sorted and not empty."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def supports_percentile(count: int, share: float) -> bool:
    """Whether, of `count` samples, at least three lie beyond the percentile (for the median: on either side)."""
    return count * min(share, 1 - share) >= _MIN_SAMPLES_BEYOND * (1 - 1e-9)


Bounds = tuple[float | None, float | None]
"""Lower and upper limit of a figure; None if there are too few samples for a limit on that side."""


def percentile_interval(ordered: Sequence[int], share: float, level: float = 0.95) -> Bounds:
    """Return the confidence interval of a percentile, by order statistics.

    The number of samples below the true percentile is binomial. The sample of rank r is below that percentile with the probability
    that at least r samples are.
    """
    count, tail = len(ordered), (1 - level) / 2
    probability = 0.0  # the probability that fewer than `rank` samples lie below the true percentile
    low_rank = high_rank = None
    for rank in range(1, count + 1):
        probability += _binomial(count, rank - 1, share)
        if probability <= tail:
            low_rank = rank
        if high_rank is None and probability >= 1 - tail:
            high_rank = rank
    return None if low_rank is None else ordered[low_rank - 1], None if high_rank is None else ordered[high_rank - 1]


def min_count(share: float, level: float = 0.95) -> int:
    """Return the minimum number of samples for both limits of `percentile_interval`: fewer may all lie, by chance, on one side of the
    percentile."""
    return math.ceil(math.log((1 - level) / 2) / math.log(max(share, 1 - share)))


def _binomial(count: int, hits: int, share: float) -> float:
    choose = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
    return math.exp(choose + hits * math.log(share) + (count - hits) * math.log(1 - share))


class Latencies(DistancePart):
    """Latencies of one kind of request, sent one at a time on one connection: from before sending to the last byte of the answer."""

    request: str
    """What was sent, such as `SELECT 1`."""
    count: int
    min_ns: int
    p50_ns: int | None
    """None if fewer than three samples lie beyond it; the same holds for p95 and p99."""
    p95_ns: int | None
    p99_ns: int | None
    mean_ns: int
    max_ns: int
    samples_ns: tuple[int, ...]
    """All latencies, in the order of the requests."""
    refusal: str | None = None
    """The server's first refusal of the request; the latency of a refusal counts as well."""

    @property
    def middle_ns(self) -> int:
        """The middle sample; with fewer than six samples, it is no estimate of the median."""
        return percentile(sorted(self.samples_ns), 0.5)

    @classmethod
    def from_samples(cls, request: str, samples_ns: Sequence[int], refusal: str | None = None) -> Latencies:
        """Summarise samples; at least one is required."""
        ordered = sorted(samples_ns)
        count = len(ordered)

        def supported_percentile(share: float) -> int | None:
            return percentile(ordered, share) if supports_percentile(count, share) else None

        return cls(
            request=request,
            count=count,
            min_ns=ordered[0],
            p50_ns=supported_percentile(0.5),
            p95_ns=supported_percentile(0.95),
            p99_ns=supported_percentile(0.99),
            mean_ns=round(sum(ordered) / count),
            max_ns=ordered[-1],
            samples_ns=tuple(samples_ns),
            refusal=refusal,
        )


class Address(DistancePart):
    """An address to which the server's name resolves."""

    address: str
    state: Literal["used", "failed", "not_tried"]
    waited_ns: int | None = None
    """Time until the connection failed."""
    why: str | None = None


class Name(DistancePart):
    """The lookup of the server's name."""

    took_ns: int
    addresses: tuple[Address, ...]


class StepTime(DistancePart):
    """A step of a new connection for which the client waits."""

    name: StepName
    took_ns: int
    """The median over the connections that were opened."""
    round_trips: int


class NewConnection(DistancePart):
    """A connection from the first packet to the end of the login, without the name lookup."""

    count: int
    """Number of connections, opened one after the other; times are medians over them."""
    took_ns: int
    steps: tuple[StepTime, ...]
    round_trips: int
    first_ns: int
    """Time of the first connection alone."""


NOT_VERIFIED = "nothing"


class Encryption(DistancePart):
    version: str
    cipher: str
    handshake: Literal["full", "resumed"]
    verified: str
    """What the server's certificate was verified against, in words; `nothing` if it was not verified."""


class Fact(DistancePart):
    """Something detected between client and server, with the evidence."""

    what: str | None
    """Its name, such as `a pooler or proxy`; None if its existence is uncertain."""
    text: str = Field(alias="says")
    evidence: str


class PathFacts(DistancePart):
    kind: PathKind
    text: str = Field(alias="says")
    evidence: str
    mtu: int | None = None
    """Bytes of the largest packet that the path is known to carry."""
    between: tuple[Fact, ...] = ()
    """What was detected between client and server: a pooler, a proxy, NAT."""
    peer_address: str
    local_address: str | None = None


class Bandwidth(DistancePart):
    """The transfer of one large answer, from its first byte to its last, including slow start."""

    bytes: int
    took_ns: int
    waited_ns: int
    """Time from the request to the first byte of the answer, in which the server prepares the answer."""


class Page(DistancePart):
    """The minimum time that a page waits for a number of sequential requests; slow statements add to it."""

    requests: int
    kept_ns: int
    """Time over an open connection."""
    new_ns: int
    """Time over a new connection."""


class Elsewhere(DistancePart):
    """The times of the same pages over another path, all else equal."""

    name: str
    rtt_ns: int | None
    """None for a Unix socket of this machine."""
    kept_ns: tuple[int, ...]
    """Time of each page over an open connection, in the order of `Distance.pages`."""


class Failure(DistancePart):
    """The step at which the measurement ended, and what to do."""

    step: StepName
    code: str
    message: str
    advice: str
    waited_ns: int | None
    syn_count: int | None = None
    """Number of SYNs sent, if TCP got no answer."""


class Limit(DistancePart):
    """An expression of `--fail-if` and its verdict."""

    expression: str
    value_ns: float | None
    interval_ns: Bounds | None
    """95 % confidence interval; None for a figure without one."""
    verdict: Literal["crossed", "passed", "undecided"]


class Distance(DistancePart):
    """The measurement of one server: its identity, its distance, and what that means for a page."""

    format: Literal[1] = FORMAT
    target: str
    """The server's URL, without a password."""
    notes: tuple[str, ...] = ()
    began: str
    """When the measurement began: UTC, in ISO 8601."""
    product: str | None
    """Product and version, such as `MariaDB 10.11.19`."""
    place: str
    """Where the server is, in words: `at db.internal:3306`, `on /run/mysqld/mysqld.sock`."""
    name: Name | None = None
    connection: NewConnection | None = None
    encryption: Encryption | None = None
    path: PathFacts | None = None
    first_request_ns: int | None = None
    """Latency of the first request after the login, for which caches, poolers and CPUs are cold. No other figure includes it."""
    request: Latencies | None = None
    """Latencies of a request that only the server can answer; the middle sample is the distance."""
    ping: Latencies | None = None
    """Latencies of the protocol's own ping, alternating with `request`; a program between client and server may answer it."""
    network_ns: int | None = None
    """The shortest TCP handshake, as measured by the kernel; None for a Unix socket."""
    kernel_min_rtt_ns: int | None = None
    """The kernel's smallest round-trip time during the last connection; it may include the server's time."""
    retransmits: int | None = None
    pages: tuple[Page, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    light_km: float | None = None
    """Kilometres of fibre that light travels in half of `network_ns`: the maximum distance of what answers TCP."""
    bandwidth: Bandwidth | None = None
    bandwidth_refusal: str | None = None
    """Why `bandwidth` is missing, although it was requested."""
    failure: Failure | None = None
    limits: tuple[Limit, ...] = ()
    passed: bool | None = None
    """Whether no limit of `--fail-if` was crossed; None if none was given, or nothing was measured."""
    exit_code: int = 0
    """The exit code of the command."""


class WatchedRequest(DistancePart):
    """One request of `--watch`."""

    format: Literal[1] = FORMAT
    target: str
    """The server's URL, without a password."""
    at: str
    """When the request was answered or, if it was lost, when it was due: UTC, in ISO 8601."""
    latency_ns: int | None
    """Time from when the request was due to its answer; None if it was lost."""
    lost: str | None
    """Why the request was lost: an error instead of an answer, or why it could not be sent. None if it was answered."""


OutageKind = Literal["unreachable", "errors"]


class WatchedOutage(DistancePart):
    """A time during `--watch` in which every request was lost."""

    format: Literal[1] = FORMAT
    target: str
    """The server's URL, without a password."""
    outage: OutageKind
    """`unreachable`: there was no connection; `errors`: the server answered only with errors."""
    began: str
    """When the first lost request was due: UTC, in ISO 8601."""
    ended: str | None
    """When the server answered again; None if it had not when the watch ended."""
    took_ns: int
    lost: int
    """Number of lost requests."""
    why: str
    """Why the first request was lost."""


def schema_text() -> str:
    """The JSON schema of everything that `howfar --json` prints, with or without a target, as the text of its file."""
    from howfar.doctor.candidates import ServerHere

    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "howfar, the distance of one server"}
    output_type: TypeAdapter[object] = TypeAdapter(
        Distance | WatchedRequest | WatchedOutage | FailedCommand | list[ServerHere]
    )
    schema = {**output_type.json_schema(mode="serialization"), **header}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "schema/distance.json").write_text(schema_text(), encoding="utf-8")
