"""Hosts as network namespaces with a share of the CPUs, and the cables between them: interfaces, addresses, routes, buffers."""

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
from howfar.errors import LabError, LinkFailed
from howfar.lab import kernel, sandbox

REPLICAS_MOST = 9
LINKS_MOST = 15
"""Maximum number of links of a laboratory. One hexadecimal digit keeps names short: a thread's name of 15 letters contains two device
names."""


@dataclass(frozen=True)
class Ends:
    """Devices and addresses of one link, unique within the laboratory."""

    client_device: str
    server_device: str
    client_middle: str
    server_middle: str
    bridge: str
    """The bridge in the middle, for the back-end that uses one."""
    client_address: str
    server_address: str
    client_address6: str
    server_address6: str
    subnet: str
    subnet6: str
    client_mac: str
    server_mac: str


def numbered(number: int) -> Ends:
    """The ends of link `number`."""
    assert 0 <= number <= LINKS_MOST, "names have one digit"
    names = tuple(f"{word}{number:x}" for word in ("r", "p", "lr", "lp")) if number else ("c0", "s0", "lc", "ls")
    own, other, own_middle, other_middle = names
    return Ends(
        client_device=own,
        server_device=other,
        client_middle=own_middle,
        server_middle=other_middle,
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


FIRST = numbered(0)


_Result = TypeVar("_Result")
Cpus = tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """CPUs of each host. Both share a single CPU; of an odd number, one is left to other processes."""

    client: Cpus
    server: Cpus

    @property
    def shared(self) -> bool:
        return bool(set(self.client) & set(self.server))


def share_cpus(cpus: Sequence[int]) -> Shares:
    """Equal halves of `cpus`, in the given order, so that adjacent ones stay together."""
    assert cpus, "a process always may run somewhere"
    if len(cpus) == 1:
        return Shares(client=tuple(cpus), server=tuple(cpus))
    half = len(cpus) // 2
    return Shares(server=tuple(cpus[:half]), client=tuple(cpus[half : 2 * half]))


def usable_cpus() -> Cpus:
    """CPUs that we may use, with threads of one physical core adjacent, so that hosts do not share a core needlessly."""

    def place(cpu: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package = int((topology / "physical_package_id").read_text())
            core = int((topology / "core_id").read_text())
        except (OSError, ValueError):
            package, core = 0, cpu
        return package, core, cpu

    return tuple(sorted(os.sched_getaffinity(0), key=place))


def cpus_of(pid: int | None) -> list[int] | None:
    """CPUs on which a process may run, for all its threads together; None if it has ended, or for `pid` None."""
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
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def format_cpus(cpus: Sequence[int]) -> str:
    """CPUs in taskset's format: `0,2,3`."""
    return ",".join(str(cpu) for cpu in cpus)


@dataclass(frozen=True)
class Host:
    """A named network namespace. `network` is its descriptor; None for the current namespace."""

    name: str
    network: int | None

    def launcher(self, cpus: Sequence[int], *, foreground: bool = False) -> Launcher:
        """A launcher of processes on this host. `foreground`: they share our terminal and Ctrl-C; else each has its own session."""
        prefix: list[str] = [] if foreground else ["setsid"]
        if self.network is None:
            prefix += ["setpriv", "--pdeathsig", "KILL", "--"]
        else:
            prefix += ["nsenter", f"--net=/proc/self/fd/{self.network}", "--"]
        prefix += ["taskset", "-c", format_cpus(cpus)]
        return Launcher(prefix=tuple(prefix), pass_fds=() if self.network is None else (self.network,))

    def within(self, function: Callable[[], _Result]) -> _Result:
        """Run `function` in a thread in this network namespace."""
        if self.network is None:
            return function()
        return kernel.in_network_namespace(self.network, function)

    def ip(self, batch: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        """Run lines of `ip -batch` on this host. Raises LabError."""
        self._batch("ip", batch, pass_fds)

    def tc(self, batch: Sequence[str]) -> None:
        """Run lines of `tc -batch` on this host. Raises LabError."""
        self._batch("tc", batch, ())

    def _batch(self, program: str, batch: Sequence[str], pass_fds: Sequence[int]) -> None:
        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [program, "-batch", "-"],
                input="\n".join(batch) + "\n",
                capture_output=True,
                text=True,
                pass_fds=tuple(pass_fds),
            )

        try:
            tried = self.within(run)
        except FileNotFoundError as error:
            raise LabError(f"the program {program} was not found", "Install iproute2.") from error
        if tried.returncode != 0:
            raise LabError(f"setting up the network of host {self.name} failed: {tried.stderr.strip()}")

    def write_sysctl(self, name: str, value: str) -> bool:
        """Set `net/…` of this network namespace; returns False if the kernel does not permit it."""

        def write() -> bool:
            try:
                Path("/proc/sys", name).write_text(value)
            except OSError:
                return False
            return True

        return self.within(write)


class Companion:
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
CLIENT_ADDRESS = FIRST.client_address
SERVER_ADDRESS = FIRST.server_address
SERVER_ADDRESS6 = FIRST.server_address6
MTU = 1500
CONGESTION_CONTROL = "cubic"
"""Default of Debian's kernels; set per route, because a child network namespace may not set its own default."""
TcpPreset = Literal["stock", "tuned"]
TCP_PRESETS: tuple[TcpPreset, ...] = ("tuned", "stock")
"""`tuned`: TCP buffers of up to four bandwidth-delay products, at most 1 GiB, never less than the kernel's own maximum. `stock`: the
kernel's defaults, which at 10 Gb/s and 85 ms carry about 0.3 Gb/s: a finding, not a fault of the link."""
_BUFFER_MAX = 1 << 30
_LOCAL = "route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"
_QUIET6 = {"accept_ra": "0", "autoconf": "0", "accept_dad": "0", "router_solicitations": "0", "addr_gen_mode": "1"}
"""Settings that keep the kernel's own packets off the link: no solicitation, no duplicate address detection, no link-local address."""


@dataclass
class Network:
    """Two hosts of a sandbox; a link's back-end cables them."""

    base: Host
    client: Host
    server: Host
    mtu: int = MTU
    congestion_control: str = CONGESTION_CONTROL
    """The congestion control in force."""
    by_route: bool = True
    """Whether the congestion control is set for each route; otherwise it is the kernel's own."""
    ipv6: bool = False
    """Whether the present cables carry IPv6 too."""
    shares: Shares | None = None
    """CPUs of the hosts, for processes that carry packets between them; None for any CPUs."""
    ends: Ends = FIRST
    warnings: list[str] = field(default_factory=list)


def middle_batch(client_fd: int, server_fd: int, mtu: int = MTU, ends: Ends = FIRST) -> list[str]:
    """`ip -batch` lines for the base network: two cables, whose outer ends are moved to the hosts."""
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
    return [*lines, f"{_LOCAL} congctl {congestion_control}"] if congestion_control else lines


def host_batch(role: str, congestion_control: str | None, *, ipv6: bool = True, ends: Ends = FIRST) -> list[str]:
    """`ip -batch` lines for a host's end of the link: addresses, the only neighbour (static), routes with their congestion control.

    ARP is off, and with it the multicast groups that IPv6 joins to find neighbours: no queries, no announcements.
    """
    client = (ends.client_device, ends.client_address, ends.client_address6, ends.client_mac)
    server = (ends.server_device, ends.server_address, ends.server_address6, ends.server_mac)
    near, far = {"client": (client, server), "server": (server, client)}[role]
    device, own, own6, _ = near
    _, other, other6, mac = far
    chosen = f" congctl {congestion_control}" if congestion_control else ""
    lines = [
        f"link set dev {device} arp off up",
        f"addr replace {own}/30 dev {device} noprefixroute",
        f"neigh replace {other} lladdr {mac} dev {device} nud permanent",
        f"route replace {ends.subnet} dev {device} scope link src {own}{chosen}",
    ]
    if ipv6:
        lines += [
            f"addr replace {own6}/64 dev {device} nodad noprefixroute",
            f"neigh replace {other6} lladdr {mac} dev {device} nud permanent",
            f"route replace {ends.subnet6} dev {device} src {own6}{chosen}",
        ]
    return lines


def build_network(ledger: ExitStack, mtu: int = MTU, congestion_control: str = CONGESTION_CONTROL) -> Network:
    """Create both hosts, not cabled yet; call in the sandbox. `ledger` closes the descriptors. Raises LinkFailed."""
    base = Host("base", None)
    _without_ipv6(base)
    client, server = _new_host("client", ledger), _new_host("server", ledger)
    network = Network(base, client, server, mtu, congestion_control)
    for host in (client, server):
        _open_loopback(network, host)
    return network


def join_replica(network: Network, ledger: ExitStack, number: int, shares: Shares | None) -> Network:
    """Add the host `replica1` and so on, with its own link to the server's host, not cabled yet. The replica is the link's client,
    because it opens the connection: the primary's data goes `to_client`, acknowledgements go `to_server`. Raises LinkFailed."""
    replica = _new_host(f"replica{number}", ledger)
    joined = join_hosts(network, replica, network.server, number, shares)
    _open_loopback(joined, replica)
    return joined


def join_hosts(network: Network, client: Host, server: Host, number: int, shares: Shares | None) -> Network:
    """Link `number` between two existing hosts, not cabled yet."""
    return replace(network, client=client, server=server, ipv6=False, shares=shares, warnings=[], ends=numbered(number))


def address_nodes(network: Network, client_address: str, server_address: str) -> None:
    """Give each host an address that the other reaches over this link, whatever other links it has. Raises LabError."""
    ends = network.ends
    chosen = f" congctl {network.congestion_control}" if network.by_route else ""
    for host, device, own, other, hop in (
        (network.client, ends.client_device, client_address, server_address, ends.server_address),
        (network.server, ends.server_device, server_address, client_address, ends.client_address),
    ):
        host.ip(
            [
                f"addr replace {own}/32 dev lo",
                f"route replace {other}/32 via {hop} dev {device} src {own}{chosen}",
            ]
        )


def _new_host(name: str, ledger: ExitStack) -> Host:
    try:
        descriptor = kernel.new_network_namespace()
    except OSError as error:
        raise LinkFailed(f"a network for a host could not be created: {error}", sandbox.network_remedy()) from error
    ledger.callback(os.close, descriptor)
    host = Host(name, descriptor)
    _without_ipv6(host)
    return host


def _without_ipv6(host: Host) -> None:
    for scope in ("all", "default"):
        host.write_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")


def _open_loopback(network: Network, host: Host) -> None:
    _with_congestion_control(network, host, loopback_batch)


def _with_congestion_control(network: Network, host: Host, lines: Callable[[str | None], list[str]]) -> None:
    """Run the lines that `lines` returns for the congestion control of this network. Raises LabError."""
    chosen = network.congestion_control if network.by_route else None
    try:
        host.ip(lines(chosen))
    except LabError as error:
        if chosen is None:
            raise
        _not_chosen(network, chosen, error)
        host.ip(lines(None))


def _not_chosen(network: Network, requested: str, error: LabError) -> None:
    """Handle an unavailable congestion control: fall back from the default to the kernel's own, with a warning; any other is an error.

    Raises LinkFailed.
    """
    own = network.client.within(Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text).strip()
    why = error.message.splitlines()[0]
    if requested != CONGESTION_CONTROL:
        known = network.base.within(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text).strip()
        raise LinkFailed(
            f"congestion control {requested} cannot be chosen: {why}",
            f"This kernel knows {known}; the default here is {own}.",
        ) from error
    if network.congestion_control != own:
        network.warnings.append(
            f"congestion control is the kernel's own, {own}: {requested} could not be chosen ({why})"
        )
    network.congestion_control = own
    network.by_route = False


@contextmanager
def cable_through_middle(network: Network) -> Iterator[None]:
    """Lay a cable from each host to the base network; remove both on leaving. Raises LinkFailed."""
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    ends = network.ends
    _cable(network, middle_batch(client_fd, server_fd, network.mtu, ends))
    with ExitStack() as ledger:
        ledger.callback(network.base.ip, [f"link del dev {ends.client_middle}", f"link del dev {ends.server_middle}"])
        _configure(network)
        yield


@contextmanager
def cable_directly(network: Network) -> Iterator[None]:
    """Connect the hosts by one cable; remove it on leaving. Raises LinkFailed."""
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    mtu, ends = network.mtu, network.ends
    client, server = ends.client_device, ends.server_device
    peer = f"type veth peer name {server} mtu {mtu} address {ends.server_mac}"
    _cable(
        network,
        [
            f"link add name {client} mtu {mtu} address {ends.client_mac} {peer}",
            f"link set dev {client} netns /proc/self/fd/{client_fd}",
            f"link set dev {server} netns /proc/self/fd/{server_fd}",
        ],
    )
    with ExitStack() as ledger:
        ledger.callback(network.client.ip, [f"link del dev {client}"])
        _configure(network)
        yield


def _cable(network: Network, batch: list[str]) -> None:
    client_fd, server_fd = network.client.network, network.server.network
    assert client_fd is not None and server_fd is not None
    try:
        network.base.ip(batch, pass_fds=(client_fd, server_fd))
    except LabError as error:
        refused = sandbox.lacking_capabilities()
        advice = sandbox.network_remedy() if refused else "Is the kernel's veth module available?"
        raise LinkFailed(error.message, f"{advice} Paths without a link still work.") from error


def _configure(network: Network) -> None:
    """Set addresses and routes of both ends."""
    ends = network.ends
    network.ipv6 = _allow_ipv6(network.client, ends.client_device) and _allow_ipv6(network.server, ends.server_device)
    for role, host in (("client", network.client), ("server", network.server)):
        lines = partial(host_batch, role, ipv6=network.ipv6, ends=ends)
        _with_congestion_control(network, host, lines)


def _allow_ipv6(host: Host, device: str) -> bool:
    """Enable IPv6 on this interface only. Returns False if the kernel has no IPv6."""
    quiet = [host.write_sysctl(f"net/ipv6/conf/{device}/{name}", value) for name, value in _QUIET6.items()]
    return all(quiet) and host.write_sysctl(f"net/ipv6/conf/{device}/disable_ipv6", "0")


def size_buffers(network: Network, bdp_bytes: int, preset: TcpPreset = "tuned") -> dict[str, int]:
    """Size TCP's buffers. `tuned`: four bandwidth-delay products, at least the kernel's own maximum. Returns the maxima in force."""
    maxima: dict[str, int] = {}
    for host in (network.client, network.server):
        for name in ("tcp_rmem", "tcp_wmem"):
            file = Path("/proc/sys/net/ipv4", name)
            low, middle, high = (int(word) for word in host.within(file.read_text).split())
            wanted = min(max(high, 4 * bdp_bytes), _BUFFER_MAX) if preset == "tuned" else high
            if wanted > high and host.write_sysctl(f"net/ipv4/{name}", f"{low} {middle} {wanted}"):
                high = wanted
            maxima[f"{host.name}_{name}_max"] = high
    return maxima


def tcp_memory_warning(bdp_bytes: int) -> str | None:
    """A warning if the kernel's machine-wide limit for TCP memory is reached before a link of this size is full."""
    try:
        _, pressure, _ = (int(word) for word in os.environ.get(sandbox.TCP_MEMORY, "").split())
    except ValueError:
        return None  # this kernel does not report it
    limit = pressure * os.sysconf("SC_PAGE_SIZE")
    if 4 * bdp_bytes <= limit:
        return None
    return (
        f"net.ipv4.tcp_mem lets TCP on this machine use {limit / 2**20:.0f} MiB in total before it saves memory; this link may "
        f"need {4 * bdp_bytes / 2**20:.0f} MiB, so its goodput may be lower"
    )
