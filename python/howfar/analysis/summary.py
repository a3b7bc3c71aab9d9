"""The answer of a run as one value. Its JSON form is public (`howfar report RUN --json`, schema in `schema/report.json`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from howfar.analysis.published import Published
from howfar.experiments.page.findings import PageFindings
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import CurvePoint, LatencyMs
from howfar.stats.intervals import Resolution
from howfar.store.records import ArmRole, FactorValue

# ---------------------------------------------------------------- one arm: its cycle and its limit


class CyclePart(Part):
    """A share of the mean time from one transaction of a connection to the next."""

    name: str
    us: float
    basis: Literal["measured", "computed", "bounded"]
    """Read from a counter; from a rate or a delay that was measured; an upper bound cut to what was left."""


class Cycle(Part):
    """Parts add up to `us` = connections x elapsed / transactions. The last part, `rest`, is what none of the others explains."""

    us: float
    parts: tuple[CyclePart, ...]
    rest_share: float


class Resource(StrEnum):
    """What can be a limit. Closed: a report can explain each."""

    CLIENT_CPU = "client CPU"
    """Then the figures are about the load generator."""
    SERVER_CPU = "server CPU"
    FORWARDER_CPU = "forwarder CPU"
    INSTRUMENT_CPU = "instrument CPU"
    """The emulator of the link took the processors: a larger machine would give more."""
    ONE_THREAD = "one thread"
    LINK_TO_CLIENT = "link to client"
    LINK_TO_SERVER = "link to server"
    RECEIVE_WINDOW = "receive window"
    SEND_BUFFER = "send buffer"
    LOSS = "loss"
    COMMIT = "commit"
    ACKNOWLEDGEMENT = "acknowledgement"
    """Commits wait for a replica."""
    LOCK = "lock"
    SERVER_WAIT = "wait in the server"
    LATENCY = "latency"
    ERRORS = "server errors"
    """Transactions fail: the figures are about them too."""
    INVALID = "invalid"
    """Other programs have the machine."""
    NOT_ESTABLISHED = "not established"


NOT_THE_PATH = frozenset({Resource.ERRORS, Resource.INVALID})
"""Figures with such a limit say nothing of a path, nor of what is compared on it."""


class Limit(Part):
    """Which resource binds, with the evidence."""

    resource: Resource
    says: str
    """One clause with figures: `the link to the client is full: 117.1 of 117.3 MiB/s`."""
    evidence: tuple[str, ...]
    """Each a measured figure against its limit."""
    confidence: Literal["high", "medium", "low"]
    would_change: str
    """The counterfactual: what moves throughput, and about how far."""
    would_not: str
    """What will not help, though people try it; empty: nothing to warn of."""
    divided: bool = False
    """Of CPUs: `resource` says who has the largest share, which is neither half of what is in use nor twice the next."""


class Intervention(Part):
    """What is changed, to see whether a limit is the limit."""

    arm: str
    resource: Resource
    changed: str
    """`rate 1gbit -> 1.5gbit`."""
    factors: dict[str, FactorValue]
    """The arm's, with the change."""
    predicted: float
    """Throughput over the unchanged arm's, if the limit is as named."""
    otherwise: float
    """The same if it is not. The further apart, the fewer blocks tell."""
    rules_out: str = ""
    """What is no limit if throughput moves as predicted: where not the resource itself was changed. Empty: it was."""


class Unconfirmed(Part):
    """A limit that could not be put to the test, and why."""

    arm: str
    resource: Resource
    why: str


class Confirmation(Part):
    """The named resource was changed for a few blocks: did throughput move as said?"""

    arm: str
    resource: Resource
    changed: str
    """`rate 1gbit -> 1.5gbit`."""
    predicted: float
    """Throughput over the unchanged arm's, by the model."""
    measured: Estimate
    confirmed: bool
    """The whole interval lies nearer to `predicted` than to `otherwise`."""
    blocks: int
    otherwise: float = 1.0
    """What would have been seen, were it not the limit."""
    rules_out: str = ""
    """As of the intervention. Empty: the resource itself was changed."""


# ---------------------------------------------------------------- throughput against connections


class ThreadsPoint(Part):
    """One arm as a point of its curve. Transactions a second."""

    threads: int
    arm: str
    tps: Estimate
    published_tps: float | None


class Ceiling(Part):
    """Transactions a second that a resource lets pass at most."""

    resource: Resource
    tps: float
    says: str


class ModelPoint(Part):
    threads: int
    tps: float
    low: float
    high: float
    """The band: a convention (two ways to soften the bounds), and no interval."""


class Prediction(Part):
    """A curve as the model predicts it, beside what was then measured."""

    basis: str
    """What went in, in words: `from tcp at 1 and 64 threads, and 43.3 kB a transaction`."""
    points: tuple[ModelPoint, ...]
    ceiling_tps: float
    """What the busiest station passes at most, with however many connections."""
    plateau_tps: float
    """At the connections at which the curve was fastest."""
    knee: float
    """N*: connections that would fill the busiest station if nobody ever waited."""
    mean_error: float | None
    """Mean absolute relative error over the measured points; None: nothing to compare with."""
    worst_error: float | None
    plateau_error: float | None
    """Signed: `plateau_tps` against the largest measured throughput of the curve."""


class Curve(Part):
    """Cells that differ in nothing but the number of connections."""

    name: str
    factors: dict[str, FactorValue]
    """Without threads."""
    points: tuple[ThreadsPoint, ...]
    ceilings: tuple[Ceiling, ...]
    """Ascending; the first is the binding one."""
    own: Prediction | None
    """Fitted on this curve's own ends: does the model describe it?"""
    foreign: Prediction | None
    """From other curves of this run: did the model foresee it?"""
    published: str | None
    """Whose figures `published_tps` are."""
    published_differs: bool = False
    """Theirs are of another workload: where the curve bends can be compared, transactions a second cannot."""


class Scaling(Part):
    curves: tuple[Curve, ...]
    says: str
    """The answer in a sentence."""


# ---------------------------------------------------------------- compression


class CompressionRow(Part):
    """One algorithm on one kind of data, against none."""

    content: str
    algorithm: str
    ratio_to_client: float
    """Bytes on the wire over bytes before, replies."""
    ratio_to_server: float
    client_ns_per_byte: float
    """CPU beyond the uncompressed session's, per uncompressed byte."""
    server_ns_per_byte: float
    break_even_bps: float | None
    """Below this link rate it pays on this machine and data, when the link is the limit; None: it never does, or see `resolved`."""
    resolved: bool = True
    """Its CPU was told from nothing. Where noise hid it, no break-even is said."""
    everywhere: bool = False
    """It pays at every rate that was looked at, `break_even_bps` being the fastest of them."""
    measured: tuple[CompressionTried, ...]
    level_advice: str
    curve: tuple[BreakEvenPoint, ...] = ()
    """By the model, ascending rates: what a chart draws between the measured points. The lines cross at `break_even_bps`."""


class BreakEvenPoint(Part):
    """Transactions a second over a link of this rate, by the model, without compression and with it."""

    rate_bps: float
    plain_tps: float
    compressed_tps: float


class CompressionTried(Part):
    """What the measurement said at one rate: compressed over uncompressed throughput, and what the break-even had said."""

    rate_bps: float | None
    """None: no link."""
    threads: int
    ratio: Estimate
    predicted: float | None
    """By the model, the costs of compression taken from cells at other rates. None: there are none."""
    agrees: bool | None
    """The prediction of better or worse was right, or the interval holds both. None: nothing was predicted."""
    invalid: bool = False
    """One of the two cells is about other programs or errors: nothing follows from the ratio."""
    below_noise: bool = False
    """No further from 1 than the run's noise floor."""


class CompressionEconomics(Part):
    rows: tuple[CompressionRow, ...]
    says: str


# ---------------------------------------------------------------- encryption


class EncryptionRow(Part):
    """One TLS version against none, CPU of both ends and time."""

    version: str
    connect_us: float | None
    """CPU of a connect beyond the plain one's, both ends. None: not measured with a connect a transaction."""
    connect_turns: float | None
    """Round trips of a connect beyond the plain one's."""
    byte_ns: float | None
    """CPU per payload byte beyond the plain session's, both ends. None: no persistent cells."""
    persistent: tuple[EncryptionTried, ...]
    per_transaction: tuple[EncryptionTried, ...]
    resumed: bool | None
    retried: bool | None = None
    """The server did not take the first key share that it was offered: a round trip more. None: not known."""


class EncryptionTried(Part):
    threads: int
    ratio: Estimate
    """Throughput over the same cell without TLS."""
    predicted: float | None = None
    """The same by the model, what TLS costs taken from cells with other numbers of connections. None: there are none that tell."""
    invalid: bool = False
    """One of the two cells is about other programs or errors: nothing follows from the ratio."""
    below_noise: bool = False
    """No further from 1 than the run's noise floor."""


class EncryptionEconomics(Part):
    rows: tuple[EncryptionRow, ...]
    says: str


# ---------------------------------------------------------------- what if


class WhatIf(Part):
    """The fitted demands of one measured point, from which `model/what_if.py` computes other settings."""

    arm: str
    threads: int
    tps: float
    turns: float
    think_s: float
    """What does not queue and is no round trip. Below nothing: so long do stations work on one transaction at the same time."""
    rtt_s: float
    rate_bps: float | None
    client_cpu_s: float
    server_cpu_s: float
    client_cpus: float
    server_cpus: float
    """What the load could have of them: what the link's emulator and strangers took is taken off."""
    shared_cpu: bool
    """Client and server have the same ones: `server_cpus` are both's."""
    replies_bytes: tuple[float, ...]
    """Of one transaction, as the protocol has them: what compression, encryption and headers make of them is in `model/wire.py`."""
    requests_bytes: tuple[float, ...]
    tls_byte_s: float | None
    """CPU seconds a payload byte, each end. None, here and below: this run did not measure it, and nothing is said of it."""
    connect_turns: float | None
    """Of a connect a transaction, plain TCP; so is the CPU beside it. TLS adds to each."""
    connect_client_s: float | None
    connect_server_s: float | None
    tls_connect_turns: float | None
    tls_connect_client_s: float | None
    tls_connect_server_s: float | None
    compression: tuple[WhatIfCompression, ...]
    threads_most: int
    worked: tuple[WhatIfWorked, ...] = ()
    """A few settings with their answers, for readers without JavaScript; the first is the measured point itself."""


class WhatIfCompression(Part):
    algorithm: str
    ratio_to_client: float
    ratio_to_server: float
    client_byte_s: float
    server_byte_s: float


class WhatIfSettings(Part):
    """What is asked. The page's `howfarWhatIf(base, settings)` takes these names as they are."""

    threads: int
    rtt_s: float
    rate_bps: float | None
    tls: bool
    connect_each: bool
    """A connect for every transaction, TLS handshake included."""
    compression: str
    """`off`, or an algorithm of `WhatIf.compression`."""


class WhatIfAnswer(Part):
    """What `howfarWhatIf` gives back, by these names."""

    tps: float
    limits: str
    """The busiest station's name, or `latency` where none is near its ceiling."""
    cycle_s: float
    knee: float


class WhatIfWorked(Part):
    settings: WhatIfSettings
    answer: WhatIfAnswer


CompressionRow.model_rebuild()
EncryptionRow.model_rebuild()
WhatIf.model_rebuild()


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
