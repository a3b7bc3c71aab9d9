"""What is asked of a primary and its replicas. Pure; whether a server can do it is found by asking it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from howfar.errors import PlanError
from howfar.lab.ends import REPLICAS_MOST

Mode = Literal["none", "async", "semi_sync"]
WaitPoint = Literal["AFTER_SYNC", "AFTER_COMMIT"]
Durability = Literal["strict", "relaxed", "off"]
Compression = Literal["zlib", "zstd"]
FOREVER_MS = 3_600_000
"""A semi-synchronous primary waits so long before it goes on without its replicas: longer than any trial."""


@dataclass(frozen=True)
class Preset:
    """What a server is told of how it writes; the same on primary and replicas."""

    flush_log_at_commit: int
    sync_binlog: int
    flush_method: str | None
    """None: the server's own."""


PRESETS: dict[Durability, Preset] = {
    "strict": Preset(1, 1, None),
    "relaxed": Preset(2, 0, None),
    "off": Preset(0, 0, "nosync"),
}


@dataclass(frozen=True)
class ReplicationAsked:
    """`none`: a primary alone, its binary log written all the same, so that a replica is all that the modes differ in."""

    mode: Mode = "semi_sync"
    replicas: int = 1
    wait_point: WaitPoint = "AFTER_SYNC"
    wait_for: int = 1
    """Replicas whose acknowledgement a commit needs."""
    timeout_ms: int = FOREVER_MS
    """Until a semi-synchronous commit goes on without acknowledgement."""
    durability: Durability = "strict"
    tls: bool = False
    compression: Compression | None = None

    @property
    def semi_sync(self) -> bool:
        return self.mode == "semi_sync"

    @property
    def preset(self) -> Preset:
        return PRESETS[self.durability]

    def check(self) -> None:
        """Raises PlanError for what makes no sense on any server."""
        if (self.mode == "none") != (self.replicas == 0):
            raise PlanError(
                f"replication {self.mode} with {self.replicas} replicas makes no sense",
                "`none` has no replica; the other modes have one or more.",
            )
        if self.replicas > REPLICAS_MOST:
            raise PlanError(f"{self.replicas} replicas are too many", f"At most {REPLICAS_MOST}.")
        if self.semi_sync and not 1 <= self.wait_for <= self.replicas:
            raise PlanError(
                f"a commit cannot wait for {self.wait_for} of {self.replicas} replicas", "Ask for more replicas."
            )
        if self.timeout_ms <= 0:
            raise PlanError(f"a timeout of {self.timeout_ms} ms makes no sense", "Give one above 0.")
