"""Runs a server of the engine that does no work, for measurements of everything but a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from howfar.contract.ping_messages import NullJob, NullReady, TcpListen, TcpTarget, UnixTarget
from howfar.engine.process import EngineProcess, Launcher, bounded
from howfar.errors import EngineError

if TYPE_CHECKING:
    from howfar.contract.messages import AnswerJob

_START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class NullServer:
    """A running server that does no work."""

    target: UnixTarget | TcpTarget
    pid: int


def listening_target(listen: UnixTarget | TcpListen, port: int | None) -> UnixTarget | TcpTarget:
    """The address of an engine that listens at `listen`. `port`: the one that it reported; None on a Unix socket."""
    return listen if isinstance(listen, UnixTarget) else TcpTarget(host=listen.host, port=port or listen.port)


@contextmanager
def run_null_server(job: NullJob | AnswerJob, launcher: Launcher) -> Iterator[NullServer]:
    """Run a server until the context manager exits. Raises EngineError."""
    with EngineProcess(job, launcher) as process:
        with bounded(process, _START_TIMEOUT_S):
            ready = process.read()
        if not isinstance(ready, NullReady):
            raise EngineError(f"the null server reported {ready!r} before it was ready", "Please report this.")
        yield NullServer(listening_target(job.listen, ready.port), process.pid)
