"""`--on hosts.toml`: a run between the user's own hosts, instead of in the laboratory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.address import parse
from howfar.cli.screen import note
from howfar.errors import PlanError, UsageError
from howfar.paths import find_path, is_local
from howfar.paths.path import given_programs
from howfar.plan.distances import EVEN
from howfar.plan.factors import CLUSTERS, Level
from howfar.plan.fitting import Fitted, with_link, without_levels
from howfar.plan.types import Plan
from howfar.units import counted, format_duration_ns, format_rate_bps

if TYPE_CHECKING:
    from howfar.fleet.cluster import Cluster
    from howfar.fleet.existing import ExistingCluster
    from howfar.fleet.given import GivenServer
    from howfar.fleet.hosts_file import HostsFile
    from howfar.fleet.remote import RemoteHost
    from howfar.fleet.roles import RoleHosts
    from howfar.fleet.testbed import Hosts
    from howfar.runner.trial import Instruments

_OF_A_LINK = {"--rtt": "RTT", "--rate": "bandwidth", "--replica-rtt": "RTT", "--distances": "RTT"}
_LINK = ("rtt_ns", "rate_bps")
_BETWEEN_SERVERS = ("replica_rtt_ns", "replica_rate_bps", "distances")
_DIGITS = 3


@dataclass(frozen=True)
class OnHosts:
    """The hosts that a run is to use: `--on` and its options."""

    where: str
    """A file of hosts, or ray://HOST:PORT."""
    place: str | None = None
    clients: str | None = None
    dsn: str | None = None
    password_file: Path | None = None

    @property
    def given(self) -> dict[str, str] | None:
        """How `howfar resume` finds the user's own server again; without a password."""
        if self.dsn is None:
            return None
        file = {} if self.password_file is None else {"password_file": str(self.password_file.resolve())}
        return {"dsn": self.dsn, **file}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options as they were written, for the command that repeats the run."""
        named = {
            "--on": self.where,
            "--place": self.place,
            "--clients": self.clients,
            "--dsn": self.dsn,
            "--password-file": self.password_file,
        }
        return tuple(word for option, value in named.items() if value is not None for word in (option, str(value)))


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
            help="With --on, your own server on one of the hosts, left unchanged, such as mysql://user@10.0.0.2/sbtest.",
        ),
        click.option(
            "--clients",
            metavar="HOSTS",
            help="With --on, several clients that share the load, such as a,c,d (path remote only).",
        ),
        click.option(
            "--place",
            metavar="ROLES",
            help="With --on, the host for each role, such as client=a,server=b.  [default: the first hosts with those roles]",
        ),
        click.option(
            "--on",
            metavar="FILE|ray://HOST:PORT",
            help="Measure between the hosts in this file (see `howfar hosts`), or those of an existing Ray cluster.",
        ),
    ):
        command = option(command)
    return command


def check_options(on: OnHosts | None, others: Iterable[object], given: set[str]) -> None:
    """Refuse options that do not fit, such as those that set a link: a real link is measured. Raises UsageError."""
    if on is None:
        if any(other is not None for other in others):
            raise UsageError(
                "--place, --clients, --dsn and --password-file apply only to a run between your own hosts",
                "Name their file with --on.",
            )
        return
    if given_programs():
        raise UsageError(
            "--hop-binary names a program of this machine; between your own hosts programs run on them",
            "Leave it out, and have the program in the PATH of the host where it is to run.",
        )
    if on.dsn is not None:
        _check_no_password(on.dsn)
    if on.dsn is not None and "--server" in given:
        raise UsageError("--dsn names the server, and --server another", "Leave one of them out.")
    if on.password_file is not None and on.dsn is None:
        raise UsageError("--password-file applies only to your own server", "Name that server with --dsn.")
    for option, what in _OF_A_LINK.items():
        if option in given:
            raise UsageError(
                f"{option} sets the {what} of an emulated link; between your own hosts it is measured",
                f"Leave it out, or leave out --on to have the laboratory emulate that {what}.",
            )


def _check_no_password(dsn: str) -> None:
    """Refuse a DSN with a password. Raises UsageError."""
    if parse(dsn).password:
        raise UsageError(
            "--dsn has a password, and the run file and the other hosts' command lines would hold it",
            "Leave it out of the DSN, and use --password-file FILE or HOWFAR_PASSWORD.",
        )


def find_given(on: OnHosts, say: Callable[[str], None]) -> GivenServer | None:
    """The server that a DSN names. None for howfar's own server. Raises UsageError, EngineError."""
    from howfar.cli.load import find_login
    from howfar.fleet.given import given_server
    from howfar.load.cmdline import Options

    if on.dsn is None:
        return None
    _check_no_password(on.dsn)
    values = {} if on.password_file is None else {"password-file": on.password_file}
    return given_server(find_login(Options(on.dsn, None, "run", values, ()), say))


def check_confirms(on_hosts: bool, confirm: bool) -> None:
    """Refuse a confirmation between the user's own hosts. Raises UsageError."""
    if on_hosts and confirm:
        raise UsageError(
            "a confirmation changes links and CPUs, and those of your own hosts cannot be changed",
            "Confirm in the laboratory (without --on), with the RTT and rate that were measured here.",
        )


def enter(
    where: str, check: Callable[[HostsFile], object] = lambda file: None
) -> tuple[Cluster | ExistingCluster, int | None]:
    """The cluster, and None if this process is inside it; else the exit code of this same command, run inside. `check` is called with
    the hosts file before its hosts are joined."""
    from howfar.fleet import cluster as clusters

    if where.startswith("ray://"):
        from howfar.fleet.ship import ray_version

        ray_version()
        from howfar.fleet.existing import existing_cluster

        return existing_cluster(where), None
    cluster = clusters.find_cluster(Path(where))
    if clusters.inside():
        return cluster, None
    check(cluster.file)
    if not cluster.is_up():
        note(f"joining {counted(len(cluster.file.hosts), 'host')} for this command alone; `howfar hosts up` keeps them")
    with clusters.held_up(cluster):
        return cluster, clusters.enter(cluster)


@contextmanager
def joined(cluster: Cluster | ExistingCluster) -> Iterator[tuple[HostsFile, dict[str, RemoteHost]]]:
    """The hosts of the cluster, each with an agent. Raises LabError."""
    from howfar.fleet.cluster import Cluster
    from howfar.fleet.existing import join_existing
    from howfar.fleet.joined import join

    if isinstance(cluster, Cluster):
        with join(cluster) as hosts:
            yield cluster.file, hosts
    else:
        with join_existing(cluster) as found:
            yield found


@dataclass(frozen=True)
class Opened:
    """Hosts ready for the trials of a plan, which is fitted to them."""

    plan: Plan
    testbed: Hosts
    tools: Instruments
    notes: tuple[str, ...]


@contextmanager
def opened(
    plan: Plan,
    cluster: Cluster | ExistingCluster,
    place: str | None,
    clients: str | None = None,
    before: Mapping[str, Any] | None = None,
    given: GivenServer | None = None,
) -> Iterator[Opened]:
    """Open the hosts; call inside the cluster. `before`: the roles of a resumed run. Raises what a laboratory does, PlanError."""
    from howfar.cli.session import lab_request
    from howfar.fleet.distances import check_alike
    from howfar.fleet.load import measure
    from howfar.fleet.roles import for_pages, may_swap
    from howfar.fleet.testbed import open_hosts
    from howfar.runner.jobs import check_workload
    from howfar.runner.preflight import check_application, fit, machine_lacks, of_replication, service_of
    from howfar.runner.run import program_facts
    from howfar.runner.trial import Instruments

    check_plan(plan, given)
    check_workload(plan)
    with joined(cluster) as (file, hosts):
        chosen = find_roles(plan, file, place, clients, given)
        file = for_pages(file) if plan.workload.kind == "page" else file
        goes_on = before is not None
        may = given is None and place is None and clients is None and may_swap(chosen, file)
        swaps = may if before is None else bool(before.get("swaps"))
        notes: tuple[str, ...] = ()
        if not goes_on:
            possible = _with_possible(plan)
            plan, notes = possible.plan, possible.notes
            for name in dict.fromkeys((chosen.client, *chosen.names)):
                plan, notes = _without(plan, notes, name, hosts[name].within(machine_lacks, plan))
            if given is None:
                can = hosts[chosen.server].within(fit, plan, True)
                plan, notes = can.plan, (*notes, *can.notes)
            _check_movable(plan, hosts, chosen, swaps)
            if "php" in plan.factors.application:
                service = hosts[chosen.server].within(service_of, plan)
                hosts[chosen.client].within(check_application, plan, service)
            for name in chosen.replicas:
                plan, notes = _without(plan, notes, name, hosts[name].within(of_replication, plan))
        with open_hosts(hosts, chosen, hosts[chosen.server].within(lab_request, plan), swaps, given) as testbed:
            for what, links in (("clients", testbed.client_facts), ("replicas", testbed.followers)):
                if len(links) > 1:
                    check_alike(links, what)
            if not goes_on:
                plan, more = _with_measured(plan, testbed)
                notes += more
                if given is not None:
                    plan = _with_given(plan, testbed.server()[0])
            yield Opened(
                plan,
                testbed,
                Instruments(measure=measure, watch=testbed.watch, facts=program_facts),
                (*notes, *testbed.warnings),
            )


def find_roles(
    plan: Plan, file: HostsFile, place: str | None, clients: str | None, given: GivenServer | None
) -> RoleHosts:
    """The host of each role, by the options and the file. Raises UsageError, PlanError."""
    from howfar.fleet.roles import check_hop, check_shared, find_place, for_pages, placed, with_clients, with_replicas

    pages = plan.workload.kind == "page"
    if clients and "," in clients and pages:
        raise PlanError("pages are requested by only one client", "Leave out --clients.")
    file = for_pages(file) if pages else file
    if given is not None:
        from howfar.fleet.given import host_of

        place = placed(place, "server", host_of(given, file))
    chosen = find_place(file, place, pages, clients)
    if clients:
        chosen = with_clients(chosen, file, clients)
    replicas, several = _replicas(plan), 1 + len(chosen.others)
    check_shared(several, plan.factors.path, replicas > 0)
    if several > min(plan.factors.threads):
        raise PlanError(
            f"{several} clients share {min(plan.factors.threads)} connections, and each needs one",
            f"Add --threads {several}, or more.",
        )
    chosen = with_replicas(chosen, file, replicas, all(map(is_local, plan.factors.path)))
    check_hop(chosen, plan.factors.path)
    return chosen


def check_plan(plan: Plan, given: GivenServer | None = None) -> None:
    """Refuse a plan that the user's own hosts cannot run, before they are joined. Raises PlanError."""
    check_confirms(True, plan.timing.confirm)
    if len(plan.factors.server) > 1:
        raise PlanError(
            f"plan {plan.name} names {len(plan.factors.server)} servers, but a run has only one",
            "Make one run for each server, then compare them with `howfar compare`.",
        )
    if needs := _needs(plan):
        raise PlanError(
            f"plan {plan.name} needs {needs}, which your own hosts do not provide yet",
            "The laboratory (without --on) provides them.",
        )
    if set(CLUSTERS) & set(plan.factors.replication) and len(plan.factors.replicas) > 1:
        raise PlanError(
            f"plan {plan.name} compares clusters of several sizes, but the links of only one are measured",
            "Name one number of replicas.",
        )
    fitted = _with_possible(plan).plan
    there = (*_LINK, *(_BETWEEN_SERVERS if _replicas(plan) else ()))
    with_link(fitted, {name: getattr(plan.factors, name)[0] for name in there})
    if given is not None:
        from howfar.fleet.given import check_given

        check_given(plan)


def _with_possible(plan: Plan) -> Fitted:
    """The plan without paths that are impossible between hosts. Raises PlanError if nothing is left to compare."""
    reason = "not measured between hosts yet; use the laboratory (without --on)"
    return without_levels(
        plan, {"path": {name: reason for name in plan.factors.path if not find_path(name).between_hosts}}
    )


def _without(
    plan: Plan, notes: tuple[str, ...], host: str, lacking: Mapping[str, Mapping[Any, str]]
) -> tuple[Plan, tuple[str, ...]]:
    """The plan without the levels that a host lacks, and notes that name the host."""
    able = without_levels(plan, lacking)
    return able.plan, (*notes, *(f"{note} (host {host})" for note in able.notes))


def _needs(plan: Plan) -> str:
    """What a plan needs that hosts do not provide; empty if nothing."""
    if set(plan.factors.fault) - {"none"}:
        return "links that can be cut and servers that can be broken"
    if set(plan.factors.writers) - {"one"}:
        return "clients on two nodes of a cluster"
    return ""


def _replicas(plan: Plan) -> int:
    """The maximum number of replicas of a cell."""
    from howfar.cli.session import replicas_of

    wanted = replicas_of(plan)
    return 0 if wanted is None else wanted.most


def _with_given(plan: Plan, kind: str) -> Plan:
    """The plan with the kind of the user's own server."""
    named = {"server": kind} if plan.baseline.server is not None else {}  # type: ignore[attr-defined]
    return plan.model_copy(
        update={
            "factors": plan.factors.model_copy(update={"server": (kind,)}),
            "baseline": plan.baseline.model_copy(update=named),
        }
    )


def _check_movable(plan: Plan, hosts: Mapping[str, RemoteHost], chosen: RoleHosts, swaps: bool) -> None:
    """Check the programs that run on the hop, or without one on the client's host, which may be either if roles swap. Raises
    MissingError."""
    from howfar.runner.preflight import check_movable

    beside = (chosen.client, chosen.server) if swaps else (chosen.client,)
    for name in beside if chosen.hop is None else (chosen.hop,):
        hosts[name].within(check_movable, plan)


def _with_measured(plan: Plan, testbed: Hosts) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the links that were measured, and notes on them; a run may have no link."""
    first, servers = testbed.link_facts, testbed.replica_facts
    there: dict[str, Level] = {} if first is None else {**_measured(first)}
    there |= _between(servers)
    if not there:
        return plan, ()
    fitted = with_link(plan, there)
    crosses = any(find_path(name).crosses_link for name in plan.factors.path)
    said: list[tuple[str, Sequence[Mapping[str, Any]]]] = []
    if crosses and first is not None:
        clients = testbed.client_facts
        said.append(("the clients' links are", clients) if len(clients) > 1 else ("the link is", [first]))
    if testbed.hop_facts:
        said.append(("the links to the hop and from it are", testbed.hop_facts))
    if servers:
        said.append(
            ("the link to the replica is" if len(servers) == 1 else "the links between the servers are", servers)
        )
    notes = (
        f"{links} measured, not set: RTT {_rtts(facts)}, goodput of one connection {format_rate_bps(_least_goodput_bps(facts))} "
        f"({format_rate_bps(_least_bps(facts))} with framing); so there is no control arm with a longer RTT"
        for links, facts in said
    )
    return fitted.plan, (*fitted.notes, *notes)


def _between(servers: Sequence[Mapping[str, Any]]) -> dict[str, Level]:
    """Levels of the factors of links between servers."""
    if not servers:
        return {}
    rtts_ns = [_measured(facts)["rtt_ns"] for facts in servers]
    level = EVEN if len(servers) == 1 else ",".join(map(format_duration_ns, rtts_ns))
    return dict(zip(_BETWEEN_SERVERS, (rtts_ns[0], _least_bps(servers), level), strict=True))


def _rtts(links: Sequence[Mapping[str, Any]]) -> str:
    if len(links) == 1:
        return format_duration_ns(_measured(links[0])["rtt_ns"])
    return ", ".join(f"{format_duration_ns(_measured(one)['rtt_ns'])} ({one['to']}, {one['from']})" for one in links)


def _least_bps(links: Sequence[Mapping[str, Any]]) -> int:
    return min(_measured(one)["rate_bps"] for one in links)


def _least_goodput_bps(links: Sequence[Mapping[str, Any]]) -> int:
    return min(_rounded(min(one["goodput_bps"].values())) for one in links)


def _measured(link: Mapping[str, Any]) -> dict[str, int]:
    """A measured link as levels of the laboratory's factors; the rate on the wire includes the framing, goodput does not."""
    from howfar.bottleneck.traffic import mtu_of, payload_share  # numpy, which --help need not import

    rate_bps = min(link["goodput_bps"].values()) / payload_share(mtu_of(link))
    return {"rtt_ns": _rounded(link["rtt_ns"]["p50"]), "rate_bps": _rounded(rate_bps)}


def _rounded(value: float) -> int:
    return int(float(f"{value:.{_DIGITS}g}"))
