"""The load job: which server, through which session, what each connection runs, and when.

Not here: what comes back (`load_events.py`). `crates/record` mirrors these types; `messages.py` gathers the whole contract.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from howfar.engine.key_value import KeyValue
from howfar.engine.message import LONGEST_NS, PROTOCOL_VERSION, Message
from howfar.engine.workloads import Custom, Sysbench, is_keyed

# ---------------------------------------------------------------- where


class UnixTarget(Message):
    """A server, or the near end of a forwarder, on a Unix socket."""

    kind: Literal["unix"] = "unix"
    path: str


class TcpTarget(Message):
    """A server by numeric address; names are resolved before a job is made."""

    kind: Literal["tcp"] = "tcp"
    host: str
    port: int = Field(ge=1, le=65535)


Target = Annotated[UnixTarget | TcpTarget, Field(discriminator="kind")]

# ---------------------------------------------------------------- through which session


class Tls(Message):
    """Encryption that must be had: a server that cannot is refused, never spoken to in plain."""

    versions: Literal["any", "1.2", "1.3"] = "any"
    verify: Literal["none", "ca", "full"] = "none"
    """`ca`: signed by an authority of `ca_file`; `full`: and made out to `server_name`."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    cipher: str | None = None
    """A cipher suite by its IANA or OpenSSL name; None: what both sides prefer."""
    resumption: bool = True
    """Later connections may resume the session of an earlier one."""
    server_name: str | None = None
    """The name or address that the certificate must carry under `full`."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.verify != "none" and self.ca_file is None:
            raise ValueError("verify needs ca_file")
        if self.verify == "full" and self.server_name is None:
            raise ValueError("verify=full needs server_name")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file come together")
        return self


class Compression(Message):
    """Protocol compression that must be had. `level` None: zlib 6, zstd 3."""

    algorithm: Literal["zlib", "zstd"] = "zlib"
    level: int | None = Field(default=None, ge=1, le=22)


class Session(Message):
    """How each connection talks to the server."""

    tls: Tls | None = None
    compression: Compression | None = None
    server_key_file: str | None = None
    """PEM of the server's RSA key, for a full caching_sha2_password login over plain TCP."""
    fetch_server_key: bool = True
    """Without that file, ask the server for its key."""
    multi_statements: bool = True
    """Ask for CLIENT_MULTI_STATEMENTS, as sysbench does."""
    connect: Literal["persistent", "per_transaction"] = "persistent"
    reconnect_after: int = Field(default=0, ge=0)
    """Transactions after which a connection is closed and opened anew, outside every latency; 0: never."""
    on_disconnect: Literal["stop", "reconnect", "end"] = "stop"
    """A connection lost under load fails the job (`stop`), is opened again until `connect_timeout_ns` has passed (`reconnect`), or
    ends the measured window there, which is told with its reason (`end`, for a stalled one too; in the warm-up the job fails)."""


# ---------------------------------------------------------------- when


class Arrivals(Message):
    """Open loop: request i of all connections is due at a time that only the rate, the shape and the seed decide."""

    rate_per_s: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    """Transactions a second, over the whole job."""
    shape: Literal["constant", "poisson", "bursts"] = "poisson"
    burst: int = Field(default=10, ge=1, le=1_000_000)
    """Requests due at one moment under `bursts`; the moments are evenly spaced."""


# ---------------------------------------------------------------- the job

Workload = Annotated[Sysbench | Custom | KeyValue, Field(discriminator="kind")]


def must_fit(workload: Workload, session: Session, user: str, password: str, database: str) -> None:
    """What a session with a key-value store cannot have."""
    if not isinstance(workload, KeyValue):
        return
    if session.compression is not None:
        raise ValueError("neither Redis nor Memcached compresses its protocol")
    if not workload.is_redis and (user or password or database):
        raise ValueError("Memcached's text protocols know no user, password or database")
    if user and not password:
        raise ValueError("a user of Redis needs a password")
    if database and not (database.isascii() and database.isdigit() and len(database) <= 9):
        raise ValueError("a database of Redis is a number, or empty")


class Observed(Message):
    """A process whose CPU time (with all its descendants) is read at both ends of the measured window."""

    role: str
    pid: int = Field(ge=1)


class LoadJob(Message):
    """Closed loop without `arrivals`: each connection sends its next transaction when the last one is answered."""

    job: Literal["load"] = "load"
    version: Literal[2] = PROTOCOL_VERSION
    target: Target
    user: str
    """Of Redis: empty for the default user. Of Memcached: empty, as password and database."""
    password: str = Field(default="", repr=False)
    database: str
    """Of Redis: its number, or empty."""
    session: Session = Session()
    workload: Workload
    connections: int = Field(ge=1, le=65_536)
    idle_connections: int = Field(default=0, ge=0, le=65_536)
    """Further connections that are opened, logged in and never used."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """At most so many threads of the engine; None: one a CPU."""
    driver: Literal["auto", "epoll", "io_uring"] = "auto"
    """Who serves the sockets; `auto`: io_uring where the kernel has it and a thread has connections enough, else epoll."""
    arrivals: Arrivals | None = None
    ramp_ns: int = Field(default=0, ge=0, le=LONGEST_NS)
    """Closed loop: connections begin evenly over this time. Open loop: the rate grows from 0 linearly. Part of the warm-up."""
    seed: int = Field(ge=0, lt=2**63)
    warmup_ns: int = Field(ge=0, le=LONGEST_NS)
    measure_ns: int = Field(gt=0, le=LONGEST_NS)
    transactions: int = Field(default=0, ge=0)
    """End when so many transactions have begun and all are answered (sysbench's `--events`), or when time is up; 0: no limit."""
    interval_ns: int = Field(default=1_000_000_000, gt=0)
    client_work: Literal["skip", "touch", "decode"] = "touch"
    breakdown: bool = False
    """Record the stages of each query; costs up to two more readings of the clock a query."""
    ignore_errors: tuple[int, ...] | Literal["all"] = (1213, 1020, 1205)
    """Server errors after which a transaction begins anew, with other values, inside its latency. Any other ends the job."""
    observe: tuple[Observed, ...] = ()
    acknowledged: str | None = Field(default=None, min_length=1)
    """A new file: the log of the keys that transactions wrote and what became of each (`acknowledged.py` reads it). The workload must
    give each transaction one key: a single `sequence` parameter, drawn at most once a transaction, or oltp_insert without auto_inc."""
    connect_timeout_ns: int = Field(default=10_000_000_000, gt=0, le=LONGEST_NS)
    stall_timeout_ns: int = Field(default=30_000_000_000, gt=0, le=LONGEST_NS)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ramp_ns > self.warmup_ns:
            raise ValueError("ramp_ns is part of the warm-up and cannot be longer")
        must_fit(self.workload, self.session, self.user, self.password, self.database)
        if self.acknowledged is not None and (isinstance(self.workload, KeyValue) or not is_keyed(self.workload)):
            raise ValueError("a log of acknowledged keys needs a workload that gives each transaction one key")
        return self


class TablesJob(Message):
    """Make, warm or drop a workload's tables: sysbench's `prepare`, `warmup` (`prewarm`) and `cleanup`.

    Of a workload of keys: set, read or delete all of them.
    """

    job: Literal["tables"] = "tables"
    version: Literal[2] = PROTOCOL_VERSION
    action: Literal["prepare", "warmup", "cleanup"]
    target: Target
    user: str
    password: str = Field(default="", repr=False)
    database: str
    session: Session = Session()
    workload: Workload
    connections: int = Field(default=1, ge=1, le=1024)
    """Tables are dealt to so many connections."""
    seed: int = Field(ge=0, lt=2**63)
    connect_timeout_ns: int = Field(default=10_000_000_000, gt=0, le=LONGEST_NS)
    stall_timeout_ns: int = Field(default=600_000_000_000, gt=0, le=LONGEST_NS)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        must_fit(self.workload, self.session, self.user, self.password, self.database)
        return self


class WatchJob(Message):
    """Poll for the next keys of each connection of a load job, on a connection of its own, and log when each is first seen.

    Ends after `watch_ns`, with its stdin, or when the server does. The load's keys are from one `sequence`.
    """

    job: Literal["watch"] = "watch"
    version: Literal[2] = PROTOCOL_VERSION
    target: Target
    user: str
    password: str = Field(default="", repr=False)
    database: str
    session: Session = Session()
    table: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    column: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    first: int = Field(default=1, ge=0, lt=2**62)
    """Of the load's sequence; `step` and `connections` too."""
    step: int = Field(default=1, ge=1, lt=2**31)
    connections: int = Field(ge=1, le=4096)
    seen: str = Field(min_length=1)
    """A new file: a log as that of `acknowledged`, of the fate *seen*; sent and ended are those of the poll that saw the key."""
    pause_ns: int = Field(default=0, ge=0, le=LONGEST_NS)
    """Between two polls."""
    watch_ns: int = Field(gt=0, le=LONGEST_NS)
    connect_timeout_ns: int = Field(default=10_000_000_000, gt=0, le=LONGEST_NS)
    stall_timeout_ns: int = Field(default=30_000_000_000, gt=0, le=LONGEST_NS)
