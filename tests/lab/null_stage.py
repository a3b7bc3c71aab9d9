"""An environment whose server answers every statement with prepared bytes, so that any client is the bottleneck."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    NullJob,
    NullReady,
    Observed,
    Receipt,
    ServiceName,
    TcpListen,
    TcpTarget,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.lab.laboratory import Lab
from howfar.lab.window import LabWindowWatch, WatchTargets
from howfar.plan.factors import Level
from howfar.services import SqlProtocol
from howfar.testbed import NO_FACTS, CollectedReceipt, LoadFacts, ServiceEndpoint, Trust

ADDRESS = "127.0.0.1"


@dataclass
class NullStage:
    """See `howfar.testbed.TrialEnvironment`."""

    target: Any
    client: Launcher
    observe: tuple[Observed, ...]
    targets: WatchTargets
    trust: Trust | None = None
    fetches_server_key: bool = True
    services: Mapping[ServiceName, ServiceEndpoint] = field(default_factory=dict)
    protocol: SqlProtocol = "mysql"
    user: str = "null"
    password: str = ""
    database: str = "null"
    application: None = None
    pair: None = None

    def reset_counters(self) -> None:
        pass

    def watch(self, length_ns: int) -> LabWindowWatch:
        return LabWindowWatch(self.targets, length_ns)

    def precheck(self, session: Receipt | None = None) -> CollectedReceipt:
        return CollectedReceipt()

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        return CollectedReceipt()


@dataclass
class NullLaboratory:
    """Another laboratory's hosts with a null server in place of its own."""

    real: Lab
    reply_bytes: int

    def server(self) -> tuple[str, str]:
        return "null", "0"

    def begin_block(self, block: int) -> None:
        pass

    def environment(self) -> RunEnvironment:
        return self.real.environment()

    @contextmanager
    def trial_environment(self, factors: Mapping[str, Level]) -> Iterator[NullStage]:
        """An environment on the loopback of the server's host, whatever the factors."""
        host, shares = self.real.server_host, self.real.shares
        job = NullJob(listen=TcpListen(host=ADDRESS), threads=len(shares.server), reply_bytes=self.reply_bytes)
        with EngineProcess(job, host.launcher(shares.server)) as server:
            ready = server.read()
            assert isinstance(ready, NullReady) and ready.port is not None
            yield NullStage(
                target=TcpTarget(host=ADDRESS, port=ready.port),
                client=host.launcher(shares.client),
                observe=(Observed(role="server", pid=server.pid),),
                targets=WatchTargets(host, host, ready.port, None, dict),
            )
