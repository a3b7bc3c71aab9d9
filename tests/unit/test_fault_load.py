"""A load in a thread while a fault is injected, and the actions of each fault, on stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.acknowledged_scenario import INSERTS

from howfar.contract.messages import Event, LoadJob, Measuring, UnixTarget
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome
from howfar.errors import EngineError, LabError
from howfar.experiments.replication.factors import Fault
from howfar.experiments.replication.fault.crash import FAILOVER_NS, FAULTS, apply_fault, restore_links
from howfar.experiments.replication.fault.under_load import BackgroundLoad, with_key_log
from howfar.experiments.replication.lab import ReplicaSet, ReplicationSpec

JOB = LoadJob(
    target=UnixTarget(path="/s"),
    user="u",
    database="d",
    workload=INSERTS,
    connections=2,
    seed=1,
    warmup_ns=0,
    measure_ns=1,
)
OUTCOME = cast(LoadOutcome, object())
MEASURING = Measuring(unix_time_ns=0, warmup_transactions=0)


def under_load(
    measure: Callable[[Callable[[Event], None]], LoadOutcome], kill: Callable[[], None] = lambda: None
) -> BackgroundLoad:
    load = BackgroundLoad(JOB, Path("keys"), kill)
    load.start(lambda job, launcher, on_event: measure(on_event), Launcher(), lambda event: None)
    return load


def test_the_load_of_a_fault_logs_its_keys_and_ends_with_its_server() -> None:
    job = with_key_log(JOB, Path("/w/keys"), 5_000_000_000)
    assert (job.session.on_disconnect, job.acknowledged, job.measure_ns) == ("end", "/w/keys", 5_000_000_000)
    assert job.stall_timeout_ns > job.measure_ns, "a commit that hangs is the fault's doing"


def test_a_load_is_paused_for_and_finished() -> None:
    go_on = threading.Event()

    def measure(on_event: Callable[[Event], None]) -> LoadOutcome:
        on_event(MEASURING)
        assert go_on.wait(30)
        return OUTCOME

    load = under_load(measure)
    load.await_window()
    load.pause_until(1_000_000)
    go_on.set()
    assert load.finish() is OUTCOME


def test_a_load_that_ends_before_the_fault_is_told() -> None:
    def measure(on_event: Callable[[Event], None]) -> LoadOutcome:
        on_event(MEASURING)
        return OUTCOME

    load = under_load(measure)
    load.finish()
    with pytest.raises(LabError, match="ended before the fault"):
        load.pause_until(60_000_000_000)
    with pytest.raises(LabError, match="ended before the primary was killed"):
        load.pause(60_000_000_000, "the primary was killed")


def test_what_the_load_dies_of_is_what_is_heard() -> None:
    def measure(on_event: Callable[[Event], None]) -> LoadOutcome:
        raise EngineError("no such table")

    load = under_load(measure)
    with pytest.raises(EngineError, match="no such table"):
        load.await_window()
    with pytest.raises(EngineError, match="no such table"):
        load.finish()


def test_a_load_that_is_left_ends_with_its_server() -> None:
    killed = threading.Event()

    def measure(on_event: Callable[[Event], None]) -> LoadOutcome:
        on_event(MEASURING)
        assert killed.wait(30)
        return OUTCOME

    load = under_load(measure, killed.set)
    load.await_window()
    load.abandon()
    assert killed.is_set() and load.finish() is OUTCOME
    killed.clear()
    load.abandon()
    assert not killed.is_set(), "one that has ended needs nobody killed"


def stand_in(done: list[Any]) -> ReplicaSet:
    def replica(name: str) -> Any:
        return SimpleNamespace(name=name)

    def link(number: int) -> Any:
        return SimpleNamespace(
            cut=lambda directions: done.append((number, directions)), restore=lambda: done.append((number, "mended"))
        )

    primary = SimpleNamespace(server=SimpleNamespace(kill=lambda: done.append("killed")))
    dialect = SimpleNamespace(stop_receiving=lambda replica, _: done.append((replica.name, "STOP")))
    replicas, links = (replica("replica1"), replica("replica2")), (link(1), link(2))
    spec = ReplicationSpec(mode="async", replicas=2)
    return cast(
        ReplicaSet, SimpleNamespace(primary=primary, replicas=replicas, links=links, dialect=dialect, spec=spec)
    )


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("kill-primary", ["killed"]),
        ("cut", [(1, ("to_server", "to_client")), (2, ("to_server", "to_client")), FAILOVER_NS, "killed"]),
        ("cut-to-replica", [(1, ("to_client",)), (2, ("to_client",)), FAILOVER_NS, "killed"]),
        ("cut-to-primary", [(1, ("to_server",)), (2, ("to_server",)), FAILOVER_NS, "killed"]),
        ("stop-replica", [("replica1", "STOP"), ("replica2", "STOP"), FAILOVER_NS, "killed"]),
    ],
)
def test_each_fault_is_done_in_its_order(fault: Fault, wanted: list[Any]) -> None:
    done: list[Any] = []
    replica_set = stand_in(done)
    broken, others = apply_fault(replica_set, FAULTS[fault], done.append, ExitStack())
    assert (done, others) == (wanted, None)
    assert broken.fault_ns <= broken.dead_ns
    done.clear()
    restore_links(replica_set, FAULTS[fault])
    assert done == ([(1, "mended"), (2, "mended")] if "cut" in fault else [])
