"""`howfar bench`: what the instrument itself costs. `calibrate`: alone, against a server that does nothing; `engine`: beside another
load generator (`bench_engine.py`); `link`: what the link obtains, beside another emulator (`bench_link.py`)."""

from __future__ import annotations

from typing import get_args

import click
from rich.text import Text

from howfar.bench.calibration import FLOOR_BAR, Calibration, Floor, Limit, OverTransport, Request, Transport
from howfar.bench.calibration import calibrate as run_calibration
from howfar.cli.bench_engine import console, counter, cpu_list, engine, table
from howfar.cli.bench_link import link
from howfar.cli.screen import no_colour_option
from howfar.errors import UsageError
from howfar.stats.estimate import Estimate

TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
_LIMITS = {
    Limit.CLIENT: "the client",
    Limit.SERVER: "the null server",
    Limit.BOTH: "client and null server alike",
    Limit.MACHINE: "other programs on this machine",
    Limit.NEITHER: "neither: both slept now and then",
}


@click.group()
def bench() -> None:
    """Measure what the instrument itself costs."""


bench.add_command(engine)
bench.add_command(link)


@bench.command()
@click.option(
    "--transport",
    "transports",
    default=",".join(TRANSPORTS),
    show_default=True,
    help="Transports to measure, with commas between them.",
)
@click.option("--blocks", type=click.IntRange(1, 1000), default=8, show_default=True, help="From 6 on: with intervals.")
@click.option(
    "--seconds", type=click.FloatRange(0.05, 60), default=0.5, show_default=True, help="Length of one measurement."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@no_colour_option
def calibrate(transports: str, blocks: int, seconds: float, as_json: bool, no_colour: bool) -> None:
    """Run the engine against the built-in null server and print what no result of it on this machine can be below.

    Floor: the p50 of one connection, beside a bare send-and-receive loop of the same bytes. Ceiling: queries a second at
    64 connections, and who was the limit. Resolution: steps of clock and histogram. CPU of a query at 1, 64 and 512 connections.
    """
    request = Request(transports=_transports(transports), blocks=blocks, block_ns=round(seconds * 1e9))
    said = counter("block")
    found = run_calibration(request, lambda block: said(block, blocks))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
        return
    screen = console(no_colour)
    screen.print(Text(_heading(found)))
    headings = [over.transport for over in found.transports]
    screen.print(table(headings, [_rows(found, over) for over in found.transports]))
    for line in _verdicts(found):
        screen.print(Text(line))


def _transports(text: str) -> tuple[Transport, ...]:
    named = [name.strip() for name in text.split(",")]
    found = tuple(transport for transport in TRANSPORTS if transport in named)
    if len(found) != len(named):
        raise UsageError(f"--transport {text!r} names what is no transport", f"Name some of: {', '.join(TRANSPORTS)}.")
    return found


def _heading(found: Calibration) -> str:
    setting = found.setting
    return (
        f"howfar {setting.howfar} on {setting.kernel}: client on CPUs {cpu_list(setting.client_cpus)}, "
        f"null server on CPUs {cpu_list(setting.server_cpus)}, {setting.blocks} blocks of {setting.block_ns / 1e9:g} s"
    )


def _rows(found: Calibration, over: OverTransport) -> list[tuple[str, str]]:
    rows = [row for floor in over.floors for row in _floor(floor)]
    ceiling = over.ceiling
    rows.append((f"ceiling, {ceiling.connections} connections, queries/s", _figure(ceiling.queries_per_s, 0)))
    rows.append(("  busiest thread: client, null server", f"{ceiling.client_busy:.0%}, {ceiling.server_busy:.0%}"))
    for cost in over.cpu_per_query:
        name = f"client CPU a query, {cost.connections} connection{'s' if cost.connections > 1 else ''}, µs"
        rows.append((name, _figure(cost.client_us, 2)))
    clock = f"{found.clock.step_ns} ns, {found.clock.read_ns:.0f} ns"
    rows.append(("clock: step, price of a reading", clock))
    rows.append(("step of the histogram at the floor", f"{over.histogram_step_ns} ns"))
    return rows


def _floor(floor: Floor) -> list[tuple[str, str]]:
    where = {"together": "one CPU for both", "apart": "a CPU for each"}[floor.cpus]
    ratio = floor.engine_over_ping_pong
    return [
        (f"floor, {where}: ping-pong p50, µs", _figure(floor.ping_pong_p50_us, 2)),
        ("  engine p50, 1 connection, µs", _figure(floor.engine_p50_us, 2)),
        ("  engine over ping-pong", _share(ratio)),
    ]


def _figure(estimate: Estimate, digits: int) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:,.{digits}f}"
    return f"{estimate.value:,.{digits}f} [{estimate.low:,.{digits}f}, {estimate.high:,.{digits}f}]"


def _share(ratio: Estimate) -> str:
    def percent(value: float) -> str:
        return f"{(value - 1) * 100:+.1f} %"

    if ratio.low is None or ratio.high is None:
        return percent(ratio.value)
    return f"{percent(ratio.value)} [{percent(ratio.low)}, {percent(ratio.high)}]"


def _verdicts(found: Calibration) -> list[str]:
    lines = []
    for over in found.transports:
        within = all(floor.within_bar for floor in over.floors)
        floor = f"is {'at most' if within else 'more than'} {FLOOR_BAR - 1:.0%} over the ping-pong's"
        lines.append(
            f"Over {over.transport} the engine's p50 {floor}; the ceiling's limit was {_LIMITS[over.ceiling.limit]}."
        )
    if found.setting.blocks < 6:
        lines.append("Fewer than 6 blocks: no intervals, read nothing into small differences.")
    return lines
