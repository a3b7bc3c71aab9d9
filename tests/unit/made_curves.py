"""A made-up run whose throughputs follow from demands by a law of its own, not by the model: for tests of curves and economics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from howfar.store.records import (
    Arm,
    ArmRole,
    CpuRecord,
    Measured,
    Run,
    RunInfo,
    StopReason,
    Trial,
    TrialStatus,
    Window,
)

ELAPSED_NS = 2_000_000_000
WORKLOAD: dict[str, Any] = {
    "kind": "oltp_read_only",
    "range_size": 100,
    "point_selects": 10,
    "range_selects": True,
    "simple_ranges": 1,
    "sum_ranges": 1,
    "order_ranges": 1,
    "distinct_ranges": 1,
    "skip_trx": False,
}
ROUND_TRIPS = 16
REPLIES, REQUESTS = 39_432.0, 396.0
PLAN: dict[str, Any] = {"name": "made", "workload": WORKLOAD, "data": {"tables": 10, "table_size": 1000}}


@dataclass(frozen=True)
class Cell:
    """One arm: its factors, and what each of its trials shows."""

    factors: dict[str, Any]
    tps: float
    client_s: float = 0.0002
    server_s: float = 0.0008
    link_s: float = 0.0
    carried: float = 1.0
    """Share of the replies' bytes that the link carried."""
    receipt: dict[str, Any] = field(default_factory=dict)
    client_wait_s: float = 0.0
    server_wait_s: float = 0.0
    busy: dict[int, float] | None = None
    """Of each processor, the server's 0 and the client's 1. None: no window."""
    replies: float = REPLIES
    """Bytes a transaction, as the protocol has them."""
    link_cpus: dict[int, float] = field(default_factory=dict)
    """What the emulator had of each; needs a window."""

    @property
    def name(self) -> str:
        return ", ".join(
            f"{level} threads" if name == "threads" else str(level) for name, level in self.factors.items()
        )


def _cpu(role: str, cpu_ns: float, wait_ns: float) -> CpuRecord:
    return CpuRecord(
        role=role,
        cpu_ns=int(cpu_ns),
        runnable_wait_ns=int(wait_ns),
        busiest_thread_ns=int(cpu_ns),
        threads=1,
        voluntary_switches=0,
        involuntary_switches=0,
    )


def _measured(cell: Cell, tps: float) -> Measured:
    transactions = round(tps * ELAPSED_NS / 1e9)
    spent = {"client": cell.client_s, "server": cell.server_s, "link": cell.link_s}
    waited = {"client": cell.client_wait_s, "server": cell.server_wait_s}
    each_ns = transactions * 1e9
    return Measured(
        elapsed_ns=ELAPSED_NS,
        transactions=transactions,
        queries=transactions * ROUND_TRIPS,
        turns=transactions * ROUND_TRIPS,
        rows=0,
        bytes_to_server=int(transactions * REQUESTS),
        bytes_to_client=int(transactions * cell.replies),
        errors={},
        warmup_transactions=0,
        connect_ns=0,
        cpu=tuple(_cpu(role, each * each_ns, waited.get(role, 0.0) * each_ns) for role, each in spent.items() if each),
        intervals=(),
        histograms=(),
    )


def _receipt(cell: Cell, seen: Measured) -> dict[str, Any]:
    if "rate_bps" not in cell.factors:
        return dict(cell.receipt)

    def one_direction(payload: float, messages: float) -> dict[str, float]:
        segments = payload / 1448 + messages / 2
        return {"wire_bytes": payload + 90 * segments, "segments": segments}

    counters = {
        "to_client": one_direction(seen.bytes_to_client * cell.carried, seen.turns),
        "to_server": one_direction(seen.bytes_to_server, seen.turns),
    }
    link = {"rtt_at_rest_ns": {"p50": cell.factors["rtt_ns"]}, "compensate_ns": 10_000, "counters": counters}
    return {**cell.receipt, "link": link}


def _window(cell: Cell) -> Window | None:
    if cell.busy is None:
        return None
    link_cpu_ns = {cpu: int(share * ELAPSED_NS) for cpu, share in cell.link_cpus.items()}
    return Window(length_ns=ELAPSED_NS, interface="", cpus_busy=cell.busy, link_cpu_ns=link_cpu_ns)


def run_of(cells: list[Cell], blocks: int = 4, wobble: float = 0.002) -> Run:
    """The first cell is the baseline. `wobble`: by what share every second block is faster, for intervals that are not nothing."""
    arms = tuple(
        Arm(name=cell.name, role=ArmRole.CONTENDER if number else ArmRole.BASELINE, factors=cell.factors)
        for number, cell in enumerate(cells)
    )
    trials: list[Trial] = []
    for block in range(blocks):
        for position, (cell, arm) in enumerate(zip(cells, arms, strict=True)):
            seen = _measured(cell, cell.tps * (1 + wobble * ((block + position) % 3)))
            trials.append(
                Trial(
                    number=len(trials),
                    block=block,
                    position=position,
                    arm=arm.name,
                    status=TrialStatus.OK,
                    started_unix_ns=0,
                    ended_unix_ns=1,
                    measured=seen,
                    receipt=_receipt(cell, seen),
                    window=_window(cell),
                )
            )
    info = RunInfo(
        run_id="00000000-0000-4000-8000-000000000005",
        created_unix_ns=1_790_000_000_000_000_000,
        howfar_version="0.1.0",
        command=("howfar", "run", "made"),
        plan_name="made",
        quick=True,
        plan_toml="",
        plan=PLAN,
        seed=1,
        arms=arms,
        environment={"cpu_count": 2, "client_cpus": [1], "server_cpus": [0], "placement": "isolated"},
        server_kind="mariadb",
        server_version="10.11.14-MariaDB",
    )
    return Run(info=info, trials=tuple(trials), stop=StopReason.BLOCKS)
