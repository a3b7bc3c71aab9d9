"""`howfar slope` and its tap on a real server, with an application whose number of round trips is known."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from howfar.cli.main import cli
from howfar.contract.messages import TcpListen, TcpTarget, UnixTarget
from howfar.lab.servers import USER
from howfar.recording.tap import Tap
from tests.lab.listeners import echo, serve_tcp
from tests.lab.local_servers import LocalServer, run_server
from tests.rarely import rarely_but

QUERIES = 40
CONNECT = 3
"""Round trips to connect: TCP handshake, greeting, login."""
PAGE = """
import os, pymysql
to = os.environ["TO"]
where = {"unix_socket": to} if to.startswith("/") else dict(zip(("host", "port"), (to.split(":")[0], int(to.split(":")[1]))))
line = pymysql.connect(user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"], autocommit=None, charset="utf8mb4", **where)
with line.cursor() as cursor:
    for number in range(40):
        cursor.execute("SELECT %s", (number,))
os._exit(0)
"""


@pytest.fixture(scope="module")
def server(mariadb: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with run_server("mariadb", tmp_path_factory.mktemp("p")) as mariadb_server:
        yield mariadb_server


def run_slope(server: LocalServer, address: str) -> Result:
    environment = {"TO": address, "DB_USER": USER, "DB_PASSWORD": server.password}
    command = ["slope", "--server", address, "--blocks", "4", "--json", "--", sys.executable, "-c", PAGE]
    return CliRunner(env=environment).invoke(cli, command)


@pytest.mark.alone
@pytest.mark.parametrize("kind", rarely_but(("tcp",), ("socket", "tcp")))
def test_round_trips_of_a_real_client(server: LocalServer, kind: str, namespaces: None) -> None:
    """The tap also counts the client's own statement that sets the character set, if any. Python's start time varies by more than a
    round trip, so the interval is widened by 3 %."""
    host, port = server.address
    done = run_slope(server, server.unix.path if kind == "socket" else f"{host}:{port}")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    expected = found["round_trips"] + CONNECT - 1  # the tap has counted the login, which is one of CONNECT
    assert found["round_trips"] in range(QUERIES + 1, QUERIES + 4)
    assert 0.97 * found["slope"]["low"] <= expected <= 1.03 * found["slope"]["high"]
    assert found["connections"] == 1
    assert found["intercept_ms"]["low"] < found["intercept_ms"]["high"]
    assert next(iter(found["times"])) == "now" and "85ms" in found["times"]


def test_an_application_that_does_not_use_the_tap_is_refused(server: LocalServer, namespaces: None) -> None:
    done = CliRunner().invoke(cli, ["slope", "--server", server.unix.path, "--", "true"])
    assert done.exit_code != 0
    assert "no connection through the tap" in str(done.exception)


@pytest.mark.parametrize("delay_ns", [0, 300_000])
def test_every_byte_passes_unchanged(delay_ns: int) -> None:
    """10^8 bytes are sent and returned; with a delay, more bytes are in flight than the tap holds at once."""
    block = os.urandom(1 << 20)
    count = 100 if delay_ns == 0 else 20
    listen = TcpListen(host="127.0.0.1", port=0)
    with serve_tcp(echo) as port, Tap(TcpTarget(host="127.0.0.1", port=port), listen) as tap:
        assert isinstance(tap.address, TcpTarget)
        tap.set_delay(delay_ns)
        line = socket.create_connection((tap.address.host, tap.address.port))

        def send() -> None:
            for _ in range(count):
                line.sendall(block)
            line.shutdown(socket.SHUT_WR)

        threading.Thread(target=send, daemon=True).start()
        found, expected = hashlib.sha256(), hashlib.sha256()
        for _ in range(count):
            expected.update(block)
        while data := line.recv(1 << 16):
            found.update(data)
        assert found.digest() == expected.digest()
        counts = tap.set_delay(0)
        assert counts.bytes_to_server == counts.bytes_to_client == count << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no Python that an ordinary user may run")
def test_the_server_sees_the_user_of_the_application(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o711)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "server"))
    (tmp_path / "server").chmod(0o777)
    listener.listen()
    with listener, Tap(UnixTarget(path=str(tmp_path / "server")), UnixTarget(path=str(tmp_path / "tap"))):
        script = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(tmp_path / 'tap')!r}); s.recv(1)"
        with subprocess.Popen(["/usr/bin/python3", "-I", "-c", script], user=nobody) as client:
            line, _ = listener.accept()
            seen = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            line.sendall(b"!")
            assert int.from_bytes(seen[4:8], sys.byteorder) == nobody
            assert client.wait(10) == 0


def test_a_missing_server_ends_the_connection_and_its_reason_is_counted(tmp_path: Path) -> None:
    with Tap(UnixTarget(path=str(tmp_path / "nothing")), UnixTarget(path=str(tmp_path / "tap"))) as tap:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / "tap"))
            assert line.recv(1) == b""
        counts = tap.set_delay(0)
    assert counts.refused == 1
    assert counts.refusal is not None and "No such file" in counts.refusal
