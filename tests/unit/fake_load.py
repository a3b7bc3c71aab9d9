"""Made-up loads for the tests of `howfar load`: exact figures, no engine, no clock."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.made import build, latency
from tests.unit.fake_lab import receipt

import howfar
from howfar.contract.message import Message
from howfar.contract.messages import (
    PROTOCOL_VERSION,
    Account,
    Arrivals,
    Bytes,
    Classes,
    CpuUse,
    Fairness,
    Finished,
    Histogram,
    Info,
    Interval,
    LoadJob,
    Measuring,
    Ready,
    Sysbench,
    UnixTarget,
)
from howfar.contract.receipt import ProgramUse
from howfar.engine.process import find_engine
from howfar.load.result import Result, make_result

SECOND = 1_000_000_000
WINDOW_NS = 10 * SECOND
SOCKET = "/run/db.sock"
UNIX_TIME_NS = 1_700_000_000 * SECOND


def histogram(kind: str, values: Sequence[int]) -> Histogram:
    """A histogram as the engine writes it."""
    return latency(Histogram, kind, values)


def job(rate: float | None = None, **changes: Any) -> LoadJob:
    values: dict[str, Any] = {
        "target": UnixTarget(path=SOCKET),
        "user": "sbtest",
        "password": "never-to-be-seen",
        "database": "sbtest",
        "workload": Sysbench(),
        "connections": 2,
        "seed": 7,
        "warmup_ns": 0,
        "measure_ns": WINDOW_NS,
        "arrivals": Arrivals(rate_per_s=rate) if rate else None,
    }
    return LoadJob(**{**values, **changes})


def interval(number: int, transactions: int = 100, p50_ns: int = 2_000_000, backlog: int = 0) -> Interval:
    return build(
        Interval,
        start_ns=number * SECOND,
        length_ns=SECOND,
        transactions=transactions,
        queries=transactions * 20,
        classes=Classes(read=transactions * 14, write=transactions * 4, other=transactions * 2),
        errors=1 if number == 1 else 0,
        backlog=backlog,
        p50_ns=p50_ns,
        p95_ns=5_000_000,
        p99_ns=9_000_000,
        max_ns=20_000_000,
    )


def finished(histograms: Sequence[Histogram] | None = None, account: Account | None = None, **client: int) -> Finished:
    """The result of a load of 1000 transactions of 20 queries."""
    latencies = [1_000_000 + 10_000 * i for i in range(1000)]
    use = {"cpu_ns": 100_000_000, "runnable_wait_ns": 1_000_000, "busiest_thread_ns": 60_000_000, "threads": 2}
    return build(
        Finished,
        elapsed_ns=WINDOW_NS,
        transactions=1000,
        queries=20_000,
        round_trips=20_000,
        rows=400_000,
        classes=Classes(read=14_000, write=4_000, other=2_000),
        bytes=Bytes(to_server=800_000, to_client=39_000_000),
        errors={"1213": 3},
        open_loop=account,
        fairness=Fairness(
            transactions_mean=500, transactions_stddev=1.5, busy_mean_ns=2_997_500_000, busy_stddev_ns=4_000_000
        ),
        cpu=(CpuUse(role="client", voluntary_switches=5, involuntary_switches=1, **{**use, **client}),),
        peak_memory_bytes=6 * 2**20,
        histograms=tuple(
            [histogram("transaction", latencies), histogram("point_select", [50_000] * 990 + [400_000] * 10)]
            if histograms is None
            else histograms
        ),
    )


def events(of: LoadJob, done: Finished | None = None, **receipt_changes: Any) -> list[Message]:
    """The messages of an engine whose load succeeds."""
    ready = Ready(
        receipt=receipt(SOCKET).model_copy(update=receipt_changes),
        connections=of.connections,
        prepared_statements=20,
        connect_ns=3_000_000,
    )
    measuring = Measuring(unix_time_ns=UNIX_TIME_NS, warmup_transactions=0)
    return [ready, measuring, *(interval(number) for number in range(10)), done or finished()]


def result(
    of: LoadJob | None = None,
    done: Finished | None = None,
    mismatches: tuple[str, ...] = (),
    programs: tuple[ProgramUse, ...] | None = (),
) -> Result:
    of = of or job()
    messages = events(of, done)
    assert isinstance(messages[0], Ready) and isinstance(messages[1], Measuring) and isinstance(messages[-1], Finished)
    slices = tuple(event for event in messages if isinstance(event, Interval))
    return make_result(of, messages[0], messages[1], slices, messages[-1], mismatches, programs)


def overloaded() -> Result:
    """Open loop: of 1000 due requests 900 were answered in 1 to 10 ms, and 100, which were 2 s old at the end, never."""
    answered = [1_000_000 + 10_000 * i for i in range(900)]
    ages = [2 * SECOND] * 100
    histograms = [
        histogram("transaction", answered + ages),
        histogram("service", [1_000_000] * 900),
        histogram("unanswered", ages),
        histogram("lateness", [10_000] * 900),
    ]
    account = Account(due=1000, answered=900, unanswered=100, failed=0, backlog_max=98)
    return result(job(rate=100.0), finished(histograms, account))


@cache
def _built_engine() -> Path:
    """The real engine, found before a test sets $HOWFAR_ENGINE to a fake one."""
    return find_engine()


def fake_engine(folder: Path, messages: Sequence[Message], then: str = "") -> Path:
    """A script in place of the engine: the built engine checks jobs; each other job saves its input in `given.*`, prints `messages`,
    and runs `then`."""
    info = Info(version=howfar.__version__, protocol=PROTOCOL_VERSION, debug=False)
    lines = folder / "events.jsonl"
    lines.write_text("".join(event.model_dump_json() + "\n" for event in messages))
    path = folder / "engine"
    path.write_text(
        f"#!/bin/sh\nif [ $1 = info ]; then echo '{info.model_dump_json()}'; exit; fi\n"
        f'if [ $1 = check ]; then exec {_built_engine()} "$@"; fi\n'
        f'cd {folder}\nread line\necho "$@" > given.args\necho "$line" > given.stdin\ncat events.jsonl\n{then}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
