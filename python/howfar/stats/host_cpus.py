"""The processors of one host, and their use in trials: how busy they were, and with which processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from howfar.contract.environment import RunEnvironment
from howfar.contract.receipt import TrialReceipt
from howfar.stats.trials import others_cpus_in_trial, second_writer_cpus
from howfar.store.records import Measured, Trial, Window


@dataclass(frozen=True)
class HostCpus:
    """Processors of a host. `cpus` is empty if a run does not name them; then half of the machine's are assumed."""

    cpus: frozenset[int]
    machine_cpus: int
    """Number of processors of the whole machine."""

    @classmethod
    def from_environment(cls, environment: RunEnvironment, host: str, machine_cpus: int = 1) -> HostCpus:
        """Processors of a `host`, `client` or `server`. `machine_cpus`: number of processors where the run does not report it."""
        count = environment.cpu_count
        return cls(
            frozenset(environment.client_cpus if host == "client" else environment.server_cpus),
            count if count else machine_cpus,
        )

    @property
    def count(self) -> int:
        return len(self.cpus) or max(self.machine_cpus // 2, 1)

    def complete_window(self, trial: Trial) -> Window | None:
        """The trial's window, if it covers all of these processors."""
        window = trial.window
        return window if window is not None and self.cpus and self.cpus <= window.cpus_busy.keys() else None

    def busy_cpus(self, window: Window) -> float:
        """Mean number of busy processors, whatever process used them."""
        return sum(window.cpus_busy[cpu] for cpu in self.cpus)

    def busy_share(self, trials: Sequence[Trial]) -> float | None:
        """Share of the time that the processors worked: the median of trials. None if no trial reports it."""
        windows = [window for trial in trials if (window := self.complete_window(trial)) is not None]
        return median(self.busy_cpus(window) / len(self.cpus) for window in windows) if windows else None

    def link_ns(self, window: Window) -> int:
        """CPU time of the link emulator on these processors."""
        return sum(ns for cpu, ns in window.link_cpu_ns.items() if cpu in self.cpus)

    def link_cpus(self, trials: Sequence[Trial]) -> float:
        """How many of the processors the emulator used: the median of trials. If its processors are unknown, its threads count as
        spread evenly."""
        used_by_trial = [used for trial in trials if (used := self._link_cpus_in(trial)) is not None]
        return median(used_by_trial) if used_by_trial else 0.0

    def _link_cpus_in(self, trial: Trial) -> float | None:
        if trial.window is not None and trial.window.link_cpu_ns and self.cpus:
            return self.link_ns(trial.window) / trial.window.length_ns
        return None if trial.measured is None else cpus_used(trial.measured, ("link",)) * self.count / self.machine_cpus

    def others_cpus(self, trial: Trial, own_cpus: float) -> float:
        """How many of the processors programs outside the trial used. `own_cpus`: how many the trial's own processes used."""
        window = self.complete_window(trial)
        if window is None:
            return (others_cpus_in_trial(trial) or 0.0) * self.count / self.machine_cpus
        # It is unknown on which processors the sampling and a second writer ran, so they count as spread evenly over all of them.
        spread_cpus = window.sampling_cpu_ns / window.length_ns + second_writer_cpus(trial)
        spread_cpus *= len(self.cpus) / max(len(window.cpus_busy), 1)
        link_cpus = self.link_ns(window) / window.length_ns
        return max(self.busy_cpus(window) - own_cpus - link_cpus - spread_cpus, 0.0)


def forwarder_share(receipts: Sequence[TrialReceipt], host: str) -> float:
    """Share of a forwarder's CPU time on a `host`, `client` or `server`: 0 or 1 for a single program; 0.5 for two programs, which are
    counted as one; 0 for a program that has its own host."""
    if any(receipt.hosts is not None and receipt.hosts.hop for receipt in receipts):
        return 0.0
    sides = {side for receipt in receipts if receipt.forwarder is not None for side in receipt.forwarder.sides}
    return float(host in sides) if len(sides) == 1 else 0.5


def cpus_used(measured: Measured | None, roles: Sequence[str]) -> float:
    """Mean number of CPUs that these roles used in the trial."""
    if measured is None:
        return 0.0
    return sum(use.cpu_ns for use in measured.cpu if use.role in roles) / measured.elapsed_ns
