"""The tap that records: an engine program that runs as long as the application, even if the process that started it has ended."""

from __future__ import annotations

from collections.abc import Iterator

from howfar.contract.messages import (
    Recorded,
    RecordEnded,
    RecordFinish,
    RecordFor,
    RecordJob,
    TapJob,
    TapReady,
    Target,
    TcpListen,
    UnixTarget,
)
from howfar.engine.null_server import listening_target
from howfar.engine.process import EngineProcess, Launcher

_DETACHED = Launcher(prefix=("setsid",))
"""Runs the tap in its own session, so that a terminal's signals and its hang-up do not reach the tap."""
_EXIT_TIMEOUT_S = 2.0


def start_tap(job: TapJob | RecordJob, launcher: Launcher) -> tuple[EngineProcess, Target]:
    """Start a tap and wait until it is ready. Returns the process and the address at which it listens."""
    process = EngineProcess(job, launcher)
    try:
        ready = process.read()
    except BaseException:
        process.kill()
        raise
    assert isinstance(ready, TapReady), "the first message of a tap is TapReady"
    return process, listening_target(job.listen, ready.port)


class RecordTap:
    """A running recorder. It ends with the last process that it serves, not with the process that started it."""

    def __init__(
        self,
        server: Target,
        listen: UnixTarget | TcpListen,
        launcher: Launcher | None = None,
        page_by: tuple[str, ...] = (),
    ) -> None:
        """`page_by`: the parts kept in the names of pages if the server's protocol is HTTP, as in `marks.parse_mark`."""
        detached = _DETACHED if launcher is None else Launcher((*_DETACHED.prefix, *launcher.prefix), launcher.pass_fds)
        job = RecordJob(listen=listen, server=server, page_by=page_by)
        self._process, self.address = start_tap(job, detached)

    @property
    def pid(self) -> int:
        return self._process.pid

    def serve(self, namespace: int) -> None:
        """Serve for as long as this mount namespace has a process."""
        self._process.send(RecordFor(namespace=namespace))

    def finish(self) -> None:
        """Ask the tap to send its last event, after which it only forwards."""
        self._process.send(RecordFinish())

    def events(self) -> Iterator[Recorded | RecordEnded]:
        """Yield all events, including the last. Raises EngineError if the tap died before that."""
        while True:
            event = self._process.read()
            assert isinstance(event, Recorded | RecordEnded), "a recorder sends no other events"
            yield event
            if isinstance(event, RecordEnded):
                return

    def leave(self, timeout_s: float = _EXIT_TIMEOUT_S) -> bool:
        """Detach from the tap. Returns True if it ended within `timeout_s`, because no process uses it."""
        return self._process.leave(timeout_s)
