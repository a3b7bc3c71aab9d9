"""What differs between servers in replication, as the rest of the laboratory asks for it.

MariaDB and MySQL are in `binary_log.py`, PostgreSQL in `postgresql.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from howfar.errors import LabError
from howfar.lab.replication.links import Compression, Durability, ReplicationSpec
from howfar.lab.replication.status import NodeFacts, Positions, PrimaryEnd
from howfar.lab.servers import Ask, CertificatePaths, ServerContext, Tables, TableServer
from howfar.lab.servers.program import Program

if TYPE_CHECKING:
    from howfar.lab.replication.member import Member

ACCOUNT = "repl"
SCHEMA = "howfar_replication"
"""Schema of the laboratory's own rows; apart from the tables that are measured."""


@dataclass(frozen=True)
class Source:
    """The address and account by which a replica finds its primary."""

    address: str
    port: int
    password: str
    ca: str | None
    """Who signed the primary's certificate; None: unencrypted."""
    compression: Compression | None


Arrival = Literal["founds", "returns", "new"]
"""How a node comes to its cluster: with the others, before any load; again, with what it had; or with nothing."""


@dataclass(frozen=True)
class Seed:
    """What a member of a pair is begun with."""

    name: str
    number: int
    """0: the primary."""
    spec: ReplicationSpec
    secret: str
    """Password of the replicas' account."""
    tls: CertificatePaths | None
    source: Source | None
    """None: it is the primary."""
    group: str = ""
    """A UUID that the nodes of a cluster have in common."""
    nodes: tuple[str, ...] = ()
    """Their addresses, as they reach each other."""
    on_hosts: bool = False
    """They are on hosts of the user's own, which others reach too."""
    arrival: Arrival = "founds"


@dataclass(frozen=True)
class ReplicaState:
    """What a replica says of itself."""

    receiving: str
    """`Yes`, `No`, `Connecting`."""
    applying: str
    errors: tuple[str, ...]
    received: str
    """A position: what has come whole. Applied it may be or not."""


@dataclass(frozen=True)
class Promoted:
    name: str
    position: str
    """All that it has."""
    unapplied: int
    """Transactions that had come and were not applied yet when it was told; they are in `position`."""
    took_ns: int


class ReplicationDialect(ABC):
    """One kind of server."""

    kind: str
    port: int
    """Port of every server that has a host of its own."""
    instead: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Levels of the factor `replication` that are other servers', and those that this one has in their place."""
    modes: tuple[str, ...]
    """Levels that it has, beside `off` and `none`."""
    durabilities: tuple[Durability, ...] = ("strict", "relaxed", "off")
    positions: Positions
    compressions: tuple[Compression, ...]
    most_to_wait_for: int | None
    """None: as many as there are."""
    always_acknowledges: bool
    """A replica of any such server can; else the program is asked."""
    begins_as_copy: ClassVar[bool] = False
    """A replica needs its primary's files, which hosts of the user's own do not exchange."""
    primary_plugins: tuple[tuple[str, str], ...] = ()
    """Name and file of those that can make a primary wait for one, the one to try first; none: it is built in."""
    position_sql: str
    """What a primary has committed, as `position`."""
    applied_sql: str
    """What a replica has applied, as `position`."""
    state_sql: str
    """By what it is known whose history a server's is, as `position`."""
    origin_sql: str
    """By what a server's own transactions are known, as `position`."""

    @abstractmethod
    def begin(self, seed: Seed, context: ServerContext, program: Program, tables: Tables) -> TableServer:
        """Data from the template, the server started and not waited for. Raises LabError, ServerCrashed."""

    @abstractmethod
    def follow(self, replica: Member, source: Source) -> None:
        """A replica that is ready is told whom to follow, where `begin` has not. Raises LabError."""

    @abstractmethod
    def join(self, primary: Member, replicas: tuple[Member, ...], spec: ReplicationSpec, patience_s: float) -> None:
        """Tables of the laboratory's own, and replication on, everywhere. The primary writes only when all have come."""

    def arrive(self, member: Member, seed: Seed, patience_s: float) -> str:
        """A node that has left comes to its cluster again, and is whole on return. By what it fetched what it lacked, as the server
        calls it. Raises LabError, ServerCrashed."""
        raise LabError(f"{self.kind} is no cluster here")

    @abstractmethod
    def mark_sql(self, word: str, filling: str) -> str:
        """Write the one row of `marker`."""

    @abstractmethod
    def beat_sql(self, at_ns: int, row: int = 1) -> str:
        """Write a row of `heartbeat`."""

    @abstractmethod
    def read_state(self, ask: Ask) -> ReplicaState | None:
        """What a replica says of itself, with all its reasons. None: it follows nobody."""

    @abstractmethod
    def primary_end(self, ask: Ask, primary: TableServer, spec: ReplicationSpec) -> PrimaryEnd | None:
        """None: this server knows nothing of acknowledgements."""

    def node_facts(self, ask: Ask, name: str, spec: ReplicationSpec) -> NodeFacts | None:
        """None: this is no cluster."""
        return None

    @abstractmethod
    def acknowledges(self, ask: Ask, spec: ReplicationSpec) -> bool | None:
        """Whether a replica says that it does; None: it cannot say."""

    @abstractmethod
    def durability(self, ask: Ask, spec: ReplicationSpec) -> tuple[dict[str, str], dict[str, str]]:
        """Settings as reported, and those that were requested."""

    @abstractmethod
    def tls_handshakes(self, ask: Ask) -> int:
        """TLS handshakes of replicas with this primary."""

    @abstractmethod
    def stop_receiving(self, replica: Member, patience_s: float) -> None:
        """Stop receiving; what has arrived is still applied. Raises LabError when it has not obeyed by then."""

    @abstractmethod
    def promote(self, replica: Member, patience_s: float) -> int:
        """See `pair.promote`; how many transactions had come and were not applied yet. Raises LabError."""

    @abstractmethod
    def set_timeout(self, primary: Member, timeout_ms: int | None) -> None:
        """Until a commit goes on without acknowledgement; None: the server's own default."""

    @abstractmethod
    def replication_log(self, lines: list[str]) -> list[str]:
        """The lines about acknowledgements in a primary's log."""


def one(ask: Ask, sql: str) -> dict[str, Any]:
    """The only row. Raises LabError."""
    rows = ask(sql)
    if len(rows) != 1:
        raise LabError(f"{sql[:80]!r} gave {len(rows)} rows instead of one")
    return rows[0]


def replication_dialect(kind: str, mode: str = "") -> ReplicationDialect:
    """The dialect of a kind of server; `mode`: that of `ReplicationSpec`."""
    from howfar.lab.replication.binary_log import MariadbReplication, MysqlReplication
    from howfar.lab.replication.galera import GaleraReplication
    from howfar.lab.replication.group import GroupReplication
    from howfar.lab.replication.postgresql import PostgresReplication

    known = (MariadbReplication(), MysqlReplication(), PostgresReplication())
    clusters = (GaleraReplication(), GroupReplication())
    return next(
        (dialect for dialect in clusters if dialect.kind == kind and mode in dialect.modes),
        {dialect.kind: dialect for dialect in known}[kind],
    )
