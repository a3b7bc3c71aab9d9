"""Fit of the model to a measured curve: demands from its saturated point, and the time without queueing from its low end.

Processor time is read from counters at the highest throughput (the utilisation law: demand = busy time / transactions), where work
comes in batches as it does under load. The time that a single connection takes beyond these demands, whatever the reason, becomes
`think_s`, so that the model meets the low end of its own curve. Neither the highest throughput nor anything in between is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from howfar.experiments.network.factors import COMPRESSION
from howfar.experiments.network.what_if import ClosedNetwork, WhatIf, WhatIfCompression, WhatIfSettings, network
from howfar.model.facts import HEADER_BYTES, TLS_12_BYTES, TLS_BYTES, ArmFacts, EndFacts, reply_sizes, request_sizes
from howfar.model.queueing import nearest_number, point_at
from howfar.plan.factor import Level
from howfar.plan.factors import TLS
from howfar.plan.workload import Workload
from howfar.stats.estimate import Part
from howfar.stats.resample import PositiveInterval
from howfar.stats.trials import group_by_other_factors


class ModelPoint(Part):
    threads: int
    tps: float
    tps_interval: PositiveInterval = None
    low: float
    high: float
    """Limits of the band, which is a convention and not a confidence interval."""


class Prediction(Part):
    """A curve as the model predicts it, and its errors against the measurement."""

    basis: str
    """Inputs in words: `from tcp at 1 and 64 connections, 43.3 kB of answers per transaction`."""
    points: tuple[ModelPoint, ...]
    ceiling_tps: float
    """Maximum transactions per second through the busiest station, with any number of connections."""
    plateau_tps: float
    """Throughput at the connections at which the curve was fastest."""
    plateau_tps_interval: PositiveInterval = None
    knee: float
    """N*: number of connections that would fill the busiest station if none of them ever waited."""
    knee_interval: PositiveInterval = None
    extrapolated: bool = False
    """Whether `knee` lies outside the numbers of connections that were measured."""
    tested: int
    """Measured points that the model was compared with."""
    by_construction: int
    """Measured points that test nothing and are left out of the errors: those that the model was fitted to, and those of a full
    link, whose rate is given."""
    mean_error: float | None
    """Mean absolute relative error over the tested points; None: there are none."""
    worst_error: float | None
    plateau_error: float | None
    """Signed error of `plateau_tps` against the largest measured throughput of the curve. None: it is right by construction."""


MAX_THREADS = 2048
FULL_CPU = 0.95
"""A host's processors count as full if they are busy for this share of the time."""
_BISECTION_STEPS = 60


def settings_of(facts: ArmFacts) -> WhatIfSettings:
    """The settings at which the arm was measured. `connect_each` is False even if it connects each time, because the measured demands
    include its connects."""
    return WhatIfSettings(
        threads=facts.threads,
        rtt_s=facts.rtt_s,
        rate_bps=facts.rate_bps,
        tls=TLS.level_in(facts.arm.factors) != "off",
        connect_each=False,
        compression=COMPRESSION.level_in(facts.arm.factors),
    )


def fit(curve: Sequence[ArmFacts], workload: Workload | None) -> WhatIf:
    """Fit the base to cells that differ only in connections. At least one is needed; a single cell is both the low and the top end."""
    low = min(curve, key=lambda facts: facts.threads)
    top = max(curve, key=lambda facts: facts.tps.value)
    client_cpus, server_cpus = available_cpus(top)
    base = WhatIf(
        arm=top.arm.name,
        threads=top.threads,
        tps=top.tps.value,
        turns=top.round_trips,
        think_s=0.0,
        rtt_s=top.rtt_s,
        rate_bps=top.rate_bps,
        client_cpu_s=top.client.cpu_s,
        server_cpu_s=top.server.cpu_s,
        client_cpus=client_cpus,
        server_cpus=server_cpus,
        shared_cpu=top.shared_cpu,
        replies_bytes=reply_sizes(workload, low.round_trips, low.bytes_to_client),
        requests_bytes=request_sizes(low.round_trips, low.bytes_to_server),
        tls_record_bytes=TLS_12_BYTES if TLS.level_in(top.arm.factors).startswith("1.2") else TLS_BYTES,
        tls_byte_s=None,
        connect_turns=None,
        connect_client_s=None,
        connect_server_s=None,
        tls_connect_turns=None,
        tls_connect_client_s=None,
        tls_connect_server_s=None,
        compression=_measured_compression(top),
        max_threads=MAX_THREADS,
    )
    return base.model_copy(update={"think_s": _think_s(base, low)})


def _think_s(base: WhatIf, low: ArmFacts) -> float:
    """The think time at which the model has the low end's throughput. By bisection, because the low end may have several
    connections."""
    network_at_low = network(base, settings_of(low))

    def is_too_slow(think_s: float) -> bool:
        candidate = replace(network_at_low, think_s=think_s)
        return candidate.point(low.threads).throughput < low.tps.value

    shortest, longest = -low.cycle_s, low.cycle_s
    if is_too_slow(0.0) and low.threads > 1:
        return 0.0  # a full station hides all other times
    for _ in range(_BISECTION_STEPS):
        middle = (shortest + longest) / 2
        shortest, longest = (shortest, middle) if is_too_slow(middle) else (middle, longest)
    return (shortest + longest) / 2


def _measured_compression(facts: ArmFacts) -> tuple[WhatIfCompression, ...]:
    """The compression of a curve that was measured with it: only its effect on bytes, because the demands include its CPU time."""
    algorithm = COMPRESSION.level_in(facts.arm.factors)
    if algorithm == "off":
        return ()
    carried = carried_payload(facts)
    to_client, to_server = carried if carried else (facts.bytes_to_client, facts.bytes_to_server)
    return (
        WhatIfCompression(
            algorithm=algorithm,
            ratio_to_client=to_client / facts.bytes_to_client,
            ratio_to_server=to_server / facts.bytes_to_server,
            client_byte_s=0.0,
            server_byte_s=0.0,
        ),
    )


def carried_payload(facts: ArmFacts) -> tuple[float, float] | None:
    """Bytes that TCP carried per transaction, to the client and to the server, by the link's counters. None: no link.

    Segments without payload (acknowledgements) count as headers.
    """
    if facts.wire_to_client is None or facts.wire_to_server is None:
        return None
    if facts.segments_to_client is None or facts.segments_to_server is None:
        return None
    return (
        max(facts.wire_to_client - HEADER_BYTES * facts.segments_to_client, 1.0),
        max(facts.wire_to_server - HEADER_BYTES * facts.segments_to_server, 1.0),
    )


def available_cpus(facts: ArmFacts) -> tuple[float, float]:
    """Processors available to the load at the client and at the server. If both share them, the same number twice."""
    if not facts.shared_cpu:
        return _available_cpus(facts, facts.client), _available_cpus(facts, facts.server)
    shared_end = replace(facts.server, cpu_s=facts.client.cpu_s + facts.server.cpu_s, wait_s=facts.runnable_s)
    return (_available_cpus(facts, shared_end),) * 2


def _available_cpus(facts: ArmFacts, end: EndFacts) -> float:
    """Number of processors available to the load at an end. If they were short, as many as it used; otherwise at least half of
    them, because other programs may only have used what the load did not need."""
    used = min(end.cpu_s * facts.tps.value, end.cpus)
    free = end.cpus - end.emulator_cpus - end.other_cpus
    return used if _was_cpu_short(facts, end) else max(free, end.cpus / 2, used)


def _was_cpu_short(facts: ArmFacts, end: EndFacts) -> bool:
    """Whether processors were the only thing that the end's work waited for: they were always busy, each had on average some of this
    work running or queued (Little's law), the work waited longer than it ran, and no link was full."""
    if end.busy is None or end.busy < FULL_CPU or facts.is_link_full:
        return False
    ready = (end.cpu_s + end.wait_s) * facts.tps.value
    return end.wait_s > end.cpu_s > 0 and ready >= end.cpus


def nearest_by_rate(rate_bps: float | None, others: Sequence[ArmFacts]) -> ArmFacts | None:
    """The arm with the nearest rate of the link, by ratio. None: no arm over a link, or no rate given."""
    with_rate = [other for other in others if other.rate_bps]
    if rate_bps is None or not with_rate:
        return None
    return min(with_rate, key=lambda other: abs(log(other.rate_bps or 1.0) - log(rate_bps)))


@dataclass(frozen=True)
class Series:
    """Cells that differ only in the number of connections, ascending."""

    factors: dict[str, Level]
    arms: tuple[ArmFacts, ...]

    @property
    def name(self) -> str:
        """Name of the arms without the number of connections."""
        parts = [word for word in self.arms[0].arm.name.split(", ") if not word.endswith((" thread", " threads"))]
        return ", ".join(parts)

    @property
    def top(self) -> ArmFacts:
        return max(self.arms, key=lambda facts: facts.tps.value)

    @property
    def is_local(self) -> bool:
        return self.arms[0].is_local

    def factors_without(self, *names: str) -> dict[str, Level]:
        """The factors except these."""
        return {name: level for name, level in self.factors.items() if name not in names}


def series(facts: Sequence[ArmFacts]) -> tuple[Series, ...]:
    """Group arms into series, in the order of their first arms in the plan."""
    return tuple(
        Series(
            {name: level for name, level in arms[0].arm.factors.items() if name != "threads"},
            tuple(sorted(arms, key=lambda arm: arm.threads)),
        )
        for arms in group_by_other_factors(facts, lambda arm_facts: arm_facts.arm.factors, "threads")
    )


SOFTNESS = 1.5
"""Softness k of the band's lower edge, 1 / ((1/a)^k + (1/b)^k)^(1/k) over the two bounds a and b. With k = 1 every transaction
waits behind all others; as k grows without limit, none ever waits. A convention between the two, fitted to nothing."""


def predict(
    bases: Mapping[int, WhatIf], settings: WhatIfSettings, curve: Sequence[ArmFacts], basis: str, is_own_curve: bool
) -> Prediction:
    """Predict the measured `curve` at `settings`. `bases`: by number of connections; each is used for the numbers nearest to its own.
    `is_own_curve`: whether the model was fitted to this curve."""
    networks = {number: network(base, settings) for number, base in bases.items()}
    threads, top = sorted(facts.threads for facts in curve), max(curve, key=lambda facts: facts.tps.value)
    grid = _grid(threads[-1], threads)
    base_of = {number: nearest_number(number, networks) for number in grid}
    solved = {
        base: networks[base].points(max(number for number, nearest in base_of.items() if nearest == base))
        for base in set(base_of.values())
    }
    tps = {number: point_at(solved[base], number).throughput for number, base in base_of.items()}
    compared = [
        facts
        for facts in curve
        if not facts.is_link_full and not (is_own_curve and _is_fitted_point(facts, threads[0], top))
    ]
    errors = [tps[facts.threads] / facts.tps.value - 1 for facts in compared]
    top_network = networks[base_of[top.threads]]
    return Prediction(
        basis=basis,
        points=tuple(_point(networks[base_of[number]], number, tps[number]) for number in grid),
        ceiling_tps=top_network.ceiling,
        plateau_tps=tps[top.threads],
        knee=top_network.knee,
        extrapolated=not threads[0] <= top_network.knee <= threads[-1],
        tested=len(compared),
        by_construction=len(curve) - len(compared),
        mean_error=sum(map(abs, errors)) / len(errors) if errors else None,
        worst_error=max(map(abs, errors)) if errors else None,
        plateau_error=tps[top.threads] / top.tps.value - 1 if top in compared else None,
    )


def _is_fitted_point(facts: ArmFacts, min_threads: int, top: ArmFacts) -> bool:
    """Whether the model meets this point of its own curve by construction: the low end, or the top if processors were short there."""
    return facts.threads == min_threads or (
        facts is top and any(_was_cpu_short(facts, end) for end in (facts.client, facts.server))
    )


def _point(fitted_network: ClosedNetwork, threads: int, tps: float) -> ModelPoint:
    low = min(_soft_lower_bound(fitted_network, threads), tps)
    high = min(threads / _unqueued_s(fitted_network), fitted_network.ceiling)
    return ModelPoint(threads=threads, tps=tps, low=low, high=max(high, tps))


def _unqueued_s(fitted_network: ClosedNetwork) -> float:
    return fitted_network.delay_s + sum(station.demand_s for station in fitted_network.stations)


def _soft_lower_bound(fitted_network: ClosedNetwork, threads: int) -> float:
    waits = (_unqueued_s(fitted_network) / threads) ** SOFTNESS + (1 / fitted_network.ceiling) ** SOFTNESS
    return float(waits ** (-1 / SOFTNESS))


def _grid(max_threads: int, measured: Sequence[int]) -> list[int]:
    """Numbers of connections at which the curve is drawn: in steps of a factor of 1.25, and every measured number."""
    grid, number = set(measured), 1.0
    while number <= max_threads:
        grid.add(round(number))
        number *= 1.25
    return sorted(number for number in grid if number <= max_threads)


def bases_for_link(
    local: Sequence[ArmFacts], target: ArmFacts, others: Sequence[ArmFacts], workload: Workload | None
) -> dict[int, WhatIf]:
    """Bases for `target`'s link, from the cells of the same curve on loopback: one for each number of connections, because the cost
    of a transaction depends on that number.

    In every round trip, a single connection on loopback waits for kernels and wake-ups. The link's unloaded round trip, measured by a
    ping, includes the same waits. They are subtracted as far as the calibration measured them, so that they do not count twice.

    A host's packets to a link take a different path through the kernel than those to itself. So the CPU time of a transaction is
    taken from `others`, arms over other links of this run with the same number of connections: from the one with the nearest rate.
    So are the processors that the emulator leaves to the hosts. The emulator's use is a share of time, not a cost per packet: while
    anything is on the link, its threads sleep briefly or spin until the next packet is due, and their use hardly depends on the
    throughput. `others` are arms that do not fill their links, because a full link delivers an answer in pieces and wakes both ends
    for each. If there is no such arm, the load is assumed to have the processors that it had on loopback minus the emulator's use
    over the target.
    """
    base, single = fit(local, workload), min(local, key=lambda facts: facts.threads)
    single_base = base.model_copy(update={"client_cpu_s": single.client.cpu_s, "server_cpu_s": single.server.cpu_s})
    double_counted_s = (
        base.turns * max(min(single.idle_s / single.round_trips, target.hosts_rtt_s), 0.0)
        if single.threads == 1
        else 0.0
    )
    base = base.model_copy(
        update={"think_s": _think_s(single_base, single) - double_counted_s, "shared_cpu": target.shared_cpu}
    )
    bases = {}
    for facts in local:
        nearest_arm = nearest_by_rate(target.rate_bps, [other for other in others if other.threads == facts.threads])
        client_cpus, server_cpus = (
            available_cpus(nearest_arm)
            if nearest_arm
            else (
                _without_emulator(base.client_cpus, target.client.emulator_cpus),
                _without_emulator(base.server_cpus, target.server.emulator_cpus),
            )
        )
        bases[facts.threads] = base.model_copy(
            update={
                "client_cpu_s": (nearest_arm or facts).client.cpu_s,
                "server_cpu_s": (nearest_arm or facts).server.cpu_s,
                "client_cpus": client_cpus,
                "server_cpus": server_cpus,
            }
        )
    return bases


def _without_emulator(cpus: float, emulator: float) -> float:
    return max(cpus - emulator, cpus / 10)
