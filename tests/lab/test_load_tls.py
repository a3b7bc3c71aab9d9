"""`howfar load` connects by TLS exactly where the servers' own clients do: certificates, names, programs in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from howfar.errors import HowfarError
from howfar.lab.servers import DATABASE, USER, CertificatePaths
from tests.lab import accounts, certificates
from tests.lab.fronts import ends_tls, front, renews_tls, renews_tls_of_mysql
from tests.lab.load_scenario import HOWFAR
from tests.lab.servers_here import ONE_TABLE, Running, prepared, short_directory, started

_OPTIONS = (f"--tables={ONE_TABLE.count}", f"--table-size={ONE_TABLE.size}", "--events=2", "--time=60", "--json")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, authority: certificates.Certificates) -> dict[str, CertificatePaths]:
    folder = tmp_path_factory.mktemp("odd")
    shutil.copy(authority.ca.with_name("openssl.cnf"), folder)
    return certificates.make_odd(folder, authority)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def plain(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """PostgreSQL without TLS."""
    with started(prepared("postgresql", short_directory(tmp_path_factory.mktemp("p", numbered=True)))) as running:
        yield running


@pytest.fixture(scope="module")
def encrypted(
    postgresql: None, authority: certificates.Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """PostgreSQL with TLS."""
    store = prepared("postgresql", short_directory(tmp_path_factory.mktemp("p", numbered=True)))
    with started(store, tls=authority.server) as running:
        yield running


def _load(dsn: str, password: str, user: str = USER) -> tuple[int, dict[str, Any]]:
    """The exit code and the last line."""
    done = subprocess.run(
        [*HOWFAR, dsn, "oltp_point_select", *_OPTIONS],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOWFAR_PASSWORD": password, "HOME": "/nonexistent"},
    )
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {"message": done.stderr}


def _postgres(
    running: Running, port: int, parameters: str, host: str = "localhost"
) -> tuple[int, dict[str, Any], bool]:
    """`_load`, and whether psql connects."""
    code, last = _load(f"postgresql://{USER}@{host}:{port}/{DATABASE}?{parameters}", running.password)
    done = subprocess.run(
        ["psql", "-Atc", "SELECT 1", f"postgresql://{USER}@{host}:{port}/{DATABASE}?{parameters}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PGPASSWORD": running.password, "HOME": "/nonexistent"},
    )
    return code, last, done.returncode == 0


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        pytest.param("v1", "sslmode=require", id="tls-3-require"),
        pytest.param("v1", "sslmode=verify-ca&sslrootcert={ca}", id="tls-3-verify-ca"),
        pytest.param("v1", "sslmode=verify-full&sslrootcert={ca}", id="tls-3-verify-full"),
        pytest.param("self-signed", "sslmode=require&sslrootcert={ca}", id="tls-4-require"),
        pytest.param("self-signed", "sslmode=verify-ca&sslrootcert={ca}", id="tls-4-verify-ca"),
        pytest.param("self-signed", "sslmode=verify-full&sslrootcert={ca}", id="tls-4-verify-full"),
        pytest.param("cn-only", "sslmode=verify-full&sslrootcert={ca}", id="tls-5"),
        pytest.param("p521", "sslmode=require", id="tls-6-require"),
        pytest.param("p521", "sslmode=require&ssl_max_protocol_version=TLSv1.2", id="tls-6-version-1.2"),
        pytest.param("p521", "sslmode=verify-full&sslrootcert={ca}", id="tls-6-verify-full"),
        pytest.param("good", "sslmode=verify-full&sslrootcert={ca}", id="tls-1"),
    ],
)
def test_a_certificate_that_psql_takes_is_taken(
    kind: str, parameters: str, plain: Running, odd: dict[str, CertificatePaths]
) -> None:
    """TLS ends before the server here: a note reports what is proven of each half of the path, and the load is valid."""
    with front(plain.address, odd[kind]) as before:
        code, last, connects = _postgres(plain, before.port, parameters.format(ca=odd[kind].ca))
    assert (code, connects) == (0, True), last
    assert last["mismatches"] == []
    (note,) = last["notes"]
    assert "TLSv1." in note and "the server reports no TLS" in note


@pytest.mark.parametrize(
    ("kind", "parameters", "host"),
    [
        ("v1", "sslmode=verify-ca&sslrootcert={stranger}", "localhost"),
        ("self-signed", "sslmode=verify-ca&sslrootcert={stranger}", "localhost"),
        ("cn-only", "sslmode=verify-full&sslrootcert={ca}", "127.0.0.1"),
        ("cn-only", "sslmode=verify-full&sslrootcert={stranger}", "localhost"),
        ("p521", "sslmode=verify-ca&sslrootcert={stranger}", "localhost"),
    ],
)
def test_a_certificate_that_psql_refuses_is_refused_in_words(
    kind: str,
    parameters: str,
    host: str,
    plain: Running,
    odd: dict[str, CertificatePaths],
    stranger: certificates.Certificates,
) -> None:
    """[tls-8]"""
    with front(plain.address, odd[kind]) as before:
        filled = parameters.format(ca=odd[kind].ca, stranger=stranger.ca)
        code, last, connects = _postgres(plain, before.port, filled, host)
    assert (code, last["code"], connects) == (5, "tls", False), last
    assert "certificate" in last["message"] and "Error" not in last["message"] and "(" not in last["message"]


@pytest.mark.parametrize("parameters", ["sslmode=require", "sslmode=verify-ca&sslrootcert={ca}"])
def test_the_name_reaches_the_server_unless_it_is_not_to(
    parameters: str, plain: Running, odd: dict[str, CertificatePaths]
) -> None:
    """[tls-2]"""
    filled = parameters.format(ca=odd["good"].ca)
    with front(plain.address, odd["good"], known=["localhost"]) as before:
        code, last, connects = _postgres(plain, before.port, filled)
        assert (code, connects) == (0, True), last
        assert set(before.names) == {"localhost"}
        for host, more in (("localhost", "&sslsni=0"), ("127.0.0.1", "")):
            code, last, connects = _postgres(plain, before.port, filled + more, host)
            assert (code, connects) == (5, False), last
            assert "SNI" in last["message"]
        assert set(before.names) == {"localhost", None}


def test_a_handshake_without_anything_in_common_names_what_is_offered(
    plain: Running, odd: dict[str, CertificatePaths]
) -> None:
    """[tls-7]"""
    with front(plain.address, odd["good"], ciphers="ECDHE-ECDSA-AES256-SHA") as before:
        code, last, connects = _postgres(plain, before.port, "sslmode=require")
    assert (code, last["code"], connects) == (5, "tls", True)
    for offered in ("ECDHE-RSA-AES128-GCM-SHA256", "X25519", "P-521"):
        assert offered in last["message"]
    assert "ssl_cipher" in last["advice"]


def test_a_login_is_bound_to_the_certificate_as_psql_binds_it(
    plain: Running, encrypted: Running, odd: dict[str, CertificatePaths]
) -> None:
    """[load-8]"""
    direct = encrypted.address[1]
    for wanted in ("require", "prefer", "disable"):
        found = _postgres(encrypted, direct, f"sslmode=require&channel_binding={wanted}", "127.0.0.1")
        assert (found[0], found[2]) == (0, True), (wanted, found)
    with front(plain.address, odd["good"], begin=ends_tls) as before:
        code, last, connects = _postgres(plain, before.port, "sslmode=require&channel_binding=require")
        assert (code, last["code"], connects) == (5, "auth", False), last
    with front(encrypted.address, odd["good"], begin=renews_tls) as before:
        code, last, connects = _postgres(encrypted, before.port, "sslmode=require")
        assert (code, connects) == (0, True), "the same certificate at both ends"
    with front(encrypted.address, odd["v1"], begin=renews_tls) as before:
        code, last, connects = _postgres(encrypted, before.port, "sslmode=require")
        assert (code, last["code"], connects) == (5, "auth", False), "another certificate at the server"
        code, last, connects = _postgres(encrypted, before.port, "sslmode=require&channel_binding=disable")
        assert (code, connects) == (0, True), last


@pytest.fixture(scope="module")
def mariadb_11(authority: certificates.Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    try:
        store = prepared("mariadb-11", short_directory(tmp_path_factory.mktemp("m", numbered=True)))
    except HowfarError as error:
        pytest.skip(f"{error.message} {error.advice}")
    with started(store, tls=authority.server) as running:
        yield running


@pytest.mark.parametrize("by", ["mysql_native_password", "ed25519", "parsec"])
def test_mariadb_proves_its_certificate_by_the_password(
    by: str, mariadb_11: Running, odd: dict[str, CertificatePaths]
) -> None:
    """[tls-9] [cli-12] No authority is needed; a man in the middle who forwards everything cannot prove a certificate."""
    if by not in accounts.offered(mariadb_11):
        pytest.skip(f"this server has no {by}")
    account = accounts.create(mariadb_11, by, "correct horse")
    address = mariadb_11.address

    def load(port: int, password: str = account.password) -> tuple[int, dict[str, Any]]:
        dsn = f"mariadb://{account.user}@127.0.0.1:{port}/{DATABASE}?ssl-mode=VERIFY_IDENTITY"
        return _load(dsn, password, account.user)

    code, last = load(address[1])
    assert code == 0, last
    with front(address, odd["good"], begin=renews_tls_of_mysql) as before:
        code, last = load(before.port)
        assert code == 0, "the server's own certificate proves itself"
    with front(address, odd["v1"], begin=renews_tls_of_mysql) as before:
        code, last = load(before.port)
        assert (code, last["code"]) == (5, "tls"), last
    mariadb_11.execute(f"ALTER USER {account.user}@'%' IDENTIFIED VIA {by} USING PASSWORD('')")
    code, last = load(address[1], "")
    assert (code, last["code"]) == (5, "tls"), "a password that anybody knows proves nothing"
