"""A primary and its replicas: sets up data, servers and replication, and proves that they replicate before any measurement.

Replicas and primary start with copies of the same loaded template, before any of them writes, so their histories are empty and equal.
Their hosts and links, which outlive a replica set, are in `links.py`.
"""

from __future__ import annotations

import secrets
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from howfar.contract.receipt import ReplicationReceipt
from howfar.contract.replication_receipt import (
    ChannelFacts,
    ReplicaFacts,
    ReplicaState,
    ReplicationWindow,
    Snapshot,
)
from howfar.contract.violation import join_sentences
from howfar.errors import LabError, NotAsConfigured, PlanError, ServerCrashed
from howfar.experiments.replication.lab.dialect import (
    SCHEMA,
    Promotion,
    ReplicationDialect,
    Seed,
    Source,
    replication_dialect,
)
from howfar.experiments.replication.lab.links import (
    EmulatedReplicationLink,
    ReplicaSetContext,
    ReplicationLink,
    ReplicationSpec,
    node_address,
)
from howfar.experiments.replication.lab.member import Member, start_member, wait_for
from howfar.experiments.replication.lab.proof import (
    FILLING,
    sent_bytes,
)
from howfar.lab.cache import cache_home, file_system_of
from howfar.lab.certificates import make_certificates
from howfar.lab.network import LOOPBACK_ADDRESS, SERVER_ADDRESS
from howfar.lab.servers import CertificatePaths, ServerContext, Tables
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED_TEMPLATES

_TIMEOUT_ROUND_TRIPS = 60
"""Round trips for which an action's time limit allows. Connecting, catching up and the proof take about a third of them."""


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
    """Facts for the receipt: about the setup, and from the servers."""

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.primary, *self.replicas)

    @property
    def peers(self) -> tuple[ReplicationLink, ...]:
        """The links between the replicas of a cluster."""
        return self.links[len(self.replicas) :]

    def member_names(self, link: ReplicationLink) -> tuple[str, ...]:
        """Names of the two members that a link connects. A link between replicas is named after both, any other link after its
        replica."""
        names = tuple(link.name.split("-"))
        return names if len(names) > 1 else (self.primary.name, *names)

    def external_links(self, members: Iterable[Member]) -> tuple[ReplicationLink, ...]:
        """The links between one of `members` and any other member."""
        names = {member.name for member in members}
        return tuple(link for link in self.links if len(names & set(self.member_names(link))) == 1)

    @property
    def timeout_s(self) -> float:
        """Time limit of an action that needs several round trips, in seconds."""
        return self.base_timeout_s + _TIMEOUT_ROUND_TRIPS * max((link.rtt_ns for link in self.links), default=0) / 1e9

    def snapshot(self) -> Snapshot:
        """The state of all members now. Raises ServerCrashed, LabError."""
        position = self.primary.query_position(self.dialect.position_sql)
        return Snapshot(
            position=position,
            primary=self.primary.read_primary_end(),
            replicas=tuple(self._replica_facts(replica, position) for replica in self.replicas),
            nodes=tuple(node for member in self.members if (node := member.read_node_facts()) is not None),
            sent=sent_bytes(self.links[: len(self.replicas)]),
            broken=self._unreported_failures(),
        )

    def _unreported_failures(self) -> tuple[str, ...]:
        """Failures that the servers do not report: dead links, full disks."""
        dead = [f"the link of {link.name} had died" for link in self.links if not link.alive()]
        full = [
            f"{member.name} had {free_space}" for member in self.members if (free_space := member.describe_full_disk())
        ]
        return (*dead, *full)

    def _replica_facts(self, replica: Member, position: str) -> ReplicaFacts:
        state = _read_state(replica)
        applied, replica_history = (
            replica.query_position(self.dialect.applied_sql),
            replica.query_position(self.dialect.state_sql),
        )
        primary_history, primary_origin = (
            self.primary.query_position(sql) for sql in (self.dialect.state_sql, self.dialect.origin_sql)
        )
        return ReplicaFacts(
            name=replica.name,
            state=state,
            semi_sync=replica.acknowledges(),
            applied=applied,
            behind=self.dialect.positions.count_missing(position, applied),
            errant=self.dialect.positions.errant_transactions(replica_history, primary_history, primary_origin),
        )

    def wait_until_replicating(self, replica: Member) -> None:
        """Wait until the replica receives and applies. Raises LabError with the replica's own errors."""

        def is_replicating() -> bool:
            state = _read_state(replica)
            if state.applying != "Yes" or (state.receiving == "No" and state.errors):
                _raise_cannot_replicate(replica, state)
            return state.receiving == "Yes"

        def describe_failure() -> str:
            return f"{replica.name} did not begin to replicate ({'; '.join(_read_state(replica).errors) or 'no error'})"

        wait_for(is_replicating, self.timeout_s, describe_failure, "Is its link cut, or the machine overloaded?")

    def wait_until_caught_up(self, replica: Member) -> None:
        """Wait until the replica has applied everything that the primary has committed by now. Raises LabError."""
        target = self.primary.query_position(self.dialect.position_sql)

        def count_missing() -> int:
            return self.dialect.positions.count_missing(target, replica.query_position(self.dialect.applied_sql))

        def has_caught_up() -> bool:
            state = _read_state(replica)
            if state.applying != "Yes":
                _raise_cannot_replicate(replica, state)
            return count_missing() == 0

        def describe_failure() -> str:
            failures = "".join(f"; {failure}" for failure in self._unreported_failures())
            return f"{replica.name} lacks {count_missing()} transactions and did not catch up{failures}"

        wait_for(has_caught_up, self.timeout_s, describe_failure, "Is its link cut, or the machine overloaded?")

    def prove(self) -> Snapshot:
        """Prove that replication works, before any other client connects: a row that is written on the primary can be read on every
        replica, both ends report the requested settings, and the bytes on the links agree with them. Raises LabError."""
        primary_links = self.links[: len(self.replicas)]
        before, bytes_before = self.snapshot(), sent_bytes(primary_links)
        word = secrets.token_hex(8)
        self.primary.write(self.dialect.marker_sql(word, FILLING), timeout_s=self.timeout_s)
        for replica in self.replicas:
            self.wait_until_caught_up(replica)
            rows = replica.query(f"SELECT word FROM {SCHEMA}.marker WHERE id = 1")
            if [row["word"] for row in rows] != [word]:
                raise LabError(f"{replica.name} says that it has all of its primary, and lacks a row of it")
        after, sent = self.snapshot(), sent_bytes(primary_links)
        wire_bytes = {name: sent[name] - bytes_before[name] for name in sent}
        channel = ChannelFacts(
            tls_handshakes=self.dialect.count_tls_handshakes(self.primary.query),
            row_bytes=len(FILLING),
            wire_bytes=wire_bytes,
        )
        self.facts.channel = channel
        window = ReplicationWindow.between(before, after)
        problems = (*window.violations(self.spec, commits=1), *channel.violations(self.spec))
        if problems:
            raise NotAsConfigured(f"replication is not what was asked: {join_sentences(problems)}")
        return after


def _read_state(replica: Member) -> ReplicaState:
    state = replica.read_replica_state()
    if state is None:
        raise LabError(f"{replica.name} follows nobody")
    return state


def _raise_cannot_replicate(replica: Member, state: ReplicaState) -> NoReturn:
    reason = "; ".join(state.errors) or f"receiving {state.receiving}, applying {state.applying}, and no error"
    raise LabError(
        f"{replica.name} cannot replicate: {reason}", "Its data and its primary's must have the same origin."
    )


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
    """Start a replica set, with a replica at each of the first `spec.replicas` links, and prove that it replicates. Call it in the
    sandbox, one replica set at a time. Leaving the context removes everything, also after a partial failure. `encrypted`: whether the
    load's clients use TLS; replicas do so independently.

    Raises PlanError, LabError, ServerCrashed.
    """
    check_supported(spec, replication_dialect(program.kind, spec.mode))
    assert len(links) >= spec.replicas, "each replica has its own link"
    with ExitStack() as stack:
        directory = stack.enter_context(_data_directory(context))
        used_links = tuple(
            link for link in links if link.nodes[1] <= spec.replicas and (spec.cluster or not link.nodes[0])
        )
        yield _start_members(directory, context, program, tables, spec, used_links, encrypted, stack)


def check_supported(spec: ReplicationSpec, dialect: ReplicationDialect) -> None:
    """Check a request. Raises PlanError if it makes no sense on any server, or if this kind of server does not support it."""
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
    """Start the members with equal data on the laboratory's hosts, then join them to a replica set."""
    dialect = replication_dialect(program.kind, spec.mode)
    addresses = (LOOPBACK_ADDRESS, SERVER_ADDRESS, *(link.network.ends.server_address for link in links))
    certificates = make_certificates(directory, addresses) if spec.tls or encrypted else None
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
        member = start_member(seed, server_context, program, tables)
        stack.callback(member.stop)
        members.append(member)
    primary, *replicas = members
    replica_set = ReplicaSet(
        spec, dialect, primary, tuple(replicas), links, context.timeout_s, certificates=certificates
    )
    replica_set.facts.replica_cpus = list(context.replica_cpus)
    replica_set.facts.data_file_system = file_system_of(directory)
    join_members(replica_set, sources)
    return replica_set


def join_members(replica_set: ReplicaSet, sources: Sequence[Source]) -> None:
    """Wait until the started members are ready, make each replica follow the primary, and prove the replica set. `sources`: the
    primary as each replica connects to it. Raises LabError, ServerCrashed."""
    step_ends = [("", time.monotonic())]

    def end_step(name: str) -> None:
        step_ends.append((name, time.monotonic()))

    for member in replica_set.members:
        try:
            member.server.become_ready()
        except ServerCrashed as error:
            templates = cache_home() / LOADED_TEMPLATES
            damaged = f"If its log mentions damaged files, remove {templates}: everything in it is created again."
            raise ServerCrashed(
                f"{member.name} does not start: {error.message}", f"{error.advice} {damaged}"
            ) from error
    durability = {member.name: _durability(member, replica_set.spec) for member in replica_set.members}
    replica_set.facts.requested = replica_set.spec.with_defaults()
    replica_set.facts.durability = durability
    for replica, source in zip(replica_set.replicas, sources, strict=True):
        replica_set.dialect.follow(replica, source)
    end_step("servers")
    _connect(replica_set)
    end_step("replication")
    replica_set.prove()
    end_step("proof")
    replica_set.facts.seconds = {name: round(end_s - start_s, 3) for (_, start_s), (name, end_s) in pairwise(step_ends)}


def _durability(member: Member, spec: ReplicationSpec) -> dict[str, str]:
    """The settings that determine durability, as the server reports them. Raises LabError if they differ from the preset: a server may
    accept an option and ignore it."""
    reported, requested = member.dialect.read_durability(member.query, spec)
    mismatches = [
        f"{name} is {reported.get(name)} instead of {value}"
        for name, value in requested.items()
        if reported.get(name, "").lower() != value
    ]
    if mismatches:
        raise LabError(f"{member.name} is not as durable as asked ({spec.durability}): {'; '.join(mismatches)}")
    return reported


def _connect(replica_set: ReplicaSet) -> None:
    """Turn replication on for all members, and wait until every replica replicates and, if requested, acknowledges."""
    primary = replica_set.primary
    timeout_s = replica_set.timeout_s
    replica_set.dialect.join(primary, replica_set.replicas, replica_set.spec, timeout_s)
    for replica in replica_set.replicas:
        replica_set.wait_until_replicating(replica)
    if not replica_set.spec.semi_sync:
        return

    def count_clients() -> int:
        end = primary.read_primary_end()
        return 0 if end is None else end.clients

    def all_acknowledge() -> bool:
        return count_clients() >= replica_set.spec.replicas and all(
            replica.acknowledges() for replica in replica_set.replicas
        )

    wait_for(
        all_acknowledge,
        timeout_s,
        lambda: (
            f"{count_clients()} of {replica_set.spec.replicas} replicas were there to acknowledge, and no more came"
        ),
    )


PROMOTION_TIMEOUT_S = 60.0


def promote(replica: Member, timeout_s: float = PROMOTION_TIMEOUT_S) -> Promotion:
    """Promote a replica: stop receiving, wait until all complete transactions are applied, detach it from its primary, and make it
    writable. The primary may be dead or alive; the caller ensures that no client writes there. Raises LabError if the replica cannot
    be promoted; it then stays read-only and receives nothing more."""
    dialect, start_ns = replica.dialect, time.monotonic_ns()
    if replica.read_replica_state() is None:
        raise LabError(f"{replica.name} follows nobody: there is nothing to promote it from")
    unapplied = dialect.promote(replica, timeout_s)
    return Promotion(
        name=replica.name,
        position=replica.query_position(dialect.applied_sql),
        unapplied=unapplied,
        took_ns=time.monotonic_ns() - start_ns,
    )
