"""Starts and queries Memcached.

Memcached listens on a Unix socket or on TCP: given both, it silently uses the socket. It uses TLS on TCP only: with `-Z` its socket
silently accepts plain text. So its settings do not show where it listens and whether it encrypts there; `key_value.py` finds out by
connecting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from howfar.contract.receipt import SessionView
from howfar.errors import LabError
from howfar.lab.environment import MIN_QUEUE
from howfar.lab.servers.key_value import StoreSettings
from howfar.lab.servers.text_protocol import Lines, query_stats
from howfar.plan.fitting import MEMCACHED_BYTES

NAMES = ("memcached",)
PACKAGE = "memcached"
MEMORY_MIB = MEMCACHED_BYTES // 2**20
"""Maximum memory for items, allocated as needed. With the default, 64 MiB, items that a load has just set would be evicted."""
_METRICS = {
    "bytes_read": "bytes_received",
    "bytes_written": "bytes_sent",
    "total_connections": "connections",
    "get_hits": "lookup_hits",
    "get_misses": "lookup_misses",
    "evictions": "evicted_keys",
    "rejected_connections": "rejected_connections",
}
_STATEMENT_COUNTERS = ("cmd_get", "cmd_set")
_ANSWERING_STATE = "conn_parse_cmd"
"""State of the session that requested the list of sessions, in that list."""
_COUNTERS = (
    *_METRICS,
    *_STATEMENT_COUNTERS,
    "delete_hits",
    "delete_misses",
    "listen_disabled_num",
    "ssl_handshake_errors",
)
_FACTS = (
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
            command.append("--user=root")  # without it, it refuses to start as root
        if settings.socket is not None:
            command += [f"--unix-socket={settings.socket}", "--unix-mask=0700"]
        else:
            command += [f"--listen={settings.address}", f"--port={settings.port}"]
        if settings.tls is not None:
            tls = settings.tls
            command += ["--enable-ssl", "-o", f"ssl_chain_cert={tls.certificate},ssl_key={tls.key}"]
        return command

    def version(self, lines: Lines) -> str:
        lines.send(b"version\r\n")
        answer = lines.read_line()
        if not answer.startswith("VERSION "):
            raise LabError(f"asked for its version, the server said {answer[:200]!r}")
        return answer.removeprefix("VERSION ")

    def counters(self, lines: Lines) -> dict[str, int]:
        """Counts of keys that were looked up, stored and deleted: a request for several keys counts once per key. Memcached does not
        count requests."""
        reported = query_stats(lines)
        counters = {_METRICS.get(name, name): int(reported[name]) for name in _COUNTERS if name in reported}
        return counters | {"statements": sum(int(reported[name]) for name in _STATEMENT_COUNTERS)}

    def count_keys(self, lines: Lines) -> int:
        return int(query_stats(lines)["curr_items"])

    def other_clients(self, lines: Lines) -> tuple[str, ...]:
        """The clients without our own session, which has the state `_ANSWERING_STATE`."""
        reported = [
            session
            for session in _parse_sessions(query_stats(lines, "conns"))
            if session.get("state") != _ANSWERING_STATE
        ]
        return tuple(
            "localhost"
            if session.get("listen_addr", "").startswith("unix:")
            else session.get("addr", "").removeprefix("tcp:")
            for session in reported
        )

    def facts(self, lines: Lines) -> dict[str, str]:
        reported = query_stats(lines, "settings")
        return {name: reported[name] for name in _FACTS if name in reported}

    def clients_allowed(self, facts: Mapping[str, str]) -> int:
        return int(facts["maxconns"])

    def mismatches(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[str]:
        if counters.get("listen_disabled_num", 0):
            return ["the server stopped listening during the trial: it had all the connections that it allows"]
        return []

    def has_tls(self, lines: Lines) -> bool:
        return "ssl_enabled" in query_stats(lines, "settings")

    def view(self, lines: Lines, settings: StoreSettings) -> SessionView:
        """The server's view of our session, found by its address, else by the state `_ANSWERING_STATE`. Memcached does not report
        encryption, so that is taken from our side."""
        version, cipher = lines.tls
        reported = _parse_sessions(query_stats(lines, "conns"))
        view = SessionView(host="", ssl_version=version, ssl_cipher=cipher, listener="")
        if settings.socket is not None:
            own = [session for session in reported if session.get("listen_addr") == f"unix:{settings.socket}"]
            answering = [session for session in own if session.get("state") == _ANSWERING_STATE]
            return view.updated(SessionView(host="localhost", listener=own[0]["listen_addr"])) if answering else view
        name = lines.peer.socket.getsockname()
        own = [session for session in reported if session.get("addr") == f"tcp:{name[0]}:{name[1]}"]
        # Through a program in between, the server sees that program's address.
        own = own or [session for session in reported if session.get("state") == _ANSWERING_STATE]
        if not own:
            return view
        host, listener = own[0]["addr"].removeprefix("tcp:"), own[0].get("listen_addr", "")
        return view.updated(SessionView(host=host, listener=listener))


def _parse_sessions(conns: Mapping[str, str]) -> list[dict[str, str]]:
    """Sessions in the answer to `stats conns`, which has one line per property, such as `STAT 24:state conn_parse_cmd`. Listening
    sockets are omitted."""
    sessions: dict[str, dict[str, str]] = {}
    for name, value in conns.items():
        number, _, quantity = name.partition(":")
        sessions.setdefault(number, {})[quantity] = value
    return [session for session in sessions.values() if session.get("state") != "conn_listening"]
