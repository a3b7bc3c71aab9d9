"""The context for opening a path to a server on another host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from howfar.fleet.remote import RemoteHost, RemoteLauncher, RemoteObject, RemoteProcess
from howfar.fleet.serving import RemoteServer
from howfar.lab.connected_server import (
    BasePathContext,
    HopWatch,
    count_processes,
    tcp_bytes,
    write_private_file,
)
from howfar.lab.network import Host, Shares
from howfar.lab.sandbox import as_other_user
from howfar.lab.servers import CertificatePaths
from howfar.lab.servers.kinds import KINDS
from howfar.lab.sockets import listens
from howfar.paths import Hop, PathProcess
from howfar.paths.path import Side


@dataclass(frozen=True, kw_only=True)
class HostsContext(BasePathContext):
    """See `howfar.paths.PathContext`."""

    client: RemoteHost
    server: RemoteHost
    hop: RemoteHost | None
    """The separate host of the path's program; None if the program runs on the client's or the server's host."""
    shares: Mapping[str, Shares]
    work: Path

    def _host(self, side: Side) -> RemoteHost:
        if side == "hop":
            assert self.hop is not None, "a path uses the side `hop` only if there is a `hop_address`"
            return self.hop
        return self.client if side == "client" else self.server

    def run_on(self, side: Side, function: Callable[[], Any]) -> Any:
        return self._host(side).within(function)

    def write(self, side: Side, name: str, text: str) -> Path:
        return self._host(side).within(write_private_file, self.work / name, text)

    def certificates(self) -> CertificatePaths:
        """Return the paths of the certificates: the authority's on both hosts, the server's and its key on the server's host."""
        running = cast(RemoteServer, self.running)
        server_paths, ca_path = running.certificates(), self.work / "ca.pem"
        for host in (self.client, self.server):
            host.within(ca_path.write_bytes, running.ca_certificate())
        return CertificatePaths(ca_path, server_paths.certificate, server_paths.key)

    def tcp_bytes(self, port: int) -> Mapping[str, int]:
        return self.server.within(tcp_bytes, Host("server", None), port)

    @property
    def hop_port(self) -> int:
        return KINDS[self.running.kind].port + 20_001

    @property
    def hop_address(self) -> str | None:
        return None if self.hop is None else self.hop.spec.address

    @property
    def client_address(self) -> str:
        return self.client.spec.address

    @property
    def server_address(self) -> str:
        return self.server.spec.address

    def start(self, side: Side, command: Sequence[str], log: str, *, as_user: int = 0) -> PathProcess:
        """Start a program that is installed on the host."""
        host = self._host(side)
        share = self.shares[host.name]
        launcher = host.launcher(share.client if side == "client" else share.server)
        assert isinstance(launcher, RemoteLauncher)
        process = launcher.background(as_other_user(command, as_user) if as_user else command, self.work / log)
        self.stack.callback(process.end)
        return process

    def read_log(self, process: PathProcess, log: str) -> str:
        return str(cast(RemoteProcess, process).remote_object.call("log"))

    def listens(self, process: PathProcess, port_or_socket: int | Path) -> bool:
        return cast(RemoteProcess, process).remote_object.host.within(listens, process.pid, port_or_socket)

    def watch_hops(self, hops: Sequence[Hop]) -> _RemoteHopWatch:
        by_host: dict[str, tuple[RemoteHost, dict[str, int]]] = {}
        for hop in hops:
            if hop.forks:
                host = cast(RemoteProcess, hop.process).remote_object.host
                by_host.setdefault(host.name, (host, {}))[1][hop.label] = hop.process.pid
        watches = [host.create(_HostedHopWatch, pids, called="hops") for host, pids in by_host.values()]
        readers = {hop.label: hop.count_connections for hop in hops if hop.count_connections is not None}
        return _RemoteHopWatch(watches, HopWatch(readers, _POLL_INTERVAL_S))


_POLL_INTERVAL_S = 0.25
"""Interval between polls by the driver; each poll costs the host about a millisecond."""


class _HostedHopWatch(HopWatch):
    """Runs on a host: counts the processes of its hops, by process ID."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        super().__init__({label: partial(count_processes, pid) for label, pid in pids.items()})

    def close(self) -> None:
        self.finish()


@dataclass
class _RemoteHopWatch:
    """A `connected_server.HopObserver` over all hosts."""

    watches: list[RemoteObject]
    own_counts: HopWatch
    """Polls programs that report their number of connections."""
    _counts: dict[str, dict[str, int]] | None = None

    def finish(self) -> dict[str, dict[str, int]]:
        if self._counts is None:
            self._counts = self.own_counts.finish()
            for watch in self.watches:
                self._counts |= watch.call("finish")
                watch.drop()
        return self._counts
