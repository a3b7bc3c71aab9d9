"""Each installed kind of server: it starts, becomes ready, and lets the engine log in, with TLS and with accounts of each kind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pymysql
import pymysql.cursors
import pytest

from howfar.contract.messages import (
    LoadJob,
    Session,
    Sysbench,
    TcpTarget,
    UnixTarget,
)
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.lab.cache import SOCKET_PATH_MAX
from howfar.lab.servers import DATABASE, USER
from howfar.lab.servers.features import features
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.private import install_from
from tests.lab import accounts, certificates
from tests.lab.sandboxes import run_lab
from tests.lab.servers_here import ONE_TABLE, Running, prepared, short_directory, started
from tests.lab.undisturbed import lasting
from tests.rarely import rarely_but

pytestmark = pytest.mark.lab
_RARELY_MYSQL = pytest.mark.parametrize("name", rarely_but(("mariadb",), ("mariadb", "mysql")), indirect=True)
AUTHENTICATIONS = {
    "mariadb": {"mysql_native_password"},
    "mariadb-11": {"mysql_native_password", "ed25519", "parsec"},
    "mysql": {"caching_sha2_password"},
}
"""The methods that each has at least; the machine's own MariaDB may have more. MySQL 9 has removed mysql_native_password."""
SPOKEN = {"mysql_native_password", "caching_sha2_password"}
"""The methods that pymysql supports without further packages."""


def _load(target: UnixTarget | TcpTarget, user: str, password: str) -> LoadOutcome:
    job = LoadJob(
        target=target,
        user=user,
        password=password,
        database=DATABASE,
        session=Session(fetch_server_key=True),
        workload=Sysbench(kind="oltp_read_only", tables=ONE_TABLE.count, table_size=ONE_TABLE.size),
        connections=2,
        seed=1,
        warmup_ns=0,
        measure_ns=20_000_000_000,
        transactions=60,
    )
    return run_load(job, Launcher())


def _targets(running: Running) -> dict[str, UnixTarget | TcpTarget]:
    host, port = running.address
    return {"socket": UnixTarget(path=str(running.server.socket)), "tcp": TcpTarget(host=host, port=port)}


@pytest.mark.parametrize("transport", ["socket", "tcp"])
def test_the_engine_logs_in_and_reads(running: Running, transport: str) -> None:
    outcome = _load(_targets(running)[transport], USER, running.password)
    assert outcome.finished.transactions > 0
    assert sum(outcome.finished.errors.values()) == 0


def test_it_is_what_it_was_asked_to_be(running: Running, name: str) -> None:
    assert len(str(running.server.socket)) <= SOCKET_PATH_MAX
    version = running.server.version
    assert ("MariaDB" in version) == (running.server.kind == "mariadb") == name.startswith("mariadb")
    assert not name.endswith("-11") or version.startswith("11.")
    receipt, mismatches = running.server.receipt(running.server.snapshot())
    assert lasting(mismatches) == []
    assert receipt.facts["log_bin"] == "OFF"
    assert receipt.facts["innodb_flush_log_at_trx_commit"] == "1"
    assert receipt.tcp_ports == [running.address[1]], "no port beside its own, such as MySQL's X protocol"


def test_it_asks_nobody_in_without_a_password(running: Running) -> None:
    for user in ("root", "", USER):
        with pytest.raises(pymysql.Error):
            pymysql.connect(unix_socket=str(running.server.socket), user=user, password="", ssl_disabled=True)


def test_it_offers_tls_by_our_authority(running: Running, authority: certificates.Certificates) -> None:
    with _verified(running, authority.ca) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_version'")
        assert dict(cursor.fetchall())["Ssl_version"] in {"TLSv1.2", "TLSv1.3"}


def test_another_authority_is_not_believed(running: Running, tmp_path: Path) -> None:
    with pytest.raises(pymysql.OperationalError, match="certificate verify failed"):
        _verified(running, certificates.make(tmp_path).ca)


def _verified(running: Running, ca: Path) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """A connection over TLS that checks the server's certificate and its name."""
    host, port = running.address
    return pymysql.connect(
        host=host,
        port=port,
        user=USER,
        password=running.password,
        ssl_ca=str(ca),
        ssl_verify_cert=True,
        ssl_verify_identity=True,
    )


def test_a_client_certificate_can_be_demanded(running: Running, authority: certificates.Certificates) -> None:
    running.execute("CREATE USER certified@'%' REQUIRE X509")
    host, port = running.address

    def log_in(certificate: Path | None, key: Path | None) -> None:
        ours = (None if certificate is None else str(certificate), None if key is None else str(key))
        ca = str(authority.ca)
        pymysql.connect(host=host, port=port, user="certified", ssl_ca=ca, ssl_cert=ours[0], ssl_key=ours[1]).close()

    with pytest.raises(pymysql.OperationalError, match="Access denied"):
        log_in(None, None)
    log_in(authority.client_certificate, authority.client_key)


def test_accounts_of_each_authentication_can_be_made(running: Running, name: str) -> None:
    """The tests of sessions depend on these accounts."""
    there = accounts.offered(running)
    assert set(there) >= AUTHENTICATIONS[name]
    for authentication in there:
        account = accounts.create(running, authentication, "not-a-secret")
        made = running.execute(f"SELECT plugin AS plugin FROM mysql.user WHERE user = '{account.user}'")
        assert made == [{"plugin": authentication}]
        if authentication in SPOKEN:
            socket = str(running.server.socket)
            pymysql.connect(unix_socket=socket, user=account.user, password=account.password, ssl_disabled=True).close()


def test_mysql_has_a_key_for_passwords_over_plain_tcp(running: Running, name: str) -> None:
    """A full login without TLS sends the password encrypted with it."""
    if name != "mysql":
        pytest.skip("MariaDB's authentications need no such key")
    rows = running.execute("SHOW GLOBAL STATUS LIKE 'Caching_sha2_password_rsa_public_key'")
    assert "BEGIN PUBLIC KEY" in str(rows[0]["Value"])


@_RARELY_MYSQL
def test_without_tls_and_networking_it_has_neither(name: str, tmp_path: Path) -> None:
    work = short_directory(tmp_path)
    with started(prepared(name, work), networking=False) as alone:
        assert alone.server.port is None
        receipt, mismatches = alone.server.receipt(alone.server.snapshot())
        assert mismatches == ()
        assert receipt.tcp_ports == []
        with pytest.raises(pymysql.OperationalError):
            pymysql.connect(
                unix_socket=str(alone.server.socket), user=USER, password=alone.password, ssl={"check_hostname": False}
            )


@_RARELY_MYSQL
def test_a_second_start_on_the_same_data_reads_no_files(name: str, tmp_path: Path) -> None:
    """A server is killed after each trial; the next one must have all pages in memory again before it is measured."""
    store = prepared(name, short_directory(tmp_path))
    for _ in range(3):
        with started(store) as again:
            before = again.server.snapshot()
            _load(UnixTarget(path=str(again.server.socket)), USER, again.password)
            _, mismatches = again.server.receipt(before)
            assert mismatches == ()


def test_mysqls_copies_have_identities_of_their_own(name: str, tmp_path: Path) -> None:
    """Two servers that share an identity could not replicate from each other."""
    if name != "mysql":
        pytest.skip("MariaDB's data holds no identity")
    found = set()
    for _ in range(2):
        with started(prepared(name, short_directory(tmp_path)), networking=False) as one:
            found.add(str(one.execute("SELECT @@server_uuid AS u")[0]["u"]))
    assert len(found) == 2


@pytest.mark.usefixtures("namespaces")
@_RARELY_MYSQL
def test_the_laboratory_takes_it_by_name(name: str, tmp_path: Path) -> None:
    query = 'mariadb --defaults-file="$HOWFAR_CLIENT_CNF" "$HOWFAR_DATABASE" -BNe "SELECT COUNT(*) FROM sbtest1"'
    receipt = tmp_path / "receipt.json"
    options = ("--server", name, "--path", "tcp", "--tables", "1", "--table-size", "100", "--receipt", str(receipt))
    done = run_lab(*options, "--", "sh", "-c", query)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "100"
    assert json.loads(receipt.read_text())["server"][0] == name.removesuffix("-11")
    query = 'mariadb --defaults-file="$HOWFAR_CLIENT_CNF" -BNe "SHOW STATUS LIKE \'ssl_version\'"'
    done = run_lab(*options[:-2], "--tls", "1.3", "--", "sh", "-c", query)
    assert (done.returncode, done.stdout.split()) == (0, ["Ssl_version", "TLSv1.3"]), done.stderr


def test_a_private_install_works_under_another_name(name: str, tmp_path: Path) -> None:
    """Each install is itself moved once, to its final directory when it is complete."""
    program = find_server(name).path
    root = program.parent.parent
    if not (root / "receipt.json").exists():
        pytest.skip(f"{program} is the machine's own")
    (tmp_path / "a name with spaces").symlink_to(root)
    moved = tmp_path / "a name with spaces" / program.relative_to(root)
    done = subprocess.run([moved, "--no-defaults", "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Ver" in done.stdout


def test_it_says_what_it_can_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = find_server(name)
    found = features(program)
    assert found.tls is not None
    assert "zlib" in found.compression
    assert ("zstd" in found.compression) == found.clone == (program.kind == "mysql")
    assert found.semi_sync
    monkeypatch.setattr("howfar.lab.servers.features.find_store", None)
    assert features(program) == found, "asked once only"


def test_one_that_somebody_unpacked_can_be_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = find_server(name).path
    if program.is_relative_to("/usr"):
        pytest.skip(f"{program} is the machine's own: nobody unpacked it")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    installed, made = install_from(program.parents[1], lambda line: None)
    work = tmp_path / "w"
    work.mkdir()
    with started(prepared(str(installed.program), work), networking=False) as running:
        (row,) = running.execute("SELECT @@basedir AS base, COUNT(*) AS n FROM sbtest1")
    assert made
    assert (row["n"], str(row["base"]).rstrip("/")) == (100, str(program.parents[1]))
