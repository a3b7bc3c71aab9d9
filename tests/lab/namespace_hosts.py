"""A program for the tests: runs a command with namespaces as hosts, each with an address, an sshd and a route to the others.

python -m tests.lab.namespace_hosts REQUEST_JSON COMMAND...

Without a `link` all hosts are on one bridge, and COMMAND runs in the namespace of the bridge. With a link there are two hosts, a
(where COMMAND runs) and b, connected by the laboratory's emulated link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from howfar.fleet import node
from howfar.lab import kernel, sandbox
from howfar.lab.link import LinkSpec, open_link
from howfar.lab.network import Host, ManagedProcess, build_network, usable_cpus

BRIDGE_ADDRESS = "10.78.0.1"
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NamespaceHost:
    """A host."""

    name: str
    host: Host
    address: str


def _on_bridge(names: Sequence[str], stack: ExitStack) -> list[NamespaceHost]:
    base = Host("base", None)
    base.ip(
        [
            "link set dev lo up",
            "link add br0 type bridge",
            f"addr add {BRIDGE_ADDRESS}/24 dev br0",
            "link set dev br0 up",
        ]
    )
    found = []
    for number, name in enumerate(names):
        descriptor = kernel.new_network_namespace()
        stack.callback(os.close, descriptor)
        host, address = Host(name, descriptor), f"10.78.0.{10 + number}"
        base.ip(
            [
                f"link add v{number} type veth peer name e0",
                f"link set dev e0 netns /proc/self/fd/{descriptor}",
                f"link set dev v{number} master br0 up",
            ],
            pass_fds=(descriptor,),
        )
        host.ip(["link set dev lo up", f"addr add {address}/24 dev e0", "link set dev e0 up"])
        found.append(NamespaceHost(name, host, address))
    return found


def _on_link(rtt_ns: int, rate_bps: int | None, stack: ExitStack) -> list[NamespaceHost]:
    network = build_network(stack)
    cpus = usable_cpus()
    launchers = (network.client.launcher(cpus), network.server.launcher(cpus))
    stack.enter_context(open_link(network, LinkSpec(rtt_ns, rate_bps), *launchers, {}, with_goodput=False))
    return [NamespaceHost("a", network.client, "10.77.0.1"), NamespaceHost("b", network.server, "10.77.0.2")]


class Sshd:
    """One key pair for all hosts, and an sshd on each host."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
        (directory / "known").write_text("* " + (directory / "host.pub").read_text())
        Path("/run/sshd").mkdir(exist_ok=True)

    def start(self, host: NamespaceHost) -> ManagedProcess:
        file = self.directory / f"sshd-{host.name}"
        file.write_text(
            f"ListenAddress {host.address}\nHostKey {self.directory / 'host'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.directory / 'user.pub'}\nStrictModes no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nLogLevel VERBOSE\n"
        )
        with (self.directory / f"sshd-{host.name}.log").open("wb") as log:
            command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(file)]
            # In the foreground, sshd may start processes that outlive their session, as on any machine.
            return ManagedProcess(host.host.launcher(usable_cpus()), command, stdout=log, stderr=log)

    @property
    def arguments(self) -> str:
        return f"-i {self.directory / 'user'} -o UserKnownHostsFile={self.directory / 'known'} -o IdentitiesOnly=yes"


def _wait_for_sshd(host: NamespaceHost) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if b":22 " in host.host.run(lambda: subprocess.run(["ss", "-ltn"], capture_output=True).stdout):
            return
        time.sleep(0.02)
    raise SystemExit(f"no sshd on {host.name}")


def main() -> int:
    if not sandbox.inside():
        return sandbox.run_inside()
    request = json.loads(sys.argv[1])
    directory = Path(request["directory"])
    with ExitStack() as stack:
        link = request.get("link")
        hosts = _on_link(**link, stack=stack) if link else _on_bridge(request["hosts"], stack)
        sshd = Sshd(directory)
        lines = []
        for host in hosts:
            local = bool(link) and host is hosts[0]
            if not local:
                stack.callback(sshd.start(host).end)
                _wait_for_sshd(host)
            ssh = "local" if local else f"{sshd.arguments} root@{host.address}"
            lines.append(
                f'[hosts.{host.name}]\naddress = "{host.address}"\nssh = "{ssh}"\npython = "{sys.executable}"\n'
                + request.get("more", {}).get(host.name, "")
            )
        (directory / "hosts.toml").write_text("\n".join(lines))
        for host in hosts:  # a test can change the host's network by it
            (directory / f"{host.name}.net").write_text(str(host.host.namespace_fd))
        command_host = hosts[0].host if link else Host("base", None)
        launcher = command_host.launcher(usable_cpus(), foreground=True)
        command = launcher.popen(sys.argv[2:], cwd=directory)
        node.watch(command)  # this process 1 reaps processes that a killed command leaves
        return int(command.returncode)


if __name__ == "__main__":
    sys.exit(main())
