"""Sessions of the engine with each installed kind of server: TLS, compression, authentication; and their receipts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from howfar.contract.messages import (
    Compression,
    LoadJob,
    Session,
    Sysbench,
    TcpTarget,
    Tls,
    UnixTarget,
)
from howfar.engine.process import EngineFailed, Launcher
from howfar.engine.receipt_check import mismatches
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.lab.servers import DATABASE, USER
from tests.lab import accounts, certificates
from tests.lab.servers_here import ONE_TABLE, Running, prepared, short_directory, started

pytestmark = pytest.mark.lab
ENGINES_PLUGINS = {
    "mysql_native_password": "mysql_native_password",
    "caching_sha2_password": "caching_sha2_password",
    "ed25519": "client_ed25519",
    "parsec": "parsec",
}
"""The server's name of an authentication method, and the name of its client plugin."""
PASSWORD = "pass word"


def _tcp(running: Running) -> TcpTarget:
    host, port = running.address
    return TcpTarget(host=host, port=port)


def _socket(running: Running) -> UnixTarget:
    return UnixTarget(path=str(running.server.socket))


def _load(target: UnixTarget | TcpTarget, session: Session, user: str, password: str, **more: Any) -> LoadOutcome:
    """Run a few transactions, however long they take, and check that the receipt matches the request."""
    settings: dict[str, Any] = {
        "kind": "oltp_read_only",
        "tables": ONE_TABLE.count,
        "table_size": ONE_TABLE.size,
        **more,
    }
    job = LoadJob(
        target=target,
        user=user,
        password=password,
        database=DATABASE,
        session=session,
        workload=Sysbench(**settings),
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


def _own(running: Running, session: Session, **more: Any) -> LoadOutcome:
    consents = session.model_copy(update={"fetch_server_key": True, "allow_cleartext_password": True})
    return _load(_tcp(running), consents, USER, running.password, **more)


def _refused(running: Running, session: Session, code: str, *expected: str) -> None:
    with pytest.raises(EngineFailed) as caught:
        _own(running, session)
    message = f"{caught.value.message} {caught.value.advice}"
    assert all(word in message for word in expected), message
    assert caught.value.code == code


# ---------------------------------------------------------------- TLS


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_tls_of_each_version_is_what_both_sides_say(running: Running, version: str) -> None:
    receipt = _own(running, Session(tls=Tls(versions=version))).ready.receipt
    assert receipt.tls_version == receipt.tls_client_version == f"TLSv{version}"
    assert receipt.tls_cipher == receipt.tls_client_cipher
    assert receipt.tls_group in ("X25519", "secp256r1", "secp384r1")


def test_tls_serves_a_socket_too(running: Running) -> None:
    outcome = _load(_socket(running), Session(tls=Tls()), USER, running.password)
    assert outcome.ready.receipt.tls_version == "TLSv1.3"


@pytest.mark.parametrize(
    "cipher", ["TLS_AES_128_GCM_SHA256", "TLS13_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]
)
def test_the_cipher_is_the_one_that_was_named(running: Running, cipher: str) -> None:
    _own(running, Session(tls=Tls(cipher=cipher)))


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("resumption", [True, False])
def test_sessions_are_resumed_only_where_asked(running: Running, version: str, resumption: bool) -> None:
    receipt = _own(running, Session(tls=Tls(versions=version, resumption=resumption))).ready.receipt
    assert receipt.tls_resumed is resumption


@pytest.mark.parametrize(
    ("verify", "server_name"), [("ca", None), ("ca", "db.example"), ("full", "127.0.0.1"), ("full", "localhost")]
)
def test_our_authority_is_believed(
    running: Running, authority: certificates.Certificates, verify: Any, server_name: str | None
) -> None:
    _own(running, Session(tls=Tls(verify=verify, ca_file=str(authority.ca), server_name=server_name)))


def test_another_authority_of_the_same_name_is_refused(running: Running, tmp_path: Path) -> None:
    other = certificates.make(tmp_path)
    for verify in ("ca", "full"):
        tls = Tls(verify=verify, ca_file=str(other.ca), server_name="localhost")
        _refused(running, Session(tls=tls), "tls", "signature", "is wrong", "authority that signed it", "sslrootcert")


def test_another_name_is_refused(running: Running, authority: certificates.Certificates) -> None:
    tls = Tls(verify="full", ca_file=str(authority.ca), server_name="db.example")
    _refused(running, Session(tls=tls), "tls", "db.example", "not made out to")


def test_a_cipher_that_the_certificate_cannot_serve_is_refused(running: Running) -> None:
    _refused(running, Session(tls=Tls(cipher="ECDHE-RSA-AES128-GCM-SHA256")), "tls", "cipher suite")


def test_a_client_certificate_opens_what_demands_one(
    running: Running, authority: certificates.Certificates, name: str
) -> None:
    authentication = "caching_sha2_password" if name == "mysql" else "mysql_native_password"
    account = accounts.create(running, authentication, PASSWORD, require="X509")
    certified = Tls(
        verify="ca",
        ca_file=str(authority.ca),
        cert_file=str(authority.client_certificate),
        key_file=str(authority.client_key),
    )
    _load(_tcp(running), Session(tls=certified), account.user, PASSWORD)
    with pytest.raises(EngineFailed) as caught:
        _load(_tcp(running), Session(tls=Tls()), account.user, PASSWORD)
    assert caught.value.code == "auth"
    assert "refused the login" in caught.value.message


def test_a_server_without_tls_is_refused_and_never_spoken_to_in_plain(name: str, tmp_path: Path) -> None:
    if name != "mariadb":
        pytest.skip("the others make certificates for themselves")
    with started(prepared(name, short_directory(tmp_path))) as plain:
        _refused(plain, Session(tls=Tls()), "tls", "offers no TLS", "ssl_cert")


# ---------------------------------------------------------------- compression


@pytest.mark.parametrize("tls", [None, Tls()], ids=["plain", "tls"])
@pytest.mark.parametrize("mode", ["auto", "disable"])
def test_zlib_shrinks_nothing_that_is_counted(running: Running, tls: Tls | None, mode: str) -> None:
    """Ranges long enough for several frames; the engine counts bytes before compression."""
    sizes = {"table_size": ONE_TABLE.size, "range_size": ONE_TABLE.size, "db_ps_mode": mode}
    plain = _own(running, Session(), **sizes).finished
    outcome = _own(running, Session(tls=tls, compression=Compression(algorithm="zlib", level=1)), **sizes)
    packed = outcome.finished
    assert outcome.ready.receipt.compression == "zlib"
    assert packed.rows / packed.transactions == pytest.approx(plain.rows / plain.transactions, rel=0.1)


def test_zstd_is_had_or_refused(running: Running, name: str) -> None:
    session = Session(compression=Compression(algorithm="zstd", level=7))
    if name != "mysql":
        _refused(running, session, "connect", "no compression by zstd", "zlib")
        return
    receipt = _own(running, session).ready.receipt
    assert (receipt.compression, receipt.compression_level) == ("zstd", 7)
    _own(running, Session(tls=Tls(), compression=Compression(algorithm="zstd")))


# ---------------------------------------------------------------- authentication


@pytest.mark.parametrize("transport", ["socket", "tcp", "tls"])
def test_each_authentication_by_each_way(running: Running, transport: str) -> None:
    """The server's cache is empty, so that caching_sha2_password performs the full authentication."""
    for authentication in accounts.offered(running):
        if authentication not in ENGINES_PLUGINS:
            continue
        account = accounts.create(running, authentication, PASSWORD)
        accounts.forget_logins(running)
        target = _socket(running) if transport == "socket" else _tcp(running)
        session = Session(
            tls=Tls() if transport == "tls" else None,
            fetch_server_key=True,
            allow_cleartext_password=transport == "tls",
        )
        first = _load(target, session, account.user, account.password)
        assert first.ready.receipt.auth_plugin == ENGINES_PLUGINS[authentication]
        _load(target, session, account.user, account.password)
        with pytest.raises(EngineFailed) as caught:
            _load(target, session, account.user, "another")
        assert caught.value.code == "auth"


def test_a_full_login_in_plain_needs_the_servers_key(running: Running, name: str, tmp_path: Path) -> None:
    if name != "mysql":
        pytest.skip("caching_sha2_password is MySQL's")
    account = accounts.create(running, "caching_sha2_password", PASSWORD)
    accounts.forget_logins(running)
    with pytest.raises(EngineFailed) as caught:
        _load(_tcp(running), Session(), account.user, PASSWORD)
    assert "server-public-key-path" in caught.value.advice
    assert "--get-server-public-key" in caught.value.advice

    rows = running.execute("SHOW STATUS LIKE 'Caching_sha2_password_rsa_public_key'")
    key = tmp_path / "server-key.pem"
    key.write_text(str(rows[0]["Value"]))
    _load(_tcp(running), Session(server_key_file=str(key)), account.user, PASSWORD)

    other = tmp_path / "other.pem"
    made = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    private = subprocess.run(made, capture_output=True, check=True).stdout
    public = subprocess.run(["openssl", "pkey", "-pubout"], input=private, capture_output=True, check=True).stdout
    other.write_bytes(public)
    accounts.forget_logins(running)
    with pytest.raises(EngineFailed):
        _load(_tcp(running), Session(server_key_file=str(other)), account.user, PASSWORD)


def test_a_full_login_over_tls_needs_a_verified_server_or_consent(
    running: Running, name: str, authority: certificates.Certificates
) -> None:
    if name != "mysql":
        pytest.skip("caching_sha2_password is MySQL's")
    account = accounts.create(running, "caching_sha2_password", PASSWORD)
    accounts.forget_logins(running)
    with pytest.raises(EngineFailed) as caught:
        _load(_tcp(running), Session(tls=Tls()), account.user, PASSWORD)
    assert caught.value.code == "auth"
    assert "--allow-cleartext-password" in caught.value.advice
    _load(_tcp(running), Session(tls=Tls(verify="ca", ca_file=str(authority.ca))), account.user, PASSWORD)
    accounts.forget_logins(running)
    _load(_tcp(running), Session(tls=Tls(), allow_cleartext_password=True), account.user, PASSWORD)
