"""The log of acknowledged keys, which the engine writes: its counts equal the engine's, whatever ends the load."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from howfar.contract.messages import (
    AcknowledgementLog,
    Arrivals,
    Event,
    Failed,
    Finished,
    Interval,
    Measuring,
    Sysbench,
    UnixTarget,
)
from howfar.engine import acknowledged
from howfar.engine.acknowledged import KeyLog, KeyOutcome
from howfar.engine.process import EngineProcess
from tests.acknowledged_scenario import INSERTS, MILLISECOND, SECOND, ending, job, log_event, null_server, only, run

pytestmark = pytest.mark.slow
CONNECTIONS = 32


def read(event: AcknowledgementLog) -> KeyLog:
    """Read the log of an event, and check that it has the event's counts."""
    log = acknowledged.read(Path(event.path))
    assert (len(log.records), log.closed) == (event.records, True)
    counts = [log.count(fate) for fate in KeyOutcome]
    assert counts == [event.acknowledged, event.refused, event.unknown, 0]
    return log


def check_key_sequence(log: KeyLog) -> None:
    """Check that the keys of each connection have no gap."""
    for connection in np.unique(log.records["connection"]):
        keys = log.records["key"][log.records["connection"] == connection]
        assert np.array_equal(keys, 1 + connection + log.connections * np.arange(len(keys)))


@pytest.mark.parametrize("driver", ["epoll", "io_uring"])
def test_counts_are_the_engines_own(driver: str, tmp_path: Path) -> None:
    warmup_ns = 50 * MILLISECOND
    with null_server(tmp_path) as (_, target):
        events = run(
            job(target, tmp_path / "keys", connections=CONNECTIONS, warmup_ns=warmup_ns, driver=driver, threads=2)
        )
    if isinstance(events[-1], Failed) and events[-1].code == "interface":
        pytest.skip(events[-1].message)
    log, finished = read(log_event(events)), only(events, Finished)
    check_key_sequence(log)
    ended = log.records["ended_ns"][log.records["fate"] == KeyOutcome.ACKNOWLEDGED]
    assert np.count_nonzero(ended < warmup_ns) == only(events, Measuring).warmup_transactions
    in_window = (ended >= warmup_ns) & (ended < warmup_ns + finished.elapsed_ns)
    assert np.count_nonzero(in_window) == finished.transactions > 0
    # The load continues until all workers have reported their window, and then waits for commits in flight.
    assert (log.count(KeyOutcome.REFUSED), log.count(KeyOutcome.UNKNOWN)) == (0, 0)
    assert abs(log.origin_unix_ns + warmup_ns - only(events, Measuring).unix_time_ns) < SECOND


@pytest.mark.parametrize("mode", ["auto", "disable", "multi"])
def test_the_requested_number_of_transactions_is_logged(mode: str, tmp_path: Path) -> None:
    workload = INSERTS.model_copy(update={"db_ps_mode": mode})
    with null_server(tmp_path) as (_, target):
        events = run(job(target, tmp_path / "keys", workload=workload, transactions=5000, measure_ns=30 * SECOND))
    log = read(log_event(events))
    check_key_sequence(log)
    assert log.count(KeyOutcome.ACKNOWLEDGED) == only(events, Finished).transactions == 5000


def test_ids_of_sysbench_without_auto_increment_are_logged(tmp_path: Path) -> None:
    workload = Sysbench(kind="oltp_insert", auto_inc=False)
    with null_server(tmp_path) as (_, target):
        events = run(job(target, tmp_path / "keys", workload=workload, transactions=500, measure_ns=30 * SECOND))
    assert read(log_event(events)).count(KeyOutcome.ACKNOWLEDGED) == 500


def signal_at_first_interval(server: EngineProcess, number: int) -> Callable[[Event], None]:
    """A handler of events that sends the server a signal at the first interval, and so under load."""
    sent: list[int] = []

    def at(event: Event) -> None:
        if isinstance(event, Interval) and not sent:
            sent.append(server.pid)
            os.kill(server.pid, number)

    return at


def run_interrupted(tmp_path: Path, number: int, **changes: Any) -> list[Event]:
    """The events of a load whose server dies or hangs during a window of a minute."""
    with null_server(tmp_path) as (server, target):
        wanted = job(
            target,
            tmp_path / "keys",
            connections=CONNECTIONS,
            measure_ns=60 * SECOND,
            interval_ns=50 * MILLISECOND,
            stall_timeout_ns=SECOND,
            **changes,
        )
        try:
            return run(wanted, signal_at_first_interval(server, number))
        finally:
            server.kill()


@pytest.mark.parametrize("driver", ["epoll", "io_uring"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, "server_gone"), (signal.SIGSTOP, "stalled")])
@pytest.mark.parametrize("how", ["stop", "end"])
def test_a_lost_server_loses_no_record(how: str, number: int, code: str, driver: str, tmp_path: Path) -> None:
    events = run_interrupted(tmp_path, number, session=ending(how), driver=driver)
    last = events[-1]
    if isinstance(last, Failed) and last.code == "interface":
        pytest.skip(last.message)
    log = read(log_event(events))
    check_key_sequence(log)
    # In a closed loop, each connection has at most one request without an answer.
    assert 0 < log.count(KeyOutcome.UNKNOWN) <= CONNECTIONS
    unknown = log.records[log.records["fate"] == KeyOutcome.UNKNOWN]
    assert len(np.unique(unknown["connection"])) == len(unknown)
    if how == "stop":
        assert isinstance(last, Failed) and last.code == code
        return
    assert isinstance(last, Finished) and last.interrupted is not None
    assert last.interrupted.code == code
    assert last.elapsed_ns < 60 * SECOND
    assert last.transactions == log.count(KeyOutcome.ACKNOWLEDGED) > 0
    if code == "stalled":
        # All connections had a request in flight when the window ended.
        (in_flight,) = [histogram for histogram in last.histograms if histogram.kind == "in_flight"]
        assert in_flight.count == CONNECTIONS


def test_an_open_loop_that_ends_early_accounts_for_all_that_was_due(tmp_path: Path) -> None:
    events = run_interrupted(tmp_path, signal.SIGKILL, session=ending("end"), arrivals=Arrivals(rate_per_s=2000))
    log, finished = read(log_event(events)), only(events, Finished)
    open_loop = finished.open_loop
    assert finished.interrupted is not None and open_loop is not None
    assert (open_loop.due, open_loop.failed) == (open_loop.answered + open_loop.unanswered, 0)
    assert open_loop.answered == finished.transactions == log.count(KeyOutcome.ACKNOWLEDGED) > 0
    # Unanswered requests include those in flight. A connection may send another until its worker knows that the window has ended.
    unknown = log.records[log.records["fate"] == KeyOutcome.UNKNOWN]
    assert np.count_nonzero(unknown["sent_ns"] < finished.elapsed_ns) <= open_loop.unanswered


def test_each_reconnect_leaves_an_unknown_key(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, target = stack.enter_context(null_server(tmp_path))
        killed = signal_at_first_interval(server, signal.SIGKILL)
        revived: list[EngineProcess] = []

        def at(event: Event) -> None:
            killed(event)
            if isinstance(event, Interval) and not revived:
                (tmp_path / "null.sock").unlink()
                revived.append(stack.enter_context(null_server(tmp_path))[0])

        wanted = job(
            target, tmp_path / "keys", measure_ns=2 * SECOND, interval_ns=100 * MILLISECOND, session=ending("reconnect")
        )
        events = run(wanted, at)
        server.kill()
    log, finished = read(log_event(events)), only(events, Finished)
    check_key_sequence(log)
    assert log.count(KeyOutcome.UNKNOWN) == finished.reconnects == wanted.connections


def test_the_load_does_not_wait_for_a_hung_server_after_the_window(tmp_path: Path) -> None:
    with null_server(tmp_path) as (server, target):
        wanted = job(target, tmp_path / "keys", measure_ns=2 * SECOND, interval_ns=50 * MILLISECOND)
        events = run(wanted, signal_at_first_interval(server, signal.SIGSTOP))
        server.kill()
    log = read(log_event(events))
    assert log.count(KeyOutcome.UNKNOWN) == wanted.connections
    assert log.count(KeyOutcome.ACKNOWLEDGED) == only(events, Finished).transactions


def test_a_log_is_never_overwritten(tmp_path: Path) -> None:
    old = tmp_path / "keys"
    old.write_bytes(b"old")
    (failed,) = run(job(UnixTarget(path="/nonexistent"), old))
    assert isinstance(failed, Failed) and failed.code == "bad_job" and "exists" in failed.message
    assert old.read_bytes() == b"old"


def test_a_load_that_never_begins_leaves_no_log(tmp_path: Path) -> None:
    (failed,) = run(job(UnixTarget(path="/nonexistent"), tmp_path / "keys"))
    assert isinstance(failed, Failed) and failed.code == "connect"
    assert not (tmp_path / "keys").exists()
