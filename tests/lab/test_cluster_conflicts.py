"""Runs with writes to two nodes of a cluster: which updates are refused, repeated and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.lab.servers.kinds import find_server
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import ONE_TABLE, assert_completed, good_trials, plan_toml, require, run_howfar, timing
from tests.lab.undisturbed import skip_if_disturbed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]


def make_plan(mode: str) -> str:
    cluster = {"replication": mode, "replicas": 2, "distances": "three-regions", "replica_rate": "1gbit"}
    return plan_toml(
        workload={"kind": "single_row_updates"},
        data=ONE_TABLE,
        factors={"path": "socket", "threads": 2, "writers": ["own-rows", "same-row"], **cluster},
        baseline={"writers": "own-rows"},
        timing=timing(2, "200ms", "1500ms"),
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "mode"), [("mariadb", "galera"), ("mysql", "group")], indirect=["name"])
def test_refused_updates_of_two_nodes_are_repeated_and_none_is_lost(
    name: str, mode: str, cache: Path, tmp_path: Path
) -> None:
    plan, file = tmp_path / "tiny.toml", tmp_path / "tiny.howfar"
    plan.write_text(make_plan(mode))
    arguments = ("run", str(plan), "--server", str(find_server(name).path), "--out", str(file))
    done = run_howfar(*arguments, cache=cache, cwd=tmp_path)
    assert_completed(done.returncode, done.stderr)
    run = read_run(file)
    levels = {arm.name: str(arm.factors["writers"]) for arm in run.info.arms}
    good = {levels[trial.arm]: trial for trial in good_trials(run)}
    if set(good) != {"own-rows", "same-row"}:
        skip_if_disturbed(*(trial.void_reason for trial in run.trials))
    for level, trial in good.items():
        seen, window = require(trial.receipt.writers), require(require(trial.receipt.replication).window)
        assert trial.measured is not None
        second = require(seen.second)
        repeated = sum(trial.measured.errors.values()) + sum(second.errors.values())
        nodes = require(window.counted).values()
        conflicts = sum(node["conflicts"] + node.get("wsrep_local_bf_aborts", 0) for node in nodes)
        print(level, trial.measured.transactions, trial.measured.errors, seen, conflicts)
        assert (repeated > 0, conflicts > 0) == (level == "same-row",) * 2
        assert second.transactions > 0 or level == "same-row", (
            "on the same row, each update of the second node may be refused"
        )
        for rows in seen.rows.values():
            assert seen.commits <= rows <= require(seen.answered)
            assert level == "same-row" or rows == seen.answered, "without refusals, every answer is a commit"
    assert set(good) == {"own-rows", "same-row"}
