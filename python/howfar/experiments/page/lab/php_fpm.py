"""Runs a page in PHP-FPM, in a separate pool of child processes, and verifies the page's round trips.

The PHP code that the child processes run is in `php/`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from howfar.contract.application_receipt import (
    ApplicationReceipt,
    PagesReceipt,
    PersistentClients,
    RequestedPages,
    RequestedService,
)
from howfar.contract.messages import (
    CpuStep,
    CustomStatement,
    Distribution,
    FastCgi,
    GetStep,
    IntegerValues,
    Observed,
    PageScript,
    QueryStep,
    SequenceValues,
    Service,
    ServiceName,
    TextValues,
    UnixTarget,
)
from howfar.contract.receipt import TrialReceipt
from howfar.contract.services import services_of, sql_of
from howfar.contract.violation import Violation, violation
from howfar.engine.process import Launcher, own_environment
from howfar.errors import LabError, MissingError, PlanError
from howfar.lab import sandbox
from howfar.lab.connected_server import ConnectedServer, CountingServer, write_private_file
from howfar.lab.network import ManagedProcess
from howfar.lab.servers import ServerCounts
from howfar.services import SERVICES
from howfar.testbed import CollectedReceipt

_HEADER = struct.Struct(">BBHHBx")
_VERSION = 1
_REQUEST = 1
_BEGIN, _END, _PARAMS, _STDIN, _STDOUT, _STDERR = 1, 3, 4, 5, 6, 7
_RESPONDER = struct.pack(">HB5x", 1, 0)
_MAX_RECORD_BYTES = 65_535


@dataclass(frozen=True)
class PhpReply:
    """A reply of the application."""

    status: int
    headers: Mapping[str, str]
    body: str
    stderr: str
    """The application's output on its standard error."""

    @property
    def counts(self) -> dict[str, int]:
        """The counts that the page reported in its header X-Howfar-Page, by name. Raises LabError if it is not `name=integer,…`."""
        header = self.headers.get("x-howfar-page", "")
        pairs = [pair.partition("=") for pair in header.split(",") if pair]
        if not all(value.isascii() and value.isdigit() for _, _, value in pairs):
            raise LabError(f"the application told of its page by {header[:200]!r}, which is not name=integer,…")
        return {name: int(value) for name, _, value in pairs}


def send_request(socket_path: Path, parameters: Mapping[str, str], timeout_s: float) -> PhpReply:
    """Send one FastCGI request and return the reply. Raises LabError if the reply is missing or incomplete."""
    output = {_STDOUT: b"", _STDERR: b""}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(socket_path))
            connection.sendall(_encode_request(parameters))
            for kind, content in _read_records(connection):
                if kind == _END:
                    break
                output[kind] = output.get(kind, b"") + content
            else:
                raise LabError(f"the application at {socket_path} ended its answer in the middle")
    except OSError as error:
        raise LabError(f"asking the application at {socket_path} failed: {error}") from error
    return _parse_reply(output[_STDOUT], output[_STDERR].decode(errors="replace"))


def _encode_request(parameters: Mapping[str, str]) -> bytes:
    pairs = b"".join(_encode_pair(name.encode(), value.encode()) for name, value in parameters.items())
    pieces = [pairs[start : start + _MAX_RECORD_BYTES] for start in range(0, len(pairs), _MAX_RECORD_BYTES)]
    records = [(_BEGIN, _RESPONDER), *((_PARAMS, piece) for piece in pieces), (_PARAMS, b""), (_STDIN, b"")]
    return b"".join(_HEADER.pack(_VERSION, kind, _REQUEST, len(content), 0) + content for kind, content in records)


def _encode_pair(name: bytes, value: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(text) | 1 << 31) for text in (name, value)) + name + value


def _read_records(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of each FastCGI record, until the application closes the connection."""
    with connection.makefile("rb") as stream:
        while len(header := stream.read(_HEADER.size)) == _HEADER.size:
            _, kind, _, length, padding = _HEADER.unpack(header)
            content = stream.read(length)
            if len(content) < length or len(stream.read(padding)) < padding:
                return
            yield kind, content


def _parse_reply(output: bytes, stderr: str) -> PhpReply:
    header_text, _, body = output.decode(errors="replace").replace("\r\n", "\n").partition("\n\n")
    lines = (line.partition(":") for line in header_text.split("\n"))
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    status = headers.get("status", "200").split(" ")[0]
    return PhpReply(int(status) if status.isdigit() else 0, headers, body, stderr)


PAGES = Path(__file__).parent / "php"
ADVICE = "Run `howfar setup --page`: it installs PHP-FPM and the extensions for MySQL, PostgreSQL, Redis and Memcached."
_SBIN_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin")
_NAME = re.compile(r"php-fpm(?P<version>[0-9.]*)")
_LOADABLE_EXTENSIONS = ("mysqlnd", "pdo", "pdo_mysql", "pdo_pgsql", "igbinary", "msgpack", "redis", "memcached")
"""Extensions to load if they are not built in, in this order: later ones depend on earlier ones."""
_REQUIRED_EXTENSIONS = ("redis", "memcached", "zend opcache")
_MIN_QUEUE = 511
_READY_TIMEOUT_S = 20.0
_POLL_S = 0.003
_KILL_POOL_AFTER_US = (
    "setpriv",
    "--pdeathsig",
    "TERM",
    "--",
    "sh",
    "-c",
    'trap "kill -s KILL -- -$1 0" TERM; echo; sleep infinity >&- & wait',
    "sh",
)
"""Command line of a shell that kills FPM's process group when this process dies. Killing only FPM would leave its child processes,
which otherwise end with the sandbox."""
_LOG_LINES = 8
_CHILD_DIED = " exited on signal "
"""Text in FPM's log lines about child processes that died unexpectedly."""


@dataclass(frozen=True)
class FpmProgram:
    """An installed PHP-FPM."""

    path: Path
    version: str
    extensions: tuple[str, ...]
    """Extensions that are not built in and must be loaded."""


def find_php_fpm(sql: ServiceName = "mysql") -> FpmProgram:
    """The newest PHP-FPM, in PATH or in directories for administrators' programs, that has all extensions that a page needs. `sql`:
    the service for the page's statements. Raises MissingError."""
    php = SERVICES[sql].php
    assert php is not None, "the service takes SQL statements"
    return _find_newest_program(os.environ.get("PATH", ""), php[0])


@cache
def _find_newest_program(path: str, driver: str) -> FpmProgram:
    """See `find_php_fpm`. `path`: the value of PATH; `driver`: PDO's."""
    directories = [Path(directory) for directory in (*path.split(os.pathsep), *_SBIN_DIRECTORIES) if directory]
    programs = {program.resolve() for directory in directories for program in _programs_in(directory)}
    if not programs:
        raise MissingError("there is no php-fpm on this machine", ADVICE)
    problems: list[str] = []
    for program in sorted(
        programs, key=lambda program: [int(part) for part in re.findall(r"\d+", program.name)], reverse=True
    ):
        built_in = _module_names(program, "-n")
        to_load = [name for name in _LOADABLE_EXTENSIONS if name not in built_in]
        modules = _module_names(program, "-n", *(f"-dextension={name}" for name in to_load), "-dzend_extension=opcache")
        loaded = tuple(name for name in to_load if name in modules)
        if missing := [name for name in (driver, *_REQUIRED_EXTENSIONS) if name not in modules]:
            problems.append(f"{program} lacks the extensions {', '.join(missing)}")
            continue
        match = re.search(r"PHP (\d\S*)", _run_php(program, "-n", "-v"))
        return FpmProgram(program, match.group(1) if match else "unknown", loaded)
    raise MissingError("; ".join(problems), ADVICE)


def _programs_in(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [file for file in directory.iterdir() if _NAME.fullmatch(file.name) and os.access(file, os.X_OK)]
    return []


def _module_names(program: Path, *options: str) -> set[str]:
    return {line.strip().lower() for line in _run_php(program, *options, "-m").splitlines()}


def _run_php(program: Path, *options: str) -> str:
    try:
        return subprocess.run([program, *options], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{program} {' '.join(options)} failed: {error}", ADVICE) from error


def _php_ini(program: FpmProgram) -> str:
    """A php.ini like a production server's: compiled pages stay in memory and are not checked for changes; errors go to the log."""
    extensions = "".join(f"extension = {name}\n" for name in program.extensions)
    return f"""{extensions}zend_extension = opcache
opcache.enable = 1
opcache.validate_timestamps = 0
; Without this a file that has just been installed is compiled anew for every page.
opcache.file_update_protection = 0
display_errors = 0
log_errors = 1
error_reporting = E_ALL
max_execution_time = 0
expose_php = 0
"""


def _pool_configuration(socket: Path, log: Path, children: int) -> str:
    # If FPM runs as root, it requires a user for its children; otherwise they run as FPM's own user.
    user = "user = root\ngroup = root\n" if os.geteuid() == 0 else ""
    return f"""[global]
daemonize = no
error_log = {log}
log_level = notice
[page]
{user}listen = {socket}
listen.mode = 0600
listen.backlog = {max(_MIN_QUEUE, 2 * children)}
pm = static
pm.max_children = {children}
clear_env = yes
catch_workers_output = yes
decorate_workers_output = no
security.limit_extensions = .php
"""


class PhpFpm:
    """A running pool of PHP-FPM, which starts at construction; `stop` ends it and its child processes."""

    def __init__(self, program: FpmProgram, work: Path, launcher: Launcher, children: int) -> None:
        self.children = children
        self._work = work
        self.socket = work / "php.sock"
        self._log = work / "php-fpm.log"
        self._ini = work / "php.ini"
        pool_file = work / "php-fpm.conf"
        self._ini.write_text(_php_ini(program))
        pool_file.write_text(_pool_configuration(self.socket, self._log, children))
        self.socket.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        command = [str(program.path), "--nodaemonize", "-c", str(self._ini), "-y", str(pool_file)]
        if os.geteuid() == 0:
            command.append("--allow-to-run-as-root")
        self._output = work / "php-fpm.out"
        with self._output.open("wb") as output:
            self._process = ManagedProcess(
                launcher,
                command,
                # An empty value keeps PHP from reading a directory of further settings.
                env={**own_environment(), "PHP_INI_SCAN_DIR": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid = self._process.pid
        self._watch: ManagedProcess | None = None
        if not sandbox.inside():
            self._watch = ManagedProcess(
                launcher, [*_KILL_POOL_AFTER_US, str(self.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
            assert self._watch.process.stdout is not None
            self._watch.process.stdout.readline()  # after this empty line its trap is set

    def become_ready(self) -> ApplicationReceipt:
        """Wait until the pool answers; returns its report about itself (`php/about.php`). Raises LabError."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            self.check_alive("at start")
            try:
                reply = send_request(self.socket, fastcgi_parameters(PAGES / "about.php"), _READY_TIMEOUT_S)
            except LabError as silent:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"PHP-FPM did not answer within {_READY_TIMEOUT_S:.0f} s{self.describe_last_output()}",
                        "Is the machine overloaded?",
                    ) from silent
                time.sleep(_POLL_S)
            else:
                return parse_about(reply)

    def install_page(self, script: PageScript, name: str) -> FastCgi:
        """Install a page; returns its FastCGI request. The page's file contains passwords, so only our user may read it."""
        file = write_private_file(self._work / name, self._with_libpq_socket(script).model_dump_json())
        return FastCgi(
            target=UnixTarget(path=str(self.socket)),
            parameters=fastcgi_parameters(_PAGE, HOWFAR_PAGE=str(file)),
            ends_with=END_MARK,
        )

    def _with_libpq_socket(self, script: PageScript) -> PageScript:
        """The page with a path to PostgreSQL's socket that libpq accepts: libpq expects a fixed file name, so the path is that of a
        link with this name."""
        for name, service in services_of(script).items():
            if SERVICES[name].names_socket_directory and isinstance(service.target, UnixTarget):
                link_path = self._work / LIBPQ_SOCKET
                link_path.unlink(missing_ok=True)
                link_path.symlink_to(service.target.path)
                target = UnixTarget(path=str(link_path))
                return script.model_copy(update={name: service.model_copy(update={"target": target})})
        return script

    def send_request(self, parameters: dict[str, str], timeout_s: float) -> PhpReply:
        """Send one request to the pool and return the reply. Raises LabError."""
        try:
            return send_request(self.socket, parameters, timeout_s)
        except LabError as error:
            self.check_alive("while it was asked for a page")
            raise LabError(
                f"{error.message}{self.describe_last_output()}", "Are all its children at work, or stuck?"
            ) from error

    def check_alive(self, when: str) -> None:
        """Check that the pool runs; `when` is for the error's text. Raises LabError."""
        if not self._process.alive():
            code = self._process.process.returncode
            raise LabError(
                f"PHP-FPM ended {when} (exit code {code}){self.describe_last_output()}", "Check whether memory ran out."
            )

    def child_deaths(self) -> tuple[str, ...]:
        """FPM's log lines about child processes that died; FPM has replaced them."""
        return tuple(line for line in self._log_lines() if _CHILD_DIED in line)

    def describe_last_output(self) -> str:
        """A sentence with the end of the pool's log, for error messages."""
        lines = [line for line in self._log_lines() if "NOTICE" not in line][-_LOG_LINES:]
        return ". Its log ends with:\n  " + "\n  ".join(lines) if lines else ". Its log says nothing."

    def _log_lines(self) -> list[str]:
        lines: list[str] = []
        for file in (self._output, self._log):
            with contextlib.suppress(OSError):
                lines += file.read_text(errors="replace").splitlines()
        return lines

    def stop(self) -> None:
        self._process.end()
        if self._watch is not None:
            self._watch.end()


def parse_about(reply: PhpReply) -> ApplicationReceipt:
    """Parse PHP's report about itself. Raises LabError if the reply is not such a report."""
    if reply.status == 200:
        with contextlib.suppress(ValueError):
            return ApplicationReceipt.model_validate_json(reply.body)
    output = (reply.body or reply.stderr).strip()[:500] or "nothing"
    raise LabError(f"asked what it is, PHP-FPM answered with status {reply.status} and said: {output}")


def fastcgi_parameters(page: Path, **extra: str) -> dict[str, str]:
    """The FastCGI parameters that a web server sends with a request for this page, and `extra` ones."""
    return {
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REQUEST_METHOD": "GET",
        "REQUEST_URI": f"/{page.name}",
        "SCRIPT_NAME": f"/{page.name}",
        "SCRIPT_FILENAME": str(page),
        "QUERY_STRING": "",
        "SERVER_PROTOCOL": "HTTP/1.1",
        **extra,
    }


_ADVICE = 'Let the engine run this page: application = "engine".'
_MAX_PROOF_ROUNDS = 2


def check_supported(script: PageScript) -> None:
    """Check that PHP can run this page like the engine. Raises PlanError."""
    for statement in script.statements:
        _check_statement(statement)
    for keys in (script.redis_keys, script.memcached_keys):
        if keys is not None:
            _check_distribution(keys.distribution, "keys")
    if script.memcached is not None and script.memcached.tls is not None:
        raise PlanError("PHP's extension memcached does not support TLS", _ADVICE)
    for name, service in services_of(script).items():
        _check_tls(name, service)


def _check_statement(statement: CustomStatement) -> None:
    for values in statement.parameters:
        if isinstance(values, SequenceValues):
            raise PlanError(f"statement {statement.name}: the pages of PHP share no sequence", _ADVICE)
        if isinstance(values, TextValues) and values.compressible:
            raise PlanError(f"statement {statement.name}: PHP draws text of random letters only", _ADVICE)
        if isinstance(values, IntegerValues):
            _check_distribution(values.distribution, f"statement {statement.name}")


def _check_distribution(distribution: Distribution, subject: str) -> None:
    if distribution.kind != "uniform":
        raise PlanError(f"{subject}: PHP draws evenly, not by the distribution {distribution.kind}", _ADVICE)


def _check_tls(name: ServiceName, service: Service) -> None:
    """Check a service's TLS settings: PHP uses the newest version that both sides support, and always verifies the certificate with a
    CA."""
    if service.tls is None:
        return
    if service.tls.versions == "1.2" or service.tls.cipher is not None:
        raise PlanError(f"{name}: PHP's drivers are not told a version of TLS or a cipher", _ADVICE)
    if service.tls.ca_file is None:
        raise PlanError(f"{name}: PHP's drivers encrypt where they have an authority's certificate", _ADVICE)


def shorten_for_proof(script: PageScript) -> PageScript | None:
    """The same page without its CPU steps and with few rounds, for verifying its round trips; None if it has none."""
    steps = tuple(step for step in script.steps if not isinstance(step, CpuStep))
    if not steps:
        return None
    return script.model_copy(update={"steps": steps, "rounds": min(script.rounds, _MAX_PROOF_ROUNDS)})


def count_round_trips(script: PageScript) -> Counter[ServiceName]:
    """Count the round trips of a page, by service."""
    round_trips: Counter[ServiceName] = Counter()
    sql = sql_of(services_of(script))
    for step in script.steps:
        if isinstance(step, QueryStep):
            assert sql is not None, "a page with a query step has an SQL service"
            round_trips[sql] += step.repeat * script.rounds
        elif isinstance(step, GetStep):
            round_trips[step.store] += step.repeat * script.rounds
    return round_trips


def count_keys_read(script: PageScript) -> Counter[ServiceName]:
    """Count the keys that a page looks up, by store."""
    keys: Counter[ServiceName] = Counter()
    for step in script.steps:
        if isinstance(step, GetStep):
            keys[step.store] += step.repeat * step.keys_each * script.rounds
    return keys


_DISCONNECT_TIMEOUT_S = 3.0
"""Time limit for a server to notice that a client has disconnected."""


def read_counters(server: ConnectedServer) -> ServerCounts:
    """Read a server's counters. Raises LabError."""
    if (key_store := server.store) is not None:
        metrics = key_store.metrics()
        keys = (metrics.lookup_hits or 0) + (metrics.lookup_misses or 0)
        return ServerCounts(metrics.requests, keys, metrics.connections or 0, len(key_store.other_clients()), 0)
    return cast(CountingServer, server.running).read_counts()


def _round_trips_per_reading(server: ConnectedServer) -> int:
    """Round trips of one `read_counters`: one status query for SQL; INFO, CLIENT ID and CLIENT LIST for Redis."""
    return 1 if server.store is None else 3


def client_addresses(server: ConnectedServer) -> tuple[str, ...]:
    """Addresses of a server's clients as the server sees them, without our connection. Raises LabError."""
    return (
        cast(CountingServer, server.running).client_addresses()
        if server.store is None
        else server.store.other_clients()
    )


def wait_until_no_clients(servers: Sequence[ConnectedServer]) -> None:
    """Wait until the servers have no clients: the quit message of an earlier client would be counted when it arrives. Raises
    LabError."""
    deadline = time.monotonic() + _DISCONNECT_TIMEOUT_S
    for server in servers:
        while read_counters(server).present > 0:
            if time.monotonic() > deadline:
                raise LabError(
                    f"{server.name} has clients before an application has asked it: {', '.join(client_addresses(server))}"
                )
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class PageProof:
    """The result of comparing the counts that pages reported with the servers' counts."""

    receipt: PagesReceipt
    violations: tuple[Violation, ...]
    connections: Mapping[ServiceName, int] = field(default_factory=dict)
    """For each server, the number of connections that it had counted before."""


def prove_page(
    servers: Sequence[ConnectedServer], script: PageScript, request_page: Callable[[int], PhpReply], pages: int
) -> PageProof:
    """Request `pages` pages of `script`, and compare the counts that they report with the script and with the servers' counts.
    `request_page(us)` requests one page, which keeps its connections open for `us` µs at its end. Raises LabError."""
    used_servers = [server for server in servers if server.name in services_of(script)]
    before = {server.name: read_counters(server) for server in used_servers}
    reported: Counter[str] = Counter()
    for _ in range(pages):
        reported.update(request_page(0).counts)
    waits = script.connect == "per_page"
    counted = {server.name: _count_growth(server, before[server.name], waits) for server in used_servers}
    clients_seen = _clients_during_page(used_servers, request_page)
    receipt = PagesReceipt(
        pages=pages,
        reported=dict(reported),
        counted={**counted},
        seen={name: list(addresses) for name, addresses in clients_seen.items()},
    )
    violations = receipt.violations(_requested_pages(script, used_servers))
    return PageProof(receipt, violations, {name: counts.connections for name, counts in before.items()})


def _requested_pages(script: PageScript, used_servers: Sequence[ConnectedServer]) -> RequestedPages:
    round_trips, keys = count_round_trips(script), count_keys_read(script)
    key_stores = {server.name for server in used_servers if server.store is not None}
    return RequestedPages(
        services={
            name: RequestedService(round_trips[name], keys[name], name in key_stores, service.tls is not None)
            for name, service in services_of(script).items()
        },
        connects_per_page=script.connect == "per_page",
        client_hosts=_client_hosts(used_servers),
    )


def _client_hosts(used_servers: Sequence[ConnectedServer]) -> dict[str, str]:
    """For each server, the client's address that it must see."""
    return {server.name: server.endpoint.expected_client_host for server in used_servers}


def _count_growth(server: ConnectedServer, before: ServerCounts, waits: bool) -> dict[str, int]:
    """Growth of a server's counts, without our own queries. `waits`: wait until the pages' clients have disconnected."""
    deadline, queries = time.monotonic() + _DISCONNECT_TIMEOUT_S, 1
    after = read_counters(server)
    while waits and after.present > before.present and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        after, queries = read_counters(server), queries + 1
    counts = {"connects": after.connections - before.connections}
    if before.round_trips is not None and after.round_trips is not None:
        counts["turns"] = after.round_trips - before.round_trips - queries * _round_trips_per_reading(server)
    if server.store is not None:
        counts["keys"] = after.keys - before.keys
    else:
        counts["encrypted"] = after.encrypted - before.encrypted
    return counts


def _clients_during_page(
    used_servers: Sequence[ConnectedServer], request_page: Callable[[int], PhpReply]
) -> dict[ServiceName, tuple[str, ...]]:
    """Addresses of the clients that each server sees while a page keeps its connections open. If the page ends before all servers have
    been queried, the next page keeps them open longer."""
    seen: dict[ServiceName, tuple[str, ...]] = {}
    for linger_us in (20_000, 200_000, 2_000_000):
        with ThreadPoolExecutor(max_workers=1) as executor:
            pending_page: Future[PhpReply] = executor.submit(request_page, linger_us)
            while True:
                for server in used_servers:
                    if server.name not in seen and (addresses := client_addresses(server)):
                        seen[server.name] = addresses
                if len(seen) == len(used_servers) or pending_page.done():
                    break
                time.sleep(_POLL_S)
            pending_page.result()
        if len(seen) == len(used_servers):
            break
    return seen


def check_persistent_connections(
    used_servers: Sequence[ConnectedServer], children: int, counts_before: Mapping[ServiceName, int]
) -> tuple[PersistentClients, tuple[Violation, ...]]:
    """Check persistent connections after the load: clients are still connected, and each child process has opened at most one
    connection. `counts_before`: the number of connections that each server had counted before the pool's first. Raises LabError."""
    receipt = PersistentClients(
        seen={server.name: list(client_addresses(server)) for server in used_servers},
        connections={
            server.name: read_counters(server).connections - counts_before[server.name]
            for server in used_servers
            if server.name in counts_before
        },
    )
    return receipt, receipt.violations(children, _client_hosts(used_servers))


def require_complete_page(reply: PhpReply, ends_with: str) -> PhpReply:
    """Check that a reply is a complete page, and return it. Raises LabError with the application's message."""
    if reply.status == 200 and reply.body.endswith(ends_with):
        return reply
    output = (reply.body or reply.stderr).strip()[:500] or "nothing"
    raise LabError(f"the application answered with status {reply.status} and said: {output}")


END_MARK = "howfar page done\n"
"""The end of a complete page."""
_PAGE = PAGES / "page.php"
LIBPQ_SOCKET = ".s.PGSQL.5432"
_TIMEOUT_S = 60.0
"""Time limit for one page, also over a slow link."""


class Pool(Protocol):
    """The part of `PhpFpm` that an application needs. The pool may be on another host."""

    pid: int
    children: int

    def install_page(self, script: PageScript, name: str) -> FastCgi: ...
    def send_request(self, parameters: dict[str, str], timeout_s: float) -> PhpReply: ...
    def check_alive(self, when: str) -> None: ...
    def child_deaths(self) -> tuple[str, ...]: ...


class PhpApplication:
    """A real application, which runs in PHP; implements `howfar.testbed.Application`."""

    def __init__(self, pool: Pool, about: ApplicationReceipt, servers: Sequence[ConnectedServer]) -> None:
        self._pool = pool
        self._about = about
        self._servers = servers
        self._script: PageScript | None = None
        self._proof = PageProof(PagesReceipt(), ())

    @property
    def observed_process(self) -> Observed:
        """The process to observe: the pool, with its child processes."""
        return Observed(role="application", pid=self._pool.pid)

    def install(self, script: PageScript) -> FastCgi:
        """Install a page. Raises PlanError if PHP cannot run it, LabError if it fails."""
        check_supported(script)
        if self._script is None:
            wait_until_no_clients(self._servers)
        self._script = script
        cgi = self._pool.install_page(script, "page.json")
        if (proof_script := shorten_for_proof(script)) is not None:
            self._proof = prove_page(
                self._servers,
                proof_script,
                lambda linger_us: self._request_page(proof_script, linger_us),
                self._pool.children + 1,
            )
        return cgi

    def collect_receipt(self) -> CollectedReceipt:
        """Collect the application's part of the receipt, after the load. Raises LabError if the application has died."""
        self._pool.check_alive("during the trial")
        receipt = self._about.model_copy()
        receipt.children, receipt.pid, receipt.proof = self._pool.children, self._pool.pid, self._proof.receipt
        deaths = (violation("php-child-died", message=line) for line in self._pool.child_deaths())
        violations = [*self._proof.violations, *deaths]
        if not receipt.opcache:
            violations.append(violation("php-not-cached"))
        script = self._script
        if script is not None and script.connect == "persistent":
            used_servers = [server for server in self._servers if server.name in services_of(script)]
            receipt.after, mismatches = check_persistent_connections(
                used_servers, self._pool.children, self._proof.connections
            )
            violations += mismatches
        by_sentence = {each.sentence: each.at("application") for each in violations}  # each once
        return CollectedReceipt(TrialReceipt(application=receipt), tuple(by_sentence.values()))

    def _request_page(self, script: PageScript, linger_us: int) -> PhpReply:
        cgi = self._pool.install_page(script, "proof.json")
        reply = self._pool.send_request({**cgi.parameters, "HOWFAR_LINGER_US": str(linger_us)}, _TIMEOUT_S)
        return require_complete_page(reply, END_MARK)


@contextmanager
def php_application(
    program: FpmProgram, work: Path, launcher: Launcher, children: int, servers: Sequence[ConnectedServer]
) -> Iterator[PhpApplication]:
    """Run a pool; yields the application when the pool is ready. Raises LabError."""
    work.mkdir(exist_ok=True)
    pool = PhpFpm(program, work, launcher, children)
    try:
        yield PhpApplication(pool, pool.become_ready(), servers)
    finally:
        pool.stop()
