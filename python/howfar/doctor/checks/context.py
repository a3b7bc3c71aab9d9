"""What a check gets and what it returns, and the text and gains that several checks share. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from howfar.doctor.findings import (
    SHORT,
    UNSEEN,
    Change,
    Client,
    Finding,
    Floor,
    Gain,
    Interval,
    Server,
    Severity,
    Transport,
)
from howfar.doctor.floors import savings
from howfar.doctor.proposals import family

FORWARDERS = (
    "socat", "haproxy", "proxysql", "maxscale", "stunnel", "envoy", "docker-proxy", "ssh", "sshd", "nginx", "twemproxy",
    "nutcracker", "mcrouter", "mysqlrouter", "pgbouncer", "odyssey", "pgcat", "systemd-socket-", "rootlessport",
)  # fmt: skip
"""As the kernel names them, which cuts names at 15 characters: systemd-socket-proxyd is one of these."""
_SERVERS = ("mysqld", "mariadbd", "redis-server", "valkey-server", "redis-sentinel", "valkey-sentinel", "postgres")
"""A replica connects to its primary, and a sentinel to the servers it monitors; they support only TCP."""


@dataclass(frozen=True)
class Context:
    server: Server
    pure: tuple[Floor, ...]
    """Floors between two processes of howfar, without a server."""
    looks: int
    seconds: float
    path: str
    """A path for a socket of this server on which nothing else listens."""

    def by_tcp(self) -> list[Client]:
        """Local TCP clients that could use a socket: forwarders, replicas and Java are left out."""
        return [client for client in self._local_tcp() if not needs_tcp(client)]

    def only_by_tcp(self) -> list[Client]:
        """Clients that cannot use a socket: remote ones, and local ones that need TCP."""
        remote = [client for client in self.server.clients if not client.local]
        return remote + [client for client in self._local_tcp() if needs_tcp(client)]

    def _local_tcp(self) -> list[Client]:
        return [client for client in self.server.clients if client.local and client.by == "tcp"]

    def difference(self, worse: Transport, better: Transport) -> tuple[Interval | None, Interval | None, str] | None:
        """Savings per round trip and per connect, and as text; None where one of the two was not measured."""
        slow, fast = self.server.floor(worse), self.server.floor(better)
        if slow is None or fast is None:
            return None
        trip, connect = savings(slow.round_trips_ns, fast.round_trips_ns), savings(slow.connects_ns, fast.connects_ns)
        parts = [
            f"{format_interval(found)} per {what}"
            for what, found in (("round trip", trip), ("connect", connect))
            if found is not None and resolved(found)
        ]
        return trip, connect, "; ".join(parts) or "no difference above the noise"


@dataclass(frozen=True)
class Draft:
    """A finding before it has a name."""

    says: str
    changes: tuple[Change, ...] = ()
    gain: Gain | None = None
    severity: Severity = Severity.CHANGE

    def finding(self, name: str) -> Finding:
        return Finding(check=name, severity=self.severity, says=self.says, changes=self.changes, gain=self.gain)


Check = Callable[[Context], list[Draft]]


def needs_tcp(client: Client) -> bool:
    """It uses TCP for another reason than its configuration. Forwarders have a check; Java's drivers have no sockets."""
    return forwards(client) or _name(client) in _SERVERS or family(client.program) == "java"


def forwards(client: Client) -> bool:
    return _name(client) in FORWARDERS


def _name(client: Client) -> str:
    return client.program.partition(" ")[0]


def severity_for(using: Iterable[Client]) -> Severity:
    """A hidden program may be one that needs TCP, such as a replica: then it is only a note."""
    return Severity.NOTE if all(client.program == UNSEEN for client in using) else Severity.CHANGE


def do(using: Sequence[Client], one: str, several: str) -> str:
    """Subject and verb."""
    return f"{named(using)} {one if len(using) == 1 else several}"


def named(using: Iterable[Client]) -> str:
    """`php-fpm8.2 (www-data, pid 812, 815) and mariadb (app)`."""
    return " and ".join(_one(client) for client in using)


def _one(client: Client) -> str:
    pids = ", ".join(map(str, client.pids[:4])) + (", …" if len(client.pids) > 4 else "")
    owner = [client.user or client.address or "", f"pid {pids}" if client.pids else ""]
    hidden = {UNSEEN: "a process that cannot be identified", SHORT: "a process that ended before it was identified"}
    return f"{hidden.get(client.program, client.program)} ({', '.join(part for part in owner if part)})"


def format_interval(found: Interval) -> str:
    """`5.3 µs [4.0, 6.6]`, the limits in the unit of the median."""
    size, unit = _unit(found.median)
    if found.low is None or found.high is None:
        return f"{_short(found.median / size)} {unit}"
    return f"{_short(found.median / size)} {unit} [{_short(found.low / size)}, {_short(found.high / size)}]"


def format_time(ns: float) -> str:
    """`26.3 µs`."""
    size, unit = _unit(ns)
    return f"{_short(ns / size)} {unit}"


def _unit(ns: float) -> tuple[float, str]:
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if abs(ns) >= size), (1.0, "ns"))


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def resolved(found: Interval | None) -> bool:
    """The whole interval is a saving."""
    return found is not None and found.low is not None and found.low > 0


def socket_gain(context: Context, using: Sequence[Client]) -> Gain:
    """What the socket saves against the transport in use: from pings of the server, else between two processes."""
    encrypted = bool(using) and all(client.tls for client in using)
    now = (Transport.TLS, Transport.TCP) if encrypted else (Transport.TCP, Transport.TLS)
    socket, tcp = context.server.floor(Transport.SOCKET), context.server.floor(*now)
    basis = f"{'TLS' if tcp and tcp.transport is Transport.TLS else 'TCP'} against the socket, pinged here in turn"
    if socket is None or tcp is None:
        by_name = {floor.transport: floor for floor in context.pure}
        if len(by_name) < 2:
            return Gain(says="not measured", basis="the server does not answer on both transports", saves_ns=None)
        socket, tcp = by_name[Transport.SOCKET], by_name[Transport.TCP]
        basis = "TCP against a socket between two processes here, as the server cannot be pinged on both"
    return Gain(
        says=_saving(context, socket, tcp),
        basis=f"{basis}: {len(tcp.round_trips_ns)} rounds of {tcp.pings_per_round} pings",
        saves_ns=savings(tcp.round_trips_ns, socket.round_trips_ns),
    )


def _saving(context: Context, socket: Floor, tcp: Floor) -> str:
    trip, connect = savings(tcp.round_trips_ns, socket.round_trips_ns), savings(tcp.connects_ns, socket.connects_ns)
    assert trip is not None, "floors of one examination have as many rounds"
    if not resolved(trip):
        parts = [f"no difference per round trip above the noise ({format_interval(trip)})"]
    else:
        parts = [f"{format_interval(trip)} of each round trip's {format_time(tcp.round_trip_ns.median)}"]
        rates = context.server.rates
        # A transaction is several round trips: of PostgreSQL no bound is known.
        if rates is not None and rates.statements >= 1 and context.server.kind.counts == "statements":
            total = format_time(rates.statements * trip.median)
            parts.append(f"at most {total} per second at the {rates.statements:.3g} statements/s of all its clients")
    if connect is not None and resolved(connect) and tcp.connect_ns is not None:
        parts.append(f"{format_interval(connect)} of each connect's {format_time(tcp.connect_ns.median)}")
    return "; ".join(parts)
