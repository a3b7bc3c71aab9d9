"""Made-up summaries of the three plans with several factors: figures such as a small machine gives, deterministic. The findings are
laid over a synthetic run, so that reports can be tested without the analysis that makes findings."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from tests.unit.synthetic_run import START_NS, PathModel, _info, _trial, measured

from howfar.analysis.analyse import summarise
from howfar.analysis.estimate import Estimate
from howfar.analysis.findings import (
    BreakEvenPoint,
    Ceiling,
    CompressionEconomics,
    CompressionRow,
    CompressionTried,
    Confirmation,
    Curve,
    Cycle,
    CyclePart,
    EncryptionEconomics,
    EncryptionRow,
    EncryptionTried,
    Limit,
    ModelPoint,
    Prediction,
    Resource,
    Scaling,
    ThreadsPoint,
    WhatIf,
    WhatIfAnswer,
    WhatIfCompression,
    WhatIfSettings,
    WhatIfWorked,
)
from howfar.analysis.summary import Advice, CellSummary, NetworkSeries, Summary
from howfar.results.records import Arm, ArmRole, Run, StopReason

THREADS = (1, 4, 16, 64, 256)
GBIT = 10**9
MIB = 2**20


@dataclass(frozen=True)
class Wanted:
    """An arm: its factors and its transactions a second."""

    name: str
    factors: dict[str, Any]
    tps: float
    role: ArmRole = ArmRole.CONTENDER


def soft_min(threads: int, alone: float, most: float, k: float = 2.0) -> float:
    return float(((threads * alone) ** -k + most**-k) ** (-1 / k))


def estimate(value: float, half: float = 0.015) -> Estimate:
    return Estimate(value=value, low=value * (1 - half), high=value * (1 + half))


def grid_run(plan: str, wanted: list[Wanted], blocks: int = 3, seed: int = 1) -> Run:
    rng = random.Random(seed)
    arms = tuple(Arm(name=w.name, role=w.role, factors=w.factors) for w in wanted)
    trials = []
    for block in range(blocks):
        for position, arm in enumerate(rng.sample(wanted, len(wanted))):
            model = PathModel(arm.factors["path"], arm.role, arm.tps, 9.0, 21.0, name=arm.name)
            slow = math.exp(rng.gauss(0, 0.008))
            seen = measured(model, rng, slow, 40, arm.factors["threads"])
            trials.append(_trial(block * len(wanted) + position, block, position, model, seen))
    info = _info(seed, arms).model_copy(update={"plan_name": plan, "command": ("howfar", "run", plan, "--quick")})
    assert info.created_unix_ns == START_NS
    return Run(info=info, trials=tuple(trials), stop=StopReason.TIME)


ADVICE = (
    Advice(
        action="Make the link faster, or send less.",
        because="At 1 Gb/s it is full from 16 connections on; at 2.5 Gb/s the server's CPU would be the limit, at x 1.7.",
    ),
)
"""Its own, like every finding here: what the analysis advises is tested there."""


def told(found: Summary, findings: dict[str, Any]) -> Summary:
    """The summary with these findings and no others."""
    none = {"scaling": None, "compression": None, "encryption": None, "what_if": what_if(), "confirmations": ()}
    return found.model_copy(update=none | {"advice": ADVICE} | findings)


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
    return Limit(resource=resource, says=says, confidence=confidence, **fields)


LINK_LIMIT = limit(
    Resource.LINK_TO_CLIENT,
    "the link to the client is full: 117.1 of 117.3 MiB/s",
    evidence=("interface 117.1 of 117.3 MiB/s (99.8 %)", "queue to the client never empty: 184 to 230 kB"),
    would_change="a link of 2.5 Gb/s: up to 160 transactions/s (x 1.7), then the server's CPU is the limit",
    would_not="more connections or a faster server",
)
CPU_LIMIT = limit(
    Resource.SERVER_CPU,
    "the server's CPU is full: 99.1 % busy, server 64 %, emulator 34 %",
    evidence=("CPU 0 99.1 % busy", "server 0.64, emulator 0.34 of it", "threads waited for a CPU 38 % of the time"),
    would_change="another CPU for the server",
    would_not="a faster link: it is 34 % used",
)
LATENCY_LIMIT = limit(
    Resource.LATENCY,
    "waiting for round trips: 61 % of the cycle, nothing is full",
    "medium",
    evidence=("14 turns x 0.201 ms = 2.8 of 4.6 ms",),
    would_change="more connections, or fewer round trips",
    would_not="more bandwidth",
)


def _limit_of(name: str, threads: int) -> Limit:
    if name == "remote, 1gbit" and threads >= 16:
        return LINK_LIMIT
    if threads >= 4:
        return CPU_LIMIT
    return LATENCY_LIMIT if name != "tcp" else limit(Resource.NOT_ESTABLISHED, "no resource is full", "low")


def _prediction(basis: str, alone: float, most: float, errors: tuple[float, float, float]) -> Prediction:
    grid = sorted({*THREADS, 2, 8, 32, 128})
    points = tuple(
        ModelPoint(
            threads=n, tps=soft_min(n, alone, most), low=soft_min(n, alone, most, 1.5), high=min(n * alone, most)
        )
        for n in grid
    )
    mean, worst, plateau = errors
    return Prediction(
        basis=basis,
        points=points,
        plateau_tps=most,
        knee=most / alone,
        mean_error=mean,
        worst_error=worst,
        plateau_error=plateau,
    )


LINKS: dict[str, tuple[dict[str, Any], float, float]] = {
    "tcp": ({"path": "tcp"}, 110, 250),
    "remote, 1gbit": ({"path": "remote", "rtt_ns": 200_000, "rate_bps": GBIT}, 48, 93),
    "remote, 10gbit": ({"path": "remote", "rtt_ns": 200_000, "rate_bps": 10 * GBIT}, 75, 161),
}
COMMON: dict[str, Any] = {"placement": "isolated", "server": "mariadb"}


def bandwidth() -> Summary:
    """Threads 1 to 256 on loopback, 1 and 10 Gb/s."""
    wanted = [
        Wanted(f"{name}, {n} thread{'s' if n > 1 else ''}", {**factors, "threads": n, **COMMON}, soft_min(n, one, most))
        for name, (factors, one, most) in LINKS.items()
        for n in THREADS
    ]
    base = wanted[2]
    wanted[2] = Wanted(base.name, base.factors, base.tps, ArmRole.BASELINE)
    wanted.append(Wanted(f"{base.name} (again)", base.factors, base.tps, ArmRole.DUPLICATE))
    found = summarise(grid_run("bandwidth", wanted))
    cells = []
    for cell in found.cells:
        name, threads = cell.arm.rsplit(", ", 1)[0], int(cell.factors["threads"])
        rate = cell.factors.get("rate_bps")
        ceiling = float(rate) / 8 * 0.984 if rate else None
        full = name == "remote, 1gbit"
        cells.append(
            cell.model_copy(
                update={
                    "cycle": cycle(cell, 0.6 if full else 0.0),
                    "limit": _limit_of(name, threads),
                    "network": network(cell, tps(cell) * 1.325e6, ceiling),
                }
            )
        )
    curves = tuple(_curve(name, cells) for name in LINKS)
    says = (
        "At 1 Gb/s the link is full from 16 connections on (92.7 transactions/s, 117.1 of 117.3 MiB/s); "
        "at 10 Gb/s the server's CPU is the limit."
    )
    return told(
        found,
        {
            "cells": tuple(cells),
            "verdict": says,
            "scaling": Scaling(curves=curves, says="The link costs nothing at 1 connection and caps the rest at 93/s."),
            "confirmations": (
                Confirmation(
                    arm="remote, 1gbit, 64 threads",
                    resource=Resource.LINK_TO_CLIENT,
                    changed="rate 1 Gb/s -> 1.5 Gb/s",
                    predicted=1.48,
                    measured=Estimate(value=1.46, low=1.43, high=1.49),
                    confirmed=True,
                    blocks=3,
                ),
            ),
        },
    )


def _curve(name: str, cells: list[CellSummary]) -> Curve:
    factors, one, most = LINKS[name]
    published = {"remote, 1gbit": (326, 1143, 2400, 2838, 2867), "remote, 10gbit": (394, 1545, 5648, 15763, 18529)}
    theirs = published.get(name)
    mine = [cell for cell in cells if cell.arm.startswith(f"{name}, ") and cell.role is not ArmRole.DUPLICATE]
    cpu = Ceiling(resource=Resource.SERVER_CPU, tps=most if "1gbit" not in name else 163.0, says="server CPU: 6.2 ms")
    ceilings = [cpu]
    if rate := factors.get("rate_bps"):
        wire = Ceiling(resource=Resource.LINK_TO_CLIENT, tps=93.1 * rate / GBIT, says="1.325 MB a transaction")
        ceilings = sorted([cpu, wire], key=lambda ceiling: ceiling.tps)
    return Curve(
        name=name,
        factors={**factors, **COMMON},
        points=tuple(
            ThreadsPoint(
                threads=int(cell.factors["threads"]),
                arm=cell.arm,
                tps=estimate(tps(cell)),
                published_tps=float(theirs[index]) if theirs else None,
            )
            for index, cell in enumerate(mine)
        ),
        ceilings=tuple(ceilings),
        own=_prediction("its own ends", one, most, (0.02, 0.05, 0.004)),
        foreign=None
        if name == "tcp"
        else _prediction("tcp at 1 and 256 threads, 1.27 MB a transaction", one * 1.06, most, (0.034, 0.081, -0.012)),
        published="Percona, 2019" if theirs else None,
    )


def what_if() -> WhatIf:
    def worked(threads: int, rate: float, tls: bool, compression: str, answer: tuple[float, str]) -> WhatIfWorked:
        asked = WhatIfSettings(
            threads=threads, rtt_s=2e-4, rate_bps=rate, tls=tls, connect_each=False, compression=compression
        )
        return WhatIfWorked(
            settings=asked,
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
        link_client_segment_s=1.1e-6,
        link_server_segment_s=1.2e-6,
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
        threads_most=2048,
        worked=(
            worked(64, GBIT, False, "off", (92.9, "link to client")),
            worked(64, 10 * GBIT, False, "off", (161.0, "server CPU")),
            worked(64, GBIT, False, "zstd-1", (121.0, "server CPU")),
            worked(64, GBIT, True, "off", (92.1, "link to client")),
            worked(1, GBIT, False, "off", (46.1, "latency")),
        ),
    )


# ---------------------------------------------------------------- compression

CONTENTS = {"digits": (0.46, 0.47), "text": (0.38, 0.41), "incompressible": (1.0, 1.0)}
ALGORITHMS = {"zlib": 27.0, "zstd-1": 3.3, "zstd-9": 30.0}
TXN_BYTES = 43_300
CPU_TPS = 1000.0


def _compressed_tps(rate: float, ratio: float, ns: float) -> tuple[float, float]:
    plain = min(CPU_TPS, rate / 8 / TXN_BYTES)
    cpu = 1 / (1 / CPU_TPS + ns * 1e-9 * TXN_BYTES)
    return plain, min(cpu, rate / 8 / (TXN_BYTES * ratio))


def _ratio_of(content: str, algorithm: str) -> float:
    return CONTENTS[content][0 if algorithm == "zlib" else 1]


def compression() -> Summary:
    """Off, three algorithms; three kinds of data; 100 Mb/s and 1 Gb/s."""
    wanted: list[Wanted] = []
    for rate in (10**8, GBIT):
        for content in CONTENTS:
            for algorithm in ("off", *ALGORITHMS):
                plain, packed = _compressed_tps(rate, _ratio_of(content, algorithm), ALGORITHMS.get(algorithm, 0))
                shown = "uncompressed" if algorithm == "off" else algorithm
                rate_name = "1gbit" if rate == GBIT else "100mbit"
                factors = {"path": "remote", "threads": 16, **COMMON, "rtt_ns": 200_000, "rate_bps": rate}
                factors |= {"compression": algorithm, "content": content}
                first = not wanted
                wanted.append(
                    Wanted(
                        f"remote, {rate_name}, {shown}, {content}",
                        factors,
                        plain if algorithm == "off" else packed,
                        ArmRole.BASELINE if first else ArmRole.CONTENDER,
                    )
                )
    base = wanted[0]
    wanted.append(Wanted(f"{base.name} (again)", base.factors, base.tps, ArmRole.DUPLICATE))
    found = summarise(grid_run("compression", wanted))
    cells = tuple(_compression_cell(cell) for cell in found.cells)
    rows = tuple(_compression_row(content, algorithm) for content in CONTENTS for algorithm in ALGORITHMS)
    verdict = (
        "At 100 Mb/s compression pays for digits and text (zstd-1: x 2.12 and x 2.43) and never for incompressible data; "
        "at 1 Gb/s the link is not the limit, and it costs up to half."
    )
    says = "zstd-1 pays below 0.27 Gb/s on digits, zlib below 0.17 Gb/s; incompressible data never gains."
    return told(
        found,
        {
            "cells": cells,
            "verdict": verdict,
            "compression": CompressionEconomics(rows=rows, says=says),
        },
    )


def _compression_cell(cell: CellSummary) -> CellSummary:
    slow = cell.factors["rate_bps"] != GBIT and tps(cell) < 700
    ceiling = float(cell.factors["rate_bps"]) / 8 * 0.984
    update = {
        "cycle": cycle(cell, 0.5 if slow else 0.0),
        "limit": LINK_LIMIT if slow else CPU_LIMIT,
        "network": network(cell, min(ceiling, tps(cell) * TXN_BYTES), ceiling),
    }
    return cell.model_copy(update=update)


def _compression_row(content: str, algorithm: str) -> CompressionRow:
    ratio, ns = _ratio_of(content, algorithm), ALGORITHMS[algorithm]
    rates = [10**exponent for exponent in (7, 7.5, 8, 8.2, 8.4, 8.55, 8.7, 9, 9.5, 10)]
    points = [(rate, *_compressed_tps(rate, ratio, ns)) for rate in rates]
    crossing = 8 * TXN_BYTES / (1 / CPU_TPS + ns * 1e-9 * TXN_BYTES) if ratio < 1 else None

    def tried(rate: int) -> CompressionTried:
        plain, packed = _compressed_tps(rate, ratio, ns)
        return CompressionTried(
            rate_bps=float(rate),
            threads=16,
            ratio=estimate(packed / plain),
            predicted=packed / plain * 1.02,
            agrees=True,
        )

    return CompressionRow(
        content=content,
        algorithm=algorithm,
        ratio_to_client=ratio,
        ratio_to_server=0.8,
        client_ns_per_byte=ns * 0.2,
        server_ns_per_byte=ns * 0.8,
        break_even_bps=crossing,
        measured=(tried(10**8), tried(GBIT)),
        level_advice="level 1: higher ones cost more and save hardly anything" if algorithm != "zstd-9" else "",
        curve=tuple(BreakEvenPoint(rate_bps=r, plain_tps=plain, compressed_tps=packed) for r, plain, packed in points),
    )


# ---------------------------------------------------------------- encryption

VERSIONS = {"off": (1.0, 480.0), "1.2": (0.985, 210.0), "1.3": (0.98, 190.0)}


def encryption() -> Summary:
    """TLS off, 1.2, 1.3; persistent or a connect a transaction; three numbers of connections."""
    wanted: list[Wanted] = []
    for version, (keep, churn) in VERSIONS.items():
        for connect in ("persistent", "per-transaction"):
            for threads in (1, 16, 64):
                most = 700 * keep if connect == "persistent" else churn
                alone = 140 * keep if connect == "persistent" else churn / 5
                name = f"remote, {threads} thread{'s' if threads > 1 else ''}, {'plain' if version == 'off' else 'TLS ' + version}, "
                name += "persistent" if connect == "persistent" else "connect per transaction"
                factors = {"path": "remote", "threads": threads, **COMMON, "rtt_ns": 200_000, "rate_bps": GBIT}
                factors |= {"tls": version, "connect": connect}
                role = ArmRole.BASELINE if not wanted else ArmRole.CONTENDER
                wanted.append(Wanted(name, factors, soft_min(threads, alone, most), role))
    base = wanted[0]
    wanted.append(Wanted(f"{base.name} (again)", base.factors, base.tps, ArmRole.DUPLICATE))
    found = summarise(grid_run("encryption", wanted))
    cells = [
        cell.model_copy(
            update={
                "cycle": cycle(cell, 0.0),
                "limit": CPU_LIMIT if int(cell.factors["threads"]) > 1 else LATENCY_LIMIT,
                "network": network(cell, tps(cell) * TXN_BYTES, GBIT / 8 * 0.984),
            }
        )
        for cell in found.cells
    ]
    curves = []
    for version in VERSIONS:
        for connect in ("persistent", "per-transaction"):
            mine = [
                c
                for c in cells
                if c.factors["tls"] == version and c.factors["connect"] == connect and "again" not in c.arm
            ]
            curves.append(
                Curve(
                    name=f"{'plain' if version == 'off' else 'TLS ' + version}, {connect}",
                    factors={key: value for key, value in mine[0].factors.items() if key != "threads"},
                    points=tuple(
                        ThreadsPoint(
                            threads=int(c.factors["threads"]), arm=c.arm, tps=estimate(tps(c)), published_tps=None
                        )
                        for c in mine
                    ),
                    ceilings=(Ceiling(resource=Resource.SERVER_CPU, tps=tps(mine[-1]) * 1.02, says="server CPU"),),
                    own=None,
                    foreign=None,
                    published=None,
                )
            )
    rows = tuple(_encryption_row(version) for version in ("1.2", "1.3"))
    says = (
        "Churn costs, bytes hardly: a connect a transaction loses 60 % with TLS 1.3, persistent connections lose 2 %."
    )
    return told(
        found,
        {
            "cells": tuple(cells),
            "verdict": says,
            "scaling": Scaling(curves=tuple(curves), says="TLS scales like plain connections."),
            "encryption": EncryptionEconomics(rows=rows, says=says),
        },
    )


def _encryption_row(version: str) -> EncryptionRow:
    keep, churn = VERSIONS[version]
    return EncryptionRow(
        version=version,
        connect_us=1480.0,
        connect_turns=2.0 if version == "1.2" else 1.0,
        byte_ns=2.1,
        persistent=tuple(EncryptionTried(threads=n, ratio=estimate(keep)) for n in (1, 16, 64)),
        per_transaction=tuple(EncryptionTried(threads=n, ratio=estimate(churn / 480)) for n in (1, 16, 64)),
        resumed=False,
    )


PLANS = {"bandwidth": bandwidth, "compression": compression, "encryption": encryption}
