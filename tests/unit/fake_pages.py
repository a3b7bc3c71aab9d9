"""A computed run of the plan `page`: a page's demands on two machines, what a path adds, and noise. Findings can be compared with the
known `Truth`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.made import build, build_trial, floors_of, latency
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.summary import Summary
from howfar.contract.environment import RunEnvironment
from howfar.contract.receipt import LinkReceipt, QuantilesNs, TrialReceipt
from howfar.contract.receipt_messages import Bytes, CpuUse, Histogram, ServiceUse
from howfar.contract.server_receipt import SessionReceipt
from howfar.experiments.page.analysis import page_findings
from howfar.experiments.page.findings import PageFindings
from howfar.experiments.page.model import PageHost, PageNetwork, emulator_work_ratio
from howfar.experiments.registry import summarise
from howfar.stats.trials import trial_table
from howfar.store.records import Arm, ArmRole, Measured, Run, StopReason, Trial, TrialStatus, Window

MS = 1_000_000
ELAPSED_NS = 5_000_000_000
RTT_NS = 204_000


_BASE = synthetic_run(blocks=1, void_every=0, samples=2)
"""Source of everything that does not concern pages."""


@dataclass(frozen=True)
class Truth:
    """True demands: `_ms` per page, `_us` (what a path adds) per round trip."""

    round_trips: int = 200
    php_ms: float = 4.0
    engine_ms: float = 1.2
    database_ms: float = 5.0
    visitor_ms: float = 0.1
    waiting_ms: float = 0.3
    """Waiting per page on the path `socket`."""
    tcp_application_us: float = 2.0
    tcp_database_us: float = 2.0
    link_us: float = 6.0
    """The emulator's CPU per round trip of a lone page, on each machine."""
    per_message_share: float = 0.0
    """Share of `link_us` that each message needs regardless of the number of pages in flight."""
    remote_us: float = 30.0
    """Wake-up time per round trip, in addition to the RTT."""
    p50_of_mean: float = 0.97

    def network(self, application: str, path: str, app_cpu_ms: float) -> PageNetwork:
        own_ms = (self.php_ms + self.visitor_ms if application == "php" else self.engine_ms) + app_cpu_ms
        added_ms = [us * self.round_trips / 1e3 for us in (self.tcp_application_us, self.tcp_database_us)]
        if path == "socket":
            return PageNetwork((PageHost((own_ms + self.database_ms) / 1e3, 0.0, 1.0),), 0.0, self.waiting_ms / 1e3)
        if path == "tcp":
            demand_s = (own_ms + self.database_ms + sum(added_ms)) / 1e3
            return PageNetwork((PageHost(demand_s, 0.0, 1.0),), 0.0, self.waiting_ms / 1e3)
        link_s = self.link_us * self.round_trips / 1e6
        hosts = (
            PageHost((own_ms + added_ms[0]) / 1e3, link_s, 1.0),
            PageHost((self.database_ms + added_ms[1]) / 1e3, link_s, 1.0),
        )
        waiting_s = self.waiting_ms / 1e3 + self.remote_us * self.round_trips / 1e6 - 2 * link_s
        return PageNetwork(hosts, self.round_trips * RTT_NS / 1e9, waiting_s, per_message_share=self.per_message_share)


HEAVY = Truth()
LIGHT = Truth(round_trips=20, database_ms=0.6, php_ms=2.0, engine_ms=0.15)
PAGES = {"heavy": HEAVY, "light": LIGHT}
SHAPES: dict[str, Any] = {
    "heavy": {"rounds": 4, "point_selects": 30, "simple_ranges": 2, "redis_gets": 12, "memcached_gets": 6},
    "light": {"rounds": 1, "point_selects": 10, "redis_gets": 5, "memcached_gets": 5},
}
SHARES = {"mysql": 0.5, "redis": 0.35, "memcached": 0.15}
"""Each service's share of a page's round trips."""
SWEEP_MS = (0, 10, 20, 40, 80)


@dataclass(frozen=True)
class PageCell:
    page: str
    application: str
    path: str
    app_cpu_ms: int
    threads: int

    @property
    def name(self) -> str:
        parts = [self.path, self.page, self.application, f"{self.app_cpu_ms}ms", f"{self.threads} threads"]
        return ", ".join(parts)

    @property
    def factors(self) -> dict[str, Any]:
        found: dict[str, Any] = {"path": self.path, "threads": self.threads, "placement": "machines"}
        found |= {"server": "mariadb", "page": self.page, "application": self.application}
        found |= {"app_cpu_ns": self.app_cpu_ms * MS}
        return found | ({"rtt_ns": 200_000, "rate_bps": 10**9} if self.path == "remote" else {})


def cells() -> list[PageCell]:
    """The cells of the plan: the engine has one level of application CPU, and a lone page only the lowest level."""
    found = []
    for page in PAGES:
        for path in ("socket", "tcp", "remote"):
            for threads in (1, 4):
                for app_cpu_ms in SWEEP_MS if threads > 1 and path != "tcp" else (0,):
                    found.append(PageCell(page, "php", path, app_cpu_ms, threads))
                found.append(PageCell(page, "engine", path, 0, threads))
    return found


def page_run(
    blocks: int = 8,
    seed: int = 1,
    scatter: float = 0.01,
    wanted: Iterable[PageCell] | None = None,
    void: Callable[[PageCell, int], bool] = lambda cell, block: False,
    pages: dict[str, Truth] = PAGES,
) -> Run:
    """`void(cell, block)`: whether that trial is void."""
    rng = random.Random(seed)
    chosen = list(wanted) if wanted is not None else cells()
    base = chosen[0]
    arms = [(base, Arm(name=base.name, role=ArmRole.BASELINE, factors=base.factors))]
    arms.append((base, Arm(name=base.name + " (again)", role=ArmRole.DUPLICATE, factors=base.factors)))
    arms += [(cell, Arm(name=cell.name, role=ArmRole.CONTENDER, factors=cell.factors)) for cell in chosen[1:]]
    trials: list[Trial] = []
    for block in range(blocks):
        shared = math.exp(rng.gauss(0, 0.03))
        for position, (cell, arm) in enumerate(arms):
            slow = shared * math.exp(rng.gauss(0, scatter))
            seen = None if void(cell, block) else _measured(pages[cell.page], cell, slow)
            trials.append(_trial(len(trials), block, position, arm, cell, seen))
    info = _BASE.info.model_copy(
        update={
            "command": ("howfar", "run", "page", "--quick"),
            "plan_name": "page",
            "plan": {"name": "page", "workload": {"kind": "page"}, "pages": SHAPES},
            "arms": tuple(arm for _, arm in arms),
            "environment": RunEnvironment(cpu_count=2, client_cpus=[0], server_cpus=[1], placement="machines"),
        }
    )
    return Run(info=info, trials=tuple(trials), stop=StopReason.BLOCKS)


def _measured(truth: Truth, cell: PageCell, slow: float) -> Measured:
    """A trial's measurements; `slow` multiplies the time of every page."""
    network = truth.network(cell.application, cell.path, cell.app_cpu_ms)
    cycle_s = network.cycle_s(cell.threads) * slow
    pages = max(1, round(cell.threads * ELAPSED_NS / 1e9 / cycle_s))
    php = cell.application == "php"
    own_ms = (truth.php_ms if php else truth.engine_ms) + cell.app_cpu_ms
    application_ms, database_ms = own_ms, truth.database_ms
    if cell.path != "socket":
        application_ms += truth.tcp_application_us * truth.round_trips / 1e3
        database_ms += truth.tcp_database_us * truth.round_trips / 1e3
    roles = {"server": database_ms * 0.8, "redis": database_ms * 0.15, "memcached": database_ms * 0.05}
    roles |= {"application": application_ms, "client": truth.visitor_ms} if php else {"client": application_ms}
    if cell.path == "remote":
        shared = emulator_work_ratio(cell.threads, network.wire_s / (cycle_s / slow), truth.per_message_share)
        roles["link"] = 2 * truth.link_us * truth.round_trips / 1e3 * shared
    round_trip_us = cycle_s * 1e6 / truth.round_trips * 0.4
    reported: dict[str, int] = {"cpu_ns": int(own_ms * MS * pages)} if php else {}
    services: list[ServiceUse] = []
    kinds = [("transaction", cycle_s * 1e9 * truth.p50_of_mean, pages)]
    counted = truth.round_trips * pages
    for service, share in SHARES.items():
        round_trips = int(counted * share)
        if php:
            reported |= {f"{service}_turns": round_trips, f"{service}_ns": int(round_trips * round_trip_us * 1e3)}
            reported |= {f"{service}_connects": 0, f"{service}_connect_ns": 0}
            continue
        kinds.append((f"turn.{service}", round_trip_us * 1e3, round_trips))
        sent = Bytes(to_server=round_trips * 60, to_client=round_trips * 180)
        counts = {"connects": 0, "requests": round_trips, "round_trips": round_trips}
        services.append(build(ServiceUse, service=service, bytes=sent, **counts))
    base = _BASE.trials[0].measured
    assert base is not None
    return base.model_copy(
        update={
            "elapsed_ns": ELAPSED_NS,
            "transactions": pages,
            "queries": 0 if php else counted,
            "round_trips": 0 if php else counted,
            "rows": 0,
            "bytes": Bytes(to_server=0, to_client=0),
            "cpu": tuple(build(CpuUse, role=role, cpu_ns=int(ms * MS * pages)) for role, ms in roles.items()),
            "intervals": (),
            "histograms": tuple(latency(Histogram, kind, [ns], count) for kind, ns, count in kinds),
            "services": tuple(services),
            "app_counters": reported,
        }
    )


def _trial(number: int, block: int, position: int, arm: Arm, cell: PageCell, seen: Measured | None) -> Trial:
    void = {} if seen else {"status": TrialStatus.VOID, "void_reason": "the application did not answer"}
    receipt = TrialReceipt(session=build(SessionReceipt))
    if cell.path == "remote":
        receipt.link = LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=RTT_NS))
    return build_trial(
        number,
        arm.name,
        block=block,
        position=position,
        **void,
        measured=seen,
        receipt=receipt,
        window=_window(cell, seen) if seen else None,
    )


def _window(cell: PageCell, seen: Measured) -> Window:
    """A window without other load on the machine: CPU 0 is the application's, CPU 1 the servers'."""
    spent = {use.role: use.cpu_ns / seen.elapsed_ns for use in seen.cpu}
    link = spent.pop("link", 0.0)
    application = sum(share for role, share in spent.items() if role in ("client", "application"))
    database = sum(spent.values()) - application
    if cell.path != "remote":
        return Window(length_ns=seen.elapsed_ns, interface="", cpus_busy={0: 0.0, 1: application + database})
    return Window(
        length_ns=seen.elapsed_ns,
        interface="s0",
        cpus_busy={0: application + link / 2, 1: database + link / 2},
        link_cpu_ns=dict.fromkeys((0, 1), int(link / 2 * seen.elapsed_ns)),
    )


@cache
def page_summary() -> Summary:
    """The summary of one run with all cells, analysed once for all tests."""
    return summarise(page_run(blocks=4))


def page_findings_of(
    run: Run, floor: float | None = 0.01, change: Callable[[Trial], Trial] | None = None, link: float | None = None
) -> PageFindings:
    """`change` is applied to each measured trial. `link`: the noise floor over the link."""
    trials = tuple(change(trial) if change and trial.measured else trial for trial in run.trials)
    found = page_findings(trial_table(run.model_copy(update={"trials": trials})), floors_of(floor, link))
    assert found is not None
    return found
