"""Room for many connections: descriptors of this process and its children, queues of those who wait to be let in, port numbers.

Everything is set where it may be and then read back: limits that were silently lower would look like a slow server.
"""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

from howfar.errors import LabError
from howfar.lab.hosts import Host
from howfar.lab.network import Network

_OTHER_DESCRIPTORS = 8192
"""Of a server beside its clients: tables and their logs, each table open more than once."""
LEAST_QUEUE = 4096
"""The kernel's own somaxconn of today; an older one has 128."""
_PORTS = "10000 65535"
"""Of the client's side; the servers' own lie below."""


def allow_descriptors(connections: int) -> int:
    """Let each process have a descriptor for every connection and more; gives back what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_DESCRIPTORS
    if soft >= wanted:
        return soft
    for limit in ((wanted, max(wanted, hard)), (min(wanted, hard), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        except (ValueError, OSError):
            continue  # only root raises the hard one
        break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_queues(network: Network, connections: int) -> dict[str, int | str]:
    """Let so many connect to each host at one moment, and again soon after they have gone. Gives back what is in force.

    Raises LabError when the queues stay shorter.
    """
    wanted = max(LEAST_QUEUE, connections)
    facts: dict[str, int | str] = {}
    for host in (network.client, network.server):
        for name in ("net/core/somaxconn", "net/ipv4/tcp_max_syn_backlog"):
            if int(_read(host, name)) < wanted:
                host.write_sysctl(name, str(wanted))
            facts[f"{host.name}_{Path(name).name}"] = int(_read(host, name))
        # A closed connection's port rests for a minute; with one connection a transaction all would be resting.
        host.write_sysctl("net/ipv4/ip_local_port_range", _PORTS)
        host.write_sysctl("net/ipv4/tcp_tw_reuse", "1")
        facts[f"{host.name}_ports"] = " ".join(_read(host, "net/ipv4/ip_local_port_range").split())
        facts[f"{host.name}_tcp_tw_reuse"] = int(_read(host, "net/ipv4/tcp_tw_reuse"))
    shortest = min(int(value) for name, value in facts.items() if name.endswith("somaxconn"))
    if shortest < min(wanted, connections):
        raise LabError(
            f"this kernel lets {shortest} wait to be accepted where {connections} connect at once (net.core.somaxconn)",
            "Raise net.core.somaxconn, or use fewer threads.",
        )
    return facts


def _read(host: Host, name: str) -> str:
    try:
        return host.within(Path("/proc/sys", name).read_text).strip()
    except OSError:
        return "0"


def listen_queue(host: Host, port: int) -> int | None:
    """How many may wait to be accepted by who listens there, as the kernel has it; None: it does not say."""

    def ask() -> str:
        command = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    try:
        words = host.within(ask).split()
    except OSError:
        return None
    return int(words[2]) if len(words) > 2 and words[2].isdigit() else None
