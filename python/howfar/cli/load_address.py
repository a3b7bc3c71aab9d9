"""`howfar load`: from a DSN, options, files and the environment to a numeric address and a password. Reads files, resolves names.

A password is taken from a file, the environment or a question, never from the command line.
"""

from __future__ import annotations

import getpass
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from howfar.cli.screen import note, read_text
from howfar.engine.messages import (
    Target,
    TcpTarget,
    UnixTarget,
)
from howfar.errors import EngineError, UsageError
from howfar.load import libpq
from howfar.load.cmdline import Options
from howfar.load.job import Login, address_of_options, joined
from howfar.load.target import DEFAULT_PORT, ServerAddress, parse_dsn, parse_option_file
from howfar.services import SERVICES

MAX_FILE_BYTES = 65_536
_USUAL_SOCKETS = tuple(service.sockets[0] for service in SERVICES.values())
TRY_S = 5.0
"""Time for each of several addresses of a name."""
LONGEST_SOCKET_PATH = 107
"""Longest path that the kernel accepts."""

Say = Callable[[str], None]


def find_login(options: Options, say: Say, environment: Mapping[str, str] = os.environ) -> Login:
    """Everything about the server that has to be known before a job is made. Raises UsageError, EngineError."""
    file: ServerAddress | None = None
    of_file: str | None = None
    if options.given("defaults-file"):
        path = Path(options.value("defaults-file"))
        file, of_file = parse_option_file(str(path), read_text(path, "--defaults-file", MAX_FILE_BYTES))
    named = address_of_options(options)
    if options.dsn is not None and libpq.looks_like_uri(options.dsn):
        return _postgres(options, joined(libpq.parse_uri(options.dsn), named, None), say, environment)
    if named.protocol == "postgresql":
        return _postgres(options, joined(None, named, None), say, environment)
    dsn = parse_dsn(options.dsn) if options.dsn is not None else None
    laboratory: ServerAddress | None = None
    if not any(source is not None and source.names_a_server for source in (dsn, named, file)):
        laboratory = of_laboratory(environment)
    if laboratory is not None:
        say("using the server and account of `howfar lab`")
    if laboratory is not None and environment.get("HOWFAR_PROTOCOL") == "postgresql":
        own = {name: value for name, value in environment.items() if name not in ("HOWFAR_PASSWORD", "PGPASSWORD")}
        return _postgres(options, joined(libpq.parse_uri("postgresql://"), named, None), say, own)
    if laboratory is not None:
        file = laboratory.over(file or ServerAddress())
    address = joined(dsn, named, file)
    _check_files(address)
    return Login(
        address, target_of(address, say), _password(options, of_file, laboratory is not None, environment, say)
    )


def _check_files(address: ServerAddress) -> None:
    """Check the files that an address names. Raises UsageError."""
    for name, file in (("CA", address.ssl_ca), ("certificate", address.ssl_cert), ("key", address.ssl_key)):
        if file is not None:
            try:
                Path(file).open("rb").close()
            except OSError as error:
                says = f"the {name} file {file} cannot be read: {error.strerror}"
                raise UsageError(says, "Check its name and permissions.") from error


def of_laboratory(environment: Mapping[str, str] = os.environ) -> ServerAddress | None:
    """The server that `howfar lab` describes to the programs in it; None outside."""
    if "HOWFAR_SOCKET" not in environment and "HOWFAR_HOST" not in environment:
        return None
    port = environment.get("HOWFAR_PORT", str(DEFAULT_PORT))
    inet = "HOWFAR_SOCKET" not in environment
    return ServerAddress(
        host=environment.get("HOWFAR_HOST") if inet else None,
        port=int(port) if inet and port.isdigit() else None,
        socket=environment.get("HOWFAR_SOCKET"),
        user=environment.get("HOWFAR_USER"),
        database=environment.get("HOWFAR_DATABASE"),
        fetch_server_key=True,  # an account made up for the laboratory, in namespaces that nobody else is in
    )


def _password(options: Options, of_file: str | None, laboratory: bool, environment: Mapping[str, str], say: Say) -> str:
    file = options.value("password-file")
    if laboratory and not (file or options.value("ask-password") or of_file is not None):
        file = environment.get("HOWFAR_PASSWORD_FILE")  # the other variables are for the user's own servers
    return password(file and Path(file), options.value("ask-password"), of_file, say, environment)


def password(
    file: Path | None, ask: bool, of_file: str | None, say: Say, environment: Mapping[str, str] = os.environ
) -> str:
    """The password from the most explicit source; `of_file`: that of an option file. Raises UsageError."""
    if file is not None:
        text = read_text(file, "--password-file", MAX_FILE_BYTES)
        if file.stat().st_mode & 0o077:
            say(f"other users of this machine can read {file}: run chmod 600 on it")
        return text.split("\n", 1)[0].removesuffix("\r")
    if ask and not sys.stdin.isatty():
        raise UsageError("--ask-password needs a terminal", "Use --password-file or HOWFAR_PASSWORD in scripts.")
    if ask:
        return getpass.getpass("Password: ")
    if of_file is not None:
        return of_file
    return environment.get("HOWFAR_PASSWORD", environment.get("MYSQL_PWD", ""))


def _postgres(options: Options, address: ServerAddress, say: Say, environment: Mapping[str, str]) -> Login:
    """The login with libpq's other sources: the service, the environment, the password file. Raises UsageError, EngineError."""
    home = Path(environment.get("HOME", "/nonexistent"))
    outside = libpq.of_environment(environment)
    of_service: str | None = None
    if (service := address.service or outside.service) is not None:
        found, of_service = _service(service, home, environment)
        address = libpq.over(address, found)
    own_ca = str(home / ".postgresql" / "root.crt")
    address = libpq.completed(libpq.over(address, outside), own_name(), own_ca if _is_there(own_ca) else None)
    _check_files(address)
    target = target_of(replace(address, host=address.hostaddr or address.host), say)
    if address.ssl_mode == "PREFERRED":
        offered = isinstance(target, TcpTarget) and _offers_tls(target)
        say(f"sslmode=prefer: TLS is {'used, because the server offers it' if offered else 'not used'}")
        address = replace(address, ssl_mode="REQUIRED" if offered else "DISABLED")
    known = of_service or environment.get("HOWFAR_PASSWORD", environment.get("PGPASSWORD"))
    if known is None:
        known = _of_passfile(Path(address.passfile or home / ".pgpass"), address, say)
    return Login(address, target, _password(options, known or "", False, environment, say))


def _service(service: str, home: Path, environment: Mapping[str, str]) -> tuple[ServerAddress, str | None]:
    own = Path(environment.get("PGSERVICEFILE", home / ".pg_service.conf"))
    files = (own, Path(environment.get("PGSYSCONFDIR", "/etc/postgresql-common"), "pg_service.conf"))
    for file in files:
        if _is_there(file):
            found = libpq.parse_services(str(file), read_text(file, "the service file", MAX_FILE_BYTES), service)
            if found is not None:
                return found
    raise UsageError(f"the service {service} is not in any service file", f"Looked in {files[0]} and {files[1]}.")


def _is_there(file: str | Path) -> bool:
    """Whether we can see the file: `Path.exists` raises in a directory that we may not enter, as $HOME may be."""
    return os.path.exists(file)  # noqa: PTH110


def own_name() -> str:
    """Our account's name; its number if it has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def _of_passfile(file: Path, address: ServerAddress, say: Say) -> str | None:
    if not os.path.isfile(file):  # noqa: PTH113 - see `_is_there`
        return None
    if file.stat().st_mode & 0o077:
        say(f"{file} is ignored, because other users can read it: run chmod 600 on it")
        return None
    return libpq.password_of(read_text(file, "the password file", MAX_FILE_BYTES), address)


def _offers_tls(target: TcpTarget) -> bool:
    """Whether the server offers TLS, asked as libpq does, on a connection of its own. Raises EngineError."""
    try:
        with closing(socket.create_connection((target.host, target.port), TRY_S)) as asked:
            asked.sendall(struct.pack("!II", 8, 80877103))
            return asked.recv(1) == b"S"
    except OSError as error:
        raise EngineError(
            f"{target.host} port {target.port} did not say whether it offers TLS: {error.strerror or error}",
            "Start the server, correct the host and port, or give sslmode=disable or sslmode=require.",
        ) from error


def target_of(address: ServerAddress, say: Say) -> Target:
    """The numeric address. For a name with several, each is tried in turn, and the one that answers is reported."""
    if address.socket is not None:
        path = os.path.abspath(address.socket)  # noqa: PTH100 - the same text, no links followed
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            raise UsageError(
                f"the socket's path {path} is longer than {LONGEST_SOCKET_PATH} bytes",
                "Name a symbolic link with a shorter path.",
            )
        return UnixTarget(path=path)
    assert address.host is not None and address.port is not None, "a joined address is complete"
    try:
        return TcpTarget(host=str(ip_address(address.host.strip("[]"))), port=address.port)
    except ValueError:
        pass
    addresses = _resolved(address.host, address.port)
    if len(addresses) == 1:
        return TcpTarget(host=addresses[0], port=address.port)
    refusals = []
    for number in addresses:
        try:
            with closing(socket.create_connection((number, address.port), TRY_S)):
                say(f"{address.host} has {len(addresses)} addresses; {number} is the first that answers")
                return TcpTarget(host=number, port=address.port)
        except OSError as error:
            refusals.append(f"{number}: {error.strerror or error}")
    raise EngineError(
        f"{address.host} port {address.port} does not answer at any of its addresses ({'; '.join(refusals)})",
        "Start the server, or correct the host and port. If it listens only on a Unix socket, name that socket.",
    )


def _resolved(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of a label that is empty or too long
        raise UsageError(
            f"the host {host} is not known: {getattr(error, 'strerror', None) or error}",
            "Correct its name, or give its address.",
        ) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def usual_server() -> str:
    """The server of `howfar lab` inside it, else the one usual socket that exists. Raises UsageError."""
    laboratory = of_laboratory()
    if laboratory is not None:
        return laboratory.socket or f"{laboratory.host}:{laboratory.port}"
    found = [path for path in _USUAL_SOCKETS if Path(path).is_socket()]
    if len(found) == 1:
        return found[0]
    here = ", ".join(found) or "none"
    raise UsageError(
        f"no server was named, and these usual sockets were found: {here}",
        "Name it with --server SOCKET or --server HOST:PORT.",
    )


def address_of(text: str) -> UnixTarget | TcpTarget:
    """Parse `/path/of/a/socket`, `HOST:PORT` or `[::1]:PORT`. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if "/" in text:
        return target_of(ServerAddress(socket=text), note)
    if not colon or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError(f"{text!r} is not an address", "Write /path/of/a/socket or HOST:PORT.")
    return target_of(ServerAddress(host=host, port=int(port)), note)
