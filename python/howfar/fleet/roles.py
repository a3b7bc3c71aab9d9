"""Assigns roles to the hosts of a run, from `--place` and `--clients`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from howfar.errors import PlanError, UsageError
from howfar.fleet.hosts_file import AUTOMATIC_ROLES, REQUIRED_ROLES, ROLES, HostsFile, Role
from howfar.paths import PATHS, is_movable


@dataclass(frozen=True)
class RoleHosts:
    """The hosts of a run, by role."""

    client: str
    server: str
    other_clients: tuple[str, ...] = ()
    """Further clients, which share the load with the first."""
    replicas: tuple[str, ...] = ()
    hop: str | None = None
    """Separate host of the program in between (proxy, tunnel); None if that program runs on the client's or the server's host."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all hosts without duplicates, beginning with the server's."""
        hop = () if self.hop is None else (self.hop,)
        return tuple(dict.fromkeys((self.server, self.client, *self.other_clients, *self.replicas, *hop)))

    @property
    def swapped(self) -> RoleHosts:
        return RoleHosts(self.server, self.client)


def can_swap(role_hosts: RoleHosts, file: HostsFile) -> bool:
    """Whether the two hosts may exchange their roles."""
    has_only_two = not (role_hosts.other_clients or role_hosts.replicas or role_hosts.hop)
    return has_only_two and all(
        set(REQUIRED_ROLES) <= set(file.hosts[name].roles) for name in (role_hosts.client, role_hosts.server)
    )


def assign_hosts(
    file: HostsFile, place: str | None, is_application: bool = False, clients: str | None = None
) -> RoleHosts:
    """Assign hosts to roles by the value of `--place`, such as `client=a,server=b`, which may leave roles open. `is_application`: the
    client is an application, and `--place` may call it so. `clients`: as for `with_clients`; the first one is the client unless
    `client=` names another. Raises UsageError."""
    hosts_by_role = parse_role_hosts(place or "")
    if unknown := set(hosts_by_role) - set(ROLES):
        raise UsageError(f"--place: no role is called {sorted(unknown)[0]!r}", f"Known: {', '.join(ROLES)}.")
    if is_application:
        hosts_by_role = _with_role_client(hosts_by_role)
    elif "application" in hosts_by_role:
        raise UsageError(
            "--place names an application, and the plan has none",
            f"Write client={hosts_by_role['application'][0]}.",
        )
    for role, hosts in hosts_by_role.items():
        for host in hosts:
            if host not in file.hosts:
                raise UsageError(f"--place: no host is called {host!r}", f"Known: {', '.join(file.hosts)}.")
            if role not in file.hosts[host].roles:
                raise UsageError(
                    f"--place: host {host} may not be the {role}", f"Add {role} to its roles in the file of hosts."
                )
    host_by_role = {role: hosts_by_role[role][0] for role in ("hop", *REQUIRED_ROLES) if role in hosts_by_role}
    all_clients = _split_names(clients or "")
    if all_clients:
        host_by_role.setdefault("client", all_clients[0])
    for role in REQUIRED_ROLES:
        if role in host_by_role:
            continue
        candidates = [name for name in file.with_role(role) if name not in (*host_by_role.values(), *all_clients)]
        if not candidates:
            raise UsageError(
                f"no host is left to be the {role}",
                "Client and server are two hosts; the roles of each are in the file of hosts.",
            )
        # Prefer hosts with few possible roles, so that the others stay available; a named replica comes last.
        replicas = hosts_by_role.get("replica", ())
        host_by_role[role] = min(
            candidates, key=lambda name: (name in replicas, len(set(AUTOMATIC_ROLES) & set(file.hosts[name].roles)))
        )
    if host_by_role["client"] == host_by_role["server"]:
        raise UsageError("--place: client and server are one host", "A path to a second machine needs two.")
    return RoleHosts(
        host_by_role["client"],
        host_by_role["server"],
        replicas=hosts_by_role.get("replica", ()),
        hop=host_by_role.get("hop"),
    )


def add_client_role(file: HostsFile) -> HostsFile:
    """Add the role `client` to every host with the role `application`, for a plan whose client is an application."""
    additional = {
        name: host.model_copy(update={"roles": ("client", *host.roles)})
        for name, host in file.hosts.items()
        if "application" in host.roles and "client" not in host.roles
    }
    return file.model_copy(update={"hosts": {**file.hosts, **additional}})


def _with_role_client(hosts_by_role: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """`hosts_by_role` with the role `application` renamed to `client`. Raises UsageError if both are named."""
    if {"client", "application"} <= set(hosts_by_role):
        raise UsageError("--place names the client twice", "Where a plan has an application, it is the client.")
    return {"client" if role == "application" else role: hosts for role, hosts in hosts_by_role.items()}


def check_hop(role_hosts: RoleHosts, paths: Iterable[str]) -> None:
    """Check that the hop has its own host, and that these paths have a program to run there. Raises UsageError."""
    if role_hosts.hop is None:
        return
    if role_hosts.hop in (role_hosts.client, role_hosts.server, *role_hosts.other_clients, *role_hosts.replicas):
        raise UsageError(f"--place: host {role_hosts.hop} cannot be the hop too", "Each role needs a host of its own.")
    if not any(map(is_movable, paths)):
        candidates = ", ".join(path.name for path in PATHS.values() if path.movable)
        raise UsageError(
            "--place names a hop, and no path of the plan has a program that can run there",
            f"Leave hop={role_hosts.hop} out, or name such a path with --path: {candidates}.",
        )


def with_replicas(role_hosts: RoleHosts, file: HostsFile, count: int, is_local_only: bool) -> RoleHosts:
    """Choose hosts for `count` replicas if `--place` names none. `is_local_only`: on every path of the plan the client runs on the
    server's host, so the host named as client may be a replica. Raises UsageError."""
    if role_hosts.replicas and not count:
        raise UsageError("--place names a replica, and the plan has none", "Leave replica=… out.")
    taken = {role_hosts.server, role_hosts.hop, *(() if is_local_only else (role_hosts.client,))}
    if conflicting := taken & set(role_hosts.replicas):
        raise UsageError(
            f"--place: host {min(conflicting)} cannot be a replica too", "Each role needs a host of its own."
        )
    candidates = [name for name in file.with_role("replica") if name not in taken]
    # The client's host comes last.
    replicas = role_hosts.replicas or tuple(sorted(candidates, key=lambda name: name == role_hosts.client))[:count]
    if len(replicas) < count:
        raise UsageError(
            f"the plan has up to {count} replicas, and {len(replicas)} hosts are left to be one",
            "Add hosts, or name them: --place replica=c,replica=d.",
        )
    return replace(role_hosts, replicas=replicas)


def set_role(place: str | None, role: Role, host: str) -> str:
    """Add a host in a role to the value of `--place`. Raises UsageError if `--place` names another host for the role."""
    hosts_by_role = parse_role_hosts(place or "")
    if (named_hosts := hosts_by_role.get(role, (host,))) != (host,):
        raise UsageError(f"--place: the {role} is on host {host}", f"Leave {role}={named_hosts[0]} out.")
    return ",".join(
        f"{named_role}={name}" for named_role, names in {**hosts_by_role, role: (host,)}.items() for name in names
    )


def with_clients(role_hosts: RoleHosts, file: HostsFile, clients: str) -> RoleHosts:
    """Set the clients from the value of `--clients`, such as `a,b`. Raises UsageError."""
    names = _split_names(clients)
    for name in names:
        if name not in file.hosts:
            raise UsageError(f"--clients: no host is called {name!r}", f"Known: {', '.join(file.hosts)}.")
        if "client" not in file.hosts[name].roles or name in (role_hosts.server, role_hosts.hop):
            raise UsageError(f"--clients: host {name} may not be a client beside the server {role_hosts.server}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--clients {clients!r} names no host, or one twice")
    return replace(role_hosts, client=names[0], other_clients=tuple(names[1:]))


def check_supports_clients(client_count: int, paths: Iterable[str], has_replicas: bool) -> None:
    """Refuse paths and replicas that only a single client supports. Raises PlanError."""
    if client_count > 1 and (set(paths) != {"remote"} or has_replicas):
        raise PlanError(
            "several clients share a load over the path remote only, to a server without replicas",
            "Add --path remote; other paths, and plans with replicas, have one client.",
        )


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_role_hosts(place: str) -> dict[str, tuple[str, ...]]:
    """Parse the value of `--place` into hosts by role; only the role `replica` may have several. Raises UsageError."""
    pairs = [part.partition("=") for part in place.split(",") if part]
    if any(not (role and equals and name) for role, equals, name in pairs):
        raise UsageError(f"--place {place!r} is not of the form client=a,server=b")
    hosts_by_role: dict[str, tuple[str, ...]] = {}
    for role, _, name in pairs:
        hosts_by_role[role.strip()] = (*hosts_by_role.get(role.strip(), ()), name.strip())
    for role, names in hosts_by_role.items():
        if len(set(names)) < len(names) or (role != "replica" and len(names) > 1):
            raise UsageError(f"--place {place!r} names {role} twice")
    return hosts_by_role
