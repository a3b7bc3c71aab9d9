"""Start, enter and stop a cluster of hosts. Its guard is a separate process that outlives the command that started it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from howfar.errors import HowfarError, LabError, UsageError
from howfar.fleet.hosts_file import HostsFile, read_hosts
from howfar.fleet.node import preload, ray_environment
from howfar.fleet.ship import bring, ray_version
from howfar.lab.cache import cache_home
from howfar.lab.kernel import die_with_parent
from howfar.lab.sandbox import children_of

INSIDE = "HOWFAR_HOSTS_INSIDE"
"""In the environment of a command that runs where Ray's head does."""
_KILLED = (1, 137)
_UP_S = 120.0
_DOWN_S = 10.0
_POLL_S = 0.05
_ENDS_S = 2.0
"""A guard may take so long to end after the head whose end has killed a command."""


class GuardSettings(BaseModel):
    """What `guard.py` reads from its stdin."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: HostsFile
    address: str
    """Of this machine."""


@dataclass(frozen=True)
class Cluster:
    """The cluster of one file of hosts, up or not."""

    path: Path
    file: HostsFile
    address: str
    """Of this machine."""

    @property
    def directory(self) -> Path:
        return cache_home() / "hosts-up" / hashlib.sha256(str(self.path).encode()).hexdigest()[:16]

    def is_up(self) -> bool:
        try:
            descriptor = os.open(self.directory / "lock", os.O_WRONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def state(self) -> dict[str, Any]:
        """The state of each host, and of `head` if that has failed."""
        try:
            found: dict[str, Any] = json.loads((self.directory / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def guard_pid(self) -> int:
        return int((self.directory / "pid").read_text())


def find_cluster(path: Path) -> Cluster:
    """Read the cluster that a file describes. Raises UsageError, MissingError."""
    path = path.resolve()
    file = read_hosts(path)
    ray_version()
    return Cluster(path, file, _own_address(file))


def _own_address(file: HostsFile) -> str:
    """Raises UsageError."""
    local = next((host.address for host in file.hosts.values() if host.is_local), None)
    if file.address or local:
        return file.address or str(local)
    first = next(iter(file.hosts.values())).address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((first, 9))
        except OSError as error:
            raise UsageError(
                f"there is no way from here to {first}: {error.strerror}",
                'Is the address right? Else give this machine\'s own: address = "…" at the top of the file.',
            ) from error
        address: str = asked.getsockname()[0]
        return address


def up(cluster: Cluster, tied: bool = False) -> dict[str, dict[str, Any]]:
    """Copy howfar to all hosts and start Ray there. Returns versions by host. `tied`: it ends with this process, however that ends.
    Raises LabError, MissingError."""
    if cluster.is_up():
        raise UsageError(f"the hosts of {cluster.path} are up already", "`howfar hosts down` takes them down.")
    hosts = cluster.file.hosts
    with ThreadPoolExecutor(len(hosts)) as pool:
        greetings = dict(zip(hosts, pool.map(bring, hosts, hosts.values()), strict=True))
    shutil.rmtree(cluster.directory, ignore_errors=True)
    cluster.directory.mkdir(parents=True, mode=0o700)
    settings = GuardSettings(file=cluster.file, address=cluster.address)
    with (cluster.directory / "guard.log").open("wb") as log:
        guard = subprocess.Popen(
            [sys.executable, "-m", "howfar.fleet.guard", str(cluster.directory)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent if tied else None,
            cwd="/",
        )
    assert guard.stdin is not None
    guard.stdin.write(settings.model_dump_json().encode())
    guard.stdin.close()
    try:
        _await_started(cluster, guard)
    except BaseException:
        guard.send_signal(signal.SIGTERM)
        guard.wait()
        raise
    return greetings


def _await_started(cluster: Cluster, guard: subprocess.Popen[bytes]) -> None:
    """Raises LabError."""
    deadline = time.monotonic() + _UP_S
    while True:
        state = cluster.state()
        lost = {name: one["why"] for name, one in state.items() if one["state"] == "lost"}
        if guard.poll() is not None or lost:
            why = "; ".join(f"{name}: {reason}" for name, reason in lost.items()) or _tail(cluster)
            raise LabError(f"the hosts could not be joined: {why}", "See docs/hosts.md for ports and rights.")
        if state and all(one["state"] == "started" for one in state.values()):
            return
        if time.monotonic() > deadline:
            late = [name for name, one in state.items() if one["state"] == "joining"]
            raise LabError(
                f"{', '.join(late) or 'the head'} did not start within {_UP_S:.0f} s", "Are they overloaded?"
            )
        time.sleep(_POLL_S)


def _tail(cluster: Cluster) -> str:
    with contextlib.suppress(OSError):
        return (cluster.directory / "guard.log").read_text(errors="replace").strip()[-300:]
    return "the guard ended"


def down(cluster: Cluster) -> None:
    """Stop the cluster. Raises UsageError if it is not up."""
    if not cluster.is_up():
        raise UsageError(f"the hosts of {cluster.path} are not up", "Nothing was left running.")
    pid = cluster.guard_pid()
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_S
    while cluster.is_up():
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    shutil.rmtree(cluster.directory, ignore_errors=True)


@contextmanager
def held_up(cluster: Cluster) -> Iterator[None]:
    """Keep the cluster up in this block, and stop it afterwards if it was not up before."""
    if cluster.is_up():
        yield
        return
    up(cluster, tied=True)
    try:
        yield
    finally:
        with contextlib.suppress(HowfarError, OSError):
            down(cluster)


def inside() -> bool:
    """Whether this command runs beside Ray's head; the first call also ties its life to the command outside."""
    if INSIDE not in os.environ:
        return False
    die_with_parent()
    return True


def enter(cluster: Cluster) -> int:
    """Rerun this command beside Ray's head; returns its exit code (128 + N for signal N). Raises LabError."""
    try:
        (unshare,) = children_of(cluster.guard_pid())
        (first,) = children_of(unshare)
    except (OSError, ValueError) as error:
        raise LabError("the cluster went down", "`howfar hosts up` starts it again.") from error
    namespaces = ["--mount", "--pid"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--preserve-credentials"]
    # The library is a file of the sandbox: nsenter itself could not load it.
    variables = [f"{name}={value}" for name, value in preload(cluster.address).items()]
    command = ["nsenter", f"--target={first}", *namespaces, "--", "env", "-C", str(Path.cwd()), *variables]
    done = subprocess.run(
        [*command, sys.executable, *sys.orig_argv[1:]],
        env={**ray_environment(), INSIDE: "1"},
        preexec_fn=die_with_parent,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    if code in _KILLED and _went_down(cluster):
        why = cluster.state().get("head", {}).get("why", "it was killed")
        raise LabError(
            f"the cluster went down: {why}", "Finished trials are in the run file; `howfar resume` continues it."
        )
    return code


def _went_down(cluster: Cluster) -> bool:
    """Whether the end of the cluster explains that of a command."""
    deadline = time.monotonic() + _ENDS_S
    while cluster.is_up():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
