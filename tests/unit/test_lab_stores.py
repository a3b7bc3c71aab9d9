"""Redis and Memcached in the laboratory, without starting one: options, what they report, what each listener must speak."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.test_lab_paths import _GOOD_REMOTE, _REMOTE

from howfar.contract.messages import UnixTarget
from howfar.contract.server_receipt import RequestedStore, ServerReceipt, StoreAddress
from howfar.contract.violation import violation
from howfar.errors import LabError, PlanError, ServerCrashed, ServerMissing
from howfar.lab.network import Host
from howfar.lab.servers import CertificatePaths, ServerContext
from howfar.lab.servers.key_value import StoreSettings
from howfar.lab.servers.memcached import MemcachedDialect
from howfar.lab.servers.program import identify, kind_of, version_of
from howfar.lab.servers.redis import RedisDialect
from howfar.lab.servers.sql_store import convert_counters
from howfar.lab.servers.text_protocol import LineConnection, send_command
from howfar.plan.sessions import SessionSpec
from howfar.store.server_metrics import ServerMetrics, server_metrics

TLS = CertificatePaths(Path("/c/ca"), Path("/c/cert"), Path("/c/key"))


def settings(
    *, on_socket: bool = True, port: int | None = 7000, tls: CertificatePaths | None = None, namespaced: bool = True
) -> StoreSettings:
    context = ServerContext(Path("/w"), Host("server", None), (0, 1), 5000, namespaced)
    return StoreSettings(Path("/bin/x"), context, Path("/w/s.sock") if on_socket else None, port, tls)


def redis_options(settings: StoreSettings) -> dict[str, str]:
    arguments = RedisDialect("redis").command_line(settings)[1:]
    assert len(arguments) % 2 == 0 and all(name.startswith("--") for name in arguments[::2])
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_redis_writes_nothing_and_lets_everybody_wait() -> None:
    options = redis_options(settings())
    assert (options["--save"], options["--appendonly"], options["--maxmemory"]) == ("", "no", "0")
    assert (options["--port"], options["--bind"], options["--protected-mode"]) == ("7000", "0.0.0.0", "no")
    assert int(options["--tcp-backlog"]) >= 5000 < int(options["--maxclients"])
    assert (options["--unixsocket"], options["--unixsocketperm"]) == ("/w/s.sock", "700")


def test_without_a_network_of_our_own_nobody_comes_from_elsewhere() -> None:
    options = redis_options(settings(namespaced=False))
    assert (options["--bind"], options["--protected-mode"]) == ("127.0.0.1", "yes")
    assert "--listen=127.0.0.1" in MemcachedDialect().command_line(settings(on_socket=False, namespaced=False))


def test_with_tls_there_is_no_plain_port() -> None:
    options = redis_options(settings(tls=TLS))
    assert (options["--port"], options["--tls-port"], options["--tls-auth-clients"]) == ("0", "7000", "no")
    assert redis_options(settings(port=None))["--port"] == "0"


def test_memcached_listens_in_one_place() -> None:
    dialect = MemcachedDialect()
    here, there = dialect.command_line(settings(port=None)), dialect.command_line(settings(on_socket=False, tls=TLS))
    assert "--unix-socket=/w/s.sock" in here and not any(word.startswith(("--listen=", "--port")) for word in here)
    assert {"--listen=0.0.0.0", "--port=7000", "--enable-ssl", "--threads=2"} < set(there)
    assert not any(word.startswith("--unix-socket") for word in there)
    assert "ssl_chain_cert=/c/cert,ssl_key=/c/key" in there


@pytest.mark.parametrize(
    ("output", "kind", "version"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "redis", "7.0.15"),
        ("Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "valkey", "8.0.1"),
        ("memcached 1.6.18\n", "memcached", "1.6.18"),
        ("mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian", "mariadb", "10.11.19-MariaDB-0+deb12u1"),
        ("/usr/sbin/mysqld  Ver 9.7.4 for Linux", "mysql", "9.7.4"),
        ("ls (GNU coreutils) 9.1", None, None),
    ],
)
def test_a_program_is_what_it_says(output: str, kind: str | None, version: str | None) -> None:
    assert (kind_of(output), version_of(output)) == (kind, version)


def test_a_store_is_asked_without_the_option_that_it_refuses(tmp_path: Path) -> None:
    program = tmp_path / "anything"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\necho memcached 1.7.0\n')
    program.chmod(stat.S_IRWXU)
    assert (identify(program).kind, identify(program).version) == ("memcached", "1.7.0")
    program.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\necho something else 1.7.0\n')
    with pytest.raises(ServerCrashed):
        identify(program)
    with pytest.raises(ServerMissing):
        identify(tmp_path / "nothing")


# ---------------------------------------------------------------- what a receipt is made of


def test_a_door_speaks_what_was_asked_and_nothing_else() -> None:
    assert StoreAddress(at="x", plain=True, tls=None).violations(is_encrypted=False) == ()
    assert StoreAddress(at="x", plain=False, tls="TLSv1.3").violations(is_encrypted=True) == ()
    assert len(StoreAddress(at="x", plain=False, tls=None).violations(is_encrypted=False)) == 1
    assert len(StoreAddress(at="x", plain=True, tls="TLSv1.3").violations(is_encrypted=True)) == 1
    assert len(StoreAddress(at="x", plain=True, tls=None).violations(is_encrypted=True)) == 2, "-Z together with -s"


def test_data_and_clients_that_are_lost_void_a_trial() -> None:
    requested = RequestedStore(port=None, socket=None, is_encrypted=False)
    kept = ServerReceipt(counters={"evicted_keys": 0, "rejected_connections": 0})
    assert kept.store_violations(requested) == ()
    lost = ServerReceipt(counters={"evicted_keys": 3, "rejected_connections": 1})
    assert len(lost.store_violations(requested)) == 2


def test_a_store_listens_where_requested_and_nowhere_else() -> None:
    receipt = ServerReceipt(tcp_ports=[6379], listen_address=StoreAddress(at="x", plain=True, tls=None))
    assert receipt.store_violations(RequestedStore(6379, None, is_encrypted=False)) == ()
    assert receipt.store_violations(RequestedStore(None, "/s", is_encrypted=False)) == (
        violation("other-ports", ports="[6379]", expected_ports="[]"),
        violation("other-sockets", sockets="[]", expected_sockets="['/s']"),
    )
    assert len(receipt.store_violations(RequestedStore(6379, None, is_encrypted=True))) == 2, "plain text, and no TLS"


def test_stores_are_configured_to_stay_in_memory() -> None:
    in_memory = {"save": "", "appendonly": "no", "maxmemory": "0"}
    redis = RedisDialect("redis")
    assert redis.mismatches(in_memory, {"total_forks": 0}) == []
    for change in ({"save": "3600 1"}, {"appendonly": "yes"}, {"maxmemory": "100"}):
        assert len(redis.mismatches({**in_memory, **change}, {})) == 1
    assert len(redis.mismatches(in_memory, {"total_forks": 1})) == 1
    assert len(MemcachedDialect().mismatches({}, {"listen_disabled_num": 1})) == 1


def test_a_store_that_tells_nothing_of_tls_is_not_asked_for_it() -> None:
    spec = SessionSpec(tls="1.3")
    session = _GOOD_REMOTE.model_copy(update={"tls_client_version": "TLSv1.3", "protocol_mode": "resp3"})
    assert session.violations(_REMOTE, spec) == ()
    assert len(session.violations(_REMOTE, SessionSpec())) == 1
    for change in ({"tls_client_version": "TLSv1.2"}, {"tls_client_version": None}, {"protocol_mode": "text"}):
        assert len(session.model_copy(update=change).violations(_REMOTE, spec)) == 1


# ---------------------------------------------------------------- sessions


@contextmanager
def answering(directory: Path, *answers: bytes) -> Iterator[LineConnection]:
    """A session with a server that sends one of `answers` per request, then hangs up."""
    path = str(directory / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                for answer in answers:
                    line.recv(4096)
                    line.sendall(answer)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        with LineConnection.connect(UnixTarget(path=path), 10.0) as lines:
            yield lines
        server.join(10)


def bulk(text: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text.encode())


def test_redis_says_how_it_sees_a_session(tmp_path: Path) -> None:
    over_socket = "id=3 addr=/w/s.sock:0 laddr=/w/s.sock:0 flags=U name=\n"
    over_tcp = "id=4 addr=10.77.0.1:44868 laddr=10.77.0.2:7000 flags=N\n"
    old = "id=5 addr=10.77.0.1:44868 flags=N\n"  # Redis 6.0
    redis, clients = RedisDialect("redis"), bulk(over_socket + over_tcp + old)
    replies = (reply for own in (3, 4, 5) for reply in (b":%d\r\n" % own, clients))
    with answering(tmp_path, *replies, b"-NOPERM no\r\n", b"+half") as lines:
        assert redis.view(lines, settings()).host == "localhost"
        seen = redis.view(lines, settings())
        assert (seen.host, seen.listener, seen.ssl_version) == ("10.77.0.1:44868", "10.77.0.2:7000", None)
        assert redis.view(lines, settings()).listener == ""
        for _ in range(2):
            with pytest.raises(LabError):
                send_command(lines, "PING")


def test_redis_counts_commands(tmp_path: Path) -> None:
    info = "# Stats\r\ntotal_commands_processed:12\r\nkeyspace_hits:7\r\ncmdstat_get:calls=9,usec=1,failed_calls=0\r\n"
    with answering(tmp_path, bulk(info)) as lines:
        assert RedisDialect("redis").counters(lines) == {
            "requests": 12,
            "statements": 9,
            "lookup_hits": 7,
            "cmdstat_get": 9,
            "cmdstat_set": 0,
            "cmdstat_mget": 0,
        }


def test_memcached_counts_keys_and_no_requests(tmp_path: Path) -> None:
    seen = "STAT bytes_read 8\r\nSTAT cmd_get 9\r\nSTAT cmd_set 2\r\nSTAT get_hits 7\r\nSTAT pid 1\r\nEND\r\n"
    with answering(tmp_path, seen.encode()) as lines:
        counted = MemcachedDialect().counters(lines)
    assert server_metrics(counted) == ServerMetrics(statements=11, bytes_received=8, lookup_hits=7)
    assert counted["cmd_get"] == 9 and "pid" not in counted


def test_a_query_cache_answers_statements_that_are_counted_nowhere_else() -> None:
    statements = dict.fromkeys(("Com_select", "Com_insert", "Com_update", "Com_delete", "Com_begin", "Com_commit"), 10)
    counted = convert_counters(statements | {"Qcache_hits": 5, "Questions": 90, "Slow_queries": 1})
    assert server_metrics(counted) == ServerMetrics(requests=90, statements=65)
    assert counted["Slow_queries"] == 1
    assert "statements" not in convert_counters({"Com_select": 5}), "some of a sum"


def test_memcached_finds_our_session_and_no_listener(tmp_path: Path) -> None:
    listener = b"STAT 23:addr unix:/w/s.sock\r\nSTAT 23:state conn_listening\r\n"
    ours = b"STAT 24:addr ?:<AF 0>\r\nSTAT 24:listen_addr unix:/w/s.sock\r\nSTAT 24:state conn_parse_cmd\r\n"
    other = ours.replace(b"/w/s.sock", b"/w/other.sock")
    no_port = settings(port=None)
    with answering(
        tmp_path, listener + ours + b"END\r\n", listener + b"END\r\n", other + b"END\r\n", b"ERROR\r\n"
    ) as lines:
        dialect = MemcachedDialect()
        assert dialect.view(lines, no_port).host == "localhost"
        assert dialect.view(lines, no_port).host == ""
        assert dialect.view(lines, no_port).host == ""
        with pytest.raises(LabError):
            dialect.view(lines, no_port)


def test_a_plan_of_sql_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    from howfar.plan.load import load_plan
    from howfar.runner.preflight import fit_plan

    plan = load_plan("paths").plan
    program = tmp_path / "anything"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\necho memcached 1.7.0\n')
    program.chmod(stat.S_IRWXU)
    for server in ("redis", str(program)):
        changed = plan.model_copy(update={"factors": plan.factors.model_copy(update={"server": (server,)})})
        with pytest.raises(PlanError, match="stores keys"):
            fit_plan(changed)
