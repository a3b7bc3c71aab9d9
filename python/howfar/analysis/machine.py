"""What else the machine did while it measured, and what that did to the baseline. When it is worth a warning: `signs.py`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from howfar.analysis.summary import Spread
from howfar.analysis.trials import TrialTable, Value, path_cpu_us, qps
from howfar.store.records import Trial


def others_in(trial: Trial) -> float | None:
    """CPUs kept busy in one trial by whatever is not client, server, forwarder or link. None: void, or not recorded.

    The machine's busy CPUs less our roles' CPU time over elapsed time, and that of the looks at them. Never below 0, where the clocks'
    grain would put it.
    """
    busy = _busy_cpus(trial)
    if trial.measured is None or busy is None or not trial.measured.elapsed_ns:
        return None
    ours = sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns
    looks = trial.window.looks_cpu_ns / trial.window.length_ns if trial.window is not None else 0.0
    return max(0.0, busy - ours - looks)


def _busy_cpus(trial: Trial) -> float | None:
    """Of the machine, within the measured window where that was looked at: a trial's load goes on until its last answers are in."""
    if trial.window is not None and trial.window.cpus_busy:
        return sum(trial.window.cpus_busy.values())
    return None if trial.load is None else trial.load.busy_cpus


def others_cpus(trials: Sequence[Trial]) -> float | None:
    """The median over the trials that say."""
    known = [others for trial in trials if (others := others_in(trial)) is not None]
    return median(known) if known else None


def baseline_spread(table: TrialTable) -> Spread | None:
    """Largest over smallest of the baseline's trials: it is one path throughout, so what moves it is the machine."""
    trials = table.measured(table.baseline.name) if table.baseline else []

    def spread(value: Value) -> float | None:
        found = [v for trial in trials if (v := value(trial))]
        return max(found) / min(found) if len(found) > 1 else None

    speed = spread(qps)
    return None if speed is None else Spread(qps=speed, cpu_per_query=spread(path_cpu_us))
