"""`--on hosts.toml`: a run between the user's own hosts, instead of in the laboratory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.address import parse
from howfar.cli.screen import note
from howfar.contract.environment import HostRoles, UserServerOptions
from howfar.contract.receipt import LinkReceipt
from howfar.errors import PlanError, UsageError
from howfar.paths import find_path, is_local
from howfar.paths.path import chosen_programs
from howfar.plan.factor import Level
from howfar.plan.factors import SERVER_LINKS
from howfar.plan.fitting import FittedPlan, with_link, without_levels
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS
from howfar.units import counted, format_duration_ns, format_rate_bps

if TYPE_CHECKING:
    from howfar.fleet.cluster import FileCluster
    from howfar.fleet.hosts_file import HostsFile
    from howfar.fleet.ray_cluster import ExistingCluster
    from howfar.fleet.remote import RemoteHost
    from howfar.fleet.roles import RoleHosts
    from howfar.fleet.testbed import Hosts
    from howfar.fleet.user_server import UserServer
    from howfar.runner.trial import Instruments

_LINK_OPTIONS = {
    "--rtt": "RTT",
    "--rate": "bandwidth",
    **{f"--{factor.key.replace('_', '-')}": "RTT" for links in SERVER_LINKS for factor in (links.rtt, links.pairs)},
}
_LINK_FACTORS = ("rtt_ns", "rate_bps")
_SERVER_LINK_FACTORS = tuple(factor.name for links in SERVER_LINKS for factor in (links.rtt, links.rate, links.pairs))
_SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True)
class HostOptions:
    """The hosts that a run is to use: `--on` and its options."""

    source: str
    """A file of hosts, or ray://HOST:PORT."""
    place: str | None = None
    clients: str | None = None
    dsn: str | None = None
    password_file: Path | None = None

    @property
    def user_server_options(self) -> UserServerOptions | None:
        """The options with which `howfar resume` finds the user's own server again. They never contain a password."""
        if self.dsn is None:
            return None
        options = UserServerOptions(dsn=self.dsn)
        if self.password_file is not None:
            options.password_file = str(self.password_file.resolve())
        return options

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options as they were written, for the command that repeats the run."""
        values = {
            "--on": self.source,
            "--place": self.place,
            "--clients": self.clients,
            "--dsn": self.dsn,
            "--password-file": self.password_file,
        }
        return tuple(word for option, value in values.items() if value is not None for word in (option, str(value)))


def on_options(command: Any) -> Any:
    """Add `--on` and the options that apply only with it."""
    for option in (
        click.option(
            "--password-file",
            type=click.Path(path_type=Path),
            help="With --dsn, a file whose first line is the password.  [default: HOWFAR_PASSWORD in the environment]",
        ),
        click.option(
            "--dsn",
            metavar="DSN",
            help="With --on, measure your own server on one of the hosts, such as mysql://user@10.0.0.2/sbtest. It is left unchanged.",
        ),
        click.option(
            "--clients",
            metavar="HOSTS",
            help="With --on, several clients that share the load, such as a,c,d (path remote only).",
        ),
        click.option(
            "--place",
            metavar="ROLES",
            help="With --on, the host for each role, such as client=a,server=b.  [default: chosen by the roles in the file]",
        ),
        click.option(
            "--on",
            metavar="FILE|ray://HOST:PORT",
            help="Measure between the hosts in this file (see `howfar hosts`), or those of an existing Ray cluster.",
        ),
    ):
        command = option(command)
    return command


def check_options(host_options: HostOptions | None, other_options: Iterable[object], given_options: set[str]) -> None:
    """Refuse options that do not apply, such as those that set a link: a real link is measured. Raises UsageError."""
    if host_options is None:
        if any(other is not None for other in other_options):
            raise UsageError(
                "--place, --clients, --dsn and --password-file apply only to a run between your own hosts",
                "Use --on with the file that lists them.",
            )
        return
    if chosen_programs():
        raise UsageError(
            "--hop-binary names a file on this machine, but between your own hosts the program runs on one of those",
            "Leave it out, and install the program in the PATH of the host where it will run.",
        )
    if host_options.dsn is not None:
        _check_no_password(host_options.dsn)
    if host_options.dsn is not None and "--server" in given_options:
        raise UsageError("--dsn and --server both name a server", "Leave one of them out.")
    if host_options.password_file is not None and host_options.dsn is None:
        raise UsageError("--password-file applies only to your own server", "Name that server with --dsn.")
    for option, quantity in _LINK_OPTIONS.items():
        if option in given_options:
            raise UsageError(
                f"{option} sets the {quantity} of an emulated link; between your own hosts it is measured",
                f"Leave it out, or leave out --on to have the laboratory emulate that {quantity}.",
            )


def _check_no_password(dsn: str) -> None:
    """Refuse a DSN with a password. Raises UsageError."""
    if parse(dsn).password:
        raise UsageError(
            "--dsn contains a password, which would appear in the run file and in command lines on the other hosts",
            "Leave it out of the DSN, and use --password-file FILE or HOWFAR_PASSWORD.",
        )


def find_user_server(host_options: HostOptions, say: Callable[[str], None]) -> UserServer | None:
    """The user's server that `--dsn` names; None without it. Raises UsageError, EngineError."""
    from howfar.cli.load import find_login
    from howfar.fleet.user_server import user_server_from_dsn
    from howfar.load.cmdline import Options

    if host_options.dsn is None:
        return None
    _check_no_password(host_options.dsn)
    password_file = host_options.password_file
    values = {} if password_file is None else {"password-file": str(password_file)}
    return user_server_from_dsn(find_login(Options(host_options.dsn, None, "run", values, ()), say))


def refuse_confirmation(confirm: bool) -> None:
    """Refuse a confirmation between the user's own hosts. Raises UsageError."""
    if confirm:
        raise UsageError(
            "a confirmation changes links and CPUs, and those of your own hosts cannot be changed",
            "Confirm in the laboratory (without --on), with the RTT and rate that were measured here.",
        )


def enter_cluster(
    source: str, check: Callable[[HostsFile], object] = lambda file: None
) -> tuple[FileCluster | ExistingCluster, int | None]:
    """Find the cluster. For a hosts file, also run this same command inside the cluster, unless this process is inside already.

    Returns the cluster, and the exit code of that command; None if this process itself is to go on. `check` is called with the hosts
    file before its hosts are joined.
    """
    from howfar.fleet import cluster as clusters

    if source.startswith("ray://"):
        from howfar.fleet.ship import local_ray_version

        local_ray_version()
        from howfar.fleet.ray_cluster import parse_cluster_address

        return parse_cluster_address(source), None
    cluster = clusters.find_cluster(Path(source))
    if clusters.is_inside_head():
        return cluster, None
    check(cluster.file)
    if not cluster.is_up():
        note(
            f"joining {counted(len(cluster.file.hosts), 'host')} for this command only; `howfar hosts up` keeps them up"
        )
    with clusters.keep_up(cluster):
        return cluster, clusters.enter(cluster)


@contextmanager
def join_hosts(cluster: FileCluster | ExistingCluster) -> Iterator[tuple[HostsFile, dict[str, RemoteHost]]]:
    """The hosts of the cluster, each with an agent. Raises LabError."""
    from howfar.fleet.cluster import FileCluster
    from howfar.fleet.ray_cluster import join_existing
    from howfar.fleet.ray_driver import join

    if isinstance(cluster, FileCluster):
        with join(cluster) as hosts:
            yield cluster.file, hosts
    else:
        with join_existing(cluster) as joined_hosts:
            yield joined_hosts


@dataclass(frozen=True)
class PreparedHosts:
    """Hosts ready for the trials of a plan, which is fitted to them."""

    plan: Plan
    testbed: Hosts
    instruments: Instruments
    notes: tuple[str, ...]


@contextmanager
def prepare_hosts(
    plan: Plan,
    cluster: FileCluster | ExistingCluster,
    place: str | None,
    clients: str | None = None,
    recorded_roles: HostRoles | None = None,
    user_server: UserServer | None = None,
) -> Iterator[PreparedHosts]:
    """Open the hosts for a plan; must be called inside the cluster. `recorded_roles`: the roles in the run that is resumed. Raises
    UsageError, PlanError, LabError, MissingError, ServerMissing, ServerCrashed."""
    from howfar.cli.session import lab_request
    from howfar.fleet.distances import check_similar_rtts
    from howfar.fleet.load import measure
    from howfar.fleet.roles import add_client_role, can_swap
    from howfar.fleet.testbed import open_hosts
    from howfar.runner.loads import check_workload, load_class
    from howfar.runner.preflight import fit_plan, service_of, unsupported_by_machine, unsupported_by_server
    from howfar.runner.run import program_facts
    from howfar.runner.trial import Instruments

    check_plan(plan, user_server)
    check_workload(plan)
    with join_hosts(cluster) as (file, hosts):
        roles = find_roles(plan, file, place, clients, user_server)
        file = add_client_role(file) if WORKLOADS[plan.workload.kind].is_application else file
        is_resumed = recorded_roles is not None
        may_swap_roles = user_server is None and place is None and clients is None and can_swap(roles, file)
        swaps = may_swap_roles if recorded_roles is None else recorded_roles.swaps
        notes: tuple[str, ...] = ()
        if not is_resumed:
            fitted_paths = _without_impossible_paths(plan)
            plan, notes = fitted_paths.plan, fitted_paths.notes
            for name in dict.fromkeys((roles.client, *roles.names)):
                plan, notes = _without_unsupported_levels(
                    plan, notes, name, hosts[name].within(unsupported_by_machine, plan)
                )
            if user_server is None:
                fitted = hosts[roles.server].within(partial(fit_plan, on_other_host=True), plan)
                plan, notes = fitted.plan, (*notes, *fitted.notes)
            _check_hop_programs(plan, hosts, roles, swaps)
            if (load := load_class(plan)).find_application(plan):
                hosts[roles.client].within(load.check_client, plan, hosts[roles.server].within(service_of, plan))
            for name in roles.replicas:
                plan, notes = _without_unsupported_levels(
                    plan, notes, name, hosts[name].within(unsupported_by_server, plan)
                )
        with open_hosts(hosts, roles, hosts[roles.server].within(lab_request, plan), swaps, user_server) as testbed:
            for role_plural, links in (("clients", testbed.client_facts), ("replicas", testbed.replica_link_facts)):
                if len(links) > 1:
                    check_similar_rtts(links, role_plural)
            if not is_resumed:
                plan, link_notes = _with_measured_links(plan, testbed)
                notes += link_notes
                if user_server is not None:
                    plan = _with_server_kind(plan, testbed.server()[0])
            yield PreparedHosts(
                plan,
                testbed,
                Instruments(measure=measure, watch=testbed.watch, facts=program_facts),
                (*notes, *testbed.warnings),
            )


def find_roles(
    plan: Plan, file: HostsFile, place: str | None, clients: str | None, user_server: UserServer | None
) -> RoleHosts:
    """The host of each role, by the options and the file. Raises UsageError, PlanError."""
    from howfar.fleet.roles import (
        add_client_role,
        assign_hosts,
        check_hop,
        check_supports_clients,
        set_role,
        with_clients,
        with_replicas,
    )

    kind = WORKLOADS[plan.workload.kind]
    if clients and "," in clients and kind.is_application:
        raise PlanError(f"a plan of {kind.operation.plural} can have only one client", "Leave out --clients.")
    file = add_client_role(file) if kind.is_application else file
    if user_server is not None:
        from howfar.fleet.user_server import find_server_host

        place = set_role(place, "server", find_server_host(user_server, file))
    roles = assign_hosts(file, place, kind.is_application, clients)
    if clients:
        roles = with_clients(roles, file, clients)
    replicas, client_count = _max_replicas(plan), 1 + len(roles.other_clients)
    check_supports_clients(client_count, plan.factors.path, replicas > 0)
    if client_count > min(plan.factors.threads):
        raise PlanError(
            f"{client_count} clients share {min(plan.factors.threads)} connections, and each needs one",
            f"Add --threads {client_count}, or more.",
        )
    roles = with_replicas(roles, file, replicas, all(map(is_local, plan.factors.path)))
    check_hop(roles, plan.factors.path)
    return roles


def check_plan(plan: Plan, user_server: UserServer | None = None) -> None:
    """Refuse a plan that the user's own hosts cannot run, before they are joined. Raises PlanError."""
    from howfar.lab.server_group import group_kinds  # imports the laboratory, which --help does not need

    refuse_confirmation(plan.timing.confirm)
    if len(plan.factors.server) > 1:
        raise PlanError(
            f"plan {plan.name} names {len(plan.factors.server)} servers, but a run has only one",
            "Make one run for each server, then compare them with `howfar compare`.",
        )
    for kind in group_kinds():
        kind.check_for_hosts(plan)
    fitted = _without_impossible_paths(plan).plan
    names = (*_LINK_FACTORS, *(_SERVER_LINK_FACTORS if _max_replicas(plan) else ()))
    with_link(fitted, {name: getattr(plan.factors, name)[0] for name in names})  # raises if nothing is left to compare
    if user_server is not None:
        from howfar.fleet.user_server import check_plan_for_user_server

        check_plan_for_user_server(plan)


def _without_impossible_paths(plan: Plan) -> FittedPlan:
    """The plan without paths that are impossible between hosts. Raises PlanError if nothing is left to compare."""
    reason = "not measured between hosts yet; use the laboratory (without --on)"
    return without_levels(
        plan, {"path": {name: reason for name in plan.factors.path if not find_path(name).works_between_hosts}}
    )


def _without_unsupported_levels(
    plan: Plan, notes: tuple[str, ...], host: str, unsupported: Mapping[str, Mapping[Any, str]]
) -> tuple[Plan, tuple[str, ...]]:
    """The plan without the levels that a host does not support, and notes that name the host."""
    fitted = without_levels(plan, unsupported)
    return fitted.plan, (*notes, *(f"{note} (host {host})" for note in fitted.notes))


def _max_replicas(plan: Plan) -> int:
    """The maximum number of replicas of a cell."""
    from howfar.lab.server_group import replicas_spec

    spec = replicas_spec(plan)
    return 0 if spec is None else spec.max_replicas


def _with_server_kind(plan: Plan, kind: str) -> Plan:
    """The plan with the kind of the user's own server."""
    baseline = {"server": kind} if plan.baseline.server is not None else {}  # type: ignore[attr-defined]
    return plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update={"server": (kind,)}),
            "baseline": plan.baseline.model_copy(update=baseline),
        }
    )


def _check_hop_programs(plan: Plan, hosts: Mapping[str, RemoteHost], roles: RoleHosts, swaps: bool) -> None:
    """Check that the paths' proxies and tunnels that can run on a hop are installed there or, without a hop, on the client's host. If
    the roles swap, both hosts are checked. Raises MissingError."""
    from howfar.runner.preflight import check_hop_programs

    client_hosts = (roles.client, roles.server) if swaps else (roles.client,)
    for name in client_hosts if roles.hop is None else (roles.hop,):
        hosts[name].within(check_hop_programs, plan)


def _with_measured_links(plan: Plan, testbed: Hosts) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the measured links as levels, and notes on them; unchanged if the run has no link."""
    client_link, server_links = testbed.link_facts, testbed.server_link_facts
    levels: dict[str, Level] = {} if client_link is None else {**_link_levels(client_link)}
    levels |= _server_link_levels(server_links)
    if not levels:
        return plan, ()
    fitted = with_link(plan, levels)
    crosses_link = any(find_path(name).crosses_link for name in plan.factors.path)
    link_groups: list[tuple[str, Sequence[LinkReceipt]]] = []
    if crosses_link and client_link is not None:
        clients = testbed.client_facts
        link_groups.append(("the clients' links are", clients) if len(clients) > 1 else ("the link is", [client_link]))
    if testbed.hop_facts:
        link_groups.append(("the links to the hop and from it are", testbed.hop_facts))
    if server_links:
        link_groups.append(
            (
                "the link to the replica is" if len(server_links) == 1 else "the links between the servers are",
                server_links,
            )
        )
    notes = (
        f"{links} measured, not emulated, so there is no control arm with a longer RTT: RTT {_format_rtts(facts)}, goodput of one "
        f"connection {format_rate_bps(_min_goodput_bps(facts))} ({format_rate_bps(_min_rate_bps(facts))} including headers)"
        for links, facts in link_groups
    )
    return fitted.plan, (*fitted.notes, *notes)


def _server_link_levels(server_links: Sequence[LinkReceipt]) -> dict[str, Level]:
    """Levels of the factors of links between servers."""
    if not server_links:
        return {}
    rtts_ns = [_link_levels(facts)["rtt_ns"] for facts in server_links]
    # With one link, no pairs of nodes differ: the level is the implied one.
    level = SERVER_LINKS[0].pairs.level_in({}) if len(server_links) == 1 else ",".join(map(format_duration_ns, rtts_ns))
    return dict(zip(_SERVER_LINK_FACTORS, (rtts_ns[0], _min_rate_bps(server_links), level), strict=True))


def _format_rtts(links: Sequence[LinkReceipt]) -> str:
    if len(links) == 1:
        return format_duration_ns(_link_levels(links[0])["rtt_ns"])
    return ", ".join(
        f"{format_duration_ns(_link_levels(link)['rtt_ns'])} ({link.to_host}, {link.from_host})" for link in links
    )


def _min_rate_bps(links: Sequence[LinkReceipt]) -> int:
    return min(_link_levels(link)["rate_bps"] for link in links)


def _min_goodput_bps(links: Sequence[LinkReceipt]) -> int:
    return min(_round(link.slower_bps) for link in links)


def _link_levels(link: LinkReceipt) -> dict[str, int]:
    """A measured link as levels of the laboratory's factors. The rate is computed from the goodput by adding the framing."""
    from howfar.bottleneck.traffic import mtu_from_mss, payload_share  # imports numpy, which --help does not need

    rate_bps = link.slower_bps / payload_share(mtu_from_mss(link.mss))
    return {"rtt_ns": _round(link.real_rtt_ns), "rate_bps": _round(rate_bps)}


def _round(value: float) -> int:
    return int(float(f"{value:.{_SIGNIFICANT_DIGITS}g}"))
