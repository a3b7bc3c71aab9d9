"""What a Unix socket saves on this machine against TCP by the loopback interface: the same request to a made server, over both."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from howfar.distance.session import Server, ping_session
from howfar.engine.messages import Listen, NullJob, NullReady, Opened, Session, Target, TcpListen, TcpTarget, UnixTarget
from howfar.engine.process import EngineProcess

_ROUNDS = 150
_LIMIT_NS = 2_000_000_000


def socket_saving_ns() -> int | None:
    """The median difference of a request, never negative; None: it could not be measured. Raises EngineError."""
    made = Server(
        service="mysql", shown="", host=None, port=None, socket=None, user="howfar", password="", database="howfar",
        session=Session(multi_statements=False), verified="",
    )  # fmt: skip
    medians = []
    with tempfile.TemporaryDirectory(prefix="howfar-") as folder:
        ends: tuple[Listen, ...] = (UnixTarget(path=str(Path(folder) / "s")), TcpListen(host="127.0.0.1"))
        for end in ends:
            with EngineProcess(NullJob(listen=end)) as server:
                ready = server.read()
                assert isinstance(ready, NullReady), "it says where it listens"
                with ping_session(made, _target(end, ready), _LIMIT_NS) as session:
                    if not isinstance(session.open(), Opened):
                        return None
                    asked = session.ask([("SELECT 1",)], _ROUNDS, _LIMIT_NS)
                    medians.append(statistics.median(asked.latencies_ns[0]))
    by_socket, by_tcp = medians
    return max(round(by_tcp - by_socket), 0)


def _target(end: Listen, ready: NullReady) -> Target:
    if isinstance(end, UnixTarget):
        return end
    assert ready.port is not None, "TCP has a port"
    return TcpTarget(host="127.0.0.1", port=ready.port)
