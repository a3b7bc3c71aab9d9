"""Where a run was begun and where it goes on: what must be the same, what is only said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import howfar
from howfar.engine.process import engine_info
from howfar.errors import RunFileError
from howfar.lab.stage import Laboratory
from howfar.store.records import Run

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_COMPARED = {
    "kernel": "kernel",
    "boot_id": "boot",
    "howfar_version": "howfar",
    "engine_version": "load engine",
    "cpu_count": "number of CPUs",
    "cpus_usable": "usable CPUs",
    "client_cpus": "CPUs of the client",
    "server_cpus": "CPUs of the server",
    "governor": "CPU governor",
    "memory_bytes": "memory in bytes",
    "virtual_machine": "virtual machine",
    "congestion_control_default": "congestion control",
    "clock_source": "clock source",
    "sandbox": "sandbox",
    "work_file_system": "file system of the data",
}
"""Facts that are compared, and their names in a warning. Calibrations are not: they differ a little each time."""


def program_facts() -> dict[str, Any]:
    """Versions of the programs, and which boot of the machine this is (None: it does not say). Raises EngineError."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = None
    return {"howfar_version": howfar.__version__, "engine_version": engine_info().version, "boot_id": boot}


def check_same(run: Run, laboratory: Laboratory, now: Mapping[str, Any]) -> None:
    """A run is of one server version on one kind of CPU; others would be mixed up for ever. Raises RunFileError."""
    kind, version = laboratory.server()
    if (kind, version) != (run.info.server_kind, run.info.server_version):
        raise RunFileError(
            f"the run was begun on {run.info.server_kind} {run.info.server_version}, this laboratory has {kind} {version}",
            "Continue it where that version is, or begin a new run.",
        )
    before, model = run.info.environment.get("cpu_model"), now.get("cpu_model")
    if before and model and before != model:
        raise RunFileError(
            f"the run was begun on another CPU, {before}; this machine has {model}",
            "Continue it on that machine, or begin a new run here and `howfar compare` the two.",
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What is not as in the run's head, each a phrase. What either does not know is not compared."""
    found = []
    for key, name in _COMPARED.items():
        old, new = before.get(key), now.get(key)
        if old is None or new is None or old == new:
            continue
        found.append("booted anew since" if key == "boot_id" else f"{name}: {old} -> {new}")
    return tuple(found)
