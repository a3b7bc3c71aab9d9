"""Predictions of the fitted model at any settings. Start at `answer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from howfar.model.facts import TLS_BYTES, carried_bytes, wire_bytes
from howfar.model.queueing import Point, Station, ceiling, line_station, processor_stations, solve, solve_at
from howfar.model.resource import Resource
from howfar.stats.estimate import Part
from howfar.stats.resample import PositiveInterval


class WhatIfCompression(Part):
    algorithm: str
    ratio_to_client: float
    ratio_to_server: float
    client_byte_s: float
    server_byte_s: float


class WhatIfSettings(Part):
    """Settings at which the model is evaluated."""

    threads: int
    rtt_s: float
    rate_bps: float | None
    tls: bool
    connect_each: bool
    """A connect for every transaction, TLS handshake included."""
    compression: str
    """`off`, or an algorithm of `WhatIf.compression`."""


class WhatIfAnswer(Part):
    """The model's prediction for one setting."""

    tps: float
    tps_interval: PositiveInterval = None
    """From the blocks that the base is fitted to; it does not include the model's own error."""
    limits: str
    """The busiest station's name, or `latency` where none is near its ceiling."""
    cycle_s: float
    knee: float


class WhatIfWorked(Part):
    settings: WhatIfSettings
    answer: WhatIfAnswer


class WhatIf(Part):
    """The fitted demands of one measured point, from which `answer` computes other settings."""

    arm: str
    threads: int
    tps: float
    turns: float
    think_s: float
    """Time that is neither queueing nor a round trip. Negative: the time for which stations work on one transaction at once."""
    rtt_s: float
    rate_bps: float | None
    client_cpu_s: float
    server_cpu_s: float
    client_cpus: float
    server_cpus: float
    """Processors available to the load: those used by the link's emulator and other programs are subtracted."""
    shared_cpu: bool
    """Whether client and server share processors; `server_cpus` then counts those of both."""
    replies_bytes: tuple[float, ...]
    """Bytes of one transaction's messages as the protocol has them; `facts.py` adds compression, encryption and headers."""
    requests_bytes: tuple[float, ...]
    tls_record_bytes: int = TLS_BYTES
    """Bytes that TLS adds to each record; more if the base itself was measured over TLS 1.2."""
    tls_byte_s: float | None
    """CPU seconds per payload byte at each end. None, here and below: not measured in this run, so there is no prediction with it."""
    connect_turns: float | None
    """Round trips of a connect over plain TCP, for a connect per transaction, like the CPU times below. TLS adds to each."""
    connect_client_s: float | None
    connect_server_s: float | None
    tls_connect_turns: float | None
    tls_connect_client_s: float | None
    tls_connect_server_s: float | None
    compression: tuple[WhatIfCompression, ...]
    max_threads: int = Field(alias="threads_most")
    worked: tuple[WhatIfWorked, ...] = ()
    """A few settings with their answers; the first is the measured point itself."""


CLIENT_CPU, SERVER_CPU = Resource.CLIENT_CPU.value, Resource.SERVER_CPU.value
TO_CLIENT, TO_SERVER = Resource.LINK_TO_CLIENT.value, Resource.LINK_TO_SERVER.value
SHARED_CPU = "CPU of both"
LATENCY = Resource.LATENCY.value
BUFFER_BYTES = 16_384
"""Default `net_buffer_length` of both servers."""
LIMIT_UTILISATION = 0.9
"""Utilisation from which a station is called the limit; below it, more connections would give more throughput."""

_NO_COMPRESSION = WhatIfCompression(
    algorithm="off", ratio_to_client=1, ratio_to_server=1, client_byte_s=0, server_byte_s=0
)


@dataclass(frozen=True)
class ClosedNetwork:
    """The closed network of one base at one setting."""

    fixed_s: float
    """Time outside the stations, without the think time. Negative: stations work on one transaction at the same time."""
    think_s: float
    stations: tuple[Station, ...]

    @property
    def delay_s(self) -> float:
        """Time outside the stations. It has a lower bound, because a transaction takes at least as long as its longest part, even if
        all parts overlap."""
        demands = [station.demand_s for station in self.stations]
        return max(self.fixed_s + self.think_s, max(demands) - sum(demands))

    @property
    def ceiling(self) -> float:
        return ceiling(self.stations)

    @property
    def knee(self) -> float:
        """N*: the number of connections that would fill the busiest station if none ever waited; additional ones mostly wait."""
        return (self.delay_s + sum(station.demand_s for station in self.stations)) * self.ceiling

    def points(self, max_connections: int) -> list[Point]:
        return solve(self.delay_s, self.stations, max_connections)

    def point(self, connections: int) -> Point:
        return solve_at(self.delay_s, self.stations, connections)


def network(base: WhatIf, settings: WhatIfSettings) -> ClosedNetwork:
    """The queueing network of `base` at `settings`. Costs that were not measured count as 0; `is_known` tells whether there are
    any."""
    compression = next((c for c in base.compression if c.algorithm == settings.compression), _NO_COMPRESSION)
    compressed, tls, connect_each = settings.compression != "off", settings.tls, settings.connect_each
    record_bytes = base.tls_record_bytes if tls else 0
    replies = [
        carried_bytes(m, compression.ratio_to_client if compressed else None, record_bytes) for m in base.replies_bytes
    ]
    requests = [
        carried_bytes(m, compression.ratio_to_server if compressed else None, record_bytes) for m in base.requests_bytes
    ]
    plain_bytes, carried_total = sum(base.replies_bytes) + sum(base.requests_bytes), sum(replies) + sum(requests)
    round_trips, client_s, server_s = base.turns, base.client_cpu_s, base.server_cpu_s
    client_s += plain_bytes * compression.client_byte_s + (carried_total * (base.tls_byte_s or 0.0) if tls else 0.0)
    server_s += plain_bytes * compression.server_byte_s + (carried_total * (base.tls_byte_s or 0.0) if tls else 0.0)
    if connect_each:
        round_trips += (base.connect_turns or 0.0) + ((base.tls_connect_turns or 0.0) if tls else 0.0)
        client_s += (base.connect_client_s or 0.0) + ((base.tls_connect_client_s or 0.0) if tls else 0.0)
        server_s += (base.connect_server_s or 0.0) + ((base.tls_connect_server_s or 0.0) if tls else 0.0)
    stations, delay_s = _cpu_stations(base, max(client_s, 0.0), max(server_s, 0.0))
    if settings.rate_bps is not None:
        for name, messages in ((TO_CLIENT, replies), (TO_SERVER, requests)):
            stations.append(line_station(name, [wire_bytes(m) for m in messages], settings.rate_bps))
        delay_s -= _overlap_s(base, replies, max(server_s, 0.0), settings.rate_bps)
    return ClosedNetwork(delay_s + round_trips * settings.rtt_s, base.think_s, tuple(stations))


def is_known(base: WhatIf, tls: bool, connect_each: bool) -> bool:
    """Whether the run measured the costs of TLS and of a connect per transaction, as far as they are asked for."""
    costs: list[float | None] = [base.tls_byte_s] if tls else []
    if connect_each:
        costs += [base.connect_turns, base.connect_client_s, base.connect_server_s]
        if tls:
            costs += [base.tls_connect_turns, base.tls_connect_client_s, base.tls_connect_server_s]
    return None not in costs


def _overlap_s(base: WhatIf, replies: Sequence[float], server_s: float, rate_bps: float) -> float:
    """Time saved by overlap: a server sends a long reply in pieces while it continues to read, so link and server work at the same
    time on all but the first piece."""
    total = sum(base.replies_bytes)
    saved = 0.0
    for message, carried_size in zip(base.replies_bytes, replies, strict=True):
        if message > BUFFER_BYTES:
            overlap_s = min(8 * wire_bytes(carried_size) / rate_bps, server_s * message / total)
            saved += (1 - BUFFER_BYTES / message) * overlap_s
    return saved


def _cpu_stations(base: WhatIf, client_s: float, server_s: float) -> tuple[list[Station], float]:
    visits = max(base.turns, 1.0)
    if base.shared_cpu:
        both, delay_s = processor_stations(SHARED_CPU, 2 * visits, client_s + server_s, base.server_cpus)
        return [both], delay_s
    client, client_delay_s = processor_stations(CLIENT_CPU, visits, client_s, base.client_cpus)
    server, server_delay_s = processor_stations(SERVER_CPU, visits, server_s, base.server_cpus)
    return [client, server], client_delay_s + server_delay_s


def answer(base: WhatIf, settings: WhatIfSettings) -> WhatIfAnswer:
    """Predict throughput, its limit, the cycle and the knee at `settings`."""
    solved_network = network(base, settings)
    point = solved_network.point(settings.threads)
    busiest = max(solved_network.stations, key=lambda station: point.utilisation[station.name])
    return WhatIfAnswer(
        tps=point.throughput,
        limits=busiest.name if point.utilisation[busiest.name] >= LIMIT_UTILISATION else LATENCY,
        cycle_s=point.cycle_s,
        knee=solved_network.knee,
    )
