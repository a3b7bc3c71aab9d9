"""`howfar bench engine`: what a query costs the client, beside another load generator. The measuring is in `bench/comparison.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from howfar.bench.comparison import Comparison, Placement, Request, Row, Side, compare, many
from howfar.cli.screen import has_colour, is_terminal, no_colour_option, width
from howfar.errors import UsageError
from howfar.stats.estimate import Estimate


def counter(what: str) -> Callable[[int, int], None]:
    """Shows `block 2 of 8` on one line of a terminal, and nothing anywhere else. To be called as each begins or ends."""
    shown = is_terminal(sys.stderr)

    def said(number: int, of: int) -> None:
        if shown:
            end = "\n" if number == of else ""
            print(f"\r{what} {number} of {of}", end=end, file=sys.stderr, flush=True)

    return said


def console(no_colour: bool) -> Console:
    """For the answer, on stdout."""
    return Console(
        file=sys.stdout, no_color=not has_colour(sys.stdout, no_colour), width=width(), highlight=False, soft_wrap=False
    )


def table(headings: Sequence[str], columns: Sequence[Sequence[tuple[str, str]]]) -> Table:
    """One column of figures under each heading. Every figure comes with the name of its row, the same in all columns."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("", overflow="fold")
    for heading in headings:
        made.add_column(heading, justify="right", overflow="fold")
    for cells in zip(*columns, strict=True):
        made.add_row(cells[0][0], *(value for _, value in cells))
    return made


def cpu_list(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, cpus))


CONNECTIONS = "1,64,512,2048"
MOST = 10_000


@click.command()
@click.option("--against", type=click.Choice(["sysbench"]), required=True, help="The other load generator.")
@click.option("--connections", default=CONNECTIONS, show_default=True, help="Numbers of them, with commas between.")
@click.option("--blocks", type=click.IntRange(1, 1000), default=8, show_default=True, help="From 2 on: with intervals.")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 600), default=4.0, show_default=True, help="Length of one measurement."
)
@click.option(
    "--placement",
    type=click.Choice(get_args(Placement)),
    default="shared",
    show_default=True,
    help="Client and server on all CPUs, each on its half, or both on one.",
)
@click.option("--server", default="mariadb", show_default=True, help="A kind of server, or a path to its program.")
@click.option(
    "--driver",
    type=click.Choice(["auto", "epoll", "io_uring"]),
    default="auto",
    show_default=True,
    help="How our engine waits for its connections.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@no_colour_option
def engine(
    against: str,
    connections: str,
    blocks: int,
    seconds: float,
    placement: Placement,
    server: str,
    driver: Literal["auto", "epoll", "io_uring"],
    as_json: bool,
    no_colour: bool,
) -> None:
    """Run the engine and sysbench in turn on one server, the same point selects by both, and print what a query costs each.

    In blocks with random order. CPU, memory and context switches are the kernel's figures of each process, over a window in which
    all connections run; queries are counted by the server. No rights are needed, the server is a private one.
    """
    assert against == "sysbench", "the only choice"
    request = Request(_numbers(connections), blocks, seconds, placement, server, driver)
    found = compare(request, counter("measurement"))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
        return
    screen = console(no_colour)
    screen.print(Text(_heading(found)))
    screen.print(table([f"{row.connections}" for row in found.rows], [_cells(row) for row in found.rows]))
    for row in found.rows:
        at = f"At {many(row.connections)}"
        for missed in row.misses:
            screen.print(Text(f"{at} the bar is missed: {missed}."))
        for unclear in row.unresolved:
            screen.print(Text(f"{at} the bar is not resolved (more blocks, or a quieter machine): {unclear}."))


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= MOST for part in parts):
        raise UsageError(
            f"--connections {text!r} is no list of numbers from 1 to {MOST}", f"For example {CONNECTIONS}."
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def _heading(found: Comparison) -> str:
    setting = found.setting
    return (
        f"howfar {setting.howfar} and {setting.peer} on {setting.server}, {setting.kernel}: {setting.workload}; "
        f"client on CPUs {cpu_list(setting.client_cpus)}, server on CPUs {cpu_list(setting.server_cpus)}, "
        f"{setting.blocks} blocks of {setting.seconds:g} s"
    )


def _cells(row: Row) -> list[tuple[str, str]]:
    def both(name: str, figure: str) -> tuple[str, str]:
        return name, f"{_value(row.ours, figure)} / {_value(row.peer, figure)}"

    return [
        both("CPU a query, µs", "client_cpu_us_per_query"),
        ("  ratio", _ratio(row.cpu_ratio)),
        both("  with start-up, µs", "whole_process_cpu_us_per_query"),
        both("queries/s", "qps"),
        ("  ratio", _ratio(row.qps_ratio)),
        both("peak memory, MiB", "rss_mib"),
        ("  ratio", f"{row.rss_ratio:.3g}"),
        both("switches a query", "context_switches_per_query"),
        ("driver of ours", row.driver or ""),
    ]


def _value(side: Side, figure: str) -> str:
    value = float(getattr(side, figure))
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"
