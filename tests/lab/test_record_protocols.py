"""What is decoded of each protocol, compared with the server's own counters, with third-party clients where available."""

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
from howfar.recording.collecting import Collected, collect
from howfar.recording.facts import RecordingFacts
from howfar.recording.record_tap import RecordTap
from howfar.recording.recording import Recording, RecordingFile, read
from tests.lab import certificates, stores_here
from tests.lab.servers_here import Running, prepared, short_directory, started

pytestmark = pytest.mark.lab
SECRET = b"Xylophon4711"


@contextmanager
def recorded(server: Target, folder: Path) -> Iterator[tuple[Target, Callable[[], Recording]]]:
    """A tap in front of a server: its address, and a function that ends the recording and reads it."""
    listen = (
        UnixTarget(path=str(folder / "tap")) if isinstance(server, UnixTarget) else TcpListen(host="127.0.0.1", port=0)
    )
    tap = RecordTap(server, listen)
    file, collected = RecordingFile(folder / "r", RecordingFacts()), Collected()
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
    with stores_here.redis(tmp_path) as store, recorded(store.unix, tmp_path) as (tap, finish):
        mix = KeyValue(protocol="resp3", key_prefix="Xylophon4711:", keys=200, get=6, set=2, multi_get=2, keys_each=5,
                       pipeline=8, value=FixedSize(bytes=64))  # fmt: skip
        stores_here.filled(tap, mix)
        before = {name: store.counted(name) for name in ("get", "set", "mget")}
        stores_here.run(stores_here.job(tap, mix))
        recording = finish()
        for name in before:
            assert recording.facts.commands[name] == store.counted(name) > 0, name
        assert recording.facts.unknown.keys() <= {"not answered when the connection or the recording ended"}
        assert any(one.requests > 1 for one in recording.round_trips)
        assert {one.protocol for one in recording.connections} == {"redis"}
    assert SECRET not in (tmp_path / "r").read_bytes()


def memcached_counters(store: stores_here.Store) -> dict[str, int]:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(store.unix.path)
        line.sendall(b"stats\r\nquit\r\n")
        text = b"".join(iter(lambda: line.recv(65536), b"")).decode()
    words = [row.split() for row in text.splitlines() if row.startswith("STAT")]
    return {row[1]: int(row[2]) for row in words if row[2].isdigit()}


@pytest.mark.parametrize("protocol", stores_here.MEMCACHED)
def test_memcached_counts_as_the_server_does(protocol: stores_here.Protocol, tmp_path: Path) -> None:
    with stores_here.memcached(tmp_path) as store, recorded(store.unix, tmp_path) as (tap, finish):
        mix = KeyValue(protocol=protocol, key_prefix="Xylophon4711:", keys=200, get=6, set=2, value=FixedSize(bytes=64))
        stores_here.filled(tap, mix)
        stores_here.run(stores_here.job(tap, mix))
        commands, counted = finish().facts.commands, memcached_counters(store)
        get, put = ("mg", "ms") if protocol == "memcached_meta" else ("get", "set")
        assert (commands[get], commands[put]) == (counted["cmd_get"], counted["cmd_set"])
    assert SECRET not in (tmp_path / "r").read_bytes()


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def sql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    request.getfixturevalue("namespaces")
    if shutil.which({"mariadb": "mariadbd", "mysql": "mysqld"}[request.param], path="/usr/sbin:/usr/bin") is None:
        pytest.skip(f"{request.param} is not installed")
    try:
        store = prepared(request.param, short_directory(tmp_path_factory.mktemp("q")))
    except Exception as error:
        pytest.skip(f"{request.param}: {error}")
    with started(store) as running:
        yield running


def grown(running: Running, before: dict[str, int], *names: str) -> dict[str, int]:
    rows = running.execute("SHOW GLOBAL STATUS LIKE 'Com\\_%'")
    now = {str(row["Variable_name"])[4:].lower(): int(str(row["Value"])) for row in rows if str(row["Value"]).isdigit()}
    return {name: now[name] - before.get(name, 0) for name in names or now}


def test_prepared_statements_count_as_the_server_does(sql: Running, tmp_path: Path) -> None:
    before = grown(sql, {})
    with recorded(UnixTarget(path=str(sql.server.socket)), tmp_path) as (tap, finish):
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
    counted = grown(sql, before, "stmt_execute", "stmt_prepare")
    commands = recording.facts.commands
    assert commands["execute"] == counted["stmt_execute"] > 1000
    assert commands["prepare"] == counted["stmt_prepare"]
    assert recording.facts.unknown == {}
    executed = [one for one in recording.round_trips if one.command == "execute"]
    texts = {recording.digest_by_id[one.digest_id].text for one in executed if one.digest_id}
    assert "SELECT c FROM sbtest1 WHERE id = ?" in texts
    points = [one for one in executed if one.digest_id and "WHERE id = ?" in recording.digest_by_id[one.digest_id].text
              and recording.digest_by_id[one.digest_id].text.startswith("SELECT c FROM")]  # fmt: skip
    assert {one.rows for one in points} == {1}
    assert 10 < len({one.keys for one in points}) <= 100


CLIENT = """
SELECT 'Xylophon4711'; SET @a = 'Xylophon4711'; SELECT @a;
PREPARE s FROM 'SELECT ?'; EXECUTE s USING @a;
CREATE TEMPORARY TABLE t (a VARCHAR(20), b INT); INSERT INTO t VALUES ('Xylophon4711', 1), ('b', 2), ('c', 3);
SELECT * FROM t WHERE b IN (1, 2, 3); COMMIT;
"""


@pytest.mark.parametrize("client", ["mariadb", "mysql", "php"])
def test_other_peoples_clients_count_as_the_server_does(sql: Running, client: str, tmp_path: Path) -> None:
    """They may negotiate session tracking, query attributes, end-of-rows without EOF."""
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    before = grown(sql, {})
    with recorded(UnixTarget(path=str(sql.server.socket)), tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        environment = {**os.environ, "MYSQL_PWD": sql.password}
        if client == "php":
            command = ["php", "-r", PHP, tap.path, USER, DATABASE]
            text = ""
        else:
            command = [client, "--no-defaults", f"--socket={tap.path}", f"--user={USER}", "--skip-ssl"]
            if (
                "MySQL" in subprocess.run([client, "--version"], capture_output=True, text=True).stdout
                and client == "mysql"
            ):
                command[-1] = "--ssl-mode=DISABLED"
            command.append(DATABASE)
            text = CLIENT
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=60)
        if "caching_sha2" in done.stderr or "unknown variable" in done.stderr:
            pytest.skip(f"{client} cannot log in: {done.stderr.strip()[:200]}")
        assert done.returncode == 0, done.stderr
        recording = finish()
    counted = grown(sql, before)
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
def postgres(postgresql: None, namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(prepared("postgresql", short_directory(tmp_path_factory.mktemp("g")))) as running:
        yield running


def transactions(running: Running) -> int:
    """Commits and rollbacks of sessions that have ended."""
    time.sleep(1.2)  # the server flushes a session's counts at most once a second, and gives no sign of it
    rows = running.server.query(
        f"SELECT xact_commit + xact_rollback AS n FROM pg_stat_database WHERE datname = '{DATABASE}'"
    )
    return int(str(rows[0]["n"]))


def test_every_statement_of_psql_is_a_transaction_of_the_server(postgres: Running, tmp_path: Path) -> None:
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

    with recorded(UnixTarget(path=str(postgres.server.socket)), tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        (tmp_path / ".s.PGSQL.5432").symlink_to(tap.path)
        # The transactions of a session without a statement: its start, and the queries for the counts.
        without = min(psql("")[0] for _ in range(2))
        grown, output = psql("\n".join([*statements, ""]))
        assert output.count("Xylophon4711") == 22
        recording = finish()
    commands = recording.facts.commands
    expected = {"select": 21, "create": 1, "copy": 2, "table": 1}
    assert {name: commands[name] for name in expected} == expected
    # At its end the session drops its temporary table, in a transaction too.
    assert grown - without == sum(expected.values()) + 1
    assert [one.failed for one in recording.round_trips].count(True) == 1
    assert recording.facts.unknown == {}
    assert SECRET not in (tmp_path / "r").read_bytes()


def test_postgresql_extended_and_copy(postgres: Running, tmp_path: Path) -> None:
    """Uses pg8000, which sends a statement in three flights."""
    with recorded(UnixTarget(path=str(postgres.server.socket)), tmp_path) as (tap, finish):
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
    looped = [one for one in recording.round_trips if one.command == "select"]
    assert {one.rows for one in looped} == {1}
    assert len({one.keys for one in looped}) == 21
    assert recording.facts.unknown == {}
    assert SECRET not in (tmp_path / "r").read_bytes()


def test_a_statement_longer_than_kept_has_its_name_and_its_count(postgres: Running, tmp_path: Path) -> None:
    """[rec-10] [rec-8]"""
    with recorded(UnixTarget(path=str(postgres.server.socket)), tmp_path) as (tap, finish):
        assert isinstance(tap, UnixTarget)
        line = pg8000.native.Connection(USER, unix_sock=tap.path, database=DATABASE, password=postgres.password)
        for size in (10_000, 1_100_000, 3_000_000):
            line.run(f"SELECT length('{'y' * size}')")
        for count in (100, 22_000):
            assert len(line.run(f"SELECT i, repeat('x', 100) FROM generate_series(1, {count}) AS i")) == count
        line.close()
        recording = finish()
    names = [recording.digest_by_id[one.digest_id].text for one in recording.round_trips if one.digest_id]
    assert names.count("SELECT length(?)") == 3
    rows = [one.rows for one in recording.round_trips if one.command == "select"]
    assert rows == [1, 1, 1, 100, None]
    assert recording.facts.commands["select"] == 5
    assert recording.facts.unknown == {"statement longer than kept": 2}


@pytest.mark.parametrize("options", [["--pipeline=5"], ["--db-ps-mode=disable"], ["--db-ps-mode=auto"]])
def test_postgresql_as_a_load(postgres: Running, options: list[str], tmp_path: Path) -> None:
    host, port = postgres.address
    with recorded(TcpTarget(host=host, port=port), tmp_path) as (tap, finish):
        assert isinstance(tap, TcpTarget)
        before = transactions(postgres)
        dsn = f"postgresql://{USER}@{tap.host}:{tap.port}/{DATABASE}"
        load = [
            "load",
            dsn,
            "oltp_point_select",
            "--tables=1",
            "--table-size=100",
            "--threads=2",
            "--events=200",
            "--time=0",
        ]
        done = CliRunner(env={"PGPASSWORD": postgres.password}).invoke(cli, [*load, *options, "run"])
        assert done.exit_code == 0, done.output
        after = transactions(postgres)
        recording = finish()
    assert recording.facts.unknown == {}
    selects = [
        one
        for one in recording.round_trips
        if one.digest_id and "FROM sbtest1" in recording.digest_by_id[one.digest_id].text
    ]
    assert {one.protocol for one in recording.connections} == {"postgresql"}
    counted = sum(one.requests for one in selects if one.command == "select")
    each = 5 if "pipeline" in options[0] else 1
    assert counted == 200 * each
    if each == 1:
        assert 0 <= after - before - 200 <= 20, "logins and settings besides"


def test_tls_is_recorded_blind_and_passes_unchanged(tmp_path: Path, authority: certificates.Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server.certificate, authority.server.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        raw, _ = listener.accept()
        with context.wrap_socket(raw, server_side=True) as line:
            while data := line.recv(1 << 16):
                line.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    server = TcpTarget(host="127.0.0.1", port=listener.getsockname()[1])
    with listener, recorded(server, tmp_path) as (tap, finish):
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
    assert sum(one.command == "blind" for one in recording.round_trips) >= 50
    assert recording.facts.unknown["encrypted"] >= 50
