"""A made-up summary of the plan of pages: two pages, three paths, PHP and the engine's page, four levels of application CPU. Their
throughput follows from demands by a soft law that is nobody's model; the figures are such as two CPUs give."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tests.unit.synthetic_cells import Wanted, estimate, grid_run, told

from howfar.analysis.analyse import summarise
from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import (
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    PageModel,
    TurnCost,
)
from howfar.experiments.page.sentences import page_advice, page_sentences, page_verdict
from howfar.stats.estimate import Estimate
from howfar.store.records import ArmRole

MS = 1_000_000
RTT_MS = 0.204


@dataclass(frozen=True)
class Shape:
    """Turns a page, and the CPU of the application and the servers without a way between them."""

    turns: dict[str, int]
    application_ms: float
    servers_ms: dict[str, float]


SHAPES = {
    "heavy": Shape({"mysql": 60, "redis": 120, "memcached": 20}, 4.9, {"server": 3.6, "redis": 2.2, "memcached": 0.31}),
    "light": Shape({"mysql": 6, "redis": 12, "memcached": 2}, 0.74, {"server": 0.37, "redis": 0.22, "memcached": 0.03}),
}
TURN_US = {
    "socket": {"mysql": 68.0, "redis": 29.0, "memcached": 27.5},
    "tcp": {"mysql": 75.0, "redis": 36.0, "memcached": 34.0},
    "remote": {"mysql": 321.0, "redis": 266.0, "memcached": 262.0},
}
"""One in flight."""
EXTRA = {"socket": 1.0, "tcp": 1.09, "remote": 1.16}
"""CPU of everybody, over that with sockets."""
LINK_MS_A_TURN = 0.017
VISITOR_MS = 0.11
WORDS = {"php": "PHP", "engine": "the engine's page"}


@dataclass(frozen=True)
class Cell:
    page: str
    application: str
    path: str
    threads: int
    app_cpu_ns: int

    @property
    def name(self) -> str:
        burnt = f", {self.app_cpu_ns // MS}ms CPU" if self.app_cpu_ns else ""
        return f"{self.page}, {self.path}, {WORDS[self.application]}, {self.threads} in flight{burnt}"

    @property
    def own_ms(self) -> float:
        own = SHAPES[self.page].application_ms * (1.0 if self.application == "php" else 0.34)
        return own * EXTRA[self.path] + self.app_cpu_ns / MS

    @property
    def servers_ms(self) -> float:
        return sum(SHAPES[self.page].servers_ms.values()) * EXTRA[self.path]

    @property
    def link_ms(self) -> float:
        return sum(SHAPES[self.page].turns.values()) * LINK_MS_A_TURN if self.path == "remote" else 0.0

    def demands(self) -> tuple[float, float, float]:
        """Of the busiest machine, of all, and what is waited for without a CPU."""
        application, database = self.own_ms + VISITOR_MS, self.servers_ms
        if self.path != "remote":
            return application + database, application + database, 0.0
        turns = sum(SHAPES[self.page].turns.values())
        each = self.link_ms / 2
        return max(application, database) + each, application + database, turns * RTT_MS

    def page_ms(self) -> float:
        busiest, whole, waits = self.demands()
        alone = whole + waits
        return float(((alone / self.threads) ** 4 + busiest**4) ** 0.25 * self.threads)


CPU = (0, 8 * MS, 25 * MS, 60 * MS)


def cells() -> list[Cell]:
    found = [Cell(page, "php", path, 4, cpu) for page in SHAPES for path in ("socket", "tcp", "remote") for cpu in CPU]
    found += [Cell(page, "php", path, 1, 0) for page in SHAPES for path in ("socket", "tcp", "remote")]
    found += [
        Cell(page, "engine", path, threads, 0)
        for page in SHAPES
        for path in ("socket", "tcp", "remote")
        for threads in (1, 4)
    ]
    return found


def _factors(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {"path": cell.path, "threads": cell.threads, "placement": "machines", "server": "mariadb"}
    found |= {"page": cell.page, "application": cell.application, "app_cpu_ns": cell.app_cpu_ns}
    return found | ({"rtt_ns": 200_000, "rate_bps": 10**9} if cell.path == "remote" else {})


def _turns(cell: Cell) -> tuple[TurnCost, ...]:
    slow = 1.0 if cell.application == "php" else 0.82
    queue = 1 + 0.9 * (cell.threads - 1)
    return tuple(
        TurnCost(
            service=service,
            turns=count,
            mean_us=TURN_US[cell.path][service] * slow * queue,
            connects=0.0,
            connect_us=None,
            bytes_to_server=count * 41.0 if cell.application == "engine" else None,
            bytes_to_client=count * 212.0 if cell.application == "engine" else None,
        )
        for service, count in SHAPES[cell.page].turns.items()
    )


def _over(page_ms: float, threshold: float) -> float:
    """Of a log-normal with a narrow scatter."""
    return 0.5 * math.erfc(math.log(threshold / (page_ms * 0.97)) / 0.22 / math.sqrt(2))


def _arm(cell: Cell) -> PageArm:
    whole = cell.page_ms()
    error = None
    if cell.application == "php" and cell.path != "socket":
        error = {"tcp": -0.021, "remote": 0.047}[cell.path] * (1 if cell.page == "heavy" else -1.4)
    shape = SHAPES[cell.page]
    cpu = {"application": cell.own_ms, "visitor": VISITOR_MS}
    cpu |= {role: ms * EXTRA[cell.path] for role, ms in shape.servers_ms.items()}
    if cell.application == "engine":
        cpu.pop("visitor")
    remote = cell.path == "remote"
    rate = cell.threads / whole
    busy = {"both": min(cell.demands()[1] * rate, 0.998)}
    if remote:
        cpu["link"] = cell.link_ms
        busy = {"application": (cell.own_ms + VISITOR_MS) * rate, "database": cell.servers_ms * rate}
    return PageArm(
        arm=cell.name,
        page=cell.page,
        application="php" if cell.application == "php" else "engine",
        path=cell.path,
        machines=2 if remote else 1,
        connect="persistent",
        app_cpu_ns=cell.app_cpu_ns,
        threads=cell.threads,
        pages_per_s=estimate(1e3 * rate, 0.018),
        page_ms=estimate(whole, 0.018),
        p50_ms=whole * 0.97,
        p95_ms=whole * 1.31,
        p99_ms=whole * 1.6,
        over_noticed=_over(whole, 13),
        over_degraded=_over(whole, 75),
        cpu_ms=cpu,
        own_cpu_ms=cell.own_ms if cell.application == "php" else None,
        turns=_turns(cell),
        busy=busy,
        rtt_ns=200_000 if remote else None,
        rate_bps=10**9 if remote else None,
        rtt_ms=RTT_MS if remote else None,
        predicted_p50_ms=None if error is None else whole * 0.97 * (1 + error),
        predicted_error=error,
    )


FLOOR = 0.02


def _choice(cell: Cell) -> PageChoice:
    """`cell`: with two machines."""
    one, tcp = replace(cell, path="socket").page_ms(), replace(cell, path="tcp").page_ms()
    found = one / cell.page_ms()
    better = "one" if found < 1 - FLOOR else "two" if found > 1 + FLOOR else "not resolved"
    return PageChoice(
        page=cell.page,
        connect="persistent",
        application="php" if cell.application == "php" else "engine",
        app_cpu_ns=cell.app_cpu_ns,
        app_cpu_total_ms=replace(cell, path="socket").own_ms,
        threads=cell.threads,
        path="remote",
        rtt_ns=200_000,
        rate_bps=10**9,
        two_over_one=estimate(found, 0.031),
        tcp_over_socket=estimate(one / tcp, 0.02),
        better=better,
        predicted=found * 1.03,
    )


def _crossing(page: str) -> Crossing:
    def ratio(burnt_ms: float) -> float:
        cell = Cell(page, "php", "remote", 4, int(burnt_ms * MS))
        return replace(cell, path="socket").page_ms() / cell.page_ms()

    own = SHAPES[page].application_ms
    steps = [60 * step / 240 for step in range(241)]
    measured = next((own + at for at in steps if ratio(at) >= 1), None)
    return Crossing(
        page=page,
        connect="persistent",
        application="php",
        threads=4,
        path="remote",
        rtt_ns=200_000,
        rate_bps=10**9,
        measured_ms=Estimate(value=measured, low=measured * 0.88, high=measured * 1.1) if measured else None,
        always=None if measured else "one",
        predicted_ms=measured * 1.07 if measured else None,
        predicted_always=None if measured else "one",
        swept_ms=(own, own + 60),
        curve_ms=tuple(own + at for at in steps[::8]),
        curve_ratio=tuple(ratio(at * 0.94) for at in steps[::8]),
        without_link_cpu_ms=measured * 0.62 if measured else None,
        half_turns_ms=measured * 0.7 if measured else None,
    )


def page() -> Summary:
    """Heavy and light, PHP and engine, sockets, loopback TCP and two machines."""
    every = cells()
    first = Cell("heavy", "php", "socket", 4, 0)
    roles = {first: ArmRole.BASELINE}
    wanted = [
        Wanted(cell.name, _factors(cell), 1e3 * cell.threads / cell.page_ms(), roles.get(cell, ArmRole.CONTENDER))
        for cell in every
    ]
    base = wanted[every.index(first)]
    wanted.append(Wanted(f"{base.name} (again)", base.factors, base.tps, ArmRole.DUPLICATE))
    found = summarise(grid_run("page", wanted))
    pages = PageFindings(
        arms=tuple(_arm(cell) for cell in every),
        choices=tuple(_choice(cell) for cell in every if cell.path == "remote"),
        crossings=tuple(_crossing(page) for page in SHAPES),
        model=PageModel(
            arms=20,
            mean_error=0.038,
            worst_error=-0.066,
            worst_arm="light, remote, PHP, 4 in flight",
            within_bar=True,
        ),
        scripts={
            "heavy": "60 MySQL, 120 Redis and 20 Memcached turns",
            "light": "6 MySQL, 12 Redis and 2 Memcached turns",
        },
        noise_floor=FLOOR,
        published=(("heavy", 410.0, 215.0, 0.246), ("light", 84.0, 56.0, 0.303)),
        sentences=(),
    )
    pages = pages.model_copy(update={"sentences": page_sentences(pages)})
    environment = found.environment | {"placement": "machines"}
    return told(
        found,
        {
            "pages": pages,
            "verdict": page_verdict(pages),
            "advice": page_advice(pages),
            "what_if": None,
            "noise_floor": FLOOR,
            "environment": environment,
            "asked": "pages",
            "workload": "page: heavy (60 MySQL, 120 Redis and 20 Memcached turns), light (6, 12 and 2), 10 tables x 100000 rows",
        },
    )
