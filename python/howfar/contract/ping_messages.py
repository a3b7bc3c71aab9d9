"""The messages that time a server: a part of `messages.py`. Generated from `schema/contract.json` by `generate.py`: do not edit."""

# ruff: noqa: E402, I001, RUF100
from typing import Annotated, Final, Literal

from pydantic import Field

from howfar.contract.message import Message


PROTOCOL_VERSION: Final = 2
"""Raised when a message changes its meaning; the engine refuses a job of another version."""


class UnixTarget(Message):
    """A server, or the near end of a forwarder, on a Unix socket."""

    kind: Literal["unix"] = "unix"
    path: str


class TcpTarget(Message):
    """A server by numeric address; names are resolved before a job is made."""

    kind: Literal["tcp"] = "tcp"
    host: str
    port: int = Field(ge=1, le=65_535)


Target = Annotated[UnixTarget | TcpTarget, Field(discriminator="kind")]


class Tls(Message):
    """Encryption that must be had, unless it is `optional`: a server that cannot is refused, never spoken to in plain."""

    versions: Literal["any", "1.2", "1.3"] = "any"
    verify: Literal["none", "ca", "full", "password"] = "none"
    """`ca`: signed by an authority of `ca_file`; `full`: and made out to `server_name`; `password`: or proven by the password."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    cipher: str | None = None
    """A cipher suite by its IANA or OpenSSL name; None: what both sides prefer."""
    resumption: bool = True
    """Later connections may resume the session of an earlier one."""
    server_name: str | None = None
    """The server's name or address as the user gave it. The certificate must carry it under `full`; a name is sent to the server."""
    sni: bool = True
    """Send the name (SNI); addresses are never sent."""
    direct: bool = False
    """PostgreSQL from version 17 on: TLS begins with the first byte, and is not asked for (`sslnegotiation=direct`)."""
    optional: bool = False
    """A server that offers no TLS is spoken to without it, as the clients of MySQL and PostgreSQL do by default. For Redis and
    Memcached, which are not asked, it must be had."""
    channel_binding: Literal["disable", "prefer", "require"] = "prefer"


class Compression(Message):
    """Protocol compression that must be had. `level` None: zlib 6, zstd 3."""

    algorithm: Literal["zlib", "zstd"] = "zlib"
    level: int | None = Field(default=None, ge=1, le=22)


class Session(Message):
    """How each connection talks to the server."""

    tls: Tls | None = None
    compression: Compression | None = None
    server_key_file: str | None = None
    """PEM of the server's RSA key, for a full `caching_sha2_password` login over plain TCP."""
    fetch_server_key: bool = False
    """Without that file, ask the server for its key: the key of whoever answers."""
    allow_cleartext_password: bool = False
    """The password itself may leave when the server asks for it: by `mysql_clear_password` over TLS or a Unix socket, and over TLS
    whose certificate is not verified, to PostgreSQL too. Never in clear over plain TCP."""
    multi_statements: bool = True
    """Ask for `CLIENT_MULTI_STATEMENTS`, as sysbench does."""
    pipeline: int = Field(default=1, ge=1, le=1000)
    """PostgreSQL only: so many statements of a transaction leave at once, with one Sync at their end. A transaction of a single
    statement is repeated as often."""
    connect: Literal["persistent", "per_transaction"] = "persistent"
    reconnect_after: int = Field(default=0, ge=0)
    """Transactions after which a connection is closed and opened anew, outside every latency; 0: never."""
    on_disconnect: Literal["stop", "reconnect", "end"] = "stop"
    """A connection lost under load fails the job (`stop`), is opened again until `connect_timeout_ns` has passed (`reconnect`), or
    ends the measured window there, which is reported with its reason (`end`, for a stalled one too; in the warm-up the job
    fails)."""
    options: str = ""
    """PostgreSQL only: settings of the session that are sent with the login, as libpq's `options`."""


class PingJob(Message):
    """Time connections and requests to one server, one at a time. The job itself does nothing: it follows the commands on its stdin,
    and ends with it."""

    job: Literal["ping"] = "ping"
    version: Literal[2] = 2
    protocol: Literal["mysql", "postgresql", "redis", "memcached"]
    target: Target
    user: str
    """Empty for the default user of Redis, and for Memcached."""
    password: str = Field(default="", repr=False)
    database: str
    """Name of the database; with Redis its number, or empty."""
    session: Session = Session()
    step_timeout_ns: int = Field(ge=1, le=86_400_000_000_000)
    """Longest time for each step of a connection, and for each answer."""


class OpenConnection(Message):
    """A later line on a ping job's stdin: open a connection, timing each step; the open one is closed first, with the protocol's
    goodbye. Answered by `opened` or `not_opened`."""

    command: Literal["open"] = "open"


class PingRequest(Message):
    """One request. SQL is one word, a command of Redis its words, of Memcached the words of its line. No words: the protocol's own
    ping."""

    words: tuple[str, ...] = Field(max_length=8)


class AskInTurn(Message):
    """A later line on a ping job's stdin: send these requests in turn, each after the answer to the one before, for so many rounds.
    Answered by `asked`."""

    command: Literal["ask"] = "ask"
    requests: tuple[PingRequest, ...] = Field(min_length=1, max_length=8)
    rounds: int = Field(ge=1, le=1_000_000)
    within_ns: int = Field(ge=0, le=86_400_000_000_000)
    """No round begins later than this after the first one."""
    at_ns: int = Field(default=0, ge=0)
    """When the first round is to begin, by the monotonic clock; 0: at once."""


class FetchAnswer(Message):
    """A later line on a ping job's stdin: send one request and give its answer's rows. Answered by `fetched`."""

    command: Literal["fetch"] = "fetch"
    request: PingRequest
    rows: bool
    """Without, the answer may be large: bytes and times alone."""


class Step(Message):
    """A step that has ended."""

    name: Literal["tls", "login", "connect", "greeting", "tls_request"]
    took_ns: int
    round_trips: int
    """Times that the server was waited for, as its protocol has it; a Unix socket's connect has none."""


class Opened(Message):
    """A connection is open and logged in. `None` means: cannot be asked on this transport, or of this server."""

    event: Literal["opened"] = "opened"
    steps: tuple[Step, ...]
    """In the order of time; together they are the whole opening but for the client's own work in between."""
    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    """`host:port`; `None`: a Unix socket."""
    peer_address: str
    """Socket path, or `host:port`."""
    peer_pid: int | None
    """`SO_PEERCRED`, Unix sockets only; 0: a process in another PID namespace."""
    server_version: str | None
    """As it said during the login. None: a key-value store."""
    connection_id: int | None
    """MySQL's number of the connection, PostgreSQL's process, as said during the login."""
    auth_method: str
    """How the password was proved; `none`: it was not asked for."""
    tls_version: str | None
    tls_cipher: str | None
    tls_group: str | None
    tls_resumed: bool
    handshake_rtt_ns: int | None
    """The kernel's own measure of TCP's handshake, from before anything else was sent."""
    syn_retransmits: int | None
    """SYNs that were sent again."""
    path_mtu: int | None
    """Largest packet that the path carries, as far as the kernel knows."""


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
    """A connection could not be opened; the steps before `step` have ended well."""

    event: Literal["not_opened"] = "not_opened"
    steps: tuple[Step, ...]
    step: Literal["tls", "login", "connect", "greeting", "tls_request"]
    waited_ns: int
    """From the beginning of `step` to the failure."""
    timed_out: bool
    """The time limit of the step ended it."""
    syn_retransmits: int | None
    """SYNs that were sent again."""
    failure: Failed


class Asked(Message):
    """The answers to an `ask`."""

    event: Literal["asked"] = "asked"
    began_ns: int
    """When the first round began, by the monotonic clock."""
    late_ns: int
    """How much later that was than asked for."""
    latencies_ns: tuple[tuple[int, ...], ...]
    """For each request, its rounds in order: from before it is sent until the last byte of its answer was received."""
    refusals: tuple[str | None, ...]
    """For each request, the server's first refusal of it. A refusal is an answer, and timed."""
    lost: Failed | None
    """What ended the connection, after the rounds given here."""
    min_rtt_ns: int | None
    """The kernel's smallest round trip of this connection. It may hold the server's time: an acknowledgement can ride on an answer."""
    retransmits: int | None
    """Segments sent again since the connection began."""


class Fetched(Message):
    """The answer to a `fetch`."""

    event: Literal["fetched"] = "fetched"
    took_ns: int
    """From before the request is sent to the last byte of its answer, and to the first."""
    first_byte_ns: int
    bytes: int
    """Bytes of the answer as the socket gave them."""
    rows: tuple[tuple[str | None, ...], ...]
    """Of a key-value store: a row for each line or element."""
    refusal: str | None
    lost: Failed | None
    """What ended the connection instead."""


class TcpListen(Message):
    """Where to listen, by numeric address; port 0: the kernel chooses one."""

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
"""By the field `event`."""
