"""The configuration lines that the checks propose, for servers and for clients. Pure but for names of accounts and files.

A server's lines are tested by starting a server with them; those of clients are in `client_lines.toml`.
"""

from __future__ import annotations

import grp
import os
import pwd
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Literal

from howfar.doctor.findings import SHORT, UNSEEN, Change, Client, Kind, Server
from howfar.doctor.procfs import may_use
from howfar.services import SERVICES

_CLIENT_LINES: dict[str, dict[str, dict[str, list[list[str]]]]] = tomllib.loads(
    (resources.files("howfar.doctor") / "client_lines.toml").read_text(encoding="utf-8")
)
"""Lines by purpose, kind of server and language. Read at import: doctor may give up the rights to read its own files later."""


def _is_there(path: str) -> bool:
    return os.access(path, os.F_OK)  # Path's own raises where it may not look


def file_of(server: Server) -> str:
    """The file that the server reports; at the usual port, the first usual file that exists; otherwise the kind of file."""
    if server.config_file is not None:
        return server.config_file
    usual = next((path for path in SERVICES[server.kind].files if _is_there(path)), None) if _is_usual(server) else None
    of_which = f" of the server at {server.listeners[0].where}" if server.listeners and not _is_usual(server) else ""
    return usual or SERVICES[server.kind].file + of_which


def _is_usual(server: Server) -> bool:
    """Whether the server is at the usual port; one without a port may be."""
    ports = {listener.port for listener in server.listeners if listener.port is not None}
    return not ports or SERVICES[server.kind].port in ports


def own_paths(servers: Sequence[Server], in_use: Iterable[str]) -> list[str]:
    """A socket path for each server, on which no other server listens and that no other gets."""
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
    folder, _, file = SERVICES[server.kind].sockets[0].rpartition("/")
    if server.kind.names_folder:  # it adds the name itself, by its port
        file = f".s.PGSQL.{next((listener.port for listener in server.listeners if listener.port), SERVICES[server.kind].port)}"
    yield f"{folder}/{file}"
    for port in sorted({listener.port for listener in server.listeners if listener.port is not None}):
        yield f"{folder}-{port}/{file}"
    for number in count(2):
        yield f"{folder}-{number}/{file}"


def socket_again(server: Server, path: str) -> tuple[Change, ...]:
    """Changes for a socket at another path or, by the restart alone, where it was. Its mode stays as configured."""
    is_old = any(listener.path == path for listener in server.sockets)
    lines = _socket_lines(server.kind, path)
    where = f"{file_of(server)}{', as it is' if is_old else ''}"
    return Change(where=where, lines=lines, restarts=True), *_folder(server, path)


def socket_on(server: Server, using: Iterable[Client], path: str) -> tuple[Change, ...]:
    """Changes for a socket that all of `using` can reach: open to all accounts, or to a group that they join."""
    others = other_accounts(server, using)
    mode = "0700"
    if others:  # nobody should join root's group, and every local account can use the loopback anyway
        mode = "0777" if server.user in (None, "root") else "0770"
    lines = _socket_lines(server.kind, path)
    lines += tuple(line.format(mode=mode.removeprefix("0")) for line in SERVICES[server.kind].mode_lines)
    changes = [Change(where=file_of(server), lines=lines, restarts=True), *_folder(server, path)]
    if server.kind in (Kind.REDIS, Kind.MEMCACHED) and mode == "0770":  # the others' sockets are open to all
        changes += _joining(server, others)
    return tuple(changes)


def _socket_lines(kind: Kind, path: str) -> tuple[str, ...]:
    folder = path.rpartition("/")[0]
    return tuple(line.format(path=path, folder=folder) for line in SERVICES[kind].socket_lines)


def other_accounts(server: Server, using: Iterable[Client]) -> tuple[str, ...]:
    """Accounts other than the server's and root; `ACCOUNT` for an unknown one."""
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
    """Changes that make the folder now, and at each start of the machine, which begins with an empty /run."""
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
        Change(
            where="shell, as root, before the restart",
            lines=(f"install -d -o {user} -g {group} -m 0755 {quote(str(folder))}",),
            restarts=False,
        ),
        Change(where=f"/etc/tmpfiles.d/{folder.name}.conf", lines=(f"d {folder} 0755 {user} {group} -",), restarts=False),
    ]  # fmt: skip


FAMILIES = {
    "php": ("php", "apache2", "httpd", "frankenphp"),
    "python": ("python", "gunicorn", "uwsgi", "celery"),
    "ruby": ("ruby", "puma", "sidekiq", "unicorn"),
    "node": ("node", "bun", "deno"),
    "java": ("java",),
}
"""Languages by the beginning of the program's name."""
_SHELL = (
    "psql", "pg_dump", "pgbench", "mariadb", "mariadb-dump", "mariadb-admin", "mysql", "mysqldump", "mysqladmin", "redis-cli",
    "valkey-cli", "mytop",
)  # fmt: skip
"""Whole names of shells: mysqlrouter and mysqld_exporter are none."""

_OF_BRAND = {
    "MariaDB": {"ssl": "--skip-ssl", "compress": "--loose-skip-compress"},
    "MySQL": {"ssl": "--ssl-mode=DISABLED", "compress": "--loose-skip-compress"},
}
_SAYS = {"ssl": " (unless its account has REQUIRE SSL)", "compress": ""}


def family(program: str) -> str | None:
    """The language of a program; None: unknown."""
    if program in (SHORT, UNSEEN):
        return None
    name = program.partition(" ")[0].lower()
    if name in _SHELL:
        return "shell"
    return next((found for found, begins in FAMILIES.items() if name.startswith(begins)), "native")


def by_socket(kind: Kind, path: str, using: Iterable[Client]) -> tuple[Change, ...]:
    rows = _rows("socket", kind, using, path)
    first = SERVICES[kind].accounts
    return (_change(*first, path=path), *rows) if first else rows


def keeping_connections(kind: Kind, using: Iterable[Client]) -> tuple[Change, ...]:
    return _rows("keeping", kind, using, "")


def naming_an_authority(using: Iterable[Client]) -> tuple[Change, ...]:
    """Lines that name an authority; none where the client's language is unknown."""
    known = [client for client in using if family(client.program) in _CLIENT_LINES["authority"][Kind.MYSQL]]
    return _rows("authority", Kind.MYSQL, known, "") if known else ()


def commands_without(what: Literal["ssl", "compress"], using: Iterable[Client]) -> tuple[Change, ...]:
    """An option for the command that was seen; in an option file it would also apply to other machines."""
    names = {
        client.program
        for client in using
        if client.program.startswith(("mariadb", "mysql")) and client.program in _SHELL
    }
    return tuple(
        Change(where=f"the command of {brand}{_SAYS[what]}", lines=(f"{name} {options[what]} …",), restarts=False)
        for name in sorted(names)
        for brand, options in _OF_BRAND.items()
        if brand == "MariaDB" or name.startswith("mysql")
    )


def _rows(purpose: str, kind: Kind, using: Iterable[Client], path: str) -> tuple[Change, ...]:
    """Lines for the languages that were seen; for an unknown program those for all."""
    table = _CLIENT_LINES[purpose][kind]
    families = {family(client.program) for client in using}
    chosen = [found for found in table if found in families] or list(table)
    return tuple(_change(*row, path=path) for found in chosen for row in table[found])


def with_socket(line: str, path: str) -> str:
    """A line with the socket's path; PostgreSQL's clients name its directory and port."""
    folder, _, name = path.rpartition("/")
    filled = line.replace("{path}", path).replace("{folder}", folder)
    return filled.replace("{port}", name.rpartition(".")[2])


def _change(where: str, *lines: str, path: str) -> Change:
    return Change(where=where, lines=tuple(with_socket(line, path) for line in lines), restarts=False)
