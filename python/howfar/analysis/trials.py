"""Good trials by arm and block, and the values that are compared. Void trials are left out here, and counted elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from howfar.store.records import Arm, ArmRole, HistogramRecord, Measured, Run, Trial, TrialStatus

PATH_ROLES = ("client", "application", "server", "redis", "memcached", "forwarder")
"""Whose CPU a path costs. The link emulator's is the instrument's own and stays out."""

Value = Callable[[Measured], float | None]
"""One comparable figure of a trial, > 0; None: this trial does not have it."""


@dataclass(frozen=True)
class TrialTable:
    """The good trials of a run: `trials[arm][block]`, blocks ascending, and what each measured: `good[arm][block]`, where a page
    counts as one query, whoever ran it and however many turns it took. These stand in `services` and `told`."""

    run: Run
    good: dict[str, dict[int, Measured]]
    trials: dict[str, dict[int, Trial]]

    @property
    def baseline(self) -> Arm | None:
        return next((arm for arm in self.run.info.arms if arm.role is ArmRole.BASELINE), None)

    def measured(self, arm: str) -> list[Measured]:
        return list(self.good.get(arm, {}).values())

    def void(self, arm: str) -> list[Trial]:
        return [trial for trial in self.run.trials if trial.arm == arm and not _is_good(trial)]

    def block_ratios(self, arm: str, reference: str, value: Value) -> list[float]:
        """`arm` over `reference`, for each block in which both are good, in the order of blocks."""
        ratios = []
        for block, measured in self.good.get(arm, {}).items():
            other = self.good.get(reference, {}).get(block)
            above = value(measured)
            below = value(other) if other is not None else None
            if above and below:
                ratios.append(above / below)
        return ratios


def _is_good(trial: Trial) -> bool:
    return trial.status is TrialStatus.OK and trial.measured is not None and trial.measured.transactions > 0


def trial_table(run: Run) -> TrialTable:
    good: dict[str, dict[int, Measured]] = {arm.name: {} for arm in run.info.arms}
    trials: dict[str, dict[int, Trial]] = {arm.name: {} for arm in run.info.arms}
    pages = _kind(run) == "page"
    for trial in sorted(run.trials, key=lambda t: (t.block, t.attempt)):
        if _is_good(trial) and trial.arm in good and trial.measured is not None:
            seen = trial.measured
            good[trial.arm][trial.block] = seen.model_copy(update={"queries": seen.transactions}) if pages else seen
            trials[trial.arm][trial.block] = trial
    return TrialTable(run=run, good=good, trials=trials)


def qps(measured: Measured) -> float | None:
    """Queries a second; of a table's trials pages where they are of pages."""
    return measured.queries / (measured.elapsed_ns / 1e9)


def rate_unit(run: Run) -> tuple[str, Value]:
    """What a run counts while it goes on: queries a second; pages, since those are of many turns; requests of a store of keys."""
    kind = _kind(run)
    if kind == "page":
        return PAGES, _pages_per_s
    return ("requests/s", qps) if kind == "key_value" else QUERIES


PAGES = "pages/s"
QUERIES: tuple[str, Value] = ("queries/s", qps)


def _kind(run: Run) -> object:
    workload = run.info.plan.get("workload")
    return workload.get("kind") if isinstance(workload, dict) else None


def _pages_per_s(measured: Measured) -> float | None:
    return measured.transactions * 1e9 / measured.elapsed_ns if measured.transactions else None


def role_cpu_us(measured: Measured, role: str) -> float | None:
    """CPU microseconds a query of one role. None: no such part on this path."""
    spent = [cpu.cpu_ns for cpu in measured.cpu if cpu.role == role]
    return sum(spent) / 1e3 / measured.queries if spent and measured.queries else None


def path_cpu_us(measured: Measured) -> float | None:
    """CPU microseconds a query of the whole path."""
    return sum(role_cpu_us(measured, role) or 0.0 for role in PATH_ROLES) or None


def transaction_histogram(measured: Measured) -> HistogramRecord | None:
    return next((h for h in measured.histograms if h.kind == "transaction"), None)


def median_latency_ns(measured: Measured) -> float | None:
    histogram = transaction_histogram(measured)
    return float(histogram.p50_ns) if histogram else None
