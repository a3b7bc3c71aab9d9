"""The messages that receipts hold: a part of `messages.py`. Generated from `schema/contract.json` by `generate.py`: do not edit."""

# ruff: noqa: E402, I001, RUF100
from typing import Literal

from pydantic import Field

from howfar.contract.message import Count, Message


class Receipt(Message):
    """What the first connection really is. `None` means: cannot be asked on this transport, or off; never "as asked"."""

    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    peer_address: str
    """Socket path, or `host:port`."""
    server_address: str | None = None
    """PostgreSQL's `inet_server_addr()` and port: where its own end of the connection is; None: on a Unix socket, or not asked."""
    peer_pid: int | None
    """`SO_PEERCRED`, Unix sockets only."""
    server_version: str
    server_connection_id: int | None
    """None: Memcached, which does not number them, and FastCGI."""
    auth_plugin: str
    """MySQL's plugin. PostgreSQL: `scram-sha-256`, `md5`, `password`, `none`. Redis and Memcached: `password`, `none`. FastCGI:
    `none`."""
    protocol_mode: Literal[
        "prepared", "text", "multi", "extended", "resp2", "resp3", "memcached_text", "memcached_meta", "fastcgi"
    ]
    tls_version: str | None
    """From the server's session status `Ssl_version` or its `pg_stat_ssl`; None: plain, or a key-value store, which does not tell."""
    tls_cipher: str | None
    tls_client_version: str | None = None
    """As our side negotiated it; not the server's where something between ends the encryption."""
    tls_client_cipher: str | None = None
    tls_group: str | None
    """Key exchange group, as our side negotiated it."""
    tls_retried: bool | None = None
    """The server did not take the first key share offered: the handshake took a round trip more."""
    tls_resumed: bool | None
    """Whether the second connection resumed the session of the first; None: no TLS, or a single connection that stays."""
    connect_turns: int | None = None
    """Round trips from `connect` to the last prepared statement, of the second connection if there is one: TCP 1, greeting 1, login
    1 and what its way adds, TLS 1 or 2, prepares 1 for 64. None: an engine of before."""
    compression: str | None
    """Algorithm in force: the server's session status where it tells (MySQL), zlib where it says only ON; None: off."""
    compression_level: int | None
    """As the server reports it; None where it does not."""
    tcp_mss: int | None
    tcp_nodelay: bool | None
    congestion_control: str | None
    driver: Literal["epoll", "io_uring", "threads"]
    """Who served the sockets; `threads`: each of its own, blocking, as a page job's."""
    client_threads: int
    client_cpus: tuple[int, ...]


class Drops(Message):
    """Segments not delivered, by cause. `queue`, `loss` and `outage` are what was asked; any other voids a trial."""

    queue: int
    loss: int
    outage: int
    arena: int
    socket: int | None
    """What the emulator never saw, because a buffer of the kernel's had no room. Packets, each a segment or a super-packet of many:
    the kernel tells no more. None: it did not tell at all."""
    transmit: int


class DirectionStats(Message):
    """Since the link began or since the last reset."""

    packets: int
    segments: int
    wire_bytes: int
    """Bytes on the emulated wire: each segment with its Ethernet framing (preamble, FCS, gap: 38 bytes)."""
    admitted: int
    """Segments that came while the line was up and the queue had room: `loss` is a share of these. Both are counted when they come."""
    drops: Drops
    duplicated: int
    corrupted: int
    reordered: int
    """Segments that left after one that had come later."""
    queue_bytes_max: int
    queue_bytes_lately: int | None = None
    """The most since the counters were last asked for, also without a reset. None: an engine of before."""
    lateness_mean_ns: int | None = None
    """Below 0: early. None: nothing left, or an engine of before."""
    lateness_p50_ns: int
    """How late packets left; 0 for those that left early."""
    lateness_p99_ns: int
    lateness_p999_ns: int
    lateness_max_ns: int
    cpu_ns: int


class Account(Message):
    """Open loop: every request due in the window is in exactly one of the last three."""

    due: int
    answered: int
    """Answered before the window's end."""
    unanswered: int
    """Begun or not, without an answer at the end of the window."""
    failed: int
    """Lost with a connection, or given up."""
    backlog_max: int


class Bytes(Message):
    """Protocol bytes before compression and encryption."""

    to_server: Count
    to_client: Count


class CpuUse(Message):
    """On-CPU time over the measured window, from /proc/PID/task/*/schedstat."""

    role: str
    cpu_ns: Count
    runnable_wait_ns: Count
    busiest_thread_ns: Count
    threads: Count
    voluntary_switches: Count
    involuntary_switches: Count


class Histogram(Message):
    """`data` is an HDR V2 deflate histogram in base64, unit 1 ns."""

    kind: str
    """`transaction`: closed loop: from its first byte sent; open loop: from the moment it was due (response time), with the ages of
    the unanswered in it. `service`: open loop, from the first byte sent. `unanswered`: those ages alone. `in_flight`: ages, from
    the first byte sent, of transactions under way at the end of the window; in a closed loop in no other histogram. `lateness`:
    open loop, from the moment when a request was due and a connection free, to its first byte. `connect`: opening a connection
    under load. `statement.NAME`, `command.NAME`: from the first byte sent to the last byte parsed; commands that were answered
    well, and more than one at once as `command.pipeline`. `stage.wait`, `stage.transfer`, `stage.parse`: of a statement, sent to
    first byte, to last byte, to parsed. Names of sysbench's statements stand without `statement.`: `point_select`,
    `simple_range`, … as in `Sysbench`.

    In a page job `transaction` is a page. `turn.SERVICE`: from the first byte sent to the last byte read; `connect.SERVICE`: from
    `connect()` to a session that can be asked; `cpu`: all CPU time of the worker's thread for a page, its computing and its
    turns; `told.NAME`: what a FastCGI application's pages reported, for each name that ends in `_ns`; `connect.application`:
    connecting to it, and `queue.application`: of that, a wait for room in its full queue of new connections.
    """
    count: Count
    min_ns: Count
    mean_ns: float = Field(ge=0.0)
    p50_ns: Count
    p95_ns: Count
    p99_ns: Count
    max_ns: Count
    data: str


ServiceName = Literal["mysql", "postgresql", "redis", "memcached"]


class ServiceUse(Message):
    """What the pages of the measured window did with one service."""

    service: ServiceName
    connects: Count | None
    """Connections opened within pages. None: a load of keys, for which they are not counted."""
    requests: Count
    """Statements, or commands on keys."""
    turns: Count
    """Requests that were waited for one by one; handshakes are not among them."""
    bytes: Bytes
    """Bytes of these requests and their answers; handshakes are not among them."""
    hits: Count
    misses: Count
    """Keys that were read, by whether they had a value."""


class WindowFigures(Message):
    """The fields of `Finished` that a run file keeps."""

    elapsed_ns: Count = Field(ge=1)
    transactions: Count
    queries: Count
    turns: Count
    """Changes of direction client -> server -> client: what a round trip time multiplies."""
    rows: Count
    bytes: Bytes
    errors: dict[str, Count]
    """Ignored server errors by code; of a workload of keys by their first word, those that are not well known under `OTHER`;
    `disconnect`: connections lost."""
    cpu: tuple[CpuUse, ...]
    """Role `client` is the engine itself; then one for each observed role, pids of a role summed."""
    histograms: tuple[Histogram, ...]
    services: tuple[ServiceUse, ...] = ()
    """Services of a page script. Transactions are then pages, queries requests, and those and turns and bytes are sums over the
    services. Where an application is asked, a page is a request and a turn to it, and bytes are FastCGI's."""
    told: dict[str, Count] = Field(default={})
    """What the pages of a FastCGI application reported, summed over the window's good pages."""


class IntervalFigures(Message):
    """The fields of `Interval` that a run file keeps."""

    start_ns: Count
    """From the start of the measured window."""
    length_ns: Count
    transactions: Count
    queries: Count
    errors: Count
    p50_ns: Count
    p95_ns: Count
    p99_ns: Count
    max_ns: Count
