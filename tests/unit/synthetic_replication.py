"""Made-up summaries of the plans of replication: `PLANS`. Figures are those that MariaDB gave over such links; the findings are laid
over a synthetic run. What is said of them, and advised, the analysis itself says."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.made_faults import fallback_trial, lagging_trial
from tests.unit.synthetic_cells import Wanted, estimate, grid_run, told

from howfar.analysis.analyse import summarise
from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import CrashFindings, CrashLoss, CrashPoint, loss_sentences
from howfar.experiments.fallback.analysis import FallbackStory, fallback_series
from howfar.experiments.replication.advice import replication_advice
from howfar.experiments.replication.analysis import (
    CommitCost,
    ReplicationCost,
    ReplicationCurve,
    cost_sentences,
    lag_series,
)
from howfar.experiments.replication.trade import ReplicationFindings, TradeRow, replication_verdict
from howfar.lab.replication.proof import Snapshot, window_facts
from howfar.lab.replication.semi_sync import PrimaryEnd
from howfar.stats.estimate import Estimate
from howfar.store.records import ArmRole

MS = 1_000_000
THREADS = (1, 16, 64)
RTTS = (5 * MS, 85 * MS)
WORDS = {
    "none": "no replica",
    "async": "asynchronous",
    "after-sync": "semi-sync AFTER_SYNC",
    "after-commit": "semi-sync AFTER_COMMIT",
}
TPS: dict[tuple[str, int | None], tuple[float, float, float]] = {
    ("none", None): (9870, 18_200, 24_650),
    ("async", 5 * MS): (9500, 17_950, 24_435),
    ("async", 85 * MS): (9480, 17_920, 24_110),
    ("after-sync", 5 * MS): (184, 1810, 5607),
    ("after-sync", 85 * MS): (11.7, 117.0, 472),
    ("after-commit", 5 * MS): (185, 2460, 7340),
    ("after-commit", 85 * MS): (11.7, 183.0, 725),
}
SIGNED_ERRORS = (0.004, -0.031, 0.062)


def _arm(mode: str, rtt: int | None, threads: int) -> str:
    link = f", replica RTT {rtt // MS}ms" if rtt else ""
    return f"{threads} thread{'s' if threads > 1 else ''}, {WORDS[mode]}{link}"


def _factors(mode: str, rtt: int | None, threads: int) -> dict[str, Any]:
    found: dict[str, Any] = {"path": "socket", "threads": threads, "placement": "isolated", "server": "mariadb"}
    found |= {"replication": mode, "durability": "off"}
    return found | ({"replica_rtt_ns": rtt} if rtt else {})


def _receipt(mode: str, rtt: int | None) -> dict[str, Any]:
    """Section `replication`, as far as reports read it."""
    if mode == "none":
        return {}
    window = window_facts(_snapshot(mode, 0), _snapshot(mode, 9213))
    return {"replication": {"window": window, "wires": {"replica1": {"rtt_at_rest_ns": {"p50": rtt}}}}}


def _snapshot(mode: str, acknowledged: int) -> Snapshot:
    semi = mode.startswith("after")
    end = PrimaryEnd(
        enabled=semi,
        status=semi,
        clients=int(semi),
        timeout_ms=3_600_000,
        wait_point=WORDS[mode].split()[-1],
        wait_for=1,
        yes_tx=acknowledged if semi else 0,
        no_tx=0,
        no_times=0,
        tx_waits=acknowledged if semi else 0,
        tx_wait_us=acknowledged * 91_000,
        waiting=0,
    )
    return Snapshot(position="0-3-4711", primary=end, replicas=())


def _curve(mode: str, rtt: int | None) -> ReplicationCurve:
    semi = mode.startswith("after")
    rest = (rtt or 0) * 1.004
    points = []
    for index, threads in enumerate(THREADS):
        tps = TPS[mode, rtt][index]
        commit = threads / tps * 1e3
        local = threads / TPS["none", None][index] * 1e3
        wire = rest / MS if semi else 0.0
        points.append(
            CommitCost(
                arm=_arm(mode, rtt, threads),
                threads=threads,
                commits_per_s=estimate(tps, 0.02),
                commit_ms=commit,
                p50_ms=commit * 0.97,
                p99_ms=commit * 1.9,
                local_ms=local,
                wire_ms=wire,
                waiting_ms=commit - local - wire,
                rtts=estimate((commit - local) / (rest / MS), 0.02) if semi else None,
                group=1.0 if threads == 1 else threads / 3.1,
                predicted=None if mode == "none" else tps * (1 + SIGNED_ERRORS[index]),
                predicted_error=None if mode == "none" else SIGNED_ERRORS[index],
            )
        )
    growth = TPS[mode, rtt][-1] / TPS[mode, rtt][0]
    return ReplicationCurve(
        label=f"{WORDS[mode]}, {rtt // MS}ms" if rtt else WORDS[mode],
        mode=mode,
        replica_rtt_ns=rtt,
        rest_rtt_ns=rest or None,
        durability="off",
        held={},
        points=tuple(points),
        growth=estimate(growth, 0.03),
        growth_threads=64,
        regime="delay station" if mode == "after-commit" else "between",
        lag_p50=None if mode == "none" else 3.0 if semi else 2050.0,
        lag_max=None if mode == "none" else 64 if semi else 3120,
        heartbeat_p50_ms=None if mode == "none" else (rtt or 0) / MS / 2 + 4,
        lag=None if mode == "none" else lag_series([lagging_trial(80, 31, 3120 if mode == "async" else 64)], 64),
    )


def _trade(crashes: int) -> tuple[TradeRow, ...]:
    lost = {"async": Estimate(value=2130, low=1870, high=2390)}
    safe = Estimate(value=0, low=None, high=None)
    rows = []
    for rtt in RTTS:
        for mode, verdict in VERDICTS.items():
            tps = TPS[mode, None if mode == "none" else rtt][2]
            rows.append(
                TradeRow(
                    mode=mode,
                    says=WORDS[mode],
                    replica_rtt_ns=rtt,
                    threads=64,
                    commits_per_s=estimate(tps, 0.02),
                    cost=None if mode == "none" else estimate(tps / TPS["none", None][2], 0.03),
                    commit_ms=64e3 / tps,
                    lost_per_crash=lost.get(mode, safe) if crashes and mode != "none" else None,
                    fault="cut" if crashes and mode != "none" else None,
                    crashes=crashes if mode != "none" else 0,
                    phantoms=mode == "after-commit" if crashes and mode != "none" else None,
                    verdict=verdict,
                )
            )
    return tuple(rows)


VERDICTS = {
    "none": "where a restored backup is soon enough",
    "async": "where the last moments before a crash may be lost",
    "after-sync": "where no acknowledged commit may be lost, and none seen that is",
    "after-commit": "where no acknowledged commit may be lost, and others may see what a crash takes back",
}


def _findings(**parts: Any) -> dict[str, Any]:
    none: dict[str, Any] = {"cost": None, "trade": (), "crash": None, "fallback": ()}
    found = ReplicationFindings(**none | parts)
    said = {"verdict": replication_verdict(found), "advice": replication_advice(found, "mariadb")}
    return {"replication": found, "what_if": None, **said}


def replication() -> Summary:
    """Four modes over 5 and 85 ms, 1 to 64 connections."""
    wanted = [
        Wanted(_arm(mode, rtt, threads), _factors(mode, rtt, threads), TPS[mode, rtt][index])
        for mode, rtt in TPS
        for index, threads in enumerate(THREADS)
    ]
    base = wanted[2]
    wanted[2] = Wanted(base.name, base.factors, base.tps, ArmRole.BASELINE)
    wanted.append(Wanted(f"{base.name} (again)", base.factors, base.tps, ArmRole.DUPLICATE))
    found = summarise(grid_run("replication", wanted))
    cells = tuple(
        cell.model_copy(
            update={
                "receipt": cell.receipt | _receipt(str(cell.factors["replication"]), cell.factors.get("replica_rtt_ns"))  # type: ignore[arg-type]
            }
        )
        for cell in found.cells
    )
    curves = tuple(_curve(mode, rtt) for mode, rtt in TPS)
    published = (("none", 1066.8, 9870.0), ("async", 943.2, 9480.0), ("after-sync", 11.5, 11.7))
    cost = ReplicationCost(
        curves=curves,
        mean_error=0.032,
        worst_error=0.062,
        published=published,
        sentences=cost_sentences(curves, published, "mariadb"),
    )
    environment = found.environment | {"data_fsync_ns": {"512": {"count": 200, "p50": 1900, "p99": 4100}}}
    environment |= {"work_file_system": "tmpfs"}
    return told(
        found,
        {"cells": cells, "environment": environment} | _findings(cost=cost, trade=_trade(0)),
    )


def _crash_point(rng: random.Random, number: int, mode: str, fault: str) -> CrashPoint:
    late = 500.0 if fault == "cut" else 0.0
    lost = 0 if mode != "async" else int(rng.gauss(880, 120) if fault == "kill-primary" else rng.gauss(9800, 900))
    phantoms = rng.randrange(3, 17) if mode == "after-commit" and fault == "cut" else 0
    return CrashPoint(
        trial=number,
        acknowledged=18_000 + rng.randrange(500) if mode == "async" else 470 + rng.randrange(30),
        lost=lost,
        first_lost_ms=-48.0 - rng.random() * 6 if lost else None,
        dead_ms=late,
        promotion_ms=70 + 20 * rng.random(),
        commits_per_s=17_900.0 if mode == "async" else 180.0,
        unknown=16,
        applied_unknown=0 if fault == "cut" else rng.randrange(16),
        seen_early=0 if mode != "after-commit" else 400,
        phantoms=phantoms,
        behind_before=850 if mode == "async" else 16,
        unapplied=12,
    )


def _loss(number: int, mode: str, fault: str, crashes: int) -> CrashLoss:
    rng = random.Random(f"{mode} {fault}")
    each = tuple(_crash_point(rng, number + 6 * index, mode, fault) for index in range(crashes))
    lost = sum(point.lost for point in each)
    mean = lost / crashes
    rate = each[0].commits_per_s
    return CrashLoss(
        arm=f"{WORDS[mode]}, {fault}",
        mode=mode,
        fault=fault,
        threads=16,
        replica_rtt_ns=85 * MS,
        crashes=crashes,
        void_crashes=1 if (mode, fault) == ("after-sync", "cut") else 0,
        commits_per_s=estimate(rate, 0.03),
        acknowledged=sum(point.acknowledged for point in each),
        lost=lost,
        lost_before=(8 if fault == "cut" else lost) if lost else 0,
        lost_by_force=(1730 if fault == "cut" else lost) if lost else 0,
        share_that_may_lose=None if lost else 1 - 0.05 ** (1 / crashes),
        lost_per_crash=estimate(mean, 0.06) if lost else Estimate(value=0, low=None, high=None),
        crashes_with_loss=sum(point.lost > 0 for point in each),
        most_lost=max(point.lost for point in each),
        predicted_lost=estimate(rate * (0.5 + 0.0475 if fault == "cut" else 0.0475), 0.1) if mode == "async" else None,
        lost_age_ms=50.6 if lost else None,
        done_untold=sum(point.applied_unknown for point in each),
        seen_early=sum(point.seen_early for point in each),
        seen=900 * crashes,
        seen_early_median_ms=85.4 if mode == "after-commit" else None,
        phantoms=sum(point.phantoms for point in each),
        promotion_ms=81.0,
        sound=True,
        each=each,
    )


def crash() -> Summary:
    """Three modes under two faults, 20 crashes each."""
    pairs = [(mode, fault) for mode in ("async", "after-sync", "after-commit") for fault in ("kill-primary", "cut")]
    losses = tuple(_loss(index, mode, fault, 20) for index, (mode, fault) in enumerate(pairs))
    gone = [loss for loss in losses if loss.fault == "cut"]
    trade = tuple(
        row.model_copy(
            update={
                "threads": 16,
                "commits_per_s": loss.commits_per_s,
                "commit_ms": 16e3 / loss.commits_per_s.value,
                "cost": None if loss is gone[0] else estimate(loss.commits_per_s.value / 17_900, 0.03),
                "lost_per_crash": loss.lost_per_crash,
            }
        )
        for row, loss in zip(
            (row for row in _trade(20) if row.replica_rtt_ns == 85 * MS and row.crashes), gone, strict=True
        )
    )
    found = _without_cells("crash")
    crashes = CrashFindings(losses=losses, sentences=loss_sentences(losses))
    return found.model_copy(update=_findings(crash=crashes, trade=trade))


def fallback() -> Summary:
    """One trial of 40 s: the replica is away from 3 to 20 s."""
    series = fallback_series(fallback_trial(slices=800, a_slice=9, silent=range(61, 262)))
    assert series is not None
    rates = list(series.commits_per_s)
    for index in range(len(rates)):
        at = index * series.slice_s
        rates[index] = 184.0 if at < 3 else 0.0 if at < 13.1 else 17_800.0 if at < 26.4 else 181.0
    series = series.model_copy(
        update={
            "commits_per_s": tuple(rates),
            "left_s": 3.0,
            "fell_s": 13.05,
            "returned_s": 20.0,
            "reconnected_s": 20.9,
            "back_s": 26.4,
            "stall_s": 10.02,
            "unprotected": 234_500,
            "at_s": tuple(index / 10 for index in range(400)),
            "semi_sync": tuple(not 130 < index < 264 for index in range(400)),
            "behind": tuple(
                16 if index < 30 or index > 264 else None if index < 209 else (264 - index) * 2200 + 16
                for index in range(400)
            ),
        }
    )
    story = FallbackStory(
        arm="semi-sync AFTER_SYNC",
        mode="after-sync",
        threads=16,
        trials=3,
        timeout_ms=10_000,
        stall_ms=Estimate(value=10_020, low=10_004, high=10_041),
        degraded_ms=Estimate(value=13_350, low=12_900, high=13_800),
        after_return_ms=Estimate(value=6400, low=6010, high=6730),
        caught_up_ms=Estimate(value=4100, low=3700, high=4500),
        unprotected_alone=Estimate(value=193_000, low=187_000, high=199_000),
        most_behind=118_816,
        unprotected=Estimate(value=234_500, low=229_000, high=240_100),
        share_unprotected=0.981,
        drawn=series.trial,
        log_lines=(
            "[Warning] Timeout waiting for reply of binlog (file: binlog.000002, pos: 1234567), semi-sync up to file",
            "[Note] Semi-sync replication switched OFF.",
            "[Note] Semi-sync replication switched ON with slave (server_id: 4) at (binlog.000002, 98765432)",
        ),
        series=series,
    )
    return _without_cells("fallback").model_copy(update=_findings(fallback=(story,)))


def _without_cells(plan: str) -> Summary:
    """A run whose trials measured no throughput."""
    wanted = [Wanted("asynchronous, kill-primary", _factors("async", 85 * MS, 16), 17_900, ArmRole.BASELINE)]
    found = summarise(grid_run(plan, wanted))
    none = {"cells": (), "aa_ratio": None, "noise_floor": None, "unmeasured": (), "trials": (), "warnings": ()}
    return told(found, none)


PLANS = {"replication": replication, "crash": crash, "fallback": fallback}
