"""The messages between Python and the engine. Generated from `schema/contract.json` by `generate.py`: do not edit.

One job as JSON on the engine's stdin, events as JSON lines on its stdout. Times are integers of nanoseconds, sizes bytes, rates bits
per second.
"""

# ruff: noqa: E402, I001, RUF100
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from howfar.contract.message import Message
from howfar.contract.ping_messages import (
    AskInTurn as AskInTurn,
    Asked as Asked,
    Compression as Compression,
    Failed as Failed,
    FetchAnswer as FetchAnswer,
    Fetched as Fetched,
    Info as Info,
    Listen as Listen,
    NotOpened as NotOpened,
    NullJob as NullJob,
    NullReady as NullReady,
    OpenConnection as OpenConnection,
    Opened as Opened,
    PROTOCOL_VERSION as PROTOCOL_VERSION,
    PingJob as PingJob,
    PingRequest as PingRequest,
    Session as Session,
    Step as Step,
    Target as Target,
    TcpListen as TcpListen,
    TcpTarget as TcpTarget,
    Tls as Tls,
    UnixTarget as UnixTarget,
)
from howfar.contract.receipt_messages import (
    Account as Account,
    Bytes as Bytes,
    CpuUse as CpuUse,
    DirectionStats as DirectionStats,
    Drops as Drops,
    Histogram as Histogram,
    IntervalFigures as IntervalFigures,
    Receipt as Receipt,
    ServiceName as ServiceName,
    ServiceUse as ServiceUse,
    WindowFigures as WindowFigures,
)


LONGEST_NS: Final = 86_400_000_000_000
"""A day: no field names a longer time. What is longer is a mistake of a unit."""

DELAY_MAX_NS: Final = 60_000_000_000
RATE_MAX_BPS: Final = 1_000_000_000_000
LONGEST_VALUE: Final = 1_048_576


class ServerTls(Message):
    """What a server proves itself with."""

    cert_file: str
    key_file: str
    versions: Literal["any", "1.2", "1.3"]


Speech = Literal["sizes", "postgresql", "redis", "memcached"]


class AnswerJob(Message):
    """A server that answers each request with as many bytes, after as long, as the request says. Lives until stdin ends."""

    job: Literal["answer"] = "answer"
    version: Literal[2] = 2
    listen: Listen
    tls: ServerTls | None = None
    speech: Speech = "sizes"
    """`sizes` unless a program in between reads a protocol."""


class Service(Message):
    """Where one server is, and as whom; each one that is named gives a receipt."""

    target: Target
    user: str = ""
    password: str = Field(default="", repr=False)
    database: str = ""
    tls: Tls | None = None
    fetch_server_key: bool = False
    """As in `Session`."""


class SequenceValues(Message):
    """first, first + step, … over all connections: each takes every n-th of n."""

    kind: Literal["sequence"] = "sequence"
    first: int = Field(default=1, ge=0, le=4_611_686_018_427_387_903)
    step: int = Field(default=1, ge=1, le=2_147_483_647)


class Distribution(Message):
    """How row ids are drawn from `1..table_size`; the parameters carry sysbench's names and meaning."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: float = Field(default=0.2, gt=0.0, lt=1.0)
    spec_iter: int = Field(default=12, ge=1, le=10_000)
    spec_pct: int = Field(default=1, ge=1, le=100)
    spec_res: int = Field(default=75, ge=1, le=99)
    zipfian_exp: float = Field(default=0.8, ge=0.0)


class IntegerValues(Message):
    """Drawn from low..=high by a distribution."""

    kind: Literal["integer"] = "integer"
    low: int = Field(default=1, ge=0, le=4_503_599_627_370_495)
    high: int = Field(ge=0, le=4_503_599_627_370_495)
    distribution: Distribution = Distribution(kind="uniform")


class TextValues(Message):
    """A string of `length` bytes; about the share `compressible` of it is one repeated phrase, the rest random."""

    kind: Literal["text"] = "text"
    length: int = Field(ge=1, le=1_048_576)
    alphabet: Literal["letters", "digits"] = "letters"
    compressible: float = Field(default=0.0, ge=0.0, le=1.0)


class ConstantValue(Message):
    kind: Literal["constant"] = "constant"
    value: int | str


class SameValue(Message):
    """The value that parameter `index` (from 0) of the same transaction's statement `statement` had last."""

    kind: Literal["same"] = "same"
    statement: str
    index: int = Field(ge=0, le=255)


Values = Annotated[SequenceValues | IntegerValues | TextValues | ConstantValue | SameValue, Field(discriminator="kind")]


class CustomStatement(Message):
    """SQL with a `?` for each parameter."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    sql: str = Field(min_length=1, max_length=1_048_576)
    parameters: tuple[Values, ...] = Field(default=(), max_length=256)


class FixedSize(Message):
    """Every value has so many bytes."""

    kind: Literal["fixed"] = "fixed"
    bytes: int = Field(default=100, ge=0, le=1_048_576)


class UniformSize(Message):
    """From low..=high, each as likely as any other."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=0, le=1_048_576)
    high: int = Field(ge=0, le=1_048_576)


class LognormalSize(Message):
    """Half are shorter than `median`; `sigma` is the deviation of the natural logarithm. What is longer than `most` is cut to it."""

    kind: Literal["lognormal"] = "lognormal"
    median: int = Field(ge=1, le=1_048_576)
    sigma: float = Field(ge=0.0, le=10.0)
    most: int = Field(ge=1, le=1_048_576)


class Size(Message):
    """A size that has its share of all."""

    bytes: int = Field(ge=0, le=1_048_576)
    weight: int = Field(default=1, ge=1, le=1_000_000)


class ListedSizes(Message):
    """Each with its share of all weights."""

    kind: Literal["listed"] = "listed"
    sizes: tuple[Size, ...] = Field(min_length=1, max_length=256)


Sizes = Annotated[FixedSize | UniformSize | LognormalSize | ListedSizes, Field(discriminator="kind")]


class KeyValue(Message):
    """A transaction is one request of `pipeline` commands and all their replies; its latency ends with the last byte.

    A key is `key_prefix` and its number from 1 in twelve digits. Its value depends on its number alone, in length and content: a
    tables job with the same workload sets (`prepare`), reads (`warmup`) or deletes (`cleanup`) all keys, and what a load sets are
    the same values again.
    """

    kind: Literal["key_value"] = "key_value"
    protocol: Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
    """Redis: each session of `resp3` begins with HELLO 3, one of `resp2` with AUTH if there is a password."""
    keys: int = Field(default=10_000, ge=1, le=999_999_999_999)
    key_prefix: str = Field(default="key:", pattern=r"^[A-Za-z0-9:_.-]{0,64}$")
    distribution: Distribution = Distribution(kind="uniform")
    get: int = Field(default=9, ge=0, le=1_000_000)
    """Weights of the commands; each one is drawn with its share of their sum."""
    set: int = Field(default=1, ge=0, le=1_000_000)
    multi_get: int = Field(default=0, ge=0, le=1_000_000)
    """`keys_each` keys at once: MGET, `get` with several keys, or quiet `mg`s and an `mn`."""
    delete: int = Field(default=0, ge=0, le=1_000_000)
    keys_each: int = Field(default=10, ge=1, le=1000)
    value: Sizes = FixedSize()
    pipeline: int = Field(default=1, ge=1, le=1000)
    """Commands sent at once; the next request waits for the replies to all."""
    on_error: Literal["stop", "count"] = "stop"
    """An error that the server answers a command with ends the job, or is counted under its first word. No command is sent again."""


class QueryStep(Message):
    """A statement, `repeat` times; each is a turn. It is sent as text: applications of this kind do not prepare."""

    kind: Literal["query"] = "query"
    statement: str
    repeat: int = Field(default=1, ge=1, le=10_000)


class GetStep(Message):
    """A read of `keys_each` drawn keys, `repeat` times; each is a turn."""

    kind: Literal["get"] = "get"
    store: Literal["redis", "memcached"]
    keys_each: int = Field(default=1, ge=1, le=1000)
    repeat: int = Field(default=1, ge=1, le=10_000)


class CpuStep(Message):
    """The application computes, by the CPU time that its own thread has used."""

    kind: Literal["cpu"] = "cpu"
    cpu_ns: int = Field(ge=0, le=86_400_000_000_000)


PageStep = Annotated[QueryStep | GetStep | CpuStep, Field(discriminator="kind")]


class PageScript(Message):
    """The steps in order, `rounds` times, make a page, of at most 100000 turns. A worker runs one page at a time over one connection
    to each service that the script uses, opened by the first step that needs it."""

    kind: Literal["script"] = "script"
    mysql: Service | None = None
    postgresql: Service | None = None
    """Instead of `mysql`: statements go to one server."""
    redis: Service | None = None
    memcached: Service | None = None
    statements: tuple[CustomStatement, ...] = Field(default=(), max_length=256)
    redis_keys: KeyValue | None = None
    """Which keys are drawn, how, in which protocol; its weights and its pipeline mean nothing here."""
    memcached_keys: KeyValue | None = None
    steps: tuple[PageStep, ...] = Field(min_length=1, max_length=1024)
    rounds: int = Field(default=1, ge=1, le=10_000)
    connect: Literal["persistent", "per_page"] = "persistent"
    """`per_page`: each page opens its connections and closes them at its end, inside its latency."""


class FastCgi(Message):
    """An application behind FastCGI, as PHP-FPM. Each worker may keep one connection, where the application lets it.

    A page is good when its status is 200 and its body ends with `ends_with`. What it tells of itself is in the header `X-Howfar-
    Page: name=integer,…`: names of small letters, digits and `_`.
    """

    kind: Literal["fastcgi"] = "fastcgi"
    target: UnixTarget
    parameters: dict[str, str]
    """As FastCGI wants them: `SCRIPT_FILENAME`, `REQUEST_METHOD`, …"""
    ends_with: str = Field(default="", max_length=200)
    keep_connection: bool = False
    """`FCGI_KEEP_CONN`. PHP-FPM binds a child to a connection that is kept, and web servers close it after each page by default. One
    that is found closed is opened again, the page is asked for once more, and `Finished.reconnects` counts it: the child had
    served as many pages as it may, or died over this one."""


Application = Annotated[PageScript | FastCgi, Field(discriminator="kind")]


class Arrivals(Message):
    """Open loop: request i of all connections is due at a time that only the rate, the shape, the seed and the number of threads
    decide."""

    rate_per_s: float = Field(le=1000000000.0, gt=0.0)
    """Transactions a second, over the whole job."""
    shape: Literal["constant", "poisson", "bursts"] = "poisson"
    burst: int = Field(default=10, ge=1, le=1_000_000)
    """Requests due at one moment under `bursts`; the moments are evenly spaced."""


class AskStats(Message):
    """A later line on the link's stdin: answer with a `link_stats` event. `reset` starts the counters anew after it."""

    command: Literal["stats"] = "stats"
    reset: bool = False


class Begin(Message):
    """The line after a job that is held: begin at this moment of this host's monotonic clock, or at once where it has passed."""

    command: Literal["begin"] = "begin"
    at_ns: int = Field(ge=0)


class BurstLoss(Message):
    """Gilbert's and Elliott's chain of two states, one step a segment; each state loses segments with a chance of its own."""

    kind: Literal["gilbert_elliott"] = "gilbert_elliott"
    to_bad: float = Field(ge=0.0, le=1.0)
    to_good: float = Field(ge=0.0, le=1.0)
    loss_good: float = Field(default=0.0, ge=0.0, le=1.0)
    loss_bad: float = Field(default=1.0, ge=0.0, le=1.0)


class Classes(Message):
    """Statements by what came back, as sysbench sorts them: rows: read; rows affected: write; neither: other."""

    read: int
    write: int
    other: int


class CustomStep(Message):
    statement: str
    repeat: int = Field(default=1, ge=1, le=1_048_576)
    think_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    """Pause before each of them; part of the transaction's latency, not of the statement's."""


class CustomTransaction(Message):
    """Steps in order. Among several transactions each one is drawn with its share of all weights."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    weight: int = Field(default=1, ge=1, le=1_000_000)
    steps: tuple[CustomStep, ...] = Field(min_length=1, max_length=1024)


PsMode = Literal["auto", "disable", "multi", "extended"]


class Custom(Message):
    """A workload of one's own; `howfar load --workload FILE.toml` reads it."""

    kind: Literal["custom"] = "custom"
    statements: tuple[CustomStatement, ...] = Field(min_length=1, max_length=1024)
    transactions: tuple[CustomTransaction, ...] = Field(min_length=1, max_length=256)
    prepare: tuple[str, ...] = ()
    """SQL of `howfar load … prepare`, in order; `cleanup` likewise."""
    cleanup: tuple[str, ...] = ()
    db_ps_mode: PsMode = "auto"


class DigestsJob(Message):
    """Take the literals out of statements, as the recorder does."""

    job: Literal["digests"] = "digests"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    statements: tuple[str, ...]


class RateStep(Message):
    """One step of a rate trace; 0 bit/s is a line that stands still while its queue fills."""

    for_ns: int = Field(ge=1, le=86_400_000_000_000)
    rate_bps: int = Field(ge=0, le=1_000_000_000_000)


class NormalJitter(Message):
    """The delay varies around its mean. What would make it negative is taken as no delay at all."""

    kind: Literal["normal"] = "normal"
    deviation_ns: int = Field(ge=1, le=60_000_000_000)
    """Standard deviation."""


class ParetoJitter(Message):
    """What comes on top of the delay, with a heavy tail: a Pareto distribution moved to begin at zero (Lomax)."""

    kind: Literal["pareto"] = "pareto"
    mean_ns: int = Field(ge=1, le=60_000_000_000)
    shape: float = Field(default=3.0, le=100.0, gt=1.0)
    """The tail's exponent: lower is heavier. The variance is finite above 2."""


class EmpiricalJitter(Message):
    """What comes on top of the delay, drawn from measured values with equal chances."""

    kind: Literal["empirical"] = "empirical"
    extra_ns: tuple[Annotated[int, Field(ge=0, le=60_000_000_000)], ...] = Field(min_length=1, max_length=100_000)


Jitter = Annotated[NormalJitter | ParetoJitter | EmpiricalJitter, Field(discriminator="kind")]


class IndependentLoss(Message):
    """Each segment is lost with the same chance, whatever became of the others."""

    kind: Literal["independent"] = "independent"
    probability: float = Field(ge=0.0, le=1.0)


Loss = Annotated[IndependentLoss | BurstLoss, Field(discriminator="kind")]


class Outage(Message):
    """The line is down: what arrives at it is lost. Times count from the job or the `set` that brought them."""

    at_ns: int = Field(ge=0, le=86_400_000_000_000)
    for_ns: int = Field(ge=1, le=86_400_000_000_000)
    every_ns: int | None = Field(default=None, ge=1, le=86_400_000_000_000)
    """Again after each such time; None: once."""


class Direction(Message):
    """One direction of a link. `delay_ns` is what the user set (half the RTT); `compensate_ns` is taken off it by calibration."""

    rate_bps: int | None = Field(default=None, ge=1, le=1_000_000_000_000)
    """None: unshaped, or given by `rate_trace`."""
    rate_trace: tuple[RateStep, ...] = Field(default=(), max_length=100_000)
    """A rate that changes: the steps follow each other and begin anew after the last. At least one has a rate."""
    delay_ns: int = Field(ge=0, le=60_000_000_000)
    """The delay requested."""
    compensate_ns: int = 0
    """Taken off the delay: what the way costs without any."""
    queue_bytes: int = Field(ge=1, le=68_719_476_736)
    """Limit of the queue before the bottleneck, in wire bytes."""
    jitter: Jitter | None = None
    reorder: bool = False
    """May jitter let a later packet overtake? Otherwise it waits for the one before."""
    loss: Loss | None = None
    duplicate: float = Field(default=0.0, ge=0.0, le=1.0)
    """Chance of a segment to arrive twice."""
    corrupt: float = Field(default=0.0, ge=0.0, le=1.0)
    """Chance of a segment to arrive with one bit turned over."""
    outages: tuple[Outage, ...] = Field(default=(), max_length=1000)
    seed: int = Field(default=0, ge=0)
    """Seed of all random decisions."""


class EchoJob(Message):
    """The far end of a probe: a TCP listener on `host`, port chosen by the kernel. Lives until stdin ends."""

    job: Literal["echo"] = "echo"
    version: Literal[2] = 2
    host: str


class Fairness(Message):
    """Over the connections: transactions that each finished, and the time that each spent in them."""

    transactions_mean: float
    transactions_stddev: float
    busy_mean_ns: float
    busy_stddev_ns: float


Towards = Literal["to_server", "to_client"]


class GoodputJob(Message):
    """Bulk transfer over one TCP connection; `to_client` makes the echo send."""

    job: Literal["goodput"] = "goodput"
    version: Literal[2] = 2
    host: str
    port: int = Field(ge=0, le=65_535)
    direction: Towards
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)


class LinkJob(Message):
    """Join two packet interfaces of the present network namespace. Lives until stdin ends."""

    job: Literal["link"] = "link"
    version: Literal[2] = 2
    client_interface: str
    server_interface: str
    to_server: Direction
    to_client: Direction
    realtime: Literal["off", "auto"] = "auto"


SysbenchKind = Literal[
    "oltp_read_only",
    "oltp_read_write",
    "oltp_write_only",
    "oltp_point_select",
    "oltp_insert",
    "oltp_update_index",
    "oltp_update_non_index",
    "oltp_delete",
    "select_random_points",
    "select_random_ranges",
    "bulk_insert",
]


class Sysbench(Message):
    """One of sysbench's Lua workloads. Options that a kind does not use are ignored, as sysbench does."""

    kind: SysbenchKind = "oltp_read_only"
    tables: int = Field(default=1, ge=1, le=1_048_576)
    table_size: int = Field(default=10_000, ge=1, le=4_503_599_627_370_495)
    range_size: int = Field(default=100, ge=1, le=4_503_599_627_370_495)
    point_selects: int = Field(default=10, ge=0, le=1_048_576)
    range_selects: bool = True
    simple_ranges: int = Field(default=1, ge=0, le=1_048_576)
    sum_ranges: int = Field(default=1, ge=0, le=1_048_576)
    order_ranges: int = Field(default=1, ge=0, le=1_048_576)
    distinct_ranges: int = Field(default=1, ge=0, le=1_048_576)
    index_updates: int = Field(default=1, ge=0, le=1_048_576)
    non_index_updates: int = Field(default=1, ge=0, le=1_048_576)
    delete_inserts: int = Field(default=1, ge=0, le=1_048_576)
    skip_trx: bool = False
    auto_inc: bool = True
    secondary: bool = False
    create_secondary: bool = True
    mysql_storage_engine: str = Field(default="innodb", pattern=r"^[A-Za-z0-9_]+$")
    create_table_options: str = ""
    random_points: int = Field(default=10, ge=1, le=10_000)
    number_of_ranges: int = Field(default=10, ge=1, le=10_000)
    delta: int = Field(default=5, ge=0, le=4_503_599_627_370_495)
    db_ps_mode: PsMode = "auto"
    distribution: Distribution = Distribution()


class Pgbench(Message):
    """One of pgbench's built-in scripts, on pgbench's own tables; rows are drawn uniformly."""

    kind: Literal["select_only", "simple_update", "tpcb_like"]
    scale: int = Field(default=1, ge=1, le=20_000)
    """Branches; each has 10 tellers and 100,000 accounts."""
    db_ps_mode: PsMode = "auto"
    """`auto` is pgbench's `-M prepared`, `extended` and `disable` (`-M simple`) are its other modes."""


Workload = Annotated[Sysbench | Pgbench | Custom | KeyValue, Field(discriminator="kind")]


class Observed(Message):
    """A process whose CPU time (with all its descendants) is read at both ends of the measured window."""

    role: str
    pid: int = Field(ge=1)


class LoadJob(Message):
    """Closed loop without `arrivals`: each connection sends its next transaction when the last one is answered."""

    job: Literal["load"] = "load"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    """What the server speaks, where the workload is of statements."""
    target: Target
    user: str
    """Empty for the default user of Redis, and for Memcached, as password and database."""
    password: str = Field(default="", repr=False)
    database: str
    """Name of the database; with Redis its number, or empty."""
    session: Session = Session()
    workload: Workload
    connections: int = Field(ge=1, le=65_536)
    idle_connections: int = Field(default=0, ge=0, le=65_536)
    """Further connections that are opened, logged in and never used."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """At most so many threads of the engine; None: one a CPU."""
    driver: Literal["epoll", "io_uring", "auto"] = "auto"
    """Who serves the sockets; `auto`: `io_uring` where the kernel has it and a thread has connections enough, else epoll."""
    arrivals: Arrivals | None = None
    ramp_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    """Closed loop: connections begin evenly over this time. Open loop: the rate grows from 0 linearly. Part of the warm-up."""
    seed: int = Field(ge=0, le=9_223_372_036_854_775_807)
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)
    transactions: int = Field(default=0, ge=0)
    """End when so many transactions have begun and all are answered (sysbench's `--events`), or when time is up; 0: no limit."""
    interval_ns: int = Field(default=1_000_000_000, ge=1)
    client_work: Literal["skip", "touch", "decode"] = "touch"
    breakdown: bool = False
    """Record the stages of each query; costs up to two more readings of the clock a query."""
    ignore_errors: tuple[int | str, ...] | Literal["all"] = (
        1213,
        1020,
        1205,
        "40001",
        "40P01",
        "23505",
    )
    """Server errors after which a transaction begins anew, with other values, inside its latency. Any other ends the job."""
    observe: tuple[Observed, ...] = ()
    held: bool = False
    """After `ready` it waits for the line `begin`."""
    acknowledged: str | None = Field(default=None, min_length=1)
    """A new file: the log of the keys that transactions wrote and what became of each (`acknowledged.py` reads it). The workload
    must give each transaction one key: a single `sequence` parameter, drawn at most once a transaction, or `oltp_insert` without
    `auto_inc`."""
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=30_000_000_000, ge=1, le=86_400_000_000_000)


class Lookups(Message):
    """Keys that were read by commands answered well."""

    hits: int
    misses: int


class Lost(Message):
    """What became of connections that were lost under load; only under `on_disconnect: reconnect`."""

    at_end: int
    """Connections that were not back when the window ended."""
    last: Failed
    """Why the last connection was lost, or the last try to connect again failed."""


class PacketsJob(Message):
    """Record what packets carry: of a file, or of a capture that is still being written."""

    job: Literal["packets"] = "packets"
    version: Literal[2] = 2
    path: str
    """A file, pipe or descriptor with packets in pcap or pcapng."""
    port: int = Field(ge=1, le=65_535)
    """The server's."""
    address: str | None = None
    """None: a server of any address."""
    epoch_ns: int = Field(ge=0)
    """Taken off the packets' times."""


class PageJob(Message):
    """Load by pages. `workers` threads, each with one page at a time, as the processes of an application: the kernel shares the CPU
    among them. Closed loop without `arrivals`."""

    job: Literal["page"] = "page"
    version: Literal[2] = 2
    application: Application
    workers: int = Field(ge=1, le=1024)
    arrivals: Arrivals | None = None
    seed: int = Field(ge=0, le=9_223_372_036_854_775_807)
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)
    pages: int = Field(default=0, ge=0)
    """End when so many have begun and all are answered, or when time is up; 0: no limit."""
    interval_ns: int = Field(default=1_000_000_000, ge=1)
    observe: tuple[Observed, ...] = ()
    held: bool = False
    """After `ready` it waits for the line `begin`."""
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=30_000_000_000, ge=1, le=86_400_000_000_000)


class PingPongJob(Message):
    """One request to a null server and its answer, blocking, again and again on one connection: the floor for every client."""

    job: Literal["pingpong"] = "pingpong"
    version: Literal[2] = 2
    target: Target
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)


class RecordFinish(Message):
    """The recording is complete: write what is left and say how it ended. Connections are passed on as before."""

    command: Literal["record_finish"] = "record_finish"


class RecordFor(Message):
    """The application is in this mount namespace: as long as that has a process, connections are passed on."""

    command: Literal["record_for"] = "record_for"
    namespace: int = Field(ge=0)


class RecordJob(Message):
    """Pass connections on to a server and record what passes. Outlives its stdin: it goes on, without recording, until no connection
    is open and the application has ended."""

    job: Literal["record"] = "record"
    version: Literal[2] = 2
    listen: Listen
    server: Target
    page_by: tuple[str, ...] = ()
    """What stays in the names of pages, of HTTP: parameters of the query with their values, and parts of the path, which begin with
    `/`."""


class RecordedConnection(Message):
    """A connection that has ended, or was open when the recording ended."""

    id: int
    protocol: str
    opened_ns: int
    closed_ns: int | None
    pid: int | None
    uid: int | None
    tls: bool
    login_round_trips: int
    login_ns: int


class RecordedDigest(Message):
    """A statement without its literals, or a command's name."""

    id: int
    protocol: str
    text: str


class RecordedRoundTrip(Message):
    """A run of bytes to the server, and the run that answers it."""

    id: int = Field(ge=0)
    connection_id: int = Field(ge=0)
    begun_ns: int = Field(ge=0)
    sent_ns: int = Field(ge=0)
    answered_ns: int = Field(ge=0)
    ended_ns: int = Field(ge=0)
    bytes_to_server: int = Field(ge=0)
    bytes_to_client: int = Field(ge=0)
    requests: int = Field(ge=0)
    command: str
    digest_id: int | None = Field(ge=0)
    keys: int | None
    """A salted hash of the literals."""
    phase: Literal["connect", "operation", "close", "hidden"]
    rows: int | None = Field(ge=0)
    failed: bool


class RepeatStep(Message):
    """One round trip, begun `gap_ns` after the one before it ended."""

    connection: int = Field(ge=0, le=10_000)
    """One that no step opens is opened before the first page."""
    opens: bool = False
    """Connect and log in first, again if it is open."""
    gap_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    statement: int | None = Field(default=None, ge=0)
    """Index in `statements`. None: the step only connects."""
    may_fail: bool = False
    """The server refused it when it was recorded, so it may do so again."""


class RepeatPage(Message):
    """The round trips of one page, and the time after the last of them."""

    steps: tuple[RepeatStep, ...] = Field(min_length=1)
    rest_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)


class RepeatJob(Message):
    """Make the round trips of recorded pages against a real server, one after the other, with statements that the user has."""

    job: Literal["repeat"] = "repeat"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    target: Target
    user: str
    password: str = Field(default="", repr=False)
    database: str
    session: Session = Session()
    statements: tuple[str, ...]
    """In full, with their literals."""
    read_only: bool = False
    """All transactions are, unless a statement says otherwise."""
    pages: tuple[RepeatPage, ...] = Field(min_length=1)
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=30_000_000_000, ge=1, le=86_400_000_000_000)


class ReplayStep(Message):
    """One round trip, begun `gap_ns` after the one before it ended."""

    connection: int = Field(ge=0, le=10_000)
    """Which of the replay's connections. One that no step opens is opened before the first page."""
    opens: bool = False
    """Open the connection first, again if it is open."""
    gap_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    server_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    bytes_to_server: int = Field(ge=0, le=1_073_741_824)
    """At least 16 are sent."""
    bytes_to_client: int = Field(ge=0, le=1_073_741_824)
    """At least 8 are sent."""


class ReplayPage(Message):
    """The round trips of one page, and the time after the last of them."""

    steps: tuple[ReplayStep, ...] = Field(min_length=1)
    rest_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)


class ReplayJob(Message):
    """Pages, one after the other, against a server that was started with an `answer` job."""

    job: Literal["replay"] = "replay"
    version: Literal[2] = 2
    target: Target
    tls: Tls | None = None
    """Verified against `ca_file` and `server_name`."""
    speech: Literal["sizes", "postgresql", "redis", "memcached"] = "sizes"
    """As the server's."""
    pages: tuple[ReplayPage, ...] = Field(min_length=1)


class RttJob(Message):
    """Ping-pong of one byte over one TCP connection (NODELAY) to an echo; the link is otherwise at rest."""

    job: Literal["rtt"] = "rtt"
    version: Literal[2] = 2
    host: str
    port: int = Field(ge=0, le=65_535)
    count: int = Field(ge=1)
    timeout_ns: int = Field(default=10_000_000_000, ge=1)


class SetLink(Message):
    """A later line on the link's stdin: change parameters without losing a packet."""

    command: Literal["set"] = "set"
    to_server: Direction
    to_client: Direction


class TablesJob(Message):
    """Make, warm or drop a workload's tables: sysbench's `prepare`, `warmup` (`prewarm`) and `cleanup`.

    With a workload of keys: set, read or delete all of them.
    """

    job: Literal["tables"] = "tables"
    version: Literal[2] = 2
    action: Literal["prepare", "warmup", "cleanup"]
    protocol: Literal["mysql", "postgresql"] = "mysql"
    target: Target
    user: str
    password: str = Field(default="", repr=False)
    database: str
    session: Session = Session()
    workload: Workload
    connections: int = Field(default=1, ge=1, le=1024)
    """Tables are dealt to so many connections."""
    seed: int = Field(ge=0, le=9_223_372_036_854_775_807)
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=600_000_000_000, ge=1, le=86_400_000_000_000)


class TapDelay(Message):
    """Take the counts and begin new ones, with another delay."""

    command: Literal["tap_delay"] = "tap_delay"
    delay_ns: int = Field(ge=0, le=60_000_000_000)
    """Added to each round trip, half of it in each direction."""


class TapJob(Message):
    """Pass connections on to a server, with an added delay a round trip. Lives until stdin ends."""

    job: Literal["tap"] = "tap"
    version: Literal[2] = 2
    listen: Listen
    server: Target
    """Everybody may connect to the listening socket: the server itself decides who may."""


class TcpFacts(Message):
    """`TCP_INFO` of the connections at the end of the window; None where the kernel does not tell."""

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


class UsageJob(Message):
    """The CPU time that processes take in a load's measured window, on a host where the load's engine is not. It is always held."""

    job: Literal["usage"] = "usage"
    version: Literal[2] = 2
    observe: tuple[Observed, ...]
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    """As of the load."""
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)


class WatchJob(Message):
    """Poll for the next keys of each connection of a load job, on a connection of its own, and log when each is first seen.

    Ends after `watch_ns`, with its stdin, or when the server does. The load's keys are from one `sequence`.
    """

    job: Literal["watch"] = "watch"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    target: Target
    user: str
    password: str = Field(default="", repr=False)
    database: str
    session: Session = Session()
    table: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    column: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    first: int = Field(default=1, ge=0, le=4_611_686_018_427_387_903)
    """First key of the load's sequence; `step` and `connections` are the load's too."""
    step: int = Field(default=1, ge=1, le=2_147_483_647)
    connections: int = Field(ge=1, le=4096)
    seen: str = Field(min_length=1)
    """A new file: a log as that of `acknowledged`, with the outcome *seen*; sent and ended are those of the poll that saw the key."""
    pause_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    """Between two polls."""
    watch_ns: int = Field(ge=1, le=86_400_000_000_000)
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=30_000_000_000, ge=1, le=86_400_000_000_000)


class AcknowledgementLog(Message):
    """The log of acknowledged keys is closed and complete; comes before the job's last event, also before `failed`."""

    event: Literal["acknowledgement_log"] = "acknowledgement_log"
    path: str
    records: int
    """One for each transaction that drew a key, of the warm-up and after the window too; each is one of these:"""
    acknowledged: int
    """Keys whose last statement was answered well."""
    refused: int
    """Keys of which the server answered a statement with an error."""
    unknown: int
    """Keys without an answer before their connection or the job ended: they may be on the server or not."""


class Begun(Message):
    """A held job begins: when, by the monotonic clock, and how much later than requested."""

    event: Literal["begun"] = "begun"
    at_ns: int
    late_ns: int


class Digests(Message):
    """Statements without their literals, as a recording has them, in the order of the job."""

    event: Literal["digests"] = "digests"
    texts: tuple[str, ...]


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
    answered: int | None = None
    """Statements answered from the first to the last, those before and after the window too: what the server counts. None: of pages,
    or not all is known."""
    lookups: Lookups | None = None
    """Keys found and missed by a workload of keys."""
    errors: dict[str, int]
    """Ignored server errors by code; of a workload of keys by their first word, those that are not well known under `OTHER`;
    `disconnect`: connections lost."""
    reconnects: int
    """Connections lost and opened again."""
    lost: Lost | None = None
    """None: no connection was lost."""
    starved_receives: int = 0
    """Receives under `io_uring` that found no buffer for what had come, since the job began: each cost the client another one."""
    open_loop: Account | None
    fairness: Fairness
    tcp: TcpFacts | None
    cpu: tuple[CpuUse, ...]
    """Role `client` is the engine itself; then one for each observed role, pids of a role summed."""
    peak_memory_bytes: int
    """`VmHWM` of the engine."""
    histograms: tuple[Histogram, ...]
    interrupted: Failed | None = None
    """Why the window ended early; only under `on_disconnect: end`."""
    services: tuple[ServiceUse, ...] = ()
    """Services of a page script. Transactions are then pages, queries requests, and those and turns and bytes are sums over the
    services. Where an application is asked, a page is a request and a turn to it, and bytes are FastCGI's."""
    told: dict[str, int] = Field(default={})
    """What the pages of a FastCGI application reported, summed over the window's good pages."""


class GoodputResult(Message):
    event: Literal["goodput"] = "goodput"
    bytes: int
    elapsed_ns: int
    bits_per_second: float
    retransmits: int | None
    congestion_control: str
    mss: int


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
    latencies: str | None = None
    """Latencies of its transactions as in `Histogram.data`, to be added to those of other clients; only of a job that is held."""


class LinkReady(Message):
    """Packets pass from now on."""

    event: Literal["link_ready"] = "link_ready"
    realtime: bool
    short_slice: bool
    """Not of the real-time class, but with a short time slice."""
    offload: bool
    """virtio-net headers in force: super-packets are kept."""


class LinkStats(Message):
    event: Literal["link_stats"] = "link_stats"
    to_server: DirectionStats
    to_client: DirectionStats


class Listening(Message):
    event: Literal["listening"] = "listening"
    port: int


class Measuring(Message):
    """The measured window begins; what came before was warm-up."""

    event: Literal["measuring"] = "measuring"
    unix_time_ns: int
    warmup_transactions: int


class PacketsEnded(Message):
    """The last event of a recording from packets."""

    event: Literal["packets_ended"] = "packets_ended"
    commands: dict[str, int]
    unknown: dict[str, int]
    packets: int
    """Packets of the server's connections."""
    repeated_syns: int
    """Requests for a connection (SYN) that were sent again because no answer had come."""
    repeated_syns_ns: int
    """How long their connections waited for them."""
    skipped: dict[str, int]
    """All other packets, by what they are, as "packets are" may stand before it."""
    missing: int
    """Bytes that passed and were not captured."""


class PingPong(Message):
    """Rounds, time and CPU of the measured window."""

    event: Literal["pingpong"] = "pingpong"
    rounds: int
    elapsed_ns: int
    cpu_ns: int
    request_bytes: int
    reply_bytes: int
    clock_step_ns: int
    """The smallest step that the clock was seen to make."""
    clock_read_ns: float
    """What one reading of it costs."""
    histogram: Histogram
    """From one answer to the next; its kind is `round`."""


class Ready(Message):
    """All connections are open and all statements prepared."""

    event: Literal["ready"] = "ready"
    receipt: Receipt
    connections: int
    prepared_statements: int
    connect_ns: int
    """From the first `connect()` to the last statement prepared."""
    services: dict[str, Receipt] = Field(default={})
    """Receipts of the services of a page script by their names; `receipt` is then the first one's."""


class RecordEnded(Message):
    """The recording's last event."""

    event: Literal["record_ended"] = "record_ended"
    commands: dict[str, int]
    """Every request that was read, also those that shared a flight."""
    unknown: dict[str, int]
    """What is not known, by reason."""
    taken_to_server: int
    """Bytes taken from one side and given to the other. Equal: all that came went on."""
    taken_to_client: int
    passed_to_server: int
    passed_to_client: int
    crc32_to_server: int
    """CRC-32 of the bytes of each connection, of all connections combined by exclusive or."""
    crc32_to_client: int
    open: int
    """Connections that are open."""
    refused: int
    refusal: str | None
    server_pid: int | None
    """The process that listens on the server's Unix socket; 0: in no namespace that the tap sees."""
    stopped: str | None
    """Why the recording ended before the traffic did."""
    survives_kill: bool
    """A second process would go on with the connections if this one were killed."""


class Recorded(Message):
    """What came since the last such event."""

    event: Literal["recorded"] = "recorded"
    connections: tuple[RecordedConnection, ...]
    digests: tuple[RecordedDigest, ...]
    round_trips: tuple[RecordedRoundTrip, ...]


class Repeated(Message):
    """One page of a repeat job, in its order."""

    event: Literal["repeated"] = "repeated"
    took_ns: int
    opened_ns: tuple[int, ...]
    """Time to open each connection, its login too."""
    round_trips_ns: tuple[int, ...]
    """Time of each step with a statement, from before it is sent to its answer's end."""
    client_late_ns: int
    """Sum over all steps: how long after its gap a statement was sent."""


class Replayed(Message):
    """One page of a replay, in the order of the job."""

    event: Literal["replayed"] = "replayed"
    took_ns: int
    opened_ns: tuple[int, ...]
    """Time to open each connection: the socket, then TLS."""
    round_trips_ns: tuple[int, ...]
    """Time of each step, from its first byte sent to its answer's last."""
    client_late_ns: int
    """Sum over all steps: how long after its gap a request was sent, or the client waited for a processor."""
    server_late_ns: int
    """How long after its service time an answer was sent, and the server waited for a processor."""


class RttResult(Message):
    event: Literal["rtt"] = "rtt"
    count: int
    min_ns: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class TablesDone(Message):
    """A tables job is done."""

    event: Literal["tables_done"] = "tables_done"
    rows: int
    elapsed_ns: int


class TablesProgress(Message):
    """A tables job goes on: `done` of `total` rows at sysbench's prepare, else tables, or statements of a custom list."""

    event: Literal["tables_progress"] = "tables_progress"
    done: int
    total: int
    doing: str


class TapCounts(Message):
    """What passed since the last command."""

    event: Literal["tap_counts"] = "tap_counts"
    connections: int
    refused: int
    """Connections that the tap could not make to the server, and why the last one failed."""
    refusal: str | None
    open: int
    """Connections that are open now."""
    round_trips: int
    """A run of bytes to the server that bytes to the client answer."""
    bytes_to_server: int
    bytes_to_client: int
    held_ns: int
    """How long a round trip was held in both directions together, in the mean; 0 without one."""


class TapReady(Message):
    """Clients may connect."""

    event: Literal["tap_ready"] = "tap_ready"
    port: int | None
    """None: a Unix socket."""


class Used(Message):
    """A usage job is done."""

    event: Literal["used"] = "used"
    cpu: tuple[CpuUse, ...]
    """By role."""


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


class Watching(Message):
    """A watch job has asked once, found its table, and goes on."""

    event: Literal["watching"] = "watching"


LoadEvent = Annotated[
    Ready | Begun | Measuring | Interval | AcknowledgementLog | Finished | Failed, Field(discriminator="event")
]

LinkEvent = Annotated[LinkReady | LinkStats | Failed, Field(discriminator="event")]

ProbeEvent = Annotated[Listening | RttResult | GoodputResult | Failed, Field(discriminator="event")]

Event = Annotated[
    AcknowledgementLog
    | Asked
    | Begun
    | Digests
    | Failed
    | Fetched
    | Finished
    | GoodputResult
    | Info
    | Interval
    | LinkReady
    | LinkStats
    | Listening
    | Measuring
    | NotOpened
    | NullReady
    | Opened
    | PacketsEnded
    | PingPong
    | Ready
    | RecordEnded
    | Recorded
    | Repeated
    | Replayed
    | RttResult
    | TablesDone
    | TablesProgress
    | TapCounts
    | TapReady
    | Used
    | Watched
    | Watching,
    Field(discriminator="event"),
]

SYSBENCH_KINDS: Final[tuple[SysbenchKind, ...]] = get_args(SysbenchKind)

JOBS: Final[dict[str, type[Message]]] = {
    "answer": AnswerJob,
    "digests": DigestsJob,
    "echo": EchoJob,
    "goodput": GoodputJob,
    "link": LinkJob,
    "load": LoadJob,
    "null": NullJob,
    "packets": PacketsJob,
    "page": PageJob,
    "ping": PingJob,
    "pingpong": PingPongJob,
    "record": RecordJob,
    "repeat": RepeatJob,
    "replay": ReplayJob,
    "rtt": RttJob,
    "tables": TablesJob,
    "tap": TapJob,
    "usage": UsageJob,
    "watch": WatchJob,
}
"""By the field `job`."""

COMMANDS: Final[dict[str, type[Message]]] = {
    "ask": AskInTurn,
    "begin": Begin,
    "fetch": FetchAnswer,
    "open": OpenConnection,
    "record_finish": RecordFinish,
    "record_for": RecordFor,
    "set": SetLink,
    "stats": AskStats,
    "tap_delay": TapDelay,
}
"""By the field `command`."""

EVENTS: Final[dict[str, type[Message]]] = {
    "acknowledgement_log": AcknowledgementLog,
    "asked": Asked,
    "begun": Begun,
    "digests": Digests,
    "failed": Failed,
    "fetched": Fetched,
    "finished": Finished,
    "goodput": GoodputResult,
    "info": Info,
    "interval": Interval,
    "link_ready": LinkReady,
    "link_stats": LinkStats,
    "listening": Listening,
    "measuring": Measuring,
    "not_opened": NotOpened,
    "null_ready": NullReady,
    "opened": Opened,
    "packets_ended": PacketsEnded,
    "pingpong": PingPong,
    "ready": Ready,
    "record_ended": RecordEnded,
    "recorded": Recorded,
    "repeated": Repeated,
    "replayed": Replayed,
    "rtt": RttResult,
    "tables_done": TablesDone,
    "tables_progress": TablesProgress,
    "tap_counts": TapCounts,
    "tap_ready": TapReady,
    "used": Used,
    "watched": Watched,
    "watching": Watching,
}
"""By the field `event`."""
