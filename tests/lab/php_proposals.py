"""The doctor's lines for PHP, run by PHP: with each of them PHP must reach a server that listens only on a socket."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from howfar.doctor.findings import Change, Client, Kind
from howfar.doctor.proposals import client_socket_changes, connection_reuse_changes

_ACCOUNT = "first, in sql"
_CONNECTION_ID = "->query('SELECT CONNECTION_ID()')->"
_CLIENT = Client(
    program="php-fpm8.2",
    pids=(7,),
    user="www-data",
    local=True,
    address=None,
    by="tcp",
    connections=1,
    connects_seen=1,
    tls=False,
    compressed=False,
    may_use_socket=True,
    bundle_looks=0,
    bundle_reads=0,
    bundle_connects=0,
)


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and the login."""

    path: str
    user: str = ""
    password: str = ""
    database: str = ""

    def fill(self, line: str) -> str:
        for word, value in (("USER", self.user), ("PASSWORD", self.password)):
            line = line.replace(word, f"'{value}'")
        return line.replace("dbname=DB", f"dbname={self.database}")


@dataclass(frozen=True)
class Run:
    """PHP code to run, with `settings` as in php.ini."""

    code: str
    settings: tuple[str, ...] = ()


Template = Callable[[Endpoint, tuple[str, ...]], Run]


def _mysqli(endpoint: Endpoint, host: str, socket: str = "null") -> str:
    return f"new mysqli({host}, '{endpoint.user}', '{endpoint.password}', '{endpoint.database}', null, {socket})"


def _pdo(endpoint: Endpoint, options: str = "") -> str:
    return (
        f"new PDO('mysql:host=localhost;dbname={endpoint.database}', '{endpoint.user}', '{endpoint.password}'{options})"
    )


def _php_ini(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    by_pdo = f"({_pdo(endpoint)}){_CONNECTION_ID}fetchColumn()"
    by_mysqli = f"({_mysqli(endpoint, chr(39) + 'localhost' + chr(39))}){_CONNECTION_ID}fetch_row()[0]"
    return Run(f"if (!{by_pdo} || !{by_mysqli}) throw new Exception('no result');", lines)


def _pdo_constructor(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    return Run(f"if (!({endpoint.fill(lines[0])}){_CONNECTION_ID}fetchColumn()) throw new Exception('no result');")


def _env_array(lines: tuple[str, ...]) -> str:
    """The lines of a .env file as a PHP array."""
    pairs = (line.partition("=") for line in lines)
    return "$env = [" + ", ".join(f"'{name}' => '{value}'" for name, _, value in pairs) + "];"


def _laravel_mysql(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    dsn = f"\"mysql:unix_socket={{$env['DB_SOCKET']}};dbname={endpoint.database}\""
    return Run(f"{_env_array(lines)} new PDO({dsn}, '{endpoint.user}', '{endpoint.password}');")


def _wordpress(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    """WordPress splits its host at the colon."""
    expression = _mysqli(endpoint, "$parts[0]", "$parts[1]")
    return Run(f"{lines[0]} $parts = explode(':', DB_HOST, 2); {expression};")


def _phpredis(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    return Run(f"$redis = new Redis(); {lines[0]} $redis->ping();")


def _laravel_redis(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    return Run(
        f"{_env_array(lines)} $r = new Redis(); $r->connect($env['REDIS_HOST'], $env['REDIS_PORT']); $r->ping();"
    )


def _sessions(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    kept = f"$r = new Redis(); $r->connect('{endpoint.path}'); if (!$r->keys('*SESSION*')) throw new Exception('no result');"
    return Run(f"session_start(); $_SESSION['a'] = 1; session_write_close(); {kept}", lines)


def _memcached(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    return Run(f"$memcached = new Memcached(); {lines[0]} {_STORED}")


def _laravel_memcached(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    added = "$memcached->addServer($env['MEMCACHED_HOST'], (int) $env['MEMCACHED_PORT']);"
    return Run(f"{_env_array(lines)} $memcached = new Memcached(); {added} {_STORED}")


_STORED = (
    "$memcached->set('a', 'b'); if ($memcached->get('a') !== 'b') throw new Exception($memcached->getResultMessage());"
)

_BY_SOCKET: Mapping[tuple[Kind, str], Template] = {
    (Kind.MYSQL, "php.ini (for host=localhost in a DSN)"): _php_ini,
    (Kind.MYSQL, "PDO"): _pdo_constructor,
    (Kind.MYSQL, "Laravel, .env"): _laravel_mysql,
    (Kind.MYSQL, "WordPress, wp-config.php"): _wordpress,
    (Kind.REDIS, "phpredis"): _phpredis,
    (Kind.REDIS, "Laravel, .env"): _laravel_redis,
    (Kind.REDIS, "php.ini (sessions kept in Redis)"): _sessions,
    (Kind.MEMCACHED, "Memcached"): _memcached,
    (Kind.MEMCACHED, "Laravel, .env"): _laravel_memcached,
}

# ---------------------------------------------------------------- persistent connections

_CHECK_SAME = "if ($connection_id() !== $connection_id()) throw new Exception('each call had its own connection');"


def _kept_pdo(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    expression = f"({_pdo(endpoint, f', {lines[0]}')}){_CONNECTION_ID}fetchColumn()"
    return Run(
        f"$connection_id = fn () => {expression}; {_CHECK_SAME}", (f"pdo_mysql.default_socket = {endpoint.path}",)
    )


def _kept_mysqli(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    expression = lines[0].replace("…", f"'{endpoint.user}', '{endpoint.password}', '{endpoint.database}'")
    body = f"$c = {expression}; $id = $c{_CONNECTION_ID}fetch_row()[0]; $c->close(); return $id;"
    code = f"$connection_id = function () {{ {body} }}; {_CHECK_SAME}"
    return Run(code, (f"mysqli.default_socket = {endpoint.path}",))


def _kept_redis(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    expression = lines[0].replace("…", f"'{endpoint.path}'")
    code = "return $redis->rawCommand('CLIENT', 'ID');"
    return Run(f"$connection_id = function () {{ $redis = new Redis(); {expression} {code} }}; {_CHECK_SAME}")


def _kept_memcached(endpoint: Endpoint, lines: tuple[str, ...]) -> Run:
    expression = lines[0].partition(" //")[0].rstrip()
    added = f"if ($m->isPristine()) $m->addServer('{endpoint.path}', 0);"
    code = "return array_values($m->getStats())[0]['total_connections'];"
    return Run(f"$connection_id = function () {{ $m = {expression}; {added} {code} }}; {_CHECK_SAME}")


_KEPT: Mapping[tuple[Kind, str], Template] = {
    (Kind.MYSQL, "PDO"): _kept_pdo,
    (Kind.MYSQL, "mysqli"): _kept_mysqli,
    (Kind.REDIS, "phpredis"): _kept_redis,
    (Kind.MEMCACHED, "Memcached"): _kept_memcached,
}


def run_all(endpoints: Mapping[Kind, Endpoint]) -> dict[str, str]:
    """PHP's error for each proposed change; empty if the change works."""
    failures: dict[str, str] = {}
    for kind, endpoint in endpoints.items():
        changes = client_socket_changes(kind, endpoint.path, [_CLIENT])
        failures |= _run(kind, endpoint, changes, _BY_SOCKET, "")
        failures |= _run(kind, endpoint, connection_reuse_changes(kind, [_CLIENT]), _KEPT, " kept")
    return failures


def _run(
    kind: Kind,
    endpoint: Endpoint,
    changes: Iterable[Change],
    templates: Mapping[tuple[Kind, str], Template],
    suffix: str,
) -> dict[str, str]:
    failures = {}
    for change in changes:
        if not change.where.lower().startswith(_ACCOUNT):
            run = templates[kind, change.where](endpoint, change.lines)
            failures[f"{kind.value}{suffix}: {change.where}"] = _php(run)
    return failures


def _php(run: Run) -> str:
    """Run PHP with the settings in a file that adds to the machine's."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "doctor.ini").write_text("".join(f"{line}\n" for line in run.settings))
        done = subprocess.run(
            ["php", "-r", run.code],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PHP_INI_SCAN_DIR": f":{directory}"},
        )
    output = done.stdout + done.stderr
    return "" if done.returncode == 0 and not output else output[-500:] or f"exit code {done.returncode}"
