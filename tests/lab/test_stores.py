"""The engine against a real Redis and a real Memcached: its counts equal the servers' own, and errors are reported."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from howfar.contract.messages import (
    Arrivals,
    FixedSize,
    KeyValue,
    ListedSizes,
    LognormalSize,
    Session,
    Size,
    TcpTarget,
    Tls,
    UnixTarget,
)
from howfar.contract.rules import is_redis
from howfar.engine.process import EngineFailed
from tests.lab import certificates
from tests.lab.servers_here import short_directory
from tests.lab.stores_here import (
    MEMCACHED,
    REDIS,
    Protocol,
    Store,
    events,
    filled,
    free_port,
    job,
    memcached,
    memcached_tls,
    redis,
    run,
)

pytestmark = pytest.mark.lab
MIX = {"keys": 500, "get": 6, "set": 2, "multi_get": 2, "keys_each": 5, "value": FixedSize(bytes=64)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Protocol, Store]]:
    directory = short_directory(tmp_path_factory.mktemp("stores"))
    with redis(directory) as one, memcached(directory) as other:
        yield dict.fromkeys(REDIS, one) | dict.fromkeys(MEMCACHED, other)


@pytest.mark.parametrize("protocol", [*REDIS, *MEMCACHED])
def test_a_mix_is_counted(stores: dict[Protocol, Store], protocol: Protocol) -> None:
    target, mix = stores[protocol].unix, KeyValue(protocol=protocol, key_prefix=f"{protocol}:", **MIX)
    assert filled(target, mix) == filled(target, mix, "warmup") == 500
    ready, finished = run(job(target, mix))
    assert ready.receipt.protocol_mode == protocol
    assert ready.receipt.server_version.startswith("Redis " if is_redis(mix) else "Memcached ")
    assert (ready.receipt.server_connection_id is None) != is_redis(mix)
    assert finished.errors == {} and finished.lookups is not None
    assert finished.transactions == finished.queries == finished.turns > 100
    assert finished.classes.read + finished.classes.write == finished.queries
    assert finished.lookups.misses == 0 and finished.lookups.hits == finished.rows > finished.classes.read
    kinds = {one.kind: one.count for one in finished.histograms}
    assert sum(kinds[f"command.{verb}"] for verb in ("get", "set", "multi_get")) == kinds["transaction"]
    # A fifth of the commands read five keys, three fifths one: within six standard deviations.
    share = kinds["command.multi_get"] / finished.queries
    assert abs(share - 0.2) < 6 * (0.16 / finished.queries) ** 0.5
    # 64 bytes for each key, and the protocol's framing.
    assert 64 * finished.rows < finished.bytes.to_client < 128 * (finished.rows + finished.queries)
    assert filled(target, mix, "cleanup") == 500
    assert filled(target, mix, "warmup") == 0, "what it found, not what it asked for"
    lookups = run(job(target, mix.model_copy(update={"set": 0})))[1].lookups
    assert lookups is not None and lookups.hits == 0 and lookups.misses > 0


@pytest.mark.parametrize("protocol", [*REDIS, *MEMCACHED])
@pytest.mark.parametrize("driver", ["epoll", "auto"])
def test_a_pipeline_is_one_transaction(stores: dict[Protocol, Store], protocol: Protocol, driver: str) -> None:
    sizes = ListedSizes(sizes=(Size(bytes=10, weight=3), Size(bytes=9000, weight=1)))
    mix = KeyValue(protocol=protocol, key_prefix=f"p{protocol}:", pipeline=16, delete=1, keys=200, value=sizes)
    filled(stores[protocol].unix, mix)
    _, finished = run(job(stores[protocol].unix, mix, connections=32, threads=1, driver=driver))
    assert finished.queries == 16 * finished.transactions == 16 * finished.turns > 0
    assert finished.lookups is not None and min(finished.lookups.hits, finished.lookups.misses) > 0, (
        "deleted, and set again"
    )
    assert "command.pipeline" in {one.kind for one in finished.histograms}


def test_redis_counts_the_same(tmp_path: Path) -> None:
    mix = KeyValue(protocol="resp3", multi_get=1, keys=100)
    with redis(short_directory(tmp_path)) as store:
        assert filled(store.unix, mix) == store.counted("set") == 100
        load = job(store.tcp or store.unix, mix, transactions=2000, measure_ns=10**10)
        ready, finished = run(load.model_copy(update={"warmup_ns": 0}))
        assert (ready.receipt.address_family, ready.receipt.tcp_nodelay) == ("inet", True)
        assert finished.transactions == 2000
        assert sum(store.counted(word) for word in ("get", "set", "mget")) == 2000 + 100


@pytest.mark.parametrize("protocol", ["resp3", "memcached_text"])
def test_open_loop_and_connections_of_one_use(stores: dict[Protocol, Store], protocol: Protocol) -> None:
    mix = KeyValue(protocol=protocol, keys=50, value=LognormalSize(median=200, sigma=1, most=5000))
    filled(stores[protocol].unix, mix)
    session = Session(connect="per_transaction")
    ready, finished = run(job(stores[protocol].unix, mix, arrivals=Arrivals(rate_per_s=400), session=session))
    account = finished.open_loop
    assert account is not None and account.due == account.answered + account.unanswered > 50
    opened = {one.kind: one.count for one in finished.histograms}["connect"]
    assert opened >= account.answered
    assert ready.receipt.connect_turns == (1 if protocol == "resp3" else 0)


# ---------------------------------------------------------------- authentication and TLS


def test_a_password_is_proved_and_tls_is_had(tmp_path: Path, authority: certificates.Certificates) -> None:
    directory = short_directory(tmp_path)
    port = free_port()
    options = [
        "--tls-port",
        str(port),
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        str(authority.server.certificate),
    ]
    options += ["--tls-key-file", str(authority.server.key), "--tls-ca-cert-file", str(authority.ca)]
    tls = Tls(verify="full", ca_file=str(authority.ca), server_name="localhost")
    mix = KeyValue(protocol="resp3", keys=50, pipeline=4, value=FixedSize(bytes=2000))
    with redis(directory, *options) as store:
        store.command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "+@all")
        filled(store.unix, mix)
        target = TcpTarget(host="127.0.0.1", port=port)
        account = {"user": "shop", "password": "secret", "database": "0"}
        ready, finished = run(job(target, mix, session=Session(tls=tls), **account))
        assert ready.receipt.tls_client_version == "TLSv1.3" and ready.receipt.tls_version is None
        assert ready.receipt.auth_plugin == "password" and ready.receipt.connect_turns == 3
        assert finished.lookups is not None and finished.lookups.hits > 0 == finished.lookups.misses
        for protocol in REDIS:
            wrong = job(store.unix, mix.model_copy(update={"protocol": protocol}), **account | {"password": "wrong"})
            with pytest.raises(EngineFailed) as refused:
                events(wrong)
            assert refused.value.code == "auth" and "wrong`" not in str(refused.value)
        store.command("CONFIG", "SET", "requirepass", "another")
        with pytest.raises(EngineFailed) as refused:
            events(job(store.unix, mix.model_copy(update={"protocol": "resp2"})))
        assert refused.value.code == "auth"


def test_memcached_through_tls_and_one_connection_a_request(authority: certificates.Certificates) -> None:
    mix = KeyValue(protocol="memcached_meta", keys=50, multi_get=5, value=FixedSize(bytes=3000))
    session = Session(tls=Tls(verify="ca", ca_file=str(authority.ca)), connect="per_transaction")
    with memcached_tls(authority.server.certificate, authority.server.key) as target:
        ready, finished = run(job(target, mix, session=session, connections=2))
    assert ready.receipt.tls_client_version in ("TLSv1.2", "TLSv1.3") and ready.receipt.server_connection_id is None
    assert finished.queries > 0 and "connect" in {one.kind for one in finished.histograms}


def test_what_speaks_plain_is_no_tls(stores: dict[Protocol, Store]) -> None:
    mix = KeyValue(protocol="memcached_text", keys=50)
    load = job(stores["memcached_text"].unix, mix, session=Session(tls=Tls()), connect_timeout_ns=10**9)
    with pytest.raises(EngineFailed) as refused:
        events(load)
    assert refused.value.code == "other_protocol"


# ---------------------------------------------------------------- errors


def test_errors_stop_or_are_counted(tmp_path: Path, stores: dict[Protocol, Store]) -> None:
    with redis(short_directory(tmp_path)) as store:
        for number in range(1, 51):
            store.command("RPUSH", f"key:{number:012}", "x")
        _stops_or_counts(store.unix, KeyValue(protocol="resp3", keys=50, set=0), "WRONGTYPE")
    long = KeyValue(protocol="memcached_meta", get=0, keys=5, value=FixedSize(bytes=2**20))
    _stops_or_counts(stores["memcached_meta"].unix, long, "SERVER_ERROR")


def _stops_or_counts(target: UnixTarget | TcpTarget, mix: KeyValue, word: str) -> None:
    with pytest.raises(EngineFailed) as stopped:
        events(job(target, mix))
    assert stopped.value.code == "server_error" and word in str(stopped.value)
    _, finished = run(job(target, mix.model_copy(update={"on_error": "count"})))
    assert finished.errors == {word: finished.queries}
    assert finished.classes.read == finished.classes.write == 0 and finished.turns == finished.queries > 0


def test_a_cluster_that_sends_elsewhere_is_told(tmp_path: Path) -> None:
    """A stand-in for one node: real INFO and CLIENT ID, then MOVED for each GET."""
    path = str(short_directory(tmp_path) / "c.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(4096)
                line.sendall(b"$21\r\nredis_version:7.0.15\r\n:1\r\n".replace(b"$21", b"$20"))
                line.recv(4096)
                line.sendall(b"-MOVED 866 127.0.0.1:6381\r\n")
                line.recv(4096)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        with pytest.raises(EngineFailed) as refused:
            events(job(UnixTarget(path=path), KeyValue(protocol="resp2", set=0), connections=1))
        server.join(10)
    assert refused.value.code == "server_error" and "MOVED 866" in str(refused.value)
    assert "cluster" in refused.value.advice


def test_the_bench_compares_with_redis_benchmark() -> None:
    """Figures are not judged: test machines are busy."""
    if shutil.which("redis-benchmark") is None or shutil.which("redis-server") is None:
        pytest.skip("redis-benchmark or redis-server is not installed (./setup --tests brings them)")
    bench = Path(__file__).parents[2] / "benches" / "stores.py"
    command = [sys.executable, str(bench), "--connections", "4,50", "--blocks", "2", "--seconds", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["4 connections", "50 connections"]
    assert done.stdout.count("client CPU") == 2
