"""`ssh` and `ssh-tcp`: the server's socket, or its TCP port, forwarded by one connection of OpenSSH between the hosts.

sshd runs as a user other than root, with the path's own keys and configuration. So sshd needs no directory, account or PAM
configuration of the machine, and clients can do nothing but forward. One single-threaded process on each host carries all connections
of the load, which limits the throughput. ssh has no counters; the kernel's counters of its connection show what it carried.
"""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.errors import LabError
from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, PathProcess, find_program

_UID = 1
"""UID of daemon on Debian, as which sshd runs. As root, sshd would need /run/sshd and accounts for privilege separation; as nobody, it
would admit no client if it could not read /etc/shadow, because systemd then reports nobody's account as locked."""
_SERVER_CONFIGURATION = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
AllowUsers {user}
AuthenticationMethods publickey
# The keys lie in the path's own directory, not in a home.
StrictModes no
UsePAM no
UseDNS no
PidFile none
PermitTTY no
X11Forwarding no
AllowAgentForwarding no
AllowTcpForwarding local
AllowStreamLocalForwarding local
"""
_CLIENT_CONFIGURATION = """\
Host *
    Port {port}
    User {user}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    HostKeyAlias howfar
    StrictHostKeyChecking yes
    BatchMode yes
    ExitOnForwardFailure yes
    ControlMaster no
    LocalForward {listen} {connect}
"""


class SshPath(Path):
    """A path through ssh. `by_socket`: from a Unix socket to the server's socket; otherwise from a TCP port to the server's port."""

    machines = 2
    crosses_link = True
    hops = ("ssh", "sshd")
    encrypts = True
    works_between_hosts = True
    modelled = False

    def __init__(self, name: str, label: str, *, by_socket: bool) -> None:
        self.name = name
        self.label = label
        self.by_socket = by_socket
        self.networking = not by_socket

    def open(self, context: PathContext) -> ClientEndpoint:
        port, socket_path = context.hop_port, context.work / "ssh.sock"
        folder = _copy_keys(context)
        if self.by_socket:
            context.run_on("client", partial(socket_path.unlink, missing_ok=True))
            listen, connect = str(socket_path), str(context.server_socket)
        else:
            listen = f"{context.loopback_address}:{port}"
            connect = f"{context.loopback_address}:{context.server_port}"
        user = context.run_on("server", _user_name)
        server_configuration = _SERVER_CONFIGURATION.format(
            port=port, address=context.server_address, folder=folder, user=user
        )
        client_configuration = _CLIENT_CONFIGURATION.format(
            port=port, folder=folder, user=user, listen=listen, connect=connect
        )
        server_file = context.write("server", "ssh/sshd_config", server_configuration)
        client_file = context.write("client", "ssh/ssh_config", client_configuration)
        sshd_command = [context.run_on("server", partial(find_program, "sshd")), "-D", "-e", "-f", str(server_file)]
        server_side = context.start("server", sshd_command, "sshd.log", as_user=_UID)
        context.wait_until(server_side, "sshd.log", lambda: context.listens(server_side, port))
        ssh = context.run_on("client", partial(find_program, "ssh"))
        ssh_command = [ssh, "-N", "-T", "-F", str(client_file), context.server_address]
        client_side = context.start("client", ssh_command, "ssh.log")
        context.wait_until(
            client_side,
            "ssh.log",
            lambda: _is_forwarding(context, client_side, socket_path if self.by_socket else None),
        )
        return ClientEndpoint(
            socket=listen if self.by_socket else None,
            host=None if self.by_socket else context.loopback_address,
            port=None if self.by_socket else port,
            peer_pid=client_side.pid if self.by_socket else None,
            expected_client_host="localhost" if self.by_socket else context.loopback_address,
            server_port=port,
            hops=(
                Hop("server_side", server_side, read_counters=lambda: context.tcp_bytes(port)),
                Hop("client_side", client_side),
            ),
            facts={
                "program": context.run_on("client", _version),
                "forwards": f"{listen} to {connect}, over one connection to port {port}",
            },
        )


SSH_PATHS = (
    SshPath("ssh", "the socket forwarded to a second machine by ssh", by_socket=True),
    SshPath("ssh-tcp", "a TCP port forwarded to a second machine by ssh", by_socket=False),
)


def _user_name() -> str:
    return pwd.getpwuid(_UID).pw_name


def _copy_keys(context: PathContext) -> FilePath:
    """Generate host key and user key on the server's host, unless they exist, and copy the files that ssh needs to the client's host.
    Returns their directory, which has the same path on both hosts. Raises LabError, MissingError."""
    folder = context.work / "ssh"
    context.run_on(
        "client", partial(_write_files, folder, context.run_on("server", partial(_read_client_files, folder)))
    )
    return folder


def _write_files(folder: FilePath, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)


def _read_client_files(folder: FilePath) -> dict[str, bytes]:
    """Contents of the files that a client needs, by name; generates the files if they do not exist."""
    if not (folder / "known_hosts").exists():
        _generate_keys(folder)
    return {name: (folder / name).read_bytes() for name in ("user_key", "known_hosts")}


def _generate_keys(folder: FilePath) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        (folder / name).unlink(missing_ok=True)
        result = subprocess.run(
            [find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)],
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise LabError(f"ssh-keygen made no key: {result.stderr.strip()}")
    (folder / "known_hosts").write_text(f"howfar {(folder / 'host_key.pub').read_text()}")


def _is_forwarding(context: PathContext, process: PathProcess, socket: FilePath | None) -> bool:
    if socket is None:
        return context.listens(process, context.hop_port)
    return context.run_on("client", socket.is_socket)


@cache
def _version() -> str:
    """OpenSSH's version: `OpenSSH_9.2p1 Debian-2+deb12u7`."""
    output = subprocess.run([find_program("ssh"), "-V"], capture_output=True, text=True).stderr
    return output.partition(",")[0].strip()
