"""The checks, each for one thing that can be wrong. A new check is a function from a `Context` to drafts of findings, and a line in
CHECKS.

A check sends no requests, and reports nothing where the facts are insufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

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
    Server,
    Severity,
    Transport,
    format_time,
)
from howfar.doctor.floors import savings
from howfar.doctor.peer_location import FORWARDERS
from howfar.doctor.procfs import CLEANED_FOLDERS
from howfar.doctor.proposals import (
    changes_to_socket,
    commands_without,
    family,
    file_of,
    is_movable,
    keeping_connections,
    naming_an_authority,
    socket_again,
)
from howfar.services import SERVICES

_SERVERS = (
    *(program for service in SERVICES.values() for program in service.programs),
    "redis-sentinel",
    "valkey-sentinel",
)
"""Servers and monitors that are clients of other servers, over TCP only: a replica of its primary, a sentinel of its servers."""


@dataclass(frozen=True)
class Context:
    server: Server
    process_floors: tuple[MinimumLatency, ...]
    """Floors measured between two processes of howfar, without a server."""
    looks: int
    seconds: float
    path: str
    """A path for this server's socket on which no other process listens."""

    def movable_tcp_clients(self) -> list[Client]:
        """Local TCP clients that could use a socket: forwarders, replicas and Java are left out."""
        return [client for client in self._local_tcp() if not needs_tcp(client)]

    def clients_needing_tcp(self) -> list[Client]:
        """Clients that cannot use a socket: remote ones, and local ones that need TCP."""
        remote = [client for client in self.server.clients if not client.local]
        return remote + [client for client in self._local_tcp() if needs_tcp(client)]

    def _local_tcp(self) -> list[Client]:
        return [client for client in self.server.clients if client.local and client.by == "tcp"]

    def difference(self, worse: Transport, better: Transport) -> tuple[Median | None, Median | None, str] | None:
        """What `better` saves per round trip and per connect, and both as text; None if one of the transports was not measured."""
        slow, fast = self.server.floor(worse), self.server.floor(better)
        if slow is None or fast is None:
            return None
        trip, connect = savings(slow.round_trips_ns, fast.round_trips_ns), savings(slow.connects_ns, fast.connects_ns)
        texts = [
            f"{saving.text} per {unit}"
            for unit, saving in (("round trip", trip), ("connect", connect))
            if saving is not None and is_resolved(saving)
        ]
        return trip, connect, "; ".join(texts) or "not resolved: no difference above the noise of this look"


Check = Callable[[Context], list[Draft]]


def needs_tcp(client: Client) -> bool:
    """Whether a client must use TCP, whatever its configuration. Forwarders have their own check; Java's drivers lack Unix sockets."""
    return is_forwarder(client) or _program_name(client) in _SERVERS or family(client.program) == "java"


def is_forwarder(client: Client) -> bool:
    return _program_name(client) in FORWARDERS


def _program_name(client: Client) -> str:
    return client.program.partition(" ")[0]


def severity_for(clients: Iterable[Client]) -> Severity:
    """NOTE if no program could be identified, because these may need TCP, as a replica does; else CHANGE."""
    known = [client for client in clients if client.program != UNSEEN and (client.program != NOT_CAUGHT or client.user)]
    return Severity.CHANGE if known else Severity.NOTE


def subject_and_verb(clients: Sequence[Client], singular: str, plural: str) -> str:
    """The clients as a subject, with its verb in the singular or plural."""
    is_one = len(clients) == 1 and clients[0].program != NOT_CAUGHT
    return f"{list_clients(clients)} {singular if is_one else plural}"


def list_clients(clients: Iterable[Client]) -> str:
    """The clients as text: `php-fpm8.2 (www-data, pid 812, 815) and mariadb (app)`."""
    return " and ".join(client.named for client in clients)


def is_resolved(median: Median | None) -> bool:
    """Whether the whole interval is above 0."""
    return median is not None and median.low is not None and median.low > 0


def socket_gain(context: Context, affected: Sequence[Client]) -> Gain:
    """What a socket saves compared with the transport in use: from pings of the server, else from pings between two processes of
    howfar."""
    encrypted = bool(affected) and all(client.tls for client in affected)
    now = (Transport.TLS, Transport.TCP) if encrypted else (Transport.TCP, Transport.TLS)
    socket, tcp = context.server.floor(Transport.SOCKET), context.server.floor(*now)
    basis = f"{'TLS' if tcp and tcp.transport is Transport.TLS else 'TCP'} against the socket, pinged here in turn"
    if socket is None or tcp is None:
        by_name = {floor.transport: floor for floor in context.process_floors}
        if len(by_name) < 2:
            return Gain(says="not measured", basis="the server does not answer on both transports", saves_ns=None)
        socket, tcp = by_name[Transport.SOCKET], by_name[Transport.TCP]
        basis = "TCP against a socket between two processes here, as the server cannot be pinged on both"
    return Gain(
        says=_saving_text(context, socket, tcp),
        basis=f"{basis}: {len(tcp.round_trips_ns)} rounds of {tcp.pings_per_round} pings",
        saves_ns=savings(tcp.round_trips_ns, socket.round_trips_ns),
    )


def _saving_text(context: Context, socket: MinimumLatency, tcp: MinimumLatency) -> str:
    trip, connect = savings(tcp.round_trips_ns, socket.round_trips_ns), savings(tcp.connects_ns, socket.connects_ns)
    assert trip is not None, "floors of one examination have as many rounds"
    if not is_resolved(trip):
        parts = [f"not resolved: no difference per round trip above the noise of this look ({trip.text})"]
    else:
        parts = [f"{trip.text} of each round trip's {format_time(tcp.round_trip_ns.value)}"]
        rates = context.server.rates
        # PostgreSQL counts transactions, which take several round trips, so this bound does not apply to it.
        if rates is not None and rates.statements >= 1 and context.server.kind.counts == "statements":
            total = format_time(rates.statements * trip.value)
            parts.append(f"at most {total} per second at the {rates.statements:.3g} statements/s of all its clients")
    if connect is not None and is_resolved(connect) and tcp.connect_ns is not None:
        parts.append(f"{connect.text} of each connect's {format_time(tcp.connect_ns.value)}")
    return "; ".join(parts)


_MEANING_OF_IGNORED = {
    "-p": "nothing listens on that port",
    "-l": "nothing listens on that address",
    "-Z": "the socket is not encrypted",
}


def loopback_tcp(context: Context) -> list[Draft]:
    """A local client uses TCP although a socket exists that it may use."""
    socket = context.server.socket()
    affected = [client for client in context.movable_tcp_clients() if client.may_use_socket is not False]
    if socket is None or not affected:
        return []
    assert socket.path is not None, "a socket has a path"
    uncertainty = "" if all(client.may_use_socket for client in affected) else " (whether it has access is unknown)"
    says = (
        f"{subject_and_verb(affected, 'connects', 'connect')} over TCP from this machine, although there is the socket "
        f"{socket.path}{uncertainty}"
    )
    changes = changes_to_socket(context.server, affected, context.path)
    return [Draft(says, changes, socket_gain(context, affected), severity_for(affected))]


def socket_off(context: Context) -> list[Draft]:
    """The server has no socket, and local clients could use one."""
    server, affected = context.server, context.movable_tcp_clients()
    if server.sockets or not server.listeners_complete or not server.listeners or not affected:
        return []
    says = f"there is no Unix socket, so {subject_and_verb(affected, 'connects', 'connect')} over TCP from this machine"
    gain = socket_gain(context, affected)
    if server.kind is Kind.MEMCACHED and (others := _clients_needing_tcp(context)):
        # With -s memcached listens nowhere else, which would cut off these clients.
        says = f"{says}; but memcached serves either a socket or TCP, and TCP also serves {others}"
        return [Draft(says, (), gain, Severity.NOTE)]
    changes = changes_to_socket(server, affected, context.path)
    if server.kind is Kind.MEMCACHED:
        removed = ("# remove -p, -l and -Z, which it ignores with -s",)
        changes = (Change(where=file_of(server), lines=removed, restarts=True), *changes)
    return [Draft(says, changes, gain, severity_for(affected))]


def _clients_needing_tcp(context: Context) -> str:
    """Clients that need TCP, as text; empty if the server listens on the loopback only and no such client was seen."""
    if clients := context.clients_needing_tcp():
        return list_clients(clients)
    listeners = context.server.listeners
    addresses = [
        listener.where for listener in listeners if listener.host and not ip_address(listener.host).is_loopback
    ]
    return f"other machines ({', '.join(addresses)})" if addresses else ""


def socket_out_of_reach(context: Context) -> list[Draft]:
    """A local client may not use the socket, because of its mode or that of a directory above it."""
    socket = context.server.socket()
    affected = [client for client in context.movable_tcp_clients() if client.may_use_socket is False]
    if socket is None or not affected or socket.file is None:
        return []
    says = (
        f"{list_clients(affected)} cannot access the socket {socket.path} (open to {socket.file.who}), so TCP is used"
    )
    changes = changes_to_socket(context.server, affected, context.path)
    return [Draft(says, changes, socket_gain(context, affected), severity_for(affected))]


def socket_gone(context: Context) -> list[Draft]:
    """The server listens on a path that was removed or belongs to another server."""
    drafts = []
    for listener in context.server.sockets:
        if listener.state not in ("gone", "elsewhere"):
            continue
        assert listener.path is not None, "a socket has a path"
        cleaned = listener.path.startswith(CLEANED_FOLDERS)
        what = "does not exist any more" if listener.state == "gone" else "belongs to another process"
        why = ", perhaps removed by a cleaner of temporary files or hidden by PrivateTmp" if cleaned else ""
        path = context.path if cleaned or listener.state == "elsewhere" else listener.path
        gain = Gain(says="the socket can be used again", basis="the path was tried just now", saves_ns=None)
        says = f"it listens on the socket {listener.path}, which {what}{why}"
        drafts.append(Draft(says, socket_again(context.server, path), gain))
    return drafts


def forwarder(context: Context) -> list[Draft]:
    """A local forwarder connects to the server over TCP. Its clients may need TCP, but its own connection to the server does not."""
    server = context.server
    affected = [
        client
        for client in server.clients
        if client.local and client.by == "tcp" and is_forwarder(client) and is_movable(client)
    ]
    if not affected or not (server.sockets or (server.listeners_complete and server.kind is not Kind.MEMCACHED)):
        return []
    says = f"{subject_and_verb(affected, 'forwards', 'forward')} to it over TCP on this machine"
    return [Draft(says, changes_to_socket(server, affected, context.path), socket_gain(context, affected))]


def options_ignored(context: Context) -> list[Draft]:
    """Options that memcached silently ignores with -s."""
    ignored = context.server.ignored
    if not ignored:
        return []
    means = "; ".join(f"{option}: {_MEANING_OF_IGNORED[option]}" for option in ignored)
    removed = tuple(f"# remove {option}" for option in ignored)
    change = Change(where=file_of(context.server), lines=removed, restarts=True)
    gain = Gain(
        says="its command line says what it does", basis="every address on which it listens was tried", saves_ns=None
    )
    return [Draft(f"with -s it ignores {', '.join(ignored)} ({means})", (change,), gain)]


HANDSHAKE_SHARE = 0.01
"""Minimum time spent in handshakes, as a share of the time watched, that justifies a change to an application."""
_MAX_STATEMENTS = 100
"""A connection that carries more statements than this is not opened for each use."""
MIN_BUNDLE_LOOKS = 2
"""Minimum number of looks at which a program had the bundle open: a single one may only mean that the program was starting."""
_MIN_BUNDLE_CONNECTS = 2
_NAMES = {
    Transport.SOCKET: "the socket",
    Transport.TCP: "TCP",
    Transport.TLS: "TLS",
    Transport.SOCKET_TLS: "TLS in the socket",
}


def connect_churn(context: Context) -> list[Draft]:
    """Clients open a new connection for each use."""
    rates, floor = context.server.rates, _floor_of_reconnecting(context)
    if rates is None or floor is None or floor.connect_ns is None or rates.connects == 0:
        return []
    share = rates.connects * floor.connect_ns.value / 1e9
    if share < HANDSHAKE_SHARE or rates.statements / rates.connects > _MAX_STATEMENTS:
        return []
    affected = _reconnecting(context)
    identified = [client for client in affected if client.program != NOT_CAUGHT]
    subject = subject_and_verb(identified, "opens", "open") if identified else "clients open"
    work = f"{rates.statements:.3g} {context.server.kind.counts}/s"
    cost = f"{floor.connect_ns.text} per connect over {_NAMES[floor.transport]}"
    return [
        Draft(
            f"{subject} a new connection for each use: {rates.connects:.3g} connects/s and {work}",
            keeping_connections(context.server.kind, identified),
            Gain(
                says=f"handshakes take about {share * 100:.2g} % of one CPU or of a client's waiting time",
                basis=f"{cost} with howfar's own client, without a network",
                saves_ns=floor.connect_ns,
            ),
        )
    ]


def _reconnecting(context: Context) -> list[Client]:
    """The clients that made at least half of the connects that the server counted."""
    assert context.server.rates is not None, "checked before"
    half = context.server.rates.connects * context.seconds / 2
    return [client for client in context.server.clients if client.connects_seen - client.connections >= max(half, 1)]


def _floor_of_reconnecting(context: Context) -> MinimumLatency | None:
    """The floor of the transport that reconnecting clients use, or of the cheapest one if there are none."""
    server, rates = context.server, context.server.rates
    if (
        rates is not None
        and server.kind is Kind.MYSQL
        and rates.tls_connects
        and rates.tls_connects >= 0.9 * rates.connects
    ):
        return server.floor(Transport.TLS, Transport.SOCKET_TLS)
    affected = _reconnecting(context) if rates is not None else []
    if any(client.by == "tcp" for client in affected):
        encrypted = any(client.tls for client in affected)
        return server.floor(*((Transport.TLS,) if encrypted else ()), Transport.TCP, Transport.TLS)
    return server.floor(Transport.SOCKET, Transport.TCP, Transport.TLS)


def authority_bundle(context: Context) -> list[Draft]:
    """MySQL clients read the system's complete CA bundle for each connect.

    Client libraries do so if TLS is possible and no certificate authority is configured. Programs also read the bundle for HTTPS;
    PHP's drivers do not read it.
    """
    if context.server.kind is not Kind.MYSQL or context.server.bundle_ns is None:
        return []
    affected = [
        client
        for client in context.server.clients
        if client.bundle_looks >= MIN_BUNDLE_LOOKS
        and client.connects_seen > client.connections
        and family(client.program) != "php"
    ]
    for_this_server = [client for client in affected if _reads_when_connecting(client)]
    for_unknown_server = [client for client in affected if client not in for_this_server]
    return [
        _bundle_draft(context, clients, clients is for_this_server)
        for clients in (for_this_server, for_unknown_server)
        if clients
    ]


def _reads_when_connecting(client: Client) -> bool:
    """Whether most readings of the bundle coincide with a new connection to this server."""
    return client.bundle_connects >= _MIN_BUNDLE_CONNECTS and 2 * client.bundle_connects >= client.bundle_reads


def _bundle_draft(context: Context, affected: list[Client], is_for_this_server: bool) -> Draft:
    read_time = context.server.bundle_ns
    assert read_time is not None, "checked before"
    max_looks = min(max(client.bundle_looks for client in affected), context.looks)
    says = f"{subject_and_verb(affected, 'was', 'were')} reading the system's CA bundle at {max_looks} of {context.looks} looks"
    gain = Gain(
        says=f"{read_time.text} of client CPU per {'connect' if is_for_this_server else 'reading'}",
        basis="reading that bundle here, six times",
        saves_ns=read_time,
    )
    if not is_for_this_server:
        return Draft(f"{says}; whether for this server is unknown", (), gain, Severity.NOTE)
    changes = naming_an_authority(affected)
    severity = Severity.CHANGE if changes else Severity.NOTE
    return Draft(f"{says}, next to new connections: no authority is configured", changes, gain, severity)


_COMPRESSION_OPTIONS = Change(
    where="the client's own options",
    lines=("without MYSQL_CLIENT_COMPRESS, PDO::MYSQL_ATTR_COMPRESS, compress=true, --compress",),
    restarts=False,
)
"""No line for the option group [client] is proposed, because it would also apply to connections to other machines."""


def compressed_local(context: Context) -> list[Draft]:
    """Local clients compress: they spend CPU time to save bandwidth of a network that is not used."""
    affected = [
        client for client in context.server.clients if client.local and client.compressed and not is_forwarder(client)
    ]
    if not affected:
        return []
    gain = Gain(
        says="the CPU time of compressing and expanding each result",
        basis="measured elsewhere: 3 ms of server CPU per 100 kB with zlib, 0.5 to 1 ms with zstd; not measured here",
        saves_ns=None,
    )
    changes = (*commands_without("compress", affected), _COMPRESSION_OPTIONS)
    return [
        Draft(
            f"{subject_and_verb(affected, 'compresses', 'compress')} traffic that never leaves this machine",
            changes,
            gain,
        )
    ]


def encrypted_local(context: Context) -> list[Draft]:
    """Local clients use TLS over the loopback."""
    server = context.server
    affected = [
        client
        for client in server.clients
        if client.local and client.by == "tcp" and client.tls and not is_forwarder(client)
    ]
    if not affected:
        return []
    difference, gain = context.difference(Transport.TLS, Transport.TCP), None
    if difference is not None:
        trip, _, text = difference
        gain = Gain(says=text, basis="TLS against plain TCP, pinged here in turn", saves_ns=trip)
    says = f"{subject_and_verb(affected, 'encrypts', 'encrypt')} traffic that never leaves this machine"
    if (server.socket() is not None or server.kind is Kind.MEMCACHED) and not all(map(needs_tcp, affected)):
        return [Draft(f"{says}; over the socket there would be nothing to encrypt", (), gain, Severity.NOTE)]
    return [Draft(says, _unencrypted_url_change(context), gain, Severity.NOTE)]


def _unencrypted_url_change(context: Context) -> tuple[Change, ...]:
    """The change to an unencrypted URL, for Redis only. It is not proposed for MySQL: accounts may require TLS, and without TLS new
    logins over TCP need the server's RSA key."""
    unencrypted = next(
        (listener for listener in context.server.listeners if listener.path is None and listener.tls == "none"), None
    )
    if context.server.kind is not Kind.REDIS or unencrypted is None:
        return ()
    lines = (f"redis://{unencrypted.where}   instead of rediss://…",)
    return (Change(where="the client's URL", lines=lines, restarts=False),)


def encrypted_socket(context: Context) -> list[Draft]:
    """MySQL sessions are encrypted inside a Unix socket, which only root could intercept. Some clients do so by default."""
    affected = [client for client in context.server.clients if client.by == "socket" and client.tls]
    if not affected:
        return []
    difference, gain = context.difference(Transport.SOCKET_TLS, Transport.SOCKET), None
    if difference is not None:
        _, connect, text = difference
        gain = Gain(says=text, basis="the socket with and without TLS, pinged here in turn", saves_ns=connect)
    changes = commands_without("ssl", affected)
    says = f"{subject_and_verb(affected, 'encrypts', 'encrypt')} inside the socket, which only root could intercept"
    return [Draft(says, changes, gain, Severity.CHANGE if changes else Severity.NOTE)]


MIN_SESSIONS = 50
IDLE_SHARE = 0.9
"""A pooler is proposed if at least this share of sessions is idle. An application's own pool, sized for its peak, has fewer."""
WAITING_SHARE = 0.5
"""A finding needs at least this share of the time in transactions to be spent waiting for the client, including its own work."""
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


def pooler_missing(context: Context) -> list[Draft]:
    """Most sessions are idle, and no client on this machine is a pooler. A pooler on the socket would not be visible."""
    server = context.server
    if any(client.program in _POOLERS for client in server.clients):
        return []
    if (server.sessions or 0) - (server.socket_connections or 0) < MIN_SESSIONS:
        return []
    return _idle_sessions(context, "no pooler was seen")


def pooler_mode(context: Context) -> list[Draft]:
    """A pooler keeps a session for each of its clients."""
    poolers = [client for client in context.server.clients if client.program in _POOLERS]
    return (
        _idle_sessions(context, f"{subject_and_verb(poolers, 'keeps', 'keep')} sessions, as with pool_mode = session")
        if poolers
        else []
    )


def _idle_sessions(context: Context, why: str) -> list[Draft]:
    server = context.server
    if server.sessions is None or server.idle_sessions is None or server.sessions < MIN_SESSIONS:
        return []
    if server.idle_sessions < IDLE_SHARE * server.sessions:
        return []
    gain = Gain(
        says="the memory of one server process for each, and cheaper snapshots",
        basis="pg_stat_activity, seen once; not measured here",
        saves_ns=None,
    )
    says = (
        f"{server.idle_sessions} of its {server.sessions} sessions are idle, and each is a process of the server; {why}"
    )
    return [Draft(says, (_POOLER,), gain, Severity.NOTE)]


def statement_by_statement(context: Context) -> list[Draft]:
    """Transactions wait for their client longer than they work: each statement is a round trip."""
    rates = context.server.rates
    if rates is None or not rates.waiting or rates.working is None or rates.statements < _MIN_TRANSACTIONS_PER_S:
        return []
    share = rates.waiting / (rates.waiting + rates.working)
    if share < WAITING_SHARE:
        return []
    floor = context.server.floor(Transport.SOCKET, Transport.TCP, Transport.TLS)
    comparison = f"; a round trip here takes {format_time(floor.round_trip_ns.value)}" if floor is not None else ""
    gain = Gain(
        says=f"at most {format_time(rates.waiting / rates.statements * 1e9)} of a transaction{comparison}; "
        "the client's own work is in it",
        basis="pg_stat_database: idle_in_transaction_time and active_time, while watched",
        saves_ns=None,
    )
    says = f"{share * 100:.0f} % of the time in transactions it waits for its client's next statement"
    return [Draft(says, (_PIPELINE,), gain, Severity.NOTE)]


MIN_WAKING_SHARE = 0.05
"""Waking CPUs must take at least this share of a round trip to be worth the power that is needed to avoid it."""

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


def idle_states(context: Context) -> list[Draft]:
    """Waking CPUs is a significant part of a round trip. A note, because the owner must weigh it against the power consumption."""
    cost = context.server.idle
    if cost is None or not is_resolved(cost.waking) or cost.waking.value < MIN_WAKING_SHARE * cost.as_found.value:
        return []
    share = cost.waking.value / cost.as_found.value
    says = (
        f"waking idle CPUs is {share:.0%} of a round trip to it after a pause of 1 ms ({cost.waking.text} of "
        f"{cost.as_found.text}; idle driver {cost.driver or 'unknown'}, governor {cost.governor or 'unknown'})"
    ).replace("%", " %", 1)
    gain = Gain(
        says=f"{cost.waking.text} per round trip; the price: CPUs that never sleep use the power of busy ones",
        basis=f"pings over {cost.transport.value}, alternately with 0 held in /dev/cpu_dma_latency",
        saves_ns=cost.waking,
    )
    return [Draft(says, _IDLE_STATE_CHANGES, gain, Severity.NOTE)]


def _cluster_check(check: Callable[[Server, Cluster], list[Draft]]) -> Check:
    def check_context(context: Context) -> list[Draft]:
        cluster = context.server.cluster
        return check(context.server, cluster) if cluster is not None else []

    return check_context


CHECKS: tuple[tuple[str, Check], ...] = (
    ("socket-gone", socket_gone),
    ("authority-bundle", authority_bundle),
    ("loopback-tcp", loopback_tcp),
    ("socket-off", socket_off),
    ("socket-out-of-reach", socket_out_of_reach),
    ("forwarder", forwarder),
    ("connect-churn", connect_churn),
    ("compressed-local", compressed_local),
    ("encrypted-local", encrypted_local),
    ("encrypted-socket", encrypted_socket),
    ("pooler-missing", pooler_missing),
    ("pooler-mode", pooler_mode),
    ("statement-by-statement", statement_by_statement),
    ("options-ignored", options_ignored),
    *((name, _cluster_check(check)) for name, check in clusters.CHECKS.items()),
    ("idle-states", idle_states),
)
"""Checks with the names under which their findings are shown, in the order of display."""


def findings(context: Context) -> tuple[Finding, ...]:
    all_findings = [draft.finding(name) for name, check in CHECKS for draft in check(context)]
    return tuple(sorted(all_findings, key=lambda finding: finding.severity is not Severity.CHANGE))
