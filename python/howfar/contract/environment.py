"""Where a run was measured: the machine or the hosts, their CPUs and links, and the versions of the programs. Written once a run."""

from __future__ import annotations

from pydantic import Field

from howfar.contract.receipt import LinkCalibration, LinkReceipt, QuantilesNs, TcpSettings
from howfar.contract.receipt_part import ReceiptPart


class MachineFacts(ReceiptPart):
    """One machine. None: this kernel does not report it."""

    kernel: str | None = None
    boot_id: str | None = None
    architecture: str | None = None
    distribution: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    cpus_usable: list[int] = Field(default_factory=list)
    governor: str | None = None
    virtual_machine: bool | None = None
    memory_bytes: int | None = None
    congestion_control_default: str | None = None
    clock_source: str | None = None
    python: str | None = None


class HostFacts(MachineFacts):
    """One of the user's hosts."""

    howfar: str | None = None
    """Version of howfar there."""
    ray: str | None = None
    zone: str = "unknown"
    rack: str = "unknown"
    address: str | None = None


class Interface(ReceiptPart):
    """A host's network interface. Unknown facts are unset."""

    name: str | None = None
    mtu: int | None = None
    qdisc: str | None = None
    kind: str | None = None
    """The kind of a virtual interface."""
    speed_mbit: int | None = None
    ethtool: bool = True
    """Whether the host has the program `ethtool`, which reports offloads."""
    offloads: dict[str, bool] | None = None


class ClockSync(ReceiptPart):
    """How well a host's clock is synchronised. Unknown facts are unset."""

    by: str | None = None
    """What reports that: `chrony`, `PTP`."""
    source: str | None = None
    offset_s: float | None = None
    bound_s: float | None = None


class HostRoles(ReceiptPart):
    """The hosts of a run by role, as it began."""

    client: str
    server: str
    others: list[str] = Field(default_factory=list)
    """Hosts of further clients."""
    replicas: list[str] = Field(default_factory=list)
    hop: str | None = None
    """Host of its own for the program in between."""
    swaps: bool = False
    """Whether client and server exchange their roles from block to block."""


class Capacity(ReceiptPart):
    """Limits for many connections, and the throughput that a plan with given rates measured first."""

    descriptors: int | None = None
    arm: str | None = None
    """The arm whose throughput was measured."""
    per_s: float | None = None
    trials: list[float] | None = None


class ReplicationEnvironment(ReceiptPart):
    """The replicas' CPUs and links."""

    replica_cpus: list[int]
    links: dict[str, LinkCalibration] = Field(alias="wires")


class UserServerOptions(ReceiptPart):
    """The options that name a user's own server, without a password."""

    dsn: str | None = None
    password_file: str | None = None


class DataFacts(ReceiptPart):
    """How the tables were loaded."""

    data_file_system: str | None = None
    data_from_template: bool | None = None
    given: bool | None = None
    """Whether they are in a user's own server."""
    tables: int | None = None
    table_size: int | None = None
    contents: list[str] = Field(default_factory=list)


class RunEnvironment(MachineFacts):
    """The environment of a run; between hosts, the machine is the server's host."""

    testbed: str = "laboratory"
    roles: HostRoles | None = Field(None, alias="place")
    hosts: dict[str, HostFacts] = Field(default_factory=dict)
    sandbox: bool | None = None
    placement: str | None = None
    client_cpus: list[int] = Field(default_factory=list)
    server_cpus: list[int] = Field(default_factory=list)
    work_file_system: str | None = None
    data_fsync_ns: dict[str, QuantilesNs] | None = None
    """Duration of a write with fsync, by its number of bytes; None if it could not be measured."""
    data: DataFacts = Field(default_factory=DataFacts)
    capacity: Capacity | None = None
    tcp_buffers: dict[str, int] = Field(default_factory=dict)
    tcp: TcpSettings | None = None
    """None without a link."""
    auxiliary_servers: dict[str, dict[str, str]] = Field(default_factory=dict, alias="beside")
    application: str | None = None
    link_backend: str | None = None
    link: LinkCalibration | None = None
    link_cpus: list[int] | None = None
    replication: ReplicationEnvironment | None = None
    distances: list[LinkReceipt] = Field(default_factory=list)
    """The links between the hosts, measured before the run."""
    warnings: list[str] = Field(default_factory=list)
    howfar_version: str | None = None
    engine_version: str | None = None
    not_as_requested: list[str] = Field(default_factory=list, alias="not_as_asked")
    """What the server could not do as the plan requests, in words."""
    hosts_file: str | None = None
    """The file of hosts that the run was begun with."""
    user_server: UserServerOptions | None = Field(None, alias="given")

    @property
    def on_hosts(self) -> bool:
        """Whether the run was between the user's hosts."""
        return self.testbed == "hosts"

    @property
    def fsync_ns(self) -> int | None:
        """Median duration of an fsync of one sector of 512 bytes."""
        times = (self.data_fsync_ns or {}).get("512")
        return None if times is None else times.p50
