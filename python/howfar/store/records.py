"""The records of a run: what was requested and what was observed, trial by trial. Every reported figure is computed from them.

Statistics are elsewhere. Times are integer nanoseconds, sizes are bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SerializeAsAny

from howfar.contract.environment import RunEnvironment
from howfar.contract.message import Count
from howfar.contract.receipt import TrialReceipt
from howfar.contract.receipt_messages import Histogram, IntervalFigures, WindowFigures
from howfar.contract.violation import Violation
from howfar.plan.factor import Level
from howfar.plan.types import PlanJson, StoredPlan, Timing, parse_stored_plan
from howfar.slices import collect
from howfar.store.void_reasons import parse_reason

FORMAT_VERSION = 9
"""Version of the run file's format. A reader upgrades older files and refuses newer ones."""

CONFIRMATION_BLOCK = 10_000
"""The first block number of a confirmation. The plan's own blocks, at most a thousand, may continue after the confirmation."""


class Record(BaseModel):
    """A frozen record without extra fields; its numbers are finite."""

    # As in messages: many commands import these types, and read no run.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        validate_by_name=True,
        serialize_by_alias=True,
    )


ShareOrCpus = Annotated[float, Field(ge=0)]
"""A share, or a number of CPUs."""


class ArmRole(StrEnum):
    """What an arm is for in the comparison."""

    BASELINE = "baseline"
    DUPLICATE = "duplicate"
    """The baseline's cell under another name: the A/A arm."""
    CONTENDER = "contender"
    CONTROL = "control"
    """Measured to judge the instrument, because the true result is known. Not part of the plan's comparisons."""
    CONFIRMATION = "confirmation"
    """One of a pair that was added to test a named limit: a copy of the arm, and one with the limiting resource changed. Not part of
    the plan's ratios."""


class Arm(Record):
    """One column of the experiment: a cell (a combination of factor levels) under a name."""

    name: str
    role: ArmRole
    factors: dict[str, Level]
    """Keys from the glossary: path, threads, placement, server, rtt_ns, rate_bps."""


class TrialStatus(StrEnum):
    OK = "ok"
    VOID = "void"


class Measured(WindowFigures):
    """The figures of a trial's measured window. For pages, each transaction is a page, and `queries` and `round_trips` are
    sums over all services. If an application runs the pages, it reports these itself, without bytes; then `services` is empty, as for
    SQL and in older files."""

    warmup_transactions: Count
    connect_ns: Count
    intervals: tuple[IntervalFigures, ...]


class TcpRecord(Record):
    """One host's connections of the load that are open at the end of the measured window, as its kernel reports them (TCP_INFO).
    Counts are increases over the window, or since the connection began if it began within the window. Times are summed over
    connections. None: not reported by this kernel."""

    host: Literal["client", "server"]
    connections: Count
    rtt_p50_ns: Count
    """The smoothed RTT at the end of the window; the median over connections."""
    min_rtt_ns: Count | None
    retransmits: Count
    """Segments."""
    segments_out: Count | None
    busy_ns: Count | None
    """Time with data in flight or to send. The next two times are parts of it."""
    rwnd_limited_ns: Count | None
    sndbuf_limited_ns: Count | None


class NetworkSample(Record):
    """One sample of the traffic since the measured window began. Bytes and packets are as a network card would count them (with
    Ethernet headers, each segment a frame); but virtual interfaces count a super-packet as one packet. On a link, traffic to the
    client is what the server sent, including what the link then lost or dropped. The loopback counts both directions together; they
    are split in proportion to the server's TCP bytes in each direction over the window."""

    at_ns: int
    to_server_bytes: int
    to_client_bytes: int
    to_server_packets: int
    to_client_packets: int
    to_server_queue_bytes: int | None
    to_client_queue_bytes: int | None
    """Maximum bytes in the link's queue since the previous sample. None: no link, or one that does not report it."""
    retransmits: int
    """Segments that the two hosts retransmitted."""


class FollowerLag(Record):
    """How far a server was behind the one that it follows, at one moment of the window. A slice registers its class in its module
    `records`."""

    at_ns: Count
    """Since the window began."""


@cache
def _lag_classes() -> tuple[type[FollowerLag], ...]:
    """The slices' records of lag. Collected when first needed, because the slices' modules import this one."""
    return cast(tuple[type[FollowerLag], ...], collect("records", "LAGS", type))


def _lag_with_its_class(lag: Any) -> Any:
    """A record of lag as an object of the class that has its fields. Raises ValueError."""
    if not isinstance(lag, Mapping):
        return lag
    if (record := next((each for each in _lag_classes() if each.model_fields.keys() >= lag.keys()), None)) is None:
        raise ValueError(f"no record of lag has the fields {', '.join(map(str, lag))}")
    return record.model_validate(lag)


class Window(Record):
    """What was observed during the measured window, apart from the load itself. Times are since the window began. It ends up to 20 ms
    before the engine's own window, while its connections can still be queried."""

    length_ns: Count = Field(gt=0)
    interface: str
    """Interface whose bytes are counted: `s0` of the server on a link, `lo` on its loopback; empty: a Unix socket, no samples."""
    network: tuple[NetworkSample, ...] = ()
    tcp: tuple[TcpRecord, ...] = ()
    server: dict[str, int] = Field(default_factory=dict)
    """Increase of the server's counters, not counting the query that reads them. `running` and `clients` are values at the end of the
    window. See `server_metrics.py`."""
    cpus_busy: dict[int, float] = Field(default_factory=dict)
    """Share of the window in which each CPU of the machine was busy, with any process."""
    link_cpu_ns: dict[int, int] = Field(default_factory=dict)
    """CPU time of the emulator's threads, by the CPU they last ran on: the instrument's own CPU use."""
    sampling_cpu_ns: int = Field(0, alias="looks_cpu_ns")
    """CPU time, on any CPU, that howfar used to take these samples. 0 in older files."""
    timeouts: int | None = None
    """Retransmission timeouts on both hosts. None: older files, a Unix socket, or not reported by this kernel."""
    lag: tuple[Annotated[SerializeAsAny[FollowerLag], BeforeValidator(_lag_with_its_class)], ...] = ()
    """Empty: no server follows another one."""


class FaultRecord(Record):
    """What a fault that was injected in a trial did. A slice registers its classes in its module `records`."""

    total_unit: ClassVar[str]
    """What `total` counts: `commits lost`."""
    kind: str
    """Name of the class in run files: each class has another one."""

    @property
    @abstractmethod
    def total(self) -> int:
        """The figure that is summed over an arm's trials, as the arm's own figure."""


@cache
def _fault_classes() -> Mapping[str, type[FaultRecord]]:
    """The slices' records of faults, by `kind`. Collected when first needed, because the slices' modules import this one."""
    classes = cast(tuple[type[FaultRecord], ...], collect("records", "FAULTS", type))
    return {record.model_fields["kind"].default: record for record in classes}


def _with_its_class(fault: Any) -> Any:
    """The record of a fault as an object of its class, which its `kind` names. Raises ValueError."""
    if not isinstance(fault, Mapping):
        return fault
    classes = _fault_classes()
    if (record := classes.get(str(fault.get("kind")))) is None:
        raise ValueError(f"no kind of fault is called {fault.get('kind')!r}; known: {', '.join(classes)}")
    return record.model_validate(fault)


class MachineLoad(Record):
    """The machine's load during a trial. None: not reported by this kernel."""

    psi_cpu_some_share: ShareOrCpus | None
    """Share of the trial in which at least one runnable task waited for a CPU (pressure stall information)."""
    psi_io_some_share: ShareOrCpus | None
    steal_share: ShareOrCpus | None
    load_average_1m: ShareOrCpus
    busy_cpus: ShareOrCpus | None = None
    """Mean number of busy CPUs of this machine, or of all hosts, the trial's own work included. None in older files."""


class Trial(Record):
    """One arm measured once. Void trials are kept, with the reason; they are never silently replaced by a repetition."""

    number: Count
    """Counted from 0, in the order in which trials ran."""
    block: Count
    position: Count
    attempt: Count = 0
    """Counted from 0: one more each time the whole block was measured again after a void trial (before format 6: only the void
    trial)."""
    repetition: Count = 0
    """Counted from 0: one more each time this trial was measured again in its place because other programs disturbed it."""
    arm: str
    status: TrialStatus
    void_reason: str | None = None
    """The sentences of `violations`, for people who read the file and for older versions."""
    violations: tuple[Violation, ...] = ()
    """Why the trial is void, as it was written. Empty in older files, see `why_void`."""
    started_unix_ns: Count
    ended_unix_ns: Count
    measured: Measured | None = None
    receipt: TrialReceipt = Field(default_factory=TrialReceipt)
    load: MachineLoad | None = None
    window: Window | None = None
    """None: older files, or a trial without a measured window."""
    fault: Annotated[SerializeAsAny[FaultRecord], BeforeValidator(_with_its_class)] | None = None
    """None: no fault was injected."""
    warnings: tuple[str, ...] = ()

    @property
    def why_void(self) -> tuple[Violation, ...]:
        """Why the trial is void: its violations, or what the text of an older file says. Empty: no reason was recorded."""
        return self.violations or parse_reason(self.void_reason or "")


class StopReason(StrEnum):
    """Why no further block was run."""

    WIDTH = "width"
    """The intervals of all headline ratios and of the A/A arm are as narrow as requested."""
    TIME = "time"
    """The time budget was used up."""
    BLOCKS = "blocks"
    """The maximum number of blocks was reached."""
    INTERRUPTED = "interrupted"
    """Ctrl-C; `howfar resume` continues the run."""


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
    plan: PlanJson
    """The resolved plan, after --quick and command line options."""
    seed: int
    arms: tuple[Arm, ...]
    environment: Annotated[RunEnvironment, PlainSerializer(RunEnvironment.as_json)]
    """Kernel, CPU model and count, memory, governor, versions, placement, congestion control, file system of the data."""
    server_kind: str
    server_version: str
    whole_blocks: bool = False
    """Whether a block with a void trial was measured again as a whole. In older files only the void trial was repeated."""

    @property
    def stored_plan(self) -> StoredPlan:
        """What reports need of `plan`."""
        return parse_stored_plan(self.plan)


class RunEvent(Record):
    """An event in the run's history. `stopped`, `resumed` and the functions after them write the text `what`; `confirmation` and
    `resume_points` read it."""

    unix_ns: int
    what: str


class Run(Record):
    """A complete run as read back."""

    info: RunInfo
    trials: tuple[Trial, ...]
    stop: StopReason | None
    """None: the run is still being measured, or was killed; `howfar resume` continues it."""
    events: tuple[RunEvent, ...] = ()
    is_verified: bool = True
    """Whether all data were checked against the checksums that were written with them. Older files have none."""
    is_part: bool = False
    """Whether this is a part of a run, which already lacks the trials that the whole run leaves out."""


MAX_SPOILED_SHOWN = 3
"""Maximum number of blocks with a void trial that are shown if there are no others: too few for an interval."""


def is_repeated(trial: Trial) -> bool:
    """Whether a trial is void because other programs disturbed it. It is measured again in its place, so its block goes on."""
    return trial.status is TrialStatus.VOID and trial.receipt.quiet is not None and trial.receipt.quiet.is_repeated


def ends_attempt(trial: Trial) -> bool:
    """Whether the trial ends its attempt at the block: void trials do, except those that are repeated."""
    return trial.status is TrialStatus.VOID and not is_repeated(trial)


def left_out_trials(run: Run) -> frozenset[int]:
    """Numbers of the good trials that are not used: `disturbed_trials`, those of attempts that a void trial ended, and those of blocks
    with a void trial in their last attempt, except the blocks in `shown_spoiled_blocks`."""
    if run.is_part or not run.info.whole_blocks:
        return frozenset()
    spoiled, last_attempts, shown = spoiled_attempts(run), _last_attempts(run), shown_spoiled_blocks(run)
    return frozenset(
        trial.number
        for trial in run.trials
        if trial.status is TrialStatus.OK
        and (
            trial.attempt < last_attempts[trial.block]
            or ((trial.block, trial.attempt) in spoiled and trial.block not in shown)
        )
    ) | disturbed_trials(run)


MAX_DISTURBED_SHARE = 1 / 3
"""Disturbed trials are left out up to this share of the good ones. With more, too few blocks would remain, so all are used, and the
report says how many were disturbed."""


def disturbed_trials(run: Run) -> frozenset[int]:
    """Numbers of the good trials that are left out because other programs disturbed them, and that were not measured again. Whether
    they are few is decided for the whole run, so that all its parts use the same trials."""
    if run.is_part:
        return frozenset()
    good = [trial for trial in run.trials if trial.status is TrialStatus.OK]
    disturbed = [trial for trial in good if trial.receipt.quiet is not None and trial.receipt.quiet.is_disturbed]
    is_few = len(disturbed) <= MAX_DISTURBED_SHARE * len(good)
    return frozenset(trial.number for trial in disturbed) if is_few else frozenset()


def shown_spoiled_blocks(run: Run) -> frozenset[int]:
    """The plan's blocks whose good trials are shown although another of their trials was void: the first few blocks, if every block
    has a void trial."""
    if not run.info.whole_blocks:
        return frozenset()
    last_attempts = [attempt for attempt in sorted(_last_attempts(run).items()) if attempt[0] < CONFIRMATION_BLOCK]
    spoiled = spoiled_attempts(run)
    return (
        frozenset(block for block, _ in last_attempts[:MAX_SPOILED_SHOWN])
        if all(attempt in spoiled for attempt in last_attempts)
        else frozenset()
    )


def spoiled_attempts(run: Run) -> set[tuple[int, int]]:
    """The attempts at blocks, as block and attempt, that a void trial ended or left incomplete."""
    return {(trial.block, trial.attempt) for trial in run.trials if ends_attempt(trial)}


def _last_attempts(run: Run) -> dict[int, int]:
    last_attempts: dict[int, int] = {}
    for trial in run.trials:
        last_attempts[trial.block] = max(trial.attempt, last_attempts.get(trial.block, 0))
    return last_attempts


def plan_part(run: Run) -> Run:
    """The run as if nothing had been confirmed."""
    return _part(run, tuple(arm for arm in run.info.arms if arm.role is not ArmRole.CONFIRMATION))


def compared_part(run: Run) -> Run:
    """The plan's own arms, without the controls."""
    compared = (ArmRole.BASELINE, ArmRole.DUPLICATE, ArmRole.CONTENDER)
    return _part(run, tuple(arm for arm in run.info.arms if arm.role in compared))


def confirmation_part(run: Run) -> Run:
    """The confirmation's arms and trials only."""
    return _part(run, tuple(arm for arm in run.info.arms if arm.role is ArmRole.CONFIRMATION))


def _part(run: Run, arms: tuple[Arm, ...]) -> Run:
    """The part of the run with these arms, without the trials that are left out of the complete run."""
    unused = left_out_trials(run)
    if arms == run.info.arms and not unused:
        return run
    names = {arm.name for arm in arms}
    return run.model_copy(
        update={
            "info": run.info.model_copy(update={"arms": arms}),
            "trials": tuple(trial for trial in run.trials if trial.arm in names and trial.number not in unused),
            "is_part": True,
        }
    )


_HEADER_BYTES = 8
"""Header of an encoded histogram: a cookie and the length of the compressed data."""


def contradictions(run: Run) -> Iterator[str]:
    """Contradictions within a run, in words. In a file without checksums, a trial's counts are also checked against each other."""
    names = Counter(arm.name for arm in run.info.arms)
    if not names:
        yield "it has no arm"
    if sum(arm.role is ArmRole.BASELINE for arm in run.info.arms) > 1:
        yield "it has more than one baseline"
    places = Counter((trial.block, trial.position, trial.attempt, trial.repetition) for trial in run.trials)
    if places and max(places.values()) > 1:
        yield "two trials have the same place"
    for index, trial in enumerate(run.trials):
        if trial.number != index:
            yield f"trial {index} is missing"
            return
        if trial.arm not in names:
            yield f"trial {trial.number} is of an arm that it does not have"
        if trial.measured is not None and not run.is_verified:
            for contradiction in _count_contradictions(trial.measured):
                yield f"trial {trial.number}: {contradiction}"


def _count_contradictions(measured: Measured) -> Iterator[str]:
    intervals = measured.intervals
    if intervals:
        yield from _describe_difference(
            "the window", measured.elapsed_ns, sum(record.length_ns for record in intervals), "its intervals"
        )
        done = sum(record.transactions for record in intervals)
        yield from _describe_difference("transactions", measured.transactions, done, "the intervals")
        errors = sum(count for code, count in measured.errors.items() if code != "disconnect")  # not a server's error
        yield from _describe_difference("errors", errors, sum(record.errors for record in intervals), "the intervals")
        if not measured.app_counters:  # an application reports its queries only at the end
            interval_queries = sum(record.queries for record in intervals)
            yield from _describe_difference("queries", measured.queries, interval_queries, "the intervals")
    if measured.services:
        service_round_trips = sum(record.round_trips for record in measured.services)
        yield from _describe_difference("round trips", measured.round_trips, service_round_trips, "the services")
    else:  # in SQL each query is a round trip
        yield from _describe_difference("round trips", measured.round_trips, measured.queries, "the queries")
    kinds = {record.kind: record for record in measured.histograms}
    transactions = kinds.get("transaction") if "service" not in kinds else None
    if transactions is not None:
        yield from _describe_difference("transactions", measured.transactions, transactions.count, "their histogram")
    for histogram in measured.histograms:
        if not _is_intact(histogram):
            yield f"the histogram {histogram.kind} is broken"
    for cpu in measured.cpu:
        if cpu.busiest_thread_ns > cpu.cpu_ns:
            yield f"the CPU time of {cpu.role} is less than that of one of its threads"


def _describe_difference(what: str, counted: int, other: int, source: str) -> Iterator[str]:
    if counted != other:
        yield f"{what}: {counted}, but {other} by {source}"


def _is_intact(histogram: Histogram) -> bool:
    """Whether the histogram's data are intact, by zlib's checksum, and its figures are in ascending order."""
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
    """The confirmation of a run, as decided when the plan's blocks had ended."""

    stop: StopReason
    """Why the plan's blocks ended."""
    interventions: tuple[object, ...]
    """The changes that are made to test limits: JSON, which `analysis/confirmation.py` reads."""
    refused: tuple[object, ...]
    """Limits that cannot be changed here, and why."""
    ended: bool
    """Whether its blocks are measured, or it has none. A confirmation that the time budget cut short has not ended."""


def stopped(stop: StopReason) -> str:
    return f"stopped: {stop.value}"


def resumed(trial: int, environment: RunEnvironment, differs: Sequence[str]) -> str:
    """`trial`: number of the first trial after the break. `environment`: the present environment. `differs`: how it differs from that
    in the run's head, in words."""
    return _event_text(_RESUMED, {"trial": trial, "differs": list(differs), "environment": environment.as_json()})


def extended(trial: int, before: Timing, after: Timing) -> str:
    """The values of the plan's timing that changed, before and after the change."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changed = [name for name in old if old[name] != new[name]]
    old, new = ({name: values[name] for name in changed} for values in (old, new))
    return _event_text(_EXTENDED, {"trial": trial, "before": old, "after": new})


def confirming(stop: StopReason, interventions: Sequence[BaseModel], refused: Sequence[BaseModel]) -> str:
    detail: dict[str, object] = {
        "stop": stop.value,
        "asked": [each.model_dump(mode="json") for each in interventions],
        "refused": [each.model_dump(mode="json") for each in refused],
    }
    return _event_text(_CONFIRMING, detail)


def confirmed(blocks: int, why: str) -> str:
    """`why`: `CONFIRMED_COMPLETE`, `_TIME` or `_NOTHING`."""
    return _event_text(_CONFIRMED, {"blocks": blocks, "why": why})


def confirmation(events: Iterable[RunEvent]) -> Confirming | None:
    """The confirmation of a run. None: none was begun. A run has at most one."""
    latest: Confirming | None = None
    for event in events:
        kind, _, detail = event.what.partition(": ")
        if kind == _CONFIRMING:
            data = json.loads(detail)
            latest = Confirming(StopReason(data["stop"]), tuple(data["asked"]), tuple(data["refused"]), ended=False)
        elif kind == _CONFIRMED and latest is not None:
            latest = replace(latest, ended=json.loads(detail)["why"] != CONFIRMED_TIME)
    return latest


def resume_points(events: Iterable[RunEvent]) -> tuple[int, ...]:
    """Numbers of the trials that were the first after a resume, ascending. A block may span such a break."""
    numbers = set()
    for event in events:
        kind, _, detail = event.what.partition(": ")
        if kind == _RESUMED and detail:
            numbers.add(int(json.loads(detail)["trial"]))
    return tuple(sorted(numbers))


def _event_text(kind: str, detail: dict[str, object]) -> str:
    return f"{kind}: {json.dumps(detail, ensure_ascii=False, allow_nan=False)}"
