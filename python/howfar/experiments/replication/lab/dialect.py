"""The interface to the servers' replication. It hides their differences from the rest of the laboratory.

Its implementations are in `binary_log.py` (MariaDB and MySQL), `postgresql.py`, `galera.py` and `group.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from howfar.contract.replication_receipt import NodeFacts, PrimaryState, ReplicaState
from howfar.errors import LabError
from howfar.experiments.replication.lab.links import Compression, Durability, ReplicationSpec
from howfar.experiments.replication.lab.status import Positions
from howfar.lab.servers import CertificatePaths, RunQuery, ServerContext, Tables, TableServer
from howfar.lab.servers.program import Program
from howfar.paths.path import Row

if TYPE_CHECKING:
    from howfar.experiments.replication.lab.member import Member

ACCOUNT = "repl"
SCHEMA = "howfar_replication"
"""Schema of the laboratory's own rows, separate from the tables that are measured."""


@dataclass(frozen=True)
class Source:
    """Address and account with which a replica connects to its primary."""

    address: str
    port: int
    password: str
    ca: str | None
    """CA of the primary's certificate; None for an unencrypted connection."""
    compression: Compression | None


JoinMode = Literal["founds", "returns", "new"]
"""How a node joins its cluster. `founds`: together with the other nodes, before any load; `returns`: again, with its old data;
`new`: for the first time, without data."""


@dataclass(frozen=True)
class Seed:
    """The parameters with which a member of a replica set is started."""

    name: str
    number: int
    """0 for the primary."""
    spec: ReplicationSpec
    secret: str
    """Password of the replicas' account."""
    tls: CertificatePaths | None
    source: Source | None
    """The primary to follow; None for the primary itself."""
    group: str = ""
    """UUID that all nodes of a cluster share."""
    nodes: tuple[str, ...] = ()
    """Addresses of all nodes, as the others reach them."""
    on_hosts: bool = False
    """Whether the members run on the user's own hosts, which other machines can reach too."""
    join_mode: JoinMode = "founds"


@dataclass(frozen=True)
class Promotion:
    """The result of promoting a replica to a primary."""

    name: str
    position: str
    """Position that includes all its transactions."""
    unapplied: int
    """Transactions that it had received but not applied when the promotion began; `position` includes them."""
    took_ns: int


class ReplicationDialect(ABC):
    """The replication of one kind of server."""

    kind: str
    port: int
    """Port of a server that has its own host."""
    replacements: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """For each level of the factor `replication` that this server lacks: the levels that replace it."""
    modes: tuple[str, ...]
    """Levels of the factor `replication` that this server supports, besides `off` and `none`."""
    durabilities: tuple[Durability, ...] = ("strict", "relaxed", "off")
    positions: Positions
    compressions: tuple[Compression, ...]
    max_replicas_to_wait_for: int | None
    """Maximum number of replicas that a commit can wait for; None without a limit."""
    always_acknowledges: bool
    """Whether every program of this kind supports acknowledgements by replicas; if False, it depends on the program."""
    copies_primary_data: ClassVar[bool] = False
    """Whether a replica needs a copy of its primary's files, which the user's own hosts do not exchange."""
    primary_plugins: tuple[tuple[str, str], ...] = ()
    """Name and file of the plugins that make a primary wait for replicas, in the order to try them; empty if built in."""
    position_sql: str
    """Query whose column `position` is the position up to which a primary has committed."""
    applied_sql: str
    """Query whose column `position` is the position up to which a replica has applied."""
    state_sql: str
    """Query whose column `position` identifies a server's history."""
    origin_sql: str
    """Query whose column `position` identifies a server as the origin of its own transactions."""

    @abstractmethod
    def start_server(self, seed: Seed, context: ServerContext, program: Program, tables: Tables) -> TableServer:
        """Start a server on data from the template, without waiting for it. Raises LabError, ServerCrashed."""

    @abstractmethod
    def follow(self, replica: Member, source: Source) -> None:
        """Make a ready replica follow its primary, unless it has done so since its start. Raises LabError."""

    @abstractmethod
    def join(self, primary: Member, replicas: tuple[Member, ...], spec: ReplicationSpec, timeout_s: float) -> None:
        """Create the laboratory's own tables and turn replication on, on all members. The primary gets no further writes until all
        have joined."""

    def rejoin(self, member: Member, seed: Seed, timeout_s: float) -> str:
        """Let a node that has left rejoin its cluster, and wait until the cluster is complete. Returns the server's name for the
        method by which the node fetched the data that it had missed. Raises LabError, ServerCrashed."""
        raise LabError(f"{self.kind} is no cluster here")

    @abstractmethod
    def marker_sql(self, word: str, filling: str) -> str:
        """SQL that writes the only row of `marker`."""

    @abstractmethod
    def heartbeat_sql(self, at_ns: int, row: int = 1) -> str:
        """SQL that writes a row of `heartbeat`."""

    @abstractmethod
    def read_state(self, run_query: RunQuery) -> ReplicaState | None:
        """A replica's report of its own state, with all its errors; None if it follows no primary."""

    @abstractmethod
    def read_primary_end(self, run_query: RunQuery, primary: TableServer, spec: ReplicationSpec) -> PrimaryState | None:
        """The primary's report of its acknowledgements; None if this server has none."""

    def read_node_facts(self, run_query: RunQuery, name: str, spec: ReplicationSpec) -> NodeFacts | None:
        """A node's report of its cluster; None if this is no cluster."""
        return None

    @abstractmethod
    def acknowledges(self, run_query: RunQuery, spec: ReplicationSpec) -> bool | None:
        """Whether a replica reports that it acknowledges; None if it cannot report that."""

    @abstractmethod
    def read_durability(self, run_query: RunQuery, spec: ReplicationSpec) -> tuple[dict[str, str], dict[str, str]]:
        """The settings that determine durability, as the server reports them and as requested, each by name."""

    @abstractmethod
    def count_tls_handshakes(self, run_query: RunQuery) -> int:
        """TLS handshakes of replicas with this primary."""

    @abstractmethod
    def stop_receiving(self, replica: Member, timeout_s: float) -> None:
        """Stop receiving; received transactions are still applied. Raises LabError if that takes longer than `timeout_s`."""

    @abstractmethod
    def promote(self, replica: Member, timeout_s: float) -> int:
        """See `replica_set.promote`. Returns the number of transactions that were received but not yet applied. Raises LabError."""

    @abstractmethod
    def set_timeout(self, primary: Member, timeout_ms: int | None) -> None:
        """Set the time after which a commit continues without acknowledgement; None for the server's default."""

    @abstractmethod
    def replication_log(self, lines: list[str]) -> list[str]:
        """The lines about acknowledgements in a primary's log."""


def query_one_row(run_query: RunQuery, sql: str) -> Row:
    """Run a query that returns exactly one row. Raises LabError if it does not."""
    rows = run_query(sql)
    if len(rows) != 1:
        raise LabError(f"{sql[:80]!r} gave {len(rows)} rows instead of one")
    return rows[0]


def replication_dialect(kind: str, mode: str = "") -> ReplicationDialect:
    """The dialect of a kind of server; `mode` is `ReplicationSpec.mode`."""
    from howfar.experiments.replication.lab.binary_log import MariadbReplication, MysqlReplication
    from howfar.experiments.replication.lab.galera import GaleraReplication
    from howfar.experiments.replication.lab.group import GroupReplication
    from howfar.experiments.replication.lab.postgresql import PostgresReplication

    dialects = (MariadbReplication(), MysqlReplication(), PostgresReplication())
    clusters = (GaleraReplication(), GroupReplication())
    return next(
        (dialect for dialect in clusters if dialect.kind == kind and mode in dialect.modes),
        {dialect.kind: dialect for dialect in dialects}[kind],
    )
