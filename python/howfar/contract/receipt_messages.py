"""The messages that receipts hold: a part of `messages.py`. Generated from `schema/contract.json` by `generate.py`: do not edit."""

# ruff: noqa: E402, I001, RUF100
from typing import Literal

from pydantic import AliasChoices, Field

from howfar.contract.message import Count, Message


class Receipt(Message):
    """Properties of the first connection, as observed after it was opened. `None` means that a property is unknown or does not
    apply; a requested value is never reported as an observed one."""

    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    peer_address: str
    """Path of the Unix socket, or `host:port`."""
    server_address: str | None = None
    """Address and port of the server's end of the connection, from PostgreSQL's `inet_server_addr()` and `inet_server_port()`. None:
    a Unix socket, another protocol, or not queried."""
    peer_pid: int | None
    """Process ID of the server, from `SO_PEERCRED`. None: not a Unix socket."""
    server_version: str
    server_connection_id: int | None
    """Connection ID that the server has assigned. None: Memcached or FastCGI, which assign none."""
    auth_plugin: str
    """Authentication method. MySQL: name of the plugin. PostgreSQL: `scram-sha-256`, `md5`, `password` or `none`. Redis and
    Memcached: `password` or `none`. FastCGI: `none`."""
    protocol_mode: Literal[
        "prepared", "text", "multi", "extended", "resp2", "resp3", "memcached_text", "memcached_meta", "fastcgi"
    ]
    tls_version: str | None
    """TLS version that the server reports, from MySQL's session status `Ssl_version` or PostgreSQL's `pg_stat_ssl`. None: no TLS, or
    a key-value store, which does not report the version."""
    tls_cipher: str | None
    tls_client_version: str | None = None
    """TLS version that the client has negotiated. It can differ from the server's if a proxy terminates TLS."""
    tls_client_cipher: str | None = None
    tls_group: str | None
    """Key exchange group that the client has negotiated."""
    tls_retried: bool | None = None
    """Whether the server sent a `HelloRetryRequest` because it rejected the first key share. The handshake then needs one more round
    trip."""
    tls_resumed: bool | None
    """Whether the second connection resumed the TLS session of the first. None: no TLS, or only one persistent connection."""
    connect_turns: int | None = None
    """Round trips of opening a connection, from `connect()` to the last prepared statement: TCP handshake 1, greeting 1, TLS
    handshake 1 or 2, login 1 plus those of the authentication method, and 1 for each 64 prepared statements. Describes the second
    connection if there is one. None: the run file is from a version that did not record it."""
    compression: str | None
    """Compression algorithm in use, from MySQL's session status; `zlib` if the server only reports ON. None: no compression."""
    compression_level: int | None
    """Compression level that the server reports. None: not reported."""
    tcp_mss: int | None
    tcp_nodelay: bool | None
    congestion_control: str | None
    driver: Literal["epoll", "io_uring", "threads"]
    """System interface that served the sockets. `threads`: one thread with blocking calls for each connection, as in a page job."""
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
    """Requests of an open loop. Each request that was due in the window is counted in exactly one of `answered`, `unanswered` and
    `failed`."""

    due: int
    answered: int
    """Requests that were answered before the window ended."""
    unanswered: int
    """Requests that had no answer when the window ended, whether they had been sent or not."""
    failed: int
    """Requests that failed because their connection was lost, or that were abandoned."""
    backlog_max: int


class Bytes(Message):
    """Bytes of the protocol, before compression and encryption."""

    to_server: Count
    to_client: Count


class CpuUse(Message):
    """CPU time of a group of processes in the measured window, from `/proc/PID/task/*/schedstat`."""

    role: str
    cpu_ns: Count
    runnable_wait_ns: Count
    busiest_thread_ns: Count
    threads: Count
    voluntary_switches: Count
    involuntary_switches: Count


class Histogram(Message):
    """A latency histogram. `data` is an HDR histogram (V2, deflate) in base64 with a unit of 1 ns."""

    kind: str
    """Name of what was measured. `transaction`: in a closed loop, from the transaction's first byte sent to its last byte received;
    in an open loop, the response time, which starts when the transaction was due, and which includes the age of each unanswered
    transaction. `service`: service time in an open loop, from the first byte sent. `unanswered`: ages of unanswered transactions
    in an open loop. `in_flight`: ages, counted from the first byte sent, of transactions that were in progress at the end of the
    window; in a closed loop, no other histogram contains these. `lateness`: delay in an open loop between the moment when a
    request was due and a connection was free, and its first byte sent. `connect`: time of opening a connection under load.
    `statement.NAME` and `command.NAME`: from the first byte sent to the last byte parsed; of commands, only those that succeeded;
    a request of several commands is `command.pipeline`. `stage.wait`, `stage.transfer` and `stage.parse`: parts of a statement,
    which end with the first byte received, the last byte received, and the end of parsing. Statements of sysbench have no prefix:
    `point_select`, `simple_range` and so on, as in `Sysbench`.

    In a page job, `transaction` is a page. `turn.SERVICE`: a round trip, from the first byte sent to the last byte read.
    `connect.SERVICE`: from `connect()` until the session accepts requests. `cpu`: CPU time of the worker thread for a page.
    `told.NAME`: times that the pages of a FastCGI application reported, for each name that ends in `_ns`. `connect.application`:
    time to connect to the application. `queue.application`: the part of it spent waiting for room in the application's full
    accept queue.
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
    """Use of one service by the pages of the measured window."""

    service: ServiceName
    connects: Count | None
    """Connections that were opened during pages. None: a workload of keys, for which connections are not counted."""
    requests: Count
    """Number of statements, or of commands on keys."""
    round_trips: Count = Field(validation_alias=AliasChoices("round_trips", "turns"))
    """Round trips for requests, without those of handshakes."""
    bytes: Bytes
    """Bytes of the requests and their answers, without handshakes."""
    hits: Count
    """Keys that were read and existed."""
    misses: Count
    """Keys that were read and did not exist."""


class WindowFigures(Message):
    """The fields of `Finished` that a run file keeps."""

    elapsed_ns: Count = Field(ge=1)
    transactions: Count
    queries: Count
    round_trips: Count = Field(validation_alias=AliasChoices("round_trips", "turns"))
    """Round trips: changes of direction from client to server and back. Each costs one RTT."""
    rows: Count
    bytes: Bytes
    errors: dict[str, Count]
    """Number of ignored server errors by code. In a workload of keys, the code is the first word of the error, and uncommon words
    are counted as `OTHER`. `disconnect` counts lost connections."""
    cpu: tuple[CpuUse, ...]
    """CPU time by role. The first entry has the role `client` and describes the engine. One entry for each observed role follows,
    summed over the processes of that role."""
    histograms: tuple[Histogram, ...]
    services: tuple[ServiceUse, ...] = ()
    """Use of each service of a page script. `transactions` then counts pages and `queries` counts requests; requests, round trips
    and bytes are summed over the services. If an application serves the pages, each page is one request and one round trip, and
    the bytes are those of FastCGI."""
    app_counters: dict[str, Count] = Field(default={}, validation_alias=AliasChoices("app_counters", "told"))
    """Values that the pages of a FastCGI application reported, by name, summed over the successful pages of the window."""


class IntervalFigures(Message):
    """The fields of `Interval` that a run file keeps."""

    start_ns: Count
    """Start of the interval, counted from the start of the measured window."""
    length_ns: Count
    transactions: Count
    queries: Count
    errors: Count
    p50_ns: Count
    p95_ns: Count
    p99_ns: Count
    max_ns: Count
