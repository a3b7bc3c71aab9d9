"""Builds the configuration lines that the checks propose, for servers and clients. No I/O, except that it looks up accounts and
files.

Lines for servers are tested by starting a server with them; those for clients are in `client_lines.toml`.
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

from howfar.doctor.findings import ANOTHER_ROOT, NOT_CAUGHT, UNSEEN, Change, Client, Kind, Server
from howfar.doctor.procfs import may_connect
from howfar.services import SERVICES

_CLIENT_LINES: dict[str, dict[str, dict[str, list[list[str]]]]] = tomllib.loads(
    (resources.files("howfar.doctor") / "client_lines.toml").read_text(encoding="utf-8")
)
"""Lines by purpose, kind of server and language; read at import, because the doctor may later lose the right to read them."""
_FORWARDER_LINES = _CLIENT_LINES["socket"].pop("forwarder")


def _path_exists(path: str) -> bool:
    return os.access(path, os.F_OK)  # `Path.exists` raises if a directory may not be searched


def _is_same_file(left: str, right: str) -> bool:
    try:
        return Path(left).samefile(right)
    except OSError:
        return False


def config_file_of(server: Server) -> str:
    """Return the server's configuration file: the one that it reported, or the first usual file that exists if the server listens at
    the usual port, or else a description of the file."""
    if server.config_file is not None:
        return server.config_file
    usual_file = (
        next((path for path in SERVICES[server.kind].files if _path_exists(path)), None)
        if _uses_usual_port(server)
        else None
    )
    description = (
        f" of the server at {server.listeners[0].where}" if server.listeners and not _uses_usual_port(server) else ""
    )
    return usual_file or SERVICES[server.kind].file_label + description


def _uses_usual_port(server: Server) -> bool:
    """Whether the server listens at the usual port; also True if it listens at no port."""
    ports = {listener.port for listener in server.listeners if listener.port is not None}
    return not ports or SERVICES[server.kind].port in ports


def unique_socket_paths(servers: Sequence[Server], paths_in_use: Iterable[str]) -> list[str]:
    """Choose a unique socket path for each server. `paths_in_use`: paths on which any process listens."""
    servers_by_path: dict[str, set[int]] = {}
    for index, server in enumerate(servers):
        for listener in server.sockets:
            if listener.path is not None and listener.state == "works":
                servers_by_path.setdefault(os.path.realpath(listener.path), set()).add(index)
    taken_paths = {os.path.realpath(path) for path in paths_in_use}
    paths = [""] * len(servers)
    for index in sorted(range(len(servers)), key=lambda index: not _uses_usual_port(servers[index])):
        paths[index] = next(
            path
            for path in _candidate_paths(servers[index])
            if path not in paths
            and (os.path.realpath(path) not in taken_paths or servers_by_path.get(os.path.realpath(path)) == {index})
        )
    return paths


def _candidate_paths(server: Server) -> Iterator[str]:
    folder, _, file = SERVICES[server.kind].sockets[0].rpartition("/")
    if server.kind.names_socket_directory:  # the server itself adds the file name, which contains its port
        file = f".s.PGSQL.{next((listener.port for listener in server.listeners if listener.port), SERVICES[server.kind].port)}"
    yield f"{folder}/{file}"
    for port in sorted({listener.port for listener in server.listeners if listener.port is not None}):
        yield f"{folder}-{port}/{file}"
    for number in count(2):
        yield f"{folder}-{number}/{file}"


def recreate_socket(server: Server, path: str) -> tuple[Change, ...]:
    """Return changes that recreate the server's socket at `path`, with its configured mode; at its old path a restart suffices."""
    is_old_path = any(listener.path == path for listener in server.sockets)
    lines = _socket_lines(server.kind, path)
    where = f"{config_file_of(server)}{', as it is' if is_old_path else ''}"
    return Change(where=where, lines=lines, restarts=True), *_folder_changes(server, path)


def changes_to_socket(server: Server, clients: Sequence[Client], new_path: str) -> tuple[Change, ...]:
    """Return all changes that move clients to the server's socket: first those for the socket and the access to it, then those for
    accounts on the server, then the clients' own lines. `new_path`: path for a new socket, if one is needed."""
    path, access_changes = _accessible_socket(server, clients, new_path)
    return (*access_changes, *client_socket_changes(server.kind, path, clients))


def _accessible_socket(server: Server, clients: Sequence[Client], new_path: str) -> tuple[str, tuple[Change, ...]]:
    """Return the path of a socket that all of `clients` can reach, and the changes that this needs."""
    socket = server.socket()
    if socket is None or socket.path is None:
        return new_path, _socket_changes_for(server, clients, new_path)
    barred_clients = [client for client in clients if client.may_use_socket is False]
    if not barred_clients:
        return socket.path, ()
    file = socket.file
    if file is None or file.mode & 0o002:  # a directory above the socket keeps them out, and should stay closed
        return new_path, (*_socket_changes_for(server, clients, new_path), _link_old_path(socket.path, new_path))
    if file.mode & 0o020 and file.group != "root" and _may_enter(socket.path, file.group):
        return socket.path, tuple(_group_changes(file.group, other_accounts(server, barred_clients)))
    path = socket.path if _may_enter(socket.path, primary_group_of(server.user)) else new_path
    link_changes = () if path == socket.path else (_link_old_path(socket.path, path),)
    return path, (*_socket_changes_for(server, clients, path), *link_changes)


def _may_enter(path: str, group: str) -> bool:
    """Whether members of the group may enter every directory above the path."""
    try:
        folders = [parent.stat() for parent in Path(path).parents]
        gid = grp.getgrnam(group).gr_gid
    except (OSError, KeyError):
        return False
    return all(folder.st_mode & 0o001 or (folder.st_gid == gid and folder.st_mode & 0o010) for folder in folders)


def _link_old_path(old: str, new: str) -> Change:
    where = "shell, as root, after the restart, for clients that use the old path"
    return Change(where=where, lines=(f"ln -sf {quote(new)} {quote(old)}",), restarts=False)


def _socket_changes_for(server: Server, clients: Iterable[Client], path: str) -> tuple[Change, ...]:
    """Return changes for a socket at `path` that all of `clients` can reach: open to all accounts, or to a group that they join."""
    accounts = other_accounts(server, clients)
    mode = 0o700
    if (
        accounts
    ):  # no account should join root's group; a socket of root is open to all, who can use the loopback anyway
        mode = 0o777 if server.user in (None, "root") else 0o770
    existing = next(
        (listener for listener in server.sockets if listener.path == path and listener.state == "works"), None
    )
    lines = () if existing is not None else _socket_lines(server.kind, path)
    if existing is None or existing.file is None or existing.file.mode & 0o777 != mode:
        lines += tuple(line.format(mode=f"{mode:o}") for line in SERVICES[server.kind].mode_lines)
    changes = [Change(where=config_file_of(server), lines=lines, restarts=True)] if lines else []
    changes += _folder_changes(server, path)
    if server.kind in (Kind.REDIS, Kind.MEMCACHED) and mode == 0o770:  # the sockets of the other kinds are open to all
        changes += _group_changes(primary_group_of(server.user), accounts)
    return tuple(changes)


def _socket_lines(kind: Kind, path: str) -> tuple[str, ...]:
    folder = path.rpartition("/")[0]
    return tuple(line.format(path=path, folder=folder) for line in SERVICES[kind].socket_lines)


def other_accounts(server: Server, clients: Iterable[Client]) -> tuple[str, ...]:
    """Return the accounts other than the server's and root; `ACCOUNT` stands for an unknown one."""
    users = {client.user or "ACCOUNT" for client in clients}
    return tuple(sorted(users - {server.user or "", "root"}))


def _group_changes(group: str, users: Iterable[str]) -> list[Change]:
    lines = tuple(f"usermod -a -G {group} {user}" for user in users)
    return [Change(where="shell, as root; then restart the client", lines=lines, restarts=False)] if lines else []


def primary_group_of(user: str | None) -> str:
    try:
        return grp.getgrgid(pwd.getpwnam(user or "").pw_gid).gr_name
    except KeyError:
        return "GROUP"


def _folder_changes(server: Server, path: str) -> list[Change]:
    """Return changes that create the socket's folder now and at each boot, since /run is then empty; none if the folder is usable."""
    folder = Path(path).parent
    user = server.user or "USER"
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = -1
    if _path_exists(str(folder)) and (uid == -1 or may_connect(str(folder), uid, server.pid)):
        return []
    group = primary_group_of(server.user)
    return [
        Change(
            where="shell, as root, before the restart",
            lines=(f"install -d -o {user} -g {group} -m 0755 {quote(str(folder))}",),
            restarts=False,
        ),
        Change(where=f"/etc/tmpfiles.d/{folder.name}.conf", lines=(f"d {folder} 0755 {user} {group} -",), restarts=False),
    ]  # fmt: skip


PROGRAM_PREFIXES = {
    "php": ("php", "apache2", "httpd", "frankenphp"),
    "python": ("python", "gunicorn", "uwsgi", "celery"),
    "ruby": ("ruby", "puma", "sidekiq", "unicorn"),
    "node": ("node", "bun", "deno"),
    "java": ("java",),
}
"""For each language, prefixes of the names of programs written in it."""
_COMMAND_LINE_CLIENTS = (
    "psql", "pg_dump", "pgbench", "mariadb", "mariadb-dump", "mariadb-admin", "mysql", "mysqldump", "mysqladmin", "redis-cli",
    "valkey-cli", "mytop",
)  # fmt: skip
"""Complete names of command-line clients: a prefix such as `mysql` would also match mysqlrouter and mysqld_exporter."""

_OPTION_BY_BRAND = {
    "MariaDB": {"ssl": "--skip-ssl", "compress": "--loose-skip-compress"},
    "MySQL": {"ssl": "--ssl-mode=DISABLED", "compress": "--loose-skip-compress"},
}
_OPTION_CONDITIONS = {"ssl": " (unless its account has REQUIRE SSL)", "compress": ""}


def language_of(program: str) -> str | None:
    """Return the language of a program, `shell` for a command-line client, or `native`; None if the program is unknown."""
    if program in (NOT_CAUGHT, UNSEEN):
        return None
    name = program.partition(" ")[0].lower()
    if name in _COMMAND_LINE_CLIENTS:
        return "shell"
    return next((language for language, prefixes in PROGRAM_PREFIXES.items() if name.startswith(prefixes)), "native")


def is_movable(forwarder: Client) -> bool:
    """Whether the configuration lines that connect a forwarder to a socket are known."""
    return forwarder.program in _FORWARDER_LINES


def client_socket_changes(kind: Kind, path: str, clients: Sequence[Client]) -> tuple[Change, ...]:
    """Return changes after which the server accepts clients over the socket, clients can see its path, and clients use it."""
    account_lines = SERVICES[kind].account_lines
    account_changes = (_make_client_change(*account_lines, path=path),) if account_lines else ()
    forwarders = dict.fromkeys(client.program for client in clients if is_movable(client))
    client_changes = tuple(
        _make_client_change(*row, path=path) for program in forwarders for row in _FORWARDER_LINES[program]
    )
    other_clients = [client for client in clients if not is_movable(client)]
    if other_clients or not clients:
        client_changes += _client_changes("socket", kind, other_clients, path)
    return (*account_changes, *_mounts_for(clients, path.rpartition("/")[0]), *client_changes)


def _mounts_for(clients: Iterable[Client], folder: str) -> Iterator[Change]:
    """Yield changes that make a folder visible to clients with another root directory."""
    for root, program in sorted(
        {(client.root, client.program) for client in clients if client.root not in (None, "/")}
    ):
        if root == ANOTHER_ROOT:
            where = f"{program} sees another file system, as in a container: share the folder with it"
            yield Change(where=where, lines=(f"volume {folder}:{folder}",), restarts=False)
            continue
        if _is_same_file(f"{root}{folder}", folder):
            continue
        path_in_root = quote(f"{root}{folder}")
        where = (
            f"shell, as root, because {program} sees only what is below its chroot; again at each start of the machine"
        )
        lines = (f"install -d {path_in_root}", f"mount --bind {quote(folder)} {path_in_root}")
        yield Change(where=where, lines=lines, restarts=False)


def connection_reuse_changes(kind: Kind, clients: Iterable[Client]) -> tuple[Change, ...]:
    return _client_changes("keeping", kind, clients, "")


def authority_changes(clients: Iterable[Client]) -> tuple[Change, ...]:
    """Return changes that name a certificate authority; none if the client's language is unknown."""
    known = [client for client in clients if language_of(client.program) in _CLIENT_LINES["authority"][Kind.MYSQL]]
    return _client_changes("authority", Kind.MYSQL, known, "") if known else ()


def command_option_changes(option: Literal["ssl", "compress"], clients: Iterable[Client]) -> tuple[Change, ...]:
    """Return changes that add an option to the commands in use. An option file would also apply to servers on other machines."""
    names = {
        client.program
        for client in clients
        if client.program.startswith(("mariadb", "mysql")) and client.program in _COMMAND_LINE_CLIENTS
    }
    return tuple(
        Change(
            where=f"the command of {brand}{_OPTION_CONDITIONS[option]}",
            lines=(f"{name} {options[option]} …",),
            restarts=False,
        )
        for name in sorted(names)
        for brand, options in _OPTION_BY_BRAND.items()
        if brand == "MariaDB" or name.startswith("mysql")
    )


def _client_changes(purpose: str, kind: Kind, clients: Iterable[Client], path: str) -> tuple[Change, ...]:
    """Return changes for the languages of the clients, or for all languages if none of them has lines."""
    lines_by_language = _CLIENT_LINES[purpose][kind]
    languages_in_use = {language_of(client.program) for client in clients}
    languages = [language for language in lines_by_language if language in languages_in_use] or list(lines_by_language)
    return tuple(_make_client_change(*row, path=path) for language in languages for row in lines_by_language[language])


def fill_in_socket(line: str, path: str) -> str:
    """Fill in a socket's path in a line. PostgreSQL's clients use its directory and port instead."""
    folder, _, name = path.rpartition("/")
    filled = line.replace("{path}", path).replace("{folder}", folder)
    return filled.replace("{port}", name.rpartition(".")[2])


def _make_client_change(where: str, *lines: str, path: str) -> Change:
    return Change(where=where, lines=tuple(fill_in_socket(line, path) for line in lines), restarts=False)
