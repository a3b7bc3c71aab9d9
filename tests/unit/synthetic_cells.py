"""Building blocks of made-up summaries of plans with several factors: arms, runs, cycles, limits, networks. The figures are
deterministic, and typical of a small machine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from tests.unit.synthetic_run import PathModel, _trial, measured, run_of

from howfar.analysis.advice import advise_on_limits
from howfar.analysis.answer import Answer, sentence
from howfar.analysis.causes import CAUSES
from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.bottleneck.cycle import Cycle, CyclePart
from howfar.bottleneck.limit import Limit
from howfar.bottleneck.traffic import NetworkSeries
from howfar.experiments.network.what_if import WhatIf, WhatIfAnswer, WhatIfCompression, WhatIfSettings, WhatIfWorked
from howfar.findings import Finding, Texts
from howfar.model.resource import Resource
from howfar.stats.estimate import Estimate
from howfar.store.records import Arm, ArmRole, Run, StopReason

THREADS = (1, 4, 16, 64, 256)
GBIT = 10**9
MIB = 2**20


@dataclass(frozen=True)
class Wanted:
    """An arm: its factors and its transactions per second."""

    name: str
    factors: dict[str, Any]
    tps: float
    role: ArmRole = ArmRole.CONTENDER


def soft_min(threads: int, alone: float, most: float, k: float = 2.0) -> float:
    return float(((threads * alone) ** -k + most**-k) ** (-1 / k))


def estimate(value: float, half: float = 0.015) -> Estimate:
    return Estimate(value=value, low=value * (1 - half), high=value * (1 + half))


def grid_run(plan: str, wanted: list[Wanted], blocks: int = 6, seed: int = 1) -> Run:
    rng = random.Random(seed)
    arms = tuple(Arm(name=w.name, role=w.role, factors=w.factors) for w in wanted)
    trials = []
    for block in range(blocks):
        for position, arm in enumerate(rng.sample(wanted, len(wanted))):
            emulator = 14.0 if "rtt_ns" in arm.factors else None
            model = PathModel(arm.factors["path"], arm.role, arm.tps, 9.0, 21.0, link_us=emulator, name=arm.name)
            slow = math.exp(rng.gauss(0, 0.008))
            seen = measured(model, rng, slow, 40, arm.factors["threads"])
            trials.append(_trial(block * len(wanted) + position, block, position, model, seen))
    return run_of(plan, arms, trials, StopReason.TIME, seed=seed)


def only_these(found: Summary, findings: dict[str, Any]) -> Summary:
    """The summary with these findings and no others."""
    keys = found.findings.keys()
    made = dict.fromkeys(keys) | {"what_if": what_if()} | {key: findings.pop(key) for key in keys & findings.keys()}
    advice = tuple(advise_on_limits(findings["cells"]))
    return found.model_copy(update={"confirmations": (), "advice": advice, "findings": made} | findings)


def answered(texts: Texts, *findings: Finding, causes: tuple[Finding, ...] = ()) -> dict[str, Any]:
    """The fields of a summary with this answer."""
    answer = Answer(
        question="What is made up?",
        sentence=sentence(findings, texts),
        findings=findings,
        why=sentence(causes, {**CAUSES, **texts}),
        causes=causes,
    )
    return {"answer": answer, "verdict": answer.sentence}


def tps(cell: CellSummary) -> float:
    return cell.qps.value / cell.queries_per_txn


def cycle(cell: CellSummary, wire_share: float) -> Cycle:
    threads = float(cell.factors["threads"])
    us = threads * 1e6 / tps(cell)
    shares = [
        ("client CPU", min(0.2, 0.5 / threads), "measured"),
        ("server CPU", min(0.4, 0.9 / threads), "measured"),
        ("waiting for a CPU", 0.05 if wire_share else 0.35 * (1 - 1 / threads), "measured"),
        ("wire", wire_share * 0.1, "computed"),
        ("queue at the link", wire_share * 0.9 * (1 - 1 / threads), "bounded"),
        ("round trips", min(0.2, 0.6 / threads) if "rtt_ns" in cell.factors else 0.0, "measured"),
    ]
    parts = tuple(CyclePart(name=name, us=us * share, basis=basis) for name, share, basis in shares)
    rest = us - sum(part.us for part in parts)
    return Cycle(us=us, parts=(*parts, CyclePart(name="rest", us=rest, basis="measured")), rest_share=rest / us)


def network(cell: CellSummary, bytes_per_s: float, ceiling: float | None) -> NetworkSeries:
    rng = random.Random(cell.arm)
    at = tuple(0.25 * index for index in range(1, 17))
    full = ceiling is not None and bytes_per_s > 0.97 * ceiling
    queued = tuple(int((230_000 if full else 9_000) * rng.uniform(0.8, 1)) for _ in at) if ceiling else None
    return NetworkSeries(
        trial=7,
        at_s=at,
        to_client_bytes_per_s=tuple(bytes_per_s * rng.uniform(0.99, 1.0) for _ in at),
        to_server_bytes_per_s=tuple(bytes_per_s * 0.04 * rng.uniform(0.95, 1.05) for _ in at),
        to_client_queue_bytes=queued,
        to_server_queue_bytes=tuple(rng.randrange(0, 900) for _ in at) if ceiling else None,
        retransmits_per_s=tuple(float(rng.random() < 0.1 and full) * 4 for _ in at),
        interface_ceiling_bytes_per_s=ceiling,
        payload_ceiling_bytes_per_s=ceiling and ceiling * 112.2 / 117.3,
    )


def limit(resource: Resource, says: str, confidence: str = "high", **texts: Any) -> Limit:
    fields = {"evidence": (says,), "would_change": "", "would_not": ""} | texts
    return Limit(resource=resource, text=says, confidence=confidence, **fields)


LINK_LIMIT = limit(
    Resource.LINK_TO_CLIENT,
    "the link to the client is full: 117.1 of 117.3 MiB/s",
    evidence=("interface 117.1 of 117.3 MiB/s (99.8 %)", "queue to the client never empty: 184 to 230 kB"),
    would_change="a link of 2.5 Gb/s: up to 160 transactions/s (x 1.7), then the server's CPU is the limit",
    would_not="more connections or a faster server",
)
SLOW_LINK_LIMIT = limit(
    Resource.LINK_TO_CLIENT,
    "the link to the client is full: 11.7 of 11.7 MiB/s",
    evidence=("interface 11.7 of 11.7 MiB/s (99.8 %)", "queue to the client never empty: 184 to 230 kB"),
    would_change="a link of 250 Mb/s: up to 660 transactions/s (x 2.3), then the server's CPU is the limit",
    would_not="more connections or a faster server",
)
"""The limit of the 100 Mb/s link."""
CPU_LIMIT = limit(
    Resource.SERVER_CPU,
    "the server's CPU is full: 99.1 % busy, server 64 %, emulator 34 %",
    evidence=("CPU 0 99.1 % busy", "server 0.64, emulator 0.34 of it", "threads waited for a CPU 38 % of the time"),
    would_change="another CPU for the server",
    would_not="a faster link: it is 34 % used",
)
LATENCY_LIMIT = limit(
    Resource.LATENCY,
    "waiting for round trips: 61 % of the cycle, no resource is full",
    "medium",
    evidence=("14 turns x 0.201 ms = 2.8 of 4.6 ms",),
    would_change="more connections, or fewer round trips",
    would_not="more bandwidth",
)

COMMON: dict[str, Any] = {"placement": "isolated", "server": "mariadb"}


def what_if() -> WhatIf:
    def worked(threads: int, rate: float, tls: bool, compression: str, answer: tuple[float, str]) -> WhatIfWorked:
        settings = WhatIfSettings(
            threads=threads, rtt_s=2e-4, rate_bps=rate, tls=tls, connect_each=False, compression=compression
        )
        return WhatIfWorked(
            settings=settings,
            answer=WhatIfAnswer(tps=answer[0], limits=answer[1], cycle_s=threads / answer[0], knee=1.9),
        )

    return WhatIf(
        arm="remote, 1gbit, 64 threads",
        threads=64,
        tps=92.6,
        turns=16,
        think_s=0.0004,
        rtt_s=2e-4,
        rate_bps=float(GBIT),
        client_cpu_s=0.0021,
        server_cpu_s=0.0040,
        client_cpus=0.66,
        server_cpus=0.65,
        shared_cpu=False,
        replies_bytes=(130_000.0,) * 10 + (11.0,) * 2,
        requests_bytes=(120.0,) * 16,
        tls_byte_s=1.1e-9,
        connect_turns=3,
        connect_client_s=0.0002,
        connect_server_s=0.0003,
        tls_connect_turns=1,
        tls_connect_client_s=0.0006,
        tls_connect_server_s=0.0009,
        compression=(
            WhatIfCompression(
                algorithm="zlib", ratio_to_client=0.45, ratio_to_server=0.8, client_byte_s=4e-9, server_byte_s=27e-9
            ),
            WhatIfCompression(
                algorithm="zstd-1", ratio_to_client=0.47, ratio_to_server=0.8, client_byte_s=1e-9, server_byte_s=3.3e-9
            ),
        ),
        max_threads=2048,
        worked=(
            worked(64, GBIT, False, "off", (92.9, "link to client")),
            worked(64, 10 * GBIT, False, "off", (161.0, "server CPU")),
            worked(64, GBIT, False, "zstd-1", (121.0, "server CPU")),
            worked(64, GBIT, True, "off", (92.1, "link to client")),
            worked(1, GBIT, False, "off", (46.1, "latency")),
        ),
    )
