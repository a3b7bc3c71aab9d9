"""Loads with replicas: the RTT that a commit waits for, and a second load alongside the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from howfar.contract.messages import LoadJob, UnixTarget
from howfar.errors import EngineError, LabError
from howfar.experiments.replication.inserts import single_row_updates
from howfar.experiments.replication.load import WritersLoad, acknowledgement_rtt_ns

REPLICAS = ("replica1", "replica2")


def test_a_commit_waits_for_the_nearest_replicas_that_it_needs() -> None:
    rtts_ns = {"replica1-replica2": 1, "replica1": 900, "replica2": 300}
    assert [acknowledgement_rtt_ns(rtts_ns, REPLICAS, count) for count in (0, 1, 2)] == [300, 300, 900]


@pytest.mark.parametrize("rtts_ns", [{"replica1": None, "replica1-replica2": 1}, {}])
def test_a_replica_of_unknown_distance_makes_the_trial_void(rtts_ns: dict[str, int | None]) -> None:
    """The RTT between the replicas is not taken for that of a replica."""
    with pytest.raises(LabError, match="link to replica1 is unknown"):
        acknowledgement_rtt_ns({"replica2": 300, **rtts_ns}, REPLICAS, 1)


def test_if_both_loads_fail_the_error_names_both_causes() -> None:
    node = SimpleNamespace(server=SimpleNamespace(socket="/second", password=""))
    group = SimpleNamespace(replica_set=SimpleNamespace(replicas=[node]))
    environment: Any = SimpleNamespace(server_group=group, client=None)
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
