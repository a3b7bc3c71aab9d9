"""The checks, each for one problem. A new check is a function from a `Context` to drafts of findings, and a line in CHECKS.

A check sends no requests, and reports nothing if the facts are insufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

from howfar.doctor import clusters
from howfar.doctor.findings import (
    NOT_CAUGHT,
    UNSEEN,
    Change,
    Client,
    Cluster,
    Draft,
    Finding,
    Gain,
    Kind,
    Median,
    MinimumLatency,
    Rates,
    Server,
    Severity,
    Transport,
    format_time,
)
from howfar.doctor.minimum_latency import median_saving
from howfar.doctor.peer_location import FORWARDERS
from howfar.doctor.procfs import CLEANED_DIRS
from howfar.doctor.proposals import (
    authority_changes,
    changes_to_socket,
    command_option_changes,
    config_file_of,
    connection_reuse_changes,
    is_movable,
    language_of,
    recreate_socket,
)
from howfar.doctor.texts import TRANSPORTS
from howfar.findings import fill, table_number
from howfar.services import SERVICES

_SERVER_PROGRAMS = (
    *(program for service in SERVICES.values() for program in service.programs),
    "redis-sentinel",
    "valkey-sentinel",
)
"""Servers and monitors that can be clients of other servers, over TCP only: a replica of its primary, a sentinel of its servers."""


@dataclass(frozen=True)
class Context:
    """The facts that a check may use: one server, and how it was examined."""

    server: Server
    process_latencies: tuple[MinimumLatency, ...]
    """Minimum latencies between two processes of howfar, without a server."""
    samples: int
    watched_s: float
    free_path: str
    """A path for this server's socket on which no other process listens."""

    def movable_tcp_clients(self) -> list[Client]:
        """Local TCP clients that could use a socket: forwarders, replicas and Java are left out."""
        return [client for client in self._local_tcp_clients() if not needs_tcp(client)]

    def clients_needing_tcp(self) -> list[Client]:
        """Clients that cannot use a socket: remote ones, and local ones that need TCP."""
        remote = [client for client in self.server.clients if not client.local]
        return remote + [client for client in self._local_tcp_clients() if needs_tcp(client)]

    def _local_tcp_clients(self) -> list[Client]:
        return [client for client in self.server.clients if client.local and client.by == "tcp"]

    def compare_transports(
        self, worse: Transport, better: Transport
    ) -> tuple[Median | None, Median | None, str] | None:
        """Return the saving of `better` over `worse` per round trip, per connect, and as text; None if either was not measured."""
        slow, fast = self.server.minimum_latency(worse), self.server.minimum_latency(better)
        if slow is None or fast is None:
            return None
        round_trip, connect = (
            median_saving(slow.round_trips_ns, fast.round_trips_ns),
            median_saving(slow.connects_ns, fast.connects_ns),
        )
        texts = [
            f"{saving.text} per {unit}"
            for unit, saving in (("round trip", round_trip), ("connect", connect))
            if saving is not None and saving.is_resolved
        ]
        return round_trip, connect, "; ".join(texts) or "too close to call: no difference above the noise of this look"


Check = Callable[[Context], list[Draft]]


def needs_tcp(client: Client) -> bool:
    """Whether a client must use TCP, whatever its configuration. Forwarders have their own check; Java's drivers lack Unix
    sockets."""
    return is_forwarder(client) or _program_name(client) in _SERVER_PROGRAMS or language_of(client.program) == "java"


def is_forwarder(client: Client) -> bool:
    return _program_name(client) in FORWARDERS


def _program_name(client: Client) -> str:
    return client.program.partition(" ")[0]


def choose_severity(clients: Iterable[Client]) -> Severity:
    """Return CHANGE if a program was identified, else NOTE: unidentified programs may need TCP, as a replica does."""
    known = [client for client in clients if client.program != UNSEEN and (client.program != NOT_CAUGHT or client.user)]
    return Severity.CHANGE if known else Severity.NOTE


def format_subject(clients: Sequence[Client], singular: str, plural: str) -> str:
    """Format clients as the subject of a sentence, with the verb in the singular or plural."""
    is_singular = len(clients) == 1 and clients[0].program != NOT_CAUGHT
    return f"{format_clients(clients)} {singular if is_singular else plural}"


def format_clients(clients: Iterable[Client]) -> str:
    """Format clients: `php-fpm8.2 (www-data, pid 812, 815) and mariadb (app)`."""
    return " and ".join(client.description for client in clients)


def estimate_socket_gain(context: Context, clients: Sequence[Client]) -> Gain:
    """Estimate the saving of a socket over the present transport, by pings of the server or else between two processes of howfar."""
    encrypted = bool(clients) and all(client.tls for client in clients)
    transports_in_use = (Transport.TLS, Transport.TCP) if encrypted else (Transport.TCP, Transport.TLS)
    socket, tcp = context.server.minimum_latency(Transport.SOCKET), context.server.minimum_latency(*transports_in_use)
    basis = f"{'TLS' if tcp and tcp.transport is Transport.TLS else 'TCP'} against the socket, pinged here in turn"
    if socket is None or tcp is None:
        by_name = {latency.transport: latency for latency in context.process_latencies}
        if len(by_name) < 2:
            return Gain(text="not measured", basis="the server does not answer on both transports", saves_ns=None)
        socket, tcp = by_name[Transport.SOCKET], by_name[Transport.TCP]
        basis = "TCP against a socket between two processes here, as the server cannot be pinged on both"
    return Gain(
        text=_saving_text(context, socket, tcp),
        basis=f"{basis}: {len(tcp.round_trips_ns)} rounds of {tcp.pings_per_round} pings",
        saves_ns=median_saving(tcp.round_trips_ns, socket.round_trips_ns),
        per="round trip",
    )


def _saving_text(context: Context, socket: MinimumLatency, tcp: MinimumLatency) -> str:
    round_trip, connect = (
        median_saving(tcp.round_trips_ns, socket.round_trips_ns),
        median_saving(tcp.connects_ns, socket.connects_ns),
    )
    assert round_trip is not None, "all latencies of an examination have the same number of rounds"
    if not round_trip.is_resolved:
        parts = [f"too close to call: no difference per round trip above the noise of this look ({round_trip.text})"]
    else:
        parts = [f"{round_trip.text} of each round trip's {format_time(tcp.round_trip_ns.value)}"]
        rates = context.server.rates
        # PostgreSQL counts transactions, which take several round trips, so this bound does not apply to it.
        if rates is not None and rates.statements >= 1 and context.server.kind.counts == "statements":
            total = format_time(rates.statements * round_trip.value)
            parts.append(
                f"at most {total} per second at the {table_number(rates.statements)} statements/s of all its clients"
            )
    if connect is not None and connect.is_resolved and tcp.connect_ns is not None:
        parts.append(f"{connect.text} of each connect's {format_time(tcp.connect_ns.value)}")
    return "; ".join(parts)


_IGNORED_OPTION_MEANINGS = {
    "-p": "nothing listens on that port",
    "-l": "nothing listens on that address",
    "-Z": "the socket is not encrypted",
}


def check_loopback_tcp(context: Context) -> list[Draft]:
    """A local client uses TCP although a socket exists that it may use."""
    socket = context.server.socket()
    clients = [client for client in context.movable_tcp_clients() if client.may_use_socket is not False]
    if socket is None or not clients:
        return []
    assert socket.path is not None, "a socket has a path"
    uncertainty = "" if all(client.may_use_socket for client in clients) else " (whether it has access is unknown)"
    sentence = (
        f"{format_subject(clients, 'connects', 'connect')} over TCP from this machine, although there is the socket "
        f"{socket.path}{uncertainty}"
    )
    changes = changes_to_socket(context.server, clients, context.free_path)
    return [Draft(sentence, changes, estimate_socket_gain(context, clients), choose_severity(clients))]


def check_socket_off(context: Context) -> list[Draft]:
    """The server has no socket, and local clients could use one."""
    server, clients = context.server, context.movable_tcp_clients()
    if server.sockets or not server.listeners_complete or not server.listeners or not clients:
        return []
    sentence = (
        f"there is no Unix socket, so {format_subject(clients, 'connects', 'connect')} over TCP from this machine"
    )
    gain = estimate_socket_gain(context, clients)
    if server.kind is Kind.MEMCACHED and (others := _clients_needing_tcp(context)):
        # With -s memcached listens nowhere else, which would cut off these clients.
        sentence = f"{sentence}; but memcached serves either a socket or TCP, and TCP also serves {others}"
        return [Draft(sentence, (), gain, Severity.NOTE)]
    changes = changes_to_socket(server, clients, context.free_path)
    if server.kind is Kind.MEMCACHED:
        comment_lines = ("# remove -p, -l and -Z, which it ignores with -s",)
        changes = (Change(where=config_file_of(server), lines=comment_lines, restarts=True), *changes)
    return [Draft(sentence, changes, gain, choose_severity(clients))]


def _clients_needing_tcp(context: Context) -> str:
    """Format the clients that need TCP; empty if the server listens on the loopback only and no such client was seen."""
    if clients := context.clients_needing_tcp():
        return format_clients(clients)
    listeners = context.server.listeners
    addresses = [
        listener.where for listener in listeners if listener.host and not ip_address(listener.host).is_loopback
    ]
    return f"other machines ({', '.join(addresses)})" if addresses else ""


def check_socket_out_of_reach(context: Context) -> list[Draft]:
    """A local client may not use the socket, because of its mode or that of a directory above it."""
    socket = context.server.socket()
    clients = [client for client in context.movable_tcp_clients() if client.may_use_socket is False]
    if socket is None or not clients or socket.file is None:
        return []
    sentence = (
        f"{format_clients(clients)} cannot access the socket {socket.path} (open to {socket.file.who}), so TCP is used"
    )
    changes = changes_to_socket(context.server, clients, context.free_path)
    return [Draft(sentence, changes, estimate_socket_gain(context, clients), choose_severity(clients))]


def check_socket_gone(context: Context) -> list[Draft]:
    """The server listens on a path that was removed or belongs to another server."""
    drafts = []
    for listener in context.server.sockets:
        if listener.state not in ("gone", "elsewhere"):
            continue
        assert listener.path is not None, "a socket has a path"
        is_cleaned = listener.path.startswith(CLEANED_DIRS)
        problem = "does not exist any more" if listener.state == "gone" else "belongs to another process"
        cause = ", perhaps removed by a cleaner of temporary files or hidden by PrivateTmp" if is_cleaned else ""
        path = context.free_path if is_cleaned or listener.state == "elsewhere" else listener.path
        gain = Gain(text="the socket can be used again", basis="the path was tried just now", saves_ns=None)
        sentence = f"it listens on the socket {listener.path}, which {problem}{cause}"
        drafts.append(Draft(sentence, recreate_socket(context.server, path), gain))
    return drafts


def check_forwarder(context: Context) -> list[Draft]:
    """A local forwarder connects to the server over TCP. Its clients may need TCP, but its own connection to the server does not."""
    server = context.server
    clients = [
        client
        for client in server.clients
        if client.local and client.by == "tcp" and is_forwarder(client) and is_movable(client)
    ]
    if not clients or not (server.sockets or (server.listeners_complete and server.kind is not Kind.MEMCACHED)):
        return []
    sentence = f"{format_subject(clients, 'forwards', 'forward')} to it over TCP on this machine"
    return [
        Draft(
            sentence,
            changes_to_socket(server, clients, context.free_path),
            estimate_socket_gain(context, clients),
        )
    ]


def check_options_ignored(context: Context) -> list[Draft]:
    """Options that memcached silently ignores with -s."""
    ignored = context.server.ignored
    if not ignored:
        return []
    meanings = "; ".join(f"{option}: {_IGNORED_OPTION_MEANINGS[option]}" for option in ignored)
    comment_lines = tuple(f"# remove {option}" for option in ignored)
    change = Change(where=config_file_of(context.server), lines=comment_lines, restarts=True)
    gain = Gain(
        text="its command line says what it does", basis="every address on which it listens was tried", saves_ns=None
    )
    return [Draft(f"with -s it ignores {', '.join(ignored)} ({meanings})", (change,), gain)]


HANDSHAKE_SHARE = 0.01
"""Minimum share of the watched time spent in handshakes that justifies a change to an application."""
_MAX_STATEMENTS_PER_CONNECT = 100
"""Mean number of statements per connection above which connections count as reused."""
MIN_BUNDLE_SAMPLES = 2
"""Minimum number of samples in which a program had the bundle open: in a single sample the program may just be starting."""
_MIN_BUNDLE_CONNECTS = 2


def check_connect_churn(context: Context) -> list[Draft]:
    """Clients open a new connection for each use."""
    rates = context.server.rates
    latency = _latency_of_reconnecting_clients(context, rates) if rates is not None else None
    if rates is None or latency is None or latency.connect_ns is None or rates.connects == 0:
        return []
    share = rates.connects * latency.connect_ns.value / 1e9
    if share < HANDSHAKE_SHARE or rates.statements / rates.connects > _MAX_STATEMENTS_PER_CONNECT:
        return []
    clients = _reconnecting_clients(context, rates)
    identified = [client for client in clients if client.program != NOT_CAUGHT]
    subject = format_subject(identified, "opens", "open") if identified else "clients open"
    rate_text = f"{table_number(rates.statements)} {context.server.kind.counts}/s"
    cost_text = f"{TRANSPORTS[latency.transport]}: {latency.connect_ns.text} per connect"
    gain = Gain(
        text=fill("handshakes take about {share:share} of one CPU or of a client's waiting time", share=share),
        basis=f"{cost_text} with howfar's own client, without a network",
        saves_ns=latency.connect_ns,
        per="connect",
    )
    sentence = f"{subject} a new connection for each use: {table_number(rates.connects)} connects/s and {rate_text}"
    return [Draft(sentence, connection_reuse_changes(context.server.kind, identified), gain)]


def _reconnecting_clients(context: Context, rates: Rates) -> list[Client]:
    """Return the clients that made at least half of the connects that the server counted."""
    min_connects = rates.connects * context.watched_s / 2
    return [
        client for client in context.server.clients if client.connects_seen - client.connections >= max(min_connects, 1)
    ]


def _latency_of_reconnecting_clients(context: Context, rates: Rates) -> MinimumLatency | None:
    """Return the minimum latency of the transport that reconnecting clients use, or of the cheapest one if there are none."""
    server = context.server
    if server.kind is Kind.MYSQL and rates.tls_connects and rates.tls_connects >= 0.9 * rates.connects:
        return server.minimum_latency(Transport.TLS, Transport.SOCKET_TLS)
    clients = _reconnecting_clients(context, rates)
    if any(client.by == "tcp" for client in clients):
        encrypted = any(client.tls for client in clients)
        return server.minimum_latency(*((Transport.TLS,) if encrypted else ()), Transport.TCP, Transport.TLS)
    return server.minimum_latency(Transport.SOCKET, Transport.TCP, Transport.TLS)


def check_authority_bundle(context: Context) -> list[Draft]:
    """MySQL clients read the system's complete CA bundle for each connect.

    Client libraries do so if TLS is possible and no certificate authority is configured; PHP's drivers never do. Programs also read
    the bundle for HTTPS.
    """
    if context.server.kind is not Kind.MYSQL or context.server.bundle_ns is None:
        return []
    readers = [
        client
        for client in context.server.clients
        if client.bundle_looks >= MIN_BUNDLE_SAMPLES
        and client.connects_seen > client.connections
        and language_of(client.program) != "php"
    ]
    for_this_server = [client for client in readers if _reads_when_connecting(client)]
    for_unknown_server = [client for client in readers if client not in for_this_server]
    return [
        _bundle_draft(context, clients, clients is for_this_server)
        for clients in (for_this_server, for_unknown_server)
        if clients
    ]


def _reads_when_connecting(client: Client) -> bool:
    """Whether most readings of the bundle coincide with a new connection to this server."""
    return client.bundle_connects >= _MIN_BUNDLE_CONNECTS and 2 * client.bundle_connects >= client.bundle_reads


def _bundle_draft(context: Context, clients: list[Client], is_for_this_server: bool) -> Draft:
    read_time = context.server.bundle_ns
    assert read_time is not None, "checked before"
    max_samples = min(max(client.bundle_looks for client in clients), context.samples)
    subject = format_subject(clients, "was", "were")
    sentence = f"{subject} reading the system's CA bundle at {max_samples} of {context.samples} samples"
    per: Literal["connect", "reading"] = "connect" if is_for_this_server else "reading"
    gain = Gain(
        text=f"{read_time.text} of client CPU per {per}",
        basis="reading that bundle here, six times",
        saves_ns=read_time,
        per=per,
    )
    if not is_for_this_server:
        return Draft(f"{sentence}; whether for this server is unknown", (), gain, Severity.NOTE)
    changes = authority_changes(clients)
    severity = Severity.CHANGE if changes else Severity.NOTE
    return Draft(f"{sentence}, next to new connections: no authority is configured", changes, gain, severity)


_COMPRESSION_OPTIONS = Change(
    where="the client's own options",
    lines=("without MYSQL_CLIENT_COMPRESS, PDO::MYSQL_ATTR_COMPRESS, compress=true, --compress",),
    restarts=False,
)
"""Change to clients that compress. No line for the option group [client], which would also apply to connections to other machines."""


def check_compressed_local(context: Context) -> list[Draft]:
    """Local clients compress: they spend CPU time to save bandwidth of a network that they do not use."""
    clients = [
        client for client in context.server.clients if client.local and client.compressed and not is_forwarder(client)
    ]
    if not clients:
        return []
    gain = Gain(
        text="the CPU time of compressing and expanding each result",
        basis="measured elsewhere: 3 ms of server CPU per 100 kB with zlib, 0.5 to 1 ms with zstd; not measured here",
        saves_ns=None,
    )
    changes = (*command_option_changes("compress", clients), _COMPRESSION_OPTIONS)
    return [
        Draft(
            f"{format_subject(clients, 'compresses', 'compress')} traffic that never leaves this machine", changes, gain
        )
    ]


def check_encrypted_local(context: Context) -> list[Draft]:
    """Local clients use TLS over the loopback."""
    server = context.server
    clients = [
        client
        for client in server.clients
        if client.local and client.by == "tcp" and client.tls and not is_forwarder(client)
    ]
    if not clients:
        return []
    comparison, gain = context.compare_transports(Transport.TLS, Transport.TCP), None
    if comparison is not None:
        round_trip, _, text = comparison
        gain = Gain(
            text=text, basis="TLS against plain TCP, pinged here in turn", saves_ns=round_trip, per="round trip"
        )
    sentence = f"{format_subject(clients, 'encrypts', 'encrypt')} traffic that never leaves this machine"
    if (server.socket() is not None or server.kind is Kind.MEMCACHED) and not all(map(needs_tcp, clients)):
        return [Draft(f"{sentence}; over the socket there would be nothing to encrypt", (), gain, Severity.NOTE)]
    return [Draft(sentence, _unencrypted_url_change(context), gain, Severity.NOTE)]


def _unencrypted_url_change(context: Context) -> tuple[Change, ...]:
    """Return the change to an unencrypted URL, for Redis only. MySQL's accounts may require TLS, and its new logins over TCP without
    TLS need the server's RSA key."""
    unencrypted = next(
        (listener for listener in context.server.listeners if listener.path is None and listener.tls == "none"), None
    )
    if context.server.kind is not Kind.REDIS or unencrypted is None:
        return ()
    lines = (f"redis://{unencrypted.where}   instead of rediss://…",)
    return (Change(where="the client's URL", lines=lines, restarts=False),)


def check_encrypted_socket(context: Context) -> list[Draft]:
    """MySQL sessions are encrypted inside a Unix socket, which only root could intercept. Some clients do so by default."""
    clients = [client for client in context.server.clients if client.by == "socket" and client.tls]
    if not clients:
        return []
    comparison, gain = context.compare_transports(Transport.SOCKET_TLS, Transport.SOCKET), None
    if comparison is not None:
        _, connect, text = comparison
        gain = Gain(
            text=text, basis="the socket with and without TLS, pinged here in turn", saves_ns=connect, per="connect"
        )
    changes = command_option_changes("ssl", clients)
    sentence = f"{format_subject(clients, 'encrypts', 'encrypt')} inside the socket, which only root could intercept"
    return [Draft(sentence, changes, gain, Severity.CHANGE if changes else Severity.NOTE)]


MIN_SESSIONS = 50
IDLE_SHARE = 0.9
"""Minimum share of idle sessions for which a pooler is proposed. An application's own pool, sized for its peak, has a lower share."""
WAITING_SHARE = 0.5
"""Minimum share of the time in transactions that is spent waiting for the client, including the client's own work, for a finding."""
_MIN_TRANSACTIONS_PER_S = 10
_POOLERS = ("pgbouncer", "odyssey", "pgcat")
_POOLER = Change(
    where="a pooler between the clients and the server, pgbouncer.ini",
    lines=(
        "[pgbouncer]",
        "; prepared statements need pgbouncer 1.21; SET and LISTEN need pool_mode = session",
        "pool_mode = transaction",
        "; sessions per user and database",
        "default_pool_size = 20",
    ),
    restarts=False,
)
_PIPELINE = Change(
    where="the client's code, where a statement does not need the answer to the one before",
    lines=(
        "libpq: PQenterPipelineMode; psycopg: with connection.pipeline(): …; pgx: SendBatch",
        "or one statement for the transaction: a function, or a query with a CTE",
    ),
    restarts=False,
)


def check_pooler_missing(context: Context) -> list[Draft]:
    """Most sessions are idle, and no client on this machine is a pooler. A pooler on the socket would not be visible."""
    server = context.server
    if any(client.program in _POOLERS for client in server.clients):
        return []
    if (server.sessions or 0) - (server.socket_connections or 0) < MIN_SESSIONS:
        return []
    return _draft_idle_sessions(context, "no pooler was seen")


def check_pooler_mode(context: Context) -> list[Draft]:
    """A pooler keeps a session for each of its clients."""
    poolers = [client for client in context.server.clients if client.program in _POOLERS]
    if not poolers:
        return []
    return _draft_idle_sessions(
        context, f"{format_subject(poolers, 'keeps', 'keep')} sessions, as with pool_mode = session"
    )


def _draft_idle_sessions(context: Context, pooler_note: str) -> list[Draft]:
    server = context.server
    if server.sessions is None or server.idle_sessions is None or server.sessions < MIN_SESSIONS:
        return []
    if server.idle_sessions < IDLE_SHARE * server.sessions:
        return []
    gain = Gain(
        text="the memory of one server process for each, and cheaper snapshots",
        basis="pg_stat_activity, seen once; not measured here",
        saves_ns=None,
    )
    sentence = f"{server.idle_sessions} of its {server.sessions} sessions are idle, and each is a process of the server; {pooler_note}"
    return [Draft(sentence, (_POOLER,), gain, Severity.NOTE)]


def check_statement_by_statement(context: Context) -> list[Draft]:
    """Transactions wait for their client longer than they work: each statement is a round trip."""
    rates = context.server.rates
    if rates is None or not rates.waiting or rates.working is None or rates.statements < _MIN_TRANSACTIONS_PER_S:
        return []
    share = rates.waiting / (rates.waiting + rates.working)
    if share < WAITING_SHARE:
        return []
    latency = context.server.minimum_latency(Transport.SOCKET, Transport.TCP, Transport.TLS)
    comparison = f"; a round trip here takes {format_time(latency.round_trip_ns.value)}" if latency is not None else ""
    gain = Gain(
        text=f"at most {format_time(rates.waiting / rates.statements * 1e9)} of a transaction{comparison}; "
        "the client's own work is in it",
        basis="pg_stat_database: idle_in_transaction_time and active_time, while watched",
        saves_ns=None,
    )
    sentence = f"{share * 100:.0f} % of the time in transactions it waits for its client's next statement"
    return [Draft(sentence, (_PIPELINE,), gain, Severity.NOTE)]


MIN_WAKING_SHARE = 0.05
"""Minimum share of a round trip spent waking CPUs that is worth the power needed to avoid it."""

_IDLE_STATE_CHANGES = (
    Change(
        where="tuned, for the whole machine",
        lines=("tuned-adm profile latency-performance   # or network-latency",),
        restarts=False,
    ),
    Change(
        where="/etc/systemd/system/no-deep-idle.service, without tuned",
        lines=(
            "[Service]",
            "ExecStart=/bin/sh -c 'exec 3>/dev/cpu_dma_latency; printf \"\\\\0\\\\0\\\\0\\\\0\" >&3; exec sleep infinity'",
            "[Install]",
            "WantedBy=multi-user.target",
        ),
        restarts=False,
    ),
    Change(
        where="the kernel's command line, from the next boot on",
        lines=("cpuidle_haltpoll.force=1   # a guest polls for a moment, then sleeps", "idle=poll   # never sleeps"),
        restarts=False,
    ),
)


def check_idle_states(context: Context) -> list[Draft]:
    """Waking CPUs is a significant part of a round trip. Only a note, because avoiding it costs power."""
    cost = context.server.idle
    if cost is None or not cost.waking.is_resolved or cost.waking.value < MIN_WAKING_SHARE * cost.as_found.value:
        return []
    share = cost.waking.value / cost.as_found.value
    sentence = (
        f"waking idle CPUs is {share:.0%} of a round trip to it after a pause of 1 ms ({cost.waking.text} of "
        f"{cost.as_found.text}; idle driver {cost.driver or 'unknown'}, governor {cost.governor or 'unknown'})"
    ).replace("%", " %", 1)
    gain = Gain(
        text=f"{cost.waking.text} per round trip; the price: CPUs that never sleep use the power of busy ones",
        basis=f"{TRANSPORTS[cost.transport]}: pings, alternately with 0 held in /dev/cpu_dma_latency",
        saves_ns=cost.waking,
        per="round trip",
    )
    return [Draft(sentence, _IDLE_STATE_CHANGES, gain, Severity.NOTE)]


def _cluster_check(check: Callable[[Server, Cluster], list[Draft]]) -> Check:
    """Turn a check of a cluster into one that reports nothing for a server without a cluster."""

    def check_context(context: Context) -> list[Draft]:
        cluster = context.server.cluster
        return check(context.server, cluster) if cluster is not None else []

    return check_context


CHECKS: tuple[tuple[str, Check], ...] = (
    ("socket-gone", check_socket_gone),
    ("authority-bundle", check_authority_bundle),
    ("loopback-tcp", check_loopback_tcp),
    ("socket-off", check_socket_off),
    ("socket-out-of-reach", check_socket_out_of_reach),
    ("forwarder", check_forwarder),
    ("connect-churn", check_connect_churn),
    ("compressed-local", check_compressed_local),
    ("encrypted-local", check_encrypted_local),
    ("encrypted-socket", check_encrypted_socket),
    ("pooler-missing", check_pooler_missing),
    ("pooler-mode", check_pooler_mode),
    ("statement-by-statement", check_statement_by_statement),
    ("options-ignored", check_options_ignored),
    *((name, _cluster_check(check)) for name, check in clusters.CHECKS.items()),
    ("idle-states", check_idle_states),
)
"""Checks with the names under which their findings are shown, in the order of display."""


def run_checks(context: Context) -> tuple[Finding, ...]:
    all_findings = [draft.to_finding(name) for name, check in CHECKS for draft in check(context)]
    return tuple(sorted(all_findings, key=lambda finding: finding.severity is not Severity.CHANGE))
