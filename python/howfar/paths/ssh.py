"""`ssh` and `ssh-tcp`: the server's socket, or its TCP port, forwarded by one connection of OpenSSH between the hosts.

sshd runs as a user other than root, with the path's own keys and configuration. So it needs no directory, account or PAM of the
machine, and a client that logs in may only forward. One process on each side carries all connections of the load: its thread is a
limit. ssh has no counters; the kernel's counters of that one connection show what it carried.
"""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path as FilePath

from howfar.errors import LabError
from howfar.paths.path import Endpoint, Hop, Path, PathContext, Process, find_program

_USER = 1
"""UID of daemon on Debian. As root, sshd would need /run/sshd and accounts for privilege separation. It does not admit the user
"nobody" if it cannot read /etc/shadow: systemd then reports that account as locked."""
_SERVER = """\
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
_CLIENT = """\
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
    LocalForward {near} {far}
"""


class SshPath(Path):
    """A path through ssh. `socket`: from a Unix socket to the server's; else from TCP to TCP."""

    machines = 2
    crosses_link = True
    hops = ("ssh", "sshd")
    encrypts = True
    between_hosts = True
    modelled = False

    def __init__(self, name: str, label: str, *, socket: bool) -> None:
        self.name = name
        self.label = label
        self.by_socket = socket
        self.networking = not socket

    def open(self, context: PathContext) -> Endpoint:
        port, near = context.hop_port, context.work / "ssh.sock"
        folder = _keys(context)
        if self.by_socket:
            context.within("client", partial(near.unlink, missing_ok=True))
            leg = (str(near), str(context.server_socket))
        else:
            leg = (f"{context.loopback_address}:{port}", f"{context.loopback_address}:{context.server_port}")
        user = context.within("server", _user)
        served = _SERVER.format(port=port, address=context.server_address, folder=folder, user=user)
        asked = _CLIENT.format(port=port, folder=folder, user=user, near=leg[0], far=leg[1])
        server_file = context.write("server", "ssh/sshd_config", served)
        client_file = context.write("client", "ssh/ssh_config", asked)
        serving = [context.within("server", partial(find_program, "sshd")), "-D", "-e", "-f", str(server_file)]
        server_side = context.start("server", serving, "sshd.log", as_user=_USER)
        context.wait_until(server_side, "sshd.log", lambda: context.listens(server_side, port))
        ssh = context.within("client", partial(find_program, "ssh"))
        connecting = [ssh, "-N", "-T", "-F", str(client_file), context.server_address]
        client_side = context.start("client", connecting, "ssh.log")
        context.wait_until(
            client_side, "ssh.log", lambda: _forwards(context, client_side, near if self.by_socket else None)
        )
        return Endpoint(
            socket=leg[0] if self.by_socket else None,
            host=None if self.by_socket else context.loopback_address,
            port=None if self.by_socket else port,
            peer_pid=client_side.pid if self.by_socket else None,
            seen_from="localhost" if self.by_socket else context.loopback_address,
            server_port=port,
            hops=(
                Hop("server_side", server_side, carried=lambda: context.tcp_bytes(port)),
                Hop("client_side", client_side),
            ),
            facts={
                "program": context.within("client", _version),
                "forwards": f"{leg[0]} to {leg[1]}, over one connection to port {port}",
            },
        )


SSH_PATHS = (
    SshPath("ssh", "the socket forwarded to a second machine by ssh", socket=True),
    SshPath("ssh-tcp", "a TCP port forwarded to a second machine by ssh", socket=False),
)


def _user() -> str:
    return pwd.getpwuid(_USER).pw_name


def _keys(context: PathContext) -> FilePath:
    """Keys for the host and the user, generated once on the server's host and copied to the client's. Raises LabError,
    MissingError."""
    folder = context.work / "ssh"
    context.within("client", partial(_put, folder, context.within("server", partial(_made, folder))))
    return folder


def _put(folder: FilePath, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)


def _made(folder: FilePath) -> dict[str, bytes]:
    """The files that a client needs; generates them if they do not exist."""
    if not (folder / "known_hosts").exists():
        _make(folder)
    return {name: (folder / name).read_bytes() for name in ("user_key", "known_hosts")}


def _make(folder: FilePath) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        (folder / name).unlink(missing_ok=True)
        made = subprocess.run(
            [find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)],
            capture_output=True,
            text=True,
        )
        if made.returncode != 0:
            raise LabError(f"ssh-keygen made no key: {made.stderr.strip()}")
    (folder / "known_hosts").write_text(f"howfar {(folder / 'host_key.pub').read_text()}")


def _forwards(context: PathContext, process: Process, socket: FilePath | None) -> bool:
    if socket is None:
        return context.listens(process, context.hop_port)
    return context.within("client", socket.is_socket)


@cache
def _version() -> str:
    """OpenSSH's version: `OpenSSH_9.2p1 Debian-2+deb12u7`."""
    output = subprocess.run([find_program("ssh"), "-V"], capture_output=True, text=True).stderr
    return output.partition(",")[0].strip()
