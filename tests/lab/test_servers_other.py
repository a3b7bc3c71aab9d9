"""Each installed kind of server: it starts with the requested settings, accepts logins with TLS and of each authentication method."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pymysql
import pymysql.cursors
import pytest

from howfar.contract.messages import LoadJob, Session, Sysbench
from howfar.contract.violation import sentences
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.errors import LabError
from howfar.lab.cache import SOCKET_PATH_MAX
from howfar.lab.servers import USER
from howfar.lab.servers.features import find_features
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.private import install_from
from tests.lab import accounts, certificates
from tests.lab.local_servers import ONE_TABLE, LocalServer, make_short_directory, prepare_store, run_server, run_store
from tests.lab.sandboxes import run_lab
from tests.lab.undisturbed import unexcused
from tests.rarely import rarely_but

pytestmark = pytest.mark.lab
_RARELY_MYSQL = pytest.mark.parametrize("name", rarely_but(("mariadb",), ("mariadb", "mysql")), indirect=True)
AUTHENTICATIONS = {
    "mariadb": {"mysql_native_password"},
    "mariadb-11": {"mysql_native_password", "ed25519", "parsec"},
    "mysql": {"caching_sha2_password"},
}
"""Methods that each server has; the machine's own MariaDB may have more. MySQL 9 has removed mysql_native_password."""
PYMYSQL_METHODS = {"mysql_native_password", "caching_sha2_password"}
"""The methods that pymysql supports without further packages."""


def _load(server: LocalServer) -> LoadOutcome:
    job = LoadJob(
        target=server.unix,
        **server.login,
        session=Session(fetch_server_key=True),
        workload=Sysbench(kind="oltp_read_only", tables=ONE_TABLE.count, table_size=ONE_TABLE.size),
        connections=2,
        seed=1,
        warmup_ns=0,
        measure_ns=20_000_000_000,
        transactions=60,
    )
    return run_load(job, Launcher())


def test_it_is_the_requested_server_with_the_requested_settings(server: LocalServer, name: str) -> None:
    assert len(str(server.process.socket)) <= SOCKET_PATH_MAX
    version = server.process.version
    assert ("MariaDB" in version) == (server.process.kind == "mariadb") == name.startswith("mariadb")
    assert not name.endswith("-11") or version.startswith("11.")
    receipt, mismatches = server.process.collect_receipt(server.process.snapshot())
    assert unexcused(sentences(mismatches)) == []
    assert receipt.facts["log_bin"] == "OFF"
    assert receipt.facts["innodb_flush_log_at_trx_commit"] == "1"
    assert receipt.tcp_ports == [server.address[1]], "it has no second port, such as that of MySQL's X protocol"


@pytest.mark.parametrize("kind", ["mariadb", "memcached"])
def test_a_socket_below_a_long_path_is_refused_before_a_program_starts(kind: str, tmp_path: Path) -> None:
    long = tmp_path / ("x" * SOCKET_PATH_MAX)
    long.mkdir()
    with pytest.raises(LabError, match=f"a Unix socket allows {SOCKET_PATH_MAX}"), run_server(kind, long):
        pass


def test_it_refuses_logins_without_a_password(server: LocalServer) -> None:
    for user in ("root", "", USER):
        with pytest.raises(pymysql.Error):
            pymysql.connect(unix_socket=server.unix.path, user=user, password="", ssl_disabled=True)


def test_it_offers_tls_by_our_authority(server: LocalServer, authority: certificates.Certificates) -> None:
    with _verified(server, authority.ca) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_version'")
        assert dict(cursor.fetchall())["Ssl_version"] in {"TLSv1.2", "TLSv1.3"}


def test_another_authority_is_refused(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(pymysql.OperationalError, match="certificate verify failed"):
        _verified(server, certificates.make_certificates(tmp_path).ca)


def _verified(server: LocalServer, ca: Path) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """A connection over TLS that checks the server's certificate and its name."""
    host, port = server.address
    return pymysql.connect(
        host=host,
        port=port,
        user=USER,
        password=server.password,
        ssl_ca=str(ca),
        ssl_verify_cert=True,
        ssl_verify_identity=True,
    )


def test_a_client_certificate_can_be_required(server: LocalServer, authority: certificates.Certificates) -> None:
    server.execute("CREATE USER certified@'%' REQUIRE X509")
    host, port = server.address

    def log_in(certificate: Path | None, key: Path | None) -> None:
        files: dict[str, Any] = {"ssl_cert": certificate and str(certificate), "ssl_key": key and str(key)}
        pymysql.connect(host=host, port=port, user="certified", ssl_ca=str(authority.ca), **files).close()

    with pytest.raises(pymysql.OperationalError, match="Access denied"):
        log_in(None, None)
    log_in(authority.client_certificate, authority.client_key)


def test_accounts_of_each_authentication_can_be_made(server: LocalServer, name: str) -> None:
    """Tests of sessions depend on these accounts."""
    methods = accounts.supported_methods(server)
    assert set(methods) >= AUTHENTICATIONS[name]
    for authentication in methods:
        account = accounts.create_account(server, authentication, "not-a-secret")
        made = server.execute(f"SELECT plugin AS plugin FROM mysql.user WHERE user = '{account.user}'")
        assert made == [{"plugin": authentication}]
        if authentication in PYMYSQL_METHODS:
            socket = server.unix.path
            pymysql.connect(unix_socket=socket, user=account.user, password=account.password, ssl_disabled=True).close()


def test_mysql_has_a_key_for_passwords_over_plain_tcp(server: LocalServer, name: str) -> None:
    """A full login without TLS sends the password encrypted with it."""
    if name != "mysql":
        pytest.skip("MariaDB's authentications need no such key")
    rows = server.execute("SHOW GLOBAL STATUS LIKE 'Caching_sha2_password_rsa_public_key'")
    assert "BEGIN PUBLIC KEY" in str(rows[0]["Value"])


@_RARELY_MYSQL
def test_without_tls_and_networking_it_has_neither(name: str, tmp_path: Path) -> None:
    with run_server(name, tmp_path, networking=False) as alone:
        assert alone.process.port is None
        receipt, mismatches = alone.process.collect_receipt(alone.process.snapshot())
        assert mismatches == ()
        assert receipt.tcp_ports == []
        with pytest.raises(pymysql.OperationalError):
            pymysql.connect(
                unix_socket=alone.unix.path, user=USER, password=alone.password, ssl={"check_hostname": False}
            )


@_RARELY_MYSQL
def test_a_second_start_on_the_same_data_reads_no_files(name: str, tmp_path: Path) -> None:
    """A server is killed after each trial. The next one must have all pages in memory before it is measured."""
    store = prepare_store(name, make_short_directory(tmp_path))
    for _ in range(3):
        with run_store(store) as again:
            before = again.process.snapshot()
            _load(again)
            _, mismatches = again.process.collect_receipt(before)
            assert mismatches == ()


def test_copies_of_mysqls_data_have_different_identities(name: str, tmp_path: Path) -> None:
    """Servers with the same identity cannot replicate from each other."""
    if name != "mysql":
        pytest.skip("MariaDB's data holds no identity")
    found = set()
    for _ in range(2):
        with run_server(name, tmp_path, networking=False) as one:
            found.add(str(one.execute("SELECT @@server_uuid AS u")[0]["u"]))
    assert len(found) == 2


@pytest.mark.usefixtures("namespaces")
@_RARELY_MYSQL
def test_the_laboratory_finds_it_by_name(name: str, tmp_path: Path) -> None:
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
    """A complete install is moved once, to its final directory."""
    program = find_server(name).path
    root = program.parent.parent
    if not (root / "receipt.json").exists():
        pytest.skip(f"{program} is the machine's own")
    (tmp_path / "a name with spaces").symlink_to(root)
    moved = tmp_path / "a name with spaces" / program.relative_to(root)
    done = subprocess.run([moved, "--no-defaults", "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Ver" in done.stdout


def test_its_features_are_found_and_cached(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = find_server(name)
    found = find_features(program)
    assert found.tls is not None
    assert "zlib" in found.compression
    assert ("zstd" in found.compression) == found.clone == (program.kind == "mysql")
    assert found.semi_sync
    monkeypatch.setattr("howfar.lab.servers.features.find_store", None)
    assert find_features(program) == found, "features are cached"


@pytest.mark.thorough
def test_an_unpacked_server_can_be_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = find_server(name).path
    if program.is_relative_to("/usr"):
        pytest.skip(f"{program} is the machine's own, and was not unpacked")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    installed, made = install_from(program.parents[1], lambda line: None)
    with run_server(str(installed.program), tmp_path, networking=False) as server:
        (row,) = server.execute("SELECT @@basedir AS base, COUNT(*) AS n FROM sbtest1")
    assert made
    assert (row["n"], str(row["base"]).rstrip("/")) == (100, str(program.parents[1]))
