"""A program over the laboratory's link: let the effects loose, play the script, and say afterwards what the link really was."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from howfar.cli.receipt_file import code_with_receipt
from howfar.errors import HowfarError, LabError
from howfar.lab.environment import LoadWatch
from howfar.lab.laboratory import Lab
from howfar.lab.link import WAYS, Link, LinkAsked
from howfar.lab.link.script import Player, Script
from howfar.lab.link_receipt import (
    STRICT,
    counter_violations,
    effect_warnings,
    link_receipt,
    link_violations,
    unproved,
)
from howfar.plan.tolerance import rtt_tolerance_ns
from howfar.units import format_duration_ns, format_rate_bps, format_size_bytes


def run_over_link(laboratory: Lab, link: Link, script: Script, run: Callable[[], int], receipt: Path | None) -> int:
    """Give back the exit code of `run`. What was not as asked is said on stderr; all of it is written to `receipt`."""
    laboratory.size_buffers(max(asked.bdp_bytes for asked in script.links()))
    at_rest = link.at_rest() if receipt else ()
    from_idle = link.ping_from_idle() if receipt else None
    watch = LoadWatch()
    link.arm()
    link.counters(reset=True)
    start_ns = time.monotonic_ns()
    with Player(script, link.change) as player:
        code = run()
    elapsed_ns = time.monotonic_ns() - start_ns
    machine = watch.finish()
    try:
        stats = link.counters()
    except HowfarError as error:
        raise LabError(f"the link ended before CMD did: {error.message}", error.advice) from error
    # A script that changed the RTT is judged by the strictest of its links.
    judged = min(script.links(), key=lambda asked: asked.rtt_ns)
    violations = (*script_violations(player), *counter_violations(judged, stats, STRICT))
    if at_rest:
        violations = link_violations(link, at_rest, None, STRICT) + violations
    warnings = () if script.changes else effect_warnings(link.asked, stats)
    for sentence in violations:
        click.echo(f"howfar: not what was asked: {sentence}", err=True)
    for sentence in warnings:
        click.echo(f"howfar: {sentence}", err=True)
    if receipt is None:
        return code
    unknown = unproved(stats)
    facts: dict[str, Any] = {"environment": laboratory.environment(), "server": laboratory.server()}
    facts["link"] = {
        **link_receipt(link, at_rest, stats, laboratory.tcp(), changed=bool(script.changes)),
        "rtt_from_idle_ns": None if from_idle is None else from_idle.model_dump(exclude={"event"}),
        "elapsed_ns": elapsed_ns,
        "script_ns": [{"asked": asked, "in_force": done} for asked, done in player.played],
        "machine": machine.model_dump(),
        "verdict": {
            "valid": None if unknown and not violations else not violations,
            "violations": list(violations),
            "warnings": [*warnings, *unknown, *laboratory.warnings],
        },
    }
    return code_with_receipt(code, receipt, facts)


def script_violations(player: Player) -> tuple[str, ...]:
    """A script that stopped half-way: from then on the link was not what was asked."""
    if player.failure is None:
        return ()
    at_ns, _ = player.script.changes[len(player.played)]
    return (f"the link could not be changed at {format_duration_ns(at_ns)}, nor after that: {player.failure.message}",)


def describe_link(link: Link) -> str:
    """`link 1gbit, RTT 10ms (measured 10.01ms at rest), queue 1.192MiB, jitter, loss`."""
    asked = link.asked
    rates = [_rate(asked.mean_rate_bps(name)) for name in WAYS]
    queues = [format_size_bytes(link.queue_bytes(name)) for name in WAYS]
    if link.backend == "none":
        return f"a bare cable, RTT measured {format_duration_ns(link.calibration['rtt_p50_ns'])} at rest"
    parts = [
        f"link {_both(rates)}",
        f"RTT {format_duration_ns(asked.rtt_ns)} (measured {_measured_rtt(link)} at rest)",
        f"queue {_both(queues)}",
        *_effects(asked),
    ]
    if link.backend != "packet":
        parts.append(f"back-end {link.backend}")
    return ", ".join(parts)


def _measured_rtt(link: Link) -> str:
    """With what the ping's own bytes take of it, where that shows."""
    words = format_duration_ns(link.calibration["rtt_p50_ns"])
    own_ns = link.rest_rtt_ns(link.asked) - link.asked.rtt_ns
    if own_ns > rtt_tolerance_ns(link.asked.rtt_ns):
        return f"{words}, {format_duration_ns(own_ns)} of it the ping's own bytes,"
    return words


def _rate(rate_bps: int | None) -> str:
    return "unshaped" if rate_bps is None else format_rate_bps(rate_bps)


def _both(values: list[str]) -> str:
    """One value, or both where they differ."""
    return values[0] if values[0] == values[1] else f"{values[0]} to server, {values[1]} to client"


def _effects(asked: LinkAsked) -> list[str]:
    """The names of those that are on, either way."""
    ways = [asked.way(name) for name in WAYS]
    on = {
        "rate trace": any(way.rate_trace for way in ways),
        "jitter": any(way.jitter for way in ways),
        "reordering": any(way.reorder for way in ways),
        "loss": any(way.loss for way in ways),
        "duplication": any(way.duplicate for way in ways),
        "corruption": any(way.corrupt for way in ways),
        "outages": any(way.outages for way in ways),
    }
    return [name for name, is_on in on.items() if is_on]
