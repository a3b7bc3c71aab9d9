"""Runs one host's part of a cluster: Ray in its own namespaces, which run as long as heartbeats arrive on stdin.

`python -m howfar.fleet.node` reads a line of settings, then heartbeats. It starts itself again as process 1 of new PID and mount
namespaces, in which Ray, the agents, servers and engines run; their files are in a tmpfs that only they can see. If stdin ends, or is
silent for `HEARTBEAT_TIMEOUT_S`, or this process is killed, the kernel removes all of it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from howfar.engine.process import find_engine, own_environment
from howfar.errors import HowfarError, LabError
from howfar.fleet.hosts_file import WORKER_PORTS
from howfar.lab import sandbox
from howfar.lab.environment import memory_bytes

HEARTBEAT_TIMEOUT_S = 8.0
"""After this time without a heartbeat, a host removes everything: so nothing is left after 10 s, but the link may be down for 5 s."""
HEARTBEAT_INTERVAL_S = 1.0
INTERRUPTION_S = 3.0
"""After this time without a heartbeat, the connection to a host counts as interrupted, and trials during the interruption are void."""
MEMORY_DIRECTORY = Path("/dev/shm")
"""Directory on which the sandbox of each host mounts its own tmpfs, for Ray's object store and all of howfar's files."""
TOKEN_FILE = MEMORY_DIRECTORY / "token"
RAY_DIRECTORY = MEMORY_DIRECTORY / "ray"
WORK_DIRECTORY = MEMORY_DIRECTORY / "work"
LAST_HEARTBEAT_FILE = MEMORY_DIRECTORY / "heard"
"""Time of the last heartbeat, by the monotonic clock."""
INTERRUPTIONS_FILE = MEMORY_DIRECTORY / "silences"
"""Length of each interruption of the heartbeats in ns, one per line."""
_PRELOADED_LIBRARY = MEMORY_DIRECTORY / "listen.so"
"""Library that is preloaded into Ray's programs, which would otherwise listen on all addresses of a host."""
_OBJECT_STORE_BYTES = 80_000_000
_RAY_LOG = MEMORY_DIRECTORY / "ray-start.log"
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": str(TOKEN_FILE),
    # A lost host is detected after 8 s, not 60.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    # Reports that nothing reads are off.
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    # Periodic checks that no measured window needs are off or rare: a load host's CPUs are for the load.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_kill_idle_workers_interval_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_raylet_check_gc_period_milliseconds": "10000",
    "RAY_object_manager_timer_freq_ms": "1000",
}


class NodeSettings(BaseModel):
    """Settings that a host reads from stdin, to keep the token out of command lines and environments."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    token: str
    address: str
    head: str | None
    """Address of the head that the host joins; None if the host is the head."""
    first_port: int
    resources: dict[str, float] = {}


class NodeMessage(BaseModel):
    """A line of JSON from a host to the guard."""

    started: bool = False
    failed: str | None = None
    """Why the host ended."""


def ray_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Ray's programs and the driver in the sandbox: `environment` with Ray's settings."""
    return {**environment, **_RAY_ENVIRONMENT}


def preload_variables(address: str) -> dict[str, str]:
    """Return the variables that make Ray's programs listen on this address only."""
    return {"LD_PRELOAD": str(_PRELOADED_LIBRARY), "HOWFAR_LISTEN": address}


def clear_preload() -> None:
    """Remove the preloaded library from this process's environment: measured programs must start without it."""
    for name in preload_variables(""):
        os.environ.pop(name, None)


def prepare(settings: NodeSettings) -> None:
    """Mount the private tmpfs in the sandbox, and store the token and the library there. Raises LabError."""
    sandbox.mount_memory(MEMORY_DIRECTORY, memory_bytes("MemAvailable"), "1777")
    for directory in (RAY_DIRECTORY, WORK_DIRECTORY):
        directory.mkdir(mode=0o700)
    engine = subprocess.run([find_engine(), "preload"], capture_output=True)
    if engine.returncode != 0:
        raise LabError("howfar-engine on that host has another version than howfar", "Unset HOWFAR_ENGINE there.")
    _PRELOADED_LIBRARY.write_bytes(engine.stdout)
    with os.fdopen(os.open(TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(settings.token)


def ray_command(settings: NodeSettings) -> list[str]:
    port = settings.first_port
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={settings.address}"]
    if settings.head is None:
        command += ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={RAY_DIRECTORY}"]
    else:
        command += [f"--address={settings.head}:{port}", f"--temp-dir={RAY_DIRECTORY}"]
    return [
        *command,
        "--num-cpus=0",
        f"--resources={json.dumps(settings.resources)}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--node-manager-port={port + 1}",
        f"--object-manager-port={port + 2}",
        f"--runtime-env-agent-port={port + 3}",
        f"--dashboard-agent-grpc-port={port + 4}",
        f"--min-worker-port={WORKER_PORTS[0]}",
        f"--max-worker-port={WORKER_PORTS[1]}",
    ]


def start_ray(settings: NodeSettings) -> subprocess.Popen[bytes]:
    """Start Ray in the sandbox, after `prepare`. The process ends when any of Ray's programs ends."""
    with _RAY_LOG.open("wb") as log:
        return subprocess.Popen(
            ray_command(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**ray_environment(own_environment()), **preload_variables(settings.address)},
        )


def read_last_error() -> str:
    """Return the last error that Ray wrote to its log before it ended, or else its last line."""
    lines = [line.strip() for line in _RAY_LOG.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line or "ismatch" in line] or lines
    return errors[-1][:300] if errors else "it said nothing"


def _follow_stdin(descriptor: int) -> None:
    """Read heartbeats until they stop; then end this process, which ends everything on this host."""
    last_ns = time.monotonic_ns()
    while True:
        readable, _, _ = select.select([descriptor], [], [], HEARTBEAT_TIMEOUT_S)
        if not readable or not os.read(descriptor, 4096):
            os._exit(0)
        now_ns = time.monotonic_ns()
        if now_ns - last_ns > INTERRUPTION_S * 1e9:
            with suppress(OSError), INTERRUPTIONS_FILE.open("a") as file:
                file.write(f"{now_ns - last_ns}\n")
        last_ns = now_ns
        with suppress(OSError):  # if the disk is full, the code that needs the space reports it
            LAST_HEARTBEAT_FILE.write_text(str(now_ns))


def read_interruptions() -> list[int]:
    """Run on a host: return the lengths of the interruptions of its heartbeats in ns, including one that has not ended."""
    lengths_ns = (
        [int(line) for line in INTERRUPTIONS_FILE.read_text().splitlines()] if INTERRUPTIONS_FILE.exists() else []
    )
    with suppress(OSError, ValueError):  # the machine of Ray's head receives no heartbeats
        silence_ns = time.monotonic_ns() - int(LAST_HEARTBEAT_FILE.read_text())
        lengths_ns += [silence_ns] if silence_ns > INTERRUPTION_S * 1e9 else []
    return lengths_ns


def send_message(message: NodeMessage) -> None:
    sys.stdout.write(message.model_dump_json(exclude_unset=True) + "\n")
    sys.stdout.flush()


def _run() -> int:
    settings = NodeSettings.model_validate_json(_read_line(0))
    threading.Thread(target=_follow_stdin, args=(0,), name="heartbeat", daemon=True).start()
    prepare(settings)
    ray = start_ray(settings)
    send_message(NodeMessage(started=True))
    watch(ray)
    send_message(NodeMessage(failed=f"Ray ended: {read_last_error()}"))
    return 1


def watch(ray: subprocess.Popen[Any]) -> None:
    """Wait until a process ends, and reap orphaned children meanwhile."""
    while True:
        try:
            ended_child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        assert ended_child is not None
        if ended_child.si_pid == ray.pid:
            ray.wait()
            return
        with suppress(ChildProcessError):  # the code that started the process has reaped it
            os.waitpid(ended_child.si_pid, 0)


def _read_line(descriptor: int) -> bytes:
    """Read a line byte by byte, so that another reader can read what follows. Exits if there is no line."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            raise SystemExit(0)
        line += byte
    return line


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if not sandbox.inside():
            return sandbox.run_inside(network=False)
        return _run()
    except HowfarError as error:
        send_message(NodeMessage(failed=error.message))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
