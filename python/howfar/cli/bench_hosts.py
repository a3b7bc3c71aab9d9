"""`howfar bench hosts`: how the load itself scales over your own hosts, and what controlling a trial costs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from howfar.cli.on_hosts import enter_cluster, join_hosts
from howfar.cli.screen import blocks_option, columns, json_option, note
from howfar.stats.intervals import MIN_BLOCKS, interval_text
from howfar.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from howfar.fleet.scale_out import Division, Scale, ScaleOut


@click.command("hosts")
@click.argument("source", default="hosts.toml", metavar="FILE|ray://HOST:PORT")
@click.option(
    "--place", metavar="ROLES", help="Host of the null server, such as server=b.  [default: the first with that role]"
)
@click.option(
    "--clients",
    metavar="HOSTS",
    help="Hosts that generate the load, such as a,c,d.  [default: all others with that role]",
)
@blocks_option(6, "Number of blocks; intervals need four or more.", maximum=100)
@click.option(
    "--seconds", type=click.FloatRange(0.5, 60), default=3, show_default=True, help="Length of each measurement."
)
@click.option(
    "--threads", type=click.IntRange(1, 10_000), default=16, show_default=True, help="Connections per client."
)
@json_option
def hosts_command(
    source: str, place: str | None, clients: str | None, blocks: int, seconds: float, threads: int, as_json: bool
) -> int:
    """Measure how the load scales over hosts, with 1, 2, 4 … clients against a null server, and the cost of control.

    The cost of control is the time that a trial takes in addition to its warm-up and window, and the CPU time that Ray and the agent
    use on a load host during the window. Against a server with a service time, p50 and p99 of connections divided over all clients are
    compared with those from one client.
    """
    cluster, code = enter_cluster(source)
    if code is not None:
        return code
    from howfar.fleet.roles import assign_hosts, parse_role_hosts, with_clients
    from howfar.fleet.scale_out import ScaleOutRequest, scale_out

    with join_hosts(cluster) as (file, hosts):
        role_hosts = assign_hosts(file, place, clients=clients)
        clients_available = [name for name in file.with_role("client") if name != role_hosts.server]
        default_clients = (
            role_hosts.client if "client" in parse_role_hosts(place or "") else ",".join(clients_available)
        )
        role_hosts = with_clients(role_hosts, file, clients or default_clients)
        load_hosts = [hosts[name] for name in (role_hosts.client, *role_hosts.other_clients)]
        request = ScaleOutRequest(blocks, round(seconds * 1e9), threads)
        result = scale_out(
            hosts[role_hosts.server], load_hosts, request, lambda block: note(f"block {block} of {blocks}")
        )
    if as_json:
        division = None if result.division is None else _as_dict(result.division)
        facts = asdict(result) | {"rows": [_as_dict(row) for row in result.rows], "division": division}
        click.echo(json.dumps(facts, indent=2))
    else:
        _show(result)
    return 0


def _as_dict(row: object) -> dict[str, object]:
    return {name: value.model_dump() if hasattr(value, "model_dump") else value for name, value in vars(row).items()}


def _show(result: ScaleOut) -> None:
    click.echo(
        f"{result.connections} connections per client against a null server on {result.server_cpus} CPUs, "
        f"{result.blocks} blocks of {format_duration_ns(result.measure_ns)}:"
    )
    cells: dict[str, Callable[[Scale], str]] = {
        "clients": lambda row: str(row.clients),
        "queries/s": lambda row: f"{row.queries_per_s.value:,.0f}",
        "x one client": lambda row: interval_text(row.over_one) if row.clients > 1 else "1",
        "busiest thread: client": lambda row: f"{row.client_busy:.0%}",
        "server": lambda row: f"{row.server_busy:.0%}",
        "last start late": lambda row: format_duration_ns(row.late_ns),
        "void": lambda row: str(row.void),
        "control": lambda row: f"{row.control_ns / 1e9:.2f} s",
        "CPU: Ray": lambda row: "-" if row.ray_cpu is None else f"{row.ray_cpu:.2%}",
        "agent": lambda row: f"{row.agent_cpu:.2%}",
    }
    rows = [tuple(cells), *(tuple(format_cell(row) for format_cell in cells.values()) for row in result.rows)]
    for line in columns(rows):
        click.echo(line)
    if result.division is not None:
        click.echo(_describe_division(result.division))
    if result.blocks < MIN_BLOCKS:
        click.echo(f"Fewer than {MIN_BLOCKS} blocks give no intervals, so small differences mean nothing.")


def _describe_division(result: Division) -> str:
    """`64 connections over 4 clients, and a server that takes 5ms: p50 1.000 [0.999, 1.001] and p99 … times those from one client`."""
    service_time = format_duration_ns(result.service_ns)
    return (
        f"{result.connections} connections over {result.clients} clients, and a server that takes {service_time}: "
        f"p50 {interval_text(result.p50)} and p99 {interval_text(result.p99)} times those from one client "
        f"({result.p50_ns / 1e6:.2f} and {result.p99_ns / 1e6:.2f} ms, its busiest thread {result.client_busy:.0%})."
    )
