"""`howfar hosts`: join your own hosts for experiments between them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.on_hosts import enter, joined
from howfar.cli.screen import columns, json_option, note
from howfar.cli.suggest import Group
from howfar.units import counted, format_duration_ns, format_rate_bps

if TYPE_CHECKING:
    from howfar.fleet.clocks import Offset
    from howfar.fleet.cluster import Cluster
    from howfar.fleet.existing import ExistingCluster

UNKNOWN = "unknown"
_PAIR_S = 15
"""Time for a pair: goodput of 5 s each way, with its warm-up, and round trips."""
_FILE = click.argument("file", default="hosts.toml", type=click.Path(path_type=Path))


@click.group(cls=Group)
def hosts() -> None:
    """Join your own hosts, show the network between them, and release them.

    FILE lists the hosts (default: `hosts.toml`). They are reached over ssh without a password. Nothing is installed outside
    ~/.cache/howfar on a host, and no process of howfar runs there after `down`.
    """


@hosts.command("up")
@_FILE
@json_option
def up_command(file: Path, as_json: bool) -> int:
    """Join the hosts in FILE and list them."""
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(file)
    if clusters.inside():
        return _show(cluster, as_json, with_distances=False)
    began = time.monotonic()
    note(f"joining {counted(len(cluster.file.hosts), 'host')}; the first time, howfar and Ray are installed on each")
    with clusters.up(cluster) as guard:
        code = clusters.enter(cluster)
        if code == 0:
            guard.stay()
            note(f"up in {time.monotonic() - began:.0f} s; `howfar hosts down {file}` releases them")
    return code


@hosts.command("show")
@click.argument("where", default="hosts.toml", metavar="FILE|ray://HOST:PORT")
@json_option
def show_command(where: str, as_json: bool) -> int:
    """Show the hosts (versions, CPUs, zones, interfaces, clocks) in FILE or in a Ray cluster, and measure each pair.

    Round trip times are medians for one byte over TCP: at rest, with idle CPUs as they are, and with all CPUs awake. Goodput is
    measured for 5 s in each direction. What a host does not report is shown as unknown. Hosts that are not up are joined only for the
    duration of this command. `--json` adds minima, 99th percentiles, retransmissions and bounds.
    """
    cluster, code = enter(where)
    return _show(cluster, as_json) if code is None else code


@hosts.command("down")
@_FILE
@click.option(
    "--force", is_flag=True, help="Release them even while a command measures between them; that command ends."
)
def down_command(file: Path, force: bool) -> int:
    """Release the hosts in FILE: stop everything that howfar runs on them, and remove its temporary files.

    While another command measures between the hosts, this is refused without --force.
    """
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(file)
    clusters.down(cluster, force)
    note(f"released {', '.join(cluster.file.hosts)}")
    return 0


def _show(cluster: Cluster | ExistingCluster, as_json: bool, with_distances: bool = True) -> int:
    from howfar.fleet.distances import clock_says, distances, interface, where
    from howfar.fleet.joined import clocks, cpus_of, facts

    with joined(cluster) as (_, hosts):
        found: dict[str, dict[str, Any]] = {
            name: {
                "address": host.spec.address,
                "roles": list(host.spec.roles),
                "cpus": list(cpus_of(host)),
                "facts": host.within(facts),
                "where": where(host),
                "interface": host.within(interface, host.spec.address),
                "clock": _clock_facts(clocks(host).unix),
                "clock_says": host.within(clock_says),
            }
            for name, host in hosts.items()
        }
        between = []
        if with_distances:
            pairs = len(hosts) * (len(hosts) - 1) // 2
            note(f"measuring {counted(pairs, 'pair')} of hosts, one after the other: about {pairs * _PAIR_S} s")
            between = [one.facts() for one in distances(hosts)]
    if as_json:
        click.echo(json.dumps({"hosts": found, "distances": between}, indent=2))
        return 0
    tables = [_host_rows(found), _network_rows(found)]
    if between:
        tables += [_matrix(list(found), between), _distance_rows(between)]
    click.echo("\n\n".join("\n".join(columns(rows)) for rows in tables))
    if doubts := [*_of_one_machine(found), *_noise(between)]:
        click.echo("\n" + "\n".join(doubts))
    return 0


def _of_one_machine(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each machine that is listed as several hosts."""
    by_boot: dict[str, list[str]] = {}
    for name, one in found.items():
        if boot := one["facts"].get("boot_id"):
            by_boot.setdefault(boot, []).append(name)
    return [
        f"Hosts {', '.join(names)} are one machine (one boot ID): they share its CPUs, and no network lies between them."
        for names in by_boot.values()
        if len(names) > 1
    ]


def _noise(between: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note if an RTT with awake CPUs is above the one at rest: awake CPUs answer no later, so that is noise."""
    if not any(one["rtt_awake_ns"] and one["rtt_awake_ns"]["p50"] > one["rtt_ns"]["p50"] for one in between):
        return []
    return ["Where the RTT awake is above the one at rest, noise is larger than what waking costs."]


def _host_rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    head = ("host", "address", "roles", "CPUs", "howfar", "Ray", "Python", "kernel")
    return [
        head,
        *(
            (
                name,
                one["address"],
                ",".join(one["roles"]),
                str(len(one["cpus"])),
                *(one["facts"][what] for what in ("howfar", "ray", "python", "kernel")),
            )
            for name, one in found.items()
        ),
    ]


def _network_rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    head = ("host", "zone", "rack", "interface", "speed", "offloads", "clock, from here", "clock, by the host itself")
    rows: list[tuple[str, ...]] = [head]
    for name, one in found.items():
        card, at = one["interface"], one["where"]
        speed = format_rate_bps(card["speed_mbit"] * 1e6) if "speed_mbit" in card else card.get("kind", UNKNOWN)
        rows.append(
            (name, at["zone"], at["rack"], card.get("name", UNKNOWN), speed, _offloads(card), _clock(one), _says(one))
        )
    return rows


def _offloads(card: Mapping[str, Any]) -> str:
    if "offloads" not in card:
        return UNKNOWN if card.get("ethtool", True) else f"{UNKNOWN}: no ethtool"
    short = {"tcp-segmentation-offload": "TSO", "generic-segmentation-offload": "GSO", "generic-receive-offload": "GRO"}
    return " ".join(short[name] for name, on in card["offloads"].items() if on) or "none"


def _clock_facts(offset: Offset) -> dict[str, Any]:
    return {"offset_ns": offset.offset_ns, "bound_ns": offset.bound_ns, "is_seen": offset.is_seen}


def _clock(one: Mapping[str, Any]) -> str:
    """The clock's offset from this machine's, as text."""
    clock = one["clock"]
    bound = format_duration_ns(clock["bound_ns"])
    if not clock["is_seen"]:
        return f"within {bound}"
    sign = "+" if clock["offset_ns"] > 0 else "-"
    return f"{sign}{format_duration_ns(abs(clock['offset_ns']))} ± {bound}"


def _says(one: Mapping[str, Any]) -> str:
    says = one["clock_says"]
    if not says:
        return UNKNOWN
    bound = "" if "bound_s" not in says else f", within {format_duration_ns(round(says['bound_s'] * 1e9))}"
    source = f" ({says['source']})" if "source" in says else ""
    return f"{says['by']}{source}: {format_duration_ns(round(abs(says['offset_s']) * 1e9))} off{bound}"


def _matrix(names: Sequence[str], between: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    pairs = {frozenset((one["from"], one["to"])): one for one in between}

    def cell(one: str, other: str) -> str:
        found = pairs.get(frozenset((one, other))) if one != other else None
        if found is None:
            return "-"
        kept = found["rtt_awake_ns"]
        awake = "" if kept is None else f" / {format_duration_ns(kept['p50'])}"
        return f"{format_duration_ns(found['rtt_ns']['p50'])}{awake}"

    return [("RTT at rest / awake", *names), *((one, *(cell(one, other) for other in names)) for one in names)]


def _distance_rows(between: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("from", "to", "goodput", "goodput back", "path MTU", "congestion control")]
    for one in between:
        there, back = (format_rate_bps(round(one["goodput_bps"][to], -7)) for to in ("to_server", "to_client"))
        mtu = UNKNOWN if one["path_mtu"] is None else str(one["path_mtu"])
        rows.append((one["from"], one["to"], there, back, mtu, one["congestion_control"]))
    return rows
