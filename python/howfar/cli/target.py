"""Finds a server and its login from a target, options, files and the environment, and resolves names to numeric addresses.

This module reads files and resolves names; `howfar.address` parses texts. No note or error contains a password.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shlex
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from howfar.address import (
    SYSTEM_CA,
    Files,
    Login,
    ParsedTarget,
    Secret,
    ServerAddress,
    libpq,
    parse,
    parse_option_file,
    protocol_by_port,
)
from howfar.cli.hide_arguments import HIDING
from howfar.cli.screen import note, read_text
from howfar.cli.suggest import TARGET_USAGE
from howfar.contract.ping_messages import Target, TcpTarget, UnixTarget
from howfar.distance.resolve import describe_unknown_host, parse_numeric_address, resolve_name
from howfar.errors import EngineError, UsageError
from howfar.recording.insertion import NamedServer
from howfar.services import SERVICES

MAX_FILE_BYTES = 65_536
CONNECT_TIMEOUT_S = 5.0
"""Timeout of a connection attempt that tests whether an address answers, or whether a server offers TLS."""
MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of a path that the kernel accepts, in bytes."""
_DEFAULT_SOCKETS = tuple(service.sockets[0] for service in SERVICES.values())
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Files of trusted authorities: Debian, Red Hat, SUSE, Alpine; OpenSSL's own default precedes them."""
_SERVICE_FOLDERS = ("/etc/postgresql-common", "/etc/sysconfig/pgsql", "/etc/postgresql", "/etc")
"""Folders of the system's service file: `pg_config --sysconfdir` on Debian, on Red Hat, and elsewhere."""

_PASSWORD_VARIABLES = {"mysql": ("HOWFAR_PASSWORD", "MYSQL_PWD"), "redis": ("HOWFAR_REDIS_PASSWORD", "REDISCLI_AUTH")}
"""Environment variables with a password, by protocol, so that a password for another kind of server is not sent."""

Say = Callable[[str], None]
"""Shows a note to the user."""
_NO_ADDRESS = ServerAddress()
_NO_FILE = ParsedTarget(_NO_ADDRESS)


@dataclass(frozen=True)
class _Sources:
    """Sources for a server and a login other than the target: options and the environment."""

    option_address: ServerAddress
    defaults: ServerAddress
    defaults_file: Path | None
    password_file: Path | None
    ask_password: bool
    is_visible: bool
    """Whether the target is on the command line, where other users can see it."""
    environment: Mapping[str, str]


def find_server(
    text: str | None,
    *,
    user: str | None = None,
    option_address: ServerAddress = _NO_ADDRESS,
    defaults: ServerAddress = _NO_ADDRESS,
    defaults_file: Path | None = None,
    env_name: str | None = None,
    password_file: Path | None = None,
    ask_password: bool = False,
    environment: Mapping[str, str] | None = None,
    say: Say = note,
) -> Login:
    """The complete address and the password of the server that a target and options name. Raises UsageError.

    `option_address`: options equivalent to a target; `defaults`: values that apply if no other source gives them. Without a target
    the server is that of the `howfar lab` in which this process runs, else the default of the protocol.
    """
    variables = os.environ if environment is None else environment
    parsed = _parse_given_target(text, env_name, variables)
    if user is not None:
        option_address = replace(option_address, user=user)
    sources = _Sources(
        option_address, defaults, defaults_file, password_file, ask_password, env_name is None, variables
    )
    option_file = _NO_FILE if defaults_file is None else read_option_file(defaults_file, variables, say)
    laboratory = None
    if parsed is None and not any(
        source.names_server or source.localhost_is_socket for source in (option_address, option_file.address)
    ):
        laboratory = laboratory_address(variables)
    if laboratory is not None:
        say("using the server and account of `howfar lab`")
    requested = option_address.with_fallback(parsed.address if parsed is not None else _NO_ADDRESS)
    if requested.protocol is None and parsed is not None:
        requested = replace(requested, protocol=protocol_by_port(requested.port))
    if requested.protocol == "postgresql" or (laboratory is not None and laboratory.protocol == "postgresql"):
        return _find_libpq_login(requested, parsed, laboratory is not None, sources, say)
    fallback = option_file.address if laboratory is None else laboratory.with_fallback(option_file.address)
    address = requested.with_fallback(fallback).with_fallback(defaults)
    if address.protocol == "mysql":
        address = replace(address, user=address.user or own_account_name())
    address = complete_address(address, variables)
    password = _find_password(sources, parsed, option_file.password, laboratory is not None, address, say)
    notes = (
        *(parsed.notes if parsed is not None else ()),
        *option_file.notes,
        *password_note(sources.is_visible, parsed),
    )
    return Login(_with_checked_files(address), password, notes)


def _parse_given_target(text: str | None, env_name: str | None, environment: Mapping[str, str]) -> ParsedTarget | None:
    """The parsed target, from the command line or from the variable that `--env` names. Raises UsageError."""
    if env_name is None:
        return None if text is None else parse_target(text)
    if text is not None:
        raise UsageError("the server is given by a target and by --env", "Use one of them.")
    return parse_target(variable(env_name, environment))


def parse_target(text: str) -> ParsedTarget:
    """Parse a target; a directory is that of PostgreSQL's sockets, as in libpq. Raises UsageError."""
    if os.path.isfile(text):  # noqa: PTH113 - see `_exists`
        option_file = shlex.quote(text)
        raise UsageError(
            f"{text} is a file, not the address of a server",
            f"For an option file: `howfar --defaults-file {option_file}`. For a server: {TARGET_USAGE}.",
        )
    parsed = parse(text)
    path = parsed.address.socket
    if parsed.form == "socket path" and path is not None and os.path.isdir(path):  # noqa: PTH112 - see `_exists`
        folder = Path(os.path.abspath(path))  # noqa: PTH100
        return replace(
            parsed, address=ServerAddress(protocol="postgresql", host=str(folder), port=_find_only_port(folder))
        )
    return parsed


def _find_only_port(folder: Path) -> int | None:
    """The port of the only socket of PostgreSQL in a directory; None (the default port) if there are several or the directory
    cannot be read. Raises UsageError if there is none."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return None
    names = [
        path.name.removeprefix(libpq.SOCKET_NAME_PREFIX)
        for path in entries
        if path.name.startswith(libpq.SOCKET_NAME_PREFIX)
    ]
    ports = [int(name) for name in names if name.isdigit()]
    if not ports:
        other_sockets = ", ".join(str(path) for path in sorted(entries) if path.is_socket())
        advice = f"Name one of its sockets: {other_sockets}." if other_sockets else f"For a server: {TARGET_USAGE}."
        raise UsageError(f"{folder} is a directory, and PostgreSQL has no socket in it", advice)
    return ports[0] if len(ports) == 1 else None


def variable(name: str, environment: Mapping[str, str]) -> str:
    """The value of the variable that `--env` names. Raises UsageError."""
    value = environment.get(name)
    if not value:
        name_text = f" {name}" if name.isidentifier() else ""
        raise UsageError(f"--env{name_text}: there is no such variable, or it is empty", "Export it first.")
    return value


def password_note(on_command_line: bool, parsed: ParsedTarget | None) -> tuple[str, ...]:
    """A warning if a password was on the command line, where other users can see it."""
    if not on_command_line or parsed is None or not parsed.password:
        return ()
    can_see = "could briefly see" if HIDING.is_done else "can see"
    warning = f"other users of this machine {can_see} the password in the target (ps); "
    return (warning + "--env NAME, --password-file or --ask-password avoid that",)


def complete_address(address: ServerAddress, environment: Mapping[str, str]) -> ServerAddress:
    """The address with its socket, or its host and port; the account is left as it is. Raises UsageError."""
    if address.protocol == "postgresql":
        server_part = ServerAddress(
            host=address.host, hostaddr=address.hostaddr, port=address.port, socket=address.socket
        )
        completed = libpq.complete(server_part, "", None)
        return replace(
            address, host=completed.host, hostaddr=completed.hostaddr, port=completed.port, socket=completed.socket
        )
    if address.socket is None and address.localhost_is_socket and address.host in (None, "localhost"):
        address = replace(address, host=None, port=None, socket=_find_usual_socket(environment))
    if address.socket is not None:
        return replace(address, localhost_is_socket=None)
    service = SERVICES.get(address.protocol or "")
    port = address.port or (service.port if service is not None else None)
    return replace(address, host=address.host or "localhost", port=port, localhost_is_socket=None)


def _find_usual_socket(environment: Mapping[str, str]) -> str:
    """The socket that the clients of MySQL and MariaDB use for localhost. Raises UsageError."""
    paths = SERVICES["mysql"].sockets
    if from_variable := environment.get("MYSQL_UNIX_PORT"):
        return from_variable
    existing = next((path for path in paths if Path(path).is_socket()), None)
    if existing is None:
        raise UsageError(
            f"localhost means the server's socket here, and none of the usual ones exists: {', '.join(paths)}",
            "Name the socket, or write 127.0.0.1 for TCP.",
        )
    return existing


# ---------------------------------------------------------------- option files


def read_option_file(file: Path, environment: Mapping[str, str], say: Say) -> ParsedTarget:
    """The address and password that an option file and the files it includes give. Raises UsageError."""
    first = str(file)

    def read_file(name: str) -> str | None:
        path = Path(name)
        if name != first and not path.exists():
            return None
        content = read_text(path, "--defaults-file" if name == first else "the option file", MAX_FILE_BYTES)
        if path.stat().st_mode & 0o002:
            say(f"{name} is ignored, as the clients do, because every user can write to it: run chmod o-w on it")
            return None
        return content

    def list_folder(folder: str) -> list[str] | None:
        try:
            return [str(path) for path in Path(folder).iterdir()]
        except OSError:
            return None

    return parse_option_file(first, Files(read_file, list_folder), environment.get("MYSQL_GROUP_SUFFIX", ""))


def _with_checked_files(address: ServerAddress) -> ServerAddress:
    """Check that the files that an address names can be read; returns it with SYSTEM_CA replaced by a file.

    Raises UsageError.
    """
    if address.ssl_ca == SYSTEM_CA:
        address = replace(address, ssl_ca=find_system_ca_file())
    for name, file in (("CA", address.ssl_ca), ("certificate", address.ssl_cert), ("key", address.ssl_key)):
        if file:
            try:
                Path(file).open("rb").close()
            except OSError as error:
                problem = f"the {name} file {file} cannot be read: {error.strerror}"
                raise UsageError(problem, "Check its name and permissions.") from error
    return address


def find_system_ca_file() -> str:
    """The file of the authorities that this machine trusts: OpenSSL's default, or that of a distribution. Raises UsageError."""
    default = ssl.get_default_verify_paths().cafile
    existing = next((file for file in (default, *_CA_FILES) if file and _exists(file)), None)
    if existing is None:
        raise UsageError(
            "this machine has no file of trusted authorities in a usual place",
            "Install ca-certificates, or name a file (SSL_CERT_FILE, ssl-ca, sslrootcert).",
        )
    return existing


# ---------------------------------------------------------------- the laboratory


def laboratory_address(environment: Mapping[str, str] | None = None) -> ServerAddress | None:
    """The server that `howfar lab` describes to the programs in it; None outside of a laboratory."""
    environment = os.environ if environment is None else environment
    if "HOWFAR_SOCKET" not in environment and "HOWFAR_HOST" not in environment:
        return None
    protocol = environment.get("HOWFAR_PROTOCOL", "mysql")
    service = SERVICES.get(protocol, SERVICES["mysql"])
    port = environment.get("HOWFAR_PORT", str(service.port))
    is_tcp = "HOWFAR_SOCKET" not in environment
    return ServerAddress(
        protocol=service.name,
        host=environment.get("HOWFAR_HOST") if is_tcp else None,
        port=int(port) if is_tcp and port.isdigit() else None,
        socket=environment.get("HOWFAR_SOCKET"),
        user=environment.get("HOWFAR_USER"),
        database=environment.get("HOWFAR_DATABASE"),
        fetch_server_key=True,  # safe: the account was created for the laboratory, in namespaces without other users
    )


# ---------------------------------------------------------------- passwords


def _find_password(
    sources: _Sources,
    parsed: ParsedTarget | None,
    file_password: Secret | None,
    in_laboratory: bool,
    address: ServerAddress,
    say: Say,
) -> Secret:
    target_password = parsed.password if parsed is not None else None
    file = sources.password_file
    environment = sources.environment
    if in_laboratory and not (file or sources.ask_password or target_password or file_password is not None):
        lab_file = environment.get("HOWFAR_PASSWORD_FILE")  # the other variables are for the user's own servers
        file = Path(lab_file) if lab_file else None
    names = _PASSWORD_VARIABLES.get(address.protocol or "", ("HOWFAR_PASSWORD",))
    return password(file, sources.ask_password, target_password or file_password, say, environment, names)


def password(
    file: Path | None,
    ask: bool,
    known_password: Secret | None,
    say: Say,
    environment: Mapping[str, str],
    names: tuple[str, ...] = ("HOWFAR_PASSWORD",),
) -> Secret:
    """The password from the most explicit source. `known_password`: that of the target or an option file; `names`: variables.

    Raises UsageError.
    """
    if file is not None:
        text = read_text(file, "--password-file", MAX_FILE_BYTES)
        if file.stat().st_mode & 0o077:
            say(f"other users of this machine can read {file}: run chmod 600 on it")
        return Secret(text.split("\n", 1)[0].removesuffix("\r"))
    if ask and not sys.stdin.isatty():
        raise UsageError(
            "--ask-password needs a terminal", "Use --password-file or an environment variable in scripts."
        )
    if ask:
        return Secret(getpass.getpass("Password: "))
    if known_password is not None:
        return known_password
    return Secret(next((environment[name] for name in names if name in environment), ""))


# ---------------------------------------------------------------- libpq's sources


def _find_libpq_login(
    requested: ServerAddress, parsed: ParsedTarget | None, in_laboratory: bool, sources: _Sources, say: Say
) -> Login:
    """The login with libpq's other sources: the service, the environment, the password file. Raises UsageError."""
    environment = dict(sources.environment)
    if in_laboratory:  # the laboratory sets libpq's variables; passwords for the user's own servers do not apply
        environment = {
            name: value for name, value in environment.items() if name not in ("HOWFAR_PASSWORD", "PGPASSWORD")
        }
    home = home_directory(environment)
    from_environment = libpq.parse_environment(environment)
    notes = list(parsed.notes) if parsed is not None else []
    service_password: Secret | None = None
    address = replace(requested, protocol="postgresql", localhost_is_socket=None)
    if (service := address.service or from_environment.service) is not None:
        service_file = _read_service(service, address.service_file or from_environment.service_file, home, environment)
        address, service_password = libpq.with_fallback(address, service_file.address), service_file.password
        notes += service_file.notes
    address = libpq.with_fallback(address, from_environment)
    if sources.defaults.protocol in (None, "postgresql"):
        address = libpq.with_fallback(address, sources.defaults)
    certificates = home / ".postgresql"
    client_certificate = (str(certificates / "postgresql.crt"), str(certificates / "postgresql.key"))
    root_certificate = str(certificates / "root.crt")
    address = libpq.complete(
        address,
        own_account_name(),
        root_certificate if _exists(root_certificate) else None,
        client_certificate if all(map(_exists, client_certificate)) else None,
    )
    target_password = parsed.password if parsed is not None else None
    known_password = target_password or service_password
    names = ("HOWFAR_PASSWORD", "PGPASSWORD")
    if not known_password and not any(name in environment for name in names):
        known_password = _read_passfile(Path(address.passfile or home / ".pgpass"), address, say)
    found_password = password(sources.password_file, sources.ask_password, known_password, say, environment, names)
    return Login(_with_checked_files(address), found_password, (*notes, *password_note(sources.is_visible, parsed)))


def _read_service(service: str, service_file: str | None, home: Path, environment: Mapping[str, str]) -> ParsedTarget:
    user_file = Path(service_file or environment.get("PGSERVICEFILE") or home / ".pg_service.conf")
    folders = (environment["PGSYSCONFDIR"],) if environment.get("PGSYSCONFDIR") else _SERVICE_FOLDERS
    files = [user_file, *(Path(folder, "pg_service.conf") for folder in folders)]
    for file in files:
        if _exists(file):
            section = libpq.parse_service(str(file), read_text(file, "the service file", MAX_FILE_BYTES), service)
            if section is not None:
                return section
    raise UsageError("the service is not in any service file", f"Looked in {', '.join(map(str, files))}.")


def _read_passfile(file: Path, address: ServerAddress, say: Say) -> Secret | None:
    if not os.path.isfile(file):  # noqa: PTH113 - see `_exists`
        return None
    if file.stat().st_mode & 0o077:
        say(f"{file} is ignored, because other users can read it: run chmod 600 on it")
        return None
    return libpq.find_password(read_text(file, "the password file", MAX_FILE_BYTES), address)


def _exists(path: str | Path) -> bool:
    """Whether a file exists and can be seen. Unlike `Path.exists`, never raises in a directory without access, as $HOME may be."""
    return os.path.exists(path)  # noqa: PTH110


def home_directory(environment: Mapping[str, str]) -> Path:
    """The home directory, as libpq finds it: from HOME, else from the account."""
    if environment.get("HOME"):
        return Path(environment["HOME"])
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return Path("/nonexistent")


def own_account_name() -> str:
    """Name of the account of this process; its number if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def resolve_tls_mode(address: ServerAddress, target: Target, say: Say) -> ServerAddress:
    """The address with `sslmode=prefer` resolved: the server is asked once whether it offers TLS. Raises UsageError, EngineError."""
    if address.ssl_mode != "PREFERRED":
        return address
    if address.protocol != "postgresql":
        raise UsageError(
            "ssl-mode=PREFERRED leaves open what is measured", "Use REQUIRED (or VERIFY_IDENTITY) or DISABLED."
        )
    offered = isinstance(target, TcpTarget) and _offers_tls(target)
    say(f"sslmode=prefer: TLS is {'used, because the server offers it' if offered else 'not used'}")
    return replace(address, ssl_mode="REQUIRED" if offered else "DISABLED")


def _offers_tls(target: TcpTarget) -> bool:
    """Whether the server offers TLS, asked as libpq does, on a separate connection. Raises EngineError."""
    from howfar.clients.postgresql import SSL_REQUEST  # with pg8000, which few commands need

    try:
        with closing(socket.create_connection((target.host, target.port), CONNECT_TIMEOUT_S)) as connection:
            connection.sendall(SSL_REQUEST)
            return connection.recv(1) == b"S"
    except OSError as error:
        raise EngineError(
            f"{target.host} port {target.port} did not say whether it offers TLS: {error.strerror or error}",
            "Start the server, correct the host and port, or give sslmode=disable or sslmode=require.",
        ) from error


# ---------------------------------------------------------------- numeric addresses


def resolve_host(address: ServerAddress) -> tuple[str, ...]:
    """The numeric addresses of a host, in the resolver's order; a numeric address is returned unchanged. Raises UsageError."""
    host = address.hostaddr or address.host
    assert host is not None, "an address with a socket is not resolved"
    if (numeric_host := parse_numeric_address(host)) is not None:
        return (numeric_host,)
    try:
        return resolve_name(host, address.port or 0)
    except (OSError, UnicodeError) as error:
        raise UsageError(*describe_unknown_host(host, error)) from error


def numeric_target(address: ServerAddress, say: Say) -> Target:
    """The numeric address of a server. Of a name with several addresses, each is tried in turn; a note names the one that answers."""
    if address.socket is not None:
        return UnixTarget(path=socket_path(address.socket))
    assert address.port is not None, "the address is complete"
    numeric_hosts = resolve_host(address)
    if len(numeric_hosts) == 1:
        return TcpTarget(host=numeric_hosts[0], port=address.port)
    failures: list[str] = []
    start_s = time.monotonic()
    for numeric_host in numeric_hosts:
        attempt_start_s = time.monotonic()
        try:
            with closing(socket.create_connection((numeric_host, address.port), CONNECT_TIMEOUT_S)):
                say(
                    _describe_choice(
                        address.host, numeric_host, len(numeric_hosts), failures, attempt_start_s - start_s
                    )
                )
                return TcpTarget(host=numeric_host, port=address.port)
        except OSError as error:
            failures.append(f"{numeric_host}: {error.strerror or error}")
    raise EngineError(
        f"{address.host} port {address.port} does not answer at any of its addresses ({'; '.join(failures)})",
        "Start the server, or correct the host and port. If it listens only on a Unix socket, name that socket.",
    )


def _describe_choice(host: str | None, numeric_host: str, count: int, failures: list[str], lost_s: float) -> str:
    """A sentence on which of several addresses was chosen, and on the time lost on the addresses before it, which no figure of a load
    includes."""
    choice = f"{host} has {count} addresses; {numeric_host} is the first that answers"
    if not failures:
        return choice
    return (
        f"{choice}, after {lost_s:.3f} s for {len(failures)} that did not. A client that connects by name may wait as long at each "
        "connect"
    )


def socket_path(path: str) -> str:
    """The absolute path of a socket. Raises UsageError."""
    path = os.path.abspath(path)  # noqa: PTH100 - the same text, no links followed
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"the socket's path {path} is longer than {MAX_SOCKET_PATH_BYTES} bytes",
            "Name a symbolic link with a shorter path.",
        )
    return path


def find_usual_server() -> str:
    """The server of the `howfar lab` in which this process runs, else the only usual socket that exists. Raises UsageError."""
    laboratory = laboratory_address()
    if laboratory is not None:
        return laboratory.location
    existing = [path for path in _DEFAULT_SOCKETS if Path(path).is_socket()]
    if len(existing) == 1:
        return existing[0]
    sockets = ", ".join(existing) or "none"
    raise UsageError(
        f"no server was named, and these usual sockets were found: {sockets}",
        "Name it with --server SOCKET or --server HOST:PORT.",
    )


def server_at(text: str, option: str = "--server") -> UnixTarget | TcpTarget:
    """The numeric address of the server that an option names in any form of a target, whose account is not used.

    Raises UsageError, EngineError.
    """
    return named_server_at(text, option).target


def named_server_at(text: str, option: str = "--server") -> NamedServer:
    """Like `server_at`, with the server's host name and protocol if these are known. Raises UsageError, EngineError."""
    login = find_server(text)
    for remark in login.notes:
        note(remark)
    if login.address.socket is None and login.address.port is None:
        raise UsageError(f"{option} names a host without a port", "Write HOST:PORT, or the path of a socket.")
    address = login.address
    is_name = address.socket is None and address.host is not None and parse_numeric_address(address.host) is None
    protocol = address.protocol or protocol_by_port(address.port)
    return NamedServer(numeric_target(address, note), address.host if is_name else None, protocol)
