"""The answer of a run as one value. Its JSON form is public (`howfar report RUN --json`, schema in `schema/report.json`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from howfar.analysis.findings import (
    CompressionEconomics,
    Confirmation,
    Cycle,
    EncryptionEconomics,
    Limit,
    Scaling,
    Unconfirmed,
    WhatIf,
)
from howfar.analysis.published import Published
from howfar.experiments.page.findings import PageFindings
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import CurvePoint, LatencyMs
from howfar.stats.intervals import Resolution
from howfar.store.records import ArmRole, FactorValue


class CpuPerQuery(Part):
    """CPU microseconds a query, by who spent them. None: no such part on this path."""

    client: Estimate
    server: Estimate
    forwarder: Estimate | None
    link: Estimate | None
    """The emulator's own cost: the instrument's, not the path's; in no ratio."""


class BytesPerTxn(Part):
    """With the servers. None: an application of its own speaks to them, and does not count."""

    to_server: float | None
    to_client: float | None


class Bound(StrEnum):
    """Which side of the truth a CPU ratio is on. The kernel's work of receiving from the link runs in the emulator's threads and
    is charged to no path, while loopback's is charged to the sender."""

    MEASURED = "measured"
    """Both arms pass the link, or neither does."""
    AT_LEAST = "at least"
    """This arm passes the link and the baseline does not: part of its CPU is not counted."""
    AT_MOST = "at most"
    """The baseline passes the link and this arm does not."""


class Warning(StrEnum):
    """Everything that may be said beside a number. Closed: a report can explain each."""

    CONTAMINATED_BLOCKS = "contaminated blocks"
    """The t interval and the rank estimate disagree: some blocks were disturbed; the rank estimate is quoted."""
    NOT_STEADY = "not steady"
    CLIENT_LIMITED = "client limited"
    BUSY_MACHINE = "busy machine"
    WIDE_INTERVAL = "wide interval"
    FEW_BLOCKS = "few blocks"
    AA_EXCLUDES_ONE = "A/A excludes 1"
    """The same path under two names came out different: the session is void."""
    LINK_NOT_AS_ASKED = "link not as asked"


class CellSummary(Part):
    factors: dict[str, FactorValue]
    arm: str
    role: ArmRole
    trials: int
    void_trials: int
    qps: Estimate
    ratio: Estimate | None
    """Queries a second of this arm over the baseline's, paired by block, as quoted: the t estimate, or the rank estimate
    where CONTAMINATED_BLOCKS is set. None here and in every other ratio: no block in which both were measured."""
    mean_ratio: Estimate | None
    """exp(mean log ratio) with t limits."""
    rank_ratio: Estimate | None
    """Hodges-Lehmann with signed-rank limits: the robust twin."""
    block_ratios: tuple[float, ...]
    blocks_needed: int | None
    """Blocks until the ratio is as narrow as asked, at the scatter seen. None: unknown, or out of reach."""
    resolution: Resolution
    cpu_resolution: Resolution
    """The same for `cpu_ratio`, against the A/A arm's CPU noise floor. FASTER reads: less CPU."""
    cpu_us_per_query: CpuPerQuery
    cpu_ratio: Estimate | None
    """Client + server + forwarder CPU a query over the baseline's, paired by block."""
    cpu_bound: Bound
    """How `cpu_ratio` is to be read. At least: never resolved as less CPU; at most: never as more."""
    latency_ms: LatencyMs
    latency_curve: tuple[CurvePoint, ...]
    latency_ratio: Estimate | None
    """Median transaction latency over the baseline's, paired by block."""
    turns_per_txn: float
    queries_per_txn: float
    bytes_per_txn: BytesPerTxn
    time_split_us: dict[str, float]
    """Where a transaction's mean time goes, microseconds; keys and their order in `budget.PARTS`. Adds up to the cycle
    time of a connection: connections x elapsed / transactions."""
    rest_rtt_ns: float | None
    """The link's RTT measured at rest, median over trials. None: no link on this path, or not measured."""
    receipt: dict[str, Any]
    published: Published | None
    warnings: tuple[Warning, ...]
    settled_after: int | None = None
    """Blocks in which it was measured; then it rested, deep on a plateau, and kept its interval. None: measured to the end."""
    cycle: Cycle | None = None
    """`time_split_us` with what the window's counters add. None: a run of before."""
    limit: Limit | None = None
    network: NetworkSeries | None = None
    keys: KeyReads | None = None
    """None: no stores of keys."""


class NetworkSeries(Part):
    """The link, or the loopback, over one trial of an arm: the last good one. Bytes a second as an interface counts them."""

    trial: int
    at_s: tuple[float, ...]
    to_client_bytes_per_s: tuple[float, ...]
    to_server_bytes_per_s: tuple[float, ...]
    to_client_queue_bytes: tuple[int, ...] | None
    to_server_queue_bytes: tuple[int, ...] | None
    """The most in each slice. None: nothing queues that could be asked."""
    retransmits_per_s: tuple[float, ...]
    interface_ceiling_bytes_per_s: float | None
    payload_ceiling_bytes_per_s: float | None
    """None: no rate was asked."""


class Advice(Part):
    """One thing to do, and its ground."""

    action: str
    because: str
    lines: tuple[str, ...] = ()
    """Exact lines to type or to write into a file."""


class Unmeasured(Part):
    """An arm without one good trial: it has no figures, and is not forgotten."""

    arm: str
    factors: dict[str, FactorValue]
    void_trials: int
    reasons: dict[str, int]


class TrialPoint(Part):
    """One trial in the order in which they ran, for the eye; statistics are made of blocks."""

    number: int
    block: int
    arm: str
    qps: float | None
    """None: void."""
    cpu_pressure: float | None
    """Share of the trial in which some task waited for a CPU."""
    others_cpus: float | None
    """CPUs that others kept busy. None: void, or this run does not say."""


class Spread(Part):
    """How far the baseline's trials lay apart: largest over smallest, at least 1."""

    qps: float
    cpu_per_query: float | None


Asked = Literal["queries", "requests", "pages"]
"""What is counted: queries of SQL, requests where stores answer them, or pages, each of many turns to several servers."""


class KeyReads(Part):
    """Keys that were read from stores, over an arm's good trials."""

    hits: int
    misses: int
    """Had no value: a server answers them sooner."""


class Summary(Part):
    """The whole answer."""

    run: str
    plan: str
    quick: bool
    howfar: str
    created: str
    """ISO 8601, UTC."""
    command: str
    server: dict[str, str]
    """`kind`, `version`."""
    workload: str
    """One line."""
    asked: Asked = "queries"
    """What is counted wherever a name says queries."""
    blocks: int
    complete_blocks: int
    """Of them, those in which every arm that did not rest has a good trial."""
    noise_floor: float | None
    """Half-width of the A/A interval as a share (0.02: effects under 2 % are not resolved)."""
    aa_ratio: Estimate | None
    cpu_noise_floor: float | None
    target_half_width: float
    stop: str | None
    void_trials: int
    void_reasons: dict[str, int]
    others_cpus: float | None
    """Median over trials of the CPUs that others kept busy. None: this run does not say."""
    machine_cpus: int | None
    baseline_spread: Spread | None
    """None: fewer than two good trials of the baseline."""
    verdict: str
    advice: tuple[Advice, ...]
    cells: tuple[CellSummary, ...]
    unmeasured: tuple[Unmeasured, ...]
    trials: tuple[TrialPoint, ...]
    environment: dict[str, Any]
    warnings: tuple[Warning, ...]
    scaling: Scaling | None = None
    """Of plans with several numbers of connections."""
    compression: CompressionEconomics | None = None
    encryption: EncryptionEconomics | None = None
    what_if: WhatIf | None = None
    replication: ReplicationFindings | None = None
    pages: PageFindings | None = None
    """Of plans whose workload is pages."""
    confirmations: tuple[Confirmation, ...] = ()
    unconfirmed: tuple[Unconfirmed, ...] = ()
    """Limits that were to be confirmed and could not be. Empty too where nothing was to be confirmed."""
