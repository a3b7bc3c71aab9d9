"""What a check is given and what it gives: words, lines and gains that several of them need. Judges nothing."""

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
    "nutcracker", "mcrouter", "mysqlrouter", "systemd-socket-", "rootlessport",
)  # fmt: skip
"""As the kernel has their names, which ends after 15 characters: systemd-socket-proxyd is one."""
_SERVERS = ("mysqld", "mariadbd", "redis-server", "valkey-server", "redis-sentinel", "valkey-sentinel")
"""A replica dials its primary, and a sentinel whom it watches; they support only TCP."""


@dataclass(frozen=True)
class Context:
    server: Server
    pure: tuple[Floor, ...]
    looks: int
    seconds: float
    path: str
    """Where a socket of its own may be: nobody else listens there."""

    def by_tcp(self) -> list[Client]:
        """On this machine, by TCP, and their own masters: what forwards for others, replicates, or has no sockets is left out."""
        return [
            client for client in self.server.clients if client.local and client.by == "tcp" and not is_bound(client)
        ]

    def only_by_tcp(self) -> list[Client]:
        """Who could not come by a socket: other machines, what stands for them here, and what knows no sockets."""
        return [
            client for client in self.server.clients if not client.local or (client.by == "tcp" and is_bound(client))
        ]


@dataclass(frozen=True)
class Draft:
    """A finding before it has its name."""

    says: str
    changes: tuple[Change, ...] = ()
    gain: Gain | None = None
    severity: Severity = Severity.CHANGE

    def finding(self, name: str) -> Finding:
        return Finding(check=name, severity=self.severity, says=self.says, changes=self.changes, gain=self.gain)


Check = Callable[[Context], list[Draft]]


def is_bound(client: Client) -> bool:
    """To TCP, for another reason than its configuration. Forwarders have a check of their own; Java's clients know no sockets."""
    return forwards(client) or _name(client) in _SERVERS or family(client.program) == "java"


def forwards(client: Client) -> bool:
    return _name(client) in FORWARDERS


def _name(client: Client) -> str:
    return client.program.partition(" ")[0]


def as_sure(using: Iterable[Client]) -> Severity:
    """Of programs that may not be seen it is not known whether they could come otherwise: replicas could not."""
    return Severity.NOTE if all(client.program == UNSEEN for client in using) else Severity.CHANGE


def do(using: Sequence[Client], one: str, several: str) -> str:
    """Who, and what they do."""
    return f"{named(using)} {one if len(using) == 1 else several}"


def named(using: Iterable[Client]) -> str:
    """`php-fpm8.2 (www-data, pid 812, 815) and unknown (app)`."""
    return " and ".join(_one(client) for client in using)


def _one(client: Client) -> str:
    pids = ", ".join(map(str, client.pids[:4])) + (", …" if len(client.pids) > 4 else "")
    whose = [client.user or client.address or "", f"pid {pids}" if client.pids else ""]
    name = {UNSEEN: "a process that may not be seen", SHORT: "a process that was not caught"}.get(
        client.program, client.program
    )
    return f"{name} ({', '.join(word for word in whose if word)})"


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


def socket_gain(seen: Context, using: Sequence[Client]) -> Gain:
    """From how they come now to the socket: by round trip, and by connect; from pings of the server, else between processes."""
    encrypted = bool(using) and all(client.tls for client in using)
    now = (Transport.TLS, Transport.TCP) if encrypted else (Transport.TCP, Transport.TLS)
    socket, tcp = seen.server.floor(Transport.SOCKET), seen.server.floor(*now)
    basis = f"{'TLS' if tcp and tcp.transport is Transport.TLS else 'TCP'} against the socket, pinged here in turns"
    if socket is None or tcp is None:
        by_name = {floor.transport: floor for floor in seen.pure}
        if len(by_name) < 2:
            return Gain(says="not measured", basis="the server has to answer on both endpoints", saves_ns=None)
        socket, tcp = by_name[Transport.SOCKET], by_name[Transport.TCP]
        basis = "TCP against a socket between two processes here, as the server cannot be pinged on both"
    return Gain(
        says=_saving(seen, using, socket, tcp),
        basis=f"{basis}: {_count(tcp)}",
        saves_ns=savings(tcp.round_trips_ns, socket.round_trips_ns),
    )


def _count(floor: Floor) -> str:
    return f"{len(floor.round_trips_ns)} rounds of {floor.pings_per_round} pings"


def _saving(seen: Context, using: Sequence[Client], socket: Floor, tcp: Floor) -> str:
    trip = savings(tcp.round_trips_ns, socket.round_trips_ns)
    connect = savings(tcp.connects_ns, socket.connects_ns)
    assert trip is not None, "floors of one look have as many rounds"
    if not resolved(trip):
        said = [f"no difference of a round trip can be told here ({format_interval(trip)})"]
    else:
        said = [f"{format_interval(trip)} of each round trip's {format_time(tcp.round_trip_ns.median)}"]
        rates = seen.server.rates
        if rates is not None and rates.statements >= 1:
            each_second = format_time(rates.statements * trip.median)
            said.append(
                f"at the {rates.statements:.3g} statements a second of all its clients at most {each_second} a second"
            )
    if connect is not None and resolved(connect) and tcp.connect_ns is not None:
        said.append(f"{format_interval(connect)} of each connect's {format_time(tcp.connect_ns.median)}")
    return "; ".join(said)
