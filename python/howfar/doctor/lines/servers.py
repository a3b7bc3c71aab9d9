"""Lines of a server's own configuration: its socket on, and open to those who need it. Each is tested by starting a server with it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from shlex import quote

from howfar.doctor.findings import Change, Client, Kind, Server
from howfar.doctor.sockets import may_use
from howfar.doctor.targets import DEFAULT_PORTS

PATHS = {
    Kind.MYSQL: "/run/mysqld/mysqld.sock",
    Kind.REDIS: "/run/redis/redis-server.sock",
    Kind.MEMCACHED: "/run/memcached/memcached.sock",
}
"""Where Debian has them, and its packages make the directories. Another server of the kind has a directory of its own, named
by its port, as Debian's own units for several servers do: each runs as an account of its own, and takes a path that it is given.
"""
_FILES = {
    Kind.MYSQL: (
        "/etc/mysql/mariadb.conf.d/50-server.cnf", "/etc/mysql/mysql.conf.d/mysqld.cnf", "/etc/my.cnf.d/mariadb-server.cnf",
        "/etc/my.cnf.d/mysql-server.cnf", "/etc/mysql/my.cnf", "/etc/my.cnf",
    ),
    Kind.REDIS: ("/etc/redis/redis.conf", "/etc/valkey/valkey.conf", "/etc/redis.conf"),
    Kind.MEMCACHED: ("/etc/memcached.conf",),
}  # fmt: skip
_NAMES = {Kind.MYSQL: "my.cnf", Kind.REDIS: "redis.conf", Kind.MEMCACHED: "memcached.conf (one option a line)"}


def _is_there(path: str) -> bool:
    return os.access(path, os.F_OK)  # Path's own raises where it may not look


def file_of(server: Server) -> str:
    """The file that the server named; of one at the usual port the first of the usual files that is here; else the kind of file."""
    if server.config_file is not None:
        return server.config_file
    usual = next((path for path in _FILES[server.kind] if _is_there(path)), None) if _is_usual(server) else None
    of_which = f" of the server at {server.listeners[0].where}" if server.listeners and not _is_usual(server) else ""
    return usual or _NAMES[server.kind] + of_which


def _is_usual(server: Server) -> bool:
    """By its port; one without a port may be."""
    ports = {listener.port for listener in server.listeners if listener.port is not None}
    return not ports or DEFAULT_PORTS[server.kind] in ports


def own_paths(servers: Sequence[Server], in_use: Iterable[str]) -> list[str]:
    """For each a path for its socket that no other server listens on, and that no other is told."""
    owners: dict[str, set[int]] = {}
    for number, server in enumerate(servers):
        for listener in server.sockets:
            if listener.path is not None and listener.state == "works":
                owners.setdefault(os.path.realpath(listener.path), set()).add(number)
    taken = {os.path.realpath(path) for path in in_use}
    paths = [""] * len(servers)
    for number in sorted(range(len(servers)), key=lambda at: not _is_usual(servers[at])):
        paths[number] = next(
            path
            for path in _names(servers[number])
            if path not in paths
            and (os.path.realpath(path) not in taken or owners.get(os.path.realpath(path)) == {number})
        )
    return paths


def _names(server: Server) -> Iterator[str]:
    folder, _, file = PATHS[server.kind].rpartition("/")
    yield PATHS[server.kind]
    for port in sorted({listener.port for listener in server.listeners if listener.port is not None}):
        yield f"{folder}-{port}/{file}"
    for number in count(2):
        yield f"{folder}-{number}/{file}"


def socket_again(server: Server, path: str) -> tuple[Change, ...]:
    """A socket that it has already: at another path, or, by the restart alone, where it was. Its mode stays as it is configured."""
    is_old = any(listener.path == path for listener in server.sockets)
    name = {Kind.MYSQL: "socket = ", Kind.REDIS: "unixsocket ", Kind.MEMCACHED: "-s "}[server.kind]
    lines = (f"{name}{path}",) if server.kind is not Kind.MYSQL else ("[mysqld]", f"{name}{path}")
    where = f"{file_of(server)}{', as it is' if is_old else ''}"
    return Change(where=where, lines=lines, restarts=True), *_folder(server, path)


def socket_on(server: Server, using: Iterable[Client], path: str) -> tuple[Change, ...]:
    """The socket at a path that all of `using` may reach: for all accounts, or for a group that they join."""
    others = strangers(server, using)
    mode = "0700"
    if others:  # nobody is to join root's group; and whoever is on this machine may use its loopback anyhow
        mode = "0777" if server.user in (None, "root") else "0770"
    lines = {
        Kind.MYSQL: ("[mysqld]", f"socket = {path}"),
        Kind.REDIS: (f"unixsocket {path}", f"unixsocketperm {mode.removeprefix('0')}"),
        Kind.MEMCACHED: (f"-s {path}", f"-a {mode}"),
    }[server.kind]
    changes = [Change(where=file_of(server), lines=lines, restarts=True), *_folder(server, path)]
    if server.kind is not Kind.MYSQL and mode == "0770":  # MySQL's socket is open to all
        changes += _joining(server, others)
    return tuple(changes)


def strangers(server: Server, using: Iterable[Client]) -> tuple[str, ...]:
    """Accounts other than the server's own and root's; `ACCOUNT` where one cannot be seen."""
    users = {client.user or "ACCOUNT" for client in using}
    return tuple(sorted(users - {server.user or "", "root"}))


def _joining(server: Server, users: Iterable[str]) -> list[Change]:
    group = group_of(server.user)
    lines = tuple(f"usermod -a -G {group} {user}" for user in users)
    return [Change(where="shell, as root; then restart the client", lines=lines, restarts=False)] if lines else []


def group_of(user: str | None) -> str:
    try:
        return grp.getgrgid(pwd.getpwnam(user or "").pw_gid).gr_name
    except KeyError:
        return "GROUP"


def _folder(server: Server, path: str) -> list[Change]:
    """Made now, and at each start of the machine, which begins with an empty /run."""
    folder = Path(path).parent
    user = server.user or "USER"
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = -1
    if _is_there(str(folder)) and (uid == -1 or may_use(str(folder), uid, server.pid)):
        return []
    group = group_of(server.user)
    return [
        _shell(f"install -d -o {user} -g {group} -m 0755 {quote(str(folder))}"),
        Change(where=f"/etc/tmpfiles.d/{folder.name}.conf", lines=(f"d {folder} 0755 {user} {group} -",), restarts=False),
    ]  # fmt: skip


def _shell(line: str) -> Change:
    return Change(where="shell, as root, before the restart", lines=(line,), restarts=False)
