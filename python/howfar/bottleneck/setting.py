"""What the trials of an arm have in common, as the head of the run file says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howfar.analysis.facts_in import cpus_in, number_in
from howfar.bottleneck.evidence import Setting
from howfar.paths import crosses_link
from howfar.store.records import Arm, RunInfo

_FSYNC = ("data_fsync_ns", "512", "p50")
"""A log is written in blocks of this size."""


def setting_of(
    info: RunInfo, arm: Arm, connections: int, rest_rtt_s: float | None, acknowledgement_s: float | None = None
) -> Setting:
    """Client and server share CPUs where the placement says so, as on a machine with one."""
    environment = info.environment
    server_cpus = cpus_in(environment, "server_cpus")
    machines = arm.factors.get("placement", environment.get("placement")) == "machines" and not _crosses(arm)
    return Setting(
        connections=connections,
        factors=arm.factors,
        client_cpus=server_cpus if machines else cpus_in(environment, "client_cpus"),
        server_cpus=server_cpus,
        rest_rtt_s=rest_rtt_s,
        machine_cpus=next((n for key in ("cpu_count", "cpus") if isinstance(n := environment.get(key), int)), None),
        fsync_s=_fsync_s(environment),
        acknowledgement_s=acknowledgement_s,
    )


def _crosses(arm: Arm) -> bool:
    return crosses_link(arm.factors.get("path"))


def _fsync_s(environment: Mapping[str, Any]) -> float | None:
    found = number_in(environment, *_FSYNC)
    return found / 1e9 if found else None
