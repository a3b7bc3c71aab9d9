"""`howfar bench calibrate`, and the null server with other clients. Figures are not checked: test machines are busy."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from howfar.bench.calibration import Calibration
from howfar.contract.messages import NullJob, NullReady, PingPong, PingPongJob, TcpListen, TcpTarget, UnixTarget
from howfar.engine.process import EngineFailed, EngineProcess, Launcher, run_probe
from tests.lab.howfar_runs import run_howfar

pytestmark = [pytest.mark.alone, pytest.mark.lab]
HOST = "127.0.0.1"


@pytest.fixture(params=["mariadb", "mysql"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A null server on this host."""
    with EngineProcess(NullJob(listen=TcpListen(host=HOST), flavour=request.param, threads=2)) as server:
        yield read_port(server)


def read_port(server: EngineProcess) -> int:
    ready = server.read()
    assert isinstance(ready, NullReady)
    assert ready.port is not None
    return ready.port


def ping_pong(target: UnixTarget | TcpTarget) -> PingPong:
    result = run_probe(PingPongJob(target=target, warmup_ns=0, measure_ns=200_000_000), Launcher())
    assert isinstance(result, PingPong)
    return result


def test_calibrate_measures_both_transports() -> None:
    done = run_howfar("bench", "calibrate", "--blocks", "2", "--seconds", "0.2", "--json", timeout_s=1700)
    assert done.returncode == 0, done.stderr
    found = Calibration.model_validate_json(done.stdout)
    assert json.loads(done.stdout)["version"] == 1
    assert [over.transport for over in found.transports] == ["socket", "tcp"]
    assert found.clock.step_ns > 0
    for over in found.transports:
        assert {floor.cpus for floor in over.floors} <= {"together", "apart"}
        assert [cost.connections for cost in over.cpu_per_query] == [1, 64, 512]
        assert over.ceiling.connections == 64
        figures = [floor.engine_p50_us for floor in over.floors] + [cost.client_us for cost in over.cpu_per_query]
        assert all(figure.value > 0 and figure.low is None for figure in figures), "two blocks allow no interval"


def test_pymysql_is_served(port: int) -> None:
    client = pymysql.connect(host=HOST, port=port, user="anybody", password="any", database="d", client_flag=1 << 16)
    with client, client.cursor() as cursor:
        assert cursor.execute("SELECT c FROM sbtest1 WHERE id=1") == 1
        row = cursor.fetchone()
        assert row is not None
        assert len(row[0]) == 119
        cursor.execute("BEGIN; SELECT 1; UPDATE t SET c=';'; COMMIT")
        results = 1
        while cursor.nextset():
            results += 1
        assert results == 4
        assert cursor.execute("SHOW SESSION STATUS") == 3
        client.ping(reconnect=False)


@pytest.mark.parametrize("workload", ["oltp_read_write", "bulk_insert"])
def test_sysbench_is_served(port: int, workload: str) -> None:
    sysbench = shutil.which("sysbench")
    if sysbench is None:
        pytest.skip("sysbench is not installed")
    options = [f"--mysql-host={HOST}", f"--mysql-port={port}", "--mysql-user=anybody", "--threads=3", "--time=1"]
    done = subprocess.run([sysbench, workload, *options, "run"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_service_time_delays_replies() -> None:
    delay_ns = 20_000_000
    with EngineProcess(NullJob(listen=TcpListen(host=HOST), delay_ns=delay_ns)) as server:
        result = ping_pong(TcpTarget(host=HOST, port=read_port(server)))
    assert result.histogram.min_ns >= delay_ns * 0.999, "no reply is early"
    assert (result.request_bytes, result.reply_bytes) == (24, 150)


def test_a_client_that_does_not_read_does_not_delay_others(port: int) -> None:
    """The server keeps the replies that sockets do not hold, serves other clients, and delivers the replies when they are read."""
    with socket.create_connection((HOST, port)) as client:
        client.settimeout(120)
        client.recv(4096)
        login = (0x00180200 | 0x8200).to_bytes(4, "little") + bytes(28) + b"x\0\0"
        client.sendall(len(login).to_bytes(3, "little") + b"\x01" + login)
        assert client.recv(4096)[4] == 0, "an OK"
        query = b"\x03SELECT 1"
        count = 40_000
        client.sendall((len(query).to_bytes(3, "little") + b"\0" + query) * count)
        assert ping_pong(TcpTarget(host=HOST, port=port)).rounds > 0
        first = client.recv(1 << 16)
        # A reply has five packets, of which the last ends the rows.
        size = first.index(b"\xfe", first.index(b"0123")) + 5
        left = size * count - len(first)
        while left:
            part = client.recv(min(left, 1 << 20))
            assert part, "the server keeps the connection"
            left -= len(part)


def test_a_socket_in_use_is_refused_and_removed_at_the_end(tmp_path: Path) -> None:
    target = UnixTarget(path=str(tmp_path / "s"))
    with EngineProcess(NullJob(listen=target)) as server:
        ready = server.read()
        assert isinstance(ready, NullReady)
        assert ready.port is None
        assert ping_pong(target).rounds > 0
        with pytest.raises(EngineFailed, match="cannot listen"), EngineProcess(NullJob(listen=target)) as second:
            second.read()
    assert not Path(target.path).exists()
    with pytest.raises(EngineFailed, match="connecting"):
        ping_pong(target)
