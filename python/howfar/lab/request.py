"""The request for a laboratory, from which it is built. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.lab.link import LOCAL_NETWORK, LinkSpec
from howfar.lab.link.backends import DEFAULT
from howfar.lab.network import CONGESTION_CONTROL, TcpPreset
from howfar.paths import find_path
from howfar.plan.factors import Content


@dataclass(frozen=True)
class ReplicasSpec:
    """Replicas of stages with replication: at most `most`, each over its own link."""

    most: int
    """Maximum number of replicas; 0 for primaries alone, with a binary log."""
    link: LinkSpec
    """The link of the first stages; it is calibrated before any trial."""
    mesh: bool = False
    """Whether some stages have a cluster, in which every two nodes are linked."""
    also_alone: bool = False
    """Whether some stages have a server that does not replicate."""


@dataclass(frozen=True)
class LabRequest:
    """The laboratory to build. `server` is a kind, a path to a program, or `none`; `paths` lists the paths that must be possible."""

    server: str = "mariadb"
    tables: int = 10
    table_size: int = 100_000
    link: LinkSpec = LOCAL_NETWORK
    """The link that is calibrated first; a cell's round trip time and rate replace those of this link."""
    backend: str = DEFAULT
    tcp: TcpPreset = "tuned"
    congestion_control: str = CONGESTION_CONTROL
    with_goodput: bool = True
    """Whether calibration also measures the goodput, which takes seconds."""
    placement: str = "isolated"
    connections: int = 64
    """Maximum number of connections that the load will have open at once."""
    paths: tuple[str, ...] = ("socket", "tcp", "remote", "forwarded-socket")
    contents: tuple[Content, ...] = ("digits",)
    """Contents of the tables; each has a data directory."""
    replicas: ReplicasSpec | None = None
    """Replicas of some stages; None if no stage replicates."""
    prepare: tuple[str, ...] = ()
    """SQL to run on each stage's server before the load, for example to create an empty table."""
    companions: tuple[str, ...] = ()
    """Kinds or programs of each stage's further servers, on the main server's host and CPUs: `redis`, `memcached`."""
    application: bool = False
    """Whether some stages have a real application, which queries these servers."""

    @property
    def across_link(self) -> tuple[str, ...]:
        """The paths over the link."""
        return tuple(name for name in self.paths if find_path(name).crosses_link)

    @property
    def needs_link(self) -> bool:
        return bool(self.across_link)

    @property
    def copies(self) -> int:
        """Number of copies of one content's data in memory besides one server's pool: with replicas each server has its own files
        and pool."""
        alone = len(self.contents) if self.replicas is None or self.replicas.also_alone else 0
        return alone + (0 if self.replicas is None else 2 * (1 + self.replicas.most))
