"""The engine on a real Redis and a real Memcached: its counts equal theirs, and errors are reported."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
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
from howfar.contract.services import is_redis
from howfar.engine.process import EngineFailed
from tests.lab import certificates
from tests.lab.listeners import serve
from tests.lab.local_servers import make_short_directory
from tests.lab.local_stores import (
    MEMCACHED,
    REDIS,
    Protocol,
    Store,
    free_port,
    make_load_job,
    run_job,
    run_load_job,
    run_memcached,
    run_memcached_tls,
    run_redis,
    run_tables_job,
)

pytestmark = pytest.mark.lab
MIX = {"keys": 500, "get": 6, "set": 2, "multi_get": 2, "keys_each": 5, "value": FixedSize(bytes=64)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Protocol, Store]]:
    directory = make_short_directory(tmp_path_factory.mktemp("stores"))
    with run_redis(directory) as redis, run_memcached(directory) as memcached:
        yield dict.fromkeys(REDIS, redis) | dict.fromkeys(MEMCACHED, memcached)


@pytest.mark.parametrize("protocol", [*REDIS, *MEMCACHED])
def test_a_mix_is_counted(stores: dict[Protocol, Store], protocol: Protocol) -> None:
    target, mix = stores[protocol].unix, KeyValue(protocol=protocol, key_prefix=f"{protocol}:", **MIX)
    assert run_tables_job(target, mix) == run_tables_job(target, mix, "warmup") == 500
    ready, finished = run_load_job(make_load_job(target, mix))
    assert ready.receipt.protocol_mode == protocol
    assert ready.receipt.server_version.startswith("Redis " if is_redis(mix) else "Memcached ")
    assert (ready.receipt.server_connection_id is None) != is_redis(mix)
    assert finished.errors == {} and finished.lookups is not None
    assert finished.transactions == finished.queries == finished.round_trips > 100
    assert finished.classes.read + finished.classes.write == finished.queries
    assert finished.lookups.misses == 0 and finished.lookups.hits == finished.rows > finished.classes.read
    kinds = {one.kind: one.count for one in finished.histograms}
    assert sum(kinds[f"command.{verb}"] for verb in ("get", "set", "multi_get")) == kinds["transaction"]
    # A fifth of the commands read five keys, three fifths one: within six standard deviations.
    share = kinds["command.multi_get"] / finished.queries
    assert abs(share - 0.2) < 6 * (0.16 / finished.queries) ** 0.5
    # 64 bytes for each key, and the protocol's framing.
    assert 64 * finished.rows < finished.bytes.to_client < 128 * (finished.rows + finished.queries)
    assert run_tables_job(target, mix, "cleanup") == 500
    assert run_tables_job(target, mix, "warmup") == 0, "it counts the keys that it found"
    lookups = run_load_job(make_load_job(target, mix.model_copy(update={"set": 0})))[1].lookups
    assert lookups is not None and lookups.hits == 0 and lookups.misses > 0


@pytest.mark.parametrize("protocol", [*REDIS, *MEMCACHED])
@pytest.mark.parametrize("driver", ["epoll", "auto"])
def test_a_pipeline_is_one_transaction(stores: dict[Protocol, Store], protocol: Protocol, driver: str) -> None:
    sizes = ListedSizes(sizes=(Size(bytes=10, weight=3), Size(bytes=9000, weight=1)))
    mix = KeyValue(protocol=protocol, key_prefix=f"p{protocol}:", pipeline=16, delete=1, keys=200, value=sizes)
    run_tables_job(stores[protocol].unix, mix)
    _, finished = run_load_job(make_load_job(stores[protocol].unix, mix, connections=32, threads=1, driver=driver))
    assert finished.queries == 16 * finished.transactions == 16 * finished.round_trips > 0
    assert finished.lookups is not None and min(finished.lookups.hits, finished.lookups.misses) > 0, (
        "deleted, and set again"
    )
    assert "command.pipeline" in {one.kind for one in finished.histograms}


def test_redis_counts_the_same(tmp_path: Path) -> None:
    mix = KeyValue(protocol="resp3", multi_get=1, keys=100)
    with run_redis(make_short_directory(tmp_path)) as store:
        assert run_tables_job(store.unix, mix) == store.calls("set") == 100
        load = make_load_job(store.tcp or store.unix, mix, transactions=2000, measure_ns=10**10)
        ready, finished = run_load_job(load.model_copy(update={"warmup_ns": 0}))
        assert (ready.receipt.address_family, ready.receipt.tcp_nodelay) == ("inet", True)
        assert finished.transactions == 2000
        assert sum(store.calls(word) for word in ("get", "set", "mget")) == 2000 + 100


@pytest.mark.parametrize("protocol", ["resp3", "memcached_text"])
def test_an_open_loop_with_one_connection_per_transaction(stores: dict[Protocol, Store], protocol: Protocol) -> None:
    mix = KeyValue(protocol=protocol, keys=50, value=LognormalSize(median=200, sigma=1, most=5000))
    run_tables_job(stores[protocol].unix, mix)
    session = Session(connect="per_transaction")
    ready, finished = run_load_job(
        make_load_job(stores[protocol].unix, mix, arrivals=Arrivals(rate_per_s=400), session=session)
    )
    account = finished.open_loop
    assert account is not None and account.due == account.answered + account.unanswered > 50
    opened = {one.kind: one.count for one in finished.histograms}["connect"]
    assert opened >= account.answered
    assert ready.receipt.connect_turns == (1 if protocol == "resp3" else 0)


# ---------------------------------------------------------------- authentication and TLS


def test_a_load_on_redis_with_a_password_and_tls(tmp_path: Path, authority: certificates.Certificates) -> None:
    directory = make_short_directory(tmp_path)
    port = free_port()
    files = {"cert-file": authority.server.certificate, "key-file": authority.server.key, "ca-cert-file": authority.ca}
    options = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    options += [word for name, file in files.items() for word in (f"--tls-{name}", str(file))]
    tls = Tls(verify="full", ca_file=str(authority.ca), server_name="localhost")
    mix = KeyValue(protocol="resp3", keys=50, pipeline=4, value=FixedSize(bytes=2000))
    with run_redis(directory, *options) as store:
        store.command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "+@all")
        run_tables_job(store.unix, mix)
        target = TcpTarget(host="127.0.0.1", port=port)
        account = {"user": "shop", "password": "secret", "database": "0"}
        ready, finished = run_load_job(make_load_job(target, mix, session=Session(tls=tls), **account))
        assert ready.receipt.tls_client_version == "TLSv1.3" and ready.receipt.tls_version is None
        assert ready.receipt.auth_plugin == "password" and ready.receipt.connect_turns == 3
        assert finished.lookups is not None and finished.lookups.hits > 0 == finished.lookups.misses
        for protocol in REDIS:
            wrong = make_load_job(
                store.unix, mix.model_copy(update={"protocol": protocol}), **account | {"password": "wrong"}
            )
            with pytest.raises(EngineFailed) as refused:
                run_job(wrong)
            assert refused.value.code == "auth" and "wrong`" not in str(refused.value)
        store.command("CONFIG", "SET", "requirepass", "another")
        with pytest.raises(EngineFailed) as refused:
            run_job(make_load_job(store.unix, mix.model_copy(update={"protocol": "resp2"})))
        assert refused.value.code == "auth"


def test_memcached_over_tls_with_one_connection_per_request(authority: certificates.Certificates) -> None:
    mix = KeyValue(protocol="memcached_meta", keys=50, multi_get=5, value=FixedSize(bytes=3000))
    session = Session(tls=Tls(verify="ca", ca_file=str(authority.ca)), connect="per_transaction")
    with run_memcached_tls(authority.server.certificate, authority.server.key) as target:
        ready, finished = run_load_job(make_load_job(target, mix, session=session, connections=2))
    assert ready.receipt.tls_client_version in ("TLSv1.2", "TLSv1.3") and ready.receipt.server_connection_id is None
    assert finished.queries > 0 and "connect" in {one.kind for one in finished.histograms}


def test_tls_with_a_plain_text_server_is_refused(stores: dict[Protocol, Store]) -> None:
    mix = KeyValue(protocol="memcached_text", keys=50)
    load = make_load_job(stores["memcached_text"].unix, mix, session=Session(tls=Tls()), connect_timeout_ns=10**9)
    with pytest.raises(EngineFailed) as refused:
        run_job(load)
    assert refused.value.code == "other_protocol"


# ---------------------------------------------------------------- errors


def test_errors_stop_the_load_or_are_counted(tmp_path: Path, stores: dict[Protocol, Store]) -> None:
    with run_redis(make_short_directory(tmp_path)) as store:
        for number in range(1, 51):
            store.command("RPUSH", f"key:{number:012}", "x")
        _check_stops_or_counts(store.unix, KeyValue(protocol="resp3", keys=50, set=0), "WRONGTYPE")
    long = KeyValue(protocol="memcached_meta", get=0, keys=5, value=FixedSize(bytes=2**20))
    _check_stops_or_counts(stores["memcached_meta"].unix, long, "SERVER_ERROR")


def _check_stops_or_counts(target: UnixTarget | TcpTarget, mix: KeyValue, word: str) -> None:
    with pytest.raises(EngineFailed) as stopped:
        run_job(make_load_job(target, mix))
    assert stopped.value.code == "server_error" and word in str(stopped.value)
    _, finished = run_load_job(make_load_job(target, mix.model_copy(update={"on_error": "count"})))
    assert finished.errors == {word: finished.queries}
    assert finished.classes.read == finished.classes.write == 0 and finished.round_trips == finished.queries > 0


def test_a_redirection_to_another_cluster_node_is_reported(tmp_path: Path) -> None:
    """A fake node answers INFO and CLIENT ID, then MOVED to a GET."""

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(4096)
            connection.sendall(b"$20\r\nredis_version:7.0.15\r\n:1\r\n")
            connection.recv(4096)
            connection.sendall(b"-MOVED 866 127.0.0.1:6381\r\n")
            connection.recv(4096)

    path = str(make_short_directory(tmp_path) / "c.sock")
    with serve(answer, path), pytest.raises(EngineFailed) as refused:
        run_job(make_load_job(UnixTarget(path=path), KeyValue(protocol="resp2", set=0), connections=1))
    assert refused.value.code == "server_error" and "MOVED 866" in str(refused.value)
    assert "cluster" in refused.value.advice


def test_the_bench_compares_with_redis_benchmark() -> None:
    """Figures are not checked: test machines are busy."""
    if shutil.which("redis-benchmark") is None or shutil.which("redis-server") is None:
        pytest.skip("redis-benchmark or redis-server is not installed (./setup --tests brings them)")
    bench = Path(__file__).parents[2] / "benches" / "stores.py"
    command = [sys.executable, str(bench), "--connections", "4,50", "--blocks", "2", "--seconds", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["4 connections", "50 connections"]
    assert done.stdout.count("client CPU") == 2
