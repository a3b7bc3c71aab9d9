"""The boundary between Python and Rust: one job as JSON on the engine's stdin, events as JSON lines on its stdout.

These types are the contract. `schema/` is generated from them; `crates/record` and `crates/link` mirror them and are tested
against the generated files. Times are integers of nanoseconds, sizes bytes, rates bits per second.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL_VERSION: Final = 1
"""Raised when a message changes its meaning; the engine refuses a job of another version."""


LONGEST_NS = 86_400_000_000_000
"""A day: no field names a longer time. What is longer is a mistake of a unit."""


class Message(BaseModel):
    """Frozen, and closed: an unknown field is a contract broken, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---------------------------------------------------------------- load job


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


class Distribution(Message):
    """How row ids are drawn from 1..table_size; the parameters carry sysbench's names and meaning."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: float = Field(default=0.2, gt=0, lt=1)
    spec_iter: int = Field(default=12, ge=1, le=10_000)
    spec_pct: int = Field(default=1, ge=1, le=100)
    spec_res: int = Field(default=75, ge=1, le=99)
    zipfian_exp: float = Field(default=0.8, ge=0)


class OltpReadOnly(Message):
    """sysbench's oltp_read_only with sysbench's option names and 1.0 defaults."""

    kind: Literal["oltp_read_only"] = "oltp_read_only"
    tables: int = Field(default=1, ge=1, le=2**20)
    table_size: int = Field(default=10_000, ge=1, lt=2**52)
    range_size: int = Field(default=100, ge=1, lt=2**52)
    point_selects: int = Field(default=10, ge=0)
    range_selects: bool = True
    simple_ranges: int = Field(default=1, ge=0)
    sum_ranges: int = Field(default=1, ge=0)
    order_ranges: int = Field(default=1, ge=0)
    distinct_ranges: int = Field(default=1, ge=0)
    skip_trx: bool = False
    db_ps_mode: Literal["auto", "disable"] = "auto"
    distribution: Distribution = Distribution()


class Observed(Message):
    """A process whose CPU time (with all its descendants) is read at both ends of the measured window."""

    role: str
    pid: int = Field(ge=1)


class LoadJob(Message):
    """Closed loop: each of `connections` sends its next transaction when the last one is answered."""

    job: Literal["load"] = "load"
    version: Literal[1] = PROTOCOL_VERSION
    target: Target
    user: str
    password: str = Field(default="", repr=False)
    database: str
    workload: OltpReadOnly
    connections: int = Field(ge=1, le=65_536)
    seed: int = Field(ge=0, lt=2**63)
    warmup_ns: int = Field(ge=0, le=LONGEST_NS)
    measure_ns: int = Field(gt=0, le=LONGEST_NS)
    interval_ns: int = Field(default=1_000_000_000, gt=0)
    client_work: Literal["skip", "touch", "decode"] = "touch"
    observe: tuple[Observed, ...] = ()
    connect_timeout_ns: int = Field(default=10_000_000_000, gt=0, le=LONGEST_NS)
    stall_timeout_ns: int = Field(default=30_000_000_000, gt=0, le=LONGEST_NS)


# ---------------------------------------------------------------- load events


class Receipt(Message):
    """What the first connection really is. `None` means: cannot be asked on this transport, never "no"."""

    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    peer_address: str
    """Socket path, or `host:port`."""
    peer_pid: int | None
    """SO_PEERCRED, Unix sockets only."""
    server_version: str
    server_connection_id: int
    auth_plugin: str
    protocol_mode: Literal["prepared", "text"]
    tls_version: str | None
    """From the server's session status Ssl_version; None: plain."""
    tls_cipher: str | None
    compression: str | None
    """From the server's session status Compression; None: off."""
    tcp_mss: int | None
    tcp_nodelay: bool | None
    congestion_control: str | None
    client_threads: int
    client_cpus: tuple[int, ...]


class Ready(Message):
    """All connections are open and all statements prepared."""

    event: Literal["ready"] = "ready"
    receipt: Receipt
    connections: int
    prepared_statements: int
    connect_ns: int
    """From the first connect() to the last statement prepared."""


class Measuring(Message):
    """The measured window begins; what came before was warm-up."""

    event: Literal["measuring"] = "measuring"
    unix_time_ns: int
    warmup_transactions: int


class Interval(Message):
    """One slice of the measured window; a time series for eyes and steadiness, never a sample for statistics."""

    event: Literal["interval"] = "interval"
    start_ns: int
    """From the start of the measured window."""
    length_ns: int
    transactions: int
    queries: int
    errors: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int


class Bytes(Message):
    """MySQL protocol bytes as written to and read from the socket."""

    to_server: int
    to_client: int


class CpuUse(Message):
    """On-CPU time over the measured window, from /proc/PID/task/*/schedstat."""

    role: str
    cpu_ns: int
    runnable_wait_ns: int
    busiest_thread_ns: int
    threads: int
    voluntary_switches: int
    involuntary_switches: int


class Histogram(Message):
    """Latency from the first byte sent to the last byte parsed; `data` is an HDR V2 deflate histogram in base64, unit 1 ns."""

    kind: str
    """`transaction`, or a statement kind: `point_select`, `simple_range`, `sum_range`, `order_range`, `distinct_range`,
    `begin`, `commit`."""
    count: int
    min_ns: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int
    data: str


class Finished(Message):
    """The measured window as a whole. Counts are of transactions that ended inside it, and of their queries, turns and bytes."""

    event: Literal["finished"] = "finished"
    elapsed_ns: int
    transactions: int
    queries: int
    turns: int
    """Changes of direction client -> server -> client: what a round trip time multiplies."""
    rows: int
    bytes: Bytes
    errors: dict[str, int]
    """Ignored server errors by code."""
    cpu: tuple[CpuUse, ...]
    """Role `client` is the engine itself; then one for each observed role, pids of a role summed."""
    histograms: tuple[Histogram, ...]


class Failed(Message):
    """The job ended without a result."""

    event: Literal["failed"] = "failed"
    code: Literal[
        "bad_job",
        "connect",
        "auth",
        "server_error",
        "protocol",
        "server_gone",
        "stalled",
        "not_permitted",
        "interface",
        "internal",
    ]
    message: str
    advice: str


LoadEvent = Annotated[Ready | Measuring | Interval | Finished | Failed, Field(discriminator="event")]


# ---------------------------------------------------------------- link job


class Direction(Message):
    """One way of a link. `delay_ns` is what the user asked (half the RTT); `compensate_ns` is taken off it by calibration."""

    rate_bps: int | None = Field(default=None, gt=0, le=1_000_000_000_000)
    """None: unshaped."""
    delay_ns: int = Field(ge=0, le=60_000_000_000)
    compensate_ns: int = 0
    queue_bytes: int = Field(gt=0, le=64 * 2**30)


class LinkJob(Message):
    """Join two packet interfaces of the present network namespace. Lives until stdin ends."""

    job: Literal["link"] = "link"
    version: Literal[1] = PROTOCOL_VERSION
    client_interface: str
    server_interface: str
    to_server: Direction
    to_client: Direction
    realtime: Literal["auto", "off"] = "auto"


class SetLink(Message):
    """A later line on the link's stdin: change parameters without losing a packet."""

    command: Literal["set"] = "set"
    to_server: Direction
    to_client: Direction


class AskStats(Message):
    """A later line on the link's stdin: answer with a `link_stats` event. `reset` starts the counters anew after it."""

    command: Literal["stats"] = "stats"
    reset: bool = False


class LinkReady(Message):
    """Packets pass from now on."""

    event: Literal["link_ready"] = "link_ready"
    realtime: bool
    offload: bool
    """virtio-net headers in force: super-packets are kept."""


class Drops(Message):
    """Packets not delivered, by cause. Only `queue` is a modelled drop; any other voids a trial."""

    queue: int
    arena: int
    socket: int
    transmit: int


class DirectionStats(Message):
    """Since the link began or since the last reset."""

    packets: int
    segments: int
    wire_bytes: int
    """Bytes on the emulated wire: each segment with its Ethernet framing (preamble, FCS, gap: 38 bytes)."""
    drops: Drops
    queue_bytes_max: int
    lateness_p50_ns: int
    lateness_p99_ns: int
    lateness_p999_ns: int
    lateness_max_ns: int
    cpu_ns: int


class LinkStats(Message):
    event: Literal["link_stats"] = "link_stats"
    to_server: DirectionStats
    to_client: DirectionStats


LinkEvent = Annotated[LinkReady | LinkStats | Failed, Field(discriminator="event")]


# ---------------------------------------------------------------- probes


class EchoJob(Message):
    """The far end of a probe: a TCP listener on `host`, port chosen by the kernel. Lives until stdin ends."""

    job: Literal["echo"] = "echo"
    version: Literal[1] = PROTOCOL_VERSION
    host: str


class Listening(Message):
    event: Literal["listening"] = "listening"
    port: int


class RttJob(Message):
    """Ping-pong of one byte over one TCP connection (NODELAY) to an echo; the link is otherwise at rest."""

    job: Literal["rtt"] = "rtt"
    version: Literal[1] = PROTOCOL_VERSION
    host: str
    port: int
    count: int = Field(ge=1)
    timeout_ns: int = Field(default=10_000_000_000, gt=0)


class RttResult(Message):
    event: Literal["rtt"] = "rtt"
    count: int
    min_ns: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class GoodputJob(Message):
    """Bulk transfer over one TCP connection; `to_client` makes the echo send."""

    job: Literal["goodput"] = "goodput"
    version: Literal[1] = PROTOCOL_VERSION
    host: str
    port: int
    direction: Literal["to_server", "to_client"]
    warmup_ns: int = Field(ge=0, le=LONGEST_NS)
    measure_ns: int = Field(gt=0, le=LONGEST_NS)


class GoodputResult(Message):
    event: Literal["goodput"] = "goodput"
    bytes: int
    elapsed_ns: int
    bits_per_second: float
    retransmits: int | None
    congestion_control: str
    mss: int


ProbeEvent = Annotated[Listening | RttResult | GoodputResult | Failed, Field(discriminator="event")]


# ---------------------------------------------------------------- info


class Info(Message):
    """`howfar-engine info`: the version handshake."""

    event: Literal["info"] = "info"
    version: str
    protocol: int
    debug: bool
    """Built without optimisation: results of such an engine are refused."""
