"""Redis and Valkey as the laboratory starts and queries them: in memory only, without the machine's configuration.

Both can listen on a socket and on TCP at the same time, but use TLS only on TCP. There is no password: the laboratory has its own
network, and without one they listen on 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from howfar.contract.receipt import SessionView
from howfar.errors import LabError
from howfar.lab.environment import MIN_QUEUE
from howfar.lab.servers.key_value import StoreSettings
from howfar.lab.servers.text_protocol import Lines, ask, pairs

REDIS_NAMES = ("redis-server",)
VALKEY_NAMES = ("valkey-server",)
PACKAGE = "redis-server"
_METRICS = {
    "total_net_input_bytes": "bytes_received",
    "total_net_output_bytes": "bytes_sent",
    "total_commands_processed": "requests",
    "total_connections_received": "connections",
    "keyspace_hits": "lookup_hits",
    "keyspace_misses": "lookup_misses",
    "evicted_keys": "evicted_keys",
    "rejected_connections": "rejected_connections",
}
_COUNTERS = (*_METRICS, "total_error_replies", "total_forks")
"""Names of counters; a snapshot omits those that a release does not have."""
_CALLS_PREFIX = "cmdstat_"
_STATEMENT_COUNTERS = ("cmdstat_get", "cmdstat_set", "cmdstat_mget")
_FACTS = (
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
            # In protected mode without a password it would refuse clients that connect over the link.
            "protected-mode": "no" if settings.context.namespaced else "yes",
            "tcp-backlog": str(max(MIN_QUEUE, settings.context.connections)),
            "maxclients": str(settings.clients),
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
                "tls-auth-clients": "no",  # otherwise it requires client certificates
            }
        bind = ("--bind", *(settings.address or "127.0.0.1").split(","))
        return [
            str(settings.program),
            *bind,
            *(word for name, value in options.items() for word in (f"--{name}", value)),
        ]

    def version(self, lines: Lines) -> str:
        info = pairs(ask(lines, "INFO", "server"), "\r\n", ":")
        found = info.get("valkey_version", info.get("redis_version"))
        if found is None:
            raise LabError("the server does not report its version as Redis does")
        return found

    def counters(self, lines: Lines) -> dict[str, int]:
        info = pairs(ask(lines, "INFO", "all"), "\r\n", ":")
        found = {_METRICS.get(name, name): int(info[name]) for name in _COUNTERS if name in info}
        found |= dict.fromkeys(_STATEMENT_COUNTERS, 0)  # it lists a command only after its first call
        for name, value in info.items():
            if name.startswith(_CALLS_PREFIX):
                found[name] = int(pairs(value, ",", "=").get("calls", "0"))
        return found | {"statements": sum(found[name] for name in _STATEMENT_COUNTERS)}

    def count_keys(self, lines: Lines) -> int:
        return int(ask(lines, "DBSIZE"))

    def others(self, lines: Lines) -> tuple[str, ...]:
        own = str(ask(lines, "CLIENT", "ID"))
        reported = (pairs(line, " ", "=") for line in ask(lines, "CLIENT", "LIST").splitlines())
        return tuple(_host(client) for client in reported if client.get("id") != own)

    def facts(self, lines: Lines) -> dict[str, str]:
        reply = ask(lines, "CONFIG", "GET", "*")
        settings = dict(zip(reply[::2], reply[1::2], strict=True))
        return {name: settings[name] for name in _FACTS if name in settings}

    def clients_allowed(self, facts: Mapping[str, str]) -> int:
        return int(facts["maxclients"])

    def mismatches(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[str]:
        found = [
            f"the server's {name} is {facts.get(name)!r}, it was to be {wanted!r}"
            for name, wanted in _IN_MEMORY_SETTINGS.items()
            if facts.get(name) != wanted
        ]
        if counters.get("total_forks", 0):
            found.append("the server forked to write its data to a file during the trial")
        return found

    def has_tls(self, lines: Lines) -> bool:
        return bool(ask(lines, "CONFIG", "GET", "tls-port"))

    def view(self, lines: Lines, settings: StoreSettings) -> SessionView:
        """The server's view of this session. It reports the session's port, not its encryption; its TLS port accepts only TLS."""
        reported = pairs(ask(lines, "CLIENT", "INFO").strip(), " ", "=")
        uses_tls = settings.tls is not None and reported.get("laddr", "").endswith(f":{settings.port}")
        version, cipher = lines.tls if uses_tls else (None, None)
        host, listener = _host(reported), reported.get("laddr", "")
        return SessionView(host=host, ssl_version=version, ssl_cipher=cipher, listener=listener)


def _host(client: Mapping[str, str]) -> str:
    return "localhost" if "U" in client.get("flags", "") else client.get("addr", "")
