"""`howfar hosts`: join your own hosts for experiments between them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.screen import columns, json_option, note
from howfar.units import format_duration_ns, format_rate_bps

if TYPE_CHECKING:
    from howfar.fleet.clocks import Offset
    from howfar.fleet.cluster import Cluster
    from howfar.fleet.joined import Distance

_FILE = click.argument("file", default="hosts.toml", type=click.Path(path_type=Path))


@click.group()
def hosts() -> None:
    """Join your own hosts, show what lies between them, and release them.

    FILE lists the hosts (default: `hosts.toml`). They are reached over ssh without a password. Nothing is installed outside
    ~/.cache/howfar on a host, and nothing of howfar runs there after `down`.
    """


@hosts.command("up")
@_FILE
@json_option
def up_command(file: Path, as_json: bool) -> int:
    """Join the hosts of FILE and show them."""
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(file)
    if clusters.inside():
        return _show(cluster, as_json)
    began = time.monotonic()
    note(f"joining {len(cluster.file.hosts)} hosts; the first time, howfar and Ray are installed on each")
    clusters.up(cluster)
    code = clusters.enter(cluster)
    if code == 0:
        note(f"up in {time.monotonic() - began:.0f} s; `howfar hosts down {file}` releases them")
    else:
        clusters.down(cluster)
    return code


@hosts.command("show")
@_FILE
@json_option
def show_command(file: Path, as_json: bool) -> int:
    """Show versions, CPUs and clocks of the hosts of FILE, and the round trip and goodput of each pair.

    Joins them for this long if they are not up. `--json` adds interfaces (speed, offloads), chrony's status and retransmits.
    """
    return _inside(file, lambda cluster: _show(cluster, as_json))


def _inside(file: Path, work: Callable[[Cluster], int]) -> int:
    """Run `work` beside Ray's head, in the cluster that is up or in one that lasts as long."""
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(file)
    if clusters.inside():
        return work(cluster)
    with clusters.held_up(cluster):
        return clusters.enter(cluster)


@hosts.command("down")
@_FILE
def down_command(file: Path) -> int:
    """Release the hosts of FILE: stop everything that howfar runs on them and remove its temporary files."""
    from howfar.fleet import cluster as clusters

    clusters.down(clusters.find_cluster(file))
    return 0


def _show(cluster: Cluster, as_json: bool) -> int:
    from howfar.fleet.joined import chrony, clocks, cpus_of, distances, facts, interface, join

    with join(cluster) as hosts:
        found: dict[str, dict[str, Any]] = {
            name: {
                "address": host.spec.address,
                "roles": list(host.spec.roles),
                "cpus": list(cpus_of(host)),
                "facts": host.within(facts),
                "interface": host.within(interface, host.spec.address),
                "chrony": host.within(chrony),
                "clock": clocks(host),
            }
            for name, host in hosts.items()
        }
        between = distances(hosts)
    if as_json:
        clocks_as = {name: _clock_facts(one["clock"].unix) for name, one in found.items()}
        shown = {name: {**one, "clock": clocks_as[name]} for name, one in found.items()}
        apart = [_distance_facts(one) for one in between]
        click.echo(json.dumps({"hosts": shown, "distances": apart}, indent=2))
        return 0
    rows: list[tuple[str, ...]] = [("host", "address", "roles", "CPUs", "howfar", "Ray", "Python", "kernel", "clock")]
    rows += [_row(name, one) for name, one in found.items()]
    for line in columns(rows):
        click.echo(line)
    if between:
        click.echo("\nRound trip of one byte over TCP, median (minimum):")
        matrix = {(one.source, one.target): one.rtt for one in between}
        for line in columns(_matrix(list(found), matrix)):
            click.echo(line)
        click.echo("")
        lines = [("from", "to", "goodput", "goodput back", "path MTU", "congestion control")]
        for line in columns([*lines, *map(_distance_row, between)]):
            click.echo(line)
    return 0


def _row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    facts = one["facts"]
    return (
        name,
        one["address"],
        ",".join(one["roles"]),
        str(len(one["cpus"])),
        facts["howfar"],
        facts["ray"],
        facts["python"],
        facts["kernel"],
        _clock(one["clock"].unix),
    )


def _distance_facts(one: Distance) -> dict[str, Any]:
    return {
        "from": one.source,
        "to": one.target,
        **one.rtt.model_dump(exclude={"event"}),
        "goodput_bps": {to: round(found.bits_per_second) for to, found in one.goodput.items()},
        "retransmits": {to: found.retransmits for to, found in one.goodput.items()},
        "path_mtu": one.mtu,
        "congestion_control": one.goodput["to_server"].congestion_control,
    }


def _distance_row(one: Distance) -> tuple[str, ...]:
    there, back = (format_rate_bps(round(one.goodput[to].bits_per_second, -7)) for to in ("to_server", "to_client"))
    mtu = "unknown" if one.mtu is None else str(one.mtu)
    return (one.source, one.target, there, back, mtu, one.goodput["to_server"].congestion_control)


def _clock_facts(offset: Offset) -> dict[str, int]:
    return {"offset_ns": offset.offset_ns, "bound_ns": offset.bound_ns}


def _clock(offset: Offset) -> str:
    """The clock's offset from this machine's, as text."""
    bound = format_duration_ns(offset.bound_ns)
    if not offset.is_seen:
        return f"within {bound}"
    sign = "+" if offset.offset_ns > 0 else "-"
    return f"{sign}{format_duration_ns(abs(offset.offset_ns))} ± {bound}"


def _matrix(names: list[str], found: Mapping[tuple[str, str], Any]) -> list[tuple[str, ...]]:
    def cell(one: str, other: str) -> str:
        rtt = found.get((one, other)) or found.get((other, one))
        return "-" if rtt is None else f"{format_duration_ns(rtt.p50_ns)} ({format_duration_ns(rtt.min_ns)})"

    return [("", *names), *((one, *(cell(one, other) for other in names)) for one in names)]
