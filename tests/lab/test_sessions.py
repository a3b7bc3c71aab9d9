"""Sessions of the engine with each installed kind of server, and their receipts: TLS, compression, authentication."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from howfar.contract.messages import Compression, LoadJob, Session, Sysbench, TcpTarget, Tls, UnixTarget
from howfar.engine.process import EngineFailed, Launcher
from howfar.engine.receipt_check import mismatches
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.lab.servers import DATABASE, USER
from tests.lab import accounts, certificates
from tests.lab.local_servers import ONE_TABLE, LocalServer, run_server

pytestmark = pytest.mark.lab
CLIENT_PLUGINS = {
    "mysql_native_password": "mysql_native_password",
    "caching_sha2_password": "caching_sha2_password",
    "ed25519": "client_ed25519",
    "parsec": "parsec",
}
"""Name of the client plugin by the server's name of the authentication method."""
PASSWORD = "pass word"


def _load(target: UnixTarget | TcpTarget, session: Session, user: str, password: str, **more: Any) -> LoadOutcome:
    """Run 60 transactions and check that the receipt matches the request."""
    settings: dict[str, Any] = {"tables": ONE_TABLE.count, "table_size": ONE_TABLE.size, **more}
    job = LoadJob(
        target=target,
        user=user,
        password=password,
        database=DATABASE,
        session=session,
        workload=Sysbench(kind="oltp_read_only", **settings),
        connections=3,
        seed=1,
        warmup_ns=0,
        measure_ns=20_000_000_000,
        transactions=60,
        client_work="decode",
    )
    outcome = run_load(job, Launcher())
    assert outcome.finished.transactions > 0
    assert sum(outcome.finished.errors.values()) == 0
    assert mismatches(job, outcome.ready.receipt) == ()
    return outcome


def _load_as_lab(server: LocalServer, session: Session, **more: Any) -> LoadOutcome:
    """`_load` over TCP with the laboratory's account, which consents to any way of sending its password."""
    consents = session.model_copy(update={"fetch_server_key": True, "allow_cleartext_password": True})
    return _load(server.tcp, consents, USER, server.password, **more)


def _check_refused(server: LocalServer, session: Session, code: str, *fragments: str) -> None:
    with pytest.raises(EngineFailed) as caught:
        _load_as_lab(server, session)
    message = f"{caught.value.message} {caught.value.advice}"
    assert all(fragment in message for fragment in fragments), message
    assert caught.value.code == code


# ---------------------------------------------------------------- TLS


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_client_and_server_report_the_requested_tls_version(server: LocalServer, version: str) -> None:
    receipt = _load_as_lab(server, Session(tls=Tls(versions=version))).ready.receipt
    assert receipt.tls_version == receipt.tls_client_version == f"TLSv{version}"
    assert receipt.tls_cipher == receipt.tls_client_cipher
    assert receipt.tls_group in ("X25519", "secp256r1", "secp384r1")


def test_tls_works_over_a_unix_socket(server: LocalServer) -> None:
    outcome = _load(server.unix, Session(tls=Tls()), USER, server.password)
    assert outcome.ready.receipt.tls_version == "TLSv1.3"


@pytest.mark.parametrize(
    "cipher", ["TLS_AES_128_GCM_SHA256", "TLS13_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]
)
def test_the_requested_cipher_is_used(server: LocalServer, cipher: str) -> None:
    _load_as_lab(server, Session(tls=Tls(cipher=cipher)))


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("resumption", [True, False])
def test_sessions_are_resumed_only_if_requested(server: LocalServer, version: str, resumption: bool) -> None:
    receipt = _load_as_lab(server, Session(tls=Tls(versions=version, resumption=resumption))).ready.receipt
    assert receipt.tls_resumed is resumption


@pytest.mark.parametrize(
    ("verify", "server_name"), [("ca", None), ("ca", "db.example"), ("full", "127.0.0.1"), ("full", "localhost")]
)
def test_our_authority_is_accepted(
    server: LocalServer, authority: certificates.Certificates, verify: Any, server_name: str | None
) -> None:
    _load_as_lab(server, Session(tls=Tls(verify=verify, ca_file=str(authority.ca), server_name=server_name)))


def test_another_authority_of_the_same_name_is_refused(server: LocalServer, tmp_path: Path) -> None:
    other = certificates.make_certificates(tmp_path)
    for verify in ("ca", "full"):
        tls = Tls(verify=verify, ca_file=str(other.ca), server_name="localhost")
        _check_refused(
            server, Session(tls=tls), "tls", "signature", "is wrong", "authority that signed it", "sslrootcert"
        )


def test_another_name_is_refused(server: LocalServer, authority: certificates.Certificates) -> None:
    tls = Tls(verify="full", ca_file=str(authority.ca), server_name="db.example")
    _check_refused(server, Session(tls=tls), "tls", "db.example", "not made out to")


def test_a_cipher_that_does_not_fit_the_certificate_is_refused(server: LocalServer) -> None:
    _check_refused(server, Session(tls=Tls(cipher="ECDHE-RSA-AES128-GCM-SHA256")), "tls", "cipher suite")


def test_an_account_that_requires_a_certificate_accepts_it(
    server: LocalServer, authority: certificates.Certificates, name: str
) -> None:
    authentication = "caching_sha2_password" if name == "mysql" else "mysql_native_password"
    account = accounts.create_account(server, authentication, PASSWORD, require="X509")
    certified = Tls(
        verify="ca",
        ca_file=str(authority.ca),
        cert_file=str(authority.client_certificate),
        key_file=str(authority.client_key),
    )
    _load(server.tcp, Session(tls=certified), account.user, PASSWORD)
    with pytest.raises(EngineFailed) as caught:
        _load(server.tcp, Session(tls=Tls()), account.user, PASSWORD)
    assert caught.value.code == "auth"
    assert "refused the login" in caught.value.message


def test_a_server_without_tls_is_refused_if_tls_is_requested(name: str, tmp_path: Path) -> None:
    if name != "mariadb":
        pytest.skip("other servers make their own certificates")
    with run_server(name, tmp_path) as plain:
        _check_refused(plain, Session(tls=Tls()), "tls", "offers no TLS", "ssl_cert")


# ---------------------------------------------------------------- compression


@pytest.mark.parametrize("tls", [None, Tls()], ids=["plain", "tls"])
@pytest.mark.parametrize("mode", ["auto", "disable"])
def test_zlib_does_not_change_the_counted_rows(server: LocalServer, tls: Tls | None, mode: str) -> None:
    """Ranges are long enough for several compressed frames. The engine counts bytes before compression."""
    sizes = {"table_size": ONE_TABLE.size, "range_size": ONE_TABLE.size, "db_ps_mode": mode}
    plain = _load_as_lab(server, Session(), **sizes).finished
    outcome = _load_as_lab(server, Session(tls=tls, compression=Compression(algorithm="zlib", level=1)), **sizes)
    packed = outcome.finished
    assert outcome.ready.receipt.compression == "zlib"
    assert packed.rows / packed.transactions == pytest.approx(plain.rows / plain.transactions, rel=0.1)


def test_zstd_is_used_or_refused(server: LocalServer, name: str) -> None:
    session = Session(compression=Compression(algorithm="zstd", level=7))
    if name != "mysql":
        _check_refused(server, session, "connect", "no compression by zstd", "zlib")
        return
    receipt = _load_as_lab(server, session).ready.receipt
    assert (receipt.compression, receipt.compression_level) == ("zstd", 7)
    _load_as_lab(server, Session(tls=Tls(), compression=Compression(algorithm="zstd")))


# ---------------------------------------------------------------- authentication


@pytest.mark.parametrize("transport", ["socket", "tcp", "tls"])
def test_each_authentication_method_over_each_transport(server: LocalServer, transport: str) -> None:
    """The server's login cache is empty, so caching_sha2_password performs the full authentication."""
    for authentication in accounts.supported_methods(server):
        if authentication not in CLIENT_PLUGINS:
            continue
        account = accounts.create_account(server, authentication, PASSWORD)
        accounts.clear_login_cache(server)
        target = server.unix if transport == "socket" else server.tcp
        session = Session(
            tls=Tls() if transport == "tls" else None,
            fetch_server_key=True,
            allow_cleartext_password=transport == "tls",
        )
        first = _load(target, session, account.user, account.password)
        assert first.ready.receipt.auth_plugin == CLIENT_PLUGINS[authentication]
        _load(target, session, account.user, account.password)
        with pytest.raises(EngineFailed) as caught:
            _load(target, session, account.user, "another")
        assert caught.value.code == "auth"


def test_a_full_login_without_tls_needs_the_servers_key(server: LocalServer, name: str, tmp_path: Path) -> None:
    if name != "mysql":
        pytest.skip("caching_sha2_password is MySQL's")
    account = accounts.create_account(server, "caching_sha2_password", PASSWORD)
    accounts.clear_login_cache(server)
    with pytest.raises(EngineFailed) as caught:
        _load(server.tcp, Session(), account.user, PASSWORD)
    assert "server-public-key-path" in caught.value.advice
    assert "--get-server-public-key" in caught.value.advice

    rows = server.execute("SHOW STATUS LIKE 'Caching_sha2_password_rsa_public_key'")
    key = tmp_path / "server-key.pem"
    key.write_text(str(rows[0]["Value"]))
    _load(server.tcp, Session(server_key_file=str(key)), account.user, PASSWORD)

    other = tmp_path / "other.pem"
    made = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    private = subprocess.run(made, capture_output=True, check=True).stdout
    public = subprocess.run(["openssl", "pkey", "-pubout"], input=private, capture_output=True, check=True).stdout
    other.write_bytes(public)
    accounts.clear_login_cache(server)
    with pytest.raises(EngineFailed):
        _load(server.tcp, Session(server_key_file=str(other)), account.user, PASSWORD)


def test_a_full_login_over_tls_needs_a_verified_server_or_consent(
    server: LocalServer, name: str, authority: certificates.Certificates
) -> None:
    if name != "mysql":
        pytest.skip("caching_sha2_password is MySQL's")
    account = accounts.create_account(server, "caching_sha2_password", PASSWORD)
    accounts.clear_login_cache(server)
    with pytest.raises(EngineFailed) as caught:
        _load(server.tcp, Session(tls=Tls()), account.user, PASSWORD)
    assert caught.value.code == "auth"
    assert "--allow-cleartext-password" in caught.value.advice
    _load(server.tcp, Session(tls=Tls(verify="ca", ca_file=str(authority.ca))), account.user, PASSWORD)
    accounts.clear_login_cache(server)
    _load(server.tcp, Session(tls=Tls(), allow_cleartext_password=True), account.user, PASSWORD)
