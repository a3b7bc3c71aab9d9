"""Parts of a trial: the RTT that a commit waits for, the watch of the machine, and a second load alongside the first."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.made import build
from tests.unit.fake_lab import fake_info, fakes

from howfar.contract.messages import LoadJob, UnixTarget
from howfar.contract.receipt import ProgramUse
from howfar.engine.inserts import single_row_updates
from howfar.errors import EngineError, LabError
from howfar.plan.types import restore_plan
from howfar.runner.loads.writers import WritersLoad
from howfar.runner.stopping import Slot
from howfar.runner.trial import acknowledgement_rtt_ns, run_trial
from howfar.store.records import MachineLoad

REPLICAS = ("replica1", "replica2")


def test_a_commit_waits_for_the_nearest_replicas_that_it_needs() -> None:
    rtts_ns = {"replica1-replica2": 1, "replica1": 900, "replica2": 300}
    assert [acknowledgement_rtt_ns(rtts_ns, REPLICAS, count) for count in (0, 1, 2)] == [300, 300, 900]


@pytest.mark.parametrize("rtts_ns", [{"replica1": None, "replica1-replica2": 1}, {}])
def test_a_replica_of_unknown_distance_makes_the_trial_void(rtts_ns: dict[str, int | None]) -> None:
    """The RTT between the replicas is not taken for that of a replica."""
    with pytest.raises(LabError, match="link to replica1 is unknown"):
        acknowledgement_rtt_ns({"replica2": 300, **rtts_ns}, REPLICAS, 1)


@pytest.mark.parametrize("programs", [(ProgramUse(name="cargo", pid=7, cpus=1.5),), (), None])
def test_what_the_watch_saw_is_kept(programs: tuple[ProgramUse, ...] | None) -> None:
    laboratory, _, instruments = fakes()
    seen = build(MachineLoad, load_average_1m=2.5)
    info = fake_info(laboratory)
    arm, plan = info.arms[0], restore_plan(info.plan)
    watch, named = SimpleNamespace(finish=lambda: seen), SimpleNamespace(finish=lambda: programs)
    watched = replace(instruments, watch=lambda: watch, programs=lambda: named)
    trial = run_trial(0, Slot(0, 0, 0, arm.name), arm, plan, 1, laboratory, watched, lambda event: None)
    assert trial.void_reason is None
    assert (trial.load, trial.receipt.programs) == (seen, programs)


def test_if_both_loads_fail_the_error_names_both_causes() -> None:
    node = SimpleNamespace(server=SimpleNamespace(socket="/second", password=""))
    environment: Any = SimpleNamespace(replica_set=SimpleNamespace(replicas=[node]), client=None)
    job = LoadJob(
        target=UnixTarget(path="/first"),
        user="u",
        database="d",
        workload=single_row_updates(1),
        connections=1,
        seed=1,
        warmup_ns=0,
        measure_ns=1,
    )

    def fail(job: Any, launcher: Any, on_event: Any) -> Any:
        raise EngineError(f"no answer from {job.target.path}")

    with (
        pytest.raises(EngineError) as failure,
        WritersLoad(job, 2, environment).run_alongside(fail),
    ):
        fail(job, None, None)
    assert failure.value.message == "no answer from /first; the second load: no answer from /second"
