"""TLS settings of a session, derived from an address. No I/O."""

from __future__ import annotations

from typing import Any

from howfar.address import ServerAddress, SslMode
from howfar.contract.ping_messages import Tls
from howfar.errors import UsageError

_VERIFY = {"PREFERRED": "none", "REQUIRED": "none", "VERIFY_CA": "ca", "VERIFY_IDENTITY": "full"}


def tls_settings(address: ServerAddress, mode: SslMode, *, resumption: bool = True) -> Tls | None:
    """The TLS settings for a mode; None for DISABLED. PREFERRED: TLS only if the server offers it. Raises UsageError."""
    if mode == "DISABLED":
        return None
    verify: Any = _VERIFY[mode]
    if verify == "ca" and not address.ssl_ca:
        raise UsageError(f"ssl-mode={mode} needs the CA that signed the server's certificate", "Add ssl-ca=FILE.pem.")
    if (address.ssl_cert is None) != (address.ssl_key is None):
        raise UsageError("ssl-cert and ssl-key must be given together", "Name both files, or neither.")
    if verify == "full" and address.host is None:
        raise UsageError("ssl-mode=VERIFY_IDENTITY needs a host name, and a socket has none", "Use VERIFY_CA.")
    if verify == "full" and not address.ssl_ca:
        verify = "password"  # as MariaDB's clients verify without a CA
    return Tls(
        versions=address.tls_versions or "any",
        verify=verify,
        direct=address.tls_direct is True,
        ca_file=address.ssl_ca or None,
        cert_file=address.ssl_cert or None,
        key_file=address.ssl_key or None,
        cipher=address.ssl_cipher,
        server_name=address.host and address.host.partition("%")[0],
        sni=address.sni is not False,
        channel_binding=address.channel_binding or "prefer",
        resumption=resumption,
        optional=mode == "PREFERRED",
    )
