"""The laboratory's `howfar.testbed.Stage`: one path to one server, and to further servers if a page uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from howfar.engine.messages import (
    Observed,
    RttResult,
    ServiceName,
)
from howfar.engine.process import Launcher
from howfar.lab.counts import counted_less
from howfar.lab.idle import idle_violations
from howfar.lab.link import Link
from howfar.lab.link.receipt import crossing_violations, link_receipt, link_violations, of_a_trial
from howfar.lab.reached import Reached, ServerProof, view_receipt
from howfar.lab.replication import Pair
from howfar.lab.serving import Serving
from howfar.lab.window import Scene, WindowWatch
from howfar.services import SqlProtocol
from howfar.testbed import NO_FACTS, Application, LoadFacts, ServiceEndpoint, StageReceipt, Trust
from howfar.testbed import WindowWatch as SeenWindow

MAIN = "server"
"""Name and role of the main server in receipts."""


class Idle(Protocol):
    """The part of `lab.idle.IdleWatch` that a stage uses."""

    def begin(self) -> None: ...
    def receipt(self) -> dict[str, Any]: ...


@dataclass
class LabStage:
    """The laboratory's stage; see `howfar.testbed.Stage`."""

    target: Any
    protocol: SqlProtocol
    user: str
    password: str
    database: str
    client: Launcher
    observe: tuple[Observed, ...]
    trust: Trust | None
    serving: Serving
    main: Reached
    companions: tuple[Reached, ...]
    link: Link | None
    at_rest: RttResult | None
    """RTT of the link before the load; None without a link."""
    tcp: dict[str, Any]
    """How the hosts' TCP was configured."""
    connections: int | None
    """Number of connections that the load opens; None if unknown."""
    scene: Scene | None
    """What `watch` observes from this machine; None if a subclass's `watch` works differently."""
    idle: Idle
    fetches_server_key: bool = True
    application: Application | None = None

    @property
    def services(self) -> Mapping[ServiceName, ServiceEndpoint]:
        return {one.name: one.service_endpoint() for one in (self.main, *self.companions)}

    @property
    def pair(self) -> Pair | None:
        return self.serving.pair

    def loading(self) -> None:
        self.idle.begin()
        if self.link is not None:
            self.link.counters(reset=True)
        for one in (self.main, *self.companions):
            one.count_from_here()

    def watch(self, length_ns: int) -> SeenWindow:
        assert self.scene is not None, "who has none watches otherwise"
        return self.serving.watch(WindowWatch(self.scene, length_ns))

    def begun(self, session: Mapping[str, Any] | None = None) -> StageReceipt:
        served = self.serving.begun()
        found = [*self.main.unlike(session), *served.violations]
        content = self.main.started.spec.content
        view = {"session_view": view_receipt(self.main.view), "content": content}
        idle = self.idle.receipt()
        receipt = {MAIN: view, **served.receipt, "idle": idle}
        found += () if session is None else idle_violations(idle)  # before the load nothing is counted yet
        if self.link is not None and self.at_rest is not None:
            stats = self.link.counters()
            receipt["link"] = link_receipt(self.link, self.at_rest, stats, self.tcp)
            found += link_violations(self.link, self.at_rest, None)
        return StageReceipt(receipt, tuple(found))

    def obtained(self, session: Mapping[str, Any], load: LoadFacts = NO_FACTS) -> StageReceipt:
        # The sessions of an application are taken from the servers' own reports.
        spoken = {self.main.name: session} if self.application is None else {}
        sessions = spoken if load.sessions is None else load.sessions
        applied = StageReceipt({}) if self.application is None else self.application.obtained()
        served = self.serving.obtained(load)
        proof = self.main.proof(sessions.get(self.main.name), load.commits, self.connections)
        content = self.main.started.spec.content
        idle = self.idle.receipt()
        receipt: dict[str, Any] = {MAIN: {"content": content, **proof.server}, **served.receipt, **applied.receipt}
        receipt["idle"] = idle
        if proof.forwarder is not None:
            receipt["forwarder"] = proof.forwarder
        found = [*applied.violations, *proof.violations, *served.violations, *idle_violations(idle)]
        found += _counted_less(self.main, proof, load)
        metrics = proof.metrics - self.serving.others()
        for one in self.companions:
            theirs = one.proof(sessions.get(one.name))
            metrics += theirs.metrics
            receipt.setdefault("services", {})[one.name], more = _companion_proof(one, theirs, load)
            found += more
        if self.link is not None and self.at_rest is not None:
            stats = self.link.counters()
            receipt["link"] = link_receipt(self.link, self.at_rest, stats, self.tcp)
            found += link_violations(self.link, self.at_rest, stats, of_a_trial(load.round_trip_ns))
            if stats is not None:
                found += crossing_violations(stats, metrics)
        return StageReceipt(receipt, tuple(found))


def _companion_proof(one: Reached, proof: ServerProof, load: LoadFacts) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Receipt and violations of one further server. Its connections depend on the page, which may not use it at all."""
    receipt = dict(proof.server)
    if proof.forwarder is not None:
        receipt["forwarder"] = proof.forwarder
    violations = (f"{one.name}: {sentence}" for sentence in proof.violations)
    return receipt, (*violations, *_counted_less(one, proof, load))


def _counted_less(one: Reached, proof: ServerProof, load: LoadFacts) -> tuple[str, ...]:
    return tuple(f"{one.name}: {sentence}" for sentence in counted_less(one.name, proof.metrics, load))


def observed(main: Reached, companions: tuple[Reached, ...], link: Link | None) -> tuple[Observed, ...]:
    """Processes that spend CPU time on the stage's answers, by role."""
    found = [*main.observed(MAIN)]
    for one in companions:
        found += one.observed(one.name)
    if link is not None and link.pid is not None:
        found.append(Observed(role="link", pid=link.pid))
    return tuple(found)
