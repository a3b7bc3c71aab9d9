"""Runs with offered rates: the due arrivals match the rate, and percentages refer to the baseline's capacity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from howfar.store.records import TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import LOCAL_PATHS, assert_completed, good_trials, require, run_howfar, tiny_plan
from tests.lab.undisturbed import unexcused

pytestmark = pytest.mark.usefixtures("mariadb")
PLAN = tiny_plan(
    LOCAL_PATHS, blocks=2, factors={"threads": 4, "load": ["closed", "50%", "200/s"]}, baseline={"load": "closed"}
)


def test_rates_are_offered_proven_and_reported(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(PLAN)
    done = run_howfar("run", "slow.toml", "--out", "a.howfar", cwd=tmp_path, cache=cache)
    assert_completed(done.returncode, done.stderr)
    run = read_run(tmp_path / "a.howfar")
    capacity = require(run.info.environment.capacity)
    assert "capacity of the baseline (socket, closed loop): " in done.stderr and capacity.arm == "socket, closed loop"
    rates = [float(level[:-2]) for level in run.info.plan["factors"]["load"] if level != "closed"]
    assert rates == [pytest.approx(require(capacity.per_s) / 2, rel=0.01), 200.0]
    assert not unexcused(trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID)
    paced = [trial for trial in good_trials(run) if "closed loop" not in trial.arm]
    assert len({trial.arm for trial in paced}) == 4
    # Arrival times are drawn for each block and are the same on each path.
    due: dict[tuple[int, float], set[int]] = {}
    for trial in paced:
        account = require(trial.receipt.arrivals)
        assert account.per_s in rates
        assert account.due == account.answered + account.unanswered + account.failed
        assert trial.measured is not None and trial.measured.transactions == account.answered
        due.setdefault((trial.block, account.per_s), set()).add(account.due)
    assert all(max(counts) - min(counts) <= 1 for counts in due.values()), due
    report = run_howfar("report", "a.howfar", "--json", cwd=tmp_path)
    found = json.loads(report.stdout)["latency"]
    assert [path["name"] for path in found["paths"]] == ["socket", "tcp"]
