"""What the recorder decodes of each protocol, compared with the server's own counters; by third-party clients where available."""

from __future__ import annotations

import io
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pg8000.native
import pytest
from click.testing import CliRunner

from howfar.cli.main import cli
from howfar.contract.messages import FixedSize, KeyValue, RecordEnded, Target, TcpListen, TcpTarget, UnixTarget
from howfar.lab.servers import DATABASE, USER
from howfar.recording.collecting import CollectedEvents, collect
from howfar.recording.facts import RecordingFacts
from howfar.recording.record_tap import RecordTap
from howfar.recording.recording import Recording, RecordingFile, RoundTrip, read
from tests.lab import certificates, local_stores
from tests.lab.listeners import echo, serve_tcp
from tests.lab.local_servers import LocalServer, require_server, run_server

pytestmark = pytest.mark.lab
SECRET = b"Xylophon4711"


@contextmanager
def record_through_tap(server: Target, folder: Path) -> Iterator[tuple[Target, Callable[[], Recording]]]:
    """A recording tap in front of a server: its address, and a function that ends the recording and reads it."""
    listen = (
        UnixTarget(path=str(folder / "tap")) if isinstance(server, UnixTarget) else TcpListen(host="127.0.0.1", port=0)
    )
    tap = RecordTap(server, listen)
    file, collected = RecordingFile(folder / "r", RecordingFacts()), CollectedEvents()
    collector = threading.Thread(target=collect, args=(tap, file, collected), daemon=True)
    collector.start()

    def finish() -> Recording:
        tap.finish()
        collector.join(60)
        ended = collected.ended
        assert isinstance(ended, RecordEnded) and collected.stopped is None
        assert ended.taken_to_server == ended.passed_to_server and ended.taken_to_client == ended.passed_to_client
        file.finish(RecordingFacts(commands=ended.commands, unknown=ended.unknown))
        return read(folder / "r")

    try:
        yield tap.address, finish
    finally:
        tap.leave()


def test_redis_in_pipelines_counts_as_the_server_does(tmp_path: Path) -> None:
    with local_stores.run_redis(tmp_path) as store, record_through_tap(store.unix, tmp_path) as (tap, finish):
        mix = KeyValue(protocol="resp3", key_prefix="Xylophon4711:", keys=200, get=6, set=2, multi_get=2, keys_each=5,
                       pipeline=8, value=FixedSize(bytes=64))  # fmt: skip
        local_stores.run_tables_job(tap, mix)
        before = {name: store.calls(name) for name in ("get", "set", "mget")}
        local_stores.run_load_job(local_stores.make_load_job(tap, mix))
        recording = finish()
        for name in before:
            assert recording.facts.commands[name] == store.calls(name) > 0, name
        assert recording.facts.unknown.keys() <= {"not answered when the connection or the recording ended"}
        assert any(trip.requests > 1 for trip in recording.round_trips)
        assert {connection.protocol for connection in recording.connections} == {"redis"}
    assert SECRET not in (tmp_path / "r").read_bytes()


@pytest.mark.parametrize("protocol", local_stores.MEMCACHED)
def test_memcached_counts_as_the_server_does(protocol: local_stores.Protocol, tmp_path: Path) -> None:
    with local_stores.run_memcached(tmp_path) as store, record_through_tap(store.unix, tmp_path) as (tap, finish):
        mix = KeyValue(protocol=protocol, key_prefix="Xylophon4711:", keys=200, get=6, set=2, value=FixedSize(bytes=64))
        local_stores.run_tables_job(tap, mix)
        local_stores.run_load_job(local_stores.make_load_job(tap, mix))
        commands, counted = finish().facts.commands, store.memcached_stats()
        get, put = ("mg", "ms") if protocol == "memcached_meta" else ("get", "set")
        assert (commands[get], commands[put]) == (counted["cmd_get"], counted["cmd_set"])
    assert SECRET not in (tmp_path / "r").read_bytes()


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def sql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    request.getfixturevalue("namespaces")
    if shutil.which({"mariadb": "mariadbd", "mysql": "mysqld"}[request.param], path="/usr/sbin:/usr/bin") is None:
        pytest.skip(f"{request.param} is not installed")
    require_server(request.param)
    with run_server(request.param, tmp_path_factory.mktemp("q")) as server:
        yield server


def command_counts(server: LocalServer, before: dict[str, int], *names: str) -> dict[str, int]:
    """How much the counters `Com_*` have grown since `before`, without their prefix."""
    rows = server.execute("SHOW GLOBAL STATUS LIKE 'Com\\_%'")
    now = {str(row["Variable_name"])[4:].lower(): int(str(row["Value"])) for row in rows if str(row["Value"]).isdigit()}
    return {name: now[name] - before.get(name, 0) for name in names or now}


def test_prepared_statements_count_as_the_server_does(sql: LocalServer, tmp_path: Path) -> None:
    before = command_counts(sql, {})
    with record_through_tap(sql.unix, tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        load = ["load", "oltp_read_write", "--tables=1", "--table-size=100", "--threads=3", "--events=60", "--time=0"]
        load += [
            f"--mysql-socket={tap.path}",
            f"--mysql-user={USER}",
            f"--mysql-db={DATABASE}",
            "--report=human",
            "run",
        ]
        done = CliRunner(env={"HOWFAR_PASSWORD": sql.password}).invoke(cli, load)
        assert done.exit_code == 0, done.output
        recording = finish()
    counted = command_counts(sql, before, "stmt_execute", "stmt_prepare")
    commands = recording.facts.commands
    assert commands["execute"] == counted["stmt_execute"] > 1000
    assert commands["prepare"] == counted["stmt_prepare"]
    assert recording.facts.unknown == {}
    executed = [trip for trip in recording.round_trips if trip.command == "execute"]
    points = [trip for trip in executed if digest_text(recording, trip) == "SELECT c FROM sbtest1 WHERE id = ?"]
    assert {trip.rows for trip in points} == {1}
    assert 10 < len({trip.keys for trip in points}) <= 100


def digest_text(recording: Recording, trip: RoundTrip) -> str:
    return recording.digest_by_id[trip.digest_id].text if trip.digest_id else ""


CLIENT = """
SELECT 'Xylophon4711'; SET @a = 'Xylophon4711'; SELECT @a;
PREPARE s FROM 'SELECT ?'; EXECUTE s USING @a;
CREATE TEMPORARY TABLE t (a VARCHAR(20), b INT); INSERT INTO t VALUES ('Xylophon4711', 1), ('b', 2), ('c', 3);
SELECT * FROM t WHERE b IN (1, 2, 3); COMMIT;
"""


@pytest.mark.parametrize("client", ["mariadb", "mysql", "php"])
def test_third_party_clients_count_as_the_server_does(sql: LocalServer, client: str, tmp_path: Path) -> None:
    """Clients may negotiate session tracking, query attributes, or result sets without EOF."""
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    before = command_counts(sql, {})
    with record_through_tap(sql.unix, tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        environment = {**os.environ, "MYSQL_PWD": sql.password}
        if client == "php":
            command = ["php", "-r", PHP, tap.path, USER, DATABASE]
            text = ""
        else:
            version = subprocess.run([client, "--version"], capture_output=True, text=True).stdout
            no_tls = "--ssl-mode=DISABLED" if client == "mysql" and "MySQL" in version else "--skip-ssl"
            command = [client, "--no-defaults", f"--socket={tap.path}", f"--user={USER}", no_tls, DATABASE]
            text = CLIENT
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=60)
        if "caching_sha2" in done.stderr or "unknown variable" in done.stderr:
            pytest.skip(f"{client} cannot log in: {done.stderr.strip()[:200]}")
        assert done.returncode == 0, done.stderr
        recording = finish()
    counted = command_counts(sql, before)
    commands = recording.facts.commands
    assert recording.facts.unknown == {}
    counted["create_table"] += counted.get("create_temporary_table", 0)  # MariaDB's own counter
    assert commands.get("select", 0) + (commands.get("execute", 0) if client == "php" else 1) == counted["select"]
    for name, theirs in (("insert", "insert"), ("commit", "commit"), ("create", "create_table")):
        assert commands.get(name, 0) == counted[theirs], name
    assert SECRET not in (tmp_path / "r").read_bytes()


PHP = """
[$_, $socket, $user, $database] = $argv;
$db = new PDO("mysql:unix_socket=$socket;dbname=$database", $user, getenv("MYSQL_PWD"), [PDO::ATTR_EMULATE_PREPARES => false]);
for ($i = 0; $i < 5; $i++) { $s = $db->prepare("SELECT ?, 'Xylophon4711'"); $s->execute([$i]); $s->fetchAll(); }
$s = $db->prepare("SELECT ?"); for ($i = 0; $i < 5; $i++) { $s->execute(["Xylophon4711"]); $s->fetchAll(); }
$db->query("SELECT 'Xylophon4711'")->fetchAll();
"""


@pytest.fixture(scope="module")
def postgres(postgresql: None, namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with run_server("postgresql", tmp_path_factory.mktemp("g")) as server:
        yield server


def transactions(server: LocalServer) -> int:
    """Commits and rollbacks of sessions that have ended."""
    time.sleep(1.2)  # the server publishes a session's counts at most once a second, which cannot be observed
    rows = server.process.query(
        f"SELECT xact_commit + xact_rollback AS n FROM pg_stat_database WHERE datname = '{DATABASE}'"
    )
    return int(str(rows[0]["n"]))


def test_every_statement_of_psql_is_a_transaction_of_the_server(postgres: LocalServer, tmp_path: Path) -> None:
    statements = [f"SELECT 'Xylophon4711', {number};" for number in range(20)]
    statements += [
        "CREATE TEMPORARY TABLE t (a TEXT);",
        "COPY t FROM STDIN;",
        "Xylophon4711",
        "\\.",
        "COPY t TO STDOUT;",
    ]
    statements += ["SELECT Xylophon FROM nothing_of_that_name;", "TABLE t;"]

    def psql(text: str) -> tuple[int, str]:
        command = ["psql", "-X", "-q", f"--host={tmp_path}", f"--username={USER}", DATABASE]
        environment = {**os.environ, "PGPASSWORD": postgres.password}
        before = transactions(postgres)
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=60)
        return transactions(postgres) - before, done.stdout

    with record_through_tap(postgres.unix, tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        (tmp_path / ".s.PGSQL.5432").symlink_to(tap.path)
        # The transactions of a session without statements: its start, and the queries of the counts.
        without = min(psql("")[0] for _ in range(2))
        grown, output = psql("\n".join([*statements, ""]))
        assert output.count("Xylophon4711") == 22
        recording = finish()
    commands = recording.facts.commands
    expected = {"select": 21, "create": 1, "copy": 2, "table": 1}
    assert {name: commands[name] for name in expected} == expected
    # At its end the session drops its temporary table in another transaction.
    assert grown - without == sum(expected.values()) + 1
    assert [trip.failed for trip in recording.round_trips].count(True) == 1
    assert recording.facts.unknown == {}
    assert SECRET not in (tmp_path / "r").read_bytes()


def test_postgresqls_extended_protocol_and_copy(postgres: LocalServer, tmp_path: Path) -> None:
    """pg8000 sends a statement in three flights."""
    with record_through_tap(postgres.unix, tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        line = pg8000.native.Connection(USER, unix_sock=tap.path, database=DATABASE, password=postgres.password)
        for number in range(20):
            line.run("SELECT :a, 'Xylophon4711'", a=f"Xylophon4711 {number}")
        line.run("CREATE TEMPORARY TABLE t (a TEXT)")
        line.run("COPY t FROM STDIN", stream=io.BytesIO(b"Xylophon4711\n" * 200_000))
        out = io.BytesIO()
        line.run("COPY t TO STDOUT", stream=out)
        assert out.getvalue().count(b"\n") == 200_000
        line.run("SELECT :a, 'Xylophon4711'", a="Xylophon4711 after it")
        line.close()
        recording = finish()
    commands = recording.facts.commands
    assert {name: commands[name] for name in ("select", "create", "copy")} == {"select": 21, "create": 1, "copy": 2}
    looped = [trip for trip in recording.round_trips if trip.command == "select"]
    assert {trip.rows for trip in looped} == {1}
    assert len({trip.keys for trip in looped}) == 21
    assert recording.facts.unknown == {}
    assert SECRET not in (tmp_path / "r").read_bytes()


def test_a_statement_longer_than_the_limit_has_its_digest_and_its_count(postgres: LocalServer, tmp_path: Path) -> None:
    """[rec-10] [rec-8]"""
    with record_through_tap(postgres.unix, tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        line = pg8000.native.Connection(USER, unix_sock=tap.path, database=DATABASE, password=postgres.password)
        for size in (10_000, 1_100_000, 3_000_000):
            line.run(f"SELECT length('{'y' * size}')")
        for count in (100, 22_000):
            assert len(line.run(f"SELECT i, repeat('x', 100) FROM generate_series(1, {count}) AS i")) == count
        line.close()
        recording = finish()
    names = [digest_text(recording, trip) for trip in recording.round_trips]
    assert names.count("SELECT length(?)") == 3
    rows = [trip.rows for trip in recording.round_trips if trip.command == "select"]
    assert rows == [1, 1, 1, 100, None]
    assert recording.facts.commands["select"] == 5
    assert recording.facts.unknown == {"statement longer than kept": 2}


@pytest.mark.parametrize("options", [["--pipeline=5"], ["--db-ps-mode=disable"], ["--db-ps-mode=auto"]])
def test_a_load_on_postgresql_counts_as_the_server_does(
    postgres: LocalServer, options: list[str], tmp_path: Path
) -> None:
    host, port = postgres.address
    with record_through_tap(TcpTarget(host=host, port=port), tmp_path) as (tap, finish):
        assert isinstance(tap, TcpTarget)
        before = transactions(postgres)
        dsn = f"postgresql://{USER}@{tap.host}:{tap.port}/{DATABASE}"
        tables = ["--tables=1", "--table-size=100"]
        load = ["load", dsn, "oltp_point_select", *tables, "--threads=2", "--events=200", "--time=0", *options, "run"]
        done = CliRunner(env={"PGPASSWORD": postgres.password}).invoke(cli, load)
        assert done.exit_code == 0, done.output
        after = transactions(postgres)
        recording = finish()
    assert recording.facts.unknown == {}
    selects = [trip for trip in recording.round_trips if "FROM sbtest1" in digest_text(recording, trip)]
    assert {connection.protocol for connection in recording.connections} == {"postgresql"}
    counted = sum(trip.requests for trip in selects if trip.command == "select")
    pipeline = 5 if "pipeline" in options[0] else 1
    assert counted == 200 * pipeline
    if pipeline == 1:
        assert 0 <= after - before - 200 <= 20, "logins and settings add a few"


def test_tls_passes_unchanged_and_its_round_trips_have_no_statement(
    tmp_path: Path, authority: certificates.Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server.certificate, authority.server.key)

    def echo_tls(connection: socket.socket) -> None:
        echo(context.wrap_socket(connection, server_side=True))

    with (
        serve_tcp(echo_tls) as port,
        record_through_tap(TcpTarget(host="127.0.0.1", port=port), tmp_path) as (tap, finish),
    ):
        assert isinstance(tap, TcpTarget)
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        with client.wrap_socket(socket.create_connection((tap.host, tap.port))) as line:
            for _ in range(50):
                sent = SECRET + os.urandom(20_000)
                line.sendall(sent)
                got = b""
                while len(got) < len(sent):
                    got += line.recv(65536)
                assert got == sent
        recording = finish()
    assert recording.connections[0].tls
    assert sum(trip.command == "blind" for trip in recording.round_trips) >= 50
    assert recording.facts.unknown["encrypted"] >= 50
