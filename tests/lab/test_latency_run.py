"""Offered rates on a real server: the due arrivals match the rate, and percentages refer to the baseline's capacity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from howfar.store.records import TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import LOCAL, came_through, known, run_howfar
from tests.lab.undisturbed import lasting

pytestmark = pytest.mark.usefixtures("mariadb")
PLAN = LOCAL.replace("threads = 1", 'threads = 4\nload = ["closed", "50%", "200/s"]').replace(
    'path = "socket"\n[timing]', 'path = "socket"\nload = "closed"\n[timing]'
)


def test_rates_are_offered_proven_and_reported(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(PLAN)
    done = run_howfar("run", "slow.toml", "--out", "a.howfar", cwd=tmp_path, env={"XDG_CACHE_HOME": str(cache)})
    came_through(done.returncode, done.stderr)
    run = read_run(tmp_path / "a.howfar")
    capacity = known(run.info.environment.capacity)
    assert "capacity of the baseline (socket, closed loop): " in done.stderr and capacity.arm == "socket, closed loop"
    rates = [float(level[:-2]) for level in run.info.plan["factors"]["load"] if level != "closed"]
    assert rates == [pytest.approx(known(capacity.per_s) / 2, rel=0.01), 200.0]
    assert not lasting(trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID)
    paced = [trial for trial in run.trials if trial.status is TrialStatus.OK and "closed loop" not in trial.arm]
    assert len({trial.arm for trial in paced}) == 4
    # Arrival times belong to the block: they are the same on each path.
    due: dict[tuple[int, float], set[int]] = {}
    for trial in paced:
        account = known(trial.receipt.arrivals)
        assert account.per_s in rates
        assert account.due == account.answered + account.unanswered + account.failed
        assert trial.measured is not None and trial.measured.transactions == account.answered
        due.setdefault((trial.block, account.per_s), set()).add(account.due)
    assert all(max(counts) - min(counts) <= 1 for counts in due.values()), due
    report = run_howfar("report", "a.howfar", "--json", cwd=tmp_path)
    found = json.loads(report.stdout)["latency"]
    assert [path["name"] for path in found["paths"]] == ["socket", "tcp"]
