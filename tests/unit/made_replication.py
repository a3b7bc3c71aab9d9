"""Shared fakes for replication, crash and fallback: simulated commits, runs made of them, trials with a planted fault, and
summaries of the three plans."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Container, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, Literal

from tests.made import build, build_run, build_trial, latency

from howfar.analysis.summary import Summary
from howfar.contract.receipt import ReplicationReceipt, TrialReceipt
from howfar.contract.receipt_messages import Bytes, CpuUse, Histogram
from howfar.contract.replication_receipt import PrimaryState, ReplicationWindow, Snapshot
from howfar.contract.server_receipt import SessionReceipt
from howfar.experiments.registry import summarise
from howfar.experiments.replication.records import CrashRecord, FallbackRecord, FallbackSample, LagRecord
from howfar.store.records import Arm, ArmRole, Measured, Run, StopReason, Trial, Window

MS, S = 1_000_000, 1_000_000_000
ELAPSED_NS = 4 * S
THREADS = (1, 16, 64)
RTT_NS = 85 * MS
MODES = ("none", "async", "after-sync", "after-commit")
OVER_REST = 1.002
"""Ratio of the idle link's RTT to the configured RTT."""

# ---------------------------------------------------------------- simulated servers

Mechanism = Literal["waits alone", "holds the commit stage", "holds the log"]
"""What a commit does while it waits for the replica: with AFTER_COMMIT; with MySQL's AFTER_SYNC; with MariaDB's AFTER_SYNC."""


@dataclass
class Simulation:
    """Event simulation of group commit with a distant replica: locks that servers hold while they wait, none of the model's formulae.
    Connections do local work in parallel, then queue for the binary log. Times in milliseconds."""

    mechanism: Mechanism
    connections: int
    rtt_ms: float
    own_ms: float = 0.05
    """Mean local work of a connection, in parallel with others."""
    write_ms: float = 0.01
    """Time to write a commit to the log, one commit after another."""
    seed: int = 1
    _now: float = 0.0
    _events: list[tuple[float, int, Generator[float | _Gate, None, None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _rng: random.Random = field(default_factory=random.Random)
    done: int = 0
    counting: bool = False

    def run(self, warmup_ms: float, measure_ms: float) -> float:
        """Run the simulation; returns commits/s."""
        self._rng.seed(self.seed)
        log, commit = _Gate(self), _Gate(self)
        queue: list[_Ticket] = []
        behind: list[_Ticket] = []
        for _ in range(self.connections):
            self.push(self._now, self._client(queue, behind, log, commit))
        while self._events and self._events[0][0] <= warmup_ms + measure_ms:
            self._now, _, process = heapq.heappop(self._events)
            self.counting = self._now > warmup_ms
            self._step(process)
        return self.done / measure_ms * 1e3

    def push(self, at: float, process: Generator[float | _Gate, None, None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), process))

    def resume(self, process: Generator[float | _Gate, None, None]) -> None:
        self.push(self._now, process)

    def _step(self, process: Generator[float | _Gate, None, None]) -> None:
        for wanted in process:
            if isinstance(wanted, _Gate):
                if wanted.enter(process):
                    continue
            else:
                self.push(self._now + wanted, process)
            return

    def _client(
        self, queue: list[_Ticket], behind: list[_Ticket], log: _Gate, commit: _Gate
    ) -> Generator[float | _Gate, None, None]:
        while True:
            yield self._rng.expovariate(1 / self.own_ms)
            ticket = _Ticket(_Gate(self, shut=True))
            queue.append(ticket)
            if len(queue) == 1:  # the first in the queue leads the group
                yield log
                group, queue[:] = list(queue), []
                yield self.write_ms * len(group)
                for each in group:
                    each.sent = self._now
                yield from self._acknowledged(group, behind, log, commit)
            else:
                yield ticket.done
            if self.mechanism == "waits alone":
                yield max(0.0, ticket.sent + self.rtt_ms - self._now)
            self.done += self.counting

    def _acknowledged(
        self, group: list[_Ticket], behind: list[_Ticket], log: _Gate, commit: _Gate
    ) -> Generator[float | _Gate, None, None]:
        """The leader waits for the acknowledgement, then releases its followers."""
        if self.mechanism == "waits alone":
            log.leave()
        elif self.mechanism == "holds the log":
            yield commit
            log.leave()
            yield max(0.0, group[-1].sent + self.rtt_ms - self._now)
            commit.leave()
        else:
            log.leave()
            behind += group
            if len(behind) > len(group):  # another leads the commit stage and will release these too
                yield group[0].done
                return
            yield commit
            group = list(behind)
            behind[:] = []
            yield max(0.0, max(each.sent for each in group) + self.rtt_ms - self._now)
            commit.leave()
        for each in group:
            each.done.leave()


@dataclass
class _Gate:
    """A lock granted in order of arrival; `leave` passes it to the next."""

    of: Simulation
    shut: bool = False
    waiting: list[Generator[float | _Gate, None, None]] = field(default_factory=list)

    def enter(self, process: Generator[float | _Gate, None, None]) -> bool:
        if self.shut:
            self.waiting.append(process)
            return False
        self.shut = True
        return True

    def leave(self) -> None:
        if self.waiting:
            self.of.resume(self.waiting.pop(0))
        else:
            self.shut = False


@dataclass
class _Ticket:
    done: _Gate
    sent: float = 0.0


# ---------------------------------------------------------------- runs of commits


@dataclass(frozen=True)
class Server:
    """A server, described by the time that its commits take."""

    kind: str = "mariadb"
    own_ms: float = 0.1
    write_ms: float = 0.02

    def mechanism(self, mode: str) -> Mechanism:
        if self.kind == "mysql":
            return "holds the commit stage"
        return "waits alone" if mode == "after-commit" else "holds the log"

    @cache  # noqa: B019
    def commits_per_s(self, mode: str, rtt_ns: int, threads: int) -> float:
        if mode not in ("after-sync", "after-commit"):
            alone = threads / (self.own_ms + self.write_ms) * 1e3
            return min(alone, 0.95e3 / self.write_ms) * (1.0 if mode == "none" else 0.9)
        rtt_ms = rtt_ns * OVER_REST / MS
        return Simulation(self.mechanism(mode), threads, rtt_ms, self.own_ms, self.write_ms).run(
            20 * rtt_ms, 60 * rtt_ms
        )


def replication_run(
    server: Server,
    rtts_ns: Sequence[int] = (RTT_NS,),
    threads: Sequence[int] = THREADS,
    modes: Sequence[str] = MODES,
    blocks: int = 4,
    noise: float = 0.005,
    extra: dict[str, Any] | None = None,
) -> Run:
    """A run of commits on `server`; `extra`: further factor levels of each arm."""
    rng = random.Random(1)
    arms: list[Arm] = []
    trials: list[Trial] = []
    cells = [(mode, rtt, n) for mode in modes for rtt in (rtts_ns if mode != "none" else (0,)) for n in threads]
    for mode, rtt_ns, n in cells:
        factors: dict[str, Any] = {"path": "socket", "threads": n, "replication": mode, **(extra or {})}
        factors |= {"replica_rtt_ns": rtt_ns} if mode != "none" else {}
        name = f"{mode}, {rtt_ns // MS}ms, {n}"
        arms.append(Arm(name=name, role=ArmRole.CONTENDER if arms else ArmRole.BASELINE, factors=factors))
        per_s = server.commits_per_s(mode, rtt_ns, n)
        for block in range(blocks):
            measured = per_s * math.exp(rng.gauss(0, noise))
            trials.append(_measured_trial(len(trials), block, name, mode, n, measured, rtt_ns))
    return run_of(server.kind, arms, trials)


def run_of(kind: str, arms: Sequence[Arm], trials: Sequence[Trial], plan: str = "replication") -> Run:
    return build_run(
        plan,
        arms,
        trials,
        StopReason.BLOCKS,
        run_id="00000000-0000-4000-8000-000000000006",
        plan={"name": plan, "workload": {"kind": "single_row_inserts"}, "timing": {"target_half_width": 0.05}},
        environment={
            "cpu_count": 2,
            "server_cpus": [0],
            "client_cpus": [1],
            "placement": "isolated",
            "data_fsync_ns": {"512": {"count": 200, "p50": 1900, "p99": 4100}},
            "work_file_system": "tmpfs",
        },
        server_kind=kind,
        server_version="1.0",
    )


def _cpu(role: str, transactions: int) -> CpuUse:
    return build(CpuUse, role=role, cpu_ns=transactions * 20_000, busiest_thread_ns=transactions * 10_000, threads=2)


def _measured_trial(number: int, block: int, arm: str, mode: str, threads: int, per_s: float, rtt_ns: int) -> Trial:
    mean_ns = threads * 1e9 / per_s
    transactions = round(per_s * ELAPSED_NS / 1e9)
    measured = build(
        Measured,
        elapsed_ns=ELAPSED_NS,
        transactions=transactions,
        queries=transactions,
        round_trips=transactions,
        rows=transactions,
        bytes=Bytes(to_server=transactions * 30, to_client=transactions * 11),
        warmup_transactions=1,
        connect_ns=MS,
        cpu=tuple(_cpu(role, transactions) for role in ("client", "server")),
        histograms=(latency(Histogram, "transaction", [mean_ns], transactions),),
    )
    lag = [
        LagRecord(at_ns=at * 100 * MS, replica="replica1", behind=int(per_s * rtt_ns / 2e9), heartbeat_ns=rtt_ns // 2)
        for at in range(5)
    ]
    replication = ReplicationReceipt(rtt_at_rest_ns={"replica1": round(rtt_ns * OVER_REST)} if mode != "none" else {})
    if mode.startswith("after"):
        before, after = (build(Snapshot, primary=build(PrimaryState, yes_tx=seen)) for seen in (0, transactions))
        replication.window = ReplicationWindow(before=before, after=after)
    return build_trial(
        number,
        arm,
        block=block,
        measured=measured,
        receipt=TrialReceipt(session=build(SessionReceipt), replication=replication),
        window=Window(
            length_ns=ELAPSED_NS,
            interface="",
            server={"Binlog_commits": transactions, "Binlog_group_commits": max(1, transactions // 3)},
            lag=tuple(lag) if mode != "none" else (),
        ),
    )


# ---------------------------------------------------------------- trials with a planted fault


def crash_arm(name: str, mode: str, fault: str = "cut", **factors: Any) -> Arm:
    levels: dict[str, Any] = {"threads": 16, "replication": mode, "fault": fault, "replica_rtt_ns": RTT_NS, **factors}
    role = ArmRole.BASELINE if name == "asynchronous" else ArmRole.CONTENDER
    return Arm(name=name, role=role, factors={"path": "socket", **levels})


def crash_trial(number: int, lost: int, arm: str = "asynchronous", **more: Any) -> Trial:
    """The link is cut 3 s after the load began, the primary dies 500 ms later."""
    fields: dict[str, Any] = {
        "fault": "cut",
        "fault_ns": 3 * S,
        "dead_ns": 3 * S + 500 * MS,
        "watched_ns": 2 * MS,
        "commits_per_s": 6000.0,
        "acknowledged": 21_000,
        "lost": lost,
        "first_lost_ns": 3 * S - 45 * MS if lost else None,
        "unknown": 16,
        "seen": 900,
        "behind_before": 260,
        "heartbeat_before_ns": 60 * MS,
        "replica_rtt_ns": RTT_NS,
        "promoted": "replica1",
        "promotion_ns": 80 * MS,
        "unapplied": 3,
        "lost_keys": tuple(range(min(lost, 20))),
    }
    return build_trial(number, arm, fault=build(CrashRecord, **fields | more))


CRASHES = 20
CRASH_ARMS = (
    crash_arm("asynchronous", "async"),
    crash_arm("killed", "async", "kill-primary"),
    crash_arm("sync", "after-sync"),
    crash_arm("commit", "after-commit"),
)


def crash_trials() -> list[Trial]:
    """Twenty crashes of each arm. The asynchronous primary made 6000 commits/s for 500 ms after the cut."""
    found = []
    for at in range(CRASHES):
        lost = 3000 + 30 * (at - CRASHES // 2)
        found.append(
            crash_trial(4 * at, lost, acknowledged=18_000 + lost, lost_after=lost - 9, lost_in_force=lost - 30)
        )
        found.append(crash_trial(4 * at + 1, 3, "killed", fault="kill-primary", dead_ns=3000 * MS, behind_before=260))
        found.append(crash_trial(4 * at + 2, 0, "sync", commits_per_s=110.0, applied_unknown=2))
        early = {"seen_early": 400, "seen_early_median_ns": 84 * MS, "phantoms": 5}
        found.append(crash_trial(4 * at + 3, 0, "commit", commits_per_s=180.0, **early))
    return found


FALLBACK_ARM = crash_arm("semi-sync AFTER_SYNC", "after-sync", "replica-leaves")


def fallback_trial(
    slices: int = 600, slice_ns: int = 50 * MS, a_slice: int = 10, silent: Container[int] = range(60, 260), **more: Any
) -> Trial:
    """Semi-synchronous for 3 s, no commit in `silent` slices, then asynchronous, and semi-synchronous again near the end."""
    every = [index for index in range(slices) if index not in silent]
    length = slices * slice_ns
    samples = tuple(
        FallbackSample(
            at_ns=at,
            semi_sync=at < length // 3 or at > length * 9 // 10,
            clients=int(at < length // 3 or at > length * 2 // 3),
            waiting=16,
            acknowledged=at // MS,
            unacknowledged=0,
            behind=None if length // 3 < at < length * 2 // 3 else 40,
        )
        for at in range(0, length, 100 * MS)
    )
    fields: dict[str, Any] = {
        "timeout_ms": 10_000,
        "left_ns": 3 * S,
        "returned_ns": length * 2 // 3,
        "reconnected_ns": length * 2 // 3 + S,
        "stall_ns": 10 * S,
        "longest_commit_ns": 10 * S + 20 * MS,
        "fell_ns": length // 3,
        "back_ns": length * 9 // 10,
        "unprotected": 1234,
        "unacknowledged": 1230,
        "acknowledged": a_slice * len(every),
        "samples": samples,
        "commits": tuple((index * slice_ns, a_slice) for index in every),
        "log_lines": (
            "Timeout waiting for reply of binlog (file: b.000001, pos: 4711), semi-sync up to file , position 0.",
        ),
    }
    return build_trial(1, FALLBACK_ARM.name, fault=FallbackRecord(**fields | more))


def lagging_trial(looks: int, peak_at: int = 0, peak: int = 500) -> Trial:
    found = [
        LagRecord(at_ns=at * 100 * MS, replica="replica1", behind=peak if at == peak_at else 12, heartbeat_ns=None)
        for at in range(looks)
    ]
    return build_trial(1, "asynchronous", window=Window(length_ns=looks * 100 * MS, interface="lo", lag=tuple(found)))


# ---------------------------------------------------------------- summaries of the three plans


def replication() -> Summary:
    """Four modes over 5 and 85 ms, 1 to 64 connections, no commit flushed."""
    return summarise(replication_run(Server(), rtts_ns=(5 * MS, RTT_NS), extra={"durability": "off"}))


def crash() -> Summary:
    return summarise(run_of("mariadb", CRASH_ARMS, crash_trials(), "crash"))


def fallback() -> Summary:
    trials = [fallback_trial().model_copy(update={"number": number, "block": number}) for number in range(4)]
    return summarise(run_of("mariadb", [FALLBACK_ARM], trials, "fallback"))


PLANS = {"replication": replication, "crash": crash, "fallback": fallback}
