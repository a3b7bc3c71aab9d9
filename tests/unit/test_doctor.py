"""The doctor without servers: texts from /proc, DSNs, options, proposed lines, and checks that must stay silent."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.made_doctor import PORT, SOCKET, client, found, idle, looked, server

from howfar.cli.doctor import _target_from_dsn as named_server
from howfar.clients import Consent
from howfar.doctor import procfs
from howfar.doctor.candidates import Candidate, ListenAddress, server_kind_of
from howfar.doctor.checks import CHECKS
from howfar.doctor.discovery import (
    ConnectionWatch,
    Holder,
    IdentifiedServer,
    SessionFacts,
    WatchedServer,
    group_clients,
    identify,
    short_options,
)
from howfar.doctor.examine import _login_advice, _watched_server
from howfar.doctor.findings import (
    Client,
    IdleCost,
    Kind,
    Median,
    Rates,
    Server,
    Severity,
    Transport,
    schema_text,
)
from howfar.doctor.kind import product_name
from howfar.doctor.minimum_latency import make_median, median_saving
from howfar.doctor.procfs import Process
from howfar.doctor.proposals import client_socket_changes, language_of, unique_socket_paths
from howfar.doctor.protocols import PROTOCOLS, session
from howfar.doctor.protocols.session import Counters, Endpoint, Greeting, NoValidAnswer, Owner, UnexpectedListener
from howfar.doctor.targets import Logins, TargetLogin
from howfar.errors import UsageError
from howfar.services import SERVICES

ROOT = Path(__file__).parents[2]


def test_the_schema_is_what_the_types_say() -> None:
    assert (ROOT / "schema" / "doctor.json").read_text() == schema_text(), "python -m howfar.doctor.findings"


def test_cpus_that_take_long_to_wake_are_a_note_with_its_price() -> None:
    (finding,) = looked(server(idle=idle(60e3, 25e3)))
    assert finding.check == "idle-states" and finding.severity is Severity.NOTE
    assert "58 % of a round trip" in finding.text
    assert finding.gain is not None and finding.gain.saves_ns is not None
    assert finding.gain.saves_ns.value == pytest.approx(35e3)
    lines = " ".join(line for change in finding.changes for line in change.lines)
    assert "tuned-adm" in lines and "/dev/cpu_dma_latency" in lines


@pytest.mark.parametrize("cost", [None, idle(25e3, 24.5e3), idle(60e3, 50e3, noise_ns=20e3)])
def test_waking_that_hardly_costs_or_is_not_resolved_is_no_finding(cost: IdleCost | None) -> None:
    assert found(server(idle=cost)) == set()


def test_a_loopback_client_gets_its_lines_and_the_gain() -> None:
    (finding,) = looked(server(client()))
    assert finding.check == "loopback-tcp" and finding.gain is not None
    assert finding.gain.saves_ns == Median(value=6e3, low=6e3, high=6e3)
    lines = [line for change in finding.changes for line in change.lines]
    assert "pdo_mysql.default_socket = /run/s.sock" in lines and not any(
        "Django" in change.where for change in finding.changes
    )


@pytest.mark.parametrize(
    "seen",
    [
        server(),
        server(client(program="java")),
        server(client(program="mariadbd")),
        server(client(program="redis-sentinel")),
        server(client(program="java"), kind=Kind.REDIS),
        server(client(program="docker-proxy")),
        server(client(local=False, address="192.0.2.1", may_use_socket=None)),
        server(client(by="socket"), socket_connections=3),
        server(listeners=(PORT,)),
        server(client(), listeners=(PORT,), listeners_complete=False),
        server(client(bundle_looks=1, by="socket", connects_seen=9)),
        server(client(bundle_looks=9, by="socket"), bundle_ns=make_median([25e6])),
        server(rates=Rates(connects=30, statements=60, tls_connects=0)),
        server(rates=Rates(connects=300, statements=90_000, tls_connects=0)),
        server(rates=None),
        server(client(by="socket", tls=None, compressed=None)),
        server(client(), listeners=(SOCKET.model_copy(update={"state": "unseen"}), PORT)),
    ],
    ids=["idle", "java", "replica", "sentinel", "java and Redis", "forwarder of others", "remote",
         "on the socket", "no socket, nobody", "a socket perhaps",
         "bundle read once",
         "bundle without connects", "few connects", "many statements", "no counters", "not told", "socket that may not be seen"],
)  # fmt: skip
def test_a_correct_setup_has_no_findings(seen: Server) -> None:
    assert found(seen) == set()


def test_an_exporter_is_no_replica_and_a_router_no_shell() -> None:
    assert found(server(client(program="mysqld_exporter"))) == {"loopback-tcp"}
    assert found(server(client(program="mysqlrouter"))) == set() and language_of("mysql") == "shell"


def test_a_hidden_process_is_only_a_note() -> None:
    (finding,) = looked(server(client(program="unseen")))
    assert (finding.check, finding.severity) == ("loopback-tcp", "note")


def test_memcached_stays_on_tcp_for_other_machines() -> None:
    remote = client(local=False, address="192.0.2.1", program="unseen")
    (finding,) = looked(server(client(), remote, kind=Kind.MEMCACHED, listeners=(PORT,)))
    assert (finding.check, finding.severity, finding.changes) == ("socket-off", "note", ())


@pytest.mark.parametrize("program", ["docker-proxy", "mcrouter", "java", "systemd-socket-"])
def test_memcached_stays_on_tcp_for_clients_that_need_it(program: str) -> None:
    (finding,) = looked(server(client(), client(program=program), kind=Kind.MEMCACHED, listeners=(PORT,)))
    assert (finding.check, finding.severity, finding.changes) == ("socket-off", "note", ())


def test_each_server_gets_a_different_path() -> None:
    def at(port: int, *paths: str, state: str = "works") -> Server:
        sockets = [SOCKET.model_copy(update={"path": path, "state": state}) for path in paths]
        return server(kind=Kind.REDIS, listeners=(*sockets, PORT.model_copy(update={"port": port})))

    usual = "/run/redis/redis-server.sock"
    assert unique_socket_paths([at(6380), at(6379)], []) == ["/run/redis-6380/redis-server.sock", usual]
    assert unique_socket_paths([at(6380, usual)], [usual]) == [usual], "its own"
    assert unique_socket_paths([at(6380)], [usual]) == ["/run/redis-6380/redis-server.sock"], "somebody else's"
    lost = at(6380, usual, state="elsewhere")
    assert unique_socket_paths([lost, at(6379, usual)], [usual, usual]) == ["/run/redis-6380/redis-server.sock", usual]


def test_a_socket_that_is_gone_comes_back_by_a_restart_and_keeps_its_mode() -> None:
    gone = SOCKET.model_copy(update={"state": "gone"})
    (finding,) = looked(server(kind=Kind.REDIS, listeners=(gone,)))
    assert finding.changes[0].lines == ("unixsocket /run/s.sock",)


def bundled(program: str, reads: int, connects: int, kind: Kind = Kind.MYSQL) -> Server:
    reader = client(
        program=program, by="socket", connects_seen=9, bundle_looks=9, bundle_reads=reads, bundle_connects=connects
    )
    return server(reader, kind=kind, bundle_ns=make_median([25e6]))


def test_the_bundle_is_charged_to_connects_only_where_both_coincide() -> None:
    (finding,) = looked(bundled("python3", 4, 4))
    assert (finding.check, finding.severity) == ("authority-bundle", "change") and finding.changes
    (finding,) = looked(bundled("python3", 9, 3))
    assert (finding.check, finding.severity, finding.changes) == ("authority-bundle", "note", ())
    assert found(bundled("php-fpm8.2", 4, 4)) == found(bundled("python3", 4, 4, Kind.REDIS)) == set()


def test_tls_and_compression_end_for_the_command_only() -> None:
    command = client(program="mariadb", by="socket", tls=True, compressed=True)
    by_name = {finding.check: finding for finding in looked(server(command))}
    assert by_name.keys() == {"encrypted-socket", "compressed-local"}
    lines = [line for finding in by_name.values() for change in finding.changes for line in change.lines]
    assert "mariadb --skip-ssl …" in lines and not any("[client]" in line for line in lines)
    (finding,) = looked(server(client(by="socket", tls=True)))
    assert (finding.severity, finding.changes) == ("note", ())


def test_a_forwarder_is_not_blamed_for_what_others_encrypt() -> None:
    for program in ("haproxy", "stunnel4"):
        assert found(server(client(program=program, tls=True, compressed=True))) == {"forwarder"}
    for program in ("sshd", "sshd-session"):
        assert found(server(client(program=program, tls=True, compressed=True))) == set()
    (finding,) = looked(server(client(program="stunnel4")))
    assert finding.changes[-1].lines == ("connect = /run/s.sock",)


def test_the_account_may_differ_over_tcp() -> None:
    (finding,) = looked(server(client()))
    assert "CREATE USER IF NOT EXISTS 'USER'@'localhost'" in finding.changes[0].lines[1]
    assert not any(
        "CREATE USER" in line for change in client_socket_changes(Kind.REDIS, "/x", []) for line in change.lines
    )


def test_one_reconnect_does_not_make_a_client_the_cause() -> None:
    rates = Rates(connects=200, statements=400, tls_connects=0)
    (finding,) = looked(server(client(by="socket", connects_seen=2), rates=rates))
    assert finding.check == "connect-churn" and finding.text.startswith("clients open")
    (finding,) = looked(server(client(by="socket", connects_seen=101), rates=rates))
    assert finding.text.startswith("php-fpm8.2")


def test_processes_of_one_connection_each_are_one_client_that_connects_again() -> None:
    sight = SessionFacts(sessions=(), listeners=(PORT,), never_tls=True, socket=None)
    holders = [
        Holder(pid, 0, None, connections=1, program_connections=2, ports={pid}, bundle_looks=1) for pid in range(10, 20)
    ]
    programs = {pid: procfs.Process(pid, "mariadb", 0, ()) for pid in range(10, 20)}
    (made,) = group_clients(holders, programs, sight)
    assert (made.connections, made.connects_seen, made.bundle_looks) == (2, 10, 10)


def test_a_connection_that_was_caught_later_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = ("127.0.0.1", 3306), ("127.0.0.1", 40000)
    rows = [
        procfs.TcpRow(there, here, procfs.ESTABLISHED, 27, 1),
        procfs.TcpRow(here, there, procfs.ESTABLISHED, 33, 2),
    ]
    owners: dict[int, set[int]] = {}
    monkeypatch.setattr(procfs, "tcp_rows", lambda: rows)
    monkeypatch.setattr(procfs, "processes", lambda: iter([procfs.Process(7, "app", 33, ())]))
    monkeypatch.setattr(procfs, "process", lambda pid: procfs.Process(pid, "app", 33, ()))
    monkeypatch.setattr(procfs, "socket_inodes", lambda pid: owners.get(pid, set()))
    watch = ConnectionWatch([WatchedServer(0, {3306: frozenset()}, frozenset())])
    watch.watch_for(0)
    owners[7] = {2}
    watch._searched_at = float("-inf")
    (holder,) = watch.watch_for(0).holders[0].values()
    assert (holder.pid, holder.ports, holder.connections) == (7, {40000}, 1)


@pytest.mark.parametrize("hosts", [("0.0.0.0", "::1"), ("::1", "0.0.0.0"), ("::", "127.0.0.1"), ("127.0.0.1", "::1")])
def test_all_addresses_of_a_port_are_watched(hosts: tuple[str, ...]) -> None:
    listeners = [PORT.model_copy(update={"host": host}) for host in hosts]
    watching = _watched_server(0, IdentifiedServer(Kind.MYSQL, None, None, TargetLogin("", ""), listeners=listeners))
    everywhere = {"0.0.0.0", "::"} & {*hosts}
    assert watching.ports == {3306: frozenset() if everywhere else frozenset(hosts)}


def test_no_certificate_is_said_to_be_verified() -> None:
    with pytest.raises(UsageError):
        named_server("mysql://me@db/?ssl-mode=VERIFY_IDENTITY", False)
    assert named_server("mysql://me@db/?ssl-mode=REQUIRED", False).tls


def test_churn_is_priced_on_the_transport_in_use() -> None:
    seen = server(
        client(by="tcp", connects_seen=50, program="java"), rates=Rates(connects=50, statements=100, tls_connects=0)
    )
    (finding,) = looked(seen)
    assert finding.check == "connect-churn" and finding.gain is not None
    assert finding.gain.saves_ns is not None and finding.gain.saves_ns.value == 220e3


def postgres(*clients: Client, **changes: object) -> Server:
    return server(*clients, kind=Kind.POSTGRESQL, name="PostgreSQL 15.18", **changes)


def rates_of(waiting: float, working: float, statements: float = 100) -> Rates:
    return Rates(connects=0, statements=statements, tls_connects=None, working=working, waiting=waiting)


def test_sessions_that_idle_are_a_pooler_that_is_missing_or_keeps_them() -> None:
    (finding,) = looked(postgres(sessions=120, idle_sessions=110))
    assert finding.check == "pooler-missing" and "pgbouncer (" not in finding.text
    pooler = client(program="pgbouncer", connections=110)
    (finding,) = [
        each
        for each in looked(postgres(client(), pooler, sessions=120, idle_sessions=110))
        if each.check == "pooler-mode"
    ]
    assert "pgbouncer (www-data, pid 7) keeps sessions, as with pool_mode = session" in finding.text
    assert found(postgres(sessions=49, idle_sessions=49)) == found(postgres(sessions=120, idle_sessions=100)) == set()
    assert found(postgres(sessions=60, idle_sessions=58, socket_connections=58)) == set(), (
        "a pooler may be on the socket"
    )
    assert found(postgres(sessions=None, idle_sessions=None)) == set()


def test_transactions_that_wait_for_their_client_are_told_with_the_most_that_a_pipeline_can_save() -> None:
    (finding,) = looked(postgres(rates=rates_of(waiting=0.6, working=0.2)))
    assert finding.text.startswith("75 % of the time") and finding.gain is not None
    assert finding.gain.text.startswith("at most 6 ms of a transaction; a round trip here takes 20 µs")
    assert found(postgres(rates=rates_of(waiting=0.2, working=0.3))) == set()
    assert found(postgres(rates=rates_of(waiting=0.6, working=0.2, statements=5))) == set()


def test_each_check_has_a_unique_name_and_a_row_in_the_document() -> None:
    names = [name for name, _ in CHECKS]
    document = (ROOT / "docs" / "doctor.md").read_text()
    assert len(set(names)) == len(names) and all(f"`{name}`" in document for name in names)


def test_the_kernels_tables_are_read() -> None:
    row = procfs.parse_tcp(
        "   0: 0100007F:0CEA 0200007F:D431 01 00000000:00000000 00:00000000 00000000    33        0 4711 1 0 20 0"
    )
    assert (row.local, row.remote, row.uid, row.inode) == (("127.0.0.1", 3306), ("127.0.0.2", 54321), 33, 4711)
    inside = procfs.parse_tcp(
        "0: 0000000000000000FFFF00000100007F:0CEA 00000000000000000000000001000000:D431 0A 0:0 00:0 0 0 0 5 1 0"
    )
    assert inside.local == ("127.0.0.1", 3306) and inside.remote[0] == "::1"
    unix = procfs.parse_unix("00000000: 00000002 00000000 00010000 0001 01 99 /run/my sql.sock")
    assert unix is not None and (unix.path, unix.inode, unix.listens) == ("/run/my sql.sock", 99, True)
    assert procfs.parse_unix("00000000: 00000003 00000000 00000000 0001 03 99") is None
    assert procfs.parse_unix("00000000: 00000002 00000000 00010000 0001 01 99 @abstract") is None
    assert procfs.parse_unix("the rest of a path with a line break") is None
    relative = procfs.parse_unix("00000000: 00000002 00000000 00010000 0001 01 99 s.sock")
    assert relative is not None and relative.path == "s.sock"


def test_of_a_command_line_only_name_and_script_are_shown() -> None:
    def shown(*arguments: str) -> str:
        return procfs.Process(1, "python3", 0, arguments).shown

    assert shown("python3", "/srv/app/worker.py", "--password=secret") == "python3 worker.py"
    assert shown("python3", "-c", "connect(password='secret')") == "python3"
    assert shown("mysql", "-psecret") == "python3"


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, Kind(service.name)) for service in SERVICES.values() for name in service.programs]
    + [("postmaster", Kind.POSTGRESQL)],
)
def test_a_server_is_recognised_by_each_of_its_names(name: str, kind: Kind) -> None:
    """[doc-6] By the process name in the kernel, or by its program's name where a loader starts it."""
    assert server_kind_of(Process(1, name, 0, (f"/usr/bin/{name}", "-D", "/srv"))) is kind
    assert server_kind_of(Process(1, "ld-linux-x86-64", 0, ("ld-linux-x86-64.so.2", f"/opt/{name}"))) is kind
    assert server_kind_of(Process(1, f"{name}-exporter", 0, ())) is None


@pytest.mark.parametrize(
    ("arguments", "requested"),
    [
        (("memcached", "-s", "/x", "-p", "11211"), {"-s", "-p"}),
        (("memcached", "-s/x", "-p0"), {"-s"}),
        (("memcached", "-p", "0", "--enable-ssl", "--unix-socket=/x"), {"-Z", "-s"}),
        (("memcached", "-l", "127.0.0.1"), {"-l"}),
    ],
)
def test_memcacheds_options(arguments: tuple[str, ...], requested: set[str]) -> None:
    assert short_options(arguments) == requested


@pytest.mark.parametrize(
    ("dsn", "kind", "where"),
    [
        ("mysql://me@db:3307/", Kind.MYSQL, (None, "db", 3307)),
        ("mariadb:///run/s.sock?user=me", Kind.MYSQL, ("/run/s.sock", None, None)),
        ("redis://127.0.0.1", Kind.REDIS, (None, "127.0.0.1", 6379)),
        ("rediss://[::1]:7000", Kind.REDIS, (None, "::1", 7000)),
        ("redis:///run/r%20s.sock", Kind.REDIS, ("/run/r s.sock", None, None)),
        ("memcached:///run/m.sock", Kind.MEMCACHED, ("/run/m.sock", None, None)),
    ],
)
def test_a_dsn_names_a_server(dsn: str, kind: Kind, where: tuple[object, ...]) -> None:
    target = named_server(dsn, False)
    assert target.kind is kind and (target.path, target.host, target.port) == where


@pytest.mark.parametrize(
    "dsn",
    [
        "me:secret@h", "memcached://u:secret@h", "rediss:///x", "redis://h?x=secret", "ftp://secret@h", "redis://h:x",
    ],
)  # fmt: skip
def test_what_is_refused_is_not_repeated(dsn: str) -> None:
    with pytest.raises(UsageError) as refused:
        named_server(dsn, False)
    assert "secret" not in refused.value.message + refused.value.advice


def test_a_password_is_in_no_repr() -> None:
    assert "secret" not in repr(TargetLogin("me", "secret"))
    target = named_server("mysql://me:secret@db/", False)
    assert target.password == "secret" and "secret" not in repr(target)


def test_versions_are_named() -> None:
    assert product_name("mysql", "5.5.5-10.11.19-MariaDB-0+deb12u1") == "MariaDB 10.11.19"
    assert product_name("mysql", "11.8.6-MariaDB-log") == "MariaDB 11.8.6"
    assert product_name("mysql", "9.7.4") == "MySQL 9.7.4"


def test_rates_leave_out_what_the_doctor_asked() -> None:
    rates = Counters(130, 501, None).rates(Counters(100, 400, None), 2.0, own_statements=1)
    assert (rates.connects, rates.statements, rates.tls_connects) == (15, 50, None)


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60))
def test_an_interval_holds_its_median(values: list[float]) -> None:
    made = make_median(values)
    assert (made.low is None) == (len(values) < 6)
    if made.low is not None and made.high is not None:
        assert min(values) <= made.low <= made.value <= made.high <= max(values)


def test_clients_of_postgresql_name_the_directory_and_the_port() -> None:
    changes = client_socket_changes(
        Kind.POSTGRESQL, "/run/a b/.s.PGSQL.5433", [client(program="psql"), client(program="orders")]
    )
    lines = [line for change in changes for line in change.lines]
    assert "psql -h /run/a b -p 5433 …" in lines and "host=/run/a b port=5433 dbname=DB user=USER" in lines
    assert "scram-sha-256" in lines[0], "before the client changes over"


def test_differences_are_within_rounds() -> None:
    drifting = [float(number) for number in range(24)]
    assert median_saving([value + 5 for value in drifting], drifting) == Median(value=5, low=5, high=5)
    assert median_saving([], []) is None and median_saving([1.0], [1.0, 2.0]) is None


def test_a_median_keeps_its_name_in_json() -> None:
    assert make_median([5.0] * 8).model_dump(by_alias=True) == {"median": 5, "low": 5, "high": 5}


@pytest.mark.parametrize("kind", list(Kind))
def test_lines_hold_the_path_and_no_placeholder(kind: Kind) -> None:
    for change in client_socket_changes(kind, "/run/a b.sock", [client(program="unseen")]):
        text = "\n".join(change.lines)
        assert "{" not in text.replace("{ socket: { path:", "").replace("redis.Options{", "") or kind is not Kind.MYSQL
        assert "/run/a b.sock" in text or kind is Kind.POSTGRESQL or "in SQL" in change.where
    assert language_of("php-fpm8.2") == "php" and language_of("unseen") is None and language_of("orders") == "native"


# ---------------------------------------------------------------- the doctor and programs that are not servers


NOBODY = TargetLogin("x", "hush")
CERTIFICATES = Path(__file__).parents[2] / "crates/engine/tests/load"
GREETING = b"\x40\0\0\0\x0a10.11.19-MariaDB\0\x01\0\0\0saltsalt\0"
"""MariaDB's greeting, up to its capabilities."""
BEGINNINGS = (
    b"",
    GREETING,
    b"+PONG\r\n",
    b"VERSION 1.6.18\r\n",
    b"-NOAUTH \r\n",
    b"\x05\0\0\0\x0b",
    b"+PONG\r\n$5\r\n",
    b"+PONG\r\n*99\r\n",
    b"+PONG\r\n*0\r\n",
    b"N",
    b"R\0\0\0\x08\0\0\0\0",
    b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I",
    b"E\xff\xff\xff\xff",
)


@contextmanager
def answering(answer: bytes, path: Path | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """Send `answer` to each client, read from it once and hang up. Yields the port (0 at a path) and what was read."""
    heard: list[bytes] = []
    with closing(_listening(path)) as listening:

        def serve() -> None:
            while True:
                try:
                    made, _ = listening.accept()
                except OSError:
                    return
                with made:
                    try:
                        made.sendall(answer)
                        made.shutdown(socket.SHUT_WR)
                        while got := made.recv(4096):
                            heard.append(got)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield 0 if path is not None else listening.getsockname()[1], heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def _listening(path: Path | None) -> socket.socket:
    if path is None:
        return socket.create_server(("127.0.0.1", 0))
    return socket.create_server(str(path), family=socket.AF_UNIX)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=120), st.sampled_from(list(Kind)))
def test_whoever_answers_is_told_apart(beginning: bytes, rest: bytes, kind: Kind) -> None:
    with answering(beginning + rest) as (port, _):
        try:
            answered = PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port), NOBODY)
        except NoValidAnswer:
            return
        assert isinstance(answered, Greeting)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Kind.MYSQL, GREETING + b"\0\x02" + b"\0" * 40),
        (Kind.REDIS, b"-NOAUTH x\r\n" * 9),
        (Kind.MEMCACHED, b"VERSION 1\r\n" * 9),
        (Kind.POSTGRESQL, b"N" + b"R\0\0\0\x08\0\0\0\x03"),
    ],
)
def test_who_asked_for_tls_sends_no_login_in_plain(kind: Kind, answer: bytes) -> None:
    with answering(answer) as (port, heard), pytest.raises(NoValidAnswer):
        PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port, tls=True), NOBODY)
    assert not any(word in b"".join(heard) for word in (b"hush", b"AUTH", b"mysql_native_password"))


def test_redis_gets_the_password_on_this_machine_or_by_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program may answer `-NOAUTH`."""

    def said(login: TargetLogin) -> bytes:
        with answering(b"-NOAUTH x\r\n") as (port, heard), suppress(NoValidAnswer):
            PROTOCOLS[Kind.REDIS].greet(Endpoint(None, "127.0.0.1", port), login)
        return b"".join(heard)

    login = TargetLogin("", "hush")
    assert b"hush" in said(login)
    monkeypatch.setattr(session, "is_of_this_machine", lambda host: False)
    assert b"hush" not in said(login)
    assert b"hush" in said(replace(login, consent=Consent(cleartext_password=True)))


def test_what_to_type_for_a_login_keeps_tls() -> None:
    known = IdentifiedServer(Kind.REDIS, None, None, TargetLogin("", ""))
    known.endpoints[next(iter(Transport))] = Endpoint(None, "2001:db8::5", 6379, tls=True)
    dsn = _login_advice(known).split()[-1]
    assert dsn == "rediss://[2001:db8::5]:6379?allow-cleartext-password=1"
    assert named_server(dsn, False).consent.cleartext_password


def test_a_dsn_of_redis_consents() -> None:
    assert named_server("rediss://db.example?allow-cleartext-password=1", False).consent.cleartext_password
    assert not named_server("redis://db.example", False).consent.cleartext_password


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def _greeting(plugin: bytes) -> bytes:
    """The greeting of MySQL 8, with support for TLS and plugins, that names `plugin`."""
    able = (1 << 9 | 1 << 11 | 1 << 15 | 1 << 19).to_bytes(4, "little")
    rest = b"\xff" + b"\x02\0" + able[2:] + b"\x15" + b"\0" * 10 + b"pepperpepper\0" + plugin + b"\0"
    return _packet(0, b"\x0a8.4.0\0\x01\0\0\0saltsalt\0" + able[:2] + rest)


@contextmanager
def asking(greeting: bytes, asked: bytes, encrypted: bool) -> Iterator[tuple[int, list[bytes]]]:
    """Send `greeting`, and answer each packet with `asked`, correctly numbered; yields the port, and what was received."""
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "certificate.pem", CERTIFICATES / "key.pem")

    def serve() -> None:
        made, _ = listening.accept()
        with made:
            made.sendall(greeting)
            talking = made
            if encrypted:
                made.recv(36)
                talking = context.wrap_socket(made, server_side=True)
            while got := talking.recv(4096):
                heard.append(got)
                talking.sendall(_packet(got[3] + 1, asked))

    def until_it_leaves() -> None:
        with suppress(OSError):
            serve()

    with closing(_listening(None)) as listening:
        thread = threading.Thread(target=until_it_leaves, daemon=True)
        thread.start()
        yield listening.getsockname()[1], heard
        thread.join(5)


ASKED = {
    "mysql_clear_password": b"\xfemysql_clear_password\0",
    "dialog": b"\xfedialog\0\x04Password: ",
    "caching_sha2_password": b"\x01\x04",
    "sha256_password": b"\xfesha256_password\0saltsaltpepperpepper\0",
}
"""By plugin: the packet by which a server requests the password itself."""


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("plugin", list(ASKED))
def test_the_password_itself_leaves_by_consent_alone(plugin: str, tls: bool) -> None:
    """The rule is that of `howfar load`; no certificate is verified here, so TLS does not make the channel private."""
    greeting = _greeting(plugin.encode() if "sha" in plugin else b"mysql_native_password")

    def heard_with(consent: Consent) -> tuple[str, bytes]:
        with asking(greeting, ASKED[plugin], tls) as (port, heard):
            login = TargetLogin("x", "hush", consent)
            try:
                why = PROTOCOLS[Kind.MYSQL].greet(Endpoint(None, "127.0.0.1", port, tls=tls), login).refused
            except NoValidAnswer as error:  # what it sends as a key is not one
                why = str(error)
        return str(why), b"".join(heard)

    why, heard = heard_with(Consent())
    assert b"hush" not in heard
    assert "it was not sent" in why and ("allow-cleartext" in why or "get-server" in why)
    # One byte, \1 or \2, requests the key.
    assert not heard.endswith((b"\x01\0\0\x03\x02", b"\x01\0\0\x03\x01"))
    _, heard = heard_with(Consent(fetch_server_key=True, cleartext_password=True))
    if tls:
        assert b"hush\0" in heard
    else:
        assert b"hush" not in heard
        assert heard.endswith((b"\x02", b"\x01")) == ("sha" in plugin), "the key was asked for"


def _message(letter: bytes, body: bytes) -> bytes:
    return letter + (len(body) + 4).to_bytes(4, "big") + body


def _authentication(code: int, rest: bytes = b"") -> bytes:
    return _message(b"R", code.to_bytes(4, "big") + rest)


ENDLESS = {
    "a password in clear": (_authentication(3), "it was not sent"),
    "an endless login": (_authentication(0) * 2000, "no end"),
    "an hour of hashing": (
        _authentication(10, b"SCRAM-SHA-256\0\0") + _authentication(11, b"r=x,s=c2FsdA==,i=999999999"),
        "too many iterations",
    ),
    "an answer of a gigabyte": (b"E\x40\0\0\0", "more than"),
    "an answer of less than nothing": (b"S\0\0\0\0", "more than"),
    "notices without end": (_message(b"N", b"SWARNING\0M" + b"x" * 8000 + b"\0\0") * 1_200, "more than"),
}
"""By case: the answer to a login by a peer that claims to be PostgreSQL, and what the report says."""


@pytest.mark.parametrize("what", list(ENDLESS))
def test_who_claims_to_be_postgresql_gets_no_password_and_no_time(what: str) -> None:
    """Its first answer, one byte, is to the request for TLS, which has its own connection."""
    answer, says = ENDLESS[what]
    answers = iter([b"N", answer])
    heard: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        for each in answers:
            made, _ = listening.accept()
            with made, suppress(OSError):
                heard.append(made.recv(4096))
                made.sendall(each)
                while got := made.recv(4096):
                    heard.append(got)

    with closing(_listening(None)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        endpoint = Endpoint(None, "127.0.0.1", listening.getsockname()[1])
        try:
            why = str(PROTOCOLS[Kind.POSTGRESQL].greet(endpoint, NOBODY).refused)
        except NoValidAnswer as error:
            why = str(error)
        thread.join(5)
    assert says in why and b"hush" not in b"".join(heard)


@pytest.mark.parametrize("kind", list(Kind))
def test_nobody_there(kind: Kind) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
    with pytest.raises(NoValidAnswer):
        PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port), NOBODY)


def _of(path: Path, pid: int, kind: Kind, certain: bool = True) -> IdentifiedServer | None:
    """What the doctor finds out about a server process of our own account that supposedly listens at `path`."""
    process = Process(pid, "mysqld", os.geteuid(), ())
    return identify(
        Candidate(kind, process, (ListenAddress(str(path)),), certain), Logins(NOBODY, NOBODY, NOBODY), None
    )


@pytest.mark.parametrize("kind", list(Kind))
def test_who_took_a_servers_path_hears_nothing(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with answering(b"-NOAUTH\r\n", path) as (_, heard):
        with pytest.raises(UnexpectedListener):
            PROTOCOLS[kind].greet(Endpoint(str(path), None, None, owner=Owner(os.getppid(), os.geteuid())), NOBODY)
        known = _of(path, os.getppid(), kind)
        guessed = _of(path, os.getppid(), kind, certain=False)
    assert known is not None and [listener.state for listener in known.listeners] == ["elsewhere"]
    assert guessed is None and heard == []


@pytest.mark.parametrize("kind", list(Kind))
def test_silence_is_no_proof(kind: Kind, tmp_path: Path) -> None:
    with answering(b"", tmp_path / "s.sock"):
        known = _of(tmp_path / "s.sock", os.getpid(), kind)
    assert known is not None and [listener.state for listener in known.listeners] == ["unseen"] and known.unseen
    known = _of(tmp_path / "s.sock", os.getpid(), kind)
    assert known is not None and [listener.state for listener in known.listeners] == ["gone"], "nobody listens any more"


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Kind.MYSQL, b"\x17\0\0\0\xff\x10\x04Too many connections"),
        (Kind.REDIS, b"-ERR max number of clients reached\r\n"),
        (Kind.MEMCACHED, b"ERROR Too many open connections\r\n"),
    ],
)
def test_a_full_server_refuses_and_is_there(kind: Kind, answer: bytes, tmp_path: Path) -> None:
    with answering(answer, tmp_path / "s.sock"):
        known = _of(tmp_path / "s.sock", os.getpid(), kind)
    assert known is not None and [listener.state for listener in known.listeners] == ["works"]
    assert "many" in next(iter(known.refusals.values())) or "max number" in next(iter(known.refusals.values()))


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_may_be_anothers_is_not_taken_for_its_own(shared: bool) -> None:
    with answering(GREETING + b"\0\x02" + b"\0" * 40) as (port, _):
        process = Process(os.getpid(), "mysqld", os.geteuid(), ())
        address = ListenAddress(None, "127.0.0.1", port, is_shared=shared)
        known = identify(Candidate(Kind.MYSQL, process, (address,), False), Logins(NOBODY, NOBODY, NOBODY), None)
    assert (known is None) == shared
