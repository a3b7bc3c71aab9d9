"""Certificates for tests: an authority, a server and a client, with EC P-256 keys, made by the openssl command in about 50 ms.

The server's certificate names every address that the laboratory gives a server. Each call makes another authority.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from howfar.lab.network import SERVER_ADDRESS
from howfar.lab.servers import CertificatePaths

_NO_CONFIGURATION = "[req]\ndistinguished_name = none\n[none]\n"
"""Replaces the machine's configuration, which would add extensions."""


@dataclass(frozen=True)
class Certificates:
    """PEM files; keys are PKCS #8 and readable only by their owner."""

    ca: Path
    server: CertificatePaths
    client_certificate: Path
    client_key: Path


def make_certificates(
    directory: Path, *, names: str = f"IP:127.0.0.1,IP:{SERVER_ADDRESS},DNS:localhost"
) -> Certificates:
    """Make certificates in `directory`, which must exist. `names`: the server's subjectAltName in openssl's notation."""
    (directory / "openssl.cnf").write_text(_NO_CONFIGURATION)
    ca, ca_key = _sign(
        directory, "ca", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign", issuer=None
    )
    leaf = ("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature")
    issuer = (ca, ca_key)
    certificate, key = _sign(
        directory, "server", *leaf, "extendedKeyUsage=serverAuth", f"subjectAltName={names}", issuer=issuer
    )
    client, client_key = _sign(directory, "client", *leaf, "extendedKeyUsage=clientAuth", issuer=issuer)
    return Certificates(ca, CertificatePaths(ca, certificate, key), client, client_key)


def make_unusual_certificates(directory: Path, authority: Certificates) -> dict[str, CertificatePaths]:
    """Make unusual certificates for localhost, by kind, which real servers have and their own clients accept."""
    issuer, subject = (authority.ca, authority.ca.with_name("ca-key.pem")), "localhost"
    leaf, name = "basicConstraints=CA:FALSE", "subjectAltName=DNS:localhost,IP:127.0.0.1"
    cn_only = _sign(directory, "cn-only", leaf, issuer=issuer, subject=subject)
    p521 = _sign(directory, "p521", leaf, name, issuer=issuer, curve="P-521")
    self_signed = _sign(directory, "self-signed", "basicConstraints=CA:TRUE", issuer=None, subject=subject)
    v1 = directory / "v1.pem", cn_only[1]
    request = directory / "v1.csr"
    new = ["-config", str(directory / "openssl.cnf"), "-new", "-key", str(v1[1]), "-subj", f"/CN={subject}"]
    _openssl("req", *new, "-out", str(request))
    signing = ["-CA", str(issuer[0]), "-CAkey", str(issuer[1]), "-CAcreateserial"]
    _openssl("x509", "-req", "-in", str(request), *signing, "-days", "30", "-out", str(v1[0]))
    assert "Version: 1 " in _openssl("x509", "-in", str(v1[0]), "-noout", "-text")
    pairs = {"cn-only": cn_only, "p521": p521, "v1": v1}
    return {kind: CertificatePaths(authority.ca, *pair) for kind, pair in pairs.items()} | {
        "good": authority.server,
        "self-signed": CertificatePaths(self_signed[0], *self_signed),
    }


def _openssl(*arguments: str) -> str:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"openssl {arguments[0]}: {done.stderr}"
    return done.stdout


def _sign(
    directory: Path,
    name: str,
    *extensions: str,
    issuer: tuple[Path, Path] | None,
    subject: str | None = None,
    curve: str = "P-256",
) -> tuple[Path, Path]:
    """Make a certificate and its key; self-signed if `issuer` is None."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    command = ["req", "-x509", "-config", str(directory / "openssl.cnf"), "-days", "365", "-sha256"]
    command += ["-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-nodes"]
    command += ["-subj", f"/CN={subject or f'howfar test {name}'}", "-out", str(certificate), "-keyout", str(key)]
    for extension in extensions:
        command += ["-addext", extension]
    if issuer is not None:
        command += ["-CA", str(issuer[0]), "-CAkey", str(issuer[1])]
    _openssl(*command)
    key.chmod(0o600)
    return certificate, key
