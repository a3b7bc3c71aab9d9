"""`howfar hosts`: join your own hosts for experiments between them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from howfar.cli.on_hosts import enter_cluster, join_hosts
from howfar.cli.screen import columns, json_option, note
from howfar.cli.suggest import Group
from howfar.contract.environment import ClockSync, HostFacts, Interface
from howfar.contract.receipt import LinkReceipt
from howfar.units import counted, format_duration_ns, format_rate_bps

if TYPE_CHECKING:
    from howfar.fleet.clocks import Offset
    from howfar.fleet.cluster import FileCluster
    from howfar.fleet.ray_cluster import ExistingCluster

UNKNOWN = "unknown"
_SECONDS_PER_PAIR = 15
"""Time to measure a pair of hosts: goodput for 5 s in each direction with its warm-up, and round trips."""
_FILE_ARGUMENT = click.argument("file", default="hosts.toml", type=click.Path(path_type=Path))


@click.group(cls=Group)
def hosts() -> None:
    """Join your own hosts, show the network between them, and release them.

    FILE lists the hosts (default: `hosts.toml`). They are reached over ssh without a password. Nothing is installed outside
    ~/.cache/howfar on a host, and no process of howfar runs there after `down`.
    """


@hosts.command("up")
@_FILE_ARGUMENT
@json_option
def up_command(file: Path, as_json: bool) -> int:
    """Join the hosts in FILE and list them."""
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(file)
    if clusters.is_inside_head():
        return _show(cluster, as_json, with_distances=False)
    began = time.monotonic()
    note(f"joining {counted(len(cluster.file.hosts), 'host')}; the first time, howfar and Ray are installed on each")
    with clusters.bring_up(cluster) as guard:
        code = clusters.enter(cluster)
        if code == 0:
            guard.stay()
            note(f"up in {time.monotonic() - began:.0f} s; `howfar hosts down {file}` releases them")
    return code


@hosts.command("show")
@click.argument("source", default="hosts.toml", metavar="FILE|ray://HOST:PORT")
@json_option
def show_command(source: str, as_json: bool) -> int:
    """Show the hosts (versions, CPUs, zones, interfaces, clocks) in FILE or in a Ray cluster, and measure each pair.

    Round trip times are medians for one byte over TCP: unloaded, with idle CPUs as they are, and with all CPUs awake. Goodput is
    measured for 5 s in each direction. What a host does not report is shown as unknown. Hosts that are not up are joined only for the
    duration of this command. `--json` adds minima, 99th percentiles, retransmissions and bounds.
    """
    cluster, code = enter_cluster(source)
    return _show(cluster, as_json) if code is None else code


@hosts.command("down")
@_FILE_ARGUMENT
@click.option(
    "--force", is_flag=True, help="Release them even while a command measures between them; that command ends."
)
def down_command(file: Path, force: bool) -> int:
    """Release the hosts in FILE: stop everything that howfar runs on them, and remove its temporary files.

    While another command measures between the hosts, this is refused without --force.
    """
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(file)
    clusters.take_down(cluster, force)
    note(f"released {', '.join(cluster.file.hosts)}")
    return 0


@dataclass(frozen=True)
class ShownHost:
    """A host as `howfar hosts show` shows it."""

    address: str
    roles: tuple[str, ...]
    cpus: tuple[int, ...]
    facts: HostFacts
    where: Mapping[str, str]
    interface: Interface
    clock: Offset
    clock_says: ClockSync

    def as_json(self) -> dict[str, object]:
        parts = {"facts": self.facts, "interface": self.interface, "clock_says": self.clock_says}
        clock = {**vars(self.clock), "is_seen": self.clock.is_significant}
        return {**vars(self), "clock": clock, **{name: part.as_json() for name, part in parts.items()}}


def _show(cluster: FileCluster | ExistingCluster, as_json: bool, with_distances: bool = True) -> int:
    from howfar.fleet.distances import locate_host, measure_all_pairs, read_clock_sync, read_interface
    from howfar.fleet.ray_driver import cpus_of, measure_clocks, read_host_facts

    with join_hosts(cluster) as (_, hosts):
        shown_hosts = {
            name: ShownHost(
                address=host.spec.address,
                roles=tuple(host.spec.roles),
                cpus=cpus_of(host),
                facts=host.within(read_host_facts),
                where=locate_host(host),
                interface=host.within(read_interface, host.spec.address),
                clock=measure_clocks(host).unix,
                clock_says=host.within(read_clock_sync),
            )
            for name, host in hosts.items()
        }
        links: list[LinkReceipt] = []
        if with_distances:
            pair_count = len(hosts) * (len(hosts) - 1) // 2
            note(
                f"measuring {counted(pair_count, 'pair')} of hosts, one after the other: about {pair_count * _SECONDS_PER_PAIR} s"
            )
            links = [distance.facts() for distance in measure_all_pairs(hosts)]
    if as_json:
        host_facts = {name: host.as_json() for name, host in shown_hosts.items()}
        click.echo(json.dumps({"hosts": host_facts, "distances": [link.as_json() for link in links]}, indent=2))
        return 0
    tables = [_host_rows(shown_hosts), _network_rows(shown_hosts)]
    if links:
        tables += [_rtt_rows(list(shown_hosts), links), _distance_rows(links)]
    click.echo("\n\n".join("\n".join(columns(rows)) for rows in tables))
    if warnings := [
        *_warn_of_shared_machines({name: host.facts for name, host in shown_hosts.items()}),
        *_warn_of_noise(links),
    ]:
        click.echo("\n" + "\n".join(warnings))
    return 0


def _warn_of_shared_machines(host_facts: Mapping[str, HostFacts]) -> list[str]:
    """A sentence for each machine that is listed as several hosts."""
    by_boot: dict[str, list[str]] = {}
    for name, facts in host_facts.items():
        if facts.boot_id:
            by_boot.setdefault(facts.boot_id, []).append(name)
    return [
        f"Hosts {', '.join(names)} are one machine (one boot ID): they share its CPUs, and no network lies between them."
        for names in by_boot.values()
        if len(names) > 1
    ]


def _warn_of_noise(distances: Sequence[LinkReceipt]) -> list[str]:
    """A note if an RTT with awake CPUs is above the unloaded RTT. Waking CPUs only adds time, so such a difference is noise."""
    if not any(link.rtt_awake_ns is not None and (link.rtt_awake_ns.p50 or 0) > link.real_rtt_ns for link in distances):
        return []
    return ["Where the RTT awake is above the unloaded one, noise is larger than what waking costs."]


def _host_rows(hosts: Mapping[str, ShownHost]) -> list[tuple[str, ...]]:
    headings = ("host", "address", "roles", "CPUs", "howfar", "Ray", "Python", "kernel")
    return [
        headings,
        *(
            (
                name,
                host.address,
                ",".join(host.roles),
                str(len(host.cpus)),
                *(str(fact) for fact in (host.facts.howfar, host.facts.ray, host.facts.python, host.facts.kernel)),
            )
            for name, host in hosts.items()
        ),
    ]


def _network_rows(hosts: Mapping[str, ShownHost]) -> list[tuple[str, ...]]:
    headings = (
        "host",
        "zone",
        "rack",
        "interface",
        "speed",
        "offloads",
        "clock, from here",
        "clock, by the host itself",
    )
    rows: list[tuple[str, ...]] = [headings]
    for name, host in hosts.items():
        interface = host.interface
        speed = (
            format_rate_bps(interface.speed_mbit * 1e6)
            if interface.speed_mbit is not None
            else interface.kind or UNKNOWN
        )
        rows.append(
            (
                name,
                host.where["zone"],
                host.where["rack"],
                interface.name or UNKNOWN,
                speed,
                _format_offloads(interface),
                _format_clock(host.clock),
                _format_own_clock(host.clock_says),
            )
        )
    return rows


def _format_offloads(interface: Interface) -> str:
    if interface.offloads is None:
        return UNKNOWN if interface.ethtool else f"{UNKNOWN}: no ethtool"
    abbreviations = {
        "tcp-segmentation-offload": "TSO",
        "generic-segmentation-offload": "GSO",
        "generic-receive-offload": "GRO",
    }
    return " ".join(abbreviations[name] for name, is_on in interface.offloads.items() if is_on) or "none"


def _format_clock(clock: Offset) -> str:
    """The clock's offset from this machine's, as text."""
    bound = format_duration_ns(clock.bound_ns)
    if not clock.is_significant:
        return f"within {bound}"
    sign = "+" if clock.offset_ns > 0 else "-"
    return f"{sign}{format_duration_ns(abs(clock.offset_ns))} ± {bound}"


def _format_own_clock(sync: ClockSync) -> str:
    if sync.offset_s is None:
        return UNKNOWN
    bound = "" if sync.bound_s is None else f", within {format_duration_ns(round(sync.bound_s * 1e9))}"
    source = "" if sync.source is None else f" ({sync.source})"
    return f"{sync.by}{source}: {format_duration_ns(round(abs(sync.offset_s) * 1e9))} off{bound}"


def _rtt_rows(names: Sequence[str], distances: Sequence[LinkReceipt]) -> list[tuple[str, ...]]:
    pairs = {frozenset((link.from_host, link.to_host)): link for link in distances}

    def cell(from_host: str, to_host: str) -> str:
        link = pairs.get(frozenset((from_host, to_host))) if from_host != to_host else None
        if link is None:
            return "-"
        awake_ns = None if link.rtt_awake_ns is None else link.rtt_awake_ns.p50
        return (
            f"{format_duration_ns(link.real_rtt_ns)}{'' if awake_ns is None else f' / {format_duration_ns(awake_ns)}'}"
        )

    return [("unloaded RTT / awake", *names), *((row, *(cell(row, column) for column in names)) for row in names)]


def _distance_rows(distances: Sequence[LinkReceipt]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("from", "to", "goodput", "goodput back", "path MTU", "congestion control")]
    for link in distances:
        bps = (None, None) if link.goodput_bps is None else (link.goodput_bps.to_server, link.goodput_bps.to_client)
        goodput, goodput_back = (UNKNOWN if rate is None else format_rate_bps(round(rate, -7)) for rate in bps)
        mtu = UNKNOWN if link.path_mtu is None else str(link.path_mtu)
        pair = str(link.from_host), str(link.to_host)
        rows.append((*pair, goodput, goodput_back, mtu, link.congestion_control or UNKNOWN))
    return rows
