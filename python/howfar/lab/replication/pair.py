"""A primary and its replicas: data, servers and replication, set up in this order, and proven before any measurement.

Each replica is seeded from the same loaded template as its primary, before either writes: their histories are empty and equal. Hosts
and links are in `links.py` and outlive a pair. Not here: the load, and the effects of a crash.
"""

from __future__ import annotations

import secrets
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from howfar.errors import LabError, PlanError, ServerCrashed
from howfar.lab.cache import cache_home, file_system_of
from howfar.lab.certificates import make_certificates
from howfar.lab.network import LOOPBACK_ADDRESS, SERVER_ADDRESS
from howfar.lab.replication.dialect import (
    SCHEMA,
    Promoted,
    ReplicaState,
    ReplicationDialect,
    Seed,
    Source,
    replication_dialect,
)
from howfar.lab.replication.links import EmulatedWire, PairContext, ReplicationSpec, Wire, node_address
from howfar.lab.replication.member import Member, begin_member, refuse_strangers, wait_for
from howfar.lab.replication.proof import (
    FILLING,
    ChannelFacts,
    ReplicaFacts,
    Snapshot,
    channel_violations,
    sent_bytes,
    violations,
)
from howfar.lab.servers import CertificatePaths, ServerContext, Tables
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED

_ROUND_TRIPS = 60
"""Round trips allowed on a long link; connecting, catching up and the proof take about a third of them."""


@dataclass
class Pair:
    """A primary with its replicas. Made by `open_pair`."""

    spec: ReplicationSpec
    dialect: ReplicationDialect
    primary: Member
    replicas: tuple[Member, ...] = ()
    wires: tuple[Wire, ...] = ()
    """The wires to the replicas in their order, then those between replicas."""
    patience_beyond_s: float = 30.0
    """Time allowed in addition to round trips."""
    patience: float = 1.0
    """Factor for the intervals between looks at the pair; larger where each look costs its hosts more."""
    certificates: CertificatePaths | None = None
    """Certificates of its servers; None if they offer no TLS."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about its setup, and its servers' reports, for the receipt."""

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.primary, *self.replicas)

    @property
    def peers(self) -> tuple[Wire, ...]:
        """The links between the replicas of a cluster."""
        return self.wires[len(self.replicas) :]

    def ends_of(self, wire: Wire) -> tuple[str, ...]:
        """Names of the members at its ends. A link between two replicas is named after both, any other after its replica."""
        names = tuple(wire.name.split("-"))
        return names if len(names) > 1 else (self.primary.name, *names)

    def wires_around(self, members: Iterable[Member]) -> tuple[Wire, ...]:
        """All wires between `members` and the other members."""
        names = {member.name for member in members}
        return tuple(wire for wire in self.wires if len(names & set(self.ends_of(wire))) == 1)

    @property
    def patience_s(self) -> float:
        """Time allowed for an action that needs some round trips."""
        return self.patience_beyond_s + _ROUND_TRIPS * max((wire.rtt_ns for wire in self.wires), default=0) / 1e9

    def snapshot(self) -> Snapshot:
        """The state of all members now. Raises ServerCrashed, LabError."""
        position = self.primary.position(self.dialect.position_sql)
        return Snapshot(
            position=position,
            primary=self.primary.primary_end(),
            replicas=tuple(self._facts_of(replica, position) for replica in self.replicas),
            nodes=tuple(node for member in self.members if (node := member.node_facts()) is not None),
            sent=sent_bytes(self.wires[: len(self.replicas)]),
            broken=self._broken(),
        )

    def _broken(self) -> tuple[str, ...]:
        dead = [f"the link of {wire.name} had died" for wire in self.wires if not wire.alive()]
        full = [f"{member.name} had {left}" for member in self.members if (left := member.full())]
        return (*dead, *full)

    def _facts_of(self, replica: Member, position: str) -> ReplicaFacts:
        state = _state_of(replica)
        applied, own = replica.position(self.dialect.applied_sql), replica.position(self.dialect.state_sql)
        known, writer = (self.primary.position(sql) for sql in (self.dialect.state_sql, self.dialect.origin_sql))
        return ReplicaFacts(
            name=replica.name,
            state=state,
            semi_sync=replica.acknowledges(),
            applied=applied,
            behind=self.dialect.positions.lacking(position, applied),
            strangers=self.dialect.positions.strangers(own, known, writer),
        )

    def refuse_strangers(self, replica: Member) -> None:
        """Check that the replica has no errant transactions; see `member.refuse_strangers`. Raises LabError."""
        refuse_strangers(self.primary, replica)

    def await_replicating(self, replica: Member) -> None:
        """Wait until the replica receives and applies. Raises LabError with the replica's own errors."""

        def replicating() -> bool:
            state = _state_of(replica)
            if state.applying != "Yes" or (state.receiving == "No" and state.errors):
                _raise_refused(replica, state)
            return state.receiving == "Yes"

        def describe() -> str:
            return f"{replica.name} did not begin to replicate ({'; '.join(_state_of(replica).errors) or 'no error'})"

        wait_for(replicating, self.patience_s, describe, "Is its link cut, or the machine overloaded?")

    def await_caught_up(self, replica: Member) -> None:
        """Wait until everything that the primary has committed by now is applied. Raises LabError."""
        wanted = self.primary.position(self.dialect.position_sql)

        def lacking() -> int:
            return self.dialect.positions.lacking(wanted, replica.position(self.dialect.applied_sql))

        def caught_up() -> bool:
            state = _state_of(replica)
            if state.applying != "Yes":
                _raise_refused(replica, state)
            return lacking() == 0

        def describe() -> str:
            why = "".join(f"; {sentence}" for sentence in self._broken())
            return f"{replica.name} lacks {lacking()} transactions and did not catch up{why}"

        wait_for(caught_up, self.patience_s, describe, "Is its link cut, or the machine overloaded?")

    def prove(self) -> Snapshot:
        """Prove replication, before any other client connects: a row written on the primary is read on every replica, both ends report
        the requested settings, and the bytes on the links agree. Raises LabError."""
        ways = self.wires[: len(self.replicas)]
        before, crossed = self.snapshot(), sent_bytes(ways)
        word = secrets.token_hex(8)
        self.primary.write(self.dialect.mark_sql(word, FILLING), patience_s=self.patience_s)
        for replica in self.replicas:
            self.await_caught_up(replica)
            rows = replica.ask(f"SELECT word FROM {SCHEMA}.marker WHERE id = 1")
            if [row["word"] for row in rows] != [word]:
                raise LabError(f"{replica.name} says that it has all of its primary, and lacks a row of it")
        after, sent = self.snapshot(), sent_bytes(ways)
        wire_bytes = {name: sent[name] - crossed[name] for name in sent}
        channel = ChannelFacts(self.dialect.tls_handshakes(self.primary.ask), len(FILLING), wire_bytes)
        self.facts["channel"] = asdict(channel)
        found = (*violations(self.spec, before, after, commits=1), *channel_violations(self.spec, channel))
        if found:
            raise LabError("replication is not what was asked: " + "; ".join(found))
        return after


def _state_of(replica: Member) -> ReplicaState:
    state = replica.replica_state()
    if state is None:
        raise LabError(f"{replica.name} follows nobody")
    return state


def _raise_refused(replica: Member, state: ReplicaState) -> NoReturn:
    why = "; ".join(state.errors) or f"receiving {state.receiving}, applying {state.applying}, and no error"
    raise LabError(f"{replica.name} cannot replicate: {why}", "Its data and its primary's must have the same origin.")


@contextmanager
def open_pair(
    context: PairContext,
    wires: Sequence[EmulatedWire],
    program: Program,
    tables: Tables,
    spec: ReplicationSpec,
    *,
    encrypted: bool = False,
) -> Iterator[Pair]:
    """Start a proven pair, with a replica on each of the first wires, as many as requested. Call in the sandbox, without another pair.
    Undone on leaving, also after a partial failure. `encrypted`: other clients use TLS, whether or not the replicas do.

    Raises PlanError, LabError, ServerCrashed.
    """
    check(spec, replication_dialect(program.kind, spec.mode))
    assert len(wires) >= spec.replicas, "each replica has a wire of its own"
    with ExitStack() as ledger:
        directory = ledger.enter_context(_directory(context))
        used = tuple(wire for wire in wires if wire.nodes[1] <= spec.replicas and (spec.cluster or not wire.nodes[0]))
        yield _begin(directory, context, program, tables, spec, used, encrypted, ledger)


def check(spec: ReplicationSpec, dialect: ReplicationDialect) -> None:
    """Raises PlanError for a request that makes no sense on any server, or that this kind does not support."""
    spec.check()
    if spec.semi_sync and dialect.most_to_wait_for is not None and spec.wait_for > dialect.most_to_wait_for:
        raise PlanError(
            f"{dialect.kind} waits for {dialect.most_to_wait_for} replica, not for {spec.wait_for}",
            "Use MySQL for that.",
        )
    if spec.compression is not None and spec.compression not in dialect.compressions:
        raise PlanError(
            f"{dialect.kind} does not compress replication by {spec.compression}",
            f"It supports: {', '.join(dialect.compressions) or 'none'}.",
        )


@contextmanager
def _directory(context: PairContext) -> Iterator[Path]:
    """A directory for the data of all members, removed with the pair: the next pair starts anew."""
    where = context.work / "pair"
    where.mkdir()
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def _begin(
    directory: Path,
    context: PairContext,
    program: Program,
    tables: Tables,
    spec: ReplicationSpec,
    wires: tuple[EmulatedWire, ...],
    encrypted: bool,
    ledger: ExitStack,
) -> Pair:
    """Start the members on the laboratory's hosts, with equal data, then `join` them."""
    dialect = replication_dialect(program.kind, spec.mode)
    certificates = _certificates(directory, wires) if spec.tls or encrypted else None
    secret, group = secrets.token_urlsafe(18), str(uuid.uuid4())
    ca = str(certificates.ca) if certificates and spec.tls else None
    ways = wires[: spec.replicas]
    sources = tuple(
        Source(wire.network.ends.server_address, dialect.port, secret, ca, spec.compression) for wire in ways
    )
    hosts = [("primary", context.network.server, context.shares.server)]
    hosts += [(wire.name, wire.host, context.replica_cpus) for wire in ways]
    nodes = tuple(node_address(number) for number in range(len(hosts)))
    members = []
    for number, (name, host, cpus) in enumerate(hosts):
        (directory / name).mkdir()
        place = ServerContext(
            work=directory / name, host=host, cpus=cpus, connections=context.connections, namespaced=True
        )
        source = sources[number - 1] if number else None
        seed = Seed(name, number, spec, secret, certificates, source, group, nodes)
        member = begin_member(seed, place, program, tables)
        ledger.callback(member.stop)
        members.append(member)
    primary, *replicas = members
    pair = Pair(spec, dialect, primary, tuple(replicas), wires, context.patience_s, certificates=certificates)
    pair.facts = {"replica_cpus": list(context.replica_cpus), "data_file_system": file_system_of(directory)}
    join(pair, sources)
    return pair


def join(pair: Pair, sources: Sequence[Source]) -> None:
    """Wait for started members, point each replica to its primary, and prove the pair. `sources`: the primary's address as each
    replica reaches it. Raises LabError, ServerCrashed."""
    marks = [("", time.monotonic())]

    def mark(what: str) -> None:
        marks.append((what, time.monotonic()))

    members = (pair.primary, *pair.replicas)
    for member in members:
        try:
            member.server.become_ready()
        except ServerCrashed as error:
            damaged = (
                f"If its log mentions damaged files, remove {cache_home() / LOADED}: everything in it is created again."
            )
            raise ServerCrashed(
                f"{member.name} does not start: {error.message}", f"{error.advice} {damaged}"
            ) from error
    durability = {member.name: _durability(member, pair.spec) for member in members}
    pair.facts |= {"asked": asdict(pair.spec), "durability": durability}
    for replica, source in zip(pair.replicas, sources, strict=True):
        pair.dialect.follow(replica, source)
    mark("servers")
    _connect(pair)
    mark("replication")
    pair.facts["proof"] = asdict(pair.prove())
    mark("proof")
    pair.facts["seconds"] = {what: round(at - before, 3) for (_, before), (what, at) in pairwise(marks)}


def _certificates(directory: Path, wires: tuple[EmulatedWire, ...]) -> CertificatePaths:
    addresses = [wire.network.ends.server_address for wire in wires]
    return make_certificates(directory, (LOOPBACK_ADDRESS, SERVER_ADDRESS, *addresses))


def _durability(member: Member, spec: ReplicationSpec) -> dict[str, str]:
    """Read the settings of durability back. Raises LabError if they differ from the preset: a server may accept an option and ignore
    it."""
    found, wanted = member.dialect.durability(member.ask, spec)
    unlike = [
        f"{name} is {found.get(name)} instead of {value}"
        for name, value in wanted.items()
        if found.get(name, "").lower() != value
    ]
    if unlike:
        raise LabError(f"{member.name} is not as durable as asked ({spec.durability}): {'; '.join(unlike)}")
    return found


def _connect(pair: Pair) -> None:
    """Turn replication on for all members, and wait until every replica replicates and, if requested, acknowledges."""
    primary = pair.primary
    patience_s = pair.patience_s
    pair.dialect.join(primary, pair.replicas, pair.spec, patience_s)
    for replica in pair.replicas:
        pair.await_replicating(replica)
    if not pair.spec.semi_sync:
        return

    def clients() -> int:
        end = primary.primary_end()
        return 0 if end is None else end.clients

    def all_there() -> bool:
        return clients() >= pair.spec.replicas and all(replica.acknowledges() for replica in pair.replicas)

    wait_for(
        all_there,
        patience_s,
        lambda: f"{clients()} of {pair.spec.replicas} replicas were there to acknowledge, and no more came",
    )


PATIENCE_S = 60.0


def promote(replica: Member, patience_s: float = PATIENCE_S) -> Promoted:
    """Promote a replica: stop receiving, wait until all complete transactions are applied, detach it from its primary, make it
    writable. The primary may be dead or alive: the caller ensures that no client writes there.

    Raises LabError if it cannot be promoted; it is then left read-only and receives nothing more.
    """
    dialect, began = replica.dialect, time.monotonic_ns()
    if replica.replica_state() is None:
        raise LabError(f"{replica.name} follows nobody: there is nothing to promote it from")
    unapplied = dialect.promote(replica, patience_s)
    return Promoted(
        name=replica.name,
        position=replica.position(dialect.applied_sql),
        unapplied=unapplied,
        took_ns=time.monotonic_ns() - began,
    )
