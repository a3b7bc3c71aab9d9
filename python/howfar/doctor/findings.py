"""The results of an examination, as frozen values. Their JSON form is public (`howfar doctor --json`, `schema/doctor.json`).

No field contains a command line, a statement or a password. What could not be seen is also reported (`Unseen`).

python -m howfar.doctor.findings [FILE] writes the schema.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from howfar.address.server_address import format_host_port
from howfar.doctor.kind import Kind as Kind
from howfar.doctor.kind import ListenerState, Tls
from howfar.errors import FailedCommand
from howfar.quiet_check import QuietCheck
from howfar.stats.estimate import Estimate

FORMAT = 1
"""Version of the JSON form; incremented when a field changes its meaning."""


UNSEEN = "unseen"
"""Value of `Client.program` for another account's program, whose open files may not be read."""
ANOTHER_ROOT = "another file system"
"""Value of `Client.root` for a program that sees another file system, as in a container."""
NOT_CAUGHT = "not caught"
"""Value of `Client.program` for a program whose connections ended before their process was found."""


class Transport(StrEnum):
    SOCKET = "socket"
    TCP = "tcp"
    TLS = "tls"
    """TLS over TCP."""
    SOCKET_TLS = "socket-tls"
    """MySQL only: other servers never encrypt a socket."""


class Severity(StrEnum):
    CHANGE = "change"
    """The problem costs or risks something now, and there are configuration lines that solve it."""
    NOTE = "note"
    """The problem is worth knowing, but its cost is unknown, or it cannot be changed."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)


class Median(Estimate):
    """A median with its 95 % interval by order statistics, which one disturbed round does not move."""

    value: float = Field(serialization_alias="median")

    @property
    def is_resolved(self) -> bool:
        """Whether the complete interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def text(self) -> str:
        """Median and limits, all in the unit of the median: `5.3 µs [4.0, 6.6]`."""
        size, unit = _unit(self.value)
        if self.low is None or self.high is None:
            return f"{_three_digits(self.value / size)} {unit}"
        return f"{_three_digits(self.value / size)} {unit} [{_three_digits(self.low / size)}, {_three_digits(self.high / size)}]"


def format_time(ns: float) -> str:
    """Format a time: `26.3 µs`."""
    size, unit = _unit(ns)
    return f"{_three_digits(ns / size)} {unit}"


def _unit(ns: float) -> tuple[float, str]:
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if abs(ns) >= size), (1.0, "ns"))


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Unseen(_Value):
    what: str
    why: str
    how: str
    """How to make it visible; empty if nothing does."""


class SocketFile(_Value):
    """The file of a Unix socket, as it is now."""

    mode: int
    owner: str
    group: str
    who: str
    """Accounts that may connect, in words."""


class Listener(_Value):
    """One address on which a server listens."""

    path: str | None
    host: str | None
    port: int | None
    tls: Tls
    file: SocketFile | None
    """The file of a socket; None if it does not exist or may not be seen."""
    state: ListenerState

    @property
    def where(self) -> str:
        return self.path if self.path is not None else format_host_port(self.host, self.port)


class Client(_Value):
    """All connections of one program and account to the server; of an account or address where the program cannot be seen."""

    program: str
    """The process's name in the kernel, with an interpreter's script; or UNSEEN, or NOT_CAUGHT."""
    pids: tuple[int, ...]
    user: str | None
    local: bool
    """Whether it is on this machine."""
    address: str | None
    """Its address if it is on another machine."""
    by: Literal["tcp", "socket"]
    connections: int
    """Maximum number at one time."""
    connects_seen: int
    """Number of different connections seen; short ones between two samples are missed."""
    tls: bool | None
    compressed: bool | None
    may_use_socket: bool | None
    """None if there is no socket, or the process is unknown."""
    root: str | None = None
    """Its root directory: `/`, its chroot, or ANOTHER_ROOT; None if unknown."""
    bundle_looks: int
    """Number of samples in which it was reading the system's CA bundle, for all its processes together."""
    bundle_reads: int
    """Number of samples in which it began to read the bundle."""
    bundle_connects: int
    """Number of new connections within two samples of a sample with the bundle open."""

    @property
    def description(self) -> str:
        """Program, account and PIDs: `php-fpm8.2 (www-data, pid 812, 815)`."""
        pids = ", ".join(map(str, self.pids[:4])) + (", …" if len(self.pids) > 4 else "")
        owner = [self.user or self.address or "", f"pid {pids}" if self.pids else ""]
        hidden = {
            UNSEEN: "a process that cannot be identified",
            NOT_CAUGHT: "connections that ended before they were identified",
        }
        known = ", ".join(part for part in owner if part)
        return hidden.get(self.program, self.program) + (f" ({known})" if known else "")


class MinimumLatency(_Value):
    """What a round trip and a connect cost on one transport when the server has nothing to do."""

    transport: Transport
    where: str
    pings_per_round: int
    round_trip_ns: Median
    connect_ns: Median | None
    """Time from connect() to a session that is logged in, with howfar's own client; None if no login succeeded."""
    round_trips_ns: tuple[float, ...]
    """The median of each round. Rounds of all transports are interleaved, so that they can be compared in pairs."""
    connects_ns: tuple[float, ...]


class Rates(_Value):
    """Per second while connections were watched, without the doctor's own requests."""

    connects: float
    statements: float
    """Transactions, for PostgreSQL."""
    tls_connects: float | None
    working: float | None = None
    """Average number of sessions that ran a statement; PostgreSQL only, like `waiting`."""
    waiting: float | None = None
    """Average number of sessions that waited for their client inside a transaction."""


class Change(_Value):
    """Lines to write, and where."""

    where: str
    lines: tuple[str, ...]
    restarts: bool
    """Whether the server must be restarted."""


class Gain(_Value):
    text: str = Field(alias="says")
    basis: str
    saves_ns: Median | None
    """None if it was not measured."""
    per: Literal["round trip", "connect", "reading"] | None = None
    """What `saves_ns` is saved by; None without it."""

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        assert self.saves_ns is None or self.per is not None, "a saving has a unit"
        return self


class Finding(_Value):
    check: str
    severity: Severity
    text: str = Field(alias="says")
    changes: tuple[Change, ...]
    gain: Gain | None


@dataclass(frozen=True)
class Draft:
    """A finding without the name of its check."""

    text: str
    changes: tuple[Change, ...] = ()
    gain: Gain | None = None
    severity: Severity = Severity.CHANGE

    def to_finding(self, name: str) -> Finding:
        return Finding(check=name, severity=self.severity, text=self.text, changes=self.changes, gain=self.gain)


class IdleCost(_Value):
    """What the waking of idle CPUs costs a round trip to this server, after a pause of a millisecond."""

    transport: Transport
    as_found: Median
    """A round trip with the machine as it is, in ns."""
    polling: Median
    """A round trip with idle CPUs kept polling, in rounds that alternate with the others."""
    waking: Median
    """The difference of the two, by pairs of rounds."""
    driver: str | None
    governor: str | None


class Cluster(_Value):
    """Galera or Group Replication, as one of its nodes describes it."""

    product: str
    nodes: int
    """Number of nodes that this node sees."""
    settings: dict[str, str]
    """The settings that findings are about."""
    counted: dict[str, float]
    """Counters since the node started."""


class Server(_Value):
    kind: Kind
    name: str
    """Product and version, such as `MariaDB 10.11.19`."""
    pid: int | None
    user: str | None
    named: bool
    """Whether the user named it by a DSN; otherwise it was found."""
    logged_in: bool
    listeners: tuple[Listener, ...]
    listeners_complete: bool
    """Whether it has certainly no other listeners: the sockets of its process are known, or its settings configure no socket."""
    tls: str
    compression: str
    config_file: str | None
    socket_connections: int | None
    rates: Rates | None
    sessions: int | None = None
    """Number of PostgreSQL's sessions, including idle ones, if the login may see them."""
    idle_sessions: int | None = None
    cluster: Cluster | None = None
    """None if it is in no cluster, or its settings could not be read."""
    clients: tuple[Client, ...]
    floors: tuple[MinimumLatency, ...]
    idle: IdleCost | None
    """None if it was not measured (`unseen` has the reason), or the server is on another machine."""
    bundle_ns: Median | None
    """CPU time to read this machine's CA bundle, if a client reads it."""
    ignored: tuple[str, ...]
    """Names of options on its command line that it ignores."""
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]

    @property
    def sockets(self) -> tuple[Listener, ...]:
        return tuple(listener for listener in self.listeners if listener.path is not None)

    def socket(self) -> Listener | None:
        """The first socket that works, or None."""
        return next((listener for listener in self.sockets if listener.state == "works"), None)

    def minimum_latency(self, *transports: Transport) -> MinimumLatency | None:
        """Return the latency of the first of these transports that was measured, or None."""
        by_transport = {latency.transport: latency for latency in self.floors}
        return next((by_transport[name] for name in transports if name in by_transport), None)


class Examination(_Value):
    """The result of one `howfar doctor`."""

    format: int
    howfar_version: str
    unix_ns: int
    watched_s: float
    samples: int = Field(alias="looks")
    load_average: float
    cpus: int
    machine: QuietCheck | None = None
    """Whether this machine is quiet enough to measure; None in older output."""
    pure_floors: tuple[MinimumLatency, ...]
    """Latencies of a socket and of TCP between two processes of howfar, for servers that accept no login."""
    servers: tuple[Server, ...]
    unseen: tuple[Unseen, ...]
    question: str = ""
    answer: str = ""
    """The answer to the question, in one sentence."""

    @property
    def to_change(self) -> int:
        return sum(finding.severity is Severity.CHANGE for server in self.servers for finding in server.findings)


def schema_text() -> str:
    """The JSON schema of the output of `howfar doctor --json`, as the text of its file."""
    output_type: TypeAdapter[object] = TypeAdapter(Examination | FailedCommand)
    schema = output_type.json_schema(mode="serialization")
    schema |= {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "howfar, an examination by the doctor",
    }
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "schema/doctor.json").write_text(schema_text(), encoding="utf-8")
