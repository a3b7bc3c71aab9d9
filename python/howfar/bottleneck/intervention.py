"""What a laboratory can change so that throughput shows whether a limit is the limit, and by how much it then moves. Pure.

A rate and an RTT are changed themselves. A processor is not at hand in another speed: what is changed instead rules out another
limit, and says which. Expectations are simple on purpose: one resource in proportion, up to the next one that is full.
"""

from __future__ import annotations

from typing import Any

from howfar.analysis.findings import Intervention, Limit, Resource
from howfar.analysis.link_facts import used_share
from howfar.analysis.summary import CellSummary, Summary
from howfar.bottleneck.counterfactual import FASTER
from howfar.bottleneck.cycle import ROUND_TRIPS, WIRE, part_us
from howfar.store.records import FactorValue
from howfar.units import format_duration_ns, format_rate_bps

_LINKS = frozenset({Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER})
_CPUS = frozenset(
    {Resource.SERVER_CPU, Resource.CLIENT_CPU, Resource.FORWARDER_CPU, Resource.INSTRUMENT_CPU, Resource.ONE_THREAD}
)
_FEWEST_TO_HALVE = 8
"""Connections. Half of fewer may leave a CPU idle that all of them filled."""
_TELLS_USED = 1 / FASTER
"""Of a link. Used less, it could not give `FASTER` times even if nothing else were full: a faster one would prove nothing."""
_LINK_RULED_OUT = "the link"
_SHARED_RULED_OUT = "a limit that connections share"
_OWN_RULED_OUT = "a limit of each connection's own"

_EACH_FOR_ITSELF = frozenset({Resource.LATENCY, Resource.RECEIVE_WINDOW, Resource.SEND_BUFFER, Resource.LOSS})
"""What holds back each connection by itself: half as many carry half as much."""
_WHY_NOT = {
    Resource.COMMIT: "how many transactions share one durable write cannot be foreseen",
    Resource.ACKNOWLEDGEMENT: "the replica is nearer in other cells of the plan, or in none",
    Resource.ERRORS: "transactions fail",
    Resource.INVALID: "the figures themselves are not valid",
    Resource.NOT_ESTABLISHED: "no limit was established",
}


def intervention(cell: CellSummary, limit: Limit, summary: Summary) -> Intervention | str:
    """What to change on an arm; words where this laboratory can change nothing that would tell."""
    factors, resource = cell.factors, limit.resource
    if resource in _LINKS and "rate_bps" in factors:
        return _made(cell, limit, _faster(factors), min(FASTER, _next_ceiling(cell, summary)), 1.0)
    if resource is Resource.LATENCY and "rate_bps" in factors and _wire_first(cell):
        return _made(cell, limit, _faster(factors), min(_at_the_faster(cell), _next_ceiling(cell, summary)), 1.0)
    if resource is Resource.LATENCY and int(factors.get("rtt_ns", 0)) > 0:
        return _made(cell, limit, _nearer(factors), min(_half_the_rtt(cell), _next_ceiling(cell, summary)), 1.0)
    threads = int(factors.get("threads", 1))
    if resource in _CPUS | {Resource.LOCK} and threads >= _FEWEST_TO_HALVE:
        return _made(cell, limit, _fewer(factors), 1.0, 0.5, _OWN_RULED_OUT)
    if resource in _EACH_FOR_ITSELF and threads > 1:
        return _made(cell, limit, _fewer(factors), 0.5, 1.0, _SHARED_RULED_OUT)
    if resource in _CPUS and "rate_bps" in factors:
        used = used_share(cell)
        if used is not None and used >= _TELLS_USED:
            return _made(cell, limit, _faster(factors), 1.0, FASTER, _LINK_RULED_OUT)
        return "too few connections to halve, and the link is used too little for its rate to tell"
    return _WHY_NOT.get(resource, "nothing that this laboratory can change alone would tell")


def _made(
    cell: CellSummary,
    limit: Limit,
    change: tuple[str, dict[str, FactorValue]],
    predicted: float,
    otherwise: float,
    rules_out: str = "",
) -> Intervention:
    changed, factors = change
    return Intervention(
        arm=cell.arm,
        resource=limit.resource,
        changed=changed,
        factors=factors,
        predicted=predicted,
        otherwise=otherwise,
        rules_out=rules_out,
    )


def _faster(factors: dict[str, FactorValue]) -> tuple[str, dict[str, FactorValue]]:
    rate_bps = int(factors["rate_bps"])
    faster_bps = int(rate_bps * FASTER)
    return f"rate {format_rate_bps(rate_bps)} -> {format_rate_bps(faster_bps)}", factors | {"rate_bps": faster_bps}


def _nearer(factors: dict[str, FactorValue]) -> tuple[str, dict[str, FactorValue]]:
    rtt_ns = int(factors["rtt_ns"])
    return f"RTT {format_duration_ns(rtt_ns)} -> {format_duration_ns(rtt_ns // 2)}", factors | {"rtt_ns": rtt_ns // 2}


def _fewer(factors: dict[str, FactorValue]) -> tuple[str, dict[str, FactorValue]]:
    threads = int(factors["threads"])
    return f"{threads} -> {threads // 2} connections", factors | {"threads": threads // 2}


def _wire_first(cell: CellSummary) -> bool:
    """More of a connection's round is bytes on the wire than round trips."""
    return cell.cycle is not None and part_us(cell.cycle, WIRE) > part_us(cell.cycle, ROUND_TRIPS)


def _at_the_faster(cell: CellSummary) -> float:
    """Times the throughput when the bytes of a round cross `FASTER` times as fast."""
    assert cell.cycle is not None, "only of a cell whose cycle is known"
    return 1 / (1 - part_us(cell.cycle, WIRE) / cell.cycle.us * (1 - 1 / FASTER))


def _half_the_rtt(cell: CellSummary) -> float:
    """What is left of a cycle when its round trips take half as long: of what was asked, for the hosts' own part stays."""
    threads = int(cell.factors.get("threads", 1))
    cycle_ns = threads * 1e9 * cell.queries_per_txn / cell.qps.value
    waits_ns = min(int(cell.factors["rtt_ns"]), cell.rest_rtt_ns or 0.0) * cell.turns_per_txn
    return 1 / (1 - min(waits_ns / cycle_ns, 1.0) / 2)


def _next_ceiling(cell: CellSummary, summary: Summary) -> float:
    """How far throughput can grow before a host's processors are full. The emulator's threads run on those of both."""
    cpu, environment = cell.cpu_us_per_query, summary.environment
    hosts = [
        (cpu.server.value, _count(environment.get("server_cpus"))),
        (cpu.client.value, _count(environment.get("client_cpus"))),
    ]
    emulator_us = cpu.link.value if cpu.link else 0.0
    every = sum(cpus for _, cpus in hosts)
    used = [(us / cpus + emulator_us / every) * cell.qps.value / 1e6 for us, cpus in hosts]
    return max(1 / max(used), 1.0) if max(used) > 0 else FASTER


def _count(cpus: Any) -> int:
    return max(len(cpus), 1) if isinstance(cpus, list | tuple) else 1
