"""A stage as the laboratory gives it: one path to one server, open, with all that a receipt is made of. See `stage.Stage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howfar.engine.messages import Observed, RttResult, TcpTarget
from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab.certificates import KEY_TYPE
from howfar.lab.forked import ForkWatch, fork_violations
from howfar.lab.link import Link
from howfar.lab.link_receipt import crossing_violations, link_receipt, link_violations, of_a_trial
from howfar.lab.paths import Way, session_violations, view_receipt, view_violations
from howfar.lab.replication import Pair
from howfar.lab.servers import CertificatePaths, Server
from howfar.lab.serving import Serving
from howfar.lab.stage import NO_FACTS, LoadFacts, Obtained, Trust
from howfar.lab.stage import WindowWatch as SeenWindow
from howfar.lab.window import Scene, WindowWatch
from howfar.plan.sessions import SessionAsked

FORWARDER_PLACES = ("server_side", "client_side")
"""In the order of a way's forwarders."""


@dataclass
class LabStage:
    """See `stage.Stage`."""

    target: Any
    user: str
    password: str
    database: str
    client: Launcher
    observe: tuple[Observed, ...]
    way: Way
    asked: SessionAsked
    trust: Trust | None
    serving: Serving
    link: Link | None
    at_rest: tuple[RttResult, ...]
    """Each probe before the load; none without a link."""
    tcp: dict[str, Any]
    """What the hosts' TCP was told."""
    view: dict[str, Any]
    before: dict[str, int]
    forks: ForkWatch
    connections: int | None
    """How many the load opens; None: whatever it likes."""
    scene: Scene

    @property
    def pair(self) -> Pair | None:
        return self.serving.pair

    def watch(self, length_ns: int) -> SeenWindow:
        return self.serving.watch(WindowWatch(self.scene, length_ns))

    def begun(self, session: Mapping[str, Any] | None = None) -> Obtained:
        served = self.serving.begun()
        found = [*view_violations(self.way, self.view, self.asked), *served.violations]
        if session is not None:
            found += session_violations(self.way, session, self.asked)
        receipt = {"server": {"session_view": view_receipt(self.view), "content": self.asked.content}, **served.receipt}
        if self.link is not None:
            stats = self.link.counters()
            receipt["link"] = link_receipt(self.link, self.at_rest, stats, self.tcp)
            found += link_violations(self.link, self.at_rest, None)
        return Obtained(receipt, tuple(found))

    def obtained(self, session: Mapping[str, Any], load: LoadFacts = NO_FACTS) -> Obtained:
        found = [*session_violations(self.way, session, self.asked), *view_violations(self.way, self.view, self.asked)]
        served = self.serving.obtained(load)
        facts, unlike = self.serving.running.receipt(self.before, load.commits)
        found += [*unlike, *served.violations]
        receipt: dict[str, Any] = {
            "server": {"content": self.asked.content, **facts, "session_view": view_receipt(self.view)},
            **served.receipt,
        }
        if self.trust is not None:
            receipt["server"]["certificate"] = KEY_TYPE
        if self.way.forwarders:
            most = self.forks.finish()
            receipt["forwarder"] = {**self.way.forwarder_facts, "processes_most": most, "connections": self.connections}
            found += fork_violations(most, self.connections)
            dead = [forwarder.pid for forwarder in self.way.forwarders if not forwarder.alive()]
            if dead:
                raise LabError(f"a forwarder (process {dead[0]}) died during the trial", "See if memory ran out.")
        if self.link is not None:
            stats = self.link.counters()
            receipt["link"] = link_receipt(self.link, self.at_rest, stats, self.tcp)
            found += link_violations(self.link, self.at_rest, stats, of_a_trial(load.turn_ns))
            if stats is not None:
                others = self.serving.others_bytes()
                counters = {name: count - others.get(name, 0) for name, count in facts["counters"].items()}
                found += crossing_violations(stats, counters)
        return Obtained(receipt, tuple(found))


def trust(certificates: CertificatePaths, way: Way) -> Trust:
    """Over a socket, forwarded or not, the server has no address."""
    name = way.target.host if isinstance(way.target, TcpTarget) else "localhost"
    return Trust(str(certificates.ca), name)


def observed(running: Server, way: Way, link: Link | None) -> tuple[Observed, ...]:
    found = [Observed(role="server", pid=running.pid)]
    found += [Observed(role="forwarder", pid=forwarder.pid) for forwarder in way.forwarders]
    if link is not None and link.pid is not None:
        found.append(Observed(role="link", pid=link.pid))
    return tuple(found)
