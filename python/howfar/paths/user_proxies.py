"""Proxies that Debian does not package, one entry each. The user provides their programs (`--hop-binary NAME=PATH`).

A proxy runs on the client's host or a separate host, listens there on TCP and connects to the server over the link. All settings that
are not in the configurations below have their defaults. Envoy 1.40 was tested; the other proxies' configurations follow the manuals
and are untested.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.errors import LabError
from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, find_hop_placement, find_program

_ANSWER_TIMEOUT_S = 5.0
_POOL_SIZE = 20
_NOBODY_UID = 65534


@dataclass(frozen=True)
class UserProxy:
    """One proxy. Names in braces in `configuration`, `arguments` and `prepare` are replaced by values; literal braces are doubled."""

    name: str
    label: str
    configuration: str
    arguments: tuple[str, ...]
    """Arguments after the program."""
    suffix: str = ".conf"
    """Suffix of the configuration's file."""
    version_option: str = "--version"
    protocols: tuple[str, ...] = ()
    pools: bool = False
    keeps_sessions: bool = True
    as_user: int = 0
    """UID for a proxy that refuses to run as root; 0 for root."""
    prepare: tuple[str, ...] = ()
    """Statements that grant the load's account the privileges that the proxy needs at the server."""


USER_PROXIES = (
    UserProxy(
        "envoy",
        "TCP from a second machine through Envoy beside the client",
        """\
admin: {{address: {{pipe: {{path: "{work}/envoy.sock"}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: {listen}, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: howfar
          cluster: server
          idle_timeout: 0s
  clusters:
  - name: server
    type: STATIC
    connect_timeout: 10s
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_pending_requests: 100000}}]}}
    load_assignment:
      cluster_name: server
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: {server}, port_value: {server_port}}}}}}}
""",
        ("-c", "{file}", "--disable-hot-restart", "--log-level", "error"),
        suffix=".yaml",
    ),
    UserProxy(
        "mysqlrouter",
        "TCP from a second machine through MySQL Router beside the client",
        """\
[DEFAULT]
logging_folder =
runtime_folder = {work}
data_folder = {work}
[routing:howfar]
bind_address = {listen}
bind_port = {port}
destinations = {server}:{server_port}
routing_strategy = first-available
protocol = classic
max_connections = 10000
client_ssl_mode = PASSTHROUGH
server_ssl_mode = AS_CLIENT
""",
        ("-c", "{file}"),
        protocols=("mysql",),
    ),
    UserProxy(
        "proxysql",
        "TCP from a second machine through ProxySQL beside the client",
        """\
datadir = "{work}"
admin_variables = {{ mysql_ifaces = "{work}/proxysql.sock" }}
mysql_variables = {{
    interfaces = "{listen}:{port}"
    monitor_enabled = false
    max_connections = 10000
    default_schema = "{database}"
}}
mysql_servers = ( {{ address = "{server}", port = {server_port}, hostgroup = 0, max_connections = 10000 }} )
mysql_users = ( {{ username = "{user}", password = "{password}", default_hostgroup = 0, max_connections = 10000 }} )
""",
        ("-f", "--initial", "-c", "{file}", "-D", "{work}"),
        protocols=("mysql",),
        pools=True,
    ),
    UserProxy(
        "maxscale",
        "TCP from a second machine through MaxScale beside the client",
        """\
[maxscale]
admin_enabled = false
datadir = {work}
cachedir = {work}
piddir = {work}
logdir = {work}
[server]
type = server
address = {server}
port = {server_port}
[monitor]
type = monitor
module = mariadbmon
servers = server
user = {user}
password = {password}
[service]
type = service
router = readconnroute
servers = server
user = {user}
password = {password}
[listener]
type = listener
service = service
address = {listen}
port = {port}
""",
        ("-d", "-f", "{file}"),
        protocols=("mysql",),
        as_user=_NOBODY_UID,
        prepare=(
            "GRANT SELECT ON mysql.* TO '{user}'@'%'",
            "GRANT SHOW DATABASES, REPLICATION CLIENT ON *.* TO '{user}'@'%'",
        ),
    ),
    UserProxy(
        "odyssey",
        "TCP from a second machine through Odyssey, which pools transactions, beside the client",
        """\
daemonize no
log_to_stdout yes
log_session no
listen {{
    host "{listen}"
    port {port}
}}
storage "server" {{
    type "remote"
    host "{server}"
    port {server_port}
}}
database "{database}" {{
    user "{user}" {{
        authentication "scram-sha-256"
        password "{password}"
        storage "server"
        storage_password "{password}"
        pool "transaction"
        pool_size {pool}
    }}
}}
""",
        ("{file}",),
        protocols=("postgresql",),
        pools=True,
        keeps_sessions=False,
    ),
    UserProxy(
        "pgcat",
        "TCP from a second machine through PgCat, which pools transactions, beside the client",
        """\
[general]
host = "{listen}"
port = {port}
admin_username = "{user}"
admin_password = "{password}"
[pools.{database}]
pool_mode = "transaction"
[pools.{database}.users.0]
username = "{user}"
password = "{password}"
pool_size = {pool}
[pools.{database}.shards.0]
servers = [["{server}", {server_port}, "primary"]]
database = "{database}"
""",
        ("{file}",),
        suffix=".toml",
        protocols=("postgresql",),
        pools=True,
        keeps_sessions=False,
    ),
)


class UserProxyPath(Path):
    """The path through one of these proxies."""

    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    movable = True
    works_between_hosts = True
    modelled = False

    def __init__(self, proxy: UserProxy) -> None:
        self.name = proxy.name
        self.label = proxy.label
        self.hops = (proxy.name,)
        self.protocols = proxy.protocols
        self.pools = proxy.pools
        self.passes_tls = not proxy.protocols
        self.keeps_sessions = proxy.keeps_sessions
        self._proxy = proxy

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        proxy, host, port = self._proxy, find_hop_placement(context), context.hop_port
        name = f"{self.name}{proxy.suffix}"
        values = {
            "file": str(context.work / name),
            "work": str(context.work),
            "listen": host.listen_address,
            "port": str(port),
            "server": context.server_address,
            "server_port": str(context.server_port),
            "user": context.user,
            "password": context.password,
            "database": context.database,
            "pool": str(_POOL_SIZE),
        }
        for statement in proxy.prepare:
            context.query(statement.format(**values))
        context.write(host.side, name, proxy.configuration.format(**values))
        run_on_host = partial(context.run_on, host.side)
        program = run_on_host(partial(find_program, self.name))
        command = [program, *(word.format(**values) for word in proxy.arguments)]
        process = context.start(host.side, command, log := f"{self.name}.log", as_user=proxy.as_user)
        context.wait_until(process, log, lambda: context.listens(process, port))
        fetch_counters = partial(_fetch_envoy_counters, context.work / "envoy.sock")
        read_counters = partial(run_on_host, fetch_counters) if self.name == "envoy" else None
        return ClientEndpoint(
            host=host.listen_address,
            port=port,
            expected_client_host=host.source_address,
            server_port=context.server_port,
            hops=(Hop(f"{host.side}_side", process, read_counters=read_counters),),
            facts={"program": run_on_host(partial(_version_line, program, proxy.version_option)) or self.name},
        )


USER_PROXY_PATHS = tuple(map(UserProxyPath, USER_PROXIES))


_STATS_REQUEST = b"GET /stats?filter=^tcp.howfar.downstream_cx HTTP/1.1\r\nHost: howfar\r\nConnection: close\r\n\r\n"


def _fetch_envoy_counters(socket_path: FilePath) -> Mapping[str, int]:
    """Fetch Envoy's counters. Raises LabError."""
    envoy_names = {
        "connections": "downstream_cx_total",
        "bytes_to_server": "downstream_cx_rx_bytes_total",
        "bytes_to_client": "downstream_cx_tx_bytes_total",
    }
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(str(socket_path))
            connection.sendall(_STATS_REQUEST)
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError as error:
        raise LabError(f"Envoy does not report its counters: {error}") from error
    counters = dict(re.findall(r"^tcp\.howfar\.(\w+): (\d+)\r?$", answer, re.MULTILINE))
    if missing := [name for name in envoy_names.values() if name not in counters]:
        raise LabError(f"Envoy does not report its counters: {missing[0]} is not in {answer[:200]!r}")
    return {name: int(counters[envoy_name]) for name, envoy_name in envoy_names.items()}


@cache
def _version_line(program: str, option: str) -> str:
    """The first line that the program prints about its version; empty if there is none."""
    try:
        result = subprocess.run([program, option], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line.strip() for line in (result.stdout + result.stderr).splitlines() if line.strip()), "")
