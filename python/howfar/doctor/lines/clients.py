"""Lines of a client's own configuration, by what it speaks and what it is written in. A table: one row for each place to write in.

Which rows are shown depends on the program that was seen; of one that cannot be told apart all are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from howfar.doctor.findings import SHORT, UNSEEN, Change, Client, Kind

FAMILIES = {
    "php": ("php", "apache2", "httpd", "frankenphp"),
    "python": ("python", "gunicorn", "uwsgi", "celery"),
    "ruby": ("ruby", "puma", "sidekiq", "unicorn"),
    "node": ("node", "bun", "deno"),
    "java": ("java",),
}
"""How the name of the program begins."""
_SHELL = (
    "mariadb",
    "mariadb-dump",
    "mariadb-admin",
    "mysql",
    "mysqldump",
    "mysqladmin",
    "redis-cli",
    "valkey-cli",
    "mytop",
)
"""Whole names: mysqlrouter and mysqld_exporter are other things."""

_Rows = Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]

_MYSQL: _Rows = {
    "php": (
        (
            "php.ini (for host=localhost in a DSN)",
            ("pdo_mysql.default_socket = {path}", "mysqli.default_socket = {path}"),
        ),
        ("PDO", ("new PDO('mysql:unix_socket={path};dbname=DB', USER, PASSWORD)",)),
        ("Laravel, .env", ("DB_SOCKET={path}",)),
        ("WordPress, wp-config.php", ("define('DB_HOST', 'localhost:{path}');",)),
    ),
    "python": (
        ("Django, DATABASES", ("'HOST': '{path}',",)),
        ("SQLAlchemy", ("mysql+pymysql://USER@/DB?unix_socket={path}",)),
        ("PyMySQL", ("unix_socket='{path}'",)),
    ),
    "ruby": (("Rails, config/database.yml", ("socket: {path}",)),),
    "node": (("mysql2", ("socketPath: '{path}',",)),),
    "native": (("Go", ("USER:PASSWORD@unix({path})/DB",)),),
    "shell": (("my.cnf; the command without -h, or with -h localhost", ("[client]", "socket = {path}")),),
}
_ACCOUNT = (
    "SQL, first: by the socket an account is 'USER'@'localhost', which by TCP may be another",
    (
        "SHOW CREATE USER 'USER'@'localhost';  -- there it has to be, with its password and rights, before {path} is used",
    ),
)
_REDIS: _Rows = {
    "php": (
        ("phpredis", ("$redis->connect('{path}');",)),
        ("Laravel, .env", ("REDIS_HOST={path}", "REDIS_PORT=0")),
        ("php.ini (sessions kept in Redis)", ("session.save_handler = redis", 'session.save_path = "unix://{path}"')),
    ),
    "python": (
        ("Django, CACHES", ("'LOCATION': 'unix://{path}?db=0',",)),
        ("redis-py", ("redis.Redis(unix_socket_path='{path}')",)),
        ("Celery", ("broker_url = 'redis+socket://{path}'",)),
    ),
    "ruby": (("Rails, redis-rb", ("Redis.new(path: '{path}')",)),),
    "node": (("node-redis", ("createClient({{ socket: {{ path: '{path}' }} }})",)),),
    "native": (("Go, go-redis", ('&redis.Options{{Network: "unix", Addr: "{path}"}}',)),),
    "shell": (("redis-cli", ("redis-cli -s {path}",)),),
}
_MEMCACHED: _Rows = {
    "php": (
        ("Memcached", ("$memcached->addServer('{path}', 0);",)),
        ("Laravel, .env", ("MEMCACHED_HOST={path}", "MEMCACHED_PORT=0")),
    ),
    "python": (
        ("Django, CACHES", ("'LOCATION': 'unix:{path}',",)),
        ("pymemcache", ("Client('unix:{path}')",)),
    ),
    "ruby": (("Rails, Dalli", ("Dalli::Client.new('{path}')",)),),
    "native": (("Go, gomemcache", ('memcache.New("{path}")',)),),
}
_BY_SOCKET = {Kind.MYSQL: _MYSQL, Kind.REDIS: _REDIS, Kind.MEMCACHED: _MEMCACHED}

_KEEPING: Mapping[Kind, _Rows] = {
    Kind.MYSQL: {
        "php": (("PDO", ("[PDO::ATTR_PERSISTENT => true]",)), ("mysqli", ("new mysqli('p:localhost', …)",))),
        "python": (
            ("Django, DATABASES", ("'CONN_MAX_AGE': 600,",)),
            ("SQLAlchemy", ("create_engine(…)  # once, not for each request",)),
        ),
        "node": (("mysql2", ("mysql.createPool(…)  // in place of createConnection",)),),
        "java": (("any", ("one pool (HikariCP) for the whole process",)),),
        "native": (("Go", ("db.SetMaxIdleConns(64)  // the default is 2",)),),
    },
    Kind.REDIS: {
        "php": (("phpredis", ("$redis->pconnect(…);",)),),
        "python": (("redis-py", ("redis.Redis(…)  # once for each process, not for each request",)),),
        "native": (("any", ("one client with a pool for each process",)),),
    },
    Kind.MEMCACHED: {
        "php": (("Memcached", ("new Memcached('pool')  // a name makes it persistent",)),),
        "python": (("pymemcache", ("PooledClient(…)  # once for each process",)),),
        "native": (("any", ("one client with a pool for each process",)),),
    },
}
_AUTHORITY: _Rows = {
    "python": (
        ("PyMySQL, with TLS, by the authority of the server's certificate", ("ssl_ca='CA.pem'",)),
        ("PyMySQL, without TLS", ("ssl_disabled=True",)),
        ("Django, DATABASES, with TLS", ("'OPTIONS': {{'ssl': {{'ca': 'CA.pem'}}}},",)),
    ),
    "shell": (("the command, with TLS, by the authority of the server's certificate", ("mariadb --ssl-ca=CA.pem …",)),),
}
"""PHP has no row: its mysqlnd reads no bundle, and an authority would turn TLS on, with the server's name verified."""
_OF_BRAND = {
    "MariaDB": {"ssl": "--skip-ssl", "compress": "--loose-skip-compress"},
    "MySQL": {"ssl": "--ssl-mode=DISABLED", "compress": "--loose-skip-compress"},
}
_SAYS = {"ssl": " (unless its account has REQUIRE SSL)", "compress": ""}


def family(program: str) -> str | None:
    """None: the program is not known, so that nothing is left out."""
    if program in (SHORT, UNSEEN):
        return None
    name = program.partition(" ")[0].lower()
    if name in _SHELL:
        return "shell"
    return next((found for found, begins in FAMILIES.items() if name.startswith(begins)), "native")


def by_socket(kind: Kind, path: str, using: Iterable[Client]) -> tuple[Change, ...]:
    rows = _rows(_BY_SOCKET[kind], using, path)
    return (_change(*_ACCOUNT, path), *rows) if kind is Kind.MYSQL else rows


def keeping_connections(kind: Kind, using: Iterable[Client]) -> tuple[Change, ...]:
    return _rows(_KEEPING[kind], using, "")


def naming_an_authority(using: Iterable[Client]) -> tuple[Change, ...]:
    """None where nothing is known of the client's language."""
    known = [client for client in using if family(client.program) in _AUTHORITY]
    return _rows(_AUTHORITY, known, "") if known else ()


def commands_without(what: Literal["ssl", "compress"], using: Iterable[Client]) -> tuple[Change, ...]:
    """An option of the command that was seen: in an option file it would be in force on the way to other machines too."""
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


def _rows(table: _Rows, using: Iterable[Client], path: str) -> tuple[Change, ...]:
    families = {family(client.program) for client in using}
    named = [found for found in table if found in families]
    chosen = named or list(table)
    return tuple(_change(where, lines, path) for found in chosen for where, lines in table[found])


def _change(where: str, lines: Iterable[str], path: str) -> Change:
    return Change(where=where, lines=tuple(line.format(path=path) for line in lines), restarts=False)
