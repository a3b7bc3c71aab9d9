"""A server on another host, and the path to it: the context that a path is opened with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from howfar.errors import PlanError
from howfar.fleet.remote import Held, RemoteHost, RemoteLauncher, RemoteProcess
from howfar.fleet.serving import WORK
from howfar.lab.network import Shares
from howfar.lab.reached import HopWatch, OpenContext, processes
from howfar.lab.servers import CertificatePaths
from howfar.lab.servers.kinds import KINDS
from howfar.lab.sockets import listens
from howfar.paths import Hop, Process
from howfar.paths.path import Side


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, kw_only=True)
class HostsContext(OpenContext):
    """See `howfar.paths.PathContext`."""

    client: RemoteHost
    server: RemoteHost
    shares: Mapping[str, Shares]

    @property
    def work(self) -> Path:
        return WORK

    def within(self, side: Side, function: Callable[[], Any]) -> Any:
        raise PlanError("a hop's counters are not asked for on another host yet")

    def certificates(self) -> CertificatePaths:
        raise PlanError("a hop that encrypts has its certificates on one host yet")

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        raise PlanError("what the kernel knows of a hop's connections is not asked of another host yet")

    @property
    def hop_port(self) -> int:
        return KINDS[self.running.kind].port + 20_001

    @property
    def client_address(self) -> str:
        return self.client.spec.address

    @property
    def server_address(self) -> str:
        return self.server.spec.address

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> Process:
        """Start a program that the host itself provides."""
        host = self.client if side == "client" else self.server
        share = self.shares[host.name]
        launcher = host.launcher(share.client if side == "client" else share.server)
        assert isinstance(launcher, RemoteLauncher)
        process = launcher.background([Path(command[0]).name, *command[1:]], WORK / log)
        self.ledger.callback(process.end)
        return process

    def log_of(self, process: Process, log: str) -> str:
        return str(cast(RemoteProcess, process).held.call("log"))

    def listens(self, process: Process, at: int | Path) -> bool:
        return cast(RemoteProcess, process).held.host.within(listens, process.pid, at)

    def output(self, side: Side, command: Sequence[str]) -> str:
        return (self.client if side == "client" else self.server).within(_output, [Path(command[0]).name, *command[1:]])

    def watch_hops(self, hops: Sequence[Hop]) -> _Hops:
        by_host: dict[str, dict[str, int]] = {}
        hosts = {self.client.name: self.client, self.server.name: self.server}
        for hop in hops:
            if hop.forks:
                host = cast(RemoteProcess, hop.process).held.host
                by_host.setdefault(host.name, {})[hop.label] = hop.process.pid
        return _Hops([hosts[name].hold(_HeldHops, pids, called="hops") for name, pids in by_host.items()])


class _HeldHops(HopWatch):
    """Hops on a host, by process id."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        super().__init__({label: partial(processes, pid) for label, pid in pids.items()})

    def close(self) -> None:
        self.finish()


@dataclass
class _Hops:
    """A `reached.HopCount` over all hosts."""

    held: list[Held]
    _found: dict[str, dict[str, int]] | None = None

    def finish(self) -> dict[str, dict[str, int]]:
        if self._found is None:
            self._found = {}
            for one in self.held:
                self._found |= one.call("finish")
                one.drop()
        return self._found
