"""`howfar bench link`: what was asked of the link and what was obtained, beside a peer. The measuring is in `bench/links/bench.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from howfar.bench.links.bars import Verdict
from howfar.bench.links.figures import (
    FULL_TIMES,
    QUICK,
    QUICK_TIMES,
    RATES_GBIT,
    RTTS_MS,
    Extra,
    Figure,
    LinkBench,
    LinkPoint,
    Peer,
    Row,
    RunsOn,
    grid,
)
from howfar.cli.bench_engine import console, counter, cpu_list
from howfar.cli.screen import no_colour_option
from howfar.errors import UsageError
from howfar.lab.link.backends import DEFAULT, SHAPING
from howfar.plan.quantities import RateBps, RttNs, read_option
from howfar.units import format_duration_ns, format_rate_bps

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
    from howfar.cli.bench_link import show

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


MISSED = "!"
"""Behind the figure of a link that misses a bar."""
SHARE_MOST = 1.5
_MARKED = {
    "RTT p50 error, µs": "p50",
    "RTT p99 excess, µs": "p99",
    "goodput off, %": "goodput",
    "goodput, %": "goodput",
    "CPU, core per Gb/s": "cpu",
    "unmodelled drops": "drops",
}


def show(found: LinkBench, screen: Console) -> None:
    screen.print(Text(_heading(found)))
    if found.setting.peer_skipped:
        screen.print(Text(f"Peer skipped: {found.setting.peer_skipped}"))
    places = (_where("Our emulator", found.setting.ours_runs_on), _where("the peer", found.setting.peer_runs_on))
    if any(places):
        screen.print(Text("; ".join(place for place in places if place)))
    screen.print(_links(found.rows))
    for line in (*notes(found.rows), *failures(found.rows)):
        screen.print(Text(line))
    if found.setting.busy:
        screen.print(
            Text(
                "Other programs were at work when this began: read times as theirs too, and measure again when it is quiet."
            )
        )
    screen.print()
    screen.print(_bars(found))
    for extra in found.extras:
        screen.print(Text(_extra(extra)))


def _heading(found: LinkBench) -> str:
    setting = found.setting
    how = (
        "no emulator"
        if setting.realtime is None
        else "real-time class"
        if setting.realtime
        else "short slice"
        if setting.short_slice
        else "ordinary scheduling"
    )
    peer = f", beside {setting.peer}" if setting.peer and not setting.peer_skipped else ""
    runs = "1 run" if setting.runs == 1 else f"{setting.runs} runs, medians"
    rights = "" if setting.privileged else ", without root (bars in brackets)"
    return (
        f"howfar {setting.howfar} on {setting.kernel}, CPUs {cpu_list(setting.cpus)}, load average "
        f"{setting.load_average:.1f}: back-end {setting.backend}, {how}{rights}, {setting.congestion_control}{peer}; {runs}"
    )


def _where(name: str, runs: RunsOn | None) -> str:
    return "" if runs is None else f"{name} on CPUs {cpu_list(runs.cpus)}, {' and '.join(runs.scheduling)}"


def name_of(asked: LinkPoint) -> str:
    rate = "no rate" if asked.rate_bps is None else format_rate_bps(asked.rate_bps)
    return f"{format_duration_ns(asked.rtt_ns)} {rate}"


def _links(rows: Sequence[Row]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("link", overflow="fold")
    for heading in (
        "RTT p50, ms",
        "p99",
        "from idle",
        "goodput",
        "core per Gb/s",
        "machine",
        "late p99.9, µs",
        "drops",
    ):
        made.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        made.add_row(name_of(row.asked), *_ours(row))
        if row.peer is not None:
            made.add_row(f"  {row.peer.name}", *_theirs(row.peer))
    return made


def _ours(row: Row) -> tuple[str, ...]:
    missed = {_MARKED[bar.bar] for bar in row.bars if not bar.met}

    def mark(figure: str, name: str) -> str:
        return f"{figure} {MISSED}" if name in missed else figure

    got = row.obtained
    return (
        mark(_ms(got.rtt_ms_p50), "p50"),
        mark(_ms(got.rtt_ms_p99), "p99"),
        _ms(got.rtt_ms_p50_from_idle),
        mark(_goodput(got.goodput_ratio, got.goodput_gbit), "goodput"),
        mark(_figure(row.cpu_core_per_gbit), "cpu"),
        _figure(row.machine_core_per_gbit),
        "-" if row.lateness_us_p999 is None else f"{row.lateness_us_p999:.0f}",
        mark("-" if row.drops is None else f"{row.drops}", "drops"),
    )


def _theirs(peer: Peer) -> tuple[str, ...]:
    return (
        _ms(peer.rtt_ms_p50),
        _ms(peer.rtt_ms_p99),
        _ms(peer.rtt_ms_p50_from_idle),
        _goodput(peer.goodput_ratio, peer.goodput_gbit),
        _figure(peer.cpu_core_per_gbit),
        _figure(peer.machine_core_per_gbit),
        "-",
        "-",
    )


def notes(rows: Sequence[Row]) -> list[str]:
    """What a peer could not be asked for, each thing once with its links."""
    links: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.peer is not None and row.peer.note:
            links.setdefault((row.peer.name, row.peer.note), []).append(name_of(row.asked))
    return [
        f"{name} was {note}" + ("" if len(where) == len(rows) else f" ({', '.join(where)})")
        for (name, note), where in links.items()
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    """Where a peer broke down."""
    return [f"The peer failed at {name_of(row.asked)}: {row.peer_failed}" for row in rows if row.peer_failed]


def _bars(found: LinkBench) -> Table:
    """One line a bar: how many links reach it, and each that does not, with its figure."""
    judged: dict[tuple[str, str], list[tuple[str, Verdict]]] = {}
    for row in found.rows:
        for bar in row.bars:
            judged.setdefault((bar.bar, bar.limit), []).append((name_of(row.asked), bar))
    for extra in found.extras:
        for bar in extra.bars:
            judged.setdefault((bar.bar, bar.limit), []).append((extra.name, bar))
    made = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("bar", "demanded", "verdict"):
        made.add_column(heading, overflow="fold")
    for (name, limit), verdicts in judged.items():
        made.add_row(name, limit, verdict_on(verdicts, found.setting.runs > 1))
    return made


def verdict_on(verdicts: Sequence[tuple[str, Verdict]], several: bool) -> str:
    """`met`, or who misses it by what; the best of several runs is said beside the median."""
    missed = [(name, bar) for name, bar in verdicts if not bar.met]
    if len(verdicts) == 1 and not missed:
        return f"met: {_with_best(verdicts[0][1], several)}"
    if not missed:
        return f"met by {len(verdicts)} of {len(verdicts)}"
    figures = "; ".join(f"{name} {_with_best(bar, several)}".strip() for name, bar in missed)
    if len(verdicts) == 1:
        return f"MISSED: {figures}"
    return f"MISSED by {len(missed)} of {len(verdicts)}: {figures}"


def _with_best(bar: Verdict, several: bool) -> str:
    return f"{_figure(bar.median)} (best {_figure(bar.best)})" if several else _figure(bar.median)


def _extra(extra: Extra) -> str:
    sides = [f"skipped, {extra.skipped}" if extra.ours is None else f"ours {_of_runs(extra.ours)} {extra.unit}"]
    sides += [f"{one.name} {_of_runs(one.figure)} {extra.unit}" for one in extra.beside]
    return f"{extra.what}: {', '.join(sides)}"


def _of_runs(figure: Figure) -> str:
    if len(figure.runs) == 1:
        return _figure(figure.median)
    return f"{_figure(figure.median)} (best {_figure(figure.best)})"


def _ms(value: float) -> str:
    return f"{value:.3f}"


def _goodput(ratio: float | None, gbit: float) -> str:
    """Of what the rate allows. Far beyond it no rate was in force, and the share would mean nothing."""
    return f"{gbit:.3g} Gb/s" if ratio is None or ratio > SHARE_MOST else f"{ratio:.2%}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
