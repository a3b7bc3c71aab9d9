"""`howfar bench link`: what was asked of the link and what was obtained, beside a peer. The measuring is in `bench/links/bench.py`."""

from __future__ import annotations

import sys

import click

from howfar.bench.links.figures import FULL_TIMES, QUICK, QUICK_TIMES, RATES_GBIT, RTTS_MS, grid
from howfar.cli.bench_screen import console, counter
from howfar.cli.screen import no_colour_option
from howfar.errors import UsageError
from howfar.lab.link.backends import DEFAULT, SHAPING
from howfar.plan.quantities import RateBps, RttNs, read_option

PEERS = ("toxiproxy", "mahimahi", "tbf", "veth")
RTTS = ",".join(f"{rtt:g}ms" for rtt in RTTS_MS)
RATES = ",".join(f"{rate:g}gbit" for rate in RATES_GBIT)
COMMAND = "howfar bench link"


@click.command()
@click.option("--against", type=click.Choice(PEERS), help="Measure this beside our link.")
@click.option("--build-peer", is_flag=True, help="Have Go fetch and build toxiproxy into howfar's cache first.")
@click.option("--rtt", "rtts", help=f"Round trip times, with commas between.  [default: {RTTS}]")
@click.option("--rate", "rates", help=f"Rates, with commas between.  [default: {RATES}]")
@click.option("--quick", is_flag=True, help="Two links, short measurements: half a minute.")
@click.option(
    "--link-backend",
    "backend",
    type=click.Choice(SHAPING),
    default=DEFAULT,
    show_default=True,
    help="What makes our link.",
)
@click.option("--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Median and best of so many.")
@click.option(
    "--hogs", type=click.IntRange(0, 64), default=2, show_default=True, help="CPU hogs beside which lateness is taken."
)
@click.option(
    "--extras/--no-extras", default=True, help="Also without a rate, redis, beside CPU hogs, loss and jitter."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@no_colour_option
def link(
    against: str | None,
    build_peer: bool,
    rtts: str | None,
    rates: str | None,
    quick: bool,
    backend: str,
    runs: int,
    hogs: int,
    extras: bool,
    as_json: bool,
    no_colour: bool,
) -> None:
    """Ask the link for round trip times and rates, and print what was obtained, what it cost, and which bars are missed.

    Probes between the two hosts of a laboratory: RTT at rest, a bulk transfer, the emulator's CPU, how late packets left, drops
    that nobody asked for. With --against the same over another program. A full grid takes some minutes a run.
    """
    from howfar.bench.links.bench import Request, measure_links
    from howfar.lab import sandbox

    links = (
        QUICK
        if quick and rtts is None and rates is None
        else grid(_list("--rtt", rtts or RTTS, RttNs), _list("--rate", rates or RATES, RateBps))
    )
    if not sandbox.inside():
        if build_peer:
            _build(against)
        sys.exit(sandbox.run_inside())
    request = Request(links, against, backend, runs, QUICK_TIMES if quick else FULL_TIMES, hogs, extras)
    found = measure_links(request, counter("measurement"))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
        return
    from howfar.cli.bench_link_table import show

    show(found, console(no_colour))


def _list(option: str, text: str, kind: object) -> tuple[int, ...]:
    """`1ms,10ms`: quantities with units. Raises UsageError."""
    return tuple(read_option(option, word.strip(), kind, COMMAND) for word in text.split(","))


def _build(against: str | None) -> None:
    """Outside of the sandbox, where there is a network. Raises UsageError, MissingError, LabError."""
    from howfar.bench.links.peers import toxiproxy
    from howfar.errors import MissingError

    if against != "toxiproxy":
        raise UsageError("--build-peer builds toxiproxy only", f"`{COMMAND} --against toxiproxy --build-peer`.")
    try:
        toxiproxy.find_program()
    except MissingError:
        click.echo(f"howfar: building toxiproxy ({toxiproxy.MODULE})", err=True)
        toxiproxy.build()
