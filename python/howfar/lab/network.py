"""Hosts, which are network namespaces with a share of the CPUs, and the veth cables between them: addresses, routes, TCP buffers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from howfar.engine.process import Launcher
from howfar.errors import LabError, LinkFailed, MissingError
from howfar.lab import kernel, sandbox

MAX_REPLICAS = 9
MAX_LINKS = 15
"""Maximum number of links of a laboratory. Device names contain the link's number as one hexadecimal digit, because the name of an
emulator's thread (at most 15 characters) consists of two device names."""


@dataclass(frozen=True)
class LinkAddresses:
    """Devices and addresses of one link, unique within the laboratory."""

    client_device: str
    server_device: str
    client_middle: str
    server_middle: str
    """The other ends of the two cables, in the base network."""
    bridge: str
    """The bridge between them, for the back-end that uses one."""
    client_address: str
    server_address: str
    client_address6: str
    server_address6: str
    subnet: str
    subnet6: str
    client_mac: str
    server_mac: str


def link_addresses(number: int) -> LinkAddresses:
    """The devices and addresses of link `number`. Link 0 joins client (c) and server (s), the others a replica (r) and its primary
    (p); the name of a cable's end in the base network begins with l."""
    assert 0 <= number <= MAX_LINKS, "a link's number is one hexadecimal digit"
    names = tuple(f"{prefix}{number:x}" for prefix in ("r", "p", "lr", "lp")) if number else ("c0", "s0", "lc", "ls")
    client, server, client_middle, server_middle = names
    return LinkAddresses(
        client_device=client,
        server_device=server,
        client_middle=client_middle,
        server_middle=server_middle,
        bridge=f"lab{number}",
        client_address=f"10.77.{number}.1",
        server_address=f"10.77.{number}.2",
        client_address6=f"fd00:{77 + number}::1",
        server_address6=f"fd00:{77 + number}::2",
        subnet=f"10.77.{number}.0/30",
        subnet6=f"fd00:{77 + number}::/64",
        client_mac=f"02:00:0a:4d:{number:02x}:01",
        server_mac=f"02:00:0a:4d:{number:02x}:02",
    )


CLIENT_LINK = link_addresses(0)


_Result = TypeVar("_Result")
Cpus = tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """CPUs of each host. Both hosts get the only CPU of a machine; otherwise each gets half, and neither gets the last of an odd
    number."""

    client: Cpus
    server: Cpus

    @property
    def overlap(self) -> bool:
        return bool(set(self.client) & set(self.server))


def share_cpus(cpus: Sequence[int]) -> Shares:
    """Equal halves of `cpus`, in the given order, so that adjacent ones stay together."""
    assert cpus, "a process may run on at least one CPU"
    if len(cpus) == 1:
        return Shares(client=tuple(cpus), server=tuple(cpus))
    half = len(cpus) // 2
    return Shares(server=tuple(cpus[:half]), client=tuple(cpus[half : 2 * half]))


def usable_cpus() -> Cpus:
    """CPUs that this process may use, those of one physical core adjacent, so that hosts do not share a core needlessly."""

    def core_order(cpu: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package = int((topology / "physical_package_id").read_text())
            core = int((topology / "core_id").read_text())
        except (OSError, ValueError):
            package, core = 0, cpu
        return package, core, cpu

    return tuple(sorted(os.sched_getaffinity(0), key=core_order))


def cpus_of(pid: int | None) -> list[int] | None:
    """CPUs on which at least one thread of a process may run; None if the process has ended or `pid` is None."""
    if pid is None:
        return None
    try:
        return sorted(
            {cpu for task in Path(f"/proc/{pid}/task").iterdir() for cpu in os.sched_getaffinity(int(task.name))}
        )
    except OSError:
        return None


def cpu_s_of(pid: int) -> float:
    """CPU time that a process has used, in seconds; 0 if it has ended."""
    try:
        user_ticks, system_ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user_ticks) + int(system_ticks)) / os.sysconf("SC_CLK_TCK")


def format_cpus(cpus: Sequence[int]) -> str:
    """CPUs in taskset's format: `0,2,3`."""
    return ",".join(str(cpu) for cpu in cpus)


@dataclass(frozen=True)
class Host:
    """A named network namespace. `namespace_fd` is its file descriptor; None for the current namespace."""

    name: str
    namespace_fd: int | None

    def launcher(self, cpus: Sequence[int], *, foreground: bool = False) -> Launcher:
        """A launcher of processes on this host. `foreground`: processes share our terminal and receive Ctrl-C; otherwise each has its
        own session."""
        prefix: list[str] = [] if foreground else ["setsid"]
        if self.namespace_fd is None:
            prefix += ["setpriv", "--pdeathsig", "KILL", "--"]
        else:
            prefix += ["nsenter", f"--net=/proc/self/fd/{self.namespace_fd}", "--"]
        prefix += ["taskset", "-c", format_cpus(cpus)]
        return Launcher(prefix=tuple(prefix), pass_fds=() if self.namespace_fd is None else (self.namespace_fd,))

    def run(self, function: Callable[[], _Result]) -> _Result:
        """Run `function` in a thread in this network namespace."""
        if self.namespace_fd is None:
            return function()
        return kernel.in_network_namespace(self.namespace_fd, function)

    def ip(self, batch: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        """Run lines of `ip -batch` on this host. Raises LabError, MissingError."""
        self._run_batch("ip", batch, pass_fds)

    def tc(self, batch: Sequence[str]) -> None:
        """Run lines of `tc -batch` on this host. Raises LabError, MissingError."""
        self._run_batch("tc", batch, ())

    def _run_batch(self, program: str, batch: Sequence[str], pass_fds: Sequence[int]) -> None:
        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [program, "-batch", "-"],
                input="\n".join(batch) + "\n",
                capture_output=True,
                text=True,
                pass_fds=tuple(pass_fds),
            )

        try:
            result = self.run(run)
        except FileNotFoundError as error:
            raise MissingError(
                f"the program {program} was not found", "Install iproute2 (`howfar setup` does it)."
            ) from error
        if result.returncode != 0:
            raise LabError(f"setting up the network of host {self.name} failed: {result.stderr.strip()}")

    def write_sysctl(self, name: str, value: str) -> bool:
        """Set `net/…` of this network namespace; returns False if the kernel does not permit it."""

        def write() -> bool:
            try:
                Path("/proc/sys", name).write_text(value)
            except OSError:
                return False
            return True

        return self.run(write)


class ManagedProcess:
    """A background process in its own session, ended together with all its descendants in that session."""

    def __init__(self, launcher: Launcher, command: Sequence[str], **options: Any) -> None:
        self.process: subprocess.Popen[Any] = launcher.popen(command, **options)

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def alive(self) -> bool:
        return self.poll() is None

    def end(self) -> None:
        sandbox.end_session(self.process)


LOOPBACK_ADDRESS = "127.0.0.1"
CLIENT_ADDRESS = CLIENT_LINK.client_address
SERVER_ADDRESS = CLIENT_LINK.server_address
SERVER_ADDRESS6 = CLIENT_LINK.server_address6
MTU = 1500
CONGESTION_CONTROL = "cubic"
"""Default of Debian's kernels. It is set for each route, because a child network namespace may not set its own default."""
TcpPreset = Literal["stock", "tuned"]
TCP_PRESETS: tuple[TcpPreset, ...] = ("tuned", "stock")
"""`tuned`: TCP buffers of up to four bandwidth-delay products, at most 1 GiB, never less than the kernel's own maximum. `stock`: the
kernel's defaults, with which a link of 10 Gb/s and 85 ms carries about 0.3 Gb/s; the settings cause that, not the link."""
_MAX_BUFFER_BYTES = 1 << 30
_LOOPBACK_ROUTE = "route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"
_QUIET_IPV6 = {"accept_ra": "0", "autoconf": "0", "accept_dad": "0", "router_solicitations": "0", "addr_gen_mode": "1"}
"""Settings that keep the kernel's own packets off the link: no router solicitation, no duplicate address detection, no link-local
address."""


@dataclass
class Network:
    """Two hosts of a sandbox. The back-end of a link cables them."""

    base: Host
    """The sandbox's own network, in which emulators and bridges between the hosts run."""
    client: Host
    server: Host
    mtu: int = MTU
    congestion_control: str = CONGESTION_CONTROL
    """Name of the congestion control in force."""
    congestion_control_per_route: bool = True
    """Whether the congestion control is set for each route; if not, the kernel's default applies."""
    ipv6: bool = False
    """Whether the present cables carry IPv6 too."""
    shares: Shares | None = None
    """CPUs of the hosts, for processes that carry packets between them; None for any CPUs."""
    ends: LinkAddresses = CLIENT_LINK
    """Devices and addresses of the link between the hosts."""
    warnings: list[str] = field(default_factory=list)

    @property
    def namespace_fds(self) -> tuple[int, int]:
        """Descriptors of the client's and the server's namespace."""
        assert self.client.namespace_fd is not None and self.server.namespace_fd is not None, (
            "both hosts are namespaces"
        )
        return self.client.namespace_fd, self.server.namespace_fd


def middle_batch(client_fd: int, server_fd: int, mtu: int = MTU, ends: LinkAddresses = CLIENT_LINK) -> list[str]:
    """`ip -batch` lines for the base network: two veth cables; the outer end of each is moved to its host's namespace."""
    client, server = ends.client_device, ends.server_device
    return [
        f"link add name {ends.client_middle} mtu {mtu} type veth peer name {client} mtu {mtu} address {ends.client_mac}",
        f"link add name {ends.server_middle} mtu {mtu} type veth peer name {server} mtu {mtu} address {ends.server_mac}",
        f"link set dev {client} netns /proc/self/fd/{client_fd}",
        f"link set dev {server} netns /proc/self/fd/{server_fd}",
        f"link set dev {ends.client_middle} arp off up",
        f"link set dev {ends.server_middle} arp off up",
    ]


def loopback_batch(congestion_control: str | None) -> list[str]:
    """`ip -batch` lines for a host's own loopback, with the same congestion control as on the link."""
    lines = ["link set dev lo up"]
    return [*lines, f"{_LOOPBACK_ROUTE} congctl {congestion_control}"] if congestion_control else lines


def host_batch(
    role: str, congestion_control: str | None, *, ipv6: bool = True, ends: LinkAddresses = CLIENT_LINK
) -> list[str]:
    """`ip -batch` lines for a host's end of the link: addresses, a static entry for its only neighbour, routes with their congestion
    control.

    ARP is off. That also disables IPv6 neighbour discovery, so the kernel itself sends nothing over the link.
    """
    client = (ends.client_device, ends.client_address, ends.client_address6, ends.client_mac)
    server = (ends.server_device, ends.server_address, ends.server_address6, ends.server_mac)
    own_end, other_end = {"client": (client, server), "server": (server, client)}[role]
    device, own_address, own_address6, _ = own_end
    _, other_address, other_address6, mac = other_end
    congctl = f" congctl {congestion_control}" if congestion_control else ""
    lines = [
        f"link set dev {device} arp off up",
        f"addr replace {own_address}/30 dev {device} noprefixroute",
        f"neigh replace {other_address} lladdr {mac} dev {device} nud permanent",
        f"route replace {ends.subnet} dev {device} scope link src {own_address}{congctl}",
    ]
    if ipv6:
        lines += [
            f"addr replace {own_address6}/64 dev {device} nodad noprefixroute",
            f"neigh replace {other_address6} lladdr {mac} dev {device} nud permanent",
            f"route replace {ends.subnet6} dev {device} src {own_address6}{congctl}",
        ]
    return lines


def build_network(stack: ExitStack, mtu: int = MTU, congestion_control: str = CONGESTION_CONTROL) -> Network:
    """Create both hosts, not cabled yet; call in the sandbox. `stack` closes the descriptors. Raises LinkFailed."""
    base = Host("base", None)
    _disable_ipv6(base)
    client, server = _create_host("client", stack), _create_host("server", stack)
    network = Network(base, client, server, mtu, congestion_control)
    for host in (client, server):
        _configure_with_congestion_control(network, host, loopback_batch)
    return network


def join_replica(network: Network, stack: ExitStack, number: int, shares: Shares | None) -> Network:
    """Create the host `replicaNUMBER`, and its own link to the server's host, not cabled yet. The replica is the link's client,
    because it opens the connection: the primary's data goes `to_client`, acknowledgements go `to_server`. Raises LinkFailed."""
    replica = _create_host(f"replica{number}", stack)
    replica_network = join_hosts(network, replica, network.server, number, shares)
    _configure_with_congestion_control(replica_network, replica, loopback_batch)
    return replica_network


def join_hosts(network: Network, client: Host, server: Host, number: int, shares: Shares | None) -> Network:
    """The network of link `number` between two existing hosts, not cabled yet."""
    return replace(
        network, client=client, server=server, ipv6=False, shares=shares, warnings=[], ends=link_addresses(number)
    )


def assign_node_addresses(network: Network, client_address: str, server_address: str) -> None:
    """Give each host an address that the other host reaches over this link, even if they have other links. Raises LabError."""
    ends = network.ends
    congctl = f" congctl {network.congestion_control}" if network.congestion_control_per_route else ""
    for host, device, own_address, other_address, gateway in (
        (network.client, ends.client_device, client_address, server_address, ends.server_address),
        (network.server, ends.server_device, server_address, client_address, ends.client_address),
    ):
        host.ip(
            [
                f"addr replace {own_address}/32 dev lo",
                f"route replace {other_address}/32 via {gateway} dev {device} src {own_address}{congctl}",
            ]
        )


def _create_host(name: str, stack: ExitStack) -> Host:
    try:
        descriptor = kernel.new_network_namespace()
    except OSError as error:
        raise LinkFailed(f"a network for a host could not be created: {error}", sandbox.network_remedy()) from error
    stack.callback(os.close, descriptor)
    host = Host(name, descriptor)
    _disable_ipv6(host)
    return host


def _disable_ipv6(host: Host) -> None:
    """Disable IPv6 on all interfaces; `_enable_ipv6` enables it on the link's."""
    for scope in ("all", "default"):
        host.write_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")


def _configure_with_congestion_control(
    network: Network, host: Host, batch_for: Callable[[str | None], list[str]]
) -> None:
    """Run on `host` the `ip` lines that `batch_for` returns for the congestion control of this network. Raises LabError."""
    requested = network.congestion_control if network.congestion_control_per_route else None
    try:
        host.ip(batch_for(requested))
    except LabError as error:
        if requested is None:
            raise
        _fall_back_to_kernel_default(network, requested, error)
        host.ip(batch_for(None))


def _fall_back_to_kernel_default(network: Network, requested: str, error: LabError) -> None:
    """If our default congestion control is unavailable, fall back to the kernel's default with a warning.

    Raises LinkFailed if the user requested another than our default.
    """
    kernel_default = network.client.run(Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text).strip()
    reason = error.message.splitlines()[0]
    if requested != CONGESTION_CONTROL:
        available = network.base.run(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text).strip()
        raise LinkFailed(
            f"congestion control {requested} cannot be chosen: {reason}",
            f"This kernel knows {available}; the default here is {kernel_default}.",
        ) from error
    if network.congestion_control != kernel_default:
        network.warnings.append(
            f"congestion control is the kernel's own, {kernel_default}: {requested} could not be chosen ({reason})"
        )
    network.congestion_control = kernel_default
    network.congestion_control_per_route = False


@contextmanager
def cable_through_middle(network: Network) -> Iterator[None]:
    """Lay a cable from each host to the base network; remove both on leaving. Raises LinkFailed."""
    ends, (client_fd, server_fd) = network.ends, network.namespace_fds
    _create_cable(network, middle_batch(client_fd, server_fd, network.mtu, ends))
    with ExitStack() as stack:
        stack.callback(network.base.ip, [f"link del dev {ends.client_middle}", f"link del dev {ends.server_middle}"])
        _configure_ends(network)
        yield


@contextmanager
def cable_directly(network: Network) -> Iterator[None]:
    """Connect the hosts by one cable; remove it on leaving. Raises LinkFailed."""
    client_fd, server_fd = network.namespace_fds
    mtu, ends = network.mtu, network.ends
    client, server = ends.client_device, ends.server_device
    peer = f"type veth peer name {server} mtu {mtu} address {ends.server_mac}"
    _create_cable(
        network,
        [
            f"link add name {client} mtu {mtu} address {ends.client_mac} {peer}",
            f"link set dev {client} netns /proc/self/fd/{client_fd}",
            f"link set dev {server} netns /proc/self/fd/{server_fd}",
        ],
    )
    with ExitStack() as stack:
        stack.callback(network.client.ip, [f"link del dev {client}"])
        _configure_ends(network)
        yield


def _create_cable(network: Network, batch: list[str]) -> None:
    try:
        network.base.ip(batch, pass_fds=network.namespace_fds)
    except LabError as error:
        advice = (
            sandbox.network_remedy() if sandbox.lacking_capabilities() else "Is the kernel's veth module available?"
        )
        raise LinkFailed(error.message, f"{advice} Paths without a link still work.") from error


def _configure_ends(network: Network) -> None:
    """Set addresses and routes at both ends of the link."""
    ends = network.ends
    network.ipv6 = _enable_ipv6(network.client, ends.client_device) and _enable_ipv6(network.server, ends.server_device)
    for role, host in (("client", network.client), ("server", network.server)):
        batch_for = partial(host_batch, role, ipv6=network.ipv6, ends=ends)
        _configure_with_congestion_control(network, host, batch_for)


def _enable_ipv6(host: Host, device: str) -> bool:
    """Enable IPv6 on one interface only. Returns False if the kernel has no IPv6."""
    were_written = [host.write_sysctl(f"net/ipv6/conf/{device}/{name}", value) for name, value in _QUIET_IPV6.items()]
    return all(were_written) and host.write_sysctl(f"net/ipv6/conf/{device}/disable_ipv6", "0")


def size_buffers(network: Network, bdp_bytes: int, preset: TcpPreset = "tuned") -> dict[str, int]:
    """Set the maximum sizes of TCP's buffers. `tuned`: four bandwidth-delay products, at least the kernel's own maximum. Returns the
    maxima in force."""
    maxima: dict[str, int] = {}
    for host in (network.client, network.server):
        for name in ("tcp_rmem", "tcp_wmem"):
            file = Path("/proc/sys/net/ipv4", name)
            minimum, default, maximum = (int(word) for word in host.run(file.read_text).split())
            target = min(max(maximum, 4 * bdp_bytes), _MAX_BUFFER_BYTES) if preset == "tuned" else maximum
            if target > maximum and host.write_sysctl(f"net/ipv4/{name}", f"{minimum} {default} {target}"):
                maximum = target
            maxima[f"{host.name}_{name}_max"] = maximum
    return maxima


def tcp_memory_warning(bdp_bytes: int) -> str | None:
    """A warning if TCP reaches the kernel's machine-wide memory limit before a link with this bandwidth-delay product is full."""
    try:
        _, pressure, _ = (int(word) for word in os.environ.get(sandbox.TCP_MEMORY, "").split())
    except ValueError:
        return None  # the kernel's limit is unknown
    limit = pressure * os.sysconf("SC_PAGE_SIZE")
    if 4 * bdp_bytes <= limit:
        return None
    return (
        f"net.ipv4.tcp_mem lets TCP on this machine use {limit / 2**20:.0f} MiB in total before it comes under memory "
        f"pressure; this link may need {4 * bdp_bytes / 2**20:.0f} MiB, so its goodput may be lower"
    )
