"""The messages between Python and the engine. Generated from `schema/contract.json` by `generate.py`: do not edit.

The engine reads a job as JSON from its stdin and writes events as JSON lines to its stdout. Times are integers in nanoseconds, sizes
are in bytes, and rates in bits per second.
"""

# ruff: noqa: E402, I001, RUF100
from typing import Annotated, Final, Literal, get_args

from pydantic import AliasChoices, Field

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
    ServerLogin as ServerLogin,
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
"""Maximum value of every field that holds a time: one day. A longer time probably has the wrong unit."""

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


class Service(ServerLogin):
    """Address and login of one service of a page. The `ready` event has a receipt for each."""

    tls: Tls | None = None
    fetch_server_key: bool = False
    """Whether to request the server's RSA key, as in `Session`."""


class SequenceValues(Message):
    """The sequence `first`, `first + step` and so on, shared by all n connections: each takes every n-th value."""

    kind: Literal["sequence"] = "sequence"
    first: int = Field(default=1, ge=0, le=4_611_686_018_427_387_903)
    step: int = Field(default=1, ge=1, le=2_147_483_647)


class Distribution(Message):
    """Distribution of row ids over `1..=table_size`. The parameters have the names and meanings of sysbench's options."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: float = Field(default=0.2, gt=0.0, lt=1.0)
    spec_iter: int = Field(default=12, ge=1, le=10_000)
    spec_pct: int = Field(default=1, ge=1, le=100)
    spec_res: int = Field(default=75, ge=1, le=99)
    zipfian_exp: float = Field(default=0.8, ge=0.0)


class IntegerValues(Message):
    """Random integers from `low` to `high`, both included."""

    kind: Literal["integer"] = "integer"
    low: int = Field(default=1, ge=0, le=4_503_599_627_370_495)
    high: int = Field(ge=0, le=4_503_599_627_370_495)
    distribution: Distribution = Distribution(kind="uniform")


class TextValues(Message):
    """A random string of `length` bytes. Roughly a fraction `compressible` of it repeats one phrase; the rest is random."""

    kind: Literal["text"] = "text"
    length: int = Field(ge=1, le=1_048_576)
    alphabet: Literal["letters", "digits"] = "letters"
    compressible: float = Field(default=0.0, ge=0.0, le=1.0)


class ConstantValue(Message):
    kind: Literal["constant"] = "constant"
    value: int | str


class SameValue(Message):
    """The latest value, within the same transaction, of parameter `index` (counted from 0) of `statement`."""

    kind: Literal["same"] = "same"
    statement: str
    index: int = Field(ge=0, le=255)


Values = Annotated[SequenceValues | IntegerValues | TextValues | ConstantValue | SameValue, Field(discriminator="kind")]


class CustomStatement(Message):
    """An SQL statement with a `?` for each parameter."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    sql: str = Field(min_length=1, max_length=1_048_576)
    parameters: tuple[Values, ...] = Field(default=(), max_length=256)


class FixedSize(Message):
    """All values have the same size."""

    kind: Literal["fixed"] = "fixed"
    bytes: int = Field(default=100, ge=0, le=1_048_576)


class UniformSize(Message):
    """Uniformly distributed from `low` to `high`, both included."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=0, le=1_048_576)
    high: int = Field(ge=0, le=1_048_576)


class LognormalSize(Message):
    """Log-normally distributed. `sigma` is the standard deviation of the natural logarithm, and larger sizes than `most` are reduced
    to `most`."""

    kind: Literal["lognormal"] = "lognormal"
    median: int = Field(ge=1, le=1_048_576)
    sigma: float = Field(ge=0.0, le=10.0)
    most: int = Field(ge=1, le=1_048_576)


class Size(Message):
    """One of several value sizes, with its weight."""

    bytes: int = Field(ge=0, le=1_048_576)
    weight: int = Field(default=1, ge=1, le=1_000_000)


class ListedSizes(Message):
    """A list of sizes. Each is chosen with a probability of its weight divided by the sum of all weights."""

    kind: Literal["listed"] = "listed"
    sizes: tuple[Size, ...] = Field(min_length=1, max_length=256)


Sizes = Annotated[FixedSize | UniformSize | LognormalSize | ListedSizes, Field(discriminator="kind")]


class KeyValue(Message):
    """A workload of commands on keys. A transaction is one request with `pipeline` commands and their replies; its latency ends with
    the last byte received.

    A key consists of `key_prefix` and a number from 1 with twelve digits. Size and content of its value depend only on that
    number. A tables job with the same workload therefore sets (`prepare`), reads (`warmup`) or deletes (`cleanup`) all keys, and
    a load writes the same values again.
    """

    kind: Literal["key_value"] = "key_value"
    protocol: Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
    """Protocol of the server. With `resp3`, a Redis session begins with HELLO 3; with `resp2`, it begins with AUTH if there is a
    password."""
    keys: int = Field(default=10_000, ge=1, le=999_999_999_999)
    key_prefix: str = Field(default="key:", pattern=r"^[A-Za-z0-9:_.-]{0,64}$")
    distribution: Distribution = Distribution(kind="uniform")
    get: int = Field(default=9, ge=0, le=1_000_000)
    """Weight of the command `get`. Each command is chosen with a probability of its weight divided by the sum of all weights."""
    set: int = Field(default=1, ge=0, le=1_000_000)
    multi_get: int = Field(default=0, ge=0, le=1_000_000)
    """Weight of reading `keys_each` keys with one command: MGET in Redis; in Memcached, `get` with several keys, or quiet `mg`
    commands followed by `mn`."""
    delete: int = Field(default=0, ge=0, le=1_000_000)
    keys_each: int = Field(default=10, ge=1, le=1000)
    value: Sizes = FixedSize()
    pipeline: int = Field(default=1, ge=1, le=1000)
    """Number of commands in a request. The next request is sent after all their replies."""
    on_error: Literal["stop", "count"] = "stop"
    """Reaction to an error that the server returns: end the job, or count the error under its first word. Commands are not retried."""


class QueryStep(Message):
    """Send a statement as text `repeat` times. Each time is one round trip. Such applications do not use prepared statements."""

    kind: Literal["query"] = "query"
    statement: str
    repeat: int = Field(default=1, ge=1, le=10_000)


class GetStep(Message):
    """Read `keys_each` random keys `repeat` times. Each time is one round trip."""

    kind: Literal["get"] = "get"
    store: Literal["redis", "memcached"]
    keys_each: int = Field(default=1, ge=1, le=1000)
    repeat: int = Field(default=1, ge=1, le=10_000)


class CpuStep(Message):
    """Compute until the thread has used this much CPU time."""

    kind: Literal["cpu"] = "cpu"
    cpu_ns: int = Field(ge=0, le=86_400_000_000_000)


PageStep = Annotated[QueryStep | GetStep | CpuStep, Field(discriminator="kind")]


class PageScript(Message):
    """The script of a page: the steps in order, repeated `rounds` times, with at most 100000 round trips in total. A worker runs one
    page at a time. It has one connection to each service of the script, which the first step that needs it opens."""

    kind: Literal["script"] = "script"
    mysql: Service | None = None
    postgresql: Service | None = None
    """The PostgreSQL server, instead of `mysql`. A page sends all statements to one server."""
    redis: Service | None = None
    memcached: Service | None = None
    statements: tuple[CustomStatement, ...] = Field(default=(), max_length=256)
    redis_keys: KeyValue | None = None
    """Keys of Redis: their number, distribution and protocol. The weights of commands and the pipeline are ignored."""
    memcached_keys: KeyValue | None = None
    steps: tuple[PageStep, ...] = Field(min_length=1, max_length=1024)
    rounds: int = Field(default=1, ge=1, le=10_000)
    connect: Literal["persistent", "per_page"] = "persistent"
    """When connections are opened. `per_page`: each page opens its connections and closes them at its end, and its latency includes
    both."""


class FastCgi(Message):
    """An application that serves pages over FastCGI, for example PHP-FPM.

    A page succeeds if its status is 200 and its body ends with `ends_with`. The application can report values in the header
    `X-Howfar-Page: name=integer,…`, whose names consist of lower-case letters, digits and `_`.
    """

    kind: Literal["fastcgi"] = "fastcgi"
    target: UnixTarget
    parameters: dict[str, str]
    """Parameters of each FastCGI request, such as `SCRIPT_FILENAME` and `REQUEST_METHOD`."""
    ends_with: str = Field(default="", max_length=200)
    keep_connection: bool = False
    """Whether each worker keeps one connection open (`FCGI_KEEP_CONN`), if the application allows it. PHP-FPM dedicates a child to
    an open connection, and web servers close it after each page by default. If the connection was closed by the application, it
    is reopened and the page is requested again: the child had served its maximum number of pages, or failed while serving this
    page. `Finished.reconnects` counts these cases."""


Application = Annotated[PageScript | FastCgi, Field(discriminator="kind")]


class Arrivals(Message):
    """Arrivals of an open loop. When each request is due depends only on the rate, the shape, the seed and the number of threads,
    never on the server."""

    rate_per_s: float = Field(le=1000000000.0, gt=0.0)
    """Arrival rate in transactions per second, summed over all connections."""
    shape: Literal["constant", "poisson", "bursts"] = "poisson"
    burst: int = Field(default=10, ge=1, le=1_000_000)
    """Number of requests in each burst, with the shape `bursts`. Bursts are evenly spaced."""


class AskStats(Message):
    """A later line on the link's stdin: answer with a `link_stats` event. `reset` starts the counters anew after it."""

    command: Literal["stats"] = "stats"
    reset: bool = False


class Begin(Message):
    """Starts a job with delayed start at a time of this host's monotonic clock, or immediately if that time has passed."""

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
    """Number of statements by class, as sysbench counts them. A statement that returns rows is a read, one that changes rows is a
    write, and all others are `other`."""

    read: int
    write: int
    other: int


class CustomStep(Message):
    statement: str
    repeat: int = Field(default=1, ge=1, le=1_048_576)
    think_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    """Pause before each repetition. The latency of the transaction includes it, and that of the statement does not."""


class CustomTransaction(Message):
    """A transaction: steps in order. If there are several transactions, each is chosen with a probability of its weight divided by
    the sum of all weights."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    weight: int = Field(default=1, ge=1, le=1_000_000)
    steps: tuple[CustomStep, ...] = Field(min_length=1, max_length=1024)


PsMode = Literal["auto", "disable", "multi", "extended"]


class Custom(Message):
    """A user-defined workload, as `howfar load --workload FILE.toml` reads it."""

    kind: Literal["custom"] = "custom"
    statements: tuple[CustomStatement, ...] = Field(min_length=1, max_length=1024)
    transactions: tuple[CustomTransaction, ...] = Field(min_length=1, max_length=256)
    prepare: tuple[str, ...] = ()
    """Statements that `howfar load … prepare` executes, in order."""
    cleanup: tuple[str, ...] = ()
    """Statements that `howfar load … cleanup` executes, in order."""
    db_ps_mode: PsMode = "auto"


class DigestsJob(Message):
    """Compute the digests of statements: replace their literals as the recorder does."""

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
    """Fairness between connections: mean and standard deviation of the transactions that each connection completed, and of the time
    that each spent in transactions."""

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
    """One of sysbench's Lua workloads. The names of the fields are those of sysbench's options. Options that do not apply to a kind
    are ignored, as in sysbench."""

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
    """One of pgbench's built-in scripts on pgbench's tables. Rows are chosen uniformly."""

    kind: Literal["select_only", "simple_update", "tpcb_like"]
    scale: int = Field(default=1, ge=1, le=20_000)
    """Scale factor: number of branches, each with 10 tellers and 100,000 accounts."""
    db_ps_mode: PsMode = "auto"
    """How statements are sent. `auto` corresponds to pgbench's `-M prepared`, `extended` to `-M extended`, and `disable` to `-M
    simple`."""


Workload = Annotated[Sysbench | Pgbench | Custom | KeyValue, Field(discriminator="kind")]


class Observed(Message):
    """A process whose CPU time, including that of its descendants, is measured over the window."""

    role: str
    pid: int = Field(ge=1)


class LoadJob(ServerLogin):
    """Load on one server. Without `arrivals` it is a closed loop: each connection sends its next transaction when the previous one
    has been answered."""

    job: Literal["load"] = "load"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    """Protocol of the server, for SQL workloads. A workload of keys names its own protocol."""
    session: Session = Session()
    workload: Workload
    connections: int = Field(ge=1, le=65_536)
    idle_connections: int = Field(default=0, ge=0, le=65_536)
    """Additional connections that are opened and logged in, but stay idle."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Maximum number of engine threads. None: one per CPU."""
    driver: Literal["epoll", "io_uring", "auto"] = "auto"
    """System interface that serves the sockets. `auto` selects `io_uring` if the kernel supports it and each thread has enough
    connections for it to pay off, otherwise epoll."""
    arrivals: Arrivals | None = None
    ramp_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    """Ramp-up time, which is part of the warm-up. Closed loop: the connections start evenly spread over it. Open loop: the rate
    increases linearly from 0."""
    seed: int = Field(ge=0, le=9_223_372_036_854_775_807)
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)
    transactions: int = Field(default=0, ge=0)
    """Maximum number of transactions (sysbench's `--events`). The job ends when all of them are answered or when the window ends. 0:
    no limit."""
    interval_ns: int = Field(default=1_000_000_000, ge=1)
    client_work: Literal["skip", "touch", "decode"] = "touch"
    breakdown: bool = False
    """Whether to record the stages of each query, which costs up to two more clock readings per query."""
    ignore_errors: tuple[int | str, ...] | Literal["all"] = (
        1213,
        1020,
        1205,
        "40001",
        "40P01",
        "23505",
    )
    """Server errors after which a transaction is retried with other values. The latency of the transaction includes its retries. Any
    other error ends the job."""
    observe: tuple[Observed, ...] = ()
    waits_for_begin: bool = False
    """Whether the job starts with a delay: after the event `ready` it waits for the command `begin`."""
    acknowledged: str | None = Field(default=None, min_length=1)
    """Path of a new file in which to log each key that a transaction wrote, with its outcome (`acknowledged.py` reads it). The
    workload must give each transaction one key: either a single `sequence` parameter that each transaction draws at most once, or
    `oltp_insert` without `auto_inc`."""
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=30_000_000_000, ge=1, le=86_400_000_000_000)


class Lookups(Message):
    """Keys that successful commands read, counted by whether the key existed."""

    hits: int
    misses: int


class Lost(Message):
    """Connections that were lost under load. Only present with `on_disconnect: reconnect`."""

    at_end: int
    """Connections that were lost and not yet reopened when the window ended."""
    last: Failed
    """Reason of the last lost connection or of the last failed attempt to reconnect."""


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
    """Load of pages. Each of `workers` threads serves one page at a time, like the processes of an application, and the kernel
    schedules them on the CPUs. Without `arrivals` it is a closed loop."""

    job: Literal["page"] = "page"
    version: Literal[2] = 2
    application: Application
    workers: int = Field(ge=1, le=1024)
    arrivals: Arrivals | None = None
    seed: int = Field(ge=0, le=9_223_372_036_854_775_807)
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)
    pages: int = Field(default=0, ge=0)
    """Maximum number of pages. The job ends when all of them are complete or when the window ends. 0: no limit."""
    interval_ns: int = Field(default=1_000_000_000, ge=1)
    observe: tuple[Observed, ...] = ()
    waits_for_begin: bool = False
    """Whether the job starts with a delay: after the event `ready` it waits for the command `begin`."""
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
    """One round trip. It begins `gap_ns` after the previous one has ended."""

    connection: int = Field(ge=0, le=10_000)
    """Number of the connection. A connection that no step opens before its first use is opened before the first page."""
    opens: bool = False
    """Whether to connect and log in first; a connection that is already open is reopened."""
    gap_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    statement: int | None = Field(default=None, ge=0)
    """Index in `statements`. None: the step only opens a connection."""
    may_fail: bool = False
    """Whether the server may return an error, because it did so when the page was recorded."""


class RepeatPage(Message):
    """The round trips of one page, and the time from the end of the last one to the end of the page."""

    steps: tuple[RepeatStep, ...] = Field(min_length=1)
    rest_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)


class RepeatJob(ServerLogin):
    """Repeat the round trips of recorded pages on a real server, one after the other, with the statements that the user provides."""

    job: Literal["repeat"] = "repeat"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    session: Session = Session()
    statements: tuple[str, ...]
    """Complete statements, including their literals."""
    read_only: bool = False
    """Whether to make all transactions read-only by default. A statement can override this."""
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
    """Ping-pong of one byte over one TCP connection (NODELAY) to an echo; the link is otherwise idle."""

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


class TablesJob(ServerLogin):
    """Create, warm up or drop the tables of a workload, as sysbench's `prepare`, `warmup` (`prewarm`) and `cleanup` do.

    For a workload of keys, set, read or delete all keys.
    """

    job: Literal["tables"] = "tables"
    version: Literal[2] = 2
    action: Literal["prepare", "warmup", "cleanup"]
    protocol: Literal["mysql", "postgresql"] = "mysql"
    session: Session = Session()
    workload: Workload
    connections: int = Field(default=1, ge=1, le=1024)
    """Number of connections over which the tables are distributed."""
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
    """Statistics from `TCP_INFO` over all connections at the end of the window. None: the kernel does not provide the value."""

    connections: int
    rtt_p50_ns: int
    rtt_max_ns: int
    min_rtt_ns: int | None
    retransmits: int
    """Segments that were retransmitted since each connection was opened."""
    busy_ns: int | None
    """Time with unacknowledged or unsent data, summed over all connections. `rwnd_limited_ns` and `sndbuf_limited_ns` are parts of
    it."""
    rwnd_limited_ns: int | None
    sndbuf_limited_ns: int | None


class UsageJob(Message):
    """Measurement of the CPU time of processes on a host that runs no load engine, over the measured window of a load on another
    host. The job always has a delayed start."""

    job: Literal["usage"] = "usage"
    version: Literal[2] = 2
    observe: tuple[Observed, ...]
    warmup_ns: int = Field(ge=0, le=86_400_000_000_000)
    """Warm-up time of the load."""
    measure_ns: int = Field(ge=1, le=86_400_000_000_000)


class WatchJob(ServerLogin):
    """Poll for the next keys that each connection of a load job inserts, over a separate connection, and log when each key is first
    visible.

    The job ends after `watch_ns`, at the end of stdin, or when the server fails. The keys of the load must come from one
    `sequence`.
    """

    job: Literal["watch"] = "watch"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql"] = "mysql"
    session: Session = Session()
    table: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    column: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    first: int = Field(default=1, ge=0, le=4_611_686_018_427_387_903)
    """First key of the load's sequence. `step` and `connections` must also be those of the load."""
    step: int = Field(default=1, ge=1, le=2_147_483_647)
    connections: int = Field(ge=1, le=4096)
    seen: str = Field(min_length=1)
    """Path of a new file in which to log visible keys, in the format of `acknowledged`. The outcome is *seen*, and the times are
    those of sending and completing the poll that returned the key."""
    pause_ns: int = Field(default=0, ge=0, le=86_400_000_000_000)
    """Pause between two polls."""
    watch_ns: int = Field(ge=1, le=86_400_000_000_000)
    connect_timeout_ns: int = Field(default=10_000_000_000, ge=1, le=86_400_000_000_000)
    stall_timeout_ns: int = Field(default=30_000_000_000, ge=1, le=86_400_000_000_000)


class AcknowledgementLog(Message):
    """The log of acknowledged keys is complete and closed. Written before the last event of the job, even if that is `failed`."""

    event: Literal["acknowledgement_log"] = "acknowledgement_log"
    path: str
    records: int
    """Records in the log: one for each transaction that drew a key, including those outside the window. It is the sum of
    `acknowledged`, `refused` and `unknown`."""
    acknowledged: int
    """Keys whose last statement succeeded."""
    refused: int
    """Keys for which the server answered a statement with an error."""
    unknown: int
    """Keys that had no answer when their connection or the job ended. They may or may not be stored on the server."""


class Begun(Message):
    """A job with delayed start has begun. Contains the start time on the monotonic clock, and its delay against the requested time."""

    event: Literal["begun"] = "begun"
    at_ns: int
    late_ns: int


class Digests(Message):
    """The job's statements in their order, with literals replaced as in a recording."""

    event: Literal["digests"] = "digests"
    texts: tuple[str, ...]


class Finished(Message):
    """Results of the measured window. In a closed loop they cover the transactions that ended in the window. In an open loop they
    cover the transactions that were due in the window and answered before its end."""

    event: Literal["finished"] = "finished"
    elapsed_ns: int
    transactions: int
    queries: int
    round_trips: int = Field(validation_alias=AliasChoices("round_trips", "turns"))
    """Round trips: changes of direction from client to server and back. Each costs one RTT."""
    rows: int
    classes: Classes
    bytes: Bytes
    answered: int | None = None
    """Statements that were answered during the whole job, including those outside the window, for comparison with the server's
    counter. None: a page job, or the number is not fully known."""
    lookups: Lookups | None = None
    """Keys that a workload of keys found and did not find."""
    errors: dict[str, int]
    """Number of ignored server errors by code. In a workload of keys, the code is the first word of the error, and uncommon words
    are counted as `OTHER`. `disconnect` counts lost connections."""
    reconnects: int
    """Connections that were lost and reopened."""
    lost: Lost | None = None
    """Connections that were lost under load. None: no connection was lost."""
    starved_receives: int = 0
    """Receive operations under `io_uring`, since the job began, that found no free buffer. Each had to be repeated by the client."""
    open_loop: Account | None
    fairness: Fairness
    tcp: TcpFacts | None
    cpu: tuple[CpuUse, ...]
    """CPU time by role. The first entry has the role `client` and describes the engine. One entry for each observed role follows,
    summed over the processes of that role."""
    peak_memory_bytes: int
    """Peak resident memory of the engine (`VmHWM`)."""
    histograms: tuple[Histogram, ...]
    interrupted: Failed | None = None
    """Reason why the window ended early. Only present with `on_disconnect: end`."""
    services: tuple[ServiceUse, ...] = ()
    """Use of each service of a page script. `transactions` then counts pages and `queries` counts requests; requests, round trips
    and bytes are summed over the services. If an application serves the pages, each page is one request and one round trip, and
    the bytes are those of FastCGI."""
    app_counters: dict[str, int] = Field(default={}, validation_alias=AliasChoices("app_counters", "told"))
    """Values that the pages of a FastCGI application reported, by name, summed over the successful pages of the window."""


class GoodputResult(Message):
    event: Literal["goodput"] = "goodput"
    bytes: int
    elapsed_ns: int
    bits_per_second: float
    retransmits: int | None
    congestion_control: str
    mss: int


class Interval(Message):
    """One interval of the measured window. Use intervals for time series and to check for a steady state, not as samples for
    statistics."""

    event: Literal["interval"] = "interval"
    start_ns: int
    """Start of the interval, counted from the start of the measured window."""
    length_ns: int
    transactions: int
    queries: int
    classes: Classes
    errors: int
    reconnects: int
    backlog: int
    """Open loop: requests that were due but not sent at the end of the interval. Closed loop: 0."""
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int
    latencies: str | None = None
    """Latencies of the interval's transactions, encoded as in `Histogram.data`, so that they can be added to those of other clients.
    Only in jobs with delayed start."""


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
    """The measured window has begun, and the warm-up has ended."""

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
    """All connections are open, and all statements are prepared."""

    event: Literal["ready"] = "ready"
    receipt: Receipt
    connections: int
    prepared_statements: int
    connect_ns: int
    """Time from the first `connect()` until the last statement was prepared."""
    services: dict[str, Receipt] = Field(default={})
    """Receipt of each service of a page script, by the name of the service. `receipt` is the receipt of the first service."""


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
    """Latencies of one repeated page. Pages are reported in the order in which they run."""

    event: Literal["repeated"] = "repeated"
    took_ns: int
    opened_ns: tuple[int, ...]
    """Time to open each connection, including the login, in the order of the steps that open one."""
    round_trips_ns: tuple[int, ...]
    """Latency of each step that has a statement: from before the statement is sent until its answer is complete."""
    client_late_ns: int
    """Sum over all steps of the delay with which a statement was sent after its gap had ended."""


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
    """A tables job is complete."""

    event: Literal["tables_done"] = "tables_done"
    rows: int
    elapsed_ns: int


class TablesProgress(Message):
    """Progress of a tables job. `done` and `total` count rows while sysbench tables are prepared, statements of a custom workload,
    and tables otherwise."""

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
    """A usage job is complete."""

    event: Literal["used"] = "used"
    cpu: tuple[CpuUse, ...]
    """CPU time of the observed processes, by role."""


class Watched(Message):
    """A watch job is complete, and its log is closed."""

    event: Literal["watched"] = "watched"
    path: str
    keys: int
    polls: int
    longest_poll_ns: int
    """Duration of the longest poll. It bounds the uncertainty of the moment at which a key became visible: after the start of the
    last poll that did not return the key, and before the answer to the poll that did."""
    elapsed_ns: int
    interrupted: Failed | None
    """Reason why the server ended the job early. None: it did not."""


class Watching(Message):
    """A watch job has polled its table successfully once and continues to poll."""

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
"""The classes of messages by their field `job`."""

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
"""The classes of messages by their field `command`."""

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
"""The classes of messages by their field `event`."""
