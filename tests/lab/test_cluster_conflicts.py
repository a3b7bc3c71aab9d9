"""Writes to two nodes of a real cluster, through the real command: which updates are refused, repeated and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.lab.servers.kinds import find_server
from howfar.store.records import TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import came_through, known, run_howfar
from tests.lab.undisturbed import skip_if_disturbed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
PLAN = """
name = "tiny"
question = "What is repeated?"
[workload]
kind = "single_row_updates"
[data]
tables = 1
table_size = 1000
[factors]
path = "socket"
threads = 2
replication = "{mode}"
writers = ["own-rows", "same-row"]
replicas = 2
distances = "three-regions" # the longer, the more lateness is forgiven: tests may meet a busy machine
replica_rate = "1gbit"
[baseline]
writers = "own-rows"
[timing]
warmup = "200ms"
measure = "1500ms"
min_blocks = 2
max_blocks = 2
controls = false
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "mode"), [("mariadb", "galera"), ("mysql", "group")], indirect=["name"])
def test_two_nodes_repeat_what_they_refuse_each_other_and_no_update_is_lost(
    name: str, mode: str, cache: Path, tmp_path: Path
) -> None:
    plan, file = tmp_path / "tiny.toml", tmp_path / "tiny.howfar"
    plan.write_text(PLAN.format(mode=mode))
    arguments = ("run", str(plan), "--server", str(find_server(name).path), "--out", str(file))
    done = run_howfar(*arguments, env={"XDG_CACHE_HOME": str(cache)}, cwd=tmp_path)
    came_through(done.returncode, done.stderr)
    run = read_run(file)
    levels = {arm.name: str(arm.factors["writers"]) for arm in run.info.arms}
    good = {levels[trial.arm]: trial for trial in run.trials if trial.status is TrialStatus.OK}
    if set(good) != {"own-rows", "same-row"}:
        skip_if_disturbed(*(trial.void_reason for trial in run.trials))
    for level, trial in good.items():
        seen, window = known(trial.receipt.writers), known(known(trial.receipt.replication).window)
        assert trial.measured is not None
        second = known(seen.second)
        repeated = sum(trial.measured.errors.values()) + sum(second.errors.values())
        nodes = known(window.counted).values()
        told = sum(node["conflicts"] + node.get("wsrep_local_bf_aborts", 0) for node in nodes)
        print(level, trial.measured.transactions, trial.measured.errors, seen, told)
        assert (repeated > 0, told > 0) == (level == "same-row",) * 2
        assert second.transactions > 0 or level == "same-row", "there it may be refused each time"
        for rows in seen.rows.values():
            assert seen.commits <= rows <= known(seen.answered)
            assert level == "same-row" or rows == seen.answered, "nothing was refused, so every answer is a commit"
    assert set(good) == {"own-rows", "same-row"}
