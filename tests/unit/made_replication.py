"""A made-up run of replication whose commits follow from the simulated mechanisms, not from the model: for tests of its analysis."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hdrh.histogram import HdrHistogram
from tests.unit.simulated_commits import Mechanism, Simulation

from howfar.store.records import (
    Arm,
    ArmRole,
    CpuRecord,
    HistogramRecord,
    LagRecord,
    Measured,
    Run,
    RunInfo,
    StopReason,
    Trial,
    TrialStatus,
    Window,
)

MS, S = 1_000_000, 1_000_000_000
ELAPSED_NS = 4 * S
THREADS = (1, 16, 64)
RTT_NS = 85 * MS
MODES = ("none", "async", "after-sync", "after-commit")
OVER_REST = 1.002
"""The link's round trip at rest over what was asked."""


@dataclass(frozen=True)
class Server:
    """What its commits take."""

    kind: str = "mariadb"
    own_ms: float = 0.1
    write_ms: float = 0.02

    def mechanism(self, mode: str) -> Mechanism:
        if self.kind == "mysql":
            return "holds the commit stage"
        return "waits alone" if mode == "after-commit" else "holds the log"

    @cache  # noqa: B019
    def commits_per_s(self, mode: str, rtt_ns: int, threads: int) -> float:
        if mode not in ("after-sync", "after-commit"):
            alone = threads / (self.own_ms + self.write_ms) * 1e3
            return min(alone, 0.95e3 / self.write_ms) * (1.0 if mode == "none" else 0.9)
        rtt_ms = rtt_ns * OVER_REST / MS
        made = Simulation(self.mechanism(mode), threads, rtt_ms, self.own_ms, self.write_ms)
        return made.run(20 * rtt_ms, 60 * rtt_ms)[0]


def replication_run(
    server: Server,
    rtts_ns: Sequence[int] = (RTT_NS,),
    threads: Sequence[int] = THREADS,
    modes: Sequence[str] = MODES,
    blocks: int = 4,
    noise: float = 0.005,
    extra: dict[str, Any] | None = None,
) -> Run:
    """`extra`: further levels of each arm."""
    rng = random.Random(1)
    arms: list[Arm] = []
    trials: list[Trial] = []
    cells = [(mode, rtt, n) for mode in modes for rtt in (rtts_ns if mode != "none" else (0,)) for n in threads]
    for mode, rtt_ns, n in cells:
        factors: dict[str, Any] = {"path": "socket", "threads": n, "replication": mode, **(extra or {})}
        factors |= {"replica_rtt_ns": rtt_ns} if mode != "none" else {}
        name = f"{mode}, {rtt_ns // MS}ms, {n}"
        arms.append(Arm(name=name, role=ArmRole.CONTENDER if arms else ArmRole.BASELINE, factors=factors))
        per_s = server.commits_per_s(mode, rtt_ns, n)
        for block in range(blocks):
            seen = per_s * math.exp(rng.gauss(0, noise))
            trials.append(_trial(len(trials), block, name, mode, n, seen, rtt_ns))
    return run_of(server.kind, arms, trials)


def run_of(kind: str, arms: Sequence[Arm], trials: Sequence[Trial], plan: str = "replication") -> Run:
    info = RunInfo(
        run_id="00000000-0000-4000-8000-000000000006",
        created_unix_ns=1_790_000_000 * S,
        howfar_version="0.1.0",
        command=("howfar", "run", plan),
        plan_name=plan,
        quick=False,
        plan_toml="",
        plan={"name": plan, "workload": {"kind": "single_row_inserts"}, "timing": {"target_half_width": 0.05}},
        seed=1,
        arms=tuple(arms),
        environment={"cpu_count": 2, "server_cpus": [0], "client_cpus": [1], "placement": "isolated"},
        server_kind=kind,
        server_version="1.0",
    )
    return Run(info=info, trials=tuple(trials), stop=StopReason.BLOCKS)


def _cpu(role: str, transactions: int) -> CpuRecord:
    return CpuRecord(
        role=role,
        cpu_ns=transactions * 20_000,
        runnable_wait_ns=0,
        busiest_thread_ns=transactions * 10_000,
        threads=2,
        voluntary_switches=0,
        involuntary_switches=0,
    )


def _trial(number: int, block: int, arm: str, mode: str, threads: int, per_s: float, rtt_ns: int) -> Trial:
    mean_ns = threads * 1e9 / per_s
    transactions = round(per_s * ELAPSED_NS / 1e9)
    histogram = HdrHistogram(1, 3_600 * S, 3)
    histogram.record_value(int(mean_ns), transactions)
    latency = HistogramRecord(
        kind="transaction",
        count=transactions,
        min_ns=int(mean_ns),
        mean_ns=mean_ns,
        p50_ns=int(mean_ns),
        p95_ns=int(mean_ns),
        p99_ns=int(mean_ns),
        max_ns=int(mean_ns),
        data=histogram.encode().decode("ascii"),
    )
    measured = Measured(
        elapsed_ns=ELAPSED_NS,
        transactions=transactions,
        queries=transactions,
        turns=transactions,
        rows=transactions,
        bytes_to_server=transactions * 30,
        bytes_to_client=transactions * 11,
        errors={},
        warmup_transactions=1,
        connect_ns=MS,
        cpu=tuple(_cpu(role, transactions) for role in ("client", "server")),
        intervals=(),
        histograms=(latency,),
    )
    lag = [
        LagRecord(at_ns=at * 100 * MS, replica="replica1", behind=int(per_s * rtt_ns / 2e9), heartbeat_ns=rtt_ns // 2)
        for at in range(5)
    ]
    replicas = {"replica1": rtt_ns * OVER_REST} if mode != "none" else {}
    return Trial(
        number=number,
        block=block,
        position=0,
        arm=arm,
        status=TrialStatus.OK,
        started_unix_ns=number * 10 * S,
        ended_unix_ns=number * 10 * S + 8 * S,
        measured=measured,
        receipt={"session": {}, "replication": {"rtt_at_rest_ns": replicas}},
        window=Window(
            length_ns=ELAPSED_NS,
            interface="",
            server={"Binlog_commits": transactions, "Binlog_group_commits": max(1, transactions // 3)},
            lag=tuple(lag) if mode != "none" else (),
        ),
    )
