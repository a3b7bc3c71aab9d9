"""Records of crashes and fallbacks made from logs and looks, and the reasons why none can be made."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from howfar.contract.replication_receipt import PrimaryState
from howfar.engine.acknowledged import RECORD, KeyLog, KeyOutcome
from howfar.errors import LabError
from howfar.experiments.replication.fault.crash import (
    MAX_LOST_KEYS_RECORDED,
    MIN_FAULT_SHARE,
    FaultTimeline,
    StateBeforeFault,
    Survivor,
    cluster_fields,
    crash_record,
    fault_after_ns,
    slow_down,
)
from howfar.experiments.replication.fault.fallback import Absence, ReplicationReading, fallback_record
from howfar.experiments.replication.lab.status import MariadbPositions
from howfar.experiments.replication.lab.watch import AcknowledgedCommit
from howfar.experiments.replication.records import CrashRecord, FallbackRecord, JoinRecord

SECOND = 1_000_000_000
MS = 1_000_000
ORIGIN = 5_000 * SECOND
BROKEN = FaultTimeline(ORIGIN + 2 * SECOND, ORIGIN + 2100 * MS, ORIGIN + 3 * SECOND)
BEFORE = StateBeforeFault(
    window_began_ns=ORIGIN + 1000 * MS,
    behind=4,
    applied=6,
    cpus=None,
    unreceived=3,
    heartbeat_age_ns=90 * MS,
    rtt_ns=85 * MS,
)


def log(*records: tuple[int, int, int, KeyOutcome]) -> KeyLog:
    """A key log of these records: key, sent and ended in ms since the load began, fate."""
    found = np.zeros(len(records), RECORD)
    for row, (key, sent_ms, ended_ms, fate) in zip(found, records, strict=True):
        row["key"], row["sent_ns"], row["ended_ns"], row["fate"] = key, sent_ms * MS, ended_ms * MS, fate
    return KeyLog(Path("log"), ORIGIN, 0, 1, found, closed=True)


def acknowledged(key: int, ended_ms: int, took_ms: int = 1) -> tuple[int, int, int, KeyOutcome]:
    return key, ended_ms - took_ms, ended_ms, KeyOutcome.ACKNOWLEDGED


def record(clients_log: KeyLog, survivor: list[int], seen: KeyLog | None = None) -> CrashRecord:
    keys = np.array(survivor, np.int64)
    return crash_record(
        "cut", BROKEN, BEFORE, clients_log, seen or log(), 2 * MS, Survivor("replica1", keys, 7 * MS, 3)
    )


TOLD = log(
    acknowledged(1, 1001),
    acknowledged(2, 1999),
    acknowledged(3, 2000),
    acknowledged(4, 2500),
    acknowledged(8, 2050),
    (5, 2900, 3000, KeyOutcome.UNKNOWN),
    (6, 2900, 3000, KeyOutcome.UNKNOWN),
    (7, 900, 901, KeyOutcome.REFUSED),
)


def test_a_crash_is_told_as_it_was() -> None:
    found = record(TOLD, [1, 3, 5])
    assert (found.acknowledged, found.lost, found.lost_keys) == (5, 3, (2, 4, 8))
    assert found.lost_after == 2, "keys 4 and 8 were acknowledged after the fault"
    assert found.lost_in_force == 1, "key 8 before all was done"
    assert found.in_force_ns == 2100 * MS
    assert (found.fault_ns, found.dead_ns, found.first_lost_ns) == (2 * SECOND, 3 * SECOND, 1999 * MS)
    assert (found.unknown, found.applied_unknown, found.refused, found.applied_refused) == (2, 1, 1, 0)
    assert found.commits_per_s == pytest.approx(3.0), "three in the second between the window's beginning and the fault"
    assert (found.behind_before, found.unreceived_before) == (4, 3)
    assert found.applied_per_s_before == 3, "6 in the 2 s since the load began"
    assert (found.heartbeat_before_ns, found.replica_rtt_ns) == (90 * MS, 85 * MS)
    assert (found.promoted, found.promotion_ns, found.unapplied) == ("replica1", 7 * MS, 3)


def test_nothing_lost_is_nothing() -> None:
    found = record(TOLD, [1, 2, 3, 4, 6, 8])
    assert (found.lost, found.lost_after, found.first_lost_ns, found.lost_keys) == (0, 0, None, ())
    assert found.lost_in_force == 0


def test_what_others_saw_is_held_against_both_sides() -> None:
    seen = log(
        (1, 0, 990, KeyOutcome.SEEN),
        (2, 0, 1980, KeyOutcome.SEEN),
        (3, 0, 2100, KeyOutcome.SEEN),
        (6, 0, 2950, KeyOutcome.SEEN),
    )
    found = record(TOLD, [1, 3], seen)
    assert (found.seen, found.seen_early, found.seen_early_median_ns) == (4, 3, 15 * MS), "nobody was told of 6"
    assert found.phantoms == 2, "2 and 6 were seen and are gone"


def test_of_many_lost_keys_the_first_are_kept() -> None:
    found = record(log(*(acknowledged(key, 100 + key) for key in range(1, 100))), [])
    assert (found.lost, found.lost_keys) == (99, tuple(range(1, MAX_LOST_KEYS_RECORDED + 1)))


@pytest.mark.parametrize(
    ("survivor", "expected"),
    [
        ([1, 2, 3, 4, 8, 99], "1 rows of the survivor that no client inserted (99)"),
        ([1, 2, 2, 3, 4], "1 keys that are on the survivor more than once (2)"),
    ],
)
def test_rows_that_no_log_explains_make_no_record(survivor: list[int], expected: str) -> None:
    with pytest.raises(LabError) as refused:
        record(TOLD, survivor)
    assert expected in refused.value.message


def test_keys_asked_for_twice_make_no_record() -> None:
    with pytest.raises(LabError, match="inserted more than once"):
        record(log(acknowledged(1, 5), acknowledged(1, 9)), [1])


def test_the_moment_is_the_runs_own() -> None:
    moments = [fault_after_ns(7, block, 0, "async", 2 * SECOND) for block in range(200)]
    assert moments == [fault_after_ns(7, block, 0, "async", 2 * SECOND) for block in range(200)]
    assert len(set(moments)) == 200
    assert min(moments) >= MIN_FAULT_SHARE * 2 * SECOND and max(moments) < 2 * SECOND
    assert fault_after_ns(7, 0, 0, "cut", SECOND) != fault_after_ns(7, 0, 1, "cut", SECOND)


def write(node: str, sent_ms: int) -> AcknowledgedCommit:
    return AcknowledgedCommit(node, ORIGIN + sent_ms * MS, ORIGIN + (sent_ms + 10) * MS)


@pytest.mark.parametrize(
    ("cut_off", "stall_ms", "by_itself"),
    [(set(), 509, 0), ({"primary"}, 1009, 1), ({"replica2"}, 509, 1), ({"primary", "replica2"}, 1009, 2)],
)
def test_who_was_told_of_a_commit_when_a_cluster_had_lost_a_node(
    cut_off: set[str], stall_ms: int, by_itself: int
) -> None:
    """The cut is in force at 2100 ms. Key 4, sent at 2499 and acknowledged at 2500, is the primary's alone if that was cut off."""
    writes = [write("replica2", 2200), write("replica1", 2999), write("replica1", 3090)]
    told = log(acknowledged(1, 1001), acknowledged(2, 1999), acknowledged(3, 2000), acknowledged(4, 2500))
    if "replica2" not in cut_off:
        writes = writes[1:]
    found = cluster_fields(told, writes, BROKEN, ORIGIN + 3100 * MS, cut_off)
    assert found == {
        "stall_ns": stall_ms * MS,
        "by_itself": by_itself,
        "meanwhile_per_s": None,
        "back_ns": None,
        "joined": None,
    }


def test_a_member_that_was_away_is_one_of_those_that_go_on_again() -> None:
    """The member is cut off from 2100 to 2600 ms: commits that it acknowledges then are its own, later ones the cluster's."""
    broken = replace(BROKEN, restored_ns=ORIGIN + 2600 * MS, rejoin_duration_ns=40 * MS)
    told = log(acknowledged(1, 2000), acknowledged(2, 2200), acknowledged(3, 2300), acknowledged(4, 2700))
    writes = [write("replica2", 2450), write("replica2", 2800)]
    found = cluster_fields(told, writes, broken, ORIGIN + 3000 * MS, {"replica2"}, primary_survived=True)
    assert found == {"stall_ns": 400 * MS, "by_itself": 1, "meanwhile_per_s": 4.0, "back_ns": 40 * MS, "joined": None}


def test_while_a_node_joined_its_clients_are_counted_until_the_primary_is_killed() -> None:
    """The node joins from 2100 to 2600 ms; the primary dies at 2700 ms, and later commits do not count."""
    joined = JoinRecord(
        how="SST",
        took_ns=500 * MS,
        received_bytes=1,
        wire_bytes=1,
        donor="primary",
        donor_wire_bytes=1,
        segments=1,
        packets=1,
    )
    broken = replace(
        BROKEN, dead_ns=ORIGIN + 2700 * MS, restored_ns=ORIGIN + 2600 * MS, rejoin_duration_ns=500 * MS, joined=joined
    )
    told = log(acknowledged(1, 2000), acknowledged(2, 2200), acknowledged(3, 2300), acknowledged(4, 2650))
    found = cluster_fields(told, [write("replica1", 9000)], broken, ORIGIN + 9999 * MS, set(), primary_survived=True)
    assert found == {
        "stall_ns": 350 * MS,
        "by_itself": 0,
        "meanwhile_per_s": 4.0,
        "back_ns": 500 * MS,
        "joined": joined,
    }


def test_a_slow_server_stops_and_goes_on_and_is_left_running() -> None:
    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    with subprocess.Popen(["sleep", "60"]) as child:
        with slow_down(child.pid, 0.5):
            seen: list[str] = []
            while "T" not in seen or seen[-1] == "T":
                seen.append(state(child.pid))
        assert state(child.pid) != "T"
        child.kill()


def test_a_cluster_that_never_goes_on_is_counted_to_the_end() -> None:
    assert cluster_fields(log(acknowledged(1, 1990)), [], BROKEN, ORIGIN + 9990 * MS, set())["stall_ns"] == 8000 * MS


# ---------------------------------------------------------------- fallback


def sample(at_ms: int, on: bool, no_tx: int = 0, position: int = 10, received: int | None = 10) -> ReplicationReading:
    end = PrimaryState(
        enabled=True,
        status=on,
        clients=1,
        timeout_ms=1000,
        wait_point="AFTER_SYNC",
        wait_for=1,
        yes_tx=5,
        no_tx=no_tx,
        no_times=0,
        tx_waits=0,
        tx_wait_us=0,
        waiting=0,
    )
    received_at = None if received is None else f"0-1-{received}"
    return ReplicationReading(ORIGIN + at_ms * MS, end, f"0-1-{position}", received_at)


ABSENCE = Absence(ORIGIN + 1000 * MS, ORIGIN + 3000 * MS)
LOOKS = [
    sample(900, True),
    sample(1900, True, received=12),
    sample(2010, False, no_tx=2, position=14, received=12),
    sample(2900, False, no_tx=6, position=18, received=12),
    sample(3100, False, no_tx=7, position=19, received=12),
    sample(3200, False, no_tx=8, position=20, received=15),
    sample(3300, True, no_tx=8, position=20, received=20),
    sample(3400, True, no_tx=8, position=20, received=None),
]
COMMITS = log(
    acknowledged(1, 500, 20),
    acknowledged(2, 990, 20),
    acknowledged(3, 2000, 1005),
    acknowledged(4, 2020),
    acknowledged(5, 3290),
    acknowledged(6, 3310),
)


def fallback(looks: list[ReplicationReading], clients_log: KeyLog = COMMITS) -> FallbackRecord:
    return fallback_record(ABSENCE, 1000, clients_log, looks, MariadbPositions(), ("OFF",))


def test_a_fallback_is_told_as_it_was() -> None:
    found = fallback(LOOKS)
    assert (found.left_ns, found.returned_ns) == (1000 * MS, 3000 * MS)
    assert (found.fell_ns, found.back_ns, found.reconnected_ns) == (2010 * MS, 3300 * MS, 3200 * MS)
    assert found.load_ended_ns == 3310 * MS
    assert found.stall_ns == 1270 * MS, "the longest time without an acknowledgement to anybody"
    assert found.longest_commit_ns == 1005 * MS
    assert found.unprotected == 3, "3 was let go with the fallback, before anybody saw it; 6 waited again"
    assert (found.unacknowledged, found.acknowledged) == (8, 6)
    assert [sample.behind for sample in found.samples] == [0, 0, 2, 6, 7, 5, 0, None]
    assert found.commits[5] == (500 * MS, 1) and found.commits[20] == (2000 * MS, 2) and len(found.commits) == 34
    assert sum(count for _, count in found.commits) == 6


def test_one_that_never_comes_back_is_said_to_be_asynchronous() -> None:
    found = fallback(LOOKS[:5])
    assert (found.fell_ns, found.back_ns, found.reconnected_ns) == (2010 * MS, None, None)
    assert found.unprotected == 4, "all from then on"


def test_one_that_comes_back_for_a_moment_is_not_back() -> None:
    found = fallback([*LOOKS[:7], sample(3350, False), *LOOKS[7:]])
    assert found.back_ns == 3400 * MS


def test_one_that_never_fell_back_has_protected_all() -> None:
    found = fallback([sample(at, True) for at in (900, 1900, 3100)])
    assert (found.fell_ns, found.back_ns, found.unprotected) == (None, None, 0)


def test_who_was_asynchronous_before_has_nothing_to_fall_back_from() -> None:
    with pytest.raises(LabError, match="not semi-synchronous before"):
        fallback([sample(900, False), *LOOKS[1:]])
    with pytest.raises(LabError, match="not semi-synchronous before"):
        fallback([sample(800, True), sample(900, True, no_tx=1), *LOOKS[1:]])
