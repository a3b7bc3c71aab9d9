"""What a run is found to say beyond ratios: where a cycle's time goes, which resource is the limit, how throughput grows with
connections and what a model makes of that, what compression and encryption cost. Types only; each is public in the report's JSON.

They are made by `attribution/` (cycle, limit), `scaling.py` and `model/` (curves, predictions, what-if), `economics/`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from howfar.stats.estimate import Estimate, Part
from howfar.store.records import FactorValue

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
