"""Creates a CA and a server's certificate for one laboratory; nothing else trusts them.

Keys are EC P-256, as on most of today's sites. The cost of a handshake depends on the type of key, so every receipt contains the type.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from howfar.lab.servers import CertificatePaths

if TYPE_CHECKING:  # most laboratories have no TLS
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

KEY_TYPE = "EC P-256"
_VALIDITY = datetime.timedelta(days=30)
"""Period of validity, longer than any run."""
_CLOCK_SLACK = datetime.timedelta(days=1)


def make_certificates(
    directory: Path, addresses: Sequence[str], names: Sequence[str] = ("localhost",)
) -> CertificatePaths:
    """Create a CA and a server's certificate for `addresses` and `names` in `directory`; only the owner can read the key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = _x509_name("howfar laboratory")
    ca = (
        _certificate_builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    alternative_names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    alternative_names += [x509.DNSName(name) for name in names]
    server = (
        _certificate_builder(_x509_name("howfar server"), ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server_key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    paths = CertificatePaths(directory / "ca.pem", directory / "server.pem", directory / "server-key.pem")
    paths.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    paths.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    paths.key.touch(mode=0o600)
    paths.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths


def pinned_context(certificates: CertificatePaths, version: str) -> ssl.SSLContext:
    """A Python client's TLS context, which verifies the server's certificate and name and allows only `version`, such as `TLSv1.3`."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version.replace(".", "_")]
    return context


def _x509_name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + _VALIDITY)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
