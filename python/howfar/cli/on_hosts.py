"""`--on hosts.toml`: a run between hosts of the user's own, where the laboratory would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.errors import PlanError, UsageError
from howfar.plan.types import Plan
from howfar.units import format_duration_ns, format_rate_bps

if TYPE_CHECKING:
    from howfar.fleet.cluster import Cluster
    from howfar.fleet.testbed import Hosts, HostsRequest
    from howfar.runner.trial import Instruments

_OF_A_LINK = {"--rtt": "RTT", "--rate": "bandwidth"}
_DIGITS = 3


def on_options(command: Any) -> Any:
    """Adds `--on`, `--place` and `--clients`."""
    command = click.option(
        "--place",
        metavar="ROLES",
        help="With --on, who is what: client=a,server=b.  [default: the first that may, in turn]",
    )(command)
    command = click.option(
        "--clients", metavar="HOSTS", help="With --on, several clients that share the load: a,c,d (path remote only)."
    )(command)
    return click.option(
        "--on",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Measure between the hosts of this file (`howfar hosts`).",
    )(command)


def check_options(on: Path | None, place: str | None, given: set[str]) -> None:
    """A real link is measured, not set. Raises UsageError."""
    if on is None:
        if place is not None:
            raise UsageError("--place says who is what among hosts of your own", "Name their file with --on.")
        return
    for option, what in _OF_A_LINK.items():
        if option in given:
            raise UsageError(
                f"{option} sets the {what} of an emulated link; between hosts of your own it is measured",
                f"Leave it out; or leave --on out, and the laboratory emulates that {what}.",
            )


def check_confirms(on_hosts: bool, confirm: bool) -> None:
    """Raises UsageError."""
    if on_hosts and confirm:
        raise UsageError(
            "a confirmation changes links and CPUs, and those of your own hosts are what they are",
            "Confirm in the laboratory (without --on), with the RTT and rate that were measured here.",
        )


def enter(on: Path) -> tuple[Cluster, int | None]:
    """The cluster; and None inside, else the exit code of this very command, run inside."""
    from howfar.fleet import cluster as clusters

    cluster = clusters.find_cluster(on)
    if clusters.inside():
        return cluster, None
    with clusters.held_up(cluster):
        return cluster, clusters.enter(cluster)


@dataclass(frozen=True)
class Opened:
    """Hosts ready for the trials of a plan, which is fitted to them."""

    plan: Plan
    testbed: Hosts
    tools: Instruments
    notes: tuple[str, ...]


@contextmanager
def opened(
    plan: Plan, cluster: Cluster, place: str | None, clients: str | None = None, before: Mapping[str, Any] | None = None
) -> Iterator[Opened]:
    """Call inside. `before`: the roles of a run that was begun here and goes on. Raises what a laboratory does, and PlanError."""
    from howfar.fleet.joined import join
    from howfar.fleet.load import measure
    from howfar.fleet.place import find_place, may_swap, with_clients
    from howfar.fleet.testbed import open_hosts
    from howfar.runner.preflight import fit
    from howfar.runner.run import program_facts
    from howfar.runner.trial import Instruments

    _check_plan(plan)
    chosen = find_place(cluster.file, place)
    if clients:
        chosen = with_clients(chosen, cluster.file, clients)
    goes_on = before is not None
    swaps = bool(before.get("swaps")) if before is not None else place is None and may_swap(chosen, cluster.file)
    with join(cluster) as hosts:
        notes: tuple[str, ...] = ()
        if not goes_on:
            can = hosts[chosen.server].within(fit, plan)
            plan, notes = can.plan, can.notes
        with open_hosts(hosts, chosen, _request(plan), swaps) as testbed:
            if not goes_on:
                plan, more = _with_link(plan, testbed.link_facts)
                notes += more
            yield Opened(plan, testbed, Instruments(measure=measure, watch=testbed.watch, facts=program_facts), notes)


def _check_plan(plan: Plan) -> None:
    """Raises PlanError."""
    factors = plan.factors
    for name, levels, words in (("rtt", factors.rtt_ns, "RTTs"), ("rate", factors.rate_bps, "bandwidths")):
        if len(levels) > 1:
            raise PlanError(
                f"plan {plan.name} compares {words}, and the link between hosts of your own is what it is",
                f"The laboratory (without --on) emulates each; or give the plan one {name}, which is then measured.",
            )
    check_confirms(True, plan.timing.confirm)
    if set(factors.replication) - {"off", "none"} or plan.workload.kind in ("page", "key_value"):
        raise PlanError(
            f"plan {plan.name} needs more than one client and one SQL server, which hosts of your own do not give yet",
            "The laboratory (without --on) does.",
        )


def _request(plan: Plan) -> HostsRequest:
    from howfar.cli.session import lab_request
    from howfar.fleet.testbed import HostsRequest
    from howfar.lab.servers import Tables

    wanted = lab_request(plan)
    return HostsRequest(
        server=wanted.server,
        tables=Tables(wanted.tables, wanted.table_size),
        connections=wanted.connections,
        placement=wanted.placement,
        paths=wanted.paths,
        contents=wanted.contents,
        prepare=wanted.prepare,
    )


def _with_link(plan: Plan, link: Mapping[str, Any] | None) -> tuple[Plan, tuple[str, ...]]:
    """What was measured in place of what would be set; and no control arms, whose links would be longer ones."""
    if link is None:
        return plan, ()
    rtt_ns, rate_bps = _rounded(link["rtt_ns"]["p50"]), _rounded(min(link["goodput_bps"].values()))
    factors = plan.factors.model_copy(update={"rtt_ns": (rtt_ns,), "rate_bps": (rate_bps,)})
    timing = plan.timing.model_copy(update={"controls": False})
    note = (
        f"the link is measured, not set: RTT {format_duration_ns(rtt_ns)}, goodput {format_rate_bps(rate_bps)}; "
        "so there are no control arms with a longer one"
    )
    return plan.model_copy(update={"factors": factors, "timing": timing}), (note,)


def _rounded(value: float) -> int:
    return int(float(f"{value:.{_DIGITS}g}"))
