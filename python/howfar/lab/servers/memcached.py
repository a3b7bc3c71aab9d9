"""Starts and queries Memcached.

Memcached listens either on a Unix socket or on TCP; if both are requested, it silently uses the socket. It encrypts on TCP only; with
`-Z` its socket silently accepts plain text. So the settings do not show where the server listens and whether it encrypts there;
`key_value.py` finds out by connecting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from howfar.contract.server_receipt import SessionView
from howfar.contract.violation import Violation, violation
from howfar.errors import LabError
from howfar.lab.environment import MIN_QUEUE
from howfar.lab.servers.key_value import StoreSettings
from howfar.lab.servers.text_protocol import LineConnection, query_stats
from howfar.plan.fitting import MEMCACHED_BYTES

NAMES = ("memcached",)
PACKAGE = "memcached"
MEMORY_MIB = MEMCACHED_BYTES // 2**20
"""Maximum memory for items, allocated as needed. With the default, 64 MiB, items that a load has just set would be evicted."""
_METRIC_NAMES = {
    "bytes_read": "bytes_received",
    "bytes_written": "bytes_sent",
    "total_connections": "connections",
    "get_hits": "lookup_hits",
    "get_misses": "lookup_misses",
    "evictions": "evicted_keys",
    "rejected_connections": "rejected_connections",
}
"""Names in `ServerMetrics` of the server's counters."""
_STATEMENT_COUNTERS = ("cmd_get", "cmd_set")
_ANSWERING_STATE = "conn_parse_cmd"
"""State, in the list of sessions, of the session that requested the list."""
_COUNTERS = (
    *_METRIC_NAMES,
    *_STATEMENT_COUNTERS,
    "delete_hits",
    "delete_misses",
    "listen_disabled_num",
    "ssl_handshake_errors",
)
_RECEIPT_SETTINGS = (
    "maxbytes",
    "maxconns",
    "num_threads",
    "tcp_backlog",
    "item_size_max",
    "evictions",
    "domain_socket",
    "umask",
    "ssl_enabled",
    "ssl_min_version",
)


class MemcachedDialect:
    """Memcached's dialect; see `key_value.StoreDialect`."""

    kind = "memcached"
    port = 11211
    listens_on_both = False

    def command_line(self, settings: StoreSettings) -> list[str]:
        context = settings.context
        command = [str(settings.program), f"--memory-limit={MEMORY_MIB}", f"--conn-limit={settings.max_clients}"]
        command += [f"--listen-backlog={max(MIN_QUEUE, context.connections)}", f"--threads={max(len(context.cpus), 1)}"]
        if os.geteuid() == 0:
            command.append("--user=root")  # without this option it refuses to start as root
        if settings.socket is not None:
            command += [f"--unix-socket={settings.socket}", "--unix-mask=0700"]
        else:
            command += [f"--listen={settings.address}", f"--port={settings.port}"]
        if settings.tls is not None:
            tls = settings.tls
            command += ["--enable-ssl", "-o", f"ssl_chain_cert={tls.certificate},ssl_key={tls.key}"]
        return command

    def version(self, connection: LineConnection) -> str:
        connection.send(b"version\r\n")
        answer = connection.read_line()
        if not answer.startswith("VERSION "):
            raise LabError(f"asked for its version, the server said {answer[:200]!r}")
        return answer.removeprefix("VERSION ")

    def counters(self, connection: LineConnection) -> dict[str, int]:
        """Counts of keys that were looked up, stored and deleted: a request for several keys counts once per key. Memcached does not
        count requests."""
        stats = query_stats(connection)
        counters = {_METRIC_NAMES.get(name, name): int(stats[name]) for name in _COUNTERS if name in stats}
        return counters | {"statements": sum(int(stats[name]) for name in _STATEMENT_COUNTERS)}

    def count_keys(self, connection: LineConnection) -> int:
        return int(query_stats(connection)["curr_items"])

    def other_clients(self, connection: LineConnection) -> tuple[str, ...]:
        """The clients without our own session, which has the state `_ANSWERING_STATE`."""
        others = [
            session
            for session in _parse_sessions(query_stats(connection, "conns"))
            if session.get("state") != _ANSWERING_STATE
        ]
        return tuple(
            "localhost"
            if session.get("listen_addr", "").startswith("unix:")
            else session.get("addr", "").removeprefix("tcp:")
            for session in others
        )

    def facts(self, connection: LineConnection) -> dict[str, str]:
        settings = query_stats(connection, "settings")
        return {name: settings[name] for name in _RECEIPT_SETTINGS if name in settings}

    def clients_allowed(self, facts: Mapping[str, str]) -> int:
        return int(facts["maxconns"])

    def mismatches(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[Violation]:
        if counters.get("listen_disabled_num", 0):
            return [violation("server-stopped-listening")]
        return []

    def has_tls(self, connection: LineConnection) -> bool:
        return "ssl_enabled" in query_stats(connection, "settings")

    def view(self, connection: LineConnection, settings: StoreSettings) -> SessionView:
        """The server's view of our session, found by its address, else by the state `_ANSWERING_STATE`. Memcached does not report
        encryption, so TLS version and cipher are those of our side."""
        version, cipher = connection.tls
        sessions = _parse_sessions(query_stats(connection, "conns"))
        view = SessionView(host="", ssl_version=version, ssl_cipher=cipher, listener="")
        if settings.socket is not None:
            own_sessions = [session for session in sessions if session.get("listen_addr") == f"unix:{settings.socket}"]
            answering = [session for session in own_sessions if session.get("state") == _ANSWERING_STATE]
            return (
                view.updated(SessionView(host="localhost", listener=own_sessions[0]["listen_addr"]))
                if answering
                else view
            )
        own_address, own_port = connection.peer.socket.getsockname()[:2]
        own_sessions = [session for session in sessions if session.get("addr") == f"tcp:{own_address}:{own_port}"]
        # Through a program in between, the server sees that program's address.
        own_sessions = own_sessions or [session for session in sessions if session.get("state") == _ANSWERING_STATE]
        if not own_sessions:
            return view
        host, listener = own_sessions[0]["addr"].removeprefix("tcp:"), own_sessions[0].get("listen_addr", "")
        return view.updated(SessionView(host=host, listener=listener))


def _parse_sessions(conns: Mapping[str, str]) -> list[dict[str, str]]:
    """Sessions in the answer to `stats conns`, which has one line per property, such as `STAT 24:state conn_parse_cmd`. Listening
    sockets are omitted."""
    sessions: dict[str, dict[str, str]] = {}
    for name, value in conns.items():
        number, _, quantity = name.partition(":")
        sessions.setdefault(number, {})[quantity] = value
    return [session for session in sessions.values() if session.get("state") != "conn_listening"]
