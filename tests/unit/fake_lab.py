"""A fake laboratory and engine with exact figures behind the real interfaces: no process, its own clock, every result known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.made import build, latency

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    Account,
    Bytes,
    Classes,
    CpuUse,
    Event,
    Finished,
    Histogram,
    Interval,
    LoadJob,
    Measuring,
    Observed,
    PageJob,
    Ready,
    Receipt,
    ServiceName,
    Target,
    UnixTarget,
)
from howfar.contract.receipt import TrialReceipt
from howfar.contract.server_receipt import ServerReceipt
from howfar.contract.violation import OTHER, violation
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome
from howfar.plan.factor import Level
from howfar.plan.load import LoadedPlan, Override, load_plan
from howfar.runner.run import execute_run, run_info
from howfar.runner.trial import Instruments
from howfar.services import SqlProtocol
from howfar.store.records import Run, RunInfo, Window
from howfar.store.run_file import create, read_run
from howfar.testbed import NO_FACTS, Application, CollectedReceipt, LoadFacts, ServiceEndpoint, Trust

RATES = {
    "socket": 30_000,
    "tcp": 24_000,
    "remote": 9_000,
    "forwarded-socket": 7_500,
    "haproxy": 8_000,
    "sidecar": 7_000,
    "ssh": 6_000,
    "stunnel": 6_500,
    "pgbouncer": 8_500,
    "nutcracker": 7_800,
}
"""Queries per second of each path; exact unless `jitter` changes them."""

QUERIES_A_TRANSACTION = 29

FAKE_SERVER = ServerReceipt(kind="mariadb", pid=1, counters={"requests": 1}, tcp_ports=[])
"""The server's part of each receipt."""


HISTOGRAM = latency(Histogram, "", [each * 1000 for each in (900, 1000, 1000, 2000, 3000, 4000)]).data


class FakeClock:
    """A clock that advances only when a fake says that something took time."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return 1_700_000_000_000_000_000 + self.now_ns


@dataclass(frozen=True)
class FakeWindowWatch:
    """A watch whose window has the requested length; the first CPU was busy half of the time."""

    length_ns: int

    def finish(self) -> Window:
        return Window(length_ns=self.length_ns, interface="", server={"requests": 1}, cpus_busy={0: 0.5, 1: 0.0})


@dataclass
class FakeStage:
    target: Target
    violations: tuple[str, ...] = ()
    protocol: SqlProtocol = "mysql"
    user: str = "howfar"
    password: str = "secret-of-the-fake"
    database: str = "sbtest"
    client: Launcher = field(default_factory=Launcher)
    observe: tuple[Observed, ...] = ()
    trust: Trust | None = None
    fetches_server_key: bool = True
    services: Mapping[ServiceName, ServiceEndpoint] = field(default_factory=dict)
    application: Application | None = None
    pair: None = None

    def reset_counters(self) -> None:
        pass

    def watch(self, length_ns: int) -> FakeWindowWatch:
        return FakeWindowWatch(length_ns)

    def precheck(self, session: Receipt | None = None) -> CollectedReceipt:
        return CollectedReceipt()

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        violations = tuple(violation(OTHER, text=text) for text in self.violations)
        return CollectedReceipt(TrialReceipt(server=FAKE_SERVER), violations)


@dataclass
class FakeLaboratory:
    """A fake laboratory; `trouble(path, trial number)` may raise or return the sentences of violations."""

    clock: FakeClock = field(default_factory=FakeClock)
    trouble: Callable[[str, int], tuple[str, ...]] = lambda path, number: ()
    staging_ns: int = 500_000_000
    version: str = "10.11.6-fake"
    staged: list[dict[str, Level]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    """Number of environments so far at the beginning of each block or attempt at a block."""

    def server(self) -> tuple[str, str]:
        return ("mariadb", self.version)

    def begin_block(self, block: int) -> None:
        self.blocks.append(len(self.staged))

    def environment(self) -> RunEnvironment:
        return RunEnvironment(kernel="fake", cpu_count=2)

    @contextmanager
    def trial_environment(self, factors: Mapping[str, Level]) -> Iterator[FakeStage]:
        self.staged.append(dict(factors))
        self.clock.now_ns += self.staging_ns
        path = str(factors["path"])
        violations = self.trouble(path, len(self.staged) - 1)
        yield FakeStage(UnixTarget(path=f"/fake/{path}"), violations)


@dataclass
class FakeEngine:
    """The conductor's `measure` function. `jitter(job)` multiplies the rate; `before` may raise."""

    clock: FakeClock
    jitter: Callable[[LoadJob], float] = lambda job: 1.0
    before: Callable[[LoadJob], None] = lambda job: None
    jobs: list[LoadJob] = field(default_factory=list)

    def __call__(self, job: LoadJob | PageJob, launcher: Launcher, on_event: Callable[[Event], None]) -> LoadOutcome:
        assert isinstance(job, LoadJob)
        self.jobs.append(job)
        self.before(job)
        assert isinstance(job.target, UnixTarget)
        rate = RATES[Path(job.target.path).name] * self.jitter(job)
        ready = Ready(
            receipt=receipt(job.target.path), connections=job.connections, prepared_statements=5, connect_ns=1
        )
        on_event(ready)
        self.clock.now_ns += job.warmup_ns
        measuring = Measuring(unix_time_ns=self.clock.unix_ns(), warmup_transactions=7)
        on_event(measuring)
        self.clock.now_ns += job.measure_ns
        transactions = round(rate * job.measure_ns / 1e9 / QUERIES_A_TRANSACTION)
        slice_ = interval(job.measure_ns, transactions)
        on_event(slice_)
        finished = (
            finish(job.measure_ns, transactions) if job.arrivals is None else paced(job, rate / QUERIES_A_TRANSACTION)
        )
        on_event(finished)
        return LoadOutcome(ready, measuring, (slice_,), finished)


def receipt(path: str) -> Receipt:
    return build(
        Receipt,
        peer_address=path,
        peer_pid=1,
        server_version="10.11.6-fake",
        server_connection_id=3,
        auth_plugin="mysql_native_password",
        client_threads=1,
        client_cpus=(0,),
    )


def interval(length_ns: int, transactions: int) -> Interval:
    return build(
        Interval,
        length_ns=length_ns,
        transactions=transactions,
        queries=transactions * QUERIES_A_TRANSACTION,
        classes=Classes(read=transactions, write=0, other=0),
        errors=1,
        p50_ns=1000,
        p95_ns=2000,
        p99_ns=3000,
        max_ns=4000,
    )


def finish(elapsed_ns: int, transactions: int) -> Finished:
    queries = transactions * QUERIES_A_TRANSACTION
    return build(
        Finished,
        elapsed_ns=elapsed_ns,
        transactions=transactions,
        queries=queries,
        round_trips=queries,
        rows=queries,
        classes=Classes(read=queries, write=0, other=0),
        bytes=Bytes(to_server=queries * 24, to_client=queries * 150),
        errors={"1213": 1},
        cpu=(
            build(CpuUse, role="client", cpu_ns=queries * 10_000),
            build(CpuUse, role="server", cpu_ns=queries * 20_000),
        ),
        histograms=(
            Histogram(
                kind="transaction",
                count=transactions,
                min_ns=900_000,
                mean_ns=1_500_000.5,
                p50_ns=1_000_000,
                p95_ns=2_000_000,
                p99_ns=3_000_000,
                max_ns=4_000_000,
                data=HISTOGRAM,
            ),
        ),
    )


def paced(job: LoadJob, capacity_per_s: float) -> Finished:
    """One queue before one server (M/M/1): response times are exponential with a mean of 1 / (capacity - rate)."""
    assert job.arrivals is not None
    seconds, per_s = job.measure_ns / 1e9, job.arrivals.rate_per_s
    due = round(per_s * seconds)
    answered = min(due, round(capacity_per_s * seconds))
    mean_ns = 1e9 / (capacity_per_s - per_s) if per_s < capacity_per_s else job.measure_ns / 2
    samples = [int(-mean_ns * math.log(1 - (step + 0.5) / 1000)) + 1 for step in range(1000)]
    known = latency(Histogram, "transaction", samples).model_copy(update={"count": answered, "mean_ns": mean_ns})
    account = Account(due=due, answered=answered, unanswered=due - answered, failed=0, backlog_max=1)
    return finish(job.measure_ns, answered).model_copy(update={"open_loop": account, "histograms": (known,)})


COUNTED = (Override("", ("timing", "controls"), False), Override("", ("timing", "measure"), "4s"))
"""Overrides of `paths --quick`, for tests that count arms and seconds."""


def fake_info(laboratory: FakeLaboratory | None = None, seed: int = 42, loaded: LoadedPlan | None = None) -> RunInfo:
    """The run information (the file's head) of a quick run of `paths`."""
    command = ("howfar", "run", "paths", "--seed", str(seed))
    return run_info(
        loaded or load_plan("paths", quick=True, overrides=COUNTED),
        seed,
        command,
        laboratory or FakeLaboratory(),
    )


def conducted(path: Path, laboratory: FakeLaboratory, instruments: Instruments, info: RunInfo | None = None) -> Run:
    """A run conducted to its end, as read back from its file."""
    with create(path, info or fake_info()) as file:
        stop = execute_run(file, laboratory, laboratory.clock(), instruments)
    run = read_run(path)
    assert run.stop is stop
    return run


def fakes(
    clock: FakeClock | None = None, jitter: Callable[[LoadJob], float] = lambda job: 1.0
) -> tuple[FakeLaboratory, FakeEngine, Instruments]:
    """A laboratory, an engine and instruments on one clock."""
    clock = clock or FakeClock()
    engine = FakeEngine(clock, jitter)
    instruments = Instruments(measure=engine, monotonic_ns=clock, unix_ns=clock.unix_ns)
    return FakeLaboratory(clock), engine, instruments
