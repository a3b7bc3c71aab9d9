"""Certificates for tests: an authority of their own, a server, a client; EC P-256, made with the openssl command in some 50 ms.

The server is named by every address that the laboratory gives one. Two calls make two authorities that know nothing of each other.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from howfar.lab.network import SERVER_ADDRESS
from howfar.lab.servers import CertificatePaths

_NO_CONFIGURATION = "[req]\ndistinguished_name = none\n[none]\n"
"""The machine's own would add extensions of its own."""


@dataclass(frozen=True)
class Certificates:
    """All in PEM; keys in PKCS #8, readable by their owner only."""

    ca: Path
    server: CertificatePaths
    client_certificate: Path
    client_key: Path


def make(directory: Path, *, names: str = f"IP:127.0.0.1,IP:{SERVER_ADDRESS},DNS:localhost") -> Certificates:
    """Make them in `directory`, which must be there. `names`: the server's, as openssl writes a subjectAltName."""
    (directory / "openssl.cnf").write_text(_NO_CONFIGURATION)
    ca, ca_key = _sign(
        directory, "ca", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign", issuer=None
    )
    end = ("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature")
    issuer = (ca, ca_key)
    certificate, key = _sign(
        directory, "server", *end, "extendedKeyUsage=serverAuth", f"subjectAltName={names}", issuer=issuer
    )
    client, client_key = _sign(directory, "client", *end, "extendedKeyUsage=clientAuth", issuer=issuer)
    return Certificates(ca, CertificatePaths(ca, certificate, key), client, client_key)


def _sign(directory: Path, name: str, *extensions: str, issuer: tuple[Path, Path] | None) -> tuple[Path, Path]:
    """A certificate and its key. `issuer` None: signed by itself."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    command = ["openssl", "req", "-x509", "-config", str(directory / "openssl.cnf"), "-days", "365", "-sha256"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", f"/CN=howfar test {name}", "-out", str(certificate), "-keyout", str(key)]
    for extension in extensions:
        command += ["-addext", extension]
    if issuer is not None:
        command += ["-CA", str(issuer[0]), "-CAkey", str(issuer[1])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"openssl could not make {name}: {done.stderr}"
    key.chmod(0o600)
    return certificate, key
