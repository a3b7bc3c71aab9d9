"""`howfar bench`: the cost of the instrument itself. Thin: options in, figures out; the measuring is in `howfar.bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from howfar.bench.calibration import FLOOR_BAR, Calibration, Limit, OverTransport, Transport
from howfar.bench.calibration import Request as CalibrationRequest
from howfar.bench.calibration import calibrate as run_calibration
from howfar.bench.clients import CLIENTS
from howfar.bench.comparison import Comparison, Driver, Placement, Request, Row, Side, compare, within
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
    Obtained,
    Peer,
    RunsOn,
    grid,
)
from howfar.bench.links.figures import (
    Row as LinkRow,
)
from howfar.bench.links.peers import PEERS
from howfar.cli.bench_hosts import hosts_command
from howfar.cli.screen import (
    blocks_option,
    console,
    cpu_list,
    is_terminal,
    json_option,
    no_colour_option,
    note,
    rewrite_line,
    show_json,
)
from howfar.cli.suggest import Group
from howfar.errors import MissingError, UsageError
from howfar.lab.link.backends import DEFAULT, SHAPING
from howfar.plan.quantities import RateBps, RttNs, read_option
from howfar.stats.intervals import MIN_BLOCKS, in_brackets
from howfar.units import counted, format_duration_ns, format_rate_bps

MISSED = "!"
"""Mark after the figure of a link that misses a bar."""
SHARE_MOST = 1.5


def show(found: LinkBench, screen: Console) -> None:
    setting = found.setting
    lines = [_heading(found)]
    if setting.peer_skipped:
        lines.append(f"Peer skipped: {setting.peer_skipped}")
    processes = (("Our emulator", setting.ours_runs_on), ("the peer", setting.peer_runs_on))
    lines.append("; ".join(_process(name, runs) for name, runs in processes if runs is not None))
    _print(screen, lines)
    screen.print(_links(found.rows))
    _print(screen, [*notes(found.rows), *failures(found.rows)])
    if setting.busy:
        screen.print(Text("Other programs were running at the start. Measure again when the machine is quiet."))
    screen.print()
    screen.print(_bars(found))
    _print(screen, [_extra(extra) for extra in found.extras])


def _print(screen: Console, lines: Sequence[str]) -> None:
    for line in filter(None, lines):
        screen.print(Text(line))


def _heading(found: LinkBench) -> str:
    setting = found.setting
    scheduling = {None: "no emulator", True: "real-time class"}.get(
        setting.realtime, "short slice" if setting.short_slice else "ordinary scheduling"
    )
    peer = f", compared with {setting.peer}" if setting.peer and not setting.peer_skipped else ""
    runs = "1 run" if setting.runs == 1 else f"{setting.runs} runs, medians"
    rights = "" if setting.privileged else ", without root (weaker bars)"
    return (
        f"howfar {setting.howfar} on {setting.kernel}, CPUs {cpu_list(setting.cpus)}, load average "
        f"{setting.load_average:.1f}: back-end {setting.backend}, {scheduling}{rights}, {setting.congestion_control}{peer}; {runs}"
    )


def _process(name: str, runs: RunsOn) -> str:
    return f"{name} on CPUs {cpu_list(runs.cpus)}, {' and '.join(runs.scheduling)}"


def name_of(point: LinkPoint) -> str:
    rate = "no rate" if point.rate_bps is None else format_rate_bps(point.rate_bps)
    return f"{format_duration_ns(point.rtt_ns)} {rate}"


def _goodput(got: Obtained) -> str:
    """Goodput as a share of what the rate permits; in Gb/s if far above it, as then no rate was in force."""
    if got.goodput_ratio is None or got.goodput_ratio > SHARE_MOST:
        return f"{got.goodput_gbit:.3g} Gb/s"
    return f"{got.goodput_ratio:.2%}"


_OBTAINED: tuple[tuple[str, Callable[[Obtained], str], tuple[str, ...]], ...] = (
    ("RTT p50, ms", lambda got: f"{got.rtt_ms_p50:.3f}", ("RTT p50 error, µs",)),
    ("p99", lambda got: f"{got.rtt_ms_p99:.3f}", ("RTT p99 excess, µs",)),
    ("from idle", lambda got: f"{got.rtt_ms_p50_from_idle:.3f}", ()),
    ("goodput", _goodput, ("goodput off, %", "goodput, %")),
)
_COST: tuple[tuple[str, Callable[[LinkRow | Peer], str], tuple[str, ...]], ...] = (
    ("core per Gb/s", lambda row: _figure(row.cpu_core_per_gbit), ("CPU, core per Gb/s",)),
    ("machine", lambda row: _figure(row.machine_core_per_gbit), ()),
    ("late p99.9, µs", lambda row: _figure(getattr(row, "lateness_us_p999", None)), ()),
    ("drops", lambda row: _figure(getattr(row, "drops", None)), ("unmodelled drops",)),
)
"""Heading and figure of each column, and the bars that mark it."""


def _links(rows: Sequence[LinkRow]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("link", overflow="fold")
    for heading, *_ in (*_OBTAINED, *_COST):
        made.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        made.add_row(name_of(row.asked), *_line(row.obtained, row, {bar.bar for bar in row.bars if not bar.met}))
        if row.peer is not None:
            made.add_row(f"  {row.peer.name}", *_line(row.peer, row.peer, set()))
    return made


def _line(got: Obtained, cost: LinkRow | Peer, missed: set[str]) -> list[str]:
    figures = [(show_figure(got), bars) for _, show_figure, bars in _OBTAINED]
    figures += [(show_cost(cost), bars) for _, show_cost, bars in _COST]
    return [f"{figure} {MISSED}" if missed.intersection(bars) else figure for figure, bars in figures]


def notes(rows: Sequence[LinkRow]) -> list[str]:
    """Sentences on what a peer does not support, each once with all its links."""
    links: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.peer is not None and row.peer.note:
            links.setdefault((row.peer.name, row.peer.note), []).append(name_of(row.asked))
    return [
        f"{name} was {note}" + ("" if len(names) == len(rows) else f" ({', '.join(names)})")
        for (name, note), names in links.items()
    ]


def failures(rows: Sequence[LinkRow]) -> list[str]:
    return [f"The peer failed at {name_of(row.asked)}: {row.peer_failed}" for row in rows if row.peer_failed]


def _bars(found: LinkBench) -> Table:
    """Table of bars: how many links meet each, and those that do not, with their figures."""
    judged: dict[tuple[str, str], list[tuple[str, Verdict]]] = {}
    named = [(name_of(row.asked), bar) for row in found.rows for bar in row.bars]
    for name, bar in [*named, *((extra.name, bar) for extra in found.extras for bar in extra.bars)]:
        judged.setdefault((bar.bar, bar.limit), []).append((name, bar))
    made = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("bar", "required", "verdict"):
        made.add_column(heading, overflow="fold")
    for (bar_name, limit), verdicts in judged.items():
        made.add_row(bar_name, limit, verdict_on(verdicts, found.setting.runs > 1))
    return made


def verdict_on(verdicts: Sequence[tuple[str, Verdict]], several: bool) -> str:
    """The verdict as text: `met`, or which links miss it and by how much; for several runs with the best one."""

    def figure(bar: Verdict) -> str:
        return f"{_figure(bar.median)} (best {_figure(bar.best)})" if several else _figure(bar.median)

    missed = [(name, bar) for name, bar in verdicts if not bar.met]
    alone = len(verdicts) == 1
    if not missed:
        return f"met: {figure(verdicts[0][1])}" if alone else f"met by {len(verdicts)} of {len(verdicts)}"
    figures = "; ".join(f"{name} {figure(bar)}" for name, bar in missed)
    return f"MISSED: {figures}" if alone else f"MISSED by {len(missed)} of {len(verdicts)}: {figures}"


def _extra(extra: Extra) -> str:
    sides = [f"skipped, {extra.skipped}" if extra.ours is None else f"ours {_of_runs(extra.ours)} {extra.unit}"]
    sides += [f"{one.name} {_of_runs(one.figure)} {extra.unit}" for one in extra.beside]
    return f"{extra.what}: {', '.join(sides)}"


def _of_runs(figure: Figure) -> str:
    best = f" (best {_figure(figure.best)})" if len(figure.runs) > 1 else ""
    return f"{_figure(figure.median)}{best}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
CONNECTIONS = "1,64,512,2048"
MOST = 10_000
RTTS = ",".join(f"{rtt:g}ms" for rtt in RTTS_MS)
RATES = ",".join(f"{rate:g}gbit" for rate in RATES_GBIT)
_LIMITS = {
    Limit.CLIENT: "the client",
    Limit.SERVER: "the null server",
    Limit.BOTH: "both the client and the null server",
    Limit.MACHINE: "other programs on this machine",
    Limit.NEITHER: "neither, because both were idle at times",
}


@click.group(cls=Group)
def bench() -> None:
    """Measure howfar's own overhead."""


bench.add_command(hosts_command)


def progress(what: str) -> Callable[[int, int], None]:
    """Shows `block 2 of 8` on one line of a terminal, and nothing elsewhere."""
    shown = is_terminal(sys.stderr)

    def show_step(number: int, of: int) -> None:
        if shown:
            rewrite_line(f"{what} {number} of {of}", number == of)

    return show_step


def table(headings: Sequence[str], columns: Sequence[Sequence[tuple[str, str]]]) -> Table:
    """A column of named figures under each heading; all columns name the same rows."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("", overflow="fold")
    for heading in headings:
        made.add_column(heading, justify="right", overflow="fold")
    for cells in zip(*columns, strict=True):
        made.add_row(cells[0][0], *(value for _, value in cells))
    return made


def _answer(
    found: Calibration | Comparison, as_json: bool, screen: Console, shown: Table, lines: Sequence[str]
) -> None:
    """Print a table; the first of `lines` is the heading."""
    if as_json:
        show_json(found.model_dump_json(indent=2))
        return
    screen.print(Text(lines[0]))
    screen.print(shown)
    for line in lines[1:]:
        screen.print(Text(line))


# ---------------------------------------------------------------- calibrate


@bench.command()
@click.option("--transport", "transports", default=",".join(TRANSPORTS), show_default=True,
              help="Transports to measure, separated by commas.")  # fmt: skip
@blocks_option(8, "Number of blocks; intervals need six or more.")
@click.option(
    "--seconds", type=click.FloatRange(0.05, 60), default=0.5, show_default=True, help="Length of each measurement."
)
@json_option
@no_colour_option
def calibrate(transports: str, blocks: int, seconds: float, as_json: bool, no_colour: bool) -> None:
    """Measure the engine's limits against the built-in null server.

    These are the floor (the p50 of one connection, compared with a bare loop that sends and receives the same bytes), the ceiling
    (queries per second with 64 connections, and what limited them), the resolution of the clock and the histogram, and the CPU time
    per query with 1, 64 and 512 connections.
    """
    request = CalibrationRequest(_transports(transports), blocks, round(seconds * 1e9))
    show_step = progress("block")
    found = run_calibration(request, lambda block: show_step(block, blocks))
    setting = found.setting
    heading = (
        f"howfar {setting.howfar} on {setting.kernel}: client on CPUs {cpu_list(setting.client_cpus)}, "
        f"null server on CPUs {cpu_list(setting.server_cpus)}, {setting.blocks} blocks of {setting.block_ns / 1e9:g} s"
    )
    shown = table([over.transport for over in found.transports], [_rows(found, over) for over in found.transports])
    _answer(found, as_json, console(no_colour), shown, [heading, *_verdicts(found)])


def _transports(text: str) -> tuple[Transport, ...]:
    named = [name.strip() for name in text.split(",")]
    found = tuple(transport for transport in TRANSPORTS if transport in named)
    if len(found) != len(named):
        raise UsageError(
            f"--transport {text!r} names an unknown transport", f"Known transports: {', '.join(TRANSPORTS)}."
        )
    return found


def _rows(found: Calibration, over: OverTransport) -> list[tuple[str, str]]:
    def figure(digits: int) -> Callable[[float], str]:
        return lambda value: f"{value:,.{digits}f}"

    rows = []
    for floor in over.floors:
        cpus = {"together": "one CPU for both", "apart": "a CPU for each"}[floor.cpus]
        rows += [
            (f"floor, {cpus}: ping-pong p50, µs", in_brackets(floor.ping_pong_p50_us, figure(2))),
            ("  engine p50, 1 connection, µs", in_brackets(floor.engine_p50_us, figure(2))),
            ("  engine over ping-pong", in_brackets(floor.engine_over_ping_pong, lambda r: f"{(r - 1) * 100:+.1f} %")),
        ]
    ceiling = over.ceiling
    rows.append(
        (f"ceiling, {ceiling.connections} connections, queries/s", in_brackets(ceiling.queries_per_s, figure(0)))
    )
    rows.append(("  busiest thread: client, null server", f"{ceiling.client_busy:.0%}, {ceiling.server_busy:.0%}"))
    for cost in over.cpu_per_query:
        rows.append(
            (
                f"client CPU per query, {counted(cost.connections, 'connection')}, µs",
                in_brackets(cost.client_us, figure(2)),
            )
        )
    rows.append(("clock: step, cost of a reading", f"{found.clock.step_ns} ns, {found.clock.read_ns:.0f} ns"))
    rows.append(("step of the histogram at the floor", f"{over.histogram_step_ns} ns"))
    return rows


def _verdicts(found: Calibration) -> list[str]:
    lines = []
    for over in found.transports:
        limit = "at most" if all(floor.within_bar for floor in over.floors) else "more than"
        doubt = (
            " (not resolved)" if any(within(floor.engine_over_ping_pong, FLOOR_BAR) for floor in over.floors) else ""
        )
        lines.append(
            f"Over {over.transport}, the engine's p50 is {limit} {FLOOR_BAR - 1:.0%} above the ping-pong's{doubt}; "
            f"the ceiling's limit was {_LIMITS[over.ceiling.limit]}."
        )
    if found.setting.blocks < MIN_BLOCKS:
        lines.append(f"Fewer than {MIN_BLOCKS} blocks give no intervals, so small differences mean nothing.")
    return lines


# ---------------------------------------------------------------- engine


@bench.command()
@click.option("--against", type=click.Choice(list(CLIENTS)), required=True, help="Load generator to compare with.")
@click.option(
    "--connections", default=CONNECTIONS, show_default=True, help="Numbers of connections, separated by commas."
)
@blocks_option(8, "Number of blocks; intervals need four or more.")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 600), default=4.0, show_default=True, help="Length of each measurement."
)
@click.option("--placement", type=click.Choice(get_args(Placement)), default="shared", show_default=True,
              help="Client and server share all CPUs, have half of them each, or share one.")  # fmt: skip
@click.option(
    "--server", help="Kind of server, or path of its program.  [default: mariadb, or postgresql with pgbench]"
)
@click.option("--driver", type=click.Choice(get_args(Driver)), default="auto", show_default=True,
              help="How howfar's engine waits for its connections.")  # fmt: skip
@json_option
@no_colour_option
def engine(
    against: str,
    connections: str,
    blocks: int,
    seconds: float,
    placement: Placement,
    server: str | None,
    driver: Driver,
    as_json: bool,
    no_colour: bool,
) -> None:
    """Compare the cost of a point select in the engine with that in sysbench, pgbench, or a bare loop that only moves its bytes.

    Both use the same server in turn, in random order within each block. CPU time, memory and context switches are the kernel's
    figures for each process while all connections are active; the server counts the queries. No privileges are needed, because the
    server is a private one.
    """
    request = Request(_numbers(connections), blocks, seconds, placement, server, driver, against)
    found = compare(request, progress("measurement"))
    setting = found.setting
    heading = (
        f"howfar {setting.howfar} and {setting.peer} on {setting.server}, {setting.kernel}: {setting.workload}; "
        f"client on CPUs {cpu_list(setting.client_cpus)}, server on CPUs {cpu_list(setting.server_cpus)}, "
        f"{setting.blocks} blocks of {setting.seconds:g} s"
    )
    lines = [heading]
    for row in found.rows:
        at = f"At {counted(row.connections, 'connection')}"
        lines += [f"{at}, the bar is missed: {missed}." for missed in row.misses]
        lines += [f"{at}, the bar is not resolved: {unclear}. Use more blocks." for unclear in row.unresolved]
    shown = table([f"{row.connections}" for row in found.rows], [_cells(row) for row in found.rows])
    _answer(found, as_json, console(no_colour), shown, lines)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= MOST for part in parts):
        advice = f"Give numbers from 1 to {MOST}, separated by commas, such as {CONNECTIONS}."
        raise UsageError(f"--connections {text!r} is not a list of numbers", advice)
    return tuple(dict.fromkeys(int(part) for part in parts))


def _cells(row: Row) -> list[tuple[str, str]]:
    def both(name: str, figure: str) -> tuple[str, str]:
        return name, f"{_value(row.ours, figure)} / {_value(row.peer, figure)}"

    return [
        both("CPU per query, µs", "client_cpu_us_per_query"),
        ("  ratio", in_brackets(row.cpu_ratio, "{:.3g}".format)),
        both("  with start-up, µs", "whole_process_cpu_us_per_query"),
        both("queries/s", "qps"),
        ("  ratio", in_brackets(row.qps_ratio, "{:.3g}".format)),
        both("peak memory, MiB", "rss_mib"),
        ("  ratio", f"{row.rss_ratio:.3g}"),
        both("switches per query", "context_switches_per_query"),
        ("our driver", row.driver or ""),
    ]


def _value(side: Side, figure: str) -> str:
    value = float(getattr(side, figure))
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# ---------------------------------------------------------------- link


@bench.command()
@click.option("--against", type=click.Choice(list(PEERS)), help="Also measure this peer, for comparison.")
@click.option("--build-peer", is_flag=True, help="First use Go to fetch and build toxiproxy in howfar's cache.")
@click.option("--rtt", "rtts", help=f"Round trip times, separated by commas.  [default: {RTTS}]")
@click.option("--rate", "rates", help=f"Rates, separated by commas.  [default: {RATES}]")
@click.option("--quick", is_flag=True, help="Measure only two links, briefly; takes half a minute.")
@click.option(
    "--link-backend",
    "backend",
    type=click.Choice(SHAPING),
    default=DEFAULT,
    show_default=True,
    help="Back-end that emulates howfar's link.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Number of runs; the median and the best are shown.",
)
@click.option("--hogs", type=click.IntRange(0, 64), default=2, show_default=True,
              help="Number of CPU hogs while lateness is measured.")  # fmt: skip
@click.option(
    "--extras/--no-extras",
    default=True,
    help="Also measure an unlimited rate, Redis, lateness with CPU hogs, loss and jitter.",
)
@json_option
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
    """Compare the RTTs and rates of emulated links with those requested.

    Between the two hosts of a laboratory, this measures the RTT at rest, a bulk transfer, the emulator's CPU time, how late packets
    leave, and unmodelled drops. With --against, the same is measured over the peer. A full grid takes a few minutes per run.
    """
    from howfar.bench.links.bench import Request as LinkRequest
    from howfar.bench.links.bench import measure_links
    from howfar.lab import sandbox

    links = grid(_quantities("--rtt", rtts or RTTS, RttNs), _quantities("--rate", rates or RATES, RateBps))
    if quick and rtts is None and rates is None:
        links = QUICK
    if not sandbox.inside():
        if build_peer:
            _build(against)
        if find_spec("scipy") is None:
            raise MissingError(
                "SciPy, which judges the figures, is not installed", "Reinstall howfar with its extra `bench`."
            )
        sys.exit(sandbox.run_inside())
    times = QUICK_TIMES if quick else FULL_TIMES
    found = measure_links(LinkRequest(links, against, backend, runs, times, hogs, extras), progress("measurement"))
    if as_json:
        show_json(found.model_dump_json(indent=2))
    else:
        show(found, console(no_colour))


def _quantities(option: str, text: str, kind: object) -> tuple[int, ...]:
    """Quantities with units from a list like `1ms,10ms`. Raises UsageError."""
    return tuple(read_option(option, part.strip(), kind, "howfar bench link") for part in text.split(","))


def _build(against: str | None) -> None:
    """Build the peer outside of the sandbox, where there is a network. Raises UsageError, MissingError, LabError."""
    from howfar.bench.links.peers import toxiproxy

    if against != "toxiproxy":
        advice = "Use `howfar bench link --against toxiproxy --build-peer`."
        raise UsageError("--build-peer can build only toxiproxy", advice)
    try:
        toxiproxy.find_program()
    except MissingError:
        note(f"building toxiproxy ({toxiproxy.MODULE})")
        toxiproxy.build()
