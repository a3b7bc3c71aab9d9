"""The boundary between Python and Rust: one job as JSON on the engine's stdin, events as JSON lines on its stdout.

These types are the contract. `schema/` is generated from them; the crates `record`, `link` and `null` mirror them and are tested
against the generated files. Times are integers of nanoseconds, sizes bytes, rates bits per second. Load jobs are in `load_job.py`
and `workloads.py`, page jobs in `page.py`, the events of both in `load_events.py`, the link in `link_messages.py`; the probes and
`info` are here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from howfar.engine.key_value import KeyValue
from howfar.engine.link_messages import (
    AskStats,
    BurstLoss,
    Direction,
    DirectionStats,
    Drops,
    EmpiricalJitter,
    IndependentLoss,
    Jitter,
    LinkEvent,
    LinkJob,
    LinkReady,
    LinkStats,
    Loss,
    NormalJitter,
    Outage,
    ParetoJitter,
    RateStep,
    SetLink,
)
from howfar.engine.load_events import (
    Account,
    AcknowledgementLog,
    Bytes,
    Classes,
    CpuUse,
    Failed,
    Fairness,
    Finished,
    Histogram,
    Interval,
    LoadEvent,
    Lookups,
    Measuring,
    Ready,
    Receipt,
    ServiceUse,
    TablesDone,
    TablesProgress,
    TcpFacts,
    Watched,
    Watching,
)
from howfar.engine.load_job import (
    Arrivals,
    Compression,
    LoadJob,
    Observed,
    Session,
    TablesJob,
    Target,
    TcpTarget,
    Tls,
    UnixTarget,
    WatchJob,
    Workload,
)
from howfar.engine.message import LONGEST_NS, PROTOCOL_VERSION, Message
from howfar.engine.page import CpuStep, FastCgi, GetStep, PageJob, PageScript, QueryStep, Service
from howfar.engine.workloads import Custom, Distribution, Sysbench

__all__ = [
    "LONGEST_NS",
    "PROTOCOL_VERSION",
    "Account",
    "AcknowledgementLog",
    "Arrivals",
    "AskStats",
    "BurstLoss",
    "Bytes",
    "Classes",
    "Compression",
    "CpuStep",
    "CpuUse",
    "Custom",
    "Direction",
    "DirectionStats",
    "Distribution",
    "Drops",
    "EchoJob",
    "EmpiricalJitter",
    "Failed",
    "Fairness",
    "FastCgi",
    "Finished",
    "GetStep",
    "GoodputJob",
    "GoodputResult",
    "Histogram",
    "IndependentLoss",
    "Info",
    "Interval",
    "Jitter",
    "KeyValue",
    "LinkEvent",
    "LinkJob",
    "LinkReady",
    "LinkStats",
    "Listening",
    "LoadEvent",
    "LoadJob",
    "Lookups",
    "Loss",
    "Measuring",
    "Message",
    "NormalJitter",
    "NullJob",
    "NullReady",
    "Observed",
    "Outage",
    "PageJob",
    "PageScript",
    "ParetoJitter",
    "PingPong",
    "PingPongJob",
    "ProbeEvent",
    "QueryStep",
    "RateStep",
    "Ready",
    "Receipt",
    "RttJob",
    "RttResult",
    "Service",
    "ServiceUse",
    "Session",
    "SetLink",
    "Sysbench",
    "TablesDone",
    "TablesJob",
    "TablesProgress",
    "Target",
    "TcpFacts",
    "TcpListen",
    "TcpTarget",
    "Tls",
    "UnixTarget",
    "WatchJob",
    "Watched",
    "Watching",
    "Workload",
]

# ---------------------------------------------------------------- probes


class EchoJob(Message):
    """The far end of a probe: a TCP listener on `host`, port chosen by the kernel. Lives until stdin ends."""

    job: Literal["echo"] = "echo"
    version: Literal[2] = PROTOCOL_VERSION
    host: str


class Listening(Message):
    event: Literal["listening"] = "listening"
    port: int


class RttJob(Message):
    """Ping-pong of one byte over one TCP connection (NODELAY) to an echo; the link is otherwise at rest."""

    job: Literal["rtt"] = "rtt"
    version: Literal[2] = PROTOCOL_VERSION
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
    version: Literal[2] = PROTOCOL_VERSION
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


# ---------------------------------------------------------------- null server and ping-pong


class TcpListen(Message):
    """Where to listen, by numeric address; port 0: the kernel chooses one."""

    kind: Literal["tcp"] = "tcp"
    host: str
    port: int = Field(default=0, ge=0, le=65535)


class NullJob(Message):
    """A server that answers every statement from bytes made beforehand. Lives until stdin ends."""

    job: Literal["null"] = "null"
    version: Literal[2] = PROTOCOL_VERSION
    listen: Annotated[UnixTarget | TcpListen, Field(discriminator="kind")]
    """A path that does not exist yet, or an address of this host."""
    threads: int = Field(default=1, ge=1, le=1024)
    reply_bytes: int = Field(default=119, ge=0, le=2**20)
    """Length of the one column of the one row that answers a SELECT."""
    delay_ns: int = Field(default=0, ge=0, le=60_000_000_000)
    """Service time: every answer waits for so long, however many wait beside it."""
    flavour: Literal["mariadb", "mysql"] = "mariadb"
    """MariaDB leaves out of an execute's answer the definitions that the client has from the prepare."""


class NullReady(Message):
    """Clients may connect."""

    event: Literal["null_ready"] = "null_ready"
    port: int | None
    """None: a Unix socket."""


class PingPongJob(Message):
    """One request to a null server and its answer, blocking, again and again on one connection: the floor for every client."""

    job: Literal["pingpong"] = "pingpong"
    version: Literal[2] = PROTOCOL_VERSION
    target: Target
    warmup_ns: int = Field(ge=0, le=LONGEST_NS)
    measure_ns: int = Field(gt=0, le=LONGEST_NS)


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
