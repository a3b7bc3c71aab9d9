"""`forwarded-socket`: the server's Unix socket carried to the client's host by a socat on each; the server has no network.

socat starts one process a connection on each side: that price belongs to the path and is counted with it.
"""

from __future__ import annotations

import re
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from howfar.engine.messages import UnixTarget
from howfar.engine.process import Launcher
from howfar.errors import LabError, MissingError
from howfar.lab.hosts import Companion
from howfar.lab.network import SERVER_ADDRESS
from howfar.lab.paths import Terrain, Way
from howfar.lab.sockets import listening_ports

_READY_TIMEOUT_S = 10.0
_POLL_S = 0.003


class ForwardedSocketPath:
    NAME = "forwarded-socket"
    LOCAL = False
    NETWORKING = False
    SOCKET = True
    LINK = True

    @staticmethod
    def open_way(terrain: Terrain, ledger: ExitStack) -> Way:
        near = terrain.work / "forward.sock"
        near.unlink(missing_ok=True)
        to_server = [
            "socat",
            f"TCP-LISTEN:{terrain.port},reuseaddr,fork,backlog=1024",
            f"UNIX-CONNECT:{_escaped(terrain.running.socket)}",
        ]
        to_client = [
            "socat",
            f"UNIX-LISTEN:{_escaped(near)},fork,reuseaddr,unlink-early,backlog=1024",
            f"TCP:{SERVER_ADDRESS}:{terrain.port}",
        ]
        far_end = _start(terrain.server, to_server, terrain.work / "socat-server.log", ledger)
        near_end = _start(terrain.client, to_client, terrain.work / "socat-client.log", ledger)
        _await(far_end, terrain.work / "socat-server.log", lambda: terrain.port in listening_ports(far_end.pid))
        _await(near_end, terrain.work / "socat-client.log", lambda: _is_socket(near))
        return Way(
            target=UnixTarget(path=str(near)),
            connection={"socket": str(near)},
            forwarders=(far_end, near_end),
            peer_pid=near_end.pid,
            seen_from="localhost",
            forwarder_facts={
                "program": _version(),
                "port": terrain.port,
                "server_side": " ".join(to_server),
                "client_side": " ".join(to_client),
            },
        )


def _escaped(path: Path) -> str:
    """As socat wants a name in which it finds characters of its own language."""
    return re.sub(r"([\\,:!\"'(\[{])", r"\\\1", str(path))


def _start(launcher: Launcher, command: Sequence[str], log: Path, ledger: ExitStack) -> Companion:
    try:
        with log.open("wb") as file:
            companion = Companion(launcher, command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    except FileNotFoundError as error:
        raise MissingError(f"starting {command[0]} failed: {error}", "Install socat.") from error
    ledger.callback(companion.end)
    return companion


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _await(companion: Companion, log: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while True:
        if not companion.alive():
            said = log.read_text(errors="replace").strip()[-500:]
            raise LabError(f"socat ended at start: {said or 'it said nothing'}", "Is socat installed?")
        if ready():
            return
        if time.monotonic() > deadline:
            raise LabError(f"socat was not ready within {_READY_TIMEOUT_S:.0f} s", "Is the machine overloaded?")
        time.sleep(_POLL_S)


@cache
def _version() -> str:
    said = subprocess.run(["socat", "-V"], capture_output=True, text=True).stdout
    return next((line for line in said.splitlines() if line.startswith("socat version")), "socat").strip()
