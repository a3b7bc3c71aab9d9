"""Lines of a server's own configuration: its socket on, and open to those who need it. Each is tested by starting a server with it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from howfar.doctor.findings import Change, Client, Kind, Server
from howfar.doctor.sockets import may_use

PATHS = {
    Kind.MYSQL: "/run/mysqld/mysqld.sock",
    Kind.REDIS: "/run/redis/redis-server.sock",
    Kind.MEMCACHED: "/run/memcached/memcached.sock",
}
"""Where Debian has them, and its packages make the directories."""
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
    """The file that the server named, else the first of the usual ones that is here, else the kind of file."""
    usual = next((path for path in _FILES[server.kind] if _is_there(path)), None)
    return server.config_file or usual or _NAMES[server.kind]


def socket_on(server: Server, using: Iterable[Client], path: str | None = None) -> tuple[Change, ...]:
    """The socket at a path that all of `using` may reach: for all accounts, or for a group that they join."""
    path = path or PATHS[server.kind]
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
        _shell(f"install -d -o {user} -g {group} -m 0755 {folder}"),
        Change(where=f"/etc/tmpfiles.d/{folder.name}.conf", lines=(f"d {folder} 0755 {user} {group} -",), restarts=False),
    ]  # fmt: skip


def _shell(line: str) -> Change:
    return Change(where="shell, as root, before the restart", lines=(line,), restarts=False)
