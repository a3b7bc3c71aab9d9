"""Measured demands of a transaction, from an arm's good trials: CPU time by role, bytes, round trips; and the CPUs available to the
load.

Figures are sums over trials, so that a longer trial has more weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from howfar.contract.receipt import LinkCounters
from howfar.contract.receipt_messages import Receipt
from howfar.paths import is_local
from howfar.plan.factor import Level
from howfar.plan.factors import IMPLIED_LEVELS, PATH, PLACEMENT, RATE_BPS, RTT_NS, THREADS, offered_per_s
from howfar.plan.workload import Workload
from howfar.stats.estimate import Estimate
from howfar.stats.host_cpus import HostCpus, cpus_used, forwarder_share
from howfar.stats.intervals import mean_interval
from howfar.stats.trials import is_good
from howfar.store.records import Arm, ArmRole, Measured, Run, Trial

FULL_LINK = 0.9
"""Share of the requested rate, by the link's byte count, from which the link counts as full, so that other times may include waits
for it."""


@dataclass(frozen=True)
class EndFacts:
    """The work and the processors of one end of an arm, client or server. Times are of one transaction."""

    cpu_s: float
    wait_s: float
    """Time runnable and waiting for a processor."""
    cpus: int
    emulator_cpus: float
    """How many of the processors the link's emulator used."""
    other_cpus: float
    """How many of the processors other programs used."""
    busy: float | None
    """Share of the time that the processors worked, for any process, by the machine's counters. None: no trial reports it."""


@dataclass(frozen=True)
class ArmFacts:
    """One arm. Times in seconds and bytes are of one transaction, unless the name says otherwise."""

    arm: Arm
    threads: int
    blocks: tuple[int, ...]
    tps_by_block: dict[int, float]
    tps: Estimate
    cycle_s: float
    round_trips: float
    bytes_to_client: float
    bytes_to_server: float
    client: EndFacts
    server: EndFacts
    shared_cpu: bool
    """Whether client and server are on the same processors."""
    wire_to_client: float | None
    wire_to_server: float | None
    """Bytes as the link counted them, headers included, with a trial's connects and prepares."""
    segments_to_client: float | None
    segments_to_server: float | None
    rtt_s: float
    """Unloaded RTT; 0: no link."""
    hosts_rtt_s: float
    """Part of a ping's time over the link that is spent in hosts and emulator (kernels, wake-ups), not in the requested delay."""
    session: Receipt | None
    is_valid: bool = True
    """False if the arm's limit makes these figures about other programs or about errors."""

    @property
    def runnable_s(self) -> float:
        """Time that both ends wait for a processor."""
        return self.client.wait_s + self.server.wait_s

    @property
    def is_link_full(self) -> bool:
        """Whether one direction of the link carried nearly all that its rate permits."""
        busier_bytes = max(self.wire_to_client or 0.0, self.wire_to_server or 0.0)
        return self.rate_bps is not None and 8 * busier_bytes * self.tps.value >= FULL_LINK * self.rate_bps

    @property
    def idle_s(self) -> float:
        """Time of a cycle in which neither end worked or was ready to work, without the statements' round trips. Valid only for a
        single connection, because several work at the same time."""
        return self.cycle_s - self.client.cpu_s - self.server.cpu_s - self.runnable_s - self.round_trips * self.rtt_s

    def level(self, factor: str) -> Level | None:
        return self.arm.factors.get(factor, IMPLIED_LEVELS.get(factor))

    @property
    def rate_bps(self) -> float | None:
        rate = RATE_BPS.level_or_none(self.arm.factors)
        return float(rate) if isinstance(rate, int | float) else None

    @property
    def is_local(self) -> bool:
        return is_local(PATH.level_or_none(self.arm.factors))


def arm_facts(run: Run) -> tuple[ArmFacts, ...]:
    """Facts about each closed-loop baseline or contender that has a good trial."""
    facts = []
    for arm in run.info.arms:
        if arm.role in (ArmRole.BASELINE, ArmRole.CONTENDER) and offered_per_s(arm.factors) is None:
            trials = [trial for trial in run.trials if trial.arm == arm.name and is_good(trial)]
            if trials:
                facts.append(_facts_of_arm(run, arm, trials))
    return tuple(facts)


def _facts_of_arm(run: Run, arm: Arm, trials: Sequence[Trial]) -> ArmFacts:
    measured = [trial.measured for trial in trials if trial.measured is not None]
    transactions = sum(record.transactions for record in measured)
    elapsed_ns = sum(record.elapsed_ns for record in measured)
    threads = THREADS.level_in(arm.factors)
    by_block = {trial.block: _tps(trial.measured) for trial in trials if trial.measured is not None}
    client, server = _host_cpus(run, arm)

    links = [(trial, trial.receipt.link) for trial in trials if trial.receipt.link is not None]

    def per_transaction(count: Callable[[LinkCounters], int]) -> float | None:
        known = [(trial.measured, count(link.counters)) for trial, link in links if link.counters and trial.measured]
        transactions_passed = sum(record.transactions + record.warmup_transactions for record, _ in known)
        return sum(value for _, value in known) / transactions_passed if transactions_passed else None

    def median_s(times_ns: Iterable[float | None]) -> float:
        known = [time_ns for time_ns in times_ns if time_ns is not None]
        return median(known) / 1e9 if known else 0.0

    return ArmFacts(
        arm=arm,
        threads=threads,
        blocks=tuple(sorted(by_block)),
        tps_by_block=by_block,
        tps=mean_interval(list(by_block.values())),
        cycle_s=threads * elapsed_ns / 1e9 / transactions,
        round_trips=sum(record.round_trips for record in measured) / transactions,
        bytes_to_client=sum(record.bytes.to_client for record in measured) / transactions,
        bytes_to_server=sum(record.bytes.to_server for record in measured) / transactions,
        client=_end_facts("client", trials, client, [client.cpus, server.cpus]),
        server=_end_facts("server", trials, server, [client.cpus, server.cpus]),
        shared_cpu=bool(client.cpus & server.cpus),
        wire_to_client=per_transaction(lambda counters: counters.to_client.wire_bytes),
        wire_to_server=per_transaction(lambda counters: counters.to_server.wire_bytes),
        segments_to_client=per_transaction(lambda counters: counters.to_client.segments),
        segments_to_server=per_transaction(lambda counters: counters.to_server.segments),
        rtt_s=median_s(link.rest_rtt_ns for _, link in links) or RTT_NS.level_in(arm.factors) / 1e9,
        hosts_rtt_s=2 * median_s(link.compensate_ns for _, link in links),
        session=next((session for trial in trials if (session := trial.receipt.session) is not None), None),
    )


def _host_cpus(run: Run, arm: Arm) -> tuple[HostCpus, HostCpus]:
    """Processors of the client and of the server; the same host's for both if they are on one machine."""
    environment = run.info.environment
    server = HostCpus.from_environment(environment, "server")
    placement = PLACEMENT.level_or_none(arm.factors) or environment.placement
    on_one_machine = placement == "machines" and is_local(PATH.level_or_none(arm.factors))
    return server if on_one_machine else HostCpus.from_environment(environment, "client"), server


def _end_facts(role: str, trials: Sequence[Trial], host: HostCpus, cpus_of_both: Sequence[frozenset[int]]) -> EndFacts:
    """Processors of one end. `cpus_of_both`: those of client and server."""
    own_roles = [
        name for name, end_cpus in zip(("client", "server"), cpus_of_both, strict=True) if host.cpus == end_cpus
    ]
    measured = [trial.measured for trial in trials if trial.measured is not None]
    transactions = sum(record.transactions for record in measured)
    share_by_role = {role: 1.0, "forwarder": forwarder_share([trial.receipt for trial in trials], role)}
    return EndFacts(
        cpu_s=sum(use.cpu_ns * share_by_role.get(use.role, 0.0) for record in measured for use in record.cpu)
        / 1e9
        / transactions,
        wait_s=sum(use.runnable_wait_ns for record in measured for use in record.cpu if use.role == role)
        / 1e9
        / transactions,
        cpus=host.count,
        emulator_cpus=host.link_cpus(trials),
        other_cpus=median(host.others_cpus(trial, cpus_used(trial.measured, own_roles)) for trial in trials),
        busy=host.busy_share(trials),
    )


def _tps(measured: Measured) -> float:
    return measured.transactions / (measured.elapsed_ns / 1e9)


ROW_BYTES = 130
"""Bytes of a row of `c` in a binary result: packet header 4, head 1, map of NULLs 1, length 1, 119 characters; text is similar."""
RESULT_BYTES = 78
"""Bytes of a result without its rows: count and definition of the column, end marks."""
OK_BYTES = 11


def reply_sizes(workload: Workload | None, round_trips: float, total_bytes: float) -> tuple[float, ...]:
    """Sizes of the replies of a transaction, adding up to `total_bytes`. If the workload is unknown, or has more or fewer statements
    than round trips, replies are assumed to be equal."""
    sizes = _guess_reply_sizes(workload)
    if sizes is None or abs(len(sizes) - round_trips) > 0.5:
        return request_sizes(round_trips, total_bytes)
    # The size of a short message does not depend on the rows, so only the long messages are scaled.
    short_bytes = sum(length for length in sizes if length <= OK_BYTES)
    scale = max(total_bytes - short_bytes, 0.0) / max(sum(sizes) - short_bytes, 1.0)
    return tuple(length if length <= OK_BYTES else length * scale for length in sizes)


def request_sizes(round_trips: float, total_bytes: float) -> tuple[float, ...]:
    """Sizes of the requests of a transaction, assumed to be equal."""
    count = max(1, round(round_trips))
    return (total_bytes / count,) * count


def _guess_reply_sizes(workload: Workload | None) -> list[float] | None:
    if workload is None or workload.kind != "oltp_read_only":
        return None
    sizes: list[float] = [RESULT_BYTES + ROW_BYTES] * workload.point_selects
    if workload.range_selects:
        ranges = workload.simple_ranges + workload.order_ranges + workload.distinct_ranges
        sizes += [RESULT_BYTES + workload.range_size * ROW_BYTES] * ranges
        sizes += [RESULT_BYTES + 12] * workload.sum_ranges
    if not workload.skip_trx:
        sizes += [OK_BYTES, OK_BYTES]
    return sizes


def unevenness(workload: Workload | None) -> float:
    """(1 + C²) / 2, with C the coefficient of variation of a transaction's answer sizes: the queue before a station whose service
    times are proportional to them, relative to one with exponential times (Pollaczek-Khinchine). At least 1, because not only sizes
    vary."""
    sizes = _guess_reply_sizes(workload) or [1.0]
    mean_square = sum(length * length for length in sizes) / len(sizes)
    return max(1.0, mean_square / (sum(sizes) / len(sizes)) ** 2 / 2)


SEGMENT_BYTES = 1448
"""Payload of a full TCP segment with timestamps at an MTU of 1500."""
HEADER_BYTES = 90
"""Headers of a segment as a link's rate counts it: IP and TCP with timestamps 52, Ethernet 14, check sequence 4, preamble and gap
20."""
TLS_RECORD_BYTES = 16_384
TLS_BYTES, TLS_12_BYTES = 22, 29
"""Bytes that TLS adds to each record: header 5 and tag 16, and in 1.3 the kind 1, in 1.2 with AES-GCM the nonce 8."""


def carried_bytes(message: float, ratio: float | None = None, record_bytes: int = 0) -> float:
    """Bytes that TCP carries of one message. `ratio`: share that compression leaves of it, its own headers included; None: not
    compressed. `record_bytes`: bytes that TLS adds to each of its records; 0: not encrypted."""
    carried = message
    if ratio is not None:
        carried *= ratio
    if record_bytes:
        carried += record_bytes * ceil(carried / TLS_RECORD_BYTES)
    return carried


def wire_bytes(carried: float) -> float:
    """Bytes with the headers of their segments, as a link's rate counts."""
    return carried + HEADER_BYTES * ceil(carried / SEGMENT_BYTES)
