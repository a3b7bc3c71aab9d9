"""Made-up summaries of the plans that vary the session: `compression` and `encryption`."""

from __future__ import annotations

from tests.unit.synthetic_cells import (
    COMMON,
    CPU_LIMIT,
    GBIT,
    LATENCY_LIMIT,
    SLOW_LINK_LIMIT,
    Wanted,
    answered,
    cycle,
    estimate,
    grid_run,
    network,
    only_these,
    soft_min,
    tps,
)

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.experiments.network.bandwidth.analysis import Ceiling, Curve, Scaling, ThreadsPoint
from howfar.experiments.network.compression.analysis import (
    BreakEvenPoint,
    CompressionEconomics,
    CompressionRow,
    CompressionTried,
)
from howfar.experiments.network.compression.texts import TEXTS as COMPRESSION
from howfar.experiments.network.encryption.analysis import EncryptionEconomics, EncryptionRow, EncryptionTried
from howfar.experiments.network.encryption.texts import TEXTS as ENCRYPTION
from howfar.experiments.registry import summarise
from howfar.findings import Finding
from howfar.model.resource import Resource
from howfar.plan.factors import tls_label
from howfar.store.records import ArmRole

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
    """Compression off and three algorithms; three kinds of data; 100 Mb/s and 1 Gb/s."""
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
    findings = (
        *(_helps(content, plain, packed) for content, plain, packed in (("text", 288, 701), ("digits", 290, 615))),
        Finding(id="slower", subject="at 1 Gb/s", estimate=estimate(0.88)),
        Finding(id="slower", subject="for incompressible data at 100 Mb/s", estimate=estimate(0.99)),
    )
    says = "zstd-1 pays below 0.27 Gb/s on digits, zlib below 0.17 Gb/s; incompressible data never gains."
    return only_these(
        found,
        {
            "cells": cells,
            **answered(COMPRESSION, *findings, causes=(_SAVED,)),
            "compression": CompressionEconomics(rows=rows, text=says),
        },
    )


_SAVED = Finding(
    id="bytes-and-cpu",
    subject="at 100 Mb/s",
    estimate=estimate(1.18),
    parameters={"algorithm": "zstd-1", "content": "text", "bytes": 0.41},
)
"""Why compression helps."""
_CONNECTS = Finding(id="cpu/per-transaction", subject="TLS 1.3", estimate=estimate(2.6))
"""Why TLS costs throughput."""


def _helps(content: str, plain: float, packed: float) -> Finding:
    parameters: dict[str, str | int | float] = {"content": content, "location": "at 100 Mb/s", "algorithm": "zstd-1"}
    parameters |= {"plain_transactions_per_s": plain, "transactions_per_s": packed}
    ratio = estimate(packed / plain)
    return Finding(id="helps", subject=f"{content} at 100 Mb/s", estimate=ratio, parameters=parameters)


def _compression_cell(cell: CellSummary) -> CellSummary:
    slow = cell.factors["rate_bps"] != GBIT and tps(cell) < 700
    ceiling = float(cell.factors["rate_bps"]) / 8 * 0.984
    update = {
        "cycle": cycle(cell, 0.5 if slow else 0.0),
        "limit": SLOW_LINK_LIMIT if slow else CPU_LIMIT,
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
    """TLS off, 1.2, 1.3; persistent connections or one per transaction; three numbers of connections."""
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
    rows = tuple(_encryption_row(version) for version in ("1.2", "1.3"))
    says = "Connections cost, bytes hardly do."
    findings = [
        Finding(id=connect, subject=f"TLS {version}", estimate=estimate(ratio), parameters={"several": 1})
        for connect, version, ratio in (
            ("per-transaction", "1.3", 189 / 479),
            ("persistent", "1.3", 0.98),
            ("persistent", "1.2", 0.985),
        )
    ]
    return only_these(
        found,
        {
            "cells": tuple(cells),
            **answered(ENCRYPTION, *findings, causes=(_CONNECTS,)),
            "scaling": Scaling(curves=_encryption_curves(cells), text="TLS scales like plain connections."),
            "encryption": EncryptionEconomics(rows=rows, text=says),
        },
    )


def _encryption_curves(cells: list[CellSummary]) -> tuple[Curve, ...]:
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
                    ceilings=(Ceiling(resource=Resource.SERVER_CPU, tps=tps(mine[-1]) * 1.02, text="server CPU"),),
                    own=None,
                    foreign=None,
                    published=None,
                )
            )
    return tuple(curves)


def _churned(ratio: float, threads: int) -> EncryptionTried:
    """A cell that connects per transaction. A lone connection has no prediction: no other cell shows a connect's round trips."""
    predicted = ratio * 0.97 if threads > 1 else None
    return EncryptionTried(threads=threads, ratio=estimate(ratio), predicted=predicted)


def _encryption_row(version: str) -> EncryptionRow:
    keep, churn = VERSIONS[version]
    return EncryptionRow(
        version=tls_label(version),
        connect_us=1480.0,
        connect_turns=2.0 if version == "1.2" else 1.0,
        byte_ns=2.1,
        persistent=tuple(EncryptionTried(threads=n, ratio=estimate(keep), predicted=keep * 1.01) for n in (1, 16, 64)),
        per_transaction=tuple(_churned(churn / 480, n) for n in (1, 16, 64)),
        resumed=False,
    )
