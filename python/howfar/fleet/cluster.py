"""Starts, enters and stops a cluster of hosts. Its guard is a separate process that outlives the command that started it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from howfar.engine.process import own_environment
from howfar.errors import LabError, UsageError
from howfar.fleet.hosts_file import HostsFile, read_hosts
from howfar.fleet.node import MEMORY_DIRECTORY, preload_variables, ray_environment
from howfar.fleet.ship import install_on_host, local_ray_version
from howfar.lab.cache import cache_home
from howfar.lab.kernel import die_with_parent
from howfar.lab.sandbox import children_of, install_signal_handlers, run_forwarding_signals

INSIDE_VARIABLE = "HOWFAR_HOSTS_INSIDE"
"""Set in the environment of a command that runs in the namespaces of Ray's head."""
_EXIT_CODES_IF_KILLED = (1, 137)
"""Exit codes of a command that may have ended because its cluster ended; `_went_down` decides."""
_UP_TIMEOUT_S = 120.0
_DOWN_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.05
_LOCK_TIMEOUT_S = 0.5
"""Retry a lock for this long: `is_up` takes it briefly just to test it."""
_GUARD_EXIT_GRACE_S = 2.0
"""When Ray's head dies and takes a command with it, the guard may need this long to end too."""


class GuardSettings(BaseModel):
    """The settings that `guard.py` reads from its stdin."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: HostsFile
    address: str
    """Address of this machine."""


class HostState(BaseModel):
    """The state of a host."""

    state: Literal["joining", "started", "lost"]
    why: str | None = None
    """Why it is lost."""


HOST_STATES = TypeAdapter(dict[str, HostState])


@dataclass(frozen=True)
class FileCluster:
    """The cluster that one hosts file describes, whether up or not.

    Files in its directory: `lock` is locked by the command that joins the hosts, and then by their guard. `used` is locked by the
    command that measures between the hosts, and `run` names that command's run file. The lock files are never removed, because a lock
    on a removed file excludes no other process.
    """

    path: Path
    file: HostsFile
    address: str
    """Address of this machine."""

    @property
    def directory(self) -> Path:
        return cache_home() / "hosts-up" / hashlib.sha256(str(self.path).encode()).hexdigest()[:16]

    @property
    def settings(self) -> GuardSettings:
        return GuardSettings(file=self.file, address=self.address)

    def is_up(self) -> bool:
        """Whether the cluster is up; also True while a command joins its hosts."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def state(self) -> dict[str, HostState]:
        """Return the state of each host, and of `head` if that has failed."""
        try:
            return HOST_STATES.validate_json((self.directory / "state.json").read_bytes())
        except (OSError, ValueError):
            return {}

    def is_coming_up(self) -> bool:
        """Whether some of its hosts have not been joined yet; a host that was joined and then lost counts as joined."""
        state = self.state()
        return not state or any(host.state == "joining" for host in state.values())

    def guard_pid(self) -> int:
        return int((self.directory / "pid").read_text())

    def record_run_file(self, run: Path) -> None:
        """Record the run file of a command in the head's namespaces, for the command that started it there."""
        (self.directory / "run").write_text(str(run))

    def resume_advice(self) -> str:
        """Return advice on how to continue after the command in the head's namespaces was lost."""
        try:
            run = (self.directory / "run").read_text()
        except OSError:
            return "`howfar hosts up` starts it again."
        return f"Finished trials are in the run file; `howfar resume {run}` continues it."

    def check_usable(self) -> None:
        """Check that all hosts of the cluster have been joined, and that its file has not changed since. Raises UsageError."""
        if self.is_coming_up():
            raise _joining_error(self)
        try:
            joined = GuardSettings.model_validate_json((self.directory / "settings.json").read_text())
        except (OSError, ValueError):
            joined = None
        if joined != self.settings:
            raise UsageError(
                f"{self.path} has changed since its hosts were joined",
                "Run `howfar hosts down`, then `howfar hosts up`.",
            )


def _joining_error(cluster: FileCluster) -> UsageError:
    return UsageError(
        f"another command is joining the hosts of {cluster.path}", "Try again when it has finished, or interrupt it."
    )


def find_cluster(path: Path) -> FileCluster:
    """Read the cluster that a file describes. Raises UsageError, MissingError."""
    path = path.resolve()
    file = read_hosts(path)
    local_ray_version()
    return FileCluster(path, file, _find_own_address(file))


def _find_own_address(file: HostsFile) -> str:
    """Return the address by which the hosts reach this machine. Raises UsageError."""
    local = next((host.address for host in file.hosts.values() if host.is_local), None)
    if file.address or local:
        return file.address or str(local)
    first_host_address = next(iter(file.hosts.values())).address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((first_host_address, 9))
        except OSError as error:
            raise UsageError(
                f"there is no route from this machine to {first_host_address}: {error.strerror}",
                'Is the address right? If it is, give the address of this machine: address = "…" at the top of the file.',
            ) from error
        address: str = probe.getsockname()[0]
        return address


@dataclass
class Guard:
    """The process that keeps a cluster up. It ends when the command that started it ends, for any reason, unless told to `stay`."""

    process: subprocess.Popen[bytes]
    _lifeline: int
    _stays: bool = False

    def stay(self) -> None:
        """Let the guard outlive this command. Raises LabError if it has ended."""
        try:
            os.write(self._lifeline, b"\n")
        except BrokenPipeError as error:
            raise LabError("the cluster went down", "`howfar hosts up` starts it again.") from error
        self._stays = True

    def leave(self) -> None:
        """End the guard, unless it stays."""
        os.close(self._lifeline)
        if not self._stays:
            self.process.wait()


@contextmanager
def bring_up(cluster: FileCluster) -> Iterator[Guard]:
    """Copy howfar to all hosts and start Ray there. The hosts stay up until the block ends, or longer if it calls `Guard.stay`.
    Raises UsageError, LabError, MissingError."""
    check_paths_visible(sys.argv[1:])
    guard = _start(cluster)
    try:
        _await_started(cluster, guard.process)
        yield guard
    finally:
        guard.leave()


def _start(cluster: FileCluster) -> Guard:
    """Start the guard, which inherits the lock. Raises UsageError, LabError, MissingError."""
    cluster.directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    with _locked(cluster.directory / "lock") as lock:
        if lock is None:
            if cluster.is_coming_up():
                raise _joining_error(cluster)
            raise UsageError(f"the hosts of {cluster.path} are up already", "`howfar hosts down` takes them down.")
        for stale in ("state.json", "pid"):
            (cluster.directory / stale).unlink(missing_ok=True)
        settings = cluster.settings.model_dump_json()
        (cluster.directory / "settings.json").write_text(settings)
        hosts = cluster.file.hosts
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(install_on_host, hosts, hosts.values()))
        read_end, lifeline = os.pipe()
        with (cluster.directory / "guard.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "howfar.fleet.guard", str(cluster.directory), str(read_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock, read_end),
                cwd="/",
                env=own_environment(),
            )
        os.close(read_end)
        (cluster.directory / "pid").write_text(str(process.pid))
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the guard has ended, which `_await_started` detects
        process.stdin.write(settings.encode())
        process.stdin.close()
    return Guard(process, lifeline)


@contextmanager
def _locked(file: Path) -> Iterator[int | None]:
    """Lock a file exclusively; yields the descriptor, with which a child process inherits the lock, or None if it is taken."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor if _lock(descriptor) else None
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_POLL_INTERVAL_S)


def _await_started(cluster: FileCluster, guard: subprocess.Popen[bytes]) -> None:
    """Wait until all hosts have started. Raises LabError."""
    deadline = time.monotonic() + _UP_TIMEOUT_S
    while True:
        state = cluster.state()
        lost = {name: host.why for name, host in state.items() if host.state == "lost"}
        if guard.poll() is not None or lost:
            why = "; ".join(f"{name}: {reason}" for name, reason in lost.items()) or _read_log_end(cluster)
            raise LabError(f"the hosts could not be joined: {why}", "See docs/hosts.md for ports and rights.")
        if state and all(host.state == "started" for host in state.values()):
            return
        if time.monotonic() > deadline:
            late_hosts = [name for name, host in state.items() if host.state == "joining"]
            raise LabError(
                f"{', '.join(late_hosts) or 'the head'} did not start within {_UP_TIMEOUT_S:.0f} s",
                "Are they overloaded?",
            )
        time.sleep(_POLL_INTERVAL_S)


def _read_log_end(cluster: FileCluster) -> str:
    with contextlib.suppress(OSError):
        return (cluster.directory / "guard.log").read_text(errors="replace").strip()[-300:]
    return "the guard ended"


def take_down(cluster: FileCluster, force: bool = False) -> None:
    """Stop the cluster. Raises UsageError if it is not up or, without `force`, in use."""
    if not cluster.is_up():
        raise UsageError(f"the hosts of {cluster.path} are not up", "Nothing was left running.")
    try:
        pid = cluster.guard_pid()
    except (OSError, ValueError) as error:
        raise _joining_error(cluster) from error
    with _locked(cluster.directory / "used") as lock:
        if lock is None and not force:
            raise UsageError(
                f"the hosts of {cluster.path} are in use by another command",
                "Wait for it, or interrupt it with Ctrl-C, which keeps what it has measured. --force ends it.",
            )
        _end_guard(cluster, pid)


def _end_guard(cluster: FileCluster, pid: int) -> None:
    """End the guard and wait until it has released the hosts; kill it if that takes too long."""
    with contextlib.suppress(ProcessLookupError):  # the guard has ended by itself
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _DOWN_TIMEOUT_S
        while cluster.is_up():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_INTERVAL_S)


@contextmanager
def keep_up(cluster: FileCluster) -> Iterator[None]:
    """Keep the cluster up during the block; afterwards, stop it if it was down before. Raises UsageError, LabError, MissingError."""
    if cluster.is_up():
        yield
        return
    with bring_up(cluster):
        yield


def is_inside_head() -> bool:
    """Whether this command runs in the namespaces of Ray's head. If so, it is also made to end with the command that started it."""
    if INSIDE_VARIABLE not in os.environ:
        return False
    die_with_parent()
    install_signal_handlers()
    return True


def check_paths_visible(words: Sequence[str]) -> None:
    """Refuse a command line with files that Ray's head cannot see. Raises UsageError."""
    for word in (".", *words):
        path = Path(word.partition("=")[2] if word.startswith("--") else word).resolve()
        if path.is_relative_to(MEMORY_DIRECTORY):
            raise UsageError(
                f"{path} is in {MEMORY_DIRECTORY}, where howfar has memory of its own while hosts are joined",
                "Use another directory.",
            )


def enter(cluster: FileCluster) -> int:
    """Run this command again in the namespaces of Ray's head; returns the shell's exit code. Raises UsageError, LabError."""
    check_paths_visible(sys.argv[1:])
    cluster.check_usable()
    with _locked(cluster.directory / "used") as lock:
        if lock is None:
            raise UsageError(
                f"the hosts of {cluster.path} are in use by another command",
                "It measures between them, or releases them. Try again when it has ended.",
            )
        (cluster.directory / "run").unlink(missing_ok=True)
        code = run_forwarding_signals(
            _command_inside(cluster), {**ray_environment(os.environ), INSIDE_VARIABLE: "1"}, block_signals=True
        )
    if code in _EXIT_CODES_IF_KILLED and _went_down(cluster):
        head = cluster.state().get("head")
        why = "it was killed" if head is None else head.why
        raise LabError(f"the cluster went down: {why}", cluster.resume_advice())
    return code


def _command_inside(cluster: FileCluster) -> list[str]:
    """Return the command line that runs this command again in the namespaces of Ray's head. Raises LabError."""
    try:
        (unshare_pid,) = children_of(cluster.guard_pid())
        (init_pid,) = children_of(unshare_pid)
    except (OSError, ValueError) as error:
        raise LabError("the cluster went down", "`howfar hosts up` starts it again.") from error
    namespaces = ["--mount", "--pid"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--preserve-credentials"]
    # The preloaded library exists only in the sandbox, so nsenter itself could not load it.
    variables = [f"{name}={value}" for name, value in preload_variables(cluster.address).items()]
    env_command = ["env", "-C", str(Path.cwd()), *variables]
    return ["nsenter", f"--target={init_pid}", *namespaces, "--", *env_command, sys.executable, *sys.orig_argv[1:]]


def _went_down(cluster: FileCluster) -> bool:
    """Whether the cluster has ended, which explains why a command in it ended. Waits a moment for the guard to end too."""
    deadline = time.monotonic() + _GUARD_EXIT_GRACE_S
    while cluster.is_up():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True
