"""A page: one request to an application, as a script of turns to MySQL, Redis and Memcached with application CPU between them.

The engine runs the script itself (`PageScript`), or asks a real application for pages over FastCGI (`FastCgi`). Not here: what comes
back (`load_events.py`). `crates/record` mirrors these types.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from howfar.engine.key_value import KeyValue
from howfar.engine.load_job import Arrivals, Observed, Session, Target, Tls, UnixTarget, must_fit
from howfar.engine.message import LONGEST_NS, PROTOCOL_VERSION, Message
from howfar.engine.workloads import CustomStatement, check_statements

ServiceName = Literal["mysql", "redis", "memcached"]
MOST_TURNS = 100_000
"""Of a page: a worker of the engine notes the latency of each until the page has ended."""


class Service(Message):
    """Where one server is, and as whom; each one that is named gives a receipt."""

    target: Target
    user: str = ""
    password: str = Field(default="", repr=False)
    database: str = ""
    tls: Tls | None = None


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
    cpu_ns: int = Field(ge=0, le=LONGEST_NS)


PageStep = Annotated[QueryStep | GetStep | CpuStep, Field(discriminator="kind")]


class PageScript(Message):
    """The steps in order, `rounds` times, make a page, of at most 100000 turns. A worker runs one page at a time over one connection
    to each service that the script uses, opened by the first step that needs it."""

    kind: Literal["script"] = "script"
    mysql: Service | None = None
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

    @property
    def services(self) -> dict[ServiceName, Service]:
        """Those that are named, in the order of their receipts."""
        named: tuple[tuple[ServiceName, Service | None], ...] = (
            ("mysql", self.mysql),
            ("redis", self.redis),
            ("memcached", self.memcached),
        )
        return {name: service for name, service in named if service is not None}

    @property
    def turns(self) -> int:
        """Of one page."""
        return self.rounds * sum(step.repeat for step in self.steps if not isinstance(step, CpuStep))

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.services:
            raise ValueError("a page needs a service")
        self._stores_fit()
        known = check_statements(self.statements)
        if self.turns > MOST_TURNS:
            raise ValueError(f"a page has at most {MOST_TURNS} turns")
        for step in self.steps:
            if isinstance(step, QueryStep):
                if step.statement not in known:
                    raise ValueError(f"a step names statement {step.statement}, which is not there")
                if self.mysql is None:
                    raise ValueError("a query needs the service mysql")
            elif isinstance(step, GetStep):
                service, keys = (
                    (self.redis, self.redis_keys) if step.store == "redis" else (self.memcached, self.memcached_keys)
                )
                if service is None or keys is None:
                    raise ValueError(f"a get needs the service {step.store} and its keys")
        return self

    def _stores_fit(self) -> None:
        stores = (("redis", self.redis, self.redis_keys), ("memcached", self.memcached, self.memcached_keys))
        for name, service, keys in stores:
            if (service is None) != (keys is None):
                raise ValueError(f"the service {name} and its keys come together")
            if service is None or keys is None:
                continue
            if keys.is_redis != (name == "redis"):
                raise ValueError(f"{keys.protocol} is not a protocol of {name}")
            most_each = max((s.keys_each for s in self.steps if isinstance(s, GetStep) and s.store == name), default=1)
            if not keys.fits_at_once(most_each):
                raise ValueError("keys_each of a step times the longest value with its key must be 64 MiB at most")
            must_fit(keys, Session(), service.user, service.password, service.database)


class FastCgi(Message):
    """An application behind FastCGI, as PHP-FPM. Each worker may keep one connection, where the application lets it.

    A page is good when its status is 200 and its body ends with `ends_with`. What it tells of itself is in the header
    `X-Howfar-Page: name=integer,…`: names of small letters, digits and `_`.
    """

    kind: Literal["fastcgi"] = "fastcgi"
    target: UnixTarget
    parameters: dict[str, str]
    """As FastCGI wants them: SCRIPT_FILENAME, REQUEST_METHOD, …"""
    ends_with: str = Field(default="", max_length=200)
    keep_connection: bool = False
    """FCGI_KEEP_CONN. PHP-FPM binds a child to a connection that is kept, and web servers close it after each page by default. One
    that is found closed is opened again, the page is asked for once more, and `Finished.reconnects` counts it: the child had served
    as many pages as it may, or died over this one."""


class PageJob(Message):
    """Load by pages. `workers` threads, each with one page at a time, as the processes of an application: the kernel shares the CPU
    among them. Closed loop without `arrivals`."""

    job: Literal["page"] = "page"
    version: Literal[2] = PROTOCOL_VERSION
    application: Annotated[PageScript | FastCgi, Field(discriminator="kind")]
    workers: int = Field(ge=1, le=1024)
    arrivals: Arrivals | None = None
    seed: int = Field(ge=0, lt=2**63)
    warmup_ns: int = Field(ge=0, le=LONGEST_NS)
    measure_ns: int = Field(gt=0, le=LONGEST_NS)
    pages: int = Field(default=0, ge=0)
    """End when so many have begun and all are answered, or when time is up; 0: no limit."""
    interval_ns: int = Field(default=1_000_000_000, gt=0)
    observe: tuple[Observed, ...] = ()
    connect_timeout_ns: int = Field(default=10_000_000_000, gt=0, le=LONGEST_NS)
    stall_timeout_ns: int = Field(default=30_000_000_000, gt=0, le=LONGEST_NS)
