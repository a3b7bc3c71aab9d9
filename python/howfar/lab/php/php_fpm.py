"""PHP-FPM as the laboratory starts it: a pool of so many children, with a configuration of its own and nothing of the machine's.

What its children run is in `php/`; what a page is to do is written by `__init__.py`.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from howfar.engine.messages import (
    CpuStep,
    CustomStatement,
    Distribution,
    GetStep,
    IntegerValues,
    PageScript,
    QueryStep,
    SequenceValues,
    Service,
    ServiceName,
    TextValues,
)
from howfar.engine.process import Launcher
from howfar.engine.rules import services_of, sql_of
from howfar.errors import LabError, MissingError, PlanError
from howfar.lab import sandbox
from howfar.lab.network import Companion

_HEADER = struct.Struct(">BBHHBx")
_VERSION = 1
_REQUEST = 1
_BEGIN, _END, _PARAMS, _STDIN, _STDOUT, _STDERR = 1, 3, 4, 5, 6, 7
_RESPONDER = struct.pack(">HB5x", 1, 0)
_LONGEST = 65_535


@dataclass(frozen=True)
class Answer:
    """`reported`: the integers of its header X-Howfar-Page."""

    status: int
    headers: Mapping[str, str]
    body: str
    complaints: str
    """What it wrote to its standard error."""

    @property
    def reported(self) -> dict[str, int]:
        """Raises LabError where it is not `name=integer,…`."""
        header = self.headers.get("x-howfar-page", "")
        pairs = [pair.partition("=") for pair in header.split(",") if pair]
        if not all(value.isascii() and value.isdigit() for _, _, value in pairs):
            raise LabError(f"the application told of its page by {header[:200]!r}, which is not name=integer,…")
        return {name: int(value) for name, _, value in pairs}


def ask(where: Path, parameters: Mapping[str, str], patience_s: float) -> Answer:
    """Raises LabError where no whole answer comes."""
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
    """Until the other end closes."""
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
ADVICE = (
    "On Debian: apt-get install --no-install-recommends php-fpm php-mysql php-pgsql php-redis php-memcached "
    "(./setup --page does it)."
)
_PLACES = ("/usr/sbin", "/usr/local/sbin")
_NAME = re.compile(r"php-fpm(?P<version>[0-9.]*)")
_LOADED = ("mysqlnd", "pdo", "pdo_mysql", "pdo_pgsql", "igbinary", "msgpack", "redis", "memcached")
"""In this order, where they are not built in: later ones use earlier ones."""
_NEEDED = ("redis", "memcached", "zend opcache")
_DRIVERS: dict[ServiceName, str] = {"mysql": "pdo_mysql", "postgresql": "pdo_pgsql"}
"""What statements need."""
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
"""Children of FPM outlive it where it is killed. Without a sandbox, whose end is theirs, a shell ends their group when we die."""
_LOG_LINES = 8
_LOSS = " exited on signal "
"""As FPM writes of a child that it did not end."""


@dataclass(frozen=True)
class Program:
    path: Path
    version: str
    loaded: tuple[str, ...]
    """Extensions that are to be loaded from files."""


def find_php_fpm(sql: ServiceName = "mysql") -> Program:
    """The newest in PATH and where Debian puts it, with all that a page needs. `sql`: whom its statements are sent to. Raises
    MissingError."""
    return _found(os.environ.get("PATH", ""), _DRIVERS[sql])


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
            lacking.append(f"{program} has not the extensions {', '.join(missing)}")
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
    """Of a server that serves: compiled pages stay in memory and are not looked for again, errors go to the log and not into pages."""
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
    # As root FPM wants to be told whom its children shall be; an ordinary user's children are that user.
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
    """One running pool. Made by `start`; `stop` ends it with its children."""

    def __init__(self, program: Program, work: Path, launcher: Launcher, children: int) -> None:
        self.program = program
        self.children = children
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
                # An empty one: no directory of further settings is read.
                env={**os.environ, "PHP_INI_SCAN_DIR": ""},
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
        """Until it answers. What it says of itself: `php/about.php`. Raises LabError."""
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

    def ask(self, parameters: dict[str, str], patience_s: float) -> Answer:
        """Raises LabError."""
        try:
            return ask(self.socket, parameters, patience_s)
        except LabError as error:
            self.check_alive("while it was asked for a page")
            raise LabError(f"{error.message}{self.last_output()}", "Are all its children at work, or stuck?") from error

    def check_alive(self, when: str) -> None:
        """Raises LabError."""
        if not self._companion.alive():
            code = self._companion.process.returncode
            raise LabError(f"PHP-FPM ended {when} (exit code {code}){self.last_output()}", "See if memory ran out.")

    def losses(self) -> tuple[str, ...]:
        """Children that died, in FPM's words; it starts another in their place."""
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
    """What PHP says of itself. Raises LabError where it is something else."""
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if answer.status == 200 and isinstance(found, dict):
        return found
    output = (answer.body or answer.complaints).strip()[:500] or "nothing"
    raise LabError(f"asked what it is, PHP-FPM answered with status {answer.status} and said: {output}")


def parameters(page: Path, **more: str) -> dict[str, str]:
    """What a web server says of a request for this page."""
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
    """Raises PlanError where PHP would do something else than the engine does."""
    for statement in script.statements:
        _check_statement(statement)
    for keys in (script.redis_keys, script.memcached_keys):
        if keys is not None:
            _check_drawn(keys.distribution, "keys")
    if script.memcached is not None and script.memcached.tls is not None:
        raise PlanError("PHP's extension memcached knows no TLS", _ADVICE)
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
    """It takes the newest version that both have, and always checks with an authority."""
    if service.tls is None:
        return
    if service.tls.versions == "1.2" or service.tls.cipher is not None:
        raise PlanError(f"{name}: PHP's drivers are not told a version of TLS or a cipher", _ADVICE)
    if service.tls.ca_file is None:
        raise PlanError(f"{name}: PHP's drivers encrypt where they have an authority's certificate", _ADVICE)


def for_proof(script: PageScript) -> PageScript | None:
    """A page with the same turns and no computing, of few rounds. None: it has no turns."""
    steps = tuple(step for step in script.steps if not isinstance(step, CpuStep))
    if not steps:
        return None
    return script.model_copy(update={"steps": steps, "rounds": min(script.rounds, _ROUNDS_OF_A_PROOF)})


def round_trips_of(script: PageScript) -> Counter[ServiceName]:
    """Of a page, by service."""
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
    """That a page looks for, by store."""
    found: Counter[ServiceName] = Counter()
    for step in script.steps:
        if isinstance(step, GetStep):
            found[step.store] += step.repeat * step.keys_each * script.rounds
    return found
