"""Servers with one wrong setting each, or correct ones, and their clients, which `tests.lab.doctor_scenario` starts.

A wrong case names the checks that must find it. After their proposals are applied, no check may propose a change.
"""

from __future__ import annotations

from dataclasses import dataclass

FORWARDERS = ("socat", "haproxy", "pgbouncer", "stunnel")
TRUSTING = "local all postgres peer\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n"
"""The first line is from Debian's package: root can log in only as the server's account."""
DEBIAN = "local all postgres peer\nlocal all all peer\nhost all all 127.0.0.1/32 scram-sha-256\n"
"""Over the socket, a role must have the name of the account that connects."""
LOOPBACK_ACCOUNT = ("CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'secret'", "GRANT ALL ON test.* TO 'app'@'127.0.0.1'")
"""An account that cannot log in over the socket."""


@dataclass(frozen=True)
class User:
    """A client of the case's server. `{port}`, `{tls}`, `{base}` are replaced in its arguments."""

    transport: str
    """`tcp`, `tls`, `unix`; or `cli-compress`, `cli`: the command `mariadb` on the socket; or one of FORWARDERS."""
    mode: str = "hold"
    account: str = "www-data"
    name: str = ""
    """The name of the process; empty for the default."""
    login: str = ""
    """USER:PASSWORD; empty for an account of the server that needs no password."""


@dataclass(frozen=True)
class Case:
    """A server's setup. `options`: of its file or command line; `{base}` is the case's directory, `{port}` a free port."""

    name: str
    server: str
    options: tuple[str, ...]
    finds: frozenset[str] = frozenset()
    """Checks that must propose a change; empty if the setup is correct."""
    notes: frozenset[str] = frozenset()
    user: User | None = None
    account: str = "root"
    removed: str = ""
    """This file is removed once the server is up."""
    second: bool = False
    """Another server with the same options starts after the first and takes its socket."""
    sql: tuple[str, ...] = ()
    """Statements that MySQL's administrator executes once the server is up."""
    program: str = ""
    """Another name with which the server's program is started."""
    hba: str = TRUSTING
    """PostgreSQL's rules for logins."""


def _checks(*names: str) -> frozenset[str]:
    return frozenset(names)


_MARIADB = ("port = {port}", "bind-address = 127.0.0.1")
_MYSQL = ("port = {port}", "bind-address = 127.0.0.1", "mysqlx = OFF", "disable-log-bin", "secure-file-priv =")
_REDIS = ("port {port}", "bind 127.0.0.1", "save ''", "dir {base}")
_POSTGRESQL = ("port = {port}", "listen_addresses = '127.0.0.1'")
_MARIADB_SOCKET = (*_MARIADB, "socket = {base}/s.sock")
_MYSQL_SOCKET = (*_MYSQL, "socket = {base}/s.sock")
_REDIS_SOCKET = (*_REDIS, "unixsocket {base}/s.sock", "unixsocketperm 777")
_POSTGRESQL_SOCKET = (*_POSTGRESQL, "unix_socket_directories = '{base}'")
_MEMCACHED_SOCKET = ("-s {base}/s.sock", "-a 0777")
_TCP, _SOCKET = User("tcp"), User("unix")

CASES: tuple[Case, ...] = (
    Case("mariadb without a socket", "mariadb", (*_MARIADB, "socket ="), _checks("socket-off"), user=_TCP),
    Case("mariadb by loopback", "mariadb", _MARIADB_SOCKET, _checks("loopback-tcp"), user=_TCP),
    Case("mariadb in a closed directory", "mariadb", (*_MARIADB, "socket = {base}/closed/s.sock"),
         _checks("socket-out-of-reach"), user=_TCP),
    Case("mariadb whose socket is gone", "mariadb", _MARIADB_SOCKET, _checks("socket-gone"), removed="{base}/s.sock"),
    Case("mariadb with a connection each", "mariadb", _MARIADB_SOCKET, _checks("connect-churn"), user=User("unix", "each")),
    Case("mariadb and the bundle", "mariadb", _MARIADB_SOCKET,
         _checks("authority-bundle", "loopback-tcp"), user=User("tcp", "seldom-default")),
    Case("mariadb compressed", "mariadb", (*_MARIADB, "socket = {base}/s.sock", "performance_schema = ON"),
         _checks("compressed-local"), user=User("cli-compress")),
    Case("mariadb behind socat", "mariadb", _MARIADB_SOCKET, _checks("forwarder"), user=User("socat")),
    Case("mariadb behind socat for an account of the loopback", "mariadb", _MARIADB_SOCKET,
         _checks("forwarder"), user=User("socat", login="app:secret"), sql=LOOPBACK_ACCOUNT),
    Case("mariadb by loopback for an account of the loopback", "mariadb", _MARIADB_SOCKET,
         _checks("loopback-tcp"), user=User("tcp", login="app:secret"), sql=LOOPBACK_ACCOUNT),
    Case("mariadb behind haproxy in its chroot", "mariadb", _MARIADB_SOCKET, _checks("forwarder"), user=User("haproxy")),
    Case("redis behind stunnel", "redis", _REDIS_SOCKET, _checks("forwarder"), user=User("stunnel")),
    Case("mysql by loopback TLS", "mysql", _MYSQL_SOCKET, _checks("loopback-tcp"), _checks("encrypted-local"), user=User("tls")),
    Case("mysql encrypted in the socket", "mysql", _MYSQL_SOCKET, _checks("encrypted-socket"), user=User("cli")),
    Case("redis without a socket", "redis", _REDIS, _checks("socket-off"), user=_TCP, account="redis"),
    Case("redis of root without a socket", "redis", _REDIS, _checks("socket-off"), user=_TCP),
    Case("redis by loopback", "redis", _REDIS_SOCKET, _checks("loopback-tcp"), user=_TCP),
    Case("redis for itself alone", "redis", (*_REDIS, "unixsocket {base}/s.sock", "unixsocketperm 700"),
         _checks("socket-out-of-reach"), user=_TCP, account="redis"),
    Case("redis whose group the client lacks", "redis", (*_REDIS, "unixsocket {base}/s.sock", "unixsocketperm 770"),
         _checks("socket-out-of-reach"), user=_TCP, account="redis"),
    Case("redis whose socket is gone", "redis", _REDIS_SOCKET, _checks("socket-gone"), removed="{base}/s.sock"),
    Case("redis whose path another has", "redis", _REDIS_SOCKET, _checks("socket-gone"), second=True),
    Case("redis with a connection each", "redis", _REDIS_SOCKET, _checks("connect-churn"), user=User("unix", "each")),
    Case("redis by loopback TLS", "redis",
         (*_REDIS, "unixsocket {base}/s.sock", "unixsocketperm 777", "tls-port {tls}", "tls-auth-clients no",
          "tls-cert-file {certificate}", "tls-key-file {key}", "tls-ca-cert-file {ca}"),
         _checks("loopback-tcp"), _checks("encrypted-local"), user=User("tls")),
    Case("memcached without a socket", "memcached", ("-l 127.0.0.1:{port}",), _checks("socket-off"), user=_TCP, account="memcache"),
    Case("memcached with a port in vain", "memcached", ("-s {base}/s.sock", "-a 0777", "-p {port}"), _checks("options-ignored")),
    Case("memcached with TLS in vain", "memcached",
         ("-s {base}/s.sock", "-a 0777", "-Z", "-o ssl_chain_cert={certificate},ssl_key={key}"), _checks("options-ignored")),
    Case("memcached whose socket is gone", "memcached", _MEMCACHED_SOCKET, _checks("socket-gone"), removed="{base}/s.sock"),
    Case("memcached with a connection each", "memcached", _MEMCACHED_SOCKET, _checks("connect-churn"), user=User("unix", "each")),
    Case("postgresql without a socket", "postgresql", (*_POSTGRESQL, "unix_socket_directories = ''"), _checks("socket-off"),
         user=_TCP, account="postgres"),
    Case("postgresql by loopback", "postgresql", _POSTGRESQL_SOCKET, _checks("loopback-tcp"), user=_TCP, account="postgres"),
    Case("postgresql by loopback with Debian's rules", "postgresql", _POSTGRESQL_SOCKET,
         _checks("loopback-tcp"), user=User("tcp", login="app:secret"), account="postgres", hba=DEBIAN),
    Case("postgresql behind pgbouncer with Debian's rules", "postgresql", _POSTGRESQL_SOCKET,
         _checks("forwarder"), user=User("pgbouncer", login="app:secret"), account="postgres", hba=DEBIAN),
    Case("postgresql as postmaster", "postgresql", _POSTGRESQL_SOCKET, _checks("loopback-tcp"),
         user=_TCP, account="postgres", program="postmaster"),
    Case("postgresql for itself alone", "postgresql",
         (*_POSTGRESQL, "unix_socket_directories = '{base}'", "unix_socket_permissions = 0700"), _checks("socket-out-of-reach"),
         user=_TCP, account="postgres"),
    Case("postgresql whose socket is gone", "postgresql", _POSTGRESQL_SOCKET,
         _checks("socket-gone"), removed="{base}/.s.PGSQL.{port}", account="postgres"),
    Case("postgresql with a connection each", "postgresql", _POSTGRESQL_SOCKET,
         _checks("connect-churn"), user=User("unix", "each"), account="postgres"),
    # Correct setups: nothing may be proposed.
    Case("right: mariadb by its socket", "mariadb", _MARIADB_SOCKET, user=_SOCKET),
    Case("right: mariadb, java knows no sockets", "mariadb", _MARIADB_SOCKET, user=User("tcp", name="java")),
    Case("right: mysql by its socket", "mysql", _MYSQL_SOCKET, user=_SOCKET),
    Case("right: postgresql by its socket", "postgresql", _POSTGRESQL_SOCKET, user=_SOCKET, account="postgres"),
    Case("right: redis by its socket", "redis", _REDIS_SOCKET, user=_SOCKET),
    # Without root, the owner of a socket is not visible, so the doctor must try both for each server.
    Case("right: one of two redis of an account", "redis", (*_REDIS, "unixsocket {base}/redis.sock", "unixsocketperm 777"),
         account="redis"),
    Case("right: the other of two redis of an account", "redis",
         (*_REDIS, "unixsocket {base}/redis.sock", "unixsocketperm 777"), account="redis"),
    Case("right: redis, java knows no sockets", "redis", _REDIS_SOCKET, user=User("tcp", name="java")),
    Case("right: redis for other machines", "redis", ("port {port}", "bind 0.0.0.0", "save ''", "dir {base}", "protected-mode no")),
    Case("right: memcached by its socket", "memcached", _MEMCACHED_SOCKET, user=_SOCKET),
    Case("right: memcached for other machines", "memcached", ("-l 0.0.0.0:{port}",)),
)  # fmt: skip

USUAL = tuple(
    case
    for case in CASES
    if case.name
    in {
        "mariadb without a socket",
        "mariadb and the bundle",
        "mariadb compressed",
        "mariadb behind socat for an account of the loopback",
        "redis behind stunnel",
        "mysql encrypted in the socket",
        "redis whose group the client lacks",
        "redis with a connection each",
        "memcached whose socket is gone",
        "memcached with a port in vain",
        "postgresql without a socket",
        "postgresql behind pgbouncer with Debian's rules",
        "right: postgresql by its socket",
        "right: mariadb by its socket",
        "right: one of two redis of an account",
        "right: the other of two redis of an account",
        "right: memcached by its socket",
    }
)
"""The cases that `./test` runs: each check, and each kind of server without a finding, at least once."""
WRONG = tuple(case for case in CASES if case.finds)
RIGHT = tuple(case for case in CASES if not case.finds)
