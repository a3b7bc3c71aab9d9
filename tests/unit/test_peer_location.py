"""Servers of this machine, found without connecting to them, and where the other end of a connection is: with a made-up procfs, and
with real sockets and namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from howfar.address import parse
from howfar.contract.ping_messages import TcpTarget, UnixTarget
from howfar.doctor import candidates, peer_location, procfs
from howfar.doctor.candidates import list_local_servers
from howfar.doctor.kind import Kind
from howfar.doctor.peer_location import find_measured_programs, locate_tcp_peer, locate_unix_peer
from howfar.lab.programs import NONE_MEASURED

POINTER = "ffffffffffffffff"


@dataclass
class FakeMachine:
    """A procfs in a folder: processes with their sockets, and the kernel's tables."""

    root: Path
    tcp: list[str] = field(default_factory=list)
    unix: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    routes: list[str] = field(default_factory=list)

    def process(
        self, pid: int, name: str, *, uid: int = 0, arguments: tuple[str, ...] = (), sockets: tuple[int, ...] | None = (),
        parent: int = 1, net: str = "net:[1]",
    ) -> None:  # fmt: skip
        """Add a process; `sockets` None: its open files may not be read."""
        folder = self.root / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in arguments or (name,)))
        (folder / "status").write_text(
            f"Name:\t{name}\nState:\tS (sleeping)\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        )
        for kind, target in (("net", net), ("pid", "pid:[1]")):
            (folder / "ns" / kind).symlink_to(target)
        if sockets is not None:
            (folder / "fd").mkdir()
            for number, inode in enumerate(sockets):
                (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")

    def listens(self, host: str, port: int, inode: int, uid: int = 0) -> None:
        self._row((host, port), ("0.0.0.0", 0), procfs.LISTEN, inode, uid)

    def connected(self, local: tuple[str, int], remote: tuple[str, int], inode: int, uid: int = 0) -> None:
        self._row(local, remote, procfs.ESTABLISHED, inode, uid)

    def _row(self, local: tuple[str, int], remote: tuple[str, int], state: str, inode: int, uid: int) -> None:
        ends = " ".join(f"{_hex(host)}:{port:04X}" for host, port in (local, remote))
        rest = f"00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 {POINTER} 100 0 0 10 0"
        self.tcp.append(f"   0: {ends} {state} {rest}")

    def socket(self, path: str, inode: int, listens: bool = True) -> None:
        self.unix.append(f"{POINTER}: 00000002 00000000 {'00010000' if listens else '00000000'} 0001 01 {inode} {path}")

    def written(self) -> FakeMachine:
        (self.root / "net").mkdir(exist_ok=True)
        for name, head, lines in (
            ("tcp", "  sl  local_address rem_address   st", self.tcp),
            ("unix", "Num       RefCount Protocol Flags    Type St Inode Path", self.unix),
            ("route", "Iface\tDestination\tGateway", self.routes),
        ):
            (self.root / "net" / name).write_text("\n".join([head, *lines]) + "\n")
        local = "\n".join(f"           |-- {one}\n              /32 host LOCAL" for one in self.own)
        (self.root / "net" / "fib_trie").write_text(local + "\n")
        return self


def _hex(host: str) -> str:
    return f"{struct.unpack('=I', IPv4Address(host).packed)[0]:08X}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    monkeypatch.setattr(procfs, "PROC", tmp_path / "proc")
    monkeypatch.setattr(candidates, "_may_connect", lambda path: not path.startswith("/closed"))
    monkeypatch.setattr(candidates, "socket_file", lambda path: None)
    monkeypatch.setattr(peer_location, "NETWORKS", tmp_path / "networks")
    procfs._own_addresses.cache_clear()
    fake = FakeMachine(tmp_path / "proc")
    fake.process(os.getpid(), "python3")
    (fake.root / "self").symlink_to(str(os.getpid()))
    yield fake
    procfs._own_addresses.cache_clear()


# ---------------------------------------------------------------- the servers of this machine


def test_a_server_is_listed_with_what_to_type(machine: FakeMachine) -> None:
    machine.process(10, "mariadbd", uid=27, sockets=(1, 2, 3))
    machine.socket("/run/mysqld/mysqld.sock", 1)
    machine.listens("127.0.0.1", 3306, 2, 27)
    machine.listens("0.0.0.0", 4567, 3, 27)  # Galera's port
    machine.written()
    (server,) = list_local_servers()
    assert (server.kind, server.name, server.pids) == (Kind.MYSQL, "MariaDB", (10,))
    assert server.addresses == ("/run/mysqld/mysqld.sock", "127.0.0.1:3306") and server.notes == ()
    assert server.target == "mysql:///run/mysqld/mysqld.sock"


def test_the_process_of_a_measured_server_is_found_by_its_port_or_socket(machine: FakeMachine) -> None:
    machine.process(10, "mariadbd", uid=27, sockets=(1, 2))
    machine.process(11, "redis-server", sockets=(3,))
    machine.process(12, "postgres", sockets=None)
    machine.process(13, "haproxy", sockets=(5,))
    machine.socket("/run/mysqld/mysqld.sock", 1)
    machine.listens("127.0.0.1", 3306, 2, 27)
    machine.listens("0.0.0.0", 6379, 3)
    machine.listens("127.0.0.1", 5432, 4)
    machine.listens("127.0.0.1", 3307, 5)
    machine.written()
    for target, pid in (
        (UnixTarget(path="/run/mysqld/mysqld.sock"), 10),
        (TcpTarget(host="127.0.0.1", port=3306), 10),
        (TcpTarget(host="127.0.0.1", port=6379), 11),
    ):
        assert find_measured_programs(target) == (frozenset({pid}), frozenset())
    hidden = find_measured_programs(TcpTarget(host="127.0.0.1", port=5432))
    assert not hidden.pids and {"postgres", "mariadbd"} <= hidden.names
    forwarded = find_measured_programs(TcpTarget(host="127.0.0.1", port=3307))
    assert forwarded.pids == {13} and {"postgres", "haproxy"} <= forwarded.names, "the server behind it is measured too"
    assert find_measured_programs(TcpTarget(host="192.0.2.7", port=3306)) == NONE_MEASURED


@pytest.mark.parametrize(
    ("program", "path", "port", "target"),
    [
        ("postgres", "/run/postgresql/.s.PGSQL.5432", 5432, "'postgresql:///?host=/run/postgresql'"),
        ("postgres", "/run/a b/.s.PGSQL.5433", 5433, "'postgresql:///?host=/run/a%20b&port=5433'"),
        ("postgres", None, 5432, "postgresql://127.0.0.1:5432"),
        ("redis-server", "/run/redis/redis-server.sock", 6379, "redis:///run/redis/redis-server.sock"),
        ("redis-server", "/closed/redis.sock", 6379, "redis://127.0.0.1:6379"),
        ("memcached", None, 11211, "memcached://127.0.0.1:11211"),
    ],
)
def test_the_target_is_the_nearest_address_and_can_be_typed(
    program: str, path: str | None, port: int, target: str, machine: FakeMachine
) -> None:
    machine.process(10, program, sockets=(1, 2))
    if path is not None:
        machine.socket(path, 1)
    machine.listens("0.0.0.0", port, 2)
    machine.written()
    (server,) = list_local_servers()
    assert server.target == target
    assert parse(target.strip("'")).address.protocol == server.kind.value


def test_a_version_is_known_where_the_path_has_it(machine: FakeMachine) -> None:
    machine.process(10, "postgres", arguments=("/usr/lib/postgresql/15/bin/postgres", "-D", "/x"), sockets=(1,))
    machine.process(11, "postgres", arguments=("postgres: checkpointer",), sockets=(1,), parent=10)
    machine.process(12, "mysqld", sockets=(2,))
    machine.listens("127.0.0.1", 5432, 1)
    machine.listens("127.0.0.1", 3307, 2)
    machine.written()
    assert sorted(server.name for server in list_local_servers()) == ["MySQL or MariaDB", "PostgreSQL 15"]


def test_a_port_that_is_passed_on_names_what_does_it(machine: FakeMachine) -> None:
    machine.process(20, "docker-proxy", sockets=(1,))
    machine.listens("0.0.0.0", 3306, 1)
    machine.written()
    (server,) = list_local_servers()
    assert server.pids == () and server.target == "mysql://127.0.0.1:3306"
    assert server.notes == ("docker-proxy (pid 20) passes this address on",)


def test_another_program_at_a_usual_port_is_no_server(machine: FakeMachine) -> None:
    machine.process(20, "python3", sockets=(1,))
    machine.listens("0.0.0.0", 6379, 1)
    machine.written()
    assert list_local_servers() == []


def test_what_may_not_be_seen_is_said(machine: FakeMachine) -> None:
    machine.process(10, "mariadbd", uid=27, sockets=None)
    machine.listens("127.0.0.1", 3306, 1, 27)
    machine.listens("127.0.0.1", 11211, 2, 28)  # its process is not visible at all
    machine.written()
    first, second = list_local_servers()
    assert (first.pids, first.target) == ((10,), "mysql://127.0.0.1:3306") and "may not see" in first.notes[0]
    assert (second.kind, second.pids) == (Kind.MEMCACHED, ()) and second.notes[0].startswith("probably")


def test_servers_of_one_account_share_what_cannot_be_told_apart(machine: FakeMachine) -> None:
    for pid in (10, 11):
        machine.process(pid, "mariadbd", uid=27, sockets=None)
    machine.listens("127.0.0.1", 3306, 1, 27)
    machine.written()
    (server,) = list_local_servers()
    assert sorted(server.pids) == [10, 11] and server.addresses == ("127.0.0.1:3306",)
    assert any("which of 2 processes" in note for note in server.notes)


def test_a_server_in_another_namespace_is_named_and_not_reached(machine: FakeMachine) -> None:
    machine.process(30, "redis-server", sockets=(77,))
    machine.written()
    (server,) = list_local_servers()
    assert server.target is None and server.addresses == () and "nsenter -t 30 -n howfar" in server.notes[0]


def test_the_bus_of_a_cluster_is_no_address(machine: FakeMachine) -> None:
    machine.process(10, "valkey-server", sockets=(1, 2))
    machine.listens("0.0.0.0", 16379, 1)
    machine.listens("0.0.0.0", 6379, 2)
    machine.written()
    (server,) = list_local_servers()
    assert (server.name, server.addresses) == ("Valkey", ("0.0.0.0:6379",))


def test_without_procfs_nothing_is_listed(machine: FakeMachine) -> None:
    assert list_local_servers() == []


def test_the_list_is_quick_and_imports_little() -> None:
    script = (
        "import sys, time; from howfar.doctor.candidates import list_local_servers; import howfar.doctor.peer_location\n"
        "began = time.process_time(); list_local_servers(); took = time.process_time() - began\n"
        "print(took, [name for name in ('numpy', 'pydantic', 'pymysql', 'pg8000', 'ssl', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    took, _, modules = done.stdout.strip().partition(" ")
    assert float(took) < 0.3 and modules == "[]"


# ---------------------------------------------------------------- the other end of a connection

HERE, SERVER = ("127.0.0.1", 40000), ("127.0.0.1", 3306)


def test_a_server_at_the_other_end_is_named(machine: FakeMachine) -> None:
    machine.process(10, "mariadbd", uid=27, sockets=(1, 5))
    machine.listens("0.0.0.0", 3306, 1, 27)
    machine.connected(SERVER, HERE, 5, 27)
    machine.written()
    found = locate_tcp_peer(HERE, SERVER)
    assert found.on_this_machine.is_true and found.same_namespace.is_true and found.forwarded_by is None
    assert found.listener is not None and found.listener.pid == 10 and found.listener_description == "mariadbd (pid 10)"


@pytest.mark.parametrize("name", ["docker-proxy", "socat", "haproxy", "pgbouncer"])
def test_a_forwarder_at_the_other_end_is_named(name: str, machine: FakeMachine) -> None:
    """[doc-9]"""
    machine.process(10, name, sockets=(5,))
    machine.connected(SERVER, HERE, 5)
    machine.written()
    found = locate_tcp_peer(HERE, SERVER)
    assert found.forwarded_by == "forwarder" and found.listener_description.startswith(f"{name} (pid 10)")


@pytest.mark.parametrize("somebody_listens", [False, True])
def test_an_end_that_is_not_here_is_translated(somebody_listens: bool, machine: FakeMachine) -> None:
    machine.process(10, "docker-proxy", sockets=(1,))
    if somebody_listens:
        machine.listens("0.0.0.0", 3306, 1)
    machine.connected(HERE, SERVER, 9)
    machine.written()
    found = locate_tcp_peer(HERE, SERVER)
    assert (
        found.on_this_machine.is_true and found.same_namespace.is_true is False and found.forwarded_by == "translation"
    )
    assert found.listener is None and "published port" in found.listener_description


def test_a_program_that_may_not_be_seen_is_unknown(machine: FakeMachine) -> None:
    machine.process(10, "mariadbd", uid=27, sockets=None)
    machine.connected(SERVER, HERE, 5, 27)
    machine.written()
    found = locate_tcp_peer(HERE, SERVER)
    assert found.listener is None and found.same_namespace.is_true and procfs.account(27) in found.listener_description


def test_addresses_of_this_machine_and_others(machine: FakeMachine, tmp_path: Path) -> None:
    machine.own.append("192.0.2.7")
    bits = (("docker0", "172.17.0.0", "0.0.0.0", "255.255.0.0"), ("eth0", "0.0.0.0", "192.0.2.1", "0.0.0.0"))
    machine.routes += [
        f"{name}\t{_hex(to)}\t{_hex(by)}\t0001\t0\t0\t0\t{_hex(mask)}\t0\t0\t0" for name, to, by, mask in bits
    ]
    (tmp_path / "networks" / "docker0" / "bridge").mkdir(parents=True)
    machine.written()
    assert locate_tcp_peer(("192.0.2.7", 1), ("192.0.2.7", 2)).on_this_machine.is_true is True
    assert locate_tcp_peer(("192.0.2.7", 1), ("198.51.100.1", 2)).on_this_machine.is_true is False
    container = locate_tcp_peer(("172.17.0.1", 1), ("172.17.0.2", 2))
    assert container.on_this_machine.is_true is None and "docker0" in container.on_this_machine.evidence
    assert locate_tcp_peer(("::ffff:127.0.0.1", 1), ("::ffff:127.0.0.1", 2)).on_this_machine.is_true is True


def test_a_table_that_may_not_be_read_is_unknown(machine: FakeMachine) -> None:
    found = locate_tcp_peer(HERE, SERVER)
    assert found.on_this_machine.is_true and found.same_namespace.is_true is None and found.forwarded_by is None


def test_the_listener_of_a_socket(machine: FakeMachine) -> None:
    machine.process(10, "mariadbd")
    machine.process(11, "redis-server", net="net:[2]")
    machine.process(12, "socat")
    machine.written()
    assert (
        locate_unix_peer("/s", 10).same_namespace.is_true
        and locate_unix_peer("/s", 10).listener_description == "mariadbd (pid 10)"
    )
    assert locate_unix_peer("/s", 11).same_namespace.is_true is False
    assert locate_unix_peer("/s", 12).forwarded_by == "forwarder"
    assert locate_unix_peer("/s", 0).same_namespace.is_true is False, "another PID namespace"
    gone = locate_unix_peer("/s", 99)
    assert gone.listener is None and gone.same_namespace.is_true is None


def test_real_sockets_of_this_process() -> None:
    procfs._own_addresses.cache_clear()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listening = socket.create_server((host, 0), family=family)
        except OSError:
            continue
        with closing(listening), closing(socket.create_connection(listening.getsockname()[:2])) as made:
            found = locate_tcp_peer(made.getsockname()[:2], made.getpeername()[:2])
        assert found.listener is not None and found.listener.pid == os.getpid() and found.forwarded_by is None


_TRANSLATED = """
import socket, subprocess, sys, time
from howfar.doctor.peer_location import locate_tcp_peer
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
other = subprocess.Popen(["unshare", "-n", sys.executable, "-c", '''
import socket, subprocess, time
for line in ("ip link set lo up", "ip addr add 10.99.0.2/24 dev inside", "ip link set inside up"):
    while subprocess.run(line.split(), stderr=subprocess.DEVNULL).returncode:
        time.sleep(0.02)
listening = socket.create_server(("10.99.0.2", 3306))
while True:
    kept = listening.accept()
'''])
try:
    time.sleep(0.3)
    for line in (
        "ip link add outside type veth peer name inside",
        f"ip link set inside netns {other.pid}",
        "ip addr add 10.99.0.1/24 dev outside",
        "ip link set outside up",
    ):
        subprocess.run(line.split(), check=True)
    rules = '''table ip t {
    chain o { type nat hook output priority -100; tcp dport 3306 ip daddr 10.99.0.1 dnat to 10.99.0.2:3306; }
    chain p { type nat hook postrouting priority 100; ip daddr 10.99.0.2 masquerade; }
    }'''
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    for attempt in range(100):
        try:
            made = socket.create_connection(("10.99.0.1", 3306), 5)
            break
        except OSError:
            time.sleep(0.05)
    print(locate_tcp_peer(made.getsockname(), made.getpeername()).forwarded_by)
finally:
    other.kill()
    other.wait()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("unshare"), reason="needs root and nft"
)
def test_a_port_that_the_kernel_passes_into_another_namespace() -> None:
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", _TRANSLATED], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "translation", done.stderr
