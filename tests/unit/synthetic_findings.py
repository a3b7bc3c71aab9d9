"""Made-up summaries of the three plans with several factors: `PLANS`. The findings are added to a synthetic run, so that reports
can be tested without the analysis that makes findings."""

from __future__ import annotations

from typing import Any

from tests.unit.synthetic_cells import (
    COMMON,
    CPU_LIMIT,
    GBIT,
    LATENCY_LIMIT,
    LINK_LIMIT,
    THREADS,
    Wanted,
    answered,
    cycle,
    estimate,
    grid_run,
    limit,
    network,
    only_these,
    soft_min,
    tps,
)
from tests.unit.synthetic_sessions import compression, encryption

from howfar.analysis.causes import limit_cause
from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.bottleneck.limit import Confirmation, Limit
from howfar.experiments.network.bandwidth.analysis import Ceiling, Curve, Scaling, ThreadsPoint
from howfar.experiments.network.bandwidth.texts import TEXTS
from howfar.experiments.network.fit import ModelPoint, Prediction
from howfar.experiments.registry import summarise
from howfar.findings import Finding
from howfar.model.resource import Resource
from howfar.stats.estimate import Estimate
from howfar.store.records import ArmRole


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
        ceiling_tps=most,
        plateau_tps=most,
        knee=most / alone,
        mean_error=mean,
        worst_error=worst,
        plateau_error=plateau,
        tested=3,
        by_construction=1,
    )


LINKS: dict[str, tuple[dict[str, Any], float, float]] = {
    "tcp": ({"path": "tcp"}, 110, 250),
    "remote, 1gbit": ({"path": "remote", "rtt_ns": 200_000, "rate_bps": GBIT}, 48, 93),
    "remote, 10gbit": ({"path": "remote", "rtt_ns": 200_000, "rate_bps": 10 * GBIT}, 75, 161),
}


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
                    "cycle": cycle(cell, 0.4 if full else 0.0),
                    "limit": _limit_of(name, threads),
                    "network": network(cell, tps(cell) * 1.325e6, ceiling),
                }
            )
        )
    curves = tuple(_curve(name, cells) for name in LINKS)
    place = {"unsure": 0, "on_link": 1}
    findings = (
        Finding(
            id="link-full", subject="at 1 Gb/s", estimate=estimate(1.73), parameters={**place, "faster_bps": 10 * GBIT}
        ),
        Finding(id="server-cpu", subject="at 10 Gb/s", parameters=place),
    )
    fastest = {"at 1 Gb/s": "remote, 1gbit, 64 threads", "at 10 Gb/s": "remote, 10gbit, 64 threads"}
    found_causes = (limit_cause(cell, where) for where, arm in fastest.items() for cell in cells if cell.arm == arm)
    causes = tuple(cause for cause in found_causes if cause is not None)
    return only_these(
        found,
        {
            "cells": tuple(cells),
            **answered(TEXTS, *findings, causes=causes),
            "scaling": Scaling(curves=curves, text="The link costs nothing at 1 connection and caps the rest at 93/s."),
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
    cpu = Ceiling(resource=Resource.SERVER_CPU, tps=most if "1gbit" not in name else 163.0, text="server CPU: 6.2 ms")
    ceilings = [cpu]
    if rate := factors.get("rate_bps"):
        wire = Ceiling(resource=Resource.LINK_TO_CLIENT, tps=93.1 * rate / GBIT, text="1.325 MB a transaction")
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
        else _prediction(
            "from tcp at 1 and 256 threads, and 1.27 MB a transaction", one * 1.06, most, (0.034, 0.081, -0.012)
        ),
        published="Percona, 2019" if theirs else None,
    )


PLANS = {"bandwidth": bandwidth, "compression": compression, "encryption": encryption}
