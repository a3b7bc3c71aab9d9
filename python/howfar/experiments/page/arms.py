"""Arms of a run of pages as the analysis reads them: page, application, path, pages in flight, and what its good trials saw.

Not here: any judgement of them (`choices.py`, `crossing.py`), nor whose CPU it was (`machines.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from howfar.analysis.facts_in import number_in
from howfar.analysis.link_facts import link_facts
from howfar.analysis.trials import TrialTable, transaction_histogram
from howfar.experiments.page.findings import Application, Machines
from howfar.plan.types import ORDINARY
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import mean_interval
from howfar.store.records import Arm, ArmRole, FactorValue, HistogramRecord, Measured, Trial

NO_PAGE = "none"
ONE_MACHINE = ("socket", "tcp")
_PER_PAGE: tuple[str, ...] = ("page", "connect", "application")
_PLACE = ("path", "rtt_ns", "rate_bps")
_WOKEN_AND_AWAKE = ("rtt_from_idle_p50_ns", "rtt_p50_ns")


class Way(NamedTuple):
    """The path, and the link that it passes, as asked."""

    path: str
    rtt_ns: int | None
    rate_bps: int | None


@dataclass(frozen=True)
class Place:
    """What two arms have in common that differ in nothing but the way, the application's CPU or the pages in flight."""

    page: str
    connect: str
    application: Application
    other: tuple[tuple[str, FactorValue], ...]
    """Every further factor that a plan may vary."""


@dataclass(frozen=True)
class PageTrials:
    """One arm and its good trials by block."""

    arm: Arm
    trials: dict[int, Trial] = field(repr=False)

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def page(self) -> str:
        return str(self.arm.factors.get("page", NO_PAGE))

    @property
    def application(self) -> Application:
        return "php" if self.arm.factors.get("application") == "php" else "engine"

    @property
    def connect(self) -> str:
        return str(self.arm.factors.get("connect", ORDINARY["connect"]))

    @property
    def path(self) -> str:
        return str(self.arm.factors.get("path", ""))

    @property
    def rtt_ns(self) -> int | None:
        """As asked of the link. None: no link, or nothing asked."""
        return self._asked_of_link("rtt_ns")

    @property
    def rate_bps(self) -> int | None:
        """Likewise."""
        return self._asked_of_link("rate_bps")

    def _asked_of_link(self, factor: str) -> int | None:
        level = self.arm.factors.get(factor)
        return None if self.machines == 1 or level is None else int(level)

    @property
    def machines(self) -> Machines:
        return 1 if self.path in ONE_MACHINE else 2

    @property
    def threads(self) -> int:
        """Pages in flight."""
        return int(self.arm.factors.get("threads", 1))

    @property
    def app_cpu_ns(self) -> int:
        return int(self.arm.factors.get("app_cpu_ns", 0))

    @property
    def place(self) -> Place:
        said = {*_PER_PAGE, *_PLACE, "threads", "app_cpu_ns"}
        other = tuple(sorted((name, level) for name, level in self.arm.factors.items() if name not in said))
        return Place(self.page, self.connect, self.application, other)

    @property
    def way(self) -> Way:
        return Way(self.path, self.rtt_ns, self.rate_bps)

    @property
    def measured(self) -> list[Measured]:
        return [trial.measured for trial in self.trials.values() if trial.measured is not None]

    @property
    def pages(self) -> int:
        return sum(each.transactions for each in self.measured)

    @property
    def elapsed_s(self) -> float:
        return sum(each.elapsed_ns for each in self.measured) / 1e9

    @property
    def by_block(self) -> dict[int, float]:
        """Pages a second."""
        return {block: pages_per_s(trial.measured) for block, trial in self.trials.items() if trial.measured}

    @property
    def pages_per_s(self) -> Estimate:
        return mean_interval(list(self.by_block.values()))

    @property
    def mean_ms(self) -> Estimate:
        """Of `page_s`, over blocks."""
        return mean_interval([1e3 * self.threads / rate for rate in self.by_block.values()])

    @property
    def page_s(self) -> float:
        """Mean time of a page, the visitor's turn to the next one included: pages in flight / pages a second."""
        return self.threads * self.elapsed_s / self.pages

    @property
    def histograms(self) -> list[HistogramRecord]:
        """Page latency, of each trial."""
        return [found for each in self.measured if (found := transaction_histogram(each)) is not None]

    @property
    def p50_s(self) -> float:
        """Median over trials of their medians, which one disturbed trial does not move: what a prediction is held against."""
        found = [record.p50_ns / 1e9 for record in self.histograms]
        return median(found) if found else self.page_s

    @property
    def p50_of_mean(self) -> float:
        return self.p50_s / self.page_s

    @property
    def wake_s(self) -> float:
        """How much longer a round trip over the link takes where both ends' processors have to be woken, by its calibration."""
        found = []
        for trial in self.trials.values():
            idle, awake = (number_in(trial.receipt, "link", "calibration", key) for key in _WOKEN_AND_AWAKE)
            if idle is not None and awake is not None:
                found.append(max(idle - awake, 0.0) / 1e9)
        return median(found) if found else 0.0

    def only(self, block: int) -> PageTrials | None:
        """This arm in one block. None: it has no good trial there."""
        return replace(self, trials={block: self.trials[block]}) if block in self.trials else None

    @property
    def rest_rtt_s(self) -> float | None:
        """Of the link, measured at rest. None: no link."""
        if self.machines == 1:
            return None
        found = link_facts(self.arm.factors, [trial.receipt for trial in self.trials.values()])
        ns = found.rest_rtt_ns if found.rest_rtt_ns is not None else found.asked_rtt_ns
        return None if ns is None else ns / 1e9

    def a_page(self, count: Callable[[Measured], float]) -> float:
        """Of all good trials together, a page."""
        return sum(count(each) for each in self.measured) / self.pages

    def told(self, name: str) -> float | None:
        """What the application's pages told of themselves, a page. None: they do not."""
        if not any(name in each.told for each in self.measured):
            return None
        return self.a_page(lambda each: each.told.get(name, 0))

    @property
    def own_cpu_s(self) -> float | None:
        """What the application itself says that it used a page. None: it does not."""
        told = self.told("cpu_ns")
        return None if told is None else told / 1e9


def pages_per_s(measured: Measured) -> float:
    return measured.transactions / (measured.elapsed_ns / 1e9)


def page_arms(table: TrialTable) -> tuple[PageTrials, ...]:
    """Those with a page that have a good trial, in the order of the plan; the A/A arm is not among them."""
    return tuple(
        PageTrials(arm, table.trials[arm.name])
        for arm in table.run.info.arms
        if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER) and is_a_page(arm) and table.trials[arm.name]
    )


def is_a_page(arm: Arm) -> bool:
    return arm.factors.get("page", NO_PAGE) != NO_PAGE


def is_of_pages(table: TrialTable) -> bool:
    """This run is about pages, whatever came of it."""
    return any(is_a_page(arm) for arm in table.run.info.arms)


def ratios(above: PageTrials, below: PageTrials) -> dict[int, float]:
    """Pages a second of one over the other, for each block in which both are good."""
    return {block: rate / below.by_block[block] for block, rate in above.by_block.items() if block in below.by_block}


def places(arms: Iterable[PageTrials]) -> dict[Place, list[PageTrials]]:
    found: dict[Place, list[PageTrials]] = {}
    for arm in arms:
        found.setdefault(arm.place, []).append(arm)
    return found
