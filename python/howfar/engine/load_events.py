"""What a load job or a page job tells: the receipt, the window as it passes, the result. `crates/record` mirrors these types."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from howfar.engine.message import Message


class Receipt(Message):
    """What the first connection really is. `None` means: cannot be asked on this transport, or off; never "as asked"."""

    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    peer_address: str
    """Socket path, or `host:port`."""
    peer_pid: int | None
    """SO_PEERCRED, Unix sockets only."""
    server_version: str
    server_connection_id: int | None
    """None: Memcached, which does not number them, and FastCGI."""
    auth_plugin: str
    """Of Redis and Memcached: `password` or `none`. Of FastCGI: `none`."""
    protocol_mode: Literal["prepared", "text", "multi", "resp2", "resp3", "memcached_text", "memcached_meta", "fastcgi"]
    tls_version: str | None
    """From the server's session status Ssl_version; None: plain, or a key-value store, which does not tell."""
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
    """Round trips from `connect` to the last prepared statement, of the second connection if there is one: TCP 1, greeting 1, login 1
    and what its way adds, TLS 1 or 2, prepares 1 for 64. None: an engine of before."""
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


class Ready(Message):
    """All connections are open and all statements prepared."""

    event: Literal["ready"] = "ready"
    receipt: Receipt
    connections: int
    prepared_statements: int
    connect_ns: int
    """From the first connect() to the last statement prepared."""
    services: dict[str, Receipt] = Field(default={})
    """Of a page job that runs a script: each service's receipt by its name; `receipt` is then the first one's."""


class Measuring(Message):
    """The measured window begins; what came before was warm-up."""

    event: Literal["measuring"] = "measuring"
    unix_time_ns: int
    warmup_transactions: int


class Classes(Message):
    """Statements by what came back, as sysbench sorts them: rows: read; rows affected: write; neither: other."""

    read: int
    write: int
    other: int


class Interval(Message):
    """One slice of the measured window; a time series for eyes and steadiness, never a sample for statistics."""

    event: Literal["interval"] = "interval"
    start_ns: int
    """From the start of the measured window."""
    length_ns: int
    transactions: int
    queries: int
    classes: Classes
    errors: int
    reconnects: int
    backlog: int
    """Open loop: requests due and not begun at the end of the slice; closed loop: 0."""
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int


class Bytes(Message):
    """Protocol bytes before compression and encryption."""

    to_server: int
    to_client: int


class Lookups(Message):
    """Keys that were read by commands answered well."""

    hits: int
    misses: int


class ServiceUse(Message):
    """What the pages of the measured window did with one service."""

    service: Literal["mysql", "redis", "memcached"]
    connects: int
    """Connections opened within pages."""
    requests: int
    """Statements, or commands on keys."""
    turns: int
    """Requests that were waited for one by one; handshakes are not among them."""
    bytes: Bytes
    """Of these requests and their answers; handshakes are not among them."""
    hits: int
    misses: int
    """Keys that were read, by whether they had a value."""


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
    """`data` is an HDR V2 deflate histogram in base64, unit 1 ns."""

    kind: str
    """`transaction`: closed loop: from its first byte sent; open loop: from the moment it was due (response time), with the ages of
    the unanswered in it. `service`: open loop, from the first byte sent. `unanswered`: those ages alone. `in_flight`: ages, from the
    first byte sent, of transactions under way at the end of the window; in a closed loop in no other histogram. `lateness`: open loop,
    from the moment when a request was due and a connection free, to its first byte. `connect`: opening a connection under load.
    `statement.NAME`, `command.NAME`: from the first byte sent to the last byte parsed; commands that were answered well, and more
    than one at once as `command.pipeline`. `stage.wait`, `stage.transfer`, `stage.parse`: of a statement, sent to first byte, to last
    byte, to parsed. Names of sysbench's statements stand without `statement.`: `point_select`, `simple_range`, … as in `Sysbench`.

    Of a page job: `transaction` is a page. `turn.SERVICE`: from the first byte sent to the last byte read; `connect.SERVICE`: from
    connect() to a session that can be asked; `cpu`: all CPU time of the worker's
    thread for a page, its computing and its turns; `told.NAME`: what a FastCGI application's pages
    told of themselves, for each name that ends in `_ns`; `connect.application`: connecting to it, and `queue.application`: of that, a
    wait for room in its full queue of new connections."""
    count: int
    min_ns: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int
    data: str


class TcpFacts(Message):
    """TCP_INFO of the connections at the end of the window; None where the kernel does not tell."""

    connections: int
    rtt_p50_ns: int
    rtt_max_ns: int
    min_rtt_ns: int | None
    retransmits: int
    """Segments, since each connection began."""
    busy_ns: int | None
    """Time with data in flight or to send, summed over connections; the next two are parts of it."""
    rwnd_limited_ns: int | None
    sndbuf_limited_ns: int | None


class Fairness(Message):
    """Over the connections: transactions that each finished, and the time that each spent in them."""

    transactions_mean: float
    transactions_stddev: float
    busy_mean_ns: float
    busy_stddev_ns: float


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


class Failed(Message):
    """The job ended without a result."""

    event: Literal["failed"] = "failed"
    code: Literal[
        "bad_job",
        "connect",
        "auth",
        "tls",
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


class Finished(Message):
    """The measured window. Closed loop: transactions that ended in it. Open loop: those due in it and answered before its end."""

    event: Literal["finished"] = "finished"
    elapsed_ns: int
    transactions: int
    queries: int
    turns: int
    """Changes of direction client -> server -> client: what a round trip time multiplies."""
    rows: int
    classes: Classes
    bytes: Bytes
    lookups: Lookups | None = None
    """Of a workload of keys."""
    errors: dict[str, int]
    """Ignored server errors by code; of a workload of keys by their first word, those that are not well known under `OTHER`;
    `disconnect`: connections lost and opened again."""
    reconnects: int
    open_loop: Account | None
    fairness: Fairness
    tcp: TcpFacts | None
    cpu: tuple[CpuUse, ...]
    """Role `client` is the engine itself; then one for each observed role, pids of a role summed."""
    peak_memory_bytes: int
    """VmHWM of the engine."""
    histograms: tuple[Histogram, ...]
    interrupted: Failed | None = None
    """Why the window ended early; only under `on_disconnect: end`."""
    services: tuple[ServiceUse, ...] = ()
    """Of a page job that runs a script: each service of it. Transactions are then pages, queries requests, and those and turns and
    bytes are sums over the services. Where an application is asked, a page is a request and a turn to it, and bytes are FastCGI's."""
    told: dict[str, int] = Field(default={})
    """Of a page job that asks an application over FastCGI: what its pages told of themselves, summed over the window's good pages."""


class AcknowledgementLog(Message):
    """The log of acknowledged keys is closed and complete; comes before the job's last event, also before `failed`."""

    event: Literal["acknowledgement_log"] = "acknowledgement_log"
    path: str
    records: int
    """One for each transaction that drew a key, of the warm-up and after the window too; each is one of these:"""
    acknowledged: int
    """Its last statement was answered well."""
    refused: int
    """The server answered one of its statements with an error."""
    unknown: int
    """No answer came before its connection or the job ended: it may be on the server or not."""


class Watching(Message):
    """A watch job has asked once, found its table, and goes on."""

    event: Literal["watching"] = "watching"


class Watched(Message):
    """A watch job is done, and its log closed."""

    event: Literal["watched"] = "watched"
    path: str
    keys: int
    polls: int
    longest_poll_ns: int
    """A key is visible at some moment between the one before the poll that saw it was answered and that one's answer."""
    elapsed_ns: int
    interrupted: Failed | None
    """The server's end, if that ended it."""


class TablesProgress(Message):
    """A tables job goes on: `done` of `total` rows at sysbench's prepare, else tables, or statements of a custom list."""

    event: Literal["tables_progress"] = "tables_progress"
    done: int
    total: int
    doing: str


class TablesDone(Message):
    event: Literal["tables_done"] = "tables_done"
    rows: int
    elapsed_ns: int


LoadEvent = Annotated[
    Ready | Measuring | Interval | AcknowledgementLog | Finished | Failed, Field(discriminator="event")
]
