"""Measures one server: the lookup of its name, connections, and small sequential requests. The engine takes the times.

A measurement is bounded: at most 20 connects and 500 requests, a timeout for each step, and at most one refused login.
"""

from __future__ import annotations

import math
import os
import stat
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from howfar.contract.ping_messages import (
    Asked,
    NotOpened,
    Opened,
    Target,
    TcpTarget,
    UnixTarget,
)
from howfar.distance.meaning import add_meaning
from howfar.distance.path import locate_peer, path_facts
from howfar.distance.record import (
    MAX_COUNT,
    Address,
    Bandwidth,
    Distance,
    Encryption,
    Failure,
    Latencies,
    Name,
    NewConnection,
    StepTime,
)
from howfar.distance.requests import BULK_BYTES, REQUESTS, Identity, Requests, Rows, identify
from howfar.distance.resolve import NameFailed, look_up_name, parse_numeric_address
from howfar.distance.session import (
    ConnectionLost,
    MeasuredServer,
    PingSession,
    check_answered,
    check_kind,
    make_failure,
    ping_session,
    socket_saving_ns,
)
from howfar.distance.target import other_protocol
from howfar.doctor.kind import product_name
from howfar.engine.process import EngineFailed
from howfar.errors import HowfarError, UsageError
from howfar.services import SERVICES
from howfar.units import counted

_SECOND_NS = 1_000_000_000
NEAR_CONNECTS = 5
"""Number of connections to a near server, over which medians are taken; a far one gets only one connection."""
_NEAR_NS = 50_000_000
"""Time of the first connection below which a server is near."""
_NEAR_BUDGET_NS = 2 * _SECOND_NS
"""Time for all requests to a near server."""


@dataclass(frozen=True)
class _RequestRound:
    """A round of requests with a ping in the middle, so that server and path are equally warm for both.

    `before`, `after`: numbers of requests before and after the ping.
    """

    before: int
    after: int

    @property
    def requests(self) -> int:
        return self.before + self.after

    @property
    def max_rounds(self) -> int:
        """Number of rounds that send at most `MAX_COUNT` requests and pings."""
        return MAX_COUNT // (self.requests + 1)


_NEAR_ROUND, _FAR_ROUND = _RequestRound(1, 1), _RequestRound(3, 2)
"""For a far server, for which time allows fewer than `MAX_COUNT` requests, a round has more requests per ping."""
_PROBE_COUNT = 3
"""Number of requests of which the fastest estimates the time of a request."""
_MIN_P95_COUNT = 60
"""Minimum number of requests for a p95."""
_SYN_TIMEOUT_NS = _SECOND_NS
"""Time after which Linux retransmits a SYN: after a shorter wait, the first SYN may still be in transit."""
_NO_LIMIT_NS = 3600 * _SECOND_NS
_MAX_SECONDS = 5.2
"""Maximum time from the beginning of a measurement to the end of the requests to a far server."""


@dataclass(frozen=True)
class MeasurementOptions:
    """The extent of a measurement, and its timeouts."""

    timeout_ns: int = 5 * _SECOND_NS
    """Timeout of each step of a connection, and of each answer."""
    bandwidth: bool = False
    """Whether to measure one large answer too."""
    count: int | None = None
    """Number of requests; None for as many as the time allows, at most 500."""
    min_count: int = 1
    """Minimum number of requests, regardless of the time that they take."""


class MeasurementFailed(HowfarError):
    """The server could not be measured. `distance` contains the results up to the failed step."""

    def __init__(self, distance: Distance) -> None:
        assert distance.failure is not None, "it failed"
        super().__init__(distance.failure.message, distance.failure.advice)
        self.distance = distance

    @property
    def is_refusal(self) -> bool:
        """Whether the server answered with a refusal."""
        failure = self.distance.failure
        return failure is not None and failure.code in ("auth", "server_error")


def measure(server: MeasuredServer, options: MeasurementOptions) -> Distance:
    """Measure the distance of a server. Raises MeasurementFailed, with the results so far, and EngineError."""
    began_s = time.monotonic()
    distance = empty_record(server)
    try:
        name, targets = find_addresses(server, options.timeout_ns)
    except NameFailed as error:
        failure = Failure(
            step="name", code="name", message=error.message, advice=error.advice, waited_ns=error.waited_ns
        )
        raise MeasurementFailed(distance.model_copy(update={"failure": failure})) from error
    failed_addresses: list[Address] = []
    for index, target in enumerate(targets):
        updated_name = _name_so_far(name, failed_addresses, index)
        with ping_session(server, target, options.timeout_ns) as session:
            opened = _open(session, server)
            if isinstance(opened, Opened):
                measurement = _Measurement(
                    server, options, session, began_s, distance.model_copy(update={"name": updated_name})
                )
                try:
                    return measurement.run(opened)
                except ConnectionLost as error:
                    failed_record = measurement.partial_result.model_copy(update={"failure": error.failure})
        if isinstance(opened, Opened):
            raise MeasurementFailed(_with_detected_protocol(failed_record, server, target, options.timeout_ns))
        if opened.step != "connect" or index == len(targets) - 1:
            failed_record = _with_failure(distance.model_copy(update={"name": updated_name}), server, opened)
            raise MeasurementFailed(_with_detected_protocol(failed_record, server, target, options.timeout_ns))
        failed_addresses.append(
            Address(
                address=target.host if isinstance(target, TcpTarget) else "",
                state="failed",
                waited_ns=opened.waited_ns,
                why=describe_failure(opened),
            )
        )
    raise AssertionError("a name has at least one address")


_SILENT_CODES = ("connect", "server_gone", "stalled")
"""Failure codes of a server that sent nothing or closed the connection."""


def _with_detected_protocol(failed: Distance, server: MeasuredServer, target: Target, timeout_ns: int) -> Distance:
    """The failed measurement; if the server has sent nothing, with a failure that names the protocol that the server speaks."""
    failure = failed.failure
    assert failure is not None, "it failed"
    if failure.step == "connect" or failure.code not in _SILENT_CODES or failed.first_request_ns is not None:
        return failed
    other = other_protocol(server, target, timeout_ns)
    if other is None:
        return failed
    other_failure = other.model_copy(update={"step": failure.step, "waited_ns": failure.waited_ns})
    return failed.model_copy(update={"failure": other_failure})


def empty_record(server: MeasuredServer, failure: Failure | None = None) -> Distance:
    """Make a record without results, for the beginning of a measurement, or with the failure of one that could not begin."""
    return Distance(
        target=server.url,
        notes=server.notes,
        began=datetime.now(UTC).isoformat(timespec="milliseconds"),
        product=None,
        place=server.place,
        failure=failure,
    )


def find_addresses(server: MeasuredServer, timeout_ns: int) -> tuple[Name | None, tuple[Target, ...]]:
    """Look up the server's name; returns the lookup, or None if none was needed, and the targets in the order in which clients try
    them. Raises NameFailed."""
    if server.socket is not None:
        return None, (UnixTarget(path=server.socket),)
    assert server.host is not None and server.port is not None, "a server has a socket, or a host and port"
    numeric_address = parse_numeric_address(server.host)
    if numeric_address is not None:
        return None, (TcpTarget(host=numeric_address, port=server.port),)
    took_ns, addresses = look_up_name(server.host, server.port, timeout_ns / 1e9)
    name = Name(took_ns=took_ns, addresses=tuple(Address(address=address, state="not_tried") for address in addresses))
    return name, tuple(TcpTarget(host=address, port=server.port) for address in addresses)


def _name_so_far(name: Name | None, failed_addresses: Sequence[Address], used_index: int) -> Name | None:
    if name is None:
        return None
    used_address = name.addresses[used_index].model_copy(update={"state": "used"})
    return name.model_copy(update={"addresses": (*failed_addresses, used_address, *name.addresses[used_index + 1 :])})


def _open(session: PingSession, server: MeasuredServer) -> Opened | NotOpened:
    try:
        return session.open()
    except EngineFailed as failed:
        # The engine could not use a file that the address names, such as a certificate.
        raise UsageError(failed.message, failed.advice) from failed


def describe_failure(failed: NotOpened) -> str:
    """Describe briefly why no connection to an address could be opened."""
    if failed.timed_out:
        return f"no answer in {failed.waited_ns / 1e9:.1f} s"
    return failed.failure.message.rpartition("failed: ")[2].partition(" (os error")[0].lower()


def _with_failure(distance: Distance, server: MeasuredServer, failed: NotOpened) -> Distance:
    message, advice = failed.failure.message, failed.failure.advice
    syns = None if failed.syn_retransmits is None else failed.syn_retransmits + 1
    if failed.step == "connect" and failed.timed_out and syns is not None:
        host, waited = server.place.removeprefix("at "), failed.waited_ns / 1e9
        message = f"{host} does not answer: {counted(syns, 'SYN')} in {waited:.1f} s, no refusal"
        advice = (
            "The host may be farther away than this limit: raise --timeout."
            if failed.waited_ns < _SYN_TIMEOUT_NS
            else "A closed port refuses at once: a firewall drops the packets, or the host is down. "
            "Allow this machine to reach that port, or correct the address."
        )
    failure = Failure(
        step=failed.step,
        code=failed.failure.code,
        message=message,
        advice=advice,
        waited_ns=failed.waited_ns,
        syn_count=syns,
    )
    return distance.model_copy(
        update={"failure": failure, "connection": summarise_connections([failed]) if failed.steps else None}
    )


@dataclass(frozen=True)
class _Samples:
    """Times of the requests and of the pings, each in chronological order."""

    query: list[int]
    ping: list[int]
    query_refusal: str | None
    ping_refusal: str | None
    last: Asked


@dataclass
class _Measurement:
    """The measurement of a server that has accepted the login."""

    server: MeasuredServer
    options: MeasurementOptions
    session: PingSession
    began: float
    partial_result: Distance

    @property
    def requests(self) -> Requests:
        return REQUESTS[self.server.service]

    def run(self, first: Opened) -> Distance:
        """Do the complete measurement. Raises ConnectionLost; `partial_result` then has the results so far."""
        connections = self._open_connections(first)
        last_connection = connections[-1]
        handshakes = [
            connection.handshake_rtt_ns for connection in connections if connection.handshake_rtt_ns is not None
        ]
        self._update(
            product=self._product(Identity(), last_connection),
            connection=summarise_connections(connections),
            encryption=self._encryption(last_connection),
            network_ns=min(handshakes) if handshakes else None,
        )
        first_answer = self.session.ask([self.requests.query], 1, _SECOND_NS)
        self._update(first_request_ns=first_answer.latencies_ns[0][0])
        check_answered(self.server, first_answer.refusals[0])
        identity = identify(self.server.service, [self._fetch_rows(words) for words in self.requests.identity])
        check_kind(self.server, identity)
        self._update(product=self._product(identity, last_connection))
        samples = self._send_requests()
        check_answered(self.server, samples.query_refusal)
        ping = (
            Latencies.from_samples(self.requests.ping_name, samples.ping, samples.ping_refusal)
            if samples.ping
            else None
        )
        self._update(
            path=path_facts(last_connection, locate_peer(last_connection), identity, samples.query, samples.ping),
            request=Latencies.from_samples(self.requests.query_name, samples.query),
            ping=ping,
            kernel_min_rtt_ns=samples.last.min_rtt_ns,
            retransmits=samples.last.retransmits,
        )
        if self.options.bandwidth:
            self._measure_bandwidth()
        return add_meaning(self.partial_result, self._find_socket_saving(self.partial_result, identity))

    def _update(self, **fields: object) -> None:
        self.partial_result = self.partial_result.model_copy(update=fields)

    def _open_connections(self, first: Opened) -> list[Opened]:
        """Open all connections over which medians are taken; `first` is already open. Raises ConnectionLost if another one fails."""
        connections = [first]
        while len(connections) < NEAR_CONNECTS and _duration_ns(first) < _NEAR_NS:
            attempt = self.session.open()
            if isinstance(attempt, NotOpened):
                raise ConnectionLost(make_failure(attempt))
            connections.append(attempt)
        return connections

    def _find_socket_saving(self, measured: Distance, identity: Identity) -> int | None:
        """Measure the saving of a Unix socket, if a server on this machine is reached over TCP and has a known socket. A dummy server
        answers, since the user has not requested a login over that socket."""
        port = self.server.port
        default_paths = (
            path for path in SERVICES[self.server.service].sockets if port == SERVICES[self.server.service].port
        )
        path = identity.socket or next((path for path in default_paths if _is_socket(path)), None)
        is_local = measured.path is not None and measured.path.kind in ("loopback", "this_machine")
        if not is_local or path is None or not _is_socket(path):
            return None
        return socket_saving_ns()

    def _fetch_rows(self, words: tuple[str, ...]) -> Rows:
        fetched = self.session.fetch(words)
        return fetched.rows if fetched.refusal is None else ()

    def _send_requests(self) -> _Samples:
        """Send requests, as many as `options` and the time allow."""
        query, min_count = self.requests.query, self.options.min_count
        count = self.options.count
        if count is None and min_count > _NEAR_ROUND.max_rounds * _NEAR_ROUND.requests:
            count = min_count
        if count is not None:
            answer = self.session.ask([query], count, _NO_LIMIT_NS)
            return _Samples(list(answer.latencies_ns[0]), [], answer.refusals[0], None, answer)
        # The first request was no estimate: a pooler may have opened a connection for it.
        request_ns = min(self.session.ask([query], _PROBE_COUNT, _SECOND_NS).latencies_ns[0])
        if request_ns * MAX_COUNT < 2 * _NEAR_BUDGET_NS:
            return self._send_rounds(_NEAR_ROUND, _NEAR_ROUND.max_rounds, _NEAR_BUDGET_NS)
        rounds_needed = math.ceil(min_count / _FAR_ROUND.requests)
        round_ns = request_ns * (_FAR_ROUND.requests + 1)
        remaining_ns = int((_MAX_SECONDS - (time.monotonic() - self.began)) * _SECOND_NS) - round_ns
        within_ns = min(
            max(_NEAR_BUDGET_NS, round_ns * math.ceil(_MIN_P95_COUNT / _FAR_ROUND.requests)),
            max(remaining_ns, request_ns),
        )
        if 2 * round_ns * rounds_needed > within_ns:
            return self._send_rounds(_FAR_ROUND, rounds_needed, _NO_LIMIT_NS)
        return self._send_rounds(_FAR_ROUND, _FAR_ROUND.max_rounds, within_ns)

    def _send_rounds(self, request_round: _RequestRound, max_rounds: int, within_ns: int) -> _Samples:
        query, ping = self.requests.query, ()
        sequence = [*[query] * request_round.before, ping, *[query] * request_round.after]
        answer = self.session.ask(sequence, max_rounds, within_ns)
        pings, ping_refusal = answer.latencies_ns[request_round.before], answer.refusals[request_round.before]
        queries = [*answer.latencies_ns[: request_round.before], *answer.latencies_ns[request_round.before + 1 :]]
        refusals = [*answer.refusals[: request_round.before], *answer.refusals[request_round.before + 1 :]]
        queries_in_order = [sample for samples in zip(*queries, strict=True) for sample in samples]
        return _Samples(queries_in_order, list(pings), next(filter(None, refusals), None), ping_refusal, answer)

    def _product(self, identity: Identity, opened: Opened) -> str | None:
        if identity.product is not None:
            return identity.product
        if opened.server_version:
            return product_name(self.server.service, opened.server_version)
        return None

    def _encryption(self, opened: Opened) -> Encryption | None:
        if opened.tls_version is None or opened.tls_cipher is None:
            return None
        return Encryption(
            version=opened.tls_version,
            cipher=opened.tls_cipher,
            handshake="resumed" if opened.tls_resumed else "full",
            verified=self.server.verified,
        )

    def _measure_bandwidth(self) -> None:
        """Measure one large answer. After a refusal or a lost connection, only this result is missing."""
        if self.requests.bulk is None:
            self._update(bandwidth_refusal="this server has no large answer without storing one first")
            return
        try:
            fetched = self.session.fetch(self.requests.bulk, rows=False)
        except ConnectionLost as error:
            self._update(bandwidth_refusal=error.failure.message)
            return
        if fetched.refusal is not None or fetched.bytes < BULK_BYTES:
            refusal = fetched.refusal or "the server gave less (max_allowed_packet?)"
            self._update(bandwidth_refusal=refusal)
            return
        transfer_ns = fetched.took_ns - fetched.first_byte_ns
        bandwidth = Bandwidth(bytes=fetched.bytes, took_ns=transfer_ns, waited_ns=fetched.first_byte_ns)
        self._update(bandwidth=bandwidth)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - Path refuses some texts of servers
    except (OSError, ValueError):
        return False


def _duration_ns(attempt: Opened | NotOpened) -> int:
    return sum(step.took_ns for step in attempt.steps)


def summarise_connections(attempts: Sequence[Opened | NotOpened]) -> NewConnection:
    """Summarise connections with the same steps by the median of each step, or a connection that could not be opened by its steps."""
    steps = []
    for position, step in enumerate(attempts[-1].steps):
        step_times_ns = [attempt.steps[position].took_ns for attempt in attempts if len(attempt.steps) > position]
        steps.append(
            StepTime(name=step.name, took_ns=round(statistics.median(step_times_ns)), round_trips=step.round_trips)
        )
    return NewConnection(
        count=sum(isinstance(attempt, Opened) for attempt in attempts),
        took_ns=round(statistics.median(_duration_ns(attempt) for attempt in attempts)),
        steps=tuple(steps),
        round_trips=sum(step.round_trips for step in attempts[-1].steps),
        first_ns=_duration_ns(attempts[0]),
    )
