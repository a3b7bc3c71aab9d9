"""What is requested of a laboratory before it is built. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.lab.link import LOCAL_NETWORK, LinkSpec
from howfar.lab.link.backends import DEFAULT
from howfar.lab.network import CONGESTION_CONTROL, TcpPreset
from howfar.paths import find_path
from howfar.plan.factors import Content


@dataclass(frozen=True)
class ReplicasSpec:
    """Replicas of stages with replication: at most `most`, each over a link of its own."""

    most: int
    """Most replicas. 0: primaries alone, with a binary log."""
    link: LinkSpec
    """The link that a stage asks for first; it is calibrated before any trial."""
    mesh: bool = False
    """Whether some stages have a cluster, whose nodes all reach each other."""
    also_alone: bool = False
    """Whether some stages have a server that does not replicate."""


@dataclass(frozen=True)
class LabRequest:
    """What to build. `server` is a kind, a path to a program, or `none`; `paths` says what must be possible."""

    server: str = "mariadb"
    tables: int = 10
    table_size: int = 100_000
    link: LinkSpec = LOCAL_NETWORK
    """The link that is calibrated first; a cell's round trip and rate replace its own."""
    backend: str = DEFAULT
    tcp: TcpPreset = "tuned"
    congestion_control: str = CONGESTION_CONTROL
    with_goodput: bool = True
    """Whether calibration measures the goodput too, which takes seconds."""
    placement: str = "isolated"
    connections: int = 64
    """The most connections that the load will open at once."""
    paths: tuple[str, ...] = ("socket", "tcp", "remote", "forwarded-socket")
    contents: tuple[Content, ...] = ("digits",)
    """Contents of the tables; each has a data directory."""
    replicas: ReplicasSpec | None = None
    """Replicas of some stages. None: no stage replicates."""
    prepare: tuple[str, ...] = ()
    """SQL for each stage's server before the load, as for an empty table."""
    companions: tuple[str, ...] = ()
    """Kinds of servers, or programs, that each stage has in addition to the main one, on its host and CPUs: `redis`, `memcached`."""
    application: bool = False
    """Whether some stages have a real application, which asks these servers."""

    @property
    def across_link(self) -> tuple[str, ...]:
        """The paths over the link."""
        return tuple(name for name in self.paths if find_path(name).crosses_link)

    @property
    def needs_link(self) -> bool:
        return bool(self.across_link)

    @property
    def copies(self) -> int:
        """How often one content's data is in memory besides one server's pool: with replicas each server has its own files and
        pool."""
        alone = len(self.contents) if self.replicas is None or self.replicas.also_alone else 0
        return alone + (0 if self.replicas is None else 2 * (1 + self.replicas.most))
