"""A primary with its replicas under a load: started for each trial over wires that outlive it, and proven before and after.

The statements for the servers are in `replication/`. Not here: what a fault does to a pair.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from howfar.engine.messages import (
    LinkStats,
    Observed,
    RttResult,
)
from howfar.errors import LabError
from howfar.lab.link import DIRECTIONS, LinkSpec
from howfar.lab.link.receipt import MEAN_MAX_SHARE, OF_A_PLAN, Lateness, of_a_trial
from howfar.lab.replication import (
    Durability,
    Mode,
    Pair,
    PairContext,
    ReplicationSpec,
    WaitPoint,
    open_pair,
    open_wires,
)
from howfar.lab.replication.links import FOREVER_MS, Compression, EmulatedWire
from howfar.lab.replication.proof import Snapshot, latency_violation, violations, window_facts
from howfar.lab.replication.watch import CommitWatch, LagSample, LagWatch
from howfar.lab.request import ReplicasSpec
from howfar.lab.servers import CertificatePaths, Tables
from howfar.lab.servers.program import Program
from howfar.lab.serving import Serving
from howfar.plan.agreement import agreement_s, read_s
from howfar.plan.distances import pairs
from howfar.plan.factors import COMMIT_OFF, ORDINARY, SEMI_SYNC, node_rtts_ns
from howfar.plan.sessions import SessionSpec
from howfar.store.records import FactorValue, LagRecord, Window
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import LoadFacts, StageReceipt, WindowWatch
from howfar.units import format_duration_ns

SERVERS_TIMEOUT_MS = 10_000
"""Default of MySQL and MariaDB: how long a semi-synchronous commit waits before the primary continues without its replica."""
NOBODY_WAITS = Lateness(rtt_to_tolerance=False, p999_ns=20_000_000, p999_share=0.5, mean_ns=None)
"""Bounds for an asynchronous replica's link: late packets do not delay any client, they only add to the lag."""
HANGS_S, _HANGS_RTTS = 5.0, 20
"""If no commit is acknowledged for this many seconds plus this many RTTs, none will be."""


def replicates(factors: Mapping[str, FactorValue]) -> bool:
    return factors.get("replication", ORDINARY["replication"]) != "off"


def replication_spec(factors: Mapping[str, FactorValue]) -> ReplicationSpec:
    """The replication that a cell's levels request; factors without a level are as in `ORDINARY`."""
    level = {name: factors.get(name, ordinary) for name, ordinary in ORDINARY.items()}
    mode = str(level["replication"])
    compression = str(level["replica_compression"])
    return ReplicationSpec(
        mode="semi_sync" if mode in SEMI_SYNC else "async" if mode == COMMIT_OFF else cast(Mode, mode),
        replicas=0 if mode == "none" else int(level["replicas"]),
        wait_point=cast(WaitPoint, SEMI_SYNC.get(mode, "AFTER_SYNC")),
        wait_for=int(level["wait_for"]),
        timeout_ms=SERVERS_TIMEOUT_MS if level["fault"] == "replica-leaves" else FOREVER_MS,
        durability=cast(Durability, level["durability"]),
        flushes=mode != COMMIT_OFF,
        tls=level["replica_tls"] == "on",
        compression=None if compression == "off" else cast(Compression, compression),
        consistency=str(level["consistency"]),
        everywhere=level["writers"] != "one",
    )


def node_links(factors: Mapping[str, FactorValue]) -> dict[tuple[int, int], LinkSpec]:
    """The links between the nodes of a cell, the primary being node 0; empty without replicas."""
    return {pair: LinkSpec(rtt_ns, int(factors["replica_rate_bps"])) for pair, rtt_ns in node_rtts_ns(factors).items()}


class Replication:
    """The part that all trials with replication share: the replicas' hosts and links. The laboratory's ledger closes it."""

    def __init__(
        self, context: PairContext, program: Program, tables: Tables, spec: ReplicasSpec, ledger: ExitStack
    ) -> None:
        self._context = context
        self._program = program
        self._tables = tables
        self._spec = spec
        self._ledger = ledger.enter_context(ExitStack())
        self.wires: tuple[EmulatedWire, ...] = ()
        self._open_wires({})

    def _open_wires(self, calibrations: Mapping[str, Mapping[LinkSpec, dict[str, Any]]]) -> None:
        """Replace the wires by new ones, for which the `calibrations` of the old ones hold too."""
        self._ledger.close()
        opened = open_wires(self._context, self._spec.most, self._spec.link, calibrations, mesh=self._spec.mesh)
        self.wires = self._ledger.enter_context(opened)

    def begin_batch(self) -> None:
        """Have each wire's link calibrated again at its next use."""
        for wire in self.wires:
            wire.link.begin_batch()

    def environment(self) -> dict[str, Any]:
        return {
            "replica_cpus": list(self._context.replica_cpus),
            "wires": {wire.name: next(iter(wire.link.calibrations.values())) for wire in self.wires},
        }

    @contextmanager
    def serving(
        self, factors: Mapping[str, FactorValue], session: SessionSpec, prepare: tuple[str, ...]
    ) -> Iterator[Replicated]:
        """A proven pair as a cell requests it. Raises LabError, PlanError."""
        spec = replication_spec(factors)
        wires = self._shaped(factors)
        tables = Tables(self._tables.count, self._tables.size, (session.content,))
        encrypted = session.tls is not None
        with (
            open_pair(self._context, wires, self._program, tables, spec, encrypted=encrypted) as pair,
            ExitStack() as ledger,
        ):
            yield prepared(pair, pair.certificates if encrypted else None, factors, prepare, ledger)

    def _shaped(self, factors: Mapping[str, FactorValue]) -> tuple[EmulatedWire, ...]:
        """The links that the cell needs, set as it requests, even if the previous trial left one cut or dead."""
        links = node_links(factors)
        if links and not all(wire.link.alive() for wire in self.wires):
            self._open_wires({wire.name: wire.link.calibrations for wire in self.wires})
        used = tuple(wire for wire in self.wires if wire.nodes in links)
        for wire in used:
            wire.shape(links[wire.nodes])
        return used


def prepared(
    pair: Pair,
    certificates: CertificatePaths | None,
    factors: Mapping[str, FactorValue],
    prepare: tuple[str, ...],
    ledger: ExitStack,
) -> Replicated:
    """A proven pair on whose members all `prepare` statements have been applied. Raises LabError."""
    if prepare:
        pair.primary.write(*prepare, patience_s=pair.patience_s)
    for replica in pair.replicas:
        pair.await_caught_up(replica)
    watches = factors.get("fault", ORDINARY["fault"]) == "none"
    found = Replicated(pair, certificates, watches_commits=watches)
    ledger.callback(found.finish)
    return found


class Replicated(Serving):
    """A primary with its replicas. Made by `prepared`."""

    pair: Pair

    def __init__(self, pair: Pair, certificates: CertificatePaths | None, *, watches_commits: bool) -> None:
        """`watches_commits`: a hanging commit ends the load; False where a fault is tested."""
        super().__init__(pair.primary.server, pair.primary.server.password, certificates)
        self.pair = pair
        self._watches_commits = watches_commits
        self._at_rest: tuple[RttResult, ...] = ()
        """RTT of each wire before the load."""
        self._before: Snapshot | None = None
        self._commits: CommitWatch | None = None
        self._lag: LagWatch | None = None
        self._crossed: tuple[LinkStats | None, ...] = ()

    def observed(self) -> tuple[Observed, ...]:
        found = [Observed(role="replica", pid=replica.server.pid) for replica in self.pair.replicas]
        emulators = (wire.pid() for wire in self.pair.wires)
        return (*found, *(Observed(role="replica_link", pid=pid) for pid in emulators if pid is not None))

    def begin(self) -> None:
        self._at_rest = tuple(wire.begin() for wire in self.pair.wires)
        named = zip(self.pair.wires, self._at_rest, strict=True)
        self.pair.facts["rtt_at_rest_ns"] = {wire.name: rtt.p50_ns for wire, rtt in named}
        self._before = self.pair.snapshot()
        if self._watches_commits:
            rtt_s = max((wire.rtt_ns for wire in self.pair.wires), default=0) / 1e9
            self._commits = CommitWatch(self.pair, HANGS_S + _HANGS_RTTS * rtt_s)

    def watch(self, window: WindowWatch) -> WindowWatch:
        """Sample lag in the window only. If commits wait for a replica there is no heartbeat: it would be one more connection,
        whose commits share waits and group commits with the measured ones."""
        if not self.pair.replicas:
            return window
        self._lag = LagWatch(self.pair, beats=not self.pair.spec.needed)
        return _LagInWindow(window, self._lag, time.monotonic_ns())

    def unlike(self, lateness: Lateness, crossed: Sequence[LinkStats | None] | None = None) -> list[str]:
        """Differences between the links and what was requested: at rest, and by their counters (`crossed`, or the present ones)."""
        crossed = [wire.counters() for wire in self.pair.wires] if crossed is None else crossed
        return [
            f"{wire.name}: {sentence}"
            for wire, rtt, stats in zip(self.pair.wires, self._at_rest, crossed, strict=True)
            for sentence in (*wire.violations(rtt, stats, lateness), *_cut(stats))
        ]

    def finish(self) -> None:
        """End the threads that query these servers."""
        if self._commits is not None:
            self._commits.finish()
        if self._lag is not None:
            self._lag.finish()

    def begun(self) -> StageReceipt:
        receipts = {
            wire.name: wire.receipt(rtt, wire.counters() if wire.alive() else None)
            for wire, rtt in zip(self.pair.wires, self._at_rest, strict=True)
        }
        at_rest = self.unlike(OF_A_PLAN, [None] * len(self.pair.wires))
        return StageReceipt({"replication": {"wires": receipts}}, tuple(at_rest))

    def obtained(self, load: LoadFacts) -> StageReceipt:
        """Check that replication was what the cell requests, by the counters of both ends and by the clock. Raises LabError."""
        self.finish()
        if self._commits is not None and self._commits.hung is not None:
            raise LabError(self._commits.hung, "The receipt of the replica's link says what crossed it.")
        assert self._before is not None, "begin() comes first"
        pair, after = self.pair, self.pair.snapshot()
        ways = self._at_rest[: len(pair.replicas)]
        found = contradictions(pair.spec, self._before, after, load, ways)
        self._crossed = tuple(wire.counters() for wire in pair.wires)
        waited_ns = load.commit_p50_ns or load.round_trip_ns
        reads_wait = bool(ways) and waited_ns >= min(rtt.min_ns for rtt in ways)
        lateness = of_a_trial(waited_ns) if pair.spec.needed and (load.commits or reads_wait) else NOBODY_WAITS
        if pair.spec.cluster and lateness.mean_ns is not None:
            nodes = pairs(pair.spec.replicas + 1)  # in the order of the wires
            rtts_ns = {two: float(wire.rtt_ns) for two, wire in zip(nodes, pair.wires, strict=True)}
            late_ns = {two: _late_ns(stats) for two, stats in zip(nodes, self._crossed, strict=True)}
            found += agreement_violation(pair.spec, rtts_ns, late_ns, waited_ns, reads=not load.commits)
            lateness = replace(lateness, mean_ns=None)
        found += self.unlike(lateness, self._crossed)
        receipts = {
            wire.name: wire.receipt(rtt, stats)
            for wire, rtt, stats in zip(pair.wires, self._at_rest, self._crossed, strict=True)
        }
        facts = {
            **{name: value for name, value in pair.facts.items() if name != "proof"},
            "rtt_at_rest_ns": {name: wire["rtt_at_rest_ns"]["p50"] for name, wire in receipts.items()},
            "window": window_facts(self._before, after),
            "wires": receipts,
        }
        return StageReceipt({"replication": facts}, tuple(found))

    def others(self) -> ServerMetrics:
        crossed = [stats for stats in self._crossed if stats is not None]
        return ServerMetrics(
            bytes_received=sum(stats.to_server.wire_bytes for stats in crossed),
            bytes_sent=sum(stats.to_client.wire_bytes for stats in crossed),
        )


def contradictions(
    spec: ReplicationSpec, before: Snapshot, after: Snapshot, load: LoadFacts, at_rest: Sequence[RttResult]
) -> list[str]:
    """Differences between replication and what a cell requests: by the counters of both ends, and by the clock. `at_rest`: the round
    trip of each wire."""
    found = [*violations(spec, before, after, load.commits)]
    if spec.needed and load.commit_p50_ns is not None:
        # A commit that needs n acknowledgements cannot end before a round trip to the n-th nearest replica.
        rtt_ns = sorted(rtt.min_ns for rtt in at_rest)[spec.needed - 1]
        too_fast = latency_violation(spec, load.commit_p50_ns, rtt_ns)
        found += [] if too_fast is None else [too_fast]
    return found


def agreement_violation(
    spec: ReplicationSpec,
    rtts_ns: Mapping[tuple[int, int], float],
    late_ns: Mapping[tuple[int, int], float],
    waited_ns: float,
    *,
    reads: bool,
) -> list[str]:
    """Violation if the links' mean lateness changed how long a cluster's commits, or reads, waited. With a single leader the model
    of the agreement decides, so links that no commit waits for do not count. Otherwise a commit waits for the slowest of several
    paths: the mean lateness of the three latest links bounds that, the model with mean times does not. `waited_ns`: time of one
    commit or read; `rtts_ns` and `late_ns`: per round trip, by pair of nodes."""
    waits = read_s if reads else agreement_s
    waited = waits(spec.mode, spec.consistency, rtts_ns)
    late = {nodes: rtt_ns + late_ns[nodes] for nodes, rtt_ns in rtts_ns.items()}
    off_ns = waits(spec.mode, spec.consistency, late) - waited
    if waited and spec.mode != "group-leader":
        worst = sorted((max(ns, 0.0) for ns in late_ns.values()), reverse=True)
        off_ns = max(off_ns, sum(worst[:_LINKS_OF_A_WAY]))
    allowed_ns = MEAN_MAX_SHARE * waited_ns
    if abs(off_ns) <= allowed_ns:
        return []
    what, changed = "read" if reads else "commit", "longer" if off_ns > 0 else "shorter"
    sentence = f"the links made each {what} up to {format_duration_ns(abs(off_ns))} {changed} on average"
    why = "the machine was too busy for the emulators"
    return [f"{sentence} (allowed {format_duration_ns(allowed_ns)}, {MEAN_MAX_SHARE:.0%} of one): {why}"]


_LINKS_OF_A_WAY = 3
"""Number of links that a commit crosses in sequence on its longest path."""


def _late_ns(stats: LinkStats | None) -> float:
    """Mean lateness of a round trip; 0 where nothing crossed."""
    means = [] if stats is None else [stats.to_server.lateness_mean_ns, stats.to_client.lateness_mean_ns]
    return sum(mean for mean in means if mean is not None)


def _cut(stats: LinkStats | None) -> list[str]:
    """Violations for outages. No cell requests one, and the servers' counters do not show commits that stalled and then continued."""
    lost = {} if stats is None else {name: getattr(stats, name).drops.outage for name in DIRECTIONS}
    return [
        f"the link {name.replace('_', ' ')} was cut for a while: {segments} segments were lost to that"
        for name, segments in lost.items()
        if segments
    ]


@dataclass
class _LagInWindow:
    """A watch that adds the replicas' lag to another watch's window."""

    window: WindowWatch
    lag: LagWatch
    began_ns: int

    def finish(self) -> Window | None:
        seen, samples = self.window.finish(), self.lag.finish()
        if seen is None:
            return None
        return seen.model_copy(update={"lag": lag_records(samples, self.began_ns, seen.length_ns)})


def lag_records(samples: tuple[LagSample, ...], began_ns: int, length_ns: int) -> tuple[LagRecord, ...]:
    """The lag samples within the window, in times since its beginning."""
    return tuple(
        LagRecord(
            at_ns=sample.at_ns - began_ns,
            replica=sample.replica,
            behind=sample.behind,
            heartbeat_ns=sample.heartbeat_ns,
        )
        for sample in samples
        if 0 <= sample.at_ns - began_ns <= length_ns
    )
