"""A primary and its replicas: set up data, servers and replication, and prove that they replicate before any measurement.

Replicas and primary start with copies of the same loaded template, before any of them writes, so their histories are empty and equal.
Their hosts and links are in `links.py`; they outlive a replica set.
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
from typing import NoReturn

from howfar.contract.receipt import ReplicaFacts, ReplicaState, ReplicationReceipt, Snapshot
from howfar.errors import LabError, PlanError, ServerCrashed
from howfar.lab.cache import cache_home, file_system_of
from howfar.lab.certificates import make_certificates
from howfar.lab.network import LOOPBACK_ADDRESS, SERVER_ADDRESS
from howfar.lab.replication.dialect import SCHEMA, Promotion, ReplicationDialect, Seed, Source, replication_dialect
from howfar.lab.replication.links import (
    EmulatedReplicationLink,
    ReplicaSetContext,
    ReplicationLink,
    ReplicationSpec,
    node_address,
)
from howfar.lab.replication.member import Member, begin_member, refuse_errant_transactions, wait_for
from howfar.lab.replication.proof import FILLING, ChannelFacts, channel_violations, sent_bytes, violations
from howfar.lab.servers import CertificatePaths, ServerContext, Tables
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED

_ROUND_TRIPS = 60
"""Round trips allowed on a long link; connecting, catching up and the proof take about a third of them."""


@dataclass
class ReplicaSet:
    """A primary with its replicas. Made by `open_replica_set`."""

    spec: ReplicationSpec
    dialect: ReplicationDialect
    primary: Member
    replicas: tuple[Member, ...] = ()
    links: tuple[ReplicationLink, ...] = ()
    """The links to the replicas, in their order, then those between replicas."""
    base_timeout_s: float = 30.0
    """Time allowed in addition to round trips."""
    poll_interval_factor: float = 1.0
    """Factor for polling intervals; larger where a poll costs the hosts more."""
    certificates: CertificatePaths | None = None
    """Certificates of its servers; None if they offer no TLS."""
    facts: ReplicationReceipt = field(default_factory=ReplicationReceipt)
    """Facts for the receipt: about its setup, and from its servers."""

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.primary, *self.replicas)

    @property
    def peers(self) -> tuple[ReplicationLink, ...]:
        """The links between the replicas of a cluster."""
        return self.links[len(self.replicas) :]

    def ends_of(self, link: ReplicationLink) -> tuple[str, ...]:
        """Names of the members at a link's ends. A link between two replicas is named after both, any other link after its replica."""
        names = tuple(link.name.split("-"))
        return names if len(names) > 1 else (self.primary.name, *names)

    def links_around(self, members: Iterable[Member]) -> tuple[ReplicationLink, ...]:
        """All links between `members` and the other members."""
        names = {member.name for member in members}
        return tuple(link for link in self.links if len(names & set(self.ends_of(link))) == 1)

    @property
    def timeout_s(self) -> float:
        """Time limit of an action that needs several round trips."""
        return self.base_timeout_s + _ROUND_TRIPS * max((link.rtt_ns for link in self.links), default=0) / 1e9

    def snapshot(self) -> Snapshot:
        """The state of all members now. Raises ServerCrashed, LabError."""
        position = self.primary.position(self.dialect.position_sql)
        return Snapshot(
            position=position,
            primary=self.primary.primary_end(),
            replicas=tuple(self._facts_of(replica, position) for replica in self.replicas),
            nodes=tuple(node for member in self.members if (node := member.node_facts()) is not None),
            sent=sent_bytes(self.links[: len(self.replicas)]),
            broken=self._unreported_failures(),
        )

    def _unreported_failures(self) -> tuple[str, ...]:
        dead = [f"the link of {link.name} had died" for link in self.links if not link.alive()]
        full = [f"{member.name} had {free_space}" for member in self.members if (free_space := member.full())]
        return (*dead, *full)

    def _facts_of(self, replica: Member, position: str) -> ReplicaFacts:
        state = _read_state(replica)
        applied, replica_history = replica.position(self.dialect.applied_sql), replica.position(self.dialect.state_sql)
        primary_history, primary_origin = (
            self.primary.position(sql) for sql in (self.dialect.state_sql, self.dialect.origin_sql)
        )
        return ReplicaFacts(
            name=replica.name,
            state=state,
            semi_sync=replica.acknowledges(),
            applied=applied,
            behind=self.dialect.positions.lacking(position, applied),
            strangers=self.dialect.positions.strangers(replica_history, primary_history, primary_origin),
        )

    def refuse_errant_transactions(self, replica: Member) -> None:
        """Check that the replica has no errant transactions; see `member.refuse_errant_transactions`. Raises LabError."""
        refuse_errant_transactions(self.primary, replica)

    def await_replicating(self, replica: Member) -> None:
        """Wait until the replica receives and applies. Raises LabError with the replica's own errors."""

        def replicating() -> bool:
            state = _read_state(replica)
            if state.applying != "Yes" or (state.receiving == "No" and state.errors):
                _raise_refused(replica, state)
            return state.receiving == "Yes"

        def describe() -> str:
            return f"{replica.name} did not begin to replicate ({'; '.join(_read_state(replica).errors) or 'no error'})"

        wait_for(replicating, self.timeout_s, describe, "Is its link cut, or the machine overloaded?")

    def await_caught_up(self, replica: Member) -> None:
        """Wait until everything that the primary has committed by now is applied. Raises LabError."""
        requested = self.primary.position(self.dialect.position_sql)

        def lacking() -> int:
            return self.dialect.positions.lacking(requested, replica.position(self.dialect.applied_sql))

        def caught_up() -> bool:
            state = _read_state(replica)
            if state.applying != "Yes":
                _raise_refused(replica, state)
            return lacking() == 0

        def describe() -> str:
            why = "".join(f"; {sentence}" for sentence in self._unreported_failures())
            return f"{replica.name} lacks {lacking()} transactions and did not catch up{why}"

        wait_for(caught_up, self.timeout_s, describe, "Is its link cut, or the machine overloaded?")

    def prove(self) -> Snapshot:
        """Prove that replication works, before any other client connects. A row that is written on the primary is read on every
        replica, both ends report the requested settings, and the bytes on the links agree with them. Raises LabError."""
        primary_links = self.links[: len(self.replicas)]
        before, bytes_before = self.snapshot(), sent_bytes(primary_links)
        word = secrets.token_hex(8)
        self.primary.write(self.dialect.marker_sql(word, FILLING), timeout_s=self.timeout_s)
        for replica in self.replicas:
            self.await_caught_up(replica)
            rows = replica.ask(f"SELECT word FROM {SCHEMA}.marker WHERE id = 1")
            if [row["word"] for row in rows] != [word]:
                raise LabError(f"{replica.name} says that it has all of its primary, and lacks a row of it")
        after, sent = self.snapshot(), sent_bytes(primary_links)
        wire_bytes = {name: sent[name] - bytes_before[name] for name in sent}
        channel = ChannelFacts(self.dialect.tls_handshakes(self.primary.ask), len(FILLING), wire_bytes)
        self.facts.channel = asdict(channel)
        found = (*violations(self.spec, before, after, commits=1), *channel_violations(self.spec, channel))
        if found:
            raise LabError("replication is not what was asked: " + "; ".join(found))
        return after


def _read_state(replica: Member) -> ReplicaState:
    state = replica.replica_state()
    if state is None:
        raise LabError(f"{replica.name} follows nobody")
    return state


def _raise_refused(replica: Member, state: ReplicaState) -> NoReturn:
    why = "; ".join(state.errors) or f"receiving {state.receiving}, applying {state.applying}, and no error"
    raise LabError(f"{replica.name} cannot replicate: {why}", "Its data and its primary's must have the same origin.")


@contextmanager
def open_replica_set(
    context: ReplicaSetContext,
    links: Sequence[EmulatedReplicationLink],
    program: Program,
    tables: Tables,
    spec: ReplicationSpec,
    *,
    encrypted: bool = False,
) -> Iterator[ReplicaSet]:
    """Start a replica set and prove that it replicates. There is a replica at each of the first `spec.replicas` links. Call it in the
    sandbox, one replica set at a time. Leaving the context removes everything, also after a partial failure. `encrypted`: other
    clients use TLS, whether or not the replicas do.

    Raises PlanError, LabError, ServerCrashed.
    """
    check_supported(spec, replication_dialect(program.kind, spec.mode))
    assert len(links) >= spec.replicas, "each replica has a wire of its own"
    with ExitStack() as stack:
        directory = stack.enter_context(_data_directory(context))
        used_links = tuple(
            link for link in links if link.nodes[1] <= spec.replicas and (spec.cluster or not link.nodes[0])
        )
        yield _start_members(directory, context, program, tables, spec, used_links, encrypted, stack)


def check_supported(spec: ReplicationSpec, dialect: ReplicationDialect) -> None:
    """Raises PlanError for a request that makes no sense on any server, or that this kind does not support."""
    spec.check()
    if (
        spec.semi_sync
        and dialect.max_replicas_to_wait_for is not None
        and spec.wait_for > dialect.max_replicas_to_wait_for
    ):
        raise PlanError(
            f"{dialect.kind} waits for {dialect.max_replicas_to_wait_for} replica, not for {spec.wait_for}",
            "Use MySQL for that.",
        )
    if spec.compression is not None and spec.compression not in dialect.compressions:
        raise PlanError(
            f"{dialect.kind} does not compress replication by {spec.compression}",
            f"It supports: {', '.join(dialect.compressions) or 'none'}.",
        )


@contextmanager
def _data_directory(context: ReplicaSetContext) -> Iterator[Path]:
    """A directory for the data of all members, which is removed with the replica set."""
    directory = context.work / "pair"
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start_members(
    directory: Path,
    context: ReplicaSetContext,
    program: Program,
    tables: Tables,
    spec: ReplicationSpec,
    links: tuple[EmulatedReplicationLink, ...],
    encrypted: bool,
    stack: ExitStack,
) -> ReplicaSet:
    """Start the members with equal data on the laboratory's hosts, then `join` them to a replica set."""
    dialect = replication_dialect(program.kind, spec.mode)
    certificates = _certificates(directory, links) if spec.tls or encrypted else None
    secret, group = secrets.token_urlsafe(18), str(uuid.uuid4())
    ca = str(certificates.ca) if certificates and spec.tls else None
    primary_links = links[: spec.replicas]
    sources = tuple(
        Source(link.network.ends.server_address, dialect.port, secret, ca, spec.compression) for link in primary_links
    )
    hosts = [("primary", context.network.server, context.shares.server)]
    hosts += [(link.name, link.host, context.replica_cpus) for link in primary_links]
    nodes = tuple(node_address(number) for number in range(len(hosts)))
    members = []
    for number, (name, host, cpus) in enumerate(hosts):
        (directory / name).mkdir()
        server_context = ServerContext(
            work=directory / name, host=host, cpus=cpus, connections=context.connections, namespaced=True
        )
        source = sources[number - 1] if number else None
        seed = Seed(name, number, spec, secret, certificates, source, group, nodes)
        member = begin_member(seed, server_context, program, tables)
        stack.callback(member.stop)
        members.append(member)
    primary, *replicas = members
    replica_set = ReplicaSet(
        spec, dialect, primary, tuple(replicas), links, context.timeout_s, certificates=certificates
    )
    replica_set.facts.replica_cpus = list(context.replica_cpus)
    replica_set.facts.data_file_system = file_system_of(directory)
    join(replica_set, sources)
    return replica_set


def join(replica_set: ReplicaSet, sources: Sequence[Source]) -> None:
    """Wait until the started members are ready, make each replica follow the primary, and prove the replica set. `sources`: how each
    replica reaches the primary. Raises LabError, ServerCrashed."""
    marks = [("", time.monotonic())]

    def mark(what: str) -> None:
        marks.append((what, time.monotonic()))

    members = (replica_set.primary, *replica_set.replicas)
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
    durability = {member.name: _durability(member, replica_set.spec) for member in members}
    replica_set.facts.requested = asdict(replica_set.spec)
    replica_set.facts.durability = durability
    for replica, source in zip(replica_set.replicas, sources, strict=True):
        replica_set.dialect.follow(replica, source)
    mark("servers")
    _connect(replica_set)
    mark("replication")
    replica_set.prove()
    mark("proof")
    replica_set.facts.seconds = {what: round(at - before, 3) for (_, before), (what, at) in pairwise(marks)}


def _certificates(directory: Path, links: tuple[EmulatedReplicationLink, ...]) -> CertificatePaths:
    addresses = [link.network.ends.server_address for link in links]
    return make_certificates(directory, (LOOPBACK_ADDRESS, SERVER_ADDRESS, *addresses))


def _durability(member: Member, spec: ReplicationSpec) -> dict[str, str]:
    """The settings that determine durability, as the server reports them. Raises LabError if they differ from the preset: a server may
    accept an option and ignore it."""
    found, requested = member.dialect.durability(member.ask, spec)
    mismatches = [
        f"{name} is {found.get(name)} instead of {value}"
        for name, value in requested.items()
        if found.get(name, "").lower() != value
    ]
    if mismatches:
        raise LabError(f"{member.name} is not as durable as asked ({spec.durability}): {'; '.join(mismatches)}")
    return found


def _connect(replica_set: ReplicaSet) -> None:
    """Turn replication on for all members, and wait until every replica replicates and, if requested, acknowledges."""
    primary = replica_set.primary
    timeout_s = replica_set.timeout_s
    replica_set.dialect.join(primary, replica_set.replicas, replica_set.spec, timeout_s)
    for replica in replica_set.replicas:
        replica_set.await_replicating(replica)
    if not replica_set.spec.semi_sync:
        return

    def clients() -> int:
        end = primary.primary_end()
        return 0 if end is None else end.clients

    def all_acknowledge() -> bool:
        return clients() >= replica_set.spec.replicas and all(
            replica.acknowledges() for replica in replica_set.replicas
        )

    wait_for(
        all_acknowledge,
        timeout_s,
        lambda: f"{clients()} of {replica_set.spec.replicas} replicas were there to acknowledge, and no more came",
    )


TIMEOUT_S = 60.0


def promote(replica: Member, timeout_s: float = TIMEOUT_S) -> Promotion:
    """Promote a replica: stop receiving, wait until all complete transactions are applied, detach it from its primary, make it
    writable. The primary may be dead or alive: the caller ensures that no client writes there.

    Raises LabError if it cannot be promoted; it is then left read-only and receives nothing more.
    """
    dialect, start_ns = replica.dialect, time.monotonic_ns()
    if replica.replica_state() is None:
        raise LabError(f"{replica.name} follows nobody: there is nothing to promote it from")
    unapplied = dialect.promote(replica, timeout_s)
    return Promotion(
        name=replica.name,
        position=replica.position(dialect.applied_sql),
        unapplied=unapplied,
        took_ns=time.monotonic_ns() - start_ns,
    )
