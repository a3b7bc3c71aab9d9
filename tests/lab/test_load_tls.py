"""`howfar load` connects by TLS exactly where the servers' own clients do: certificates, names, proxies."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from howfar.lab.servers import DATABASE, USER, CertificatePaths
from tests.lab import accounts, certificates
from tests.lab.howfar_runs import call_howfar
from tests.lab.listeners import serve_tcp
from tests.lab.local_servers import ONE_TABLE, LocalServer, require_server, run_server

_SSL_REQUEST = struct.pack("!II", 8, 80_877_103)


@dataclass(frozen=True)
class Proxy:
    """A proxy's port, and the server names (SNI) that clients sent in their handshakes."""

    port: int
    names: list[str | None] = field(default_factory=list)


Begin = Callable[[socket.socket, socket.socket, ssl.SSLContext], tuple[socket.socket, socket.socket]]


def terminate_tls(
    client: socket.socket, server: socket.socket, context: ssl.SSLContext
) -> tuple[socket.socket, socket.socket]:
    """PostgreSQL: the client has TLS, the connection to the server has none."""
    if client.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL) == _SSL_REQUEST:
        client.recv(8)
        client.sendall(b"S")
    return context.wrap_socket(client, server_side=True), server


def reencrypt_postgresql(
    client: socket.socket, server: socket.socket, context: ssl.SSLContext
) -> tuple[socket.socket, socket.socket]:
    """PostgreSQL: the connection to the server has a separate TLS session."""
    near, _ = terminate_tls(client, server, context)
    server.sendall(_SSL_REQUEST)
    assert server.recv(1) == b"S"
    return near, _unverified_context().wrap_socket(server)


def reencrypt_mysql(
    client: socket.socket, server: socket.socket, context: ssl.SSLContext
) -> tuple[socket.socket, socket.socket]:
    """MySQL: greeting and TLS request are forwarded, then each side has a TLS session with the proxy, as with a man in the middle."""
    client.sendall(_read_packet(server))
    server.sendall(_read_packet(client))
    return context.wrap_socket(client, server_side=True), _unverified_context().wrap_socket(server)


def _read_packet(stream: socket.socket) -> bytes:
    header = stream.recv(4, socket.MSG_WAITALL)
    return header + stream.recv(int.from_bytes(header[:3], "little"), socket.MSG_WAITALL)


def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def run_proxy(
    server: tuple[str, int],
    certificate: CertificatePaths,
    *,
    begin: Begin = terminate_tls,
    known: Sequence[str] = (),
    ciphers: str | None = None,
) -> Iterator[Proxy]:
    """Listen on 127.0.0.1 for clients of `server`. `known`: if given, the only accepted names. `ciphers`: TLS 1.2 with only these."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.set_alpn_protocols(["postgresql"])
    if ciphers is not None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)

    def forward(client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(server) as upstream:
            near, far = begin(client, upstream, context)
            with near, far:
                _relay(near, far)

    with serve_tcp(forward) as port:
        proxy = Proxy(port)

        def check_name(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
            proxy.names.append(name)
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if known and name not in known else None

        context.sni_callback = check_name
        yield proxy


def _relay(near: socket.socket, far: socket.socket) -> None:
    """Relay in one thread, because OpenSSL allows only one to use a connection. Ends when either side ends."""
    while True:
        decrypted = [end for end in (near, far) if isinstance(end, ssl.SSLSocket) and end.pending()]
        for source in decrypted or select.select((near, far), (), ())[0]:
            source.setblocking(False)  # the readable data may be only a session ticket
            try:
                data = source.recv(65_536)
            except (ssl.SSLWantReadError, BlockingIOError):
                continue
            finally:
                source.setblocking(True)
            if not data:
                return
            (far if source is near else near).sendall(data)


_OPTIONS = (f"--tables={ONE_TABLE.count}", f"--table-size={ONE_TABLE.size}", "--events=2", "--time=60", "--json")


@pytest.fixture(scope="module")
def unusual(
    tmp_path_factory: pytest.TempPathFactory, authority: certificates.Certificates
) -> dict[str, CertificatePaths]:
    folder = tmp_path_factory.mktemp("unusual")
    shutil.copy(authority.ca.with_name("openssl.cnf"), folder)
    return certificates.make_unusual_certificates(folder, authority)


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make_certificates(tmp_path_factory.mktemp("other_authority"))


@pytest.fixture(scope="module")
def plain(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """PostgreSQL without TLS."""
    with run_server("postgresql", tmp_path_factory.mktemp("p", numbered=True)) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(
    postgresql: None, authority: certificates.Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """PostgreSQL with TLS."""
    with run_server("postgresql", tmp_path_factory.mktemp("p", numbered=True), tls=authority.server) as server:
        yield server


def _load(dsn: str, password: str, user: str = USER) -> tuple[int, dict[str, Any]]:
    """The exit code and the last line."""
    done = call_howfar(
        "load", dsn, "oltp_point_select", *_OPTIONS, env={"HOWFAR_PASSWORD": password, "HOME": "/nonexistent"}
    )
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {"message": done.stderr}


def _load_and_psql(
    server: LocalServer, port: int, parameters: str, host: str = "localhost"
) -> tuple[int, dict[str, Any], bool]:
    """`_load`, and whether psql connects."""
    code, last = _load(f"postgresql://{USER}@{host}:{port}/{DATABASE}?{parameters}", server.password)
    done = subprocess.run(
        ["psql", "-Atc", "SELECT 1", f"postgresql://{USER}@{host}:{port}/{DATABASE}?{parameters}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PGPASSWORD": server.password, "HOME": "/nonexistent"},
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
def test_a_certificate_that_psql_accepts_is_accepted(
    kind: str, parameters: str, plain: LocalServer, unusual: dict[str, CertificatePaths]
) -> None:
    """A proxy terminates TLS before the server: the load is valid, and a note reports what is proven of each half of the path."""
    with run_proxy(plain.address, unusual[kind]) as proxy:
        code, last, connects = _load_and_psql(plain, proxy.port, parameters.format(ca=unusual[kind].ca))
    assert (code, connects) == (0, True), last
    assert last["mismatches"] == []
    (note,) = last["notes"]
    assert "TLSv1." in note and "the server reports no TLS" in note


@pytest.mark.parametrize(
    ("kind", "parameters", "host"),
    [
        ("v1", "sslmode=verify-ca&sslrootcert={other}", "localhost"),
        ("self-signed", "sslmode=verify-ca&sslrootcert={other}", "localhost"),
        ("cn-only", "sslmode=verify-full&sslrootcert={ca}", "127.0.0.1"),
        ("cn-only", "sslmode=verify-full&sslrootcert={other}", "localhost"),
        ("p521", "sslmode=verify-ca&sslrootcert={other}", "localhost"),
    ],
)
def test_a_certificate_that_psql_refuses_is_refused_with_a_message(
    kind: str,
    parameters: str,
    host: str,
    plain: LocalServer,
    unusual: dict[str, CertificatePaths],
    other_authority: certificates.Certificates,
) -> None:
    """[tls-8]"""
    with run_proxy(plain.address, unusual[kind]) as proxy:
        filled = parameters.format(ca=unusual[kind].ca, other=other_authority.ca)
        code, last, connects = _load_and_psql(plain, proxy.port, filled, host)
    assert (code, last["code"], connects) == (10, "tls", False), last
    assert "certificate" in last["message"] and "Error" not in last["message"] and "(" not in last["message"]


@pytest.mark.parametrize("parameters", ["sslmode=require", "sslmode=verify-ca&sslrootcert={ca}"])
def test_the_server_name_is_sent_unless_it_is_disabled_or_an_address(
    parameters: str, plain: LocalServer, unusual: dict[str, CertificatePaths]
) -> None:
    """[tls-2]"""
    filled = parameters.format(ca=unusual["good"].ca)
    with run_proxy(plain.address, unusual["good"], known=["localhost"]) as proxy:
        code, last, connects = _load_and_psql(plain, proxy.port, filled)
        assert (code, connects) == (0, True), last
        assert set(proxy.names) == {"localhost"}
        for host, more in (("localhost", "&sslsni=0"), ("127.0.0.1", "")):
            code, last, connects = _load_and_psql(plain, proxy.port, filled + more, host)
            assert (code, connects) == (10, False), last
            assert "SNI" in last["message"]
        assert set(proxy.names) == {"localhost", None}


def test_a_handshake_without_a_common_cipher_names_the_offered_ones(
    plain: LocalServer, unusual: dict[str, CertificatePaths]
) -> None:
    """[tls-7]"""
    with run_proxy(plain.address, unusual["good"], ciphers="ECDHE-ECDSA-AES256-SHA") as proxy:
        code, last, connects = _load_and_psql(plain, proxy.port, "sslmode=require")
    assert (code, last["code"], connects) == (10, "tls", True)
    for offered in ("ECDHE-RSA-AES128-GCM-SHA256", "X25519", "P-521"):
        assert offered in last["message"]
    assert "ssl_cipher" in last["advice"]


def test_channel_binding_of_a_login_agrees_with_psql(
    plain: LocalServer, encrypted: LocalServer, unusual: dict[str, CertificatePaths]
) -> None:
    """[load-8]"""
    direct = encrypted.address[1]
    for wanted in ("require", "prefer", "disable"):
        found = _load_and_psql(encrypted, direct, f"sslmode=require&channel_binding={wanted}", "127.0.0.1")
        assert (found[0], found[2]) == (0, True), (wanted, found)
    with run_proxy(plain.address, unusual["good"], begin=terminate_tls) as proxy:
        code, last, connects = _load_and_psql(plain, proxy.port, "sslmode=require&channel_binding=require")
        assert (code, last["code"], connects) == (11, "auth", False), last
    with run_proxy(encrypted.address, unusual["good"], begin=reencrypt_postgresql) as proxy:
        code, last, connects = _load_and_psql(encrypted, proxy.port, "sslmode=require")
        assert (code, connects) == (0, True), "proxy and server have the same certificate"
    with run_proxy(encrypted.address, unusual["v1"], begin=reencrypt_postgresql) as proxy:
        code, last, connects = _load_and_psql(encrypted, proxy.port, "sslmode=require")
        assert (code, last["code"], connects) == (11, "auth", False), "the server has another certificate"
        code, last, connects = _load_and_psql(encrypted, proxy.port, "sslmode=require&channel_binding=disable")
        assert (code, connects) == (0, True), last


@pytest.fixture(scope="module")
def mariadb_11(authority: certificates.Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    require_server("mariadb-11")
    with run_server("mariadb-11", tmp_path_factory.mktemp("m", numbered=True), tls=authority.server) as server:
        yield server


@pytest.mark.parametrize("by", ["mysql_native_password", "ed25519", "parsec"])
def test_mariadb_proves_its_certificate_by_the_password(
    by: str, mariadb_11: LocalServer, unusual: dict[str, CertificatePaths]
) -> None:
    """[tls-9] [cli-12] No authority is needed. A man in the middle with another certificate cannot prove it."""
    if by not in accounts.supported_methods(mariadb_11):
        pytest.skip(f"this server has no {by}")
    account = accounts.create_account(mariadb_11, by, "correct horse")
    address = mariadb_11.address

    def load(port: int, password: str = account.password) -> tuple[int, dict[str, Any]]:
        dsn = f"mariadb://{account.user}@127.0.0.1:{port}/{DATABASE}?ssl-mode=VERIFY_IDENTITY"
        return _load(dsn, password, account.user)

    code, last = load(address[1])
    assert code == 0, last
    with run_proxy(address, unusual["good"], begin=reencrypt_mysql) as proxy:
        code, last = load(proxy.port)
        assert code == 0, "the proxy has the server's certificate"
    with run_proxy(address, unusual["v1"], begin=reencrypt_mysql) as proxy:
        code, last = load(proxy.port)
        assert (code, last["code"]) == (10, "tls"), last
    mariadb_11.execute(f"ALTER USER {account.user}@'%' IDENTIFIED VIA {by} USING PASSWORD('')")
    code, last = load(address[1], "")
    assert (code, last["code"]) == (10, "tls"), "an empty password proves nothing"
