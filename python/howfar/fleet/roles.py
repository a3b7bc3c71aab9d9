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
    """Further clients."""
    replicas: tuple[str, ...] = ()
    hop: str | None = None
    """Separate host of the program in between. None: that program is on the host of the client or the server."""

    @property
    def names(self) -> tuple[str, ...]:
        """Each host once, the server's first."""
        hop = () if self.hop is None else (self.hop,)
        return tuple(dict.fromkeys((self.server, self.client, *self.others, *self.replicas, *hop)))

    @property
    def swapped(self) -> RoleHosts:
        return RoleHosts(self.server, self.client)


def may_swap(place: RoleHosts, file: HostsFile) -> bool:
    """Whether the two hosts may exchange their roles."""
    alone = not (place.others or place.replicas or place.hop)
    return alone and all(set(BOTH) <= set(file.hosts[name].roles) for name in (place.client, place.server))


def find_place(file: HostsFile, word: str | None, pages: bool = False, clients: str | None = None) -> RoleHosts:
    """Parse `client=a,server=b`, or part of it. `pages`: the client is an application, and may be named so. `clients`: see
    `with_clients`; without `client=`, the first of these is the client. Raises UsageError."""
    named = parse_place(word or "")
    if unknown := set(named) - set(ROLES):
        raise UsageError(f"--place: no role is called {sorted(unknown)[0]!r}", f"Known: {', '.join(ROLES)}.")
    if pages:
        named = _as_client(named)
    elif "application" in named:
        raise UsageError(
            "--place names an application, and the plan has no pages", f"Write client={named['application'][0]}."
        )
    for role, hosts in named.items():
        for host in hosts:
            if host not in file.hosts:
                raise UsageError(f"--place: no host is called {host!r}", f"Known: {', '.join(file.hosts)}.")
            if role not in file.hosts[host].roles:
                raise UsageError(
                    f"--place: host {host} may not be the {role}", f"Add {role} to its roles in the file of hosts."
                )
    chosen = {role: named[role][0] for role in ("hop", *BOTH) if role in named}
    shared = _names(clients or "")
    if shared:
        chosen.setdefault("client", shared[0])
    for role in BOTH:
        if role in chosen:
            continue
        able = [name for name in file.with_role(role) if name not in (*chosen.values(), *shared)]
        if not able:
            raise UsageError(
                f"no host is left to be the {role}",
                "Client and server are two hosts; the roles of each are in the file of hosts.",
            )
        # Hosts that may have several roles are left for the others, and a named replica comes last.
        replicas = named.get("replica", ())
        chosen[role] = min(able, key=lambda name: (name in replicas, len(set(UNNAMED) & set(file.hosts[name].roles))))
    if chosen["client"] == chosen["server"]:
        raise UsageError("--place: client and server are one host", "A path to a second machine needs two.")
    return RoleHosts(chosen["client"], chosen["server"], replicas=named.get("replica", ()), hop=chosen.get("hop"))


def for_pages(file: HostsFile) -> HostsFile:
    """The file for a plan with pages, whose client is an application: hosts that may be the application may be the client."""
    also = {
        name: host.model_copy(update={"roles": ("client", *host.roles)})
        for name, host in file.hosts.items()
        if "application" in host.roles and "client" not in host.roles
    }
    return file.model_copy(update={"hosts": {**file.hosts, **also}})


def _as_client(named: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """`named` with the application as the client. Raises UsageError where both are named."""
    if {"client", "application"} <= set(named):
        raise UsageError("--place names the client twice", "Of a plan with pages the application is the client.")
    return {"client" if role == "application" else role: hosts for role, hosts in named.items()}


def check_hop(place: RoleHosts, paths: Iterable[str]) -> None:
    """Check that the hop has its own host, and that these paths have a program to run there. Raises UsageError."""
    if place.hop is None:
        return
    if place.hop in (place.client, place.server, *place.others, *place.replicas):
        raise UsageError(f"--place: host {place.hop} cannot be the hop too", "Each role needs a host of its own.")
    if not any(map(is_movable, paths)):
        able = ", ".join(path.name for path in PATHS.values() if path.movable)
        raise UsageError(
            "--place names a hop, and no path of the plan has a program that can run there",
            f"Leave hop={place.hop} out, or name such a path with --path: {able}.",
        )


def with_replicas(place: RoleHosts, file: HostsFile, count: int, local: bool) -> RoleHosts:
    """Choose hosts for `count` replicas, if `--place` names none. `local`: the client is on the server's host on every path, so that
    the host named as client may be a replica. Raises UsageError."""
    if place.replicas and not count:
        raise UsageError("--place names a replica, and the plan has none", "Leave replica=… out.")
    taken = {place.server, place.hop, *(() if local else (place.client,))}
    if wrong := taken & set(place.replicas):
        raise UsageError(f"--place: host {min(wrong)} cannot be a replica too", "Each role needs a host of its own.")
    able = [name for name in file.with_role("replica") if name not in taken]
    # The client's host comes last.
    found = place.replicas or tuple(sorted(able, key=lambda name: name == place.client))[:count]
    if len(found) < count:
        raise UsageError(
            f"the plan has up to {count} replicas, and {len(found)} hosts are left to be one",
            "Add hosts, or name them: --place replica=c,replica=d.",
        )
    return replace(place, replicas=found)


def placed(word: str | None, role: Role, host: str) -> str:
    """`word` with this host in this role. Raises UsageError if it names another."""
    chosen = parse_place(word or "")
    if (other := chosen.get(role, (host,))) != (host,):
        raise UsageError(f"--place: the {role} is on host {host}", f"Leave {role}={other[0]} out.")
    return ",".join(f"{each}={name}" for each, names in {**chosen, role: (host,)}.items() for name in names)


def with_clients(place: RoleHosts, file: HostsFile, word: str) -> RoleHosts:
    """Parse `a,b`: all clients, the first one first. Raises UsageError."""
    names = _names(word)
    for name in names:
        if name not in file.hosts:
            raise UsageError(f"--clients: no host is called {name!r}", f"Known: {', '.join(file.hosts)}.")
        if "client" not in file.hosts[name].roles or name in (place.server, place.hop):
            raise UsageError(f"--clients: {name!r} is no host that may be a client beside the server {place.server}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--clients {word!r} names no host, or one twice")
    return replace(place, client=names[0], others=tuple(names[1:]))


def check_shared(clients: int, paths: Iterable[str], replicas: bool) -> None:
    """Refuse what only one client can do. Raises PlanError."""
    if clients > 1 and (set(paths) != {"remote"} or replicas):
        raise PlanError(
            "several clients share a load over the path remote only, to a server without replicas",
            "Add --path remote; other paths, and plans with replicas, have one client.",
        )


def _names(word: str) -> list[str]:
    return [name.strip() for name in word.split(",") if name.strip()]


def parse_place(word: str) -> dict[str, tuple[str, ...]]:
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
