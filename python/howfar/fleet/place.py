"""The roles of hosts in a run."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.errors import UsageError
from howfar.fleet.hosts_file import ROLES, HostsFile, Role


@dataclass(frozen=True)
class Place:
    """The hosts of a run, by role."""

    client: str
    server: str
    others: tuple[str, ...] = ()
    """Further clients."""

    @property
    def swapped(self) -> Place:
        return Place(self.server, self.client)


def may_swap(place: Place, file: HostsFile) -> bool:
    """Whether each of the two hosts may be what the other is."""
    return not place.others and all(set(ROLES) <= set(file.hosts[name].roles) for name in (place.client, place.server))


def find_place(file: HostsFile, word: str | None) -> Place:
    """Parse `client=a,server=b`, or part of it. Raises UsageError."""
    chosen = _parse(word or "")
    if unknown := set(chosen) - set(ROLES):
        raise UsageError(f"--place: no role is called {sorted(unknown)[0]!r}", f"Known: {', '.join(ROLES)}.")
    for role in ROLES:
        if role in chosen:
            if chosen[role] not in file.hosts:
                raise UsageError(f"--place: no host is called {chosen[role]!r}", f"Known: {', '.join(file.hosts)}.")
            if role not in file.hosts[chosen[role]].roles:
                raise UsageError(
                    f"--place: host {chosen[role]} may not be the {role}",
                    f"Add {role} to its roles in the file of hosts.",
                )
            continue
        able = [name for name in file.with_role(role) if name not in chosen.values()]
        if not able:
            raise UsageError(
                f"no host is left to be the {role}",
                "Client and server are two hosts; the roles of each are in the file of hosts.",
            )
        # Whoever may be both is left for the other.
        chosen[role] = min(able, key=lambda name: len(file.hosts[name].roles))
    if chosen["client"] == chosen["server"]:
        raise UsageError("--place: client and server are one host", "A path to a second machine needs two.")
    return Place(chosen["client"], chosen["server"])


def placed(word: str | None, role: Role, host: str) -> str:
    """`word` with this host in this role. Raises UsageError if it names another."""
    chosen = _parse(word or "")
    if chosen.get(role, host) != host:
        raise UsageError(f"--place: the {role} is on host {host}", f"Leave {role}={chosen[role]} out.")
    return ",".join(f"{each}={name}" for each, name in {**chosen, role: host}.items())


def with_clients(place: Place, file: HostsFile, word: str) -> Place:
    """Parse `a,b`: all clients, the first one first. Raises UsageError."""
    names = [name.strip() for name in word.split(",") if name.strip()]
    for name in names:
        if name not in file.hosts or "client" not in file.hosts[name].roles or name == place.server:
            raise UsageError(f"--clients: {name!r} is no host that may be a client beside the server {place.server}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--clients {word!r} names no host, or one twice")
    return Place(names[0], place.server, tuple(names[1:]))


def _parse(word: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in word.split(",") if part]
    if any(not (role and equals and name) for role, equals, name in pairs):
        raise UsageError(f"--place {word!r} is not of the form client=a,server=b")
    return {role.strip(): name.strip() for role, _, name in pairs}
