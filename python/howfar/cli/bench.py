"""`howfar bench`: measures howfar's own overhead. This module has only options and output; `howfar.bench` measures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from howfar import quiet_check
from howfar.bench.calibration import FLOOR_BAR, Calibration, CalibrationRequest, Limit, OverTransport, Transport
from howfar.bench.calibration import calibrate as run_calibration
from howfar.bench.clients import ENGINE_PEERS
from howfar.bench.comparison import Comparison, ComparisonRequest, Driver, Placement, Row, Side, compare, within
from howfar.bench.links.bars import Verdict
from howfar.bench.links.figures import (
    FULL_TIMES,
    QUICK,
    QUICK_TIMES,
    RATES_GBIT,
    RTTS_MS,
    Extra,
    LinkBench,
    LinkPoint,
    Obtained,
    Peer,
    RepeatedFigure,
    RunsOn,
    grid,
)
from howfar.bench.links.figures import Row as LinkRow
from howfar.bench.links.peers import PEERS
from howfar.cli.bench_hosts import hosts_command
from howfar.cli.sandbox_entry import run_in_sandbox
from howfar.cli.screen import (
    blocks_option,
    console,
    cpu_list,
    is_terminal,
    json_option,
    no_colour_option,
    note,
    rewrite_line,
    rich_table,
    show_json,
    show_result,
)
from howfar.cli.suggest import Group
from howfar.errors import MissingError, UsageError
from howfar.lab.link.backends import DEFAULT, SHAPING
from howfar.plan.quantities import RateBps, RttNs, read_option
from howfar.stats.intervals import MIN_BLOCKS, estimate_text
from howfar.units import counted, format_duration_ns, format_rate_bps

MISSED_MARK = "!"
"""Mark after a figure that misses its bar (the limit that it is required to meet)."""
MAX_GOODPUT_RATIO = 1.5


def show(result: LinkBench, screen: Console) -> None:
    setting = result.setting
    lines = [_heading(result)]
    if setting.peer_skipped:
        lines.append(f"Peer skipped: {setting.peer_skipped}")
    processes = (("Our emulator", setting.ours_runs_on), ("the peer", setting.peer_runs_on))
    lines.append("; ".join(_format_process(name, runs) for name, runs in processes if runs is not None))
    _print_lines(screen, lines)
    screen.print(_links_table(result.rows))
    _print_lines(screen, [*peer_notes(result.rows), *peer_failures(result.rows)])
    if setting.busy:
        screen.print(Text("Other programs were running at the start. Measure again when the machine is quiet."))
    screen.print()
    screen.print(_bars_table(result))
    _print_lines(screen, [_format_extra(extra) for extra in result.extras])


def _print_lines(screen: Console, lines: Sequence[str]) -> None:
    for line in filter(None, lines):
        screen.print(Text(line))


def _heading(result: LinkBench) -> str:
    setting = result.setting
    scheduling = {None: "no emulator", True: "real-time class"}.get(
        setting.realtime, "short slice" if setting.short_slice else "ordinary scheduling"
    )
    peer_text = f", compared with {setting.peer}" if setting.peer and not setting.peer_skipped else ""
    runs_text = "1 run" if setting.runs == 1 else f"{setting.runs} runs, medians"
    rights_text = "" if setting.privileged else ", without root (weaker bars)"
    return (
        f"howfar {setting.howfar} on {setting.kernel}, CPUs {cpu_list(setting.cpus)}, load average "
        f"{setting.load_average:.1f}: back-end {setting.backend}, {scheduling}{rights_text}, "
        f"{setting.congestion_control}{peer_text}; {runs_text}"
    )


def _format_process(name: str, placement: RunsOn) -> str:
    return f"{name} on CPUs {cpu_list(placement.cpus)}, {' and '.join(placement.scheduling)}"


def link_name(point: LinkPoint) -> str:
    rate = "no rate" if point.rate_bps is None else format_rate_bps(point.rate_bps)
    return f"{format_duration_ns(point.rtt_ns)} {rate}"


def _goodput(obtained: Obtained) -> str:
    """Goodput as a share of what the rate permits; in Gb/s if it is far above, because then no rate limit was in force."""
    if obtained.goodput_ratio is None or obtained.goodput_ratio > MAX_GOODPUT_RATIO:
        return f"{obtained.goodput_gbit:.3g} Gb/s"
    return f"{obtained.goodput_ratio:.2%}"


_OBTAINED_COLUMNS: tuple[tuple[str, Callable[[Obtained], str], tuple[str, ...]], ...] = (
    ("RTT p50, ms", lambda obtained: f"{obtained.rtt_ms_p50:.3f}", ("RTT p50 error, µs",)),
    ("p99", lambda obtained: f"{obtained.rtt_ms_p99:.3f}", ("RTT p99 excess, µs",)),
    ("from idle", lambda obtained: f"{obtained.rtt_ms_p50_from_idle:.3f}", ()),
    ("goodput", _goodput, ("goodput off, %", "goodput, %")),
)
_COST_COLUMNS: tuple[tuple[str, Callable[[LinkRow | Peer], str], tuple[str, ...]], ...] = (
    ("core per Gb/s", lambda row: _format_figure(row.cpu_core_per_gbit), ("CPU, core per Gb/s",)),
    ("machine", lambda row: _format_figure(row.machine_core_per_gbit), ()),
    ("late p99.9, µs", lambda row: _format_figure(getattr(row, "lateness_us_p999", None)), ()),
    ("drops", lambda row: _format_figure(getattr(row, "drops", None)), ("unmodelled drops",)),
)
"""Heading of each column, the function that formats its figure, and the bars whose miss marks the figure."""


def _links_table(rows: Sequence[LinkRow]) -> Table:
    output = rich_table(["link"], [heading for heading, *_ in (*_OBTAINED_COLUMNS, *_COST_COLUMNS)])
    for row in rows:
        output.add_row(
            link_name(row.asked), *_row_cells(row.obtained, row, {bar.bar for bar in row.bars if not bar.met})
        )
        if row.peer is not None:
            output.add_row(f"  {row.peer.name}", *_row_cells(row.peer, row.peer, set()))
    return output


def _row_cells(obtained: Obtained, cost: LinkRow | Peer, missed: set[str]) -> list[str]:
    figures = [(show_figure(obtained), bars) for _, show_figure, bars in _OBTAINED_COLUMNS]
    figures += [(show_cost(cost), bars) for _, show_cost, bars in _COST_COLUMNS]
    return [f"{figure} {MISSED_MARK}" if missed.intersection(bars) else figure for figure, bars in figures]


def peer_notes(rows: Sequence[LinkRow]) -> list[str]:
    """Sentences on what a peer does not support, each once with all its links."""
    links: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.peer is not None and row.peer.note:
            links.setdefault((row.peer.name, row.peer.note), []).append(link_name(row.asked))
    return [
        f"{name} was {note}" + ("" if len(names) == len(rows) else f" ({', '.join(names)})")
        for (name, note), names in links.items()
    ]


def peer_failures(rows: Sequence[LinkRow]) -> list[str]:
    return [f"The peer failed at {link_name(row.asked)}: {row.peer_failed}" for row in rows if row.peer_failed]


def _bars_table(result: LinkBench) -> Table:
    """A table of bars: how many links meet each bar, and the links that miss it, with their figures."""
    verdicts_by_bar: dict[tuple[str, str], list[tuple[str, Verdict]]] = {}
    link_bars = [(link_name(row.asked), bar) for row in result.rows for bar in row.bars]
    for name, bar in [*link_bars, *((extra.name, bar) for extra in result.extras for bar in extra.bars)]:
        verdicts_by_bar.setdefault((bar.bar, bar.limit), []).append((name, bar))
    output = rich_table(["bar", "required", "verdict"], [])
    for (bar_name, limit), verdicts in verdicts_by_bar.items():
        output.add_row(bar_name, limit, format_verdict(verdicts, result.setting.runs > 1))
    return output


def format_verdict(verdicts: Sequence[tuple[str, Verdict]], has_several_runs: bool) -> str:
    """The verdict on a bar as text: `met`, or the links that miss it with their figures; for several runs also the best figure."""

    def figure(bar: Verdict) -> str:
        return (
            f"{_format_figure(bar.median)} (best {_format_figure(bar.best)})"
            if has_several_runs
            else _format_figure(bar.median)
        )

    missed = [(name, bar) for name, bar in verdicts if not bar.met]
    is_single = len(verdicts) == 1
    if not missed:
        return f"met: {figure(verdicts[0][1])}" if is_single else f"met by {len(verdicts)} of {len(verdicts)}"
    figures = "; ".join(f"{name} {figure(bar)}" for name, bar in missed)
    return f"MISSED: {figures}" if is_single else f"MISSED by {len(missed)} of {len(verdicts)}: {figures}"


def _format_extra(extra: Extra) -> str:
    figures = [
        f"skipped, {extra.skipped}" if extra.ours is None else f"ours {_format_measurement(extra.ours)} {extra.unit}"
    ]
    figures += [f"{other.name} {_format_measurement(other.figure)} {extra.unit}" for other in extra.beside]
    return f"{extra.what}: {', '.join(figures)}"


def _format_measurement(figure: RepeatedFigure) -> str:
    best = f" (best {_format_figure(figure.best)})" if len(figure.runs) > 1 else ""
    return f"{_format_figure(figure.median)}{best}"


def _format_figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
CONNECTIONS = "1,64,512,2048"
MAX_CONNECTIONS = 10_000
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


def make_progress(step: str) -> Callable[[int, int], None]:
    """A function that shows `block 2 of 8` on one line of a terminal, and nothing elsewhere."""
    on_terminal = is_terminal(sys.stderr)

    def show_step(number: int, total: int) -> None:
        if on_terminal:
            rewrite_line(f"{step} {number} of {total}", number == total)

    return show_step


def table(headings: Sequence[str], columns: Sequence[Sequence[tuple[str, str]]]) -> Table:
    """A table with a column of named figures under each heading; the names are those of the rows, the same in all columns."""
    output = rich_table([""], headings)
    for cells in zip(*columns, strict=True):
        output.add_row(cells[0][0], *(value for _, value in cells))
    return output


def _print_result(
    result: Calibration | Comparison, as_json: bool, screen: Console, output: Table, lines: Sequence[str]
) -> None:
    """Print a table; the first of `lines` is the heading."""
    if as_json:
        show_json(result.model_dump_json(indent=2))
        return
    screen.print(Text(lines[0]))
    screen.print(output)
    _print_lines(screen, lines[1:])


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
    """Measure the engine's limits against the built-in null server, and whether this machine is quiet.

    These are the floor (the p50 of one connection, compared with a bare loop that sends and receives the same bytes), the ceiling
    (queries per second with 64 connections, and what limited them), the resolution of the clock and the histogram, and the CPU time
    per query with 1, 64 and 512 connections. First, it measures for 3 s how much CPU time other programs take and how much the speed
    of the CPUs varies, and says how wide intervals would be.
    """
    request = CalibrationRequest(_parse_transports(transports), blocks, round(seconds * 1e9))
    show_step = make_progress("block")
    machine = quiet_check.measure(quiet_check.MAX_S)
    if not as_json:
        note(f"{quiet_check.QUESTION} {quiet_check.answer(machine)}")
    calibration = run_calibration(request, machine, lambda block: show_step(block, blocks))
    setting = calibration.setting
    heading = (
        f"howfar {setting.howfar} on {setting.kernel}: client on CPUs {cpu_list(setting.client_cpus)}, "
        f"null server on CPUs {cpu_list(setting.server_cpus)}, {setting.blocks} blocks of {setting.block_ns / 1e9:g} s"
    )
    output = table(
        [result.transport for result in calibration.transports],
        [_calibration_rows(calibration, result) for result in calibration.transports],
    )
    _print_result(calibration, as_json, console(no_colour), output, [heading, *_calibration_verdicts(calibration)])
    if not as_json:
        click.echo()
        show_result(machine, quiet_check.document(machine), as_json, no_colour)


def _parse_transports(text: str) -> tuple[Transport, ...]:
    names = [name.strip() for name in text.split(",")]
    known = tuple(transport for transport in TRANSPORTS if transport in names)
    if len(known) != len(names):
        raise UsageError(
            f"--transport {text!r} names an unknown transport", f"Known transports: {', '.join(TRANSPORTS)}."
        )
    return known


def _calibration_rows(calibration: Calibration, result: OverTransport) -> list[tuple[str, str]]:
    def figure(digits: int) -> Callable[[float], str]:
        return lambda value: f"{value:,.{digits}f}"

    rows = []
    for floor in result.floors:
        cpus = {"together": "one CPU for both", "apart": "a CPU for each"}[floor.cpus]
        rows += [
            (f"floor, {cpus}: ping-pong p50, µs", estimate_text(floor.ping_pong_p50_us, figure(2))),
            ("  engine p50, 1 connection, µs", estimate_text(floor.engine_p50_us, figure(2))),
            (
                "  engine over ping-pong",
                estimate_text(floor.engine_over_ping_pong, lambda r: f"{(r - 1) * 100:+.1f} %"),
            ),
        ]
    ceiling = result.ceiling
    rows.append(
        (f"ceiling, {ceiling.connections} connections, queries/s", estimate_text(ceiling.queries_per_s, figure(0)))
    )
    rows.append(("  busiest thread: client, null server", f"{ceiling.client_busy:.0%}, {ceiling.server_busy:.0%}"))
    for cost in result.cpu_per_query:
        rows.append(
            (
                f"client CPU per query, {counted(cost.connections, 'connection')}, µs",
                estimate_text(cost.client_us, figure(2)),
            )
        )
    rows.append(
        ("clock: step, cost of a reading", f"{calibration.clock.step_ns} ns, {calibration.clock.read_ns:.0f} ns")
    )
    rows.append(("step of the histogram at the floor", f"{result.histogram_step_ns} ns"))
    return rows


def _calibration_verdicts(calibration: Calibration) -> list[str]:
    lines = []
    for result in calibration.transports:
        limit = "at most" if all(floor.within_bar for floor in result.floors) else "more than"
        unresolved_note = (
            " (too close to call)"
            if any(within(floor.engine_over_ping_pong, FLOOR_BAR) for floor in result.floors)
            else ""
        )
        lines.append(
            f"Over {result.transport}, the engine's p50 is {limit} {FLOOR_BAR - 1:.0%} above the ping-pong's{unresolved_note}; "
            f"the ceiling's limit was {_LIMITS[result.ceiling.limit]}."
        )
    if calibration.setting.blocks < MIN_BLOCKS:
        lines.append(f"Fewer than {MIN_BLOCKS} blocks give no intervals, so small differences mean nothing.")
    return lines


# ---------------------------------------------------------------- engine


@bench.command()
@click.option("--against", type=click.Choice(list(ENGINE_PEERS)), required=True, help="Load generator to compare with.")
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
    request = ComparisonRequest(_parse_connections(connections), blocks, seconds, placement, server, driver, against)
    comparison = compare(request, make_progress("measurement"))
    setting = comparison.setting
    heading = (
        f"howfar {setting.howfar} and {setting.peer} on {setting.server}, {setting.kernel}: {setting.workload}; "
        f"client on CPUs {cpu_list(setting.client_cpus)}, server on CPUs {cpu_list(setting.server_cpus)}, "
        f"{setting.blocks} blocks of {setting.seconds:g} s"
    )
    lines = [heading]
    for row in comparison.rows:
        position = f"At {counted(row.connections, 'connection')}"
        lines += [f"{position}, the bar is missed: {missed}." for missed in row.misses]
        lines += [f"{position}, too close to call: {unresolved}. Use more blocks." for unresolved in row.unresolved]
    output = table(
        [f"{row.connections}" for row in comparison.rows], [_comparison_cells(row) for row in comparison.rows]
    )
    _print_result(comparison, as_json, console(no_colour), output, lines)


def _parse_connections(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= MAX_CONNECTIONS for part in parts):
        advice = f"Give numbers from 1 to {MAX_CONNECTIONS}, separated by commas, such as {CONNECTIONS}."
        raise UsageError(f"--connections {text!r} is not a list of numbers", advice)
    return tuple(dict.fromkeys(int(part) for part in parts))


def _comparison_cells(row: Row) -> list[tuple[str, str]]:
    def ours_and_peer(name: str, figure: str) -> tuple[str, str]:
        return name, f"{_format_side(row.ours, figure)} / {_format_side(row.peer, figure)}"

    return [
        ours_and_peer("CPU per query, µs", "client_cpu_us_per_query"),
        ("  ratio", estimate_text(row.cpu_ratio, "{:.3g}".format)),
        ours_and_peer("  with start-up, µs", "whole_process_cpu_us_per_query"),
        ours_and_peer("queries/s", "qps"),
        ("  ratio", estimate_text(row.qps_ratio, "{:.3g}".format)),
        ours_and_peer("peak memory, MiB", "rss_mib"),
        ("  ratio", f"{row.rss_ratio:.3g}"),
        ours_and_peer("switches per query", "context_switches_per_query"),
        ("our driver", row.driver or ""),
    ]


def _format_side(side: Side, figure: str) -> str:
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

    Between the two hosts of a laboratory, this measures the unloaded RTT, a bulk transfer, the emulator's CPU time, how late packets
    leave, and unmodelled drops. With --against, the same is measured over the peer. A full grid takes a few minutes per run.
    """
    from howfar.bench.links.bench import LinksRequest, measure_links
    from howfar.lab import sandbox

    links = grid(_parse_quantities("--rtt", rtts or RTTS, RttNs), _parse_quantities("--rate", rates or RATES, RateBps))
    if quick and rtts is None and rates is None:
        links = QUICK
    if not sandbox.inside():
        if build_peer:
            _build_peer(against)
        if find_spec("scipy") is None:
            raise MissingError(
                "SciPy, which judges the figures, is not installed", "Reinstall howfar with its extra `bench`."
            )
        sys.exit(run_in_sandbox())
    times = QUICK_TIMES if quick else FULL_TIMES
    result = measure_links(
        LinksRequest(links, against, backend, runs, times, hogs, extras), make_progress("measurement")
    )
    if as_json:
        show_json(result.model_dump_json(indent=2))
    else:
        show(result, console(no_colour))


def _parse_quantities(option: str, text: str, kind: object) -> tuple[int, ...]:
    """Quantities with units from a list like `1ms,10ms`. Raises UsageError."""
    return tuple(read_option(option, part.strip(), kind, "howfar bench link") for part in text.split(","))


def _build_peer(against: str | None) -> None:
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
