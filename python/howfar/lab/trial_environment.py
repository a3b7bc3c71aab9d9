"""The laboratory's `howfar.testbed.TrialEnvironment`: one path to the main server, and to auxiliary servers if a page uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from howfar.contract.messages import Observed, Receipt, RttResult, ServiceName, Target
from howfar.contract.receipt import IdleReceipt, TcpSettings, TrialReceipt
from howfar.contract.server_receipt import ServerReceipt
from howfar.contract.violation import Violation
from howfar.engine.process import Launcher
from howfar.lab.connected_server import ConnectedServer, ServerProof, view_receipt
from howfar.lab.counts import low_count_violations
from howfar.lab.link import Link
from howfar.lab.link.receipt import RUN_LIMITS, crossing_violations, limits_for_trial, link_receipt
from howfar.lab.server_group import ServerGroup
from howfar.lab.window import LabWindowWatch, WatchTargets
from howfar.services import SqlProtocol
from howfar.testbed import NO_FACTS, Application, CollectedReceipt, LoadFacts, ServiceEndpoint, Trust, WindowWatch

MAIN = "server"
"""Name and role of the main server in receipts."""


class IdleObserver(Protocol):
    """The part of `lab.idle.IdleWatch` that an environment uses."""

    def begin(self) -> None: ...
    def collect_receipt(self) -> IdleReceipt: ...


@dataclass
class LabTrialEnvironment:
    """One trial's servers and the path to them; implements `howfar.testbed.TrialEnvironment`."""

    target: Target
    protocol: SqlProtocol
    user: str
    password: str
    database: str
    client: Launcher
    observe: tuple[Observed, ...]
    trust: Trust | None
    server_group: ServerGroup
    main: ConnectedServer
    auxiliary_servers: tuple[ConnectedServer, ...]
    link: Link | None
    rtt_at_rest: RttResult | None
    """RTT of the link before the load; None without a link."""
    tcp: TcpSettings
    connections: int | None
    """Number of connections that the load opens; None if unknown."""
    targets: WatchTargets | None
    """The hosts, link and server that `watch` observes; None in a subclass with its own `watch`."""
    idle: IdleObserver
    fetches_server_key: bool = True
    application: Application | None = None

    @property
    def services(self) -> Mapping[ServiceName, ServiceEndpoint]:
        return {server.name: server.service_endpoint() for server in (self.main, *self.auxiliary_servers)}

    def reset_counters(self) -> None:
        self.idle.begin()
        if self.link is not None:
            self.link.counters(reset=True)
        for server in (self.main, *self.auxiliary_servers):
            server.mark_load_start()

    def watch(self, length_ns: int) -> WindowWatch:
        assert self.targets is not None, "a subclass without targets overrides `watch`"
        return self.server_group.watch(LabWindowWatch(self.targets, length_ns))

    def precheck(self, session: Receipt | None = None) -> CollectedReceipt:
        group_receipt = self.server_group.precheck()
        violations = [*self.main.mismatches(session), *group_receipt.violations]
        content = self.main.started.spec.content
        idle_receipt = self.idle.collect_receipt()
        receipt = TrialReceipt(
            server=ServerReceipt(session_view=view_receipt(self.main.view), content=content), idle=idle_receipt
        ).updated(group_receipt.receipt)
        if session is not None:  # without a session the load has not begun, and no halts have been counted
            violations += idle_receipt.violations()
        if self.link is not None and self.rtt_at_rest is not None:
            receipt.link = link_receipt(self.link, self.rtt_at_rest, self.link.counters(), self.tcp)
            violations += receipt.link.rtt_violations(RUN_LIMITS)
        return CollectedReceipt(receipt, tuple(violations))

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        # An application opens its own sessions, which are checked by the servers' reports; then there is no engine session.
        engine_sessions = {} if session is None or self.application is not None else {self.main.name: session}
        sessions = engine_sessions if load.sessions is None else load.sessions
        application_receipt = CollectedReceipt() if self.application is None else self.application.collect_receipt()
        group_receipt = self.server_group.collect_receipt(load)
        proof = self.main.collect_proof(sessions.get(self.main.name), load.commits, self.connections)
        if "content" not in proof.server.model_fields_set:  # a key-value store has none
            proof.server.content = self.main.started.spec.content
        idle_receipt = self.idle.collect_receipt()
        receipt = TrialReceipt(server=proof.server, idle=idle_receipt)
        receipt = receipt.updated(group_receipt.receipt).updated(application_receipt.receipt)
        if proof.forwarder is not None:
            receipt.forwarder = proof.forwarder
        violations = [
            *application_receipt.violations,
            *proof.violations,
            *group_receipt.violations,
            *idle_receipt.violations(),
        ]
        violations += low_count_violations(self.main.name, proof.metrics, load)
        metrics = proof.metrics - self.server_group.peer_traffic()
        for server in self.auxiliary_servers:
            auxiliary_proof = server.collect_proof(sessions.get(server.name))
            metrics += auxiliary_proof.metrics
            service_receipt, auxiliary_violations = _auxiliary_proof(server, auxiliary_proof, load)
            receipt.services = {**receipt.services, server.name: service_receipt}
            violations += auxiliary_violations
        if self.link is not None and self.rtt_at_rest is not None:
            stats = self.link.counters()
            receipt.link = link_receipt(self.link, self.rtt_at_rest, stats, self.tcp)
            violations += receipt.link.violations(limits_for_trial(load.round_trip_ns))
            if stats is not None:
                violations += crossing_violations(stats, metrics)
        return CollectedReceipt(receipt, tuple(violations))


def _auxiliary_proof(
    server: ConnectedServer, proof: ServerProof, load: LoadFacts
) -> tuple[ServerReceipt, tuple[Violation, ...]]:
    """Receipt and violations of one auxiliary server. The number of its connections is not checked, because a page may not use it."""
    receipt = proof.server
    if proof.forwarder is not None:
        receipt.forwarder = proof.forwarder
    violations = (each.at(server.name) for each in proof.violations)
    return receipt, (*violations, *low_count_violations(server.name, proof.metrics, load))


def observed_processes(
    main: ConnectedServer, auxiliary_servers: tuple[ConnectedServer, ...], link: Link | None
) -> tuple[Observed, ...]:
    """The processes that take part in the environment's replies, with their roles; their CPU time is recorded."""
    processes = [*main.observed_processes(MAIN)]
    for server in auxiliary_servers:
        processes += server.observed_processes(server.name)
    if link is not None and link.pid is not None:
        processes.append(Observed(role="link", pid=link.pid))
    return tuple(processes)
