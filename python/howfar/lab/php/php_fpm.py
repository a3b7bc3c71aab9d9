"""PHP-FPM as the laboratory starts it: a separate pool, whose children are given their page and proven to serve it.

The PHP code that its children run is in `php/`.
"""

from __future__ import annotations

import contextlib
import json
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
from typing import Any, Protocol, cast

from howfar.engine.messages import (
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
from howfar.engine.process import Launcher, own_environment
from howfar.engine.rules import services_of, sql_of
from howfar.errors import LabError, MissingError, PlanError
from howfar.lab import sandbox
from howfar.lab.network import Companion
from howfar.lab.reached import Counting, Reached, written
from howfar.lab.servers import Counted
from howfar.services import SERVICES
from howfar.testbed import StageReceipt

_HEADER = struct.Struct(">BBHHBx")
_VERSION = 1
_REQUEST = 1
_BEGIN, _END, _PARAMS, _STDIN, _STDOUT, _STDERR = 1, 3, 4, 5, 6, 7
_RESPONDER = struct.pack(">HB5x", 1, 0)
_LONGEST = 65_535


@dataclass(frozen=True)
class Answer:
    """A reply of the application. `reported`: the integers of its header X-Howfar-Page."""

    status: int
    headers: Mapping[str, str]
    body: str
    complaints: str
    """What the application wrote to its standard error."""

    @property
    def reported(self) -> dict[str, int]:
        """The integers that the page reported. Raises LabError where the header is not `name=integer,…`."""
        header = self.headers.get("x-howfar-page", "")
        pairs = [pair.partition("=") for pair in header.split(",") if pair]
        if not all(value.isascii() and value.isdigit() for _, _, value in pairs):
            raise LabError(f"the application told of its page by {header[:200]!r}, which is not name=integer,…")
        return {name: int(value) for name, _, value in pairs}


def ask(where: Path, parameters: Mapping[str, str], patience_s: float) -> Answer:
    """The reply to one request. Raises LabError if the reply is missing or incomplete."""
    output = {_STDOUT: b"", _STDERR: b""}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(where))
            connection.sendall(_request(parameters))
            for kind, content in _records(connection):
                if kind == _END:
                    break
                output[kind] = output.get(kind, b"") + content
            else:
                raise LabError(f"the application at {where} ended its answer in the middle")
    except OSError as error:
        raise LabError(f"asking the application at {where} failed: {error}") from error
    return _answer(output[_STDOUT], output[_STDERR].decode(errors="replace"))


def _request(parameters: Mapping[str, str]) -> bytes:
    pairs = b"".join(_pair(name.encode(), value.encode()) for name, value in parameters.items())
    pieces = [pairs[start : start + _LONGEST] for start in range(0, len(pairs), _LONGEST)]
    records = [(_BEGIN, _RESPONDER), *((_PARAMS, piece) for piece in pieces), (_PARAMS, b""), (_STDIN, b"")]
    return b"".join(_HEADER.pack(_VERSION, kind, _REQUEST, len(content), 0) + content for kind, content in records)


def _pair(name: bytes, value: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(one) | 1 << 31) for one in (name, value)) + name + value


def _records(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """FastCGI records, until the other end closes."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(_HEADER.size)) == _HEADER.size:
            _, kind, _, length, padding = _HEADER.unpack(head)
            content = stream.read(length)
            if len(content) < length or len(stream.read(padding)) < padding:
                return
            yield kind, content


def _answer(output: bytes, complaints: str) -> Answer:
    head, _, body = output.decode(errors="replace").replace("\r\n", "\n").partition("\n\n")
    lines = (line.partition(":") for line in head.split("\n"))
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    status = headers.get("status", "200").split(" ")[0]
    return Answer(int(status) if status.isdigit() else 0, headers, body, complaints)


PAGES = Path(__file__).parent / "php"
ADVICE = "Run `howfar setup --page`: it installs PHP-FPM and the extensions for MySQL, PostgreSQL, Redis and Memcached."
_PLACES = ("/usr/sbin", "/usr/local/sbin")
_NAME = re.compile(r"php-fpm(?P<version>[0-9.]*)")
_LOADED = ("mysqlnd", "pdo", "pdo_mysql", "pdo_pgsql", "igbinary", "msgpack", "redis", "memcached")
"""Extensions to load where they are not built in, in this order: later ones use earlier ones."""
_NEEDED = ("redis", "memcached", "zend opcache")
_LEAST_QUEUE = 511
_READY_S = 20.0
_POLL_S = 0.003
_WATCH = (
    "setpriv",
    "--pdeathsig",
    "TERM",
    "--",
    "sh",
    "-c",
    'trap "kill -s KILL -- -$1 0" TERM; echo; sleep infinity >&- & wait',
    "sh",
)
"""A shell that kills FPM's process group when we die: killing FPM alone leaves its children, which only a sandbox would end."""
_LOG_LINES = 8
_LOSS = " exited on signal "
"""FPM's log text for a child that died without FPM ending it."""


@dataclass(frozen=True)
class Program:
    path: Path
    version: str
    loaded: tuple[str, ...]
    """Extensions to be loaded from files."""


def find_php_fpm(sql: ServiceName = "mysql") -> Program:
    """The newest PHP-FPM in PATH or Debian's directories that has all extensions a page needs. `sql`: server of the page's statements.
    Raises MissingError."""
    php = SERVICES[sql].php
    assert php is not None, "statements are of SQL"
    return _found(os.environ.get("PATH", ""), php[0])


@cache
def _found(path: str, driver: str) -> Program:
    places = [Path(place) for place in (*path.split(os.pathsep), *_PLACES) if place]
    found = {file.resolve() for place in places for file in _programs(place)}
    if not found:
        raise MissingError("there is no php-fpm on this machine", ADVICE)
    lacking: list[str] = []
    for program in sorted(found, key=lambda file: [int(part) for part in re.findall(r"\d+", file.name)], reverse=True):
        built_in = _modules(program, "-n")
        files = [name for name in _LOADED if name not in built_in]
        has = _modules(program, "-n", *(f"-dextension={name}" for name in files), "-dzend_extension=opcache")
        loaded = tuple(name for name in files if name in has)
        if missing := [name for name in (driver, *_NEEDED) if name not in has]:
            lacking.append(f"{program} lacks the extensions {', '.join(missing)}")
            continue
        match = re.search(r"PHP (\d\S*)", _say(program, "-n", "-v"))
        return Program(program, match.group(1) if match else "unknown", loaded)
    raise MissingError("; ".join(lacking), ADVICE)


def _programs(place: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [file for file in place.iterdir() if _NAME.fullmatch(file.name) and os.access(file, os.X_OK)]
    return []


def _modules(program: Path, *options: str) -> set[str]:
    return {line.strip().lower() for line in _say(program, *options, "-m").splitlines()}


def _say(program: Path, *options: str) -> str:
    try:
        return subprocess.run([program, *options], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{program} {' '.join(options)} failed: {error}", ADVICE) from error


def _php_ini(program: Program) -> str:
    """A php.ini like that of a production server: compiled pages stay in memory without checks for changes, errors go to the log."""
    extensions = "".join(f"extension = {name}\n" for name in program.loaded)
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


def _pool(socket: Path, log: Path, children: int) -> str:
    # Run as root, FPM requires a user for its children; otherwise they run as the same ordinary user.
    user = "user = root\ngroup = root\n" if os.geteuid() == 0 else ""
    return f"""[global]
daemonize = no
error_log = {log}
log_level = notice
[page]
{user}listen = {socket}
listen.mode = 0600
listen.backlog = {max(_LEAST_QUEUE, 2 * children)}
pm = static
pm.max_children = {children}
clear_env = yes
catch_workers_output = yes
decorate_workers_output = no
security.limit_extensions = .php
"""


class PhpFpm:
    """One running pool, started on construction; `stop` ends it with its children."""

    def __init__(self, program: Program, work: Path, launcher: Launcher, children: int) -> None:
        self.children = children
        self._work = work
        self.socket = work / "php.sock"
        self._log = work / "php-fpm.log"
        self._ini = work / "php.ini"
        pool = work / "php-fpm.conf"
        self._ini.write_text(_php_ini(program))
        pool.write_text(_pool(self.socket, self._log, children))
        self.socket.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        command = [str(program.path), "--nodaemonize", "-c", str(self._ini), "-y", str(pool)]
        if os.geteuid() == 0:
            command.append("--allow-to-run-as-root")
        self._output = work / "php-fpm.out"
        with self._output.open("wb") as output:
            self._companion = Companion(
                launcher,
                command,
                # Empty, so that PHP reads no directory of further settings.
                env={**own_environment(), "PHP_INI_SCAN_DIR": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid = self._companion.pid
        self._watch: Companion | None = None
        if not sandbox.inside():
            self._watch = Companion(
                launcher, [*_WATCH, str(self.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
            assert self._watch.process.stdout is not None
            self._watch.process.stdout.readline()  # its trap is set

    def become_ready(self) -> dict[str, Any]:
        """Wait until the pool answers; returns what it reports about itself (`php/about.php`). Raises LabError."""
        deadline = time.monotonic() + _READY_S
        while True:
            self.check_alive("at start")
            try:
                answer = ask(self.socket, parameters(PAGES / "about.php"), _READY_S)
            except LabError as silent:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"PHP-FPM did not answer within {_READY_S:.0f} s{self.last_output()}",
                        "Is the machine overloaded?",
                    ) from silent
                time.sleep(_POLL_S)
            else:
                return about(answer)

    def give(self, script: PageScript, name: str) -> FastCgi:
        """Install a page; returns how to request it. Its file contains passwords, and only our user may read it."""
        file = written(self._work / name, self._reachable(script).model_dump_json())
        return FastCgi(
            target=UnixTarget(path=str(self.socket)),
            parameters=parameters(_PAGE, HOWFAR_PAGE=str(file)),
            ends_with=ENDS_WITH,
        )

    def _reachable(self, script: PageScript) -> PageScript:
        """The page with a socket that libpq finds: it expects a fixed name in a directory, and a forwarded socket has another name."""
        for name, service in services_of(script).items():
            if SERVICES[name].names_folder and isinstance(service.target, UnixTarget):
                named = self._work / LIBPQ_SOCKET
                named.unlink(missing_ok=True)
                named.symlink_to(service.target.path)
                target = UnixTarget(path=str(named))
                return script.model_copy(update={name: service.model_copy(update={"target": target})})
        return script

    def ask(self, parameters: dict[str, str], patience_s: float) -> Answer:
        """The reply to one request. Raises LabError."""
        try:
            return ask(self.socket, parameters, patience_s)
        except LabError as error:
            self.check_alive("while it was asked for a page")
            raise LabError(f"{error.message}{self.last_output()}", "Are all its children at work, or stuck?") from error

    def check_alive(self, when: str) -> None:
        """Check that the pool runs. Raises LabError."""
        if not self._companion.alive():
            code = self._companion.process.returncode
            raise LabError(
                f"PHP-FPM ended {when} (exit code {code}){self.last_output()}", "Check whether memory ran out."
            )

    def losses(self) -> tuple[str, ...]:
        """FPM's messages about children that died; FPM replaces them."""
        return tuple(line for line in self._lines() if _LOSS in line)

    def last_output(self) -> str:
        """The end of its log, for messages."""
        last = [line for line in self._lines() if "NOTICE" not in line][-_LOG_LINES:]
        return ". Its log ends with:\n  " + "\n  ".join(last) if last else ". Its log says nothing."

    def _lines(self) -> list[str]:
        found: list[str] = []
        for file in (self._output, self._log):
            with contextlib.suppress(OSError):
                found += file.read_text(errors="replace").splitlines()
        return found

    def stop(self) -> None:
        self._companion.end()
        if self._watch is not None:
            self._watch.end()


def about(answer: Answer) -> dict[str, Any]:
    """PHP's report about itself. Raises LabError if the reply is not such a report."""
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if answer.status == 200 and isinstance(found, dict):
        return found
    output = (answer.body or answer.complaints).strip()[:500] or "nothing"
    raise LabError(f"asked what it is, PHP-FPM answered with status {answer.status} and said: {output}")


def parameters(page: Path, **more: str) -> dict[str, str]:
    """FastCGI parameters as a web server sends them with a request for this page."""
    return {
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REQUEST_METHOD": "GET",
        "REQUEST_URI": f"/{page.name}",
        "SCRIPT_NAME": f"/{page.name}",
        "SCRIPT_FILENAME": str(page),
        "QUERY_STRING": "",
        "SERVER_PROTOCOL": "HTTP/1.1",
        **more,
    }


_ADVICE = 'Let the engine run this page: application = "engine".'
_ROUNDS_OF_A_PROOF = 2


def check(script: PageScript) -> None:
    """Check that PHP can run this page just as the engine does. Raises PlanError."""
    for statement in script.statements:
        _check_statement(statement)
    for keys in (script.redis_keys, script.memcached_keys):
        if keys is not None:
            _check_drawn(keys.distribution, "keys")
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
            _check_drawn(values.distribution, f"statement {statement.name}")


def _check_drawn(distribution: Distribution, what: str) -> None:
    if distribution.kind != "uniform":
        raise PlanError(f"{what}: PHP draws evenly, not by the distribution {distribution.kind}", _ADVICE)


def _check_tls(name: ServiceName, service: Service) -> None:
    """Check a service's TLS: PHP uses the newest version that both ends support, and always verifies the certificate with a CA."""
    if service.tls is None:
        return
    if service.tls.versions == "1.2" or service.tls.cipher is not None:
        raise PlanError(f"{name}: PHP's drivers are not told a version of TLS or a cipher", _ADVICE)
    if service.tls.ca_file is None:
        raise PlanError(f"{name}: PHP's drivers encrypt where they have an authority's certificate", _ADVICE)


def for_proof(script: PageScript) -> PageScript | None:
    """A page with the same round trips, no computing and few rounds; None if it has no round trips."""
    steps = tuple(step for step in script.steps if not isinstance(step, CpuStep))
    if not steps:
        return None
    return script.model_copy(update={"steps": steps, "rounds": min(script.rounds, _ROUNDS_OF_A_PROOF)})


def round_trips_of(script: PageScript) -> Counter[ServiceName]:
    """Round trips of a page, by service."""
    found: Counter[ServiceName] = Counter()
    sql = sql_of(services_of(script))
    for step in script.steps:
        if isinstance(step, QueryStep):
            assert sql is not None, "a query needs a service of SQL"
            found[sql] += step.repeat * script.rounds
        elif isinstance(step, GetStep):
            found[step.store] += step.repeat * script.rounds
    return found


def keys_of(script: PageScript) -> Counter[ServiceName]:
    """Keys that a page looks up, by store."""
    found: Counter[ServiceName] = Counter()
    for step in script.steps:
        if isinstance(step, GetStep):
            found[step.store] += step.repeat * step.keys_each * script.rounds
    return found


Reported = Mapping[str, int]
_SETTLES_S = 3.0
"""Time for a server to notice that a client has gone."""


def count(one: Reached) -> Counted:
    """A server's counters. Raises LabError."""
    if (store := one.store) is not None:
        metrics = store.metrics()
        keys = (metrics.lookup_hits or 0) + (metrics.lookup_misses or 0)
        return Counted(metrics.requests, keys, metrics.connections or 0, len(store.others()), 0)
    return cast(Counting, one.running).counted()


def _own(one: Reached) -> int:
    """Round trips that one `count` takes: for SQL the status, for Redis INFO, CLIENT ID and CLIENT LIST."""
    return 1 if one.store is None else 3


def clients(one: Reached) -> tuple[str, ...]:
    """Addresses of a server's clients as the server sees them, without our own connection. Raises LabError."""
    return cast(Counting, one.running).clients() if one.store is None else one.store.others()


def await_alone(servers: Sequence[Reached]) -> None:
    """Wait until earlier clients are gone: a client's quit message counts when it arrives. Raises LabError."""
    deadline = time.monotonic() + _SETTLES_S
    for one in servers:
        while count(one).present > 0:
            if time.monotonic() > deadline:
                raise LabError(f"{one.name} has clients before an application has asked it: {', '.join(clients(one))}")
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class PageProof:
    receipt: dict[str, object]
    violations: tuple[str, ...]
    connections: Mapping[ServiceName, int] = field(default_factory=dict)
    """Connections that each server had counted at the beginning."""


def prove(servers: Sequence[Reached], script: PageScript, page: Callable[[int], Answer], pages: int) -> PageProof:
    """Check `pages` pages of `script`. `page(us)` requests one that keeps its connections `us` µs longer. Raises LabError."""
    used = [one for one in servers if one.name in services_of(script)]
    before = {one.name: count(one) for one in used}
    reported: Counter[str] = Counter()
    for _ in range(pages):
        reported.update(page(0).reported)
    found = _unlike_script(reported, script, pages)
    counted = {}
    for one in used:
        counted[one.name], unlike = _counted_alike(one, before[one.name], reported, script, pages)
        found += unlike
    seen = _seen(used, page)
    found += _strangers(used, seen)
    receipt: dict[str, object] = {"pages": pages, "told": dict(reported), "counted": counted, "seen": seen}
    return PageProof(receipt, tuple(found), {name: counted.connections for name, counted in before.items()})


def _unlike_script(reported: Reported, script: PageScript, pages: int) -> list[str]:
    wanted = round_trips_of(script)
    found = []
    for name in services_of(script):
        round_trips = reported[f"{name}_turns"] - reported[f"{name}_checks"]
        if round_trips != wanted[name] * pages:
            found.append(f"{pages} pages told {round_trips} turns to {name}, the script has {wanted[name] * pages}")
        if script.connect == "per_page" and wanted[name] and reported[f"{name}_connects"] != pages:
            found.append(f"{pages} pages told {reported[f'{name}_connects']} connects to {name}, each was to make one")
    if missed := reported["misses"]:
        found.append(f"the pages missed {missed} keys of {sum(keys_of(script).values()) * pages}")
    return found


def _counted_alike(
    one: Reached, before: Counted, reported: Reported, script: PageScript, pages: int
) -> tuple[dict[str, int], list[str]]:
    """A server's counts, and where they differ from what the pages reported."""
    name, deadline, queries = one.name, time.monotonic() + _SETTLES_S, 1
    store = one.store is not None
    after = count(one)
    while script.connect == "per_page" and after.present > before.present and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        after, queries = count(one), queries + 1
    connects = reported[f"{name}_connects"]
    counted = {"connects": after.connections - before.connections}
    wanted = {"connects": connects}
    if before.round_trips is not None and after.round_trips is not None:
        counted["turns"] = after.round_trips - before.round_trips - queries * _own(one)
        wanted["turns"] = reported[f"{name}_turns"]
        if not store and script.connect == "per_page":
            wanted["turns"] += connects  # the quit message of each, which has no reply
    if store:
        counted["keys"], wanted["keys"] = after.keys - before.keys, keys_of(script)[name] * pages
    else:
        counted["encrypted"] = after.encrypted - before.encrypted
        wanted["encrypted"] = connects if services_of(script)[name].tls is not None else 0
    return counted, [
        f"{name} counted {counted[what]} {what} of {pages} pages, which told {wanted[what]}"
        for what in counted
        if counted[what] != wanted[what]
    ]


def _seen(used: Sequence[Reached], page: Callable[[int], Answer]) -> dict[ServiceName, tuple[str, ...]]:
    """Clients that each server sees while a page holds its connections; if the page ends too soon, the next one holds them longer."""
    seen: dict[ServiceName, tuple[str, ...]] = {}
    for linger_us in (20_000, 200_000, 2_000_000):
        with ThreadPoolExecutor(max_workers=1) as executor:
            staying: Future[Answer] = executor.submit(page, linger_us)
            while True:
                for one in used:
                    if one.name not in seen and (found := clients(one)):
                        seen[one.name] = found
                if len(seen) == len(used) or staying.done():
                    break
                time.sleep(_POLL_S)
            staying.result()
        if len(seen) == len(used):
            break
    return seen


def _strangers(used: Sequence[Reached], seen: Mapping[ServiceName, tuple[str, ...]]) -> list[str]:
    """Clients whose connections do not come over the stage's path."""
    found = []
    for one in used:
        wrong = {
            place for place in seen.get(one.name, ("nowhere",)) if place.partition(":")[0] != one.endpoint.seen_from
        }
        found += [
            f"{one.name} sees PHP at {place!r}, the path comes from {one.endpoint.seen_from!r}" for place in wrong
        ]
    return found


def kept(used: Sequence[Reached], children: int, since: Mapping[ServiceName, int]) -> PageProof:
    """Check persistent connections after the load: clients still connected, and at most one connection per child. `since`: connections
    that each server had counted before the pool's first. Raises LabError."""
    seen = {one.name: clients(one) for one in used}
    made = {one.name: count(one).connections - since[one.name] for one in used if one.name in since}
    found = _strangers(used, seen)
    for name, connections in made.items():
        if connections > children:
            found.append(
                f"{name} counted {connections} connections of {children} children, which were to keep one each"
            )
    return PageProof({"seen": seen, "connections": made}, tuple(found))


def good(answer: Answer, ends_with: str) -> Answer:
    """Return the reply if it is that of a complete page. Raises LabError with the application's message."""
    if answer.status == 200 and answer.body.endswith(ends_with):
        return answer
    output = (answer.body or answer.complaints).strip()[:500] or "nothing"
    raise LabError(f"the application answered with status {answer.status} and said: {output}")


ENDS_WITH = "howfar page done\n"
_PAGE = PAGES / "page.php"
LIBPQ_SOCKET = ".s.PGSQL.5432"
_PATIENCE_S = 60.0
"""Time allowed for one page over a slow link."""


class Pool(Protocol):
    """The part of `PhpFpm` that an application needs; the pool may be on another host."""

    pid: int
    children: int

    def give(self, script: PageScript, name: str) -> FastCgi: ...
    def ask(self, parameters: dict[str, str], patience_s: float) -> Answer: ...
    def check_alive(self, when: str) -> None: ...
    def losses(self) -> tuple[str, ...]: ...


class PhpApplication:
    """A real application; see `howfar.testbed.Application`."""

    def __init__(self, pool: Pool, about: dict[str, Any], servers: Sequence[Reached]) -> None:
        self._pool = pool
        self._about = about
        self._servers = servers
        self._script: PageScript | None = None
        self._proof = PageProof({}, ())

    @property
    def observed(self) -> Observed:
        """The processes to observe: the pool with its children."""
        return Observed(role="application", pid=self._pool.pid)

    def install(self, script: PageScript) -> FastCgi:
        """Install a page. Raises PlanError if PHP cannot run it, LabError if it fails."""
        check(script)
        if self._script is None:
            await_alone(self._servers)
        self._script = script
        cgi = self._pool.give(script, "page.json")
        if (like := for_proof(script)) is not None:
            self._proof = prove(self._servers, like, lambda us: self._page(like, us), self._pool.children + 1)
        return cgi

    def obtained(self) -> StageReceipt:
        """The application's part of the receipt, after the load. Raises LabError when it has died."""
        self._pool.check_alive("during the trial")
        receipt = {**self._about, "children": self._pool.children, "pid": self._pool.pid, "proof": self._proof.receipt}
        violations = [*self._proof.violations, *self._pool.losses()]
        if not self._about["opcache"]:
            violations.append("PHP compiled its pages anew each time")
        script = self._script
        if script is not None and script.connect == "persistent":
            used = [one for one in self._servers if one.name in services_of(script)]
            after = kept(used, self._pool.children, self._proof.connections)
            receipt["after"] = after.receipt
            violations += after.violations
        return StageReceipt(
            {"application": receipt}, tuple(f"application: {sentence}" for sentence in dict.fromkeys(violations))
        )

    def _page(self, script: PageScript, linger_us: int) -> Answer:
        cgi = self._pool.give(script, "proof.json")
        answer = self._pool.ask({**cgi.parameters, "HOWFAR_LINGER_US": str(linger_us)}, _PATIENCE_S)
        return good(answer, ENDS_WITH)


@contextmanager
def php_application(
    program: Program, work: Path, launcher: Launcher, children: int, servers: Sequence[Reached]
) -> Iterator[PhpApplication]:
    """Run a pool; yields its application once it is ready. Raises LabError."""
    work.mkdir(exist_ok=True)
    pool = PhpFpm(program, work, launcher, children)
    try:
        yield PhpApplication(pool, pool.become_ready(), servers)
    finally:
        pool.stop()
