"""Exit codes that more than one command gives. `main.py` lists them all for the user."""

from __future__ import annotations

from pathlib import Path

from howfar.store.records import TrialStatus
from howfar.store.run_file import read_run

VOID = 7
"""Nothing valid was measured: the load's figures, or every trial of a run, are void."""


def void_code(run_file: Path) -> int:
    """VOID when the run has trials and none of them is good, else 0."""
    trials = read_run(run_file).trials
    return VOID if trials and all(trial.status is TrialStatus.VOID for trial in trials) else 0
