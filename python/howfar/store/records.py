"""The records of a run: what was requested, what was seen, trial by trial. Raw first: every reported figure is computed from these.

Not here: any statistic. Times are integers of nanoseconds, sizes bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from howfar.services import ServiceName

FORMAT_VERSION = 7
"""Version of the run file's format. A reader upgrades older files and refuses newer ones."""

CONFIRMATION_BLOCK = 10_000
"""Blocks of a confirmation are numbered from here on: the plan's own, at most a thousand, may still get more after it."""

FactorValue = str | int | float | bool


class Record(BaseModel):
    """Frozen and closed; a number is finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Count = Annotated[int, Field(ge=0, lt=2**62)]
"""Of things, bytes or nanoseconds; sums of some are 64-bit integers still."""


Level = Annotated[float, Field(ge=0)]
"""A share, or a number of CPUs."""


class ArmRole(StrEnum):
    """What an arm is for in the comparison."""

    BASELINE = "baseline"
    DUPLICATE = "duplicate"
    """The baseline's cell under another name: the A/A arm."""
    CONTENDER = "contender"
    CONTROL = "control"
    """Measured to judge the instrument: what it should find is known. In no comparison of the plan."""
    CONFIRMATION = "confirmation"
    """One of a pair made when a limit was named: an arm once more, and with that resource changed. In no ratio of the plan's."""


class Arm(Record):
    """One column of the experiment: a cell (a combination of factor levels) under a name."""

    name: str
    role: ArmRole
    factors: dict[str, FactorValue]
    """Keys from the glossary: path, threads, placement, server, rtt_ns, rate_bps."""


class TrialStatus(StrEnum):
    OK = "ok"
    VOID = "void"


class CpuRecord(Record):
    """CPU of one role (client, server, forwarder, link) over the measured window."""

    role: str
    cpu_ns: Count
    runnable_wait_ns: Count
    busiest_thread_ns: Count
    threads: Count
    voluntary_switches: Count
    involuntary_switches: Count


class HistogramRecord(Record):
    """Latency of one kind; `data` is an HDR V2 deflate histogram in base64, unit 1 ns."""

    kind: str
    count: Count
    min_ns: Count
    mean_ns: float = Field(ge=0)
    p50_ns: Count
    p95_ns: Count
    p99_ns: Count
    max_ns: Count
    data: str


class IntervalRecord(Record):
    """One slice of the measured window, for the eye and for steadiness; never a sample for statistics."""

    start_ns: Count
    length_ns: Count
    transactions: Count
    queries: Count
    errors: Count
    p50_ns: Count
    p95_ns: Count
    p99_ns: Count
    max_ns: Count


class ServiceRecord(Record):
    """What the load did with one of several servers, or with a store of keys, over the measured window."""

    service: ServiceName
    connects: Count | None
    """Opened within pages. None: a load of keys, whose connections nobody counts."""
    requests: Count
    turns: Count
    bytes_to_server: Count
    bytes_to_client: Count
    hits: Count
    misses: Count
    """Keys that were read, by whether they had a value."""


class Measured(Record):
    """What the engine counted in the measured window. Of pages: transactions are pages, queries and turns those of all
    services, which an application tells itself; then there are no bytes."""

    elapsed_ns: Count = Field(gt=0)
    transactions: Count
    queries: Count
    turns: Count
    rows: Count
    bytes_to_server: Count
    bytes_to_client: Count
    errors: dict[str, Count]
    warmup_transactions: Count
    connect_ns: Count
    cpu: tuple[CpuRecord, ...]
    intervals: tuple[IntervalRecord, ...]
    histograms: tuple[HistogramRecord, ...]
    services: tuple[ServiceRecord, ...] = ()
    """Services of pages that the engine runs, and of a workload of keys. Empty: SQL alone, an application's pages, or older files."""
    told: dict[str, int] = Field(default_factory=dict)
    """What an application's pages reported of themselves, summed."""


class TcpRecord(Record):
    """One host's connections of the load that are there at the end of the measured window, as its kernel tells (TCP_INFO). What counts
    is what came over the window, or since a connection began that began in it. Times in nanoseconds, summed over connections. None:
    this kernel does not say."""

    host: Literal["client", "server"]
    connections: Count
    rtt_p50_ns: Count
    """Smoothed, at the end; the median of the connections."""
    min_rtt_ns: Count | None
    retransmits: Count
    """Segments."""
    segments_out: Count | None
    busy_ns: Count | None
    """Time with data in flight or to send; the next two are parts of it."""
    rwnd_limited_ns: Count | None
    sndbuf_limited_ns: Count | None


class NetworkSample(Record):
    """One look at the way: since the measured window began, bytes and frames as a network card counts them (Ethernet headers in, each
    segment a frame), which virtual interfaces do not: to them a super-packet is one packet. On a link those to the client are what
    the server sent, also what the link then lost or dropped. The loopback counts both directions together; they are split by the
    share that each has of the server's TCP bytes over the window."""

    at_ns: int
    to_server_bytes: int
    to_client_bytes: int
    to_server_packets: int
    to_client_packets: int
    to_server_queue_bytes: int | None
    to_client_queue_bytes: int | None
    """The most since the sample before, in the link's queue. None: no link, or one that does not say."""
    retransmits: int
    """Segments that both hosts sent again."""


class LagRecord(Record):
    """How far one replica was behind at one moment of the window."""

    at_ns: Count
    """Since the window began."""
    replica: str
    behind: Count
    """Transactions that the primary had committed, read first, and that were not applied."""
    heartbeat_ns: Count | None
    """Age of the newest heartbeat row that was applied; at least the way there. None: none has come yet."""


class Window(Record):
    """What was observed around the measured window, in addition to the load itself. Times since it began. It ends up to 20 ms before
    the engine's own window, so that connections are still there to be queried."""

    length_ns: Count = Field(gt=0)
    interface: str
    """Whose bytes: `s0` of the server on a link, `lo` on its loopback; empty: a Unix socket, no samples."""
    network: tuple[NetworkSample, ...] = ()
    tcp: tuple[TcpRecord, ...] = ()
    server: dict[str, int] = Field(default_factory=dict)
    """How much the server's counters grew, without the question about them; of `running` and `clients` how many there were at the end.
    See `server_metrics.py`."""
    cpus_busy: dict[int, float] = Field(default_factory=dict)
    """Share of the window in which each CPU of the machine worked, on anything."""
    link_cpu_ns: dict[int, int] = Field(default_factory=dict)
    """CPU time of the emulator's threads, by the CPU they were last on: the instrument's own part of it."""
    looks_cpu_ns: int = 0
    """CPU time of these looks themselves, on whichever CPU; howfar's, and no stranger's. Files of before say nothing."""
    timeouts: int | None = None
    """Retransmission timers of both hosts that ran out. None: files of before, a Unix socket, or this kernel does not say."""
    lag: tuple[LagRecord, ...] = ()
    """Empty: no replica."""


class JoinRecord(Record):
    """What it took a node of a cluster to join it."""

    how: str
    """By what it fetched what it lacked, as the server calls it: `SST`, `IST`, `clone`, `binary log`."""
    took_ns: int
    """From the start of its server until it was a whole member."""
    received_bytes: int
    """To it, over all its links, by the kernel's count of the other ends' interfaces."""
    wire_bytes: int
    """Bytes by the links' own count, with the framing of each segment."""
    donor: str
    """At the other end of the link that carried most."""
    donor_wire_bytes: int
    segments: int
    """Over all links; the kernel counts a packet of several with one set of headers."""
    packets: int


class CpuShares(Record):
    """How a machine's CPUs were used, in CPUs."""

    busy: float
    idle: float
    """Idle, stolen or waiting for a disk."""
    replicas: float
    """By the servers that replicate, of `busy`."""


class CrashRecord(Record):
    """What a fault lost, by the clients' own logs against what the survivor holds. Times since the load began, by one clock."""

    kind: Literal["crash"] = "crash"
    fault: str
    """A level of the factor."""
    fault_ns: int
    """Right before anything was done."""
    in_force_ns: int | None = None
    """When all was done: somewhere between the two it took effect. None: files of before."""
    dead_ns: int
    """When the primary was killed: with the fault, or later where the fault was another."""
    watched_ns: int
    """How often another connection looked for new keys on the primary."""
    commits_per_s: float
    """Acknowledged, from the beginning of the measured window to the fault."""
    acknowledged: int
    """By the primary to clients, in all."""
    lost: int
    """Acknowledged commits that are not on the survivor."""
    lost_after: int = 0
    """Lost commits acknowledged when the fault had begun: by a primary that lived on, cut off."""
    lost_in_force: int | None = None
    """Lost commits acknowledged when the fault was in force. None: older files."""
    first_lost_ns: int | None
    """When the earliest of the lost was acknowledged. None: nothing was lost."""
    refused: int
    unknown: int
    """Under way when the primary died: no client has heard of them."""
    applied_unknown: int
    """Unknown commits that are on the survivor: committed, and not reported to a client."""
    applied_refused: int
    seen: int
    """Keys that another connection saw on the primary."""
    seen_early: int
    """Commits that were seen before their client had its acknowledgement, or where it never had one."""
    seen_early_median_ns: int | None
    """How long before, at the least, where it had one."""
    phantoms: int
    """Seen by another connection and not on the survivor."""
    behind_before: int | None
    """Transactions that the replica had not applied at the last look before the fault; it was queried before the primary, so rather
    too many. None: nobody had looked."""
    unreceived_before: int | None = None
    """Those of `behind_before` that had not come: on the way, or not sent yet. Of several replicas those of the one that had most."""
    applied_per_s_before: float | None = None
    """Transactions that this replica applied, from the beginning of the load to the fault. None: files of before."""
    cpus_before: CpuShares | None = None
    """CPUs in use on the primary's machine in the measured window before the fault. None: not counted, files of before."""
    heartbeat_before_ns: int | None
    replica_rtt_ns: int
    """Measured at rest."""
    promoted: str | None
    """Who took over. None: nobody could, and the trial is void."""
    promotion_ns: int
    unapplied: int
    """Transactions that had come and waited to be applied when it was told to take over."""
    lost_keys: tuple[int, ...]
    """The first of them, twenty at most."""
    stall_ns: int | None = None
    """In a cluster, the longest time from the last commit before the fault on, in which no client of the part that went on was told
    of one. Clients at its other nodes try again and again. None: another mode, files of before."""
    by_itself: int | None = None
    """Acknowledged by a node that was cut off, and sent to it after that."""
    meanwhile_per_s: float | None = None
    """Acknowledged by a primary that lived on, while a member was cut off or slow. None: it died, files of before."""
    back_ns: int | None = None
    """Until that member was a whole one again, from when it was let alone. None: it was not, or not within a minute."""
    joined: JoinRecord | None = None
    """A member that left and joined: `stall_ns` is until the primary died, `meanwhile_per_s` while it joined."""


class FallbackSample(Record):
    """What a primary said of itself at one moment."""

    at_ns: int
    semi_sync: bool
    clients: int
    waiting: int
    acknowledged: int
    """Total of its own counter; what it counts differs between servers."""
    unacknowledged: int
    behind: int | None
    """Transactions that the replica lacks. None: it could not be queried."""


class FallbackRecord(Record):
    """A replica that goes away and comes back under the server's own timeouts. Times since the load began."""

    kind: Literal["fallback"] = "fallback"
    timeout_ms: int | None
    """None: the primary has none, and waits for ever."""
    left_ns: int
    returned_ns: int
    """The link carries again."""
    reconnected_ns: int | None
    """The replica was first seen connected again."""
    stall_ns: int
    """The longest time in which no commit was acknowledged to anybody."""
    longest_commit_ns: int
    fell_ns: int | None
    """First seen asynchronous. None: it never fell back."""
    back_ns: int | None
    """First seen semi-synchronous again, for good; where commits never pause, maybe when the load has ended. None: not even then."""
    load_ended_ns: int | None = None
    """The last acknowledgement to anybody."""
    unprotected: int
    """Commits that clients were told of between `fell_ns` and `back_ns`, from their logs: no replica had acknowledged them, and
    one may have had them soon after."""
    unacknowledged: int
    """Unacknowledged commits by the server's own counter, in its unit: under AFTER_SYNC MySQL counts commits that go together as
    one."""
    acknowledged: int
    """To clients, in all."""
    samples: tuple[FallbackSample, ...]
    commits: tuple[tuple[int, int], ...]
    """When a slice began, and how many commits were acknowledged to clients in it; slices of one length."""
    log_lines: tuple[str, ...]
    """What the primary wrote about it."""


class MachineLoad(Record):
    """What else the machine did during a trial. `None`: this kernel does not say."""

    psi_cpu_some_share: Level | None
    """Share of the trial in which some runnable task waited for a CPU (pressure stall information)."""
    psi_io_some_share: Level | None
    steal_share: Level | None
    load_average_1m: Level
    busy_cpus: Level | None = None
    """Mean number of CPUs at work on anything of this machine, or of all hosts, the trial's own included. Files of before say
    nothing."""


class Trial(Record):
    """One arm measured once. Void trials are kept, with the reason; they are never silently repeated into the figures."""

    number: Count
    """From 0 in the order in which they ran."""
    block: Count
    position: Count
    attempt: Count = 0
    """0, then one more each time the whole block was measured again after a void trial (before format 6, only the void trial)."""
    arm: str
    status: TrialStatus
    void_reason: str | None = None
    started_unix_ns: Count
    ended_unix_ns: Count
    measured: Measured | None = None
    receipt: dict[str, Any] = Field(default_factory=dict)
    """What was proven: sections `session` (the engine's), `server`, `forwarder`, `link`, `replication`."""
    load: MachineLoad | None = None
    window: Window | None = None
    """None: files of before, and trials without a measured window."""
    fault: Annotated[CrashRecord | FallbackRecord, Field(discriminator="kind")] | None = None
    """None: nothing was broken on purpose."""
    warnings: tuple[str, ...] = ()


class StopReason(StrEnum):
    """Why no further block was run."""

    WIDTH = "width"
    """Every headline ratio and the A/A arm reached the requested interval width."""
    TIME = "time"
    """The time budget was used."""
    BLOCKS = "blocks"
    """The cap on blocks was reached."""
    INTERRUPTED = "interrupted"
    """Ctrl-C; `howfar resume` goes on."""


class RunInfo(Record):
    """The head of a run file: enough to repeat the run."""

    run_id: str
    """UUID."""
    created_unix_ns: int
    howfar_version: str
    command: tuple[str, ...]
    """The exact command to repeat it."""
    plan_name: str
    quick: bool
    plan_toml: str
    plan: dict[str, Any]
    """The resolved plan: after --quick and command line options."""
    seed: int
    arms: tuple[Arm, ...]
    environment: dict[str, Any]
    """Kernel, CPU model and count, memory, governor, versions, placement, congestion control, file system of the data."""
    server_kind: str
    server_version: str
    whole_blocks: bool = False
    """A block with a void trial was measured again as a whole. Files of before repeated the void trial alone."""


class RunEvent(Record):
    """Something that happened to the run; `resumed`, `confirming` and `confirmation` below write and read the text."""

    unix_ns: int
    what: str


class Run(Record):
    """A whole run as read back."""

    info: RunInfo
    trials: tuple[Trial, ...]
    stop: StopReason | None
    """None: the run ended without saying so (killed); `howfar resume` goes on."""
    events: tuple[RunEvent, ...] = ()
    is_verified: bool = True
    """Whether all of it was checked against checksums that were written with it. Files of before have none."""


SPOILED_SHOWN = 3
"""Blocks with a void trial that are shown where there are no others. So few give no interval."""


def left_out(run: Run) -> frozenset[int]:
    """Numbers of the good trials that count for nothing: of attempts at a block that a void trial ended, and of blocks with a void
    trial in their last attempt, but for those `spoiled_shown`."""
    if not run.info.whole_blocks:
        return frozenset()
    spoiled, last, shown = _spoiled(run), _last_attempts(run), spoiled_shown(run)
    return frozenset(
        trial.number
        for trial in run.trials
        if trial.status is TrialStatus.OK
        and (
            trial.attempt < last[trial.block] or ((trial.block, trial.attempt) in spoiled and trial.block not in shown)
        )
    )


def spoiled_shown(run: Run) -> frozenset[int]:
    """The plan's blocks that show the arms that were good in them although another trial was void: the first ones, where there is no
    block without."""
    if not run.info.whole_blocks:
        return frozenset()
    ends = [end for end in sorted(_last_attempts(run).items()) if end[0] < CONFIRMATION_BLOCK]
    spoiled = _spoiled(run)
    return frozenset(block for block, _ in ends[:SPOILED_SHOWN]) if all(end in spoiled for end in ends) else frozenset()


def _spoiled(run: Run) -> set[tuple[int, int]]:
    return {(trial.block, trial.attempt) for trial in run.trials if trial.status is TrialStatus.VOID}


def _last_attempts(run: Run) -> dict[int, int]:
    last: dict[int, int] = {}
    for trial in run.trials:
        last[trial.block] = max(trial.attempt, last.get(trial.block, 0))
    return last


def plan_part(run: Run) -> Run:
    """The run as if nothing had been confirmed."""
    return _part(run, tuple(arm for arm in run.info.arms if arm.role is not ArmRole.CONFIRMATION))


def compared_part(run: Run) -> Run:
    """The plan's own arms, without what was measured to judge the instrument."""
    compared = (ArmRole.BASELINE, ArmRole.DUPLICATE, ArmRole.CONTENDER)
    return _part(run, tuple(arm for arm in run.info.arms if arm.role in compared))


def confirmation_part(run: Run) -> Run:
    """The confirmation's arms and trials only."""
    return _part(run, tuple(arm for arm in run.info.arms if arm.role is ArmRole.CONFIRMATION))


def _part(run: Run, arms: tuple[Arm, ...]) -> Run:
    """Without what is left out, which only the whole run can tell."""
    out = left_out(run)
    if arms == run.info.arms and not out:
        return run
    names = {arm.name for arm in arms}
    return run.model_copy(
        update={
            "info": run.info.model_copy(update={"arms": arms}),
            "trials": tuple(trial for trial in run.trials if trial.arm in names and trial.number not in out),
        }
    )


_HEADER_BYTES = 8
"""Of an encoded histogram: a cookie and the length of what zlib made of it."""


def contradictions(run: Run) -> Iterator[str]:
    """Where a run contradicts itself, each in words. Without checksums, which prove that values are as written, the counts of a trial
    check each other."""
    names = Counter(arm.name for arm in run.info.arms)
    if not names:
        yield "it has no arm"
    if sum(arm.role is ArmRole.BASELINE for arm in run.info.arms) > 1:
        yield "it has more than one baseline"
    for place, trial in enumerate(run.trials):
        if trial.number != place:
            yield f"trial {place} is missing"
            return
        if trial.arm not in names:
            yield f"trial {trial.number} is of an arm that it does not have"
        if trial.measured is not None and not run.is_verified:
            for found in _of_counts(trial.measured):
                yield f"trial {trial.number}: {found}"


def _of_counts(measured: Measured) -> Iterator[str]:
    slices = measured.intervals
    if slices:
        yield from _unequal("the window", measured.elapsed_ns, sum(each.length_ns for each in slices), "its intervals")
        done = sum(each.transactions for each in slices)
        yield from _unequal("transactions", measured.transactions, done, "the intervals")
        errors = sum(count for code, count in measured.errors.items() if code != "disconnect")  # not one of a server
        yield from _unequal("errors", errors, sum(each.errors for each in slices), "the intervals")
        if not measured.told:  # an application reports its queries at the end
            asked = sum(each.queries for each in slices)
            yield from _unequal("queries", measured.queries, asked, "the intervals")
    if measured.services:
        turns = sum(each.turns for each in measured.services)
        yield from _unequal("round trips", measured.turns, turns, "the services")
    else:  # of SQL, where each query is a round trip
        yield from _unequal("round trips", measured.turns, measured.queries, "the queries")
    kinds = {each.kind: each for each in measured.histograms}
    closed = kinds.get("transaction") if "service" not in kinds else None
    if closed is not None:
        yield from _unequal("transactions", measured.transactions, closed.count, "their histogram")
    for histogram in measured.histograms:
        if not _is_whole(histogram):
            yield f"the histogram {histogram.kind} is broken"
    for cpu in measured.cpu:
        if cpu.busiest_thread_ns > cpu.cpu_ns:
            yield f"the CPU time of {cpu.role} is less than that of one of its threads"


def _unequal(what: str, counted: int, other: int, where: str) -> Iterator[str]:
    if counted != other:
        yield f"{what}: {counted}, but {other} by {where}"


def _is_whole(histogram: HistogramRecord) -> bool:
    """Whether its bytes are those that were made, and its figures are in order."""
    figures = (histogram.min_ns, histogram.p50_ns, histogram.p95_ns, histogram.p99_ns, histogram.max_ns)
    if figures != tuple(sorted(figures)) or not figures[0] <= histogram.mean_ns <= figures[-1]:
        return False
    try:
        zlib.decompress(base64.b64decode(histogram.data)[_HEADER_BYTES:])
    except (zlib.error, binascii.Error):
        return False
    return True


CREATED = "created"
_RESUMED = "resumed"
_EXTENDED = "extended"
_CONFIRMING = "confirming"
_CONFIRMED = "confirmed"
CONFIRMED_COMPLETE = "complete"
CONFIRMED_TIME = "time"
CONFIRMED_NOTHING = "nothing to confirm"


@dataclass(frozen=True)
class Confirming:
    """What was decided when the plan's blocks had ended."""

    stop: StopReason
    """Why they had."""
    interventions: tuple[dict[str, Any], ...]
    """The interventions, as `analysis/confirmation.py` writes and reads them."""
    refused: tuple[dict[str, Any], ...]
    """Limits that cannot be changed here, and why."""
    ended: bool
    """Its blocks are measured, or there are none. One that the time cut short has not ended: it can go on."""


def stopped(stop: StopReason) -> str:
    return f"stopped: {stop.value}"


def resumed(trial: int, environment: Mapping[str, Any], differs: Sequence[str]) -> str:
    """`trial`: the number of the first one after the break. `environment`: as it is now. `differs`: from the run's head, in words."""
    return _text(_RESUMED, {"trial": trial, "differs": list(differs), "environment": dict(environment)})


def extended(trial: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The plan's timing that changed, before and after."""
    return _text(_EXTENDED, {"trial": trial, "before": dict(before), "after": dict(after)})


def confirming(
    stop: StopReason, interventions: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]]
) -> str:
    return _text(
        _CONFIRMING, {"stop": stop.value, "asked": [*map(dict, interventions)], "refused": [*map(dict, refused)]}
    )


def confirmed(blocks: int, why: str) -> str:
    """`why`: `CONFIRMED_COMPLETE`, `_TIME` or `_NOTHING`."""
    return _text(_CONFIRMED, {"blocks": blocks, "why": why})


def confirmation(events: Iterable[RunEvent]) -> Confirming | None:
    """None: none was begun. A run has at most one."""
    found: Confirming | None = None
    for event in events:
        word, _, detail = event.what.partition(": ")
        if word == _CONFIRMING:
            data = json.loads(detail)
            found = Confirming(StopReason(data["stop"]), tuple(data["asked"]), tuple(data["refused"]), ended=False)
        elif word == _CONFIRMED and found is not None:
            found = replace(found, ended=json.loads(detail)["why"] != CONFIRMED_TIME)
    return found


def breaks(events: Iterable[RunEvent]) -> tuple[int, ...]:
    """Numbers of the trials that were the first after a resume, ascending; a block may span such a break."""
    found = set()
    for event in events:
        word, _, detail = event.what.partition(": ")
        if word == _RESUMED and detail:
            found.add(int(json.loads(detail)["trial"]))
    return tuple(sorted(found))


def _text(word: str, detail: dict[str, Any]) -> str:
    return f"{word}: {json.dumps(detail, ensure_ascii=False, allow_nan=False)}"
