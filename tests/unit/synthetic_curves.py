"""A synthetic run whose throughputs follow from demands by another law than the model's: for tests of curves and economics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.made import build, build_run, build_trial

from howfar.contract.messages import DirectionStats
from howfar.contract.receipt import LinkCounters, LinkReceipt, QuantilesNs, TrialReceipt
from howfar.contract.receipt_messages import Bytes, CpuUse
from howfar.plan.workload import Workload
from howfar.store.records import Arm, ArmRole, Measured, Run, StopReason, Trial, Window

ELAPSED_NS = 2_000_000_000
WORKLOAD = Workload()
"""Ten point selects and four ranges of 100 rows, in a transaction."""
ROUND_TRIPS = 16
REPLIES, REQUESTS = 39_432.0, 396.0
PLAN: dict[str, Any] = {
    "name": "made",
    "workload": WORKLOAD.model_dump(mode="json", exclude={"distribution"}),
    "data": {"tables": 10, "table_size": 1000},
}


@dataclass(frozen=True)
class CurveCell:
    """One arm: its factors, and the figures of each of its trials."""

    factors: dict[str, Any]
    tps: float
    client_s: float = 0.0002
    server_s: float = 0.0008
    link_s: float = 0.0
    wire_share: float = 1.0
    """Share of the replies' bytes that the link carried."""
    receipt: TrialReceipt = field(default_factory=TrialReceipt)
    client_wait_s: float = 0.0
    server_wait_s: float = 0.0
    busy: dict[int, float] | None = None
    """Busy share of each processor: 0 is the server's, 1 the client's. None: no window."""
    replies: float = REPLIES
    """Bytes of the replies per transaction, before compression."""
    link_cpus: dict[int, float] = field(default_factory=dict)
    """The emulator's share of each processor; needs `busy`."""

    @property
    def name(self) -> str:
        return ", ".join(
            f"{level} threads" if name == "threads" else str(level) for name, level in self.factors.items()
        )


def _cpu(role: str, cpu_ns: float, wait_ns: float) -> CpuUse:
    own_ns, waited_ns = int(cpu_ns), int(wait_ns)
    return build(CpuUse, role=role, cpu_ns=own_ns, runnable_wait_ns=waited_ns, busiest_thread_ns=own_ns, threads=1)


def _measured(cell: CurveCell, tps: float) -> Measured:
    transactions = round(tps * ELAPSED_NS / 1e9)
    spent = {"client": cell.client_s, "server": cell.server_s, "link": cell.link_s}
    waited = {"client": cell.client_wait_s, "server": cell.server_wait_s}
    each_ns = transactions * 1e9
    return build(
        Measured,
        elapsed_ns=ELAPSED_NS,
        transactions=transactions,
        queries=transactions * ROUND_TRIPS,
        round_trips=transactions * ROUND_TRIPS,
        bytes=Bytes(to_server=int(transactions * REQUESTS), to_client=int(transactions * cell.replies)),
        cpu=tuple(_cpu(role, each * each_ns, waited.get(role, 0.0) * each_ns) for role, each in spent.items() if each),
    )


def _receipt(cell: CurveCell, seen: Measured) -> TrialReceipt:
    if "rate_bps" not in cell.factors:
        return cell.receipt

    def one_direction(payload: float, messages: float) -> DirectionStats:
        segments = payload / 1448 + messages / 2
        return build(DirectionStats, wire_bytes=round(payload + 90 * segments), segments=round(segments))

    counters = LinkCounters(
        to_client=one_direction(seen.bytes.to_client * cell.wire_share, seen.round_trips),
        to_server=one_direction(seen.bytes.to_server, seen.round_trips),
    )
    at_rest = QuantilesNs(p50=cell.factors["rtt_ns"])
    link = LinkReceipt(rtt_at_rest_ns=at_rest, compensate_ns=10_000, counters=counters)
    return cell.receipt.updated(TrialReceipt(link=link))


def _window(cell: CurveCell) -> Window | None:
    if cell.busy is None:
        return None
    link_cpu_ns = {cpu: int(share * ELAPSED_NS) for cpu, share in cell.link_cpus.items()}
    return Window(length_ns=ELAPSED_NS, interface="", cpus_busy=cell.busy, link_cpu_ns=link_cpu_ns)


def run_of(cells: list[CurveCell], blocks: int = 4, wobble: float = 0.002) -> Run:
    """A run of these cells, the first as baseline. Trials are faster by 0, 1 or 2 times `wobble`, so that intervals have a width."""
    arms = tuple(
        Arm(name=cell.name, role=ArmRole.CONTENDER if number else ArmRole.BASELINE, factors=cell.factors)
        for number, cell in enumerate(cells)
    )
    trials: list[Trial] = []
    for block in range(blocks):
        for position, (cell, arm) in enumerate(zip(cells, arms, strict=True)):
            seen = _measured(cell, cell.tps * (1 + wobble * ((block + position) % 3)))
            found = {"measured": seen, "receipt": _receipt(cell, seen), "window": _window(cell)}
            trials.append(build_trial(len(trials), arm.name, block=block, position=position, **found))
    environment = {"cpu_count": 2, "client_cpus": [1], "server_cpus": [0], "placement": "isolated"}
    about = {"plan": PLAN, "environment": environment, "server_version": "10.11.14-MariaDB"}
    about["run_id"] = "00000000-0000-4000-8000-000000000005"
    return build_run("made", arms, trials, StopReason.BLOCKS, quick=True, **about)
