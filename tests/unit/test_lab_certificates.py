"""Certificates of a laboratory, judged by Python's own TLS: who is believed, under which names, in which version."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from howfar.lab.certificates import make_certificates, pinned_context
from howfar.lab.servers import CertificatePaths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CertificatePaths:
    return make_certificates(tmp_path_factory.mktemp("certificates"), ("127.0.0.1", "10.77.0.2", "fd00:77::2"))


def shake_hands(server: CertificatePaths, client: ssl.SSLContext, name: str) -> str | None:
    """Over a pair of sockets; the version that was agreed upon. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            with context.wrap_socket(far, server_side=True) as wrapped:
                wrapped.recv(1)
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, client.wrap_socket(near, server_hostname=name) as wrapped:
            return wrapped.version()
    finally:
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "10.77.0.2", "fd00:77::2", "localhost"])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_the_server_is_believed_by_each_of_its_names(made: CertificatePaths, name: str, version: str) -> None:
    assert shake_hands(made, pinned_context(made, version), name) == version


def test_the_server_is_believed_by_a_client_that_is_strict(made: CertificatePaths) -> None:
    """As Python is by default from 3.13 on: RFC 5280 demands the identifiers of both keys."""
    strict = pinned_context(made, "TLSv1.3")
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(made, strict, "127.0.0.1") == "TLSv1.3"


def test_another_name_and_another_laboratory_are_not(made: CertificatePaths, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, pinned_context(made, "TLSv1.3"), "10.77.0.1")
    other = make_certificates(tmp_path, ("127.0.0.1",))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, pinned_context(other, "TLSv1.3"), "127.0.0.1")


def test_the_key_is_nobody_elses(made: CertificatePaths) -> None:
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
