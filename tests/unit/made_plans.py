"""A run that varies links and connections, as records only: all that a report says about it comes from the analysis. Throughput
follows from demands by another law than the model's; the machine has two processors, which the link's emulator shares."""

from __future__ import annotations

from typing import Any

from tests.unit.synthetic_cells import soft_min
from tests.unit.synthetic_curves import REPLIES, CurveCell, run_of

from howfar.store.records import Arm, ArmRole, Run

SERVER_S, CLIENT_S = 0.0008, 0.0002
THREADS = (1, 4, 16, 64)
WIRE_BYTES = REPLIES + 90 * (REPLIES / 1448 + 8)
LINKS: dict[int | None, tuple[float, float, float]] = {
    None: (900.0, 1230.0, 0.0),
    10**8: (115.0, 0.99 * 1e8 / 8 / WIRE_BYTES, 0.22),
    10**9: (185.0, 790.0, 0.36),
}
"""By rate: transactions per second of a lone connection, their maximum for many connections, and the emulator's share of each CPU."""


def bandwidth_run() -> Run:
    """Loopback, 100 Mb/s and 1 Gb/s, 1 to 64 connections; the baseline twice, so that there is a noise floor."""
    cells = [_cell(rate, threads) for rate in LINKS for threads in THREADS]
    base, *others = cells
    run = run_of([base, base, *others], wobble=0.01)
    first, twin, *arms = run.info.arms
    again = Arm(name=f"{base.name} (again)", role=ArmRole.DUPLICATE, factors=twin.factors)
    trials = tuple(
        trial.model_copy(update={"arm": again.name}) if trial.position == 1 else trial for trial in run.trials
    )
    info = run.info.model_copy(update={"arms": (first, again, *arms)})
    return run.model_copy(update={"info": info, "trials": trials})


def _cell(rate: int | None, threads: int) -> CurveCell:
    alone, most, emulator = LINKS[rate]
    tps = soft_min(threads, alone, most)
    where: dict[str, Any] = {"path": "tcp"} if rate is None else {"path": "remote", "rtt_ns": 200_000, "rate_bps": rate}
    server, client = SERVER_S * tps, CLIENT_S * tps
    return CurveCell(
        {**where, "threads": threads},
        tps,
        client_s=CLIENT_S,
        server_s=SERVER_S,
        link_s=2 * emulator / tps,
        server_wait_s=0.6 * max(threads / tps - threads / (threads * alone), 0.0) if server + emulator > 0.95 else 0.0,
        busy={0: min(server + emulator + 0.01, 1.0), 1: min(client + emulator + 0.01, 1.0)},
        link_cpus={0: emulator, 1: emulator} if emulator else {},
    )
