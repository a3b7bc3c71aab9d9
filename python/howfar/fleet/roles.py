"""The roles of hosts in a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from howfar.errors import PlanError, UsageError
from howfar.fleet.hosts_file import BOTH, ROLES, UNNAMED, HostsFile, Role
from howfar.paths import PATHS, is_movable


@dataclass(frozen=True)
class RoleHosts:
    """The hosts of a run, by role."""

    client: str
    server: str
    others: tuple[str, ...] = ()
    """Further clients, which share the load with the first."""
    replicas: tuple[str, ...] = ()
    hop: str | None = None
    """Separate host of the program in between (proxy, tunnel). None: that program runs on the client's or the server's host."""

    @property
    def names(self) -> tuple[str, ...]:
        """Each host once, the server's first."""
        hop = () if self.hop is None else (self.hop,)
        return tuple(dict.fromkeys((self.server, self.client, *self.others, *self.replicas, *hop)))

    @property
    def swapped(self) -> RoleHosts:
        return RoleHosts(self.server, self.client)


def may_swap(role_hosts: RoleHosts, file: HostsFile) -> bool:
    """Whether the two hosts may exchange their roles."""
    alone = not (role_hosts.others or role_hosts.replicas or role_hosts.hop)
    return alone and all(set(BOTH) <= set(file.hosts[name].roles) for name in (role_hosts.client, role_hosts.server))


def assign_hosts(file: HostsFile, word: str | None, pages: bool = False, clients: str | None = None) -> RoleHosts:
    """Parse `client=a,server=b`, or part of it. `pages`: the client is an application, and `--place` may call it so. `clients`: as for
    `with_clients`; the first one is the client unless `client=` names another. Raises UsageError."""
    hosts_by_role = parse_role_hosts(word or "")
    if unknown := set(hosts_by_role) - set(ROLES):
        raise UsageError(f"--place: no role is called {sorted(unknown)[0]!r}", f"Known: {', '.join(ROLES)}.")
    if pages:
        hosts_by_role = _as_client(hosts_by_role)
    elif "application" in hosts_by_role:
        raise UsageError(
            "--place names an application, and the plan has no pages",
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
    chosen = {role: hosts_by_role[role][0] for role in ("hop", *BOTH) if role in hosts_by_role}
    all_clients = _names(clients or "")
    if all_clients:
        chosen.setdefault("client", all_clients[0])
    for role in BOTH:
        if role in chosen:
            continue
        candidates = [name for name in file.with_role(role) if name not in (*chosen.values(), *all_clients)]
        if not candidates:
            raise UsageError(
                f"no host is left to be the {role}",
                "Client and server are two hosts; the roles of each are in the file of hosts.",
            )
        # Prefer hosts that may have few roles, so that the others stay available; take a named replica last.
        replicas = hosts_by_role.get("replica", ())
        chosen[role] = min(
            candidates, key=lambda name: (name in replicas, len(set(UNNAMED) & set(file.hosts[name].roles)))
        )
    if chosen["client"] == chosen["server"]:
        raise UsageError("--place: client and server are one host", "A path to a second machine needs two.")
    return RoleHosts(
        chosen["client"], chosen["server"], replicas=hosts_by_role.get("replica", ()), hop=chosen.get("hop")
    )


def for_pages(file: HostsFile) -> HostsFile:
    """The hosts file for a plan with pages, whose client is an application: every host with the role `application` also gets the role
    `client`."""
    additional = {
        name: host.model_copy(update={"roles": ("client", *host.roles)})
        for name, host in file.hosts.items()
        if "application" in host.roles and "client" not in host.roles
    }
    return file.model_copy(update={"hosts": {**file.hosts, **additional}})


def _as_client(hosts_by_role: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """`hosts_by_role` with the role `application` renamed to `client`. Raises UsageError if both are named."""
    if {"client", "application"} <= set(hosts_by_role):
        raise UsageError("--place names the client twice", "Of a plan with pages the application is the client.")
    return {"client" if role == "application" else role: hosts for role, hosts in hosts_by_role.items()}


def check_hop(role_hosts: RoleHosts, paths: Iterable[str]) -> None:
    """Check that the hop has its own host, and that these paths have a program to run there. Raises UsageError."""
    if role_hosts.hop is None:
        return
    if role_hosts.hop in (role_hosts.client, role_hosts.server, *role_hosts.others, *role_hosts.replicas):
        raise UsageError(f"--place: host {role_hosts.hop} cannot be the hop too", "Each role needs a host of its own.")
    if not any(map(is_movable, paths)):
        candidates = ", ".join(path.name for path in PATHS.values() if path.movable)
        raise UsageError(
            "--place names a hop, and no path of the plan has a program that can run there",
            f"Leave hop={role_hosts.hop} out, or name such a path with --path: {candidates}.",
        )


def with_replicas(role_hosts: RoleHosts, file: HostsFile, count: int, local: bool) -> RoleHosts:
    """Choose hosts for `count` replicas if `--place` names none. `local`: on every path of the plan the client runs on the server's
    host, so the host named as client may be a replica. Raises UsageError."""
    if role_hosts.replicas and not count:
        raise UsageError("--place names a replica, and the plan has none", "Leave replica=… out.")
    taken = {role_hosts.server, role_hosts.hop, *(() if local else (role_hosts.client,))}
    if conflicting := taken & set(role_hosts.replicas):
        raise UsageError(
            f"--place: host {min(conflicting)} cannot be a replica too", "Each role needs a host of its own."
        )
    candidates = [name for name in file.with_role("replica") if name not in taken]
    # The client's host comes last.
    found = role_hosts.replicas or tuple(sorted(candidates, key=lambda name: name == role_hosts.client))[:count]
    if len(found) < count:
        raise UsageError(
            f"the plan has up to {count} replicas, and {len(found)} hosts are left to be one",
            "Add hosts, or name them: --place replica=c,replica=d.",
        )
    return replace(role_hosts, replicas=found)


def set_role(word: str | None, role: Role, host: str) -> str:
    """Add this host in this role to the value of `--place`. Raises UsageError if that names another host for the role."""
    chosen = parse_role_hosts(word or "")
    if (other := chosen.get(role, (host,))) != (host,):
        raise UsageError(f"--place: the {role} is on host {host}", f"Leave {role}={other[0]} out.")
    return ",".join(f"{each}={name}" for each, names in {**chosen, role: (host,)}.items() for name in names)


def with_clients(role_hosts: RoleHosts, file: HostsFile, word: str) -> RoleHosts:
    """Set the clients from the value of `--clients`, such as `a,b`. Raises UsageError."""
    names = _names(word)
    for name in names:
        if name not in file.hosts:
            raise UsageError(f"--clients: no host is called {name!r}", f"Known: {', '.join(file.hosts)}.")
        if "client" not in file.hosts[name].roles or name in (role_hosts.server, role_hosts.hop):
            raise UsageError(
                f"--clients: {name!r} is no host that may be a client beside the server {role_hosts.server}"
            )
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--clients {word!r} names no host, or one twice")
    return replace(role_hosts, client=names[0], others=tuple(names[1:]))


def check_shared(clients: int, paths: Iterable[str], replicas: bool) -> None:
    """Refuse paths and replicas that only a single client supports. Raises PlanError."""
    if clients > 1 and (set(paths) != {"remote"} or replicas):
        raise PlanError(
            "several clients share a load over the path remote only, to a server without replicas",
            "Add --path remote; other paths, and plans with replicas, have one client.",
        )


def _names(word: str) -> list[str]:
    return [name.strip() for name in word.split(",") if name.strip()]


def parse_role_hosts(word: str) -> dict[str, tuple[str, ...]]:
    """Hosts by role, in the order in which they are named; only the role `replica` may have several."""
    pairs = [part.partition("=") for part in word.split(",") if part]
    if any(not (role and equals and name) for role, equals, name in pairs):
        raise UsageError(f"--place {word!r} is not of the form client=a,server=b")
    found: dict[str, tuple[str, ...]] = {}
    for role, _, name in pairs:
        found[role.strip()] = (*found.get(role.strip(), ()), name.strip())
    for role, names in found.items():
        if len(set(names)) < len(names) or (role != "replica" and len(names) > 1):
            raise UsageError(f"--place {word!r} names {role} twice")
    return found
