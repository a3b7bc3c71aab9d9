"""The messages that measure latency: a part of `messages.py`. Generated from `schema/contract.json` by `generate.py`: do not edit."""

# ruff: noqa: E402, I001, RUF100
from typing import Annotated, Final, Literal

from pydantic import Field

from howfar.contract.message import Message


PROTOCOL_VERSION: Final = 2
"""Version of the messages. The engine refuses a job of another version."""


class UnixTarget(Message):
    """A Unix socket, of a server or to listen on."""

    kind: Literal["unix"] = "unix"
    path: str


class TcpTarget(Message):
    """Numeric IP address and port. Python resolves host names before it creates a job."""

    kind: Literal["tcp"] = "tcp"
    host: str
    port: int = Field(ge=1, le=65_535)


Target = Annotated[UnixTarget | TcpTarget, Field(discriminator="kind")]


class Tls(Message):
    """TLS settings of a session. Unless TLS is `optional`, a session with a server that does not support it fails."""

    versions: Literal["any", "1.2", "1.3"] = "any"
    verify: Literal["none", "ca", "full", "password"] = "none"
    """How the server is verified. `ca`: its certificate is signed by an authority in `ca_file`. `full`: the certificate is also
    valid for `server_name`. `password`: as `full`, or the server proves that it knows the password."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    cipher: str | None = None
    """Cipher suite by its IANA or OpenSSL name. None: the preference of both sides decides."""
    resumption: bool = True
    """Whether later connections may resume the TLS session of an earlier one."""
    server_name: str | None = None
    """Host name or address of the server as the user specified it. With `full`, the certificate must be valid for it. A host name is
    also sent to the server if `sni` is set."""
    sni: bool = True
    """Whether to send the host name to the server (SNI). Addresses are never sent."""
    direct: bool = False
    """Whether to begin TLS without a preceding `SSLRequest` (`sslnegotiation=direct`), which PostgreSQL supports since version 17."""
    optional: bool = False
    """Whether to continue without TLS if the server does not offer it, as the clients of MySQL and PostgreSQL do by default. For
    Redis and Memcached, whose protocols do not negotiate TLS, TLS remains required."""
    channel_binding: Literal["disable", "prefer", "require"] = "prefer"


class Compression(Message):
    """Required compression of the protocol. If `level` is None, it is 6 for zlib and 3 for zstd."""

    algorithm: Literal["zlib", "zstd"] = "zlib"
    level: int | None = Field(default=None, ge=1, le=22)


class Session(Message):
    """Settings of a session with the server."""

    tls: Tls | None = None
    compression: Compression | None = None
    server_key_file: str | None = None
    """PEM file with the server's RSA public key, for full `caching_sha2_password` authentication over TCP without TLS."""
    fetch_server_key: bool = False
    """Whether to request the RSA key from the server if there is no such file. The key is not verified."""
    allow_cleartext_password: bool = False
    """Whether the password may be sent in clear text inside the protocol when the server requests it: as `mysql_clear_password` over
    TLS or a Unix socket, and, to PostgreSQL too, over TLS without verification of the certificate. It is never sent over TCP
    without TLS."""
    multi_statements: bool = True
    """Whether to request `CLIENT_MULTI_STATEMENTS`, as sysbench does."""
    pipeline: int = Field(default=1, ge=1, le=1000)
    """PostgreSQL only: number of statements of a transaction that are sent together, followed by one Sync message. A transaction
    that consists of one statement is sent this many times."""
    connect: Literal["persistent", "per_transaction"] = "persistent"
    reconnect_after: int = Field(default=0, ge=0)
    """Number of transactions after which a connection is closed and reopened. No latency includes this. 0: never."""
    on_disconnect: Literal["stop", "reconnect", "end"] = "stop"
    """Reaction to a connection that is lost under load. `stop`: the job fails. `reconnect`: the connection is reopened, for at most
    `connect_timeout_ns`. `end`: the measured window ends and is reported with the reason, also for a stalled connection; during
    the warm-up the job fails."""
    options: str = ""
    """PostgreSQL only: settings of the session that are sent with the login, as libpq's `options`."""


class ServerLogin(Message):
    """Address of a server, and the account for logging in to it."""

    target: Target
    user: str
    """User name. Empty for Redis's default user and for Memcached, which also needs no password and no database."""
    password: str = Field(default="", repr=False)
    database: str
    """Name of the database. For Redis, its number; empty means 0."""


class PingJob(ServerLogin):
    """Measure the latency of opening connections and of requests to one server, one at a time. The job executes the commands on its
    stdin and ends at the end of stdin."""

    job: Literal["ping"] = "ping"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql", "redis", "memcached"]
    session: Session = Session()
    step_timeout_ns: int = Field(ge=1, le=86_400_000_000_000)
    """Time limit for each step of opening a connection and for each answer."""


class OpenConnection(Message):
    """Command of a ping job: open a connection and measure each step. A connection that is already open is first closed as the
    protocol prescribes. The answer is the event `opened` or `not_opened`."""

    command: Literal["open"] = "open"


class PingRequest(Message):
    """One request. An SQL statement is one word; a Redis command is a list of words, and so is the line of a Memcached command.
    Without words, it is the protocol's own ping."""

    words: tuple[str, ...] = Field(max_length=8)


class AskInTurn(Message):
    """Command of a ping job: send these requests one after the other, each after the answer to the previous one, and repeat this for
    a number of rounds. The answer is the event `asked`."""

    command: Literal["ask"] = "ask"
    requests: tuple[PingRequest, ...] = Field(min_length=1, max_length=8)
    rounds: int = Field(ge=1, le=1_000_000)
    within_ns: int = Field(ge=0, le=86_400_000_000_000)
    """Time after the first round's start at which no further round begins."""
    at_ns: int = Field(default=0, ge=0)
    """Time of the first round's start on the monotonic clock. 0: immediately."""


class FetchAnswer(Message):
    """Command of a ping job: send one request, and return the rows of its answer. The answer is the event `fetched`."""

    command: Literal["fetch"] = "fetch"
    request: PingRequest
    rows: bool
    """Whether to return rows. If not, only times and bytes are returned, and the answer may be large."""


class Step(Message):
    """A completed step of opening a connection."""

    name: Literal["tls", "login", "connect", "greeting", "tls_request"]
    took_ns: int
    round_trips: int
    """Round trips of the step according to its protocol. Connecting a Unix socket takes none."""


class Opened(Message):
    """A connection is open and logged in. `None` means that a value is not available on this transport or from this server."""

    event: Literal["opened"] = "opened"
    steps: tuple[Step, ...]
    """Steps in the order of their execution. Apart from the client's own work between them, they make up the whole time of opening
    the connection."""
    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    """Local `host:port`. None: a Unix socket."""
    peer_address: str
    """Path of the Unix socket, or `host:port`."""
    peer_pid: int | None
    """Process ID of the server, from `SO_PEERCRED`; 0 if the server is in another PID namespace. None: not a Unix socket."""
    server_version: str | None
    """Version that the server reported during the login. None: a key-value store."""
    connection_id: int | None
    """MySQL's connection ID, or the process ID of PostgreSQL's backend, as reported during the login."""
    auth_method: str
    """Authentication method; `none` if the server asked for no password."""
    tls_version: str | None
    tls_cipher: str | None
    tls_group: str | None
    tls_resumed: bool
    handshake_rtt_ns: int | None
    """RTT of the TCP handshake as the kernel measured it, read before anything else was sent."""
    syn_retransmits: int | None
    """Number of retransmitted SYN segments."""
    path_mtu: int | None
    """Path MTU in bytes, as far as the kernel knows it."""


class Failed(Message):
    """The job failed and has no result."""

    event: Literal["failed"] = "failed"
    code: Literal[
        "bad_job",
        "connect",
        "auth",
        "tls",
        "server_error",
        "protocol",
        "other_protocol",
        "server_gone",
        "stalled",
        "not_permitted",
        "interface",
        "internal",
    ]
    message: str
    advice: str


class NotOpened(Message):
    """A connection could not be opened. `steps` are the steps that succeeded; `step` is the one that failed."""

    event: Literal["not_opened"] = "not_opened"
    steps: tuple[Step, ...]
    step: Literal["tls", "login", "connect", "greeting", "tls_request"]
    waited_ns: int
    """Time from the start of `step` to the failure."""
    timed_out: bool
    """Whether the step exceeded its time limit."""
    syn_retransmits: int | None
    """Number of retransmitted SYN segments."""
    failure: Failed


class Asked(Message):
    """The measured latencies of an `ask` command."""

    event: Literal["asked"] = "asked"
    began_ns: int
    """Time at which the first round began, on the monotonic clock."""
    late_ns: int
    """Delay of the first round against the requested time."""
    latencies_ns: tuple[tuple[int, ...], ...]
    """Latencies of each request, in the order of the rounds: from before the request is sent until the last byte of its answer is
    received."""
    refusals: tuple[str | None, ...]
    """First error that the server returned for each request, or None. The latency of an error answer is recorded like any other."""
    lost: Failed | None
    """Failure that ended the connection after the recorded rounds, if any."""
    min_rtt_ns: int | None
    """Smallest RTT that the kernel has measured on this connection. It may include processing time of the server, because an
    acknowledgement can be sent together with an answer."""
    retransmits: int | None
    """Segments that were retransmitted since the connection was opened."""


class Fetched(Message):
    """The answer to a `fetch` command."""

    event: Literal["fetched"] = "fetched"
    took_ns: int
    """Time from before the request is sent to the last byte of its answer."""
    first_byte_ns: int
    """Time from before the request is sent to the first byte of its answer."""
    bytes: int
    """Bytes of the answer as received from the socket."""
    rows: tuple[tuple[str | None, ...], ...]
    """Rows of the answer; for a key-value store, one row for each line or array element."""
    refusal: str | None
    lost: Failed | None
    """Failure that ended the connection before the answer was complete, if any."""


class TcpListen(Message):
    """Numeric IP address and port to listen on. For port 0 the kernel chooses a free port."""

    kind: Literal["tcp"] = "tcp"
    host: str
    port: int = Field(default=0, ge=0, le=65_535)


Listen = Annotated[UnixTarget | TcpListen, Field(discriminator="kind")]


class NullJob(Message):
    """A server that answers every statement from bytes made beforehand. Lives until stdin ends."""

    job: Literal["null"] = "null"
    version: Literal[2] = 2
    listen: Listen
    """A path that does not exist yet, or an address of this host."""
    threads: int = Field(default=1, ge=1, le=1024)
    reply_bytes: int = Field(default=119, ge=0, le=1_048_576)
    """Length of the one column of the one row that answers a SELECT."""
    delay_ns: int = Field(default=0, ge=0, le=60_000_000_000)
    """Service time: every answer waits for so long, however many wait beside it."""
    flavour: Literal["mysql", "mariadb"] = "mariadb"
    """MariaDB leaves out of an execute's answer the definitions that the client has from the prepare."""


class NullReady(Message):
    """Clients may connect."""

    event: Literal["null_ready"] = "null_ready"
    port: int | None
    """None: a Unix socket."""


class Info(Message):
    """The version handshake."""

    event: Literal["info"] = "info"
    version: str
    protocol: int
    debug: bool
    """Built without optimisation: results of such an engine are refused."""


PING_EVENTS: Final[dict[str, type[Message]]] = {
    "asked": Asked,
    "failed": Failed,
    "fetched": Fetched,
    "info": Info,
    "not_opened": NotOpened,
    "null_ready": NullReady,
    "opened": Opened,
}
"""The classes of messages by their field `event`."""
