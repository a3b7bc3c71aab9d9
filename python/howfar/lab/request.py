"""The request for a laboratory: the servers, paths, link and replicas that the laboratory must have."""

from __future__ import annotations

from dataclasses import dataclass

from howfar.lab.link import LOCAL_NETWORK, LinkSpec
from howfar.lab.link.backends import DEFAULT
from howfar.lab.network import CONGESTION_CONTROL, TcpPreset
from howfar.paths import find_path
from howfar.plan.factors import Content


@dataclass(frozen=True)
class ReplicasSpec:
    """The replicas of environments with replication, each with its own link."""

    kind: str
    """Name of the kind of group that the servers form; see `server_group.GroupKind`."""
    max_replicas: int
    """Maximum number of replicas; 0 for primaries only, which write a binary log."""
    link: LinkSpec
    """The first settings of the replicas' links, which are calibrated before any trial."""
    mesh: bool = False
    """Whether some environments have a cluster, which needs a link between every two nodes."""
    also_standalone: bool = False
    """Whether some environments have a server that does not replicate."""


@dataclass(frozen=True)
class LabRequest:
    """The laboratory to build. `server` is a kind, a path to a program, or `none`; `paths` are the names of the paths that
    environments may use."""

    server: str = "mariadb"
    tables: int = 10
    table_size: int = 100_000
    link: LinkSpec = LOCAL_NETWORK
    """The link's first settings, which are calibrated before any trial. A cell's RTT and rate replace those of this link."""
    backend: str = DEFAULT
    tcp: TcpPreset = "tuned"
    congestion_control: str = CONGESTION_CONTROL
    with_goodput: bool = True
    """Whether calibration also measures the goodput, which takes seconds."""
    placement: str = "isolated"
    connections: int = 64
    """Maximum number of connections that the load opens at once."""
    paths: tuple[str, ...] = ("socket", "tcp", "remote", "forwarded-socket")
    contents: tuple[Content, ...] = ("digits",)
    """The contents that the tables may have, each in its own data directory."""
    replicas: ReplicasSpec | None = None
    """The replicas of environments with replication; None if there are no such environments."""
    prepare: tuple[str, ...] = ()
    """SQL to run on each environment's server before the load, for example to create an empty table."""
    auxiliary_servers: tuple[str, ...] = ()
    """Kinds (`redis`, `memcached`) or programs of each environment's auxiliary servers, which run on the main server's host and
    CPUs."""
    application: str = ""
    """The real application of some environments, which queries the servers: a name in `application_kinds()`; empty for none."""
    keeps_connections: bool = True
    """Whether loads keep all their connections open. Otherwise they open some on first use, and may close them."""

    @property
    def paths_over_link(self) -> tuple[str, ...]:
        """Names of the paths that cross the link."""
        return tuple(name for name in self.paths if find_path(name).crosses_link)

    @property
    def needs_link(self) -> bool:
        return bool(self.paths_over_link)

    @property
    def copies(self) -> int:
        """Memory needed in addition to one server's buffer pool, in multiples of the size of one content's data. With replicas, each
        server has its own files and its own buffer pool."""
        standalone_copies = len(self.contents) if self.replicas is None or self.replicas.also_standalone else 0
        return standalone_copies + (0 if self.replicas is None else 2 * (1 + self.replicas.max_replicas))
