"""A made-up run with realistic figures: four paths and the A/A arm, deterministic from a seed. For tests of analysis and report."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hdrh.histogram import HdrHistogram
from tests.made import build, build_run, build_trial

from howfar.contract.receipt import ByDirection, LinkCalibration, LinkReceipt, QuantilesNs, RequestedLink, TrialReceipt
from howfar.contract.receipt_messages import Bytes, CpuUse, Histogram, IntervalFigures
from howfar.contract.server_receipt import ServerReceipt, SessionReceipt
from howfar.contract.violation import violation
from howfar.stats.hdr import MAX_NS, SIGNIFICANT_DIGITS
from howfar.store.records import Arm, ArmRole, MachineLoad, Measured, Run, StopReason, Trial, TrialStatus

QUERIES = 29
ELAPSED_NS = 4_000_000_000
LOST = violation("link-lost-packets", end="client", arena_segments=3, transmit_segments=0, socket_packets=0)
"""Why its void trials are void."""


@dataclass(frozen=True)
class PathModel:
    """One path: its transactions per second and CPU microseconds per query."""

    path: str
    role: ArmRole
    tps: float
    client_us: float
    server_us: float
    forwarder_us: float | None = None
    link_us: float | None = None
    name: str = ""

    @property
    def arm(self) -> str:
        return self.name or self.path


PATHS = (
    PathModel("socket", ArmRole.BASELINE, 1000, 6.1, 22.4),
    PathModel("socket", ArmRole.DUPLICATE, 1000, 6.1, 22.4, name="socket (again)"),
    PathModel("tcp", ArmRole.CONTENDER, 815, 8.8, 26.0),
    PathModel("remote", ArmRole.CONTENDER, 251, 9.9, 27.9, link_us=14.2),
    PathModel("forwarded-socket", ArmRole.CONTENDER, 213, 8.2, 24.1, forwarder_us=31.5, link_us=14.6),
)

PLAN: dict[str, Any] = {
    "name": "paths",
    "workload": {
        "kind": "oltp_read_only",
        "range_size": 5,
        "point_selects": 25,
        "range_selects": True,
        "simple_ranges": 1,
        "sum_ranges": 1,
        "order_ranges": 1,
        "distinct_ranges": 1,
        "skip_trx": True,
        "distribution": {"kind": "pareto"},
    },
    "data": {"tables": 10, "table_size": 100_000},
    "timing": {"target_half_width": 0.05, "min_blocks": 8},
}

ENVIRONMENT: dict[str, Any] = {
    "kernel": "6.1.0-18-amd64",
    "cpu_model": "Example CPU at 2.60 GHz",
    "cpu_count": 2,
    "memory_bytes": 8 * 2**30,
    "governor": None,
    "placement": "isolated",
}


def _histogram(rng: random.Random, kind: str, mean_ns: float, count: int) -> Histogram:
    histogram = HdrHistogram(1, MAX_NS, SIGNIFICANT_DIGITS)
    values = [int(mean_ns * 0.93 * math.exp(abs(rng.gauss(0, 0.16)) ** 1.3)) for _ in range(count)]
    values[-1] = int(mean_ns * 11)
    for value in values:
        histogram.record_value(value)
    values.sort()
    return Histogram(
        kind=kind,
        count=count,
        min_ns=values[0],
        mean_ns=sum(values) / count,
        p50_ns=values[count // 2],
        p95_ns=values[int(count * 0.95)],
        p99_ns=values[int(count * 0.99)],
        max_ns=values[-1],
        data=histogram.encode().decode("ascii"),
    )


def _cpu(role: str, us_per_query: float, queries: int) -> CpuUse:
    cpu_ns = int(us_per_query * queries * 1000)
    return CpuUse(
        role=role,
        cpu_ns=cpu_ns,
        runnable_wait_ns=cpu_ns // 9,
        busiest_thread_ns=min(cpu_ns, int(ELAPSED_NS * 0.9)) * 2 // 3,
        threads=2,
        voluntary_switches=queries,
        involuntary_switches=queries // 50,
    )


def measured(model: PathModel, rng: random.Random, slow: float, samples: int, threads: int = 2) -> Measured:
    """A trial's measurements; `slow` multiplies its rate."""
    transactions = int(model.tps * slow * ELAPSED_NS / 1e9)
    queries = transactions * QUERIES
    noise = 1 + rng.gauss(0, 0.004)
    roles = [("client", model.client_us), ("server", model.server_us)]
    roles += [("forwarder", model.forwarder_us)] if model.forwarder_us else []
    roles += [("link", model.link_us)] if model.link_us else []
    mean_ns = threads * ELAPSED_NS / transactions
    slices = tuple(
        build(
            IntervalFigures,
            start_ns=second * 10**9,
            length_ns=10**9,
            transactions=(transactions // 4) + rng.randrange(-3, 4),
            queries=queries // 4,
            p50_ns=int(mean_ns * 0.97),
            p95_ns=int(mean_ns * 1.3),
            p99_ns=int(mean_ns * 1.6),
            max_ns=int(mean_ns * 5),
        )
        for second in range(4)
    )
    return Measured(
        elapsed_ns=ELAPSED_NS,
        transactions=transactions,
        queries=queries,
        round_trips=queries,
        rows=transactions * 41,
        bytes=Bytes(to_server=transactions * 812, to_client=transactions * 8421),
        errors={},
        warmup_transactions=transactions // 4,
        connect_ns=3_000_000,
        cpu=tuple(_cpu(role, us * noise, queries) for role, us in roles if us),
        intervals=slices,
        histograms=(_histogram(rng, "transaction", mean_ns, samples),),
    )


def receipt(path: str) -> TrialReceipt:
    unix = path in ("socket", "forwarded-socket")
    over_tcp = {"local_address": "10.77.0.1:51234", "tcp_mss": 1448, "tcp_nodelay": True, "congestion_control": "cubic"}
    session = build(
        SessionReceipt,
        address_family="unix" if unix else "inet",
        peer_address="/run/howfar/mysqld.sock" if unix else "10.77.0.2:3306",
        peer_pid=4711 if unix else None,
        server_version="10.11.14-MariaDB-0+deb12u2",
        server_connection_id=9,
        auth_plugin="mysql_native_password",
        client_threads=1,
        client_cpus=(1,),
        **({} if unix else over_tcp),
    )
    proof = TrialReceipt(session=session, server=ServerReceipt.model_validate({"skip_networking": unix}))
    if path in ("remote", "forwarded-socket"):
        goodput = ByDirection(to_server=939_000_000.0, to_client=938_000_000.0)
        proof.link = LinkReceipt(
            requested=RequestedLink(rtt_ns=200_000, rate_bps=10**9, queue_bytes=250_000),
            rtt_at_rest_ns=QuantilesNs(count=400, min=198_000, p50=203_000, p99=231_000),
            calibration=LinkCalibration(goodput_bps=goodput, expected_goodput_bps=941_482_444.7),
        )
    return proof


def arms(models: tuple[PathModel, ...] = PATHS) -> tuple[Arm, ...]:
    found = []
    for model in models:
        factors: dict[str, Any] = {"path": model.path, "threads": 2, "placement": "isolated", "server": "mariadb"}
        if model.path in ("remote", "forwarded-socket"):
            factors |= {"rtt_ns": 200_000, "rate_bps": 10**9}
        found.append(Arm(name=model.arm, role=model.role, factors=factors))
    return tuple(found)


@cache
def synthetic_run(
    blocks: int = 10,
    seed: int = 1,
    scatter: float = 0.02,
    models: tuple[PathModel, ...] = PATHS,
    void_every: int = 17,
    samples: int = 400,
) -> Run:
    """A run; `scatter` is the standard deviation of a trial's log rate. The trials of a block also share a disturbance (sd 10 %)."""
    rng = random.Random(seed)
    trials: list[Trial] = []
    for block in range(blocks):
        order = list(models)
        rng.shuffle(order)
        shared = math.exp(rng.gauss(0, 0.1))
        for position, model in enumerate(order):
            if void_every and len(trials) % void_every == void_every - 1:
                trials.append(_trial(len(trials), block, position, model, None))
            slow = shared * math.exp(rng.gauss(0, scatter))
            again = int(bool(trials) and trials[-1].status is TrialStatus.VOID)
            trials.append(_trial(len(trials), block, position, model, measured(model, rng, slow, samples), again))
    return run_of("paths", arms(models), trials, StopReason.WIDTH, "--seed", str(seed), seed=seed)


def _trial(number: int, block: int, position: int, model: PathModel, seen: Measured | None, attempt: int = 0) -> Trial:
    ours = sum(cpu.cpu_ns for cpu in seen.cpu) / seen.elapsed_ns if seen else 0.0
    void = {} if seen else {"status": TrialStatus.VOID, "void_reason": LOST.sentence, "violations": (LOST,)}
    return build_trial(
        number,
        model.arm,
        block=block,
        position=position,
        attempt=attempt,
        **void,
        measured=seen,
        receipt=receipt(model.path),
        load=MachineLoad(
            psi_cpu_some_share=0.1 + 0.01 * (number % 7),
            psi_io_some_share=0.0,
            steal_share=0.0,
            load_average_1m=1.4,
            busy_cpus=ours + 0.06,
        ),
    )


def run_of(plan: str, arms: Sequence[Arm], trials: Sequence[Trial], stop: StopReason, *options: str, seed: int) -> Run:
    """A quick run of these arms and trials."""
    command = ("howfar", "run", plan, "--quick", *options)
    more = {"seed": seed, "quick": True, "plan": PLAN, "environment": ENVIRONMENT}
    return build_run(plan, arms, trials, stop, command=command, **more)
