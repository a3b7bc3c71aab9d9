"""Starts and queries Redis and Valkey, with data in memory only and without the machine's configuration.

Both can listen on a socket and on TCP at the same time, but use TLS only on TCP. They have no password: they listen on the
laboratory's own network or, without one, on 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from howfar.contract.server_receipt import SessionView
from howfar.contract.violation import Violation, violation
from howfar.errors import LabError
from howfar.lab.environment import MIN_QUEUE
from howfar.lab.servers.key_value import StoreSettings
from howfar.lab.servers.text_protocol import LineConnection, parse_pairs, send_command

REDIS_NAMES = ("redis-server",)
VALKEY_NAMES = ("valkey-server",)
PACKAGE = "redis-server"
_METRIC_NAMES = {
    "total_net_input_bytes": "bytes_received",
    "total_net_output_bytes": "bytes_sent",
    "total_commands_processed": "requests",
    "total_connections_received": "connections",
    "keyspace_hits": "lookup_hits",
    "keyspace_misses": "lookup_misses",
    "evicted_keys": "evicted_keys",
    "rejected_connections": "rejected_connections",
}
"""Names in `ServerMetrics` of the server's counters."""
_COUNTERS = (*_METRIC_NAMES, "total_error_replies", "total_forks")
"""Names of counters; a snapshot omits those that the server does not have."""
_COMMAND_COUNTER_PREFIX = "cmdstat_"
_STATEMENT_COUNTERS = ("cmdstat_get", "cmdstat_set", "cmdstat_mget")
_RECEIPT_SETTINGS = (
    "maxclients",
    "maxmemory",
    "maxmemory-policy",
    "save",
    "appendonly",
    "tcp-backlog",
    "io-threads",
    "client-output-buffer-limit",
    "protected-mode",
    "unixsocketperm",
    "port",
    "tls-port",
    "tls-protocols",
    "disable-thp",
)
_IN_MEMORY_SETTINGS = {"save": "", "appendonly": "no", "maxmemory": "0"}
"""Settings that prevent writing files and evicting keys during the load."""


class RedisDialect:
    """The dialect of Redis and Valkey; see `key_value.StoreDialect`."""

    port = 6379
    listens_on_both = True

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def command_line(self, settings: StoreSettings) -> list[str]:
        """Command that starts the server. Its first argument is an option, so that the server reads no configuration file."""
        port = settings.port or 0
        options = {
            "port": str(port if settings.tls is None else 0),
            # In protected mode a server without a password would refuse clients that connect over the link.
            "protected-mode": "no" if settings.context.namespaced else "yes",
            "tcp-backlog": str(max(MIN_QUEUE, settings.context.connections)),
            "maxclients": str(settings.max_clients),
            "timeout": "0",
            "save": "",
            "appendonly": "no",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "dir": str(settings.context.work),
        }
        if settings.socket is not None:
            options |= {"unixsocket": str(settings.socket), "unixsocketperm": "700"}
        if settings.tls is not None:
            options |= {
                "tls-port": str(port),
                "tls-cert-file": str(settings.tls.certificate),
                "tls-key-file": str(settings.tls.key),
                "tls-ca-cert-file": str(settings.tls.ca),
                "tls-auth-clients": "no",  # otherwise the server requires client certificates
            }
        bind = ("--bind", *(settings.address or "127.0.0.1").split(","))
        return [
            str(settings.program),
            *bind,
            *(word for name, value in options.items() for word in (f"--{name}", value)),
        ]

    def version(self, connection: LineConnection) -> str:
        info = parse_pairs(send_command(connection, "INFO", "server"), "\r\n", ":")
        version = info.get("valkey_version", info.get("redis_version"))
        if version is None:
            raise LabError("the server does not report its version as Redis does")
        return version

    def counters(self, connection: LineConnection) -> dict[str, int]:
        info = parse_pairs(send_command(connection, "INFO", "all"), "\r\n", ":")
        counters = {_METRIC_NAMES.get(name, name): int(info[name]) for name in _COUNTERS if name in info}
        counters |= dict.fromkeys(_STATEMENT_COUNTERS, 0)  # the server lists a command only after its first call
        for name, value in info.items():
            if name.startswith(_COMMAND_COUNTER_PREFIX):
                counters[name] = int(parse_pairs(value, ",", "=").get("calls", "0"))
        return counters | {"statements": sum(counters[name] for name in _STATEMENT_COUNTERS)}

    def count_keys(self, connection: LineConnection) -> int:
        return int(send_command(connection, "DBSIZE"))

    def other_clients(self, connection: LineConnection) -> tuple[str, ...]:
        _, others = _own_and_other_clients(connection)
        return tuple(map(_client_address, others))

    def facts(self, connection: LineConnection) -> dict[str, str]:
        reply = send_command(connection, "CONFIG", "GET", "*")
        settings = dict(zip(reply[::2], reply[1::2], strict=True))
        return {name: settings[name] for name in _RECEIPT_SETTINGS if name in settings}

    def clients_allowed(self, facts: Mapping[str, str]) -> int:
        return int(facts["maxclients"])

    def mismatches(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[Violation]:
        violations = [
            violation("server-setting", setting=name, value=facts.get(name), requested=requested)
            for name, requested in _IN_MEMORY_SETTINGS.items()
            if facts.get(name) != requested
        ]
        if counters.get("total_forks", 0):
            violations.append(violation("server-forked"))
        return violations

    def has_tls(self, connection: LineConnection) -> bool:
        return bool(send_command(connection, "CONFIG", "GET", "tls-port"))

    def view(self, connection: LineConnection, settings: StoreSettings) -> SessionView:
        """The server's view of this session. The server does not report whether a session is encrypted, but to which port it is
        connected, and the TLS port accepts only TLS."""
        client, _ = _own_and_other_clients(connection)
        uses_tls = settings.tls is not None and client.get("laddr", "").endswith(f":{settings.port}")
        version, cipher = connection.tls if uses_tls else (None, None)
        host, listener = _client_address(client), client.get("laddr", "")
        return SessionView(host=host, ssl_version=version, ssl_cipher=cipher, listener=listener)


def _own_and_other_clients(connection: LineConnection) -> tuple[Mapping[str, str], list[Mapping[str, str]]]:
    """What the server says of this session and of all others. Redis 6.0 has no CLIENT INFO, and no `laddr`."""
    own_id = str(send_command(connection, "CLIENT", "ID"))
    clients = [parse_pairs(line, " ", "=") for line in send_command(connection, "CLIENT", "LIST").splitlines()]
    own = next((client for client in clients if client.get("id") == own_id), {})
    return own, [client for client in clients if client is not own]


def _client_address(client: Mapping[str, str]) -> str:
    return "localhost" if "U" in client.get("flags", "") else client.get("addr", "")
