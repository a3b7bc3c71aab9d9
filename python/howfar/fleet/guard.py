"""Keeps a cluster alive between commands: runs Ray's head in a sandbox on this machine, and sends heartbeats to each other host
over ssh.

`python -m howfar.fleet.guard DIRECTORY LIFELINE` reads its settings from stdin and runs until it is stopped, or until LIFELINE, a
descriptor, is closed without a message; `cluster.py` starts and stops it. If it is killed, heartbeats stop and the hosts clean up.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from howfar.errors import HowfarError
from howfar.fleet import node
from howfar.fleet.cluster import HOST_STATES, GuardSettings, HostState
from howfar.fleet.hosts_file import HostSpec
from howfar.fleet.node import HEARTBEAT_INTERVAL_S, NodeMessage, NodeSettings
from howfar.fleet.ship import python_command
from howfar.fleet.ssh import command_on
from howfar.lab import sandbox

_REJOIN_DELAY_S = 2.0
_JOIN_TIMEOUT_S = 900.0
"""After this time without a successful join, the guard no longer tries to join a host."""
_SIGTERM_COUNT = 5
"""Number of SIGTERMs, a second apart, before SIGKILL."""


def resources(name: str | None, host: HostSpec | None) -> dict[str, float]:
    """Return a host's Ray resources: its name and its roles; empty without a host."""
    if name is None or host is None:
        return {}
    return {f"host:{name}": 1.0, **{f"role:{role}": 1.0 for role in host.roles}}


class State:
    """Writes the state of each host to the file `state.json`, for the process that waits for the hosts."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self._file = directory / "state.json"
        self._lock = threading.Lock()
        self._state = {name: HostState(state="joining") for name in names}
        self.put()

    def put(self, name: str | None = None, state: HostState | None = None) -> None:
        """Set the state of a host, if one is given, and write the file."""
        with self._lock:
            if name is not None and state is not None:
                self._state[name] = state
            new_file = self._file.with_suffix(".new")
            new_file.write_bytes(HOST_STATES.dump_json(self._state, exclude_none=True))
            new_file.replace(self._file)


class _HostKeeper:
    """Joins a host, and joins it again whenever it is lost."""

    def __init__(self, name: str, host: HostSpec, settings: GuardSettings, token: str, state: State) -> None:
        self._name, self._host, self._state = name, host, state
        self._settings = NodeSettings(
            token=token,
            address=host.address,
            head=settings.address,
            first_port=settings.file.first_port,
            resources=resources(name, host),
        )
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._keep_joined, name=f"host-{name}", daemon=True).start()

    def send_heartbeat(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(b"\n")
                process.stdin.flush()

    def _keep_joined(self) -> None:
        last_joined_s = time.monotonic()
        while time.monotonic() - last_joined_s < _JOIN_TIMEOUT_S:
            if self._join_once():
                last_joined_s = time.monotonic()
            time.sleep(_REJOIN_DELAY_S)  # time for a host that restarts

    def _join_once(self) -> bool:
        """Join the host and wait until it is lost. Returns False if it never joined."""
        command = command_on(self._host, python_command(self._host, "-m howfar.fleet.node"))
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        started, reason = False, ""
        with contextlib.suppress(OSError):
            process.stdin.write(self._settings.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        self._process = process
        for line in process.stdout:
            message = parse_message(line)
            if message.started:
                started = True
                self._state.put(self._name, HostState(state="started"))
            reason = message.failed or reason
        reason = reason or process.stderr.read().decode(errors="replace").strip()[-300:] or "its connection ended"
        self._process = None
        process.kill()
        self._state.put(self._name, HostState(state="lost", why=reason))
        return started


def parse_message(line: bytes) -> NodeMessage:
    """Parse a host's message; returns an empty one for other output, such as a shell's greeting."""
    try:
        return NodeMessage.model_validate_json(line)
    except ValueError:
        return NodeMessage()


def _run_head(directory: Path) -> int:
    settings = GuardSettings.model_validate_json(sys.stdin.read())
    file, token = settings.file, secrets.token_hex(32)
    state = State(directory, list(file.hosts))
    local_name = next((name for name, host in file.hosts.items() if host.is_local), None)
    head = NodeSettings(
        token=token,
        address=settings.address,
        head=None,
        first_port=file.first_port,
        resources=resources(local_name, file.hosts.get(local_name or "")),
    )
    node.prepare(head)
    ray = node.start_ray(head)
    keepers = [
        _HostKeeper(name, host, settings, token, state) for name, host in file.hosts.items() if not host.is_local
    ]
    if local_name is not None:
        state.put(local_name, HostState(state="started"))
    threading.Thread(target=_send_heartbeats, args=(keepers,), name="heartbeat", daemon=True).start()
    node.watch(ray)
    state.put("head", HostState(state="lost", why=f"Ray's head ended: {node.read_last_error()}"))
    return 1


def _send_heartbeats(keepers: list[_HostKeeper]) -> None:
    while True:
        for keeper in keepers:
            keeper.send_heartbeat()
        time.sleep(HEARTBEAT_INTERVAL_S)


def _run_sandbox(lifeline: int) -> int:
    """Run the sandbox. This process has inherited the cluster's locked file `lock`, which shows that the cluster is up."""
    threading.Thread(target=_follow_lifeline, args=(lifeline,), name="lifeline", daemon=True).start()
    return sandbox.run_inside(network=False)


def _follow_lifeline(lifeline: int) -> None:
    """Wait for the message of the command that joins the hosts; if that command ends without a message, end this process too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if os.read(lifeline, 1):
        return
    for signal_number in (*[signal.SIGTERM] * _SIGTERM_COUNT, signal.SIGKILL):
        os.kill(os.getpid(), signal_number)
        time.sleep(1.0)


def main() -> int:
    directory = Path(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _run_head(directory) if sandbox.inside() else _run_sandbox(int(sys.argv[2]))
    except HowfarError as error:
        State(directory, []).put("head", HostState(state="lost", why=error.message))
        return error.exit_code
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
